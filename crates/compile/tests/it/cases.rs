//! `tests/passes/*.mil`, one file a pass, and the programs in the docs of passes.
//!
//! A file names its pass, has a program, and after `// after:` what the pass makes of it and what
//! it says of that. `BLESS=1` writes that part anew, to be read before it is committed.

use std::path::{Path, PathBuf};

use thane_compile::{Options, Pass, PassReport, driver, pipeline};
use thane_mil::program::{Program, difference};
use thane_mil::text::{Blobs, parse, print};

use crate::machine;

const MARK: &str = "// after:\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn program(text: &str) -> Program {
    parse(text, &|_, _, _| None).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn options(stop_after: Option<usize>) -> Options {
    Options {
        verify: true,
        stop_after,
    }
}

fn apply(pass: &Pass, program: &Program, stop_after: Option<usize>) -> (Program, PassReport) {
    let done = driver::run(
        program.clone(),
        std::slice::from_ref(pass),
        &options(stop_after),
    );
    let (program, mut report) = done.unwrap_or_else(|e| panic!("{e}"));
    (program, report.passes.remove(0))
}

/// The cases of each pass: path, text, pass, program.
fn files() -> Vec<(PathBuf, String, &'static Pass, Program)> {
    let read = |pass: &'static Pass| {
        let path = root()
            .join("tests/passes")
            .join(pass.name)
            .with_extension("mil");
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(
            text.starts_with(&format!("// pass: {}\n", pass.name)),
            "{} names another pass",
            path.display()
        );
        let program = program(&text);
        (path, text, pass, program)
    };
    pipeline::PASSES.iter().map(read).collect()
}

fn expectation(program: &Program, report: &PassReport) -> String {
    let refusals = report
        .refusals
        .iter()
        .map(|r| format!("{}, {}: {}", r.function, r.op, r.reason));
    let lines = [report.to_string()]
        .into_iter()
        .chain(refusals)
        .collect::<Vec<_>>()
        .join("\n");
    let text = format!("{}{lines}\n", print(program, &mut Blobs::default()));
    text.lines().map(|line| format!("// {line}\n")).collect()
}

#[test]
fn passes_do_what_their_files_say() {
    for (path, text, pass, program) in files() {
        let (after, report) = apply(pass, &program, None);
        let found = expectation(&after, &report);
        let (source, expected) = text.split_once(MARK).unwrap_or((&text, ""));
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, format!("{source}{MARK}{found}")).unwrap();
        } else {
            assert_eq!(found, expected, "{}; BLESS=1 rewrites it", path.display());
        }
    }
}

/// However many sites are changed, each call computes the same bits and leaves the same in the
/// states.
#[test]
fn any_first_part_of_the_sites_leaves_the_numbers() {
    for (path, _, pass, program) in files() {
        let names: Vec<String> = program.functions().iter().map(|f| f.name.clone()).collect();
        let expected: Vec<_> = names
            .iter()
            .map(|name| machine::outputs(&program, name))
            .collect();
        let (_, whole) = apply(pass, &program, None);
        assert!(whole.n_applied > 5, "{}: {whole}", path.display());
        for n in 0..=whole.n_applied {
            let (part, report) = apply(pass, &program, Some(n));
            assert_eq!(report.n_applied, n);
            for (name, expected) in names.iter().zip(&expected) {
                assert!(
                    machine::outputs(&part, name) == *expected,
                    "{name} after {n} sites of {}",
                    pass.name
                );
            }
        }
    }
}

#[test]
fn the_whole_pipeline_leaves_the_numbers_and_is_done_at_once() {
    for (_, _, _, program) in files() {
        let (after, _) = thane_compile::run(program.clone(), &options(None)).unwrap();
        for f in program.functions() {
            assert!(
                machine::outputs(&after, &f.name) == machine::outputs(&program, &f.name),
                "{}",
                f.name
            );
        }
        let (again, report) = thane_compile::run(after.clone(), &options(None)).unwrap();
        assert_eq!(difference(&again, &after), None);
        assert!(report.passes.iter().all(|p| p.n_applied == 0), "{report:?}");
    }
}

/// The blocks fenced as text in the doc of a source file.
fn doc_blocks(source: &str) -> Vec<String> {
    let doc: Vec<&str> = source
        .lines()
        .map_while(|l| l.strip_prefix("//!"))
        .collect();
    let parts: Vec<&[&str]> = doc.split(|l| l.trim().starts_with("```")).collect();
    parts
        .iter()
        .skip(1)
        .step_by(2)
        .map(|block| block.join("\n"))
        .collect()
}

#[test]
fn docs_of_passes_run() {
    let folder = root().join("crates/compile/src/passes");
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| {
            entry
                .unwrap()
                .path()
                .file_stem()
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        })
        .filter(|name| name != "mod")
        .collect();
    names.sort();
    let mut listed: Vec<&str> = pipeline::PASSES.iter().map(|p| p.name).collect();
    listed.sort_unstable();
    assert_eq!(
        names, listed,
        "every file in passes/ is a line of the pipeline"
    );
    for pass in pipeline::PASSES {
        let source = std::fs::read_to_string(folder.join(pass.name).with_extension("rs")).unwrap();
        let blocks = doc_blocks(&source);
        let [before, after] = blocks.as_slice() else {
            panic!("{}: {} blocks", pass.name, blocks.len())
        };
        let [before, after] =
            [before, after].map(|body| program(&format!("program(1.3) {{ {body} }}")));
        let (found, report) = apply(pass, &before, None);
        assert!(report.n_applied > 0, "{report}");
        assert_eq!(
            difference(&found, &after),
            None,
            "{}:\n{}",
            pass.name,
            print(&found, &mut Blobs::default())
        );
    }
}
