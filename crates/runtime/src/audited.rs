//! A decoder as an audit sees it: the programs of its packages, and how they are called.

use std::collections::HashSet;
use std::path::Path;

use thane_audit::report::{Part, Subject, catch_all};
use thane_calls::{Calls, Head};
use thane_mil::package;
use thane_mil::program::Program;
use thane_mil::types::DType;
use thane_models::checkpoint::Checkpoint;
use thane_models::{Encoder, Info, Options, Table};

use crate::chunks;
use crate::compress::{CompressOptions, Compressed, compress_late};
use crate::contract::{AUTHOR, multiplied};
use crate::error::RuntimeError;
use crate::interface::interface;
use crate::main_function::with_main;
use crate::observer::Observer;
use crate::passes::{compile, in_opset};
use crate::shared_rows::{Parted, constants, table_bytes};
use crate::tables::{HostTable, file_name};

/// A decoder whose program is built; its weights are not read.
pub struct BuiltDecoder {
    /// What the program is.
    pub info: Info,
    program: Program,
    tables: Vec<Table>,
}

impl BuiltDecoder {
    /// Builds the program of a checkpoint for these options.
    pub fn new(
        checkpoint: &Checkpoint,
        options: &Options,
        observer: &dyn Observer,
    ) -> Result<Self, RuntimeError> {
        let path = &checkpoint.path;
        // States of packages are fp16.
        let options = Options {
            cache: DType::Fp16,
            ..options.clone()
        };
        let made = thane_models::build(checkpoint, &options);
        let made = made.map_err(|e| RuntimeError::model(path, e))?;
        Ok(Self {
            program: in_opset(&compile(made.program, path, observer)?, None)?,
            info: made.info,
            tables: made.tables,
        })
    }

    /// The packages that [`LanguageModel::write`](crate::LanguageModel::write) writes, with weights
    /// compressed as `compress` says.
    pub fn subject(
        &self,
        name: &str,
        compress: Option<&CompressOptions>,
    ) -> Result<Subject, RuntimeError> {
        let tables = Parted::new(&self.program, &self.tables);
        let fixed = self.info.fixed.as_ref();
        let own = tables.looked_up(&fixed.map_or(Vec::new(), |fixed| multiplied(&fixed.head)));
        let small = compress.map(|options| compress_late(&self.program, &own, options));
        let small = small.transpose()?;
        small.iter().try_for_each(Compressed::check)?;
        let tables = match &small {
            None => tables,
            Some(made) => tables.compressed(made)?,
        };
        let (program, info) = (
            small.as_ref().map_or(&self.program, |made| &made.program),
            &self.info,
        );
        let mut parts: Vec<Part> = chunks::split(program, chunks::parted)
            .into_iter()
            .map(|(chunk, functions)| part(chunks::file(&chunk), &Program::new(functions), info))
            .collect();
        if parts.is_empty() {
            parts.push(part(String::new(), program, info));
        }
        let mut subject = Subject::new(name, "decoder", parts);
        let weights = subject.parts.iter().map(|part| weight_bytes(&part.program));
        subject.table_bytes = tables.file_bytes();
        subject.disk_bytes = weights.sum::<u64>() + subject.table_bytes;
        if let Some(calls) = &info.fixed {
            subject.set_calls(calls);
            if let Head::Host(head) = &calls.head {
                let matrix = self.tables.iter().find(|t| t.input == head.matrix);
                subject.host_bytes = matrix.map_or(0.0, |table| table_bytes(table) as f64);
            }
        }
        Ok(subject)
    }
}

/// The packages of a decoder without compressed weights; no weight is read.
pub fn decoder_subject(
    name: &str,
    checkpoint: &Checkpoint,
    options: &Options,
    observer: &dyn Observer,
) -> Result<(Subject, Info), RuntimeError> {
    let built = BuiltDecoder::new(checkpoint, options, observer)?;
    Ok((built.subject(name, None)?, built.info))
}

/// A package or bundle that is read, as it is once its weights are compressed. Its size on disk is
/// that of its constants, which are not written yet.
pub fn compressed_subject(
    subject: &Subject,
    options: Option<&CompressOptions>,
) -> Result<Subject, RuntimeError> {
    let part = |part: &Part| -> Result<Part, RuntimeError> {
        Ok(Part {
            package: part.package.clone(),
            program: match options {
                Some(options) => compress_late(&part.program, &[], options)?.program,
                None => part.program.clone(),
            },
            interfaces: part.interfaces.clone(),
            catch_all: part.catch_all.clone(),
        })
    };
    let parts = subject.parts.iter().map(part);
    let parts: Vec<Part> = parts.collect::<Result<_, _>>()?;
    Ok(Subject {
        built: subject.built.clone(),
        n_absent: subject.n_absent,
        disk_bytes: parts.iter().map(|part| weight_bytes(&part.program)).sum(),
        calls: subject.calls.clone(),
        host_bytes: subject.host_bytes,
        table_bytes: subject.table_bytes,
        ..Subject::new(&subject.name, subject.kind, parts)
    })
}

/// The package of an embedding model, with weights compressed as `compress` says; no weight is
/// read.
pub fn encoder_subject(
    name: &str,
    encoder: &Encoder,
    compress: Option<&CompressOptions>,
) -> Result<Subject, RuntimeError> {
    let mut program = in_opset(&encoder.program, None)?;
    let mut tables = Parted {
        files: encoder.tables.clone(),
        rows: Vec::new(),
    };
    if let Some(options) = compress {
        let made = compress_late(&program, &tables.looked_up(&[]), options)?;
        made.check()?;
        tables = tables.compressed(&made)?;
        program = made.program;
    }
    let functions = program.functions().iter();
    let interfaces = functions.map(|f| (f.name.clone(), interface(f, encoder.info.max_tokens)));
    let part = Part {
        interfaces: interfaces.collect(),
        catch_all: catch_all(&program),
        ..Part::new(program)
    };
    Ok(Subject {
        table_bytes: tables.file_bytes(),
        ..Subject::new(name, "encoder", vec![part])
    })
}

/// Bytes of the constants of a program, those that functions share once.
fn weight_bytes(program: &Program) -> u64 {
    let mut known = HashSet::new();
    let all = constants(program).map(|(_, data)| data);
    let new = all.filter(|data| known.insert(data.id()));
    new.map(|data| data.byte_len() as u64).sum()
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

/// Bytes of the files with tables that the host looks up, in a package.
pub fn host_table_bytes(package: &Path) -> Result<u64, RuntimeError> {
    let items = package::items(package)?.into_iter();
    let files = items.filter(|item| {
        item.author == AUTHOR && [".npy", ".bin"].iter().any(|end| item.name.ends_with(end))
    });
    let bytes = files.map(|item| {
        let found = std::fs::metadata(&item.path).map_err(|source| RuntimeError::Read {
            path: item.path.clone(),
            source,
        })?;
        Ok(found.len())
    });
    bytes.sum()
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
