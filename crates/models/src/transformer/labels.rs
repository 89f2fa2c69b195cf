//! Labels of a text from the hidden state of its last token: sequence classifiers, and language
//! models whose logits of some tokens are a score.

use thane_mil::program::{Function, ValueId};

use super::Transformer;
use crate::checkpoint::{Config, ScoreTokens};
use crate::checks::n_labels;
use crate::error::ModelError;
use crate::graph::Graph;
use crate::layers::encoder::Io;
use crate::weights::Weights;

/// Module of a sequence classifier's only layer, which has no bias.
pub(super) const SCORE: &str = "score";

/// The logits of a text's labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Labels {
    /// The product of a matrix.
    Score {
        /// Number of labels.
        n_labels: usize,
        /// The id of padding: the last token is the last with another id.
        padding: Option<usize>,
    },
    /// One label: the logit of a token of the vocabulary, less that of another.
    Tokens(ScoreTokens),
}

impl Labels {
    /// Those of `tokens`, if a language model is used as a classifier, or else those of the file.
    pub fn read(
        c: &Config,
        w: &Weights<'_>,
        tokens: Option<ScoreTokens>,
    ) -> Result<Option<Self>, ModelError> {
        if tokens.is_some() {
            return Ok(tokens.map(Self::Tokens));
        }
        if !w.has(SCORE, "weight") {
            return Ok(None);
        }
        // A head that the classifier does not use.
        w.ignore_module("lm_head");
        Ok(Some(Self::Score {
            n_labels: n_labels(c)?,
            padding: c.opt_usize("pad_token_id")?,
        }))
    }

    /// Number of labels.
    pub fn count(&self) -> usize {
        match self {
            Self::Score { n_labels, .. } => *n_labels,
            Self::Tokens(_) => 1,
        }
    }
}

impl Transformer {
    /// Computes the logits [batch, labels] of normalized hidden states, and finishes the function.
    pub(super) fn classify(
        &self,
        mut g: Graph,
        w: &Weights<'_>,
        (io, hidden): (&Io, ValueId),
        labels: &Labels,
    ) -> Result<Function, ModelError> {
        let g_ = &mut g;
        g_.at_module("");
        let logits = match *labels {
            Labels::Score { n_labels, padding } => {
                let last = io.last(g_, hidden, padding)?; // [batch, hidden]
                g_.at_module(SCORE);
                let weight = w.get(SCORE, "weight", &[n_labels, self.hidden]);
                g_.rows_linear("product", last, &weight, None)?
            }
            Labels::Tokens(tokens) => {
                let last = io.last(g_, hidden, None)?;
                let wanted = self.token_logit(g_, w, last, ("true_token_id", tokens.wanted))?;
                match tokens.unwanted {
                    None => wanted,
                    Some(id) => {
                        let unwanted = self.token_logit(g_, w, last, ("false_token_id", id))?;
                        g_.sub(wanted, unwanted)?
                    }
                }
            }
        };
        Ok(g.finish("logits", logits))
    }

    /// The logit [batch, 1] of a token, whose id is at `key`, of hidden states [batch, hidden].
    fn token_logit(
        &self,
        g: &mut Graph,
        w: &Weights<'_>,
        hidden: ValueId,
        (key, id): (&str, usize),
    ) -> Result<ValueId, ModelError> {
        if id >= self.vocab_size {
            let expected = format!("expected one of the {} tokens", self.vocab_size);
            return Err(ModelError::unsupported(key, id, &expected));
        }
        g.at_module("lm_head");
        let (weight, bias) = self.head_rows(w, id..id + 1);
        let product = g.rows_linear("product", hidden, &weight, bias.as_ref())?;
        Ok(self.finished_logits(g, product)?)
    }
}
