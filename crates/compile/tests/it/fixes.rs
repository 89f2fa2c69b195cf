//! The fixes of the audit: `tests/fixes/*.mil`, one file a fix, each function of which it must rewrite; the programs in their
//! docs; and the same over random lengths, no two of them alike.
//!
//! After `// after:` a file has what the fix makes of it and what it says of that; `BLESS=1` writes that part anew, to be read
//! before it is committed. Constants come from no file: a `BLOBFILE` names what it is filled with, and a seed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thane_compile::audit::fix::{self, FIXES, Fix, Numbers, Options, Proof, Prover, Report, Verdict};
use thane_compile::audit::rules::{all, find};
use thane_compile::audit::View;
use thane_compile::target::{Route, Target, Units};
use thane_cpu::equal::{self, Bounds, Budget};
use thane_mil::data::{Data, Packed, Source};
use thane_mil::literal::f64_to_f16;
use thane_mil::program::{Function, Program};
use thane_mil::text::{Blobs, parse, print};
use thane_mil::types::{DType, TensorType};
use thane_mil::valid;

const MARK: &str = "// after:\n";

/// The CPU, as the command uses it.
pub struct OnCpu;

impl Prover for OnCpu {
    fn prove(&mut self, before: &Function, after: &Function, numbers: Numbers) -> Proof {
        let bounds = match numbers {
            Numbers::Same => Bounds::ORDER,
            Numbers::Half => Bounds::NARROW,
            Numbers::Stepped => Bounds::STEPS,
        };
        match equal::compare(before, after, &bounds, &Budget { n_threads: 2, ..Budget::default() }) {
            equal::Verdict::Equal(evidence) => Proof::Equal(evidence.to_string()),
            equal::Verdict::Differs(how) => Proof::Differs(how),
            equal::Verdict::Unknown(why) => Proof::Unknown(why),
        }
    }
}

/// A constant that is computed where it is read.
struct Pattern {
    ty: TensorType,
    number: fn(u64, usize, &TensorType) -> f32,
    seed: u64,
}

impl Source for Pattern {
    fn byte_len(&self) -> usize {
        self.ty.byte_len().unwrap()
    }

    fn read(&self, offset: usize, out: &mut [u8]) {
        let width = self.ty.dtype.bits() / 8;
        for (i, byte) in out.iter_mut().enumerate() {
            let number = (self.number)(self.seed, (offset + i) / width, &self.ty);
            *byte = match self.ty.dtype {
                DType::Fp16 => f64_to_f16(number.into()).to_le_bytes()[(offset + i) % width],
                DType::Fp32 => number.to_le_bytes()[(offset + i) % width],
                _ => u8::from(number == 0.0),
            };
        }
    }

    fn packed(&self) -> Option<Packed> {
        None
    }
}

/// Numbers from -0.1 to 0.1 in no order; sums over thousands of them stay within fp16.
fn noise(seed: u64, at: usize, _: &TensorType) -> f32 {
    let mixed = (at as u64 + seed * 1_000_003).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 40) % 2001) as f32 * 1e-4 - 0.1
}

fn causal(_: u64, at: usize, ty: &TensorType) -> f32 {
    let n = ty.known_shape().unwrap().pop().unwrap();
    if at % n > at / n % n { f32::NEG_INFINITY } else { 0.0 }
}

