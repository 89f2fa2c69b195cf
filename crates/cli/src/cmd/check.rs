//! `thane check`: checks the rules, weights and hashes of a package.

use std::path::{Path, PathBuf};

use serde::Serialize;
use thane_hub::ModelFiles;
use thane_mil::data::Data;
use thane_mil::literal::{Literal, f16_to_f32};
use thane_mil::package::{Package, PackageError};
use thane_mil::program::{Arg, Function};
use thane_mil::types::DType;
use thane_runtime::contract::{Contract, Facts};
use thane_runtime::manifest::{is_bundle, read_checked_manifest};
use thane_runtime::{ForeignLayout, LanguageOptions, Model, is_package, read_contents};

use crate::app::App;
use crate::exit::{Outcome, even_unread};
use crate::output::{bytes, counted};
use crate::source;

/// Check that a Core ML package is legal, complete and undamaged.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A package, a compiled model, a folder of packages that convert wrote, or a .mil file.
    ///
    /// A bundle of ANEMLL or CoreML-LLM is checked too.
    package: PathBuf,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    package: &'a Path,
    functions: usize,
    ops: usize,
    /// Number of constants that were read.
    constants: usize,
    constant_bytes: u64,
    /// Number of files whose hash was compared with the contract; null if the package has none.
    hashed_files: Option<usize>,
    /// Constants that hold infinities or NaN, which is legal. `thane audit` says how the Neural
    /// Engine treats them.
    non_finite: Vec<String>,
    /// Number of constants of MIL text whose weight file is missing.
    absent: usize,
    /// What is wrong; empty for a good package.
    errors: Vec<String>,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let is_folder = is_bundle(&args.package);
    if !is_folder {
        source::expect(&args.package, app)?;
    }
    let mut report = Report {
        package: &args.package,
        functions: 0,
        ops: 0,
        constants: 0,
        constant_bytes: 0,
        hashed_files: None,
        non_finite: Vec::new(),
        absent: 0,
        errors: Vec::new(),
    };
    app.output.busy("reading the package");
    if is_folder {
        folder(&args.package, &mut report);
    } else if !is_package(&args.package)
        && let Some(layout) = ForeignLayout::of(&args.package)
    {
        foreign_bundle(layout, &args.package, &mut report);
    } else {
        package(&args.package, &mut report);
    }
    if app.output.is_json() || report.errors.is_empty() {
        even_unread(app.output.report(&report, text))?;
    }
    if report.errors.is_empty() {
        return Ok(());
    }
    let n = report.errors.len();
    let lines = report.errors.join("\n  ");
    Err(usage!(
        "{}: {}\n  {lines}",
        args.package.display(),
        counted(n, "error")
    ))
}

/// Checks the packages of a folder, and the hashes of its manifest.
fn folder(path: &Path, report: &mut Report<'_>) {
    match read_checked_manifest(path) {
        Ok(Some((manifest, files))) => {
            for entry in &manifest.packages {
                package(&path.join(&entry.path), report);
            }
            report.hashed_files = Some(files.len());
            if matches!(manifest.model, Facts::Generate(_)) {
                calls(path, report);
            }
        }
        Ok(None) => {}
        Err(e) => report.errors.push(format!("{:#}", anyhow::Error::new(e))),
    }
}

/// Checks the packages of another project's bundle, and whether they fit together.
fn foreign_bundle(layout: &'static ForeignLayout, path: &Path, report: &mut Report<'_>) {
    match layout.open(path) {
        Ok(bundle) => {
            for part in &bundle.parts {
                look(&part.path, &part.package, report);
            }
        }
        Err(e) => report.errors.push(format!("{:#}", anyhow::Error::new(e))),
    }
}

fn package(path: &Path, report: &mut Report<'_>) {
    match source::open(path) {
        Ok(source) => {
            report.absent += source.n_absent;
            look(path, &source.package, report);
        }
        Err(PackageError::Invalid { violations, .. }) => {
            let violations = violations.iter().map(ToString::to_string);
            report.errors.extend(violations);
        }
        Err(other) => report.errors.push(other.to_string()),
    }
}

