//! What a package of Thane carries besides its program: the contract, the tokenizer, and golden
//! vectors.
//!
//! They are items of [`AUTHOR`] in the package. A reader trusts none of them: hashes, functions and
//! program must be what the contract says.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use thane_calls::names::{CONTRACT, CONTRACT_SCHEMAS};
use thane_mil::package::{self, Content, Item, Written};
use thane_mil::program::Program;
use thane_models::Table;

use crate::compress::Compressed;
use crate::contract::{AUTHOR, Contract, Facts, SCHEMA, TableFacts, ports};
use crate::error::{ContractError, RuntimeError};
use crate::files::{
    FileHash, Hashing, first_difference, hash, read, read_within, replace_file, walk,
};
use crate::language::{LanguageData, TokenizerData};
use crate::main_function::{MAIN, name_of_main};
use crate::manifest::Golden;
use crate::placed_rows;
use crate::shared_rows::{self, SharedRows};
use crate::tables::{self, HostTable, Stored, Tables};

/// The role of inputs that have the row of a token.
const TOKEN_ROW: &str = "token_row";
const LANGUAGE: &str = "language.json";
const TOKENIZER: &str = "tokenizer.json";
const GOLDEN: &str = "golden.json";

/// What a package carries besides its program, checked.
#[derive(Debug)]
pub struct PackageContents {
    /// The contract.
    pub contract: Contract,
    /// Tokenizer and chat template; `None` if the checkpoint had no tokenizer.
    pub language: Option<LanguageData>,
    /// Texts with their vectors as JSON; `None` if there are none.
    pub golden: Option<Vec<u8>>,
    /// The files of tables that the host looks up, by the input that they are for.
    pub table_files: Vec<(String, PathBuf)>,
    /// Rows of tables that are in the weight file, or in a file of codes.
    pub shared_rows: Vec<SharedRows>,
}

impl PackageContents {
    /// The tables that the host looks up, of a model in the package at `path`.
    pub fn tables(&self, path: &Path) -> Result<Tables, RuntimeError> {
        tables_of(path, [self])
    }

    /// The tables of rows that callers look up by a token and that are files of fp16 or fp32,
    /// without matrices that the caller multiplies.
    pub fn token_tables(&self) -> Result<Vec<Table>, RuntimeError> {
        let ports = self.contract.functions.values();
        let by_token: BTreeSet<&str> = ports
            .flat_map(|ports| &ports.inputs)
            .filter(|input| input.role == TOKEN_ROW)
            .map(|input| input.name.as_str())
            .collect();
        let multiplied = self.contract.multiplied_tables();
        let is_looked_up = |input: &str| by_token.contains(input) && !multiplied.contains(&input);
        let files = self.table_files.iter();
        let files = files.filter(|(input, _)| is_looked_up(input));
        let tables = files.map(|(input, file)| {
            let table = tables::open(file)?;
            let facts = self.contract.tables.get(input);
            let parts = table.parts.into_iter().filter_map(|part| match part {
                Stored::Plain(data) => Some(data),
                Stored::Coded(_) => None,
            });
            let is_float = table.scales.is_none();
            Ok(is_float.then(|| Table {
                input: input.clone(),
                by_token: true,
                n_rows: table.n_rows,
                n_columns: table.n_columns,
                dtype: table.dtype,
                parts: parts.collect(),
                factor: facts.map_or(1.0, |facts| facts.factor),
                scales: None,
            }))
        });
        tables.filter_map(Result::transpose).collect()
    }

    /// Takes the codes of rows and tables from a program that was compressed. Returns the tables
    /// that are no NumPy files any more.
    pub fn compressed(&mut self, made: &Compressed) -> Result<Vec<String>, RuntimeError> {
        let rows = std::mem::take(&mut self.shared_rows);
        self.shared_rows = shared_rows::place_again(&made.program, rows, Some(made))?;
        let mut gone = Vec::new();
        for table in self.token_tables()? {
            if let Some(rows) = shared_rows::coded(&table, made)? {
                self.shared_rows.extend(rows);
                gone.push(table.input);
            }
        }
        self.table_files.retain(|(input, _)| !gone.contains(input));
        Ok(gone)
    }

    /// The items of the package when its program has become `program`. The recorded quality was
    /// measured on the program before, and is dropped. Rows that callers look up and that the new
    /// program does not have as a constant any more are in a file then.
    pub fn items_with(self, program: &Program) -> Result<Vec<Item>, RuntimeError> {
        let contract = Contract {
            quality: None,
            ..self.contract
        };
        let tables = WrittenTables {
            files: &[],
            shared: shared_rows::place_again(program, self.shared_rows, None)?,
        };
        items(contract, self.language.as_ref(), self.golden, tables, None)
            .map_err(RuntimeError::from)
    }
}

