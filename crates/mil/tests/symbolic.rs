//! Type inference where sizes are symbols, against coremltools (`tests/types`, made by
//! `tests/oracle/make_types.py`).
#![allow(clippy::unwrap_used)]

use std::path::Path;

use thane_mil::opset::{ArgType, Infer, Known};
use thane_mil::program::{Arg, Function, Op};
use thane_mil::text::parse;
use thane_mil::types::Type;
use thane_mil::valid;

#[test]
fn sizes_that_only_a_call_tells_are_inferred_as_coremltools_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/types/symbolic.mil");
    let text = std::fs::read_to_string(path).unwrap();
    let program = parse(&text, &|_, _, _| None).unwrap();
    valid::check(&program).unwrap();
    let mut wrong = Vec::new();
    for f in program.functions() {
        let op = f.body().ops.iter().map(|id| f.op(*id)).next_back().unwrap();
        let prefix = format!("// {} = ", f.name);
        let expected = text
            .lines()
            .find_map(|l| l.trim().strip_prefix(&prefix))
            .unwrap();
        let found: Vec<String> = infer(f, op).iter().map(ToString::to_string).collect();
        let found = found.join("; ");
        wrong.extend(
            (found != expected)
                .then(|| format!("{}, {}: {found}, not {expected}", op.def.name, f.name)),
        );
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(program.functions().len() > 50);
}

fn infer(f: &Function, op: &Op) -> Vec<Type> {
    let literals: Vec<Option<Type>> = op
        .args
        .iter()
        .map(|arg| {
            if let Some(Arg::Literal(l)) = arg {
                Some(l.ty())
            } else {
                None
            }
        })
        .collect();
    let args: Vec<Option<ArgType<'_>>> = op
        .args
        .iter()
        .zip(&literals)
        .map(|(arg, literal)| match arg.as_ref()? {
            Arg::Value(v) => Some(ArgType::One(&f.value(*v).ty, Known::No)),
            Arg::Values(vs) => Some(ArgType::Many(
                vs.iter().map(|v| (&f.value(*v).ty, Known::No)).collect(),
            )),
            Arg::Literal(l) => Some(ArgType::One(literal.as_ref()?, Known::Literal(l))),
        })
        .collect();
    Infer::new(op.def, &args, &mut 1000).run().unwrap()
}
