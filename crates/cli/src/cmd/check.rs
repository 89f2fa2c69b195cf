//! `thane check`: whether a package is what it should be.

use std::path::PathBuf;

use serde::Serialize;
use thane_mil::data::Data;
use thane_mil::literal::Literal;
use thane_mil::package::{Package, PackageError};
use thane_mil::program::{Arg, Function};
use thane_mil::types::DType;

use crate::app::App;
use crate::contract;
use crate::exit::{Code, Failure, Outcome};
use crate::output::{bytes, counted};

/// Check a Core ML package: its rules, all its weights, the hashes of its files.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// An .mlpackage or .mlmodelc folder.
    package: PathBuf,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    package: &'a std::path::Path,
    functions: usize,
    ops: usize,
    /// Constants that were read.
    constants: usize,
    constant_bytes: u64,
    /// Files whose hash was compared with that of the contract; null where the package has no contract of Thane's.
    hashed_files: Option<usize>,
    /// What is wrong; a package is good where there is nothing.
    errors: Vec<String>,
}

pub fn run(args: &Args, app: &App) -> Outcome {
    let mut report = Report {
        package: &args.package,
        functions: 0,
        ops: 0,
        constants: 0,
        constant_bytes: 0,
        hashed_files: None,
        errors: Vec::new(),
    };
    match Package::open(&args.package) {
        Ok(package) => look(&package, &mut report),
        Err(PackageError::Invalid { violations, .. }) => {
            report.errors.extend(violations.iter().map(ToString::to_string));
        }
        Err(other) => report.errors.push(other.to_string()),
    }
    if app.output.is_json() {
        app.output.json(&report)?;
    } else if report.errors.is_empty() {
        app.output.data(&text(&report))?;
    }
    if report.errors.is_empty() {
        return Ok(());
    }
    let n = report.errors.len();
    let lines = report.errors.join("\n  ");
    let error = anyhow::anyhow!("{}: {}\n  {lines}", args.package.display(), counted(n, "error"));
    Err(Failure::new(Code::Usage, error))
}

fn look(package: &Package, report: &mut Report<'_>) {
    let functions = package.program.functions();
    report.functions = functions.len();
    for f in functions {
        report.ops += f.all_ops().len();
        constants(f, report);
    }
    match contract::read(report.package, &package.program) {
        Ok(contents) => report.hashed_files = contents.map(|c| c.contract.files.len()),
        Err(e) => report.errors.push(format!("{e:#}")),
    }
}

/// Read every constant to its end.
fn constants(f: &Function, report: &mut Report<'_>) {
    let mut piece = vec![0; 1 << 20];
    for op in f.all_ops().into_iter().map(|id| f.op(id)) {
        for literal in op.args.iter().flatten().filter_map(|a| if let Arg::Literal(l) = a { Some(l) } else { None }) {
            let Literal::Tensor(ty, data) = literal else { continue };
            report.constants += 1;
            report.constant_bytes += data.byte_len() as u64;
            if let Some(fault) = fault(ty.dtype, data, &mut piece) {
                let name = op.results.first().map_or("", |r| &f.value(*r).name);
                report.errors.push(format!("{}: {} `{name}`: {fault}", f.name, op.def.name));
            }
        }
    }
}

/// What is wrong with the elements of a constant: numbers that are none.
fn fault(dtype: DType, data: &Data, piece: &mut [u8]) -> Option<String> {
    let len = data.byte_len();
    for at in (0..len).step_by(piece.len()) {
        let n = piece.len().min(len - at);
        if !data.read(at, &mut piece[..n]) {
            return Some(format!("the bytes from {at} on cannot be read"));
        }
        let odd = match dtype {
            DType::Fp16 => piece[..n].as_chunks().0.iter().position(|b| u16::from_le_bytes(*b) & 0x7c00 == 0x7c00),
            DType::Bf16 => piece[..n].as_chunks().0.iter().position(|b| u16::from_le_bytes(*b) & 0x7f80 == 0x7f80),
            DType::Fp32 => piece[..n].as_chunks().0.iter().position(|b| !f32::from_le_bytes(*b).is_finite()),
            _ => None,
        };
        if let Some(odd) = odd {
            let element = at * 8 / dtype.bits() + odd;
            return Some(format!("element {element} is not a finite number"));
        }
    }
    None
}

fn text(r: &Report<'_>) -> String {
    let hashes = match r.hashed_files {
        Some(n) => format!(", {} as the contract says", counted(n, "file")),
        None => String::new(),
    };
    format!(
        "{}: good: {}, {}, {} of {}{hashes}\n",
        r.package.display(),
        counted(r.functions, "function"),
        counted(r.ops, "op"),
        counted(r.constants, "constant"),
        bytes(r.constant_bytes)
    )
}
