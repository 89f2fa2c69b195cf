//! Attention against its definition in f64.

use thane_kernels::attention::{More, PART_KEYS, mask_tiles_len};
use thane_kernels::f16::{f16_to_f32, f32_to_f16};
use thane_kernels::{
    Attention, Context, HeadRows, KvData, KvView, attention, attention_scratch_len,
};

use crate::testing::{Random, contexts, instruction_sets, relative_error};

/// At or below this a mask says "not this key".
const MASKED: f32 = -1e4;
/// Query rows that go over a tile of keys together.
const BLOCK_ROWS: usize = 64;

struct Case {
    n_kv_heads: usize,
    n_rows: usize,
    head_dim: usize,
    n_keys: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    mask: Option<Vec<f32>>,
    /// [head, key, dim], or [key, head, dim].
    heads_first: bool,
    /// Elements behind those of a head.
    gap: usize,
    scale: f32,
    may_round: bool,
}

impl Case {
    fn strides(&self) -> (usize, usize) {
        // Two more keys than are used.
        let dim = self.head_dim + self.gap;
        if self.heads_first {
            ((self.n_keys + 2) * dim, dim)
        } else {
            (dim, self.n_kv_heads * dim)
        }
    }

    fn run(&self, ctx: &Context, as_f16: bool) -> Vec<f32> {
        let Self {
            n_kv_heads,
            n_rows,
            head_dim,
            ..
        } = *self;
        let (k16, v16): (Vec<u16>, Vec<u16>) = (
            self.k.iter().map(|x| f32_to_f16(*x)).collect(),
            self.v.iter().map(|x| f32_to_f16(*x)).collect(),
        );
        let (head_stride, key_stride) = self.strides();
        let view = |f32s, f16s| KvView {
            data: if as_f16 {
                KvData::F16(f16s)
            } else {
                KvData::F32(f32s)
            },
            head_stride,
            key_stride,
        };
        let (k, v) = (view(&self.k, &k16), view(&self.v, &v16));
        let out = self.attend(
            ctx,
            &self.q,
            [k, v],
            None,
            HeadRows::by_head(n_rows, head_dim),
        );
        if self.n_keys >= PART_KEYS {
            // Keys in two parts: those behind the first tile apart.
            let [more_k, more_v] = [k, v].map(|view| KvView {
                data: match view.data {
                    KvData::F32(data) => KvData::F32(&data[PART_KEYS * key_stride..]),
                    KvData::F16(data) => KvData::F16(&data[PART_KEYS * key_stride..]),
                },
                ..view
            });
            let more = More {
                n_before: PART_KEYS,
                k: more_k,
                v: more_v,
            };
            let rows = HeadRows::by_head(n_rows, head_dim);
            let parts = self.attend(ctx, &self.q, [k, v], Some(more), rows);
            let is_same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
            assert!(out.iter().zip(&parts).all(is_same), "keys in two parts");
        }
        let by_row = |x: &[f32]| -> Vec<f32> {
            let heads = |row: usize| {
                (0..n_kv_heads).flat_map(move |head| {
                    let first = (head * n_rows + row) * head_dim;
                    first..first + head_dim
                })
            };
            (0..n_rows).flat_map(heads).map(|at| x[at]).collect()
        };
        let other = self.attend(
            ctx,
            &by_row(&self.q),
            [k, v],
            None,
            HeadRows::by_row(n_kv_heads, head_dim),
        );
        assert!(
            other
                .iter()
                .zip(by_row(&out))
                .all(|(a, b)| a.to_bits() == b.to_bits()),
            "{n_rows} rows by row"
        );
        out
    }

