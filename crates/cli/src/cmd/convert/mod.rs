//! `thane convert`: writes a checkpoint as a Core ML package.

mod early;
mod embedding;
mod output;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use thane_audit::target::Target;
use thane_mil::opset::Opset;
use thane_mil::types::DType;
use thane_models::{AneDecoder, Options};
use thane_runtime::{
    CompressOptions, ForeignOptions, ForeignWriter, LanguageOptions, Model, PackageOptions,
    RuntimeError, Task as ModelTask, WrittenPackage,
};

use super::quality;
use crate::app::App;
use crate::audit::values;
use crate::audit::verdict::{self, Verdict};
use crate::calibrate::{Calibrate, calibrate_flag, calibrated, weighed, weighed_model};
use crate::codes::{self, Compressing};
use crate::compress;
use crate::embed::bundle;
use crate::exit::{Failure, Outcome};
use crate::form::FormFlag;
use crate::out;
use crate::output::{bytes, counted};
use crate::planned::{self, Build, GoalFlag};
use early::opset;
pub(super) use early::system;
use output::{check_out, is_compiled, kind, named_well};

/// Write a model as a Core ML package.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A path, hf:org/name[/file][@revision], or a name of the catalog.
    model: String,
    /// The package to write, such as model.mlpackage.
    ///
    /// A name such as model.mlmodelc writes a compiled model, which has no tokenizer and no
    /// contract: apps can load it, and thane run cannot. Several packages are written into a
    /// folder.
    #[arg(short, long, value_name = "PACKAGE")]
    out: PathBuf,
    /// Replace a package that exists.
    ///
    /// The existing package stays until the new one is complete.
    #[arg(long)]
    force: bool,
    /// Generate answers or embed texts [default: what the model is made for].
    #[arg(long, value_name = "TASK", hide_possible_values = true, value_enum)]
    task: Option<Task>,
    /// Form of the program: portable, ane (for the Neural Engine), or anemll.
    ///
    /// portable runs on every machine, anemll is a folder for apps of ANEMLL. The default is
    /// portable for generate, unless --target is given, and ane for embed.
    #[arg(long, value_name = "FORM", hide_possible_values = true, value_enum)]
    form: Option<FormFlag>,
    #[command(flatten)]
    embedding: bundle::Flags,
    /// Context length in tokens [default: the model's, at most 8192].
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Choose --residual-divisor and --norm by what the model computes of this text [default:
    /// --residual-divisor, by a text of Thane's own].
    ///
    /// With --compress, errors of weights count by the activations of this text, or of Thane's own
    /// without the flag; none computes no text. 64 tokens of each of 32 places in the text are
    /// computed in f32. Norms get their native form, which has fewer ops, if fp16 holds their
    /// squares with a margin.
    #[arg(long, value_name = "FILE", value_parser = calibrate_flag)]
    calibrate: Option<Calibrate>,
    /// Functions to write [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    functions: Vec<String>,
    /// Opset to write, such as ios18 [default: the lowest possible].
    #[arg(long, value_name = "OPSET", value_parser = opset)]
    opset: Option<Opset>,
    /// Choose the opset by the oldest system to support, such as ios18 or macos15.
    #[arg(long, value_name = "SYSTEM", value_parser = system, conflicts_with = "opset")]
    min_os: Option<Opset>,
    /// Chips, systems or both that the package is for, such as a19 or a18,a19.
    ///
    /// A language model gets the form for the Neural Engine that is predicted to be best there,
    /// unless --form says otherwise; other flags pin what they decide. `thane plan` shows the
    /// choice. With several targets, it is the one form that is least slower than the best of each.
    /// The package names its targets, and `thane audit` judges it for them.
    #[arg(long, value_name = "TARGET", value_delimiter = ',', value_parser = values::target)]
    target: Vec<Target>,
    /// What --target chooses for: the time of an answer, the time of a prompt, or memory
    /// [default: latency].
    #[arg(long = "for", value_name = "GOAL", value_enum, requires = "target")]
    goal: Option<GoalFlag>,
    /// Print what was tried, with its price.
    #[arg(long, requires = "target")]
    explain: bool,
    #[command(flatten)]
    compression: compress::CompressFlags,
    #[command(flatten)]
    quality: quality::Flag,
}

impl Args {
    /// The flags of compression, with the system that other flags name.
    fn compression(&self) -> compress::CompressFlags {
        compress::CompressFlags {
            oldest: self.opset.or(self.min_os),
            ..self.compression
        }
    }

