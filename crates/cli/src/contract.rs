//! What a package needs beside its model so that it can be run: a contract, and the files that it
//! names.
//!
//! They lie in the package as items of [`AUTHOR`]. The contract says what the functions take and
//! give, what the model is and where it comes from, and the sha256 of every other file of the
//! package. A loader believes none of it: what it finds must be what the contract says, or it
//! refuses.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thane_mil::package::{self, Content, Item};
use thane_mil::program::{Function, Program, ValueId};
use thane_mil::types::Type;
use thane_models::{Fixed, Info};

use crate::language::{self, Parts, Words};

/// The author of the items.
pub const AUTHOR: &str = "ai.thane";
/// The version of the contract that is written, and the only one that is read.
pub const SCHEMA: u32 = 2;

const CONTRACT: &str = "contract.json";
const LANGUAGE: &str = "language.json";
const TOKENIZER: &str = "tokenizer.json";
const GOLDEN: &str = "golden.json";

/// The contract, as `contract.json` has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contract {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The program that wrote it.
    pub generator: String,
    pub model: Facts,
    pub source: Source,
    /// What each function takes and gives.
    pub functions: BTreeMap<String, Ports>,
    /// Every file of the package but this one and the manifest.
    pub files: Vec<FileHash>,
}

/// What the model is, by what it is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
pub enum Facts {
    /// A language model.
    Generate(Generates),
    /// An embedding model.
    Embed(Box<Embeds>),
}

/// What a language model is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Generates {
    pub architecture: String,
    pub layers: usize,
    pub vocabulary: usize,
    /// Positions that the model was made for.
    pub max_context: usize,
    /// Tokens that the cache holds.
    pub context: usize,
    pub cache_bytes: usize,
    /// Where functions take so many tokens and no others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<FixedLengths>,
}

/// What feeding functions of fixed lengths needs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedLengths {
    /// Tokens of a call of `prefill`.
    pub block: usize,
    /// Tokens that sliding layers see; null where there are none.
    pub window: Option<usize>,
}

/// What an embedding model is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embeds {
    pub architecture: String,
    pub layers: usize,
    pub vocabulary: usize,
    /// Positions that the model has.
    pub positions: usize,
    /// Elements of a vector.
    pub dimensions: usize,
    /// Most tokens of a text that the model was made for.
    pub max_tokens: usize,
    /// Lengths that have a function of their own, in order.
    pub buckets: Vec<usize>,
    /// Whether a function takes any length.
    pub flexible: bool,
    /// `text`, `chunks` or `tokens`: what a call gives vectors of.
    pub encoding: String,
    /// `mean`, `cls`, `lasttoken`, `max` or `weightedmean`.
    pub pooling: String,
    /// Whether vectors are of length 1.
    pub normalize: bool,
    /// Whether the model itself gives int8 and bits.
    pub quantize: bool,
    pub prompts: BTreeMap<String, String>,
    pub default_prompt: Option<String>,
    /// Whether the tokens of a prompt count in the pooling.
    pub include_prompt: bool,
    /// How vectors are compared.
    pub similarity: Option<String>,
    /// Whether text is brought to lower case before it is split.
    pub lower_case: bool,
    /// What the residual stream is divided by.
    pub residual_divisor: Option<f32>,
    /// How root mean square norms are spelled.
    pub norm: String,
}

/// Where the model comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// As it was asked for.
    pub model: String,
    /// The files that its weights were read from, which tell its revision; paths are their names.
    pub files: Vec<FileHash>,
}

/// A file and what is in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileHash {
    pub path: String,
    pub bytes: u64,
    pub sha256: String,
}

/// What a function takes and gives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ports {
    pub inputs: Vec<Port>,
    pub states: Vec<Port>,
    pub outputs: Vec<Port>,
}

/// An input, output or state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    pub name: String,
    pub dtype: String,
    /// Null for a dimension that each call binds anew.
    pub shape: Vec<Option<usize>>,
    /// What it is for: `tokens`, `position`, `key_cache`, `value_cache`, `logits`; `mask`,
    /// `cache_slot`, `selection`, `key_value_cache`; `pool_matrix`, `embedding`.
    pub role: String,
}

impl From<&Info> for Generates {
    fn from(info: &Info) -> Self {
        Self {
            architecture: info.architecture.clone(),
            layers: info.n_layers,
            vocabulary: info.vocab_size,
            max_context: info.max_context,
            context: info.context,
            cache_bytes: info.cache_bytes,
            fixed: info.fixed.map(|f| FixedLengths {
                block: f.block,
                window: f.window,
            }),
        }
    }
}

