//! `thane convert`: a checkpoint to a Core ML package.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;
use thane_audit::target::Target;
use thane_mil::opset::Opset;
use thane_mil::package::{Metadata, Package, Summary};
use thane_mil::program::{Function, Program};
use thane_mil::types::DType;
use thane_models::Options;
use thane_models::checkpoint::Checkpoint;

use crate::app::App;
use crate::audit::subject::Build;
use crate::audit::values;
use crate::audit::verdict::{self, Verdict};
use crate::contract::{self, Contract, Facts, SCHEMA, Source};
use crate::embed::bundle;
use crate::exit::{Code, Failure, Outcome};
use crate::form::Form;
use crate::language::Parts;
use crate::model::{self, Opened};
use crate::out::{self, Kind};
use crate::output::{bytes, counted};
use crate::packaging::{Wanted, in_opset, interface, unwritten, weight_files};

/// Write a model as a Core ML package.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A path, hf:org/name[/file][@revision], or a name of the catalog.
    model: String,
    /// The package to write, such as model.mlpackage.
    ///
    /// model.mlmodelc is written as a device's compiler would.
    #[arg(short, long, value_name = "PACKAGE")]
    out: PathBuf,
    /// Write it in the place of the package that is there.
    ///
    /// What is there stays until the new one is whole.
    #[arg(long)]
    force: bool,
    /// Generate answers or embed texts [default: what the model is made for].
    #[arg(long, value_name = "TASK", hide_possible_values = true, value_enum)]
    task: Option<Task>,
    /// portable for every machine, engine for the Neural Engine.
    ///
    /// The default is portable for generate and engine for embed.
    #[arg(long, value_name = "FORM", hide_possible_values = true, value_enum)]
    form: Option<Form>,
    #[command(flatten)]
    embedding: bundle::Flags,
    /// Tokens of prompt and answer together [default: the model's, 8192 at most].
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    /// Functions to write [default: all].
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    functions: Vec<String>,
    /// Opset to write, such as ios18 [default: the lowest that has every op].
    #[arg(long, value_name = "OPSET", value_parser = opset)]
    opset: Option<Opset>,
    /// The same by the oldest system that is to run it, such as ios18 or macos15.
    #[arg(long, value_name = "SYSTEM", value_parser = system, conflicts_with = "opset")]
    min_os: Option<Opset>,
    /// The chip, system or both that the package is audited for, such as a19 [default: m4].
    #[arg(long, value_name = "TARGET", value_parser = values::target)]
    target: Option<Target>,
}

/// The values of `--task`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Task {
    Generate,
    Embed,
}

fn opset(name: &str) -> Result<Opset, String> {
    let names = || {
        Opset::ALL
            .iter()
            .map(|o| o.name())
            .collect::<Vec<_>>()
            .join(", ")
    };
    Opset::from_name(name).ok_or_else(|| format!("the opsets are {}", names()))
}

/// macOS 12 came with iOS 15, and so on.
fn system(name: &str) -> Result<Opset, String> {
    let ios = match name.strip_prefix("macos").map(str::parse::<u32>) {
        Some(Ok(version)) => format!("ios{}", version.saturating_add(3)),
        _ => name.to_owned(),
    };
    Opset::from_name(&ios)
        .ok_or_else(|| "a system is ios15 to ios18, or macos12 to macos15".to_owned())
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    package: &'a Path,
    opset: &'static str,
    functions: Vec<&'a str>,
    /// Tokens that the cache holds.
    context: usize,
    /// Constants in the weight file.
    constants: usize,
    model_bytes: u64,
    weight_bytes: u64,
    /// Bytes of the contract, the tokenizer and so on.
    item_bytes: u64,
    /// What the audit says of it; null where it cannot be audited.
    audit: Option<Verdict>,
}

/// What the audit says of the package that was written, on stderr too.
fn audited(args: &Args, is_portable: bool, app: &App) -> Option<Verdict> {
    let target = args.target.unwrap_or_else(Target::usual);
    let build = Build {
        context: None,
        embedding: &args.embedding,
    };
    let verdict = verdict::of(&args.out, &target, is_portable, &build, app).ok()?;
    if !app.output.is_json() {
        verdict.lines().iter().for_each(|line| app.output.say(line));
    }
    Some(verdict)
}

pub fn run(args: &Args, app: &App) -> Outcome {
    // Before a model is fetched for nothing.
    out::check(&args.out, args.force, &[Path::new(&args.model)])?;
    named_well(args)?;
    let files = app.hub.resolve(&args.model)?;
    out::check(&args.out, args.force, &[&files.path])?;
    let checkpoint = model::checkpoint(&files)?;
    let task = match args.task {
        Some(task) => task,
        None => {
            let embeds = thane_models::is_embedding_model(&checkpoint)
                .map_err(|e| model::unusable(&files.path, e))?;
            if embeds {
                app.output.say(&format!(
                    "thane: {} is an embedding model: --task embed",
                    files.name
                ));
            }
            if embeds { Task::Embed } else { Task::Generate }
        }
    };
    refuse_flags_of_others(args, task)?;
    out::check_made(&args.out, kind(args, task)?, args.force, &[&files.path])?;
    let _writing = app.interrupt.writing(&args.out);
    match task {
        Task::Generate => generate(args, files, checkpoint, app),
        Task::Embed => embed(args, files, &checkpoint, app),
    }
}

