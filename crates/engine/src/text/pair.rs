//! Two texts as one sequence of tokens.

/// Which end of a text is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Tokens at the start are removed.
    Start,
    /// Tokens at the end are removed.
    End,
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
