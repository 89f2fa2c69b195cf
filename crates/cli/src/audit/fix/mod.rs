//! `thane audit --fix`: rewrites what the audit finds, proves each rewrite by running it here, and
//! writes the program with the rewrites that hold.
//!
//! [`thane_audit::fix`] has the rewrites and [`thane_prove`] the prover; this module reads and
//! writes the files. A package keeps its metadata and, if Thane wrote it, its contract: no rewrite
//! changes an interface.

mod rows;
mod samples;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thane_audit::fix::{self, Changed, FixError, Measure, Options, Report, Stage};
use thane_audit::report::{self, Scope};
use thane_audit::target::Target;
use thane_cpu::OpByOp;
use thane_mil::package::{self, Package, read_source};
use thane_mil::program::Program;

use super::subject::{find, nothing_in, packages_in};
use thane_prove::{ByRunning, Settings};
use thane_runtime::is_package;

use crate::app::App;
use crate::compress::CompressFlags;
use crate::embed::bundle;
use crate::exit::{Failure, Outcome, usage};
use crate::out::{self, Kind, file_name};
use crate::planned::{Build, GoalFlag};
use crate::rewritten::folder::Folders;
use crate::rewritten::{self, Rewritten, folder, place};
use samples::Samples;

/// A request to fix a program.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// A package, a folder of packages, or a .mil file.
    pub from: &'a Path,
    /// Where the result goes: a package, a folder, or a .mil file.
    pub to: &'a Path,
    pub target: &'a Target,
    /// Flags of checkpoints, which are not fixed.
    pub embedding: &'a bundle::Flags,
    /// Options of the fixes.
    pub options: Options<'a>,
    /// Overwrite an existing output.
    pub force: bool,
    /// Try rewrites that change precision, up to this error relative to the largest output.
    pub lossy: Option<f64>,
    /// A folder of arrays that rewrites are checked on, besides generated inputs.
    pub inputs: Option<&'a PathBuf>,
    /// Time limit of all runs together.
    pub time_limit: Option<Duration>,
}

/// Parse the largest error of lossy rewrites.
pub fn max_error(text: &str) -> Result<f64, String> {
    let error = text.parse().ok().filter(|e| (0.0..1.0).contains(e));
    error.ok_or_else(|| {
        "expected a share of the largest output from 0 to 1, such as 0.001".to_owned()
    })
}

/// Fix a program, or the packages of a folder, and write the result.
pub fn run(request: &Request<'_>, app: &App) -> Outcome {
    let is_folder = !place::is_text(request.from) && !is_package(request.from);
    if is_folder {
        out::check_made(request.to, Kind::Folder, request.force, &[request.from])?;
    } else {
        place::check(request.to, request.force, request.from)?;
    }
    app.output.busy("proving rewrites");
    let _writing = app.interrupt.writing(request.to);
    let mut report = if is_folder {
        of_folder(request, app)?
    } else if place::is_text(request.from) {
        of_text(request, app)?
    } else {
        of_package(request.from, request.to, request, app, Report::is_unchanged)?
    };
    // In memory, the functions of a package are not told apart by how they are called.
    let to = match report.is_unchanged() {
        true => request.from,
        false => request.to,
    };
    report.before = audited(request.from, report.before, request, app)?;
    report.after = audited(to, report.after, request, app)?;
    rows::print(&report, request, app)
}

/// The figures that an audit gives: the time of a token of an answer, or else of one call of each
/// function but the one that takes what is too long for the others.
fn audited(
    path: &Path,
    measure: Measure,
    request: &Request<'_>,
    app: &App,
) -> Result<Measure, Failure> {
    let build = Build {
        context: None,
        form: None,
        goal: GoalFlag::default(),
        targets: &[*request.target],
        embedding: request.embedding,
        compression: CompressFlags::default(),
    };
    let subject = find(path, &build, app)?.subject;
    let report = report::build(&subject, &[*request.target], Scope::default());
    let Some(target) = report.targets.first() else {
        return Ok(measure);
    };
    let called = target.functions.iter().filter(|f| !f.catch_all);
    let calls = called.map(|f| f.latency.ms).sum();
    Ok(Measure {
        ms: target.answer.map_or(calls, |answer| answer.token.ms),
        residency: target.residency / 100.0,
        n_ops: target.ops,
        ..measure
    })
}

fn of_text(request: &Request<'_>, app: &App) -> Result<Report, Failure> {
    let (program, report) = fixed(text(request.from)?, request, app)?;
    place::write(request.to, request.force, |at| {
        if report.is_unchanged() {
            return Ok(false);
        }
        rewritten::write(at, request.to, &Package::new(program), &[])?;
        Ok(true)
    })?;
    Ok(report)
}

/// Fixes the packages of a folder; either all of them are written or none, as where nothing is
/// fixed.
fn of_folder(request: &Request<'_>, app: &App) -> Result<Report, Failure> {
    let (from, to) = (request.from, request.to);
    let folders = Folders {
        from,
        to,
        force: request.force,
        done: "fixed",
    };
    let mut reports = Vec::new();
    folder::write(
        &folders,
        app,
        || unfit(from),
        |package, to| {
            let name = file_name(package);
            app.output.explain(&format!("fixing {name}"));
            let report = of_package(package, to, request, app, |_| false)?;
            let is_changed = !report.is_unchanged();
            reports.push(named(report, &name));
            Ok(is_changed)
        },
    )?;
    reports
        .into_iter()
        .reduce(joined)
        .ok_or_else(|| unfit(from))
}

