//! The operands of the products of a function while it runs: sums of squares by input feature, and
//! the distribution of magnitudes.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use thane_mil::evaluate::HostTensor;
use thane_mil::literal::Literal;
use thane_mil::observe::OpCall;
use thane_mil::program::{Function, Op, OpId, ValueId};

/// Added to the mean of squares of an input, as a share of that of all: other texts may use what
/// this one does not.
const UNSEEN: f64 = 0.01;

/// An operand of a product, and the other one is a constant weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operand {
    /// The value.
    pub value: ValueId,
    /// The axis of features.
    axis: Axis,
    /// Features that an output channel sums over. Those of a group of a convolution follow those of
    /// another.
    n_inputs: usize,
}

/// The axis of features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Axis {
    Front(usize),
    Back(usize),
}

impl Operand {
    /// The operand beside the constant weight of a product; `None` for other ops.
    pub fn of(f: &Function, op: &Op) -> Option<Self> {
        let shape = |name: &str| {
            let weight = op.value_arg(name)?;
            let is_constant = f.definer(weight)?.def.is_constexpr();
            let ty = f.value(weight).ty.tensor().filter(|_| is_constant)?;
            ty.known_shape()
        };
        let is_set = |name| {
            let flag = f.literal_arg(op, name).and_then(Literal::to_ints);
            flag.as_deref() == Some(&[1])
        };
        let of = |x: &str, axis, n_inputs: Option<&usize>| {
            Some(Self {
                value: op.value_arg(x)?,
                axis,
                n_inputs: *n_inputs?,
            })
        };
        // The axis of inputs of a weight of this shape, counted from the back.
        let back = |shape: &[usize], n: usize| shape.len().checked_sub(n + 1).map(|at| shape[at]);
        match op.def.name {
            "conv" => of("x", Axis::Front(1), shape("weight")?.get(1)),
            "conv_transpose" => of("x", Axis::Front(1), shape("weight")?.first()),
            "linear" => of("x", Axis::Back(0), shape("weight")?.get(1)),
            "matmul" => match shape("y") {
                Some(y) => {
                    let n = back(&y, usize::from(!is_set("transpose_y")));
                    of("x", Axis::Back(is_set("transpose_x").into()), n.as_ref())
                }
                None => {
                    let n = back(&shape("x")?, usize::from(is_set("transpose_x")));
                    let axis = Axis::Back(usize::from(!is_set("transpose_y")));
                    of("y", axis, n.as_ref())
                }
            },
            _ => None,
        }
    }

    /// The features of each element of a tensor of this shape, row-major: those of element `i` are
    /// `i / inner % length`. `None` if the tensor has no such axis.
    fn features(&self, shape: &[usize]) -> Option<(usize, usize)> {
        let axis = match self.axis {
            Axis::Front(axis) => axis,
            Axis::Back(axis) => shape.len().checked_sub(axis + 1)?,
        };
        let length = *shape.get(axis)?;
        let inner = shape[axis + 1..].iter().product();
        (length > 0 && self.n_inputs > 0).then_some((inner, length))
    }
}

/// The sums of one operand. Rows, which have the features of one position each, count alike,
/// whatever their size: the first token of a text may be a hundred times as large as others, and
/// what it needs is not what they need.
#[derive(Clone, Debug, Default)]
struct Tally {
    /// Sums of squares of each feature, over the mean square of the row.
    squares: Vec<f64>,
    /// Numbers of each feature.
    n: f64,
    /// `None` if nobody asks for ranges.
    magnitudes: Option<Magnitudes>,
}

