//! Keys and values where they are, element type and all.

use super::{KvData, KvView};
use crate::f16::u16_as_bytes;
use crate::simd::{LANES, Simd};

/// Some keys or values of a head.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    data: KvData<'a>,
    /// Elements from row to row.
    stride: usize,
    /// Rows.
    pub(super) n: usize,
    pub(super) head_dim: usize,
}

impl<'a> Rows<'a> {
    /// Those from `first_key` on; none where a row is not whole vectors.
    #[inline(always)]
    pub(super) fn new(view: &KvView<'a>, head_dim: usize, head_idx: usize, first_key: usize, n: usize) -> Option<Self> {
        let start = head_idx * view.head_stride + first_key * view.key_stride;
        let data = match view.data {
            KvData::F32(data) => KvData::F32(&data[start..]),
            KvData::F16(data) => KvData::F16(&data[start..]),
        };
        let is_whole = n > 0 && head_dim.is_multiple_of(LANES) && (n - 1) * view.key_stride + head_dim <= data.len();
        is_whole.then_some(Self { data, stride: view.key_stride, n, head_dim })
    }

    /// Rows of f32 behind each other.
    #[inline(always)]
    pub(super) fn padded(rows: &'a [f32], padded_dim: usize, n: usize) -> Self {
        Self { data: KvData::F32(&rows[..n * padded_dim]), stride: padded_dim, n, head_dim: padded_dim }
    }

    /// 16 elements of a row.
    ///
    /// # Safety
    /// There are more than `i` rows, and `first` is a multiple of 16 below the dimension of the head.
    #[inline(always)]
    pub(super) unsafe fn vector<S: Simd>(&self, simd: S, i: usize, first: usize) -> S::F {
        let at = i * self.stride + first;
        match self.data {
            // SAFETY: the caller's promise, and `new` checked that the last row ends inside of the data.
            KvData::F32(data) => simd.load(unsafe { &*data.as_ptr().add(at).cast() }),
            // SAFETY: as above.
            KvData::F16(data) => simd.load_f16(u16_as_bytes(unsafe { &*data.as_ptr().add(at).cast() })),
        }
    }

    /// The rows as f32, [n, head_dim].
    #[inline(always)]
    pub(super) fn copy<S: Simd>(self, simd: S, to: &mut [f32]) {
        for (i, to) in to.chunks_exact_mut(self.head_dim).enumerate().take(self.n) {
            for (at, to) in to.as_chunks_mut().0.iter_mut().enumerate() {
                // SAFETY: i < n, and rows are as long as the head's dimension.
                simd.store(unsafe { self.vector(simd, i, at * LANES) }, to);
            }
        }
    }

    /// The rows, scaled, as panels of 16: element by element, the rows as lanes, zeros where there are none.
    #[inline(always)]
    pub(super) fn transpose<S: Simd>(self, simd: S, scale: f32, panels: &mut [f32]) {
        let scale = simd.splat(scale);
        for (group, panel) in panels.chunks_exact_mut(LANES * self.head_dim).enumerate() {
            let n = (self.n - group * LANES).min(LANES);
            for first in (0..self.head_dim).step_by(LANES) {
                let mut lanes = [simd.splat(0.0); LANES];
                for (i, lane) in lanes.iter_mut().enumerate() {
                    if i < n {
                        // SAFETY: group * 16 + i < n, and `first` counts in whole vectors up to the dimension.
                        *lane = unsafe { self.vector(simd, group * LANES + i, first) };
                    }
                }
                simd.transpose(&mut lanes);
                for (lane, out) in lanes.into_iter().zip(panel[first * LANES..].as_chunks_mut().0) {
                    simd.store(simd.mul(lane, scale), out);
                }
            }
        }
    }
}