    /// How the bundle of another project is written, if one is.
    fn foreign(&self) -> Option<&'static ForeignWriter> {
        match self.form? {
            FormFlag::Foreign(writer) => Some(writer),
            FormFlag::Portable | FormFlag::Ane => None,
        }
    }
}

/// The values of `--task`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Task {
    Generate,
    Embed,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    package: &'a Path,
    opset: &'static str,
    functions: Vec<&'a str>,
    /// Tokens that the KV cache holds.
    context: usize,
    /// Number of constants in the weight file.
    constants: usize,
    model_bytes: u64,
    weight_bytes: u64,
    /// Bytes of the contract, the tokenizer and so on.
    item_bytes: u64,
    /// Verdict of the audit for each target; empty for a portable form without one, and if the
    /// package cannot be audited.
    audits: Vec<Verdict>,
    /// What was compressed; null without `--compress`.
    compression: Option<compress::Printed>,
    /// What `--quality` found; null without it.
    quality: Option<quality::Report>,
}

/// How flags say that a checkpoint is built.
fn build(args: &Args) -> Build<'_> {
    Build {
        context: args.context,
        form: args.form,
        goal: args.goal.unwrap_or_default(),
        targets: &args.target,
        embedding: &args.embedding,
        compression: args.compression(),
    }
}

/// The targets as the package's metadata has them.
fn target_names(args: &Args) -> Vec<String> {
    args.target.iter().map(Target::name).collect()
}

/// Audits the package that was written, for each target, and prints the verdicts on stderr. A
/// portable form is for the CPU and GPU: nothing is said of it unless a target is given.
fn audited(args: &Args, is_portable: bool, app: &App) -> Vec<Verdict> {
    let form = &args.embedding.form;
    let targets = match &args.target[..] {
        [] if is_portable => {
            app.output.say(
                "portable form, for the CPU and GPU: --target a19, for example, writes the form \
                 for the Neural Engine of a chip",
            );
            return Vec::new();
        }
        [] => &[Target::usual()],
        given => given,
    };
    let targets: Vec<Target> = targets.iter().map(|t| form.routed(*t)).collect();
    let verdicts = verdict::of(&args.out, &targets, is_portable, &build(args), app);
    let verdicts = verdicts.unwrap_or_default();
    if !app.output.is_json() {
        let lines = verdicts.iter().flat_map(Verdict::lines);
        lines.for_each(|line| app.output.say(line));
    }
    verdicts
}

pub fn run(args: &Args, app: &App) -> Outcome {
    // Checked before a download that would be in vain.
    out::check(&args.out, args.force, &[Path::new(&args.model)])?;
    named_well(args)?;
    early::check_flags(args, args.task)?;
    args.quality
        .check(!is_compiled(&args.out) && args.foreign().is_none())?;
    let files = app.hub.resolve(&args.model)?;
    out::check(&args.out, args.force, &[&files.path])?;
    let model = Model::from_files(files)?;
    let task = task(args, &model, app)?;
    refuse_flags_of_others(args, task)?;
    early::check_flags(args, Some(task))?;
    out::check_made(&args.out, kind(args, task)?, args.force, &[&model.path])?;
    let _writing = app.interrupt.writing(&args.out);
    match (task, args.foreign()) {
        (Task::Generate, Some(writer)) => foreign(args, &model, writer, app),
        (Task::Generate, None) => generate(args, model, app),
        (Task::Embed, _) => embedding::write(args, &model, app),
    }
}

/// The task that was asked for, or else what the model is made for.
fn task(args: &Args, model: &Model, app: &App) -> Result<Task, Failure> {
    model.checkpoint()?;
    if let Some(task) = args.task {
        return Ok(task);
    }
    match model.task()? {
        ModelTask::Generate => Ok(Task::Generate),
        ModelTask::Embed => {
            app.output.say(&format!(
                "thane: {} is an embedding model: --task embed",
                model.name
            ));
            Ok(Task::Embed)
        }
    }
}

