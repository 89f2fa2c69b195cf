//! Constant matrices of codes with tables or scales, as Core ML packages hold them.

mod blocks;

use thane_kernels::linear::{self, Mask, TableBytes, TableCodes};
use thane_mil::data::{Bytes, Data};
use thane_mil::literal::Literal;
use thane_mil::program::{Function, Op, ValueId};
use thane_mil::types::DType;

/// A matrix of codes that keeps their bytes alive.
#[derive(Debug)]
pub struct Compressed {
    /// Bits of a code.
    pub n_bits: usize,
    /// The codes.
    pub codes: Bytes,
    /// What they mean.
    pub coding: Coding,
    /// Where there are elements without codes, which are 0: the bits of the others, and how many of
    /// these are in front of each row.
    pub mask: Option<(Bytes, Vec<u32>)>,
    /// Values are rounded to f16.
    pub is_rounded: bool,
    /// Rows and columns.
    pub shape: [usize; 2],
}

/// As [`linear::Coding`].
#[derive(Debug, PartialEq)]
pub enum Coding {
    Table {
        entries: Vec<f32>,
        group_rows: usize,
        width: usize,
        scales: Vec<f32>,
    },
    Scale {
        is_signed: bool,
        scales: Vec<f32>,
        offsets: Vec<f32>,
        group: [usize; 2],
    },
    /// Numbers in f16.
    Half,
}

/// Codes, their bits, and what they mean.
type Coded = (Bytes, usize, Coding);

impl Coding {
    /// Whether values are products with scales.
    fn has_scales(&self) -> bool {
        match self {
            Self::Table { scales, .. } => !scales.is_empty(),
            Self::Scale { .. } => true,
            Self::Half => false,
        }
    }

    /// Whether codes are two's complement.
    pub fn is_signed(&self) -> bool {
        matches!(
            self,
            Self::Scale {
                is_signed: true,
                ..
            }
        )
    }
}

impl Compressed {
    /// The matrix [rows, columns, 1, ..] behind `value`, where it is made of codes in a form that
    /// products read.
    pub fn find(f: &Function, value: ValueId) -> Option<Self> {
        let mut op = f.definer(value)?;
        // To fp32, in which products compute, and without the axes of a kernel of one element.
        while matches!(op.def.name, "cast" | "reshape" | "squeeze") {
            let x = op.value_arg("x")?;
            let from = f.value(x).ty.tensor().filter(|t| t.dtype.is_float())?;
            let to = f.value(*op.results.first()?).ty.tensor()?;
            // What is cast to fewer bits is rounded.
            (from.dtype.bits() <= to.dtype.bits()).then_some(())?;
            op = f.definer(x)?;
        }
        let mut mask = None;
        let (codes, n_bits, coding) = match op.def.name {
            "constexpr_sparse_to_dense" => {
                let (bits, coded) = sparse(f, op)?;
                mask = Some(bits);
                coded
            }
            "constexpr_lut_to_dense" => table(f, op)?,
            "constexpr_blockwise_shift_scale" => scaled_table(f, op).or_else(|| scale(f, op))?,
            "constexpr_affine_dequantize" => affine(f, op)?,
            _ => return None,
        };
        let of = |v: ValueId| matrix_shape(&f.value(v).ty.tensor()?.known_shape()?);
        let (shape, made) = (of(value)?, *op.results.first()?);
        if of(made)? != shape {
            return None;
        }
        let mask = match mask {
            None => None,
            Some(bits) => {
                let starts = Mask::count(bits.as_slice(), shape)?;
                Some((bits, starts))
            }
        };
        let is_half = f.value(made).ty.tensor()?.dtype == DType::Fp16;
        let made = Self {
            n_bits,
            codes,
            is_rounded: is_half && coding.has_scales(),
            mask,
            coding,
            shape,
        };
        made.checked().is_some().then_some(made)
    }

    fn checked(&self) -> Option<linear::Compressed<'_>> {
        let coding = match &self.coding {
            Coding::Table {
                entries,
                group_rows,
                width,
                scales,
            } => linear::Coding::Table {
                entries,
                group_rows: *group_rows,
                width: *width,
                scales,
            },
            Coding::Scale {
                is_signed,
                scales,
                offsets,
                group,
            } => linear::Coding::Scale {
                is_signed: *is_signed,
                scales,
                offsets,
                group: *group,
            },
            Coding::Half => linear::Coding::Half,
        };
        let (n_bits, codes, shape) = (self.n_bits, self.codes.as_slice(), self.shape);
        let made = match &self.mask {
            None => linear::Compressed::new(n_bits, codes, coding, shape),
            Some((bits, starts)) => {
                let bits = bits.as_slice();
                let mask = Mask { bits, starts };
                linear::Compressed::sparse(n_bits, codes, coding, mask, shape)
            }
        }?;
        Some(match self.is_rounded {
            true => made.rounded(),
            false => made,
        })
    }

    /// As products with tables read codes that were packed.
    pub fn table_codes<'a>(
        &self,
        codes: &'a [u8],
        tables: (&'a [TableBytes], &'a [f32]),
    ) -> Option<TableCodes<'a>> {
        TableCodes::new(self.n_bits, codes, tables, self.shape)
    }

    /// As kernels take it.
    ///
    /// # Panics
    /// Never: it was checked when it was made.
    pub fn weight(&self) -> linear::Compressed<'_> {
        #[expect(clippy::unwrap_used, reason = "checked in `find`")]
        self.checked().unwrap()
    }

    /// Whether its values are those of the program bit for bit: not where a code less its offset
    /// is rounded to f16 before it is scaled.
    pub fn is_exact(&self) -> bool {
        match &self.coding {
            Coding::Table { .. } | Coding::Half => true,
            Coding::Scale { offsets, .. } => {
                !self.is_rounded || offsets.iter().all(|offset| offset.fract() == 0.0)
            }
        }
    }

    /// Whether codes mean the same as in another matrix.
    pub fn has_coding_of(&self, other: &Self) -> bool {
        self.n_bits == other.n_bits && self.coding == other.coding
    }

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }
}

