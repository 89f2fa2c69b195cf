//! A program whose compressed constants are written as the values that the CPU's plain ops compute
//! of them.

use std::collections::HashMap;

use thane_compile::rewrite::bytes_of;
use thane_cpu::OpByOp;
use thane_mil::data::Data;
use thane_mil::edit::{NewArg, Patch};
use thane_mil::evaluate::{Evaluate, HostTensor, Value};
use thane_mil::literal::Literal;
use thane_mil::opset;
use thane_mil::program::{Arg, Function, OpId, Program};
use thane_mil::types::TensorType;

pub fn decompressed(program: &Program) -> Program {
    let mut out = program.clone();
    for (at, f) in program.functions().iter().enumerate() {
        patch(f).apply_to(&mut out, at).unwrap();
    }
    out
}

fn patch(f: &Function) -> Patch {
    let backend = OpByOp::new(1, None);
    let mut known = HashMap::new();
    let mut patch = Patch::new();
    for id in f.all_ops() {
        let op = f.op(id);
        if !op.def.name.starts_with("constexpr_") {
            continue;
        }
        let args = op.args.iter().map(|arg| {
            let literal = match arg.as_ref()? {
                Arg::Value(v) if known.contains_key(v) => {
                    return Some(Value::Tensor(Clone::clone(&known[v])));
                }
                Arg::Value(v) => f.constant(*v).unwrap(),
                Arg::Literal(literal) => literal,
                Arg::Values(_) => panic!("{} is variadic", op.def.name),
            };
            Some(match backend.literal(literal) {
                Some(tensor) => Value::Tensor(tensor),
                None => Value::Literal(literal.clone()),
            })
        });
        let args: Vec<Option<Value<_>>> = args.collect();
        let results = backend.evaluate(op.def, args).unwrap();
        for (value, tensor) in op.results.iter().zip(results) {
            known.insert(*value, tensor);
        }
        write(f, id, &known, &mut patch);
    }
    patch
}

/// Puts a constant in the place of a result of floating point; the other results of an op are
/// those that only compressed constants use.
fn write<T: HostTensor>(
    f: &Function,
    id: OpId,
    known: &HashMap<thane_mil::program::ValueId, T>,
    patch: &mut Patch,
) {
    let op = f.op(id);
    for result in &op.results {
        let tensor = &known[result];
        if !tensor.dtype().is_float() {
            continue;
        }
        let mut numbers = Vec::new();
        tensor.each(|x| numbers.push(x as f32));
        let data = Data::owned(bytes_of(tensor.dtype(), numbers.into_iter()));
        let ty = TensorType::new(tensor.dtype(), tensor.shape().iter().copied());
        let args = vec![("val", NewArg::Same(Arg::Literal(Literal::Tensor(ty, data))))];
        let def = opset::find_in("const", f.opset).unwrap();
        let name = format!("{}_dense", f.value(*result).name);
        let new = patch.insert(id, def, args, name, op.origin.clone());
        patch.replace(*result, new);
    }
    patch.remove(id);
}
