//! Reads a Hugging Face folder: `config.json`, safetensors in one file or in shards with an index,
//! and the paths of the tokenizer files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use thane_mil::data::Bytes;

use super::config::{Config, ConfigError};
use super::error::{CheckpointError, IndexFault};
use super::json::UniqueMap;
use super::{Checkpoint, Source, Tensors, map, quantized, safetensors};

/// Largest accepted `config.json` or `generation_config.json`; published ones are below 100 KB.
const MAX_CONFIG_BYTES: u64 = 4 << 20;
/// Largest accepted index of shards; published ones are below 10 MB.
const MAX_INDEX_BYTES: u64 = 100 << 20;

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The files of a Hugging Face folder beside the weights. Tokenizer files are located but not
/// parsed.
#[derive(Debug)]
pub struct HuggingFace {
    /// The folder.
    pub folder: PathBuf,
    /// The parsed `config.json`.
    pub config: Config,
    /// `generation_config.json`, if the folder has one.
    pub generation_config: Option<Config>,
    /// Path of `tokenizer.json`, if the folder has one.
    pub tokenizer_json: Option<PathBuf>,
    /// Path of `tokenizer_config.json`, if the folder has one.
    pub tokenizer_config: Option<PathBuf>,
    /// Path of `tokenizer.model` (SentencePiece), if the folder has one.
    pub tokenizer_model: Option<PathBuf>,
    /// Path of `tokenizer.bin` of llama2.c, if the folder has one and the checkpoint is of that
    /// kind.
    pub tokenizer_bin: Option<PathBuf>,
    /// Path of `chat_template.jinja`, if the folder has one.
    pub chat_template: Option<PathBuf>,
}

impl HuggingFace {
    /// The token ids that end a sequence: `eos_token_id` of `generation_config.json`, or of
    /// `config.json` if there is no such file, as in transformers; empty if the key is absent. In
    /// a model with a text part, `config.json` may have the key there instead.
    pub fn eos_token_ids(&self) -> Result<Vec<u32>, ConfigError> {
        let key = "eos_token_id";
        let text = self.config.opt_object("text_config")?;
        let whole_ids = self.config.token_ids(key)?;
        let text_ids = text.map(|text| text.token_ids(key)).transpose()?;
        match &self.generation_config {
            Some(generation) => generation.token_ids(key),
            None if self.config.has(key) => Ok(whole_ids),
            None => Ok(text_ids.unwrap_or_default()),
        }
    }
}

impl HuggingFace {
    /// The checkpoint, with matrices under their usual names in place of quantized tensors.
    fn into_checkpoint(
        self,
        path: &Path,
        mut tensors: Tensors,
    ) -> Result<Checkpoint, CheckpointError> {
        let notes = quantized::apply(&self.config, &mut tensors).map_err(|fault| {
            CheckpointError::Quantization {
                path: self.folder.clone(),
                fault: Box::new(fault),
            }
        })?;
        Ok(Checkpoint {
            path: path.to_owned(),
            source: Source::HuggingFace(self),
            tensors,
            notes,
        })
    }
}

/// Opens a folder. Like transformers, prefers `model.safetensors` to an index if the folder has
/// both.
pub(super) fn open_folder(folder: &Path) -> Result<Checkpoint, CheckpointError> {
    refuse_adapter(folder)?;
    if !folder.join("config.json").exists() {
        return Err(unusable(folder, no_config(folder)));
    }
    let hugging_face = read_folder(folder)?;
    let (weights, index) = (folder.join(WEIGHTS), folder.join(INDEX));
    let tensors = if weights.exists() {
        parse_weights(&weights, &map::map(&weights)?)?
    } else if index.exists() {
        read_shards(folder, &index)?
    } else {
        return Err(unusable(folder, no_weights(folder)));
    };
    hugging_face.into_checkpoint(folder, tensors)
}