/// Rows and columns of a tensor [rows, columns, 1, ..].
fn matrix_shape(shape: &[usize]) -> Option<[usize; 2]> {
    let (matrix, rest) = shape.split_first_chunk::<2>()?;
    rest.iter().all(|n| *n == 1).then_some(*matrix)
}

/// The bytes of a constant, and the bits and shape of its elements.
fn codes(literal: &Literal) -> Option<(Bytes, DType, Vec<usize>)> {
    let Literal::Tensor(ty, Data::Bytes(bytes)) = literal else {
        return None;
    };
    Some((bytes.clone(), ty.dtype, ty.known_shape()?))
}

/// Rows and columns of a group, where `groups` has the number of groups along each axis.
fn group(shape: &[usize], groups: &[usize]) -> Option<[usize; 2]> {
    let (rows, cols) = (shape.first()?, shape.get(1)?);
    let (row_groups, col_groups) = (groups.first()?, groups.get(1)?);
    let is_even = *row_groups > 0
        && *col_groups > 0
        && rows.is_multiple_of(*row_groups)
        && cols.is_multiple_of(*col_groups);
    is_even.then(|| [rows / row_groups, cols / col_groups])
}

/// Indices and their tables.
fn table(f: &Function, op: &Op) -> Option<Coded> {
    if op.def.attributes {
        let entries = f.literal_arg(op, "lut")?.to_floats()?;
        // Packed bits, whose number follows from the table.
        let Literal::Tensor(_, Data::Bytes(bytes)) = f.literal_arg(op, "indices")? else {
            return None;
        };
        let n_bits = entries.len().checked_ilog2()? as usize;
        let coding = Coding::Table {
            entries,
            group_rows: usize::MAX,
            width: 1,
            scales: Vec::new(),
        };
        return Some((bytes.clone(), n_bits, coding));
    }
    let (bytes, dtype, shape) = codes(f.literal_arg(op, "indices")?)?;
    let coding = table_coding(f, op, dtype, &shape)?;
    Some((bytes, dtype.bits(), coding))
}

/// The tables of indices of this type and shape.
fn table_coding(f: &Function, op: &Op, dtype: DType, shape: &[usize]) -> Option<Coding> {
    let lut = f.literal_arg(op, "lut")?;
    let groups = lut.ty().tensor()?.known_shape()?;
    let (groups, entry) = groups.split_at_checked(shape.len())?;
    let [group_rows, group_cols] = group(shape, groups)?;
    let &[n_entries, width] = entry else {
        return None;
    };
    // Vectors lie along the rows.
    let axis = f.literal_arg(op, "vector_axis").and_then(Literal::to_ints);
    let is_along = width == 1 || axis == Some(vec![0]);
    let is_whole = groups.iter().skip(2).all(|n| *n == 1)
        && shape.get(1) == Some(&group_cols)
        && n_entries == 1 << dtype.bits();
    let coding = Coding::Table {
        entries: lut.to_floats()?,
        group_rows: group_rows.saturating_mul(width),
        width,
        scales: Vec::new(),
    };
    (is_whole && is_along).then_some(coding)
}

/// A table whose values are multiplied by a scale of each row, or of all.
fn scaled_table(f: &Function, op: &Op) -> Option<Coded> {
    let dense = f.definer(op.value_arg("data")?)?;
    if dense.def.name != "constexpr_lut_to_dense" || op.arg("offset").is_some() {
        return None;
    }
    let (bytes, n_bits, coding) = table(f, dense)?;
    let shape = f
        .value(*dense.results.first()?)
        .ty
        .tensor()?
        .known_shape()?;
    let scale = f.literal_arg(op, "scale")?;
    let groups = scale.ty().tensor()?.known_shape()?;
    let (n_rows, numbers) = (*shape.first()?, scale.to_floats()?);
    let by_row = groups.iter().skip(1).all(|n| *n == 1);
    let scales = match numbers.as_slice() {
        [one] => vec![*one; n_rows],
        _ if by_row && numbers.len() == n_rows => numbers,
        _ => return None,
    };
    let Coding::Table {
        entries,
        group_rows,
        width,
        ..
    } = coding
    else {
        return None;
    };
    let coding = Coding::Table {
        entries,
        group_rows,
        width,
        scales,
    };
    Some((bytes, n_bits, coding))
}

