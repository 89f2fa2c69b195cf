//! A decoder as an audit sees it: the programs of its packages, and how they are called.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use thane_audit::report::chain::ChainCall;
use thane_audit::report::{Part, Subject};
use thane_calls::{Call, Calls, Head};
use thane_mil::data::Bytes;
use thane_mil::package;
use thane_mil::program::Program;
use thane_mil::types::DType;
use thane_models::checkpoint::Checkpoint;
use thane_models::{Info, Options, Table};

use crate::chunks;
use crate::contract::AUTHOR;
use crate::error::RuntimeError;
use crate::interface::interface;
use crate::main_function::{MAIN, with_main};
use crate::observer::Observer;
use crate::passes::{compile, in_opset};
use crate::shared_rows::{Parted, constants};
use crate::tables::{HostTable, file_name};

/// Builds the packages that [`LanguageModel::write`](crate::LanguageModel::write) writes for these
/// options, but for the weights, which are not read.
pub fn decoder_subject(
    name: &str,
    checkpoint: &Checkpoint,
    options: &Options,
    observer: &dyn Observer,
) -> Result<(Subject, Info), RuntimeError> {
    let path = &checkpoint.path;
    // States of packages are fp16.
    let options = Options {
        cache: DType::Fp16,
        ..options.clone()
    };
    let made = thane_models::build(checkpoint, &options);
    let made = made.map_err(|e| RuntimeError::model(path, e))?;
    let program = in_opset(&compile(made.program, path, observer)?, None)?;
    let mut parts: Vec<Part> = chunks::split(&program, chunks::parted)
        .into_iter()
        .map(|(chunk, functions)| part(chunks::file(&chunk), &Program::new(functions), &made.info))
        .collect();
    if parts.is_empty() {
        parts.push(part(String::new(), &program, &made.info));
    }
    let mut subject = Subject::new(name, "decoder", parts);
    let weights = subject.parts.iter().map(|part| weight_bytes(&part.program));
    let files = Parted::new(&program, &made.tables).files;
    let tables = files.iter().map(table_bytes);
    subject.disk_bytes = weights.chain(tables).sum();
    if let Some(calls) = &made.info.fixed {
        set_calls(&mut subject, calls);
        if let Head::Host(head) = &calls.head {
            let matrix = made.tables.iter().find(|t| t.input == head.matrix);
            subject.host_bytes = matrix.map_or(0.0, |table| table_bytes(table) as f64);
        }
    }
    Ok((subject, made.info))
}

/// Bytes of the constants of a program, those that functions share once.
fn weight_bytes(program: &Program) -> u64 {
    let mut known = HashSet::new();
    let all = constants(program).map(|(_, data)| data);
    let new = all.filter(|data| known.insert(data.id()));
    new.map(|data| data.byte_len() as u64).sum()
}

fn table_bytes(table: &Table) -> u64 {
    let data = table.parts.iter().chain(&table.scales);
    data.map(|data| data.byte_len() as u64).sum()
}

fn part(package: String, program: &Program, info: &Info) -> Part {
    let program = with_main(program);
    let functions = program.functions().iter();
    let interfaces = functions.map(|f| (f.name.clone(), interface(f, info.context)));
    Part {
        package,
        interfaces: interfaces.collect(),
        ..Part::new(program)
    }
}

/// Says how the functions of a subject are called: `chunk2_decode` is the function `decode` of
/// `chunk2.mlpackage`, or its only function, `main`.
pub fn set_calls(subject: &mut Subject, calls: &Calls) {
    let parts = &subject.parts;
    let in_package = |part: Option<&Part>, name: &str| match part.map(|p| p.program.functions()) {
        Some([only]) if only.name == MAIN => MAIN.to_owned(),
        _ => name.to_owned(),
    };
    let place = |name: &String| match chunks::parted(name) {
        Some((chunk, function)) => {
            let package = chunks::file(chunk);
            let part = parts.iter().find(|part| part.package == package);
            format!("{package}/{}", in_package(part, function))
        }
        None => in_package(parts.first(), name),
    };
    let placed = calls.calls.iter().map(|call| Call {
        functions: call.functions.iter().map(place).collect(),
        ..call.clone()
    });
    subject.calls = placed.map(ChainCall::from).collect();
}

/// Bytes of the matrix from which the host computes logits, in a package that was written for
/// these calls; 0 if the program computes them.
pub fn host_matrix_bytes(package: &Path, calls: &Calls) -> Result<usize, RuntimeError> {
    let Head::Host(head) = &calls.head else {
        return Ok(0);
    };
    let file = file_name(&head.matrix);
    let items = package::items(package)?;
    let mut items = items.into_iter();
    let item = items.find(|item| item.author == AUTHOR && item.name == file);
    let table = item.map(|item| HostTable::open(&item.path)).transpose()?;
    Ok(table.map_or(0, |table| table.byte_len()))
}

/// As [`host_matrix_bytes`], of a package whose files are in memory, by their paths inside it.
pub fn host_matrix_bytes_of_files(
    files: &BTreeMap<String, Bytes>,
    calls: &Calls,
) -> Result<usize, RuntimeError> {
    let Head::Host(head) = &calls.head else {
        return Ok(0);
    };
    let inside = format!("Data/{AUTHOR}/{}", file_name(&head.matrix));
    let bytes = files.get(&inside);
    let table = bytes.map(|bytes| HostTable::from_bytes(Path::new(&inside), bytes));
    Ok(table.transpose()?.map_or(0, |table| table.byte_len()))
}
