//! Rotary position embeddings against their definition.

use thane_kernels::Context;
use thane_kernels::rope::{Angles, RopeShape, RopeStyle, rope, rope_halves};

use crate::testing::{Random, instruction_sets};

#[test]
fn both_styles_and_both_orders_of_strides() {
    let mut random = Random::new(41);
    for isa in instruction_sets() {
        for n_threads in [1, 3] {
            let ctx = Context::with_isa(n_threads, isa);
            for (n_heads, n_tokens, head_dim, rotary_dim) in [
                (1, 1, 2, 2),
                (3, 5, 20, 20),
                (2, 7, 64, 64),
                (4, 3, 80, 32),
                (9, 40, 64, 64),
            ] {
                for (head_stride, token_stride) in [
                    (n_tokens * head_dim, head_dim),
                    (head_dim, n_heads * head_dim),
                ] {
                    for style in [RopeStyle::Half, RopeStyle::Interleaved] {
                        let half = rotary_dim / 2;
                        let before = random.f32s(n_heads * n_tokens * head_dim);
                        let (cos, sin) =
                            (random.f32s(n_tokens * half), random.f32s(n_tokens * half));
                        let mut after = before.clone();
                        let shape = RopeShape {
                            n_heads,
                            n_tokens,
                            rotary_dim,
                            head_stride,
                            token_stride,
                        };
                        rope(&ctx, &mut after, shape, &cos, &sin, style);
                        for (h, t, i) in (0..n_heads).flat_map(|h| {
                            (0..n_tokens).flat_map(move |t| (0..head_dim).map(move |i| (h, t, i)))
                        }) {
                            let at = h * head_stride + t * token_stride;
                            let (pair, is_second, other) = match style {
                                _ if i >= rotary_dim => (0, false, i),
                                RopeStyle::Half => (i % half, i >= half, (i + half) % rotary_dim),
                                RopeStyle::Interleaved => (i / 2, i % 2 == 1, i ^ 1),
                            };
                            let (x, y) = (before[at + i], before[at + other]);
                            let (cos, sin) = (cos[t * half + pair], sin[t * half + pair]);
                            let expected = match i >= rotary_dim {
                                true => x,
                                false if is_second => x * cos + y * sin,
                                false => x * cos - y * sin,
                            };
                            assert_eq!(
                                after[at + i],
                                expected,
                                "{shape:?} {style:?} head {h} token {t} element {i}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn halves_with_an_angle_for_each_element() {
    let mut random = Random::new(43);
    for isa in instruction_sets() {
        for n_threads in [1, 3] {
            let ctx = Context::with_isa(n_threads, isa);
            for ([batch, n_heads, n_tokens], head_dim) in [
                ([1, 1, 1], 2),
                ([1, 8, 1], 64),
                ([2, 3, 5], 38),
                ([3, 5, 40], 66),
                ([1, 0, 4], 6),
            ] {
                let outer = [batch, n_heads, n_tokens];
                // One for each token, and one for each token of each text.
                let strides = [[0, 0, head_dim], [n_tokens * head_dim, 0, head_dim]];
                let x = random.f32s(batch * n_heads * n_tokens * head_dim);
                let cos = random.f32s(n_tokens * head_dim);
                let sin = random.f32s(batch * n_tokens * head_dim);
                let mut out = vec![f32::NAN; x.len()];
                let angles = [(&cos, &strides[0]), (&sin, &strides[1])];
                let angles = angles.map(|(values, strides)| Angles { values, strides });
                rope_halves(&ctx, &x, (&outer, head_dim), angles, &mut out);
                for (i, out) in out.iter().enumerate() {
                    let (row, at) = (i / head_dim, i % head_dim);
                    let token = row % n_tokens;
                    let text = row / (n_heads * n_tokens);
                    let cos = cos[token * head_dim + at];
                    let sin = sin[(text * n_tokens + token) * head_dim + at];
                    let half = head_dim / 2;
                    let across = if at < half { -x[i + half] } else { x[i - half] };
                    assert_eq!(*out, x[i] * cos + across * sin, "{outer:?} element {i}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "is odd")]
fn halves_of_an_odd_row_are_refused() {
    let angles = Angles {
        values: &[1.0; 3],
        strides: &[0],
    };
    let x = [0.0; 3];
    rope_halves(&Context::new(1), &x, (&[1], 3), [angles; 2], &mut [0.0; 3]);
}

#[test]
#[should_panic(expected = "heads overlap")]
fn overlapping_heads_are_refused() {
    let shape = RopeShape {
        n_heads: 2,
        n_tokens: 2,
        rotary_dim: 4,
        head_stride: 4,
        token_stride: 4,
    };
    rope(
        &Context::new(1),
        &mut [0.0; 64],
        shape,
        &[0.0; 4],
        &[0.0; 4],
        RopeStyle::Half,
    );
}
