//! The products of a panel with few tokens.

use super::PanelBytes;
use super::layout::{Codes, Group, Layout, LayoutTask, factors, head, with_layout};
use crate::linear::columns::LINE_BYTES;
use crate::linear::panel::{Target, store_rows};
use crate::linear::q8::{Block, Q8Activations};
use crate::quant::BlockType;
use crate::simd::{Kernel, Simd};

/// A panel and all tokens.
pub(super) struct PanelTask<'a> {
    pub(super) ty: BlockType,
    pub(super) panel: PanelBytes<'a>,
    pub(super) x: &'a Q8Activations<'a>,
    pub(super) target: Target<'a>,
}

impl Kernel for PanelTask<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let done = with_layout(self.ty, self.panel.is_split(), With { simd, task: self });
        debug_assert!(done.is_some(), "types without a layout are not packed");
    }
}

struct With<'a, S> {
    simd: S,
    task: PanelTask<'a>,
}

impl<S: Simd> LayoutTask for With<'_, S> {
    type Output = ();
    #[inline(always)]
    fn run<L: Layout>(self) {
        let Self { simd, task } = self;
        let mut token_idx = 0;
        // As many tokens as there are registers for, then fewer.
        while const { S::HAS_MANY_REGISTERS && L::GROUP_LEN == 32 }
            && task.x.n_tokens() - token_idx >= 8
        {
            tile::<S, L, 8>(simd, &task, token_idx);
            token_idx += 8;
        }
        while const { L::BITS == 4 && S::PARTS.are_of_two() } && task.x.n_tokens() - token_idx >= 6
        {
            tile::<S, L, 6>(simd, &task, token_idx);
            token_idx += 6;
        }
        while const { S::IS_IN_REGISTERS } && task.x.n_tokens() - token_idx >= 4 {
            tile::<S, L, 4>(simd, &task, token_idx);
            token_idx += 4;
        }
        while task.x.n_tokens() - token_idx >= 2 {
            tile::<S, L, 2>(simd, &task, token_idx);
            token_idx += 2;
        }
        if token_idx < task.x.n_tokens() {
            tile::<S, L, 1>(simd, &task, token_idx);
        }
    }
}

/// How far ahead of a token's groups others are asked for.
const AHEAD_BYTES: usize = 8192;

/// 16 rows times `N` tokens.
#[inline(always)]
fn tile<S: Simd, L: Layout, const N: usize>(simd: S, task: &PanelTask, first_token: usize) {
    let mut blocks = task.x.blocks::<N>(first_token);
    let mut acc = [simd.splat(0.0); N];
    let n_groups = 2 * task.x.n_steps();
    for (super_idx, block) in task
        .panel
        .upper
        .chunks_exact(L::SUPER_BYTES)
        .take(n_groups / L::N_GROUPS)
        .enumerate()
    {
        let head = head::<S, L>(simd, block);
        for (i, bytes) in block[L::HEAD_BYTES..]
            .chunks_exact(L::GROUP_BYTES)
            .enumerate()
        {
            let at = super_idx * L::N_GROUPS + i;
            if L::N_GROUPS > 1 {
                // Planes of codes and factors of super-blocks are not read in the order of memory,
                // from which the machine foresees what comes: 1.7 times as fast for one token (six
                // bits, AMD EPYC of family 25), 1.2 for eight.
                for line in 0..L::GROUP_BYTES.div_ceil(LINE_BYTES) {
                    simd.prefetch(
                        bytes
                            .as_ptr()
                            .wrapping_add(L::GROUP_BYTES + LINE_BYTES * line)
                            .cast(),
                    );
                }
            }
            if N == 1 && L::N_GROUPS == 1 && L::BITS < 8 {
                // Half a group's vectors are read twice. Two pages ahead: 1.04 to 1.14 times as
                // fast (AMD EPYC of family 26), and half as far gains half of it. Codes of eight
                // bits, which lie as they are read, take 1.04 to 1.07 of the time so.
                for line in 0..L::GROUP_BYTES.div_ceil(LINE_BYTES) {
                    simd.prefetch(
                        bytes
                            .as_ptr()
                            .wrapping_add(AHEAD_BYTES + LINE_BYTES * line)
                            .cast(),
                    );
                }
            }
            let group = task.panel.group::<L>(at, bytes);
            let Some(blocks) = blocks.next() else { break };
            add_group::<S, L, N>(simd, group, head, blocks, &mut acc);
        }
    }
    for n in 0..N {
        store_rows(simd, acc[n], first_token + n, task.target);
    }
}

