//! The model families, one file each, and the list of all families. Start reading at [`llama`];
//! adding a family takes one file, its `mod` line, and its line in [`FAMILIES`].

mod bert;
mod distilbert;
mod gemma3;
mod gguf_encoder;
mod keys;
mod llama;
mod lower;
mod modernbert;
mod mpnet;
mod nomic_bert;
mod post_norm;
mod qwen3;

use thane_mil::program::Function;
use thane_mil::types::DType;

use crate::checkpoint::{Checkpoint, Config, Gguf, SentenceConfig, Source};
use crate::classifier::{Classifier as BuiltClassifier, Scores};
use crate::encoder::{Encoder as BuiltEncoder, EncoderOptions, Target};
use crate::error::ModelError;
use crate::graph::Graph;
use crate::layers::attention::Attention;
use crate::layers::decoder::{self, Mode};
use crate::layers::encoder::{Extent, Head};
use crate::weights::{Names, Weights};
use crate::{Model, Options, Pooling};
use keys::{IGNORED_KEYS, reject_unknown_keys};
use lower::{lower, lower_classifier, lower_encoder};

/// A model family: the architectures that it lowers, and how it reads the configuration of each
/// format.
pub struct Family {
    /// Names of the architectures: `model_type` in `config.json`, `general.architecture` in GGUF.
    names: &'static [&'static str],
    /// Prefix of the base model's tensor names, in files that hold more than the base model.
    base: &'static str,
    /// Names of this family's tensors in GGUF, in addition to the common names.
    gguf_names: Names,
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
        base: "",
        gguf_names: &[],
        config: None,
        gguf: None,
        encoder: None,
        gguf_encoder: None,
    };
}

/// A decoder's configuration, or why it is rejected.
type DecoderResult = Result<Box<dyn Decoder>, ModelError>;

/// An encoder's configuration, or why it is rejected.
type EncoderResult = Result<Box<dyn Encoder>, ModelError>;

/// All families.
static FAMILIES: &[Family] = &[
    llama::FAMILY,
    gemma3::FAMILY,
    qwen3::FAMILY,
    qwen3::PPLX,
    bert::BERT,
    bert::ROBERTA,
    distilbert::FAMILY,
    mpnet::FAMILY,
    modernbert::FAMILY,
    nomic_bert::FAMILY,
];

/// The configuration of a decoder, ready to be lowered.
trait Decoder {
    /// Builds one function of the program.
    fn function(
        &self,
        g: Graph,
        w: &Weights<'_>,
        mode: Mode,
        options: &Lowering,
    ) -> Result<Function, ModelError>;

    /// The sizes of the decoder.
    fn sizes(&self) -> Sizes;

    /// The divisor of the residual stream that keeps the stream within the range of fp16.
    fn residual_divisor(&self) -> f32 {
        1.0
    }
}

/// The settings of a lowering that do not come from the configuration.
struct Lowering {
    /// Tokens that the cache holds.
    context: usize,
    /// Element type of the cache.
    cache: DType,
    /// Tokens of a block of `prefill`, if lengths are fixed.
    block: usize,
    /// Divisor of the residual stream.
    residual_divisor: f32,
}

impl Lowering {
    /// The sizes of a decoder's inputs and caches.
    fn extent<'a>(
        &self,
        attention: &'a Attention,
        n_layers: usize,
        window: Option<usize>,
    ) -> decoder::Extent<'a> {
        let Self {
            context,
            cache,
            block,
            ..
        } = *self;
        decoder::Extent {
            attention,
            n_layers,
            window,
            context,
            cache,
            block,
        }
    }
}

/// The sizes of a decoder.
struct Sizes {
    n_layers: usize,
    vocab_size: usize,
    max_context: usize,
    /// Cache elements of one token in all layers together.
    cache_elements: usize,
    /// Window of sliding-window layers, in tokens.
    window: Option<usize>,
}

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

/// The settings of one function of an encoder.
struct EncoderPlan<'a> {
    extent: Extent,
    head: Head<'a>,
    residual_divisor: f32,
}