fn constant(name: &str, seed: u64, ty: &TensorType) -> Option<Data> {
    let number = match name {
        "noise" => noise,
        "causal" => causal,
        "minus_inf" => |_, _, _: &TensorType| f32::NEG_INFINITY,
        _ => return None,
    };
    Some(Data::Source(Arc::new(Pattern { ty: ty.clone(), number, seed })))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn program(text: &str) -> Program {
    let program = parse(text, &constant).unwrap_or_else(|e| panic!("{e}\n{text}"));
    valid::check(&program).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    program
}

/// What a first line `// target: m1+macos15 direct` says.
fn target(text: &str) -> Target {
    let line = text.lines().find_map(|l| l.trim().strip_prefix("// target: ")).unwrap_or("m4+macos27");
    let mut words = line.split(' ');
    let (name, route) = (words.next().unwrap(), words.next());
    let route = if route == Some("direct") { Route::Direct } else { Route::CoreMl };
    Target::parse(name, Units::default(), route).unwrap()
}

fn apply(fix: &Fix, program: &Program, target: &Target) -> (Program, Report) {
    let options = Options { only: Some(fix.name), unproven: false };
    let (program, report) = fix::run(program.clone(), target, &options, &mut OnCpu).unwrap();
    valid::check(&program).unwrap_or_else(|e| panic!("{}: {e:?}", fix.name));
    (program, report)
}

/// Whether each function was changed, and every change proven.
fn is_fixed(fix: &Fix, program: &Program, report: &Report) -> Result<(), String> {
    for f in program.functions() {
        let mut kept = report.kept().filter(|s| s.function == f.name && s.fix == fix.name);
        let Some(step) = kept.next() else { return Err(format!("{} left {} as it is:\n{report}", fix.name, f.name)) };
        if !matches!(&step.verdict, Verdict::Kept(Proof::Equal(how)) if !how.is_empty()) {
            return Err(format!("{}: {}: not proven:\n{report}", fix.name, f.name));
        }
    }
    match report.rejected().next() {
        None => Ok(()),
        Some(step) => Err(format!("{}: {step}", fix.name)),
    }
}

/// How often the rules of a fix fire in a function.
fn n_fired(fix: &Fix, program: &Program, function: &str, target: &Target) -> usize {
    let view = View::new(program, program.function(function).unwrap(), target);
    find(&view).iter().filter(|f| fix.rules.contains(&f.rule.id)).count()
}

#[test]
fn fixes_do_what_their_files_say() {
    let mut wrong = Vec::new();
    for fix in FIXES {
        let path = folder().join("tests/fixes").join(fix.name).with_extension("mil");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let (source, expected) = text.split_once(MARK).unwrap_or((&text, ""));
        let (before, target) = (program(source), target(source));
        let (after, report) = apply(fix, &before, &target);
        if let Err(why) = is_fixed(fix, &before, &report) {
            wrong.push(why);
            continue;
        }
        for f in before.functions() {
            // Of outputs that are split the join remains.
            let (n, m) = (n_fired(fix, &before, &f.name, &target), n_fired(fix, &after, &f.name, &target));
            assert!(n > 0 && (m < n || fix.name == "split_outputs"), "{}: {}: {n} findings, then {m}", fix.name, f.name);
        }
        let found: String = print(&after, &mut Blobs::default()).lines().map(|l| format!("// {l}\n")).collect();
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, format!("{source}{MARK}{found}")).unwrap();
        } else {
            assert_eq!(found, expected, "{}; BLESS=1 rewrites it", path.display());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_fix_has_a_file_and_answers_rules_that_there_are() {
    let read = std::fs::read_dir(folder().join("tests/fixes")).unwrap();
    let mut files: Vec<String> =
        read.map(|e| e.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    files.sort();
    let mut names: Vec<&str> = FIXES.iter().map(|f| f.name).collect();
    names.sort_unstable();
    assert_eq!(files, names, "a file each, and a fix for each file");
    for id in FIXES.iter().flat_map(|f| f.rules) {
        assert!(all().any(|r| r.id == *id), "no rule {id}");
    }
}

/// The first block fenced as text in the doc of a source file.
fn doc_block(source: &str) -> String {
    let doc: Vec<&str> = source.lines().map_while(|l| l.strip_prefix("//!")).collect();
    let mut parts = doc.split(|l| l.trim().starts_with("```"));
    parts.nth(1).unwrap_or_default().join("\n")
}

/// What docs show is legal, and the fix has an answer where a rule of it fires.
#[test]
fn docs_of_fixes_show_programs_that_they_rewrite() {
    for fix in FIXES {
        let path = folder().join("crates/compile/src/audit/fix").join(fix.name).with_extension("rs");
        let block = doc_block(&std::fs::read_to_string(&path).unwrap());
        let before = program(&format!("program(1.3) {{ {block} }}"));
        let file = std::fs::read_to_string(folder().join("tests/fixes").join(fix.name).with_extension("mil")).unwrap();
        let target = target(&file);
        let view = View::new(&before, &before.functions()[0], &target);
        let answers = before.functions()[0].body().ops.iter().filter(|op| (fix.run)(&view, **op).is_ok()).count();
        assert!(answers > 0, "{}: the fix has no answer for the program of its doc", fix.name);
    }
}
