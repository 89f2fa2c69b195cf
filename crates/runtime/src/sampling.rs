//! Chooses sampling options: the caller's, then those that the model's files recommend, then
//! defaults.

use serde_json::Value;
use thane_engine::sample::{Dry, Mirostat, SampleOptions};
use thane_models::checkpoint::{Checkpoint, Gguf, MetadataError, Source};

use crate::error::{LanguageError, RuntimeError};
use crate::language_model::{LanguageModel, Origin};
use crate::opened::{Files, Model};

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
    pub typical_p: f32,
    /// Probability that XTC removes all but the least likely of the likely tokens; 0 is off.
    pub xtc_probability: f32,
    /// Probability from which XTC calls a token likely.
    pub xtc_threshold: f32,
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
    /// Number of last tokens that the penalties consider; `None` for all.
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
            typical_p: default.typical_p,
            xtc_probability: default.xtc_probability,
            xtc_threshold: default.xtc_threshold,
            mirostat: default.mirostat,
            dry: default.dry,
            logit_bias: default.logit_bias,
            repetition_penalty: None,
            presence_penalty: default.presence_penalty,
            frequency_penalty: default.frequency_penalty,
            repeat_last_n: default.repeat_last_n,
            seed: default.seed,
        }
    }
}

/// What sampling options are taken from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// The options that a model's files recommend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recommended {
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    source: SamplingSource,
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

impl Model {
    /// The sampling options that the model's files recommend; `None` if they recommend neither a
    /// temperature nor a repetition penalty.
    pub fn recommended_sampling(&self) -> Result<Option<Recommended>, RuntimeError> {
        match &self.files {
            Files::Checkpoint(checkpoint) => Recommended::by(checkpoint),
            Files::Package | Files::Bundle | Files::Foreign(_) => Ok(None),
        }
    }
}

impl LanguageModel {
    /// The sampling options that the model's files recommend; `None` if they recommend neither a
    /// temperature nor a repetition penalty.
    pub fn recommended_sampling(&self) -> Result<Option<Recommended>, RuntimeError> {
        match &self.origin {
            Origin::Checkpoint(checkpoint) => Recommended::by(checkpoint),
            Origin::Package(_) | Origin::Foreign(_) => {
                Ok((self.n_known() == Some(1)).then(Recommended::greedy))
            }
        }
    }
}

impl Recommended {
    /// The options that a checkpoint recommends.
    fn by(checkpoint: &Checkpoint) -> Result<Option<Self>, RuntimeError> {
        match &checkpoint.source {
            Source::HuggingFace(folder) => {
                Ok(folder.generation_config.as_ref().and_then(Self::from_json))
            }
            Source::Gguf(gguf) => Self::from_gguf(gguf).map_err(|e| RuntimeError::Language {
                path: checkpoint.path.clone(),
                source: LanguageError::Metadata(e),
            }),
        }
    }

    fn from_gguf(gguf: &Gguf) -> Result<Option<Self>, MetadataError> {
        let key = |name: &str| format!("general.sampling.{name}");
        let float = |name: &str| gguf.opt_f32(&key(name));
        let this = Self {
            temperature: float("temp")?,
            top_k: gguf.opt_u32(&key("top_k"))?.map(|k| k as usize),
            top_p: float("top_p")?,
            min_p: float("min_p")?,
            repetition_penalty: float("penalty_repeat")?,
            source: SamplingSource::GgufKeys,
        };
        Ok((this.temperature.is_some() || this.repetition_penalty.is_some()).then_some(this))
    }

    /// Reads `generation_config.json` as transformers does: without `do_sample` the search is
    /// greedy, and with it temperature is 1 and top-k 50 unless the file says otherwise. The
    /// repetition penalty also applies to greedy search.
    fn from_json(json: &Value) -> Option<Self> {
        let float = |key: &str| json[key].as_f64().map(|x| x as f32);
        let (repetition_penalty, source) = (
            float("repetition_penalty"),
            SamplingSource::GenerationConfig,
        );
        if json["do_sample"] != true {
            return repetition_penalty.map(|_| Self {
                repetition_penalty,
                source,
                ..Self::default()
            });
        }
        Some(Self {
            temperature: float("temperature").or(Some(1.0)),
            top_k: json["top_k"]
                .as_u64()
                .and_then(|k| usize::try_from(k).ok())
                .or(Some(50)),
            top_p: float("top_p"),
            min_p: float("min_p"),
            repetition_penalty,
            source,
        })
    }

    /// The options of a bundle that gives only the most likely token.
    fn greedy() -> Self {
        Self {
            temperature: Some(0.0),
            ..Self::default()
        }
    }

    /// The options of a conversation with a model whose files recommend nothing.
    fn for_conversation() -> Self {
        Self {
            temperature: Some(0.7),
            top_p: Some(0.95),
            source: SamplingSource::ConversationDefault,
            ..Self::default()
        }
    }
}

impl Sampling {
    /// The caller's options, then `recommended` ones, then defaults, which differ for a
    /// conversation.
    pub fn choose(
        &self,
        recommended: Option<Recommended>,
        is_conversation: bool,
    ) -> SamplingChoice {
        let files = recommended.unwrap_or_default();
        let penalty_source = files.source;
        let from = match files.temperature {
            // Files that recommend only a penalty leave the rest to the defaults.
            None if is_conversation => Recommended {
                repetition_penalty: files.repetition_penalty,
                ..Recommended::for_conversation()
            },
            None => Recommended {
                source: SamplingSource::Default,
                ..files
            },
            Some(_) => files,
        };
        let default = SampleOptions::default();
        let options = SampleOptions {
            temperature: self
                .temperature
                .or(from.temperature)
                .unwrap_or(default.temperature),
            top_k: self.top_k.or(from.top_k).unwrap_or(default.top_k),
            top_p: self.top_p.or(from.top_p).unwrap_or(default.top_p),
            min_p: self.min_p.or(from.min_p).unwrap_or(default.min_p),
            repetition_penalty: self
                .repetition_penalty
                .or(from.repetition_penalty)
                .unwrap_or(default.repetition_penalty),
            typical_p: self.typical_p,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            mirostat: self.mirostat,
            dry: self.dry.clone(),
            logit_bias: self.logit_bias.clone(),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repeat_last_n: self.repeat_last_n,
            seed: self.seed,
        };
        let is_recommended = self.repetition_penalty.is_none() && from.repetition_penalty.is_some();
        SamplingChoice {
            options,
            source: match self.temperature {
                Some(_) => SamplingSource::Caller,
                None => from.source,
            },
            penalty_source: is_recommended.then_some(penalty_source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_recommends_what_transformers_would_do() {
        let json = |text: &str| Recommended::from_json(&serde_json::from_str(text).unwrap());
        assert_eq!(json(r#"{"temperature": 0.6, "top_k": 20}"#), None);
        let greedy = json(r#"{"temperature": 0.6, "repetition_penalty": 1.1}"#).unwrap();
        assert_eq!(
            (greedy.temperature, greedy.repetition_penalty),
            (None, Some(1.1))
        );
        let found = json(
            r#"{"do_sample": true, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.05}"#,
        )
        .unwrap();
        assert_eq!(
            (found.temperature, found.top_k, found.top_p),
            (Some(0.6), Some(50), Some(0.9))
        );
        assert_eq!(found.repetition_penalty, Some(1.05));
    }
}