    fn attend(
        &self,
        ctx: &Context,
        q: &[f32],
        [k, v]: [KvView; 2],
        more: Option<More>,
        rows: HeadRows,
    ) -> Vec<f32> {
        let Self {
            n_kv_heads,
            n_rows,
            head_dim,
            n_keys,
            ..
        } = *self;
        let mut out = vec![f32::NAN; q.len()];
        let mut scratch =
            vec![f32::NAN; attention_scratch_len(ctx, n_kv_heads, n_rows, head_dim, n_keys)];
        let args = Attention {
            q,
            q_rows: rows,
            k,
            v,
            mask: self.mask.as_deref(),
            tiles: None,
            scale: self.scale,
            more,
            may_round: self.may_round,
            n_kv_heads,
            n_rows,
            head_dim,
            n_keys,
            out_rows: rows,
            out: &mut out,
        };
        attention(ctx, args, &mut scratch);
        out
    }

    fn has_empty_row(&self) -> bool {
        let is_empty = |row: &[f32]| row.iter().all(|mask| *mask <= MASKED);
        self.mask
            .as_ref()
            .is_some_and(|mask| mask.chunks_exact(self.n_keys).any(is_empty))
    }

    /// The definition, in f64.
    fn exact(&self) -> Vec<f64> {
        let (head_stride, key_stride) = self.strides();
        let mut out = Vec::new();
        for (row_idx, q) in self.q.chunks_exact(self.head_dim).enumerate() {
            let (h, r) = (row_idx / self.n_rows, row_idx % self.n_rows);
            let at = |key: usize| h * head_stride + key * key_stride;
            let score = |key: usize| {
                let dot: f64 = q
                    .iter()
                    .zip(&self.k[at(key)..])
                    .map(|(q, k)| f64::from(*q) * f64::from(*k))
                    .sum();
                let mask = self.mask.as_ref().map_or(0.0, |mask| {
                    f64::from(mask[r * self.n_keys + key]).max(-1e38)
                });
                dot * f64::from(self.scale) + mask
            };
            let scores: Vec<f64> = (0..self.n_keys).map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
            for i in 0..self.head_dim {
                let sum: f64 = scores
                    .iter()
                    .enumerate()
                    .map(|(key, score)| (score - max).exp() * f64::from(self.v[at(key) + i]))
                    .sum();
                out.push(sum / total);
            }
        }
        out
    }
}

/// How a mask is made: of row, key, and sizes.
#[derive(Debug, Clone, Copy)]
enum Masking {
    None,
    Causal,
    Window,
    Random,
    /// -inf everywhere in row 0, -1e4 everywhere in row 1, causal below.
    Empty,
}

fn case(
    random: &mut Random,
    sizes: (usize, usize, usize, usize),
    masking: Masking,
    heads_first: bool,
) -> Case {
    let (n_kv_heads, n_rows, head_dim, n_keys) = sizes;
    let mut mask = Vec::new();
    for r in 0..n_rows {
        // The last row sees all keys.
        let position = (n_keys + r).saturating_sub(n_rows);
        for key in 0..n_keys {
            let causal = if key <= position {
                0.0
            } else {
                f32::NEG_INFINITY
            };
            mask.push(match masking {
                Masking::None => 0.0,
                Masking::Causal => causal,
                Masking::Window => {
                    if key + 40 > position {
                        causal
                    } else {
                        -1e4
                    }
                }
                Masking::Random => {
                    if random.below(3) == 0 {
                        -3e4
                    } else {
                        random.f32() * 4.0
                    }
                }
                Masking::Empty => match r {
                    0 => f32::NEG_INFINITY,
                    1 => -1e4,
                    _ => causal,
                },
            });
        }
    }
    let cache_len = n_kv_heads * (n_keys + 2) * (head_dim + 3);
    // f32 values that f16 has, so that both caches hold the same.
    let mut halves = |len: usize| -> Vec<f32> {
        random
            .f32s(len)
            .into_iter()
            .map(|x| f16_to_f32(f32_to_f16(x)))
            .collect()
    };
    let (k, v) = (halves(cache_len), halves(cache_len));
    let q = random.f32s(n_kv_heads * n_rows * head_dim);
    let mask = if matches!(masking, Masking::None) {
        None
    } else {
        Some(mask)
    };
    let (gap, scale, may_round) = (3, 0.3, false);
    Case {
        n_kv_heads,
        n_rows,
        head_dim,
        n_keys,
        q,
        k,
        v,
        mask,
        heads_first,
        gap,
        scale,
        may_round,
    }
}

