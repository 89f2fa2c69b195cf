//! The time of a call of some length: interpolated between measured times where there are some,
//! else predicted by a model of the Neural Engine.
//!
//! The model adds up these terms over the ops of a program ([`Work`]), with the numbers of a chip
//! ([`Chip`]):
//!
//! ```text
//!     product     as `stream` has it
//!     attention   flops / peak, and where a matrix of scores is larger than 2 MiB,
//!                 its bytes twice / activations
//!     elementwise results / elements, and 4 us for each task
//!     a call      dispatch; the reading of weights is hidden behind all others
//! ```
//!
//! Latencies of a whole encoder are published for three lengths (pplx-embed 0.6B, M4 Max, macOS
//! 26, Core ML; CoreML-LLM, pull request 169): 14.0 ms at length 128, 31.9 to 36.1 ms at 256, and
//! 82.6 to 101 ms at 512, depending on the form of its norms. The model predicts 10.3, 20.0 and
//! 82.2 ms: 26 % and 37 % too little, and within the range. Its own program, which has more
//! elementwise ops, is predicted 2 % too long at 128 and 10 to 14 % too short at 256
//! ([`latency`](crate::latency), `data/whole_models.csv`).

use thane_mil::opset::{OpDef, OpKind};
use thane_mil::program::{Function, OpId, ValueId};

use super::stream::{Gemm, RESIDENT_BYTES, Seconds};
use crate::latency::ane::TASK_US;
use crate::target::{Chip, Route};
use crate::weight::Stored;

/// A number that is a polynomial of the length: what does not grow with it, what does, and what
/// grows with its square.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount(pub [f64; 3]);

impl Amount {
    /// The value at a length.
    pub fn at(&self, length: usize) -> f64 {
        let n = length as f64;
        self.0[0] + self.0[1] * n + self.0[2] * n * n
    }

    /// Adds what is `short` at length `n` and `long` at `2 n`, a power of the length each.
    fn add(&mut self, n: usize, short: f64, long: f64) {
        let power = if long >= 3.0 * short {
            2
        } else {
            usize::from(long >= 1.5 * short)
        };
        self.0[power] += short / (n as f64).powi(power as i32);
    }
}

/// A product with weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// Inputs that an output sums over.
    pub inputs: usize,
    /// Outputs of a position.
    pub outputs: usize,
    /// How the weights are stored.
    pub stored: Stored,
    /// Positions.
    pub positions: Amount,
}

/// The work of a function, as a function of the length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// Products with weights.
    pub products: Vec<Product>,
    /// Operations of products of two activations.
    pub attention_flops: Amount,
    /// Results of elementwise ops, and operand elements of reductions.
    pub elements: Amount,
    /// For each result that grows with the square of the length, its bytes over that square.
    pub square_bytes: Vec<f64>,
    /// Tasks of ops that are not products: those that begin a chain of elementwise ops, and all
    /// others.
    pub tasks: usize,
}

/// Why two functions are not the same function at two lengths.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{short}` and `{long}` are not one function at two lengths: op {index} is {a} and {b}")]
pub struct Unlike {
    /// The first function.
    pub short: String,
    /// The second function.
    pub long: String,
    /// Position of the first ops that differ, constants not counted.
    pub index: usize,
    /// The op of the first function, if it has so many.
    pub a: &'static str,
    /// The op of the second function.
    pub b: &'static str,
}

impl Work {
    /// What a function computes that is written for the length `n` as `short` and for `2 n` as
    /// `long`: how sizes differ says how they grow. Weights are not read.
    pub fn between(n: usize, short: &Function, long: &Function) -> Result<Self, Unlike> {
        // Constants that are equal at one length and not at the other are one op there and two
        // here.
        let computing = |f: &Function| -> Vec<OpId> {
            f.all_ops()
                .into_iter()
                .filter(|op| f.op(*op).def.name != "const")
                .collect()
        };
        let (a, b) = (computing(short), computing(long));
        let mut work = Self::default();
        for index in 0..a.len().max(b.len()) {
            let name = |f: &Function, ops: &[OpId]| {
                ops.get(index).map_or("missing", |op| f.op(*op).def.name)
            };
            let (x, y) = (name(short, &a), name(long, &b));
            if x != y {
                let (short, long) = (short.name.clone(), long.name.clone());
                return Err(Unlike {
                    short,
                    long,
                    index,
                    a: x,
                    b: y,
                });
            }
            work.add(
                n,
                OpIn {
                    f: short,
                    op: a[index],
                },
                OpIn {
                    f: long,
                    op: b[index],
                },
            );
        }
        Ok(work)
    }

