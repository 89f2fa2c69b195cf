//! Tensors as the interpreter holds them, and the pool that their buffers come from.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use thane_kernels::f16::{f16_to_f32, f32_to_f16};
use thane_mil::literal::Literal;
use thane_mil::types::{DType, TensorType};

/// Elements of a tensor, where it takes at most `most_bytes`.
///
/// Empty dimensions count as 1, so that the strides of a tensor that passes cannot overflow either.
pub fn checked_len(dtype: DType, shape: &[usize], most_bytes: usize) -> Result<usize, String> {
    let bytes = dtype.bits().div_ceil(8);
    let most = most_bytes / bytes.max(1);
    match shape.iter().try_fold(1usize, |n, d| n.checked_mul((*d).max(1))) {
        Some(n) if n <= most => Ok(shape.iter().product()),
        _ => Err(format!("a tensor {shape:?} of {dtype} takes more than the {most_bytes} bytes that one may")),
    }
}

/// f32s that begin on a whole cache line where they were made here: a vector that lies in two takes two reads, and products of a prompt
/// a thirtieth longer.
#[derive(Debug, Default)]
pub struct Floats {
    values: Vec<f32>,
    start: usize,
    len: usize,
}

impl Floats {
    /// Zeros.
    pub fn zeros(len: usize) -> Self {
        const LINE: usize = 64;
        let values = vec![0.0; len.saturating_add(LINE / size_of::<f32>() - 1)];
        let start = values.as_ptr().align_offset(LINE);
        // The allocator may not say.
        let start = if start > values.len() - len { 0 } else { start };
        Self { values, start, len }
    }
}

impl Deref for Floats {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.values[self.start..][..self.len]
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values[self.start..][..self.len]
    }
}

impl Clone for Floats {
    fn clone(&self) -> Self {
        let mut copy = Self::zeros(self.len);
        copy.copy_from_slice(self);
        copy
    }
}

impl From<Vec<f32>> for Floats {
    fn from(values: Vec<f32>) -> Self {
        Self { start: 0, len: values.len(), values }
    }
}

impl FromIterator<f32> for Floats {
    fn from_iter<I: IntoIterator<Item = f32>>(values: I) -> Self {
        Vec::from_iter(values).into()
    }
}

/// Elements of one type; a buffer from the pool may be longer than its tensor.
#[derive(Clone, Debug)]
pub enum Buffer {
    /// fp32.
    F32(Floats),
    /// fp16, as bits.
    F16(Vec<u16>),
    /// int32.
    I32(Vec<i32>),
    /// uint32.
    U32(Vec<u32>),
    /// int16.
    I16(Vec<i16>),
    /// uint16.
    U16(Vec<u16>),
    /// int8, and int4 unpacked.
    I8(Vec<i8>),
    /// uint8, and narrower unsigned types unpacked.
    U8(Vec<u8>),
    /// bool, 0 or 1.
    Bool(Vec<u8>),
}

impl Buffer {
    /// Zeros; `None` for element types that the interpreter does not hold, and where there is no memory for them.
    pub fn zeros(dtype: DType, n: usize) -> Option<Self> {
        if !can_allocate(n.checked_mul(dtype.bits().div_ceil(8))?) {
            return None;
        }
        Some(match dtype {
            DType::Fp32 => Buffer::F32(Floats::zeros(n)),
            DType::Fp16 => Buffer::F16(vec![0; n]),
            DType::Int32 => Buffer::I32(vec![0; n]),
            DType::Uint32 => Buffer::U32(vec![0; n]),
            DType::Int16 => Buffer::I16(vec![0; n]),
            DType::Uint16 => Buffer::U16(vec![0; n]),
            DType::Int8 | DType::Int4 => Buffer::I8(vec![0; n]),
            DType::Uint8 | DType::Uint6 | DType::Uint4 | DType::Uint3 | DType::Uint2 | DType::Uint1 => {
                Buffer::U8(vec![0; n])
            }
            DType::Bool => Buffer::Bool(vec![0; n]),
            _ => return None,
        })
    }

