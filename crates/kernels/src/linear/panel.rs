//! Many tokens and quantized weights: 16 rows at a time become a panel of 8-bit codes whose lanes
//! are the rows, and all tokens go over it.
//!
//! With rows in the lanes, the integer sums of a group of columns stay apart by row and are scaled
//! by one vector; there is nothing to add up across lanes. For each group the panel has the scales
//! and the shifts of its 16 rows.

use super::memory::f32_as_u8;
use super::output::Output;
use super::q8::{Block, Q8Activations};
use super::weight::Rows;
use crate::Context;
use crate::quant::BlockType;
use crate::quant::format::{Format, FormatTask, SuperBlock, step, with_format};
use crate::simd::{Kernel, LANES, Simd};
use crate::threads::SharedMut;

/// f32s of a panel for each 64 columns: 16 x 64 codes, and up to 4 groups of scales and shifts.
const STEP_LEN: usize = LANES * 64 / 4 + 2 * 4 * LANES;

pub(super) fn scratch_len(n_cols: usize) -> usize {
    n_cols.div_ceil(64) * STEP_LEN
}

/// For activations by blocks.
pub(super) fn linear_q8(
    ctx: &Context,
    ty: BlockType,
    rows: Rows,
    x: &Q8Activations,
    out: &Output,
    scratch: &mut [f32],
) {
    let worker_len = scratch_len(x.n_cols());
    let scratch = SharedMut::new(scratch);
    let n_panels = rows.n_rows.div_ceil(LANES);
    ctx.pool().run_indexed(n_panels, |worker_idx, task_idx| {
        // SAFETY: no two tasks run at once with the same worker index.
        let scratch = unsafe { scratch.slice(worker_idx * worker_len, worker_len) };
        let first_row = task_idx * LANES;
        let panel = ctx.isa().run(FillTask {
            ty,
            rows,
            n_steps: x.n_steps(),
            scratch,
            first_row,
        });
        let target = Target { out, first_row };
        ctx.isa().run(MultiplyTask {
            ty,
            panel,
            x,
            target,
        });
    });
}

/// The product of a filled panel with all tokens.
pub(super) struct MultiplyTask<'a> {
    pub(super) ty: BlockType,
    pub(super) panel: Panel<'a>,
    pub(super) x: &'a Q8Activations<'a>,
    pub(super) target: Target<'a>,
}

impl Kernel for MultiplyTask<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self {
            ty,
            panel,
            x,
            target,
        } = self;
        match kind_of(ty) {
            Kind { is_wide: true, .. } => multiply::<S, 32, true>(simd, panel, x, target),
            Kind { group_len: 16, .. } => multiply::<S, 16, false>(simd, panel, x, target),
            Kind { .. } => multiply::<S, 32, false>(simd, panel, x, target),
        }
    }
}

/// Fills a panel for each 16 rows, and has it seen with its index; the scratch is [`scratch_len`]
/// for each thread.
pub(super) fn fill_each(
    ctx: &Context,
    ty: BlockType,
    rows: Rows,
    n_cols: usize,
    scratch: &mut [f32],
    see: impl Fn(usize, Panel) + Sync,
) {
    let worker_len = scratch_len(n_cols);
    let scratch = SharedMut::new(scratch);
    ctx.pool()
        .run_indexed(rows.n_rows.div_ceil(LANES), |worker_idx, panel_idx| {
            // SAFETY: no two tasks run at once with the same worker index.
            let scratch = unsafe { scratch.slice(worker_idx * worker_len, worker_len) };
            let first_row = panel_idx * LANES;
            see(
                panel_idx,
                ctx.isa().run(FillTask {
                    ty,
                    rows,
                    n_steps: n_cols.div_ceil(64),
                    scratch,
                    first_row,
                }),
            );
        });
}

/// Makes a panel of 16 rows, or of those that there are.
pub(super) struct FillTask<'r, 's> {
    pub(super) ty: BlockType,
    pub(super) rows: Rows<'r>,
    pub(super) n_steps: usize,
    pub(super) scratch: &'s mut [f32],
    pub(super) first_row: usize,
}

