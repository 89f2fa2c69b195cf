//! The rules of the audit and their cases, `tests/audit/*.mil`: one file for each rule, with a
//! function that fires it and one that just does not. Rules about whole programs have two files,
//! `<ID>.fires.mil` and `<ID>.near_miss.mil`.
//!
//! A case begins with comments. `// target: m1+macos15 direct` states the target, where it is not
//! the usual one. `// finds y: TEXT` states a finding: the op by its first result, and the message;
//! findings about the whole function or program are `// finds: TEXT`. `// not valid: ..` says that
//! no legal program fires the rule. Constants come from no file: a `BLOBFILE` names what it is
//! filled with, so that large ones take neither text nor memory.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thane_audit::rules::{all, find, find_in_program};
use thane_audit::target::{Route, Target, Units};
use thane_audit::{Check, Rule, View};
use thane_mil::data::{Data, Packed, Source};
use thane_mil::program::{OpId, Program};
use thane_mil::text::parse;
use thane_mil::types::{DType, TensorType};

/// A constant that is computed where it is read.
struct Pattern {
    byte_len: usize,
    byte: fn(u64, usize) -> u8,
    seed: u64,
}

impl Source for Pattern {
    fn byte_len(&self) -> usize {
        self.byte_len
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        out.iter_mut()
            .enumerate()
            .for_each(|(i, b)| *b = (self.byte)(self.seed, offset + i));
    }

    fn packed(&self) -> Option<Packed> {
        None
    }
}

/// fp16 numbers from 0.5 to 2 in no order.
fn noise(seed: u64, at: usize) -> u8 {
    let mixed = (at as u64 / 2 + seed * 1_000_003).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if at % 2 == 1 {
        0x38 | ((mixed >> 60) as u8 % 8)
    } else {
        (mixed >> 40) as u8
    }
}

pub fn constant(name: &str, seed: u64, ty: &TensorType) -> Option<Data> {
    let half = ty.dtype == DType::Fp16;
    let byte: fn(u64, usize) -> u8 = match name {
        "zeros" => |_, _| 0,
        "ones" if half => |_, at| [0x00, 0x3c][at % 2],
        "ones" => |_, _| 1,
        "ones_bits" => |_, _| 0xff,
        "minus_inf" if half => |_, at| [0x00, 0xfc][at % 2],
        "noise" if half => noise,
        _ => return None,
    };
    Some(Data::Source(Arc::new(Pattern {
        byte_len: ty.byte_len()?,
        byte,
        seed,
    })))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/audit")
}

/// A program, the target that it is judged for, and the findings that are expected.
struct Case {
    program: Program,
    target: Target,
    /// The op by its first result, empty for the whole function or program, and the message.
    finds: Vec<(String, String)>,
}

fn case(name: &str) -> Case {
    let path = folder().join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let program = parse(&text, &constant).unwrap_or_else(|e| panic!("{name}: {e}"));
    let comments = || text.lines().map_while(|line| line.strip_prefix("// "));
    let head = |mark: &str| comments().find_map(|line| line.strip_prefix(mark));
    let finds = comments().filter_map(|line| {
        let (op, message) = line.strip_prefix("finds")?.split_once(": ")?;
        Some((op.trim().to_owned(), message.to_owned()))
    });
    let mut words = head("target: ").unwrap_or("m4+macos27").split(' ');
    let (name_of_target, route) = (words.next().unwrap(), words.next());
    let route = if route == Some("direct") {
        Route::Direct
    } else {
        Route::CoreMl
    };
    let target = Target::parse(name_of_target, Units::default(), route).unwrap();
    let valid = thane_mil::valid::check(&program);
    match head("not valid: ") {
        Some(why) => assert!(valid.is_err(), "{name} is valid: {why}"),
        None => assert!(valid.is_ok(), "{name}: {valid:?}"),
    }
    Case {
        target,
        finds: finds.collect(),
        program,
    }
}

/// What a rule finds in a function: the op by its first result, and the message.
fn found(rule: &Rule, case: &Case, function: &str) -> Vec<(String, String)> {
    let f = case
        .program
        .function(function)
        .unwrap_or_else(|| panic!("{} has no function {function}", rule.id));
    let name = |op: OpId| {
        let first = f.op(op).results.first();
        first.map_or(String::new(), |value| f.value(*value).name.clone())
    };
    find(&View::new(&case.program, f, &case.target))
        .into_iter()
        .filter(|finding| finding.rule.id == rule.id)
        .map(|finding| (finding.op.map_or(String::new(), name), finding.message))
        .collect()
}

