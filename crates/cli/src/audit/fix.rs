//! `thane audit --fix`: rewrites what the audit finds, proves each rewrite on the CPU, and writes the program with
//! those kept.
//!
//! The rewrites are [`thane_compile::audit::fix`]'s; this is the prover that it asks for, and the files. A package
//! keeps what it says of itself and, where it is Thane's, its contract: no rewrite changes an interface.

use std::path::Path;

use serde::Serialize;
use thane_compile::audit::fix::{self, FixError, Measure, Numbers, Options, Proof, Prover, Report, Verdict};
use thane_compile::target::Target;
use thane_cpu::equal::{self, Bounds, Budget};
use thane_mil::package::{self, Package, read_source, write_source};
use thane_mil::program::{Function, Program};

use crate::app::App;
use crate::contract;
use crate::exit::{Code, Failure, Outcome};
use crate::model::is_package;

/// What is to be fixed.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// A package or a .mil file.
    pub from: &'a Path,
    /// Where the result goes: a package, or a .mil file.
    pub to: &'a Path,
    /// What it is judged for.
    pub target: &'a Target,
    /// Keep what is too large to be proven.
    pub unproven: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Printed<'a> {
    from: &'a Path,
    to: &'a Path,
    target: String,
    before: Figures,
    after: Figures,
    steps: Vec<StepRow>,
    left: Vec<LeftRow>,
}

#[derive(Serialize)]
struct Figures {
    ms: f64,
    residency: f64,
    ops: usize,
    findings: usize,
    errors: usize,
}

#[derive(Serialize)]
struct StepRow {
    fix: &'static str,
    what: &'static str,
    rules: Vec<&'static str>,
    function: String,
    ops: Vec<PlaceRow>,
    kept: bool,
    proven: bool,
    /// How it was proven, or why it is not kept.
    reason: String,
    before: Figures,
    after: Figures,
}

#[derive(Serialize)]
struct PlaceRow {
    op: String,
    layer: String,
}

#[derive(Serialize)]
struct LeftRow {
    rule: &'static str,
    function: String,
    op: Option<String>,
    layer: Option<String>,
    findings: usize,
    reason: String,
}

/// Fix a program and write the result.
pub fn run(request: &Request<'_>, app: &App) -> Outcome {
    let is_text = |path: &Path| path.extension().is_some_and(|e| e == "mil");
    refuse_existing(request.to)?;
    if is_text(request.from) {
        let program = text(request.from)?;
        let (program, report) = fixed(program, request)?;
        if is_text(request.to) {
            write_source(request.to, &program).map_err(|e| Failure::new(Code::Other, e))?;
        } else {
            Package::new(program).write(request.to, &[]).map_err(|e| Failure::new(Code::Other, e))?;
        }
        return print(&report, request, app);
    }
    if !is_package(request.from) || !request.from.join("Manifest.json").is_file() {
        let error = anyhow::anyhow!("{}: --fix takes a package or a .mil file", request.from.display());
        let convert = format!("thane convert {} -o model.mlpackage, and fix that", request.from.display());
        return Err(Failure::new(Code::Usage, error).remedy(convert));
    }
    let usage = |e: anyhow::Error| Failure::new(Code::Usage, e);
    let mut package = Package::open(request.from).map_err(|e| Failure::new(Code::Usage, e))?;
    let contents = contract::read(request.from, &package.program).map_err(usage)?;
    let foreign = foreign_items(request.from, contents.is_some())?;
    let (program, report) = fixed(package.program, request)?;
    package.program = program;
    let mut items = foreign;
    if let Some(contents) = contents {
        items
            .extend(contract::items(contents.contract, contents.parts.as_ref(), contents.golden, None).map_err(usage)?);
    }
    if is_text(request.to) {
        write_source(request.to, &package.program).map_err(|e| Failure::new(Code::Other, e))?;
    } else {
        package.write(request.to, &items).map_err(|e| Failure::new(Code::Other, e))?;
    }
    print(&report, request, app)
}

/// Better now than after minutes of proofs.
pub fn refuse_existing(to: &Path) -> Outcome {
    // A text has its weights beside it, where those of another may be.
    let weights = to.extension().is_some_and(|e| e == "mil").then(|| to.with_file_name("weights").join("weight.bin"));
    let taken = [Some(to.to_owned()), weights].into_iter().flatten().find(|path| path.symlink_metadata().is_ok());
    let Some(taken) = taken else { return Ok(()) };
    let error = anyhow::anyhow!("{} exists already", taken.display());
    Err(Failure::new(Code::Usage, error).remedy("another folder or an .mlpackage behind -o, or remove it"))
}

