//! Computes ops one at a time by their plain functions.

use std::time::Instant;

use thane_kernels::f16::{f16_to_f32_slice, f32_to_f16_slice};
use thane_kernels::{Context, Isa};
use thane_mil::budget::Budget;
use thane_mil::evaluate::{Evaluate, HostTensor};
use thane_mil::literal::Literal;
use thane_mil::opset::OpDef;
use thane_mil::types::{DType, TensorType};

use crate::evaluate::{evaluate, infer};
use crate::ops::{self, Value};
use crate::tensor::{Buffer, Pool, Tensor, checked_len};

/// Bytes of one tensor.
const TENSOR_BYTES: usize = 1 << 32;

/// The CPU as a backend that computes one op at a time. Callers count the memory of results.
#[derive(Debug)]
pub struct OpByOp {
    context: Context,
}

impl OpByOp {
    /// With so many threads, the caller's included, and these instructions, or the best of this
    /// machine.
    pub fn new(n_threads: usize, isa: Option<Isa>) -> Self {
        let isa = isa.unwrap_or_else(Isa::detect);
        Self {
            context: Context::with_isa(n_threads.max(1), isa),
        }
    }
}

/// Buffers that no budget counts.
fn uncounted() -> Pool {
    Pool::new(TENSOR_BYTES, &Budget::unlimited())
}

impl Evaluate for OpByOp {
    type Tensor = Tensor;

    fn stop_at(&mut self, deadline: Option<Instant>) {
        self.context.stop_at(deadline);
    }

    fn literal(&self, literal: &Literal) -> Option<Tensor> {
        uncounted().literal(literal).unwrap_or_default()
    }

    fn widened(&self, tensor: &Tensor) -> Result<Tensor, String> {
        uncounted().widened(tensor)
    }

    fn rounded_to_fp16(&self, tensor: &Tensor) -> Option<Vec<f32>> {
        let numbers = tensor.f32s()?;
        let mut codes = vec![0u16; numbers.len()];
        f32_to_f16_slice(self.context.isa(), numbers, &mut codes);
        let mut rounded = vec![0f32; numbers.len()];
        f16_to_f32_slice(self.context.isa(), &codes, &mut rounded);
        Some(rounded)
    }

    fn result_types(
        &self,
        def: &'static OpDef,
        args: &[Option<Value>],
    ) -> Result<Vec<TensorType>, String> {
        infer(def, args)
    }

    fn evaluate(
        &self,
        def: &'static OpDef,
        args: Vec<Option<Value>>,
    ) -> Result<Vec<Tensor>, String> {
        let eval = ops::find(def.name).ok_or("it is no op that is computed here")?;
        let results = evaluate(&self.context, def, eval, args, &mut uncounted());
        // An op that noticed it has not computed all of them.
        match self.context.is_over() {
            true => Err("the time that may be spent is over".to_owned()),
            false => results,
        }
    }
}

impl HostTensor for Tensor {
    fn of_f32s(shape: Vec<usize>, elements: Vec<f32>) -> Self {
        Self::new(DType::Fp32, shape, Buffer::F32(elements.into()))
    }

    fn of_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Option<Self> {
        let mut tensor = Self::zeros(dtype, shape)?;
        let to = std::sync::Arc::get_mut(&mut tensor.data)?.bytes_mut();
        (to.len() == bytes.len()).then(|| to.copy_from_slice(bytes))?;
        Some(tensor)
    }

    fn zeros(dtype: DType, shape: &[usize]) -> Option<Self> {
        let n = checked_len(dtype, shape, TENSOR_BYTES).ok()?;
        let buffer = Buffer::zeros(dtype, n, None)?;
        Some(Self::new(dtype, shape.to_vec(), buffer))
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn n_bytes(&self) -> usize {
        self.data.bytes().len()
    }

    fn f32s(&self) -> Option<&[f32]> {
        Tensor::f32s(self)
    }

    fn each(&self, mut visit: impl FnMut(f64)) {
        Tensor::each(self, |_, x| visit(x));
    }
}
