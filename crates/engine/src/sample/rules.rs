//! What the files of a model demand of its answers beside sampling: tokens and sequences that must
//! not occur, biases of sequences, and answers that come to an end.
//!
//! Each rule is the logits processor of transformers with the same name.

/// Demands of a model's files. `Default` demands nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// Tokens that never occur.
    pub suppress_tokens: Vec<u32>,
    /// Tokens that begin no answer.
    pub begin_suppress_tokens: Vec<u32>,
    /// Sequences that never occur, of one token or more.
    pub bad_words: Vec<Vec<u32>>,
    /// Added to the logit of the last token of a sequence where the history ends with the others.
    pub sequence_bias: Vec<(Vec<u32>, f32)>,
    /// No sequence of so many tokens occurs twice, prompt included; 0 allows all.
    pub no_repeat_ngram_size: usize,
    /// No sequence of so many tokens that is in the prompt occurs in the answer; 0 allows all.
    pub no_repeat_of_prompt: usize,
    /// Multiplies the positive logits of tokens in the prompt, and divides their negative logits.
    pub prompt_reward: f32,
    /// Raises the logits of tokens that end the answer as it gets longer.
    pub length_penalty: Option<LengthPenalty>,
}

/// An exponential penalty of long answers.
#[derive(Debug, Clone, PartialEq)]
pub struct LengthPenalty {
    /// Tokens of the answer before the first that is penalized.
    pub start: usize,
    /// Base of the penalty: an end's logit `x` becomes `x + |x| * (factor^n - 1)` for the n-th
    /// token after the start.
    pub factor: f32,
    /// The tokens that end an answer.
    pub ends: Vec<u32>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            suppress_tokens: Vec::new(),
            begin_suppress_tokens: Vec::new(),
            bad_words: Vec::new(),
            sequence_bias: Vec::new(),
            no_repeat_ngram_size: 0,
            no_repeat_of_prompt: 0,
            prompt_reward: 1.0,
            length_penalty: None,
        }
    }
}

impl Rules {
    /// How many logits are lowered at most, after `n_history` tokens; `None` if some may rise.
    pub(super) fn n_lowered(&self, n_history: usize) -> Option<usize> {
        let rises = self.sequence_bias.iter().any(|(_, bias)| *bias > 0.0);
        if rises || self.length_penalty.is_some() || self.prompt_reward != 1.0 {
            return None;
        }
        let n_repeated = match (self.no_repeat_ngram_size, self.no_repeat_of_prompt) {
            (0, 0) => 0,
            _ => n_history,
        };
        let lists = [&self.suppress_tokens, &self.begin_suppress_tokens];
        let n = lists.into_iter().map(Vec::len).sum::<usize>();
        let n = n + self.bad_words.len() + self.sequence_bias.len();
        Some(n.saturating_add(n_repeated))
    }

    /// Adds the biases of sequences, and rewards tokens of the prompt, which are the first
    /// `n_prompt` of `history`.
    pub(super) fn bias(&self, logits: &mut [f32], history: &[u32], n_prompt: usize) {
        for (sequence, bias) in &self.sequence_bias {
            if let Some(logit) = last_of(sequence, logits, history) {
                *logit += bias;
            }
        }
        if self.prompt_reward == 1.0 {
            return;
        }
        let mut prompt = history[..n_prompt].to_vec();
        prompt.sort_unstable();
        prompt.dedup();
        for token in prompt {
            if let Some(logit) = logits.get_mut(token as usize) {
                let is_negative = *logit < 0.0;
                *logit *= if is_negative {
                    self.prompt_reward.recip()
                } else {
                    self.prompt_reward
                };
            }
        }
    }

    /// Excludes what must not occur after `history`, whose first `n_prompt` tokens are the prompt,
    /// and penalizes long answers.
    pub(super) fn apply(&self, logits: &mut [f32], history: &[u32], n_prompt: usize) {
        exclude_repeated(logits, (history, history), self.no_repeat_ngram_size);
        let prompt = &history[..n_prompt];
        exclude_repeated(logits, (history, prompt), self.no_repeat_of_prompt);
        for sequence in &self.bad_words {
            if let Some(logit) = last_of(sequence, logits, history) {
                *logit = f32::NEG_INFINITY;
            }
        }
        let n_answer = history.len().saturating_sub(n_prompt);
        if let Some(penalty) = &self.length_penalty {
            penalty.apply(logits, n_answer);
        }
        let at_begin = self.begin_suppress_tokens.iter().filter(|_| n_answer == 0);
        for token in self.suppress_tokens.iter().chain(at_begin) {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

/// Excludes each token that would end a sequence of `n` tokens which is in `known`.
fn exclude_repeated(logits: &mut [f32], (history, known): (&[u32], &[u32]), n: usize) {
    if n == 0 || history.len() + 1 < n {
        return;
    }
    let end = &history[history.len() + 1 - n..];
    for window in known.windows(n).filter(|w| w.starts_with(end)) {
        if let Some(logit) = logits.get_mut(window[n - 1] as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// The logit of the last token of `sequence`, if `history` ends with the others.
fn last_of<'a>(sequence: &[u32], logits: &'a mut [f32], history: &[u32]) -> Option<&'a mut f32> {
    let (last, before) = sequence.split_last()?;
    let follows = history.ends_with(before);
    logits.get_mut(*last as usize).filter(|_| follows)
}

impl LengthPenalty {
    fn apply(&self, logits: &mut [f32], n_answer: usize) {
        let n = n_answer.saturating_sub(self.start);
        if n == 0 {
            return;
        }
        let share = (f64::from(self.factor).powf(n as f64) - 1.0) as f32;
        for end in &self.ends {
            let logit = logits.get_mut(*end as usize);
            if let Some(logit) = logit.filter(|logit| logit.is_finite()) {
                // Finite, however long the answer is.
                let raised = *logit + logit.abs() * share;
                *logit = raised.clamp(f32::MIN, f32::MAX);
            }
        }
    }
}