/// Flags that the other task has, and this one would not look at.
fn refuse_flags_of_others(args: &Args, task: Task) -> Result<(), Failure> {
    let flags = &args.embedding;
    let given = match task {
        Task::Generate => [
            ("--buckets", !flags.buckets.is_empty()),
            ("--no-flexible", flags.no_flexible),
            ("--layout folder", flags.layout == bundle::Layout::Folder),
            ("--chunks", flags.chunks),
            ("--pooling", flags.pooling.is_some()),
        ],
        Task::Embed => [
            ("--context", args.context.is_some()),
            ("--functions", !args.functions.is_empty()),
            ("--opset", args.opset.is_some()),
            ("--min-os", args.min_os.is_some()),
            ("--block", flags.form.block.is_some()),
        ],
    };
    let Some((flag, _)) = given.into_iter().find(|(_, is_given)| *is_given) else {
        return Ok(());
    };
    let refuse =
        |reason: &str| Failure::new(Code::Usage, anyhow::anyhow!("{flag} is for {reason}"));
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
        (Task::Embed, _) => refuse(
            "language models: packages of embedding models are written in the lowest opset, whole",
        )
        .remedy(format!("leave {flag} out")),
    })
}

/// Refuses an output whose extension is not that of a package or a compiled model.
fn named_well(args: &Args) -> Outcome {
    let is_package = args.out.extension().is_some_and(|e| e == "mlpackage");
    if is_package || is_compiled(&args.out) || args.embedding.layout == bundle::Layout::Folder {
        return Ok(());
    }
    Err(out::misnamed(
        &args.out,
        "a package (.mlpackage) or compiled model (.mlmodelc)",
        "-o NAME.mlpackage",
    ))
}

/// What is written, and so what may be replaced.
fn kind(args: &Args, task: Task) -> Result<Kind, Failure> {
    match task {
        Task::Embed if is_compiled(&args.out) => {
            let error = anyhow::anyhow!(
                "{}: compiled models hold language models only",
                args.out.display()
            );
            Err(Failure::new(Code::Usage, error).remedy("-o PACKAGE.mlpackage"))
        }
        Task::Embed if args.embedding.layout == bundle::Layout::Folder => Ok(Kind::Folder),
        Task::Generate if is_compiled(&args.out) => Ok(Kind::Compiled),
        _ => Ok(Kind::Package),
    }
}

fn is_compiled(out: &Path) -> bool {
    out.extension().is_some_and(|e| e == "mlmodelc")
}

fn generate(
    args: &Args,
    files: thane_hub::ModelFiles,
    checkpoint: Checkpoint,
    app: &App,
) -> Outcome {
    let engine = (args.form == Some(Form::Engine)).then(|| args.embedding.form.decoder());
    if let (None, Some(flag)) = (engine, args.embedding.form.given()) {
        let error = anyhow::anyhow!(
            "{flag} is for programs of the Neural Engine, and this one is portable"
        );
        return Err(Failure::new(Code::Usage, error).remedy("--form engine"));
    }
    // States of packages are fp16.
    let options = Options {
        context: args.context,
        cache: DType::Fp16,
        score: false,
        engine,
    };
    let mut opened = model::open_checkpoint(files, checkpoint, &options, app)?;
    let program = std::mem::take(&mut opened.model.program);
    let program = in_opset(chosen(program, &args.functions)?, wanted(args))?;
    model::check_numbers(&opened.path, &opened.model.stored)?;
    let package = package(&opened, program);
    let written = if is_compiled(&args.out) {
        app.output
            .say("thane: a compiled model has no place for a tokenizer: it can be checked and predicted with, not run");
        if args.force {
            package.replace_compiled(&args.out)
        } else {
            package.write_compiled(&args.out)
        }
    } else {
        app.output.busy("writing the package");
        let source = contract::hash_files(weight_files(opened.checkpoint()?)?);
        let parts = parts(&opened, app)?;
        let items = contract::items(
            contract(&opened, &package.program)?,
            parts.as_ref(),
            None,
            Some(source),
        )?;
        if args.force {
            package.replace(&args.out, &items)
        } else {
            package.write(&args.out, &items)
        }
    };
    let summary = written.map_err(|e| unwritten(e, &args.out))?;
    say(&opened, &package, &summary, args, app)
}

/// What `--json` prints with `--task embed`.
#[derive(Serialize)]
struct Embeds<'a> {
    model: &'a str,
    out: &'a Path,
    #[serde(flatten)]
    written: bundle::Written,
    audit: Option<Verdict>,
}

