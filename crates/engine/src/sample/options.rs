//! What a caller wants of the [`Sampler`](super::Sampler), and what is wrong with it.

use std::sync::Arc;

use super::dry::Dry;
use super::rules::Rules;

/// How the next token is chosen. `Default` is greedy without penalties.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleOptions {
    /// Divides the logits that the filters keep; 0 always chooses the greatest logit (greedy).
    pub temperature: f32,
    /// Divides all logits by the temperature before the filters, which follow in the order of
    /// transformers.
    pub temperature_first: bool,
    /// Keeps only this many of the most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of most probable tokens whose probabilities sum to at least this; 1
    /// keeps all.
    pub top_p: f32,
    /// Keeps tokens with at least this fraction of the greatest probability; 0 keeps all.
    pub min_p: f32,
    /// Keeps the tokens whose surprise is closest to the expected one, until their probabilities
    /// sum to more than this; 1 keeps all.
    pub typical_p: f32,
    /// Top-H sampling (Potraghloo et al. 2025): keeps the most probable tokens whose shares of the
    /// entropy sum to at most this part of it; 1 keeps all. Only with [`Self::temperature_first`],
    /// as the two below.
    pub top_h: f32,
    /// Keeps tokens with at least this probability; 0 keeps all.
    pub epsilon_cutoff: f32,
    /// Eta sampling (Hewitt et al. 2022): keeps tokens with at least this probability, or less of
    /// it where many tokens are likely; 0 keeps all.
    pub eta_cutoff: f32,
    /// Probability with which XTC removes all but the least likely of the tokens that have at least
    /// the probability [`Self::xtc_threshold`]; 0 never does.
    pub xtc_probability: f32,
    /// Probability from which XTC removes tokens; above 0.5 nothing is removed.
    pub xtc_threshold: f32,
    /// Mirostat 2 in place of the filters; `None` is off.
    pub mirostat: Option<Mirostat>,
    /// Penalty of repeated sequences.
    pub dry: Dry,
    /// Added to the logits of these tokens; minus infinity excludes a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Divides the positive logits of tokens in the history, and multiplies their negative logits;
    /// 1 turns the penalty off.
    pub repetition_penalty: f32,
    /// Number of last tokens in the history that the repetition penalty considers; `None` for all.
    pub repetition_last_n: Option<usize>,
    /// Subtracted from the logit of each token in the history; 0 turns the penalty off.
    pub presence_penalty: f32,
    /// Subtracted from a logit once for each occurrence of its token in the history; 0 turns the
    /// penalty off.
    pub frequency_penalty: f32,
    /// Number of last tokens in the history that the presence and frequency penalties consider;
    /// `None` for all.
    pub repeat_last_n: Option<usize>,
    /// What the model's files demand.
    pub rules: Arc<Rules>,
    /// Seed of the random numbers. Equal seeds, options and logits give equal tokens.
    pub seed: u64,
}

/// Mirostat 2 (Basu et al. 2021): keeps the surprise of tokens near a target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mirostat {
    /// Surprise to aim at, in bits.
    pub tau: f32,
    /// How fast the limit follows the surprise of the tokens that were drawn.
    pub eta: f32,
}

impl Default for Mirostat {
    fn default() -> Self {
        Self { tau: 5.0, eta: 0.1 }
    }
}

impl Default for SampleOptions {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            temperature_first: false,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            top_h: 1.0,
            epsilon_cutoff: 0.0,
            eta_cutoff: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            mirostat: None,
            dry: Dry::default(),
            logit_bias: Vec::new(),
            repetition_penalty: 1.0,
            repetition_last_n: Some(64),
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: Some(64),
            rules: Arc::default(),
            seed: 0,
        }
    }
}

impl SampleOptions {
    /// The most probable tokens that top-H looks at, as in transformers.
    pub(super) const TOP_H_TOKENS: usize = 100;

    /// How many of the greatest logits [`Sampler::sample`](super::Sampler::sample) needs with a
    /// history of `n_history` tokens, or `None` if it needs all. With all other logits at minus
    /// infinity it chooses the same token.
    pub fn n_greatest(&self, n_history: usize) -> Option<usize> {
        let needs_all = self.dry.is_on() || !self.logit_bias.is_empty();
        let n = match (self.temperature == 0.0, self.top_k) {
            _ if needs_all => return None,
            (true, _) => 1,
            _ if self.mirostat.is_some() => return None,
            _ if self.temperature_first && self.top_h < 1.0 => Self::TOP_H_TOKENS,
            (false, 0) => return None,
            (false, k) => k,
        };
        // Rules and penalties may lower logits below the others.
        let n = n.saturating_add(self.rules.n_lowered(n_history)?);
        let lowers = self.repetition_penalty >= 1.0
            && self.presence_penalty >= 0.0
            && self.frequency_penalty >= 0.0;
        let windows = [
            (self.repetition_penalty != 1.0, self.repetition_last_n),
            (self.subtracts(), self.repeat_last_n),
        ];
        let n_last = |last_n: Option<usize>| last_n.unwrap_or(n_history).min(n_history);
        let on = windows.into_iter().filter(|(is_on, _)| *is_on);
        let n_penalized = on.map(|(_, last_n)| n_last(last_n)).max().unwrap_or(0);
        lowers.then(|| n.saturating_add(n_penalized))
    }

