//! Writes a package for each function of the op fixtures, so that coremltools can check them.
//!
//!     cargo run -p thane-mil --example write_packages -- tests/ops target/op-packages
//!
//! Inputs and outputs of types that packages do not support are cast. Packages in the source folder
//! are copied: read, written and read again. The exit status is 1 if a copy differs. The program
//! prints each function that cannot be written with the reason, and finally the number of packages.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use thane_mil::opset::Opset;
use thane_mil::package::{Package, check};
use thane_mil::program::{Function, Program, ValueId, difference};
use thane_mil::text::{Blobs, parse, print};
use thane_mil::types::{DType, TensorType};

fn main() -> ExitCode {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [from, to] = args.as_slice() else {
        panic!("expected two folders: of programs, and for packages")
    };
    let mut files: Vec<PathBuf> = fs::read_dir(from)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    files.sort();
    let mut n = 0;
    for file in files
        .iter()
        .filter(|f| f.extension().is_some_and(|e| e == "mil"))
    {
        let program = parse(&fs::read_to_string(file).unwrap(), &|_, _, _| None).unwrap();
        for f in program.functions() {
            let name = format!(
                "{}.{}.mlpackage",
                file.file_stem().unwrap().to_string_lossy(),
                f.name
            );
            match write(f, &to.join(&name)) {
                Ok(()) => n += 1,
                Err(reason) => println!("{name}: {reason}"),
            }
        }
    }
    let mut faults = 0;
    for file in files
        .iter()
        .filter(|f| f.extension().is_some_and(|e| e == "mlpackage"))
    {
        let name = file.file_name().unwrap();
        match copy(file, &to.join(name)) {
            Ok(()) => n += 1,
            Err(reason) => {
                faults += 1;
                println!("{}: {reason}", name.display());
            }
        }
    }
    println!("{n}");
    if faults == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Reads a package, writes it and compares the copy.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let open = |path: &Path| Package::open(path).map_err(|e| e.to_string());
    let package = open(from)?;
    package.replace(to, &[]).map_err(|e| e.to_string())?;
    let back = open(to)?;
    match difference(&package.program, &back.program) {
        Some(difference) => Err(format!("the copy is another program: {difference}")),
        None if back.interfaces != package.interfaces => {
            Err("the copy has other features".to_owned())
        }
        None => Ok(()),
    }
}

fn write(f: &Function, path: &Path) -> Result<(), String> {
    let mut f = f.clone();
    f.name = "main".to_owned();
    let mut package = Package::new(Program::new(vec![f]));
    if check(&package).is_err() {
        package = Package::new(cast(&package.program)?);
    }
    package
        .replace(path, &[])
        .map(|_| ())
        .map_err(|e| e.to_string())
}

/// Casts inputs and outputs of unsupported types to fp32 or int32.
fn cast(program: &Program) -> Result<Program, String> {
    let f = &program.functions()[0];
    let mut blobs = Blobs::default();
    let text = print(program, &mut blobs);
    let lines: Vec<&str> = text.lines().collect();
    let is = |line: &&str, word: &str| line.trim_start().starts_with(word);
    let head = lines.iter().position(|l| is(l, "func ")).unwrap();
    let tail = lines.iter().rposition(|l| is(l, "} ->")).unwrap();
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let conversion = |to: &TensorType, result: &str, x: &str| {
        format!(
            "{to} {result} = cast(x = {x}, dtype = string(\"{}\"));",
            to.dtype
        )
    };
    for (values, is_input) in [(&f.body().inputs, true), (&f.body().outputs, false)] {
        for value in values.iter().map(|v: &ValueId| f.value(*v)) {
            let (name, outside) = (&value.name, format!("{}_outside", value.name));
            let other = value.ty.tensor().map_or(Ok(None), |t| outer(t, f.opset))?;
            match (other, is_input) {
                (None, true) => inputs.push(format!("{} {name}", value.ty)),
                (None, false) => outputs.push(name.clone()),
                (Some(ty), true) => {
                    inputs.push(format!("{ty} {outside}"));
                    before.push(conversion(value.ty.tensor().unwrap(), name, &outside));
                }
                (Some(ty), false) => {
                    after.push(conversion(&ty, &outside, name));
                    outputs.push(outside);
                }
            }
        }
    }
    let body: Vec<String> = lines[head + 1..tail]
        .iter()
        .map(|l| (*l).to_owned())
        .collect();
    let statements = [before, body, after].concat().join("\n");
    let (opset, inputs, outputs) = (f.opset.name(), inputs.join(", "), outputs.join(", "));
    let text = format!(
        "program(1.3) {{ func main<{opset}>({inputs}) {{\n{statements}\n}} -> ({outputs}); }}"
    );
    parse(&text, &|_, offset, ty| blobs.get(offset, ty)).map_err(|e| e.to_string())
}

/// The type of an input or output in a package, if the type itself is not supported.
fn outer(ty: &TensorType, opset: Opset) -> Result<Option<TensorType>, String> {
    let dtype = match ty.dtype {
        DType::Fp32 | DType::Int32 | DType::String => return Ok(None),
        DType::Fp16 if opset >= Opset::CoreMl6 => return Ok(None),
        DType::Fp16 | DType::Bool => DType::Fp32,
        _ if opset < Opset::CoreMl7 => {
            return Err(format!("opset {} cannot cast {}", opset.name(), ty.dtype));
        }
        _ => DType::Int32,
    };
    Ok(Some(TensorType {
        dtype,
        shape: ty.shape.clone(),
    }))
}
