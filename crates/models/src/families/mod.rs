//! The model families, one file each, and the list of all families. Start reading at [`llama`];
//! adding a family takes one file, its `mod` line, and its line in [`FAMILIES`].

mod anemll;
mod arcee;
mod bert;
mod cohere;
mod distilbert;
mod engine;
mod ernie4_5;
mod exaone4;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
mod gguf_encoder;
mod glm4;
mod gpt2;
mod granite;
mod hunyuan;
pub(crate) mod keys;
mod lfm2;
mod llama;
mod llama2c;
mod lower;
mod ministral3;
mod mistral;
mod mixtral;
mod modernbert;
mod mpnet;
mod nomic_bert;
mod olmo2;
mod olmoe;
mod phi3;
mod post_norm;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_moe;
mod seed_oss;
mod smollm3;
mod stablelm;
mod starcoder2;

use thane_mil::program::Function;

use crate::checkpoint::{
    Checkpoint, Config, Gguf, HuggingFace, MaxTokens, RerankConfig, SentenceConfig, Source,
    Tensors, is_saved_reranker, read_tokenizer_config,
};
use crate::classifier::{Classifier as BuiltClassifier, SCORE_KEYS, Scores};
use crate::encoder::{Encoder as BuiltEncoder, EncoderOptions, Target};
use crate::error::ModelError;
use crate::generation;
use crate::graph::Graph;
use crate::layers::encoder::EncoderPlan;
use crate::layers::rope::Rotation;
use crate::transformer::{Labels, Transformer};
use crate::weights::{Names, Weights};
use crate::{Model, Options, Pooling};
use keys::{acknowledge_common, check_size, reject_unknown_keys, reject_unread};
use lower::{lower, lower_classifier, lower_encoder};

