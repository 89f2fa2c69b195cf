//! What the functions of a call give of the logits, as rows of all logits.

use thane_mil::backend::{Instance, RunError, View};

use super::Logits;
use crate::sequence::{floats, ints};

/// The outputs with logits of the steps of a call, in order.
#[derive(Default)]
pub(super) struct GivenLogits {
    parts: Vec<LogitsOutput>,
}

/// One output [1, rows, columns] of logits; one row if it has another shape.
struct LogitsOutput {
    values: Vec<f32>,
    /// The tokens of the values; empty if they are those of a part of the vocabulary.
    tokens: Vec<i32>,
    n_rows: usize,
}

impl GivenLogits {
    /// Forgets the call before.
    pub fn clear(&mut self) {
        self.parts.clear();
    }

    /// Keeps what the step that has just run gave. Steps before the head have no such outputs.
    pub fn collect(&mut self, program: &dyn Instance, logits: &Logits) {
        match logits {
            Logits::Joined(outputs) => {
                let views = outputs.iter().filter_map(|name| program.output(name).ok());
                self.parts
                    .extend(views.map(|view| LogitsOutput::of(&view, None)));
            }
            Logits::Greatest { tokens, logits, .. } | Logits::Top { tokens, logits, .. } => {
                if let (Ok(values), Ok(tokens)) = (program.output(logits), program.output(tokens)) {
                    self.parts.push(LogitsOutput::of(&values, Some(&tokens)));
                }
            }
        }
    }

    /// Appends the logits of the token number `row` of the call, one for each token of the
    /// vocabulary.
    pub fn append(
        &self,
        row: usize,
        (logits, vocab_size): (&Logits, usize),
        out: &mut Vec<f32>,
    ) -> Result<(), RunError> {
        let start = out.len();
        match logits {
            Logits::Joined(outputs) if self.parts.is_empty() => {
                return Err(RunError::NoOutput(outputs.join(", ")));
            }
            Logits::Joined(_) => {
                for part in &self.parts {
                    out.extend_from_slice(part.row(row).0);
                }
            }
            Logits::Greatest { slices, .. } => {
                out.resize(start + vocab_size, f32::NEG_INFINITY);
                let starts = slices.iter().scan(0, |next, n| {
                    let first = *next;
                    *next += n;
                    Some((first, *n))
                });
                let found = self.parts.iter().flat_map(|part| part.pairs(row));
                for ((id, value), (first, n)) in found.zip(starts) {
                    let id = usize::try_from(id).unwrap_or(usize::MAX);
                    // A row of NaN has no greatest element, and its index means nothing.
                    if id < n && first + id < vocab_size {
                        out[start + first + id] = value;
                    }
                }
            }
            Logits::Top { tokens, n, .. } => {
                if self.parts.is_empty() {
                    return Err(RunError::NoOutput(tokens.clone()));
                }
                out.resize(start + vocab_size, f32::NEG_INFINITY);
                self.write_greatest(row, *n, &mut out[start..])?;
            }
        }
        match out.len() - start {
            n if n == vocab_size => Ok(()),
            n => Err(RunError::Chain(format!(
                "expected {vocab_size} logits, found {n}"
            ))),
        }
    }

    /// Sets the `n` greatest of what all parts give in a row of logits. Of equal logits, those of
    /// the lowest tokens are taken.
    fn write_greatest(&self, row: usize, n: usize, logits: &mut [f32]) -> Result<(), RunError> {
        let mut found: Vec<(i32, f32)> = self.parts.iter().flat_map(|p| p.pairs(row)).collect();
        // NaN comes first, so that the caller sees it.
        let key = |value: f32| if value.is_nan() { f32::INFINITY } else { value };
        found.sort_by(|a, b| key(b.1).total_cmp(&key(a.1)).then(a.0.cmp(&b.0)));
        for (token, value) in found.into_iter().take(n) {
            let vocab_size = logits.len();
            let at = usize::try_from(token).ok().filter(|at| *at < vocab_size);
            match (at, value.is_nan()) {
                (Some(at), _) => logits[at] = value,
                // The index of no element.
                (None, true) => logits.iter_mut().take(1).for_each(|x| *x = value),
                (None, false) => {
                    return Err(RunError::Chain(format!(
                        "expected tokens below {vocab_size} from the output head, found {token}"
                    )));
                }
            }
        }
        Ok(())
    }
}

impl LogitsOutput {
    fn of(values: &View<'_>, tokens: Option<&View<'_>>) -> Self {
        let n_rows = match values.shape {
            [1, n, _] => (*n).max(1),
            _ => 1,
        };
        Self {
            values: floats(values).unwrap_or_default().into_owned(),
            tokens: tokens.and_then(ints).unwrap_or_default(),
            n_rows,
        }
    }

    /// Values and tokens of a row.
    fn row(&self, row: usize) -> (&[f32], &[i32]) {
        let n = self.values.len() / self.n_rows;
        let range = row * n..(row + 1) * n;
        let values = self.values.get(range.clone()).unwrap_or_default();
        (values, self.tokens.get(range).unwrap_or_default())
    }

    /// The tokens of a row, each with its logit.
    fn pairs(&self, row: usize) -> impl Iterator<Item = (i32, f32)> {
        let (values, tokens) = self.row(row);
        tokens.iter().copied().zip(values.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(values: &[f32], tokens: &[i32], n_rows: usize) -> LogitsOutput {
        LogitsOutput {
            values: values.to_vec(),
            tokens: tokens.to_vec(),
            n_rows,
        }
    }

    fn top(n: usize) -> Logits {
        Logits::Top {
            tokens: "top_tokens".to_owned(),
            logits: "top_logits".to_owned(),
            n,
        }
    }

    #[test]
    fn parts_of_a_head_are_merged_and_ties_go_to_the_lowest_token() {
        // Two rows of two logits each, from each half of a vocabulary of 8.
        let given = GivenLogits {
            parts: vec![
                part(&[3.0, 1.0, 5.0, 4.0], &[2, 0, 1, 3], 2),
                part(&[3.0, 2.0, 5.0, 0.5], &[5, 6, 4, 7], 2),
            ],
        };
        const NO: f32 = f32::NEG_INFINITY;
        let mut rows = Vec::new();
        for row in 0..2 {
            given.append(row, (&top(2), 8), &mut rows).unwrap();
        }
        let expected = [
            [NO, NO, 3.0, NO, NO, 3.0, NO, NO],
            [NO, 5.0, NO, NO, 5.0, NO, NO, NO],
        ];
        assert_eq!(rows, expected.concat());
        let mut row = Vec::new();
        given.append(0, (&top(1), 8), &mut row).unwrap();
        assert_eq!(row, [NO, NO, 3.0, NO, NO, NO, NO, NO]);
    }

    #[test]
    fn nan_is_shown_and_a_token_beyond_the_vocabulary_is_an_error() {
        let given = |value, token| GivenLogits {
            parts: vec![part(&[1.0], &[1], 1), part(&[value], &[token], 1)],
        };
        let mut row = Vec::new();
        given(f32::NAN, -1)
            .append(0, (&top(1), 4), &mut row)
            .unwrap();
        assert!(row[0].is_nan() && row[1] == f32::NEG_INFINITY);
        let error = given(2.0, 4).append(0, (&top(1), 4), &mut row).unwrap_err();
        assert!(error.to_string().contains("tokens below 4"), "{error}");
    }
}