impl Tally {
    fn add<T: HostTensor>(&mut self, operand: &Operand, tensor: &T) {
        let Some((inner, length)) = operand.features(tensor.shape()) else {
            return;
        };
        let mut numbers = Vec::with_capacity(tensor.n_elements());
        tensor.each(|x| numbers.push(if x.is_finite() { x } else { 0.0 }));
        self.squares.resize(operand.n_inputs, 0.0);
        self.n += numbers.len() as f64 / operand.n_inputs as f64;
        let mut weights = vec![0.0; inner];
        // [features, inner] // a column of it is a row of features
        for block in numbers.chunks(inner * length) {
            weights.fill(0.0);
            for row in block.chunks(inner) {
                let sums = weights.iter_mut().zip(row);
                sums.for_each(|(sum, x)| *sum += x * x / length as f64);
            }
            let inverse = |sum: &mut f64| *sum = if *sum > 0.0 { 1.0 / *sum } else { 0.0 };
            weights.iter_mut().for_each(inverse);
            for (feature, row) in block.chunks(inner).enumerate() {
                let squares = row.iter().zip(&weights).map(|(x, weight)| x * x * weight);
                self.squares[feature % operand.n_inputs] += squares.sum::<f64>();
                if let Some(magnitudes) = &mut self.magnitudes {
                    // Absolute errors count: the outliers of a first token hold others up.
                    row.iter().for_each(|x| magnitudes.add(x.abs(), 1.0));
                }
            }
        }
    }

    /// The mean of the squares of each feature.
    fn means(&self) -> Arc<[f32]> {
        let n = self.n.max(1.0);
        let all = self.squares.iter().sum::<f64>() / n / self.squares.len().max(1) as f64;
        let mean = |sum: &f64| (sum / n + UNSEEN * all) as f32;
        self.squares.iter().map(mean).collect()
    }
}

/// How often there are numbers of each size.
#[derive(Clone, Debug)]
struct Magnitudes {
    /// By exponent and the first three bits of the mantissa.
    classes: Vec<f64>,
    largest: f64,
}

impl Default for Magnitudes {
    fn default() -> Self {
        Self {
            classes: vec![0.0; Self::N_CLASSES],
            largest: 0.0,
        }
    }
}

impl Magnitudes {
    /// Bits of an f64 behind those that tell classes apart.
    const SHIFT: u32 = 49;
    /// The class of 2^-40; sizes below are in it too.
    const FIRST: u64 = (1023 - 40) << 3;
    /// Up to 2^24.
    const N_CLASSES: usize = 64 << 3;
    /// The largest code of 8 bits.
    const LARGEST_CODE: f64 = 127.0;

    fn add(&mut self, size: f64, weight: f64) {
        if size == 0.0 {
            return;
        }
        let class = (size.to_bits() >> Self::SHIFT).saturating_sub(Self::FIRST);
        self.classes[(class as usize).min(Self::N_CLASSES - 1)] += weight;
        self.largest = self.largest.max(size);
    }

    /// The middle of a class.
    fn size(class: usize) -> f64 {
        let bits = (class as u64 + Self::FIRST) << Self::SHIFT;
        f64::from_bits(bits | 1 << (Self::SHIFT - 1))
    }

    /// Classes that have numbers: their sizes and weights.
    fn sizes(&self) -> impl Iterator<Item = (f64, f64)> {
        let all = self.classes.iter().enumerate();
        let all = all.filter(|(_, weight)| **weight > 0.0);
        all.map(|(class, weight)| (Self::size(class).min(self.largest), *weight))
    }

    /// The greatest size that is kept: the one with the least error of codes of 8 bits.
    fn range(&self) -> Option<f32> {
        let ranges = self.sizes().map(|(size, _)| size);
        let ranges = ranges.chain([self.largest]).filter(|size| *size > 0.0);
        let priced = ranges.map(|range| (self.error(range), range));
        let best = priced.reduce(|best, next| if next.0 <= best.0 { next } else { best });
        best.map(|(_, range)| range as f32)
    }

    /// The squares of what codes lose that end at `range`.
    fn error(&self, range: f64) -> f64 {
        let step = range / Self::LARGEST_CODE;
        let lost = |size: f64| match size <= range {
            // Where an error is uniform from half a step below to half a step above.
            true => (step * step / 12.0).min(size * size),
            false => (size - range).powi(2),
        };
        self.sizes().map(|(size, weight)| weight * lost(size)).sum()
    }
}

/// A product of a function.
struct Product {
    /// The module of the checkpoint; empty if that is not known.
    module: String,
    /// The name of its weight.
    weight: String,
    /// The name of its result.
    result: String,
    operand: Operand,
}

