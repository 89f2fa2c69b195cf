//! Patches: replacements, insertions, and changes that are impossible.

use thane_mil::build::FunctionBuilder;
use thane_mil::edit::{New, NewArg, Patch};
use thane_mil::opset::{Opset, find};
use thane_mil::program::{Arg, Function, OpId, Origin, Program, ValueId};
use thane_mil::text::{Blobs, print};
use thane_mil::types::{DType, TensorType};
use thane_mil::valid;

/// `x -> exp a -> sin b -> cos c`; `b` is output `y`, `c` is output `z`.
fn function() -> Function {
    let mut f = FunctionBuilder::new("main", Opset::CoreMl8);
    let x = f.input("x", TensorType::new(DType::Fp32, [2usize, 3]));
    let a = f.op("exp", "a", [("x", Arg::Value(x))]).unwrap();
    let b = f.op("sin", "b", [("x", Arg::Value(a))]).unwrap();
    let c = f.op("cos", "c", [("x", Arg::Value(b))]).unwrap();
    f.finish(&[("y", b), ("z", c)])
}

fn inserted(patch: &mut Patch, before: OpId, op: &str, x: New) -> New {
    let def = find(op).unwrap();
    patch.insert(
        before,
        def,
        vec![("x", NewArg::One(x))],
        op,
        Origin::default(),
    )
}

#[test]
fn replacements_chain_in_either_order_of_appended_patches() {
    let f = function();
    let (ops, x) = (f.body().ops.clone(), f.body().inputs[0]);
    let [a, b] = [0, 1].map(|n| f.op(ops[n]).results[0]);
    for swapped in [false, true] {
        let (mut first, mut second) = (Patch::new(), Patch::new());
        // b -> tanh(x), and a -> x after or before it.
        let tanh = inserted(&mut first, ops[1], "tanh", New::Value(a));
        first.replace(b, tanh);
        first.remove(ops[1]);
        let relu = inserted(&mut second, ops[0], "relu", New::Value(x));
        second.replace(a, relu);
        second.remove(ops[0]);
        let mut whole = if swapped {
            std::mem::take(&mut second)
        } else {
            std::mem::take(&mut first)
        };
        whole.append(if swapped { first } else { second });
        let mut program = Program::new(vec![f.clone()]);
        whole.apply_to(&mut program, 0).unwrap();
        valid::check(&program).unwrap();
        let text = print(&program, &mut Blobs::default());
        for line in [
            "relu = relu(x = x)",
            " y = tanh(x = relu)",
            " z = cos(x = y)",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
    let missing = Patch::new().apply_to(&mut Program::default(), 0);
    assert_eq!(
        missing.unwrap_err().to_string(),
        "the program has no function with index 0"
    );
}

#[test]
fn inserted_ops_keep_their_order() {
    let mut f = function();
    let (last, x) = (f.body().ops[2], New::Value(f.body().inputs[0]));
    let mut patch = Patch::new();
    let sqrt = inserted(&mut patch, last, "sqrt", x);
    inserted(&mut patch, last, "abs", sqrt);
    patch.apply(&mut f).unwrap();
    let names: Vec<&str> = f.body().ops.iter().map(|op| f.op(*op).def.name).collect();
    assert_eq!(names, ["exp", "sin", "sqrt", "abs", "cos"]);
}

#[test]
fn impossible_changes_are_errors() {
    let f = function();
    let (ops, x) = (f.body().ops.clone(), f.body().inputs[0]);
    let [a, b, c] = [0, 1, 2].map(|n| f.op(ops[n]).results[0]);
    let replaced = |pairs: &[(ValueId, ValueId)]| {
        let mut patch = Patch::new();
        pairs
            .iter()
            .for_each(|(from, to)| patch.replace(*from, New::Value(*to)));
        patch.apply(&mut f.clone()).map_err(|e| e.to_string())
    };
    let taken = |from: &str, to: &str| {
        Err(format!(
            "cannot replace output `{from}` by `{to}`, which is itself an input or output"
        ))
    };
    assert_eq!(replaced(&[(c, x)]), taken("z", "x"));
    assert_eq!(replaced(&[(c, b)]), taken("z", "y"));
    assert_eq!(
        replaced(&[(b, a), (c, a)]),
        taken("z", "y"),
        "a has become y"
    );
    assert_eq!(
        replaced(&[(a, x), (b, a), (a, b)]),
        Err("replacements of `a` form a cycle".to_owned())
    );
    assert_eq!(
        replaced(&[(a, a)]),
        Err("replacements of `a` form a cycle".to_owned())
    );
    // The last op of a longer function.
    let mut longer = FunctionBuilder::new("longer", Opset::CoreMl8);
    let mut last = longer.input("x", TensorType::new(DType::Fp32, [2usize, 3]));
    for n in 0..5 {
        let args = [("x", Arg::Value(last))];
        last = longer.op("exp", &format!("e{n}"), args).unwrap();
    }
    let longer = longer.finish(&[("y", last)]);
    let mut patch = Patch::new();
    inserted(&mut patch, longer.body().ops[4], "abs", New::Value(x));
    let error = patch.apply(&mut f.clone()).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot insert op `abs` before an op that the function does not run"
    );
}
