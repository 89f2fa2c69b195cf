//! A language model as a folder of packages, one for each chunk of layers.
//!
//! A function of the model, `chunk2_decode`, is the function `decode` of `chunk2.mlpackage`, or its
//! `main`, if the package has no other function. The first package has the tokenizer and the tables
//! that the host looks up; `manifest.json` says in which order functions are called.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use thane_mil::lower;
use thane_mil::opset::Opset;
use thane_mil::package::{Package, Partial, Summary};
use thane_mil::program::{Function, Program};

use crate::contract::{Contract, Facts, GENERATOR, Generates, Ports};
use crate::error::{ContractError, RuntimeError};
use crate::files::hash_tree;
use crate::main_function::with_contract_names;
use crate::manifest::{Entry, MANIFEST, MANIFEST_SCHEMA, Manifest, read_checked_manifest};
use crate::package_contents::{PackageContents, read_contents};
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

/// The chunk that a function of the model belongs to, and the name that it has in its package.
pub fn parted(function: &str) -> Option<(&str, &str)> {
    let (chunk, name) = function.split_once('_')?;
    let number = chunk.strip_prefix("chunk")?;
    number.parse::<usize>().ok().map(|_| (chunk, name))
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

/// The functions of each chunk, under the names that they have in its package.
pub fn split(program: &Program) -> Vec<(String, Vec<Function>)> {
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
    let failed = |source| RuntimeError::Write {
        path: out.to_owned(),
        source,
    };
    let partial = Partial::folder(out).map_err(failed)?;
    let mut all = Summary::default();
    let mut packages = Vec::new();
    for (at, (chunk, functions)) in split(program).into_iter().enumerate() {
        let path = format!("{chunk}.mlpackage");
        let summary = write(&chunk, functions, &partial.path().join(&path), at == 0)?;
        all.n_constants += summary.n_constants;
        all.model_bytes += summary.model_bytes;
        all.weight_bytes += summary.weight_bytes;
        all.item_bytes += summary.item_bytes;
        packages.push(Entry { path, tokens: None });
    }
    let manifest = Manifest {
        schema: MANIFEST_SCHEMA,
        generator: GENERATOR.to_owned(),
        model: Facts::Generate(facts.clone()),
        packages,
        files: hash_tree(partial.path()).map_err(failed)?,
    };
    let mut text = serde_json::to_vec_pretty(&manifest).map_err(|e| failed(e.into()))?;
    text.push(b'\n');
    fs::write(partial.path().join(MANIFEST), text).map_err(failed)?;
    let put = if replace {
        partial.replace()
    } else {
        partial.put()
    };
    put.map_err(failed)?;
    Ok(all)
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
    let mut first: Option<PackageContents> = None;
    let mut tables = Tables::new();
    for entry in &manifest.packages {
        let at = path.join(&entry.path);
        let package = Package::open(&at)?;
        let contents = read_contents(&at, &package.program)?;
        let contents = contents
            .ok_or_else(|| fault(format!("`{}` has no contract: convert again", entry.path)))?;
        let chunk = entry.path.trim_end_matches(".mlpackage");
        // Each package is in the oldest opset that expresses it; one program has one opset.
        let program = with_contract_names(package.program, &contents.contract);
        let program = lower::with_opset(&program, Opset::CoreMl8).map_err(|v| {
            let violation = v.first().map(ToString::to_string).unwrap_or_default();
            fault(format!("`{}`: {violation}", entry.path))
        })?;
        for function in program.functions() {
            let mut function = function.clone();
            let name = format!("{chunk}_{}", function.name);
            if let Some(ports) = contents.contract.functions.get(&function.name) {
                all_ports.insert(name.clone(), ports.clone());
            }
            function.name = name;
            functions.push(function);
        }
        tables.extend(contents.tables()?);
        first.get_or_insert(contents);
    }
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
