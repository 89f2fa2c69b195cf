//! Reads `modules.json` and the files of the modules: what becomes of a model's hidden states.

use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::super::config::{Config, ConfigError, shorten};
use super::super::error::CheckpointError;
use super::super::folder::HuggingFace;
use super::super::keys;
use super::super::{json, map};
use super::{MAX_BYTES, SentenceConfig, check_name, in_file, read_config, read_opt_config, wrong};
use crate::pooling::{Pooling, Poolings};

/// What a module does to a vector. The modules before the pooling do it to the vector of each
/// token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A dense layer.
    Dense(Dense),
    /// A layer norm over a vector of `size` elements, with the weights in a folder.
    LayerNorm {
        /// The folder. Tensor names begin with it: `3_LayerNorm.norm.weight`.
        folder: String,
        /// Number of elements.
        size: usize,
    },
    /// Brings the vector to length 1.
    Normalize,
}

/// A dense layer: `activation(weight * x + bias)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dense {
    /// The layer's folder. Tensor names begin with it: `2_Dense.linear.weight`.
    pub folder: String,
    /// Number of input elements.
    pub inputs: usize,
    /// Number of elements of the product.
    pub outputs: usize,
    /// Whether the layer adds a bias.
    pub bias: bool,
    /// What follows the product.
    pub activation: DenseActivation,
    /// Whether the layer adds its input to its result, by a product of its own where the sizes
    /// differ.
    pub residual: bool,
}

impl Dense {
    /// Number of elements of the result.
    pub fn size(&self) -> usize {
        match self.activation {
            DenseActivation::Glu => self.outputs / 2,
            DenseActivation::Prelu | DenseActivation::Named(_) => self.outputs,
        }
    }
}

/// What follows the product of a dense layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenseActivation {
    /// The class of torch.nn with this name and its defaults.
    Named(&'static str),
    /// `max(x, 0) + weight * min(x, 0)`, with a weight in the file.
    Prelu,
    /// `a * sigmoid(b)` of the halves a and b.
    Glu,
}

/// The tokens of whose logits a score is made: that of one token, less that of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScoreTokens {
    /// The token of a text that answers the query.
    pub wanted: usize,
    /// The token of a text that does not.
    pub unwanted: Option<usize>,
}

/// The classes of `torch.nn` (2.15) that can be made without arguments and give a vector for a
/// vector, with the module of torch that defines them. sentence-transformers writes the full name.
const ACTIVATIONS: &[(&str, &[&str])] = &[
    (
        "activation",
        &[
            "CELU",
            "ELU",
            "GELU",
            "GLU",
            "Hardshrink",
            "Hardsigmoid",
            "Hardswish",
            "Hardtanh",
            "LeakyReLU",
            "LogSigmoid",
            "LogSoftmax",
            "Mish",
            "PReLU",
            "RReLU",
            "ReLU",
            "ReLU6",
            "SELU",
            "SiLU",
            "Sigmoid",
            "Softmax",
            "Softmin",
            "Softplus",
            "Softshrink",
            "Softsign",
            "Tanh",
            "Tanhshrink",
        ],
    ),
    (
        "dropout",
        &["AlphaDropout", "Dropout", "FeatureAlphaDropout"],
    ),
    ("linear", &["Identity"]),
];

/// The keys that switch a pooling on, in the order in which sentence-transformers joins them.
/// Newer files have one key `pooling_mode` with a name or a list of names.
const SWITCHES: &[(&str, Pooling)] = &[
    ("pooling_mode_cls_token", Pooling::Cls),
    ("pooling_mode_max_tokens", Pooling::Max),
    ("pooling_mode_mean_tokens", Pooling::Mean),
    ("pooling_mode_mean_sqrt_len_tokens", Pooling::MeanSqrtLen),
    ("pooling_mode_weightedmean_tokens", Pooling::WeightedMean),
    ("pooling_mode_lasttoken", Pooling::LastToken),
];

/// What a module reads and writes, before and behind the pooling.
const TOKENS: &str = "token_embeddings";
const TEXT: &str = "sentence_embedding";

/// A row of `modules.json`.
struct Module {
    /// The folder of the module; empty for the model's own.
    path: String,
    /// The class, with the module of Python that defines it.
    class: String,
}

impl Module {
    /// The name of the class without the module that defines it.
    fn kind(&self) -> &str {
        self.class.rsplit('.').next().unwrap_or_default()
    }