/// The failure of a path that holds nothing to fix.
fn unfit(path: &Path) -> Failure {
    let holds_none = || packages_in(path).is_ok_and(|packages| packages.is_empty());
    if path.is_dir() && !is_package(path) && !path.join("config.json").is_file() && holds_none() {
        return nothing_in(path);
    }
    let error = anyhow::anyhow!(
        "{}: --fix takes a package, a folder of packages or a .mil file",
        path.display()
    );
    let convert = format!(
        "thane convert {} -o model.mlpackage, and fix that",
        path.display()
    );
    usage(error).remedy(convert)
}

/// Fixes a package, and writes it to `to` unless `is_vain` says that there is nothing to write.
fn of_package(
    from: &Path,
    to: &Path,
    request: &Request<'_>,
    app: &App,
    is_vain: impl Fn(&Report) -> bool,
) -> Result<Report, Failure> {
    if !from.join("Manifest.json").is_file() {
        return Err(unfit(from));
    }
    let mut opened = Rewritten::open(from)?;
    if request.options.pad_interface && opened.is_ours() {
        return Err(usage!(
            "{}: its contract says what its functions take",
            from.display()
        )
        .remedy("leave out --pad-interface, or fix a package of others"));
    }
    let program = std::mem::take(&mut opened.package.program);
    let (program, report) = fixed(program, request, app)?;
    if let Some(changed) = report
        .interface
        .iter()
        .find(|c| !looks_as_its_type(&opened.package.interfaces, c))
    {
        return Err(usage!(
            "{}: {} `{}` of {} is described as an image or in several shapes, and cannot be padded",
            from.display(),
            changed.role,
            changed.name,
            changed.function
        )
        .remedy("leave out --pad-interface"));
    }
    if is_vain(&report) {
        return Ok(report);
    }
    opened.package.program = program;
    place::write(to, request.force, |at| {
        opened.write(at, request.to)?;
        Ok(true)
    })?;
    Ok(report)
}

/// Whether a package describes a changed input, output or state by its type alone.
fn looks_as_its_type(interfaces: &BTreeMap<String, package::Interface>, changed: &Changed) -> bool {
    let feature = interfaces
        .get(&changed.function)
        .and_then(|i| i.features.get(&changed.name));
    feature.is_none_or(|f| f.image.is_none() && f.shape == package::Shape::OfType)
}

fn text(path: &Path) -> Result<Program, Failure> {
    let source = read_source(path).map_err(usage)?;
    if source.n_absent == 0 {
        return Ok(source.program);
    }
    let n = source.n_absent;
    Err(usage!(
        "{}: {n} constants are in a weight file that is not beside it: with zeros in their place \
         nothing can be proven",
        path.display()
    )
    .remedy("the weight file where the text says, or the package that the text was printed from"))
}

fn fixed(program: Program, request: &Request<'_>, app: &App) -> Result<(Program, Report), Failure> {
    let read = |folder: &PathBuf| samples::read(folder, &program, &app.budget);
    // What the arrays count is held until all is proven.
    let Samples {
        sets: samples,
        held: _held,
    } = request.inputs.map(read).transpose()?.unwrap_or_default();
    app.output.count("fixing", None, 0);
    let backend = OpByOp::new(num_cpus::get_physical(), app.isa);
    let mut prover = ByRunning::new(
        backend,
        Settings {
            budget: app.budget.clone(),
            time_limit: request.time_limit,
            max_error: request.lossy,
            samples,
            progress: Some(Box::new(|stage: Stage<'_>| {
                let (all, done) = (stage.all as u64, stage.done as u64);
                app.output.stage(stage.what, all, done);
            })),
            ..Settings::default()
        },
    );
    let done = fix::run(program, request.target, &request.options, &mut prover);
    app.output.clear();
    done.map_err(|e| match e {
        FixError::Illegal(_) => usage(e).remedy("thane check says what is wrong with a package"),
        FixError::Unknown { .. } => usage(e),
    })
}

/// A report whose functions are told apart from those of other packages, as a report of the audit
/// tells them apart.
fn named(mut report: Report, package: &str) -> Report {
    let steps = report.steps.iter_mut().map(|s| &mut s.function);
    let left = report.left.iter_mut().map(|l| &mut l.function);
    let interface = report.interface.iter_mut().map(|c| &mut c.function);
    for function in steps.chain(left).chain(interface) {
        *function = if function.is_empty() {
            package.to_owned()
        } else {
            format!("{package}/{function}")
        };
    }
    report
}

fn joined(mut all: Report, next: Report) -> Report {
    all.before = Measure::total([all.before, next.before]);
    all.after = Measure::total([all.after, next.after]);
    all.steps.extend(next.steps);
    all.left.extend(next.left);
    all.interface.extend(next.interface);
    all
}
