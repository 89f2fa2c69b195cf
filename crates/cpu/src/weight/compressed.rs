//! Constant matrices of codes with tables or scales, as Core ML packages hold them.

mod blocks;

use thane_kernels::linear;
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
    /// Rows and columns.
    pub shape: [usize; 2],
}

/// As [`linear::Coding`].
#[derive(Debug, PartialEq)]
pub enum Coding {
    Table {
        entries: Vec<f32>,
        group_rows: usize,
    },
    Scale {
        is_signed: bool,
        scales: Vec<f32>,
        offsets: Vec<f32>,
        group: [usize; 2],
    },
}

impl Coding {
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
        let (codes, n_bits, coding) = match op.def.name {
            "constexpr_lut_to_dense" => table(f, op)?,
            "constexpr_blockwise_shift_scale" => scale(f, op)?,
            "constexpr_affine_dequantize" => affine(f, op)?,
            _ => return None,
        };
        let of = |v: ValueId| matrix_shape(&f.value(v).ty.tensor()?.known_shape()?);
        let shape = of(value)?;
        if of(*op.results.first()?)? != shape {
            return None;
        }
        let made = Self {
            n_bits,
            codes,
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
            } => linear::Coding::Table {
                entries,
                group_rows: *group_rows,
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
        };
        linear::Compressed::new(self.n_bits, self.codes.as_slice(), coding, self.shape)
    }

    /// As kernels take it.
    ///
    /// # Panics
    /// Never: it was checked when it was made.
    pub fn weight(&self) -> linear::Compressed<'_> {
        #[expect(clippy::unwrap_used, reason = "checked in `find`")]
        self.checked().unwrap()
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
fn table(f: &Function, op: &Op) -> Option<(Bytes, usize, Coding)> {
    let lut = f.literal_arg(op, "lut")?;
    let entries = lut.to_floats()?;
    if op.def.attributes {
        // Packed bits, whose number follows from the table.
        let Literal::Tensor(_, Data::Bytes(bytes)) = f.literal_arg(op, "indices")? else {
            return None;
        };
        let n_bits = entries.len().checked_ilog2()? as usize;
        let coding = Coding::Table {
            entries,
            group_rows: usize::MAX,
        };
        return Some((bytes.clone(), n_bits, coding));
    }
    let (bytes, dtype, shape) = codes(f.literal_arg(op, "indices")?)?;
    let groups = lut.ty().tensor()?.known_shape()?;
    let (groups, entry) = groups.split_at_checked(shape.len())?;
    let [group_rows, group_cols] = group(&shape, groups)?;
    let is_whole = groups.iter().skip(2).all(|n| *n == 1)
        && shape.get(1) == Some(&group_cols)
        && entry == [1 << dtype.bits(), 1];
    let coding = Coding::Table {
        entries,
        group_rows,
    };
    is_whole.then_some((bytes, dtype.bits(), coding))
}

/// Codes of groups, with a scale and an offset for each.
fn scale(f: &Function, op: &Op) -> Option<(Bytes, usize, Coding)> {
    let (bytes, dtype, shape) = codes(f.literal_arg(op, "data")?)?;
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
        group: group(&shape, &groups)?,
    };
    let is_matrix = groups.iter().skip(2).all(|n| *n == 1);
    is_matrix.then_some((bytes, dtype.bits(), coding))
}

/// Codes with a scale and an offset, for each row or for all.
fn affine(f: &Function, op: &Op) -> Option<(Bytes, usize, Coding)> {
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
