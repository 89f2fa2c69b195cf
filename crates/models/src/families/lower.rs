//! Lowers a family's configuration to a program.

use thane_mil::build::FunctionBuilder;
use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Function, Program};
use thane_mil::types::DType;

use super::Encoder;
use super::anemll;
use super::engine::{Built, engine_functions};
use super::keys::check_size;
use crate::checkpoint::{SentenceConfig, Step};
use crate::classifier::{Classifier, ClassifierInfo, Scores};
use crate::encoder::{Encoder as BuiltEncoder, EncoderInfo, EncoderOptions, Target};
use crate::error::ModelError;
use crate::graph::{Form, Graph, Layout, SharedConstants};
use crate::layers::decoder::{Lowering, Mode};
use crate::layers::encoder::{EncoderPlan, Encoding, Extent, Head};
use crate::numbers;
use crate::transformer::Transformer;
use crate::weights::Weights;
use crate::{Info, Interface, Model, Options, Pooling};

/// Constants of up to this many bytes (norms and biases) are checked for NaN and infinity when a
/// program is built; larger tensors are checked when they are used.
const SMALL_BYTES: usize = 1 << 16;

/// Rows of the pool matrix in functions of fixed length.
const MAX_CHUNKS: usize = 32;

/// Lowers a decoder to the functions `prefill`, `decode` and, as the options say, `decode_top` and
/// `verify`.
pub(super) fn lower(
    architecture: String,
    decoder: &Transformer,
    weights: &Weights<'_>,
    options: &Options,
) -> Result<Model, ModelError> {
    let [usual, max] = decoder.contexts();
    let context = options
        .context
        .unwrap_or(usual.min(Options::DEFAULT_CONTEXT));
    if context == 0 || context > max {
        return Err(ModelError::Context {
            asked: context,
            max,
        });
    }
    let n_top = n_top(options, decoder.vocab_size)?;
    let shared = SharedConstants::default();
    let built = match &options.engine {
        None => {
            let lowering = Lowering {
                context,
                cache: options.cache,
                residual_divisor: 1.0,
                fixed: None,
            };
            let function = |mode: Mode| {
                let graph = Graph::new(mode.name(), shared.clone(), Form::PORTABLE);
                let (function, _) = decoder.decoder_function(graph, weights, mode, &lowering)?;
                Ok::<_, ModelError>(function)
            };
            let mut functions = vec![function(Mode::Prefill)?, function(Mode::Decode)?];
            if let Some(n) = n_top {
                functions.push(decode_top(&functions[1], n)?);
            }
            if options.verify {
                functions.push(function(Mode::Verify)?);
            }
            Built {
                functions,
                tables: Vec::new(),
                cache: options.cache,
                fixed: None,
                anemll: None,
            }
        }
        Some(engine) if engine.interface == Interface::Anemll => {
            let form = (engine, context);
            anemll::functions(&architecture, decoder, weights, form, &shared)?
        }
        Some(engine) => engine_functions(decoder, weights, engine, context, &shared)?,
    };
    weights.finish()?;
    let stored = shared.borrow().stored();
    numbers::check(&stored, Some(SMALL_BYTES))?;
    let recurrent = decoder.recurrent_elements(options.engine.is_some());
    let info = Info {
        architecture,
        n_layers: decoder.layers.len(),
        vocab_size: decoder.vocab_size,
        max_context: max,
        context,
        cache_bytes: decoder
            .cache_elements(options.engine.is_some())
            .saturating_mul(context)
            .saturating_add(recurrent)
            .saturating_mul(built.cache.bits() / 8),
        recurrent: recurrent != 0,
        fixed: built.fixed,
    };
    Ok(Model {
        program: Program::new(built.functions),
        info,
        notes: weights.notes(),
        stored,
        tables: built.tables,
        anemll: built.anemll,
    })
}

