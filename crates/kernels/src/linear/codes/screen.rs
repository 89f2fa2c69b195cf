//! A vocabulary's best rows for a token, without reading all of the others.
//!
//! Of each code, with 128 added, the upper five bits are read. What they say of a row is wrong by
//! the lower three, that is by the sum over the groups of columns of scale * (lower - 3.5) · x. By
//! Cauchy and Schwarz no group's part is more than |scale| * |lower - 3.5| * |x|, norms of the
//! group's columns; of the second factor a row's greatest is kept. A row that is below some other's
//! true value, bound and all, is not the best; panels with a row that may be are multiplied as
//! always, so that their outputs are those of the whole product.

use super::layout::{Group, Layout, factors};
use super::tile::{PanelTask, half_dots};
use super::{PackedCodes, PanelBytes};
use crate::linear::columns::LINE_BYTES;
use crate::linear::operand::Product;
use crate::linear::output::Start;
use crate::linear::panel::Panel;
use crate::linear::q8::{self, Q8Activations, q8_scratch_len};
use crate::linear::tasks::run_row_parts;
use crate::quant::format::Q5_0;
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::SharedMut;
use crate::{Context, Isa};

/// Bytes of what is kept of the rows of a panel, f32s.
pub(super) const ROWS_BYTES: usize = 4 * LANES;

/// The middle of the lower bits.
const MIDDLE: f32 = 3.5;

/// Panels multiplied in full before others are ruled out, at least.
const LEAST_FIRST: usize = 8;

/// With what the codes of a panel filled for an instruction set come to be codes with 128 added.
pub(super) fn flip(isa: Isa) -> u8 {
    struct WideXor;
    impl Kernel for WideXor {
        type Output = u8;
        #[inline(always)]
        fn run<S: Simd>(self, _simd: S) -> u8 {
            S::WIDE_XOR
        }
    }
    0x80 ^ isa.run(WideXor)
}

/// The lower bits of a panel's codes, and what bounds the part of them in its rows.
pub(super) fn pack_lower<L: Layout>(panel: &Panel, flip: u8, upper: &mut [u8], lower: &mut [u8]) {
    let mut worst = [0; LANES];
    let groups = panel.codes.as_chunks::<8>().0;
    for ((codes, scales), out) in groups
        .iter()
        .zip(panel.scales)
        .zip(lower.chunks_exact_mut(L::LOWER_BYTES))
    {
        let bits = codes.map(|codes| codes.map(|code| (code ^ flip) & 7));
        // In halves, so that they are integers: of 32, no sum is above 32 * 49.
        let mut squares = [0u16; 64];
        for bits in &bits {
            for (sum, lower) in squares.iter_mut().zip(bits) {
                *sum += u16::from((2 * lower).abs_diff(7)).pow(2);
            }
        }
        for (lane, worst) in worst.iter_mut().enumerate() {
            // What fills a row up to whole steps has no scale.
            if scales[lane] != 0.0 {
                *worst = squares[4 * lane..][..4].iter().sum::<u16>().max(*worst);
            }
        }
        let (planes, _) = out.as_chunks_mut::<64>();
        for (i, plane) in planes.iter_mut().enumerate() {
            for (at, out) in plane.iter_mut().enumerate() {
                let two = bits[if i < 2 { 6 + i } else { 6 }][at];
                let top = if i < 2 {
                    two & 3
                } else {
                    two >> 2 | bits[7][at] >> 2 << 1
                };
                *out = bits[i][at] | bits[3 + i][at] << 3 | top << 6;
            }
        }
    }
    let (_, rows) = upper.split_at_mut(upper.len() - ROWS_BYTES);
    for (worst, out) in worst.into_iter().zip(rows.as_chunks_mut::<4>().0) {
        *out = (f32::from(worst).sqrt() / 2.0).to_le_bytes();
    }
}

/// f32s of scratch that [`linear_codes_best`] needs.
pub fn linear_codes_best_scratch_len(packed: &PackedCodes, n_best: usize) -> usize {
    let n_panels = packed.n_rows.div_ceil(LANES);
    let n_groups = 2 * packed.n_cols.div_ceil(64);
    q8_scratch_len(1, packed.n_cols)
        + n_groups * GROUP_LEN
        + n_panels
        + n_first(n_best, n_panels) * LANES
}

/// Panels that are multiplied in full first.
fn n_first(n_best: usize, n_panels: usize) -> usize {
    n_best.saturating_mul(2).max(LEAST_FIRST).min(n_panels)
}

