//! Builds a chain step by step: each input of a function is bound to what the host feeds, and its
//! type is compared with what it gets.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use thane_calls::Given;
use thane_engine::chain::{Call, Feed, Input, Step};
use thane_mil::lower;
use thane_mil::opset::Opset;
use thane_mil::program::{Function, Program};
use thane_mil::types::{DType, TensorType};

use super::fault::ForeignError;
use super::part::{self, ForeignPart};

/// The steps of a bundle that is being read.
#[derive(Default)]
pub(super) struct Chaining {
    functions: BTreeMap<String, Function>,
    /// What each slot holds at this point of the call.
    slots: Vec<Held>,
    states: BTreeMap<String, (TensorType, String)>,
}

/// A value that is passed from step to step.
struct Held {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    bytes: usize,
}

/// What a step is about.
pub(super) struct Run<'a> {
    pub part: &'a ForeignPart,
    pub function: &'a str,
    /// Tokens of the call.
    pub n_tokens: usize,
    /// The value of an input by its name.
    pub feed: &'a dyn Fn(&str) -> Option<Feed>,
    /// Outputs to keep, each with its slot.
    pub keeps: Vec<(String, usize)>,
}

impl Chaining {
    /// A slot for values of this name.
    pub fn slot(&mut self, name: &str) -> usize {
        self.held(name, (DType::Fp16, Vec::new(), 0))
    }

    /// A slot that begins as zeros of this type, for a cache.
    pub fn cache(&mut self, name: &str, ty: &TensorType) -> usize {
        let shape = ty.known_shape().unwrap_or_default();
        self.held(name, (ty.dtype, shape, ty.byte_len().unwrap_or(0)))
    }

    fn held(&mut self, name: &str, (dtype, shape, bytes): (DType, Vec<usize>, usize)) -> usize {
        self.slots.push(Held {
            name: name.to_owned(),
            dtype,
            shape,
            bytes,
        });
        self.slots.len() - 1
    }

    /// Adds a step.
    pub fn step(&mut self, run: Run<'_>) -> Result<Step, ForeignError> {
        let f = run.part.need(run.function)?;
        let mut bound = Vec::new();
        for port in part::inputs(f) {
            if port.is_state {
                self.check_state(&run, f, port.name, port.ty)?;
                continue;
            }
            let feed = (run.feed)(port.name).ok_or_else(|| {
                let what = format!("the layout has no input `{}`", port.name);
                run.part
                    .fault(f, what)
                    .remedy("a bundle of text only, of a version that docs/bundles.md lists")
            })?;
            let shape = known(port.ty, run.n_tokens);
            self.check_feed(&feed, port.ty.dtype, &shape, run.n_tokens)
                .map_err(|what| run.part.fault(f, format!("input `{}`: {what}", port.name)))?;
            bound.push(Input {
                name: port.name.to_owned(),
                dtype: port.ty.dtype,
                shape,
                feed,
            });
        }
        for (output, slot) in &run.keeps {
            self.hold(&run, f, output, *slot)?;
        }
        let name = run.part.joined_name(f);
        if !self.functions.contains_key(&name) {
            let mut function = f.clone();
            function.name.clone_from(&name);
            self.functions.insert(name.clone(), function);
        }
        Ok(Step {
            function: name,
            inputs: bound,
            keeps: run.keeps,
            stores: Vec::new(),
        })
    }

    /// The slot takes the type of an output. A cache keeps its type.
    fn hold(
        &mut self,
        run: &Run<'_>,
        f: &Function,
        output: &str,
        slot: usize,
    ) -> Result<(), ForeignError> {
        let port = part::output(f, output).ok_or_else(|| {
            let names = part::output_names(f);
            let what = format!("expected the output `{output}`, found {names}");
            run.part.fault(f, what)
        })?;
        let shape = known(port.ty, run.n_tokens);
        let held = &mut self.slots[slot];
        if held.bytes > 0 && (held.dtype, &held.shape) != (port.ty.dtype, &shape) {
            let what = format!(
                "output `{output}`: expected {} {:?}, as its input has, found {} {shape:?}",
                held.dtype.name(),
                held.shape,
                port.ty.dtype.name()
            );
            return Err(run.part.fault(f, what));
        }
        held.dtype = port.ty.dtype;
        held.shape = shape;
        Ok(())
    }

    /// States of one name are one state, so their types must be equal.
    fn check_state(
        &mut self,
        run: &Run<'_>,
        f: &Function,
        name: &str,
        ty: &TensorType,
    ) -> Result<(), ForeignError> {
        let first = self
            .states
            .entry(name.to_owned())
            .or_insert_with(|| (ty.clone(), run.part.file()));
        if first.0 == *ty {
            return Ok(());
        }
        let what = format!(
            "state `{name}`: expected {}, as {} has it, found {ty}",
            first.0, first.1
        );
        Err(run.part.fault(f, what).remedy(
            "a bundle whose parts share one cache: convert the model again with the newest version",
        ))
    }