/// Adds the products of a group, 32 columns.
#[inline(always)]
fn add_group<S: Simd, L: Layout, const N: usize>(
    simd: S,
    group: Group,
    head: [S::F; 2],
    blocks: &[Block; N],
    acc: &mut [S::F; N],
) {
    if L::GROUP_LEN == 16 {
        let factors = factors::<S, L>(simd, head, group.bytes);
        for half in 0..2 {
            let dots = half_dots::<S, L, N>(simd, group, half, blocks, [simd.zero_int(); N]);
            for n in 0..N {
                let Block { scale, sums16, .. } = blocks[n];
                acc[n] = scaled::<S, L>(
                    simd,
                    dots[n],
                    [factors[half]; 2],
                    scale,
                    sums16[half],
                    acc[n],
                );
            }
        }
        return;
    }
    let mut dots = [simd.zero_int(); N];
    for half in 0..2 {
        dots = half_dots::<S, L, N>(simd, group, half, blocks, dots);
    }
    let factors = factors::<S, L>(simd, head, group.bytes);
    for n in 0..N {
        // The sum of 8 times two products of 15 * 127 fits an i16: one joining for both halves.
        let dots = if joins_once::<S, L>() {
            simd.join_part::<1>(simd.zero_int(), dots[n])
        } else {
            dots[n]
        };
        acc[n] = scaled::<S, L>(
            simd,
            dots,
            factors,
            blocks[n].scale,
            blocks[n].sum32,
            acc[n],
        );
    }
}

/// Sums of both halves of a group fit 16 bits.
const fn joins_once<S: Simd, L: Layout>() -> bool {
    S::PARTS.are_of_two() && L::BITS == 4
}

/// To `dots`, the integer products of 16 columns: parts where they [join once](joins_once).
#[inline(always)]
pub(super) fn half_dots<S: Simd, L: Layout, const N: usize>(
    simd: S,
    group: Group,
    half: usize,
    blocks: &[Block; N],
    mut dots: [S::I; N],
) -> [S::I; N] {
    let mut codes = Codes::<S>::new::<L>(simd, group, half);
    let mut parts = [simd.zero_int(); N];
    if joins_once::<S, L>() {
        parts = dots;
    }
    // No constant for many tokens: written out, the loop needs more registers than there are.
    let n_vectors = if N > 4 {
        group.bytes.len() / 64 - (L::GROUP_BYTES / 64 - 4)
    } else {
        4
    };
    // Where each vector's bits lie elsewhere, the loop cannot find them.
    let is_taken = L::LOWER_BYTES > 0 && N > 4;
    let mut taken = [simd.dup4_b(&[0; 4]); 4];
    for v in 0..4 {
        if is_taken {
            taken[v] = codes.take::<L>(simd, v);
        }
    }
    for v in 0..n_vectors {
        let weights = if is_taken {
            taken[v]
        } else {
            codes.take::<L>(simd, v)
        };
        for n in 0..N {
            let x = simd.dup4_b(&blocks[n].codes[4 * half + v]);
            if L::IS_WIDE {
                dots[n] = simd.dot_wide(dots[n], weights, x);
            } else if S::PARTS.are_of_two() {
                parts[n] = simd.dot_part(parts[n], weights, x);
            } else {
                dots[n] = simd.dot_narrow(dots[n], weights, x);
            }
        }
        // 4 times two products of 31 * 127 fit an i16, and 2 of 63 * 127.
        let is_full = v == 3 || L::BITS == 6 && v == 1;
        if S::PARTS.are_of_two() && !L::IS_WIDE && !joins_once::<S, L>() && is_full {
            for n in 0..N {
                dots[n] = simd.join_part::<1>(dots[n], parts[n]);
                parts[n] = simd.zero_int();
            }
        }
    }
    if joins_once::<S, L>() { parts } else { dots }
}

/// Adds what integer products say: by the scales and the shifts of the rows, the scale and the sum
/// of the token.
#[inline(always)]
fn scaled<S: Simd, L: Layout>(
    simd: S,
    dots: S::I,
    factors: [S::F; 2],
    scale: f32,
    sum: f32,
    acc: S::F,
) -> S::F {
    let (values, scale) = (simd.int_values(dots), simd.splat(scale));
    let offset = if L::IS_WIDE {
        Some(-f32::from(S::WIDE_XOR))
    } else {
        L::OFFSET.map(f32::from)
    };
    match offset {
        None => {
            let acc = simd.fma(simd.mul(values, factors[0]), scale, acc);
            simd.fma(factors[1], simd.splat(sum), acc)
        }
        Some(0.0) => simd.fma(simd.mul(values, scale), factors[0], acc),
        Some(offset) => simd.fma(
            simd.fma(values, scale, simd.splat(sum * offset)),
            factors[0],
            acc,
        ),
    }
}
