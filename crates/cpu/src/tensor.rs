//! Tensors as the interpreter holds them, and the pool that their buffers come from.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thane_kernels::f16::{f16_to_f32, f32_to_f16};
use thane_mil::budget::{Budget, Loss, OverBudget, Reclaim, Reservation};
use thane_mil::literal::Literal;
use thane_mil::types::{DType, TensorType};

pub use crate::elements::{Elements, Floats};

/// Elements of a tensor, where it takes at most `most_bytes`.
///
/// Empty dimensions count as 1, so that the strides of a tensor that passes cannot overflow either.
pub fn checked_len(dtype: DType, shape: &[usize], most_bytes: usize) -> Result<usize, String> {
    let bytes = dtype.bits().div_ceil(8);
    let most = most_bytes / bytes.max(1);
    match shape
        .iter()
        .try_fold(1usize, |n, d| n.checked_mul((*d).max(1)))
    {
        Some(n) if n <= most => Ok(shape.iter().product()),
        _ => Err(format!(
            "a tensor {shape:?} of {dtype} takes more than the {most_bytes} bytes that one may"
        )),
    }
}

/// Elements of one type; a buffer from the pool may be longer than its tensor.
#[derive(Debug)]
pub enum Buffer {
    /// fp32.
    F32(Floats),
    /// fp16, as bits.
    F16(Elements<u16>),
    /// int32.
    I32(Elements<i32>),
    /// uint32.
    U32(Elements<u32>),
    /// int16.
    I16(Elements<i16>),
    /// uint16.
    U16(Elements<u16>),
    /// int8, and int4 unpacked.
    I8(Elements<i8>),
    /// uint8, and narrower unsigned types unpacked.
    U8(Elements<u8>),
    /// bool, 0 or 1.
    Bool(Elements<u8>),
}

/// The same of the elements of any type.
macro_rules! each {
    ($buffer:expr, $v:ident => $do:expr) => {
        match $buffer {
            Buffer::F32($v) => $do,
            Buffer::F16($v) | Buffer::U16($v) => $do,
            Buffer::I32($v) => $do,
            Buffer::U32($v) => $do,
            Buffer::I16($v) => $do,
            Buffer::I8($v) => $do,
            Buffer::U8($v) | Buffer::Bool($v) => $do,
        }
    };
}

/// What `$do` gives for the elements of two buffers of the same type; false for different types.
macro_rules! alike {
    ($a:expr, $b:expr, |$x:ident, $y:ident| $do:expr) => {
        match ($a, $b) {
            (Buffer::F32($x), Buffer::F32($y)) => $do,
            (Buffer::F16($x), Buffer::F16($y)) => $do,
            (Buffer::I32($x), Buffer::I32($y)) => $do,
            (Buffer::U32($x), Buffer::U32($y)) => $do,
            (Buffer::I16($x), Buffer::I16($y)) => $do,
            (Buffer::U16($x), Buffer::U16($y)) => $do,
            (Buffer::I8($x), Buffer::I8($y)) => $do,
            (Buffer::U8($x), Buffer::U8($y)) | (Buffer::Bool($x), Buffer::Bool($y)) => $do,
            _ => false,
        }
    };
}
pub(crate) use alike;

impl Buffer {
    /// Zeros, which count as `held` says; `None` for element types that the interpreter does not
    /// hold, and where there is no memory for them.
    pub fn zeros(dtype: DType, n: usize, held: Option<Reservation>) -> Option<Self> {
        let mut zeros = Self::none(dtype)?;
        if !can_allocate(n.checked_mul(dtype.bits().div_ceil(8))?) {
            return None;
        }
        each!(&mut zeros, v => *v = Elements::zeros(n, held));
        Some(zeros)
    }

    /// The same for a state, of which little may ever be written.
    pub fn paged(dtype: DType, n: usize, held: Option<Reservation>) -> Option<Self> {
        let mut zeros = Self::none(dtype)?;
        if !can_allocate(n.checked_mul(dtype.bits().div_ceil(8))?) {
            return None;
        }
        each!(&mut zeros, v => *v = Elements::paged(n, held));
        Some(zeros)
    }