/// A model family: the architectures that it lowers, and how it reads the configuration of each
/// format.
pub struct Family {
    /// Names of the architectures: `model_type` in `config.json`, `general.architecture` in GGUF.
    names: &'static [&'static str],
    /// Models of the family, for readers.
    about: &'static str,
    /// The tiny checkpoints in `tests/models` whose numbers are compared with the reference.
    checked: &'static [&'static str],
    /// Prefix of the base model's tensor names, in files that hold more than the base model.
    base: &'static str,
    /// Names of this family's tensors in Hugging Face folders, where they are not those of Llama.
    tensor_names: Names,
    /// Whether Hugging Face folders store the matrices of linear layers as [inputs, outputs].
    transposed: bool,
    /// Names of this family's tensors in GGUF, in addition to the common names.
    gguf_names: Names,
    /// The architecture that GGUF files of these models name, where that is of another family.
    gguf_as: Option<&'static str>,
    /// Reads a decoder from `config.json`.
    config: Option<fn(&Config, &Weights<'_>) -> DecoderResult>,
    /// Reads a decoder from GGUF.
    gguf: Option<fn(&Gguf, &Weights<'_>) -> DecoderResult>,
    /// Reads an encoder from `config.json`.
    encoder: Option<fn(&Config, &Weights<'_>) -> EncoderResult>,
    /// Reads an encoder from GGUF.
    gguf_encoder: Option<fn(&Gguf, &Weights<'_>) -> EncoderResult>,
}

impl Family {
    /// A family without any architecture; families override what they have.
    const NONE: Self = Self {
        names: &[],
        about: "",
        checked: &[],
        base: "model",
        tensor_names: &[],
        transposed: false,
        gguf_names: &[],
        gguf_as: None,
        config: None,
        gguf: None,
        encoder: None,
        gguf_encoder: None,
    };

    /// The tensors of a Hugging Face folder under the names that families use.
    fn weights<'a>(&self, notes: &[String], tensors: &'a Tensors) -> Weights<'a> {
        let weights = Weights::hugging_face(tensors, self.base, self.tensor_names);
        notes.iter().for_each(|note| weights.note(note.clone()));
        if self.transposed {
            weights.transposed()
        } else {
            weights
        }
    }
}

/// The GGUF name of the norm before the feed-forward layer, where layers have no other norms.
const GGUF_NORMS_BEFORE: Names = &[(
    "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_norm",
)];

/// The GGUF names of norms after attention and feed-forward layer, and of those before the latter.
const GGUF_NORMS_AROUND: Names = &[
    (
        "model.layers.{}.post_attention_layernorm",
        "blk.{}.post_attention_norm",
    ),
    (
        "model.layers.{}.pre_feedforward_layernorm",
        "blk.{}.ffn_norm",
    ),
    (
        "model.layers.{}.post_feedforward_layernorm",
        "blk.{}.post_ffw_norm",
    ),
];

/// A decoder's description, or why its configuration is rejected.
type DecoderResult = Result<Transformer, ModelError>;

/// An encoder's configuration, or why it is rejected.
type EncoderResult = Result<Box<dyn Encoder>, ModelError>;

/// All families.
static FAMILIES: &[Family] = &[
    llama::FAMILY,
    llama2c::FAMILY,
    mistral::FAMILY,
    ministral3::FAMILY,
    qwen2::FAMILY,
    qwen3::FAMILY,
    mixtral::FAMILY,
    qwen2_moe::FAMILY,
    qwen3_moe::FAMILY,
    qwen3_5::FAMILY,
    olmoe::FAMILY,
    gemma::FAMILY,
    gemma2::FAMILY,
    gemma3::FAMILY,
    gemma3::EMBEDDING,
    gemma4::FAMILY,
    phi3::FAMILY,
    smollm3::FAMILY,
    olmo2::FAMILY,
    granite::FAMILY,
    exaone4::FAMILY,
    glm4::FAMILY,
    starcoder2::FAMILY,
    ernie4_5::FAMILY,
    seed_oss::FAMILY,
    arcee::FAMILY,
    hunyuan::FAMILY,
    stablelm::FAMILY,
    cohere::FAMILY,
    gpt2::FAMILY,
    lfm2::FAMILY,
    qwen3::PPLX,
    bert::BERT,
    bert::ROBERTA,
    distilbert::FAMILY,
    mpnet::FAMILY,
    modernbert::FAMILY,
    nomic_bert::FAMILY,
];

/// The configuration of an encoder, ready to be lowered.
trait Encoder {
    /// Builds one function of the program.
    fn function(
        &self,
        g: Graph,
        w: &Weights<'_>,
        plan: &EncoderPlan<'_>,
    ) -> Result<Function, ModelError>;

    /// The sizes of the encoder.
    fn sizes(&self) -> EncoderSizes;

    /// Number of labels, if the file is that of a sequence classifier.
    fn n_labels(&self) -> Option<usize> {
        None
    }

    /// Whether a classifier distinguishes the tokens of two texts by their types.
    fn has_token_types(&self) -> bool {
        false
    }

    /// The pooling of the architecture, and whether the model itself gives int8 and bits, for
    /// models whose files do not say.
    fn default_pooling(&self) -> Option<(Pooling, bool)> {
        None
    }

    /// The divisor of the residual stream that keeps the stream within the range of fp16.
    fn residual_divisor(&self) -> f32 {
        1.0
    }
}

/// The sizes of an encoder.
struct EncoderSizes {
    n_layers: usize,
    vocab_size: usize,
    hidden: usize,
    /// Positions that the model was trained with.
    n_positions: usize,
    /// Whether positions beyond those are computed as those are.
    is_open: bool,
}

impl EncoderSizes {
    /// The largest number of tokens that the program takes, and the most of a text unless a caller
    /// asks for others. As in sentence-transformers (6.2), a length that its files name may exceed
    /// the positions of the model; where positions are rows of a table it cannot.
    fn lengths(&self, most: MaxTokens) -> Result<[usize; 2], ModelError> {
        let n = self.n_positions;
        let beyond = most.given.filter(|given| self.is_open && *given > n);
        let longest = match beyond {
            Some(given) => check_size("max_seq_length", given)?,
            None => n,
        };
        let asked = most.given.or(most.by_tokenizer.map(|most| most.min(n)));
        Ok([longest, asked.unwrap_or(n).min(longest)])
    }
}

impl Encoder for Transformer {
    fn function(
        &self,
        g: Graph,
        w: &Weights<'_>,
        plan: &EncoderPlan<'_>,
    ) -> Result<Function, ModelError> {
        self.encoder_function(g, w, plan)
    }

    fn n_labels(&self) -> Option<usize> {
        self.labels.map(|labels| labels.count())
    }

    fn sizes(&self) -> EncoderSizes {
        EncoderSizes {
            n_layers: self.layers.len(),
            vocab_size: self.vocab_size,
            hidden: self.hidden,
            n_positions: self.max_context,
            is_open: !self.learned_positions && self.rotations.iter().all(Rotation::is_fixed),
        }
    }

    fn default_pooling(&self) -> Option<(Pooling, bool)> {
        self.default_pooling
    }

    fn residual_divisor(&self) -> f32 {
        self.residual_divisor
    }
}

/// What a family supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// Names of the architectures: `model_type` in `config.json`, `general.architecture` in GGUF.
    pub names: &'static [&'static str],
    /// Models of the family.
    pub about: &'static str,
    /// Whether Hugging Face folders can be lowered to language models.
    pub decodes_hugging_face: bool,
    /// Whether GGUF files can be lowered to language models.
    pub decodes_gguf: bool,
    /// The architecture that GGUF files of these models name, where that is of another family.
    pub gguf_as: Option<&'static str>,
    /// Whether Hugging Face folders can be lowered to embedding models.
    pub encodes_hugging_face: bool,
    /// Whether GGUF files can be lowered to embedding models.
    pub encodes_gguf: bool,
    /// The tiny checkpoints in `tests/models` whose numbers are compared with transformers.
    pub checked: &'static [&'static str],
}

