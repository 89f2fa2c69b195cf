//! Chooses how a decoder for the Neural Engine is kept within fp16, by what its portable program
//! computes of a text in f32.
//!
//! - The residual stream is divided by the least power of two that leaves [`STREAM_MARGIN`] between
//!   its largest number and the end of fp16.
//! - Norms take the native form, which squares their operands, if the squares of all of them leave
//!   [`SQUARE_MARGIN`], and no mean of squares comes near the numbers that some chips flush to
//!   zero. The stream may be divided by more for that. Otherwise they stay in the form that cannot
//!   overflow.

use thane_cpu::ane::{CompareError, Effects, OpReport, Report};
use thane_mil::program::{Function, Op, ValueId};
use thane_models::NormForm;

use crate::language_model::LanguageModel;
use crate::overflow::{OverflowOptions, compared};

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
/// by a prompt of these tokens.
pub fn calibrate(
    model: &LanguageModel,
    tokens: &[u32],
    options: OverflowOptions,
) -> Result<Calibration, CompareError> {
    let (report, function) = compared(model, tokens, Effects::NONE, options)?;
    let norms = norms(&report, function);
    let stream = report.layers().into_iter().map(|(_, last)| last.largest);
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
        n_tokens: tokens.len(),
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

/// The operands of all root mean square norms of a portable program.
fn norms(report: &Report, f: &Function) -> Vec<Operand> {
    let found = report.ops.iter().filter(|op| op.name == "reduce_mean");
    let operand = |mean: &OpReport| {
        let (squares, x) = squared(f, f.op(mean.op))?;
        let largest = report
            .ops
            .iter()
            .find(|op| op.result == f.value(squares).name)?
            .largest;
        // What a sum or an embedding gives is the stream, what a product gives is not.
        let is_of_stream = f
            .definer(x)
            .is_none_or(|op| matches!(op.def.name, "add" | "gather" | "mul"));
        Some(Operand {
            largest: largest.sqrt(),
            least_mean: mean.least,
            is_of_stream,
        })
    };
    found.filter_map(operand).collect()
}

/// The squares that an op reduces, and what is squared.
fn squared(f: &Function, mean: &Op) -> Option<(ValueId, ValueId)> {
    let squares = mean.value_arg("x")?;
    let square = f.definer(squares).filter(|op| op.def.name == "mul")?;
    let x = square.value_arg("x")?;
    (square.value_arg("y") == Some(x)).then_some((squares, x))
}
