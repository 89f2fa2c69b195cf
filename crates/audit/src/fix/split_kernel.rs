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

use thane_mil::edit::New;
use thane_mil::literal::Literal;
use thane_mil::program::OpId;
use thane_mil::types::DType;

use super::compressed::Weight;
use super::rewrite::{NamedArg, Rewrite, one, operand, result_shape, same_arg};
use super::{Answer, Fix, Numbers};
use crate::rules::query::{int, ints, small};
use crate::view::View;

/// The fix.
pub const FIX: Fix = Fix {
    name: "split_kernel",
    rules: &["ANE030", "ANE031", "ANE032", "ANE118"],
    what: "a convolution with a large kernel as a sum of such with parts of it",
    numbers: Numbers::Exact,
    run,
};

/// Widest part: kernels of 8 run at full speed, of 9 to 15 do not (the rule ANE118), and every chip
/// runs them. Highest part: 31.
const WIDEST: usize = 8;
const HIGHEST: usize = 31;

/// A convolution over two axes.
struct Conv {
    x: New,
    dtype: DType,
    shape: Vec<usize>,
    out: Vec<usize>,
    weight: Weight,
    strides: [usize; 2],
    dilations: [usize; 2],
    /// Before and after the height, before and after the width.
    pad: [usize; 4],
}

fn run(view: &View<'_>, id: OpId) -> Answer {
    if view.op(id).def.name != "conv" {
        return Err("it is no convolution");
    }
    let conv = Conv::of(view, id)?;
    let mut new = Rewrite::new(view, id, FIX.name);
    let (x, shape) = conv.padded(&mut new);
    let mut sums: Vec<New> = Vec::new();
    for (top, height) in cuts(conv.weight.shape[2], HIGHEST) {
        for (left, width) in cuts(conv.weight.shape[3], WIDEST) {
            let part = conv.weight.slice(2, top, height)?.slice(3, left, width)?;
            let y = conv.product(
                view,
                id,
                &mut new,
                (x, &shape),
                part,
                ([top, left], sums.is_empty()),
            );
            sums.push(y);
        }
    }
    if sums.len() < 2 {
        return Err("its kernel is small");
    }
    let sum = new.sum(sums);
    new.instead(sum)
}

fn cuts(n: usize, most: usize) -> Vec<(usize, usize)> {
    (0..n)
        .step_by(most)
        .map(|at| (at, most.min(n - at)))
        .collect()
}

fn pair(view: &View<'_>, id: OpId, name: &str) -> Result<[usize; 2], &'static str> {
    match ints(view, id, name).as_deref() {
        None => Ok([1, 1]),
        Some(&[a, b]) if a > 0 && b > 0 => Ok([a as usize, b as usize]),
        Some(_) => Err("it is not over two axes"),
    }
}

impl Conv {
    fn of(view: &View<'_>, id: OpId) -> Result<Self, &'static str> {
        let weight = Weight::of(view, view.op(id), "weight")?;
        let (x, dtype, shape) = operand(view, id, "x")?;
        let out = result_shape(view, id)?;
        if shape.len() != 4 || weight.shape.len() != 4 {
            return Err("it is not over two axes");
        }
        let pad_type = match small(view, id, "pad_type") {
            Some(literal) => literal.as_str().unwrap_or("valid").to_owned(),
            None => "valid".to_owned(),
        };
        let (strides, dilations) = (pair(view, id, "strides")?, pair(view, id, "dilations")?);
        let mut pad = [0; 4];
        match pad_type.as_str() {
            "valid" => {}
            "custom" => {
                let given = ints(view, id, "pad").unwrap_or_else(|| vec![0; 4]);
                let given: Option<Vec<usize>> =
                    given.into_iter().map(|p| usize::try_from(p).ok()).collect();
                pad = given
                    .and_then(|p| p.try_into().ok())
                    .ok_or("its padding is not of two axes")?;
            }
            _ => {
                for i in 0..2 {
                    let reach = (weight.shape[i + 2] - 1) * dilations[i] + 1;
                    let total =
                        ((out[i + 2] - 1) * strides[i] + reach).saturating_sub(shape[i + 2]);
                    let (less, more) = (total / 2, total - total / 2);
                    let lower = pad_type == "same_lower";
                    (pad[2 * i], pad[2 * i + 1]) = if lower { (more, less) } else { (less, more) };
                }
            }
        }
        Ok(Self {
            x: New::Value(x),
            dtype,
            shape,
            out,
            weight,
            strides,
            dilations,
            pad,
        })
    }

    fn padded(&self, new: &mut Rewrite<'_>) -> (New, Vec<usize>) {
        if self.pad == [0; 4] {
            return (self.x, self.shape.clone());
        }
        let pad = new.ints(&[&[0; 4][..], &self.pad].concat());
        let mode = new.literal(Literal::string("constant"));
        let zero = new.number(self.dtype, 0.0);
        let x = new.op(
            "pad",
            vec![
                one("x", self.x),
                one("pad", pad),
                one("mode", mode),
                one("constant_val", zero),
            ],
        );
        let mut shape = self.shape.clone();
        shape[2] += self.pad[0] + self.pad[1];
        shape[3] += self.pad[2] + self.pad[3];
        (x, shape)
    }

    /// The convolution with a part of the kernel that begins at `at`; only the first has the bias.
    fn product(
        &self,
        view: &View<'_>,
        id: OpId,
        new: &mut Rewrite<'_>,
        (x, shape): (New, &[usize]),
        part: Weight,
        (at, first): ([usize; 2], bool),
    ) -> New {
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
            new.slice(x, &begin, &size)
        };
        let (strides, dilations) = (new.ints(&self.strides), new.ints(&self.dilations));
        let (pad, pad_type) = (new.ints(&[0; 4]), new.literal(Literal::string("valid")));
        let groups = new.int(int(view, id, "groups").unwrap_or(1) as i32);
        let weight = part.write(new);
        let mut args: Vec<NamedArg> =
            vec![one("x", x), one("weight", weight), one("strides", strides)];
        args.extend([
            one("pad_type", pad_type),
            one("pad", pad),
            one("dilations", dilations),
            one("groups", groups),
        ]);
        args.extend(
            first
                .then(|| same_arg(view.op(id), "bias"))
                .flatten()
                .map(|b| ("bias", b)),
        );
        new.op("conv", args)
    }
}