/// What each family supports.
pub fn supported() -> Vec<Support> {
    let support = |f: &Family| Support {
        names: f.names,
        about: f.about,
        decodes_hugging_face: f.config.is_some(),
        decodes_gguf: f.gguf.is_some() || f.gguf_as.is_some(),
        gguf_as: f.gguf_as,
        encodes_hugging_face: f.encoder.is_some(),
        encodes_gguf: f.gguf_encoder.is_some(),
        checked: f.checked,
    };
    FAMILIES.iter().map(support).collect()
}

/// The names of all architectures that can be lowered.
pub fn names() -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|f| f.names).copied().collect()
}

/// The name of the architecture in the file.
fn architecture(checkpoint: &Checkpoint) -> Result<String, ModelError> {
    Ok(match &checkpoint.source {
        Source::Gguf(gguf) => gguf.str("general.architecture")?.to_owned(),
        Source::HuggingFace(folder) => folder.config.str("model_type")?.to_owned(),
    })
}

/// The family that lowers a checkpoint, among those that `has` accepts, and the name of the
/// architecture.
fn family(
    checkpoint: &Checkpoint,
    has: fn(&Family) -> bool,
) -> Result<(&'static Family, String), ModelError> {
    let architecture = architecture(checkpoint)?;
    let fitting = || FAMILIES.iter().filter(|f| has(f));
    let known = |family: &&Family| family.names.contains(&architecture.as_str());
    if let Some(family) = fitting().find(known) {
        return Ok((family, architecture));
    }
    match FAMILIES.iter().find(known) {
        Some(f) if f.config.is_none() && f.gguf.is_none() => {
            Err(ModelError::EmbedsOnly(architecture))
        }
        Some(f) if f.encoder.is_none() => Err(ModelError::AnswersOnly(architecture)),
        _ => {
            let supported = fitting().flat_map(|f| f.names).copied().collect();
            Err(ModelError::Architecture {
                found: architecture,
                supported,
            })
        }
    }
}

