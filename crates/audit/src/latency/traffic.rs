//! Activations that go through memory, and the bytes that are alive at once.

use std::collections::{BTreeMap, HashMap};

use thane_mil::program::{Definition, Function, ValueId};

use super::{on_ane, renames};
use crate::place::{self, Placement};
use crate::plan::stream::RESIDENT_BYTES;
use crate::view::View;
use crate::weight::{Encoding, Stored};
use crate::work::{self, Kind};

/// Bytes of a call that go through memory or lie in it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Bytes that enter or leave the Neural Engine.
    pub edge_bytes: f64,
    /// Bytes of inputs and outputs of the function.
    pub call_bytes: f64,
    /// Bytes of its outputs.
    pub output_bytes: f64,
    /// Bytes of inner values that are too large to stay on the Neural Engine.
    pub spilled_bytes: f64,
    /// Bytes of constants as the units that use them hold them.
    pub program_bytes: f64,
    /// Bytes of weights as fp16.
    pub dense_bytes: f64,
    /// Most bytes of values alive at once, without states.
    pub alive_bytes: f64,
    /// Bytes of states.
    pub state_bytes: f64,
    /// Bytes of tables on the CPU and GPU, of which calls read rows.
    pub table_bytes: f64,
    /// Those of them that are mapped from the file as they are.
    pub mapped_bytes: f64,
    /// Most bytes of weights, tables and values alive at once.
    pub peak_bytes: f64,
}

impl Traffic {
    /// Add the bytes of weights and tables, and give those that are in memory for them.
    fn add_constants(&mut self, view: &View<'_>, placement: &Placement) -> f64 {
        let (mut resident, chip) = (0.0, view.target.chip);
        let tables = place::tables(placement);
        let mut of_program = constants(view, placement);
        let tables_there = tables.iter().filter(|(_, engine)| **engine);
        of_program.extend(tables_there.map(|(table, _)| (*table, true)));
        for (value, engine) in &of_program {
            let (stored, n) = (Stored::of(view.f, *value), work::count(view, *value));
            // The CPU and GPU read the width that the op has: what is compressed is expanded there.
            let held = if *engine {
                n * stored.streamed_bits(chip) / 8.0
            } else {
                work::bytes(view, *value)
            };
            self.program_bytes += held;
            self.dense_bytes += (n * 2.0).max(held);
            resident += held;
        }
        for (table, _) in tables.into_iter().filter(|(_, engine)| !engine) {
            // A compressed table is expanded when the program loads (oxinfer).
            let bytes = work::bytes(view, table);
            self.table_bytes += bytes;
            let is_mapped = matches!(Stored::of(view.f, table).encoding, Encoding::Dense);
            if is_mapped {
                self.mapped_bytes += bytes;
            }
            if !is_mapped || !of_program.contains_key(&table) {
                resident += bytes;
            }
        }
        resident
    }
}

/// The constants that ops of a placement take whole, with whether one of these is on the engine.
fn constants(view: &View<'_>, placement: &Placement) -> BTreeMap<ValueId, bool> {
    let mut found = BTreeMap::new();
    for op in &placement.ops {
        let whole = view.op(op.op).uses();
        for value in whole.filter(|v| view.is_constant(*v) && op.work.table != Some(*v)) {
            *found.entry(value).or_insert(false) |= on_ane(op.chosen);
        }
    }
    found
}

/// What is known of a value, by its index.
#[derive(Clone, Copy, Debug, Default)]
struct ValueFacts {
    /// Made on the engine.
    on_ane: bool,
    /// Made by an op, wherever.
    is_made: bool,
    /// Crosses the edge of the engine.
    crosses: bool,
    /// Some op that makes or takes it needs all of it at once.
    is_whole: bool,
    /// Position of the last op that takes it.
    last: usize,
}

impl ValueFacts {
    /// Whether a value of so many bytes is written to memory and read from it.
    fn is_spilled(&self, bytes: f64) -> bool {
        self.on_ane && self.is_whole && bytes > RESIDENT_BYTES
    }
}

/// The results of ops on the engine that are too large to stay there, with their bytes.
pub fn spilled(view: &View<'_>, placement: &Placement) -> HashMap<ValueId, f64> {
    let roots = roots(view.f, placement);
    let places = places(view, placement, &roots);
    let sized = roots
        .with(&places)
        .map(|(v, place)| (v, place, work::bytes(view, v)));
    sized
        .filter(|(_, place, bytes)| place.is_spilled(*bytes))
        .map(|(value, _, bytes)| (value, bytes))
        .collect()
}

