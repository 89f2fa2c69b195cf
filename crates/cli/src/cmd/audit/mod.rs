//! `thane audit`: where each op of a program runs, why, how fast, and what to change, with no
//! device at hand.

mod format;

use std::path::{Path, PathBuf};
use std::time::Duration;

use thane_audit::fix::Options;
use thane_audit::format::mil;
use thane_audit::labeled::score;
use thane_audit::report::require::{self, Deny, Requirements};
use thane_audit::report::{
    self, ContextRow, Report, Scope, Subject, SubjectAudit, baseline, compare, length,
};
use thane_audit::target::{Target, Units};
use thane_mil::package::read_small;
use thane_serve::most_memory_of;

use crate::app::App;
use crate::audit::scores::scores;
use crate::audit::subject::{self, Opened};
use crate::audit::{fix, values};
use crate::compress::CompressFlags;
use crate::embed::bundle;
use crate::exit::{Failure, Outcome, other, usage, usage_in};
use crate::form::FormFlag;
use crate::out;
use crate::planned::{Build, GoalFlag};
use crate::source::read_parsed;
use format::{Format, format, printed, write};

/// Bytes of the longest earlier report or file of Apple's tools: a hundred thousand findings.
const MOST_REPORT_BYTES: u64 = 1 << 28;

/// Flags that say how a checkpoint is built.
const BUILD_FLAGS: [&str; 10] = [
    "buckets",
    "no_flexible",
    "layout",
    "chunks",
    "pooling",
    "residual_divisor",
    "norm",
    "block",
    "compress",
    "scale",
];

/// Predict where each op runs on Apple hardware, how fast, and what to change.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A package, compiled model, .mil file, folder of packages, or model.
    ///
    /// A checkpoint is built as convert builds it.
    #[arg(value_name = "PROGRAM", required_unless_present = "self_check")]
    subject: Option<PathBuf>,
    /// Chips, systems or both, such as m4,a19,m4+macos26 [default: m4].
    ///
    /// A package that names the targets that it was written for is judged for them by default.
    #[arg(long, value_name = "TARGET", value_delimiter = ',', value_parser = values::target)]
    target: Vec<Target>,
    /// Form in which a language model is built: portable or ane [default: the one that convert
    /// --target chooses].
    #[arg(long, value_name = "FORM", hide_possible_values = true, value_enum, conflicts_with_all = ["fix", "self_check"])]
    form: Option<FormFlag>,
    /// What the form is chosen for: the time of an answer, the time of a prompt, or memory
    /// [default: latency].
    #[arg(long = "for", value_name = "GOAL", value_enum, conflicts_with_all = ["form", "fix", "self_check"])]
    goal: Option<GoalFlag>,
    /// Compute units that Core ML may use: cpuAndNeuralEngine, all, cpuAndGPU or cpuOnly [default:
    /// cpuAndNeuralEngine].
    #[arg(long, value_name = "UNITS", value_parser = values::units, conflicts_with = "direct")]
    units: Option<Units>,
    /// Report this function only.
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// Input lengths that functions of flexible shapes are priced at [default: the longest].
    ///
    /// Tokens, or elements along any axis that an input leaves open.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = values::length)]
    length: Vec<usize>,
    /// Fail if fewer than PERCENT of ops run on the Neural Engine.
    ///
    /// Ops are counted for each function.
    ///
    /// Also fail if an error or a warning says that the program does not compile, load or run
    /// there, or if a disputed rule says that all ops leave the engine.
    #[arg(long, value_name = "PERCENT", value_parser = values::percentage)]
    require_ane: Option<f64>,
    /// With --require-ane: rules that sources contradict do not fail it.
    #[arg(long, requires = "require_ane")]
    allow_disputed: bool,
    /// Fail if a call of a function is predicted to take more than MS milliseconds.
    ///
    /// The middle of the prediction counts, on every target.
    #[arg(long, value_name = "MS", value_parser = values::milliseconds)]
    max_ms: Option<f64>,
    /// Fail on findings of a rule, or of a severity (note, warning, error).
    ///
    /// A severity includes the worse ones.
    #[arg(long, value_name = "RULE|SEVERITY", value_delimiter = ',', value_parser = values::deny)]
    deny: Vec<Deny>,
    /// Report format: text, concise, json, sarif, html, mil [default: text].
    ///
    /// With -o, the default follows the extension of the file.
    #[arg(
        long,
        value_name = "FORMAT",
        value_enum,
        ignore_case = true,
        hide_possible_values = true
    )]
    format: Option<Format>,
    /// Write to this file instead of stdout.
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Overwrite the file at -o.
    #[arg(long, requires = "out")]
    force: bool,
    /// An earlier report (--format json): only new findings count.
    ///
    /// Known findings do not count for --deny, and findings that are gone are listed.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Compare with the output of Apple's tools: analytics.mil of a compiled model, or an
    /// MLComputePlan as JSON.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Say what the predicted time of a call is made of: by term, kind of op, and layer.
    ///
    /// JSON and HTML always have it.
    #[arg(long, conflicts_with_all = ["fix", "self_check"])]
    explain_latency: bool,
    /// Context lengths to build a checkpoint for; the report has the time of decode at each.
    #[arg(long, value_name = "N", value_delimiter = ',')]
    context: Vec<usize>,
    /// Rewrite what the rules find, prove each rewrite, and write to -o.
    ///
    /// -o is a package, or a .mil file.
    #[arg(long, requires = "out", conflicts_with_all = ["format", "baseline", "compare", "context", "require_ane", "max_ms", "deny", "function"])]
    #[arg(conflicts_with_all = BUILD_FLAGS)]
    fix: bool,
    /// With --fix: also try rewrites that change precision, up to this error.
    ///
    /// The error is relative to the largest magnitude of an output, such as 0.001.
    #[arg(long, value_name = "MAX_ERROR", value_parser = fix::max_error, requires = "fix")]
    lossy: Option<f64>,
    /// With --fix: a folder of INPUT.npy files that rewrites are checked on as well.
    #[arg(long, value_name = "DIR", requires = "fix")]
    inputs: Option<PathBuf>,
    /// With --fix: limit of the time for all proofs together.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, requires = "fix")]
    time_limit: u64,
    /// With --fix: keep exact rewrites of functions that cannot be run here.
    #[arg(long, requires = "fix")]
    unproven: bool,
    /// With --fix: pad rows of inputs, outputs and states to 64 bytes where a rule asks for it.
    ///
    /// This changes what callers pass.
    #[arg(long, requires = "fix")]
    pad_interface: bool,
    /// Score the predictions on published measurements, or on files with the same columns.
    #[arg(long, value_name = "FILE.csv", num_args = 0.., conflicts_with_all = ["subject", "format", "fix"])]
    #[arg(conflicts_with_all = ["require_ane", "max_ms", "deny", "baseline", "compare", "length", "function", "context"])]
    #[arg(conflicts_with_all = BUILD_FLAGS)]
    self_check: Option<Vec<PathBuf>>,
    #[command(flatten)]
    embedding: bundle::Flags,
    #[command(flatten)]
    compression: CompressFlags,
}

