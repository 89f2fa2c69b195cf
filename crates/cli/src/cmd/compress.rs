//! `thane compress`: compresses the weights of packages that exist.

use std::path::{Path, PathBuf};

use serde::Serialize;
use thane_compile::compress::Encoding;
use thane_compile::compress::report::Report;
use thane_mil::opset::Opset;
use thane_runtime::contract::Facts;
use thane_runtime::{Compressed, PackageContents, compress, is_package};

use super::convert::system;
use crate::app::App;
use crate::audit::values;
use crate::compress::{self as flags, Compressing, Printed};
use crate::exit::{Failure, Outcome};
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
    /// The oldest system to support, such as ios18 or macos15 [default: the one that the package
    /// and the encoding need].
    #[arg(long, value_name = "SYSTEM", value_parser = system)]
    min_os: Option<Opset>,
    /// Chips, systems or both that the package is for, such as a19 or a18,a19: encodings that they
    /// do not read are refused.
    #[arg(long, value_name = "TARGET", value_delimiter = ',', value_parser = values::target)]
    target: Vec<Target>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Done<'a> {
    from: &'a Path,
    to: &'a Path,
    /// The packages that were written.
    packages: Vec<PackageRow>,
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
        compress: Some(args.flags.compress.unwrap_or(Encoding::palette(4))),
        ..args.flags
    };
    flags.check(args.min_os, &args.target, false)?;
    let is_folder = !is_package(from);
    if is_folder {
        out::check_made(to, Kind::Folder, args.force, &[from])?;
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
    let Some(compressing) = flags.compressing(to) else {
        return Ok(());
    };
    let _writing = app.interrupt.writing(to);
    let mut done = Vec::new();
    if is_folder {
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
                done.push(of_package(package, (at, to), args, &compressing, app)?);
                Ok(true)
            },
        )?;
    } else {
        place::write(to, args.force, |at| {
            done.push(of_package(from, (at, to), args, &compressing, app)?);
            Ok(true)
        })?;
    }
    compressing.done();
    app.output.clear();
    say(&done, args, app)
}

/// The failure of a path that holds no package.
fn unfit(path: &Path) -> Failure {
    usage!(
        "{}: expected a package or a folder of packages",
        path.display()
    )
    .remedy("thane convert MODEL --compress ENCODING, for a checkpoint")
}

fn of_package(
    from: &Path,
    (at, to): (&Path, &Path),
    args: &Args,
    compressing: &Compressing,
    app: &App,
) -> Result<DonePackage, Failure> {
    if !from.join("Manifest.json").is_file() {
        return Err(unfit(from));
    }
    let name = file_name(from);
    let mut opened = Rewritten::open(from)?;
    let encoding = compressing.options.settings.encoding;
    if encoding.is_portable_only() && is_for_ane(&opened) {
        return Err(usage!(
            "{name}: --compress {encoding} has scales along inputs, which the Neural Engine does \
             not compile or computes wrong, and the package is in the form for it"
        )
        .remedy("--compress int4 or int8"));
    }
    let is_pinned = args.min_os.is_some();
    let options = &compressing.options;
    let tables = opened.contents().map(PackageContents::token_tables);
    let tables = tables.transpose()?.unwrap_or_default();
    let made = compress(
        &opened.package.program,
        is_pinned,
        options,
        &tables,
        app.output.as_ref(),
    )?;
    opened.compressed(&made)?;
    let Compressed {
        program, report, ..
    } = made;
    if report.rows.is_empty() {
        let is_done = |reason: &str| reason.contains("compressed already");
        let n_done = report
            .left
            .iter()
            .filter(|left| is_done(&left.reason))
            .count();
        let why = match n_done {
            0 => "it has no weights that this encoding fits".to_owned(),
            n => format!("{n} of its weights are compressed already"),
        };
        let lines = flags::sentences(&report);
        lines.iter().skip(1).for_each(|line| app.output.say(line));
        return Err(usage!("{}: nothing to compress: {why}", from.display())
            .remedy("the package or checkpoint that it was made of"));
    }
    opened.package.program = program;
    let opset = opened
        .package
        .program
        .functions()
        .first()
        .map_or("", |f| f.opset.name());
    opened.write(at, to)?;
    Ok(DonePackage {
        name,
        opset,
        report,
    })
}

/// Whether the contract says that functions have fixed lengths, as in the form for the Neural
/// Engine.
fn is_for_ane(opened: &Rewritten) -> bool {
    opened
        .contents()
        .is_some_and(|contents| match &contents.contract.model {
            Facts::Generate(facts) => facts.fixed.is_some(),
            Facts::Embed(_) => true,
        })
}

fn say(done: &[DonePackage], args: &Args, app: &App) -> Outcome {
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