    fn add(&mut self, n: usize, short: OpIn<'_>, long: OpIn<'_>) {
        let (elements, longer) = (short.elements(), long.elements());
        if moves(short.f.op(short.op).def) {
            return;
        }
        let mut results = Amount::default();
        results.add(n, short.result(), long.result());
        if results.0[2] > 0.0 {
            // Of fp16.
            self.square_bytes.push(2.0 * results.0[2]);
        }
        if let Some((inputs, outputs, stored)) = short.weights() {
            let positions = Amount(results.0.map(|v| v / outputs as f64));
            self.products.push(Product {
                inputs,
                outputs,
                stored,
                positions,
            });
            return;
        }
        self.tasks += usize::from(short.is_task());
        if let (Some(short), Some(long)) = (short.matmul_flops(), long.matmul_flops()) {
            self.attention_flops.add(n, short, long);
        } else {
            self.elements.add(n, elements, longer);
        }
    }

    /// Predicted milliseconds of a call of this length.
    pub fn ms(&self, length: usize, chip: &Chip) -> f64 {
        let products = self.products.iter().map(|p| p.seconds(length, chip));
        let (compute, weights) = products.fold((0.0, 0.0), |sum, of| {
            (sum.0 + of.compute, sum.1 + of.weights)
        });
        let attention = self.attention_flops.at(length) / (chip.peak_tflops.value * 1e12);
        let elements = self.elements.at(length) / (chip.element_gps.value * 1e9);
        let n = length as f64;
        let spilled = self
            .square_bytes
            .iter()
            .map(|bytes| bytes * n * n)
            .filter(|bytes| *bytes > RESIDENT_BYTES);
        // Written by one op and read by the next.
        let spilled = 2.0 * spilled.sum::<f64>() / (chip.activation_gbps.value * 1e9);
        let tasks = self.tasks as f64 * TASK_US.value / 1e6;
        // Weights are read ahead.
        let busy = (compute + attention + elements + tasks).max(weights) + spilled;
        1e3 * (chip.dispatch_seconds(Route::CoreMl, busy) + busy)
    }
}

impl Product {
    fn seconds(&self, length: usize, chip: &Chip) -> Seconds {
        let (inputs, outputs) = (self.inputs as f64, self.outputs as f64);
        Gemm::matrix(inputs, outputs, self.positions.at(length), self.stored).seconds(chip, false)
    }
}

/// Whether an op computes nothing.
fn moves(def: &OpDef) -> bool {
    def.kind.moves() || matches!(def.kind, OpKind::Constant | OpKind::Cast)
}

/// An op of a function.
#[derive(Clone, Copy)]
struct OpIn<'a> {
    f: &'a Function,
    op: OpId,
}

