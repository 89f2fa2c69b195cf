//! The inputs of functions of fixed length: tokens with padding up to the length of a block,
//! positions, the cache slice to write, and attention masks.
//!
//! The inputs are those of `thane convert --form engine` (ARCHITECTURE.md). Padding tokens follow
//! the tokens of a block, so no token attends to them, and their cache entries stay masked until
//! later tokens overwrite them.

use thane_mil::backend::{Instance, RunError};
use thane_mil::literal::f64_to_f16;

/// The lengths of a program whose functions take a fixed number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Number of tokens in a call of `prefill`.
    pub block: usize,
    /// Window of sliding-window layers in tokens, if the model has such layers.
    pub window: Option<usize>,
}

/// The score of a masked key: far below any real score, and finite in fp16.
const MASKED_SCORE: f64 = -1e4;

/// One call of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    /// The tokens, at most as many as the function takes.
    pub tokens: &'a [u32],
    /// Number of tokens before the call. The position plus a whole block must not exceed the
    /// context.
    pub position: usize,
    /// Number of tokens that the cache can hold.
    pub context: usize,
}

impl Fixed {
    /// Sets the inputs of `function`.
    pub(crate) fn set(
        &self,
        instance: &mut dyn Instance,
        function: &str,
        call: Call<'_>,
    ) -> Result<(), RunError> {
        let n = match function {
            "decode" => 1,
            "prefill" => self.block,
            other => return Err(RunError::NoFunction(other.to_owned())),
        };
        let Call {
            tokens,
            position,
            context,
        } = call;
        let id = |i: usize| tokens.get(i).copied().unwrap_or_default();
        ints(
            instance,
            "input_ids",
            &[1, n],
            (0..n).map(|i| id(i).cast_signed()),
        )?;
        ints(
            instance,
            "positions",
            &[n],
            (0..n).map(|i| int(position + i)),
        )?;
        ints(instance, "write_begin", &[4], [0, 0, int(position), 0])?;
        ints(instance, "write_end", &[4], [0, 0, int(position + n), 0])?;
        let shape = [1, 1, n, context + n];
        mask(instance.input("full_mask", &shape)?, n, call, usize::MAX);
        if let Some(window) = self.window {
            mask(instance.input("sliding_mask", &shape)?, n, call, window);
        }
        if function == "prefill" {
            let last = tokens.len().saturating_sub(1);
            let one = |i: usize| f64_to_f16(if i == last { 1.0 } else { 0.0 });
            let cells = instance
                .input("last_token", &[1, 1, 1, n])?
                .as_chunks_mut::<2>()
                .0;
            cells
                .iter_mut()
                .enumerate()
                .for_each(|(i, cell)| *cell = one(i).to_ne_bytes());
        }
        Ok(())
    }
}

fn int(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// Sets an int32 input.
fn ints(
    instance: &mut dyn Instance,
    name: &str,
    shape: &[usize],
    values: impl IntoIterator<Item = i32>,
) -> Result<(), RunError> {
    let cells = instance.input(name, shape)?.as_chunks_mut::<4>().0;
    cells
        .iter_mut()
        .zip(values)
        .for_each(|(cell, value)| *cell = value.to_ne_bytes());
    Ok(())
}

/// Writes the mask of `n` tokens [n, context + n]: a token attends to cache and call tokens that
/// are less than `window` positions back.
fn mask(bytes: &mut [u8], n: usize, call: Call<'_>, window: usize) {
    let (shown, hidden) = (
        f64_to_f16(0.0).to_ne_bytes(),
        f64_to_f16(MASKED_SCORE).to_ne_bytes(),
    );
    let rows = bytes.as_chunks_mut::<2>().0.chunks_mut(call.context + n);
    for (i, row) in rows.enumerate() {
        let (past, own) = row.split_at_mut(call.context);
        let first = (call.position + i).saturating_sub(window - 1);
        for (at, cell) in past.iter_mut().enumerate() {
            *cell = if (first..call.position).contains(&at) {
                shown
            } else {
                hidden
            };
        }
        for (j, cell) in own.iter_mut().enumerate() {
            *cell = if j <= i && i - j < window {
                shown
            } else {
                hidden
            };
        }
    }
}
