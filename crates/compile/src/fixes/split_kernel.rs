//! Writes convolutions with wide or high kernels as sums of convolutions with parts of the kernel.
//!
//! ```text
//! func f<ios18>(tensor<fp16, [1, 2, 1, 64]> x) {
//!     tensor<fp16, [3, 2, 1, 20]> w = const()[val = tensor<fp16, [3, 2, 1, 20]>(BLOBFILE(path = string("noise"), offset = uint64(0)))];
//!     tensor<fp16, [1, 3, 1, 45]> y = conv(x = x, weight = w, pad_type = string("valid"));
//! } -> (y);
//! ```
//!
//! becomes convolutions with columns 0 to 7, 8 to 15 and 16 to 19 of the kernel over slices of x
//! that begin there, added. Padding is done once, before.

use thane_mil::graph::small;
use thane_mil::literal::Literal;

use super::*;
use crate::compressed::Weight;

/// The fix.
pub const FIX: Fix = Fix {
    name: "split_kernel",
    rules: &["ANE030", "ANE031", "ANE032", "ANE118"],
    what: "a convolution with a large kernel as a sum of such with parts of it",
    numbers: Numbers::Exact,
    pattern: Else(&pattern!(conv()), "it is no convolution"),
    write,
};

/// Widest part: kernels of 8 run at full speed, of 9 to 15 do not (the rule ANE118), and every chip
/// runs them. Highest part: 31.
const WIDEST: usize = 8;
const HIGHEST: usize = 31;

/// A convolution over two axes.
struct Conv<'w> {
    new: &'w Rewrite<'w>,
    x: Value<'w>,
    shape: Vec<usize>,
    out: Vec<usize>,
    weight: Weight,
    strides: [usize; 2],
    dilations: [usize; 2],
    /// Before and after the height, before and after the width.
    pad: [usize; 4],
}

fn write(new: &Rewrite<'_>) -> Answer {
    let conv = Conv::of(new)?;
    let [height, width] = [(2, HIGHEST), (3, WIDEST)].map(|(axis, most)| {
        let n = conv.weight.shape[axis];
        (0..n).step_by(most).map(move |at| (at, most.min(n - at)))
    });
    let cuts = height.flat_map(|rows| width.clone().map(move |columns| (rows, columns)));
    let (x, shape) = conv.padded();
    let mut sums = Vec::new();
    for ((top, height), (left, width)) in cuts {
        let part = conv.weight.slice(2, top, height)?.slice(3, left, width)?;
        sums.push(conv.product((x, &shape), part, [top, left]));
    }
    if sums.len() < 2 {
        return Err("its kernel is small");
    }
    new.instead(sums.into_iter().sum())
}

impl<'w> Conv<'w> {
    fn of(new: &'w Rewrite<'w>) -> Result<Self, &'static str> {
        let (graph, id) = (new.graph, new.root());
        let weight = Weight::of(graph, graph.op(id), "weight")?;
        let (x, shape) = new.operand(id, "x")?;
        let out = new.result_shape()?;
        if shape.len() != 4 || weight.shape.len() != 4 {
            return Err("it is not over two axes");
        }
        let pair = |name: &str| match ints(graph, id, name).as_deref() {
            None => Ok([1, 1]),
            Some(&[a, b]) if a > 0 && b > 0 => Ok([a as usize, b as usize]),
            Some(_) => Err("it is not over two axes"),
        };
        let (strides, dilations) = (pair("strides")?, pair("dilations")?);
        let reach = [0, 1].map(|i| (weight.shape[i + 2] - 1) * dilations[i] + 1);
        let pad = padding(new, &reach, &strides, &shape[2..], &out[2..])?;
        let pad = pad
            .try_into()
            .map_err(|_| "its padding is not of two axes")?;
        Ok(Self {
            new,
            x,
            shape,
            out,
            weight,
            strides,
            dilations,
            pad,
        })
    }

    fn padded(&self) -> (Value<'w>, Vec<usize>) {
        if self.pad == [0; 4] {
            return (self.x, self.shape.clone());
        }
        let pad = self.new.ints(&[&[0; 4][..], &self.pad].concat());
        let mode = self.new.literal(Literal::string("constant"));
        let zero = self.x.number(0.0);
        let args = [
            ("x", self.x),
            ("pad", pad),
            ("mode", mode),
            ("constant_val", zero),
        ];
        let x = self.new.op("pad", &args);
        let mut shape = self.shape.clone();
        shape[2] += self.pad[0] + self.pad[1];
        shape[3] += self.pad[2] + self.pad[3];
        (x, shape)
    }

    /// The convolution with a part of the kernel that begins at `at`; only the first has the bias.
    fn product(
        &self,
        (x, shape): (Value<'w>, &[usize]),
        part: Weight,
        at: [usize; 2],
    ) -> Value<'w> {
        let (mut begin, mut size) = (vec![0; 4], shape.to_vec());
        for i in 0..2 {
            begin[i + 2] = at[i] * self.dilations[i];
            size[i + 2] = (self.out[i + 2] - 1) * self.strides[i]
                + (part.shape[i + 2] - 1) * self.dilations[i]
                + 1;
        }
        let x = if size == shape {
            x
        } else {
            x.slice(&begin, &size)
        };
        let new = self.new;
        let (strides, dilations) = (new.ints(&self.strides), new.ints(&self.dilations));
        let (pad, pad_type) = (new.ints(&[0; 4]), new.literal(Literal::string("valid")));
        let groups = new.int(int(new.graph, new.root(), "groups").unwrap_or(1) as i32);
        let others = [
            ("x", x),
            ("weight", part.write(new)),
            ("strides", strides),
            ("pad_type", pad_type),
            ("pad", pad),
            ("dilations", dilations),
            ("groups", groups),
        ];
        let left_out = if at == [0, 0] { "" } else { "bias" };
        new.again_without(new.graph.op(new.root()), &others, left_out)
    }
}

/// The elements before and after each axis that windows of a convolution or a pool reach beyond x;
/// `shape` and `out` are the lengths of these axes.
pub fn padding(
    new: &Rewrite<'_>,
    reach: &[usize],
    strides: &[usize],
    shape: &[usize],
    out: &[usize],
) -> Result<Vec<usize>, &'static str> {
    let pad_type = small(new.graph, new.root(), "pad_type").and_then(Literal::as_str);
    let pad_type = pad_type.unwrap_or("valid").to_ascii_lowercase();
    match pad_type.as_str() {
        "valid" => Ok(vec![0; 2 * reach.len()]),
        "custom" => {
            let pad = ints(new.graph, new.root(), "pad");
            let pad = pad.unwrap_or_else(|| vec![0; 2 * reach.len()]).into_iter();
            let pad = pad.map(|p| usize::try_from(p).ok()).collect::<Option<_>>();
            pad.ok_or("its padding is below 0")
        }
        same => Ok((0..reach.len())
            .flat_map(|i| {
                let last = out[i].saturating_sub(1) * strides[i];
                let total = (last + reach[i]).saturating_sub(shape[i]);
                let (less, more) = (total / 2, total - total / 2);
                if same == "same_lower" {
                    [more, less]
                } else {
                    [less, more]
                }
            })
            .collect()),
    }
}
