//! Codes in the order in which products read them: 16 rows side by side, eight columns after the
//! other. Of eight columns the codes' bits lie in planes of four, two and one bits, or of eight, as
//! many as a code has: 16 bytes hold the bits of a row each, of as many columns as go into a byte.

use super::unpack::{CHUNK_LEN, look_up, unpack};
use super::{Coding, Compressed, Order};
use crate::Context;
use crate::linear::columns::PackedColumn;
use crate::linear::output::Output;
use crate::linear::tasks::run_row_parts;
use crate::linear::tiles::Next;
use crate::simd::{Kernel, LANES, Simd};

/// Columns whose planes lie together.
const STEP_COLS: usize = 8;
/// Columns that are unpacked at once, at most.
const MOST_COLS: usize = 512;
/// The codes of these columns, column by column.
type Step = [[u8; LANES]; STEP_COLS];

/// Groups of the columns that are unpacked at once: of no fewer than 16.
const MOST_GROUPS: usize = MOST_COLS / LANES;

/// The scales and offsets of 16 rows, group by group. They are gathered before the first is used: to
/// load at once what was just stored one by one takes as long as to unpack a group.
struct Scaling {
    scales: [[f32; LANES]; MOST_GROUPS],
    offsets: [[f32; LANES]; MOST_GROUPS],
}

impl<'a> Compressed<'a> {
    /// Bytes of the codes in the order of panels; `None` where there is none, because 16 rows do
    /// not share a table, or groups are not whole vectors of columns.
    pub fn ordered_len(&self) -> Option<usize> {
        let has_panels = match self.coding {
            Coding::Table { group_rows, .. } => {
                group_rows.is_multiple_of(LANES) || group_rows >= self.n_rows
            }
            Coding::Scale { group, .. } => {
                group[1].is_multiple_of(LANES) || group[1] == self.n_cols
            }
        };
        let n_panels = self.n_rows.div_ceil(LANES);
        (has_panels && self.order == Order::Rows)
            .then(|| self.panel_bytes().checked_mul(n_panels))?
    }

    /// Writes the codes in the order of panels.
    ///
    /// # Panics
    /// If `out` has not [`Self::ordered_len`].
    pub fn write_ordered(&self, ctx: &Context, out: &mut [u8]) {
        assert_eq!(Some(out.len()), self.ordered_len(), "bytes of the codes");
        let panel_bytes = self.panel_bytes();
        if panel_bytes == 0 {
            return;
        }
        ctx.pool().run_chunks(out, panel_bytes, |panel_idx, out| {
            ctx.isa().run(OrderTask {
                weight: self,
                first_row: panel_idx * LANES,
                out,
            });
        });
    }

    /// The same values, of codes that [`Self::write_ordered`] wrote.
    ///
    /// # Panics
    /// If these have not [`Self::ordered_len`].
    #[must_use]
    pub fn ordered(self, codes: &'a [u8]) -> Self {
        assert_eq!(Some(codes.len()), self.ordered_len(), "bytes of the codes");
        Self {
            codes,
            order: Order::Panels,
            ..self
        }
    }

    /// Columns of a panel: whole vectors.
    fn padded_cols(&self) -> usize {
        self.n_cols.next_multiple_of(LANES)
    }

    fn panel_bytes(&self) -> usize {
        self.padded_cols() / STEP_COLS * self.n_bits * LANES
    }

