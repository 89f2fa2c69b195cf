//! Constant matrices in the form that kernels multiply: the stored blocks where there are some,
//! else fp32.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thane_kernels::linear::{
    self, Int8Block, Int8Weight, PackedCodes, PackedColumn, int8_len, pack, pack_int8, packed_len,
};
use thane_kernels::quant::has_format;
use thane_kernels::{BlockType, Context, Weight};
use thane_mil::budget::{Budget, OverBudget, Reservation};
use thane_mil::data::{Bytes, Data, Packed};
use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Definition, Function, Op, ValueId};
use thane_mil::types::DType;

use crate::ops::Fault;
use crate::packs::{self, Packs};
use crate::tensor::{Pool, Tensor};

/// A constant [rows, cols] that keeps its bytes alive.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// How the values are stored.
    pub ty: BlockType,
    /// The rows.
    pub bytes: Bytes,
    /// Outputs of a product with it.
    pub n_rows: usize,
    /// Inputs of a product with it.
    pub n_cols: usize,
    /// The same in the order that products of many rows read it, where it was packed.
    panels: Option<Arc<Held<PackedColumn>>>,
    /// The same in the order, or the pages, that products of few rows read fastest, brought there
    /// when the second of them asks.
    place: Option<Place>,
    /// Rounded to integers, where that was asked for.
    int8: Option<Arc<Held<Int8Block>>>,
    /// Whether ruling out rows pays.
    screening: Arc<Screening>,
}

/// What was made of a matrix, and what it counts.
#[derive(Debug)]
struct Held<T> {
    values: Vec<T>,
    _held: Reservation,
}

impl<T> AsRef<[T]> for Held<T> {
    fn as_ref(&self) -> &[T] {
        &self.values
    }
}

/// A matrix among those that are packed.
#[derive(Clone, Debug)]
struct Place {
    packs: Arc<Packs>,
    /// Where it is in [`Packs::bytes`].
    range: Range<usize>,
    n_asked: Arc<AtomicUsize>,
}

impl Place {
    fn bytes(&self, context: &Context, pack: bool) -> Option<&[u8]> {
        let n_asked = if pack {
            self.n_asked.fetch_add(1, Ordering::Relaxed)
        } else {
            0
        };
        self.packs.bytes(context, n_asked)?.get(self.range.clone())
    }
}

/// Whether products of a matrix are to rule out rows: as long as that reads less. Then it is tried
/// ever more seldom.
#[derive(Debug, Default)]
pub struct Screening {
    /// Products to leave alone.
    left: AtomicUsize,
    /// How many there were to leave alone, last.
    pause: AtomicUsize,
}

impl Screening {
    /// Products between two that find out whether it pays, at most: these take up to 1.7 times as
    /// long.
    const LONGEST: usize = 127;

    fn is_due(&self) -> bool {
        let less = |left: usize| left.checked_sub(1);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_err()
    }

    /// What it came to.
    pub fn tell(&self, pays: bool) {
        let pause = if pays {
            0
        } else {
            (2 * self.pause.load(Ordering::Relaxed) + 1).min(Self::LONGEST)
        };
        self.pause.store(pause, Ordering::Relaxed);
        self.left.store(pause, Ordering::Relaxed);
    }
}

