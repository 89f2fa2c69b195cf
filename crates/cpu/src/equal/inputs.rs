//! Inputs of a function that cover what it may be given: silence, impulses, sines, noise from 1e-4 to the largest fp16,
//! numbers around the constants that it compares with, and those that a user gives.

use std::collections::HashMap;

use thane_mil::literal::f64_to_f16;
use thane_mil::program::{Arg, Function, Op, OpId, ValueId};
use thane_mil::types::{DType, Dim, Symbol, Type};

/// One input of one call: name, shape, bytes.
pub type Given = (String, Vec<usize>, Vec<u8>);

/// A set of inputs, made when it is asked for.
pub struct Set {
    /// What they are, such as `a sine`.
    pub label: String,
    /// Whether numbers are of the usual size: errors of others are taken over the outputs of these, too.
    pub is_usual: bool,
    seed: u64,
    signal: Signal,
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

/// What floating-point inputs are.
enum Signal {
    /// Up to this.
    Noise(f32),
    Silence,
    Impulse,
    /// A sum of this many.
    Sines(usize),
    /// Around these.
    Around(Vec<f32>),
}

/// Noise up to these besides that up to 2: the smallest that fp16 holds with its digits, and the largest fp16.
const AMPLITUDES: [f32; 4] = [1e-4, 1e-2, 100.0, 65_504.0];
/// Seeds where no input takes any number.
const SEEDS: [u64; 3] = [11, 29, 47];

/// Every set of inputs for a function, those that tell most first.
pub fn all(f: &Function, samples: &[Sample]) -> Vec<Set> {
    let make =
        |label: &str, signal, is_usual| Set { label: label.to_owned(), is_usual, seed: SEEDS[0], signal, sample: None };
    let usual = || Signal::Noise(2.0);
    let taken = |s: &&Sample| s.function.as_ref().is_none_or(|name| *name == f.name) && s.fits(f);
    let given = samples.iter().filter(taken);
    let mut sets: Vec<Set> = given.map(|s| Set { sample: Some(s.clone()), ..make(&s.label, usual(), true) }).collect();
    let users = users(f);
    let is_number = |v: &ValueId| {
        let value = f.value(*v);
        value.ty.tensor().is_some_and(|t| matches!(Kind::of(f, &users, *v, &value.name, t.dtype), Kind::Number))
    };
    // Signals are for numbers: masks and indices of another set are others by their seed.
    if !f.body().inputs.iter().any(is_number) {
        sets.extend(
            SEEDS.map(|seed| Set { seed, ..make(&format!("made-up indices and masks {seed}"), usual(), true) }),
        );
        return sets;
    }
    sets.push(make("noise up to 2", usual(), true));
    sets.push(make("a chord", Signal::Sines(3), true));
    sets.push(make("silence", Signal::Silence, true));
    sets.push(make("a sine", Signal::Sines(1), true));
    sets.push(make("an impulse", Signal::Impulse, true));
    let constants = compared(f);
    if !constants.is_empty() {
        sets.push(make("numbers around its constants", Signal::Around(constants), false));
    }
    sets.extend(AMPLITUDES.map(|a| make(&format!("noise up to {a}"), Signal::Noise(a), false)));
    sets
}

impl Sample {
    /// Whether a function has an input of each name.
    fn fits(&self, f: &Function) -> bool {
        let has = |name: &String| f.body().inputs.iter().any(|v| f.value(*v).name == *name);
        !self.tensors.is_empty() && self.tensors.keys().all(has)
    }
}

/// Ops that compare, or have an edge in their domain.
const EDGED: &[&str] = &[
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "equal",
    "not_equal",
    "maximum",
    "minimum",
    "clip",
    "threshold",
    "log",
    "rsqrt",
    "sqrt",
    "inverse",
    "real_div",
    "floor_div",
    "mod",
    "pow",
    "thresholded_relu",
];
/// Constants that are looked at.
const MOST_CONSTANTS: usize = 8;

/// The numbers that a function compares with, divides by, or adds before a logarithm or a root.
fn compared(f: &Function) -> Vec<f32> {
    let users = users(f);
    let is_edged = |op: &Op| EDGED.contains(&op.def.name);
    let leads = |op: &Op| op.results.iter().any(|r| users[r.index()].iter().any(|u| is_edged(f.op(*u))));
    let mut found: Vec<f32> = Vec::new();
    for id in f.all_ops() {
        let op = f.op(id);
        if !(is_edged(op) || matches!(op.def.name, "add" | "sub") && leads(op)) {
            continue;
        }
        for arg in op.args.iter().flatten() {
            let literal = match arg {
                Arg::Literal(l) => Some(l),
                Arg::Value(v) => f.constant(*v),
                Arg::Values(_) => None,
            };
            let numbers = literal.filter(|l| l.ty().tensor().and_then(|t| t.n_elements()).is_some_and(|n| n <= 4));
            found.extend(numbers.and_then(|l| l.to_floats()).unwrap_or_default());
        }
    }
    found.retain(|c| c.is_finite());
    found.sort_by(f32::total_cmp);
    found.dedup();
    found.truncate(MOST_CONSTANTS);
    found
}

/// Ops that hand an index on as it is.
const CARRY: &[&str] =
    &["cast", "reshape", "expand_dims", "squeeze", "identity", "transpose", "add", "maximum", "select"];
/// Ops that an index is followed through.
const FURTHEST: usize = 6;
/// Integers of which nothing is known are below this.
const FEW: usize = 4;
/// What a mask that is added takes away.
const MASKED: f32 = -1e4;

impl Set {
    /// The inputs of so many calls in a row.
    pub fn calls(&self, f: &Function, n_calls: usize) -> Vec<Vec<Given>> {
        let mut noise = Noise(self.seed);
        let users = users(f);
        let slices = Slice::all(f);
        let mut symbols: HashMap<Symbol, usize> = HashMap::new();
        let mut calls = Vec::new();
        for _ in 0..n_calls {
            let mut call = Vec::new();
            let ends = Slice::draw(&slices, &mut noise);
            for &input in &f.body().inputs {
                let Type::Tensor(ty) = &f.value(input).ty else { continue };
                let name = &f.value(input).name;
                if let Some((shape, bytes)) = self.sample.as_ref().and_then(|s| s.tensors.get(name)) {
                    for (dim, n) in ty.shape.iter().zip(shape) {
                        if let Dim::Symbol(s) = dim {
                            symbols.insert(*s, *n);
                        }
                    }
                    call.push((name.clone(), shape.clone(), bytes.clone()));
                    continue;
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
                let kind = Kind::of(f, &users, input, name, ty.dtype);
                let n = shape.iter().product();
                if let Some(places) = ends.get(&input).filter(|places| places.len() == n) {
                    let bytes = places.iter().flat_map(|place| integer(ty.dtype, *place)).collect();
                    call.push((name.clone(), shape, bytes));
                    continue;
                }
                let bytes = (0..n).flat_map(|i| noise.bytes(ty.dtype, kind, &self.signal, (i, n))).collect();
                call.push((name.clone(), shape, bytes));
            }
            calls.push(call);
        }
        calls
    }
}

/// A slice whose begin and end are both inputs: neither can be drawn without the other.
struct Slice {
    begin: ValueId,
    end: ValueId,
    /// Of each axis: its length, and that of the slice.
    axes: Vec<(usize, usize)>,
}

impl Slice {
    /// Every slice of a function that inputs place.
    fn all(f: &Function) -> Vec<Self> {
        f.all_ops().into_iter().filter_map(|id| Self::of(f, f.op(id))).collect()
    }