fn found_in_program(rule: &Rule, case: &Case) -> Vec<(String, String)> {
    find_in_program(&case.program, &case.target)
        .into_iter()
        .filter(|finding| finding.rule.id == rule.id)
        .map(|finding| (String::new(), finding.message))
        .collect()
}

fn shown(findings: &[(String, String)]) -> String {
    let line = |(op, message): &(String, String)| match op.as_str() {
        "" => format!("// finds: {message}\n"),
        op => format!("// finds {op}: {message}\n"),
    };
    findings.iter().map(line).collect()
}

#[test]
fn each_rule_finds_the_op_with_its_text_and_not_the_near_miss() {
    let mut wrong = Vec::new();
    for rule in all() {
        let (expected, fires, near_miss) = match rule.check {
            Check::Program(_) => {
                let [fires, near_miss] =
                    ["fires", "near_miss"].map(|kind| case(&format!("{}.{kind}.mil", rule.id)));
                assert!(
                    rule.scope.holds(&near_miss.target),
                    "{}: the near miss is out of scope",
                    rule.id
                );
                let found = found_in_program(rule, &fires);
                (fires.finds, found, found_in_program(rule, &near_miss))
            }
            _ => {
                let case = case(&format!("{}.mil", rule.id));
                let found = [found(rule, &case, "fires"), found(rule, &case, "near_miss")];
                let [fires, near_miss] = found;
                (case.finds, fires, near_miss)
            }
        };
        if fires.is_empty() || fires != expected || !near_miss.is_empty() {
            wrong.push(format!(
                "{} {}\nexpected\n{}found\n{}at the near miss\n{}",
                rule.id,
                rule.title,
                shown(&expected),
                shown(&fires),
                shown(&near_miss)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Ids and titles as released, in the order of ids; `retired` in front of the title of a rule that
/// is gone, whose id is never used again. A new rule is appended when it is released.
const RELEASED: &str = include_str!("rule_ids.txt");

#[test]
fn released_rule_ids_keep_their_meaning() {
    let rules: HashMap<&str, &str> = all().map(|r| (r.id, r.title)).collect();
    let mut last = "";
    for line in RELEASED.lines() {
        let (id, title) = line.split_once(' ').unwrap();
        assert!(last < id, "{id} is out of order");
        last = id;
        let now = rules.get(id).copied();
        if title.starts_with("retired ") {
            assert_eq!(now, None, "{id} is retired and must not be used again");
            continue;
        }
        assert_eq!(
            now,
            Some(title),
            "{id} was released with this title: a rule keeps its id, and a rule that goes leaves \
             `{id} retired {title}` in rule_ids.txt"
        );
    }
    for id in rules.keys() {
        let is_listed = RELEASED.lines().any(|line| line.starts_with(id));
        assert!(
            is_listed || *id > last,
            "{id}: a new rule has an id above {last}"
        );
    }
}

#[test]
fn rules_have_an_id_of_their_own_and_are_explained() {
    let mut ids: Vec<&str> = all().map(|r| r.id).collect();
    let n = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), n, "an id is used twice");
    for rule in all() {
        let number = rule.id.strip_prefix("ANE").unwrap();
        assert!(
            number.len() == 3 && number.parse::<u16>().is_ok(),
            "{}",
            rule.id
        );
        for text in [rule.title, rule.source, rule.why, rule.fix] {
            assert!(!text.trim().is_empty(), "{} leaves a text empty", rule.id);
        }
        for sentence in [rule.why, rule.fix] {
            assert!(
                sentence.ends_with('.') && sentence.len() <= 320,
                "{}: {sentence}",
                rule.id
            );
        }
        assert_eq!(rule.disputed, rule.disputed.trim(), "{}", rule.id);
    }
}

#[test]
fn each_file_is_of_a_rule() {
    let ids: Vec<&str> = all().map(|r| r.id).collect();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let id = name.split('.').next().unwrap();
        assert!(
            ids.contains(&id) && name.ends_with(".mil"),
            "{name} is of no rule"
        );
    }
}

/// The findings of every function of a text, on some targets.
fn findings_of(text: &str, targets: &[(&str, Route)]) -> usize {
    let program = parse(text, &constant).unwrap_or_else(|e| panic!("{e}"));
    let judge = |(name, route): &(&str, Route)| {
        let target = Target::parse(name, Units::All, *route).unwrap();
        let of_functions: usize = program
            .functions()
            .iter()
            .map(|f| find(&View::new(&program, f, &target)).len())
            .sum();
        of_functions + find_in_program(&program, &target).len()
    };
    targets.iter().map(judge).sum()
}

fn function(name: &str, inputs: &str, ops: &str, outputs: &str) -> String {
    format!("func {name}<ios18>({inputs}) {{ {ops} }} -> ({outputs});")
}

/// Scalars, empty and huge tensors, open lengths, and a function without an op.
fn odd_functions() -> [String; 5] {
    let huge = usize::MAX;
    [
        function(
            "scalar",
            "tensor<fp16, [1]> x",
            "fp16 s = squeeze(x = x); fp16 y = exp(x = s);",
            "y",
        ),
        function(
            "empty",
            "tensor<fp16, [1, 0, 0]> x",
            "tensor<fp16, [1, 0, 0]> y = transpose(x = x, perm = tensor<int32, [3]>([0, 2, 1]));",
            "y",
        ),
        function(
            "huge",
            &format!("tensor<fp16, [{huge}, {huge}, {huge}]> x"),
            &format!(
                "tensor<fp16, [{huge}, {huge}, {huge}]> y = softmax(x = x); \
                 tensor<fp16, [{huge}, {huge}, {huge}]> z = matmul(x = x, y = y);"
            ),
            "z",
        ),
        function(
            "open",
            "tensor<fp16, [?, ?]> x",
            "tensor<fp16, [?, ?]> y = matmul(x = x, y = x); tensor<fp16, [?, ?]> z = softmax(x = y);",
            "z",
        ),
        function("nothing", "tensor<fp16, [1]> x", "", "x"),
    ]
}

/// Programs that no converter writes are judged, and in time that grows with their ops: a square of
/// 10,000 ops would show as minutes. Takes two seconds, for three times 10,000 ops in a debug
/// build.
#[test]
fn rough_programs_are_judged() {
    let x = "tensor<fp16, [1, 8, 16, 32]> x0";
    let n = 10_000;
    let chain: String = (0..n)
        .map(|i| {
            format!(
                "tensor<fp16, [1, 8, 16, 32]> x{} = mul(x = x{i}, y = x{i});",
                i + 1
            )
        })
        .collect();
    let star: String = (0..n)
        .map(|i| format!("tensor<fp16, [1, 8, 16, 32]> y{i} = mul(x = x0, y = x0);"))
        .collect();
    let names = |prefix: &str| {
        (0..n)
            .map(|i| format!("{prefix}{i}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let joined = format!(
        "{star} tensor<fp16, [{n}, 8, 16, 32]> z = concat(values = ({}), axis = int32(0), interleave = bool(false));",
        names("y")
    );
    let fans: String = (0..1000)
        .map(|i| format!("tensor<fp16, [{n}, 8, 16, 32]> w{i} = real_div(x = z, y = z);"))
        .collect();
    let many: String = (0..100)
        .map(|i| {
            function(
                &format!("f{i}"),
                x,
                "tensor<fp16, [1, 8, 16, 32]> y = exp(x = x0);",
                "y",
            )
        })
        .collect();
    let odd = odd_functions();
    let program = |functions: &str| format!("program(1.3) {{ {functions} }}");
    for text in [
        program(&function("main", x, &chain, &format!("x{n}"))),
        program(&function("main", x, &star, &names("y"))),
        program(&function("main", x, &format!("{joined} {fans}"), "w999")),
    ] {
        assert!(findings_of(&text, &[("m4", Route::CoreMl)]) > 0);
    }
    let all = [
        ("m1+macos12", Route::CoreMl),
        ("m4", Route::CoreMl),
        ("m4", Route::Direct),
        ("m6", Route::CoreMl),
    ];
    for text in [program(&many), program(&odd.concat())] {
        assert!(findings_of(&text, &all) > 0);
    }
}