    /// The elements as bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Buffer::F32(v) => bytemuck::cast_slice(v),
            Buffer::F16(v) => bytemuck::cast_slice(v),
            Buffer::I32(v) => bytemuck::cast_slice(v),
            Buffer::U32(v) => bytemuck::cast_slice(v),
            Buffer::I16(v) => bytemuck::cast_slice(v),
            Buffer::U16(v) => bytemuck::cast_slice(v),
            Buffer::I8(v) => bytemuck::cast_slice(v),
            Buffer::U8(v) | Buffer::Bool(v) => v,
        }
    }

    /// The elements as bytes that can be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Buffer::F32(v) => bytemuck::cast_slice_mut(v),
            Buffer::F16(v) => bytemuck::cast_slice_mut(v),
            Buffer::I32(v) => bytemuck::cast_slice_mut(v),
            Buffer::U32(v) => bytemuck::cast_slice_mut(v),
            Buffer::I16(v) => bytemuck::cast_slice_mut(v),
            Buffer::U16(v) => bytemuck::cast_slice_mut(v),
            Buffer::I8(v) => bytemuck::cast_slice_mut(v),
            Buffer::U8(v) | Buffer::Bool(v) => v,
        }
    }

    /// Copy `n` elements from another buffer of the same kind; `false` when the kinds differ or an end is passed.
    pub fn copy_from(&mut self, at: usize, from: &Buffer, from_at: usize, n: usize) -> bool {
        fn copy<T: Copy>(to: &mut [T], at: usize, from: &[T], from_at: usize, n: usize) -> bool {
            let to = at.checked_add(n).and_then(|end| to.get_mut(at..end));
            let from = from_at.checked_add(n).and_then(|end| from.get(from_at..end));
            let (Some(to), Some(from)) = (to, from) else { return false };
            to.copy_from_slice(from);
            true
        }
        match (self, from) {
            (Buffer::F32(to), Buffer::F32(from)) => copy(to, at, from, from_at, n),
            (Buffer::F16(to), Buffer::F16(from)) => copy(to, at, from, from_at, n),
            (Buffer::I32(to), Buffer::I32(from)) => copy(to, at, from, from_at, n),
            (Buffer::U32(to), Buffer::U32(from)) => copy(to, at, from, from_at, n),
            (Buffer::I16(to), Buffer::I16(from)) => copy(to, at, from, from_at, n),
            (Buffer::U16(to), Buffer::U16(from)) => copy(to, at, from, from_at, n),
            (Buffer::I8(to), Buffer::I8(from)) => copy(to, at, from, from_at, n),
            (Buffer::U8(to), Buffer::U8(from)) | (Buffer::Bool(to), Buffer::Bool(from)) => {
                copy(to, at, from, from_at, n)
            }
            _ => false,
        }
    }
}

/// Whether the machine grants an allocation of that many bytes: asking for zeros and getting none ends the process.
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
        Self { dtype, shape, data: Arc::new(data) }
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
        match &*self.data {
            Buffer::F32(v) => v.iter().take(n).enumerate().for_each(|(i, x)| visit(i, f64::from(*x))),
            Buffer::F16(v) => v.iter().take(n).enumerate().for_each(|(i, x)| visit(i, f64::from(f16_to_f32(*x)))),
            Buffer::I32(v) => v.iter().take(n).enumerate().for_each(|(i, x)| visit(i, f64::from(*x))),
            Buffer::U32(v) => v.iter().take(n).enumerate().for_each(|(i, x)| visit(i, f64::from(*x))),
            Buffer::I16(v) => v.iter().take(n).enumerate().for_each(|(i, x)| visit(i, f64::from(*x))),
            Buffer::U16(v) => v.iter().take(n).enumerate().for_each(|(i, x)| visit(i, f64::from(*x))),
            Buffer::I8(v) => v.iter().take(n).enumerate().for_each(|(i, x)| visit(i, f64::from(*x))),
            Buffer::U8(v) | Buffer::Bool(v) => {
                v.iter().take(n).enumerate().for_each(|(i, x)| visit(i, f64::from(*x)));
            }
        }
    }

    /// The same numbers as fp32; the tensor itself where it is not fp16.
    pub fn widened(&self) -> Tensor {
        match &*self.data {
            Buffer::F16(v) => {
                let data = v.iter().take(self.len()).map(|h| f16_to_f32(*h)).collect();
                Tensor::new(DType::Fp32, self.shape.clone(), Buffer::F32(data))
            }
            _ => self.clone(),
        }
    }

    /// The same numbers as `dtype`, where that is fp16; the tensor itself otherwise.
    pub fn narrowed(self, dtype: DType) -> Tensor {
        match (&*self.data, dtype) {
            (Buffer::F32(v), DType::Fp16) => {
                let data = v.iter().take(self.len()).map(|x| f32_to_f16(*x)).collect();
                Tensor::new(DType::Fp16, self.shape.clone(), Buffer::F16(data))
            }
            _ => self,
        }
    }

    /// A literal tensor.
    pub fn from_literal(literal: &Literal) -> Option<Tensor> {
        let Literal::Tensor(ty, data) = literal else { return None };
        let TensorType { dtype, .. } = ty;
        let (shape, n) = (ty.known_shape()?, ty.n_elements()?);
        if ty.byte_len() != Some(data.byte_len()) || n == 0 && checked_len(*dtype, &shape, 1 << 30).is_err() {
            return None;
        }
        let bytes = data.to_vec();
        let mut buffer = Buffer::zeros(*dtype, n)?;
        match (&mut buffer, dtype.bits()) {
            (buffer, 8 | 16 | 32) => buffer.bytes_mut().copy_from_slice(&bytes),
            (Buffer::I8(v), width) => {
                let shift = 8 - width;
                v.iter_mut()
                    .enumerate()
                    .for_each(|(i, x)| *x = (bits(&bytes, i, width) << shift).cast_signed() >> shift);
            }
            (Buffer::U8(v), width) => v.iter_mut().enumerate().for_each(|(i, x)| *x = bits(&bytes, i, width)),
            _ => return None,
        }
        Some(Tensor::new(*dtype, shape, buffer))
    }
}

