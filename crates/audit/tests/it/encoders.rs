//! Encoders as they are written for the Neural Engine: what keeps ops off it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use thane_audit::place::Backend;
use thane_audit::target::{Route, Target, Units};
use thane_audit::{Severity, audit};
use thane_calls::Lookup;
use thane_mil::program::Program;
use thane_models::checkpoint::Checkpoint;
use thane_models::{AneEncoder, EncoderOptions, Encoding, NormForm, Pooling, build_encoder};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny-embed")
}

/// Every tiny embedding model: one of each family, and more.
fn names() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).unwrap();
    let folders = entries.map(|entry| entry.unwrap());
    let mut names: Vec<String> = folders
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() > 15, "{names:?}");
    names
}

fn program(name: &str, lookup: Lookup, pooling: Option<Pooling>, encoding: Encoding) -> Program {
    let ane = AneEncoder {
        buckets: vec![24, 40],
        flexible: false,
        residual_divisor: None,
        norm: NormForm::Scaled,
        lookup,
    };
    let options = EncoderOptions {
        pooling: pooling.map(Into::into),
        encoding,
        target: thane_models::Target::Ane(ane),
        ..EncoderOptions::default()
    };
    let checkpoint = Checkpoint::open(&folder().join(name)).unwrap();
    let program = build_encoder(&checkpoint, &options).unwrap().program;
    let (program, _) = thane_compile::run(program, &thane_compile::Options::default()).unwrap();
    program
}

/// The kinds of ops that the engine does not run, and the rules of errors and warnings, on two
/// chips.
fn faults(program: &Program) -> (BTreeSet<&'static str>, BTreeSet<&'static str>) {
    let (mut kinds, mut rules) = (BTreeSet::new(), BTreeSet::new());
    for chip in ["m4", "a19"] {
        let target = Target::parse(chip, Units::default(), Route::default()).unwrap();
        let audit = audit(program, &target);
        for (f, done) in program.functions().iter().zip(&audit.functions) {
            let ops = done.placement.ops.iter();
            let off = ops.filter(|op| !op.is_supported(Backend::Ane));
            kinds.extend(off.map(|op| f.op(op.op).def.name));
            let found = done
                .findings
                .iter()
                .filter(|f| f.rule.severity != Severity::Note);
            rules.extend(found.map(|f| f.rule.id));
        }
    }
    (kinds, rules)
}

#[test]
fn with_tables_on_the_host_the_engine_runs_every_op() {
    for name in &names() {
        let mut cases = vec![(None, Encoding::Text)];
        // Others have layers for the size of several vectors that are joined.
        if *name != "bert-steps" && *name != "bert-weighted" {
            cases.push((None, Encoding::Tokens));
            cases.extend(Pooling::ALL.map(|pooling| (Some(pooling), Encoding::Text)));
            cases.push((Some(Pooling::Mean), Encoding::Chunks));
        }
        for (pooling, encoding) in cases {
            let found = faults(&program(name, Lookup::Host, pooling, encoding));
            assert_eq!(
                found,
                Default::default(),
                "{name}, {pooling:?}, {encoding:?}"
            );
        }
    }
}

/// The rows of tokens are what is left, and positions where they depend on the tokens.
#[test]
fn with_tables_inside_only_lookups_run_elsewhere() {
    for name in &names() {
        let (kinds, _) = faults(&program(name, Lookup::Inside, None, Encoding::Text));
        let expected: &[&str] = match name.as_str() {
            "roberta" | "xlm-roberta" | "mpnet" => {
                &["add", "cast", "cumsum", "gather", "mul", "not_equal"]
            }
            _ => &["gather"],
        };
        assert_eq!(kinds, expected.iter().copied().collect(), "{name}");
    }
}
