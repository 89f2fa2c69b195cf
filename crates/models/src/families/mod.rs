//! The families: one file each, and this list.
mod bert;
mod gemma3;
mod keys;
mod llama;
mod lower;
mod modernbert;
mod qwen3;
use thane_mil::program::Function;
use thane_mil::types::DType;

use crate::checkpoint::{Checkpoint, Config, Gguf, Sentence, Source};
use crate::encoder::{Encoder as BuiltEncoder, EncoderOptions};
use crate::error::ModelError;
use crate::graph::Graph;
use crate::layers::attention::Attention;
use crate::layers::decoder::{self, Mode};
use crate::layers::encoder::{Extent, Head};
use crate::weights::{Names, Weights};
use crate::{Model, Options, Pooling};
use keys::{HARMLESS, refuse_unknown};
use lower::{lower, lower_encoder};

/// A family: which architectures it lowers, and how its configuration is read in each format.
pub struct Family {
    /// `model_type` of `config.json` and `general.architecture` of GGUF.
    names: &'static [&'static str],
    /// What names of tensors begin with, where a file holds more than the base model.
    base: &'static str,
    /// What GGUF calls tensors of this family, beside the common names.
    gguf_names: Names,
    /// A decoder, from `config.json`.
    config: Option<fn(&Config, &Weights<'_>) -> Read>,
    /// A decoder, from GGUF.
    gguf: Option<fn(&Gguf, &Weights<'_>) -> Read>,
    /// An encoder, from `config.json`.
    encoder: Option<fn(&Config, &Weights<'_>) -> EncoderRead>,
}

impl Family {
    /// What a family leaves out.
    const NONE: Self = Self {
        names: &[],
        base: "",
        gguf_names: &[],
        config: None,
        gguf: None,
        encoder: None,
    };
}

/// A configuration that was read.
type Read = Result<Box<dyn Decoder>, ModelError>;

/// The same, of an encoder.
type EncoderRead = Result<Box<dyn Encoder>, ModelError>;

/// Every family.
static FAMILIES: &[Family] = &[
    llama::FAMILY,
    gemma3::FAMILY,
    qwen3::FAMILY,
    qwen3::PPLX,
    bert::FAMILY,
    modernbert::FAMILY,
];

/// The configuration of a decoder, ready to be lowered.
trait Decoder {
    /// One function of the program.
    fn function(
        &self,
        g: Graph,
        w: &Weights<'_>,
        mode: Mode,
        options: &Lowering,
    ) -> Result<Function, ModelError>;

    /// Its sizes.
    fn sizes(&self) -> Sizes;

    /// What fp16 needs the residual stream to be divided by.
    fn residual_divisor(&self) -> f32 {
        1.0
    }
}

/// What lowering needs beside the configuration.
struct Lowering {
    context: usize,
    cache: DType,
    /// Tokens of a block of `prefill`, where lengths are fixed.
    block: usize,
    residual_divisor: f32,
}

impl Lowering {
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

/// Sizes of a decoder.
struct Sizes {
    n_layers: usize,
    vocab_size: usize,
    max_context: usize,
    /// Elements that one token takes in the caches of all layers.
    cache_elements: usize,
    /// What sliding layers see.
    window: Option<usize>,
}

/// The configuration of an encoder, ready to be lowered.
trait Encoder {
    /// One function of the program.
    fn function(
        &self,
        g: Graph,
        w: &Weights<'_>,
        plan: &EncoderPlan<'_>,
    ) -> Result<Function, ModelError>;

    /// Its sizes.
    fn sizes(&self) -> EncoderSizes;

    /// How the architecture pools, and whether it gives int8 and bits itself, where its files say
    /// nothing.
    fn pools(&self) -> Option<(Pooling, bool)> {
        None
    }

    /// What fp16 needs the residual stream to be divided by.
    fn residual_divisor(&self) -> f32 {
        1.0
    }
}

/// What a function of an encoder is to be.
struct EncoderPlan<'a> {
    extent: Extent,
    head: Head<'a>,
    residual_divisor: f32,
}

/// Sizes of an encoder.
struct EncoderSizes {
    n_layers: usize,
    vocab_size: usize,
    hidden: usize,
    n_positions: usize,
}

/// The architectures that can be lowered.
pub fn names() -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|f| f.names).copied().collect()
}

/// What the file calls the architecture.
fn architecture(checkpoint: &Checkpoint) -> Result<String, ModelError> {
    Ok(match &checkpoint.source {
        Source::Gguf(gguf) => gguf.str("general.architecture")?.to_owned(),
        Source::HuggingFace(folder) => folder.config.str("model_type")?.to_owned(),
    })
}

/// The family of a checkpoint, and what the file calls the architecture.
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

/// Whether a checkpoint is an embedding model by its architecture or, where that can be either, by
/// the files of sentence-transformers that lie beside its weights.
pub(crate) fn is_embedding_model(checkpoint: &Checkpoint) -> Result<bool, ModelError> {
    let architecture = architecture(checkpoint)?;
    let of_name = FAMILIES
        .iter()
        .filter(|f| f.names.contains(&architecture.as_str()));
    let (encodes, answers) = of_name.fold((false, false), |(e, a), f| {
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

pub(crate) fn build(checkpoint: &Checkpoint, options: &Options) -> Result<Model, ModelError> {
    let (weights, decoder, architecture) = match &checkpoint.source {
        Source::Gguf(gguf) => {
            let (family, architecture) = family(checkpoint, |f| f.gguf.is_some())?;
            let weights = Weights::gguf(&checkpoint.tensors, family.gguf_names);
            let decoder = family.gguf.map(|read| read(gguf, &weights)).transpose()?;
            refuse_unknown(family.names[0], gguf.unread(&format!("{architecture}.")))?;
            (weights, decoder, architecture)
        }
        Source::HuggingFace(folder) => {
            let (family, architecture) = family(checkpoint, |f| f.config.is_some())?;
            let weights = Weights::hugging_face(&checkpoint.tensors, family.base);
            folder.config.acknowledge(HARMLESS);
            let decoder = family
                .config
                .map(|read| read(&folder.config, &weights))
                .transpose()?;
            refuse_unknown(family.names[0], folder.config.unread())?;
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

pub(crate) fn build_encoder(
    checkpoint: &Checkpoint,
    options: &EncoderOptions,
) -> Result<BuiltEncoder, ModelError> {
    let (family, architecture) = family(checkpoint, |f| f.encoder.is_some())?;
    let (Source::HuggingFace(folder), Some(read)) = (&checkpoint.source, family.encoder) else {
        return Err(ModelError::unsupported(
            "general.architecture",
            architecture,
            "encoders are read from folders",
        ));
    };
    let sentence = Sentence::read(&folder.folder)?;
    let mut tensors = checkpoint.tensors.clone();
    if let Some(sentence) = &sentence {
        tensors.extend(sentence.tensors(&folder.folder)?);
    }
    let weights = Weights::hugging_face(&tensors, family.base);
    folder.config.acknowledge(HARMLESS);
    let encoder = read(&folder.config, &weights)?;
    let sentence = sentence.unwrap_or_else(|| match encoder.pools() {
        Some((pooling, quantize)) => Sentence {
            pooling: Some(pooling),
            quantize,
            include_prompt: true,
            ..Sentence::default()
        },
        None => Sentence::default(),
    });
    refuse_unknown(family.names[0], folder.config.unread())?;
    lower_encoder(architecture, encoder.as_ref(), &weights, sentence, options)
}