    /// The path of a file of the module.
    fn file(&self, folder: &Path, list: &Path, name: &str) -> Result<PathBuf, CheckpointError> {
        let mut parts = Path::new(&self.path).components();
        let is_plain = parts.all(|part| matches!(part, Component::Normal(_)));
        if !is_plain || self.path.is_empty() {
            let expected = "a folder inside of the model's folder";
            return Err(wrong(list, "path", expected, &self.path));
        }
        Ok(folder.join(&self.path).join(name))
    }
}

/// Reads `modules.json` and the modules that it lists.
pub(super) fn read(
    sentence: &mut SentenceConfig,
    folder: &HuggingFace,
    list: &Path,
) -> Result<(), CheckpointError> {
    let modules = read_list(list)?;
    let kinds: Vec<&str> = modules.iter().map(Module::kind).collect();
    let expected = "one Transformer, one Pooling, and modules before and behind it";
    let order = || wrong(list, "type", expected, &kinds.join(", "));
    if kinds.first().is_some_and(|first| *first != "Transformer") {
        refuse_first(list, &modules[0])?;
        return Err(order());
    }
    for module in modules.iter().skip(1) {
        if matches!(module.kind(), "Transformer")
            || (module.kind() == "Pooling" && sentence.pooling.is_some())
        {
            return Err(order());
        }
        add(sentence, folder, list, module)?;
    }
    modules
        .first()
        .map_or(Ok(()), |first| check_transformer(list, first))
}

/// Refuses a transformer of the model's own class, or in another folder than the model's.
fn check_transformer(list: &Path, module: &Module) -> Result<(), CheckpointError> {
    check_class(list, module)?;
    if module.path.is_empty() {
        return Ok(());
    }
    let expected = "an empty path, because config.json is read from the model's folder: move the \
        files of that folder there";
    Err(wrong(list, "path", expected, &module.path))
}

/// Refuses a class that is not of sentence-transformers.
fn check_class(list: &Path, module: &Module) -> Result<(), CheckpointError> {
    if module.class.starts_with("sentence_transformers.") {
        return Ok(());
    }
    let expected = "a class of sentence_transformers, because no code of the model is run";
    Err(wrong(list, "type", expected, &module.class))
}

/// Reads the modules of a reranker: a transformer, and the tokens of whose logits a score is made,
/// if that is a language model.
pub(super) fn read_reranker(
    folder: &Path,
    list: &Path,
) -> Result<Option<ScoreTokens>, CheckpointError> {
    let modules = read_list(list)?;
    let kinds: Vec<&str> = modules.iter().map(Module::kind).collect();
    match kinds[..] {
        ["Transformer"] => check_transformer(list, &modules[0]).map(|()| None),
        ["Transformer", "LogitScore"] => {
            check_transformer(list, &modules[0])?;
            check_class(list, &modules[1])?;
            let path = modules[1].file(folder, list, "config.json")?;
            let score = |c: &Config| {
                check_name(c, "module_input_name", "causal_logits")?;
                Ok(ScoreTokens {
                    wanted: c.usize("true_token_id")?,
                    unwanted: c.opt_usize("false_token_id")?,
                })
            };
            read_config(&path, &keys::LOGIT_SCORE, score).map(Some)
        }
        _ => {
            let expected = "a Transformer, and a LogitScore if that is a language model, because \
                rerankers with other modules are not supported";
            Err(wrong(list, "type", expected, &kinds.join(", ")))
        }
    }
}

fn read_list(path: &Path) -> Result<Vec<Module>, CheckpointError> {
    let text = map::read_small(path, MAX_BYTES)?;
    let rows = json::parse_objects(&text);
    let rows = in_file(
        path,
        rows.map_err(|fault| ConfigError::Json {
            fault: fault.to_string(),
        }),
    )?;
    let mut names = std::collections::BTreeSet::new();
    let mut module = |row: Map<String, Value>| {
        let row = Config::of(keys::MODULES.file, row);
        let module = Module {
            path: row.opt_str("path")?.unwrap_or_default().to_owned(),
            class: row.str("type")?.to_owned(),
        };
        let name = row.value("name").map(Value::to_string);
        keys::MODULES.settle(&row)?;
        // A later module takes the place of an earlier one of the same name.
        if name.is_some_and(|name| !names.insert(name)) {
            let found = row.value("name").map(shorten).unwrap_or_default();
            let (key, expected) = ("name".to_owned(), "another name for each module");
            return Err(ConfigError::Value {
                file: keys::MODULES.file,
                key,
                expected,
                found,
            });
        }
        Ok(module)
    };
    in_file(path, rows.into_iter().map(&mut module).collect())
}