fn embed(args: &Args, files: thane_hub::ModelFiles, checkpoint: &Checkpoint, app: &App) -> Outcome {
    if args.form == Some(Form::Portable) {
        let error =
            anyhow::anyhow!("packages of embedding models are written for the Neural Engine only");
        return Err(Failure::new(Code::Usage, error)
            .remedy("--form engine, which is what --task embed writes"));
    }
    let thane_hub::ModelFiles { name, license, .. } = files;
    let model = bundle::Model {
        name: &name,
        license,
        checkpoint,
    };
    app.output.busy("writing the package");
    let written = bundle::write(&model, &args.out, args.force, &args.embedding, app)?;
    if app.output.is_json() {
        let audit = audited(args, false, app);
        return Ok(app.output.json(&Embeds {
            model: &name,
            out: &args.out,
            written,
            audit,
        })?);
    }
    let lengths: Vec<String> = written.buckets.iter().map(usize::to_string).collect();
    let any = if written.flexible {
        ", and any length"
    } else {
        ""
    };
    let disk = if written.disk_bytes == written.bytes {
        String::new()
    } else {
        format!(", {} on disk", bytes(written.disk_bytes))
    };
    app.output.say(&format!(
        "{name}: {}{disk}, lengths {}{any}",
        bytes(written.bytes),
        lengths.join(", ")
    ));
    audited(args, false, app);
    Ok(app.output.data(&format!("{}\n", args.out.display()))?)
}

fn say(opened: &Opened, package: &Package, summary: &Summary, args: &Args, app: &App) -> Outcome {
    let functions = package.program.functions();
    let is_portable = args.form != Some(Form::Engine);
    let mut report = Report {
        model: &opened.name,
        package: &args.out,
        opset: functions.first().map_or("", |f| f.opset.name()),
        functions: functions.iter().map(|f| f.name.as_str()).collect(),
        context: opened.model.info.context,
        constants: summary.n_constants,
        model_bytes: summary.model_bytes,
        weight_bytes: summary.weight_bytes,
        item_bytes: summary.item_bytes,
        audit: None,
    };
    if app.output.is_json() {
        report.audit = audited(args, is_portable, app);
        return Ok(app.output.json(&report)?);
    }
    let all = summary.model_bytes + summary.weight_bytes + summary.item_bytes;
    let (n, names) = (
        counted(report.functions.len(), "function"),
        report.functions.join(", "),
    );
    app.output.say(&format!(
        "{}: {} for {}, {n}: {names}",
        opened.name,
        bytes(all),
        report.opset
    ));
    audited(args, is_portable, app);
    Ok(app.output.data(&format!("{}\n", args.out.display()))?)
}

/// The functions that were asked for, in the order of the program.
fn chosen(program: Program, names: &[String]) -> Result<Program, Failure> {
    let known: Vec<&str> = program
        .functions()
        .iter()
        .map(|f| f.name.as_str())
        .collect();
    if let Some(unknown) = names.iter().find(|n| !known.contains(&n.as_str())) {
        let error = anyhow::anyhow!("the program has no function `{unknown}`");
        return Err(
            Failure::new(Code::Usage, error).remedy(format!("--functions {}", known.join(",")))
        );
    }
    let wanted = |f: &&Function| names.is_empty() || names.contains(&f.name);
    Ok(Program::new(
        program.functions().iter().filter(wanted).cloned().collect(),
    ))
}

/// The opset that the user asked for.
fn wanted(args: &Args) -> Option<Wanted> {
    let of = |flag: &'static str| move |opset| Wanted { opset, flag };
    args.opset
        .map(of("--opset"))
        .or(args.min_os.map(of("--min-os")))
}

/// Tokenizer and template; a checkpoint without one makes a package that other programs must feed
/// with tokens.
fn parts(opened: &Opened, app: &App) -> Result<Option<Parts>, Failure> {
    let Some(parts) = model::parts(opened)? else {
        app.output
            .say("thane: the checkpoint has no tokenizer: the package can be checked and predicted with, not run");
        return Ok(None);
    };
    Ok(Some(parts))
}

fn contract(opened: &Opened, program: &Program) -> Result<Contract, Failure> {
    Ok(Contract {
        schema: SCHEMA,
        generator: concat!("thane ", env!("CARGO_PKG_VERSION")).to_owned(),
        model: Facts::Generate((&opened.model.info).into()),
        source: Source {
            model: opened.name.clone(),
            files: Vec::new(),
        },
        functions: contract::ports(program)?,
        files: Vec::new(),
    })
}

fn package(opened: &Opened, program: Program) -> Package {
    let info = &opened.model.info;
    let interfaces = program
        .functions()
        .iter()
        .map(|f| (f.name.clone(), interface(f, info.context)))
        .collect();
    let user_defined = BTreeMap::from([
        (
            "ai.thane.generator".to_owned(),
            concat!("thane ", env!("CARGO_PKG_VERSION")).to_owned(),
        ),
        ("ai.thane.source".to_owned(), opened.name.clone()),
    ]);
    let metadata = Metadata {
        short_description: format!(
            "{}, {}, context of {}",
            info.architecture,
            counted(info.n_layers, "layer"),
            counted(info.context, "token")
        ),
        license: opened.license.clone().unwrap_or_default(),
        user_defined,
        ..Metadata::default()
    };
    Package {
        metadata,
        interfaces,
        ..Package::new(program)
    }
}