/// The `width` bits of element `i`, least significant first.
fn bits(bytes: &[u8], i: usize, width: usize) -> u8 {
    (0..width).fold(0, |v, k| v | ((bytes[(i * width + k) / 8] >> ((i * width + k) % 8) & 1) << k))
}

/// Buffers of fp32 that were used and wait to be used again.
///
/// A function's values come and go in the same order at every call, so after the first call nothing is allocated.
#[derive(Debug)]
pub struct Pool {
    free: Vec<Floats>,
    /// What one tensor may take.
    most_bytes: usize,
}

impl Pool {
    /// Buffers that are kept; a layer needs fewer at once.
    const MOST: usize = 48;

    /// An empty pool whose tensors take at most `most_bytes` each.
    pub fn new(most_bytes: usize) -> Self {
        Self { free: Vec::new(), most_bytes }
    }

    /// Elements of a tensor, where it may be as large.
    pub fn check(&self, dtype: DType, shape: &[usize]) -> Result<usize, String> {
        checked_len(dtype, shape, self.most_bytes)
    }

    /// A buffer for the elements of an fp32 tensor, or more, with any content; and their number.
    pub fn take_checked(&mut self, shape: &[usize]) -> Result<(Floats, usize), String> {
        let n = self.check(DType::Fp32, shape)?;
        Ok((self.take(n), n))
    }

    /// A buffer of `n` elements or more, with any content.
    pub fn take(&mut self, n: usize) -> Floats {
        let fitting = self.free.iter().enumerate().filter(|(_, v)| v.len() >= n && v.len() / 4 <= n.max(64));
        let best = fitting.min_by_key(|(_, v)| v.len()).map(|(i, _)| i);
        best.map_or_else(|| Floats::zeros(n), |i| self.free.swap_remove(i))
    }

    /// Give a tensor back; its buffer is kept when nothing else holds it.
    pub fn give(&mut self, tensor: Tensor) {
        if let Ok(Buffer::F32(v)) = Arc::try_unwrap(tensor.data) {
            self.give_f32(v);
        }
    }

    /// Give a buffer back.
    pub fn give_f32(&mut self, v: Floats) {
        if self.free.len() < Self::MOST {
            self.free.push(v);
        } else if let Some(least) = self.free.iter_mut().min_by_key(|v| v.len()) {
            // The smallest is the cheapest to make anew.
            if least.len() < v.len() {
                *least = v;
            }
        }
    }

    /// A tensor with any content.
    pub fn tensor(&mut self, dtype: DType, shape: Vec<usize>) -> Result<Tensor, String> {
        let n = self.check(dtype, &shape)?;
        let data = if dtype == DType::Fp32 { Some(Buffer::F32(self.take(n))) } else { Buffer::zeros(dtype, n) };
        let data = data.ok_or_else(|| format!("a tensor {shape:?} of {dtype} cannot be held here"))?;
        Ok(Tensor::new(dtype, shape, data))
    }
}
