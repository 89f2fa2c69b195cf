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

/// Sums at once of a product, as one waits for the sum before.
const N_SUMS: usize = 4;

/// Adds to the sums of each token the products of its inputs of some columns with what an
/// expression gives of their codes. No closure, which might not be inlined to where the instruction
/// set is known.
macro_rules! add_columns {
    ($simd:expr, $codes:expr, $x:expr, $sums:expr, |$column:ident| $values:expr $(,)?) => {
        // In steps of a known length, so that sums stay in registers.
        let (steps, rest) = $codes.as_chunks::<N_SUMS>();
        for (at, step) in steps.iter().enumerate() {
            for (i, $column) in step.iter().enumerate() {
                let values = $values;
                for (x, sums) in $x.iter().zip(&mut $sums) {
                    let x = $simd.splat(x[N_SUMS * at + i]);
                    sums[i] = $simd.fma(values, x, sums[i]);
                }
            }
        }
        for (i, $column) in rest.iter().enumerate() {
            let values = $values;
            for (x, sums) in $x.iter().zip(&mut $sums) {
                let x = $simd.splat(x[N_SUMS * steps.len() + i]);
                sums[i] = $simd.fma(values, x, sums[i]);
            }
        }
    };
}

impl<'a> Compressed<'a> {
    /// Bytes of the codes in the order of panels; `None` where there is none, because 16 rows do
    /// not share a table, or groups are not whole vectors of columns.
    pub fn ordered_len(&self) -> Option<usize> {
        let has_panels = match self.coding {
            Coding::Table {
                group_rows, width, ..
            } => width == 1 && (group_rows.is_multiple_of(LANES) || group_rows >= self.n_rows),
            Coding::Scale { group, .. } => {
                group[1].is_multiple_of(LANES) || group[1] == self.n_cols
            }
            Coding::Half => false,
        };
        let n_panels = self.n_rows.div_ceil(LANES);
        (has_panels && self.is_plain()).then(|| self.panel_bytes().checked_mul(n_panels))?
    }

    /// Numbers of the scales and offsets in the order of panels.
    pub fn ordered_scaling_len(&self) -> usize {
        match self.coding {
            Coding::Table { scales: [], .. } | Coding::Half => 0,
            Coding::Table { .. } => self.n_rows.next_multiple_of(LANES),
            Coding::Scale { offsets, group, .. } => {
                let n_scales = self.n_rows.next_multiple_of(LANES) * (self.n_cols / group[1]);
                n_scales * if offsets.is_empty() { 1 } else { 2 }
            }
        }
    }

    /// The scales, and the offsets where there are some, in the order of panels: those of 16 rows,
    /// group after group.
    pub fn ordered_scaling(&self) -> Vec<f32> {
        let (scales, offsets, group) = match self.coding {
            Coding::Table { scales: [], .. } | Coding::Half => return Vec::new(),
            Coding::Table { scales, .. } => (scales, [].as_slice(), [1, self.n_cols]),
            Coding::Scale {
                scales,
                offsets,
                group,
                ..
            } => (scales, offsets, group),
        };
        let n_groups = self.n_cols / group[1];
        let mut out = Vec::with_capacity(self.ordered_scaling_len());
        for first_row in (0..self.n_rows).step_by(LANES) {
            // Rows past the end are the last row again.
            let first = |i: usize| (first_row + i).min(self.n_rows - 1) / group[0] * n_groups;
            for at in 0..n_groups {
                out.extend((0..LANES).map(|i| scales[first(i) + at]));
                if !offsets.is_empty() {
                    out.extend((0..LANES).map(|i| offsets[first(i) + at] + self.added()));
                }
            }
        }
        out
    }