/// Refuses flags that only the other task uses.
fn refuse_flags_of_others(args: &Args, task: Task) -> Result<(), Failure> {
    let flags = &args.embedding;
    let compresses = args.compression.compress.is_some();
    let given = match task {
        Task::Generate => vec![
            ("--buckets", !flags.buckets.is_empty()),
            ("--no-flexible", flags.no_flexible),
            ("--layout folder", flags.layout == bundle::Layout::Folder),
            ("--chunks", flags.chunks),
            ("--pooling", flags.pooling.is_some()),
        ],
        Task::Embed => vec![
            ("--context", args.context.is_some()),
            (
                "--calibrate",
                // No text is what they are written with in any case.
                !compresses && !matches!(args.calibrate, None | Some(Calibrate::Nothing)),
            ),
            ("--functions", !args.functions.is_empty()),
            ("--opset", args.opset.is_some()),
            ("--block", flags.form.block.is_some()),
        ],
    };
    let decoders = (task == Task::Embed).then(|| flags.form.of_decoder());
    let mut given = given.into_iter().chain(decoders.into_iter().flatten());
    let Some((flag, _)) = given.find(|(_, is_given)| *is_given) else {
        return Ok(());
    };
    let refuse = |reason: &str| usage!("{flag} is for {reason}");
    Err(match (task, flag) {
        (Task::Generate, _) => refuse("embedding models, and this package generates answers")
            .remedy(format!("leave {flag} out, or --task embed")),
        (Task::Embed, "--block") => {
            refuse("decoders: functions of embedding models take as many tokens as --buckets says")
                .remedy("--buckets")
        }
        (Task::Embed, "--context") => refuse(
            "language models: functions of embedding models take as many tokens as --buckets says",
        )
        .remedy("--buckets"),
        (Task::Embed, "--calibrate") => {
            refuse("language models, and for embedding models that are compressed")
                .remedy("leave --calibrate out, or add --compress")
        }
        (Task::Embed, _) => refuse(
            "language models: packages of embedding models are written in the lowest opset, whole",
        )
        .remedy(format!("leave {flag} out")),
    })
}

/// The form for the Neural Engine that flags ask for, or that is predicted to be best, and `None`
/// for the portable form; how weights are compressed. Says why.
fn decided(
    args: &Args,
    model: &Model,
    app: &App,
) -> Result<(Option<AneDecoder>, Option<CompressOptions>), Failure> {
    let flags = early::pinned_by_out(args);
    let build = Build {
        embedding: &flags,
        ..build(args)
    };
    let planned::Made {
        ane,
        choices,
        compress,
    } = planned::made(model, &build, app)?;
    if args.explain {
        app.output.say(planned::tables(&choices).trim_end());
    }
    for sentence in planned::sentences(&choices, false) {
        app.output.say(&sentence);
    }
    Ok((ane, compress))
}

/// The targets of flags, or the usual one for a program for the Neural Engine.
fn targets(args: &Args, is_portable: bool) -> Vec<Target> {
    let form = &args.embedding.form;
    match &args.target[..] {
        [] if is_portable => Vec::new(),
        [] => vec![form.routed(Target::usual())],
        given => given.iter().map(|t| form.routed(*t)).collect(),
    }
}

/// Refuses an encoding that a target does not run or computes wrong.
fn check_encoding(
    args: &Args,
    model: &Model,
    (ane, compress): (Option<&AneDecoder>, Option<&CompressOptions>),
) -> Outcome {
    let targets = targets(args, ane.is_none());
    let Some(options) = compress.filter(|_| !targets.is_empty()) else {
        return Ok(());
    };
    let built = planned::built(model, args.context, ane.cloned())?;
    args.compression
        .check_faults(options, &|way| built.subject("", way), &targets)
}

fn generate(args: &Args, model: Model, app: &App) -> Outcome {
    let (ane, compress) = decided(args, &model, app)?;
    let is_portable = ane.is_none();
    // Compression weighs errors by the text in both forms.
    let calibrates = args.calibrate.is_some() && compress.is_none();
    let calibrates = calibrates.then_some("--calibrate");
    let form = &args.embedding.form;
    let direct = form.direct.then_some("--direct");
    let given = form.given().or(calibrates).or(direct);
    if let (None, Some(flag)) = (&ane, given) {
        return Err(usage!(
            "{flag} is for programs of the Neural Engine, and this one is portable"
        )
        .remedy("--form ane"));
    }
    if let Some(ane) = &ane {
        let built = form_built(args, &model, ane.clone())?;
        early::check_form(args, (ane, &built), &model.path, app)?;
    }
    check_encoding(args, &model, (ane.as_ref(), compress.as_ref()))?;
    let calibrated = |ane| calibrated_form(args, ane, app);
    let ane = ane.map(calibrated).transpose()?;
    // States of packages are fp16.
    let options = LanguageOptions {
        context: args.context,
        cache: DType::Fp16,
        verify: false,
        top: None,
        ane,
    };
    let model = model.language_model(&options, app.output.as_ref())?;
    check_out(args, model.n_chunks(), &model.path)?;
    let begin = |c: CompressOptions| Compressing::begin(c.settings, &args.out, &app.budget);
    let mut compressing = compress.map(begin).transpose()?;
    if let Some(compressing) = &mut compressing {
        let text = args.calibrate.as_ref();
        let found = match args.compression.quantizes_activations() {
            // How large activations are depends on the form.
            true => Some(weighed_model(&model, text, app)?),
            false => weighed(&args.model, text, app)?,
        };
        if let Some(found) = found {
            compressing.options.importance = Arc::new(found);
        }
    }
    let options = PackageOptions {
        replace: args.force,
        compiled: is_compiled(&args.out),
        functions: args.functions.clone(),
        opset: args.opset.or(args.min_os),
        targets: target_names(args),
        compress: compressing.as_ref().map(|c| c.options.clone()),
    };
    let written = model.write(&args.out, &options, app.output.as_ref());
    let written = written.map_err(|e| early::unwritten(e, args));
    let written = codes::finished(compressing, written)?;
    say(&model.name, &written, (args, is_portable), app)
}

