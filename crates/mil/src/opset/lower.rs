//! The same program in another opset.

use super::{OpDef, Opset, find_in};
use crate::program::{Arg, Function, Op, OpId, Program};
use crate::valid::Violation;

/// The oldest opset that has every op of a program in a form that takes its arguments and gives its types.
pub fn lowest_opset(program: &Program) -> Option<Opset> {
    Opset::ALL.iter().copied().find(|opset| with_opset(program, *opset).is_ok())
}

/// The program with each op in the form that `opset` has, or everything that stands in the way.
pub fn with_opset(program: &Program, opset: Opset) -> Result<Program, Vec<Violation>> {
    let mut violations = Vec::new();
    let mut out = program.clone();
    for function in &mut out.functions {
        function.opset = opset;
        for id in function.all_ops() {
            if let Err(message) = rebind(function, id, opset) {
                let op = function.op(id);
                let result = op.results.first().map_or("", |r| &function.value(*r).name);
                let place = format!("{} `{result}`", op.def.name);
                violations.push(Violation { function: function.name.clone(), place, message });
            }
        }
    }
    if violations.is_empty() { Ok(out) } else { Err(violations) }
}

fn rebind(function: &mut Function, id: OpId, opset: Opset) -> Result<(), String> {
    let op = function.op(id);
    let def = find_in(op.def.name, opset).ok_or_else(|| format!("opset {} has no such op", opset.name()))?;
    if def == op.def {
        return Ok(());
    }
    let args = rebound(function, op, def, opset)?;
    // Symbols are not compared, so those that inference makes up here are not kept.
    let types = function.infer_with(def, &args, &op.blocks, &mut (u32::MAX / 2)).map_err(|e| e.0)?;
    let declared: Vec<_> = op.results.iter().map(|r| &function.value(*r).ty).collect();
    if types.len() != declared.len() || !types.iter().zip(&declared).all(|(a, b)| a.compatible(b)) {
        return Err(format!("its results are of other types in opset {}", opset.name()));
    }
    let op = &mut function.ops[id.index()];
    op.def = def;
    op.args = args;
    Ok(())
}

/// The arguments in the order of another form.
fn rebound(function: &Function, op: &Op, def: &OpDef, opset: Opset) -> Result<Vec<Option<Arg>>, String> {
    let mut args = vec![None; def.params.len()];
    for (param, arg) in op.def.params.iter().zip(&op.args) {
        let Some(arg) = arg else { continue };
        let at = def.param_index(param.name);
        let at = at.ok_or_else(|| format!("it has no parameter `{}` in opset {}", param.name, opset.name()))?;
        args[at] = Some(match arg {
            // Attributes are written in place.
            Arg::Value(v) if def.attributes => {
                let literal = function.constant(*v).ok_or_else(|| format!("`{}` must be constant", param.name))?;
                Arg::Literal(literal.clone())
            }
            arg => arg.clone(),
        });
    }
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;
    use crate::valid;

    fn program(body: &str) -> Program {
        let text = format!("program(1.3) {{ func main<ios18>(tensor<fp32, [1, 2, 3]> x) {{ {body} }} -> (y); }}");
        parse(&text, &|_, _, _| None).unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn programs_are_lowered_as_far_as_their_ops_go() {
        for (body, lowest) in [
            ("tensor<fp32, [1, 2, 3]> y = relu(x = x);", Opset::CoreMl5),
            ("tensor<int8, [1, 2, 3]> y = cast(x = x, dtype = string(\"int8\"));", Opset::CoreMl7),
            (
                "tensor<fp32, [1, 2, 3]> y = scaled_dot_product_attention(query = x, key = x, value = x);",
                Opset::CoreMl8,
            ),
        ] {
            let program = program(body);
            assert_eq!(lowest_opset(&program), Some(lowest), "{body}");
            let lowered = with_opset(&program, lowest).unwrap();
            assert_eq!(lowered.functions()[0].opset, lowest);
            valid::check(&lowered).unwrap();
        }
    }

    #[test]
    fn what_stands_in_the_way_is_listed() {
        let body = "tensor<int8, [1, 2, 3]> a = cast(x = x, dtype = string(\"int8\"));
            tensor<fp32, [1, 2, 3]> b = scaled_dot_product_attention(query = x, key = x, value = x);
            tensor<fp32, [1, 2, 3]> y = relu(x = b);";
        let violations: Vec<String> =
            with_opset(&program(body), Opset::CoreMl5).unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(violations.len(), 2, "{violations:?}");
        assert!(violations[0].starts_with("main: cast `a`: "), "{violations:?}");
        assert_eq!(violations[1], "main: scaled_dot_product_attention `b`: opset ios15 has no such op");
    }
}