/// The products of a function, and sums of what they took so far.
pub struct Products {
    all: Vec<Product>,
    /// One product of several that take an operand is enough.
    asked: HashMap<OpId, Operand>,
    tallies: HashMap<Operand, Tally>,
    /// True if ranges are asked for.
    has_ranges: bool,
}

/// Statistics of the operand of a product.
pub struct Taken {
    /// The module of the checkpoint; empty if that is not known.
    pub module: String,
    /// The name of the weight.
    pub weight: String,
    /// The name of the product's result.
    pub result: String,
    /// The operand, by which products that take the same are known.
    pub operand: Operand,
    /// The mean squares of the features of the operand, relative to those of their row.
    pub means: Arc<[f32]>,
    /// The greatest magnitude that 8-bit codes of the operand keep; `None` if all are 0 or nobody
    /// asked.
    pub range: Option<f32>,
}

impl Products {
    /// The products of a function and of the loops in it; `has_ranges` says whether ranges are
    /// wanted.
    pub fn of(f: &Function, has_ranges: bool) -> Self {
        let mut found = Self {
            all: Vec::new(),
            asked: HashMap::new(),
            tallies: HashMap::new(),
            has_ranges,
        };
        for id in f.all_ops() {
            let op = f.op(id);
            let (Some(operand), Some(result)) = (Operand::of(f, op), op.results.first()) else {
                continue;
            };
            if !found.all.iter().any(|known| known.operand == operand) {
                found.asked.insert(id, operand);
            }
            let weight = ["weight", "x", "y"]
                .into_iter()
                .filter_map(|name| op.value_arg(name));
            let mut weight = weight.filter(|value| *value != operand.value);
            found.all.push(Product {
                module: op.origin.place.to_string(),
                weight: weight
                    .next()
                    .map_or_else(String::new, |w| f.value(w).name.clone()),
                result: f.value(*result).name.clone(),
                operand,
            });
        }
        found
    }

    /// The ops whose calls are to be handed over.
    pub fn asks(&self) -> impl Fn(OpId) -> bool + Sync + use<> {
        let asked: HashSet<OpId> = self.asked.keys().copied().collect();
        move |op| asked.contains(&op)
    }

    /// Adds what a product took.
    pub fn add<T: HostTensor>(&mut self, call: &OpCall<'_, T>) -> Result<ControlFlow<()>, String> {
        let operand = self.asked[&call.op];
        let tensor = call.value(operand.value)?;
        let tally = self.tallies.entry(operand).or_insert_with(|| Tally {
            magnitudes: self.has_ranges.then(Magnitudes::default),
            ..Tally::default()
        });
        tally.add(&operand, &tensor);
        Ok(ControlFlow::Continue(()))
    }

    /// Numbers of each feature that products took, of all products.
    pub fn n_taken(&self) -> f64 {
        self.tallies.values().map(|tally| tally.n).sum()
    }

    /// Statistics of all products that were called.
    pub fn taken(self) -> Vec<Taken> {
        let known = |tally: &Tally| {
            (
                tally.means(),
                tally.magnitudes.as_ref().and_then(Magnitudes::range),
            )
        };
        let tallies = self.tallies.iter();
        let known: HashMap<&Operand, _> = tallies.map(|(o, tally)| (o, known(tally))).collect();
        let taken = self.all.into_iter().filter_map(|product| {
            let (means, range) = known.get(&product.operand)?;
            Some(Taken {
                means: Arc::clone(means),
                range: *range,
                module: product.module,
                weight: product.weight,
                result: product.result,
                operand: product.operand,
            })
        });
        taken.collect()
    }
}

#[cfg(test)]
mod tests {
    use thane_cpu::{Cpu, Numerics};
    use thane_mil::backend::View;
    use thane_mil::observe::{Given, Observe};
    use thane_mil::types::DType;

    use super::*;