fn look(path: &Path, package: &Package, report: &mut Report<'_>) {
    let functions = package.program.functions();
    report.functions += functions.len();
    for f in functions {
        report.ops += f.all_ops().len();
        constants(f, report);
    }
    let contents = is_package(path).then(|| read_contents(path, &package.program));
    match contents.transpose() {
        Ok(contents) => {
            let contract = contents.flatten().map(|contents| contents.contract);
            report.hashed_files = contract.as_ref().map(|contract| contract.files.len());
            let is_whole = |c: &Contract| matches!(c.model, Facts::Generate(_)) && !c.is_a_chunk();
            if contract.as_ref().is_some_and(is_whole) {
                calls(path, report);
            }
        }
        Err(e) => report.errors.push(format!("{:#}", anyhow::Error::new(e))),
    }
}

/// Checks that the calls of a language model fit together.
fn calls(path: &Path, report: &mut Report<'_>) {
    let files = ModelFiles {
        name: path.to_string_lossy().into_owned(),
        path: path.to_owned(),
        license: None,
        downloaded_bytes: 0,
    };
    let options = LanguageOptions::default();
    let model = Model::from_files(files).and_then(|model| model.language_model(&options, &()));
    if let Err(e) = model.and_then(|model| model.check_calls()) {
        report.errors.push(format!("{:#}", anyhow::Error::new(e)));
    }
}

/// Reads every constant to its end.
fn constants(f: &Function, report: &mut Report<'_>) {
    let mut piece = vec![0; 1 << 20];
    for op in f.all_ops().into_iter().map(|id| f.op(id)) {
        for arg in op.args.iter().flatten() {
            let Arg::Literal(Literal::Tensor(ty, data)) = arg else {
                continue;
            };
            // A placeholder for a constant whose file is missing.
            if data.is_zeros() {
                continue;
            }
            report.constants += 1;
            report.constant_bytes += data.byte_len() as u64;
            let name = op.results.first().map_or("", |r| &f.value(*r).name);
            let place = format!("{}: {} `{name}`", f.name, op.def.name);
            match non_finite(ty.dtype, data, &mut piece) {
                Ok(None) => {}
                Ok(Some(odd)) => report.non_finite.push(format!("{place}: {odd}")),
                Err(at) => {
                    let fault = format!("{place}: the bytes from {at} on cannot be read");
                    report.errors.push(fault);
                }
            }
        }
    }
}

/// Reads a constant to its end. Describes its infinite and NaN elements, if there are any. The
/// error is the offset of the first byte that cannot be read.
fn non_finite(dtype: DType, data: &Data, piece: &mut [u8]) -> Result<Option<String>, usize> {
    let len = data.byte_len();
    let (mut first, mut n) = (None, 0usize);
    for at in (0..len).step_by(piece.len()) {
        let bytes = &mut piece[..(len - at).min(1 << 20)];
        if !data.read(at, bytes) {
            return Err(at);
        }
        let mut count = |i: usize, value: f32| {
            if !value.is_finite() {
                first.get_or_insert((at * 8 / dtype.bits() + i, value));
                n += 1;
            }
        };
        match dtype {
            DType::Fp16 => each(bytes, |i, b| count(i, f16_to_f32(u16::from_le_bytes(b)))),
            DType::Bf16 => {
                let widened = |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16);
                each(bytes, |i, b| count(i, widened(b)));
            }
            DType::Fp32 => each(bytes, |i, b| count(i, f32::from_le_bytes(b))),
            _ => {}
        }
    }
    let (Some((element, value)), all) = (first, data.byte_len() * 8 / dtype.bits()) else {
        return Ok(None);
    };
    Ok(Some(format!(
        "{n} of {all} elements are not finite, the first is element {element}: {value}"
    )))
}

fn each<const N: usize>(bytes: &[u8], mut visit: impl FnMut(usize, [u8; N])) {
    let elements = bytes.as_chunks::<N>().0.iter().enumerate();
    elements.for_each(|(i, b)| visit(i, *b));
}

fn text(r: &Report<'_>) -> String {
    let hashes = match r.hashed_files {
        Some(n) => format!(", {} as the contract says", counted(n, "file")),
        None => String::new(),
    };
    let mut text = format!(
        "{}: good: {}, {}, {} of {}{hashes}\n",
        r.package.display(),
        counted(r.functions, "function"),
        counted(r.ops, "op"),
        counted(r.constants, "constant"),
        bytes(r.constant_bytes)
    );
    for odd in &r.non_finite {
        text.push_str(&format!(
            "  note: {odd}: legal; thane audit says what the Neural Engine makes of it\n"
        ));
    }
    if r.absent > 0 {
        let absent = counted(r.absent, "constant");
        text.push_str(&format!(
            "  note: the weights of {absent} are not beside the text and were not read\n"
        ));
    }
    text
}
