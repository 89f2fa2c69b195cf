//! Rewrites a program for an older opset where possible, because older systems reject programs that
//! name a newer opset.

use crate::opset::{self, OpDef, Opset};
use crate::program::{Arg, Function, Op, Program};
use crate::valid::{self, Violation, label};

/// The oldest opset that can express the valid program `program`; never newer than the program's
/// own. `None` for a program without functions.
pub fn lowest_opset(program: &Program) -> Option<Opset> {
    let own = program.functions().first()?.opset;
    let older = Opset::ALL.iter().copied().filter(|o| *o < own);
    Some(
        older
            .into_iter()
            .find(|o| with_opset(program, *o).is_ok())
            .unwrap_or(own),
    )
}

/// Converts `program` to `opset`, or returns everything that prevents it.
///
/// An op is rebound to the form that `opset` has of it. The other form must have every bound
/// parameter, accept its argument, and infer the same result types.
pub fn with_opset(program: &Program, opset: Opset) -> Result<Program, Vec<Violation>> {
    let mut out = program.clone();
    let mut violations = Vec::new();
    for f in &mut out.functions {
        f.opset = opset;
        for id in f.all_ops() {
            match rebound(f.op(id), opset) {
                Ok(Some((def, args))) => {
                    f.ops[id.index()].def = def;
                    f.ops[id.index()].args = args;
                }
                Ok(None) => {}
                Err(message) => violations.push(violation(f, f.op(id), message)),
            }
        }
    }
    if violations.is_empty() {
        violations = valid::check(&out).err().unwrap_or_default();
    }
    if violations.is_empty() {
        Ok(out)
    } else {
        Err(violations)
    }
}

type Form = (&'static OpDef, Vec<Option<Arg>>);

/// The form of an op in `opset` and its arguments in the order of that form; `None` if the form
/// stays the same.
fn rebound(op: &Op, opset: Opset) -> Result<Option<Form>, String> {
    let def = opset::find_in(op.def.name, opset).ok_or_else(|| {
        let since = opset::rows(op.def.name)
            .map(|d| d.since)
            .min()
            .unwrap_or(op.def.since);
        format!(
            "opset {} does not have this op, it requires {}",
            opset.name(),
            since.name()
        )
    })?;
    if def == op.def {
        return Ok(None);
    }
    let mut args = vec![None; def.params.len()];
    for (param, arg) in op
        .def
        .params
        .iter()
        .zip(&op.args)
        .filter(|(_, arg)| arg.is_some())
    {
        let at = def.param_index(param.name);
        let at = at.ok_or_else(|| {
            format!(
                "opset {} does not have its parameter `{}`",
                opset.name(),
                param.name
            )
        })?;
        args[at].clone_from(arg);
    }
    Ok(Some((def, args)))
}

fn violation(f: &Function, op: &Op, message: String) -> Violation {
    Violation {
        function: f.name.clone(),
        place: label(f, op),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse;

    fn program(opset: &str, inputs: &str, body: &str) -> Program {
        let text = format!("program(1.3) {{ func main<{opset}>({inputs}) {{ {body} }} -> (y); }}");
        parse(&text, &|_, _, _| None).unwrap()
    }

    #[test]
    fn a_program_goes_to_the_lowest_opset_that_has_it() {
        let x = "tensor<fp32, [2, 3]> x";
        for (inputs, body, lowest) in [
            (x, "tensor<fp32, [2, 3]> y = relu(x = x);", Opset::CoreMl5),
            (
                "state<tensor<fp32, [2, 3]>> x",
                "tensor<fp32, [2, 3]> y = read_state(input = x);",
                Opset::CoreMl8,
            ),
        ] {
            let p = program("ios18", inputs, body);
            assert_eq!(lowest_opset(&p), Some(lowest));
            let lower = with_opset(&p, lowest).unwrap();
            assert_eq!(lower.functions()[0].opset, lowest);
            valid::check(&lower).unwrap();
        }
        assert_eq!(lowest_opset(&Program::default()), None);
    }

    #[test]
    fn everything_that_prevents_lowering_is_listed() {
        let inputs = "state<tensor<fp32, [2, 3]>> s, state<tensor<fp32, [2, 3]>> t";
        let body = "tensor<fp32, [2, 3]> a = read_state(input = s); \
                    tensor<fp32, [2, 3]> b = read_state(input = t); \
                    tensor<fp32, [2, 3]> y = add(x = a, y = b);";
        let errors = with_opset(&program("ios18", inputs, body), Opset::CoreMl6).unwrap_err();
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let expected = |v: &str| {
            format!("main: read_state `{v}`: opset ios16 does not have this op, it requires ios18")
        };
        assert_eq!(errors, [expected("a"), expected("b")]);
    }

    #[test]
    fn ops_are_rebound_to_the_form_of_the_opset() {
        let p = program(
            "ios15",
            "tensor<fp32, [2, 3]> x",
            "tensor<fp16, [2, 3]> y = cast(x = x, dtype = string(\"fp16\"));",
        );
        for opset in Opset::ALL {
            let other = with_opset(&p, *opset).unwrap();
            let f = &other.functions()[0];
            assert_eq!(
                Some(f.op(f.body().ops[0]).def),
                opset::find_in("cast", *opset)
            );
            assert_eq!(lowest_opset(&other), Some(Opset::CoreMl5));
        }
    }
}