    /// The bytes of columns from `start` on of the 16 rows from `first_row` on.
    #[inline(always)]
    fn panel_chunk(&self, first_row: usize, start: usize, len: usize) -> &'a [u8] {
        let at = first_row / LANES * self.panel_bytes() + start * self.n_bits * LANES / 8;
        &self.codes[at..][..len * self.n_bits * LANES / 8]
    }

    /// What is read next, where that is these columns of the rows from `first_row` on.
    pub(in crate::linear) fn next_panels(
        &self,
        first_row: usize,
        n_rows: usize,
        start: usize,
        len: usize,
    ) -> Next<'a> {
        let n_panels = n_rows.min(self.n_rows - first_row).div_ceil(LANES);
        let len = len.next_multiple_of(LANES);
        let at = first_row / LANES * self.panel_bytes() + start * self.n_bits * LANES / 8;
        let end = (first_row / LANES + n_panels) * self.panel_bytes();
        Next {
            rows: &self.codes[at..end],
            stride: self.panel_bytes(),
            n_bytes: len * self.n_bits * LANES / 8,
        }
    }

    /// The columns from `start` on, a multiple of 16, of the 16 rows from `first_row` on, column by
    /// column; as many as the panel has, which is a multiple of 16 too, and 512 at most.
    #[inline(always)]
    pub(in crate::linear) fn panel<S: Simd>(
        &self,
        simd: S,
        first_row: usize,
        start: usize,
        panel: &mut [PackedColumn],
    ) {
        let bytes = self.panel_chunk(first_row, start, panel.len());
        let step_bytes = self.n_bits * LANES;
        let scaling = self.scaling(first_row, start, panel.len());
        let (mut group_idx, mut group_end) = match self.coding {
            Coding::Scale { group, .. } => (0, (start / group[1] + 1) * group[1]),
            Coding::Table { .. } => (0, 0),
        };
        let blocks = panel.as_chunks_mut::<LANES>().0;
        for (at, (bytes, block)) in bytes
            .chunks_exact(2 * step_bytes)
            .zip(&mut *blocks)
            .enumerate()
        {
            let mut codes: [Step; 2] = [[[0; LANES]; STEP_COLS]; 2];
            for (bytes, step) in bytes.chunks_exact(step_bytes).zip(&mut codes) {
                spread(self.n_bits, bytes, step);
            }
            let codes = codes.as_flattened().as_flattened();
            let out = PackedColumn::numbers(block);
            match self.coding {
                Coding::Table {
                    entries,
                    group_rows,
                } => {
                    let table = &entries[(first_row / group_rows) << self.n_bits..];
                    look_up(simd, &table[..1 << self.n_bits], codes, out);
                }
                Coding::Scale { group, .. } => {
                    if start + LANES * at >= group_end {
                        (group_idx, group_end) = (group_idx + 1, group_end + group[1]);
                    }
                    let scale = simd.load(&scaling.scales[group_idx]);
                    let offset = simd.load(&scaling.offsets[group_idx]);
                    each!(simd, codes, out, |codes| {
                        simd.mul(scale, simd.sub(simd.u8_values(codes), offset))
                    });
                }
            }
        }
    }

    /// The scaling of `len` columns from `start` on. Rows past the end are the last row again.
    #[inline(always)]
    fn scaling(&self, first_row: usize, start: usize, len: usize) -> Scaling {
        let mut scaling = Scaling {
            scales: [[0.0; LANES]; MOST_GROUPS],
            offsets: [[0.0; LANES]; MOST_GROUPS],
        };
        let Coding::Scale {
            is_signed,
            scales,
            offsets,
            group,
        } = self.coding
        else {
            return scaling;
        };
        // What was added to codes with a sign.
        let zero = if is_signed {
            f32::from(self.sign())
        } else {
            0.0
        };
        let end = (start + len).min(self.n_cols);
        let groups = start / group[1]..end.div_ceil(group[1]);
        for i in 0..LANES {
            let row_idx = (first_row + i).min(self.n_rows - 1);
            let first = row_idx / group[0] * (self.n_cols / group[1]) + groups.start;
            for (at, lanes) in scaling.scales.iter_mut().enumerate().take(groups.len()) {
                lanes[i] = scales[first + at];
            }
            for (at, lanes) in scaling.offsets.iter_mut().enumerate().take(groups.len()) {
                lanes[i] = offsets.get(first + at).map_or(zero, |offset| offset + zero);
            }
        }
        scaling
    }

    /// The bit of a code that says its sign, where codes have one.
    pub(super) fn sign(&self) -> u8 {
        1 << (self.n_bits - 1)
    }
}

