//! Scales of channels behind a product with a compressed weight become scales of the weight's rows,
//! so that the product applies them where it ends.
//!
//! ```text
//! %w: fp16[n, k] = constexpr_lut_to_dense(indices: .., lut: ..)
//! %p: [1, 1, n] = linear(x: %x, weight: %w)
//! %y: [1, 1, n] = mul(x: %p, y: %scales: [1, 1, n])
//! ```
//! becomes
//! ```text
//! %w_scaled: fp32[n, k] = constexpr_blockwise_shift_scale(data: %w, scale: %scales: [n, 1])
//! %y: [1, 1, n] = linear(x: %x, weight: %w_scaled)
//! ```
//! It rounds in another place than the program does, so it is not for the reference.

use thane_mil::copy::Copier;
use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Function, Op, OpId, ValueId};
use thane_mil::types::{DType, TensorType};

use super::with_rewritten;

/// Scales behind one another that are looked at.
const MOST_SCALES: usize = 4;

/// The function with scales of rows in place of those behind products; `None` where there are none.
pub fn scale(f: &Function) -> Option<Function> {
    with_rewritten(f, |copy, id| match scaled(f, f.op(id)) {
        Some(scaled) => scaled.write(copy, id).map(|()| true),
        None => Some(false),
    })
}

/// A product with a compressed weight whose rows are scaled behind it.
struct Scaled {
    x: ValueId,
    /// The values of the weight's table.
    dense: ValueId,
    /// Axes of these values.
    rank: usize,
    shape: [usize; 2],
    scales: Vec<f32>,
}

/// The product without a bias that a `mul` scales, if there is one.
fn scaled(f: &Function, op: &Op) -> Option<Scaled> {
    if op.def.name != "mul" {
        return None;
    }
    let (product, factors) = product(f, *op.results.first()?)?;
    let weight = product.value_arg("weight")?;
    let &[n_rows, n_cols] = sizes(f, weight)?.as_slice() else {
        return None;
    };
    let rank = f.value(*product.results.first()?).ty.tensor()?.rank();
    let mut scales = vec![1.0; n_rows];
    for factor in factors {
        let numbers = numbers_of_rows(f, factor, n_rows, rank)?;
        let pairs = scales.iter_mut().zip(numbers);
        pairs.for_each(|(scale, number)| *scale *= number);
    }
    let dense = table_values(f, weight)?;
    Some(Scaled {
        x: product.value_arg("x")?,
        dense,
        rank: f.value(dense).ty.tensor()?.rank(),
        shape: [n_rows, n_cols],
        scales,
    })
}

/// The product without a bias that a value is, and what it is multiplied by.
fn product(f: &Function, mut value: ValueId) -> Option<(&Op, Vec<&Arg>)> {
    let mut factors = Vec::new();
    loop {
        let op = f.definer(value)?;
        if op.def.name == "linear" {
            return op.arg("bias").is_none().then_some((op, factors));
        }
        if op.def.name != "mul" || factors.len() == MOST_SCALES {
            return None;
        }
        let is_made = |name: &str| {
            let made = f.definer(op.value_arg(name)?)?;
            matches!(made.def.name, "linear" | "mul").then_some(())
        };
        let [made, factor] = match is_made("x") {
            Some(()) => ["x", "y"],
            None => ["y", "x"],
        };
        factors.push(op.arg(factor)?);
        value = op.value_arg(made)?;
    }
}

fn sizes(f: &Function, value: ValueId) -> Option<Vec<usize>> {
    f.value(value).ty.tensor()?.known_shape()
}

/// The values of a table behind a weight that is widened, or of another shape.
fn table_values(f: &Function, mut value: ValueId) -> Option<ValueId> {
    loop {
        let op = f.definer(value)?;
        match op.def.name {
            "cast" | "reshape" | "squeeze" => value = op.value_arg("x")?,
            "constexpr_lut_to_dense" => return Some(value),
            _ => return None,
        }
    }
}

/// The numbers of a constant whose axes have length 1, all but the last, which has one for each
/// row; or the only number, as often.
fn numbers_of_rows(f: &Function, arg: &Arg, n_rows: usize, most_rank: usize) -> Option<Vec<f32>> {
    let (shape, numbers) = match arg {
        Arg::Literal(literal) => (literal.ty().tensor()?.known_shape()?, literal.to_floats()?),
        Arg::Value(value) => (sizes(f, *value)?, numbers(f, *value)?),
        Arg::Values(_) => return None,
    };
    if shape.len() > most_rank {
        return None;
    }
    if let [number] = numbers.as_slice() {
        return Some(vec![*number; n_rows]);
    }
    let (last, outer) = shape.split_last()?;
    let is_of_rows = *last == n_rows && outer.iter().all(|n| *n == 1);
    (is_of_rows && numbers.len() == n_rows).then_some(numbers)
}

/// The numbers of a constant, in the order of one axis that is longer than 1.
fn numbers(f: &Function, mut value: ValueId) -> Option<Vec<f32>> {
    loop {
        let op = f.definer(value)?;
        match op.def.name {
            "const" => return f.constant(value)?.to_floats(),
            "constexpr_cast" => return f.literal_arg(op, "source_val")?.to_floats(),
            "cast" if !is_wide(f, value) => return None,
            "cast" | "reshape" | "squeeze" | "expand_dims" | "transpose" => {
                value = op.value_arg("x")?;
            }
            _ => return None,
        }
    }
}

fn is_wide(f: &Function, value: ValueId) -> bool {
    let ty = f.value(value).ty.tensor();
    ty.is_some_and(|ty| ty.dtype == DType::Fp32)
}

impl Scaled {
    /// The product with a weight whose rows are scaled, in the place of an op.
    fn write(&self, copy: &mut Copier<'_>, id: OpId) -> Option<()> {
        let result = *copy.f.op(id).results.first()?;
        let name = copy.name(result);
        copy.to.set_place(&copy.f.op(id).origin.place);
        let mut shape = vec![1; self.rank];
        *shape.first_mut()? = self.shape[0];
        let Literal::Tensor(_, data) = Literal::f32s(&self.scales) else {
            return None;
        };
        let scales = Literal::Tensor(TensorType::new(DType::Fp32, shape), data);
        let args = vec![
            ("data", Arg::Value(copy.get(self.dense)?)),
            ("scale", Arg::Literal(scales)),
        ];
        let name_of = |what: &str| format!("{name}_{what}");
        let kind = "constexpr_blockwise_shift_scale";
        let mut weight = copy.op(kind, &name_of("weight"), args).ok()?;
        if self.rank != 2 {
            let sizes = Literal::i32s(&self.shape.map(|n| n as i32));
            let args = vec![("x", Arg::Value(weight)), ("shape", Arg::Literal(sizes))];
            weight = copy.op("reshape", &name_of("weight_rows"), args).ok()?;
        }
        let args = vec![
            ("x", Arg::Value(copy.get(self.x)?)),
            ("weight", Arg::Value(weight)),
        ];
        let value = copy.op("linear", name, args).ok()?;
        copy.set(result, value);
        Some(())
    }
}
