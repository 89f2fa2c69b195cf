//! Sequence classifiers, such as rerankers: the result of lowering one, and the files that say how
//! its logits become scores.

use thane_mil::program::Program;

use crate::checkpoint::{Config, HuggingFace, PairMessages, RerankConfig, gives_token_types};
use crate::error::ModelError;
use crate::numbers::StoredWeight;

/// A sequence classifier as a program, with its properties.
#[derive(Clone, Debug)]
pub struct Classifier {
    /// The function `classify`: `input_ids`, `attention_mask` and, if
    /// [`ClassifierInfo::token_types`] is set, `token_type_ids`, each [batch, tokens], to
    /// `logits` [batch, labels].
    pub program: Program,
    /// The properties of the model.
    pub info: ClassifierInfo,
    /// The tensors that the program's constants were made from.
    pub stored: Vec<StoredWeight>,
}

/// The properties of a sequence classifier, from its files.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassifierInfo {
    /// Name of the architecture in the file.
    pub architecture: String,
    /// Number of layers.
    pub n_layers: usize,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Number of positions that the model supports.
    pub n_positions: usize,
    /// Maximum number of tokens of a pair of texts, as the model was trained; at most
    /// `n_positions`.
    pub max_tokens: usize,
    /// Number of labels.
    pub n_labels: usize,
    /// Whether the program has the input `token_type_ids`.
    pub token_types: bool,
    /// What makes a score of a logit.
    pub activation: ScoreActivation,
    /// Whether text is lowercased before tokenization.
    pub lower_case: bool,
    /// The prompt that precedes each query, or that is a system message before its message.
    pub prompt: Option<String>,
    /// How pairs become messages; `None` if the model takes two texts.
    pub messages: Option<PairMessages>,
}

/// What makes a score of a logit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreActivation {
    /// A score is the logit.
    Identity,
    /// 1 / (1 + e^-x).
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
}

impl ScoreActivation {
    /// By the name of a class of torch, such as `torch.nn.modules.activation.Sigmoid`, which stands
    /// at `place`, a key of a file. Classes of others are code that is not run.
    fn named(place: &str, name: &str) -> Result<Self, ModelError> {
        let class = name.starts_with("torch.").then(|| name.rsplit('.').next());
        match class.flatten() {
            Some("Identity") => Ok(Self::Identity),
            Some("Sigmoid") => Ok(Self::Sigmoid),
            Some("Tanh") => Ok(Self::Tanh),
            _ => Err(ModelError::unsupported(
                place,
                name,
                "expected torch.nn.Sigmoid, torch.nn.Tanh or torch.nn.Identity, which it may be \
                 replaced with",
            )),
        }
    }

    /// The score of a logit.
    pub fn score(self, logit: f32) -> f32 {
        match self {
            Self::Identity => logit,
            Self::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
            Self::Tanh => logit.tanh(),
        }
    }
}

/// What the files say of scores and lengths.
pub(crate) struct Scores {
    pub n_labels: usize,
    pub activation: ScoreActivation,
    /// Whether the tokenizer gives the types of tokens.
    pub token_types: bool,
    pub settings: RerankConfig,
}

impl Scores {
    /// Reads the activation of the scores like `CrossEncoder` of sentence-transformers (6.2): from
    /// `config_sentence_transformers.json`, else from `config.json`, else sigmoid for one label.
    pub fn read(
        folder: &HuggingFace,
        architecture: &str,
        (mut settings, n_labels): (RerankConfig, usize),
    ) -> Result<Self, ModelError> {
        const NEWEST: &str = "activation_fn in config_sentence_transformers.json";
        let named = in_config(&folder.config)?;
        let newest = settings.activation.take().map(|name| (NEWEST, name));
        let named = newest.or(named);
        Ok(Self {
            n_labels,
            activation: match named {
                Some((place, name)) => ScoreActivation::named(place, &name)?,
                None if n_labels == 1 => ScoreActivation::Sigmoid,
                None => ScoreActivation::Identity,
            },
            token_types: gives_token_types(folder, architecture)?,
            settings,
        })
    }
}

/// What changes scores, and no vectors.
pub(crate) const SCORE_KEYS: &[&str] = &[
    "sbert_ce_default_activation_function",
    "sentence_transformers",
];

/// The activation that `config.json` names and where, in the spelling of sentence-transformers
/// since 4 or before.
fn in_config(c: &Config) -> Result<Option<(&'static str, String)>, ModelError> {
    let old = c.opt_str("sbert_ce_default_activation_function")?;
    let old = old.map(|name| ("sbert_ce_default_activation_function in config.json", name));
    let Some(new) = c.opt_object("sentence_transformers")? else {
        return Ok(old.map(|(place, name)| (place, name.to_owned())));
    };
    new.acknowledge(&["version"]);
    // A null takes the place of the old spelling too.
    let old = old.filter(|_| !new.is_null("activation_fn"));
    let new = new.opt_str("activation_fn")?;
    let new = new.map(|name| ("sentence_transformers.activation_fn in config.json", name));
    Ok(new.or(old).map(|(place, name)| (place, name.to_owned())))
}
