//! How tokens are chosen: by flags, else by what the model's files recommend, else by the
//! likeliest.

use serde_json::Value;
use thane_engine::sample::{SampleError, SampleOptions, Sampler};
use thane_models::checkpoint::Source;

use crate::exit::{Code, Failure};
use crate::model::{Files, Opened};

/// The flags.
// Numbers below zero are let through, so that the answer is the range and not "unexpected
// argument".
#[derive(Clone, Debug, clap::Args)]
#[command(
    next_help_heading = "Sampling [default: as the model's files recommend, else 0.7 in a conversation and 0 elsewhere]"
)]
pub struct Sampling {
    /// 0 takes the likeliest token; higher is bolder.
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// The same seed gives the same answer.
    #[arg(long, value_name = "N", default_value_t = SampleOptions::default().seed)]
    pub seed: u64,
    /// Choose among this many likeliest tokens; 0 is all.
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Choose among the likeliest tokens whose probabilities reach this sum.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Choose among tokens at least this often as likely as the likeliest.
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Divide the logits of the last 64 tokens by this; 1 is off.
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,
    /// Take this from the logits of the last 64 tokens; 0 is off.
    #[arg(long, value_name = "X", default_value_t = SampleOptions::default().presence_penalty, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Take this from them for each time that they are there; 0 is off.
    #[arg(long, value_name = "X", default_value_t = SampleOptions::default().frequency_penalty, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
}

/// What a model's files recommend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recommended {
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    /// Where it stands.
    source: &'static str,
}

/// What is taken where nothing is recommended.
const DEFAULT: &str = "the default";

impl Recommended {
    /// That of `generation_config.json` or of the keys `general.sampling.*`; none where they
    /// recommend neither a temperature nor a penalty.
    pub fn of(opened: &Opened) -> Result<Option<Self>, Failure> {
        let Files::Checkpoint(checkpoint) = &opened.files else {
            return Ok(None);
        };
        match &checkpoint.source {
            Source::HuggingFace(folder) => {
                Ok(folder.generation_config.as_ref().and_then(Self::from_json))
            }
            Source::Gguf(gguf) => {
                let key = |name: &str| format!("general.sampling.{name}");
                let float = |name: &str| gguf.opt_f32(&key(name));
                let read = || -> Result<Option<Self>, thane_models::checkpoint::MetadataError> {
                    let this = Self {
                        temperature: float("temp")?,
                        top_k: gguf.opt_u32(&key("top_k"))?.map(|k| k as usize),
                        top_p: float("top_p")?,
                        min_p: float("min_p")?,
                        repetition_penalty: float("penalty_repeat")?,
                        source: "the file's general.sampling keys",
                    };
                    Ok(
                        (this.temperature.is_some() || this.repetition_penalty.is_some())
                            .then_some(this),
                    )
                };
                read().map_err(|e| Failure::new(Code::Usage, e))
            }
        }
    }

    /// As transformers reads it: nothing is drawn unless `do_sample` says so, and then 50 tokens
    /// are drawn from at a temperature of 1 where nothing else stands there. The penalty of
    /// repetitions counts in greedy search too.
    fn from_json(json: &Value) -> Option<Self> {
        let float = |key: &str| json[key].as_f64().map(|x| x as f32);
        let (repetition_penalty, source) = (
            float("repetition_penalty"),
            "the model's generation_config.json",
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

    /// For a conversation with a model whose files say nothing: small models repeat themselves
    /// where the likeliest token is taken.
    fn of_conversation() -> Self {
        Self {
            temperature: Some(0.7),
            top_p: Some(0.95),
            source: "the default of conversations",
            ..Self::default()
        }
    }
}

/// How tokens are chosen, and why so.
pub struct Choice {
    pub options: SampleOptions,
    /// A line for the user.
    pub reason: String,
}

impl Sampling {
    /// Flags before what is recommended before defaults.
    pub fn choice(&self, recommended: Option<Recommended>, is_conversation: bool) -> Choice {
        let files = recommended.unwrap_or_default();
        let penalty_source = files.source;
        let from = match files.temperature {
            // Files that recommend only a penalty leave the rest to the defaults.
            None if is_conversation => Recommended {
                repetition_penalty: files.repetition_penalty,
                ..Recommended::of_conversation()
            },
            None => Recommended {
                source: DEFAULT,
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
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            ..default
        };
        let source = if self.temperature.is_some() {
            "--temperature"
        } else {
            from.source
        };
        let mut reason = format!("temperature {} ({source})", options.temperature);
        let is_recommended = self.repetition_penalty.is_none() && from.repetition_penalty.is_some();
        if is_recommended && penalty_source != source {
            reason += &format!(
                ", repetition-penalty {} ({penalty_source})",
                options.repetition_penalty
            );
        }
        Choice { options, reason }
    }
}

/// A sampler, or the flag whose value it cannot take.
pub fn sampler(options: SampleOptions) -> Result<Sampler, Failure> {
    Sampler::new(options).map_err(|e| match e {
        SampleError::Option {
            option,
            value,
            range,
        } => {
            let flag = option.replace('_', "-");
            Failure::new(
                Code::Usage,
                anyhow::anyhow!("--{flag} is {value}, but must be {range}"),
            )
        }
        other => Failure::new(Code::Usage, other),
    })
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
