//! `thane compress`: compresses the weights of packages that exist.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use thane_compile::compress::program::Settings;
use thane_compile::compress::report::{Left, Report};
use thane_compile::compress::{Codes, Encoding};
use thane_mil::lower::with_opset;
use thane_mil::opset::Opset;
use thane_mil::package::Package;
use thane_mil::program::Program;
use thane_runtime::contract::Facts;
use thane_runtime::manifest::MANIFEST;
use thane_runtime::{
    CompressOptions, Model, PackageContents, RuntimeError, compress, compressed_subject,
    is_package, read_facts, record_cosines,
};

use super::convert::system;
use super::quality;
use crate::app::App;
use crate::audit::{subject, values};
use crate::calibrate::{Calibrate, calibrate_flag, weighed_package};
use crate::codes::{self, Compressing};
use crate::compress::{self as flags, Asked, Printed};
use crate::exit::{Failure, Outcome, usage, usage_in};
use crate::model::{NumericsFlag, cpu};
use crate::out::{self, Kind, file_name};
use crate::rewritten::folder::{self, Folders};
use crate::rewritten::{Rewritten, place};
use thane_audit::target::Target;

/// Compress the weights of a package.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A package, or a folder of packages.
    package: PathBuf,
    /// The package or folder to write.
    #[arg(short, long, value_name = "PACKAGE")]
    out: PathBuf,
    /// Replace an output that exists.
    ///
    /// The existing one stays until the new one is complete.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    flags: flags::CompressFlags,
    /// Text by which errors are weighed, or none [default: Thane's own].
    ///
    /// An error of a weight counts by the mean squares of the activations that the weight is
    /// multiplied by. 64 tokens of each of 32 places in the text are computed in f32, in the form
    /// that the package has. Without the flag, errors count alike where a package has no tokenizer
    /// or does not say what its functions take.
    #[arg(long, value_name = "FILE", value_parser = calibrate_flag)]
    calibrate: Option<Calibrate>,
    /// The oldest system to support, such as ios18 or macos15 [default: the one that the package
    /// and the encoding need].
    #[arg(long, value_name = "SYSTEM", value_parser = system)]
    min_os: Option<Opset>,
    /// Chips, systems or both that the package is for, such as a19 or a18,a19: encodings that they
    /// do not read are refused.
    #[arg(long, value_name = "TARGET", value_delimiter = ',', value_parser = values::target)]
    target: Vec<Target>,
    #[command(flatten)]
    quality: quality::Flag,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Done<'a> {
    from: &'a Path,
    to: &'a Path,
    /// The packages that were written.
    packages: Vec<PackageRow>,
    /// What `--quality` found beside the package before; null without it.
    quality: Option<quality::Report>,
}

#[derive(Serialize)]
struct PackageRow {
    package: String,
    /// The opset that it is written in.
    opset: &'static str,
    compression: Printed,
}

/// What was done to a package.
struct DonePackage {
    name: String,
    opset: &'static str,
    report: Report,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let (from, to) = (&args.package, &args.out);
    let flags = flags::CompressFlags {
        compress: Some(args.flags.compress.unwrap_or(Asked::Auto)),
        oldest: args.min_os,
        ..args.flags
    };
    flags.check(&args.target)?;
    flags.check_text(args.calibrate.as_ref())?;
    args.quality.check(true)?;
    let is_folder = !is_package(from);
    if is_folder {
        out::check_made(to, Kind::Folder, args.force, &[from])?;
        out::check_outside(to, from)?;
    } else {
        out::check_made(to, Kind::Package, args.force, &[from])?;
        if !out::has_extension(to, &["mlpackage"]) {
            return Err(out::misnamed(
                to,
                "a package (.mlpackage)",
                "-o NAME.mlpackage",
            ));
        }
    }
    let Some(settings) = settings(&flags, args, app)? else {
        return Ok(());
    };
    let mut compressing = Compressing::begin(settings, to, &app.budget)?;
    let _writing = app.interrupt.writing(to);
    let written = write(args, is_folder, &mut compressing, app);
    let done = codes::finished(Some(compressing), written)?;
    app.output.clear();
    let quality = match args.quality.is_given() {
        true => {
            let files = app.hub.resolve(&to.to_string_lossy())?;
            let task = Model::from_files(files)?.task()?;
            args.quality
                .measure((to, task), &from.to_string_lossy(), app)?
        }
        false => None,
    };
    say(&done, quality, args, app)
}

