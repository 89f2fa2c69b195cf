//! Keys and values where they are, element type and all.

use super::{KvData, KvView};
use crate::f16::u16_as_bytes;
use crate::linear::LINE_BYTES;
use crate::simd::{LANES, Multiply, Simd};

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
    pub(super) fn new(
        view: &KvView<'a>,
        head_dim: usize,
        head_idx: usize,
        first_key: usize,
        n: usize,
    ) -> Option<Self> {
        let start = head_idx * view.head_stride + first_key * view.key_stride;
        let data = match view.data {
            KvData::F32(data) => KvData::F32(&data[start..]),
            KvData::F16(data) => KvData::F16(&data[start..]),
        };
        let is_whole = n > 0
            && head_dim.is_multiple_of(LANES)
            && (n - 1) * view.key_stride + head_dim <= data.len();
        is_whole.then_some(Self {
            data,
            stride: view.key_stride,
            n,
            head_dim,
        })
    }

    /// Rows of f32 behind each other.
    #[inline(always)]
    pub(super) fn padded(rows: &'a [f32], padded_dim: usize, n: usize) -> Self {
        Self {
            data: KvData::F32(&rows[..n * padded_dim]),
            stride: padded_dim,
            n,
            head_dim: padded_dim,
        }
    }

    /// Asks for as many elements as a row has, so many elements behind it; they need not be there.
    #[inline(always)]
    pub(super) fn prefetch<S: Simd>(&self, simd: S, i: usize, ahead: usize) {
        let (start, n_bytes) = match self.data {
            KvData::F32(data) => (
                data.as_ptr()
                    .wrapping_add(i * self.stride)
                    .wrapping_add(ahead)
                    .cast(),
                4 * self.head_dim,
            ),
            KvData::F16(data) => (
                data.as_ptr()
                    .wrapping_add(i * self.stride)
                    .wrapping_add(ahead)
                    .cast::<f32>(),
                2 * self.head_dim,
            ),
        };
        (0..n_bytes)
            .step_by(LINE_BYTES)
            .for_each(|at| simd.prefetch(start.wrapping_byte_add(at)));
    }

    /// 16 elements of a row.
    ///
    /// # Safety
    /// There are more than `i` rows, and `first` is a multiple of 16 below the dimension of the
    /// head.
    #[inline(always)]
    pub(super) unsafe fn vector<S: Simd>(&self, simd: S, i: usize, first: usize) -> S::F {
        let at = i * self.stride + first;
        match self.data {
            // SAFETY: the caller's promise, and `new` checked that the last row ends inside of the
            // data.
            KvData::F32(data) => simd.load(unsafe { &*data.as_ptr().add(at).cast() }),
            KvData::F16(data) => {
                // SAFETY: as above.
                simd.load_f16(u16_as_bytes(unsafe { &*data.as_ptr().add(at).cast() }))
            }
        }
    }

    /// The rows as f32, [n, head_dim]; where a lane is two factors, those of two rows, the last
    /// one's with zeros.
    #[inline(always)]
    pub(super) fn copy<M: Multiply>(self, simd: M, to: &mut [f32]) {
        let base = simd.base();
        for (i, to) in (0..self.n)
            .step_by(M::LANE_LEN)
            .zip(to.chunks_exact_mut(self.head_dim))
        {
            for (at, to) in to.as_chunks_mut().0.iter_mut().enumerate() {
                // SAFETY: i < n, and rows are as long as the head's dimension.
                let row = unsafe { self.vector(base, i, at * LANES) };
                if M::LANE_LEN == 1 {
                    base.store(row, to);
                    continue;
                }
                let mut rows = [row, base.splat(0.0)];
                if i + 1 < self.n {
                    // SAFETY: as above.
                    rows[1] = unsafe { self.vector(base, i + 1, at * LANES) };
                }
                base.store(simd.zip(rows), to);
            }
        }
    }

    /// The rows, scaled, as panels of 16: lane by lane of elements, the rows as lanes, zeros where
    /// there are none.
    #[inline(always)]
    pub(super) fn transpose<M: Multiply>(self, simd: M, scale: f32, panels: &mut [f32]) {
        let base = simd.base();
        let scale = base.splat(scale);
        let n_vectors = self.head_dim / M::LANE_LEN;
        for (group, panel) in panels.chunks_exact_mut(LANES * n_vectors).enumerate() {
            let n = (self.n - group * LANES).min(LANES);
            for first in (0..n_vectors).step_by(LANES) {
                let mut lanes = [base.splat(0.0); LANES];
                for (i, lane) in lanes.iter_mut().enumerate() {
                    if i < n {
                        // SAFETY: group * 16 + i < n, and what is asked for counts in whole vectors
                        // up to the dimension.
                        *lane = unsafe {
                            self.lanes(simd, group * LANES + i, first * M::LANE_LEN, scale)
                        };
                    }
                }
                base.transpose(&mut lanes);
                for (lane, out) in lanes
                    .into_iter()
                    .zip(panel[first * LANES..].as_chunks_mut().0)
                {
                    base.store(lane, out);
                }
            }
        }
    }

    /// 16 lanes of a row, scaled.
    ///
    /// # Safety
    /// There are more than `i` rows, and as many elements from `first` on, a multiple of 16.
    #[inline(always)]
    unsafe fn lanes<M: Multiply>(
        &self,
        simd: M,
        i: usize,
        first: usize,
        scale: <M::Base as Simd>::F,
    ) -> <M::Base as Simd>::F {
        let base = simd.base();
        // SAFETY: the caller's promise.
        let low = base.mul(unsafe { self.vector(base, i, first) }, scale);
        if M::LANE_LEN == 1 {
            return low;
        }
        // SAFETY: as above.
        simd.join([
            low,
            base.mul(unsafe { self.vector(base, i, first + LANES) }, scale),
        ])
    }
}
