//! Reads the files of sentence-transformers that describe an embedding model: how hidden states
//! become one vector, and which prompts precede a text.
//!
//! `modules.json` lists the modules in order: the transformer, a pooling, dense layers, a
//! normalization. Each module has a folder with a `config.json`.
//! `config_sentence_transformers.json` holds prompts and the similarity function,
//! `sentence_bert_config.json` the maximum length; since sentence-transformers 6,
//! `tokenizer_config.json` holds that length.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::CheckpointError;
use super::folder::parse_weights;
use super::{Tensors, map};
use crate::pooling::{Pooling, Poolings};

/// Largest accepted file; published ones are below 20 KB.
const MAX_BYTES: u64 = 1 << 20;
/// Largest accepted `tokenizer_config.json`; Gemma's has 1.2 MB.
const MAX_TOKENIZER_BYTES: u64 = 16 << 20;

/// The settings that the files of sentence-transformers describe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SentenceConfig {
    /// How token vectors are pooled into one vector.
    pub pooling: Option<Poolings>,
    /// Whether pooling includes the tokens of the prompt.
    pub include_prompt: bool,
    /// Dense layers after the pooling, in order.
    pub dense: Vec<Dense>,
    /// Whether the vector is normalized to length 1 at the end.
    pub normalize: bool,
    /// Whether a module of the model quantizes the vector to int8 or to bits.
    pub quantize: bool,
    /// Maximum number of tokens of a text.
    pub max_tokens: Option<usize>,
    /// Whether text is lowercased before tokenization.
    pub lower_case: bool,
    /// Prompts by task name; a prompt precedes the text.
    pub prompts: BTreeMap<String, String>,
    /// Name of the prompt that is used by default.
    pub default_prompt: Option<String>,
    /// The similarity function, such as `cosine`.
    pub similarity: Option<String>,
}

/// A dense layer after the pooling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dense {
    /// The layer's folder. Tensor names begin with it: `2_Dense.linear.weight`.
    pub folder: String,
    /// Number of input elements.
    pub inputs: usize,
    /// Number of output elements.
    pub outputs: usize,
    /// Whether the layer adds a bias.
    pub bias: bool,
    /// Whether a hyperbolic tangent follows the layer.
    pub tanh: bool,
}

