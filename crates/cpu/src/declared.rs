//! What a program declares its values to be, held against what is computed.

use thane_mil::program::{Function, ValueId};
use thane_mil::types::{DType, TensorType, Type};

use crate::ops::Fault;

/// A value that a step defines.
#[derive(Debug)]
pub struct Defined {
    pub id: ValueId,
    /// Its type, where that is one of a tensor of few axes.
    ///
    /// It lies beside the id: at each token the weights of a model drive all else out of the
    /// caches, and to look a type up in its function then waits for memory three times, which took
    /// 2 % of the time of a model of 135M parameters.
    ty: Option<Declared>,
}

#[derive(Debug)]
struct Declared {
    dtype: DType,
    rank: u8,
    /// [`Declared::OPEN`] where any will do.
    dims: [u32; Declared::MOST_AXES],
}

impl Declared {
    const MOST_AXES: usize = 5;
    const OPEN: u32 = u32::MAX;

    fn new(ty: &TensorType) -> Option<Self> {
        let mut dims = [Self::OPEN; Self::MOST_AXES];
        for (at, dim) in ty.shape.iter().enumerate() {
            let dim = dim.known().map_or(Some(Self::OPEN), |n| {
                u32::try_from(n).ok().filter(|n| *n != Self::OPEN)
            });
            *dims.get_mut(at)? = dim?;
        }
        Some(Self {
            dtype: ty.dtype,
            rank: ty.shape.len() as u8,
            dims,
        })
    }

    fn fits(&self, dtype: DType, shape: &[usize]) -> bool {
        let dims = self.dims.iter().zip(shape);
        dtype == self.dtype
            && shape.len() == usize::from(self.rank)
            && dims
                .into_iter()
                .all(|(due, n)| *due == Self::OPEN || *due as usize == *n)
    }
}

impl Defined {
    pub fn new(f: &Function, id: ValueId) -> Self {
        Self {
            id,
            ty: f.value(id).ty.tensor().and_then(Declared::new),
        }
    }

    /// As [`check_declared`].
    pub fn check(&self, f: &Function, dtype: DType, shape: &[usize]) -> Result<(), Fault> {
        if self.ty.as_ref().is_some_and(|ty| ty.fits(dtype, shape)) {
            return Ok(());
        }
        check_declared(f, self.id, dtype, shape)
    }
}

/// Refuse a tensor of this type and shape where the program declares another: sizes that the
/// program states are relied on where patterns are found.
pub fn check_declared(
    f: &Function,
    value: ValueId,
    dtype: DType,
    shape: &[usize],
) -> Result<(), Fault> {
    let declared = &f.value(value).ty;
    let (ty, dims) = match (declared, shape.split_first()) {
        (Type::Tensor(ty), _) => (ty, shape),
        (Type::List(element, len), Some((n, dims))) if len.is_none_or(|len| len == *n) => (
            element
                .tensor()
                .ok_or("a result is a list of other things than tensors")?,
            dims,
        ),
        _ => {
            return Err(format!(
                "the result is {shape:?} of {dtype}, but is declared {declared}"
            ));
        }
    };
    let fits = ty
        .shape
        .iter()
        .zip(dims)
        .all(|(d, n)| d.known().is_none_or(|d| d == *n));
    if fits && ty.dtype == dtype && ty.rank() == dims.len() {
        return Ok(());
    }
    Err(format!(
        "the result is {shape:?} of {dtype}, but is declared {declared}"
    ))
}
