//! `thane explain`: explains an error of Apple's stack, or a rule of the audit.

use std::path::Path;

use serde::Serialize;
use thane_audit::errors::{self, Cause, ErrorRow};
use thane_audit::format::rule::explanation;
use thane_audit::format::wrap::{INDENT, shorten, wrap};
use thane_audit::report::require::nearest_rule;
use thane_audit::report::{self, Part, RuleRow, Scope, Subject, TargetRow};
use thane_audit::target::Target;
use thane_audit::{Audit, audit, rules};

use crate::app::App;
use crate::audit::subject;
use crate::audit::values;
use crate::compress::CompressFlags;
use crate::embed::bundle;
use crate::exit::{Failure, Outcome};
use crate::output::counted;
use crate::planned::{Build, GoalFlag};

/// Explain an error of Core ML or the Neural Engine, or a rule of the audit.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A code (-14, 0x1d), the text of an error, or a rule (ANE128).
    #[arg(
        value_name = "CODE|TEXT|RULE",
        required_unless_present = "list",
        allow_negative_numbers = true
    )]
    what: Option<String>,
    /// A program, as for audit: what is found in it comes first.
    #[arg(value_name = "PROGRAM")]
    program: Option<String>,
    /// Chips or systems to judge the program for, such as m4,a19 [default: m4].
    ///
    /// A package that names the targets that it was written for is judged for them by default.
    #[arg(long, value_name = "TARGET", value_delimiter = ',', value_parser = values::target)]
    target: Vec<Target>,
    /// List all rules.
    #[arg(long, conflicts_with = "what")]
    list: bool,
    #[command(flatten)]
    embedding: bundle::Flags,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    query: Option<&'a str>,
    program: Option<&'a str>,
    /// What the program was judged for; empty without one.
    targets: Vec<String>,
    errors: Vec<ErrorText>,
    /// The rule that was asked for, or with `--list` all.
    rules: Vec<RuleRow>,
    /// Where the rule that was asked for fires in the program; null without a rule or a program.
    findings: Option<Vec<Fired>>,
}

/// A place where a rule fires.
#[derive(Serialize)]
struct Fired {
    target: String,
    /// Null where it is about the whole program.
    function: Option<String>,
    /// Null where it is about the whole function.
    op: Option<String>,
    message: String,
}

/// A row of the table of errors.
#[derive(Serialize)]
struct ErrorText {
    title: &'static str,
    meaning: &'static str,
    causes: Vec<CauseText>,
    remedies: Vec<&'static str>,
    evidence: &'static str,
    source: &'static str,
}

/// A rule that finds a cause; the most likely come first.
#[derive(Serialize)]
struct CauseText {
    rule: &'static str,
    title: &'static str,
    fix: &'static str,
    /// Findings of it in the program; null without one.
    findings: Option<usize>,
}

/// Causes that a terminal shows.
const MOST_CAUSES: usize = 8;
/// Places of a rule that a terminal shows.
const MOST_PLACES: usize = 8;

pub fn run(args: &Args, app: &App) -> Outcome {
    if args.list {
        return list(app);
    }
    let what = args.what.as_deref().unwrap_or_default().trim();
    if let Some(rule) = rules::all().find(|r| r.id.eq_ignore_ascii_case(what)) {
        let rule = RuleRow::from(rule);
        let program = args.program.as_deref();
        let report = Report {
            query: Some(what),
            program,
            targets: target_names(args),
            errors: Vec::new(),
            findings: program.map(|p| fired(p, rule.id, args, app)).transpose()?,
            rules: vec![rule],
        };
        return Ok(app.output.report(&report, |report| {
            let places = report.findings.iter().map(|found| places(report, found));
            report.rules.iter().map(rule_text).chain(places).collect()
        })?);
    }
    let found = errors::find(what);
    if found.is_empty() {
        return Err(unknown(what));
    }
    let program = args.program.as_deref();
    let audits = program.map(|p| judge(p, args, app)).transpose()?;
    let errors = found.iter().map(|row| error(row, audits.as_deref()));
    let report = Report {
        query: Some(what),
        program,
        targets: target_names(args),
        errors: errors.collect(),
        rules: Vec::new(),
        findings: None,
    };
    Ok(app.output.report(&report, text)?)
}

fn unknown(what: &str) -> Failure {
    let start = what.get(..3).filter(|_| what.len() <= 8);
    let is_id = start.is_some_and(|start| start.eq_ignore_ascii_case("ane"));
    if let Some(near) = nearest_rule(what).filter(|_| is_id) {
        return usage!("no rule is called `{}`", shorten(what, 60))
            .remedy(format!("thane explain {near}, the nearest name"))
            .remedy("thane explain --list, for all rules");
    }
    usage!(
        "`{}` is neither a rule nor a code or text that is known",
        shorten(what, 60)
    )
    .remedy("thane explain --list, for the rules")
    .remedy(
        "the line with the code or status in it: thane explain 'ANECCompile() FAILED', \
            thane explain 0x1d",
    )
}

fn fired(program: &str, rule: &str, args: &Args, app: &App) -> Result<Vec<Fired>, Failure> {
    let (subject, targets) = (open(program, args, app)?, targets(args));
    let report = report::build(&subject, &targets, Scope::default());
    let of_target = |t: TargetRow| {
        let (target, found) = (t.short(), t.findings);
        let found = found.into_iter().filter(|f| f.rule == rule);
        let fired = found.map(|f| Fired {
            target: target.clone(),
            function: f.function,
            op: f.op,
            message: f.message,
        });
        fired.collect::<Vec<_>>()
    };
    Ok(report.targets.into_iter().flat_map(of_target).collect())
}