#[test]
fn against_the_definition() {
    let contexts = contexts(4);
    let mut random = Random::new(51);
    for head_dim in [20, 64, 80, 256] {
        for n_rows in [1, 3, 7, 130] {
            for n_keys in [1, 5, 33, 700] {
                for masking in [
                    Masking::None,
                    Masking::Causal,
                    Masking::Window,
                    Masking::Random,
                    Masking::Empty,
                ] {
                    // The large ones with one kind of mask each: the definition in f64 is slow.
                    if n_rows * n_keys * head_dim > 1_000_000 && !matches!(masking, Masking::Window)
                    {
                        continue;
                    }
                    let n_kv_heads = 1 + random.below(3);
                    let case = case(
                        &mut random,
                        (n_kv_heads, n_rows, head_dim, n_keys),
                        masking,
                        n_rows != 3,
                    );
                    let expected = case.exact();
                    for ctx in &contexts {
                        for as_f16 in [false, true] {
                            let error = relative_error(&case.run(ctx, as_f16), &expected);
                            // A score of -3e4 is rounded to two thousandths in f32: it shows in
                            // rows that have no other.
                            let bound = if case.has_empty_row() { 2e-3 } else { 2e-6 };
                            assert!(
                                error < bound,
                                "{n_kv_heads} heads, {n_rows} rows of {head_dim}, {n_keys} keys, {masking:?}, f16 {as_f16}, {}, {} threads: {error}",
                                ctx.isa().name(),
                                ctx.pool().n_threads()
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Rows whose scores rise, fall, or are all far below 0, of values that lie close together.
#[test]
fn scores_far_from_zero() {
    let mut random = Random::new(55);
    for (head_dim, n_rows, n_keys) in [(32, 70, 205), (32, 3, 205), (48, 21, 64), (96, 9, 40)] {
        for masking in [Masking::None, Masking::Causal] {
            let mut case = case(&mut random, (2, n_rows, head_dim, n_keys), masking, true);
            case.gap = 0;
            for q in case.q.chunks_exact_mut(head_dim) {
                q[0] = 10.0 * (random.below(3) as f32 - 1.0);
            }
            for (key_idx, k) in case.k.chunks_exact_mut(head_dim).enumerate() {
                // In 1/4, and of two heads: halves have it.
                k[0] =
                    (key_idx % (n_keys + 2)) as f32 / 4.0 + 32.0 * (key_idx / (n_keys + 2)) as f32;
            }
            let expected = case.exact();
            for isa in instruction_sets() {
                for as_f16 in [false, true] {
                    let error =
                        relative_error(&case.run(&Context::with_isa(2, isa), as_f16), &expected);
                    // Scores up to 250 are rounded to 2^-17.
                    assert!(
                        error < 2e-5,
                        "{n_rows} rows of {head_dim}, {n_keys} keys, {masking:?}, {as_f16}, {}: {error}",
                        isa.name()
                    );
                }
            }
        }
    }
}

/// Of queries, keys and values that bf16 has, nothing but the weights is rounded; of any, every
/// product is.
#[test]
fn rounded_rows() {
    let mut random = Random::new(56);
    for isa in instruction_sets().into_iter().filter(|isa| isa.has_bf16()) {
        let [one, four] = [1, 4].map(|n_threads| Context::with_isa(n_threads, isa));
        // Of 67 rows the last three are few, and one thread takes several blocks of 705.
        let sizes = [
            (32, 7, 5),
            (64, 67, 205),
            (96, 9, 33),
            (128, 300, 131),
            (256, 21, 700),
            (32, 705, 149),
        ];
        for (head_dim, n_rows, n_keys) in sizes {
            for masking in [
                Masking::None,
                Masking::Causal,
                Masking::Window,
                Masking::Random,
            ] {
                let mut case = case(
                    &mut random,
                    (3, n_rows, head_dim, n_keys),
                    masking,
                    n_rows != 9,
                );
                (case.scale, case.may_round) = (0.25, true);
                let rounds = relative_error(&case.run(&one, false), &case.exact());
                for values in [&mut case.q, &mut case.k, &mut case.v] {
                    values
                        .iter_mut()
                        .for_each(|x| *x = f32::from_bits(x.to_bits() & 0xffff_0000));
                }
                let found = case.run(&one, false);
                let error = relative_error(&found, &case.exact());
                let what = format!("{n_rows} rows of {head_dim}, {n_keys} keys, {masking:?}");
                assert!(
                    error < 3e-3 && rounds < 1e-2,
                    "{what}: {error} and {rounds}"
                );
                assert!(error > 1e-5, "{what} was not rounded: {error}");
                assert_eq!(found, case.run(&four, false), "{what}");
                assert_eq!(found, case.run(&one, true), "{what} of f16");
            }
        }
    }
}

/// f32s of scratch of a thread where keys are not split: more of them for more blocks at a time.
fn thread_len(ctx: &Context, [n_kv_heads, n_rows, head_dim, n_keys]: [usize; 4]) -> usize {
    let len = attention_scratch_len(ctx, n_kv_heads, n_rows, head_dim, n_keys);
    (len - mask_tiles_len(n_rows, n_keys)) / ctx.pool().n_threads()
}

/// So many rows that one thread takes several blocks at a time, of which the last is a single row,
/// and four take one.
#[test]
fn blocks_that_share_tiles_are_as_those_alone() {
    let mut random = Random::new(54);
    for (head_dim, masking) in [
        (20, Masking::Causal),
        (64, Masking::Window),
        (64, Masking::None),
    ] {
        let case = case(
            &mut random,
            (3, 11 * BLOCK_ROWS + 1, head_dim, 2 * PART_KEYS + 21),
            masking,
            true,
        );
        let expected = case.exact();
        for isa in instruction_sets() {
            let [one, four] = [1, 4].map(|n_threads| Context::with_isa(n_threads, isa));
            let block_len = thread_len(&one, [1, BLOCK_ROWS, head_dim, PART_KEYS]);
            let [one_len, four_len] =
                [&one, &four].map(|ctx| thread_len(ctx, [3, case.n_rows, head_dim, case.n_keys]));
            assert!(one_len > block_len, "{masking:?}: several blocks");
            assert_eq!(four_len, block_len, "{masking:?}: one block");
            for as_f16 in [false, true] {
                let shared = case.run(&one, as_f16);
                let error = relative_error(&shared, &expected);
                assert!(
                    error < 2e-6,
                    "{masking:?}, f16 {as_f16}, {}: {error}",
                    isa.name()
                );
                assert_eq!(
                    shared,
                    case.run(&four, as_f16),
                    "{masking:?}, f16 {as_f16}, {}",
                    isa.name()
                );
            }
        }
    }
}

/// Callers keep one scratch for calls over fewer keys, and any number of threads computes the same
/// numbers.
#[test]
fn division_follows_from_sizes_alone() {
    let ctx = Context::new(2);
    for (n_kv_heads, n_rows) in [(1, 1), (1, 4), (3, 3), (5, 70), (40, 1)] {
        let lens: Vec<usize> = (0..3000)
            .map(|n_keys| attention_scratch_len(&ctx, n_kv_heads, n_rows, 20, n_keys))
            .collect();
        assert!(lens.is_sorted(), "{n_kv_heads} heads, {n_rows} rows");
    }
    let mut random = Random::new(54);
    for sizes in [(1, 4, 32, 900), (3, 3, 20, 300), (2, 130, 16, 517)] {
        let case = case(&mut random, sizes, Masking::Causal, true);
        for isa in instruction_sets() {
            let alone = case.run(&Context::with_isa(1, isa), true);
            for n_threads in [2, 5, 8] {
                assert_eq!(
                    case.run(&Context::with_isa(n_threads, isa), true),
                    alone,
                    "{sizes:?}, {n_threads} threads"
                );
            }
        }
    }
}

#[test]
fn masked_keys_may_hold_anything_when_no_row_wants_them() {
    let mut random = Random::new(52);
    let mut case = case(&mut random, (1, 2, 32, 300), Masking::Causal, true);
    // Keys 0..256 are masked for both rows: whole tiles.
    for (i, mask) in case.mask.as_mut().unwrap().iter_mut().enumerate() {
        *mask = if i % 300 < 256 {
            f32::NEG_INFINITY
        } else {
            0.0
        };
    }
    let (_, key_stride) = case.strides();
    case.v[..256 * key_stride].fill(f32::NAN);
    for isa in instruction_sets() {
        assert!(
            case.run(&Context::with_isa(3, isa), false)
                .iter()
                .all(|x| x.is_finite()),
            "{}",
            isa.name()
        );
    }
}

/// One bad query spoils its own row only; an infinite score is no number, as in the definition;
/// subnormal values stay.
#[test]
fn what_is_no_number_shows() {
    let mut random = Random::new(55);
    for n_keys in [5, 300] {
        let mut case = case(&mut random, (1, 3, 20, n_keys), Masking::None, true);
        case.q[20] = f32::NAN;
        case.q[41] = f32::INFINITY;
        for isa in instruction_sets() {
            let out = case.run(&Context::with_isa(3, isa), false);
            let (sound, bad) = out.split_at(20);
            assert!(
                sound.iter().all(|x| x.is_finite()),
                "{n_keys} keys, {}: {out:?}",
                isa.name()
            );
            assert!(
                bad.iter().all(|x| x.is_nan()),
                "{n_keys} keys, {}: {out:?}",
                isa.name()
            );
        }
        // Of a tile that is masked but for it, too.
        for (first, masked) in [(0, -1e5), (n_keys - 1, f32::NEG_INFINITY)] {
            let mut mask = vec![0.0; 3 * n_keys];
            mask[n_keys..][first / 64 * 64..(first / 64 * 64 + 64).min(n_keys)].fill(masked);
            mask[n_keys + first] = f32::NAN;
            let masked = Case {
                mask: Some(mask),
                q: vec![0.5; 60],
                k: case.k.clone(),
                v: case.v.clone(),
                ..case
            };
            for isa in instruction_sets() {
                let out = masked.run(&Context::with_isa(3, isa), false);
                let is_bad = |i: usize| (20..40).contains(&i);
                assert!(
                    out.iter().enumerate().all(|(i, x)| x.is_nan() == is_bad(i)),
                    "{n_keys} keys, {}: {out:?}",
                    isa.name()
                );
            }
        }
        case.q.fill(1e-40);
        case.v.iter_mut().for_each(|v| *v = 1e-39);
        for isa in instruction_sets() {
            let out = case.run(&Context::with_isa(3, isa), false);
            assert!(
                out.iter().all(|x| (x / 1e-39 - 1.0).abs() < 1e-3),
                "{n_keys} keys, {}: {out:?}",
                isa.name()
            );
        }
    }
}

#[test]
fn nothing_to_attend_to() {
    let mut random = Random::new(53);
    for isa in instruction_sets() {
        let ctx = Context::with_isa(2, isa);
        assert_eq!(
            case(&mut random, (2, 3, 4, 0), Masking::None, true).run(&ctx, false),
            [0.0; 24]
        );
        assert!(
            case(&mut random, (2, 0, 4, 5), Masking::Causal, true)
                .run(&ctx, false)
                .is_empty()
        );
    }
}
