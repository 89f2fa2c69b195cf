//! Chooses sampling options: the caller's, then those that the model's files recommend, then
//! defaults.

use std::path::PathBuf;
use std::sync::Arc;

use thane_calls::Head;
use thane_engine::sample::{Dry, Mirostat, SampleOptions};

use crate::contract::Generates;
use crate::known::Known;
use crate::recommended::{Recommended, SamplingSource};

/// What the caller wants; `None` leaves an option to the model's files and to defaults.
#[derive(Clone, Debug)]
pub struct Sampling {
    /// 0 always takes the most likely token; higher values are more random.
    pub temperature: Option<f32>,
    /// Number of most likely tokens to choose from; 0 for all.
    pub top_k: Option<usize>,
    /// Sum of probabilities that the most likely tokens to choose from must reach.
    pub top_p: Option<f32>,
    /// Least probability of a token, relative to the most likely one.
    pub min_p: Option<f32>,
    /// How much of the typical tokens to choose from; 1 for all.
    pub typical_p: Option<f32>,
    /// Probability that XTC removes all but the least likely of the likely tokens; 0 is off.
    pub xtc_probability: Option<f32>,
    /// Probability from which XTC calls a token likely.
    pub xtc_threshold: Option<f32>,
    /// Mirostat 2 in place of top-k and all other filters; `None` is off.
    pub mirostat: Option<Mirostat>,
    /// Penalty of repeated sequences.
    pub dry: Dry,
    /// Added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Divisor of the logits of the last tokens; 1 is off.
    pub repetition_penalty: Option<f32>,
    /// Subtracted from the logits of the last tokens; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from a logit for each occurrence of its token in the last tokens; 0 is off.
    pub frequency_penalty: f32,
    /// Number of last tokens that the penalties consider; `usize::MAX` for all.
    pub repeat_last_n: Option<usize>,
    /// The same seed gives the same answer.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        let default = SampleOptions::default();
        Self {
            temperature: None,
            top_k: None,
            top_p: None,
            min_p: None,
            typical_p: None,
            xtc_probability: None,
            xtc_threshold: None,
            mirostat: default.mirostat,
            dry: default.dry,
            logit_bias: default.logit_bias,
            repetition_penalty: None,
            presence_penalty: default.presence_penalty,
            frequency_penalty: default.frequency_penalty,
            repeat_last_n: None,
            seed: default.seed,
        }
    }
}

/// Sampling options, and where they were taken from.
#[derive(Clone, Debug)]
pub struct SamplingChoice {
    /// The options.
    pub options: SampleOptions,
    /// Where the temperature was taken from.
    pub source: SamplingSource,
    /// Where the repetition penalty was taken from; `None` if the caller gave it or nothing
    /// recommends one.
    pub penalty_source: Option<SamplingSource>,
}

/// What the contract of a package says, and whether the package gives too few logits for it.
pub(crate) fn of_facts(facts: &Generates) -> (Recommended, bool) {
    let stated = facts.generation.clone().unwrap_or_default();
    let head = facts.fixed.as_ref().map(|fixed| &fixed.head);
    let Some(n) = head.and_then(Head::n_known) else {
        return (stated, false);
    };
    let known = Known {
        path: PathBuf::new(),
        n,
        context: facts.context,
    };
    let options = Sampling::default().choose(&stated, false).options;
    match known.check(&options).is_err() {
        false if n > 1 || stated.settings.temperature.is_some() => (stated, false),
        lacks if n == 1 => (Recommended::greedy(), lacks),
        lacks => (Recommended::default(), lacks),
    }
}

/// The temperature and top-p of a conversation with a model whose files recommend nothing.
const OF_CONVERSATION: (f32, f32) = (0.7, 0.95);