/// The sizes of an encoder.
struct EncoderSizes {
    n_layers: usize,
    vocab_size: usize,
    hidden: usize,
    n_positions: usize,
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
/// `modules.json` of sentence-transformers beside the weights decides.
pub(crate) fn is_embedding_model(checkpoint: &Checkpoint) -> Result<bool, ModelError> {
    let architecture = architecture(checkpoint)?;
    let same_name = FAMILIES
        .iter()
        .filter(|f| f.names.contains(&architecture.as_str()));
    let (encodes, answers) = same_name.fold((false, false), |(e, a), f| {
        (
            e || f.encoder.is_some(),
            a || f.config.is_some() || f.gguf.is_some(),
        )
    });
    let has_modules = || {
        checkpoint
            .hugging_face()
            .is_some_and(|f| f.folder.join("modules.json").is_file())
    };
    Ok(encodes && (!answers || has_modules()))
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
            let weights = Weights::hugging_face(&checkpoint.tensors, family.base);
            folder.config.acknowledge(IGNORED_KEYS);
            let decoder = family
                .config
                .map(|read| read(&folder.config, &weights))
                .transpose()?;
            reject_unknown_keys(family.names[0], folder.config.unread())?;
            (weights, decoder, architecture)
        }
    };
    let Some(decoder) = decoder else {
        return Err(ModelError::Architecture {
            found: architecture,
            supported: names(),
        });
    };
    lower(architecture, decoder.as_ref(), &weights, options)
}

/// Lowers a checkpoint of an embedding model; see [`crate::build_encoder`].
pub(crate) fn build_encoder(
    checkpoint: &Checkpoint,
    options: &EncoderOptions,
) -> Result<BuiltEncoder, ModelError> {
    let (family, architecture) = family(checkpoint, |f| f.encoder.is_some())?;
    if let (Source::Gguf(gguf), Some(read)) = (&checkpoint.source, family.gguf_encoder) {
        let weights = Weights::gguf(&checkpoint.tensors, family.gguf_names);
        let encoder = read(gguf, &weights)?;
        let sentence = SentenceConfig {
            pooling: gguf_encoder::pooling(gguf, &architecture)?,
            // The file does not say; llama.cpp's programs normalize unless told otherwise.
            normalize: true,
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
            "in GGUF files, only the encoders bert and nomic-bert are supported",
        ));
    };
    let sentence = SentenceConfig::read(&folder.folder)?;
    let mut tensors = checkpoint.tensors.clone();
    if let Some(sentence) = &sentence {
        tensors.extend(sentence.tensors(&folder.folder)?);
    }
    let weights = Weights::hugging_face(&tensors, family.base);
    folder.config.acknowledge(IGNORED_KEYS);
    let encoder = read(&folder.config, &weights)?;
    if encoder.n_labels().is_some() && options.pooling.is_none() && sentence.is_none() {
        return Err(ModelError::Classifies(architecture));
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
    reject_unknown_keys(family.names[0], folder.config.unread())?;
    lower_encoder(architecture, encoder.as_ref(), &weights, sentence, options)
}

/// Lowers a checkpoint of a sequence classifier; see [`crate::build_classifier`].
pub(crate) fn build_classifier(
    checkpoint: &Checkpoint,
    target: &Target,
) -> Result<BuiltClassifier, ModelError> {
    let (family, architecture) = family(checkpoint, |f| f.encoder.is_some())?;
    let (Source::HuggingFace(folder), Some(read)) = (&checkpoint.source, family.encoder) else {
        return Err(ModelError::unsupported(
            "general.architecture",
            architecture,
            "rerankers are only supported as Hugging Face folders",
        ));
    };
    let weights = Weights::hugging_face(&checkpoint.tensors, family.base);
    folder.config.acknowledge(IGNORED_KEYS);
    let encoder = read(&folder.config, &weights)?;
    let Some(n_labels) = encoder.n_labels() else {
        return Err(ModelError::NoLabels(architecture));
    };
    let scores = Scores::read(folder, n_labels)?;
    reject_unknown_keys(family.names[0], folder.config.unread())?;
    lower_classifier(architecture, encoder.as_ref(), &weights, scores, target)
}
