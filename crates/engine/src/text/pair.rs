//! Two texts as one sequence of tokens.

use serde::{Deserialize, Serialize};

/// Which end of a text is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cut {
    /// Tokens at the start are removed.
    #[serde(rename = "left")]
    Start,
    /// Tokens at the end are removed.
    #[default]
    #[serde(rename = "right")]
    End,
}

impl Cut {
    /// `n` of the tokens, or all if there are fewer.
    pub fn keep(self, tokens: &[u32], n: usize) -> &[u32] {
        let n = n.min(tokens.len());
        match self {
            Self::Start => &tokens[tokens.len() - n..],
            Self::End => &tokens[..n],
        }
    }
}

/// How many tokens of two texts remain of `most`: tokens are removed from the longer text until the
/// pair fits, then from both in turn, like in the tokenizers of transformers (`longest_first`).
pub(super) fn kept_lengths(first: usize, second: usize, most: usize) -> (usize, usize) {
    if first.saturating_add(second) <= most {
        return (first, second);
    }
    // Of an odd number, the longer text keeps the greater half, and the second of equal texts.
    let shorter = first.min(second).min(most / 2);
    if first > second {
        (most - shorter, shorter)
    } else {
        (shorter, most - shorter)
    }
}

/// Two texts as one sequence of tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pair {
    /// The token ids, with the special tokens around the texts.
    pub tokens: Vec<u32>,
    /// The type of each token: 1 for the second text in models that distinguish the two, else 0.
    pub types: Vec<u32>,
    /// Whether a text was cut.
    pub is_cut: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::{Encoding, Token, TruncationParams, truncate_encodings};

    fn encoding(n: usize) -> Encoding {
        let token = |_| Token::new(0, String::new(), (0, 0));
        Encoding::from_tokens((0..n).map(token).collect(), 0)
    }

    #[test]
    fn lengths_are_those_of_the_library() {
        for (first, second, most) in (0..12 * 12 * 14).map(|i| (i % 12, i / 12 % 12, i / 144)) {
            let params = TruncationParams {
                max_length: most,
                ..TruncationParams::default()
            };
            let cut = truncate_encodings(encoding(first), Some(encoding(second)), &params);
            let (one, two) = cut.unwrap();
            let expected = (one.len(), two.unwrap().len());
            let found = kept_lengths(first, second, most);
            assert_eq!(found, expected, "{first} and {second} in {most}");
        }
    }

    #[test]
    fn a_cut_keeps_one_side() {
        let tokens = [1, 2, 3];
        assert_eq!(Cut::Start.keep(&tokens, 2), [2, 3]);
        assert_eq!(Cut::End.keep(&tokens, 2), [1, 2]);
        assert_eq!(Cut::Start.keep(&tokens, 9), tokens);
    }
}