    /// What is added to codes in the order of panels, so that they have no sign.
    #[inline(always)]
    fn added(&self) -> f32 {
        match self.coding {
            Coding::Scale {
                is_signed: true, ..
            } => f32::from(self.sign()),
            _ => 0.0,
        }
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

    /// The same values, of codes that [`Self::write_ordered`] wrote and of
    /// [`Self::ordered_scaling`].
    ///
    /// # Panics
    /// If these have not [`Self::ordered_len`] and [`Self::ordered_scaling_len`].
    #[must_use]
    pub fn ordered(self, codes: &'a [u8], scaling: &'a [f32]) -> Self {
        assert_eq!(Some(codes.len()), self.ordered_len(), "bytes of the codes");
        assert_eq!(scaling.len(), self.ordered_scaling_len(), "scales");
        let order = Order::Panels { scaling };
        Self {
            codes,
            order,
            ..self
        }
    }

    /// The scales of 16 rows with tables; none where there are none.
    #[inline(always)]
    fn row_scales<S: Simd>(&self, simd: S, first_row: usize) -> Option<S::F> {
        match (self.coding, self.order) {
            (Coding::Table { .. }, Order::Panels { scaling }) if !scaling.is_empty() => {
                Some(simd.load(&scaling.as_chunks().0[first_row / LANES]))
            }
            _ => None,
        }
    }

    /// The scales and offsets of 16 rows in the group of a column; zeros of a table.
    #[inline(always)]
    fn lanes<S: Simd>(&self, simd: S, first_row: usize, col: usize) -> [S::F; 2] {
        let (Coding::Scale { offsets, group, .. }, Order::Panels { scaling }) =
            (self.coding, self.order)
        else {
            return [simd.splat(0.0); 2];
        };
        let lanes = scaling.as_chunks().0;
        let at = first_row / LANES * (self.n_cols / group[1]) + col / group[1];
        if offsets.is_empty() {
            [simd.load(&lanes[at]), simd.splat(self.added())]
        } else {
            [simd.load(&lanes[2 * at]), simd.load(&lanes[2 * at + 1])]
        }
    }

    /// The table of the rows from this one on.
    #[inline(always)]
    fn table(&self, first_row: usize) -> Option<&'a [f32]> {
        let Coding::Table {
            entries,
            group_rows,
            ..
        } = self.coding
        else {
            return None;
        };
        Some(&entries[(first_row / group_rows) << self.n_bits..][..1 << self.n_bits])
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
    /// column; as many as the panel has, which is a multiple of 16 too.
    #[inline(always)]
    pub(in crate::linear) fn panel<S: Simd>(
        &self,
        simd: S,
        first_row: usize,
        start: usize,
        panel: &mut [PackedColumn],
    ) {
        let bytes = self.panel_chunk(first_row, start, panel.len());
        let table = self.table(first_row);
        let row_scales = self.row_scales(simd, first_row);
        // Of the group that a block of columns is in, and the column behind it.
        let ([mut scale, mut offset], mut end) = (self.lanes(simd, first_row, start), start);
        let blocks = panel.as_chunks_mut::<LANES>().0;
        for (at, (bytes, block)) in bytes
            .chunks_exact(2 * self.n_bits * LANES)
            .zip(&mut *blocks)
            .enumerate()
        {
            let codes = self.block(bytes);
            let out = PackedColumn::numbers(block);
            if let Some(table) = table {
                look_up(simd, table, codes.as_flattened(), out);
                if let Some(scales) = row_scales {
                    for column in &mut *block {
                        simd.store(simd.mul(scales, simd.load(&column.0)), &mut column.0);
                    }
                }
                continue;
            }
            let col = start + LANES * at;
            if col >= end {
                [scale, offset] = self.lanes(simd, first_row, col);
                end = self.group_end(col);
            }
            each!(simd, codes.as_flattened(), out, |codes| {
                simd.mul(scale, simd.sub(simd.u8_values(codes), offset))
            });
        }
    }

    /// The column behind the group of one.
    #[inline(always)]
    fn group_end(&self, col: usize) -> usize {
        match self.coding {
            Coding::Scale { group, .. } => (col / group[1] + 1) * group[1],
            Coding::Table { .. } | Coding::Half => usize::MAX,
        }
    }

    /// The codes of 16 columns, column by column.
    #[inline(always)]
    fn block(&self, bytes: &[u8]) -> [[u8; LANES]; LANES] {
        let mut codes = [[0; LANES]; LANES];
        let steps = codes.as_chunks_mut::<STEP_COLS>().0;
        for (bytes, step) in bytes.chunks_exact(self.n_bits * LANES).zip(steps) {
            spread(self.n_bits, bytes, step.as_flattened_mut());
        }
        codes
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
        // With the bit of the sign turned over, that bit is added to the code, which then has none.
        let flipped = weight.added() as u8;
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
                    join(n_bits, step.as_flattened(), out);
                }
            }
        }
    }
}