impl<'s> Kernel for FillTask<'_, 's> {
    type Output = Panel<'s>;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Panel<'s> {
        let FillTask {
            ty,
            rows,
            n_steps,
            scratch,
            first_row,
        } = self;
        let mut panel = PanelMut::new(ty, n_steps, scratch);
        let n_rows = (rows.n_rows - first_row).min(LANES);
        // Rows past the end are the last row again; their outputs are not stored.
        let row_bytes = std::array::from_fn(|i| rows.get(first_row + i.min(n_rows - 1)));
        with_format(
            ty,
            Fill {
                simd,
                rows: row_bytes,
                panel: &mut panel,
            },
        );
        panel.done()
    }
}

/// What the product of a filled panel depends on.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub(super) group_len: usize,
    /// Wide formats have groups of 32 and no shift of their own.
    pub(super) is_wide: bool,
    /// The greatest code.
    pub(super) max_code: u8,
    /// The code to be taken off the others, for the sums of a group to fit 16 bits.
    pub(super) center: u8,
    /// Codes without it need no shift.
    pub(super) is_centered: bool,
}

pub(super) fn kind_of(ty: BlockType) -> Kind {
    with_format(ty, KindOf).expect("float weights were refused")
}

struct KindOf;

impl FormatTask for KindOf {
    type Output = Kind;
    #[inline(always)]
    fn run<T: Format>(self) -> Kind {
        const { assert!(!T::IS_WIDE || (T::GROUP_LEN == 32 && T::HAS_NO_SHIFT)) };
        // A sum of 16 bits has the products of half of a group with activations of up to 127.
        let most = i16::MAX as usize / 127 / (T::GROUP_LEN / 2);
        let center = match T::OFFSET {
            _ if T::IS_WIDE => 0,
            Some(offset) => offset.unsigned_abs(),
            None if T::MAX_CODE <= most => 0,
            None => T::MAX_CODE.div_ceil(2) as u8,
        };
        debug_assert!(
            T::IS_WIDE || usize::from(center).max(T::MAX_CODE - usize::from(center)) <= most,
            "sums fit"
        );
        let max_code = if T::IS_WIDE {
            u8::MAX
        } else {
            T::MAX_CODE as u8
        };
        Kind {
            group_len: T::GROUP_LEN,
            is_wide: T::IS_WIDE,
            max_code,
            center,
            is_centered: T::OFFSET.is_some(),
        }
    }
}

struct Fill<'a, 'b, S> {
    simd: S,
    rows: [&'a [u8]; LANES],
    panel: &'a mut PanelMut<'b>,
}

impl<S: Simd> FormatTask for Fill<'_, '_, S> {
    type Output = ();
    #[inline(always)]
    fn run<T: Format>(self) {
        fill::<S, T>(self.simd, self.rows, self.panel);
    }
}

pub(super) struct PanelMut<'a> {
    /// Four columns of 16 rows each.
    pub(super) codes: &'a mut [[u8; 64]],
    /// By group.
    pub(super) scales: &'a mut [[f32; LANES]],
    /// By group.
    pub(super) shifts: &'a mut [[f32; LANES]],
}

impl<'a> PanelMut<'a> {
    /// An empty panel in [`scratch_len`] f32s.
    pub(super) fn new(ty: BlockType, n_steps: usize, scratch: &'a mut [f32]) -> Self {
        let (codes, scratch) = scratch.split_at_mut(n_steps * LANES * 64 / 4);
        let (scales, shifts) = scratch.split_at_mut(n_steps * 4 * LANES);
        let n_groups = n_steps * (64 / kind_of(ty).group_len);
        Self {
            codes: f32_as_u8(codes).as_chunks_mut().0,
            scales: &mut scales.as_chunks_mut().0[..n_groups],
            shifts: &mut shifts.as_chunks_mut().0[..n_groups],
        }
    }

    pub(super) fn done(self) -> Panel<'a> {
        Panel {
            codes: self.codes,
            scales: self.scales,
            shifts: self.shifts,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    /// Four columns of 16 rows each.
    pub(super) codes: &'a [[u8; 64]],
    /// By group.
    pub(super) scales: &'a [[f32; LANES]],
    /// By group.
    pub(super) shifts: &'a [[f32; LANES]],
}

#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) out: &'a Output<'a>,
    pub(super) first_row: usize,
}