    fn of(f: &Function, op: &Op) -> Option<Self> {
        let part = match op.def.name {
            "slice_update" => op.value_arg("update")?,
            "slice_by_index" => *op.results.first()?,
            _ => return None,
        };
        let shape = |v: ValueId| -> Option<Vec<usize>> {
            f.value(v).ty.tensor_or_state()?.shape.iter().map(|d| d.known()).collect()
        };
        let (begin, end) = (op.value_arg("begin")?, op.value_arg("end")?);
        let are_inputs = [begin, end].iter().all(|v| f.body().inputs.contains(v));
        let (whole, part) = (shape(op.value_arg("x")?)?, shape(part)?);
        let axes: Vec<_> = whole.into_iter().zip(part).collect();
        (are_inputs && axes.iter().all(|(whole, part)| part <= whole)).then_some(Self { begin, end, axes })
    }

    /// Where the slices of a call begin and end.
    fn draw(slices: &[Self], noise: &mut Noise) -> HashMap<ValueId, Vec<usize>> {
        let mut drawn: HashMap<ValueId, Vec<usize>> = HashMap::new();
        for slice in slices {
            let place = |(whole, part): &(usize, usize)| noise.next() as usize % (whole - part + 1);
            let begin = drawn.entry(slice.begin).or_insert_with(|| slice.axes.iter().map(place).collect()).clone();
            let ends = begin.iter().zip(&slice.axes).map(|(begin, (_, part))| begin + part);
            drawn.insert(slice.end, ends.collect());
        }
        drawn
    }
}

fn users(f: &Function) -> Vec<Vec<OpId>> {
    let mut users = vec![Vec::new(); f.n_values()];
    f.all_ops().into_iter().for_each(|id| f.op(id).uses().for_each(|v| users[v.index()].push(id)));
    users
}

/// What an input is.
#[derive(Clone, Copy)]
enum Kind {
    /// Any number.
    Number,
    /// Below this.
    Index(usize),
    /// 0 or 1.
    Truth,
    /// 0 or far below it.
    Mask,
}

impl Kind {
    fn of(f: &Function, users: &[Vec<OpId>], input: ValueId, name: &str, dtype: DType) -> Self {
        let is_mask = name.to_ascii_lowercase().contains("mask");
        match dtype {
            DType::Fp16 | DType::Fp32 if is_mask && is_added(f, users, input) => Self::Mask,
            DType::Fp16 | DType::Fp32 => Self::Number,
            DType::Bool => Self::Truth,
            _ if is_mask => Self::Truth,
            _ => Self::Index(bound(f, users, input, FURTHEST).unwrap_or(FEW).max(1)),
        }
    }
}

fn is_added(f: &Function, users: &[Vec<OpId>], input: ValueId) -> bool {
    users[input.index()].iter().any(|u| matches!(f.op(*u).def.name, "add" | "scaled_dot_product_attention"))
}

/// The length of the shortest axis that a value is an index of.
fn bound(f: &Function, users: &[Vec<OpId>], value: ValueId, left: usize) -> Option<usize> {
    let left = left.checked_sub(1)?;
    let of = |id: &OpId| {
        let op = f.op(*id);
        let dim = |name: &str, axis: usize| f.value(op.value_arg(name)?).ty.tensor_or_state()?.shape.get(axis)?.known();
        let axis = f.literal_arg(op, "axis").and_then(|l| l.to_ints()?.first().copied()).unwrap_or(0);
        let rank = op.value_arg("x").and_then(|x| Some(f.value(x).ty.tensor()?.rank())).unwrap_or(0);
        let axis = usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).ok()?;
        match op.def.name {
            "gather" | "gather_along_axis" if op.value_arg("indices") == Some(value) => dim("x", axis),
            "gather_nd" if op.value_arg("indices") == Some(value) => {
                f.value(op.value_arg("x")?).ty.tensor()?.shape.iter().filter_map(|d| d.known()).min()
            }
            name if CARRY.contains(&name) => bound(f, users, *op.results.first()?, left),
            _ => None,
        }
    };
    users[value.index()].iter().take(64).filter_map(of).min()
}

/// Numbers without a pattern, the same each time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    fn bytes(&mut self, dtype: DType, kind: Kind, signal: &Signal, at: (usize, usize)) -> Vec<u8> {
        let n = self.next();
        let number = match kind {
            Kind::Number => signal.number(n, at),
            Kind::Truth => (n % 2) as f32,
            Kind::Mask => [0.0, MASKED][usize::from(n.is_multiple_of(3))],
            Kind::Index(bound) => return integer(dtype, n as usize % bound),
        };
        match dtype {
            DType::Fp16 => f64_to_f16(f64::from(number).clamp(-65_504.0, 65_504.0)).to_le_bytes().to_vec(),
            DType::Fp32 => number.to_le_bytes().to_vec(),
            DType::Bool => vec![u8::from(number != 0.0)],
            _ => integer(dtype, number as usize),
        }
    }
}

impl Signal {
    /// Element `i` of `n`; `random` has no pattern.
    fn number(&self, random: u32, (i, n): (usize, usize)) -> f32 {
        /// 440 Hz, a major third and a fifth above it, in radians a sample at 22,050 Hz.
        const PITCHES: [f32; 3] = [0.125_38, 0.157_97, 0.187_87];
        let noise = (random % 4001) as f32 / 2000.0 - 1.0;
        match self {
            Self::Noise(most) => noise * most,
            Self::Silence => 0.0,
            Self::Impulse => f32::from(u8::from(i == n / 3)),
            Self::Sines(n_sines) => {
                let sum: f32 = PITCHES.iter().take(*n_sines).map(|pitch| (i as f32 * pitch).sin()).sum();
                0.8 * sum / *n_sines as f32
            }
            Self::Around(constants) => {
                let near = [0.0, 1.0 / 1024.0, -1.0 / 1024.0, 0.125, -0.125, noise][(random >> 16) as usize % 6];
                constants[i % constants.len()] * (1.0 + near)
            }
        }
    }
}

fn integer(dtype: DType, n: usize) -> Vec<u8> {
    (n as u64).to_le_bytes()[..(dtype.bits() / 8).clamp(1, 8)].to_vec()
}