impl Args {
    fn path(&self) -> &Path {
        self.subject.as_deref().unwrap_or(Path::new(""))
    }
}

pub fn run(args: &Args, app: &App) -> Outcome {
    if let Some(files) = &args.self_check {
        return self_check(files, args, app);
    }
    if let (true, Some(to)) = (args.fix, &args.out) {
        let targets = targets(args, &subject::written_for(args.path()));
        return rewrite(&targets, to, args, app);
    }
    let given = targets(args, &[]);
    check_out(args)?;
    if let Some(FormFlag::Foreign(writer)) = args.form {
        let what = format!(
            "bundles of {} are judged once they are written",
            writer.project
        );
        return Err(usage!("--form {}: {what}", writer.form)
            .remedy("--form ane, or the folder that convert wrote"));
    }
    args.compression.check(&args.target)?;
    let format = format(args, app)?;
    check_number(&given, format, args)?;
    let build = Build {
        context: args.context.iter().max().copied(),
        form: args.form,
        goal: args.goal.unwrap_or_default(),
        targets: &given,
        embedding: &args.embedding,
        compression: args.compression,
    };
    let opened = subject::open(args.path(), &build, app)?;
    let subject = &opened.subject;
    let targets = targets(args, &opened.targets);
    check_number(&targets, format, args)?;
    check_function(args, subject)?;
    if format == Format::Mil {
        return annotated(subject, &targets[0], args, app);
    }
    app.output.busy("judging");
    check_lengths(subject, &args.length)?;
    let scope = Scope {
        only: args.function.as_deref(),
        lengths: &args.length,
    };
    let mut report = report::build(subject, &targets, scope);
    report.contexts = contexts(&opened, &targets, args, app)?;
    if let Some(file) = &args.baseline {
        apply_baseline(&mut report, file).map_err(usage_in(file))?;
    }
    if let (Some(file), Some(target)) = (&args.compare, report.targets.first()) {
        report.comparison = Some(compared(target, file, app).map_err(usage_in(file))?);
    }
    let required = Requirements {
        least: args.require_ane,
        allow_disputed: args.allow_disputed,
        most_ms: args.max_ms,
        denied: &args.deny,
    };
    require::judge(&mut report, required);
    let text = printed(&report, subject, format, args, app)?;
    let is_painted = format == Format::Text && app.output.paints_stdout();
    write(&text, is_painted, args, app)?;
    verdict(&report)
}