fn text(path: &Path) -> Result<Program, Failure> {
    let source = read_source(path).map_err(|e| Failure::new(Code::Usage, e))?;
    if source.n_absent == 0 {
        return Ok(source.program);
    }
    let n = source.n_absent;
    let error = anyhow::anyhow!(
        "{}: {n} constants are in a weight file that is not beside it: with zeros in their place nothing can be proven",
        path.display()
    );
    Err(Failure::new(Code::Usage, error).remedy("the package that the text was printed from"))
}

/// Items of others than Thane; those of Thane come anew with the contract, which has their hashes.
fn foreign_items(path: &Path, ours: bool) -> Result<Vec<package::Item>, Failure> {
    let items = package::items(path).map_err(|e| Failure::new(Code::Usage, e))?;
    let foreign = items.into_iter().filter(|i| !ours || i.author != contract::AUTHOR);
    Ok(foreign
        .map(|i| package::Item {
            author: i.author,
            name: i.name,
            description: i.description,
            content: package::Content::File(i.path),
        })
        .collect())
}

fn fixed(program: Program, request: &Request<'_>) -> Result<(Program, Report), Failure> {
    let options = Options { only: None, unproven: request.unproven };
    let done = fix::run(program, request.target, &options, &mut OnCpu);
    done.map_err(|e| match e {
        FixError::Illegal(_) => Failure::new(Code::Usage, e).remedy("thane check says what is wrong with a package"),
        FixError::Unknown { .. } => Failure::new(Code::Usage, e),
    })
}

/// Proves by running both forms.
pub struct OnCpu;

impl Prover for OnCpu {
    fn prove(&mut self, before: &Function, after: &Function, numbers: Numbers) -> Proof {
        let bounds = match numbers {
            Numbers::Same => Bounds::ORDER,
            Numbers::Half => Bounds::NARROW,
            Numbers::Stepped => Bounds::STEPS,
        };
        let budget = Budget { n_threads: num_cpus::get_physical(), ..Budget::default() };
        match equal::compare(before, after, &bounds, &budget) {
            equal::Verdict::Equal(evidence) => Proof::Equal(evidence.to_string()),
            equal::Verdict::Differs(how) => Proof::Differs(how),
            equal::Verdict::Unknown(why) => Proof::Unknown(format!("{why}; --unproven keeps it all the same")),
        }
    }
}

fn print(report: &Report, request: &Request<'_>, app: &App) -> Outcome {
    if !app.output.is_json() {
        return Ok(app.output.data(&format!("{report}{}\n", request.to.display()))?);
    }
    let steps = report.steps.iter().map(|s| {
        let (kept, proven, reason) = match &s.verdict {
            Verdict::Kept(Proof::Equal(how)) => (true, true, how.clone()),
            Verdict::Kept(Proof::Differs(how) | Proof::Unknown(how)) => (true, false, how.clone()),
            Verdict::Rejected(reason) => (false, false, reason.clone()),
        };
        let ops = s.sites.iter().map(|p| PlaceRow { op: p.op.clone(), layer: p.layer.clone() }).collect();
        let (fix, what, rules, function) = (s.fix, s.what, s.rules.clone(), s.function.clone());
        let (before, after) = (figures(&s.before), figures(&s.after));
        StepRow { fix, what, rules, function, ops, kept, proven, reason, before, after }
    });
    let left = report.left.iter().map(|l| LeftRow {
        rule: l.rule,
        function: l.function.clone(),
        op: l.place.as_ref().map(|p| p.op.clone()),
        layer: l.place.as_ref().map(|p| p.layer.clone()),
        findings: l.n,
        reason: l.reason.clone(),
    });
    Ok(app.output.json(&Printed {
        from: request.from,
        to: request.to,
        target: report.target.to_string(),
        before: figures(&report.before),
        after: figures(&report.after),
        steps: steps.collect(),
        left: left.collect(),
    })?)
}

fn figures(m: &Measure) -> Figures {
    Figures { ms: m.ms, residency: m.residency * 100.0, ops: m.n_ops, findings: m.n_findings, errors: m.n_errors }
}
