//! Runs a chain on any backend.

use std::sync::Arc;

use thane_mil::backend::{Executable, Instance, RunError, View};
use thane_mil::literal::f16_to_f32;
use thane_mil::types::DType;

use super::fill::{Place, fill};
use super::{Chain, Logits, Step};

/// The program of a chain, prepared for one machine.
///
/// Its instances have the functions `prefill` (any number of tokens, logits of the last), `decode`
/// (one token) and `score` (logits of every token).
pub struct ChainExecutable {
    program: Arc<dyn Executable>,
    chain: Arc<Chain>,
}

impl ChainExecutable {
    /// The chain over a program that has its functions.
    pub fn new(program: Arc<dyn Executable>, chain: Arc<Chain>) -> Self {
        Self { program, chain }
    }
}

impl Executable for ChainExecutable {
    fn instantiate(&self) -> Result<Box<dyn Instance>, RunError> {
        let chain = self.chain.clone();
        Ok(Box::new(ChainInstance {
            program: self.program.instantiate()?,
            slots: chain.slot_bytes.iter().map(|n| vec![0; *n]).collect(),
            chain,
            input_ids: Vec::new(),
            position: [0; 4],
            tokens: Vec::new(),
            logits: Vec::new(),
            shape: [1, 0, 0],
        }))
    }
}

struct ChainInstance {
    program: Box<dyn Instance>,
    chain: Arc<Chain>,
    slots: Vec<Vec<u8>>,
    /// The input `input_ids`.
    input_ids: Vec<u8>,
    /// The input `position`.
    position: [u8; 4],
    /// The tokens in the caches.
    tokens: Vec<u32>,
    /// The output `logits`, row by row.
    logits: Vec<f32>,
    shape: [usize; 3],
}

impl Instance for ChainInstance {
    fn input(&mut self, name: &str, shape: &[usize]) -> Result<&mut [u8], RunError> {
        match (name, shape) {
            ("input_ids", [1, n]) => {
                self.input_ids.resize(4 * n, 0);
                Ok(&mut self.input_ids)
            }
            ("position", [1]) => Ok(&mut self.position),
            ("input_ids" | "position", _) => Err(RunError::Shape {
                name: name.to_owned(),
                expected: "int32 [1, tokens] or, for `position`, int32 [1]".to_owned(),
                given: shape.to_vec(),
            }),
            _ => Err(RunError::NoInput(name.to_owned())),
        }
    }

    fn run(&mut self, function: &str) -> Result<(), RunError> {
        let ids = self.input_ids.as_chunks::<4>().0;
        let ids: Vec<u32> = ids.iter().map(|id| u32::from_ne_bytes(*id)).collect();
        if !["prefill", "decode", "score"].contains(&function) {
            return Err(RunError::NoFunction(function.to_owned()));
        }
        let position = usize::try_from(i32::from_ne_bytes(self.position));
        self.go_back_to(position.unwrap_or(usize::MAX))?;
        self.logits.clear();
        // A head gives the logits of one token.
        let length = if function == "score" { 1 } else { ids.len() };
        for part in ids.chunks(length.max(1)) {
            self.process(part, true)?;
        }
        self.shape = [
            1,
            self.logits.len() / self.chain.vocab_size.max(1),
            self.chain.vocab_size,
        ];
        Ok(())
    }

    fn output(&self, name: &str) -> Result<View<'_>, RunError> {
        match name {
            "logits" => Ok(View {
                dtype: DType::Fp32,
                shape: &self.shape,
                bytes: bytemuck::cast_slice(&self.logits),
            }),
            _ => Err(RunError::NoOutput(name.to_owned())),
        }
    }

    fn state(&self, name: &str) -> Result<View<'_>, RunError> {
        self.program.state(name)
    }

    fn state_mut(&mut self, name: &str) -> Result<&mut [u8], RunError> {
        self.program.state_mut(name)
    }

    fn reset(&mut self) {
        self.program.reset();
        self.slots.iter_mut().for_each(|slot| slot.fill(0));
        self.tokens.clear();
    }
}

