//! The rules of the audit and their cases, `tests/audit/*.mil`: one file a rule, with a function that fires it and one
//! that just does not. Rules about whole programs have two files, `<ID>.fires.mil` and `<ID>.near_miss.mil`.
//!
//! A first line `// target: m1+macos15 direct` says what it is judged for, where that is not the usual one; a line
//! `// not valid: ..` says that no legal program fires the rule. Constants come from no file: a `BLOBFILE` names what it is
//! filled with, so that large ones take neither text nor memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thane_compile::audit::rules::{all, find, find_in_program};
use thane_compile::audit::{Check, Rule, View};
use thane_compile::target::{Route, Target, Units};
use thane_mil::data::{Data, Packed, Source};
use thane_mil::program::Program;
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
        out.iter_mut().enumerate().for_each(|(i, b)| *b = (self.byte)(self.seed, offset + i));
    }

    fn packed(&self) -> Option<Packed> {
        None
    }
}

/// fp16 numbers from 0.5 to 2 in no order.
fn noise(seed: u64, at: usize) -> u8 {
    if at % 2 == 1 { 0x38 | (at / 2 % 4) as u8 } else { ((at as u64 / 2 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ seed) >> 40) as u8 }
}

fn constant(name: &str, seed: u64, ty: &TensorType) -> Option<Data> {
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
    Some(Data::Source(Arc::new(Pattern { byte_len: ty.byte_len()?, byte, seed })))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/audit")
}

/// A program and what it is judged for.
struct Case {
    program: Program,
    target: Target,
}

fn case(name: &str) -> Case {
    let path = folder().join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let program = parse(&text, &constant).unwrap_or_else(|e| panic!("{name}: {e}"));
    let head = |mark: &str| text.lines().take(2).find_map(|l| l.strip_prefix(mark));
    let mut words = head("// target: ").unwrap_or("m4+macos27").split(' ');
    let (name_of_target, route) = (words.next().unwrap(), words.next());
    let route = if route == Some("direct") { Route::Direct } else { Route::CoreMl };
    let target = Target::parse(name_of_target, Units::default(), route).unwrap();
    let valid = thane_mil::valid::check(&program);
    match head("// not valid: ") {
        Some(why) => assert!(valid.is_err(), "{name} is valid: {why}"),
        None => assert!(valid.is_ok(), "{name}: {valid:?}"),
    }
    Case { program, target }
}

/// How often a rule fires in a function.
fn n_fired(rule: &Rule, case: &Case, function: &str) -> usize {
    let f = case.program.function(function).unwrap_or_else(|| panic!("{} has no function {function}", rule.id));
    let findings = find(&View::new(&case.program, f, &case.target));
    findings.iter().filter(|finding| finding.rule.id == rule.id).inspect(|finding| assert!(!finding.message.is_empty())).count()
}

fn n_fired_in_program(rule: &Rule, case: &Case) -> usize {
    let findings = find_in_program(&case.program, &case.target);
    findings.iter().filter(|finding| finding.rule.id == rule.id).count()
}

#[test]
fn each_rule_fires_and_just_does_not() {
    let mut wrong = Vec::new();
    for rule in all() {
        let (fires, near_miss) = match rule.check {
            Check::Program(_) => {
                let [fires, near_miss] = ["fires", "near_miss"].map(|kind| case(&format!("{}.{kind}.mil", rule.id)));
                assert!(rule.scope.holds(&near_miss.target), "{}: the near miss is out of scope", rule.id);
                (n_fired_in_program(rule, &fires), n_fired_in_program(rule, &near_miss))
            }
            _ => {
                let case = case(&format!("{}.mil", rule.id));
                (n_fired(rule, &case, "fires"), n_fired(rule, &case, "near_miss"))
            }
        };
        if fires == 0 || near_miss > 0 {
            wrong.push(format!("{} fires {fires} times, at the near miss {near_miss} times: {}", rule.id, rule.title));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rules_are_numbered_and_explained() {
    for (i, rule) in all().enumerate() {
        assert_eq!(rule.id, format!("ANE{:03}", i + 1));
        for text in [rule.title, rule.source, rule.why, rule.fix] {
            assert!(!text.trim().is_empty(), "{} leaves a text empty", rule.id);
        }
        for sentence in [rule.why, rule.fix] {
            assert!(sentence.ends_with('.') && sentence.len() <= 320, "{}: {sentence}", rule.id);
        }
        assert!(rule.disputed.is_none_or(|d| !d.trim().is_empty()), "{}", rule.id);
    }
    assert!(all().count() >= 65);
}

#[test]
fn each_file_is_of_a_rule() {
    let ids: Vec<&str> = all().map(|r| r.id).collect();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let id = name.split('.').next().unwrap();
        assert!(ids.contains(&id) && name.ends_with(".mil"), "{name} is of no rule");
    }
}