    /// Whether any filter looks at probabilities.
    pub(super) fn filters_probabilities(&self) -> bool {
        self.typical_p < 1.0 || self.top_p < 1.0 || self.min_p > 0.0 || self.xtc_probability > 0.0
    }

    /// Refuses options that are out of range.
    pub(super) fn check(&self) -> Result<(), SampleError> {
        const SHARE: &str = "from 0 to 1";
        const ABOVE_0: &str = "above 0 and at most 1";
        const FINITE: &str = "a finite number";
        let is_share = |x: f32| (0.0..=1.0).contains(&x);
        let is_above_0 = |x: f32| x > 0.0 && x <= 1.0;
        let mirostat = self.mirostat.unwrap_or_default();
        let (t, r, dry) = (self.temperature, self.repetition_penalty, &self.dry);
        let checks = [
            ("temperature", t, t >= 0.0, "0 or more"),
            ("top_p", self.top_p, is_above_0(self.top_p), ABOVE_0),
            ("min_p", self.min_p, is_share(self.min_p), SHARE),
            (
                "typical_p",
                self.typical_p,
                is_above_0(self.typical_p),
                ABOVE_0,
            ),
            ("top_h", self.top_h, is_above_0(self.top_h), ABOVE_0),
            (
                "epsilon_cutoff",
                self.epsilon_cutoff,
                is_share(self.epsilon_cutoff),
                SHARE,
            ),
            (
                "eta_cutoff",
                self.eta_cutoff,
                is_share(self.eta_cutoff),
                SHARE,
            ),
            (
                "xtc_probability",
                self.xtc_probability,
                is_share(self.xtc_probability),
                SHARE,
            ),
            (
                "xtc_threshold",
                self.xtc_threshold,
                is_share(self.xtc_threshold),
                SHARE,
            ),
            ("mirostat_tau", mirostat.tau, mirostat.tau > 0.0, "above 0"),
            (
                "mirostat_eta",
                mirostat.eta,
                is_above_0(mirostat.eta),
                ABOVE_0,
            ),
            (
                "dry_multiplier",
                dry.multiplier,
                dry.multiplier >= 0.0,
                "0 or more",
            ),
            ("dry_base", dry.base, dry.base >= 1.0, "1 or more"),
            ("repetition_penalty", r, r > 0.0, "above 0"),
            ("presence_penalty", self.presence_penalty, true, FINITE),
            ("frequency_penalty", self.frequency_penalty, true, FINITE),
        ];
        for (option, value, is_ok, range) in checks {
            if !is_ok || !value.is_finite() {
                return Err(SampleError::Option {
                    option,
                    value,
                    range,
                });
            }
        }
        // The sum with a logit stays finite.
        let is_bias = |x: f32| x.abs() <= 1e4 || x == f32::NEG_INFINITY;
        match self.logit_bias.iter().find(|(_, bias)| !is_bias(*bias)) {
            None => Ok(()),
            Some((_, value)) => Err(SampleError::Option {
                option: "logit_bias",
                value: *value,
                range: "at most 10000 or minus infinity",
            }),
        }
    }

    /// Whether the presence or frequency penalty is on.
    pub(super) fn subtracts(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// Errors in options or logits.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// An option is out of range.
    #[error("option {option}: expected {range}, found {value}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Value of the option.
        value: f32,
        /// The valid range.
        range: &'static str,
    },
    /// A logit is NaN or plus infinity.
    #[error("expected finite logits, found {value} for token {id}")]
    NotFinite {
        /// Id of the token.
        id: usize,
        /// Logit of the token.
        value: f32,
    },
    /// There are no logits, or all are minus infinity.
    #[error("expected a logit above minus infinity, found none among {0} logits")]
    Empty(usize),
    /// A token of the bias has no logit.
    #[error("option logit_bias: expected token ids below {n_vocab}, found {id}")]
    Bias {
        /// Id of the token.
        id: u32,
        /// Number of logits.
        n_vocab: usize,
    },
    /// A token in the history has no logit.
    #[error("expected token ids below {n_vocab}, the number of logits, found {id} in the history")]
    History {
        /// Id of the token.
        id: u32,
        /// Number of logits.
        n_vocab: usize,
    },
}