impl From<Generates> for Info {
    fn from(facts: Generates) -> Self {
        Self {
            architecture: facts.architecture,
            n_layers: facts.layers,
            vocab_size: facts.vocabulary,
            max_context: facts.max_context,
            context: facts.context,
            cache_bytes: facts.cache_bytes,
            fixed: facts.fixed.map(|f| Fixed {
                block: f.block,
                window: f.window,
            }),
        }
    }
}

/// What each function takes and gives; an input without a role is an error.
pub fn ports(program: &Program) -> anyhow::Result<BTreeMap<String, Ports>> {
    program
        .functions()
        .iter()
        .map(|f| Ok((f.name.clone(), function_ports(f)?)))
        .collect()
}

fn function_ports(f: &Function) -> anyhow::Result<Ports> {
    let (mut inputs, mut states) = (Vec::new(), Vec::new());
    for &input in &f.body().inputs {
        let to = if matches!(f.value(input).ty, Type::State(_)) {
            &mut states
        } else {
            &mut inputs
        };
        to.push(port(f, input)?);
    }
    let outputs = f
        .body()
        .outputs
        .iter()
        .map(|v| port(f, *v))
        .collect::<anyhow::Result<_>>()?;
    Ok(Ports {
        inputs,
        states,
        outputs,
    })
}

fn port(f: &Function, value: ValueId) -> anyhow::Result<Port> {
    let value = f.value(value);
    let ty = value
        .ty
        .tensor_or_state()
        .with_context(|| format!("`{}` is of type {}", value.name, value.ty))?;
    let role = match value.name.as_str() {
        "input_ids" => "tokens",
        "position" | "positions" => "position",
        "logits" => "logits",
        "write_begin" | "write_end" => "cache_slot",
        "last_token" => "selection",
        "attention_mask" | "full_mask" | "sliding_mask" => "mask",
        "pool_matrix" => "pool_matrix",
        "embedding" | "token_embeddings" => "embedding",
        "kv_cache" => "key_value_cache",
        name if name.starts_with("k_cache_") => "key_cache",
        name if name.starts_with("v_cache_") => "value_cache",
        name => bail!("function `{}`: nobody knows what `{name}` is for", f.name),
    };
    let shape = ty.shape.iter().map(|d| d.known()).collect();
    Ok(Port {
        name: value.name.clone(),
        dtype: ty.dtype.name().to_owned(),
        shape,
        role: role.to_owned(),
    })
}

/// Hashes on their way: a checkpoint takes as long to hash as to write.
pub type Hashing = JoinHandle<io::Result<Vec<FileHash>>>;

/// Hash files beside what goes on.
pub fn hash_files(paths: Vec<PathBuf>) -> Hashing {
    let name = |path: &Path| {
        path.file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let one = move |path: &PathBuf| {
        hash(path, name(path))
            .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))
    };
    std::thread::spawn(move || paths.iter().map(one).collect())
}

/// The items of a package: the contract last, since it has the hashes of the others, and of the
/// `source`.
///
/// `golden` are vectors that tell a good copy from a bad one.
pub fn items(
    contract: Contract,
    parts: Option<&Parts>,
    golden: Option<Vec<u8>>,
    source: Option<Hashing>,
) -> anyhow::Result<Vec<Item>> {
    let source = RefCell::new(source);
    let item = |name: &str, description: &str, content| Item {
        author: AUTHOR.to_owned(),
        name: name.to_owned(),
        description: description.to_owned(),
        content,
    };
    let mut items = Vec::new();
    items.extend(golden.map(|json| item(GOLDEN, "Vectors of known texts", Content::Bytes(json))));
    if let Some(parts) = parts {
        let json = serde_json::to_vec(parts)?;
        items.push(item(
            LANGUAGE,
            "How text becomes tokens",
            Content::Bytes(json),
        ));
        if let Words::Json { tokenizer, .. } = &parts.words {
            items.push(item(
                TOKENIZER,
                "Tokenizer",
                Content::Bytes(tokenizer.clone()),
            ));
        }
    }
    let write = move |folder: &Path| {
        let mut contract = Contract {
            files: hash_folder(folder)?,
            ..contract.clone()
        };
        if let Some(hashing) = source.take() {
            contract.source.files = hashing
                .join()
                .map_err(|_| io::Error::other("a file could not be hashed"))??;
        }
        let mut text = serde_json::to_vec_pretty(&contract).map_err(io::Error::other)?;
        text.push(b'\n');
        Ok(text)
    };
    items.push(item(
        CONTRACT,
        "What the package holds",
        Content::Made(Box::new(write)),
    ));
    Ok(items)
}

/// What a package carries beside its model, checked.
pub struct Contents {
    pub contract: Contract,
    /// None where the package was made of a checkpoint without a tokenizer.
    pub parts: Option<Parts>,
    /// Vectors of known texts, as JSON; none where there are none.
    pub golden: Option<Vec<u8>>,
}