    /// No elements.
    fn none(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::Fp32 => Buffer::F32(Elements::default()),
            DType::Fp16 => Buffer::F16(Elements::default()),
            DType::Int32 => Buffer::I32(Elements::default()),
            DType::Uint32 => Buffer::U32(Elements::default()),
            DType::Int16 => Buffer::I16(Elements::default()),
            DType::Uint16 => Buffer::U16(Elements::default()),
            DType::Int8 | DType::Int4 => Buffer::I8(Elements::default()),
            DType::Uint8
            | DType::Uint6
            | DType::Uint4
            | DType::Uint3
            | DType::Uint2
            | DType::Uint1 => Buffer::U8(Elements::default()),
            DType::Bool => Buffer::Bool(Elements::default()),
            _ => return None,
        })
    }

    /// Set all elements to zero, by memory that the machine provides as it is written.
    pub fn renew(&mut self) {
        each!(self, v => v.renew());
    }

    /// What the elements count as.
    fn held(&mut self) -> &mut Option<Reservation> {
        each!(self, v => &mut v.held)
    }

    /// Exchanges the elements with those of another buffer; what each counts as stays.
    pub fn swap(&mut self, other: &mut Buffer) {
        std::mem::swap(self, other);
        std::mem::swap(self.held(), other.held());
    }

    /// The elements as bytes.
    pub fn bytes(&self) -> &[u8] {
        each!(self, v => bytemuck::cast_slice(v))
    }

    /// The elements as bytes that can be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        each!(self, v => bytemuck::cast_slice_mut(v))
    }

    /// Copy `n` elements from another buffer of the same kind; `false` when the kinds differ or an
    /// end is passed.
    pub fn copy_from(&mut self, at: usize, from: &Buffer, from_at: usize, n: usize) -> bool {
        fn copy<T: Copy>(to: &mut [T], at: usize, from: &[T], from_at: usize, n: usize) -> bool {
            let to = at.checked_add(n).and_then(|end| to.get_mut(at..end));
            let from = from_at
                .checked_add(n)
                .and_then(|end| from.get(from_at..end));
            let (Some(to), Some(from)) = (to, from) else {
                return false;
            };
            to.copy_from_slice(from);
            true
        }
        alike!(self, from, |to, from| copy(to, at, from, from_at, n))
    }
}

/// Whether the machine grants an allocation of that many bytes: asking for zeros and getting none
/// ends the process.
fn can_allocate(n_bytes: usize) -> bool {
    /// What is granted unless the machine is out of memory altogether.
    const SMALL: usize = 1 << 26;
    let mut probe = Vec::<u8>::new();
    let granted = n_bytes <= SMALL || probe.try_reserve_exact(n_bytes).is_ok();
    // Without this the compiler removes an allocation that nobody uses.
    std::hint::black_box(&mut probe);
    granted
}

/// A tensor whose buffer may be shared with views of it.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Row-major elements; at least as many as the shape asks for.
    pub data: Arc<Buffer>,
}

impl Tensor {
    /// A tensor over `data`.
    pub fn new(dtype: DType, shape: Vec<usize>, data: Buffer) -> Self {
        Self {
            dtype,
            shape,
            data: Arc::new(data),
        }
    }