fn apply_baseline(report: &mut Report, file: &Path) -> anyhow::Result<()> {
    let json = read_small(file, MOST_REPORT_BYTES)?;
    Ok(baseline::apply(report, &file.display().to_string(), &json)?)
}

fn compared(
    target: &report::TargetRow,
    file: &Path,
    app: &App,
) -> anyhow::Result<report::Comparison> {
    let (text, _held) = read_parsed(file, MOST_REPORT_BYTES, most_memory_of, &app.budget)?;
    let text = String::from_utf8(text)?;
    Ok(compare::with(target, &file.display().to_string(), &text)?)
}

/// Some function must take each length that is asked for.
fn check_lengths(subject: &Subject, lengths: &[usize]) -> Outcome {
    let functions = subject.parts.iter().flat_map(|part| {
        let functions = part.program.functions().iter();
        functions.map(|f| (f, part.interfaces.get(&f.name)))
    });
    length::check(functions, lengths)
        .map_err(|e| usage(e).remedy("no --length: the report names the lengths that it prices"))
}

fn rewrite(targets: &[Target], to: &Path, args: &Args, app: &App) -> Outcome {
    let [target] = targets else {
        let whose = match args.target.is_empty() {
            true => "the package was written for",
            false => "--target names",
        };
        return Err(
            usage!("--fix is for one target, {whose} {}", targets.len()).remedy(one_of(targets))
        );
    };
    let from = args.path();
    let options = Options {
        only: None,
        unproven: args.unproven,
        pad_interface: args.pad_interface,
    };
    let time_limit = Some(Duration::from_secs(args.time_limit));
    let (force, lossy, inputs) = (args.force, args.lossy, args.inputs.as_ref());
    fix::run(
        &fix::Request {
            from,
            to,
            target,
            embedding: &args.embedding,
            options,
            force,
            lossy,
            inputs,
            time_limit,
        },
        app,
    )
}

/// A report replaces nothing that it is made of, and another file with `--force` only.
fn check_out(args: &Args) -> Outcome {
    let Some(out) = &args.out else { return Ok(()) };
    let subject = args.subject.as_deref();
    let files = args.self_check.iter().flatten();
    let inputs = subject
        .into_iter()
        .chain(args.baseline.as_deref())
        .chain(args.compare.as_deref());
    let inputs: Vec<&Path> = inputs
        .chain(files.map(PathBuf::as_path))
        .filter(|path| path.exists())
        .collect();
    out::check(out, args.force, &inputs)
}

/// Some outputs are about one target.
fn check_number(targets: &[Target], format: Format, args: &Args) -> Outcome {
    if targets.len() < 2 || (args.compare.is_none() && format != Format::Mil) {
        return Ok(());
    }
    let what = "--compare and --format mil are about one target";
    Err(usage!("{what}, and there are {}", targets.len()).remedy(one_of(targets)))
}

/// The remedy of several targets where one is judged.
fn one_of(targets: &[Target]) -> String {
    let first = targets.first().map(Target::name).unwrap_or_default();
    format!("--target {first}")
}

/// The targets of flags, or else those that a package was written for.
fn targets(args: &Args, written_for: &[Target]) -> Vec<Target> {
    let mut targets = match (&args.target[..], written_for) {
        ([], []) => vec![Target::usual()],
        ([], written_for) => written_for.to_vec(),
        (given, _) => given.to_vec(),
    };
    for target in &mut targets {
        target.units = args.units.unwrap_or(target.units);
        *target = args.embedding.form.routed(*target);
    }
    // The same target twice says nothing more.
    let mut seen = Vec::new();
    targets.retain(|target| {
        let name = target.to_string();
        let is_new = !seen.contains(&name);
        seen.push(name);
        is_new
    });
    targets
}

