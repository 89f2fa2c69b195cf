//! Codes of up to four bits that stand for entries of tables, packed for products with activations
//! in 8 bits.
//!
//! An entry becomes an integer of 16 bits, `256 * high + low`, times a factor of its row, so that
//! the two bytes of 64 entries are two shuffles of registers. Rounding to 16 bits changes an entry
//! by at most 1.6e-5 of the largest of its table. Products of up to [`MAX_TILED_TOKENS`] tokens
//! multiply both bytes; those of more tokens multiply the upper byte alone, the entry to nearest in
//! 8 bits, as they do with codes that are fitted to 8 bits.
//!
//! 16 rows are a panel whose lanes are the rows. Of eight columns the codes are two vectors of four
//! columns of 16 rows, whose bits lie in planes as in [`panels`](super::compressed).

use super::choose::MAX_TILED_TOKENS;
use super::columns::LINE_BYTES;
use super::compressed::{CHUNK_LEN, Coding, Compressed, join, spread, unpack};
use super::int8::{BLOCK_LEN, FINE_PARTS, Int8Block};
use super::panel::{Panel, PanelMut, Target, store_rows};
use super::q8::{Block, Q8Activations};
use crate::Context;
use crate::quant::BlockType;
use crate::simd::{Kernel, LANES, Simd};

/// Columns whose planes lie together.
const STEP_COLS: usize = 8;
/// Columns of a group: activations have a scale for as many.
const GROUP_COLS: usize = 32;
/// Columns that a row is filled up to a multiple of.
const UNIT_COLS: usize = 64;
/// Most bits of a code.
const MOST_BITS: usize = 4;
/// Rows that a register's quarter holds: these share a table.
const QUARTER_ROWS: usize = LANES / 4;
/// The greatest number of an entry, so that its upper byte is at most 127.
const MOST_NUMBER: f32 = 127.0 * 256.0;
/// Tables below this have entries of 0: the inverse of their factor would be close to overflow.
const LEAST: f32 = 1e-33;

/// The tables of 16 rows: of each quarter of the rows, the bytes of 16 entries.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C, align(64))]
pub struct TableBytes {
    high: [u8; 64],
    low: [u8; 64],
}

/// A matrix of codes with tables, in panels.
#[derive(Debug, Clone, Copy)]
pub struct TableCodes<'a> {
    n_bits: usize,
    codes: &'a [u8],
    /// One for all panels, or one for each.
    tables: &'a [TableBytes],
    /// Of each row, filled up to whole panels.
    factors: &'a [f32],
    n_rows: usize,
    n_cols: usize,
}

impl Compressed<'_> {
    /// Bytes of the codes of a [`TableCodes`]; `None` where codes have more than four bits or no
    /// tables, or four rows do not share a table.
    pub fn table_codes_len(&self) -> Option<usize> {
        let Coding::Table {
            entries,
            group_rows,
            width: 1,
            ..
        } = self.coding
        else {
            return None;
        };
        let is_shared = group_rows.is_multiple_of(QUARTER_ROWS) || group_rows >= self.n_rows;
        let is_finite = entries.iter().all(|entry| entry.is_finite());
        (is_shared && is_finite && self.n_bits <= MOST_BITS && self.is_plain())
            .then(|| codes_len(self.n_bits, [self.n_rows, self.n_cols]))?
    }

    /// The tables of a [`TableCodes`], and the factors of its rows; none where there is none.
    pub fn table_bytes(&self) -> (Vec<TableBytes>, Vec<f32>) {
        let Coding::Table {
            entries,
            group_rows,
            scales,
            ..
        } = self.coding
        else {
            return Default::default();
        };
        let (mut tables, mut factors) = (Vec::new(), Vec::new());
        for first_row in (0..self.n_rows).step_by(LANES) {
            let mut bytes = TableBytes {
                high: [0; 64],
                low: [0; 64],
            };
            for quarter in 0..4 {
                // Rows past the end are as the last one.
                let row_idx = (first_row + QUARTER_ROWS * quarter).min(self.n_rows - 1);
                let table = &entries[(row_idx / group_rows) << self.n_bits..][..1 << self.n_bits];
                let factor = bytes.set(quarter, table);
                factors.extend((0..QUARTER_ROWS).map(|i| {
                    let scale = scales.get((row_idx + i).min(self.n_rows - 1));
                    factor * scale.copied().unwrap_or(1.0)
                }));
            }
            let is_known = group_rows >= self.n_rows && !tables.is_empty();
            if !is_known {
                tables.push(bytes);
            }
        }
        (tables, factors)
    }

    /// Writes the codes of a [`TableCodes`].
    ///
    /// # Panics
    /// If `out` has not [`Self::table_codes_len`].
    pub fn write_table_codes(&self, ctx: &Context, out: &mut [u8]) {
        assert_eq!(Some(out.len()), self.table_codes_len(), "bytes of codes");
        let panel_bytes = panel_bytes(self.n_bits, self.n_cols);
        if panel_bytes == 0 {
            return;
        }
        ctx.pool().run_chunks(out, panel_bytes, |panel_idx, out| {
            ctx.isa().run(PackTask {
                weight: self,
                first_row: panel_idx * LANES,
                out,
            });
        });
    }

    #[inline(always)]
    fn write_panel(&self, first_row: usize, out: &mut [u8]) {
        let (n_bits, rows) = (self.n_bits, self.rows());
        let mut unpacked = [[0u8; CHUNK_LEN]; LANES];
        let chunk_bytes = CHUNK_LEN / STEP_COLS * n_bits * LANES;
        for (chunk_idx, out) in out.chunks_mut(chunk_bytes).enumerate() {
            let start = chunk_idx * CHUNK_LEN;
            let len = CHUNK_LEN.min(self.n_cols - start);
            for (i, codes) in unpacked.iter_mut().enumerate() {
                let row = rows.get((first_row + i).min(self.n_rows - 1));
                unpack(n_bits, self.chunk(row, start, len), &mut codes[..len]);
                codes[len..].fill(0);
            }
            for (at, out) in out.chunks_exact_mut(n_bits * LANES).enumerate() {
                let mut step = [0; STEP_COLS * LANES];
                for (i, four) in step.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    let col = STEP_COLS * at + i / LANES * 4;
                    four.copy_from_slice(&unpacked[i % LANES][col..][..4]);
                }
                join(n_bits, &step, out);
            }
        }
    }
}

