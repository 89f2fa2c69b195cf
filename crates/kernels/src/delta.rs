//! The delta rule: memories that tokens read and write one after another.

use crate::Context;
use crate::simd::{Kernel, Simd};

/// Vectors of 16 value elements that are updated together: a block of a memory of 128 key elements
/// stays in the first-level cache over all tokens.
const N_VECTORS: usize = 4;

/// The sizes of memories.
#[derive(Clone, Copy, Debug)]
pub struct DeltaShape {
    /// Number of tokens.
    pub n_tokens: usize,
    /// Number of heads, each with a memory.
    pub n_heads: usize,
    /// Elements of a key, and of a query.
    pub key_len: usize,
    /// Elements of a value.
    pub value_len: usize,
}

impl DeltaShape {
    /// Elements of a head in the buffer of [`delta_rule`].
    pub fn head_len(&self) -> usize {
        (self.key_len + self.n_tokens) * self.value_len
    }
}

/// What tokens read and write, the rows of a token's heads one after another.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRows<'a> {
    /// [tokens, heads, key_len].
    pub query: &'a [f32],
    /// [tokens, heads, key_len].
    pub key: &'a [f32],
    /// [tokens, heads, value_len].
    pub value: &'a [f32],
    /// Factor of the memory before a token, [tokens, heads].
    pub decay: &'a [f32],
    /// Factor of what a token writes, [tokens, heads].
    pub beta: &'a [f32],
}

/// For each token and head: `S = decay * S; S = S + key^T (beta * (value - key S))`, and then
/// `query S`. `heads` holds for each head S [key_len, value_len], which is updated, and behind it
/// the results [tokens, value_len].
///
/// # Panics
/// If a slice has another length.
pub fn delta_rule(ctx: &Context, shape: DeltaShape, rows: DeltaRows<'_>, heads: &mut [f32]) {
    let DeltaShape {
        n_tokens,
        n_heads,
        key_len,
        value_len,
    } = shape;
    let n_rows = n_tokens * n_heads;
    let lens = [rows.query, rows.key, rows.value, rows.decay, rows.beta].map(<[f32]>::len);
    let due = [key_len, key_len, value_len, 1, 1].map(|len| len * n_rows);
    assert_eq!(
        lens, due,
        "elements of queries, keys, values, decays, betas"
    );
    assert_eq!(heads.len(), n_heads * shape.head_len(), "elements of heads");
    if heads.is_empty() {
        return;
    }
    ctx.pool()
        .run_chunks(heads, shape.head_len(), |head, buffer| {
            let (memory, out) = buffer.split_at_mut(key_len * value_len);
            ctx.isa().run(Head {
                shape,
                rows,
                head,
                memory,
                out,
            });
        });
}

struct Head<'a> {
    shape: DeltaShape,
    rows: DeltaRows<'a>,
    head: usize,
    memory: &'a mut [f32],
    out: &'a mut [f32],
}

impl Kernel for Head<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, simd: S) {
        let len = self.shape.value_len;
        let mut at = 0;
        while at + 16 * N_VECTORS <= len {
            self.columns::<S, N_VECTORS>(simd, at);
            at += 16 * N_VECTORS;
        }
        while at + 16 <= len {
            self.columns::<S, 1>(simd, at);
            at += 16;
        }
        (at..len).for_each(|at| self.column(at));
    }
}

impl Head<'_> {
    /// Query, key, decay and beta of a token.
    #[inline(always)]
    fn token(&self, token: usize) -> (&[f32], &[f32], f32, f32) {
        let row = token * self.shape.n_heads + self.head;
        let range = row * self.shape.key_len..(row + 1) * self.shape.key_len;
        let rows = &self.rows;
        let (query, key) = (&rows.query[range.clone()], &rows.key[range]);
        (query, key, rows.decay[row], rows.beta[row])
    }

    /// The value elements of a token from `at` on.
    #[inline(always)]
    fn value(&self, token: usize, at: usize) -> &[f32] {
        let row = token * self.shape.n_heads + self.head;
        &self.rows.value[row * self.shape.value_len + at..(row + 1) * self.shape.value_len]
    }

    /// All tokens, for the 16 * N value elements from `at` on.
    #[inline(always)]
    fn columns<S: Simd, const N: usize>(&mut self, simd: S, at: usize) {
        let len = self.shape.value_len;
        for token in 0..self.shape.n_tokens {
            let decay = simd.splat(self.token(token).2);
            let mut known = [simd.splat(0.0); N];
            for i in 0..self.shape.key_len {
                let key = simd.splat(self.token(token).1[i]);
                let (row, _) = self.memory[i * len + at..].as_chunks_mut::<16>();
                for (vector, known) in row[..N].iter_mut().zip(&mut known) {
                    let faded = simd.mul(simd.load(vector), decay);
                    simd.store(faded, vector);
                    *known = simd.fma(key, faded, *known);
                }
            }
            let beta = simd.splat(self.token(token).3);
            let (value, _) = self.value(token, at).as_chunks::<16>();
            let mut new = known;
            for (new, value) in new.iter_mut().zip(value) {
                *new = simd.mul(simd.sub(simd.load(value), *new), beta);
            }
            let mut read = [simd.splat(0.0); N];
            for i in 0..self.shape.key_len {
                let (query, key, ..) = self.token(token);
                let (query, key) = (simd.splat(query[i]), simd.splat(key[i]));
                let (row, _) = self.memory[i * len + at..].as_chunks_mut::<16>();
                for ((vector, new), read) in row[..N].iter_mut().zip(&new).zip(&mut read) {
                    let written = simd.fma(key, *new, simd.load(vector));
                    simd.store(written, vector);
                    *read = simd.fma(query, written, *read);
                }
            }
            let (out, _) = self.out[token * len + at..].as_chunks_mut::<16>();
            for (out, read) in out[..N].iter_mut().zip(read) {
                simd.store(read, out);
            }
        }
    }

    /// All tokens, for one value element.
    fn column(&mut self, at: usize) {
        let len = self.shape.value_len;
        for token in 0..self.shape.n_tokens {
            let value = self.value(token, at)[0];
            let mut known = 0.0;
            for i in 0..self.shape.key_len {
                let (_, key, decay, _) = self.token(token);
                let key = key[i];
                let place = &mut self.memory[i * len + at];
                *place *= decay;
                known += key * *place;
            }
            let new = (value - known) * self.token(token).3;
            let mut read = 0.0;
            for i in 0..self.shape.key_len {
                let (query, key, ..) = self.token(token);
                let (query, key) = (query[i], key[i]);
                let place = &mut self.memory[i * len + at];
                *place += key * new;
                read += query * *place;
            }
            self.out[token * len + at] = read;
        }
    }
}
