//! `thane bisect`: cuts a program to the smallest part that still has a finding, and writes the
//! part as a package.

use std::path::{Path, PathBuf};

use serde::Serialize;
use thane_audit::Severity;
use thane_audit::bisect::{BisectError, Bisected, Wanted, bisect};
use thane_audit::report::require::Deny;
use thane_audit::target::{Target, Units};
use thane_mil::package::{Package, write_source};
use thane_mil::text::{Blobs, print};

use crate::app::App;
use crate::audit::subject;
use crate::audit::values;
use crate::compress::CompressFlags;
use crate::embed::bundle;
use crate::exit::{Outcome, usage};
use crate::output::counted;
use crate::planned::{Build, GoalFlag};
use crate::rewritten::place;
use crate::runtime::unwritten;

/// Cut a program to the smallest part that still has a finding of the audit.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A package, compiled model, .mil file, folder of packages, or model.
    ///
    /// A checkpoint is built as convert builds it.
    #[arg(value_name = "X")]
    subject: PathBuf,
    /// The finding to keep: a rule or a severity [default: the worst].
    ///
    /// A rule is one such as ANE128, a severity is note, warning or error.
    #[arg(long, value_name = "RULE|SEVERITY", value_parser = values::deny)]
    rule: Option<Deny>,
    /// A chip, a system, or both, such as m4 or m4+macos26 [default: m4].
    ///
    /// A package that names the targets that it was written for is judged for them by default, for
    /// one after the other until a finding is there.
    #[arg(long, value_name = "TARGET", value_parser = values::target)]
    target: Option<Target>,
    /// Compute units that Core ML may use: cpuAndNeuralEngine, all, cpuAndGPU or cpuOnly [default:
    /// cpuAndNeuralEngine].
    #[arg(long, value_name = "UNITS", value_parser = values::units, conflicts_with = "direct")]
    units: Option<Units>,
    /// Where to write the part: a package, or a .mil file.
    #[arg(short, long, value_name = "Y")]
    out: PathBuf,
    /// Overwrite what is at -o.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    embedding: bundle::Flags,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Printed<'a> {
    out: &'a Path,
    target: String,
    /// The package of a folder.
    package: &'a str,
    rule: &'static str,
    title: &'static str,
    message: &'a str,
    function: &'a str,
    ops_before: usize,
    ops: usize,
    smallest: bool,
    trials: usize,
    program: String,
}

/// Ops of a part that is printed whole.
const MOST_PRINTED: usize = 40;

pub fn run(args: &Args, app: &App) -> Outcome {
    place::check(&args.out, args.force, &args.subject)?;
    let targets = targets(args);
    let build = Build {
        context: None,
        form: None,
        goal: GoalFlag::default(),
        targets: &targets,
        embedding: &args.embedding,
        compression: CompressFlags::default(),
    };
    let subject = subject::open(&args.subject, &build, app)?.subject;
    let wanted = match args.rule {
        Some(Deny::Rule(id)) => Wanted::Rule(id),
        Some(Deny::Severity(severity)) => Wanted::Severity(severity),
        None => Wanted::Severity(Severity::Note),
    };
    app.output.busy("trying smaller parts");
    let mut nothing = None;
    for target in &targets {
        for part in &subject.parts {
            match bisect(&part.program, target, wanted) {
                Ok(found) => return write(&found, &part.package, target, args, app),
                Err(e @ BisectError::Nothing { .. }) => nothing = Some(e),
                Err(other) => return Err(usage(other)),
            }
        }
    }
    let names: Vec<String> = targets.iter().map(Target::name).collect();
    let (whose, names) = (names.join(" and "), names.join(","));
    let error = match (nothing, args.rule) {
        (None, _) => anyhow::anyhow!("there is no program"),
        (Some(_), None) => anyhow::anyhow!("for {whose}, no rule finds anything in the program"),
        (Some(_), Some(Deny::Rule(id))) => {
            anyhow::anyhow!("for {whose}, {id} finds nothing in the program")
        }
        (Some(_), Some(deny)) => anyhow::anyhow!(
            "for {whose}, no rule of severity {} or worse finds anything in it",
            deny.name()
        ),
    };
    let audit = format!(
        "thane audit {} --target {names} lists what is found",
        args.subject.display()
    );
    let named = args.subject.display().to_string();
    Err(usage(error.context(named)).remedy(audit))
}

/// The targets of flags, or else those that a package was written for.
fn targets(args: &Args) -> Vec<Target> {
    let mut targets: Vec<Target> = match args.target {
        Some(target) => vec![target],
        None => subject::written_for(&args.subject),
    };
    if targets.is_empty() {
        targets.push(Target::usual());
    }
    for target in &mut targets {
        target.units = args.units.unwrap_or(target.units);
        *target = args.embedding.form.routed(*target);
    }
    targets
}

fn write(part: &Bisected, package: &str, target: &Target, args: &Args, app: &App) -> Outcome {
    let _writing = app.interrupt.writing(&args.out);
    place::write(&args.out, args.force, |to| {
        let written = if place::is_text(to) {
            write_source(to, &part.program).map(drop)
        } else {
            Package::new(part.program.clone()).write(to, &[]).map(drop)
        };
        written.map_err(|e| unwritten(e, &args.out))?;
        Ok(true)
    })?;
    let program = print(&part.program, &mut Blobs::default());
    let (before, ops) = part.n_ops;
    let printed = Printed {
        out: &args.out,
        target: target.to_string(),
        package,
        rule: part.rule.id,
        title: part.rule.title,
        message: &part.message,
        function: &part.function,
        ops_before: before,
        ops,
        smallest: part.is_smallest,
        trials: part.n_trials,
        program,
    };
    Ok(app.output.report(&printed, |printed| text(printed, part))?)
}

fn text(printed: &Printed<'_>, part: &Bisected) -> String {
    let Printed {
        out,
        target,
        package,
        ops,
        program,
        ..
    } = printed;
    let name = if package.is_empty() {
        part.function.clone()
    } else {
        format!("{package}/{}", part.function)
    };
    let of = if name.is_empty() {
        String::new()
    } else {
        format!(" of {name}")
    };
    let least = if part.is_smallest {
        "none of them can go"
    } else {
        "trials ran out: fewer may do"
    };
    let mut text = format!(
        "{target}: {} {}\n  {}\n  {ops} of {}{of}, in {}; {least}\n  fix: {}\n",
        part.rule.id,
        part.rule.title,
        part.message,
        counted(printed.ops_before, "op"),
        counted(part.n_trials, "trial"),
        part.rule.fix
    );
    if *ops <= MOST_PRINTED {
        text += program;
    }
    text + &format!("{}\n", out.display())
}