/// Whether a checkpoint is an embedding model. If the architecture serves both purposes, a
/// `modules.json` of sentence-transformers beside the weights decides, unless it is that of a
/// reranker; in a GGUF file, a pooling.
pub(crate) fn is_embedding_model(checkpoint: &Checkpoint) -> Result<bool, ModelError> {
    let architecture = architecture(checkpoint)?;
    let same_name = FAMILIES
        .iter()
        .filter(|f| f.names.contains(&architecture.as_str()));
    let (encodes, answers) = same_name.fold((false, false), |(e, a), f| {
        (
            e || f.encoder.is_some() || f.gguf_encoder.is_some(),
            a || f.config.is_some() || f.gguf.is_some(),
        )
    });
    let pools = match &checkpoint.source {
        Source::HuggingFace(f) => is_saved_reranker(&f.folder)? == Some(false),
        Source::Gguf(gguf) => gguf_encoder::names_pooling(gguf, &architecture)?,
    };
    Ok(encodes && (!answers || pools))
}

/// See [`crate::is_classifier`].
pub(crate) fn is_classifier(checkpoint: &Checkpoint) -> Result<bool, ModelError> {
    let Source::HuggingFace(folder) = &checkpoint.source else {
        return Ok(false);
    };
    if let Some(is_reranker) = is_saved_reranker(&folder.folder)? {
        return Ok(is_reranker);
    }
    let classes = folder.config.opt_strs("architectures")?.unwrap_or_default();
    let classifies = |class: &&str| class.ends_with("ForSequenceClassification");
    Ok(classes.iter().any(classifies))
}

/// Lowers a checkpoint of a language model; see [`crate::build`].
pub(crate) fn build(checkpoint: &Checkpoint, options: &Options) -> Result<Model, ModelError> {
    let (weights, decoder, architecture) = match &checkpoint.source {
        Source::Gguf(gguf) => {
            let (family, architecture) = family(checkpoint, |f| f.gguf.is_some())?;
            let weights = Weights::gguf(&checkpoint.tensors, family.gguf_names);
            let decoder = family.gguf.map(|read| read(gguf, &weights)).transpose()?;
            reject_unknown_keys(family.names[0], gguf.unread(&format!("{architecture}.")))?;
            (weights, decoder, architecture)
        }
        Source::HuggingFace(folder) => {
            let (family, architecture) = family(checkpoint, |f| f.config.is_some())?;
            check_tokenizer(folder)?;
            let weights = family.weights(&checkpoint.notes, &checkpoint.tensors);
            acknowledge_common(&folder.config);
            let decoder = family
                .config
                .map(|read| read(&folder.config, &weights))
                .transpose()?;
            reject_unread(family.names[0], &folder.config)?;
            (weights, decoder, architecture)
        }
    };
    let Some(decoder) = decoder else {
        return Err(ModelError::Architecture {
            found: architecture,
            supported: names(),
        });
    };
    if let Source::HuggingFace(folder) = &checkpoint.source {
        let ends = ends_beyond(folder, decoder.vocab_size)?;
        let notes = folder.config.notes().into_iter().chain(ends);
        notes.for_each(|note| weights.note(note));
    }
    let (_, notes) = generation::read(checkpoint)?;
    notes.into_iter().for_each(|note| weights.note(note));
    lower(architecture, &decoder, &weights, options)
}

/// Refuses keys of `tokenizer_config.json` that are not supported.
fn check_tokenizer(folder: &HuggingFace) -> Result<(), ModelError> {
    Ok(read_tokenizer_config(&folder.folder, |_| Ok(()))?)
}

/// A note on ids of `eos_token_id` that no token has.
fn ends_beyond(folder: &HuggingFace, n_vocab: usize) -> Result<Option<String>, ModelError> {
    let mut ends = folder.eos_token_ids()?;
    ends.retain(|id| *id as usize >= n_vocab);
    Ok(ends.first().map(|id| {
        format!("`eos_token_id` {id} ends no answer: the vocabulary has {n_vocab} tokens")
    }))
}

