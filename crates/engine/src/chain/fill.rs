//! The values of the inputs that the host sets.

use thane_calls::Kept;
use thane_mil::backend::RunError;
use thane_mil::literal::f64_to_f16;
use thane_mil::types::DType;

use super::{Feed, Input, Rows};

/// The score of a masked key where the mask is added to fp16: far below any real score, and finite.
const MASKED_SCORE: f32 = -1e4;

/// The tokens of one call.
#[derive(Clone, Copy)]
pub(super) struct CallTokens<'a> {
    pub tokens: &'a [u32],
    /// Position of the first token.
    pub position: usize,
    /// Number of tokens that the call takes; those beyond `tokens` mean nothing.
    pub n: usize,
}

/// Sets the elements of an input, which lie in `bytes`.
pub(super) fn fill(
    bytes: &mut [u8],
    input: &Input,
    place: CallTokens<'_>,
    slots: &[Vec<u8>],
) -> Result<(), RunError> {
    let CallTokens {
        tokens,
        position,
        n,
    } = place;
    let width = input.shape.last().copied().unwrap_or(1).max(1);
    match &input.feed {
        Feed::Tokens => {
            let padding = std::iter::repeat(&0);
            let ids = tokens.iter().chain(padding).take(n);
            ints(bytes, ids.map(|token| token.cast_signed()));
        }
        Feed::Positions => ints(bytes, (0..n).map(|i| int(position + i))),
        Feed::Position => ints(bytes, [int(position)]),
        Feed::CausalMask => {
            let is_shown = |at: usize| at % width <= position + at / width;
            floats(bytes, input.dtype, |at| hidden_unless(is_shown(at)));
        }
        Feed::RecentMask => {
            let is_shown = |at: usize| at % width + position + 1 >= width;
            floats(bytes, input.dtype, |at| hidden_unless(is_shown(at)));
        }
        Feed::WriteMask => {
            let is_written = |at: usize| at / width == position + at % width;
            floats(bytes, input.dtype, |at| f32::from(u8::from(is_written(at))));
        }
        Feed::Slot(slot) => copy_slot(bytes, input, slots.get(*slot))?,
        Feed::Mask { window, kept } => {
            let seen = Seen {
                n_rows: width.saturating_sub(n),
                position,
                window: *window,
                kept: *kept,
            };
            floats(bytes, input.dtype, |at| seen.score(at / width, at % width));
        }
        Feed::WriteBegin => ints(bytes, [0, 0, int(position), 0]),
        Feed::WriteEnd => ints(bytes, [0, 0, int(position + n), 0]),
        Feed::LastToken => {
            let last = tokens.len().saturating_sub(1);
            floats(bytes, input.dtype, |at| f32::from(u8::from(at == last)));
        }
        Feed::TokenColumns(table) => {
            let padding = std::iter::repeat(&0);
            let rows = tokens.iter().chain(padding).take(n);
            let rows = rows.map(|token| *token as usize);
            table_columns(bytes, (&input.name, input.dtype), table.as_ref(), (rows, n))?;
        }
        Feed::PositionColumns(table) => {
            let rows = (0..n).map(|i| position + i);
            table_columns(bytes, (&input.name, input.dtype), table.as_ref(), (rows, n))?;
        }
        // The input holds it.
        Feed::Cache(_) => {}
    }
    Ok(())
}

/// What the tokens of a call see.
pub(super) struct Seen {
    /// Rows of the cache, which come before the tokens of the call.
    pub n_rows: usize,
    /// Position of the first token.
    pub position: usize,
    pub window: Option<usize>,
    pub kept: Kept,
}

impl Seen {
    /// What is added to the score of column `key` for token `i` of the call.
    pub fn score(&self, i: usize, key: usize) -> f32 {
        self.shown(i, key).unwrap_or(MASKED_SCORE)
    }

    /// The same; `None` if it is not seen.
    fn shown(&self, i: usize, key: usize) -> Option<f32> {
        let Kept { sinks, ring, pool } = self.kept;
        let first = self
            .kept
            .first_seen(self.position + i, self.window.unwrap_or(usize::MAX));
        let is_seen = |at: usize| at < sinks || at >= first;
        if key >= self.n_rows {
            let j = key - self.n_rows;
            return (j <= i && is_seen(self.position + j)).then_some(0.0);
        }
        let at = if key < sinks {
            key
        } else if key < sinks + ring {
            // The last position before the call that is in this row.
            let n_stored = self.position.saturating_sub(sinks);
            let since = n_stored.checked_sub(key - sinks + 1)?;
            sinks + n_stored - 1 - since % ring
        } else {
            let n = pool?;
            let blocks = (key - sinks - ring + 1).saturating_mul(n);
            let end = sinks.saturating_add(blocks);
            return (end <= first).then(|| (n as f32).ln());
        };
        (at < self.position && is_seen(at)).then_some(0.0)
    }
}

