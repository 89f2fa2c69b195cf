//! Programs cut to their faults: every file of `tests/audit`, and programs too large to look at.
//!
//! Constants come from no file: a `BLOBFILE` names what it is filled with, zeros mostly.

use std::path::Path;
use std::sync::Arc;

use crate::processor_time;
use thane_audit::bisect::{BisectError, Bisected, Wanted, bisect};
use thane_audit::rules::{find, find_in_program};
use thane_audit::target::{Route, Target, Units};
use thane_audit::{Severity, View};
use thane_mil::data::{Data, Packed, Source};
use thane_mil::package::{self, Package};
use thane_mil::program::Program;
use thane_mil::text::parse;
use thane_mil::types::TensorType;
use thane_mil::valid;

/// As many bytes: those at even and those at odd places are alike.
struct Bytes(usize, [u8; 2]);

impl Source for Bytes {
    fn byte_len(&self) -> usize {
        self.0
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        out.iter_mut()
            .enumerate()
            .for_each(|(i, b)| *b = self.1[(offset + i) % 2]);
    }

    fn packed(&self) -> Option<Packed> {
        None
    }
}

fn program(text: &str) -> Program {
    let constant = |name: &str, _, ty: &TensorType| {
        let bytes = match name {
            "ones_bits" => [0xff; 2],
            "minus_inf" => [0x00, 0xfc],
            _ => [0; 2],
        };
        Some(Data::Source(
            Arc::new(Bytes(ty.byte_len()?, bytes)) as Arc<dyn Source>
        ))
    };
    parse(text, &constant).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn m4() -> Target {
    Target::parse("m4+macos27", Units::default(), Route::default()).unwrap()
}

fn fires(part: &Bisected, target: &Target) -> bool {
    let functions = part.program.functions();
    let mut found: Vec<&str> = functions
        .iter()
        .flat_map(|f| find(&View::new(&part.program, f, target)))
        .map(|x| x.rule.id)
        .collect();
    found.extend(
        find_in_program(&part.program, target)
            .iter()
            .map(|x| x.rule.id),
    );
    found.contains(&part.rule.id)
}

fn is_sound(part: &Bisected, target: &Target) {
    valid::check(&part.program).unwrap_or_else(|e| panic!("{}: {e:?}", part.rule.id));
    package::check(&Package::new(part.program.clone()))
        .unwrap_or_else(|e| panic!("{}: {e:?}", part.rule.id));
    assert!(
        fires(part, target),
        "{} does not fire in what is left",
        part.rule.id
    );
    assert!(part.n_ops.1 <= part.n_ops.0 && !part.message.is_empty());
}

/// `n` relus in a row, and in their midst what `fault` says, which takes `x` and makes `y`.
fn long(n: usize, ty: &str, fault: &str) -> Program {
    let chain = |from: &str, to: &str, n: usize| -> String {
        (0..n)
            .map(|i| {
                let x = if i == 0 {
                    from.to_owned()
                } else {
                    format!("{to}{}", i - 1)
                };
                format!("{ty} {to}{i} = relu(x = {x});\n")
            })
            .collect()
    };
    let fault = fault.replace("(x)", &format!("a{}", n / 2 - 1));
    let (head, tail) = (chain("input", "a", n / 2), chain("y", "b", n / 2));
    program(&format!(
        "program(1.3) {{ func main<ios18>({ty} input) {{ {head} {fault} {tail} }} -> (b{}); }}",
        n / 2 - 1
    ))
}

#[test]
fn one_op_of_ten_thousand_is_left() {
    let ty = "tensor<fp16, [1, 4, 1, 64]>";
    let of = |n: usize| {
        let program = long(n, ty, &format!("{ty} y = tan(x = (x));"));
        processor_time::of(|| bisect(&program, &m4(), Wanted::Rule("ANE001")).unwrap())
    };
    let (part, most) = of(10_000);
    assert_eq!(
        (part.n_ops, part.function.as_str(), part.is_smallest),
        ((10_001, 1), "main", true)
    );
    is_sound(&part, &m4());
    let f = &part.program.functions()[0];
    let names: Vec<&str> = f
        .body()
        .inputs
        .iter()
        .chain(&f.body().outputs)
        .map(|v| f.value(*v).name.as_str())
        .collect();
    assert_eq!(
        names,
        ["a4999", "y"],
        "inputs and outputs are named after the values"
    );
    // Ten times the ops: a hundred times the time if each op looked at all.
    let least = (0..3).map(|_| of(1000).1).min().unwrap();
    assert!(
        most < least * 40,
        "{least:?} for 1,000 ops, {most:?} for 10,000"
    );
}

/// Scores that are scaled and masked before the softmax: the rule needs the way from the one to the
/// other.
#[test]
fn what_a_rule_needs_around_it_stays() {
    let ty = "tensor<fp16, [1, 5, 8192, 8192]>";
    let fault = format!(
        "{ty} s = matmul(x = (x), y = (x)); {ty} m = mul(x = s, y = fp16(0x1p-3)); {ty} p = softmax(x = m); {ty} y = tanh(x = p);"
    );
    let part = bisect(&long(40, ty, &fault), &m4(), Wanted::Rule("ane129")).unwrap();
    let f = &part.program.functions()[0];
    let kinds: Vec<&str> = f
        .body()
        .ops
        .iter()
        .map(|id| f.op(*id).def.name)
        .filter(|kind| *kind != "const")
        .collect();
    assert_eq!(kinds.last(), Some(&"softmax"), "{kinds:?}");
    assert!(kinds.len() <= 3 && kinds[0] == "matmul", "{kinds:?}");
    is_sound(&part, &m4());
}

/// Takes half a minute in a debug build: chains of hundreds of ops of which every one is needed are
/// tried op by op.
#[test]
fn every_case_of_the_rules_is_cut_to_a_part_in_which_it_fires() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/audit");
    let mut n = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let program = program(&text);
        if valid::check(&program).is_err() {
            continue;
        }
        let head = text
            .lines()
            .find_map(|l| l.strip_prefix("// target: "))
            .unwrap_or("m4+macos27");
        let route = if head.ends_with(" direct") {
            Route::Direct
        } else {
            Route::CoreMl
        };
        let target =
            Target::parse(head.split(' ').next().unwrap(), Units::default(), route).unwrap();
        let id = path
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .split('.')
            .next()
            .unwrap()
            .to_owned();
        match bisect(&program, &target, Wanted::Rule(&id)) {
            Ok(part) => {
                let held = package::check(&Package::new(part.program.clone())).is_ok();
                // Some cases cannot be in a package at all, and are left whole.
                if held {
                    is_sound(&part, &target);
                    n += 1;
                }
            }
            // With zeros for weights, rules about numbers have nothing to say; near misses have not
            // either.
            Err(BisectError::Nothing { .. }) => {}
            Err(other) => panic!("{}: {other}", path.display()),
        }
    }
    assert!(n > 130, "{n} cases were cut");
}