fn check_function(args: &Args, subject: &Subject) -> Result<(), Failure> {
    let Some(name) = &args.function else {
        return Ok(());
    };
    let mut known = Vec::new();
    for part in &subject.parts {
        for f in part.program.functions() {
            let whole = format!("{}/{}", part.package, f.name);
            if f.name == *name || whole == *name {
                return Ok(());
            }
            known.push(if part.package.is_empty() {
                f.name.clone()
            } else {
                whole
            });
        }
    }
    Err(
        usage!("{}: the program has no function `{name}`", subject.name)
            .remedy(format!("--function {}", known.join(" or "))),
    )
}

/// What a call of `decode` takes with caches of several lengths.
fn contexts(
    opened: &Opened,
    targets: &[Target],
    args: &Args,
    app: &App,
) -> Result<Vec<ContextRow>, Failure> {
    if args.context.is_empty() {
        return Ok(Vec::new());
    }
    let Some(decoder) = &opened.decoder else {
        return Err(subject::no_checkpoint(&opened.subject, "--context"));
    };
    let mut rows = Vec::new();
    let mut lengths = args.context.clone();
    lengths.sort_unstable();
    lengths.dedup();
    for context in lengths {
        let subject = decoder.subject("", Some(context), app)?;
        for target in targets {
            let calls = SubjectAudit::of(&subject, target).priced_calls();
            let Some(answer) = calls.answer() else {
                continue;
            };
            rows.push(ContextRow {
                context,
                target: target.to_string(),
                ms: answer.token.ms,
                low_ms: answer.token.low_ms,
                high_ms: answer.token.high_ms,
                tokens_per_second: Some(answer.tokens_per_second),
            });
        }
    }
    Ok(rows)
}

fn annotated(subject: &Subject, target: &Target, args: &Args, app: &App) -> Outcome {
    let unfit = if subject.parts.len() > 1 {
        Some((
            "--format mil is of one program, this is a folder of several",
            "the path of one package",
        ))
    } else if args.require_ane.is_some()
        || args.max_ms.is_some()
        || !args.deny.is_empty()
        || args.baseline.is_some()
        || args.compare.is_some()
    {
        Some((
            "--format mil has no place for requirements",
            "another format",
        ))
    } else {
        None
    };
    if let Some((what, remedy)) = unfit {
        return Err(usage!("{}: {what}", subject.name).remedy(remedy));
    }
    let program = subject
        .parts
        .first()
        .map(|p| mil::print(&p.program, target))
        .unwrap_or_default();
    write(&program, false, args, app)
}

/// What is asked for and does not hold is no success, as with diff(1).
fn verdict(report: &Report) -> Outcome {
    if report.passed {
        return Ok(());
    }
    let (n, all) = (report.unmet.len(), report.requirements.len());
    let requirements = match (n, all) {
        (1, 1) => "the requirement does".to_owned(),
        (1, _) => format!("1 of {all} requirements does"),
        _ => format!("{n} of {all} requirements do"),
    };
    let lines = report.failures.join("\n  ");
    Err(other!(
        "{requirements} not hold: {}\n  {lines}",
        report.unmet.join(", ")
    ))
}

fn self_check(files: &[PathBuf], args: &Args, app: &App) -> Outcome {
    check_out(args)?;
    let misfit = match args.target.len() {
        0 => None,
        _ if files.is_empty() => Some((
            "--target is for placements of your own: each published row says what it was measured on",
            "--self-check without --target, or --self-check FILE.csv",
        )),
        1 => None,
        _ => Some(("placements are scored for one target", "--target m4")),
    };
    if let Some((what, remedy)) = misfit {
        return Err(usage!(what).remedy(remedy));
    }
    // The labels that are carried along are of M4 with macOS 27, and of every compute unit.
    let target = args.target.first().copied().unwrap_or_else(Target::usual);
    let target = Target {
        units: args.units.unwrap_or(Units::All),
        ..target
    };
    let named = args.out.as_deref().map(Format::of_file).transpose()?;
    let is_json = match named.flatten() {
        Some(Format::Json) => true,
        None | Some(Format::Text) => app.output.is_json(),
        Some(_) => {
            return Err(
                usage!("--self-check writes text or JSON").remedy("-o NAME.txt or NAME.json")
            );
        }
    };
    let scores = scores(files, &target, &app.budget)?;
    let text = if is_json {
        serde_json::to_string(&scores).map_err(other)? + "\n"
    } else {
        score::text(&scores)
    };
    write(&text, false, args, app)
}