impl TableBytes {
    /// Sets the table of a quarter of the rows; the factor of its numbers.
    fn set(&mut self, quarter: usize, table: &[f32]) -> f32 {
        let most = table.iter().fold(0.0, |most: f32, v| most.max(v.abs()));
        let (factor, inverse) = match most {
            ..LEAST => (0.0, 0.0),
            _ => (most / MOST_NUMBER, MOST_NUMBER / most),
        };
        for (i, entry) in table.iter().enumerate() {
            let number = (entry * inverse).round_ties_even() as i32;
            let high = (number + 128) >> 8;
            self.high[16 * quarter + i] = high as u8;
            self.low[16 * quarter + i] = (number - 256 * high) as u8;
        }
        factor
    }
}

/// Bytes of the codes of 16 rows.
fn panel_bytes(n_bits: usize, n_cols: usize) -> usize {
    n_cols.next_multiple_of(UNIT_COLS) / STEP_COLS * n_bits * LANES
}

fn codes_len(n_bits: usize, [n_rows, n_cols]: [usize; 2]) -> Option<usize> {
    let n_cols = n_cols.checked_next_multiple_of(UNIT_COLS)?;
    n_cols.checked_mul(n_bits * LANES)?;
    n_rows
        .div_ceil(LANES)
        .checked_mul(panel_bytes(n_bits, n_cols))
}

impl<'a> TableCodes<'a> {
    /// The matrix of codes that [`Compressed::write_table_codes`] wrote and of
    /// [`Compressed::table_bytes`]; `None` where sizes do not fit together.
    pub fn new(
        n_bits: usize,
        codes: &'a [u8],
        (tables, factors): (&'a [TableBytes], &'a [f32]),
        shape @ [n_rows, n_cols]: [usize; 2],
    ) -> Option<Self> {
        let n_panels = n_rows.div_ceil(LANES);
        let fits = (1..=MOST_BITS).contains(&n_bits)
            && codes_len(n_bits, shape) == Some(codes.len())
            && (tables.len() == 1 || tables.len() == n_panels)
            && factors.len() == n_panels * LANES;
        fits.then_some(Self {
            n_bits,
            codes,
            tables,
            factors,
            n_rows,
            n_cols,
        })
    }

    /// Outputs.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Inputs.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// The codes of a panel.
    pub(super) fn panel(&self, panel_idx: usize) -> &'a [u8] {
        let n_bytes = panel_bytes(self.n_bits, self.n_cols);
        &self.codes[panel_idx * n_bytes..][..n_bytes]
    }

    fn table(&self, panel_idx: usize) -> &'a TableBytes {
        self.tables.get(panel_idx).unwrap_or(&self.tables[0])
    }

    fn factors(&self, panel_idx: usize) -> &'a [f32; LANES] {
        &self.factors.as_chunks().0[panel_idx]
    }
}

/// Packs the codes of 16 rows.
struct PackTask<'a> {
    weight: &'a Compressed<'a>,
    first_row: usize,
    out: &'a mut [u8],
}

impl Kernel for PackTask<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, _simd: S) {
        self.weight.write_panel(self.first_row, self.out);
    }
}

