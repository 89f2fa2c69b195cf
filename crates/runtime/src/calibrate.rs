//! Chooses how a decoder for the Neural Engine is kept within fp16, by what its portable program
//! computes of a text in f32.
//!
//! - The residual stream is divided by the least power of two that leaves [`STREAM_MARGIN`] between
//!   its largest number and the end of fp16.
//! - Norms take the native form, which squares their operands, if the squares of all of them leave
//!   [`SQUARE_MARGIN`], and no mean of squares comes near the numbers that some chips flush to
//!   zero. The stream may be divided by more for that. Otherwise they stay in the form that cannot
//!   overflow.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use thane_cpu::ane::layer_of;
use thane_mil::evaluate::HostTensor;
use thane_mil::observe::{Observe, ObserveError};
use thane_mil::program::{Function, Op, ValueId};
use thane_models::NormForm;

use crate::language_model::LanguageModel;
use crate::overflow::Prompts;

/// How much larger numbers of the stream may be in other texts.
const STREAM_MARGIN: f64 = 8.0;
/// How much larger operands of norms may be in other texts.
const SQUARE_MARGIN: f64 = 4.0;
/// How much smaller means of squares may be in other texts.
const MEAN_MARGIN: f64 = 4.0;
/// The largest fp16 number.
const FP16_MAX: f64 = 65504.0;
/// The least fp16 number that is not subnormal.
const FP16_NORMAL: f64 = 1.0 / 16384.0;
/// The largest divisor.
const MOST: f64 = 1024.0;

/// What a text says about the numbers of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Tokens of the text that were computed.
    pub n_tokens: usize,
    /// The largest magnitude of the residual stream.
    pub largest: f64,
    /// The least divisor of the stream.
    pub stream_divisor: f32,
    /// The divisor of the stream that the form of norms needs.
    pub divisor: f32,
    /// The form of norms.
    pub norm: NormForm,
}

/// Finds the divisor of the residual stream and the form of norms for a model in the portable form,
/// by prompts of these tokens, which run on `backend`, each from the start of the cache.
pub fn calibrate(
    model: &LanguageModel,
    pieces: &[Vec<u32>],
    backend: &impl Observe,
) -> Result<Calibration, ObserveError> {
    let prompts = Prompts::new(&model.program, pieces)?;
    let (stream, norms) = (stream(prompts.function), norms(prompts.function));
    let of_norms = norms.iter().flat_map(|norm| [norm.squares, norm.mean]);
    let wanted = stream.iter().copied().chain(of_norms).collect();
    let extents = extents(&prompts, &wanted, backend)?;
    let norms = norms.iter().filter_map(|norm| norm.operand(&extents));
    let norms: Vec<Operand> = norms.collect();
    let stream = stream.iter().filter_map(|v| Some(extents.get(v)?.largest));
    let of_norms = norms.iter().filter(|n| n.is_of_stream).map(|n| n.largest);
    let largest = stream.chain(of_norms).fold(0.0, f64::max);
    let least = (largest * STREAM_MARGIN / FP16_MAX).max(1.0);
    let powers = (0..).map(|i| f64::from(1 << i)).take_while(|d| *d <= MOST);
    let powers: Vec<f64> = powers.filter(|d| *d >= least).collect();
    let native = powers
        .iter()
        .find(|d| !norms.is_empty() && norms.iter().all(|norm| norm.fits(**d)));
    let first = powers.first().copied().unwrap_or(MOST);
    let divisor = native.copied().unwrap_or(first);
    Ok(Calibration {
        n_tokens: prompts.n_tokens(),
        largest,
        stream_divisor: first as f32,
        divisor: divisor as f32,
        norm: match native {
            Some(_) => NormForm::Native,
            None => NormForm::Scaled,
        },
    })
}

/// The operand of a root mean square norm.
struct Operand {
    /// Its largest magnitude.
    largest: f64,
    /// The least mean of its squares.
    least_mean: f64,
    /// Whether it is the residual stream, which is divided.
    is_of_stream: bool,
}

