//! What a report is about: one program, or several that belong together.

use std::collections::BTreeMap;

use thane_calls::names::{MAIN, chunk_and_function, chunk_file, function_length};
use thane_calls::{Call, Calls};
use thane_mil::package::{Interface, Package};
use thane_mil::program::{Function, Program};

use super::chain::ChainCall;

/// A program that loads by itself.
#[derive(Debug)]
pub struct Part {
    /// Name of the package in its folder; empty where there is only one program.
    pub package: String,
    /// The program.
    pub program: Program,
    /// The shapes that functions declare, by function name.
    pub interfaces: BTreeMap<String, Interface>,
    /// The function that takes inputs too long for the others, by what was written with the
    /// program. It has no fixed shape and is not meant for the Neural Engine.
    pub catch_all: Option<String>,
}

/// What is audited.
#[derive(Debug)]
pub struct Subject {
    /// The name that the user gave.
    pub name: String,
    /// `package`, `compiled`, `text`, `folder`, `bundle`, `decoder` or `encoder`.
    pub kind: &'static str,
    /// What was built, if the subject is a checkpoint.
    pub built: Option<String>,
    /// Constants of a MIL text whose weight file is missing.
    pub n_absent: usize,
    /// Its programs.
    pub parts: Vec<Part>,
    /// Bytes on disk; of a checkpoint, those of the weights and tables that are written.
    pub disk_bytes: u64,
    /// Bytes of the tables beside the programs, which the caller maps.
    pub table_bytes: u64,
    /// How the functions of a language model are called.
    pub calls: Vec<ChainCall>,
    /// Bytes of the output matrix, if the caller computes the logits of a token.
    pub host_bytes: f64,
}

impl Part {
    /// A program that stands alone, with nothing declared beside it.
    pub fn new(program: Program) -> Self {
        Self {
            package: String::new(),
            program,
            interfaces: BTreeMap::new(),
            catch_all: None,
        }
    }
}

impl From<Package> for Part {
    fn from(package: Package) -> Self {
        Self {
            interfaces: package.interfaces,
            ..Self::new(package.program)
        }
    }
}

impl Subject {
    /// Some programs under the name of what they come from.
    pub fn new(name: &str, kind: &'static str, parts: Vec<Part>) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            built: None,
            n_absent: 0,
            disk_bytes: 0,
            table_bytes: 0,
            parts,
            calls: Vec::new(),
            host_bytes: 0.0,
        }
    }

    /// Says how the functions of a language model are called: `chunk2_decode` is the function
    /// `decode` of `chunk2.mlpackage`, or its only function, `main`.
    pub fn set_calls(&mut self, calls: &Calls) {
        let parts = &self.parts;
        let in_package = |part: Option<&Part>, name: &str| match part.map(|p| p.program.functions())
        {
            Some([only]) if only.name == MAIN => MAIN.to_owned(),
            _ => name.to_owned(),
        };
        let place = |name: &String| match chunk_and_function(name) {
            Some((chunk, function)) => {
                let package = chunk_file(chunk);
                let part = parts.iter().find(|part| part.package == package);
                format!("{package}/{}", in_package(part, function))
            }
            None => in_package(parts.first(), name),
        };
        let placed = calls.calls.iter().map(|call| Call {
            functions: call.functions.iter().map(place).collect(),
            ..call.clone()
        });
        self.calls = placed.map(ChainCall::from).collect();
    }
}

/// The function of flexible length beside those of buckets: it takes what is too long for them.
pub fn catch_all(program: &Program) -> Option<String> {
    let has_length = |f: &Function| function_length(&f.name).is_some();
    let functions = program.functions();
    let any = functions
        .iter()
        .find(|f| !has_length(f) && is_flexible(f))?;
    functions.iter().any(has_length).then(|| any.name.clone())
}

/// Whether an input of a function has no fixed shape.
pub fn is_flexible(function: &Function) -> bool {
    let inputs = function.body().inputs.iter();
    let mut types = inputs.filter_map(|input| function.value(*input).ty.tensor());
    types.any(|ty| ty.known_shape().is_none())
}