/// The tables that the host looks up, of a model in the packages at `path`.
pub fn tables_of<'a>(
    path: &Path,
    packages: impl IntoIterator<Item = &'a PackageContents>,
) -> Result<Tables, RuntimeError> {
    let (mut tables, mut rows) = (Tables::new(), Vec::new());
    for package in packages {
        for (input, file) in &package.table_files {
            let facts = package.contract.tables.get(input);
            let factor = facts.map_or(1.0, |facts| facts.factor);
            let table = HostTable {
                factor,
                ..tables::open(file)?
            };
            tables.insert(input.clone(), Arc::new(table));
        }
        rows.extend_from_slice(&package.shared_rows);
    }
    tables.extend(placed_rows::join(path, rows)?);
    Ok(tables)
}

/// What is written of the tables that the host looks up.
#[derive(Clone, Debug, Default)]
pub struct WrittenTables<'a> {
    /// Those that are files of the package.
    pub files: &'a [Table],
    /// Rows of the others, which are constants of the program, or in a file of codes.
    pub shared: Vec<SharedRows>,
}

/// The items of a package that is to be written. The contract comes last, since it has the hashes
/// of the other items; `source` are the hashes of the weight files, if the contract has none yet.
pub fn items(
    mut contract: Contract,
    language: Option<&LanguageData>,
    golden: Option<Vec<u8>>,
    tables: WrittenTables<'_>,
    source: Option<Hashing>,
) -> Result<Vec<Item>, ContractError> {
    let source = RefCell::new(source);
    let item = |name: &str, description: &str, content| Item {
        author: AUTHOR.to_owned(),
        name: name.to_owned(),
        description: description.to_owned(),
        content,
    };
    let mut items = Vec::new();
    items.extend(golden.map(|json| item(GOLDEN, "Vectors of known texts", Content::Bytes(json))));
    if let Some(language) = language {
        let json = serde_json::to_vec(language).map_err(|source| ContractError::Json {
            path: LANGUAGE.into(),
            source,
        })?;
        items.push(item(
            LANGUAGE,
            "How text becomes tokens",
            Content::Bytes(json),
        ));
        if let TokenizerData::Json { tokenizer, .. } = &language.tokenizer {
            items.push(item(
                TOKENIZER,
                "Tokenizer",
                Content::Bytes(tokenizer.clone()),
            ));
        }
    }
    items.extend(tables::items(tables.files));
    items.extend(placed_rows::items(&tables.shared));
    let scaled = tables.files.iter().filter(|table| table.factor != 1.0);
    contract.tables.extend(scaled.map(|table| {
        let (factor, rows) = (table.factor, Vec::new());
        (table.input.clone(), TableFacts { factor, rows })
    }));
    let shared = tables.shared;
    let write = move |written: Written<'_>| {
        let mut contract = contract.clone();
        placed_rows::place(&mut contract, &shared, written);
        contract_json(written.folder, contract, source.take())
    };
    items.push(item(
        CONTRACT,
        "What the package holds",
        Content::Made(Box::new(write)),
    ));
    Ok(items)
}

fn contract_json(
    folder: &Path,
    mut contract: Contract,
    source: Option<Hashing>,
) -> io::Result<Vec<u8>> {
    contract.files = hash_data(folder)?;
    if let Some(hashing) = source {
        contract.source.files = hashing
            .join()
            .map_err(|_| io::Error::other("a file could not be hashed"))??;
    }
    json_of(&contract)
}

/// Reads and checks what the package at `path` carries besides `program`; `None` if Thane did not
/// write the package.
pub fn read_contents(
    path: &Path,
    program: &Program,
) -> Result<Option<PackageContents>, RuntimeError> {
    // A compiled model has no list of items, and so no contract.
    if !path.join("Manifest.json").is_file() {
        return Ok(None);
    }
    let items = package::items(path)?;
    let find = |name: &str| {
        items
            .iter()
            .find(|i| i.author == AUTHOR && i.name == name)
            .map(|i| &i.path)
    };
    let Some(file) = find(CONTRACT) else {
        return Ok(None);
    };
    let contract = read_contract(file)?;
    check_files(path, &contract)?;
    let mut found = ports(program)?;
    if let Some(name) = name_of_main(program, &contract)
        && let Some(main) = found.remove(MAIN)
    {
        found.insert(name.to_owned(), main);
    }
    if found != contract.functions {
        let path = path.to_owned();
        return Err(ContractError::Functions { path }.into());
    }
    if let Some(what) = contract.contradiction() {
        let path = path.to_owned();
        return Err(ContractError::Model { path, what }.into());
    }
    let language = find(LANGUAGE)
        .map(|file| read_language(file, find(TOKENIZER)))
        .transpose()?;
    let golden = find(GOLDEN).map(|file| read(file)).transpose()?;
    let table = |item: &package::StoredItem| {
        let input = item.name.strip_suffix(".npy")?;
        (item.author == AUTHOR && !tables::is_scales(input))
            .then(|| (input.to_owned(), item.path.clone()))
    };
    let table_files: Vec<(String, PathBuf)> = items.iter().filter_map(table).collect();
    Ok(Some(PackageContents {
        shared_rows: placed_rows::read(path, &contract)?,
        contract,
        language,
        golden,
        table_files,
    }))
}