/// The codes of eight columns, of their planes.
#[inline(always)]
pub(in crate::linear) fn spread(n_bits: usize, bytes: &[u8], step: &mut [u8]) {
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
pub(in crate::linear) fn join(n_bits: usize, step: &[u8], out: &mut [u8]) {
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
        let (weight, n_cols) = (self.weight, self.weight.n_cols);
        let bytes = weight.panel_chunk(first_row, 0, weight.padded_cols());
        let blocks = bytes.chunks_exact(2 * weight.n_bits * LANES);
        let tables: &[[f32; LANES]] = weight.table(first_row).map_or(&[], |t| t.as_chunks().0);
        let mut totals = [[simd.splat(0.0); N_SUMS]; N];
        let ([mut scale, mut offset], mut end) = (weight.lanes(simd, first_row, 0), 0);
        for (at, bytes) in blocks.enumerate() {
            let col = at * LANES;
            let len = LANES.min(n_cols - col);
            // Of the last columns there may be fewer.
            let x: [&[f32]; N] = std::array::from_fn(|n| &self.x[n * n_cols + col..][..len]);
            let codes = &weight.block(bytes)[..len];
            let mut sums = totals;
            match *tables {
                [ref table] => {
                    let table = simd.load(table);
                    add_columns!(simd, codes, x, sums, |codes| simd.look_up(table, codes));
                }
                [ref a, ref b, ref c, ref d] => {
                    let four = [simd.load(a), simd.load(b), simd.load(c), simd.load(d)];
                    add_columns!(simd, codes, x, sums, |codes| simd.look_up_64(four, codes));
                }
                [] if weight.table(first_row).is_none() => {
                    if col >= end {
                        [scale, offset] = weight.lanes(simd, first_row, col);
                        end = weight.group_end(col);
                    }
                    let mut of_group = [[simd.splat(0.0); N_SUMS]; N];
                    add_columns!(simd, codes, x, of_group, |codes| {
                        simd.sub(simd.u8_values(codes), offset)
                    });
                    for (sums, of_group) in sums.iter_mut().zip(of_group) {
                        for (sum, of_group) in sums.iter_mut().zip(of_group) {
                            *sum = simd.fma(scale, of_group, *sum);
                        }
                    }
                }
                _ => {
                    let mut values = [PackedColumn::ZERO; LANES];
                    weight.panel(simd, first_row, col, &mut values);
                    let values = &values[..len];
                    add_columns!(simd, values, x, sums, |values| simd.load(&values.0));
                }
            }
            totals = sums;
        }
        let mut all = [simd.splat(0.0); N];
        for (all, [a, b, c, d]) in all.iter_mut().zip(totals) {
            *all = simd.add(simd.add(a, b), simd.add(c, d));
        }
        // Tables of few entries: others' values have their scales.
        if let (1 | 4, Some(scales)) = (tables.len(), weight.row_scales(simd, first_row)) {
            for all in &mut all {
                *all = simd.mul(scales, *all);
            }
        }
        all
    }
}
