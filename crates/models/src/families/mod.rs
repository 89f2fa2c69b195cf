//! The families: one file each, and this list.

mod bert;
mod gemma3;
mod llama;
mod modernbert;
mod qwen3;

use thane_mil::program::{Function, Program};
use thane_mil::types::DType;

use crate::checkpoint::{Checkpoint, Config, Gguf, Sentence, Source};
use crate::encoder::{Encoder as BuiltEncoder, EncoderInfo, EncoderOptions, Target};
use crate::error::ModelError;
use crate::graph::{Form, Graph, Layout, Shared};
use crate::layers::attention::Attention;
use crate::layers::decoder::{self, Mask, Mode};
use crate::layers::encoder::{Encoding, Extent, Head};
use crate::numbers;
use crate::weights::{Names, Weights};
use crate::{DecoderEngine, Fixed, Info, Model, Options, Pooling};

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

fn lower_encoder(
    architecture: String,
    encoder: &dyn Encoder,
    weights: &Weights<'_>,
    sentence: Sentence,
    options: &EncoderOptions,
) -> Result<BuiltEncoder, ModelError> {
    let sizes = encoder.sizes();
    let pooling = options.pooling.or(sentence.pooling);
    // Vectors of tokens are not pooled.
    let pooling = pooling.or((options.encoding == Encoding::Tokens).then_some(Pooling::Mean));
    let pooling = pooling.ok_or(ModelError::Pooling)?;
    let normalize = options.normalize.unwrap_or(sentence.normalize);
    let mut dim = sizes.hidden;
    for dense in &sentence.dense {
        if dense.inputs != dim {
            return Err(ModelError::unsupported(
                "in_features",
                dense.inputs,
                &format!("{dim} come from before"),
            ));
        }
        dim = bounded("out_features", dense.outputs)?;
    }
    let max_tokens = sentence
        .max_tokens
        .unwrap_or(sizes.n_positions)
        .min(sizes.n_positions);
    let head = Head {
        encoding: options.encoding,
        pooling,
        dense: &sentence.dense,
        normalize,
    };
    let shared = Shared::default();
    let function = |name: &str, tokens, layout, most| {
        let (form, divisor) = match &options.target {
            Target::Portable => (Form::PORTABLE, 1.0),
            Target::Engine(engine) => {
                let form = Form {
                    layout,
                    float: DType::Fp16,
                    norm: engine.norm,
                };
                (
                    form,
                    engine
                        .residual_divisor
                        .unwrap_or(encoder.residual_divisor()),
                )
            }
        };
        let chunks = if layout == Layout::Channels {
            Some(MAX_CHUNKS)
        } else {
            None
        };
        let plan = EncoderPlan {
            extent: Extent {
                single: form != Form::PORTABLE,
                tokens,
                chunks,
                most,
            },
            head,
            residual_divisor: divisor,
        };
        encoder.function(Graph::in_form(name, shared.clone(), form), weights, &plan)
    };
    let name = options.encoding.function();
    let functions = match &options.target {
        Target::Portable => vec![function(name, None, Layout::Rows, sizes.n_positions)?],
        Target::Engine(engine) => {
            let mut functions = Vec::new();
            for length in &engine.buckets {
                bucket(*length, sizes.n_positions)?;
                functions.push(function(
                    &format!("{name}_{length}"),
                    Some(*length),
                    Layout::Channels,
                    sizes.n_positions,
                )?);
            }
            if engine.flexible {
                functions.push(function(name, None, Layout::Rows, sizes.n_positions)?);
            }
            functions
        }
    };
    weights.finish()?;
    let stored = shared.borrow().stored();
    numbers::check(&stored, Some(SMALL_BYTES))?;
    let info = EncoderInfo {
        architecture,
        n_layers: sizes.n_layers,
        vocab_size: sizes.vocab_size,
        n_positions: sizes.n_positions,
        dim,
        max_tokens,
        pooling,
        normalize,
        prompts: sentence.prompts,
        default_prompt: sentence.default_prompt,
        include_prompt: sentence.include_prompt,
        similarity: sentence.similarity,
        lower_case: sentence.lower_case,
        quantize: sentence.quantize,
    };
    Ok(BuiltEncoder {
        program: Program::new(functions),
        info,
        stored,
    })
}

/// Vectors of up to this size, norms and biases, are read when a program is made; larger tensors
/// when they are used.
const SMALL_BYTES: usize = 1 << 16;

/// Rows of the pool matrix of functions of fixed length.
const MAX_CHUNKS: usize = 32;

fn bucket(length: usize, most: usize) -> Result<(), ModelError> {
    if length == 0 || length > most {
        return Err(ModelError::Bucket {
            asked: length,
            max: most,
        });
    }
    Ok(())
}

