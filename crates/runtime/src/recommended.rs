//! How answers are generated, as a model's files say: sampling, rules and lengths.

use serde::ser::Error;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use thane_engine::sample::{LengthPenalty, Rules};
use thane_engine::schedule::Request;
use thane_models::Generation;
use thane_models::checkpoint::{Checkpoint, Source};

use crate::error::RuntimeError;

/// What sampling options are taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplingSource {
    /// The caller.
    Caller,
    /// `generation_config.json`.
    GenerationConfig,
    /// The keys `general.sampling.*` of a GGUF file.
    GgufKeys,
    /// The defaults of conversations: small models repeat themselves at temperature 0.
    ConversationDefault,
    /// The defaults.
    #[default]
    Default,
}

/// How answers are generated, as a model's files say. `Default` says nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recommended {
    pub(crate) source: SamplingSource,
    /// What the files say; without a temperature they sample as the caller or the defaults do.
    #[serde(serialize_with = "given")]
    pub(crate) settings: Generation,
}

/// Writes the settings that the files give.
fn given<S: Serializer>(settings: &Generation, serializer: S) -> Result<S::Ok, S::Error> {
    let mut json = serde_json::to_value(settings).map_err(Error::custom)?;
    if let Some(map) = json.as_object_mut() {
        map.retain(|_, value| !value.is_null() && *value != Value::Array(Vec::new()));
    }
    json.serialize(serializer)
}

impl Recommended {
    /// What a checkpoint says.
    pub(crate) fn of(checkpoint: &Checkpoint) -> Result<Self, RuntimeError> {
        let generation = Generation::of(checkpoint);
        let generation = generation.map_err(|e| RuntimeError::model(&checkpoint.path, e))?;
        let read = match checkpoint.source {
            Source::HuggingFace(_) => Self::of_config(generation),
            Source::Gguf(_) => Self {
                source: SamplingSource::GgufKeys,
                settings: generation,
            },
        };
        Ok(if read.is_something() {
            read
        } else {
            Self::default()
        })
    }

    /// Whether the files say anything.
    pub(crate) fn is_something(&self) -> bool {
        self.settings != Generation::default()
    }

    /// Reads `generation_config.json` as transformers does: without `do_sample` nothing is sampled
    /// or filtered, and with it temperature is 1 and top-k 50 unless the file says otherwise.
    /// Penalties and rules also apply to greedy search.
    pub(crate) fn of_config(generation: Generation) -> Self {
        let generation = match generation.do_sample {
            Some(true) => Generation {
                temperature: generation.temperature.or(Some(1.0)),
                top_k: generation.top_k.or(Some(50)),
                ..generation
            },
            asked => Generation {
                temperature: asked.map(|_| 0.0),
                top_k: None,
                top_p: None,
                min_p: None,
                top_h: None,
                typical_p: None,
                epsilon_cutoff: None,
                eta_cutoff: None,
                ..generation
            },
        };
        Self {
            source: SamplingSource::GenerationConfig,
            settings: generation,
        }
    }

    /// The options of a model that gives only the most likely token.
    pub(crate) fn greedy() -> Self {
        Self {
            source: SamplingSource::Default,
            settings: Generation {
                temperature: Some(0.0),
                ..Generation::default()
            },
        }
    }

    /// What the files demand beside sampling.
    pub(crate) fn rules(&self) -> Rules {
        let g = &self.settings;
        let penalty = |(start, factor): (usize, f64)| LengthPenalty {
            start,
            factor: factor as f32,
            ends: g.eos_token_id.clone(),
        };
        let bias = g.sequence_bias.iter();
        let bias = bias.map(|(sequence, bias)| (sequence.clone(), *bias as f32));
        Rules {
            suppress_tokens: g.suppress_tokens.clone(),
            begin_suppress_tokens: g.begin_suppress_tokens.clone(),
            bad_words: g.bad_words_ids.clone(),
            sequence_bias: bias.collect(),
            no_repeat_ngram_size: g.no_repeat_ngram_size.unwrap_or(0),
            no_repeat_of_prompt: g.encoder_no_repeat_ngram_size.unwrap_or(0),
            prompt_reward: g.encoder_repetition_penalty.unwrap_or(1.0) as f32,
            length_penalty: g.exponential_decay_length_penalty.map(penalty),
        }
    }

    /// Fills in what the caller of a request leaves open: the least and the greatest length of the
    /// answer. Adds the texts that end an answer behind the caller's.
    ///
    /// A prompt that is as long as `max_length` allows is answered as without that key;
    /// transformers refuses it.
    pub fn complete(&self, request: &mut Request) {
        let (g, n_prompt) = (&self.settings, request.prompt.len());
        let of_answer = |length: Option<usize>| length.map(|n| n.saturating_sub(n_prompt));
        if request.max_tokens == usize::MAX {
            let most = of_answer(g.max_length).filter(|n| *n > 0);
            request.max_tokens = g.max_new_tokens.or(most).unwrap_or(usize::MAX);
        }
        if request.min_tokens == 0 {
            let least = g.min_new_tokens.or(of_answer(g.min_length));
            request.min_tokens_unless_stopped = least.unwrap_or(0);
        }
        request.stop.extend(g.stop_strings.iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_json(json: &str) -> Recommended {
        Recommended::of_config(serde_json::from_str(json).unwrap())
    }

    #[test]
    fn a_file_recommends_what_transformers_would_do() {
        let nothing = of_json(r#"{"temperature": 0.6, "top_k": 20}"#);
        assert!(!nothing.is_something());
        let penalty = of_json(r#"{"temperature": 0.6, "repetition_penalty": 1.1}"#).settings;
        assert_eq!(
            (penalty.temperature, penalty.repetition_penalty),
            (None, Some(1.1))
        );
        let greedy = of_json(r#"{"do_sample": false, "temperature": 0.6}"#).settings;
        assert_eq!(greedy.temperature, Some(0.0));
        let found = of_json(
            r#"{"do_sample": true, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.05}"#,
        );
        let found = found.settings;
        assert_eq!(
            (found.temperature, found.top_k, found.top_p),
            (Some(0.6), Some(50), Some(0.9))
        );
        assert_eq!(found.repetition_penalty, Some(1.05));
    }
}
