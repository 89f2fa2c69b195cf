//! Late chunking: a text in chunks that share one forward pass. Also truncates texts to the maximum
//! length of a model.

use std::ops::Range;

use crate::text::{Cut, SpecialTokens};

/// Chunks joined by a separator token, and the token range of each chunk.
///
/// The tokens of a chunk lie between two separators. Special tokens that the tokenizer adds before
/// a text belong to the first chunk, and those after a text to the last chunk, up to a separator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    tokens: Vec<u32>,
    spans: Vec<Range<usize>>,
}

impl Document {
    /// Joins `chunks`, which must be encoded without special tokens and must not contain
    /// `separator`.
    pub fn join(chunks: &[Vec<u32>], separator: u32, around: &SpecialTokens) -> Self {
        let mut tokens = around.before.clone();
        let mut spans = Vec::with_capacity(chunks.len());
        let mut start = 0;
        for (idx, chunk) in chunks.iter().enumerate() {
            if idx > 0 {
                tokens.push(separator);
                start = tokens.len();
            }
            tokens.extend(chunk);
            spans.push(start..tokens.len());
        }
        tokens.extend(&around.after);
        if let Some(last) = spans.last_mut() {
            last.end += around
                .after
                .iter()
                .take_while(|id| **id != separator)
                .count();
        }
        Self { tokens, spans }
    }

    /// Truncates the document to `max_tokens` tokens like [`shorten`]; returns whether anything was
    /// removed. Chunks beyond the cut have no tokens left.
    pub fn shorten(&mut self, max_tokens: usize, around: &SpecialTokens, cut: Cut) -> bool {
        let n_cut = self.tokens.len().saturating_sub(max_tokens);
        if !shorten(&mut self.tokens, max_tokens, around, cut) {
            return false;
        }
        let n_kept = max_tokens.saturating_sub(around.after.len());
        let first = around.before.len().min(max_tokens);
        let place = |at: usize| match cut {
            Cut::End => at.min(n_kept),
            Cut::Start => at.saturating_sub(n_cut).max(first),
        };
        for span in &mut self.spans {
            *span = place(span.start)..place(span.end);
        }
        true
    }

    /// The tokens of all chunks, with separators and special tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The token range of each chunk.
    pub fn spans(&self) -> &[Range<usize>] {
        &self.spans
    }
}

/// Truncates a text to `max_tokens` tokens like transformers does: the tokens that the tokenizer
/// puts around it remain. Returns whether anything was removed.
pub fn shorten(tokens: &mut Vec<u32>, max_tokens: usize, around: &SpecialTokens, cut: Cut) -> bool {
    let n_cut = tokens.len().saturating_sub(max_tokens);
    if n_cut == 0 {
        return false;
    }
    let start = match cut {
        Cut::Start => around.before.len().min(max_tokens),
        Cut::End => max_tokens.saturating_sub(around.after.len()),
    };
    tokens.drain(start..start + n_cut);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(before: &[u32], after: &[u32]) -> SpecialTokens {
        SpecialTokens {
            before: before.to_vec(),
            after: after.to_vec(),
        }
    }

    #[test]
    fn spans_leave_out_separators() {
        let chunks = [vec![5, 6], vec![], vec![7], vec![8, 9]];
        let bare = Document::join(&chunks, 1, &SpecialTokens::default());
        assert_eq!(bare.tokens(), [5, 6, 1, 1, 7, 1, 8, 9]);
        assert_eq!(bare.spans(), [0..2, 3..3, 4..5, 6..8]);
        // BERT's last separator ends the text.
        let bert = Document::join(&chunks[2..], 1, &around(&[0], &[1]));
        assert_eq!(
            (bert.tokens(), bert.spans()),
            (&[0, 7, 1, 8, 9, 1][..], &[0..2, 3..5][..])
        );
        let other = Document::join(&chunks[2..], 1, &around(&[], &[2]));
        assert_eq!(
            (other.tokens(), other.spans()),
            (&[7, 1, 8, 9, 2][..], &[0..1, 2..5][..])
        );
    }

    #[test]
    fn what_is_cut_keeps_its_end() {
        for (max_tokens, n_after, kept) in [
            (5, 1, vec![0, 1, 2, 3, 4]),
            (4, 1, vec![0, 1, 2, 4]),
            (4, 0, vec![0, 1, 2, 3]),
            (1, 2, vec![4]),
        ] {
            let mut tokens = vec![0, 1, 2, 3, 4];
            let special = around(&[], &[3, 4][2 - n_after..]);
            let is_cut = shorten(&mut tokens, max_tokens, &special, Cut::End);
            assert_eq!(is_cut, kept.len() < 5);
            assert_eq!(tokens, kept, "{max_tokens} {n_after}");
        }
        for (max_tokens, n_before, kept) in [
            (5, 1, vec![0, 1, 2, 3, 4]),
            (4, 1, vec![0, 2, 3, 4]),
            (4, 0, vec![1, 2, 3, 4]),
            (1, 2, vec![0]),
        ] {
            let mut tokens = vec![0, 1, 2, 3, 4];
            let special = around(&[0, 1][..n_before], &[]);
            let is_cut = shorten(&mut tokens, max_tokens, &special, Cut::Start);
            assert_eq!(is_cut, kept.len() < 5);
            assert_eq!(tokens, kept, "{max_tokens} {n_before}");
        }
        let around = around(&[0], &[1]);
        let mut document = Document::join(&[vec![5, 6], vec![7, 8], vec![9]], 1, &around);
        let mut other = document.clone();
        assert!(other.shorten(6, &around, Cut::Start));
        assert_eq!(
            (other.tokens(), other.spans()),
            (&[0, 7, 8, 1, 9, 1][..], &[1..1, 1..3, 4..5][..])
        );
        assert!(!document.shorten(9, &around, Cut::End));
        assert!(document.shorten(6, &around, Cut::End));
        assert_eq!(
            (document.tokens(), document.spans()),
            (&[0, 5, 6, 1, 7, 1][..], &[0..3, 4..5, 5..5][..])
        );
    }
}
