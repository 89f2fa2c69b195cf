//! The families: one file each, and this list.

mod gemma3;
mod llama;

use thane_mil::program::{Function, Program};

use crate::checkpoint::{Checkpoint, Config, Gguf, Source};
use crate::error::ModelError;
use crate::graph::{Derived, Graph};
use crate::layers::decoder::Mode;
use crate::weights::{Names, Weights};
use crate::{Info, Model, Options};

/// A family: which architectures it lowers, and how its configuration is read in each format.
pub struct Family {
    /// `model_type` of `config.json` and `general.architecture` of GGUF.
    names: &'static [&'static str],
    /// What GGUF calls tensors of this family, beside the common names.
    gguf_names: Names,
    from_config: fn(&Config, &Weights<'_>) -> Read,
    from_gguf: fn(&Gguf, &Weights<'_>) -> Read,
}

/// A configuration that was read.
type Read = Result<Box<dyn Decoder>, ModelError>;

/// Every family.
static FAMILIES: &[Family] = &[llama::FAMILY, gemma3::FAMILY];

/// The configuration of a decoder, ready to be lowered.
trait Decoder {
    /// One function of the program.
    fn function(&self, g: Graph, w: &Weights<'_>, mode: Mode, options: &Lowering) -> Result<Function, ModelError>;

    /// Its sizes.
    fn sizes(&self) -> Sizes;
}

/// What lowering needs beside the configuration.
struct Lowering {
    context: usize,
    cache: thane_mil::types::DType,
}

/// Sizes of a decoder.
struct Sizes {
    n_layers: usize,
    vocab_size: usize,
    max_context: usize,
    /// Elements that one token takes in the caches of all layers.
    cache_elements: usize,
}

/// The architectures that can be lowered.
pub fn names() -> Vec<&'static str> {
    FAMILIES.iter().flat_map(|f| f.names).copied().collect()
}

pub(crate) fn build(checkpoint: &Checkpoint, options: &Options) -> Result<Model, ModelError> {
    let architecture = match &checkpoint.source {
        Source::Gguf(gguf) => gguf.str("general.architecture")?.to_owned(),
        Source::HuggingFace(folder) => folder.config.str("model_type")?.to_owned(),
    };
    let family = FAMILIES.iter().find(|f| f.names.contains(&architecture.as_str()));
    let family = family.ok_or(ModelError::Architecture { found: architecture.clone(), supported: names() })?;
    let (weights, decoder) = match &checkpoint.source {
        Source::Gguf(gguf) => {
            let weights = Weights::gguf(&checkpoint.tensors, family.gguf_names);
            let decoder = (family.from_gguf)(gguf, &weights)?;
            refuse_unknown(family.names[0], gguf.unread(&format!("{architecture}.")))?;
            (weights, decoder)
        }
        Source::HuggingFace(folder) => {
            let weights = Weights::hugging_face(&checkpoint.tensors);
            folder.config.acknowledge(HARMLESS);
            let decoder = (family.from_config)(&folder.config, &weights)?;
            refuse_unknown(family.names[0], folder.config.unread())?;
            (weights, decoder)
        }
    };
    lower(architecture, decoder.as_ref(), &weights, options)
}

fn lower(
    architecture: String,
    decoder: &dyn Decoder,
    weights: &Weights<'_>,
    options: &Options,
) -> Result<Model, ModelError> {
    let sizes = decoder.sizes();
    let context = options.context.unwrap_or(sizes.max_context.min(Options::DEFAULT_CONTEXT));
    if context == 0 || context > sizes.max_context {
        return Err(ModelError::Context { asked: context, max: sizes.max_context });
    }
    let lowering = Lowering { context, cache: options.cache };
    let modes = [Mode::Prefill, Mode::Decode, Mode::Score];
    let derived = Derived::default();
    let functions = modes
        .into_iter()
        .filter(|mode| *mode != Mode::Score || options.score)
        .map(|mode| decoder.function(Graph::new(mode.name(), derived.clone()), weights, mode, &lowering))
        .collect::<Result<Vec<_>, _>>()?;
    weights.finish()?;
    let info = Info {
        architecture,
        n_layers: sizes.n_layers,
        vocab_size: sizes.vocab_size,
        max_context: sizes.max_context,
        context,
        cache_bytes: sizes.cache_elements.saturating_mul(context).saturating_mul(options.cache.bits() / 8),
    };
    Ok(Model { program: Program::new(functions), info })
}

fn refuse_unknown(family: &'static str, keys: Vec<String>) -> Result<(), ModelError> {
    if keys.is_empty() { Ok(()) } else { Err(ModelError::UnknownKeys { family, keys }) }
}

/// Keys of `config.json` that say nothing of the forward computation: names, training, generation, other software.
const HARMLESS: &[&str] = &[
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "bad_words_ids",
    "bos_token_id",
    "cache_implementation",
    "dtype",
    "eos_token_id",
    "id2label",
    "initializer_range",
    "label2id",
    "max_length",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",
    "return_dict",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
];

/// Most layers; published models have up to 126 (Llama 3.1 405B).
const MAX_LAYERS: usize = 1024;
/// Largest head; published models have up to 512.
const MAX_HEAD_DIM: usize = 1 << 16;

/// Refuse a number of layers that no model has, before a loop runs over them.
fn layers(key: &str, value: usize) -> Result<usize, ModelError> {
    if value == 0 || value > MAX_LAYERS {
        return Err(ModelError::unsupported(key, value, &format!("1 to {MAX_LAYERS} layers are due")));
    }
    Ok(value)
}

/// Refuse a number that a root, a quotient or a logarithm cannot take.
fn positive(key: &str, value: f64) -> Result<f64, ModelError> {
    if !(value.is_finite() && value > 0.0) {
        return Err(ModelError::unsupported(key, value, "a number above 0 is due"));
    }
    Ok(value)
}

/// The size of a head where the file does not say.
fn head_dim_of(hidden: usize, n_heads: usize) -> Result<usize, ModelError> {
    if !hidden.is_multiple_of(n_heads) {
        let value = format!("{n_heads} heads for a hidden size of {hidden}");
        return Err(ModelError::unsupported("head_dim", value, "the file does not say it, and they do not divide"));
    }
    Ok(hidden / n_heads)
}

/// Refuse heads that do not fit together.
fn check_heads(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> Result<(), ModelError> {
    if !n_heads.is_multiple_of(n_kv_heads) {
        let value = format!("{n_kv_heads}, for {n_heads} heads");
        return Err(ModelError::unsupported("number of key-value heads", value, "it must divide the number of heads"));
    }
    if head_dim % 2 == 1 || head_dim > MAX_HEAD_DIM {
        let reason = format!("an even size up to {MAX_HEAD_DIM} is due");
        return Err(ModelError::unsupported("head size", head_dim, &reason));
    }
    bounded("number of heads * head size", n_heads.saturating_mul(head_dim)).map(drop)
}

/// Refuse a number that would not fit the arithmetic of shapes, before anything is made of it.
fn bounded(key: &str, value: usize) -> Result<usize, ModelError> {
    const MOST: usize = 1 << 24;
    if value == 0 || value > MOST {
        return Err(ModelError::unsupported(key, value, "a size from 1 to 16,777,216 is due"));
    }
    Ok(value)
}