impl Sampling {
    /// The caller's options, then `recommended` ones, then defaults, which differ for a
    /// conversation.
    ///
    /// Filters that only a `generation_config.json` asks for, and its repetition penalty, work as
    /// in transformers: after the temperature, and on all tokens. The caller's own work as
    /// documented.
    pub fn choose(&self, recommended: &Recommended, is_conversation: bool) -> SamplingChoice {
        let (default, files) = (SampleOptions::default(), &recommended.settings);
        let f32 = |number: Option<f64>| number.map(|number| number as f32);
        let of_config = recommended.source == SamplingSource::GenerationConfig;
        let (source, temperature, top_p) = match files.temperature {
            Some(temperature) => (
                recommended.source,
                Some(temperature as f32),
                f32(files.top_p),
            ),
            // Files that recommend only a penalty leave the rest to the defaults.
            None if is_conversation => {
                let (temperature, top_p) = OF_CONVERSATION;
                let source = SamplingSource::ConversationDefault;
                (source, Some(temperature), Some(top_p))
            }
            None => (SamplingSource::Default, None, f32(files.top_p)),
        };
        let own = [
            self.top_p,
            self.min_p,
            self.typical_p,
            self.xtc_probability,
            self.mirostat.map(|mirostat| mirostat.tau),
        ];
        let (penalty, last_n) = self.repetition(recommended);
        let options = SampleOptions {
            temperature: self
                .temperature
                .or(temperature)
                .unwrap_or(default.temperature),
            temperature_first: of_config
                && files.temperature.is_some()
                && own.iter().all(Option::is_none),
            top_k: self.top_k.or(files.top_k).unwrap_or(default.top_k),
            top_p: self.top_p.or(top_p.map(above_0)).unwrap_or(default.top_p),
            min_p: self.min_p.or(f32(files.min_p)).unwrap_or(default.min_p),
            top_h: f32(files.top_h).map_or(default.top_h, above_0),
            typical_p: self
                .typical_p
                .or(f32(files.typical_p).map(above_0))
                .unwrap_or(default.typical_p),
            epsilon_cutoff: f32(files.epsilon_cutoff).unwrap_or(default.epsilon_cutoff),
            eta_cutoff: f32(files.eta_cutoff).unwrap_or(default.eta_cutoff),
            xtc_probability: self
                .xtc_probability
                .or(f32(files.xtc_probability))
                .unwrap_or(default.xtc_probability),
            xtc_threshold: self
                .xtc_threshold
                .or(f32(files.xtc_threshold))
                .unwrap_or(default.xtc_threshold),
            mirostat: self.mirostat,
            dry: self.dry.clone(),
            logit_bias: self.logit_bias.clone(),
            repetition_penalty: penalty.unwrap_or(default.repetition_penalty),
            repetition_last_n: last_n,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repeat_last_n: self.last_n(recommended),
            rules: Arc::new(recommended.rules()),
            seed: self.seed,
        };
        let is_recommended = self.repetition_penalty.is_none() && penalty.is_some();
        SamplingChoice {
            options,
            source: match self.temperature {
                Some(_) => SamplingSource::Caller,
                None => source,
            },
            penalty_source: is_recommended.then_some(recommended.source),
        }
    }

    /// The repetition penalty, and the number of last tokens that it considers.
    fn repetition(&self, recommended: &Recommended) -> (Option<f32>, Option<usize>) {
        let files = recommended.settings.repetition_penalty;
        let files = files.map(|penalty| penalty as f32);
        let of_config = recommended.source == SamplingSource::GenerationConfig;
        let considers_all = self.repetition_penalty.is_none()
            && self.repeat_last_n.is_none()
            && files.is_some()
            && of_config;
        let last_n = self.last_n(recommended).filter(|_| !considers_all);
        (self.repetition_penalty.or(files), last_n)
    }

    /// Number of last tokens that penalties consider; `None` for all.
    fn last_n(&self, recommended: &Recommended) -> Option<usize> {
        let of_files = recommended.settings.penalty_last_n;
        // A negative number stands for all.
        let of_files = of_files.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        match self.repeat_last_n.or(of_files) {
            Some(usize::MAX) => None,
            Some(n) => Some(n),
            None => SampleOptions::default().repeat_last_n,
        }
    }
}

/// A share that keeps the most likely token, as transformers does at 0.
fn above_0(share: f32) -> f32 {
    share.max(f32::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file's settings have the meaning of transformers, the caller's their own.
    #[test]
    fn the_callers_own_options_keep_their_rules() {
        let files = Recommended::of_config(
            serde_json::from_str(r#"{"do_sample": true, "top_p": 0.9, "repetition_penalty": 1.1}"#)
                .unwrap(),
        );
        let choose = |sampling: Sampling| sampling.choose(&files, true).options;
        let of_files = choose(Sampling::default());
        assert_eq!(of_files.repetition_last_n, None);
        assert_eq!(of_files.repeat_last_n, Some(64));
        assert!(of_files.temperature_first);
        let own = choose(Sampling {
            top_p: Some(0.8),
            repetition_penalty: Some(1.3),
            ..Sampling::default()
        });
        assert_eq!(own.repetition_last_n, Some(64));
        assert!(!own.temperature_first);
        let window = choose(Sampling {
            repeat_last_n: Some(7),
            ..Sampling::default()
        });
        assert_eq!(
            (window.repetition_penalty, window.repetition_last_n),
            (1.1, Some(7))
        );
    }
}
