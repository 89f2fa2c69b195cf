//! Finds the first op of a portable program whose results fp16 cannot hold. With fp16 numerics, an
//! overflow gives a meaningless answer and no error.

use thane_cpu::ane::{self, Effects};
use thane_kernels::Isa;
use thane_mil::backend::View;
use thane_mil::budget::Budget;
use thane_mil::program::Program;
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
    let program = &model.program;
    let tokens = &tokens[..tokens.len().min(MOST_TOKENS)];
    let (name, tokens) = match (program.function("prefill"), program.function("verify")) {
        (Some(_), _) => ("prefill", tokens),
        (None, Some(_)) => ("verify", tokens),
        (None, None) => ("decode", tokens.get(..1)?),
    };
    let alone = Program::new(vec![program.function(name)?.clone()]);
    let ids: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token.to_ne_bytes())
        .collect();
    let position = 0i32.to_ne_bytes();
    let view = |shape, bytes| View {
        dtype: DType::Int32,
        shape,
        bytes,
    };
    let shape = [1, tokens.len()];
    let inputs = [
        ("input_ids", view(&shape[..], &ids[..])),
        ("position", view(&[1], &position)),
    ];
    let options = ane::Options {
        effects: Effects::default(),
        n_threads: options.n_threads,
        isa: options.isa,
        budget: options.budget,
        ..ane::Options::default()
    };
    let report = ane::compare(&alone, name, &inputs, &[], &options).ok()?;
    let found = report.first_overflow.as_ref()?;
    Some(report.op(found).to_string())
}