/// Read and check what the package at `path`, whose program is `program`, carries; none where Thane
/// did not make it.
pub fn read(path: &Path, program: &Program) -> anyhow::Result<Option<Contents>> {
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
    let contract = read_contract(file).with_context(|| file.display().to_string())?;
    let found = hash_folder(path)?;
    if let Some(file) = differing(&found, &contract.files) {
        if let Ok(bytes) = package::read_small(&path.join(file), 1 << 10)
            && let Some(pointer) = package::lfs_pointer(&bytes)
        {
            bail!("{} {pointer}", path.join(file).display());
        }
        bail!(
            "{}: `{file}` is not what the contract says: the package was changed or damaged; convert again",
            path.display()
        );
    }
    let ports = ports(program)?;
    ensure!(
        ports == contract.functions,
        "{}: the functions are not what the contract says; convert again",
        path.display()
    );
    let parts = find(LANGUAGE)
        .map(|file| read_parts(file, find(TOKENIZER)))
        .transpose()?;
    let golden = find(GOLDEN).map(|file| language::read(file)).transpose()?;
    Ok(Some(Contents {
        contract,
        parts,
        golden,
    }))
}

/// A file that is in one list and not, or not the same, in the other.
pub fn differing<'a>(a: &'a [FileHash], b: &'a [FileHash]) -> Option<&'a str> {
    let only = |a: &'a [FileHash], b: &[FileHash]| {
        a.iter().find(|f| !b.contains(f)).map(|f| f.path.as_str())
    };
    only(a, b).or_else(|| only(b, a))
}

/// What the contract of a package says of its model, without a look at any other file; none where
/// Thane did not make it.
pub fn facts(path: &Path) -> anyhow::Result<Option<Facts>> {
    if !path.join("Manifest.json").is_file() {
        return Ok(None);
    }
    let items = package::items(path)?;
    let Some(item) = items
        .iter()
        .find(|i| i.author == AUTHOR && i.name == CONTRACT)
    else {
        return Ok(None);
    };
    Ok(Some(
        read_contract(&item.path)
            .with_context(|| item.path.display().to_string())?
            .model,
    ))
}

fn read_contract(file: &Path) -> anyhow::Result<Contract> {
    let bytes = language::read(file)?;
    let json: serde_json::Value = serde_json::from_slice(&bytes)?;
    let schema = json["schema"].as_u64().context("it has no `schema`")?;
    ensure!(
        schema == u64::from(SCHEMA),
        "its schema is {schema}, this version of Thane reads {SCHEMA}"
    );
    Ok(serde_json::from_value(json)?)
}

fn read_parts(file: &Path, tokenizer: Option<&PathBuf>) -> anyhow::Result<Parts> {
    let mut parts: Parts = serde_json::from_slice(&language::read(file)?)
        .with_context(|| file.display().to_string())?;
    if let Words::Json {
        tokenizer: bytes, ..
    } = &mut parts.words
    {
        let path = tokenizer
            .with_context(|| format!("{}: there is no {TOKENIZER} beside it", file.display()))?;
        *bytes = language::read(path)?;
    }
    Ok(parts)
}

/// Every file below a package's `Data` but the contract, by name.
fn hash_folder(folder: &Path) -> io::Result<Vec<FileHash>> {
    let contract = format!("{AUTHOR}/{CONTRACT}");
    let data = folder.join("Data");
    let files = walk(&data)?
        .into_iter()
        .filter(|(name, _)| *name != contract);
    files
        .map(|(name, _)| hash(&data.join(&name), format!("Data/{name}")))
        .collect()
}

/// Every file below a folder, by name.
pub fn hash_tree(folder: &Path) -> io::Result<Vec<FileHash>> {
    walk(folder)?
        .into_iter()
        .map(|(name, _)| hash(&folder.join(&name), name))
        .collect()
}

/// The files below a folder, by their names in it, in order.
pub fn walk(folder: &Path) -> io::Result<Vec<(String, Metadata)>> {
    let (mut files, mut folders) = (Vec::new(), vec![String::new()]);
    while let Some(below) = folders.pop() {
        for entry in std::fs::read_dir(folder.join(&below))? {
            let entry = entry?;
            let name = format!("{below}{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                folders.push(name + "/");
            } else {
                files.push((name, entry.metadata()?));
            }
        }
    }
    files.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(files)
}

/// The hash of a file, which is called `name`.
pub fn hash(path: &Path, name: String) -> io::Result<FileHash> {
    let mut file = File::open(path)?;
    let mut sha = Sha256::new();
    let mut piece = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let n = file.read(&mut piece)?;
        if n == 0 {
            break;
        }
        sha.update(&piece[..n]);
        bytes += n as u64;
    }
    let sha256 = sha.finalize().iter().map(|b| format!("{b:02x}")).collect();
    Ok(FileHash {
        path: name,
        bytes,
        sha256,
    })
}
