//! Finds the first op of a portable program whose results fp16 cannot hold. With fp16 numerics, an
//! overflow gives a meaningless answer and no error.

use thane_cpu::ane::{self, CompareError, Effects};
use thane_kernels::Isa;
use thane_mil::backend::{RunError, View};
use thane_mil::budget::Budget;
use thane_mil::program::{Function, Program};
use thane_mil::types::DType;

use crate::language_model::LanguageModel;

/// Tokens that are computed; the first ones have the largest activations.
const MOST_TOKENS: usize = 16;

/// How the search computes.
#[derive(Clone, Debug)]
pub struct OverflowOptions {
    /// Threads.
    pub n_threads: usize,
    /// Instruction set; `None` for the best of the machine.
    pub isa: Option<Isa>,
    /// Limits memory.
    pub budget: Budget,
}

/// The first op that overflows fp16 on the first of these tokens. `None` if nothing overflows, if
/// the program cannot be compared, or if it is in the Neural Engine form, which is written so that
/// fp16 holds its results.
pub fn first_overflow(
    model: &LanguageModel,
    tokens: &[u32],
    options: OverflowOptions,
) -> Option<String> {
    if model.is_for_engine() {
        return None;
    }
    let tokens = &tokens[..tokens.len().min(MOST_TOKENS)];
    let (report, _) = compared(model, tokens, Effects::default(), options).ok()?;
    let found = report.first_overflow.as_ref()?;
    Some(report.op(found).to_string())
}

/// A portable program on a prompt of these tokens, in f32 and with `effects`, op by op; and its
/// function.
pub fn compared<'m>(
    model: &'m LanguageModel,
    tokens: &[u32],
    effects: Effects,
    options: OverflowOptions,
) -> Result<(ane::Report, &'m Function), CompareError> {
    let program = &model.program;
    let has = |name: &str| program.function(name).is_some();
    let (name, n) = match (has("prefill"), has("verify")) {
        (true, _) => ("prefill", tokens.len()),
        (false, true) => ("verify", tokens.len()),
        (false, false) => ("decode", tokens.len().min(1)),
    };
    let missing = || RunError::NoFunction(name.to_owned());
    let function = program.function(name).ok_or_else(missing)?;
    let alone = Program::new(vec![function.clone()]);
    let ids: Vec<u8> = tokens[..n].iter().flat_map(|t| t.to_ne_bytes()).collect();
    let position = 0i32.to_ne_bytes();
    let view = |shape, bytes| View {
        dtype: DType::Int32,
        shape,
        bytes,
    };
    let shape = [1, n];
    let inputs = [
        ("input_ids", view(&shape[..], &ids[..])),
        ("position", view(&[1], &position)),
    ];
    let options = ane::Options {
        effects,
        n_threads: options.n_threads,
        isa: options.isa,
        budget: options.budget,
        ..ane::Options::default()
    };
    let report = ane::compare(&alone, name, &inputs, &[], &options)?;
    Ok((report, function))
}