/// The codes of 16 rows, to be put in order.
struct OrderTask<'a> {
    weight: &'a Compressed<'a>,
    first_row: usize,
    out: &'a mut [u8],
}

impl Kernel for OrderTask<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self {
            weight,
            first_row,
            out,
        } = self;
        let (n_bits, rows) = (weight.n_bits, weight.rows());
        // With this added, codes in two's complement have no sign.
        let flipped = match weight.coding {
            Coding::Scale {
                is_signed: true, ..
            } => weight.sign(),
            _ => 0,
        };
        let mut unpacked = [[0u8; CHUNK_LEN]; LANES];
        let chunk_bytes = CHUNK_LEN / STEP_COLS * n_bits * LANES;
        for (chunk_idx, out) in out.chunks_mut(chunk_bytes).enumerate() {
            let start = chunk_idx * CHUNK_LEN;
            let len = CHUNK_LEN.min(weight.n_cols - start);
            for (i, codes) in unpacked.iter_mut().enumerate() {
                let row = rows.get((first_row + i).min(weight.n_rows - 1));
                unpack(n_bits, weight.chunk(row, start, len), &mut codes[..len]);
                codes[len..].fill(0);
            }
            for (at, out) in out.chunks_exact_mut(2 * n_bits * LANES).enumerate() {
                let mut codes = [[0u8; LANES]; LANES];
                for (codes, row) in codes.iter_mut().zip(&unpacked) {
                    *codes = row.as_chunks().0[at];
                }
                simd.transpose_bytes(&mut codes);
                for code in codes.as_flattened_mut() {
                    *code ^= flipped;
                }
                let steps = codes.as_chunks::<STEP_COLS>().0;
                for (step, out) in steps.iter().zip(out.chunks_exact_mut(n_bits * LANES)) {
                    join(n_bits, step, out);
                }
            }
        }
    }
}

/// The codes of eight columns, of their planes.
#[inline(always)]
fn spread(n_bits: usize, bytes: &[u8], step: &mut Step) {
    let step = step.as_flattened_mut();
    if n_bits == 8 {
        step.copy_from_slice(bytes);
        return;
    }
    let (four, rest) = bytes.split_at((n_bits & 4) * LANES);
    let (two, one) = rest.split_at((n_bits & 2) * LANES);
    if n_bits & 4 > 0 {
        spread_plane::<64, 4, 0>(four, step);
    }
    match n_bits {
        2 | 3 => spread_plane::<32, 2, 0>(two, step),
        6 | 7 => spread_plane::<32, 2, 4>(two, step),
        _ => {}
    }
    match n_bits {
        1 => spread_plane::<16, 1, 0>(one, step),
        3 => spread_plane::<16, 1, 2>(one, step),
        5 => spread_plane::<16, 1, 4>(one, step),
        7 => spread_plane::<16, 1, 6>(one, step),
        _ => {}
    }
}

/// Writes the bits of a plane of `LEN` bytes: `WIDTH` bits of a code, from `SHIFT` on; those below
/// are kept. A byte has those of columns that are `WIDTH` apart.
#[inline(always)]
fn spread_plane<const LEN: usize, const WIDTH: usize, const SHIFT: usize>(
    plane: &[u8],
    step: &mut [u8],
) {
    let mask = (1u8 << WIDTH) - 1;
    let mut bits = [0; LEN];
    bits.copy_from_slice(plane);
    for codes in step.as_chunks_mut::<LEN>().0 {
        // Arrays of bytes become a few vector instructions; slices, and words, do not.
        let mut all = *codes;
        for (code, bits) in all.iter_mut().zip(&mut bits) {
            let low = (*bits & mask) << SHIFT;
            *code = if SHIFT == 0 { low } else { *code | low };
            *bits >>= WIDTH;
        }
        *codes = all;
    }
}