impl OpIn<'_> {
    fn shape(self, value: ValueId) -> Vec<usize> {
        let tensor = self.f.value(value).ty.tensor();
        tensor.map_or_else(Vec::new, |t| {
            t.shape.iter().map(|d| d.known().unwrap_or(1)).collect()
        })
    }

    fn count(self, value: ValueId) -> f64 {
        self.shape(value).iter().map(|n| *n as f64).product()
    }

    /// Whether the op begins a task: any but an elementwise op or a reduction behind another.
    fn is_task(self) -> bool {
        let is_chainable = |def: &OpDef| {
            use OpKind::{Channelwise, Elementwise, Reduction, Unary};
            matches!(def.kind, Channelwise | Elementwise | Reduction | Unary)
        };
        let op = self.f.op(self.op);
        !is_chainable(op.def)
            || !op
                .uses()
                .any(|v| self.f.definer(v).is_some_and(|d| is_chainable(d.def)))
    }

    /// Elements of the first result.
    fn result(self) -> f64 {
        self.f
            .op(self.op)
            .results
            .first()
            .map_or(0.0, |r| self.count(*r))
    }

    /// Elements that an elementwise op makes, or a reduction takes.
    fn elements(self) -> f64 {
        let op = self.f.op(self.op);
        match op
            .value_arg("x")
            .filter(|_| op.def.name.starts_with("reduce_"))
        {
            Some(x) => self.count(x),
            None => self.result(),
        }
    }

    /// Inputs, outputs and form of the weights of a product with some.
    fn weights(self) -> Option<(usize, usize, Stored)> {
        let op = self.f.op(self.op);
        let weight = op
            .value_arg("weight")
            .filter(|_| ["conv", "linear"].contains(&op.def.name))?;
        let shape = self.shape(weight);
        let (outputs, inputs) = shape.split_first()?;
        Some((
            inputs.iter().product(),
            *outputs,
            Stored::of(self.f, weight),
        ))
    }

    fn matmul_flops(self) -> Option<f64> {
        let op = self.f.op(self.op);
        if op.def.name != "matmul" {
            return None;
        }
        let (x, out) = (
            self.shape(op.value_arg("x")?),
            self.shape(*op.results.first()?),
        );
        let (&[.., a, b], &[.., rows, _]) = (&x[..], &out[..]) else {
            return None;
        };
        // What is summed up is the side of x that is not the result's.
        let inputs = if a == rows { b } else { a };
        Some(2.0 * self.result() * inputs as f64)
    }
}

/// Measured times.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    /// Lengths and milliseconds, in rising order.
    points: Vec<(usize, f64)>,
}

/// Why measured times cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TimesError {
    /// One point has no slope.
    #[error("expected at least two lengths with their times, found {found}")]
    TooFew {
        /// Number of points.
        found: usize,
    },
    /// A length or time is 0 or not finite.
    #[error(
        "length {length} takes {ms} ms: a length is above 0, and a time a finite number above 0"
    )]
    Unusable {
        /// Its length.
        length: usize,
        /// Its time.
        ms: f64,
    },
    /// A length has two times.
    #[error("length {length} has two times")]
    Twice {
        /// The length.
        length: usize,
    },
    /// A longer call takes less time.
    #[error("length {length} takes {ms} ms, less than length {shorter}: leave one of them out")]
    Falling {
        /// The longer length.
        length: usize,
        /// Its time.
        ms: f64,
        /// The shorter length.
        shorter: usize,
    },
}

impl Times {
    /// Lengths and their milliseconds, in any order.
    pub fn new(mut points: Vec<(usize, f64)>) -> Result<Self, TimesError> {
        if let Some(&(length, ms)) = points
            .iter()
            .find(|(length, ms)| *length == 0 || !ms.is_finite() || *ms <= 0.0)
        {
            return Err(TimesError::Unusable { length, ms });
        }
        points.sort_by_key(|(length, _)| *length);
        for pair in points.windows(2) {
            let ((shorter, before), (length, ms)) = (pair[0], pair[1]);
            if shorter == length {
                return Err(TimesError::Twice { length });
            }
            if ms < before {
                return Err(TimesError::Falling {
                    length,
                    ms,
                    shorter,
                });
            }
        }
        if points.len() < 2 {
            return Err(TimesError::TooFew {
                found: points.len(),
            });
        }
        Ok(Self { points })
    }

