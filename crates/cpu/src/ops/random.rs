//! Random numbers.
//!
//! Apple's generator is not known, so numbers cannot agree with a device's: the distribution does.
//! Ours is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA
//! 2014) counted by the place of the element, so that a number depends on the seed and on its place
//! only. An op with a seed gives the same numbers at each call. An op without one, or with -1, is
//! given the next number of the instance as its seed ([`Seeds`]).

use thane_kernels::f16::{f16_to_f32, f32_to_f16};
use thane_mil::opset::{OpDef, OpKind};
use thane_mil::types::DType;

use super::{Call, Eval, Fault, Value, f32_out};
use crate::tensor::{Buffer, Tensor};

pub(super) static OPS: &[(&str, Eval)] = &[
    ("random_bernoulli", bernoulli),
    ("random_categorical", categorical),
    ("random_normal", normal),
    ("random_uniform", uniform),
];

/// Whether that op is random.
pub fn is_random(def: &OpDef) -> bool {
    def.kind == OpKind::Random
}

/// SplitMix64's increment: 2^64 by the golden ratio, odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's output of a state.
fn mix(mut state: u64) -> u64 {
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

/// Seeds for the ops of an instance that have none.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    next: u32,
}

impl Seeds {
    /// The sequence of that seed: no two of 2^32 - 1 are equal.
    pub fn new(seed: u64) -> Self {
        Self {
            next: mix(seed.wrapping_add(STEP)) as u32,
        }
    }

    /// Bind the seed of a random op that has none.
    pub fn bind(&mut self, def: &OpDef, args: &mut [Option<Value>]) {
        let Some(arg) = def.param_index("seed").and_then(|i| args.get_mut(i)) else {
            return;
        };
        let given = match arg {
            Some(Value::Tensor(t)) => t.to_ints().and_then(|v| v.first().copied()),
            _ => None,
        };
        if given.is_none_or(|seed| seed == -1) {
            let seed = vec![self.draw().cast_signed()];
            *arg = Some(Value::Tensor(Tensor::new(
                DType::Int32,
                Vec::new(),
                Buffer::I32(seed.into()),
            )));
        }
    }

    fn draw(&mut self) -> u32 {
        // u32::MAX would be -1, the seed that says that there is none.
        self.next = if self.next >= u32::MAX - 1 {
            0
        } else {
            self.next + 1
        };
        self.next
    }
}

/// The numbers of one seed.
struct Random {
    start: u64,
}

impl Random {
    fn new(call: &Call<'_>) -> Self {
        Self {
            start: mix(call.int_or("seed", 0).cast_unsigned().wrapping_add(STEP)),
        }
    }

    /// The number at place `i`, evenly from [0, 1) in steps of 2^-53.
    fn unit(&self, i: usize) -> f64 {
        let state = self
            .start
            .wrapping_add((i as u64).wrapping_add(1).wrapping_mul(STEP));
        (mix(state) >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn uniform(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (random, low, high) = (
        Random::new(call),
        call.f32_or("low", 0.0)?,
        call.f32_or("high", 1.0)?,
    );
    // What rounds to `high` is the number before it: `high` is not included.
    let most = match call.results[0].dtype {
        _ if low >= high => low,
        DType::Fp16 => before(high),
        _ => high.next_down(),
    };
    let y = f32_out(&mut out[0], call.shape(0).iter().product())?;
    let (low, width) = (f64::from(low), f64::from(high) - f64::from(low));
    y.iter_mut()
        .enumerate()
        .for_each(|(i, y)| *y = ((low + width * random.unit(i)) as f32).min(most));
    Ok(())
}

/// The fp16 number before one.
fn before(v: f32) -> f32 {
    match f32_to_f16(v) {
        0 | 0x8000 => f16_to_f32(0x8001),
        bits if bits & 0x8000 == 0 => f16_to_f32(bits - 1),
        bits => f16_to_f32(bits + 1),
    }
}

/// Box and Muller's form: a radius and an angle for each number.
fn normal(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (random, mean, stddev) = (
        Random::new(call),
        call.f32_or("mean", 0.0)?,
        call.f32_or("stddev", 1.0)?,
    );
    let y = f32_out(&mut out[0], call.shape(0).iter().product())?;
    for (i, y) in y.iter_mut().enumerate() {
        let radius = (-2.0 * (1.0 - random.unit(2 * i)).ln()).sqrt();
        let angle = std::f64::consts::TAU * random.unit(2 * i + 1);
        *y = (f64::from(mean) + f64::from(stddev) * radius * angle.cos()) as f32;
    }
    Ok(())
}

fn bernoulli(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (random, prob) = (Random::new(call), f64::from(call.f32_or("prob", 0.5)?));
    let y = f32_out(&mut out[0], call.shape(0).iter().product())?;
    y.iter_mut()
        .enumerate()
        .for_each(|(i, y)| *y = if random.unit(i) < prob { 1.0 } else { 0.0 });
    Ok(())
}

fn categorical(call: &Call<'_>, out: &mut [Buffer]) -> Result<(), Fault> {
    let (random, x) = (Random::new(call), call.f32s("x")?);
    let shape = call.shape(0);
    let (n, size) = (
        call.tensor("x")?.shape.last().copied().unwrap_or(0),
        shape.last().copied().unwrap_or(0),
    );
    let is_logits = call.string("mode").is_none_or(|mode| mode == "logits");
    let y = f32_out(&mut out[0], shape.iter().product())?;
    if y.is_empty() {
        return Ok(());
    }
    if n == 0 {
        return Err("`x` has no class to draw".to_owned());
    }
    for (row, (x, y)) in x.chunks(n).zip(y.chunks_mut(size)).enumerate() {
        let ends = cumulative(x, is_logits)?;
        for (k, y) in y.iter_mut().enumerate() {
            let at = random.unit(row * size + k) * ends[n - 1];
            *y = ends.partition_point(|end| *end <= at).min(n - 1) as f32;
        }
    }
    Ok(())
}

/// The sums of the weights up to each class.
fn cumulative(x: &[f32], is_logits: bool) -> Result<Vec<f64>, Fault> {
    let most = x.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    let weight = |v: f32| {
        if is_logits {
            f64::from(v - most).exp()
        } else {
            f64::from(v)
        }
    };
    let mut sum = 0.0;
    let ends: Vec<f64> = x
        .iter()
        .map(|v| {
            sum += weight(*v);
            sum
        })
        .collect();
    let negative = !is_logits && x.iter().any(|v| *v < 0.0);
    if sum > 0.0 && sum.is_finite() && !negative {
        return Ok(ends);
    }
    Err("the weights of `x` are no probabilities".to_owned())
}