    /// A tensor of fp32 elements.
    pub fn fp32(shape: Vec<usize>, elements: Floats) -> Self {
        Self::new(DType::Fp32, shape, Buffer::F32(elements))
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements, where they are fp32.
    pub fn f32s(&self) -> Option<&[f32]> {
        match &*self.data {
            Buffer::F32(v) => v.get(..self.len()),
            _ => None,
        }
    }

    /// The elements, where they are int32.
    pub fn i32s(&self) -> Option<&[i32]> {
        match &*self.data {
            Buffer::I32(v) => v.get(..self.len()),
            _ => None,
        }
    }

    /// Elements of any integer type or truth values.
    pub fn to_ints(&self) -> Option<Vec<i64>> {
        let n = self.len();
        Some(match &*self.data {
            Buffer::I32(v) => v.get(..n)?.iter().map(|x| i64::from(*x)).collect(),
            Buffer::U32(v) => v.get(..n)?.iter().map(|x| i64::from(*x)).collect(),
            Buffer::I16(v) => v.get(..n)?.iter().map(|x| i64::from(*x)).collect(),
            Buffer::U16(v) => v.get(..n)?.iter().map(|x| i64::from(*x)).collect(),
            Buffer::I8(v) => v.get(..n)?.iter().map(|x| i64::from(*x)).collect(),
            Buffer::U8(v) | Buffer::Bool(v) => v.get(..n)?.iter().map(|x| i64::from(*x)).collect(),
            Buffer::F32(_) | Buffer::F16(_) => return None,
        })
    }

    /// Calls `visit` with the position and value of each element; f64 holds all of them exactly.
    pub fn each(&self, mut visit: impl FnMut(usize, f64)) {
        let n = self.len();
        // Each element of a buffer, by what makes it f64.
        macro_rules! visit {
            ($v:ident, $to:expr) => {
                $v.iter()
                    .take(n)
                    .enumerate()
                    .for_each(|(i, x)| visit(i, $to(*x)))
            };
        }
        match &*self.data {
            Buffer::F32(v) => visit!(v, f64::from),
            Buffer::F16(v) => visit!(v, |x| f64::from(f16_to_f32(x))),
            Buffer::I32(v) => visit!(v, f64::from),
            Buffer::U32(v) => visit!(v, f64::from),
            Buffer::I16(v) => visit!(v, f64::from),
            Buffer::U16(v) => visit!(v, f64::from),
            Buffer::I8(v) => visit!(v, f64::from),
            Buffer::U8(v) | Buffer::Bool(v) => visit!(v, f64::from),
        }
    }
}

/// The `width` bits of element `i`, least significant first.
fn bits(bytes: &[u8], i: usize, width: usize) -> u8 {
    (0..width).fold(0, |v, k| {
        v | ((bytes[(i * width + k) / 8] >> ((i * width + k) % 8) & 1) << k)
    })
}

/// Buffers of fp32 that were used and wait to be used again, and where all other memory of a run is
/// asked for.
///
/// A function's values come and go in the same order at every call, so after the first call nothing
/// is allocated.
#[derive(Debug)]
pub struct Pool {
    /// Shared with the budget, which takes buffers that wait for what others need.
    free: Arc<Mutex<Free>>,
    /// What one tensor may take.
    most_bytes: usize,
    /// What all of them may take.
    budget: Budget,
    /// What was refused last.
    refused: Option<OverBudget>,
}

/// Buffers that wait.
#[derive(Debug, Default)]
struct Free(Vec<Floats>);

impl Free {
    /// A buffer of `n` elements, or a few more.
    fn take(&mut self, n: usize) -> Option<Floats> {
        let buffers = self.0.iter().enumerate();
        let fitting = buffers.filter(|(_, v)| v.len() >= n && v.len() / 4 <= n.max(64));
        let (idx, _) = fitting.min_by_key(|(_, v)| v.len())?;
        Some(self.0.swap_remove(idx))
    }
}

impl Reclaim for Free {
    fn held_bytes(&self) -> usize {
        let elements = self.0.iter().map(|buffer| buffer.len());
        elements.sum::<usize>().saturating_mul(size_of::<f32>())
    }

    fn reclaim(&mut self, _: usize) -> bool {
        !std::mem::take(&mut self.0).is_empty()
    }
}

impl Pool {
    /// Buffers that are kept; a layer needs fewer at once.
    const MOST: usize = 48;

    /// An empty pool whose tensors take at most `most_bytes` each, and what `budget` allows
    /// together.
    pub fn new(most_bytes: usize, budget: &Budget) -> Self {
        let free = Arc::default();
        budget.keep(Loss::Copy, &free);
        Self {
            free,
            most_bytes,
            budget: budget.clone(),
            refused: None,
        }
    }

    /// Elements of a tensor, where it may be as large.
    pub fn check(&self, dtype: DType, shape: &[usize]) -> Result<usize, String> {
        checked_len(dtype, shape, self.most_bytes)
    }

