//! Finds the first op of a portable program whose results fp16 cannot hold. With fp16 numerics, an
//! overflow gives a meaningless answer and no error.

use thane_cpu::ane;
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
    if model.is_for_ane() {
        return None;
    }
    let prompt = Prompt::new(&model.program, &tokens[..tokens.len().min(MOST_TOKENS)]).ok()?;
    let alone = Program::new(vec![prompt.function.clone()]);
    let options = ane::Options {
        n_threads: options.n_threads,
        isa: options.isa,
        budget: options.budget,
        ..ane::Options::default()
    };
    let name = &prompt.function.name;
    let report = ane::compare(&alone, name, &prompt.inputs(), &[], &options).ok()?;
    let found = report.first_overflow.as_ref()?;
    Some(report.op(found).to_string())
}

/// A call of the portable program of a decoder for tokens at its beginning.
pub struct Prompt<'m> {
    /// The function that is called.
    pub function: &'m Function,
    ids: Vec<u8>,
    shape: [usize; 2],
    position: [u8; 4],
}

impl<'m> Prompt<'m> {
    /// The call that takes most of `tokens`: `decode` takes the first alone.
    pub fn new(program: &'m Program, tokens: &[u32]) -> Result<Self, RunError> {
        let has = |name: &str| program.function(name).is_some();
        let (name, n) = match (has("prefill"), has("verify")) {
            (true, _) => ("prefill", tokens.len()),
            (false, true) => ("verify", tokens.len()),
            (false, false) => ("decode", tokens.len().min(1)),
        };
        let missing = || RunError::NoFunction(name.to_owned());
        Ok(Self {
            function: program.function(name).ok_or_else(missing)?,
            ids: tokens[..n].iter().flat_map(|t| t.to_ne_bytes()).collect(),
            shape: [1, n],
            position: 0i32.to_ne_bytes(),
        })
    }

    /// The call that gives logits for each of `tokens`, if there is one.
    pub fn of_all_tokens(program: &'m Program, tokens: &[u32]) -> Result<Self, RunError> {
        let prompt = Self::new(program, tokens)?;
        let function = program.function("verify").unwrap_or(prompt.function);
        Ok(Self { function, ..prompt })
    }

    /// Its inputs by name.
    pub fn inputs(&self) -> [(&str, View<'_>); 2] {
        let view = |shape, bytes| View {
            dtype: DType::Int32,
            shape,
            bytes,
        };
        [
            ("input_ids", view(&self.shape[..], &self.ids[..])),
            ("position", view(&[1], &self.position)),
        ]
    }
}
