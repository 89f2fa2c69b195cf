//! Runs a language model and a reference side by side over a text, some tokens at a time, so that
//! the logits of a whole text are never in memory.

use std::thread;

use thane_engine::quality::{Pair, compare};
use thane_engine::sample::argmax;

use crate::error::RuntimeError;
use crate::scorer::Scorer;

/// Rows with fewer logits are compared faster on one thread than threads are started.
const FEW_LOGITS: usize = 4096;

/// A part of a text that is scored in an empty context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The tokens that the model is given.
    pub tokens: Vec<u32>,
    /// The token of the text that follows each of them.
    pub next: Vec<u32>,
}

/// Cuts a text into windows of at most `context` tokens, so that each token but the first is
/// predicted once. `begin` is the token that the tokenizer puts before a text, with which `ids`
/// then begin: each window has it.
pub fn windows(ids: &[u32], begin: Option<u32>, context: usize) -> Vec<Window> {
    let mut windows = Vec::new();
    let mut at = 1;
    while context > 0 && at < ids.len() {
        let next = &ids[at..ids.len().min(at + context)];
        let first = begin.unwrap_or(ids[at - 1]);
        let tokens = [&[first], &next[..next.len() - 1]].concat();
        at += next.len();
        windows.push(Window {
            tokens,
            next: next.to_vec(),
        });
    }
    windows
}

/// A model beside the reference, after one token of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// How many tokens of the window were seen before.
    pub position: usize,
    /// What both say.
    pub pair: Pair,
}

/// Compares the logits after each token of a text. `on_tokens` is told how many tokens more are
/// done.
///
/// # Errors
///
/// If a program fails, or gives logits that are no numbers.
pub fn compare_logits(
    model: &mut Scorer,
    reference: &mut Scorer,
    windows: &[Window],
    n_threads: usize,
    on_tokens: &dyn Fn(u64),
) -> Result<Vec<Compared>, RuntimeError> {
    let mut all = Vec::new();
    for window in windows {
        model.session.reset();
        reference.session.reset();
        let tokens = window.tokens.chunks(Scorer::CALL_TOKENS);
        let next = window.next.chunks(Scorer::CALL_TOKENS);
        let mut position = 0;
        for (tokens, next) in tokens.zip(next) {
            let rows = [model.rows(tokens)?, reference.rows(tokens)?];
            for pair in pairs(&rows, next, model.vocab_size, n_threads) {
                let pair = pair.ok_or_else(|| culprit(&rows, model, reference))?;
                all.push(Compared { position, pair });
                position += 1;
            }
            on_tokens(tokens.len() as u64);
        }
    }
    Ok(all)
}

/// Compares rows of logits on several threads.
fn pairs(
    [model, reference]: &[Vec<f32>; 2],
    next: &[u32],
    vocab_size: usize,
    n_threads: usize,
) -> Vec<Option<Pair>> {
    let both = model.chunks(vocab_size).zip(reference.chunks(vocab_size));
    let rows: Vec<(&[f32], &[f32], u32)> = both.zip(next).map(|((x, y), id)| (x, y, *id)).collect();
    let work = |part: &[(&[f32], &[f32], u32)]| -> Vec<Option<Pair>> {
        part.iter().map(|(x, y, id)| compare(x, y, *id)).collect()
    };
    let n_threads = if vocab_size < FEW_LOGITS {
        1
    } else {
        n_threads
    };
    let per_thread = rows.len().div_ceil(n_threads.max(1)).max(1);
    if rows.len() <= per_thread {
        return work(&rows);
    }
    thread::scope(|scope| {
        let parts = rows.chunks(per_thread);
        let running: Vec<_> = parts.map(|part| scope.spawn(move || work(part))).collect();
        let done = running.into_iter().map(|thread| thread.join());
        done.flat_map(|part| part.expect("comparing rows does not panic"))
            .collect()
    })
}

/// The error of the model whose rows are no logits.
fn culprit(rows: &[Vec<f32>; 2], model: &Scorer, reference: &Scorer) -> RuntimeError {
    let is_no_number = |x: &f32| x.is_nan() || *x == f32::INFINITY;
    if rows[0].iter().any(is_no_number) {
        model.no_numbers()
    } else {
        reference.no_numbers()
    }
}

/// How far a model answers as the reference does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answered {
    /// Tokens that both answer alike.
    pub n_alike: usize,
    /// By how much the reference prefers its own next token to the one of the model, in logits;
    /// `None` if the answers never part.
    pub gap: Option<f64>,
}

/// Answers a prompt greedily, with at most `n_tokens` tokens, until the answers part.
///
/// # Errors
///
/// As [`compare_logits`].
pub fn compare_answers(
    model: &mut Scorer,
    reference: &mut Scorer,
    prompt: &[u32],
    n_tokens: usize,
) -> Result<Answered, RuntimeError> {
    model.session.reset();
    reference.session.reset();
    let mut given = prompt.to_vec();
    for n_alike in 0..n_tokens {
        let rows = [model.last_row(&given)?, reference.last_row(&given)?];
        let best = argmax(&rows[0]).zip(argmax(&rows[1]));
        let (own, best) = best.ok_or_else(|| culprit(&rows, model, reference))?;
        if own != best {
            let gap = f64::from(rows[1][best]) - f64::from(rows[1][own]);
            return Ok(Answered {
                n_alike,
                gap: Some(gap),
            });
        }
        given = vec![best as u32];
    }
    Ok(Answered {
        n_alike: n_tokens,
        gap: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_predict_each_token_but_the_first_once() {
        let ids: Vec<u32> = (10..21).collect();
        for begin in [None, Some(10)] {
            for context in 1..13 {
                let windows = windows(&ids, begin, context);
                let next: Vec<u32> = windows.iter().flat_map(|w| w.next.clone()).collect();
                assert_eq!(next, ids[1..], "{context}");
                for window in &windows {
                    assert_eq!(window.tokens.len(), window.next.len());
                    assert!(window.tokens.len() <= context);
                    assert_eq!(window.tokens[1..], window.next[..window.next.len() - 1]);
                    let before = begin.unwrap_or(window.next[0] - 1);
                    assert_eq!(window.tokens[0], before);
                }
            }
        }
        assert_eq!(windows(&ids, None, 0), []);
        assert_eq!(windows(&ids[..1], None, 4), []);
    }
}