    /// Compares an input with what it is set to.
    fn check_feed(
        &self,
        feed: &Feed,
        dtype: DType,
        shape: &[usize],
        n: usize,
    ) -> Result<(), String> {
        let is_float = [DType::Fp16, DType::Fp32].contains(&dtype);
        let last = shape.last().copied().unwrap_or(0);
        let elements: usize = shape.iter().product();
        let (expected, fits) = match feed {
            Feed::Tokens => (
                format!("int32 [1, {n}]"),
                dtype == DType::Int32 && *shape == [1, n],
            ),
            Feed::Positions => (
                format!("int32 [{n}]"),
                dtype == DType::Int32 && *shape == [n],
            ),
            Feed::Position => (
                "int32 [1]".to_owned(),
                dtype == DType::Int32 && *shape == [1],
            ),
            Feed::CausalMask => (
                format!("a float [1, 1, {n}, context]"),
                is_float && elements == n * last,
            ),
            Feed::RecentMask => (
                "a float [1, 1, 1, window]".to_owned(),
                is_float && n == 1 && elements == last,
            ),
            Feed::WriteMask => (
                format!("a float [1, 1, context, {n}]"),
                is_float
                    && last == n
                    && shape.iter().rev().nth(1).is_some_and(|s| s * n == elements),
            ),
            // The tables of these bundles are for calls of one token.
            Feed::TokenColumns(table) | Feed::PositionColumns(table) => (
                format!("{} numbers, as the table's rows have", table.n_columns()),
                is_float && n == 1 && last == table.n_columns() && elements == last,
            ),
            // The programs of these bundles have no such inputs.
            Feed::Mask { .. }
            | Feed::WriteBegin
            | Feed::WriteEnd
            | Feed::LastToken
            | Feed::Cache(_) => ("an input of such bundles".to_owned(), false),
            Feed::Slot(slot) => {
                let held = &self.slots[*slot];
                if held.shape.is_empty() {
                    return Err(format!(
                        "expected an earlier part to give `{}`, found none: parts are missing or \
                         out of order",
                        held.name
                    ));
                }
                (
                    format!(
                        "{} {:?}, as `{}` is given",
                        held.dtype.name(),
                        held.shape,
                        held.name
                    ),
                    dtype == held.dtype && *shape == *held.shape,
                )
            }
        };
        if fits {
            return Ok(());
        }
        Err(format!(
            "expected {expected}, found {} {shape:?}",
            dtype.name()
        ))
    }

    /// Bytes of each slot at the start.
    pub fn slot_bytes(&self) -> Vec<usize> {
        self.slots.iter().map(|held| held.bytes).collect()
    }

    /// Bytes of all states and caches.
    pub fn cache_bytes(&self) -> usize {
        let states = self.states.values().filter_map(|(ty, _)| ty.byte_len());
        let caches = self.slots.iter().map(|held| held.bytes);
        states.chain(caches).sum()
    }

    /// The program of all functions. They get one opset, the newest that any of them has. An error
    /// names the package `first`.
    pub fn into_program(self, first: &Path) -> Result<Program, ForeignError> {
        let functions: Vec<Function> = self.functions.into_values().collect();
        let newest = functions.iter().map(|f| f.opset).max();
        let raised = |f: Function, opset: Opset| {
            let program = lower::with_opset(&Program::new(vec![f]), opset)?;
            Ok(program.functions().to_vec())
        };
        let functions: Result<Vec<Vec<Function>>, Vec<thane_mil::valid::Violation>> = functions
            .into_iter()
            .map(|f| raised(f, newest.unwrap_or(Opset::CoreMl8)))
            .collect();
        let functions = functions.map_err(|violations| {
            let what = violations.first().map(ToString::to_string);
            ForeignError::new(first, "program").found(what.unwrap_or_default())
        })?;
        Ok(Program::new(functions.concat()))
    }
}

/// A call of so many tokens at these positions; `gives` says whether logits follow the last one.
pub(super) fn call(
    n_tokens: usize,
    positions: Range<usize>,
    gives: bool,
    steps: Vec<Step>,
) -> Call {
    Call {
        n_tokens,
        positions,
        gives: gives.then_some(Given::Last),
        head: Vec::new(),
        padded: false,
        length: 0,
        steps,
    }
}

/// The shape of a port in a call of n tokens: an open dimension is that of tokens.
fn known(ty: &TensorType, n_tokens: usize) -> Vec<usize> {
    let dims = ty.shape.iter();
    dims.map(|d| d.known().unwrap_or(n_tokens)).collect()
}
