//! SiLU as programs for the Neural Engine spell it, by the hyperbolic tangent, becomes the op that
//! kernels of gates know.
//!
//! ```text
//! %wave = tanh(x: %x)
//! %more = add(x: %wave, y: 1.0)
//! %y = mul(x: %x, y: %more)
//! ```
//! becomes
//! ```text
//! %x_gate = mul(x: %x, y: 2.0)
//! %y = silu(x: %x_gate)
//! ```
//! because `x (tanh(x) + 1) = 2 x sigmoid(2 x)`. It rounds in another place than the program does,
//! so it is not for the reference.

use thane_mil::copy::Copier;
use thane_mil::literal::Literal;
use thane_mil::program::{Arg, Function, Op, OpId, ValueId};
use thane_mil::types::DType;

use super::with_rewritten;

/// The function with `silu` in place of its spelling; `None` where there is none.
pub fn gate(f: &Function) -> Option<Function> {
    with_rewritten(f, |copy, id| match gated(f, f.op(id)) {
        Some(x) => write(copy, id, x).map(|()| true),
        None => Some(false),
    })
}

/// The operand of `x (tanh(x) + 1)`.
fn gated(f: &Function, op: &Op) -> Option<ValueId> {
    let is_wide = |v: ValueId| {
        f.value(v)
            .ty
            .tensor()
            .is_some_and(|t| t.dtype == DType::Fp32)
    };
    if op.def.name != "mul" || !is_wide(*op.results.first()?) {
        return None;
    }
    let [x, y] = [op.value_arg("x")?, op.value_arg("y")?];
    [(x, y), (y, x)].into_iter().find_map(|(x, more)| {
        let sum = f.definer(more).filter(|sum| sum.def.name == "add")?;
        let wave = ["x", "y"].iter().zip(["y", "x"]).find_map(|(wave, one)| {
            let is_one = number(f, sum.arg(one)?)? == 1.0;
            is_one.then(|| sum.value_arg(wave))?
        })?;
        let tanh = f.definer(wave).filter(|tanh| tanh.def.name == "tanh")?;
        (tanh.value_arg("x") == Some(x)).then_some(x)
    })
}

/// The only number of a constant.
fn number(f: &Function, arg: &Arg) -> Option<f32> {
    let numbers = match arg {
        Arg::Literal(literal) => literal.to_floats()?,
        Arg::Value(value) => f.constant(*value)?.to_floats()?,
        Arg::Values(_) => return None,
    };
    match numbers.as_slice() {
        [number] => Some(*number),
        _ => None,
    }
}

fn write(copy: &mut Copier<'_>, id: OpId, x: ValueId) -> Option<()> {
    let result = *copy.f.op(id).results.first()?;
    let name = copy.name(result);
    copy.to.set_place(&copy.f.op(id).origin.place);
    let args = vec![
        ("x", Arg::Value(copy.get(x)?)),
        ("y", Arg::Literal(Literal::f32(2.0))),
    ];
    let twice = copy.op("mul", &format!("{name}_gate"), args).ok()?;
    let args = vec![("x", Arg::Value(twice))];
    let value = copy.op("silu", name, args).ok()?;
    copy.set(result, value);
    Some(())
}