impl Matrix {
    /// As kernels take it.
    pub fn weight(&self) -> Weight<'_> {
        Weight {
            ty: self.ty,
            bytes: self.bytes.as_slice(),
            n_rows: self.n_rows,
            n_cols: self.n_cols,
        }
    }

    /// In panels, where it was packed.
    pub fn packed(&self) -> Option<linear::Packed<'_>> {
        let panels = self.panels.as_ref()?.values.as_slice();
        Some(linear::Packed {
            ty: self.ty,
            panels,
            n_rows: self.n_rows,
            n_cols: self.n_cols,
        })
    }

    /// As integers, where it was rounded.
    pub fn int8(&self) -> Option<Int8Weight<'_>> {
        Some(Int8Weight {
            blocks: &self.int8.as_ref()?.values,
            n_rows: self.n_rows,
            n_cols: self.n_cols,
        })
    }

    /// Bytes that a product reads.
    pub fn n_bytes(&self) -> usize {
        self.int8.as_ref().map_or(self.bytes.len(), |blocks| {
            size_of_val(blocks.values.as_slice())
        })
    }

    /// Whether products multiply its codes, not its values.
    pub fn has_codes(&self) -> bool {
        has_format(self.ty)
    }

    /// As [`Folds::pack_when_used`] lets it be packed: when `pack` says that it is time for the
    /// second time, and of most of them.
    pub fn codes(&self, context: &Context, pack: bool) -> Option<PackedCodes<'_>> {
        let bytes = self
            .place
            .as_ref()
            .filter(|_| self.has_codes())?
            .bytes(context, pack)?;
        Some(PackedCodes {
            ty: self.ty,
            bytes,
            n_rows: self.n_rows,
            n_cols: self.n_cols,
        })
    }

    /// The matrix and how to keep count of it, where its rows can be
    /// [ruled out](linear::linear_codes_best), and that has paid.
    pub fn screened(&self, context: &Context) -> Option<(PackedCodes<'_>, &Screening)> {
        let codes = self.codes(context, false).filter(PackedCodes::is_split)?;
        self.screening.is_due().then_some((codes, &self.screening))
    }

    /// [`Self::weight`], or the floats where they are copied to as [`Self::codes`] are packed.
    pub fn moved(&self, context: &Context, pack: bool) -> Weight<'_> {
        let place = self.place.as_ref().filter(|_| !self.has_codes());
        let bytes = place
            .and_then(|place| place.bytes(context, pack))
            .unwrap_or(self.bytes.as_slice());
        Weight {
            bytes,
            ..self.weight()
        }
    }

    /// The matrix behind `value`, where its bytes can be used as they are stored.
    pub fn stored(f: &Function, value: ValueId) -> Option<Self> {
        let op = f.definer(value)?;
        let shape = f
            .value(value)
            .ty
            .tensor()
            .filter(|t| t.dtype == DType::Fp32)?
            .known_shape()?;
        let &[n_rows, n_cols] = shape.as_slice() else {
            return None;
        };
        let (ty, bytes) = match op.def.name {
            "const" => dense(f.constant(value)?)?,
            "constexpr_blockwise_shift_scale" => blocks(f, op)?,
            "constexpr_cast" => half(f.literal_arg(op, "source_val")?)?,
            _ => return None,
        };
        Self::checked(ty, bytes, n_rows, n_cols)
    }

    /// The matrix behind a constant [rows, cols, 1, ..], where its bytes can be used as they are
    /// stored.
    pub fn pointwise(f: &Function, value: ValueId, folds: &Folds) -> Option<Self> {
        let shape = f.value(value).ty.tensor()?.known_shape()?;
        let (&[n_rows, n_cols], _) = shape.split_first_chunk::<2>()?;
        let (ty, bytes) = match f.constant(value)? {
            Literal::Tensor(ty, Data::Bytes(bytes)) if ty.dtype == DType::Fp16 => {
                (BlockType::F16, bytes.clone())
            }
            Literal::Tensor(ty, Data::Bytes(bytes)) if ty.dtype == DType::Fp32 => {
                (BlockType::F32, bytes.clone())
            }
            // Numbers that are derived: read once, and kept.
            Literal::Tensor(ty, data) if ty.dtype == DType::Fp16 => {
                (BlockType::F16, folds.read(data)?)
            }
            Literal::Tensor(ty, data) if ty.dtype == DType::Fp32 => {
                (BlockType::F32, folds.read(data)?)
            }
            _ => return None,
        };
        Self::checked(ty, bytes, n_rows, n_cols)
    }

    /// An fp32 matrix of a tensor that was computed, over the tensor's own buffer.
    pub fn computed(tensor: Tensor) -> Option<Self> {
        struct Held(Tensor);
        impl AsRef<[u8]> for Held {
            fn as_ref(&self) -> &[u8] {
                self.0.f32s().map_or(&[], bytemuck::cast_slice)
            }
        }
        let &[n_rows, n_cols] = tensor.shape.as_slice() else {
            return None;
        };
        tensor.f32s()?;
        Self::checked(BlockType::F32, Bytes::new(Held(tensor)), n_rows, n_cols)
    }

    /// What tells it from all others of a program.
    fn place(&self) -> [usize; 3] {
        [
            self.bytes.as_slice().as_ptr().addr(),
            self.n_rows,
            self.n_cols,
        ]
    }

    fn checked(ty: BlockType, bytes: Bytes, n_rows: usize, n_cols: usize) -> Option<Self> {
        Weight::new(ty, bytes.as_slice(), n_rows, n_cols).ok()?;
        Some(Self {
            ty,
            bytes,
            n_rows,
            n_cols,
            panels: None,
            place: None,
            int8: None,
            screening: Arc::default(),
        })
    }
}

fn dense(literal: &Literal) -> Option<(BlockType, Bytes)> {
    match literal {
        Literal::Tensor(_, Data::Bytes(bytes)) => Some((BlockType::F32, bytes.clone())),
        Literal::Tensor(_, Data::Source(source)) => {
            let packed = source
                .packed()
                .filter(|p| matches!(p.ty, BlockType::F16 | BlockType::Bf16))?;
            Some((packed.ty, packed.bytes))
        }
        _ => None,
    }
}

