//! What layers without attention remember between calls, in functions of fixed length.
//!
//! It holds all tokens so far together: tokens that mean nothing would spoil it, and a caller
//! cannot go back to an earlier token. It begins as zeros. With an explicit cache, an input such as
//! `conv_cache_3` takes it, and the caller passes on the output `new_conv_cache_3` as it is. In
//! functions of several sequences, what these remember follows each other along the second axis.
//! Otherwise it is one state of all layers, [layers, 1, rows, width], because functions with three
//! states fail when they are called: rows of a part whose length is no multiple of the width end
//! with zeros, and a part follows the one before it.

use std::cell::{Cell, RefCell};

use thane_mil::program::ValueId;
use thane_mil::types::{TensorType, Type};

use crate::error::ModelError;
use crate::graph::{Graph, ValueResult};
use crate::layers::recent::{Memory, Recent};

/// What the layers of a function remember.
#[derive(Debug, Default)]
pub struct Recurrent {
    state: Cell<Option<State>>,
    /// The contents of the state before the call, after the op that reads it.
    past: Cell<Option<ValueId>>,
    n_layers: Cell<usize>,
    /// Each part of each layer so far.
    parts: RefCell<Vec<(usize, Memory)>>,
    /// The parts after the call.
    kept: RefCell<Vec<ValueId>>,
}

/// The state that holds the parts of all layers.
#[derive(Clone, Copy, Debug)]
struct State {
    value: ValueId,
    width: usize,
}

impl Recurrent {
    /// Declares the state `name` of layers that remember something.
    pub fn declare_state(
        &self,
        g: &mut Graph,
        name: &str,
        layers: &[Vec<Memory>],
    ) -> Result<(), ModelError> {
        let Some((parts, width)) = layers
            .first()
            .and_then(|parts| Some((parts, parts.last()?.shape[3])))
        else {
            return Ok(());
        };
        if layers.iter().any(|other| other != parts) {
            let reason = "expected the same in all layers without attention";
            return Err(ModelError::unsupported("sizes", "several", reason));
        }
        let rows = parts.iter().map(|part| n_rows(*part, width)).sum();
        let shape = [layers.len(), 1, rows, width];
        let ty = Type::State(TensorType::new(g.spelling().float, shape));
        let value = g.input(name, ty);
        self.state.set(Some(State { value, width }));
        Ok(())
    }

    /// What layer `layer` remembers before the call, part by part.
    pub fn recent(
        &self,
        g: &mut Graph,
        layer: usize,
        (parts, in_lanes): (&[Memory], bool),
    ) -> Result<Vec<Recent<'_>>, ModelError> {
        let slot = self.n_layers.replace(self.n_layers.get() + 1);
        let mut at = 0;
        let mut recent = Vec::new();
        for part in parts {
            self.parts.borrow_mut().push((layer, *part));
            let past = match self.state.get() {
                None => {
                    let ty = TensorType::new(g.spelling().float, part.shape);
                    g.input(&format!("{}_{layer}", part.name), ty)
                }
                Some(state) => {
                    let all = self.past(g, state)?;
                    let end = at + n_rows(*part, state.width);
                    let rows = slice_rows(g, all, (slot, at..end))?;
                    at = end;
                    unpacked(g, rows, *part, state.width)?
                }
            };
            let kept = &self.kept;
            recent.push(Recent {
                past,
                kept,
                in_lanes,
            });
        }
        Ok(recent)
    }

    /// The contents of the state before the call.
    fn past(&self, g: &mut Graph, state: State) -> ValueResult {
        if let Some(past) = self.past.get() {
            return Ok(past);
        }
        let past = g.op("read_state", "remembered", [("input", state.value)])?;
        self.past.set(Some(past));
        Ok(past)
    }

    /// Writes what the next call needs, if it is a state.
    pub fn store(&self, g: &mut Graph) -> Result<(), ModelError> {
        let Some(state) = self.state.get() else {
            return Ok(());
        };
        let (parts, kept) = (self.parts.borrow(), self.kept.borrow());
        let mut layers: Vec<(usize, Vec<ValueId>)> = Vec::new();
        for ((layer, part), value) in parts.iter().zip(kept.iter()) {
            let rows = packed(g, *value, *part, state.width)?;
            match layers.last_mut().filter(|(last, _)| last == layer) {
                Some((_, all)) => all.push(rows),
                None => layers.push((*layer, vec![rows])),
            }
        }
        let mut joined = Vec::new();
        for (_, rows) in layers {
            joined.push(match rows[..] {
                [only] => only,
                _ => g.join("concat", &rows, 2)?,
            });
        }
        let value = match joined[..] {
            [only] => only,
            _ => g.join("concat", &joined, 0)?,
        };
        g.store("kept", state.value, value)?;
        Ok(())
    }

    /// Names and values of the outputs that the caller passes to the next call.
    pub fn outputs(&self) -> Vec<(String, ValueId)> {
        if self.state.get().is_some() {
            return Vec::new();
        }
        let (parts, kept) = (self.parts.borrow(), self.kept.borrow());
        let name = |(layer, part): &(usize, Memory)| format!("new_{}_{layer}", part.name);
        parts.iter().map(name).zip(kept.iter().copied()).collect()
    }
}

/// Elements of a row of `part`, with the zeros after it.
fn row_len(part: Memory, width: usize) -> usize {
    part.shape[3].next_multiple_of(width)
}

/// Number of rows of the state that `part` takes.
fn n_rows(part: Memory, width: usize) -> usize {
    part.shape[1] * part.shape[2] * row_len(part, width) / width
}

/// Some rows of a layer, of the state [layers, 1, rows, width].
fn slice_rows(
    g: &mut Graph,
    all: ValueId,
    (slot, rows): (usize, std::ops::Range<usize>),
) -> ValueResult {
    let begin = g.ints(&[slot as i32, 0, rows.start as i32, 0])?;
    let end = g.ints(&[slot as i32 + 1, 0, rows.end as i32, 0])?;
    let whole = g.bools(&[false, true, false, true])?;
    g.slice("remembered", all, [begin, end], [whole; 2])
}

/// A part, from its rows [1, 1, rows, width] of the state.
fn unpacked(g: &mut Graph, rows: ValueId, part: Memory, width: usize) -> ValueResult {
    let [one, a, b, c] = part.shape;
    let row_len = row_len(part, width);
    let x = reshaped(g, rows, [one, a, b, row_len])?;
    if row_len == c {
        return Ok(x);
    }
    let sizes = [c as i32, (row_len - c) as i32];
    Ok(g.split_sizes(x, &sizes, 3)?[0])
}

/// The rows of the state [1, 1, rows, width] that hold a part.
fn packed(g: &mut Graph, x: ValueId, part: Memory, width: usize) -> ValueResult {
    let [one, a, b, c] = part.shape;
    let n_zeros = row_len(part, width) - c;
    let x = if n_zeros == 0 {
        x
    } else {
        let zeros = g.floats(&vec![0.0; a * b * n_zeros], &[one, a, b, n_zeros])?;
        g.join("concat", &[x, zeros], 3)?
    };
    reshaped(g, x, [1, 1, n_rows(part, width), width])
}

/// `x` in this shape.
fn reshaped(g: &mut Graph, x: ValueId, shape: [usize; 4]) -> ValueResult {
    if g.shape(x).iter().map(|dim| dim.known()).eq(shape.map(Some)) {
        return Ok(x);
    }
    g.reshape(x, &shape.map(|n| n as i32))
}