impl Operand {
    /// Whether fp16 holds squares and means if the stream is divided by `divisor`.
    fn fits(&self, divisor: f64) -> bool {
        let divisor = if self.is_of_stream { divisor } else { 1.0 };
        let largest = self.largest / divisor * SQUARE_MARGIN;
        let least = self.least_mean / (divisor * divisor) / MEAN_MARGIN;
        largest * largest <= FP16_MAX && least >= FP16_NORMAL
    }
}

/// The finite magnitudes of a value.
struct Extent {
    /// The largest.
    largest: f64,
    /// The least.
    least: f64,
}

impl Default for Extent {
    /// That of no number.
    fn default() -> Self {
        Self {
            largest: 0.0,
            least: f64::INFINITY,
        }
    }
}

/// The extents of `wanted` over all prompts, as far as the prompts compute them.
fn extents(
    prompts: &Prompts<'_>,
    wanted: &HashSet<ValueId>,
    backend: &impl Observe,
) -> Result<HashMap<ValueId, Extent>, ObserveError> {
    let f = prompts.function;
    let mut extents: HashMap<ValueId, Extent> = HashMap::new();
    let results = |op| f.op(op).results.iter().filter(|v| wanted.contains(v));
    prompts.observe(backend, &|op| results(op).next().is_some(), &mut |call| {
        for value in results(call.op) {
            let extent = extents.entry(*value).or_default();
            call.value(*value)?.each(|x| {
                if x.is_finite() {
                    extent.largest = extent.largest.max(x.abs());
                    extent.least = extent.least.min(x.abs());
                }
            });
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(extents)
}

/// The residual stream behind each layer.
fn stream(f: &Function) -> Vec<ValueId> {
    layer_ends(f).into_values().collect()
}

/// The residual stream behind each layer, by the layer: its last result that something uses.
pub(crate) fn layer_ends(f: &Function) -> HashMap<&str, ValueId> {
    let body = f.body();
    let mut used: HashSet<ValueId> = body.outputs.iter().copied().collect();
    used.extend(body.ops.iter().flat_map(|id| f.uses(*id)));
    let mut last = HashMap::new();
    for op in body.ops.iter().map(|id| f.op(*id)) {
        for result in op.results.iter().filter(|r| used.contains(r)) {
            let layer = layer_of(&op.origin.place).or(layer_of(&f.value(*result).name));
            if let Some(layer) = layer.filter(|_| !op.def.is_constexpr()) {
                last.insert(layer, *result);
            }
        }
    }
    last
}

/// A root mean square norm.
struct Norm {
    /// The squares of its operand.
    squares: ValueId,
    /// Their mean.
    mean: ValueId,
    /// Whether its operand is the residual stream.
    is_of_stream: bool,
}

impl Norm {
    /// Its operand, if its numbers were computed.
    fn operand(&self, extents: &HashMap<ValueId, Extent>) -> Option<Operand> {
        Some(Operand {
            largest: extents.get(&self.squares)?.largest.sqrt(),
            least_mean: extents.get(&self.mean)?.least,
            is_of_stream: self.is_of_stream,
        })
    }
}

/// All root mean square norms of a portable program.
fn norms(f: &Function) -> Vec<Norm> {
    let ops = f.body().ops.iter().map(|id| f.op(*id));
    let norm = |op: &Op| {
        let (squares, x) = squared(f, op)?;
        // What a sum or an embedding gives is the stream, what a product gives is not.
        let is_of_stream = f
            .definer(x)
            .is_none_or(|op| matches!(op.def.name, "add" | "gather" | "mul"));
        Some(Norm {
            squares,
            mean: *op.results.first()?,
            is_of_stream,
        })
    };
    let means = ops.filter(|op| op.def.name == "reduce_mean");
    means.filter_map(norm).collect()
}

/// The squares that an op reduces, and what is squared.
fn squared(f: &Function, mean: &Op) -> Option<(ValueId, ValueId)> {
    let squares = mean.value_arg("x")?;
    let square = f.definer(squares).filter(|op| op.def.name == "mul")?;
    let x = square.value_arg("x")?;
    (square.value_arg("y") == Some(x)).then_some((squares, x))
}