fn lower(
    architecture: String,
    decoder: &dyn Decoder,
    weights: &Weights<'_>,
    options: &Options,
) -> Result<Model, ModelError> {
    let sizes = decoder.sizes();
    let context = options
        .context
        .unwrap_or(sizes.max_context.min(Options::DEFAULT_CONTEXT));
    if context == 0 || context > sizes.max_context {
        return Err(ModelError::Context {
            asked: context,
            max: sizes.max_context,
        });
    }
    let (form, lowering) = match options.engine {
        None => (
            Form::PORTABLE,
            Lowering {
                context,
                cache: options.cache,
                block: 0,
                residual_divisor: 1.0,
            },
        ),
        Some(engine) => {
            let block = engine
                .block
                .unwrap_or(DecoderEngine::DEFAULT_BLOCK.min(context));
            if block == 0 || block > context {
                return Err(ModelError::Block {
                    asked: block,
                    context,
                });
            }
            let residual_divisor = engine
                .residual_divisor
                .unwrap_or(decoder.residual_divisor());
            let form = Form {
                layout: Layout::Channels,
                float: DType::Fp16,
                norm: engine.norm,
            };
            (
                form,
                Lowering {
                    context,
                    cache: DType::Fp16,
                    block,
                    residual_divisor,
                },
            )
        }
    };
    let modes = [Mode::Prefill, Mode::Decode, Mode::Score];
    let shared = Shared::default();
    let functions = modes
        .into_iter()
        .filter(|mode| *mode != Mode::Score || options.score)
        .map(|mode| {
            decoder.function(
                Graph::in_form(mode.name(), shared.clone(), form),
                weights,
                mode,
                &lowering,
            )
        })
        .collect::<Result<Vec<_>, _>>()?;
    weights.finish()?;
    let stored = shared.borrow().stored();
    numbers::check(&stored, Some(SMALL_BYTES))?;
    let info = Info {
        architecture,
        n_layers: sizes.n_layers,
        vocab_size: sizes.vocab_size,
        max_context: sizes.max_context,
        context,
        cache_bytes: sizes
            .cache_elements
            .saturating_mul(context)
            .saturating_mul(lowering.cache.bits() / 8),
        fixed: options.engine.map(|_| Fixed {
            block: lowering.block,
            window: sizes.window,
        }),
    };
    Ok(Model {
        program: Program::new(functions),
        info,
        notes: weights.notes(),
        stored,
    })
}

fn refuse_unknown(family: &'static str, keys: Vec<String>) -> Result<(), ModelError> {
    if keys.is_empty() {
        Ok(())
    } else {
        Err(ModelError::UnknownKeys { family, keys })
    }
}

/// Keys of `config.json` that say nothing of the forward computation: names, training, generation,
/// other software.
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

/// The kinds of the layers, where the file names them.
fn masks(c: &Config, n_layers: usize) -> Result<Option<Vec<Mask>>, ModelError> {
    let Some(types) = c.opt_strs("layer_types")? else {
        return Ok(None);
    };
    if types.len() != n_layers {
        let reason = format!("num_hidden_layers is {n_layers}");
        return Err(ModelError::unsupported(
            "layer_types",
            format!("{} names", types.len()),
            &reason,
        ));
    }
    let mask = |ty: &&str| match *ty {
        "full_attention" => Ok(Mask::Full),
        "sliding_attention" => Ok(Mask::Sliding),
        other => Err(ModelError::unsupported(
            "layer_types",
            other,
            "full_attention and sliding_attention are known",
        )),
    };
    types.iter().map(mask).collect::<Result<_, _>>().map(Some)
}

/// Refuse a number of layers that no model has, before a loop runs over them.
fn layers(key: &str, value: usize) -> Result<usize, ModelError> {
    if value == 0 || value > MAX_LAYERS {
        return Err(ModelError::unsupported(
            key,
            value,
            &format!("1 to {MAX_LAYERS} layers are due"),
        ));
    }
    Ok(value)
}

/// Refuse a number that a root, a quotient or a logarithm cannot take.
fn positive(key: &str, value: f64) -> Result<f64, ModelError> {
    if !(value.is_finite() && value > 0.0) {
        return Err(ModelError::unsupported(
            key,
            value,
            "a number above 0 is due",
        ));
    }
    Ok(value)
}

/// The size of a head where the file does not say.
fn head_dim_of(hidden: usize, n_heads: usize) -> Result<usize, ModelError> {
    if !hidden.is_multiple_of(n_heads) {
        let value = format!("{n_heads} heads for a hidden size of {hidden}");
        return Err(ModelError::unsupported(
            "head_dim",
            value,
            "the file does not say it, and they do not divide",
        ));
    }
    Ok(hidden / n_heads)
}

/// Refuse heads that do not fit together.
fn check_heads(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> Result<(), ModelError> {
    if !n_heads.is_multiple_of(n_kv_heads) {
        let value = format!("{n_kv_heads}, for {n_heads} heads");
        return Err(ModelError::unsupported(
            "number of key-value heads",
            value,
            "it must divide the number of heads",
        ));
    }
    if head_dim % 2 == 1 || head_dim > MAX_HEAD_DIM {
        let reason = format!("an even size up to {MAX_HEAD_DIM} is due");
        return Err(ModelError::unsupported("head size", head_dim, &reason));
    }
    bounded(
        "number of heads * head size",
        n_heads.saturating_mul(head_dim),
    )
    .map(drop)
}

/// Refuse a number that would not fit the arithmetic of shapes, before anything is made of it.
fn bounded(key: &str, value: usize) -> Result<usize, ModelError> {
    const MOST: usize = 1 << 24;
    if value == 0 || value > MOST {
        return Err(ModelError::unsupported(
            key,
            value,
            "a size from 1 to 16,777,216 is due",
        ));
    }
    Ok(value)
}