/// The mask [1, 1, n, columns] of a first call, whose n tokens begin at position 0 of an empty
/// cache.
pub fn first_mask(n_tokens: usize, columns: usize) -> impl Iterator<Item = f32> {
    let n_rows = columns.saturating_sub(n_tokens);
    let seen = Seen {
        n_rows,
        position: 0,
        window: None,
        kept: Kept::ring(n_rows),
    };
    (0..n_tokens * columns).map(move |at| seen.score(at / columns, at % columns))
}

fn hidden_unless(is_shown: bool) -> f32 {
    if is_shown { 0.0 } else { f32::NEG_INFINITY }
}

fn int(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

pub(super) fn ints(bytes: &mut [u8], values: impl IntoIterator<Item = i32>) {
    let cells = bytes.as_chunks_mut::<4>().0.iter_mut();
    cells
        .zip(values)
        .for_each(|(cell, value)| *cell = value.to_ne_bytes());
}

/// Sets each element, counted from 0, to a value in fp16 or fp32.
pub(super) fn floats(bytes: &mut [u8], dtype: DType, value: impl Fn(usize) -> f32) {
    if dtype == DType::Fp16 {
        let cells = bytes.as_chunks_mut::<2>().0.iter_mut().enumerate();
        cells.for_each(|(at, cell)| *cell = f64_to_f16(f64::from(value(at))).to_ne_bytes());
    } else {
        let cells = bytes.as_chunks_mut::<4>().0.iter_mut().enumerate();
        cells.for_each(|(at, cell)| *cell = value(at).to_ne_bytes());
    }
}

/// Sets an input [.., columns, n] to rows of a table, one for each of n tokens.
pub(crate) fn table_columns(
    bytes: &mut [u8],
    (input, dtype): (&str, DType),
    table: &dyn Rows,
    (rows, n): (impl Iterator<Item = usize>, usize),
) -> Result<(), RunError> {
    let mut all = vec![0.0; n * table.n_columns()];
    for (idx, row) in rows.zip(all.chunks_mut(table.n_columns().max(1))) {
        check_row(input, table, idx)?;
        table.read(idx, row);
    }
    let n_columns = table.n_columns();
    floats(bytes, dtype, |at| all[at % n * n_columns + at / n]);
    Ok(())
}

/// Sets an input, or a lane of it, to the value of a slot.
pub(super) fn copy_slot(
    bytes: &mut [u8],
    input: &Input,
    value: Option<&Vec<u8>>,
) -> Result<(), RunError> {
    let value = value.filter(|value| value.len() == bytes.len());
    bytes.copy_from_slice(value.ok_or_else(|| RunError::NoInput(input.name.clone()))?);
    Ok(())
}

fn check_row(input: &str, table: &dyn Rows, idx: usize) -> Result<(), RunError> {
    if idx < table.n_rows() {
        return Ok(());
    }
    Err(RunError::Chain(format!(
        "input `{input}`: expected a table with row {idx}, found {} rows",
        table.n_rows()
    )))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use thane_mil::literal::f16_to_f32;

    use super::*;

    /// Row i is i.5, i.5 + 1, …
    struct Halves;

    impl Rows for Halves {
        fn n_rows(&self) -> usize {
            9
        }
        fn n_columns(&self) -> usize {
            3
        }
        fn read(&self, idx: usize, out: &mut [f32]) {
            for (i, x) in out.iter_mut().enumerate() {
                *x = (idx + i) as f32 + 0.5;
            }
        }
    }

    fn filled(feed: Feed, shape: &[usize], tokens: &[u32], position: usize) -> Vec<f32> {
        let input = Input {
            name: "x".to_owned(),
            dtype: DType::Fp16,
            shape: shape.to_vec(),
            feed,
        };
        let mut bytes = vec![0xff; 2 * shape.iter().product::<usize>()];
        let n = tokens.len();
        let place = CallTokens {
            tokens,
            position,
            n,
        };
        fill(&mut bytes, &input, place, &[]).unwrap();
        let cells = bytes.as_chunks::<2>().0.iter();
        cells.map(|b| f16_to_f32(u16::from_ne_bytes(*b))).collect()
    }

    const HIDDEN: f32 = f32::NEG_INFINITY;

    #[test]
    fn masks_show_what_the_positions_allow() {
        let causal = filled(Feed::CausalMask, &[1, 1, 2, 5], &[7, 7], 2);
        let rows = [
            [0.0, 0.0, 0.0, HIDDEN, HIDDEN],
            [0.0, 0.0, 0.0, 0.0, HIDDEN],
        ];
        assert_eq!(causal, rows.concat());
        let first = filled(Feed::RecentMask, &[1, 1, 1, 4], &[7], 0);
        assert_eq!(first, [HIDDEN, HIDDEN, HIDDEN, 0.0]);
        let full = filled(Feed::RecentMask, &[1, 1, 1, 4], &[7], 9);
        assert_eq!(full, [0.0; 4]);
        let written = filled(Feed::WriteMask, &[1, 1, 4, 2], &[7, 7], 1);
        assert_eq!(written, [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn a_ring_shows_the_last_positions_of_its_rows() {
        const FAR: f32 = MASKED_SCORE;
        // Rows hold the positions 8, 9, 6, 7; the tokens are at 10 and 11.
        let feed = |window, kept| Feed::Mask { window, kept };
        let ring = Kept::ring(4);
        let mask = filled(feed(Some(4), ring), &[1, 1, 2, 6], &[7, 7], 10);
        let mask: Vec<bool> = mask.iter().map(|score| *score < FAR / 2.0).collect();
        let rows = [
            [false, false, true, false, false, true],
            [false, false, true, true, false, false],
        ];
        assert_eq!(mask, rows.concat());
        // Rows that were never written are hidden.
        let mask = filled(feed(None, Kept::ring(3)), &[1, 1, 1, 4], &[7], 1);
        let mask: Vec<bool> = mask.iter().map(|score| *score < FAR / 2.0).collect();
        assert_eq!(mask, [false, true, true, false]);
    }

    #[test]
    fn sinks_and_means_are_seen_beside_the_last_tokens() {
        // Rows hold positions 0; 6, 7, 3, 4, 5; and the means of 1 and 2, 3 and 4, 5 and 6.
        let kept = Kept {
            sinks: 1,
            ring: 5,
            pool: Some(2),
        };
        let feed = Feed::Mask {
            window: Some(3),
            kept,
        };
        // Position 8 sees 6 and after, and 5, which is of the same block as 6; 9 sees 7 and after.
        let mask = filled(feed, &[1, 1, 2, 11], &[7, 7], 8);
        let shown: Vec<bool> = mask
            .iter()
            .map(|score| *score > MASKED_SCORE / 2.0)
            .collect();
        let rows = [
            [1, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0],
            [1, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1],
        ];
        let expected: Vec<bool> = rows.concat().iter().map(|seen| *seen == 1).collect();
        assert_eq!(shown, expected);
        let ln_2 = f16_to_f32(f64_to_f16(2f64.ln()));
        assert_eq!(mask[6..8], [ln_2; 2]);
    }

    #[test]
    fn rows_are_those_of_tokens_or_positions() {
        let table: Arc<dyn Rows> = Arc::new(Halves);
        let by_token = filled(Feed::TokenColumns(table.clone()), &[1, 3, 2], &[5, 2], 0);
        assert_eq!(by_token, [5.5, 2.5, 6.5, 3.5, 7.5, 4.5]);
        let by_position = filled(Feed::PositionColumns(table), &[1, 1, 1, 3], &[5], 8);
        assert_eq!(by_position, [8.5, 9.5, 10.5]);
    }

    #[test]
    fn a_row_after_the_table_is_an_error_and_not_zeros() {
        let input = Input {
            name: "cos".to_owned(),
            dtype: DType::Fp16,
            shape: vec![1, 3],
            feed: Feed::PositionColumns(Arc::new(Halves)),
        };
        let place = CallTokens {
            tokens: &[1],
            position: 9,
            n: 1,
        };
        let error = fill(&mut [0; 6], &input, place, &[]).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("a table with row 9, found 9 rows"),
            "{error}"
        );
    }
}