#[inline(always)]
fn fill<S: Simd, T: Format>(simd: S, rows: [&[u8]; LANES], panel: &mut PanelMut) {
    let supers = rows.map(|row| T::Super::split(row).0);
    let n_supers = supers[0].len();
    // Half a pair of blocks: the other half has scale 0.
    let mut last = [T::Super::ZERO; LANES];
    let rest = rows.map(|row| T::Super::split(row).1);
    let has_rest = !rest[0].is_empty();
    if has_rest {
        for (block, rest) in last.iter_mut().zip(rest) {
            block.bytes_mut()[..rest.len()].copy_from_slice(rest);
        }
    }
    for super_idx in 0..n_supers + usize::from(has_rest) {
        let blocks = std::array::from_fn(|i| supers[i].get(super_idx).unwrap_or(&last[i]));
        fill_super::<S, T>(simd, blocks, super_idx, panel);
    }
}

#[inline(always)]
fn fill_super<S: Simd, T: Format>(
    simd: S,
    blocks: [&T::Super; LANES],
    super_idx: usize,
    panel: &mut PanelMut,
) {
    let mut heads = [T::head(simd, blocks[0]); LANES];
    for i in 1..LANES {
        heads[i] = T::head(simd, blocks[i]);
    }
    for step_idx in 0..T::N_STEPS {
        if const { T::GROUP_LEN == 32 } {
            fill_step::<S, T, 2, 8>(simd, blocks, &heads, super_idx, step_idx, panel);
        } else {
            fill_step::<S, T, 4, 4>(simd, blocks, &heads, super_idx, step_idx, panel);
        }
    }
}

/// 64 columns, of `N_GROUPS` groups with `GROUP_LANES` lanes each.
#[inline(always)]
fn fill_step<S: Simd, T: Format, const N_GROUPS: usize, const GROUP_LANES: usize>(
    simd: S,
    blocks: [&T::Super; LANES],
    heads: &[T::Head<S>; LANES],
    super_idx: usize,
    step_idx: usize,
    panel: &mut PanelMut,
) {
    let mut codes = [simd.dup4_b(&[0; 4]); LANES];
    // Vector k has, in the lanes of each group, rows GROUP_LANES * k and on.
    let mut scales = [simd.splat(0.0); N_GROUPS];
    let mut shifts = [simd.splat(0.0); N_GROUPS];
    for k in 0..N_GROUPS {
        for j in 0..GROUP_LANES {
            let i = GROUP_LANES * k + j;
            let step = step::<S, T>(simd, blocks[i], heads[i], step_idx);
            codes[i] = step.codes;
            scales[k] = simd.merge::<GROUP_LANES>(scales[k], step.scale, j);
            shifts[k] = simd.merge::<GROUP_LANES>(shifts[k], step.shift, j);
        }
    }
    simd.transpose_b(&mut codes);
    let at = super_idx * T::N_STEPS + step_idx;
    for (codes, out) in codes
        .into_iter()
        .zip(&mut panel.codes[at * LANES..][..LANES])
    {
        simd.store_b(codes, out);
    }
    store_groups::<S, N_GROUPS, GROUP_LANES>(
        simd,
        scales,
        &mut panel.scales[at * N_GROUPS..][..N_GROUPS],
    );
    store_groups::<S, N_GROUPS, GROUP_LANES>(
        simd,
        shifts,
        &mut panel.shifts[at * N_GROUPS..][..N_GROUPS],
    );
}

/// Brings together the rows of each group.
#[inline(always)]
fn store_groups<S: Simd, const N_GROUPS: usize, const GROUP_LANES: usize>(
    simd: S,
    vectors: [S::F; N_GROUPS],
    groups: &mut [[f32; LANES]],
) {
    for (k, vector) in vectors.into_iter().enumerate() {
        let mut lanes = [0.0; LANES];
        simd.store(vector, &mut lanes);
        for (group, lanes) in groups.iter_mut().zip(lanes.chunks_exact(GROUP_LANES)) {
            group[k * GROUP_LANES..][..GROUP_LANES].copy_from_slice(lanes);
        }
    }
}