    /// The time of a length: on the line between its neighbors; outside of what was measured,
    /// `model` scaled so that it meets the nearest point.
    pub fn ms(&self, length: usize, model: &dyn Fn(usize) -> f64) -> f64 {
        let scaled = |(at, ms): (usize, f64)| ms * model(length) / model(at);
        let next = self.points.partition_point(|(at, _)| *at < length);
        match (
            next.checked_sub(1).map(|i| self.points[i]),
            self.points.get(next).copied(),
        ) {
            (_, Some((at, ms))) if at == length => ms,
            (Some((a, from)), Some((b, to))) => {
                from + (to - from) * (length - a) as f64 / (b - a) as f64
            }
            (Some(last), None) => scaled(last),
            (None, Some(first)) => scaled(first),
            (None, None) => model(length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weight::Encoding;

    /// 28 layers, 1024 wide, 16 heads and 8 of keys of 128, 3072 within, and norms in four ops.
    fn qwen_sized() -> Work {
        let shapes = [
            (1024, 2048),
            (1024, 1024),
            (1024, 1024),
            (2048, 1024),
            (1024, 3072),
            (1024, 3072),
            (3072, 1024),
        ];
        let stored = Stored {
            encoding: Encoding::Dense,
            bits: 16.0,
        };
        let product = |(inputs, outputs)| Product {
            inputs,
            outputs,
            stored,
            positions: Amount([0.0, 1.0, 0.0]),
        };
        // Norms of the stream and of heads, rotary, scale, what is added, gate.
        let linear = 2 * 4 * 1024 + 4 * 3072 + 3 * 3072 + 2048 + 2 * 1024 + 2 * 3072;
        let layers = 28.0;
        Work {
            products: (0..28).flat_map(|_| shapes.map(product)).collect(),
            attention_flops: Amount([0.0, 0.0, layers * 2.0 * 2.0 * 2048.0]),
            // The mask and softmax.
            elements: Amount([0.0, layers * f64::from(linear), layers * 2.0 * 16.0]),
            // The same, and the product before them.
            square_bytes: vec![32.0; 28 * 3],
            // The stream twice, norms of heads, rotary, scores, mask, softmax and their product.
            tasks: 28 * 12,
        }
    }

    #[test]
    fn published_times_of_an_encoder_are_met_within_40_percent() {
        let chip = Chip::from_name("m4-max").unwrap();
        // pplx-embed 0.6B on M4 Max, macOS 26 (CoreML-LLM, pull request 169): the least and the
        // most that is given.
        for (length, least, most, said) in [
            (128, 14.0, 14.05, 10.3),
            (256, 31.92, 36.1, 20.0),
            (512, 82.61, 101.0, 82.2),
        ] {
            let ms = qwen_sized().ms(length, chip);
            assert!(
                ms > 0.6 * least && ms < 1.3 * most,
                "{length}: {ms} ms, published are {least} to {most}"
            );
            assert!(
                (ms - said).abs() < 0.1,
                "{length}: {ms} ms, the page says {said}"
            );
        }
    }

    #[test]
    fn a_longer_call_costs_no_less() {
        for chip in crate::target::CHIPS {
            let ms: Vec<f64> = (1..300).map(|i| qwen_sized().ms(i * 16, chip)).collect();
            assert!(
                ms.is_sorted() && ms[0] > chip.dispatch_us.value / 1e3,
                "{}",
                chip.name
            );
        }
    }

    #[test]
    fn times_are_joined_by_lines_and_continued_by_the_model() {
        let times = Times::new(vec![(256, 30.0), (128, 10.0)]).unwrap();
        let square = |n: usize| (n * n) as f64;
        for (length, ms) in [
            (128, 10.0),
            (256, 30.0),
            (192, 20.0),
            (160, 15.0),
            (512, 120.0),
            (64, 2.5),
        ] {
            assert_eq!(times.ms(length, &square), ms, "{length}");
        }
        let faults: [(&[(usize, f64)], &str); 6] = [
            (
                &[],
                "expected at least two lengths with their times, found 0",
            ),
            (&[(128, 14.0)], "their times, found 1"),
            (&[(128, 14.0), (128, 15.0)], "length 128 has two times"),
            (
                &[(128, 14.0), (256, 13.0)],
                "length 256 takes 13 ms, less than length 128",
            ),
            (&[(0, 14.0), (256, 13.0)], "length 0 takes 14 ms"),
            (&[(8, f64::NAN), (256, 13.0)], "length 8 takes NaN ms"),
        ];
        for (points, text) in faults {
            let said = Times::new(points.to_vec()).unwrap_err().to_string();
            assert!(said.contains(text), "{said}");
        }
    }
}
