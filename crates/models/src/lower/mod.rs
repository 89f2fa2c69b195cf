//! Lowers what a family describes to a program: here a decoder, and in `encoder` embedding models
//! and classifiers. Functions of a decoder for the Neural Engine are those of an [`Interface`]: in
//! `ane` our own, in `anemll` those of ANEMLL bundles.

mod ane;
mod anemll;
mod encoder;

use thane_mil::build::FunctionBuilder;
use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Function, Program};

use crate::error::ModelError;
use crate::graph::{Graph, SharedConstants, Spelling};
use crate::layers::decoder::{Lowering, Mode};
use crate::numbers;
use crate::transformer::Transformer;
use crate::weights::Weights;
use crate::{AneDecoder, Info, Model, Options};
use ane::Built;
pub use ane::THANE;
pub use anemll::ANEMLL;
pub(crate) use encoder::{lower_classifier, lower_encoder};

/// Constants of up to this many bytes (norms and biases) are checked for NaN and infinity when a
/// program is built; larger tensors are checked when they are used.
const SMALL_BYTES: usize = 1 << 16;

/// Whose names, shapes and calls the functions of a decoder for the Neural Engine have.
#[derive(Debug)]
pub struct Interface {
    functions: fn(&Asked<'_>) -> Result<Built, ModelError>,
}

/// A decoder whose functions are built, and the form that is asked for.
struct Asked<'a> {
    architecture: &'a str,
    decoder: &'a Transformer,
    weights: &'a Weights<'a>,
    ane: &'a AneDecoder,
    context: usize,
    shared: &'a SharedConstants,
}

/// Lowers a decoder to the functions `prefill`, `decode` and, as the options say, `decode_top` and
/// `verify`.
pub(crate) fn lower(
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
    let built = match &options.ane {
        None => portable(decoder, weights, (options, context, n_top), &shared)?,
        Some(ane) => (ane.interface.functions)(&Asked {
            architecture: &architecture,
            decoder,
            weights,
            ane,
            context,
            shared: &shared,
        })?,
    };
    weights.finish()?;
    let stored = shared.borrow().stored();
    numbers::check(&stored, Some(SMALL_BYTES))?;
    let recurrent = decoder.recurrent_elements(options.ane.is_some());
    let info = Info {
        architecture,
        n_layers: decoder.layers.len(),
        vocab_size: decoder.vocab_size,
        max_context: max,
        context,
        cache_bytes: decoder
            .cache_elements(options.ane.is_some())
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
        bundle: built.bundle,
    })
}

/// The functions of any length, `decode_top` with so many logits.
fn portable(
    decoder: &Transformer,
    weights: &Weights<'_>,
    (options, context, n_top): (&Options, usize, Option<usize>),
    shared: &SharedConstants,
) -> Result<Built, ModelError> {
    let lowering = Lowering {
        context,
        cache: options.cache,
        residual_divisor: 1.0,
        fixed: None,
    };
    let function = |mode: Mode| {
        let graph = Graph::new(mode.name(), shared.clone(), Spelling::PORTABLE);
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
    Ok(Built {
        functions,
        tables: Vec::new(),
        cache: options.cache,
        fixed: None,
        bundle: None,
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
    if options.ane.is_some() {
        return refused("programs for the Neural Engine give all logits of a token");
    }
    if n == 0 {
        return refused("expected at least one logit");
    }
    Ok(Some(n.min(vocab_size)))
}