#[inline(always)]
fn multiply<S: Simd, const GROUP_LEN: usize, const IS_WIDE: bool>(
    simd: S,
    panel: Panel,
    x: &Q8Activations,
    target: Target,
) {
    let mut token_idx = 0;
    // As many tokens as there are registers for, then fewer.
    while const { S::HAS_MANY_REGISTERS } && x.n_tokens() - token_idx >= 8 {
        tile::<S, GROUP_LEN, IS_WIDE, 8>(simd, panel, x, token_idx, target);
        token_idx += 8;
    }
    while const { S::TILE_TOKENS >= 4 } && x.n_tokens() - token_idx >= 4 {
        tile::<S, GROUP_LEN, IS_WIDE, 4>(simd, panel, x, token_idx, target);
        token_idx += 4;
    }
    while x.n_tokens() - token_idx >= 2 {
        tile::<S, GROUP_LEN, IS_WIDE, 2>(simd, panel, x, token_idx, target);
        token_idx += 2;
    }
    if token_idx < x.n_tokens() {
        tile::<S, GROUP_LEN, IS_WIDE, 1>(simd, panel, x, token_idx, target);
    }
}

/// 16 rows times `N` tokens.
#[inline(always)]
fn tile<S: Simd, const GROUP_LEN: usize, const IS_WIDE: bool, const N: usize>(
    simd: S,
    panel: Panel,
    x: &Q8Activations,
    first_token: usize,
    target: Target,
) {
    let mut acc = [simd.splat(0.0); N];
    let (n_quads, n_parts) = (GROUP_LEN / 4, 32 / GROUP_LEN);
    let codes = panel.codes.chunks_exact(8);
    let factors = panel
        .scales
        .chunks_exact(n_parts)
        .zip(panel.shifts.chunks_exact(n_parts));
    for ((blocks, codes), (scales, shifts)) in x.blocks::<N>(first_token).zip(codes).zip(factors) {
        for part in 0..n_parts {
            let dots = quads_dots::<S, IS_WIDE, N>(
                simd,
                codes,
                part * n_quads..(part + 1) * n_quads,
                blocks,
            );
            let (scales, shifts) = (simd.load(&scales[part]), simd.load(&shifts[part]));
            for n in 0..N {
                let scale = simd.splat(blocks[n].scale);
                acc[n] = simd.fma(simd.mul(simd.int_values(dots[n]), scales), scale, acc[n]);
                if !IS_WIDE || S::WIDE_XOR != 0 {
                    let sum = if GROUP_LEN == 32 {
                        blocks[n].sum32
                    } else {
                        blocks[n].sums16[part]
                    };
                    acc[n] = simd.fma(shifts, simd.splat(sum), acc[n]);
                }
            }
        }
    }
    for (n, acc) in acc.into_iter().enumerate() {
        store_rows(simd, acc, first_token + n, target);
    }
}

/// The integer products of the fours of columns `quads` of eight.
#[inline(always)]
fn quads_dots<S: Simd, const IS_WIDE: bool, const N: usize>(
    simd: S,
    codes: &[[u8; 64]],
    quads: std::ops::Range<usize>,
    blocks: &[Block; N],
) -> [S::I; N] {
    let mut dots = [simd.zero_int(); N];
    for quad in quads {
        let weights = simd.load_b(&codes[quad]);
        for n in 0..N {
            let x = simd.dup4_b(&blocks[n].codes[quad]);
            dots[n] = if IS_WIDE {
                simd.dot_wide(dots[n], weights, x)
            } else {
                simd.dot_narrow(dots[n], weights, x)
            };
        }
    }
    dots
}

/// Stores the outputs of 16 rows, or of those that there are.
#[inline(always)]
pub(super) fn store_rows<S: Simd>(simd: S, acc: S::F, token_idx: usize, target: Target) {
    let Target { out, first_row } = target;
    // SAFETY: the rows of this panel belong to this task alone.
    unsafe { out.panel(token_idx, first_row, true).add(simd, [acc], 1) };
}