/// Writes the package, or all packages of the folder.
fn write(
    args: &Args,
    is_folder: bool,
    compressing: &mut Compressing,
    app: &App,
) -> Result<Vec<DonePackage>, Failure> {
    let (from, to) = (&args.package, &args.out);
    let mut done = Vec::new();
    if is_folder {
        // The packages of one model are computed together.
        if from.join(MANIFEST).is_file() {
            weigh(from, args, compressing, app)?;
        }
        let common = common_opset(from, args, &compressing.options.settings)?;
        let folders = Folders {
            from,
            to,
            force: args.force,
            done: "compressed",
        };
        folder::write(
            &folders,
            app,
            || unfit(from),
            |package, at| {
                if !from.join(MANIFEST).is_file() {
                    weigh(package, args, compressing, app)?;
                }
                let how = (args, common);
                let one = of_package(package, (at, to), how, compressing, app)?;
                let is_changed = !one.report.rows.is_empty();
                done.push(one);
                Ok(is_changed)
            },
        )?;
    } else {
        if from.join("Manifest.json").is_file() {
            weigh(from, args, compressing, app)?;
        }
        place::write(to, args.force, |at| {
            let one = of_package(from, (at, to), (args, None), compressing, app)?;
            let is_changed = !one.report.rows.is_empty();
            done.push(one);
            Ok(is_changed)
        })?;
    }
    if done.iter().all(|one| one.report.rows.is_empty()) {
        return Err(nothing(from, &done, app));
    }
    Ok(done)
}

/// Has errors count by what a package, or a folder of the packages of a model, computes of a text.
fn weigh(from: &Path, args: &Args, compressing: &mut Compressing, app: &App) -> Outcome {
    let found = weighed_package(from, args.calibrate.as_ref(), app)?;
    compressing.options.importance = match found {
        Some(found) => Arc::new(found),
        None => Arc::new(()),
    };
    Ok(())
}

/// The failure where no weight of any package was compressed.
fn nothing(from: &Path, done: &[DonePackage], app: &App) -> Failure {
    let left = || done.iter().flat_map(|one| &one.report.left);
    let is_done = |left: &&Left| left.reason.contains("compressed already");
    let why = match left().filter(is_done).count() {
        0 => "it has no weights that this encoding fits".to_owned(),
        n => format!("{n} of its weights are compressed already"),
    };
    for one in done {
        let lines = flags::sentences(&one.report);
        lines.iter().skip(1).for_each(|line| app.output.say(line));
    }
    usage!("{}: nothing to compress: {why}", from.display())
        .remedy("the package or checkpoint that it was made of")
}

/// The failure of a path that holds no package.
fn unfit(path: &Path) -> Failure {
    if !path.exists() {
        return usage!("{}: there is no such file or folder", path.display())
            .remedy("a package or a folder of packages");
    }
    usage!(
        "{}: expected a package or a folder of packages",
        path.display()
    )
    .remedy("thane convert MODEL --compress ENCODING, for a checkpoint")
}

/// The newest opset of the packages of a folder, where their compressed weights are the same bytes
/// in one opset alone: packages that share weights share what the weights become.
fn common_opset(from: &Path, args: &Args, settings: &Settings) -> Result<Option<Opset>, Failure> {
    let in_all = |encoding: &Encoding| {
        encoding.sparsity.is_none() && matches!(encoding.codes, Some(Codes::Integers(..)))
    };
    let mut encodings = std::iter::once(&settings.encoding).chain(&settings.tables);
    if encodings.all(in_all) {
        return Ok(None);
    }
    let mut opsets = Vec::new();
    // A path that is no folder is refused where it is read.
    for package in subject::packages_in(from).unwrap_or_default() {
        if package.join("Manifest.json").is_file() {
            let program = Package::open(&package).map_err(usage)?.program;
            opsets.extend(program.functions().iter().map(|f| f.opset));
        }
    }
    let newest = opsets.iter().copied().max();
    match args.min_os.zip(newest) {
        Some((asked, newest)) if asked < newest => Err(usage!(
            "{}: expected packages of {} or before, found some of {}",
            from.display(),
            asked.name(),
            newest.name()
        )
        .remedy("leave --min-os out, or --compress int8")),
        _ => Ok(newest),
    }
}