/// Lowers a checkpoint of an embedding model; see [`crate::build_encoder`].
pub(crate) fn build_encoder(
    checkpoint: &Checkpoint,
    options: &EncoderOptions,
) -> Result<BuiltEncoder, ModelError> {
    let encodes = |f: &Family| f.encoder.is_some() || f.gguf_encoder.is_some();
    let (family, architecture) = family(checkpoint, encodes)?;
    if let (Source::Gguf(gguf), Some(read)) = (&checkpoint.source, family.gguf_encoder) {
        let weights = Weights::gguf(&checkpoint.tensors, family.gguf_names);
        let encoder = read(gguf, &weights)?;
        let sentence = SentenceConfig {
            pooling: gguf_encoder::pooling(gguf, &architecture)?,
            steps: gguf_encoder::steps(gguf, &architecture, &weights)?,
            include_prompt: true,
            ..SentenceConfig::default()
        };
        reject_unknown_keys(family.names[0], gguf.unread(&format!("{architecture}.")))?;
        return lower_encoder(architecture, encoder.as_ref(), &weights, sentence, options);
    }
    let (Source::HuggingFace(folder), Some(read)) = (&checkpoint.source, family.encoder) else {
        if family.gguf.is_some() {
            return Err(ModelError::AnswersOnly(architecture));
        }
        return Err(ModelError::unsupported(
            "general.architecture",
            architecture,
            "in GGUF files, the encoders bert, nomic-bert, qwen3 and gemma-embedding are supported",
        ));
    };
    check_tokenizer(folder)?;
    let sentence = SentenceConfig::read(folder)?;
    let mut tensors = checkpoint.tensors.clone();
    if let Some(sentence) = &sentence {
        tensors.extend(sentence.tensors(&folder.folder)?);
    }
    let weights = family.weights(&checkpoint.notes, &tensors);
    acknowledge_common(&folder.config);
    let encoder = read(&folder.config, &weights)?;
    if encoder.n_labels().is_some() {
        if options.pooling.is_none() && sentence.is_none() {
            return Err(ModelError::Classifies(architecture));
        }
        folder.config.acknowledge(SCORE_KEYS);
    }
    let sentence = sentence.unwrap_or_else(|| match encoder.default_pooling() {
        Some((pooling, quantize)) => SentenceConfig {
            pooling: Some(pooling.into()),
            quantize,
            include_prompt: true,
            ..SentenceConfig::default()
        },
        None => SentenceConfig::default(),
    });
    reject_unread(family.names[0], &folder.config)?;
    lower_encoder(architecture, encoder.as_ref(), &weights, sentence, options)
}

/// Lowers a checkpoint of a sequence classifier; see [`crate::build_classifier`].
pub(crate) fn build_classifier(
    checkpoint: &Checkpoint,
    target: &Target,
) -> Result<BuiltClassifier, ModelError> {
    let reads = |f: &Family| f.encoder.is_some() || f.config.is_some();
    let (family, architecture) = family(checkpoint, reads)?;
    let Source::HuggingFace(folder) = &checkpoint.source else {
        return Err(ModelError::unsupported(
            "general.architecture",
            architecture,
            "rerankers are only supported as Hugging Face folders",
        ));
    };
    check_tokenizer(folder)?;
    let weights = family.weights(&checkpoint.notes, &checkpoint.tensors);
    let config = &folder.config;
    acknowledge_common(config);
    let settings = RerankConfig::read(&folder.folder)?;
    let encoder: Option<Box<dyn Encoder>> = match (family.config, family.encoder) {
        (Some(read), _) => {
            let mut decoder = read(config, &weights)?;
            decoder.labels = Labels::read(config, &weights, settings.tokens)?;
            Some(Box::new(decoder))
        }
        (None, Some(read)) if settings.tokens.is_none() => Some(read(config, &weights)?),
        (None, _) => None,
    };
    let labeled = encoder.and_then(|encoder| Some((encoder.n_labels()?, encoder)));
    let Some((n_labels, encoder)) = labeled else {
        return Err(ModelError::NoLabels(architecture));
    };
    let scores = Scores::read(folder, &architecture, (settings, n_labels))?;
    reject_unread(family.names[0], &folder.config)?;
    lower_classifier(architecture, encoder.as_ref(), &weights, scores, target)
}
