//! What functions of fixed lengths are fed: tokens with what fills a block up, positions, where the
//! cache is written, and what each token sees.
//!
//! The inputs are those of `thane convert --form engine` (ARCHITECTURE.md). A block that is not
//! full is filled with tokens that stand behind the others: none of these sees them, and what the
//! cache holds of them is hidden until it is written over.

use thane_mil::backend::{Instance, RunError};
use thane_mil::literal::f64_to_f16;

/// The lengths of a program whose functions take so many tokens and no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// Tokens of a call of `prefill`.
    pub block: usize,
    /// Tokens that sliding layers see, where there are such layers.
    pub window: Option<usize>,
}

/// Where a hidden key's score goes: far below any score, and finite in fp16.
const HIDDEN: f64 = -1e4;

/// A call of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    /// Its tokens, as many as the function takes or fewer.
    pub tokens: &'a [u32],
    /// Tokens before them; with a whole block behind, no more than the context.
    pub position: usize,
    /// Tokens that the cache can hold.
    pub context: usize,
}

impl Fixed {
    /// Set the inputs of `function`.
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

/// What each of `n` tokens sees: of the cache, then of the call; fewer than `window` places back.
fn mask(bytes: &mut [u8], n: usize, call: Call<'_>, window: usize) {
    let (shown, hidden) = (
        f64_to_f16(0.0).to_ne_bytes(),
        f64_to_f16(HIDDEN).to_ne_bytes(),
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