/// A program in a newer opset, if it is older and can be written so.
fn raised(program: &Program, opset: Opset) -> Option<Program> {
    let is_older = program.functions().iter().any(|f| f.opset < opset);
    is_older.then(|| with_opset(program, opset).ok())?
}

fn of_package(
    from: &Path,
    (at, to): (&Path, &Path),
    (args, common): (&Args, Option<Opset>),
    compressing: &Compressing,
    app: &App,
) -> Result<DonePackage, Failure> {
    if !from.join("Manifest.json").is_file() {
        return Err(unfit(from));
    }
    let name = file_name(from);
    let mut opened = Rewritten::open(from)?;
    let is_pinned = args.min_os.is_some();
    let options = &compressing.options;
    let tables = opened.contents().map(PackageContents::token_tables);
    let tables = tables.transpose()?.unwrap_or_default();
    if let Some(raised) = common.and_then(|opset| raised(&opened.package.program, opset)) {
        opened.package.program = raised;
    }
    let made = compress(
        &opened.package.program,
        is_pinned,
        options,
        &tables,
        app.output.as_ref(),
    );
    let made = made.map_err(|error| match error {
        error @ RuntimeError::Compress(_) => usage_in(from)(error),
        error => error.into(),
    })?;
    opened.compressed(&made)?;
    let report = made.report()?;
    opened.package.program = made.program;
    let opset = opened
        .package
        .program
        .functions()
        .first()
        .map_or("", |f| f.opset.name());
    opened.write(at, to)?;
    if matches!(read_facts(at)?, Some(Facts::Embed(_))) {
        record_cosines(at, &cpu(NumericsFlag::F32, None, app))?;
    }
    Ok(DonePackage {
        name,
        opset,
        report,
    })
}

/// Encoding and scales, chosen for the targets of flags or those that the package was written for;
/// what one of them does not run is refused.
fn settings(
    flags: &flags::CompressFlags,
    args: &Args,
    app: &App,
) -> Result<Option<Settings>, Failure> {
    let from = &args.package;
    let packages = match is_package(from) {
        true => vec![from.clone()],
        false => subject::packages_in(from).unwrap_or_default(),
    };
    // What is none of ours to judge is refused where it is opened.
    let Some(first) = packages
        .first()
        .filter(|p| p.join("Manifest.json").is_file())
    else {
        return Ok(flags.settings());
    };
    let opened = subject::packages(from, &packages, app)?;
    let targets = match (&args.target[..], &opened.targets[..]) {
        ([], []) if is_for_ane(first)? => vec![Target::usual()],
        ([], written_for) => written_for.to_vec(),
        (given, _) => given.to_vec(),
    };
    let Some(start) = flags.pricing().filter(|_| !targets.is_empty()) else {
        return Ok(flags.settings());
    };
    let make = |way: Option<&CompressOptions>| compressed_subject(&opened.subject, way);
    let options = flags.decided(start, &make, &targets, app)?;
    flags.check_faults(&options, &make, &targets)?;
    Ok(Some(options.settings))
}

/// Whether the contract says that functions have fixed lengths, as in the form for the Neural
/// Engine.
fn is_for_ane(package: &Path) -> Result<bool, Failure> {
    Ok(match read_facts(package)? {
        Some(Facts::Generate(facts)) => facts.fixed.is_some(),
        Some(Facts::Embed(_)) => true,
        None => false,
    })
}

fn say(done: &[DonePackage], quality: Option<quality::Report>, args: &Args, app: &App) -> Outcome {
    if app.output.is_json() {
        let packages = done.iter().map(|one| PackageRow {
            package: one.name.clone(),
            opset: one.opset,
            compression: Printed::from(&one.report),
        });
        return Ok(app.output.json(&Done {
            from: &args.package,
            to: &args.out,
            packages: packages.collect(),
            quality,
        })?);
    }
    let mut text = String::new();
    for DonePackage {
        name,
        opset,
        report,
    } in done
    {
        text += &format!("{name}, {opset}\n{}", flags::table(report));
        for line in flags::sentences(report) {
            text += &format!("{line}\n");
        }
    }
    Ok(app
        .output
        .data(&format!("{text}{}\n", args.out.display()))?)
}
