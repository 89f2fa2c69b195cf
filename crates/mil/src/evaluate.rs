//! The interface to a backend that computes one op at a time, for code that has to see the values
//! between ops.

use std::fmt::Debug;
use std::time::Instant;

use crate::literal::Literal;
use crate::opset::OpDef;
use crate::types::{DType, TensorType};

/// An argument of an op.
#[derive(Clone, Debug)]
pub enum Value<T> {
    /// A tensor.
    Tensor(T),
    /// The tensors of a variadic parameter.
    Tensors(Vec<T>),
    /// A string or other literal that is no tensor.
    Literal(Literal),
}

impl<T> Value<T> {
    /// The tensors of the argument.
    pub fn tensors(&self) -> &[T] {
        match self {
            Self::Tensor(tensor) => std::slice::from_ref(tensor),
            Self::Tensors(tensors) => tensors,
            Self::Literal(_) => &[],
        }
    }
}

/// A tensor in the memory of this process. Clones share the elements.
pub trait HostTensor: Clone + Debug {
    /// A tensor of fp32.
    fn of_f32s(shape: Vec<usize>, elements: Vec<f32>) -> Self;

    /// A tensor of these bytes, row-major, in the byte order of the machine; `None` if their number
    /// is not that of the elements, or if the type cannot be held.
    fn of_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Option<Self>;

    /// A tensor of zeros; `None` if there is no memory for it, or if the type cannot be held.
    fn zeros(dtype: DType, shape: &[usize]) -> Option<Self>;

    /// Element type.
    fn dtype(&self) -> DType;

    /// Dimensions, outermost first.
    fn shape(&self) -> &[usize];

    /// Bytes that the elements take.
    fn n_bytes(&self) -> usize;

    /// The elements, if they are fp32.
    fn f32s(&self) -> Option<&[f32]>;

    /// Calls `visit` with each element, in order; f64 holds all of them exactly.
    fn each(&self, visit: impl FnMut(f64));

    /// Number of elements.
    fn n_elements(&self) -> usize {
        self.shape().iter().product()
    }

    /// Whether the first element is not zero.
    fn is_true(&self) -> bool {
        let mut first = None;
        self.each(|x| {
            first.get_or_insert(x);
        });
        first.is_some_and(|x| x != 0.0)
    }
}

/// A backend that computes one op at a time.
pub trait Evaluate {
    /// How it holds tensors.
    type Tensor: HostTensor;

    /// When ops that run shall fail instead of going on for long; what fails so has no results.
    fn stop_at(&mut self, deadline: Option<Instant>);

    /// The tensor of a literal; `None` if the literal is none.
    fn literal(&self, literal: &Literal) -> Option<Self::Tensor>;

    /// The same numbers in fp32 if they are fp16; the tensor itself otherwise.
    ///
    /// # Errors
    ///
    /// In words, if there is no memory for them.
    fn widened(&self, tensor: &Self::Tensor) -> Result<Self::Tensor, String>;

    /// Each number of fp32 rounded to fp16, in fp32; `None` for other types.
    fn rounded_to_fp16(&self, tensor: &Self::Tensor) -> Option<Vec<f32>>;

    /// The types of what an op gives for these arguments, one entry for each parameter.
    ///
    /// # Errors
    ///
    /// In words, if the op takes no such arguments.
    fn result_types(
        &self,
        def: &'static OpDef,
        args: &[Option<Value<Self::Tensor>>],
    ) -> Result<Vec<TensorType>, String>;

    /// What an op gives for these arguments. Sums are taken in f64.
    ///
    /// # Errors
    ///
    /// In words, if the backend does not compute the op, or not on these arguments.
    fn evaluate(
        &self,
        def: &'static OpDef,
        args: Vec<Option<Value<Self::Tensor>>>,
    ) -> Result<Vec<Self::Tensor>, String>;
}