/// The product of [`linear`](crate::linear::linear) with a matrix whose codes are
/// [split](PackedCodes::is_split), for one token that only the `n_best` greatest outputs are wanted
/// of: these are in `y`, the equals of the last of them too, and every other is there too or minus
/// infinity. NaN is always there, and does not count as one of the greatest. Bytes of the matrix
/// that were read.
///
/// How many rows are multiplied in full follows from the numbers: few where some outputs stand out,
/// all where none does, which then takes longer than the whole product.
///
/// # Panics
/// If the codes are not split, `n_best` is 0, a size does not fit or the scratch is shorter than
/// [`linear_codes_best_scratch_len`].
pub fn linear_codes_best(
    ctx: &Context,
    packed: &PackedCodes,
    n_best: usize,
    x: &[f32],
    y: &mut [f32],
    scratch: &mut [f32],
) -> usize {
    assert!(
        packed.is_split() && n_best > 0,
        "codes that are split, and an output that is wanted"
    );
    let n_panels = packed.n_rows.div_ceil(LANES);
    let (activations, scratch) = scratch.split_at_mut(q8_scratch_len(1, packed.n_cols));
    let (groups, scratch) = scratch.split_at_mut(2 * packed.n_cols.div_ceil(64) * GROUP_LEN);
    let groups = groups.as_chunks_mut().0;
    let (greatest, firsts) = scratch.split_at_mut(n_panels);
    let n_first = n_first(n_best, n_panels);
    let x = q8::quantize(ctx, x, 1, packed.n_cols, activations, q8::Form::Blocks);
    fill_groups(&x, groups);
    let most = SharedMut::new(&mut *greatest);
    run_row_parts(ctx.pool(), n_panels, 1, |start, len| {
        // SAFETY: the panels of a part are this task's alone.
        let most = unsafe { most.slice(start, len) };
        ctx.isa().run(Screen {
            packed,
            start,
            x: &x,
            groups,
            most,
        });
    });
    let product = Product::new(*packed, 1, Start::NONE, y);
    let full = |panel_idx: usize| {
        let (panel, target) = (packed.panel(panel_idx), product.target(panel_idx));
        ctx.isa().run(PanelTask {
            ty: packed.ty,
            panel,
            x: &x,
            target,
        });
    };
    // The panel of each part that may have the greatest output: with the greatest of all among
    // them.
    let part_len = n_panels.div_ceil(n_first).max(1);
    let n_parts = n_panels.div_ceil(part_len);
    let first = |part_idx: usize| {
        let part = &greatest[part_idx * part_len..n_panels.min((part_idx + 1) * part_len)];
        let at = (0..part.len())
            .max_by(|a, b| part[*a].total_cmp(&part[*b]))
            .unwrap_or(0);
        part_idx * part_len + at
    };
    ctx.pool().run(n_parts, |part_idx| full(first(part_idx)));
    let mut n_values = 0;
    for part_idx in 0..n_parts {
        let row_idx = first(part_idx) * LANES;
        let len = LANES.min(packed.n_rows - row_idx);
        // SAFETY: no task runs.
        firsts[n_values..n_values + len]
            .copy_from_slice(unsafe { product.out.part(0, row_idx, len) });
        n_values += len;
    }
    let values = &mut firsts[..n_values];
    let least = match n_best.checked_sub(1).filter(|at| *at < n_values) {
        // A NaN counts neither as greater nor as smaller, so that no bound holds.
        _ if values.iter().any(|value| value.is_nan()) => f32::NAN,
        Some(at) => *values.select_nth_unstable_by(at, |a, b| b.total_cmp(a)).1,
        None => f32::NEG_INFINITY,
    };
    // What is no number may be anything.
    let may_be = |panel_idx: usize| greatest[panel_idx] >= least || least.is_nan();
    run_row_parts(ctx.pool(), n_panels, 1, |start, len| {
        for panel_idx in start..start + len {
            if may_be(panel_idx) {
                full(panel_idx);
            } else {
                let row_idx = panel_idx * LANES;
                // SAFETY: the rows of a panel are one task's alone.
                unsafe {
                    product
                        .out
                        .part(0, row_idx, LANES.min(packed.n_rows - row_idx))
                }
                .fill(f32::NEG_INFINITY);
            }
        }
    });
    let n_full = (0..n_panels).filter(|panel_idx| may_be(*panel_idx)).count();
    let PanelBytes { upper, lower } = packed.panel(0);
    n_panels * upper.len() + n_full * (upper.len() + lower.len())
}

