//! Constant matrices as they are stored, and which constants they are.

use std::sync::Arc;

use thane_kernels::quant::has_format;
use thane_kernels::{BlockType, Weight};
use thane_mil::budget::Reservation;
use thane_mil::data::{Bytes, Data, DataId, Packed};
use thane_mil::literal::Literal;
use thane_mil::program::{Function, Op, ValueId};
use thane_mil::types::DType;

use crate::tensor::{Buffer, Tensor};

/// Values that were computed, and the memory that they are counted as.
#[derive(Debug)]
pub struct Held<T> {
    /// The values.
    pub values: Vec<T>,
    _memory: Reservation,
}

impl<T> Held<T> {
    /// These values, counted until they are dropped.
    pub fn new(values: Vec<T>, memory: Reservation) -> Self {
        Self {
            values,
            _memory: memory,
        }
    }
}

impl<T> AsRef<[T]> for Held<T> {
    fn as_ref(&self) -> &[T] {
        &self.values
    }
}

/// Which constant of a program a matrix is; it keeps the constant alive, so that no other ever gets
/// the same identity.
#[derive(Clone, Debug)]
pub enum WeightId {
    /// Stored bytes, as a matrix of so many rows and columns.
    Data(DataId, [usize; 2]),
    /// A tensor that was computed.
    Computed(Arc<Buffer>, [usize; 2]),
}

impl WeightId {
    fn parts(&self) -> (Option<&DataId>, Option<*const Buffer>, [usize; 2]) {
        match self {
            Self::Data(id, shape) => (Some(id), None, *shape),
            Self::Computed(buffer, shape) => (None, Some(Arc::as_ptr(buffer)), *shape),
        }
    }
}

impl PartialEq for WeightId {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for WeightId {}

impl std::hash::Hash for WeightId {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

/// A constant [n_rows, n_cols] that keeps its bytes alive.
#[derive(Clone, Debug)]
pub struct Stored {
    /// How the values are stored.
    pub ty: BlockType,
    /// The rows.
    pub bytes: Bytes,
    /// Outputs of a product with it.
    pub n_rows: usize,
    /// Inputs of a product with it.
    pub n_cols: usize,
    /// Which constant it is.
    pub id: WeightId,
}

impl Stored {
    /// As kernels take it.
    pub fn weight(&self) -> Weight<'_> {
        Weight {
            ty: self.ty,
            bytes: self.bytes.as_slice(),
            n_rows: self.n_rows,
            n_cols: self.n_cols,
        }
    }

    /// Whether products multiply its codes, not its values.
    pub fn has_codes(&self) -> bool {
        has_format(self.ty)
    }

    /// The matrix behind `value`, where its bytes can be used as they are stored.
    pub fn find(f: &Function, value: ValueId) -> Option<Self> {
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
        Self::checked(ty, bytes, [n_rows, n_cols])
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
        let id = WeightId::Computed(tensor.data.clone(), [n_rows, n_cols]);
        let bytes = Bytes::new(Held(tensor));
        let stored = Self::checked(BlockType::F32, bytes, [n_rows, n_cols])?;
        Some(Self { id, ..stored })
    }

    /// The matrix, if the bytes are its rows.
    pub fn checked(
        ty: BlockType,
        bytes: Bytes,
        shape @ [n_rows, n_cols]: [usize; 2],
    ) -> Option<Self> {
        Weight::new(ty, bytes.as_slice(), n_rows, n_cols).ok()?;
        let id = WeightId::Data(Data::Bytes(bytes.clone()).id(), shape);
        Some(Self {
            ty,
            bytes,
            n_rows,
            n_cols,
            id,
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
    let same = |p: &Packed| {
        p.ty == first.ty && Data::Bytes(p.bytes.clone()).is_same(&Data::Bytes(first.bytes.clone()))
    };
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