    /// Memory for what `what` names; buffers that wait are given up for it.
    pub fn reserve(
        &mut self,
        n_bytes: usize,
        what: impl Fn() -> String,
    ) -> Result<Reservation, String> {
        if let Some(held) = self.budget.reserve_spare(n_bytes) {
            return Ok(held);
        }
        self.free().0.clear();
        let result = self.budget.reserve(n_bytes, &what);
        result.map_err(|refused| self.refused.insert(refused).to_string())
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was refused, if that is the reason of this failure.
    pub fn refusal(&mut self, reason: &str) -> Option<OverBudget> {
        self.refused
            .take_if(|refused| reason.ends_with(&refused.to_string()))
    }

    /// A buffer for the elements of an fp32 tensor, or more, with any content; and their number.
    pub fn take_checked(&mut self, shape: &[usize]) -> Result<(Floats, usize), String> {
        let n = self.check(DType::Fp32, shape)?;
        Ok((
            self.take_for(n, || format!("a tensor {shape:?} of fp32"))?,
            n,
        ))
    }

    /// A buffer of `n` elements or more, with any content, to compute with.
    pub fn take(&mut self, n: usize) -> Result<Floats, String> {
        self.take_for(n, || "what it computes with".to_owned())
    }

    fn take_for(&mut self, n: usize, what: impl Fn() -> String) -> Result<Floats, String> {
        if let Some(waiting) = self.free().take(n) {
            return Ok(waiting);
        }
        let n_bytes = n.saturating_mul(size_of::<f32>());
        let held = self.reserve(n_bytes, &what)?;
        if !can_allocate(n_bytes) {
            return Err(format!("{} cannot be held here", what()));
        }
        Ok(Floats::zeros(n, Some(held)))
    }

    /// Give a tensor back; its buffer is kept when nothing else holds it.
    pub fn give(&mut self, tensor: Tensor) {
        if let Ok(Buffer::F32(v)) = Arc::try_unwrap(tensor.data) {
            self.give_f32(v);
        }
    }

    /// Give a buffer back.
    pub fn give_f32(&mut self, v: Floats) {
        let mut waiting = self.free();
        let free = &mut waiting.0;
        if free.len() < Self::MOST {
            free.push(v);
        } else if let Some(least) = free.iter_mut().min_by_key(|v| v.len()) {
            // The smallest is the cheapest to make anew.
            if least.len() < v.len() {
                *least = v;
            }
        }
    }

    /// A tensor with any content.
    pub fn tensor(&mut self, dtype: DType, shape: Vec<usize>) -> Result<Tensor, String> {
        if dtype == DType::Fp32 {
            let (data, _) = self.take_checked(&shape)?;
            return Ok(Tensor::new(dtype, shape, Buffer::F32(data)));
        }
        self.zeros(dtype, shape)
    }

    /// A tensor of zeros in a buffer of its own.
    pub fn zeros(&mut self, dtype: DType, shape: Vec<usize>) -> Result<Tensor, String> {
        self.made(dtype, shape, Buffer::zeros)
    }

    /// The same for a state, in memory that the system provides as it is written.
    pub fn state(&mut self, dtype: DType, shape: Vec<usize>) -> Result<Tensor, String> {
        self.made(dtype, shape, Buffer::paged)
    }

    fn made(
        &mut self,
        dtype: DType,
        shape: Vec<usize>,
        make: fn(DType, usize, Option<Reservation>) -> Option<Buffer>,
    ) -> Result<Tensor, String> {
        let n = self.check(dtype, &shape)?;
        let what = || format!("a tensor {shape:?} of {dtype}");
        let held = self.reserve(n.saturating_mul(dtype.bits().div_ceil(8)), what)?;
        let data =
            make(dtype, n, Some(held)).ok_or_else(|| format!("{} cannot be held here", what()))?;
        Ok(Tensor::new(dtype, shape, data))
    }

    /// The buffer of a tensor, to be changed: a copy where something else holds it too.
    pub fn own<'t>(&mut self, tensor: &'t mut Tensor) -> Result<&'t mut Buffer, String> {
        if Arc::get_mut(&mut tensor.data).is_none() {
            let mut copy = self.tensor(tensor.dtype, tensor.shape.clone())?;
            if let Some(data) = Arc::get_mut(&mut copy.data) {
                data.copy_from(0, &tensor.data, 0, tensor.len());
            }
            tensor.data = copy.data;
        }
        Arc::get_mut(&mut tensor.data).ok_or_else(|| "a fresh buffer is shared".to_owned())
    }

