//! The calls that a program was built for.

use serde::{Deserialize, Serialize};

use crate::form::Streaming;
use crate::head::{Head, HostHead};
use crate::kept::{Kept, Ring};

/// How functions of fixed length are called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calls {
    /// Tokens that sliding-window layers see; `None` if there are no such layers.
    pub window: Option<usize>,
    /// What the caches of the roles `streaming_key_cache` and `streaming_value_cache` keep; `None`
    /// if there are none.
    pub streaming: Option<StreamingCache>,
    /// What the last functions of a call give of the logits. If several functions give them, each
    /// gives those of a part of the vocabulary.
    #[serde(default)]
    pub head: Head<HostHead>,
    /// The ways to process tokens.
    pub calls: Vec<Call>,
}

/// A way to process tokens by functions of fixed length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Number of tokens of each sequence. If there are fewer, others that mean nothing follow them.
    pub tokens: usize,
    /// Number of sequences, each with caches and a position of its own.
    #[serde(default = "one_lane")]
    pub lanes: usize,
    /// Tokens that the cache holds.
    pub context: usize,
    /// The tokens whose logits it gives.
    pub logits: Given,
    /// The functions to call in this order, one for each chunk of layers.
    pub functions: Vec<String>,
}

/// Contracts before schema 4 leave out that a call has one lane.
fn one_lane() -> usize {
    1
}

/// The tokens whose logits a call gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Given {
    /// The last one's.
    Last,
    /// Each one's.
    Each,
}

impl Call {
    /// Number of tokens of all sequences.
    pub fn n_tokens(&self) -> usize {
        self.tokens.saturating_mul(self.lanes)
    }

    /// Number of tokens whose logits it gives.
    pub fn n_given(&self) -> usize {
        match self.logits {
            Given::Last => 1,
            Given::Each => self.n_tokens(),
        }
    }
}

/// What caches hold that do not hold all tokens: first the sinks, then a ring of the last tokens,
/// then the means of older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamingCache {
    /// Number of first tokens, which are always seen.
    pub sinks: usize,
    /// A token sees those less than so many positions before it.
    pub window: usize,
    /// Rows of the ring: position q, not among the sinks, is in row sinks + (q - sinks) modulo
    /// ring.
    pub ring: usize,
    /// Older tokens are seen as means of so many; `None` if they are not seen.
    pub pool: Option<usize>,
}

impl StreamingCache {
    /// The cache for calls of up to `most_tokens` tokens: its ring holds the window of each of
    /// them, in multiples of 32 rows.
    pub fn new(seen: Streaming, most_tokens: usize) -> Self {
        let Streaming {
            sinks,
            window,
            pool,
        } = seen;
        let rows = window
            .saturating_add(n_before(pool))
            .saturating_add(most_tokens);
        Self {
            sinks,
            window,
            ring: rows.checked_next_multiple_of(32).unwrap_or(rows),
            pool,
        }
    }

    /// The tokens that the rows of a cache of a call of `context` tokens hold.
    pub fn kept(&self, context: usize) -> Kept {
        let ring = match self.holds_all(context) {
            true => context.saturating_sub(self.sinks),
            false => self.ring,
        };
        Kept {
            sinks: self.sinks,
            ring,
            pool: self.pool,
        }
    }

    /// Rows of such a cache, in a model of a context of `longest`.
    pub fn rows(&self, longest: usize, context: usize) -> usize {
        if self.holds_all(context) {
            return context;
        }
        let older = longest.saturating_sub(self.sinks);
        let pooled = self.pool.map_or(0, |n| older.div_ceil(n.max(1)));
        self.sinks.saturating_add(self.ring).saturating_add(pooled)
    }

    /// The ring, with what a token must find in it.
    pub fn ring(&self) -> Ring {
        Ring {
            n_rows: self.ring,
            window: self.window.saturating_add(n_before(self.pool)),
        }
    }

    /// Whether the ring is not needed. Older tokens are means even then.
    fn holds_all(&self, context: usize) -> bool {
        self.pool.is_none() && self.sinks.saturating_add(self.ring) >= context
    }
}

/// Tokens before the window that are seen as they are, because their mean is not complete.
fn n_before(pool: Option<usize>) -> usize {
    pool.unwrap_or(1).saturating_sub(1)
}