impl ChainInstance {
    /// Makes the caches hold the first `n` of their tokens.
    fn go_back_to(&mut self, n: usize) -> Result<(), RunError> {
        if n > self.tokens.len() {
            return Err(RunError::Chain(format!(
                "expected a position up to {}, the number of tokens so far, found {n}",
                self.tokens.len()
            )));
        }
        if n == self.tokens.len() || self.tokens.len() <= self.chain.rewind_limit {
            self.tokens.truncate(n);
            return Ok(());
        }
        let tokens = self.tokens[..n].to_vec();
        self.reset();
        self.process(&tokens, false)
    }

    /// Appends tokens to the caches. With `with_head`, appends the logits of the last token to
    /// `logits`.
    fn process(&mut self, tokens: &[u32], with_head: bool) -> Result<(), RunError> {
        let (chain, mut rest) = (self.chain.clone(), tokens);
        while !rest.is_empty() {
            let position = self.tokens.len();
            let call = chain.call(position, rest.len()).ok_or_else(|| {
                RunError::Chain(format!(
                    "no function takes the token at position {position}: the context holds {} \
                     tokens",
                    chain.context
                ))
            })?;
            let (now, later) = rest.split_at(call.n_tokens);
            let place = Place {
                tokens: now,
                position,
            };
            call.steps
                .iter()
                .try_for_each(|step| self.run_step(step, place))?;
            self.tokens.extend_from_slice(now);
            rest = later;
            if rest.is_empty() && with_head {
                chain
                    .head
                    .iter()
                    .try_for_each(|step| self.run_step(step, place))?;
                self.read_logits(&chain)?;
            }
        }
        Ok(())
    }

    fn run_step(&mut self, step: &Step, place: Place<'_>) -> Result<(), RunError> {
        for input in &step.inputs {
            let bytes = self.program.input(&input.name, &input.shape)?;
            fill(bytes, input, place, &self.slots)?;
        }
        self.program.run(&step.function)?;
        for (output, slot) in &step.keeps {
            let bytes = self.program.output(output)?.bytes;
            let slot = &mut self.slots[*slot];
            slot.clear();
            slot.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Appends the logits that the last step gave.
    fn read_logits(&mut self, chain: &Chain) -> Result<(), RunError> {
        let start = self.logits.len();
        match &chain.logits {
            Logits::Joined(outputs) => {
                for output in outputs {
                    append_floats(&self.program.output(output)?, &mut self.logits);
                }
            }
            Logits::Greatest {
                tokens,
                logits,
                slices,
            } => {
                let mut values = Vec::new();
                append_floats(&self.program.output(logits)?, &mut values);
                let ids = self.program.output(tokens)?.bytes.as_chunks::<4>().0;
                self.logits
                    .resize(start + chain.vocab_size, f32::NEG_INFINITY);
                let row = &mut self.logits[start..];
                let mut first = 0;
                for ((id, value), n) in ids.iter().zip(values).zip(slices) {
                    let id = usize::try_from(i32::from_ne_bytes(*id)).unwrap_or(usize::MAX);
                    let token = first + id;
                    first += n;
                    // A row of NaN has no greatest element, and its index means nothing.
                    if id < *n && token < row.len() {
                        row[token] = value;
                    }
                }
            }
        }
        match self.logits.len() - start {
            n if n == chain.vocab_size => Ok(()),
            n => Err(RunError::Chain(format!(
                "expected {} logits, found {n}",
                chain.vocab_size
            ))),
        }
    }
}

fn append_floats(view: &View<'_>, to: &mut Vec<f32>) {
    if view.dtype == DType::Fp16 {
        let cells = view.bytes.as_chunks::<2>().0.iter();
        to.extend(cells.map(|b| f16_to_f32(u16::from_ne_bytes(*b))));
    } else {
        let cells = view.bytes.as_chunks::<4>().0.iter();
        to.extend(cells.map(|b| f32::from_ne_bytes(*b)));
    }
}
