//! Made-up inputs of a function: numbers without a pattern that are what their users take.

use std::collections::HashMap;

use thane_mil::literal::{f16_to_f32, f64_to_f16};
use thane_mil::program::{Function, OpId, ValueId};
use thane_mil::types::{DType, Dim, Symbol, Type};

/// One input of one call: name, shape, bytes.
type Given = (String, Vec<usize>, Vec<u8>);

/// The inputs of some calls in a row.
pub struct Inputs {
    calls: Vec<Vec<Given>>,
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

impl Inputs {
    /// For `n_calls` calls; floating-point numbers are within twice `scale`.
    pub fn new(f: &Function, seed: u64, scale: f32, n_calls: usize) -> Self {
        let mut noise = Noise(seed);
        let users = users(f);
        let mut symbols: HashMap<Symbol, usize> = HashMap::new();
        let mut calls = Vec::new();
        for _ in 0..n_calls {
            let mut call = Vec::new();
            for &input in &f.body().inputs {
                let Type::Tensor(ty) = &f.value(input).ty else { continue };
                let mut size = |d: &Dim| match d {
                    Dim::Known(n) => *n,
                    // No two alike, and none of length 1.
                    Dim::Symbol(s) => {
                        let next = symbols.len() + 3;
                        *symbols.entry(*s).or_insert(next)
                    }
                };
                let shape: Vec<usize> = ty.shape.iter().map(&mut size).collect();
                let name = &f.value(input).name;
                let kind = Kind::of(f, &users, input, name, ty.dtype);
                let n = shape.iter().product();
                let bytes = (0..n).flat_map(|_| noise.bytes(ty.dtype, kind, scale)).collect();
                call.push((name.clone(), shape, bytes));
            }
            calls.push(call);
        }
        Self { calls }
    }

    /// How many.
    pub fn n_calls(&self) -> usize {
        self.calls.len()
    }

    /// Each.
    pub fn calls(&self) -> impl Iterator<Item = &[Given]> {
        self.calls.iter().map(Vec::as_slice)
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

    fn bytes(&mut self, dtype: DType, kind: Kind, scale: f32) -> Vec<u8> {
        let n = self.next();
        let number = match kind {
            Kind::Number => ((n % 4001) as f32 / 1000.0 - 2.0) * scale,
            Kind::Truth => (n % 2) as f32,
            Kind::Mask => [0.0, MASKED][usize::from(n.is_multiple_of(3))],
            Kind::Index(bound) => return integer(dtype, n as usize % bound),
        };
        match dtype {
            DType::Fp16 => f64_to_f16(number.into()).to_le_bytes().to_vec(),
            DType::Fp32 => number.to_le_bytes().to_vec(),
            DType::Bool => vec![u8::from(number != 0.0)],
            _ => integer(dtype, number as usize),
        }
    }
}

fn integer(dtype: DType, n: usize) -> Vec<u8> {
    (n as u64).to_le_bytes()[..(dtype.bits() / 8).clamp(1, 8)].to_vec()
}

/// Numbers of any type that outputs have; those of others are none.
pub fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|b| f(*b)).collect()
    }
    match dtype {
        DType::Fp16 => each(bytes, |b| f64::from(f16_to_f32(u16::from_le_bytes(b)))),
        DType::Fp32 => each(bytes, |b| f64::from(f32::from_le_bytes(b))),
        DType::Int32 => each(bytes, |b| f64::from(i32::from_le_bytes(b))),
        DType::Int16 => each(bytes, |b| f64::from(i16::from_le_bytes(b))),
        DType::Uint16 => each(bytes, |b| f64::from(u16::from_le_bytes(b))),
        DType::Int8 => each(bytes, |[b]: [u8; 1]| f64::from(b.cast_signed())),
        DType::Bool | DType::Uint8 => each(bytes, |[b]: [u8; 1]| f64::from(b)),
        _ => Vec::new(),
    }
}