/// fp16 numbers as they are.
fn half(literal: &Literal) -> Option<(BlockType, Bytes)> {
    match literal {
        Literal::Tensor(ty, Data::Bytes(bytes)) if ty.dtype == DType::Fp16 => {
            Some((BlockType::F16, bytes.clone()))
        }
        _ => None,
    }
}

/// The blocks that codes, scales and offsets all come from.
fn blocks(f: &Function, op: &Op) -> Option<(BlockType, Bytes)> {
    let mut codes = op.value_arg("data")?;
    if let Some(table) = f
        .definer(codes)
        .filter(|o| o.def.name == "constexpr_lut_to_dense")
    {
        codes = table.value_arg("indices")?;
    }
    let parts = [Some(codes), op.value_arg("scale"), op.value_arg("offset")];
    let packed: Vec<Packed> = parts
        .into_iter()
        .flatten()
        .map(|part| stored_form(f.constant(part)?))
        .collect::<Option<_>>()?;
    let first = packed.first()?;
    let same =
        |p: &Packed| p.ty == first.ty && std::ptr::eq(p.bytes.as_slice(), first.bytes.as_slice());
    packed
        .iter()
        .all(same)
        .then(|| (first.ty, first.bytes.clone()))
}

fn stored_form(literal: &Literal) -> Option<Packed> {
    match literal {
        Literal::Tensor(_, Data::Source(source)) => source.packed(),
        _ => None,
    }
}

/// Constants that were computed, by what they were computed from, and matrices that were packed, by
/// where their bytes are: functions of one program share them.
#[derive(Debug)]
pub struct Folds {
    tensors: RefCell<HashMap<Vec<usize>, Tensor>>,
    panels: RefCell<HashMap<[usize; 3], Arc<Held<PackedColumn>>>>,
    places: RefCell<HashMap<[usize; 3], Place>>,
    packs: Arc<Packs>,
    int8: RefCell<HashMap<[usize; 3], Arc<Held<Int8Block>>>>,
    budget: Budget,
    /// What was refused last.
    refused: RefCell<Option<OverBudget>>,
}

impl Folds {
    /// Nothing yet; what is kept counts against `budget`.
    pub fn new(budget: &Budget) -> Self {
        let (tensors, panels, places, int8, refused) = Default::default();
        let packs = Arc::new(Packs::new(budget.clone()));
        Self {
            tensors,
            panels,
            places,
            packs,
            int8,
            budget: budget.clone(),
            refused,
        }
    }

    /// What `compute` makes, in a pool whose tensors take at most `most_bytes`.
    pub fn within<T>(
        &self,
        most_bytes: usize,
        compute: impl FnOnce(&mut Pool) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut pool = Pool::new(most_bytes, &self.budget);
        let result = compute(&mut pool);
        if let Err(reason) = &result
            && let Some(refused) = pool.refusal(reason)
        {
            self.refused.replace(Some(refused));
        }
        result
    }

    /// What was refused, if that is the reason of this failure.
    pub fn refusal(&self, reason: &str) -> Option<OverBudget> {
        self.refused
            .borrow_mut()
            .take_if(|refused| reason.ends_with(&refused.to_string()))
    }

    /// The numbers of a constant, in memory; none where there is none for them.
    fn read(&self, data: &Data) -> Option<Bytes> {
        let held = self
            .budget
            .reserve(data.byte_len(), || "a weight that is derived".to_owned())
            .ok()?;
        Some(Bytes::new(Held {
            values: data.to_vec(),
            _held: held,
        }))
    }

    /// The matrix, in panels too if it is of f32, or of bf16 where the machine multiplies that, and
    /// there is memory for them.
    pub fn pack(&self, context: &Context, mut matrix: Matrix) -> Matrix {
        let weight = matrix.weight();
        let Some(len) = packed_len(context.isa(), weight.ty, weight.n_rows, weight.n_cols) else {
            return matrix;
        };
        let mut all = self.panels.borrow_mut();
        if let Some(panels) = all.get(&matrix.place()) {
            let panels = panels.clone();
            return Matrix {
                panels: Some(panels),
                ..matrix
            };
        }
        let n_bytes = len.saturating_mul(size_of::<PackedColumn>());
        let Ok(held) = self.budget.reserve(n_bytes, || "packed weights".to_owned()) else {
            return matrix;
        };
        let mut values = vec![PackedColumn::ZERO; len];
        pack(context, &weight, &mut values);
        // What is packed takes the place of the mapped file in memory.
        matrix.bytes.release();
        let panels = Arc::new(Held {
            values,
            _held: held,
        });
        all.insert(matrix.place(), panels.clone());
        matrix.panels = Some(panels);
        matrix
    }

