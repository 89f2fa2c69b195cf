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
    /// Whether a score is the sigmoid of a logit; otherwise a score is the logit.
    pub sigmoid: bool,
    /// Whether text is lowercased before tokenization.
    pub lower_case: bool,
    /// The prompt that precedes each query, or that is a system message before its message.
    pub prompt: Option<String>,
    /// How pairs become messages; `None` if the model takes two texts.
    pub messages: Option<PairMessages>,
}

/// What the files say of scores and lengths.
pub(crate) struct Scores {
    pub n_labels: usize,
    pub sigmoid: bool,
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
        let named = in_config(&folder.config)?;
        let named = settings.activation.take().or(named);
        Ok(Self {
            n_labels,
            sigmoid: match named {
                None => n_labels == 1,
                Some(name) => is_sigmoid(&name)?,
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

/// The activation that `config.json` names, in the spelling of sentence-transformers since 4 or
/// before.
fn in_config(c: &Config) -> Result<Option<String>, ModelError> {
    let old = c.opt_str("sbert_ce_default_activation_function")?;
    let Some(new) = c.opt_object("sentence_transformers")? else {
        return Ok(old.map(str::to_owned));
    };
    new.acknowledge(&["version"]);
    // A null takes the place of the old spelling too.
    let old = old.filter(|_| !new.is_null("activation_fn"));
    Ok(new.opt_str("activation_fn")?.or(old).map(str::to_owned))
}

fn is_sigmoid(name: &str) -> Result<bool, ModelError> {
    match name.rsplit('.').next() {
        Some("Sigmoid") => Ok(true),
        Some("Identity") => Ok(false),
        _ => Err(ModelError::unsupported(
            "activation_fn",
            name,
            "expected Sigmoid or Identity",
        )),
    }
}