#[test]
fn the_worst_is_kept_and_nothing_is_an_error() {
    let ty = "tensor<fp16, [1, 4, 1, 64]>";
    let program = long(
        20,
        ty,
        &format!("{ty} z = tan(x = (x)); {ty} y = add(x = z, y = z);"),
    );
    let part = bisect(&program, &m4(), Wanted::Severity(Severity::Note)).unwrap();
    assert_eq!(part.rule.severity, Severity::Warning, "{}", part.rule.id);
    is_sound(&part, &m4());
    let none = bisect(&program, &m4(), Wanted::Rule("ANE128")).unwrap_err();
    assert!(none.to_string().contains("ANE128 finds nothing"), "{none}");
    let unknown = bisect(&program, &m4(), Wanted::Rule("ANE999")).unwrap_err();
    assert!(
        unknown.to_string().contains("no rule \"ANE999\""),
        "{unknown}"
    );
}

/// A hundred functions of a hundred ops: the rule about their number needs four of them, with an op
/// each.
#[test]
fn functions_go_too() {
    let ty = "tensor<fp16, [1, 4, 1, 64]>";
    let chain: String = (0..100)
        .map(|i| {
            format!(
                "{ty} a{} = relu(x = {});",
                i,
                if i == 0 {
                    "x".to_owned()
                } else {
                    format!("a{}", i - 1)
                }
            )
        })
        .collect();
    let functions: String = (0..100)
        .map(|i| format!("func f{i}<ios18>({ty} x) {{ {chain} }} -> (a99);"))
        .collect();
    let program = program(&format!("program(1.3) {{ {functions} }}"));
    let part = bisect(&program, &m4(), Wanted::Rule("ANE148")).unwrap();
    is_sound(&part, &m4());
    assert!(
        part.program.functions().len() < 10,
        "{} functions are left",
        part.program.functions().len()
    );
}