/// The function `decode_top`: `decode` with `topk(logits, n)` as its outputs instead of `logits`.
fn decode_top(decode: &Function, n: usize) -> Result<Function, ModelError> {
    let logits = decode.body().outputs[0]; // [1, 1, vocabulary]
    let mut b = FunctionBuilder::continuing(decode, "decode_top");
    b.set_place("lm_head");
    let k = b.constant("k", Literal::i32(i32::try_from(n).unwrap_or(i32::MAX)))?;
    let axis = b.constant("axis", Literal::i32(-1))?;
    let args = [("x", logits), ("k", k), ("axis", axis)];
    let args = args.map(|(param, value)| (param, Arg::Value(value)));
    let top = b.op_results("topk", "top", args)?; // [1, 1, n] each
    Ok(b.finish(&[("top_logits", top[0]), ("top_tokens", top[1])]))
}

/// The number of logits that `decode_top` gives, if the options ask for that function.
fn n_top(options: &Options, vocab_size: usize) -> Result<Option<usize>, ModelError> {
    let Some(n) = options.top else {
        return Ok(None);
    };
    let refused = |reason| Err(ModelError::unsupported("top", n, reason));
    if options.engine.is_some() {
        return refused("programs for the Neural Engine give all logits of a token");
    }
    if n == 0 {
        return refused("expected at least one logit");
    }
    Ok(Some(n.min(vocab_size)))
}