    /// The matrix of floats, rounded to integers; as it is where these are too many to count.
    pub fn round(&self, context: &Context, mut matrix: Matrix) -> Result<Matrix, Fault> {
        let weight = matrix.weight();
        let Some(len) = int8_len(weight.n_rows, weight.n_cols) else {
            return Ok(matrix);
        };
        let mut all = self.int8.borrow_mut();
        if let Some(int8) = all.get(&matrix.place()) {
            let int8 = int8.clone();
            return Ok(Matrix {
                int8: Some(int8),
                ..matrix
            });
        }
        let what = || {
            format!(
                "a weight [{}, {}] rounded to int8",
                weight.n_rows, weight.n_cols
            )
        };
        let held = self
            .budget
            .reserve(len.saturating_mul(size_of::<Int8Block>()), what);
        let held = held.map_err(|refused| self.refused.borrow_mut().insert(refused).to_string())?;
        let mut values = vec![Int8Block::ZERO; len];
        pack_int8(context, &weight, &mut values);
        // What is rounded takes the place of the mapped file in memory.
        matrix.bytes.release();
        let int8 = Arc::new(Held {
            values,
            _held: held,
        });
        all.insert(matrix.place(), int8.clone());
        matrix.int8 = Some(int8);
        Ok(matrix)
    }

    /// The matrix, to be packed when products of few rows with it begin, if its type is packed.
    pub fn pack_when_used(&self, mut matrix: Matrix) -> Matrix {
        if packs::len(matrix.ty, matrix.n_rows, matrix.n_cols).is_some() {
            let mut all = self.places.borrow_mut();
            let place = all.entry(matrix.place()).or_insert_with(|| {
                let range = self.packs.add(&matrix);
                Place {
                    packs: self.packs.clone(),
                    range,
                    n_asked: Arc::default(),
                }
            });
            let place = place.clone();
            matrix.place = Some(place);
        }
        matrix
    }

    /// The tensor behind `value`, where a constexpr op makes it and another function had it
    /// computed, else `compute`.
    pub fn get(
        &self,
        f: &Function,
        value: ValueId,
        compute: impl FnOnce() -> Result<Tensor, Fault>,
    ) -> Result<Tensor, Fault> {
        let mut key = Vec::new();
        if f.definer(value).is_none_or(|op| op.def.is_const()) || !identify(f, value, &mut key) {
            return compute();
        }
        if let Some(tensor) = self.tensors.borrow().get(&key) {
            return Ok(tensor.clone());
        }
        let tensor = compute()?;
        self.tensors.borrow_mut().insert(key, tensor.clone());
        Ok(tensor)
    }
}

/// Append what tells a constant from all others; `false` where nothing does.
fn identify(f: &Function, value: ValueId, key: &mut Vec<usize>) -> bool {
    /// Scalars and tables are told apart by what they hold, larger constants by where they are.
    const SMALL: usize = 256;
    // Longer than any that a checkpoint or a compressor makes; strangers chain constants without
    // end.
    const LONGEST: usize = 4096;
    if key.len() > LONGEST {
        return false;
    }
    let Definition::Result(id, index) = f.value(value).definition else {
        return false;
    };
    let op = f.op(id);
    if !op.def.is_constexpr() {
        return false;
    }
    key.extend([std::ptr::from_ref(op.def).addr(), index]);
    op.args.iter().all(|arg| match arg {
        None => {
            key.push(0);
            true
        }
        Some(Arg::Value(v)) => {
            key.push(1);
            identify(f, *v, key)
        }
        Some(Arg::Values(_)) => false,
        Some(Arg::Literal(Literal::Tensor(ty, data))) => {
            key.extend([2, ty.dtype as usize, ty.rank()]);
            key.extend(ty.shape.iter().map(|d| d.known().unwrap_or(usize::MAX)));
            match data {
                _ if data.byte_len() <= SMALL => {
                    key.extend(data.to_vec().into_iter().map(usize::from))
                }
                Data::Bytes(bytes) => key.push(bytes.as_slice().as_ptr().addr()),
                Data::Source(source) => key.push(Arc::as_ptr(source).addr()),
            }
            true
        }
        Some(Arg::Literal(Literal::String(s))) => {
            key.extend([3, s.len()]);
            key.extend(s.bytes().map(usize::from));
            true
        }
        Some(Arg::Literal(_)) => false,
    })
}