/// The codes of eight columns: two vectors of four columns of 16 rows.
#[inline(always)]
fn step_codes<S: Simd, const BITS: usize>(simd: S, bytes: &[u8]) -> [S::B; 2] {
    if BITS == 4 {
        let both = simd.load_b(bytes.first_chunk().expect("a whole vector"));
        return [
            simd.and_b(both, 15),
            simd.and_b(simd.shr_b(both, [4; 4]), 15),
        ];
    }
    let mut step = [[0; 64]; 2];
    spread(BITS, bytes, step.as_flattened_mut());
    [simd.load_b(&step[0]), simd.load_b(&step[1])]
}

/// The product of a panel with few tokens.
pub(super) struct TileTask<'a> {
    pub(super) weight: TableCodes<'a>,
    pub(super) panel_idx: usize,
    pub(super) x: &'a Q8Activations<'a>,
    pub(super) target: Target<'a>,
}

impl Kernel for TileTask<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.weight.n_bits {
            1 => self.tokens::<S, 1>(simd),
            2 => self.tokens::<S, 2>(simd),
            3 => self.tokens::<S, 3>(simd),
            _ => self.tokens::<S, 4>(simd),
        }
    }
}

impl TileTask<'_> {
    /// As many tokens as there are registers for, then fewer.
    #[inline(always)]
    fn tokens<S: Simd, const BITS: usize>(&self, simd: S) {
        let n_tokens = self.x.n_tokens();
        let mut token_idx = 0;
        while const { S::HAS_MANY_REGISTERS } && n_tokens - token_idx >= MAX_TILED_TOKENS {
            self.tile::<S, BITS, MAX_TILED_TOKENS>(simd, token_idx);
            token_idx += MAX_TILED_TOKENS;
        }
        while const { S::HAS_MANY_REGISTERS } && n_tokens - token_idx >= 4 {
            self.tile::<S, BITS, 4>(simd, token_idx);
            token_idx += 4;
        }
        while n_tokens - token_idx >= 2 {
            self.tile::<S, BITS, 2>(simd, token_idx);
            token_idx += 2;
        }
        if token_idx < n_tokens {
            self.tile::<S, BITS, 1>(simd, token_idx);
        }
    }

    /// 16 rows times `N` tokens.
    #[inline(always)]
    fn tile<S: Simd, const BITS: usize, const N: usize>(&self, simd: S, first_token: usize) {
        /// How far ahead codes are asked for.
        const AHEAD_BYTES: usize = 8192;
        let table = self.weight.table(self.panel_idx);
        let tables = [
            simd.xor_b(simd.load_b(&table.high), S::WIDE_XOR),
            simd.xor_b(simd.load_b(&table.low), S::WIDE_XOR),
        ];
        let mut acc = [simd.splat(0.0); N];
        let group_bytes = BITS * GROUP_COLS / STEP_COLS * LANES;
        let groups = self.weight.panel(self.panel_idx).chunks_exact(group_bytes);
        for (bytes, blocks) in groups.zip(self.x.blocks::<N>(first_token)) {
            if N == 1 {
                for line in 0..group_bytes.div_ceil(LINE_BYTES) {
                    let ahead = AHEAD_BYTES + LINE_BYTES * line;
                    simd.prefetch(bytes.as_ptr().wrapping_add(ahead).cast());
                }
            }
            add_group::<S, BITS, N>(simd, bytes, tables, blocks, &mut acc);
        }
        let factors = simd.load(self.weight.factors(self.panel_idx));
        for n in 0..N {
            store_rows(
                simd,
                simd.mul(acc[n], factors),
                first_token + n,
                self.target,
            );
        }
    }
}

/// Adds the products of 32 columns.
#[inline(always)]
fn add_group<S: Simd, const BITS: usize, const N: usize>(
    simd: S,
    bytes: &[u8],
    [high, low]: [S::B; 2],
    blocks: &[Block; N],
    acc: &mut [S::F; N],
) {
    let mut dots = [[simd.zero_int(); 2]; N];
    for step in 0..GROUP_COLS / STEP_COLS {
        let bytes = &bytes[step * BITS * LANES..][..BITS * LANES];
        let codes = step_codes::<S, BITS>(simd, bytes);
        for i in 0..2 {
            let weights = [
                simd.shuffle_b(high, codes[i]),
                simd.shuffle_b(low, codes[i]),
            ];
            for n in 0..N {
                let x = simd.dup4_b(&blocks[n].codes[2 * step + i]);
                dots[n][0] = simd.dot_wide(dots[n][0], weights[0], x);
                dots[n][1] = simd.dot_wide(dots[n][1], weights[1], x);
            }
        }
    }
    // What was added to both bytes.
    let offset = -257.0 * f32::from(S::WIDE_XOR);
    for n in 0..N {
        let [high, low] = [simd.int_values(dots[n][0]), simd.int_values(dots[n][1])];
        let values = simd.fma(high, simd.splat(256.0), low);
        let scale = simd.splat(blocks[n].scale);
        acc[n] = match S::WIDE_XOR {
            0 => simd.fma(values, scale, acc[n]),
            _ => simd.add(
                acc[n],
                simd.fma(values, scale, simd.splat(offset * blocks[n].sum32)),
            ),
        };
    }
}

