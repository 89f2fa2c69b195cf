//! What functions give of a token's logits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What functions give of a token's logits. `H` is what a caller needs to compute them itself:
/// nothing in a [`Form`](crate::Form), a [`HostHead`] in [`Calls`](crate::Calls).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Head<H = ()> {
    /// `logits`: all of them.
    #[default]
    Logits,
    /// `top_logits` and `top_tokens`: so many of the greatest in falling order, and their tokens.
    Greatest(usize),
    /// `final_hidden_states`, which the caller multiplies by the output matrix, a table.
    Host(H),
}

/// How a caller computes logits from the final hidden states of a token, `h`: `x = factor *
/// (matrix h + bias)`, and with a soft cap `cap * tanh(x / cap)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostHead {
    /// Name of the table that is the matrix, a row for each token of the vocabulary.
    pub matrix: String,
    /// Name of the table that is the bias, a row of one number for each token; `None` for none.
    pub bias: Option<String>,
    /// Factor of the logits.
    pub factor: f32,
    /// Bound of the logits; `None` for none.
    pub soft_cap: Option<f32>,
}

impl<H> Head<H> {
    /// How many of the greatest logits are known; `None` if all are.
    pub fn n_known(&self) -> Option<usize> {
        match self {
            Self::Greatest(n) => Some(*n),
            Self::Logits | Self::Host(_) => None,
        }
    }

    /// The role of the output that the last function has.
    pub fn role(&self) -> &'static str {
        match self {
            Self::Logits => "logits",
            Self::Greatest(_) => "top_tokens",
            Self::Host(_) => "final_hidden_states",
        }
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Logits => f.write_str("logits"),
            Self::Greatest(1) => f.write_str("argmax"),
            Self::Greatest(n) => write!(f, "top{n}"),
            Self::Host(()) => f.write_str("host"),
        }
    }
}

impl FromStr for Head {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let top = |text: &str| text.strip_prefix("top")?.parse().ok().filter(|n| *n > 0);
        match text {
            "logits" => Ok(Self::Logits),
            "argmax" => Ok(Self::Greatest(1)),
            "host" => Ok(Self::Host(())),
            _ => top(text).map(Self::Greatest).ok_or_else(|| {
                format!(
                    "expected logits, argmax, host, or top and a number such as top40, found \
                     `{text}`"
                )
            }),
        }
    }
}
