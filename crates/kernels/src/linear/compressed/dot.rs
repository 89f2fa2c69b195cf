//! Rows of codes times few tokens: codes become values in registers.

use super::unpack::{CHUNK_LEN, code_values, entry_values, unpack};
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
        let sixteen: Option<&[[f32; LANES]; 16]> = vectors.try_into().ok();
        let mut codes = [0u8; CHUNK_LEN];
        let mut values = [0.0f32; CHUNK_LEN];
        for start in (0..end).step_by(CHUNK_LEN) {
            let len = CHUNK_LEN.min(end - start);
            let codes = &mut codes[..len];
            unpack(self.n_bits, self.chunk(row, start, len), codes);
            let is_odd = vectors.len() > 1 && four.is_none() && sixteen.is_none();
            if is_odd {
                entry_values(table, codes, &mut values[..len]);
            }
            for (token_idx, total) in totals.iter_mut().enumerate() {
                let x = &x[token_idx * self.n_cols + start..][..len];
                if is_odd {
                    let values = &values[..len];
                    add_products!(simd, values, x, *total, |values| simd.load(values));
                } else if let Some([a, b, c, d]) = four {
                    let four = [simd.load(a), simd.load(b), simd.load(c), simd.load(d)];
                    add_products!(simd, codes, x, *total, |codes| simd.look_up_64(four, codes));
                } else if let Some(table) = sixteen {
                    add_products!(simd, codes, x, *total, |codes| simd
                        .look_up_256(table, codes));
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
                if let Ok(codes) = <&[u8; 2 * LANES]>::try_from(codes) {
                    // As 4-bit codes are grouped most often: no loops.
                    let (a, b) = halves(simd, codes, is_signed);
                    let (a, b) = (simd.sub(a, offset), simd.sub(b, offset));
                    for (token_idx, total) in totals.iter_mut().enumerate() {
                        let x = &x[token_idx * self.n_cols + col..];
                        let x = x.as_chunks::<LANES>().0;
                        let sum = simd.mul(a, simd.load(&x[0]));
                        let sum = simd.fma(b, simd.load(&x[1]), sum);
                        total[0] = simd.fma(scale, sum, total[0]);
                    }
                    done += n;
                    continue;
                }
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

/// 32 codes as numbers.
#[inline(always)]
fn halves<S: Simd>(simd: S, codes: &[u8; 2 * LANES], is_signed: bool) -> (S::F, S::F) {
    let codes = codes.as_chunks::<LANES>().0;
    (
        code_values(simd, &codes[0], is_signed),
        code_values(simd, &codes[1], is_signed),
    )
}
