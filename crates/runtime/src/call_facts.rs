//! What a contract says of the calls of functions of fixed length.

use serde::{Deserialize, Serialize};
use thane_engine::chain::Kept;
use thane_models::{Fixed, FixedCall, FixedHead, Given, HostHead, Streaming, StreamingCache};

/// How functions of fixed length are called.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calls {
    /// Tokens that sliding-window layers see; null if there are no such layers.
    pub window: Option<usize>,
    /// What the caches of the roles `streaming_key_cache` and `streaming_value_cache` keep; null if
    /// there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streaming: Option<StreamingFacts>,
    /// What the last functions of a call give of the logits; all of them if it is missing.
    #[serde(default, skip_serializing_if = "HeadFacts::is_logits")]
    pub head: HeadFacts,
    /// The ways to process tokens.
    pub calls: Vec<CallFacts>,
}

/// What caches hold that do not hold all tokens: first the sinks, then a ring of the last tokens,
/// then the means of older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamingFacts {
    /// Number of first tokens, which are always seen.
    pub sinks: usize,
    /// A token sees those less than so many positions before it.
    pub window: usize,
    /// Rows of the ring: position q, not among the sinks, is in row sinks + (q - sinks) modulo
    /// ring.
    pub ring: usize,
    /// Older tokens are seen as means of so many; null if they are not seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<usize>,
}

impl StreamingFacts {
    /// The tokens that the rows of a cache of a call of `context` tokens hold.
    pub fn kept(&self, context: usize) -> Kept {
        if self.holds_all(context) {
            return Kept {
                sinks: self.sinks,
                ring: context.saturating_sub(self.sinks),
                pool: self.pool,
            };
        }
        Kept {
            sinks: self.sinks,
            ring: self.ring,
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

    /// Whether the ring is not needed. Older tokens are means even then.
    fn holds_all(&self, context: usize) -> bool {
        self.pool.is_none() && self.sinks.saturating_add(self.ring) >= context
    }
}

/// What the last functions of a call give of the logits, and what the caller makes of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadFacts {
    /// `logits`: all of them, or a part of the vocabulary each.
    #[default]
    Logits,
    /// `top_logits` and `top_tokens`: so many of the greatest, or those of a part of the vocabulary
    /// each, of which the caller takes the greatest.
    Greatest(usize),
    /// `final_hidden_states`.
    Host(HostHeadFacts),
}

/// How a caller computes logits from the final hidden states of a token, `h`: `x = factor *
/// (matrix h + bias)`, and with a soft cap `cap * tanh(x / cap)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostHeadFacts {
    /// Name of the table that is the matrix, a row for each token: `NAME.npy`.
    pub matrix: String,
    /// Name of the table that is the bias, a row of one number for each token; null for none.
    pub bias: Option<String>,
    /// Factor of the logits.
    pub factor: f32,
    /// Bound of the logits; null for none.
    pub soft_cap: Option<f32>,
}

impl HeadFacts {
    /// Whether functions give all logits.
    pub fn is_logits(&self) -> bool {
        *self == Self::Logits
    }

    /// How many of the greatest logits are known; `None` if all are.
    pub fn n_known(&self) -> Option<usize> {
        match self {
            Self::Greatest(n) => Some(*n),
            Self::Logits | Self::Host(_) => None,
        }
    }

    /// The role of the output that the last function has.
    pub(crate) fn role(&self) -> &'static str {
        match self {
            Self::Logits => "logits",
            Self::Greatest(_) => "top_tokens",
            Self::Host(_) => "final_hidden_states",
        }
    }
}

impl From<&FixedHead> for HeadFacts {
    fn from(head: &FixedHead) -> Self {
        match head {
            FixedHead::Logits => Self::Logits,
            FixedHead::Greatest(n) => Self::Greatest(*n),
            FixedHead::Host(head) => Self::Host(HostHeadFacts {
                matrix: head.matrix.clone(),
                bias: head.bias.clone(),
                factor: head.factor,
                soft_cap: head.soft_cap,
            }),
        }
    }
}

impl From<HeadFacts> for FixedHead {
    fn from(head: HeadFacts) -> Self {
        match head {
            HeadFacts::Logits => Self::Logits,
            HeadFacts::Greatest(n) => Self::Greatest(n),
            HeadFacts::Host(head) => Self::Host(HostHead {
                matrix: head.matrix,
                bias: head.bias,
                factor: head.factor,
                soft_cap: head.soft_cap,
            }),
        }
    }
}

/// A way to process tokens by functions of fixed length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallFacts {
    /// Number of tokens. If there are fewer, others that mean nothing follow them.
    pub tokens: usize,
    /// Number of sequences, with so many tokens and caches of its own each; 1 if it is missing.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub lanes: usize,
    /// Tokens that the cache holds.
    pub context: usize,
    /// The tokens whose logits it gives.
    pub logits: GivenFacts,
    /// The functions to call in this order, one for each chunk of layers.
    pub functions: Vec<String>,
}

fn one() -> usize {
    1
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_one(n: &usize) -> bool {
    *n == 1
}

/// The tokens whose logits a call gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GivenFacts {
    /// The last one's.
    Last,
    /// Each one's.
    Each,
}

impl From<StreamingCache> for StreamingFacts {
    fn from(cache: StreamingCache) -> Self {
        Self {
            sinks: cache.seen.sinks,
            window: cache.seen.window,
            ring: cache.ring,
            pool: cache.seen.pool,
        }
    }
}

impl From<StreamingFacts> for StreamingCache {
    fn from(facts: StreamingFacts) -> Self {
        Self {
            seen: Streaming {
                sinks: facts.sinks,
                window: facts.window,
                pool: facts.pool,
            },
            ring: facts.ring,
        }
    }
}

impl From<&Fixed> for Calls {
    fn from(fixed: &Fixed) -> Self {
        let call = |call: &FixedCall| CallFacts {
            tokens: call.tokens,
            lanes: call.lanes,
            context: call.context,
            logits: match call.given {
                Given::Last => GivenFacts::Last,
                Given::Each => GivenFacts::Each,
            },
            functions: call.functions.clone(),
        };
        Self {
            window: fixed.window,
            streaming: fixed.streaming.map(StreamingFacts::from),
            head: (&fixed.head).into(),
            calls: fixed.calls.iter().map(call).collect(),
        }
    }
}

impl From<Calls> for Fixed {
    fn from(calls: Calls) -> Self {
        let call = |call: CallFacts| FixedCall {
            tokens: call.tokens,
            lanes: call.lanes,
            context: call.context,
            given: match call.logits {
                GivenFacts::Last => Given::Last,
                GivenFacts::Each => Given::Each,
            },
            functions: call.functions,
        };
        Self {
            window: calls.window,
            streaming: calls.streaming.map(StreamingCache::from),
            head: calls.head.into(),
            calls: calls.calls.into_iter().map(call).collect(),
        }
    }
}