/// The places where a rule fires, for a terminal.
fn places(report: &Report<'_>, found: &[Fired]) -> String {
    let program = judged(report);
    if found.is_empty() {
        return format!("\n  the rule does not fire in {program}\n");
    }
    let mut out = format!("\n  {} in {program}\n", counted(found.len(), "finding"));
    for f in found.iter().take(MOST_PLACES) {
        let op = f.op.as_deref().map(|op| format!(" `{}`", shorten(op, 40)));
        let function = f.function.as_deref().unwrap_or("the program");
        let at = format!(
            "{function}{}: {} [{}]",
            op.unwrap_or_default(),
            f.message,
            f.target
        );
        out += &wrap("  at", INDENT, &at);
    }
    if found.len() > MOST_PLACES {
        out += &format!(
            "  and {} more; --json has them all\n",
            found.len() - MOST_PLACES
        );
    }
    out
}

fn open(program: &str, args: &Args, app: &App) -> Result<Subject, Failure> {
    let build = Build {
        context: None,
        form: None,
        goal: GoalFlag::default(),
        targets: &targets(args),
        embedding: &args.embedding,
        compression: CompressFlags::default(),
    };
    Ok(subject::open(Path::new(program), &build, app)?.subject)
}

/// The targets of flags, or else those that a package was written for.
fn targets(args: &Args) -> Vec<Target> {
    let mut targets = args.target.clone();
    if targets.is_empty() {
        let program = args.program.as_deref().map(Path::new);
        targets = program.map(subject::written_for).unwrap_or_default();
    }
    if targets.is_empty() {
        targets.push(Target::usual());
    }
    targets
}

/// The names of the targets; none without a program.
fn target_names(args: &Args) -> Vec<String> {
    match args.program.is_some() {
        true => targets(args).iter().map(Target::name).collect(),
        false => Vec::new(),
    }
}

/// The program that was judged, and for which targets: `model.mlpackage for a19+ios27`.
fn judged(report: &Report<'_>) -> String {
    let program = shorten(report.program.unwrap_or_default(), 40);
    format!("{program} for {}", report.targets.join(", "))
}

fn judge(program: &str, args: &Args, app: &App) -> Result<Vec<Audit>, Failure> {
    let (subject, targets) = (open(program, args, app)?, targets(args));
    let of_part = |part: &Part| {
        let audits = targets.iter().map(|target| audit(&part.program, target));
        audits.collect::<Vec<_>>()
    };
    Ok(subject.parts.iter().flat_map(of_part).collect())
}

fn error(row: &ErrorRow, audits: Option<&[Audit]>) -> ErrorText {
    let cause = |c: Cause| CauseText {
        rule: c.rule.id,
        title: c.rule.title,
        fix: c.rule.fix,
        findings: audits.map(|_| c.n_findings),
    };
    ErrorText {
        title: row.title,
        meaning: row.meaning,
        causes: errors::causes(row, audits.unwrap_or_default())
            .into_iter()
            .map(cause)
            .collect(),
        remedies: row.remedies.to_vec(),
        evidence: row.evidence.name(),
        source: row.source,
    }
}

fn text(report: &Report<'_>) -> String {
    let mut out = String::new();
    for (i, e) in report.errors.iter().enumerate() {
        out += if i > 0 { "\n" } else { "" };
        out += &format!("{}\n", e.title);
        out += &wrap("  meaning", INDENT, e.meaning);
        let evidence = format!("{}: {}", e.evidence, e.source);
        out += &wrap("  evidence", INDENT, &evidence);
        for remedy in &e.remedies {
            out += &wrap("  try", INDENT, remedy);
        }
        out += &causes(e, report);
    }
    out
}

fn causes(e: &ErrorText, report: &Report<'_>) -> String {
    if e.causes.is_empty() {
        return String::new();
    }
    let fires = |c: &&CauseText| c.findings.is_some_and(|n| n > 0);
    let found = e.causes.iter().filter(fires).count();
    let mut out = match (report.program, found) {
        (None, _) => {
            "\n  causes, the likeliest first; with a program, its own come first\n".to_owned()
        }
        (Some(_), 0) => format!("\n  no rule of these fires at {}\n", judged(report)),
        (Some(_), n) => format!("\n  causes that {} has: {n}\n", judged(report)),
    };
    for (i, c) in e.causes.iter().take(MOST_CAUSES.max(found)).enumerate() {
        let times = match c.findings {
            Some(n) if n > 0 => format!(" ({})", counted(n, "finding")),
            _ => String::new(),
        };
        if found > 0 && i == found {
            out += "  and elsewhere\n";
        }
        let fix = match fires(&c) || i == 0 {
            true => format!(": {}", c.fix),
            false => String::new(),
        };
        let text = format!("{}{times}{fix}", c.title);
        out += &wrap(&format!("  {}", c.rule), INDENT, &text);
    }
    let left = e.causes.len().saturating_sub(MOST_CAUSES.max(found));
    if left > 0 {
        out += &format!("  and {left} more; --json has them all\n");
    }
    out
}

fn rule_text(rule: &RuleRow) -> String {
    let (severity, id, title) = (rule.severity, rule.id, rule.title);
    format!("{severity} {id} {title}\n{}", explanation(rule))
}

fn list(app: &App) -> Outcome {
    let report = Report {
        query: None,
        program: None,
        targets: Vec::new(),
        errors: Vec::new(),
        rules: rules::all().map(RuleRow::from).collect(),
        findings: None,
    };
    let line = |r: &RuleRow| format!("{}  {:<8} {}\n", r.id, r.severity, r.title);
    Ok(app
        .output
        .report(&report, |report| report.rules.iter().map(line).collect())?)
}
