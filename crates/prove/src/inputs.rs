//! Inputs of a function that cover what it may be given: silence, impulses, sines, noise from 1e-4
//! to the largest fp16 in both signs and in one, ramps over all magnitudes, numbers around the
//! constants that it compares with, inputs that are nearly equal, masks that hide whole rows,
//! integers and indices of any size, and those that a user gives.

use std::collections::HashMap;

use thane_mil::program::{Function, ValueId};
use thane_mil::types::{DType, Dim, Symbol, Type};

mod constants;
mod kind;
mod noise;
mod signal;

use kind::{Kind, Slice};
use noise::Noise;
use signal::{At, Integers, Maker, Masks, Signal, write_integer};

/// One input of one call: name, shape, bytes.
pub type Given = (String, Vec<usize>, Vec<u8>);

/// A set of inputs, made when it is asked for.
pub struct Set {
    /// What they are, such as `a sine`.
    pub label: String,
    /// Whether numbers are of the usual size: errors of others are taken over the outputs of
    /// these, too.
    pub is_usual: bool,
    /// Whether it only adds to sets of its kind, and is left out of functions that take long.
    pub is_extra: bool,
    seed: u64,
    signal: Signal,
    integers: Integers,
    masks: Masks,
    sample: Option<Sample>,
}

/// Inputs that a user gives, by name; those that are not there are made up.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Where they come from.
    pub label: String,
    /// The function; any that takes them where none is named.
    pub function: Option<String>,
    /// Shapes and bytes.
    pub tensors: HashMap<String, (Vec<usize>, Vec<u8>)>,
}

/// Noise up to these besides that up to 2: the smallest that fp16 holds with its digits, and the
/// largest fp16.
const AMPLITUDES: [f32; 4] = [1e-4, 1e-2, 100.0, 65_504.0];
/// Noise of one sign up to these: sums of it do not cancel.
const POSITIVE: [f32; 3] = [2.0, 100.0, LARGE];
/// A number of which two are beyond fp16.
const LARGE: f32 = 40_000.0;
/// Seeds where no input takes any number.
const SEEDS: [u64; 3] = [11, 29, 47];
/// Ramps of one input have as many magnitudes as this together, as far as there is time.
const MAGNITUDES: usize = 2048;
/// Ramps at most.
const MOST_RAMPS: usize = 24;

/// Every set of inputs for a function, those that tell most first.
pub fn all(f: &Function, samples: &[Sample]) -> Vec<Set> {
    let taken = |s: &&Sample| s.function.as_ref().is_none_or(|n| *n == f.name) && s.fits(f);
    let given = samples.iter().filter(taken);
    let usual = |label: &str, signal| Set {
        is_usual: true,
        ..Set::new(label, signal)
    };
    let mut sets: Vec<Set> = given
        .map(|s| Set {
            sample: Some(s.clone()),
            ..usual(&s.label, Signal::Noise(2.0))
        })
        .collect();
    let kinds = Kind::all(f);
    let n_numbers = kinds
        .values()
        .filter(|kind| matches!(kind, Kind::Number))
        .count();
    // Signals are for numbers: masks and indices of another set are others by their seed.
    if n_numbers == 0 {
        sets.extend(SEEDS.map(|seed| {
            let label = format!("made-up indices and masks {seed}");
            Set {
                seed,
                ..usual(&label, Signal::Noise(2.0))
            }
        }));
        sets.extend(of_integers(&kinds));
        return sets;
    }
    sets.push(usual("noise up to 2", Signal::Noise(2.0)));
    sets.push(usual("a chord", Signal::Sines(3)));
    sets.push(usual("silence", Signal::Silence));
    sets.push(usual("a sine", Signal::Sines(1)));
    sets.push(usual("an impulse", Signal::Impulse));
    sets.extend(of_integers(&kinds));
    sets.extend(of_constants(f));
    if n_numbers > 1 && constants::compares(f) {
        sets.push(Set::new(
            "inputs that are nearly equal",
            Signal::NearlyEqual,
        ));
    }
    sets.extend(AMPLITUDES.map(|a| Set::new(&format!("noise up to {a}"), Signal::Noise(a))));
    sets.push(Set::new(
        &format!("numbers that are all {LARGE}"),
        Signal::Level(LARGE),
    ));
    let positive = |a| Set::new(&format!("positive noise up to {a}"), Signal::Positive(a));
    sets.extend(POSITIVE.map(positive));
    sets.extend(ramps(f, &kinds));
    sets
}

/// Sets around constants, each with those of one kind of place.
fn of_constants(f: &Function) -> Vec<Set> {
    let mut sets = Vec::new();
    let constants = constants::compared(f);
    if !constants.is_empty() {
        sets.push(Set::new(
            "numbers around its constants",
            Signal::Around(constants),
        ));
    }
    let channels = constants::along_channels(f);
    let label = "numbers around the constants of each channel";
    sets.extend(
        channels
            .into_iter()
            .map(|c| Set::new(label, Signal::Channels(c))),
    );
    sets
}

