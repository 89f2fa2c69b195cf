//! A language model as a folder of packages, one for each chunk of layers.
//!
//! A function of the model, `chunk2_decode`, is the function `decode` of `chunk2.mlpackage`, or its
//! `main`, if the package has no other function. The first package has the tokenizer and the tables
//! that the host looks up; `manifest.json` says in which order functions are called.

use std::collections::BTreeMap;
use std::path::Path;

pub use thane_calls::names::{chunk_and_function as parted, chunk_file as file};
use thane_mil::package::{Package, Partial, Summary};
use thane_mil::program::{Function, Program};

use crate::contract::{Contract, Facts, Generates, Ports};
use crate::error::{ContractError, RuntimeError};
use crate::interface::put;
use crate::main_function::with_contract_names;
use crate::manifest::{Entry, MANIFEST, in_one_opset, read_checked_manifest, write_manifest};
use crate::package_contents::{PackageContents, read_contents, tables_of};
use crate::tables::Tables;

/// What a folder of chunks holds.
pub struct Chunks {
    /// The functions of all packages, each named after its package.
    pub program: Program,
    /// Contract and tokenizer of the whole.
    pub contents: PackageContents,
    /// The tables that the host looks up.
    pub tables: Tables,
}

/// Number of chunks that functions of these names are in.
pub fn count(functions: &[Function]) -> usize {
    let mut chunks: Vec<&str> = functions
        .iter()
        .filter_map(|f| parted(&f.name).map(|(chunk, _)| chunk))
        .collect();
    chunks.sort_unstable();
    chunks.dedup();
    chunks.len().max(1)
}

/// The functions of each package, under the names that they have there. `parted` gives the package
/// of a function and that name.
pub fn split(
    program: &Program,
    parted: fn(&str) -> Option<(&str, &str)>,
) -> Vec<(String, Vec<Function>)> {
    let mut chunks: Vec<(String, Vec<Function>)> = Vec::new();
    for function in program.functions() {
        let Some((chunk, name)) = parted(&function.name) else {
            continue;
        };
        let mut renamed = function.clone();
        name.clone_into(&mut renamed.name);
        match chunks.iter_mut().find(|(known, _)| known == chunk) {
            Some((_, functions)) => functions.push(renamed),
            None => chunks.push((chunk.to_owned(), vec![renamed])),
        }
    }
    chunks
}

/// Writes the package of a chunk: its name, its functions, its path, and whether it is the first.
pub type WriteChunk<'a> =
    dyn Fn(&str, Vec<Function>, &Path, bool) -> Result<Summary, RuntimeError> + 'a;

/// Writes the packages of all chunks into a folder at `out`.
pub fn write(
    program: &Program,
    facts: &Generates,
    (out, replace): (&Path, bool),
    write: &WriteChunk<'_>,
) -> Result<Summary, RuntimeError> {
    let failed = RuntimeError::write(out);
    let partial = Partial::folder(out).map_err(&failed)?;
    let mut all = Summary::default();
    let mut packages = Vec::new();
    for (at, (chunk, functions)) in split(program, parted).into_iter().enumerate() {
        let path = file(&chunk);
        let summary = write(&chunk, functions, &partial.path().join(&path), at == 0)?;
        add(&mut all, &summary);
        packages.push(Entry { path, tokens: None });
    }
    let model = Facts::Generate(facts.clone());
    write_manifest(partial.path(), model, packages).map_err(&failed)?;
    put(partial, replace).map_err(&failed)?;
    Ok(all)
}

/// Adds what a package takes to what others take.
pub fn add(all: &mut Summary, one: &Summary) {
    all.n_constants += one.n_constants;
    all.model_bytes += one.model_bytes;
    all.weight_bytes += one.weight_bytes;
    all.item_bytes += one.item_bytes;
}

/// Reads and checks a folder of chunks.
pub fn open(path: &Path) -> Result<Chunks, RuntimeError> {
    let fault = |reason: String| {
        RuntimeError::from(ContractError::Bundle {
            path: path.to_owned(),
            reason,
        })
    };
    let read = read_checked_manifest(path)?;
    let (manifest, _) = read.ok_or_else(|| fault(format!("there is no {MANIFEST}")))?;
    let mut functions: Vec<Function> = Vec::new();
    let mut all_ports: BTreeMap<String, Ports> = BTreeMap::new();
    let mut all_contents = Vec::new();
    for entry in &manifest.packages {
        let at = path.join(&entry.path);
        let package = Package::open(&at)?;
        let contents = read_contents(&at, &package.program)?;
        let contents = contents
            .ok_or_else(|| fault(format!("`{}` has no contract: convert again", entry.path)))?;
        let chunk = entry.path.trim_end_matches(".mlpackage");
        let program = with_contract_names(package.program, &contents.contract);
        let program = in_one_opset(&program, entry).map_err(fault)?;
        for function in program.functions() {
            let mut function = function.clone();
            let name = format!("{chunk}_{}", function.name);
            if let Some(ports) = contents.contract.functions.get(&function.name) {
                all_ports.insert(name.clone(), ports.clone());
            }
            function.name = name;
            functions.push(function);
        }
        all_contents.push(contents);
    }
    let tables = tables_of(path, &all_contents)?;
    let first = all_contents.into_iter().next();
    let first = first.ok_or_else(|| fault("the manifest names no package".to_owned()))?;
    let contract = Contract {
        model: manifest.model,
        functions: all_ports,
        ..first.contract
    };
    Ok(Chunks {
        program: Program::new(functions),
        contents: PackageContents { contract, ..first },
        tables,
    })
}