/// The upper bytes of a panel's entries, as codes of [`BlockType::Q8_0`].
pub(super) struct FillTask<'w, 's> {
    pub(super) weight: TableCodes<'w>,
    pub(super) panel_idx: usize,
    pub(super) n_steps: usize,
    pub(super) scratch: &'s mut [f32],
}

impl<'s> Kernel for FillTask<'_, 's> {
    type Output = Panel<'s>;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Panel<'s> {
        let panel = PanelMut::new(BlockType::Q8_0, self.n_steps, self.scratch);
        let high = simd.load_b(&self.weight.table(self.panel_idx).high);
        let high = simd.xor_b(high, S::WIDE_XOR);
        let bytes = self.weight.panel(self.panel_idx);
        let eights = panel.codes.as_chunks_mut::<2>().0.iter_mut();
        write_bytes(simd, self.weight.n_bits, bytes, high, eights);
        let factors = simd.load(self.weight.factors(self.panel_idx));
        let scale = simd.mul(factors, simd.splat(256.0));
        let shift = simd.mul(scale, simd.splat(-f32::from(S::WIDE_XOR)));
        for (scales, shifts) in panel.scales.iter_mut().zip(&mut *panel.shifts) {
            simd.store(scale, scales);
            simd.store(shift, shifts);
        }
        panel.done()
    }
}

/// Looks up the codes of eight columns after the other in a table.
#[inline(always)]
fn write_bytes<'o, S: Simd>(
    simd: S,
    n_bits: usize,
    bytes: &[u8],
    table: S::B,
    out: impl Iterator<Item = &'o mut [[u8; 64]; 2]>,
) {
    match n_bits {
        1 => write_bytes_of::<S, 1>(simd, bytes, table, out),
        2 => write_bytes_of::<S, 2>(simd, bytes, table, out),
        3 => write_bytes_of::<S, 3>(simd, bytes, table, out),
        _ => write_bytes_of::<S, 4>(simd, bytes, table, out),
    }
}

#[inline(always)]
fn write_bytes_of<'o, S: Simd, const BITS: usize>(
    simd: S,
    bytes: &[u8],
    table: S::B,
    out: impl Iterator<Item = &'o mut [[u8; 64]; 2]>,
) {
    for (bytes, out) in bytes.chunks_exact(BITS * LANES).zip(out) {
        let codes = step_codes::<S, BITS>(simd, bytes);
        simd.store_b(simd.shuffle_b(table, codes[0]), &mut out[0]);
        simd.store_b(simd.shuffle_b(table, codes[1]), &mut out[1]);
    }
}

/// The upper bytes of a panel's entries as blocks, where [`Simd::PARTS`] are of four.
pub(super) struct BlocksTask<'w, I> {
    pub(super) weight: TableCodes<'w>,
    pub(super) panel_idx: usize,
    /// By columns.
    pub(super) blocks: I,
}

impl<'b, I: Iterator<Item = &'b mut Int8Block<FINE_PARTS>>> Kernel for BlocksTask<'_, I> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        if const { !S::PARTS.are_of_four() } {
            unreachable!("blocks are filled for sums of four products");
        }
        let high = simd.load_b(&self.weight.table(self.panel_idx).high);
        let factors = simd.load(self.weight.factors(self.panel_idx));
        let scale = simd.mul(factors, simd.splat(256.0));
        let block_bytes = BLOCK_LEN / STEP_COLS * self.weight.n_bits * LANES;
        let panel = self.weight.panel(self.panel_idx).chunks(block_bytes);
        // 128 is added to activations, for which each sum begins with what that adds too much.
        let added = simd.dup4_b(&[-128; 4]);
        for (block, bytes) in self.blocks.zip(panel) {
            simd.store(scale, &mut block.scales);
            let n_quads = 2 * (bytes.len() / (self.weight.n_bits * LANES));
            block.codes[n_quads..].fill([0; 64]);
            let eights = block.codes.as_chunks_mut::<2>().0.iter_mut();
            write_bytes(simd, self.weight.n_bits, bytes, high, eights);
            let parts = block.codes.chunks_exact(BLOCK_LEN / 4 / FINE_PARTS);
            for (codes, offsets) in parts.zip(&mut block.offsets) {
                let mut sums = simd.zero_int();
                for codes in codes {
                    sums = simd.dot_part(sums, added, simd.load_b(codes));
                }
                simd.store_int(simd.sub_int(simd.zero_int(), sums), offsets);
            }
        }
    }
}