/// Sets where masks, indices and other integers are less usual.
fn of_integers(kinds: &HashMap<ValueId, Kind>) -> Vec<Set> {
    let any = |test: fn(&Kind) -> bool| kinds.values().any(test);
    let plain = |label: &str| Set::new(label, Signal::Noise(2.0));
    let mut sets = Vec::new();
    if any(|kind| matches!(kind, Kind::Truth | Kind::Mask)) {
        sets.push(Set {
            masks: Masks::Rows,
            seed: SEEDS[1],
            ..plain("masks of whole rows")
        });
    }
    if any(|kind| {
        matches!(
            kind,
            Kind::Index {
                takes_negative: true,
                ..
            }
        )
    }) {
        let label = "indices counted from the end";
        sets.push(Set {
            integers: Integers::FromEnd,
            seed: SEEDS[2],
            ..plain(label)
        });
    }
    if any(|kind| matches!(kind, Kind::Integer)) {
        for first in [0, 1_993, 100_000] {
            let label = format!("integers from {first} on");
            sets.push(Set {
                integers: Integers::Ramp(first),
                ..plain(&label)
            });
        }
        let label = "integers up to 4096";
        sets.push(Set {
            integers: Integers::Below(4097),
            ..plain(label)
        });
    }
    sets
}

/// Ramps over all magnitudes, in order and in none; of short inputs several, between each other.
fn ramps(f: &Function, kinds: &HashMap<ValueId, Kind>) -> Vec<Set> {
    let len = |v: &ValueId| {
        f.value(*v)
            .ty
            .tensor()
            .and_then(|t| t.n_elements())
            .unwrap_or(64)
    };
    let numbers = kinds
        .iter()
        .filter(|(_, kind)| matches!(kind, Kind::Number));
    let shortest = numbers.map(|(v, _)| len(v)).min().unwrap_or(1).max(1);
    let n_ramps = (2 * MAGNITUDES / shortest).clamp(1, MOST_RAMPS);
    let mut sets = Vec::new();
    for k in 0..n_ramps {
        let phase = k as f32 / n_ramps as f32;
        let ramp = Set::new("ramps over all magnitudes", Signal::Ramp(phase));
        let mixed = Set::new("numbers of mixed magnitudes", Signal::Mixed);
        sets.push(Set {
            is_extra: k > 0,
            ..ramp
        });
        sets.push(Set {
            is_extra: k > 0,
            seed: SEEDS[0] + k as u64,
            ..mixed
        });
    }
    sets.sort_by_key(|set| set.is_extra);
    sets
}

impl Sample {
    /// Whether a function has an input of each name.
    fn fits(&self, f: &Function) -> bool {
        let has = |name: &String| f.body().inputs.iter().any(|v| f.value(*v).name == *name);
        !self.tensors.is_empty() && self.tensors.keys().all(has)
    }
}

impl Set {
    /// Whether a user gives it.
    pub fn is_given(&self) -> bool {
        self.sample.is_some()
    }

    fn new(label: &str, signal: Signal) -> Self {
        Self {
            label: label.to_owned(),
            is_usual: false,
            is_extra: false,
            seed: SEEDS[0],
            signal,
            integers: Integers::Few,
            masks: Masks::Random,
            sample: None,
        }
    }

    /// The inputs of so many calls in a row.
    pub fn calls(&self, f: &Function, n_calls: usize) -> Vec<Vec<Given>> {
        let kinds = Kind::all(f);
        let slices = Slice::all(f);
        let mut symbols: HashMap<Symbol, usize> = HashMap::new();
        let (signal, integers, masks) = (&self.signal, self.integers, self.masks);
        let mut maker = Maker {
            noise: Noise(self.seed),
            signal,
            integers,
            masks,
        };
        let mut calls = Vec::new();
        for _ in 0..n_calls {
            let ends = Slice::draw(&slices, &mut maker.noise);
            let inputs = f.body().inputs.iter();
            let call = inputs.filter_map(|input| {
                let kind = *kinds.get(input)?;
                self.given(f, *input, kind, &ends, &mut symbols, &mut maker)
            });
            calls.push(call.collect());
        }
        calls
    }

    /// One input of one call.
    fn given(
        &self,
        f: &Function,
        input: ValueId,
        kind: Kind,
        ends: &HashMap<ValueId, Vec<usize>>,
        symbols: &mut HashMap<Symbol, usize>,
        maker: &mut Maker<'_>,
    ) -> Option<Given> {
        let Type::Tensor(ty) = &f.value(input).ty else {
            return None;
        };
        let name = f.value(input).name.clone();
        if let Some((shape, bytes)) = self.sample.as_ref().and_then(|s| s.tensors.get(&name)) {
            for (dim, n) in ty.shape.iter().zip(shape) {
                if let Dim::Symbol(s) = dim {
                    symbols.insert(*s, *n);
                }
            }
            return Some((name, shape.clone(), bytes.clone()));
        }
        let mut size = |d: &Dim| match d {
            Dim::Known(n) => *n,
            // No two alike, and none of length 1.
            Dim::Symbol(s) => {
                let next = symbols.len() + 3;
                *symbols.entry(*s).or_insert(next)
            }
        };
        let shape: Vec<usize> = ty.shape.iter().map(&mut size).collect();
        let n = shape.iter().product();
        let mut bytes = Vec::new();
        if let Some(places) = ends.get(&input).filter(|places| places.len() == n) {
            for place in places {
                write_integer(&mut bytes, ty.dtype, *place as i64);
            }
            return Some((name, shape, bytes));
        }
        for i in 0..n {
            let shape = &shape;
            let at = At { input, i, n, shape };
            maker.write(&mut bytes, ty.dtype, kind, &at);
        }
        Some((name, shape, bytes))
    }
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::Fp16 | DType::Fp32)
}