    /// The same numbers as fp32; the tensor itself where it is not fp16.
    pub fn widened(&mut self, tensor: &Tensor) -> Result<Tensor, String> {
        let Buffer::F16(halves) = &*tensor.data else {
            return Ok(tensor.clone());
        };
        let (mut wide, n) = self.take_checked(&tensor.shape)?;
        wide.iter_mut()
            .zip(&halves[..n])
            .for_each(|(wide, half)| *wide = f16_to_f32(*half));
        Ok(Tensor::new(
            DType::Fp32,
            tensor.shape.clone(),
            Buffer::F32(wide),
        ))
    }

    /// The same numbers as `dtype`, where that is fp16; the tensor itself otherwise.
    pub fn narrowed(&mut self, tensor: Tensor, dtype: DType) -> Result<Tensor, String> {
        let (Some(wide), DType::Fp16) = (tensor.f32s(), dtype) else {
            return Ok(tensor);
        };
        let mut narrow = self.zeros(DType::Fp16, tensor.shape.clone())?;
        if let Some(Buffer::F16(halves)) = Arc::get_mut(&mut narrow.data) {
            halves
                .iter_mut()
                .zip(wide)
                .for_each(|(half, wide)| *half = f32_to_f16(*wide));
        }
        self.give(tensor);
        Ok(narrow)
    }

    /// A literal tensor; none for literals and element types that are not held here.
    pub fn literal(&mut self, literal: &Literal) -> Result<Option<Tensor>, String> {
        let Literal::Tensor(ty, data) = literal else {
            return Ok(None);
        };
        let TensorType { dtype, .. } = ty;
        let Some((shape, n)) = ty.known_shape().zip(ty.n_elements()) else {
            return Ok(None);
        };
        if ty.byte_len() != Some(data.byte_len())
            || n == 0 && checked_len(*dtype, &shape, 1 << 30).is_err()
        {
            return Ok(None);
        }
        let what = || format!("the constant {ty}");
        let held = self.reserve(n.saturating_mul(dtype.bits().div_ceil(8)), what)?;
        let Some(mut buffer) = Buffer::zeros(*dtype, n, Some(held)) else {
            return Ok(None);
        };
        let is_read = match (&mut buffer, dtype.bits()) {
            (buffer, 8 | 16 | 32) => data.read(0, buffer.bytes_mut()),
            (Buffer::I8(v), width) => {
                let (bytes, shift) = (data.to_vec(), 8 - width);
                v.iter_mut().enumerate().for_each(|(i, x)| {
                    *x = (bits(&bytes, i, width) << shift).cast_signed() >> shift
                });
                true
            }
            (Buffer::U8(v), width) => {
                let bytes = data.to_vec();
                v.iter_mut()
                    .enumerate()
                    .for_each(|(i, x)| *x = bits(&bytes, i, width));
                true
            }
            _ => false,
        };
        Ok(is_read.then(|| Tensor::new(*dtype, shape, buffer)))
    }
}

/// The elements of a tensor of fp32.
pub fn floats(t: &Tensor) -> Result<&[f32], String> {
    t.f32s()
        .ok_or_else(|| format!("{} stands where fp32 is due", t.dtype))
}

/// The same to be changed, in a buffer that nothing else holds.
pub fn floats_mut<'t>(t: &'t mut Tensor, pool: &mut Pool) -> Result<&'t mut [f32], String> {
    let (n, dtype) = (t.len(), t.dtype);
    match pool.own(t)? {
        Buffer::F32(values) => Ok(&mut values[..n]),
        _ => Err(format!("{dtype} stands where fp32 is due")),
    }
}