/// Refuses models that begin with another module than a transformer, by the name of the module.
fn refuse_first(list: &Path, module: &Module) -> Result<(), CheckpointError> {
    let remedy = match module.kind() {
        "StaticEmbedding" => "the mean of a table's rows is not supported: use a model with layers",
        "BoW" | "WordEmbeddings" => "vectors of words are not supported: use a transformer",
        "Router" | "Asym" => {
            "models with several ways are not supported: save the way that you need alone"
        }
        "CLIPModel" => "models of images are not supported",
        _ => return Ok(()),
    };
    Err(wrong(
        list,
        "type",
        &format!("a Transformer first; {remedy}"),
        &module.class,
    ))
}

/// Adds a module behind the transformer.
fn add(
    sentence: &mut SentenceConfig,
    folder: &HuggingFace,
    list: &Path,
    module: &Module,
) -> Result<(), CheckpointError> {
    let kind = module.kind();
    // The class of pplx-embed, which rounds the vector as our formats int8 and binary do.
    if module.class == "st_quantize.FlexibleQuantizer" {
        sentence.quantize = true;
        return Ok(());
    }
    check_class(list, module)?;
    let path = || module.file(&folder.folder, list, "config.json");
    let step = match kind {
        "Pooling" => return pool(sentence, &path()?),
        "Dropout" => return read_opt_config(&path()?, &keys::DROPOUT, |_| Ok(())),
        "WeightedLayerPooling" => return layers(folder, &path()?),
        "Dense" => dense(sentence, &path()?, &module.path)?,
        "LayerNorm" => layer_norm(sentence, &path()?, &module.path)?,
        "Normalize" => {
            let check = |c: &Config| check_features(c, sentence);
            read_opt_config(&path()?, &keys::NORMALIZE, check)?;
            Step::Normalize
        }
        _ => {
            let expected = "Transformer, Pooling, Dense, LayerNorm, Normalize, Dropout or \
                WeightedLayerPooling; models with other modules are not supported";
            return Err(wrong(list, "type", expected, &module.class));
        }
    };
    match sentence.pooling {
        None => sentence.token_steps.push(step),
        Some(_) => sentence.steps.push(step),
    }
    Ok(())
}

fn pool(sentence: &mut SentenceConfig, path: &Path) -> Result<(), CheckpointError> {
    let (modes, include_prompt) = read_config(path, &keys::POOLING, |c| {
        let modes = match c.value("pooling_mode") {
            Some(Value::Array(names)) => names.iter().map(named_mode).collect::<Result<_, _>>()?,
            Some(name) => vec![named_mode(name)?],
            None => switched_modes(c)?,
        };
        for (key, _) in SWITCHES {
            c.opt_bool(key)?;
        }
        Ok((modes, bool_unless_null(c, "include_prompt")?))
    })?;
    sentence.include_prompt = include_prompt;
    sentence.pooling = Some(Poolings::new(&modes).ok_or_else(|| {
        let found: Vec<&str> = modes.iter().map(|mode| mode.name()).collect();
        wrong(
            path,
            "pooling_mode",
            "at least one mode, and each once",
            &found.join(", "),
        )
    })?);
    Ok(())
}

/// A key that is true if it is absent, and, as in Python, false if it is null.
fn bool_unless_null(c: &Config, key: &str) -> Result<bool, ConfigError> {
    Ok(!c.is_null(key) && c.bool_or(key, true)?)
}

/// The mode of pooling that a name means.
fn named_mode(name: &Value) -> Result<Pooling, ConfigError> {
    let mode = name.as_str().and_then(Pooling::from_name);
    mode.ok_or_else(|| ConfigError::Value {
        file: keys::POOLING.file,
        key: "pooling_mode".to_owned(),
        expected: "cls, max, mean, mean_sqrt_len_tokens, weightedmean or lasttoken",
        found: shorten(name),
    })
}

/// The modes of pooling that keys switch on; the mean if none is.
fn switched_modes(c: &Config) -> Result<Vec<Pooling>, ConfigError> {
    let mut modes = Vec::new();
    for (key, mode) in SWITCHES {
        if c.bool_or(key, false)? {
            modes.push(*mode);
        }
    }
    if modes.is_empty() {
        modes.push(Pooling::Mean);
    }
    Ok(modes)
}