#[derive(Deserialize)]
struct Module {
    #[serde(default)]
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

impl Module {
    /// The name of the module's class.
    fn kind(&self) -> &str {
        self.kind.rsplit('.').next().unwrap_or_default()
    }
}

/// Places in the order of modules. Those from dense layers on may be there several times.
const TRANSFORMER: u8 = 1;
const DENSE: u8 = 3;

#[derive(Deserialize)]
struct DenseConfig {
    in_features: usize,
    out_features: usize,
    #[serde(default = "yes")]
    bias: bool,
    activation_function: Option<String>,
}

fn yes() -> bool {
    true
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Prompts {
    prompts: BTreeMap<String, String>,
    default_prompt_name: Option<String>,
    similarity_fn_name: Option<String>,
    activation_fn: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenizerLength {
    /// Files of tokenizers without a limit have 1e30.
    model_max_length: Option<f64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Lengths {
    max_seq_length: Option<usize>,
    do_lower_case: bool,
}

/// The boolean keys that select a pooling, in the order in which sentence-transformers joins them.
/// Newer files have one key `pooling_mode` with a name or a list of names.
const SWITCHES: &[(&str, Pooling)] = &[
    ("pooling_mode_cls_token", Pooling::Cls),
    ("pooling_mode_max_tokens", Pooling::Max),
    ("pooling_mode_mean_tokens", Pooling::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", Pooling::MeanSqrtLen),
    ("pooling_mode_weightedmean_tokens", Pooling::WeightedMean),
    ("pooling_mode_lasttoken", Pooling::LastToken),
];

impl SentenceConfig {
    /// Reads the files of a folder; `None` if the folder has no `modules.json`.
    ///
    /// # Errors
    ///
    /// If a file is not valid or describes a module that is not supported.
    pub fn read(folder: &Path) -> Result<Option<Self>, CheckpointError> {
        let path = folder.join("modules.json");
        if !path.is_file() {
            return Ok(None);
        }
        let modules: Vec<Module> = parse(&path)?;
        let prompts: Prompts = parse_opt(&folder.join("config_sentence_transformers.json"))?;
        let mut sentence = Self {
            prompts: prompts.prompts,
            default_prompt: prompts.default_prompt_name,
            similarity: prompts.similarity_fn_name,
            include_prompt: true,
            ..Self::read_lengths(folder)?
        };
        let steps = modules
            .iter()
            .map(|module| sentence.add(folder, &path, module))
            .collect::<Result<Vec<u8>, _>>()?;
        // Each module takes the result of the one before it.
        let in_order = steps
            .windows(2)
            .all(|pair| pair[0] < pair[1] || (pair[0] == pair[1] && pair[0] >= DENSE));
        if !in_order || steps.first().is_some_and(|first| *first != TRANSFORMER) {
            let kinds: Vec<&str> = modules.iter().map(Module::kind).collect();
            let expected =
                "one Transformer, one Pooling, Dense layers and Normalize, in this order";
            return Err(fault(&path, "type", expected, &kinds.join(", ")));
        }
        Ok(Some(sentence))
    }

    /// Reads only the maximum length and the case of texts, which rerankers have too.
    pub(crate) fn read_lengths(folder: &Path) -> Result<Self, CheckpointError> {
        let lengths: Lengths = parse_opt(&folder.join("sentence_bert_config.json"))?;
        Ok(Self {
            max_tokens: match lengths.max_seq_length {
                Some(n) => Some(n),
                None => tokenizer_length(folder)?,
            },
            lower_case: lengths.do_lower_case,
            ..Self::default()
        })
    }

    /// The activation of a reranker's scores, if `config_sentence_transformers.json` names it.
    pub(crate) fn read_activation(folder: &Path) -> Result<Option<String>, CheckpointError> {
        let prompts: Prompts = parse_opt(&folder.join("config_sentence_transformers.json"))?;
        Ok(prompts.activation_fn)
    }

    /// Adds a module, and returns its place in the order of modules.
    fn add(&mut self, folder: &Path, list: &Path, module: &Module) -> Result<u8, CheckpointError> {
        let module_file = |name: &str| -> Result<PathBuf, CheckpointError> {
            let plain = Path::new(&module.path)
                .components()
                .all(|c| matches!(c, Component::Normal(_)));
            if !plain || module.path.is_empty() {
                return Err(fault(
                    list,
                    "path",
                    "a folder inside of the model's folder",
                    &module.path,
                ));
            }
            Ok(folder.join(&module.path).join(name))
        };
        Ok(match module.kind() {
            "Transformer" if module.path.is_empty() => TRANSFORMER,
            "Transformer" => {
                let expected = "an empty path, because config.json is read from the model's folder";
                return Err(fault(list, "path", expected, &module.path));
            }
            "Pooling" => {
                self.pool(&module_file("config.json")?)?;
                TRANSFORMER + 1
            }
            "Dense" => {
                let path = module_file("config.json")?;
                self.dense.push(dense(&path, parse(&path)?, &module.path)?);
                DENSE
            }
            "Normalize" => {
                self.normalize = true;
                DENSE + 1
            }
            kind if kind.to_ascii_lowercase().contains("quantiz") => {
                self.quantize = true;
                DENSE + 2
            }
            _ => {
                return Err(fault(
                    list,
                    "type",
                    "Transformer, Pooling, Dense or Normalize",
                    &module.kind,
                ));
            }
        })
    }

    fn pool(&mut self, path: &Path) -> Result<(), CheckpointError> {
        let config: Map<String, Value> = parse(path)?;
        let modes = match config.get("pooling_mode") {
            // Newer files name one mode or several modes.
            Some(Value::Array(names)) => names
                .iter()
                .map(|name| named_mode(path, name))
                .collect::<Result<_, _>>()?,
            Some(name) => vec![named_mode(path, name)?],
            None => switched_modes(path, &config)?,
        };
        let poolings = Poolings::new(&modes).ok_or_else(|| {
            let found: Vec<&str> = modes.iter().map(|mode| mode.name()).collect();
            let expected = "at least one mode, and each once";
            fault(path, "pooling_mode", expected, &found.join(", "))
        })?;
        self.pooling = Some(poolings);
        self.include_prompt = flag(path, &config, "include_prompt")?.unwrap_or(true);
        Ok(())
    }

    /// The tensors of the dense layers, by names that begin with the layer's folder.
    pub fn tensors(&self, folder: &Path) -> Result<Tensors, CheckpointError> {
        let mut all = Tensors::new();
        for dense in &self.dense {
            let path = folder.join(&dense.folder).join("model.safetensors");
            let tensors = parse_weights(&path, &map::map(&path)?)?;
            all.extend(tensors.into_iter().map(|(name, mut tensor)| {
                let name = format!("{}.{name}", dense.folder);
                tensor.name.clone_from(&name);
                (name, tensor)
            }));
        }
        Ok(all)
    }
}

/// The mode of pooling that a name means.
fn named_mode(path: &Path, name: &Value) -> Result<Pooling, CheckpointError> {
    let mode = name.as_str().and_then(Pooling::from_name);
    mode.ok_or_else(|| {
        let known = Pooling::ALL.map(Pooling::name).join(", ");
        let expected = format!("one of {known}");
        fault(path, "pooling_mode", &expected, &name.to_string())
    })
}

/// The modes of pooling that boolean keys switch on.
fn switched_modes(
    path: &Path,
    config: &Map<String, Value>,
) -> Result<Vec<Pooling>, CheckpointError> {
    for key in config.keys().filter(|key| key.starts_with("pooling_mode_")) {
        let is_known = SWITCHES.iter().any(|(known, _)| known == key);
        if flag(path, config, key)? == Some(true) && !is_known {
            let expected = "false, because the mode is not known";
            return Err(fault(path, key, expected, "true"));
        }
    }
    let is_on = |key: &str| config.get(key) == Some(&Value::Bool(true));
    let on = SWITCHES.iter().filter(|(key, _)| is_on(key));
    Ok(on.map(|(_, mode)| *mode).collect())
}

/// The value of a key that is true, false or absent; null is absent.
fn flag(
    path: &Path,
    config: &Map<String, Value>,
    key: &str,
) -> Result<Option<bool>, CheckpointError> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(on)) => Ok(Some(*on)),
        Some(other) => Err(fault(path, key, "true or false", &other.to_string())),
    }
}

fn dense(path: &Path, config: DenseConfig, folder: &str) -> Result<Dense, CheckpointError> {
    // sentence-transformers takes tanh where the file names no activation.
    let activation = config.activation_function.unwrap_or_else(|| "Tanh".into());
    let tanh = match activation.rsplit('.').next().unwrap_or_default() {
        "Identity" => false,
        "Tanh" => true,
        _ => {
            return Err(fault(
                path,
                "activation_function",
                "Identity or Tanh",
                &activation,
            ));
        }
    };
    let DenseConfig {
        in_features: inputs,
        out_features: outputs,
        bias,
        ..
    } = config;
    Ok(Dense {
        folder: folder.to_owned(),
        inputs,
        outputs,
        bias,
        tanh,
    })
}

/// The maximum length in `tokenizer_config.json`.
fn tokenizer_length(folder: &Path) -> Result<Option<usize>, CheckpointError> {
    let path = folder.join("tokenizer_config.json");
    if !path.is_file() {
        return Ok(None);
    }
    let length: TokenizerLength = parse_within(&path, MAX_TOKENIZER_BYTES)?;
    let plausible = length.model_max_length.filter(|n| *n >= 1.0 && *n < 1e9);
    Ok(plausible.map(|n| n as usize))
}

fn parse_opt<T: DeserializeOwned + Default>(path: &Path) -> Result<T, CheckpointError> {
    if path.is_file() {
        parse(path)
    } else {
        Ok(T::default())
    }
}

fn parse<T: DeserializeOwned>(path: &Path) -> Result<T, CheckpointError> {
    parse_within(path, MAX_BYTES)
}

fn parse_within<T: DeserializeOwned>(path: &Path, most: u64) -> Result<T, CheckpointError> {
    let text = map::read_small(path, most)?;
    serde_json::from_slice(&text).map_err(|e| {
        let reason = format!("is not what was expected ({e}): fetch it again");
        CheckpointError::Unusable {
            path: path.to_owned(),
            reason,
        }
    })
}

fn fault(path: &Path, key: &str, expected: &str, found: &str) -> CheckpointError {
    let reason = format!("{key}: expected {expected}, found {found:?}");
    CheckpointError::Unusable {
        path: path.to_owned(),
        reason,
    }
}