/// [`spread`] backwards.
#[inline(always)]
fn join(n_bits: usize, step: &Step, out: &mut [u8]) {
    let step = step.as_flattened();
    if n_bits == 8 {
        out.copy_from_slice(step);
        return;
    }
    let (four, rest) = out.split_at_mut((n_bits & 4) * LANES);
    let (two, one) = rest.split_at_mut((n_bits & 2) * LANES);
    for (width, shift, plane) in [(4, 0, four), (2, n_bits & 4, two), (1, n_bits & 6, one)] {
        plane.fill(0);
        if plane.is_empty() {
            continue;
        }
        for (i, codes) in step.chunks_exact(width * LANES).enumerate() {
            for (bits, code) in plane.iter_mut().zip(codes) {
                *bits |= (code >> shift & ((1 << width) - 1)) << (width * i);
            }
        }
    }
}

/// The product of few tokens with codes in the order of panels.
pub(in crate::linear) fn linear_few(
    ctx: &Context,
    weight: Compressed,
    x: &[f32],
    n_tokens: usize,
    out: &Output,
) {
    run_row_parts(ctx.pool(), weight.n_rows, LANES, |start, len| {
        let rows = [start, len];
        match n_tokens {
            0 => {}
            1 => ctx.isa().run(Few::<1> {
                weight,
                x,
                out,
                rows,
            }),
            _ => ctx.isa().run(Few::<2> {
                weight,
                x,
                out,
                rows,
            }),
        }
    });
}

/// Some panels, against `N` tokens.
struct Few<'a, const N: usize> {
    weight: Compressed<'a>,
    x: &'a [f32],
    out: &'a Output<'a>,
    /// The first row, a multiple of 16, and how many there are.
    rows: [usize; 2],
}

impl<const N: usize> Kernel for Few<'_, N> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let [start, len] = self.rows;
        let mut sums = [0.0; LANES];
        for first_row in (start..start + len).step_by(LANES) {
            let n_rows = (start + len - first_row).min(LANES);
            for (token_idx, total) in self.panel(simd, first_row).into_iter().enumerate() {
                simd.store(total, &mut sums);
                // SAFETY: the rows of this part belong to this task alone.
                let y = unsafe { self.out.part(token_idx, first_row, n_rows) };
                for (i, (y, sum)) in y.iter_mut().zip(sums).enumerate() {
                    *y = sum + self.out.start(first_row + i, *y);
                }
            }
        }
    }
}

impl<const N: usize> Few<'_, N> {
    /// The products of 16 rows with each token.
    #[inline(always)]
    fn panel<S: Simd>(&self, simd: S, first_row: usize) -> [S::F; N] {
        /// Columns at a time: their values stay in the first cache.
        const COLS: usize = 128;
        /// Sums at once, as one waits for the sum before.
        const N_SUMS: usize = 4;
        let n_cols = self.weight.n_cols;
        let mut totals = [[simd.splat(0.0); N_SUMS]; N];
        let mut values = [PackedColumn::ZERO; COLS];
        for start in (0..n_cols).step_by(COLS) {
            let len = COLS.min(n_cols - start);
            let values = &mut values[..len.next_multiple_of(LANES)];
            self.weight.panel(simd, first_row, start, values);
            for (token_idx, totals) in totals.iter_mut().enumerate() {
                let x = &self.x[token_idx * n_cols + start..][..len];
                let (x, x_rest) = x.as_chunks::<N_SUMS>();
                let (values, rest) = values[..len].as_chunks::<N_SUMS>();
                let mut sums = *totals;
                for (values, x) in values.iter().zip(x) {
                    for i in 0..N_SUMS {
                        sums[i] = simd.fma(simd.load(&values[i].0), simd.splat(x[i]), sums[i]);
                    }
                }
                for (values, x) in rest.iter().zip(x_rest) {
                    sums[0] = simd.fma(simd.load(&values.0), simd.splat(*x), sums[0]);
                }
                *totals = sums;
            }
        }
        totals.map(|[a, b, c, d]| simd.add(simd.add(a, b), simd.add(c, d)))
    }
}