/// Lowers an encoder to one function of any length, or to one function for each bucket.
pub(super) fn lower_encoder(
    architecture: String,
    encoder: &dyn Encoder,
    weights: &Weights<'_>,
    sentence: SentenceConfig,
    options: &EncoderOptions,
) -> Result<BuiltEncoder, ModelError> {
    let sizes = encoder.sizes();
    let [n_positions, max_tokens] = sizes.lengths(sentence.max_tokens)?;
    let pooling = options.pooling.or(sentence.pooling);
    // Token vectors are not pooled, so any pooling will do.
    let pooling = pooling.or((options.encoding == Encoding::Tokens).then(|| Pooling::Mean.into()));
    let pooling = pooling.ok_or(ModelError::Pooling)?;
    let mut sentence = sentence;
    match options.normalize {
        Some(true) if !sentence.normalizes() => sentence.steps.push(Step::Normalize),
        Some(false) if sentence.normalizes() => drop(sentence.steps.pop()),
        _ => {}
    }
    let n_joined = pooling.modes().len();
    if n_joined > 1 && options.encoding != Encoding::Text {
        return Err(ModelError::unsupported(
            "pooling_mode",
            pooling,
            "expected one mode, because tokens and chunks are not pooled in several ways",
        ));
    }
    let hidden = output_dim(sizes.hidden, &sentence.token_steps)?;
    let dim = output_dim(hidden.saturating_mul(n_joined), &sentence.steps)?;
    let head = Head {
        encoding: options.encoding,
        pooling,
        token_steps: &sentence.token_steps,
        steps: &sentence.steps,
        include_prompt: sentence.include_prompt,
        token_types: false,
    };
    let shared = SharedConstants::default();
    let functions = encoder_functions(
        encoder,
        n_positions,
        weights,
        &options.target,
        head,
        &shared,
    )?;
    weights.finish()?;
    let stored = shared.borrow().stored();
    numbers::check(&stored, Some(SMALL_BYTES))?;
    let info = EncoderInfo {
        architecture,
        n_layers: sizes.n_layers,
        vocab_size: sizes.vocab_size,
        n_positions,
        dim,
        max_tokens,
        pooling,
        normalize: sentence.normalizes(),
        truncate_dim: sentence.truncate_dim.filter(|n| *n < dim),
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

/// Lowers a sequence classifier to the function `classify`, in the forms of an encoder.
pub(super) fn lower_classifier(
    architecture: String,
    encoder: &dyn Encoder,
    weights: &Weights<'_>,
    scores: Scores,
    target: &Target,
) -> Result<Classifier, ModelError> {
    let sizes = encoder.sizes();
    let [n_positions, max_tokens] = sizes.lengths(scores.settings.max_tokens)?;
    let head = Head {
        encoding: Encoding::Labels,
        pooling: Pooling::Cls.into(),
        token_steps: &[],
        steps: &[],
        include_prompt: true,
        token_types: encoder.has_token_types() && scores.token_types,
    };
    let shared = SharedConstants::default();
    let functions = encoder_functions(encoder, n_positions, weights, target, head, &shared)?;
    weights.finish()?;
    let stored = shared.borrow().stored();
    numbers::check(&stored, Some(SMALL_BYTES))?;
    let info = ClassifierInfo {
        architecture,
        n_layers: sizes.n_layers,
        vocab_size: sizes.vocab_size,
        n_positions,
        max_tokens,
        n_labels: scores.n_labels,
        token_types: head.token_types,
        sigmoid: scores.sigmoid,
        lower_case: scores.settings.lower_case,
        prompt: scores.settings.prompt,
        messages: scores.settings.messages,
    };
    Ok(Classifier {
        program: Program::new(functions),
        info,
        stored,
    })
}

/// The number of elements of a vector behind steps that take one of `dim` elements.
fn output_dim(mut dim: usize, steps: &[Step]) -> Result<usize, ModelError> {
    for step in steps {
        let (folder, key, inputs, outputs) = match step {
            Step::Dense(dense) => (&dense.folder, "in_features", dense.inputs, dense.size()),
            Step::LayerNorm { folder, size } => (folder, "dimension", *size, *size),
            Step::Normalize => continue,
        };
        if inputs != dim {
            let expected = format!("expected {dim}, the size of the vector before this layer");
            let key = format!("{folder}/config.json: {key}");
            return Err(ModelError::unsupported(&key, inputs, &expected));
        }
        dim = check_size("out_features", outputs)?;
    }
    Ok(dim)
}

/// The functions of an encoder: for the portable reference one of any length; for the Neural Engine
/// one for the length of each bucket and, if `flexible` is set, one of any length. A text has at
/// most `n_positions` tokens.
fn encoder_functions(
    encoder: &dyn Encoder,
    n_positions: usize,
    weights: &Weights<'_>,
    target: &Target,
    head: Head<'_>,
    shared: &SharedConstants,
) -> Result<Vec<Function>, ModelError> {
    let name = head.encoding.function();
    let build = |name: &str, form, residual_divisor, tokens, chunks| {
        let extent = Extent {
            single: form != Form::PORTABLE,
            tokens,
            chunks,
            has_pooling_mask: !head.include_prompt,
            max_tokens: n_positions,
        };
        let plan = EncoderPlan {
            extent,
            head,
            residual_divisor,
        };
        encoder.function(Graph::new(name, shared.clone(), form), weights, &plan)
    };
    let Target::Engine(engine) = target else {
        return Ok(vec![build(name, Form::PORTABLE, 1.0, None, None)?]);
    };
    let divisor = engine
        .residual_divisor
        .unwrap_or(encoder.residual_divisor());
    let form = |layout| Form {
        layout,
        float: DType::Fp16,
        norm: engine.norm,
    };
    let mut functions = Vec::new();
    for length in &engine.buckets {
        check_bucket(*length, n_positions)?;
        functions.push(build(
            &format!("{name}_{length}"),
            form(Layout::Channels),
            divisor,
            Some(*length),
            Some(MAX_CHUNKS),
        )?);
    }
    if engine.flexible {
        functions.push(build(name, form(Layout::Rows), divisor, None, None)?);
    }
    Ok(functions)
}

/// Rejects a bucket length that the model has no positions for.
fn check_bucket(length: usize, n_positions: usize) -> Result<(), ModelError> {
    if length == 0 || length > n_positions {
        return Err(ModelError::Bucket {
            asked: length,
            max: n_positions,
        });
    }
    Ok(())
}