    /// The means of squares of features, of products along all axes and in a loop, against those
    /// of a loop over the input by hand.
    #[test]
    fn squares_are_summed_along_the_axis_of_inputs() {
        let weight = |name: &str, shape: &[usize]| {
            let lists = shape.iter().rev();
            let zeros = lists.fold("0.0".to_owned(), |row, n| {
                format!("[{}]", vec![row; *n].join(", "))
            });
            format!(
                "tensor<fp32, {shape:?}> {name} = const()[val = tensor<fp32, {shape:?}>({zeros})];"
            )
        };
        let text = format!(
            "program(1.3) {{ func f<ios18>(tensor<fp32, [1, 4, 1, 3]> x) {{ {} {} {} {} {}
                tensor<fp32, [1, 2, 1, 3]> a = conv(x = x, weight = wa);
                tensor<fp32, [1, 2, 1, 3]> b = conv(x = x, weight = wb, groups = g);
                tensor<fp32, [1, 4, 1, 5]> c = linear(x = x, weight = wc);
                tensor<fp32, [1, 4, 1, 2]> d = matmul(x = x, y = wd);
            }} -> (a, b, c, d); }}",
            weight("wa", &[2, 4, 1, 1]),
            weight("wb", &[2, 2, 1, 1]),
            weight("wc", &[5, 3]),
            weight("wd", &[3, 2]),
            "int32 g = const()[val = int32(2)];",
        );
        let program = thane_mil::text::parse(&text, &|_, _, _| None).unwrap();
        let f = &program.functions()[0];
        let numbers: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_ne_bytes()).collect();
        let view = View {
            dtype: DType::Fp32,
            shape: &[1, 4, 1, 3],
            bytes: &bytes,
        };
        let given = Given {
            inputs: &[("x", view)],
            states: &[],
        };
        let mut products = Products::of(f, true);
        let asks = products.asks();
        let cpu = Cpu::new(Numerics::F32, 1);
        let _ = cpu
            .observe(f, &[given, given], &asks, &mut |call| products.add(call))
            .unwrap();
        // Means over the positions of a feature, of squares over the mean square of the position.
        let mean = |n: usize, feature: &dyn Fn(usize) -> usize, row: &dyn Fn(usize) -> usize| {
            let square = |i: usize| numbers[i] * numbers[i];
            let energy = |at: usize| {
                let all: Vec<f32> = (0..12).filter(|i| row(*i) == row(at)).map(square).collect();
                all.iter().sum::<f32>() / all.len() as f32
            };
            let of = |c: usize| {
                let all = (0..12).filter(|i| feature(*i) == c);
                let all: Vec<f32> = all.map(|i| square(i) / energy(i)).collect();
                all.iter().sum::<f32>() / all.len() as f32
            };
            (0..n).map(of).collect::<Vec<f32>>()
        };
        let channels = mean(4, &|i| i / 3, &|i| i % 3);
        let groups = mean(2, &|i| i / 3 % 2, &|i| i % 3);
        let columns = mean(3, &|i| i % 3, &|i| i / 3);
        let taken = products.taken();
        assert_eq!(taken.len(), 4);
        for (taken, expected) in taken.iter().zip([&channels, &groups, &columns, &columns]) {
            let unseen = UNSEEN as f32 * expected.iter().sum::<f32>() / expected.len() as f32;
            assert_eq!(taken.means.len(), expected.len(), "{}", taken.result);
            for (found, expected) in taken.means.iter().zip(expected) {
                assert!((found - expected - unseen).abs() < 1e-5, "{}", taken.result);
            }
            assert_eq!(taken.range, Some(11.0));
        }
    }

    /// One number that is far larger than others is cut off where rows count alike.
    #[test]
    fn ranges_cut_off_what_costs_more_than_it_is_worth() {
        let mut sizes = Magnitudes::default();
        assert_eq!(sizes.range(), None);
        (1..=1000).for_each(|i| sizes.add(f64::from(i) / 1000.0, 1.0));
        let range = sizes.range().unwrap();
        assert!((0.9..=1.0).contains(&range), "{range}");
        sizes.add(300.0, 1e-6);
        let range = sizes.range().unwrap();
        assert!((0.8..2.0).contains(&range), "{range}");
        sizes.add(300.0, 10.0);
        assert_eq!(sizes.range(), Some(300.0));
    }
}
