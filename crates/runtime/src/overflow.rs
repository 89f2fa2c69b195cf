//! Finds the first op of a portable program whose results fp16 cannot hold. With fp16 numerics, an
//! overflow gives a meaningless answer and no error.

use thane_cpu::ane;
use thane_kernels::Isa;
use thane_mil::backend::{RunError, View};
use thane_mil::budget::Budget;
use thane_mil::observe::{Asks, Given, Observe, ObserveError, Visit};
use thane_mil::program::{Function, Program};
use thane_mil::types::{DType, Type};

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

/// Calls of the portable program of a decoder for several texts, each at the beginning.
pub struct Prompts<'m> {
    /// The function that is called.
    pub function: &'m Function,
    prompts: Vec<Prompt<'m>>,
}

impl<'m> Prompts<'m> {
    /// The calls that take most of the tokens of each piece.
    pub fn new(program: &'m Program, pieces: &[Vec<u32>]) -> Result<Self, RunError> {
        let prompts = pieces.iter().map(|tokens| Prompt::new(program, tokens));
        let prompts: Vec<Prompt<'m>> = prompts.collect::<Result<_, _>>()?;
        let first = prompts.first().map(|prompt| prompt.function);
        Ok(Self {
            function: first.ok_or_else(|| RunError::NoInput("input_ids".to_owned()))?,
            prompts,
        })
    }

    /// The calls that give logits for each token, if there are such calls.
    pub fn of_all_tokens(program: &'m Program, pieces: &[Vec<u32>]) -> Result<Self, RunError> {
        let prompts = Self::new(program, pieces)?;
        let function = program.function("verify").unwrap_or(prompts.function);
        Ok(Self {
            function,
            ..prompts
        })
    }

    /// Tokens of all calls.
    pub fn n_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.shape[1]).sum()
    }

    /// Runs all calls, with states of zeros before each.
    pub fn observe<O: Observe>(
        &self,
        backend: &O,
        asks: &Asks<'_>,
        visit: &mut Visit<'_, O::Tensor>,
    ) -> Result<(), ObserveError> {
        let zeros = Zeros::of(self.function);
        let (inputs, states): (Vec<_>, _) = (
            self.prompts.iter().map(Prompt::inputs).collect(),
            zeros.views(),
        );
        let given = inputs.iter().map(|inputs| Given {
            inputs,
            states: &states,
        });
        let given: Vec<Given<'_>> = given.collect();
        let _ = backend.observe(self.function, &given, asks, visit)?;
        Ok(())
    }
}

/// The states of a function, all zero.
struct Zeros<'m> {
    types: Vec<(&'m str, DType, Vec<usize>)>,
    /// As many as the largest state takes.
    bytes: Vec<u8>,
}

impl<'m> Zeros<'m> {
    fn of(f: &'m Function) -> Self {
        let inputs = f.body().inputs.iter().map(|input| f.value(*input));
        let types = inputs.filter_map(|value| match &value.ty {
            Type::State(ty) => Some((&value.name[..], ty.dtype, ty.known_shape()?)),
            _ => None,
        });
        let types: Vec<_> = types.collect();
        let most = types.iter().map(Self::byte_len).max().unwrap_or(0);
        Self {
            types,
            bytes: vec![0; most],
        }
    }

    fn byte_len((_, dtype, shape): &(&str, DType, Vec<usize>)) -> usize {
        dtype.byte_len(shape.iter().product()).unwrap_or(0)
    }

    fn views(&self) -> Vec<(&str, View<'_>)> {
        let views = self.types.iter().map(|state| {
            let (name, dtype, shape) = state;
            let bytes = &self.bytes[..Self::byte_len(state)];
            (
                *name,
                View {
                    dtype: *dtype,
                    shape,
                    bytes,
                },
            )
        });
        views.collect()
    }
}