/// Opens one safetensors file that has a `config.json` beside it.
pub(super) fn open_file(path: &Path, bytes: Bytes) -> Result<Checkpoint, CheckpointError> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    refuse_adapter(folder)?;
    let tensors = parse_weights(path, &bytes)?;
    if path
        .file_stem()
        .and_then(|stem| stem.to_str())
        .is_some_and(is_shard_name)
    {
        return Err(unusable(
            path,
            "expected a whole checkpoint, found one shard of several: give the folder that holds \
             all shards"
                .into(),
        ));
    }
    if !folder.join("config.json").exists() {
        return Err(unusable(
            path,
            "has no config.json beside it: fetch the model's config.json into its folder".into(),
        ));
    }
    read_folder(folder)?.into_checkpoint(path, tensors)
}

/// Refuses a folder with an adapter, which transformers adds to the model.
fn refuse_adapter(folder: &Path) -> Result<(), CheckpointError> {
    let path = folder.join("adapter_config.json");
    if !path.is_file() {
        return Ok(());
    }
    let reason = "expected a model without an adapter, because adapters are not supported: merge \
                  the adapter into the model's weights (`merge_and_unload` of peft), and give the \
                  folder that this model is saved to";
    Err(unusable(&path, reason.to_owned()))
}

/// Whether a file stem ends like `-00001-of-00002`.
fn is_shard_name(stem: &str) -> bool {
    let is_number = |part: Option<&str>| {
        part.is_some_and(|part| part.len() == 5 && part.bytes().all(|b| b.is_ascii_digit()))
    };
    let mut parts = stem.rsplit('-');
    is_number(parts.next()) && parts.next() == Some("of") && is_number(parts.next())
}

fn unusable(path: &Path, reason: String) -> CheckpointError {
    CheckpointError::Unusable {
        path: path.to_owned(),
        reason,
    }
}

fn no_config(folder: &Path) -> String {
    match find(folder, |name| name.ends_with(".gguf")) {
        Some(gguf) => {
            format!("the folder has no config.json but holds {gguf}: give the path of that file")
        }
        None => match find(folder, |name| name.ends_with(".onnx")) {
            Some(onnx) => format!(
                "the folder has no config.json but holds {onnx}, and ONNX is not supported: give a \
                 Hugging Face folder with safetensors, or a GGUF file"
            ),
            None => {
                "the folder has no config.json: give a Hugging Face folder or a GGUF file".into()
            }
        },
    }
}

fn no_weights(folder: &Path) -> String {
    let expected = format!("the folder has neither {WEIGHTS} nor {INDEX}");
    if let Some(torch) = find(folder, |name| {
        name.ends_with(".bin") || name.ends_with(".pth")
    }) {
        return format!(
            "{expected} but holds {torch}, which is not supported: convert the model to safetensors"
        );
    }
    if let Some(onnx) = find(folder, |name| name == "onnx" || name.ends_with(".onnx")) {
        return format!(
            "{expected} but holds {onnx}, and ONNX is not supported: fetch the safetensors, or \
             give a GGUF file"
        );
    }
    if let Some(other) = find(folder, |name| name.ends_with(".safetensors")) {
        return format!(
            "{expected} but holds {other}: give the path of that file, or fetch the index too"
        );
    }
    format!("{expected}: fetch the weights")
}

/// The alphabetically first file name in the folder that `wanted` accepts.
fn find(folder: &Path, wanted: impl Fn(&str) -> bool) -> Option<String> {
    let names = fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| wanted(name)).min()
}

fn read_folder(folder: &Path) -> Result<HuggingFace, CheckpointError> {
    let beside = |name: &str| Some(folder.join(name)).filter(|path| path.is_file());
    let config = read_config("config.json", folder.join("config.json"))?;
    let generation_config = beside("generation_config.json")
        .map(|path| read_config("generation_config.json", path))
        .transpose()?;
    Ok(HuggingFace {
        folder: folder.to_owned(),
        config,
        generation_config,
        tokenizer_json: beside("tokenizer.json"),
        tokenizer_config: beside("tokenizer_config.json"),
        tokenizer_model: beside("tokenizer.model"),
        tokenizer_bin: None,
        chat_template: beside("chat_template.jinja"),
    })
}