/// Checks that a module reads and writes the vectors that there are where it stands.
fn check_features(c: &Config, sentence: &SentenceConfig) -> Result<(), ConfigError> {
    let (here, expected) = match sentence.pooling {
        None => (
            TOKENS,
            "token_embeddings, because the module is before the pooling",
        ),
        Some(_) => (
            TEXT,
            "sentence_embedding, because the module is behind the pooling",
        ),
    };
    // No vector has the name null, which is not the default.
    let unnamed = match c.is_null("module_input_name") {
        true => "null",
        false => TEXT,
    };
    let input = c.opt_str("module_input_name")?.unwrap_or(unnamed);
    let output = c.opt_str("module_output_name")?.unwrap_or(input);
    for (key, found) in [("module_input_name", input), ("module_output_name", output)] {
        if found != here {
            let (key, found) = (key.to_owned(), format!("{found:?}"));
            return Err(ConfigError::Value {
                file: keys::DENSE.file,
                key,
                expected,
                found,
            });
        }
    }
    Ok(())
}

fn dense(sentence: &SentenceConfig, path: &Path, folder: &str) -> Result<Step, CheckpointError> {
    read_config(path, &keys::DENSE, |c| {
        check_features(c, sentence)?;
        let dense = Dense {
            folder: folder.to_owned(),
            inputs: c.usize("in_features")?,
            outputs: c.usize("out_features")?,
            bias: bool_unless_null(c, "bias")?,
            activation: activation(c)?,
            residual: c.bool_or("use_residual", false)?,
        };
        if dense.activation == DenseActivation::Glu && (dense.outputs % 2 == 1 || dense.residual) {
            return Err(ConfigError::Value {
                file: keys::DENSE.file,
                key: "activation_function".to_owned(),
                expected: "another activation, because GLU halves an even number of elements and \
                    has no residual",
                found: format!("GLU of {}", dense.outputs),
            });
        }
        Ok(Step::Dense(dense))
    })
}

/// What follows a dense layer; tanh if the file names nothing.
fn activation(c: &Config) -> Result<DenseActivation, ConfigError> {
    const KEY: &str = "activation_function";
    let class = if c.keys().any(|key| key == KEY) {
        c.str(KEY)?
    } else {
        "torch.nn.Tanh"
    };
    let (module, name) = class.rsplit_once('.').unwrap_or_default();
    let known = ACTIVATIONS.iter().find_map(|(file, names)| {
        let is_here = module == format!("torch.nn.modules.{file}");
        let is_short = ["torch.nn", "torch.nn.modules"].contains(&module);
        let name = names.iter().find(|known| **known == name)?;
        (is_here || is_short).then_some(*name)
    });
    match known {
        Some("PReLU") => Ok(DenseActivation::Prelu),
        Some("GLU") => Ok(DenseActivation::Glu),
        Some(name) => Ok(DenseActivation::Named(name)),
        None => Err(ConfigError::Value {
            file: keys::DENSE.file,
            key: KEY.to_owned(),
            expected: "an activation of torch.nn that needs no arguments, such as \
                torch.nn.modules.activation.Tanh, because no other code is run",
            found: format!("{class:?}"),
        }),
    }
}

fn layer_norm(
    sentence: &SentenceConfig,
    path: &Path,
    folder: &str,
) -> Result<Step, CheckpointError> {
    if sentence.pooling.is_none() {
        return Err(wrong(
            path,
            "dimension",
            "a Pooling before a LayerNorm",
            "none",
        ));
    }
    let size = read_config(path, &keys::LAYER_NORM, |c| c.usize("dimension"))?;
    let folder = folder.to_owned();
    Ok(Step::LayerNorm { folder, size })
}

/// A weighted mean of layers, which sentence-transformers leaves out unless the model gives the
/// hidden states of its layers.
fn layers(folder: &HuggingFace, path: &Path) -> Result<(), CheckpointError> {
    if in_file(path, folder.config.bool_or("output_hidden_states", false))? {
        let expected = "false in config.json: a weighted mean of layers is not supported";
        return Err(wrong(path, "output_hidden_states", expected, "true"));
    }
    read_opt_config(path, &keys::WEIGHTED_LAYERS, |_| Ok(()))
}
