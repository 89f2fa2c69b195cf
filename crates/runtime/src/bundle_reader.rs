//! Reads an embedding model from a package or from a folder of packages.

use std::path::Path;

use thane_mil::package::Package;
use thane_mil::program::{Function, Program};

use crate::contract::{Embeds, Facts};
use crate::error::{ContractError, RuntimeError, Task};
use crate::language::LanguageData;
use crate::main_function::MAIN;
use crate::manifest::{Golden, in_one_opset, read_checked_manifest};
use crate::package_contents::{PackageContents, read_contents};
use crate::tables::Tables;

/// An embedding model that was read from its packages.
pub struct Bundle {
    /// What the model is.
    pub facts: Embeds,
    /// The functions of all packages; one of fixed length ends in `_` and its length.
    pub program: Program,
    /// Tokenizer; `None` if the checkpoint had none.
    pub language: Option<LanguageData>,
    /// Texts with their vectors.
    pub goldens: Vec<Golden>,
    /// The tables that the host looks up, by the input that they are for.
    pub(crate) tables: Tables,
    /// Number of files whose hashes were compared.
    pub n_files: usize,
}

impl Bundle {
    /// Reads and checks a package or a folder of packages.
    pub fn open(path: &Path) -> Result<Self, RuntimeError> {
        let Some((manifest, files)) = read_checked_manifest(path)? else {
            return package(path);
        };
        let fault = |reason: String| ContractError::Bundle {
            path: path.to_owned(),
            reason,
        };
        let Facts::Embed(facts) = manifest.model else {
            return Err(RuntimeError::GeneratesOnly {
                path: path.to_owned(),
            });
        };
        // Golden vectors are those of the package that takes the longest texts: they are of texts
        // as the folder as a whole cuts them.
        let longest = manifest
            .packages
            .iter()
            .max_by_key(|entry| entry.tokens.unwrap_or(usize::MAX));
        let mut longest_bundle: Option<Bundle> = None;
        let mut functions: Vec<Function> = Vec::new();
        for entry in &manifest.packages {
            let prefix = format!("{}/", entry.path);
            if !files.iter().any(|f| f.path.starts_with(&prefix)) {
                return Err(fault(format!("`{}` is missing", entry.path)).into());
            }
            let one = package(&path.join(&entry.path))?;
            let program = in_one_opset(&one.program, entry).map_err(fault)?;
            functions.extend(program.functions().iter().cloned());
            if Some(entry) == longest {
                longest_bundle = Some(one);
            }
        }
        let longest =
            longest_bundle.ok_or_else(|| fault("the manifest names no package".into()))?;
        Ok(Self {
            facts: *facts,
            program: Program::new(functions),
            n_files: files.len(),
            ..longest
        })
    }
}

fn package(path: &Path) -> Result<Bundle, RuntimeError> {
    let package = Package::open(path)?;
    let contents = read_contents(path, &package.program)?;
    let contents = contents.ok_or_else(|| RuntimeError::NoContract {
        path: path.to_owned(),
        task: Task::Embed,
    })?;
    let tables = contents.tables(path)?;
    let PackageContents {
        contract,
        language,
        golden,
        ..
    } = contents;
    let n_files = contract.files.len();
    let Facts::Embed(facts) = contract.model else {
        return Err(RuntimeError::GeneratesOnly {
            path: path.to_owned(),
        });
    };
    let goldens = golden
        .map(|json| serde_json::from_slice(&json))
        .transpose()
        .map_err(|source| ContractError::Json {
            path: path.join("golden.json"),
            source,
        })?;
    let mut functions = package.program.functions().to_vec();
    if let [function] = functions.as_mut_slice()
        && function.name == MAIN
    {
        let base = if facts.encoding == "chunks" {
            "encode_chunks"
        } else {
            "encode"
        };
        function.name = match facts.buckets.first() {
            Some(n) => format!("{base}_{n}"),
            None => base.to_owned(),
        };
    }
    Ok(Bundle {
        facts: *facts,
        program: Program::new(functions),
        language,
        goldens: goldens.unwrap_or_default(),
        tables,
        n_files,
    })
}