fn read_config(file: &'static str, path: PathBuf) -> Result<Config, CheckpointError> {
    let text = map::read_small(&path, MAX_CONFIG_BYTES)?;
    Config::parse_file(file, &text).map_err(|fault| CheckpointError::Config { path, fault })
}

fn json_fault(path: &Path, fault: &serde_json::Error) -> CheckpointError {
    CheckpointError::Config {
        path: path.to_owned(),
        fault: ConfigError::Json {
            fault: fault.to_string(),
        },
    }
}

/// Parses the safetensors file at `path`, whose contents are `bytes`.
pub(super) fn parse_weights(path: &Path, bytes: &Bytes) -> Result<Tensors, CheckpointError> {
    let parsed = safetensors::parse(bytes).map_err(|fault| CheckpointError::Safetensors {
        path: path.to_owned(),
        fault: Box::new(fault),
    })?;
    Ok(parsed.tensors)
}

/// The index of shards. Its `metadata` (a total size) is ignored because the shards say the same.
#[derive(Deserialize)]
struct Index {
    weight_map: UniqueMap<String>,
}

/// Most shards of a checkpoint, each of which is opened. The largest known ones have less than 200.
const MAX_SHARDS: usize = 1000;

fn read_shards(folder: &Path, index_path: &Path) -> Result<Tensors, CheckpointError> {
    let text = map::read_small(index_path, MAX_INDEX_BYTES)?;
    let index: Index =
        serde_json::from_slice(&text).map_err(|fault| json_fault(index_path, &fault))?;
    let listed = index.weight_map.0;
    let mut faults = Vec::new();
    let mut shards = BTreeMap::new();
    let names: BTreeSet<&String> = listed.values().collect();
    if names.len() > MAX_SHARDS {
        let found = names.len();
        let reason = format!("expected an index of at most {MAX_SHARDS} shards, found {found}");
        return Err(unusable(index_path, reason));
    }
    for shard in names {
        let path = folder.join(shard);
        if !stays_within(shard) {
            faults.push(IndexFault::Escapes {
                shard: shard.clone(),
            });
        } else if !path.is_file() {
            faults.push(IndexFault::MissingShard {
                shard: shard.clone(),
            });
        } else {
            shards.insert(shard.as_str(), parse_weights(&path, &map::map(&path)?)?);
        }
    }
    faults.extend(compare(&listed, &shards));
    if faults.is_empty() {
        return Ok(shards.into_values().flatten().collect());
    }
    Err(CheckpointError::Index {
        path: index_path.to_owned(),
        faults,
    })
}

/// Whether joining `shard` to a folder gives a path inside of that folder. Symbolic links are
/// followed, because the cache of the Hugging Face hub consists of them.
fn stays_within(shard: &str) -> bool {
    let mut components = Path::new(shard).components();
    !shard.is_empty() && components.all(|component| matches!(component, Component::Normal(_)))
}

/// Compares the tensors that the index lists with the tensors that the opened shards hold.
fn compare(listed: &BTreeMap<String, String>, shards: &BTreeMap<&str, Tensors>) -> Vec<IndexFault> {
    let mut faults = Vec::new();
    for (tensor, shard) in listed {
        if shards
            .get(shard.as_str())
            .is_some_and(|tensors| !tensors.contains_key(tensor))
        {
            faults.push(IndexFault::MissingTensor {
                tensor: tensor.clone(),
                shard: shard.clone(),
            });
        }
    }
    let mut homes = BTreeMap::<&str, &str>::new();
    for (shard, tensors) in shards {
        for tensor in tensors.keys() {
            if let Some(first) = homes.insert(tensor, shard) {
                let (tensor, first) = (tensor.clone(), first.to_owned());
                faults.push(IndexFault::Repeated {
                    tensor,
                    first,
                    second: (*shard).to_owned(),
                });
            } else if !listed.contains_key(tensor) {
                faults.push(IndexFault::Unlisted {
                    tensor: tensor.clone(),
                    shard: (*shard).to_owned(),
                });
            }
        }
    }
    faults
}
