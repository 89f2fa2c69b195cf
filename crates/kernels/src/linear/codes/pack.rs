//! Panels packed, and unpacked again for many tokens.

use std::ops::Range;

use super::layout::{Codes, Layout, LayoutTask, blocks, factors, head, with_layout};
use super::{PanelBytes, Places, packed_codes_len, screen};
use crate::Context;
use crate::f16::f32_to_f16;
use crate::linear::choose::is_split;
use crate::linear::panel::{self, Panel, PanelMut};
use crate::linear::weight::{Rows, Weight};
use crate::quant::BlockType;
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::SharedMut;

/// f32s of scratch that [`pack_codes`] needs.
pub fn pack_codes_scratch_len(ctx: &Context, n_cols: usize) -> usize {
    ctx.pool().n_threads() * panel::scratch_len(n_cols)
}

/// Packs some rows of a matrix, the first of them a multiple of 16, to where they belong in the
/// `bytes` of all.
///
/// # Panics
/// If the weight is not well formed, its type is not packed, there are no such rows, `bytes` are
/// not [`packed_codes_len`], or the scratch is too short.
pub fn pack_codes(
    ctx: &Context,
    weight: &Weight,
    rows: Range<usize>,
    bytes: &mut [u8],
    scratch: &mut [f32],
) {
    let all = weight.checked();
    let part = Weight {
        bytes: &all.bytes[rows.start * all.row_bytes..rows.end * all.row_bytes],
        n_rows: rows.len(),
        ..*weight
    };
    pack_code_rows(ctx, &part, (rows.start, weight.n_rows), bytes, scratch);
}

/// As [`pack_codes`], where `part` has nothing but the rows to pack: those of a matrix of `n_rows`
/// from `first_row` on.
///
/// # Panics
/// As [`pack_codes`].
pub fn pack_code_rows(
    ctx: &Context,
    part: &Weight,
    (first_row, n_rows): (usize, usize),
    bytes: &mut [u8],
    scratch: &mut [f32],
) {
    let Weight { ty, n_cols, .. } = *part;
    let rows = part.checked();
    assert_eq!(
        Some(bytes.len()),
        packed_codes_len(ty, n_rows, n_cols),
        "bytes"
    );
    assert!(
        first_row.is_multiple_of(LANES),
        "rows from a panel's first on"
    );
    assert!(
        first_row <= n_rows && part.n_rows <= n_rows - first_row,
        "rows of the matrix"
    );
    let first_panel = first_row / LANES;
    let is_split = is_split(ty, n_rows, n_cols);
    let places = Places::new(ty, n_rows, n_cols).unwrap_or_default();
    if places.upper_len == 0 {
        return;
    }
    let bytes = SharedMut::new(bytes);
    panel::fill_each(ctx, ty, rows, n_cols, scratch, |panel_idx, panel| {
        let [upper, lower] = places.of(first_panel + panel_idx);
        // SAFETY: each panel is filled once, and its bytes are no other's, the upper ones not the
        // lower ones.
        let (out, lower) = unsafe {
            (
                bytes.slice(upper.start, upper.len()),
                bytes.slice(lower.start, lower.len()),
            )
        };
        let packed = with_layout(
            ty,
            is_split,
            Pack {
                ctx,
                rows,
                first_row: panel_idx * LANES,
                panel,
                out,
                lower,
            },
        );
        debug_assert!(packed.is_some(), "a type with a length has a layout");
    });
}

struct Pack<'a> {
    ctx: &'a Context,
    rows: Rows<'a>,
    first_row: usize,
    panel: Panel<'a>,
    out: &'a mut [u8],
    /// For the lower bits of split codes.
    lower: &'a mut [u8],
}

impl LayoutTask for Pack<'_> {
    type Output = ();
    fn run<L: Layout>(self) {
        // Rows past the end are the last row again, as in the panel.
        let last_row = self.rows.n_rows() - 1;
        let rows: [&[L::Super]; LANES] =
            std::array::from_fn(|i| blocks::<L>(self.rows.get((self.first_row + i).min(last_row))));
        let flip = if L::LOWER_BYTES > 0 {
            screen::flip(self.ctx.isa())
        } else {
            0
        };
        if L::LOWER_BYTES > 0 {
            screen::pack_lower::<L>(&self.panel, flip, self.out, self.lower);
        }
        for (super_idx, out) in self.out.chunks_exact_mut(L::SUPER_BYTES).enumerate() {
            let (head, groups) = out.split_at_mut(L::HEAD_BYTES);
            for (i, out) in groups.chunks_exact_mut(L::GROUP_BYTES).enumerate() {
                let at = super_idx * L::N_GROUPS + i;
                let Some(codes) = self.panel.codes[8 * at..].first_chunk() else {
                    return;
                };
                let (code_bytes, factors) = out.split_at_mut(L::CODE_BYTES);
                if L::LOWER_BYTES > 0 {
                    pack_group::<L>(
                        &codes.map(|codes| codes.map(|code| (code ^ flip) >> 3)),
                        code_bytes,
                    );
                } else {
                    pack_group::<L>(codes, code_bytes);
                }
                if L::N_GROUPS == 1 {
                    // These were read from f16.
                    let values = self.panel.scales[at].iter().chain(&self.panel.shifts[at]);
                    for (value, out) in values.zip(factors.as_chunks_mut::<2>().0) {
                        *out = f32_to_f16(*value).to_le_bytes();
                    }
                }
            }
            for (lane, row) in rows.iter().enumerate() {
                let Some((halves, bytes)) = row.get(super_idx).and_then(L::block_factors) else {
                    continue;
                };
                for (half, kind) in halves.into_iter().zip(0..) {
                    head[32 * kind + 2 * lane..][..2].copy_from_slice(&half.to_le_bytes());
                }
                for (i, byte) in bytes.into_iter().enumerate() {
                    groups[i % 8 * L::GROUP_BYTES + L::CODE_BYTES + i / 8 * LANES + lane] = byte;
                }
            }
        }
    }
}

