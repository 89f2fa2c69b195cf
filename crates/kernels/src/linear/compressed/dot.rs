//! Rows of codes times few tokens: codes become values in registers.

use super::unpack::{CHUNK_LEN, code_values, entry_values, look_up_64, unpack};
use super::{Coding, Compressed};
use crate::simd::{LANES, Simd};

/// Vectors that are multiplied in one turn.
const N_VECTORS: usize = 4;

/// Adds to two sums the products of what an expression gives of 16 codes at a time with the inputs
/// of as many columns, a multiple of 16. No closure, which might not be inlined to where the
/// instruction set is known.
macro_rules! add_products {
    ($simd:expr, $codes:expr, $x:expr, $total:expr, |$vector:ident| $values:expr $(,)?) => {{
        // Two sums by name: an index that the loop computes keeps them in memory.
        let [mut even, mut odd] = $total;
        let (turns, codes) = $codes.as_chunks::<{ N_VECTORS * LANES }>();
        let (x_turns, x) = $x.as_chunks::<{ N_VECTORS * LANES }>();
        for (codes, x) in turns.iter().zip(x_turns) {
            let (codes, x) = (codes.as_chunks::<LANES>().0, x.as_chunks::<LANES>().0);
            let $vector = &codes[0];
            even = $simd.fma($values, $simd.load(&x[0]), even);
            let $vector = &codes[1];
            odd = $simd.fma($values, $simd.load(&x[1]), odd);
            let $vector = &codes[2];
            even = $simd.fma($values, $simd.load(&x[2]), even);
            let $vector = &codes[3];
            odd = $simd.fma($values, $simd.load(&x[3]), odd);
        }
        for ($vector, x) in codes.as_chunks().0.iter().zip(x.as_chunks().0) {
            even = $simd.fma($values, $simd.load(x), even);
        }
        $total = [even, odd];
    }};
}

impl Compressed<'_> {
    /// Adds products of a row with as many tokens as there are totals; how many columns that are, a
    /// multiple of 16: none where values have to be unpacked first.
    #[inline(always)]
    pub(in crate::linear) fn dot<S: Simd, const N: usize>(
        &self,
        simd: S,
        row_idx: usize,
        x: &[f32],
        totals: &mut [[S::F; 2]; N],
    ) -> usize {
        match self.coding {
            Coding::Table {
                entries,
                group_rows,
            } => {
                let table = &entries[(row_idx / group_rows) << self.n_bits..][..1 << self.n_bits];
                self.dot_table(simd, row_idx, table, x, totals)
            }
            Coding::Scale {
                group: [_, group_cols],
                ..
            } if group_cols.is_multiple_of(LANES) || group_cols == self.n_cols => {
                self.dot_scaled(simd, row_idx, x, totals)
            }
            Coding::Scale { .. } => 0,
        }
    }

    /// [`Self::dot`] with the entries of a table.
    #[inline(always)]
    fn dot_table<S: Simd, const N: usize>(
        &self,
        simd: S,
        row_idx: usize,
        table: &[f32],
        x: &[f32],
        totals: &mut [[S::F; 2]; N],
    ) -> usize {
        let row = self.rows().get(row_idx);
        let end = self.n_cols / LANES * LANES;
        let (vectors, short) = table.as_chunks::<LANES>();
        let mut first = [0.0; LANES];
        for (to, entry) in first.iter_mut().zip(short) {
            *to = *entry;
        }
        let first = simd.load(vectors.first().unwrap_or(&first));
        let four: Option<&[[f32; LANES]; 4]> = vectors.try_into().ok();
        let mut codes = [0u8; CHUNK_LEN];
        let mut values = [0.0f32; CHUNK_LEN];
        for start in (0..end).step_by(CHUNK_LEN) {
            let len = CHUNK_LEN.min(end - start);
            let codes = &mut codes[..len];
            unpack(self.n_bits, self.chunk(row, start, len), codes);
            let is_long = vectors.len() > 1 && four.is_none();
            if is_long {
                entry_values(table, codes, &mut values[..len]);
            }
            for (token_idx, total) in totals.iter_mut().enumerate() {
                let x = &x[token_idx * self.n_cols + start..][..len];
                if is_long {
                    let values = &values[..len];
                    add_products!(simd, values, x, *total, |values| simd.load(values));
                } else if let Some(four) = four {
                    let tables = four.each_ref();
                    let tables = [
                        simd.load(tables[0]),
                        simd.load(tables[1]),
                        simd.load(tables[2]),
                        simd.load(tables[3]),
                    ];
                    add_products!(simd, codes, x, *total, |codes| look_up_64(
                        simd, tables, codes
                    ));
                } else {
                    add_products!(simd, codes, x, *total, |codes| simd.look_up(first, codes));
                }
            }
        }
        end
    }

    /// [`Self::dot`] with scaled codes, group by group.
    #[inline(always)]
    fn dot_scaled<S: Simd, const N: usize>(
        &self,
        simd: S,
        row_idx: usize,
        x: &[f32],
        totals: &mut [[S::F; 2]; N],
    ) -> usize {
        let Coding::Scale {
            is_signed,
            scales,
            offsets,
            group: [group_rows, group_cols],
        } = self.coding
        else {
            return 0;
        };
        let row = self.rows().get(row_idx);
        let end = self.n_cols / LANES * LANES;
        let first = row_idx / group_rows * (self.n_cols / group_cols);
        let mut codes = [0u8; CHUNK_LEN];
        for start in (0..end).step_by(CHUNK_LEN) {
            let len = CHUNK_LEN.min(end - start);
            let codes = &mut codes[..len];
            unpack(self.n_bits, self.chunk(row, start, len), codes);
            self.extend_sign(is_signed, codes);
            let mut done = 0;
            while done < len {
                let col = start + done;
                let at = first + col / group_cols;
                let n = (group_cols - col % group_cols).min(len - done);
                let n = n.next_multiple_of(LANES).min(len - done);
                let offset = simd.splat(offsets.get(at).copied().unwrap_or(0.0));
                let scale = simd.splat(scales[at]);
                let codes = &codes[done..][..n];
                for (token_idx, total) in totals.iter_mut().enumerate() {
                    let x = &x[token_idx * self.n_cols + col..][..n];
                    let mut sums = [simd.splat(0.0); 2];
                    if is_signed {
                        add_products!(simd, codes, x, sums, |codes| simd
                            .sub(code_values(simd, codes, true), offset));
                    } else {
                        add_products!(simd, codes, x, sums, |codes| simd
                            .sub(code_values(simd, codes, false), offset));
                    }
                    total[0] = simd.fma(scale, sums[0], total[0]);
                    total[1] = simd.fma(scale, sums[1], total[1]);
                }
                done += n;
            }
        }
        end
    }
}