/// What the contract of a package says about its model, without a check of any other file; `None`
/// if Thane did not write the package.
pub fn read_facts(path: &Path) -> Result<Option<Facts>, RuntimeError> {
    Ok(contract_of(path)?.map(|contract| contract.model))
}

/// The contract of a package, without a check of any other file; `None` if Thane did not write the
/// package.
pub(crate) fn contract_of(path: &Path) -> Result<Option<Contract>, RuntimeError> {
    if !path.join("Manifest.json").is_file() {
        return Ok(None);
    }
    let items = package::items(path)?;
    let item = items
        .iter()
        .find(|i| i.author == AUTHOR && i.name == CONTRACT);
    Ok(item.map(|item| read_contract(&item.path)).transpose()?)
}

/// Replaces the contract of a package, when the new one is complete.
pub(crate) fn replace_contract(path: &Path, contract: &Contract) -> io::Result<()> {
    let items = package::items(path).map_err(io::Error::other)?;
    let mut items = items.into_iter();
    let item = items.find(|i| i.author == AUTHOR && i.name == CONTRACT);
    let item = item.ok_or_else(|| io::Error::other("the package has no contract"))?;
    replace_file(&item.path, &json_of(contract)?)
}

/// Replaces the golden vectors of a package, which has some, and their hash in its contract.
pub(crate) fn replace_goldens(path: &Path, goldens: &[Golden]) -> io::Result<()> {
    let name = format!("Data/{AUTHOR}/{GOLDEN}");
    let contract = contract_of(path).map_err(io::Error::other)?;
    let mut contract = contract.ok_or_else(|| io::Error::other("the package has no contract"))?;
    replace_file(&path.join(&name), &serde_json::to_vec(goldens)?)?;
    let mut known = contract.files.iter_mut();
    let known = known.find(|file| file.path == name);
    let known = known.ok_or_else(|| io::Error::other("the contract has no golden vectors"))?;
    *known = hash(&path.join(&name), name)?;
    replace_contract(path, &contract)
}

fn json_of(contract: &Contract) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(contract).map_err(io::Error::other)?;
    text.push(b'\n');
    Ok(text)
}

/// Compares the hashes of a package's files with those of its contract.
fn check_files(path: &Path, contract: &Contract) -> Result<(), ContractError> {
    let found = hash_data(path).map_err(|source| ContractError::Read {
        path: path.to_owned(),
        source,
    })?;
    let Some(file) = first_difference(&found, &contract.files) else {
        return Ok(());
    };
    // The file may be a pointer of Git LFS, which says what to do.
    if let Err(pointer @ ContractError::LfsPointer { .. }) = read_within(&path.join(file), 1 << 10)
    {
        return Err(pointer);
    }
    Err(ContractError::Changed {
        path: path.to_owned(),
        file: file.to_owned(),
        by: "the contract",
    })
}

fn read_contract(file: &Path) -> Result<Contract, ContractError> {
    parsed_contract(file, serde_json::from_slice(&read(file)?))
}

/// The contract in a file, which was parsed as JSON.
fn parsed_contract(
    file: &Path,
    json: serde_json::Result<Value>,
) -> Result<Contract, ContractError> {
    let json_error = |source| ContractError::Json {
        path: file.to_owned(),
        source,
    };
    let json = json.map_err(json_error)?;
    let schema = json["schema"].as_u64();
    let known = |schema: u64| u32::try_from(schema).is_ok_and(|n| CONTRACT_SCHEMAS.contains(&n));
    if !schema.is_some_and(known) {
        return Err(ContractError::Schema {
            path: file.to_owned(),
            expected: SCHEMA,
            found: schema,
        });
    }
    serde_json::from_value(json).map_err(json_error)
}

fn read_language(file: &Path, tokenizer: Option<&PathBuf>) -> Result<LanguageData, ContractError> {
    let mut language: LanguageData =
        serde_json::from_slice(&read(file)?).map_err(|source| ContractError::Json {
            path: file.to_owned(),
            source,
        })?;
    if let TokenizerData::Json {
        tokenizer: bytes, ..
    } = &mut language.tokenizer
    {
        let path = tokenizer.ok_or_else(|| ContractError::Missing {
            path: file.to_owned(),
            missing: TOKENIZER,
        })?;
        *bytes = read(path)?;
    }
    Ok(language)
}

/// The hashes of every file below a package's `Data` except the contract, sorted by path.
fn hash_data(package: &Path) -> io::Result<Vec<FileHash>> {
    let contract = format!("{AUTHOR}/{CONTRACT}");
    let data = package.join("Data");
    let files = walk(&data)?
        .into_iter()
        .filter(|(name, _)| *name != contract);
    files
        .map(|(name, _)| hash(&data.join(&name), format!("Data/{name}")))
        .collect()
}