/// The codes of 32 columns, or their upper bits, as [`super::layout`] says.
fn pack_group<L: Layout>(codes: &[[u8; 64]; 8], out: &mut [u8]) {
    if L::UPPER_BITS == 8 {
        for (codes, out) in codes.iter().zip(out.as_chunks_mut().0) {
            *out = *codes;
        }
        return;
    }
    let (vectors, _) = out.as_chunks_mut::<64>();
    let (low, high) = vectors.split_at_mut(4);
    for (v, out) in low.iter_mut().enumerate() {
        for (i, out) in out.iter_mut().enumerate() {
            *out = codes[v][i] & 15 | codes[v + 4][i] << 4;
        }
    }
    for (plane, out) in high.iter_mut().enumerate() {
        for (i, out) in out.iter_mut().enumerate() {
            let high = |v: usize| codes[v][i] >> 4;
            *out = match L::UPPER_BITS {
                5 => (0..4).fold(0, |byte, v| byte | high(v) << (4 + v) | high(v + 4) << v),
                _ => (0..4).fold(0, |byte, v| byte | high(4 * plane + v) << ((2 * v + 4) % 8)),
            };
        }
    }
}

/// A packed panel as bytes, with scales and shifts in f32.
pub(super) struct Unpack<'p, 's> {
    pub(super) ty: BlockType,
    pub(super) panel: PanelBytes<'p>,
    pub(super) n_steps: usize,
    pub(super) scratch: &'s mut [f32],
}

impl<'s> Kernel for Unpack<'_, 's> {
    type Output = Panel<'s>;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Panel<'s> {
        let Unpack {
            ty,
            panel,
            n_steps,
            scratch,
        } = self;
        let mut out = PanelMut::new(ty, n_steps, scratch);
        with_layout(
            ty,
            panel.is_split(),
            UnpackWith {
                simd,
                panel,
                out: &mut out,
            },
        );
        out.done()
    }
}

struct UnpackWith<'a, 'b, S> {
    simd: S,
    panel: PanelBytes<'a>,
    out: &'a mut PanelMut<'b>,
}

impl<S: Simd> LayoutTask for UnpackWith<'_, '_, S> {
    type Output = ();
    #[inline(always)]
    fn run<L: Layout>(self) {
        let Self { simd, panel, out } = self;
        let mut groups = out.codes.as_chunks_mut::<8>().0.iter_mut();
        let n_parts = 32 / L::GROUP_LEN;
        let mut scales = out.scales.chunks_exact_mut(n_parts);
        let mut shifts = out.shifts.chunks_exact_mut(n_parts);
        for (super_idx, block) in panel.upper.chunks_exact(L::SUPER_BYTES).enumerate() {
            let head = head::<S, L>(simd, block);
            for (i, bytes) in block[L::HEAD_BYTES..]
                .chunks_exact(L::GROUP_BYTES)
                .enumerate()
            {
                let group = panel.group::<L>(super_idx * L::N_GROUPS + i, bytes);
                let (Some(codes), Some(scales), Some(shifts)) =
                    (groups.next(), scales.next(), shifts.next())
                else {
                    return;
                };
                for half in 0..2 {
                    let mut from = Codes::<S>::new::<L>(simd, group, half);
                    for v in 0..4 {
                        simd.store_b(from.take::<L>(simd, v), &mut codes[4 * half + v]);
                    }
                }
                let [first, second] = factors::<S, L>(simd, head, bytes);
                let offset = if L::IS_WIDE {
                    Some(-f32::from(S::WIDE_XOR))
                } else {
                    L::OFFSET.map(f32::from)
                };
                simd.store(first, &mut scales[0]);
                let shift = if let Some(offset) = offset {
                    simd.mul(first, simd.splat(offset))
                } else {
                    second
                };
                simd.store(shift, &mut shifts[0]);
                if n_parts == 2 {
                    simd.store(second, &mut scales[1]);
                    simd.store(
                        simd.mul(second, simd.splat(offset.unwrap_or(0.0))),
                        &mut shifts[1],
                    );
                }
            }
        }
    }
}