/// Codes of groups, with a scale and an offset for each.
fn scale(f: &Function, op: &Op) -> Option<Coded> {
    let (bytes, dtype, shape) = codes(f.literal_arg(op, "data")?)?;
    let coding = scale_coding(f, op, dtype, &shape)?;
    Some((bytes, dtype.bits(), coding))
}

/// The scales and offsets of codes of this type and shape.
fn scale_coding(f: &Function, op: &Op, dtype: DType, shape: &[usize]) -> Option<Coding> {
    let scale = f.literal_arg(op, "scale")?;
    let groups = scale.ty().tensor()?.known_shape()?;
    let offsets = match op.arg("offset") {
        None => Vec::new(),
        Some(_) => numbers(f.literal_arg(op, "offset")?)?,
    };
    let coding = Coding::Scale {
        is_signed: is_signed(dtype)?,
        scales: scale.to_floats()?,
        offsets,
        group: group(shape, &groups)?,
    };
    let is_matrix = groups.iter().skip(2).all(|n| *n == 1);
    is_matrix.then_some(coding)
}

/// The mask of a weight of which only some elements are stored, and these: numbers, or codes with
/// tables or scales.
fn sparse(f: &Function, op: &Op) -> Option<(Bytes, Coded)> {
    if let Some(numbers) = f.literal_arg(op, "nonzero_data") {
        let Literal::Tensor(_, Data::Bytes(mask)) = f.literal_arg(op, "mask")? else {
            return None;
        };
        let (bytes, dtype, _) = codes(numbers)?;
        let is_half = dtype == DType::Fp16;
        return is_half.then(|| (mask.clone(), (bytes, dtype.bits(), Coding::Half)));
    }
    let inner = f.definer(op.value_arg("nonzero_data")?)?;
    let [mask, elements] = inner.results.as_slice() else {
        return None;
    };
    let is_of_both =
        op.value_arg("mask") == Some(*mask) && op.value_arg("nonzero_data") == Some(*elements);
    let names = match inner.def.name {
        "constexpr_lut_to_sparse" => ["indices_mask", "indices_nonzero_data"],
        "constexpr_sparse_blockwise_shift_scale" => ["data_mask", "nonzero_data"],
        _ => return None,
    };
    let (mask, _, shape) = codes(f.literal_arg(inner, names[0])?)?;
    let (bytes, dtype, _) = codes(f.literal_arg(inner, names[1])?)?;
    let coding = match inner.def.name {
        "constexpr_lut_to_sparse" => table_coding(f, inner, dtype, &shape)?,
        _ => scale_coding(f, inner, dtype, &shape)?,
    };
    is_of_both.then(|| (mask, (bytes, dtype.bits(), coding)))
}

/// Codes with a scale and an offset, for each row or for all.
fn affine(f: &Function, op: &Op) -> Option<Coded> {
    let (bytes, dtype, shape) = codes(f.literal_arg(op, "quantized_data")?)?;
    let n_rows = *shape.first()?;
    let n_cols = *shape.get(1)?;
    let (scales, offsets) = (
        f.literal_arg(op, "scale")?.to_floats()?,
        numbers(f.literal_arg(op, "zero_point")?)?,
    );
    let axis = f.literal_arg(op, "axis")?.to_ints()?;
    let n = scales.len().max(offsets.len());
    if n != 1 && (axis != [0] || n != n_rows) {
        return None;
    }
    let spread = |v: Vec<f32>| match v[..] {
        [one] => vec![one; n],
        _ => v,
    };
    let coding = Coding::Scale {
        is_signed: is_signed(dtype)?,
        scales: spread(scales),
        offsets: spread(offsets),
        group: [if n == 1 { n_rows } else { 1 }, n_cols],
    };
    Some((bytes, dtype.bits(), coding))
}

fn numbers(literal: &Literal) -> Option<Vec<f32>> {
    if let Some((bytes, DType::Int4 | DType::Uint4, shape)) = codes(literal) {
        let is_signed = is_signed(literal.ty().tensor()?.dtype)?;
        let nibbles = bytes.as_slice().iter().flat_map(|b| [b & 15, b >> 4]);
        let number = |code: u8| match is_signed {
            true => f32::from((code << 4).cast_signed() >> 4),
            false => f32::from(code),
        };
        let n = shape.iter().product();
        return Some(nibbles.map(number).take(n).collect());
    }
    let ints = |ints: Vec<i64>| ints.into_iter().map(|n| n as f32).collect();
    literal.to_floats().or_else(|| literal.to_ints().map(ints))
}

/// Whether codes of this type are two's complement; `None` where it is none of codes.
fn is_signed(dtype: DType) -> Option<bool> {
    match dtype {
        DType::Int4 | DType::Int8 => Some(true),
        DType::Uint1 | DType::Uint2 | DType::Uint3 => Some(false),
        DType::Uint4 | DType::Uint6 | DType::Uint8 => Some(false),
        _ => None,
    }
}