/// The memory traffic of a placed function.
pub fn of(view: &View<'_>, placement: &Placement) -> Traffic {
    let f = view.f;
    let roots = roots(f, placement);
    let places = places(view, placement, &roots);
    let mut traffic = Traffic::default();
    for (value, place) in roots.with(&places) {
        let bytes = work::bytes(view, value);
        // What also leaves the engine is written and read no less for it.
        if place.is_spilled(bytes) {
            traffic.spilled_bytes += bytes;
        } else if place.crosses {
            traffic.edge_bytes += bytes;
        }
    }
    let bytes = |ends: &[ValueId]| -> f64 {
        let tensors = ends.iter().filter(|v| f.value(**v).ty.tensor().is_some());
        tensors.map(|v| work::bytes(view, *v)).sum()
    };
    traffic.output_bytes = bytes(&f.body().outputs);
    traffic.call_bytes = bytes(&f.body().inputs) + traffic.output_bytes;
    let stored_bytes = traffic.add_constants(view, placement);
    let is_state = |v: &&ValueId| f.value(**v).ty.tensor().is_none();
    let states = f.body().inputs.iter().filter(is_state);
    traffic.state_bytes = states.map(|v| work::bytes(view, *v)).sum();
    let alive_bytes = most_alive(view, placement, &roots, &places);
    traffic.alive_bytes = (alive_bytes - traffic.state_bytes).max(0.0);
    traffic.peak_bytes = stored_bytes + alive_bytes;
    traffic
}

/// For each value, the value whose elements it has under another shape.
struct Roots {
    of: Vec<usize>,
    values: Vec<Option<ValueId>>,
}

impl Roots {
    /// Each value that has a shape of its own, with what is known of it.
    fn with<'a>(
        &'a self,
        places: &'a [ValueFacts],
    ) -> impl Iterator<Item = (ValueId, &'a ValueFacts)> {
        let own = self.values.iter().zip(places);
        own.filter_map(|(value, place)| Some(((*value)?, place)))
    }
}

fn roots(f: &Function, placement: &Placement) -> Roots {
    let n = f.n_values();
    let mut roots = Roots {
        of: (0..n).collect(),
        values: vec![None; n],
    };
    f.body()
        .inputs
        .iter()
        .for_each(|v| roots.values[v.index()] = Some(*v));
    for op in &placement.ops {
        let mil = f.op(op.op);
        mil.results
            .iter()
            .for_each(|v| roots.values[v.index()] = Some(*v));
        let x = mil.value_arg("x").or_else(|| mil.value_arg("input"));
        if let (true, Some(x), Some(result)) = (renames(op.work.kind), x, mil.results.first()) {
            roots.of[result.index()] = roots.of[x.index()];
            roots.values[result.index()] = None;
        }
    }
    roots
}

fn places(view: &View<'_>, placement: &Placement, roots: &Roots) -> Vec<ValueFacts> {
    let f = view.f;
    let mut places = vec![ValueFacts::default(); f.n_values()];
    for (at, op) in placement.ops.iter().enumerate() {
        let engine = on_ane(op.chosen);
        let mil = f.op(op.op);
        let operands = || mil.uses().filter(|v| !view.is_constant(*v));
        // The first of the smallest: of two of the same size one is enough.
        let least = operands()
            .map(|v| (work::bytes(view, v), v))
            .reduce(|least, of| if of.0 < least.0 { of } else { least });
        for value in operands() {
            let is_state = f.value(value).ty.tensor().is_none();
            let place = &mut places[roots.of[value.index()]];
            place.last = at;
            let is_least = least.is_some_and(|(_, v)| v == value);
            place.is_whole |= engine && op.work.takes_all(is_least);
            let elsewhere = if place.is_made {
                place.on_ane != engine
            } else {
                engine
            };
            place.crosses |= elsewhere && !is_state && !renames(op.work.kind);
        }
        for value in &mil.results {
            let place = &mut places[roots.of[value.index()]];
            place.is_whole |= engine && op.work.kind == Kind::Transpose;
            if roots.of[value.index()] == value.index() {
                (place.is_made, place.on_ane, place.last) = (true, engine, at);
            }
        }
    }
    for value in &f.body().outputs {
        let place = &mut places[roots.of[value.index()]];
        place.crosses |= place.on_ane;
        place.last = placement.ops.len();
    }
    places
}

/// Most bytes of activations that are needed at once, going through the ops in order.
fn most_alive(view: &View<'_>, placement: &Placement, roots: &Roots, places: &[ValueFacts]) -> f64 {
    let mut change = vec![0.0; placement.ops.len() + 2];
    let mut born: Vec<usize> = vec![0; places.len()];
    for (at, op) in placement.ops.iter().enumerate() {
        view.f
            .op(op.op)
            .results
            .iter()
            .for_each(|v| born[v.index()] = at);
    }
    for (at, place) in places.iter().enumerate() {
        let Some(value) = roots.values[at] else {
            continue;
        };
        let is_input = matches!(view.f.value(value).definition, Definition::Input(_));
        let bytes = work::bytes(view, value);
        change[if is_input { 0 } else { born[at] }] += bytes;
        change[(place.last + 1).min(placement.ops.len() + 1)] -= bytes;
    }
    let mut alive = 0.0;
    change.into_iter().fold(0.0f64, |most, delta| {
        alive += delta;
        most.max(alive)
    })
}