/// Says what was compressed; each tensor with `--verbose`.
fn say_compressed(report: Option<&compress::Report>, app: &App) {
    let Some(report) = report else { return };
    compress::table(report)
        .lines()
        .for_each(|line| app.output.explain(line));
    compress::sentences(report)
        .iter()
        .for_each(|line| app.output.say(line));
}

/// Refuses a form that the model cannot have, before a text is computed.
fn form_built(args: &Args, model: &Model, ane: AneDecoder) -> Result<thane_models::Model, Failure> {
    let checkpoint = model.checkpoint()?;
    let options = Options {
        context: args.context,
        ane: Some(ane),
        ..Options::default()
    };
    let built = thane_models::build(checkpoint, &options);
    Ok(built.map_err(|e| RuntimeError::model(&checkpoint.path, e))?)
}

/// The form, with what a text decides.
fn calibrated_form(args: &Args, ane: AneDecoder, app: &App) -> Result<AneDecoder, Failure> {
    let pins_norm = args.embedding.form.norm.is_some();
    let text = args.calibrate.as_ref();
    calibrated((ane, pins_norm), (&args.model, text), app)
}

/// Writes a bundle of another project.
fn foreign(args: &Args, model: &Model, writer: &ForeignWriter, app: &App) -> Outcome {
    let given = [
        ("--functions", !args.functions.is_empty()),
        ("--opset", args.opset.is_some()),
        ("--min-os", args.min_os.is_some()),
    ];
    if let Some((flag, _)) = given.iter().find(|(_, is_given)| *is_given) {
        return Err(usage!(
            "{flag} chooses what a package holds, and an {} bundle holds all functions in the \
             opset of ios18",
            writer.project
        )
        .remedy(format!("leave {flag} out")));
    }
    let flags = &args.embedding.form;
    let of_bundle = AneDecoder {
        interface: writer.interface,
        ..flags.decoder()
    };
    form_built(args, model, of_bundle)?;
    let ane = calibrated_form(args, flags.decoder(), app)?;
    let options = ForeignOptions {
        replace: args.force,
        context: args.context,
        ane,
    };
    let written = model.write_foreign(writer, &args.out, &options, app.output.as_ref())?;
    say(&model.name, &written, (args, false), app)
}

/// What `--quality` asks for, beside the checkpoint.
fn measured(args: &Args, task: ModelTask, app: &App) -> Result<Option<quality::Report>, Failure> {
    args.quality.measure((&args.out, task), &args.model, app)
}

fn say(
    model: &str,
    written: &WrittenPackage,
    (args, is_portable): (&Args, bool),
    app: &App,
) -> Outcome {
    let summary = &written.summary;
    let mut report = Report {
        model,
        package: &args.out,
        opset: written.opset,
        functions: written.functions.iter().map(String::as_str).collect(),
        context: written.context,
        constants: summary.n_constants,
        model_bytes: summary.model_bytes,
        weight_bytes: summary.weight_bytes,
        item_bytes: summary.item_bytes,
        audits: Vec::new(),
        compression: written.compressed.as_ref().map(compress::Printed::from),
        quality: None,
    };
    if app.output.is_json() {
        report.audits = audited(args, is_portable, app);
        report.quality = measured(args, ModelTask::Generate, app)?;
        return Ok(app.output.json(&report)?);
    }
    say_compressed(written.compressed.as_ref(), app);
    let all = summary.model_bytes + summary.weight_bytes + summary.item_bytes;
    let n = counted(report.functions.len(), "function");
    let (opset, names) = (report.opset, report.functions.join(", "));
    let said = format!("{model}: {} for {opset}, {n}: {names}", bytes(all));
    app.output.say(&said);
    audited(args, is_portable, app);
    measured(args, ModelTask::Generate, app)?;
    Ok(app.output.data(&format!("{}\n", args.out.display()))?)
}