/// What the bounds need of each group of columns of the token.
fn fill_groups(x: &Q8Activations, groups: &mut [[f32; GROUP_LEN]]) {
    for (group, [block]) in groups.iter_mut().zip(x.blocks::<1>(0)) {
        let squares = block
            .codes
            .as_flattened()
            .iter()
            .map(|code| i32::from(*code).pow(2));
        let norm = block.scale * (squares.sum::<i32>() as f32).sqrt();
        *group = [8.0 * block.scale, (MIDDLE - 128.0) * block.sum32, norm];
    }
}

/// Of a token's group of columns: eight times the scale, what the middle of all codes comes to, and
/// the norm.
type ScreenGroup = [f32; GROUP_LEN];

const GROUP_LEN: usize = 3;

/// What the greatest output of each of some panels is at most.
struct Screen<'a> {
    packed: &'a PackedCodes<'a>,
    start: usize,
    x: &'a Q8Activations<'a>,
    groups: &'a [ScreenGroup],
    most: &'a mut [f32],
}

impl Kernel for Screen<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let infinity = simd.splat(f32::INFINITY);
        for (i, most) in self.most.iter_mut().enumerate() {
            let upper = self.packed.panel(self.start + i).upper;
            let value = screen_panel(simd, upper, self.x, self.groups);
            // What is not below infinity, or no number, is to be looked at.
            *most = simd.max_lane(simd.select_lt(value, infinity, value, infinity));
        }
    }
}

/// What the outputs of 16 rows are at most.
#[inline(always)]
fn screen_panel<S: Simd>(simd: S, upper: &[u8], x: &Q8Activations, groups: &[ScreenGroup]) -> S::F {
    const PAIR_BYTES: usize = 2 * Q5_0::GROUP_BYTES;
    // Groups are two by two: no sum waits for the one before.
    let (mut sums, mut bounds) = ([simd.splat(0.0); 2], [simd.splat(0.0); 2]);
    let pairs = groups.as_chunks::<2>().0;
    let mut blocks = x.blocks::<1>(0);
    for (bytes, pair) in upper.chunks_exact(PAIR_BYTES).zip(pairs) {
        // Vectors are not read in the order of memory, from which the machine foresees what comes:
        // 1.1 to 1.4 times as fast (AMD EPYC of family 26), and less so for half as far.
        for line in 0..PAIR_BYTES / LINE_BYTES {
            simd.prefetch(
                bytes
                    .as_ptr()
                    .wrapping_add(12 * PAIR_BYTES + LINE_BYTES * line)
                    .cast(),
            );
        }
        for i in 0..2 {
            let bytes = &bytes[i * Q5_0::GROUP_BYTES..][..Q5_0::GROUP_BYTES];
            let group = Group { bytes, lower: &[] };
            let Some(block) = blocks.next() else { break };
            let mut dots = [simd.zero_int()];
            for half in 0..2 {
                dots = half_dots::<S, Q5_0, 1>(simd, group, half, block, dots);
            }
            let [scales, _] = factors::<S, Q5_0>(simd, [simd.splat(0.0); 2], bytes);
            let [scale, middle, norm] = pair[i];
            let value = simd.fma(
                simd.int_values(dots[0]),
                simd.splat(scale),
                simd.splat(middle),
            );
            sums[i] = simd.fma(value, scales, sums[i]);
            bounds[i] = simd.fma(simd.abs(scales), simd.splat(norm), bounds[i]);
        }
    }
    let rows = upper[upper.len() - ROWS_BYTES..].as_chunks::<4>().0;
    let mut lower = [0.0; LANES];
    for (lower, bytes) in lower.iter_mut().zip(rows) {
        *lower = f32::from_le_bytes(*bytes);
    }
    let factor = simd.add(simd.load(&lower), simd.splat(rounding(groups.len())));
    let bound = simd.fma(
        simd.add(bounds[0], bounds[1]),
        factor,
        simd.splat(f32::MIN_POSITIVE),
    );
    simd.add(simd.add(sums[0], sums[1]), bound)
}

/// What rounding changes a row's sum by at most, here and in the whole product: so many times the
/// sum over its groups of |scale| * |x|.
///
/// No code is above 255, and what is taken off of each is 128: with 32 columns, nothing on the way
/// is above 2^12 times that sum. Each is rounded by 2^-24 of it: four at most in a group, and twice
/// the sum of all groups so far. For both products that is (n_groups + 2) / 1024; twice as much
/// leaves room for the rounding of the bound itself.
fn rounding(n_groups: usize) -> f32 {
    (n_groups + 2) as f32 / 512.0
}
