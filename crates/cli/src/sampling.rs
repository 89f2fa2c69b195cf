//! The flags that say how tokens are sampled.

use serde_json::{Map, Value, json};
use thane_engine::sample::SampleOptions;
use thane_runtime::{Model, Sampling, SamplingChoice, SamplingSource};

use crate::exit::Failure;

/// The flags.
// Negative numbers are parsed as values, so that the error states the range instead of an
// unexpected argument.
#[derive(Clone, Debug, clap::Args)]
#[command(
    next_help_heading = "Sampling [default: as the model's files recommend, else temperature 0.7 and top-p 0.95 in a conversation, and greedy elsewhere]"
)]
pub struct SamplingFlags {
    /// Sampling temperature: 0 is greedy, higher is more random.
    #[arg(long, alias = "temp", value_name = "T")]
    pub temperature: Option<f32>,
    /// Random seed: the same seed gives the same answer.
    #[arg(long, alias = "random-seed", value_name = "N", default_value_t = SampleOptions::default().seed)]
    pub seed: u64,
    /// Sample from the N most likely tokens; 0 means all.
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Sample from the most likely tokens whose probabilities sum to P.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Sample from tokens at least P times as likely as the most likely one.
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Divide the logits of the last 64 tokens by X; 1 is off.
    #[arg(long, value_name = "X")]
    pub repetition_penalty: Option<f32>,
    /// Subtract X from the logits of the last 64 tokens; 0 is off.
    #[arg(long, value_name = "X", default_value_t = SampleOptions::default().presence_penalty)]
    pub presence_penalty: f32,
    /// Subtract X from a logit for each occurrence of its token in the last 64; 0 is off.
    #[arg(long, value_name = "X", default_value_t = SampleOptions::default().frequency_penalty)]
    pub frequency_penalty: f32,
}

impl SamplingFlags {
    /// The flags as fields of OpenAI's API; what is not given is left out.
    pub fn fields(&self) -> Map<String, Value> {
        let default = SampleOptions::default();
        let other = |value: f32, default: f32| (value != default).then(|| json!(value));
        let fields = [
            ("temperature", self.temperature.map(|value| json!(value))),
            ("seed", Some(json!(self.seed))),
            ("top_k", self.top_k.map(|value| json!(value))),
            ("top_p", self.top_p.map(|value| json!(value))),
            ("min_p", self.min_p.map(|value| json!(value))),
            (
                "repetition_penalty",
                self.repetition_penalty.map(|value| json!(value)),
            ),
            (
                "presence_penalty",
                other(self.presence_penalty, default.presence_penalty),
            ),
            (
                "frequency_penalty",
                other(self.frequency_penalty, default.frequency_penalty),
            ),
        ];
        let given = fields.into_iter();
        given
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect()
    }

    /// The flags' options, then those that the model's files recommend, then defaults.
    pub fn choose(&self, model: &Model, is_conversation: bool) -> Result<SamplingChoice, Failure> {
        let sampling = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            ..Sampling::default()
        };
        Ok(sampling.choose(&model.recommended_sampling()?, is_conversation))
    }
}

/// Temperature and recommended penalty with their sources, for the user.
pub fn reason(choice: &SamplingChoice) -> String {
    let mut reason = format!(
        "temperature {} ({})",
        choice.options.temperature,
        source(choice.source)
    );
    if let Some(penalty_source) = choice.penalty_source.filter(|s| *s != choice.source) {
        reason += &format!(
            ", repetition-penalty {} ({})",
            choice.options.repetition_penalty,
            source(penalty_source)
        );
    }
    reason
}

fn source(source: SamplingSource) -> &'static str {
    match source {
        SamplingSource::Caller => "--temperature",
        SamplingSource::GenerationConfig => "the model's generation_config.json",
        SamplingSource::GgufKeys => "the file's general.sampling keys",
        SamplingSource::ConversationDefault => "the default of conversations",
        SamplingSource::Default => "the default",
    }
}
