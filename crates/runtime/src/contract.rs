//! The contract of a package: what the model is, where it comes from, what its functions take and
//! give, and the hash of every file.
//!
//! The types here are the JSON of `contract.json`; `package_contents` writes and reads the file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thane_calls::names::CONTRACT_SCHEMAS;
use thane_calls::{Calls, Head, HostHead};
use thane_mil::program::{Function, Program, ValueId};
use thane_mil::types::Type;
use thane_models::{EncoderInfo, Encoding, Info, NormForm, Poolings};

use crate::error::ContractError;
use crate::files::FileHash;
use crate::recommended::Recommended;
use crate::recorded::Quality;

pub use thane_calls::names::AUTHOR;

/// The version of the contract that is written.
pub const SCHEMA: u32 = *CONTRACT_SCHEMAS.end();

/// The program that writes packages, as contracts name it.
pub const GENERATOR: &str = concat!("thane ", env!("CARGO_PKG_VERSION"));

/// The content of `contract.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contract {
    /// One of [`CONTRACT_SCHEMAS`].
    pub schema: u32,
    /// The program that wrote the package, such as `thane 0.1.0`.
    pub generator: String,
    /// What the model is.
    pub model: Facts,
    /// Where the model comes from.
    pub source: Source,
    /// Inputs, states and outputs of each function.
    pub functions: BTreeMap<String, Ports>,
    /// Tables that the caller looks up in the weight file, or whose numbers it multiplies, by the
    /// input that they are for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tables: BTreeMap<String, TableFacts>,
    /// Every file of the package except `contract.json` and `Manifest.json`.
    pub files: Vec<FileHash>,
    /// How far the package is from a reference; absent if nobody measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
}

impl Contract {
    /// The tables whose numbers the caller multiplies.
    pub fn multiplied_tables(&self) -> Vec<&str> {
        match &self.model {
            Facts::Generate(Generates {
                fixed: Some(fixed), ..
            }) => multiplied(&fixed.head),
            _ => Vec::new(),
        }
    }

    /// Whether the package has a part of the functions of a model only: what they take or give is
    /// that of other packages.
    pub fn is_a_chunk(&self) -> bool {
        let Facts::Generate(Generates {
            fixed: Some(fixed), ..
        }) = &self.model
        else {
            return false;
        };
        let has = |ports: &[Port], role: &str| ports.iter().any(|port| port.role == role);
        let functions = fixed.calls.iter().flat_map(|call| &call.functions);
        let mut ports = functions.filter_map(|name| self.functions.get(name));
        let given = fixed.head.role();
        ports.any(|p| has(&p.inputs, "hidden_states") || !has(&p.outputs, given))
    }

    /// The first number of the model that a cache or logits contradict, in words.
    pub fn contradiction(&self) -> Option<String> {
        let Facts::Generate(facts) = &self.model else {
            return None;
        };
        let ports = |ports: &Ports| [&ports.states[..], &ports.inputs, &ports.outputs].concat();
        let calls = facts.fixed.iter().flat_map(|fixed| &fixed.calls);
        if let Some(longest) = calls.clone().map(|call| call.context).max()
            && longest != facts.context
        {
            return Some(format!(
                "expected a context of {longest}, that of the longest call, found {}",
                facts.context
            ));
        }
        self.functions.iter().find_map(|(function, all)| {
            let mut calls = calls.clone();
            let call = calls.find(|call| call.functions.contains(function));
            let context = call.map_or(facts.context, |call| call.context);
            let is_alone = !self.is_a_chunk();
            ports(all).into_iter().find_map(|port| {
                // Caches are [.., context, head_dim].
                let (what, stated, axis) = match port.role.as_str() {
                    "key_cache" | "value_cache" | "key_value_cache" => ("context", context, 2),
                    // Several functions may give a part each.
                    "logits" if is_alone && port.name == "logits" => ("vocabulary", facts.vocabulary, 1),
                    _ => return None,
                };
                let found = *port.shape.get(port.shape.len().checked_sub(axis)?)?;
                let found = found.filter(|found| *found != stated)?;
                // Sliding-window layers may keep fewer tokens.
                let has_ring = facts.fixed.as_ref().is_some_and(|f| f.window.is_some());
                if what == "context" && has_ring && found < stated {
                    return None;
                }
                let name = &port.name;
                Some(format!(
                    "expected a {what} of {found}, which `{name}` of `{function}` has, found {stated}"
                ))
            })
        })
    }
}

/// What the model is, by its task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "there is one for each package")]
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
    /// Architecture, as the checkpoint calls it.
    pub architecture: String,
    /// Number of layers.
    pub layers: usize,
    /// Rows of the embedding table.
    pub vocabulary: usize,
    /// Positions that the model was made for.
    pub max_context: usize,
    /// Tokens that the KV cache holds.
    pub context: usize,
    /// Bytes of the full KV cache.
    pub cache_bytes: usize,
    /// Whether states hold all tokens so far together: then a call continues the last one or
    /// begins at position 0.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recurrent: bool,
    /// How answers are generated, as the checkpoint's files say; null if they say nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Recommended>,
    /// How functions of fixed length are called; null if functions take any number of tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<Calls>,
}

/// What an embedding model is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Embeds {
    /// Architecture, as the checkpoint calls it.
    pub architecture: String,
    /// Number of layers.
    pub layers: usize,
    /// Rows of the embedding table.
    pub vocabulary: usize,
    /// Positions that the model has.
    pub positions: usize,
    /// Elements of a vector.
    pub dimensions: usize,
    /// How many of them are kept unless the caller says otherwise; absent for all. What is kept is
    /// not normalized again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncate_dim: Option<usize>,
    /// Most tokens of a text that the model was made for.
    pub max_tokens: usize,
    /// Lengths that have a function of their own, ascending.
    pub buckets: Vec<usize>,
    /// Whether there is a function of any length.
    pub flexible: bool,
    /// `text`, `chunks` or `tokens`: what a call gives vectors of.
    pub encoding: String,
    /// Names of sentence-transformers, joined by `+`: `mean`, `weightedmean+max`.
    pub pooling: String,
    /// Whether vectors are normalized to length 1.
    pub normalize: bool,
    /// Whether the model was trained for int8 and binary vectors.
    pub quantize: bool,
    /// Texts to put before a text, by the name of the task.
    pub prompts: BTreeMap<String, String>,
    /// Name of the prompt that is used by default.
    pub default_prompt: Option<String>,
    /// Whether the tokens of a prompt count in the pooling. Otherwise `pooling_mask` tells which
    /// tokens do.
    pub include_prompt: bool,
    /// How vectors are compared, such as `cosine`.
    pub similarity: Option<String>,
    /// Whether text is converted to lower case before tokenization.
    pub lower_case: bool,
    /// Divisor of the residual stream, if one was chosen.
    pub residual_divisor: Option<f32>,
    /// Form of root mean square norms: `scaled`, `native` or `cat`.
    pub norm: String,
    /// The id of the padding token, if functions take `position_embedding`: a padding token has its
    /// id as its position, and the others are counted from the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding_token: Option<u32>,
}

/// Where the model comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The name that was given; of a path its last part.
    pub model: String,
    /// The weight files, which identify the revision. Paths are file names.
    pub files: Vec<FileHash>,
}

/// Inputs, states and outputs of a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ports {
    /// Inputs, states excluded.
    pub inputs: Vec<Port>,
    /// States, such as KV caches.
    pub states: Vec<Port>,
    /// Outputs.
    pub outputs: Vec<Port>,
}

/// An input, state or output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Name in the program.
    pub name: String,
    /// Element type, such as `fp16`.
    pub dtype: String,
    /// Dimensions; null for one that may differ from call to call.
    pub shape: Vec<Option<usize>>,
    /// What the value is for: `tokens`, `position`, `key_cache`, `value_cache`, `logits`,
    /// `convolution_cache`, `recurrent_state`, `top_logits`, `top_tokens`; `mask`, `pooling_mask`,
    /// `sliding_mask`,
    /// `cache_slot`, `selection`, `key_value_cache`, `hidden_states`, `final_hidden_states`,
    /// `per_layer_vectors`,
    /// `token_row`, `position_row`, `new_keys`, `new_values`, `given_keys`, `given_values`;
    /// `streaming_mask`, `streaming_key_cache`, `streaming_value_cache`;
    /// `new_convolution_cache`, `new_recurrent_state`; `pool_matrix`, `embedding`.
    pub role: String,
}

/// What a caller needs to know of a table besides its file, if it has one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableFacts {
    /// By what the numbers of a row are multiplied, in f32, before they are rounded to the type of
    /// the input.
    pub factor: f32,
    /// The rows in files of the package; none if the table is a NumPy file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<StoredRows>,
}

/// Rows of a table that follow each other in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredRows {
    /// Number of the first row.
    pub first: usize,
    /// Number of rows.
    pub count: usize,
    /// Elements of a row.
    pub columns: usize,
    /// Type of the numbers, of codes that of tables and scales: `fp16` or `fp32`.
    pub dtype: String,
    /// The byte of the file where the first row begins, or its codes.
    pub offset: u64,
    /// The file, relative to the package; absent for the weight file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// How numbers come from codes; absent if the file has the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<RowEncoding>,
}

/// How the numbers of rows come from codes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowEncoding {
    /// Type of the codes, which are packed from the lowest bit on: `uint1` to `uint8` with a table,
    /// otherwise `int4` or `int8`.
    pub codes: String,
    /// The tables that codes are entries of; absent if codes are the numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<RowTable>,
    /// By what the numbers are multiplied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<RowScale>,
}

/// Tables that codes are entries of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowTable {
    /// Where the numbers are, [tables, entries, width].
    pub numbers: StoredNumbers,
    /// Entries of a table.
    pub entries: usize,
    /// Numbers of an entry, of rows that follow each other.
    pub width: usize,
    /// Rows that share a table.
    pub rows: usize,
}

/// Scales of rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowScale {
    /// Where the numbers are, [count / rows, columns of a row / columns].
    pub numbers: StoredNumbers,
    /// Rows that share a scale.
    pub rows: usize,
    /// Numbers of a row that share a scale.
    pub columns: usize,
    /// Whether the product stays as it is in f32. Otherwise it is rounded to `dtype`.
    pub behind: bool,
}

/// Numbers in the file, or a few that it does not have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoredNumbers {
    /// The byte of the file where they begin.
    Offset(u64),
    /// They themselves.
    Values(Vec<f32>),
}

/// The tables whose numbers the caller multiplies for logits.
pub fn multiplied(head: &Head<HostHead>) -> Vec<&str> {
    match head {
        Head::Host(head) => std::iter::once(&head.matrix)
            .chain(&head.bias)
            .map(String::as_str)
            .collect(),
        _ => Vec::new(),
    }
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
            recurrent: info.recurrent,
            generation: None,
            fixed: info.fixed.clone(),
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
            recurrent: facts.recurrent,
            fixed: facts.fixed,
        }
    }
}

impl Embeds {
    /// The facts of an encoder whose program has the functions `lengths`, `None` being the function
    /// of any length.
    pub fn new(
        info: &EncoderInfo,
        lengths: &[Option<usize>],
        encoding: Encoding,
        residual_divisor: Option<f32>,
        norm: NormForm,
    ) -> Self {
        Self {
            architecture: info.architecture.clone(),
            layers: info.n_layers,
            vocabulary: info.vocab_size,
            positions: info.n_positions,
            dimensions: info.dim,
            truncate_dim: info.truncate_dim,
            max_tokens: info.max_tokens,
            flexible: lengths.contains(&None),
            buckets: lengths.iter().copied().flatten().collect(),
            encoding: encoding_name(encoding).to_owned(),
            pooling: info.pooling.to_string(),
            normalize: info.normalize,
            quantize: info.quantize,
            prompts: info.prompts.clone(),
            default_prompt: info.default_prompt.clone(),
            include_prompt: info.include_prompt,
            similarity: info.similarity.clone(),
            lower_case: info.lower_case,
            residual_divisor,
            norm: norm_name(norm).to_owned(),
            padding_token: info.padding_token,
        }
    }

    /// The same facts as a checkpoint gives them.
    pub fn info(&self) -> Result<EncoderInfo, ContractError> {
        let pooling = Poolings::from_name(&self.pooling)
            .ok_or_else(|| ContractError::Pooling(self.pooling.clone()))?;
        Ok(EncoderInfo {
            architecture: self.architecture.clone(),
            n_layers: self.layers,
            vocab_size: self.vocabulary,
            n_positions: self.positions,
            dim: self.dimensions,
            truncate_dim: self.truncate_dim,
            max_tokens: self.max_tokens,
            pooling,
            normalize: self.normalize,
            prompts: self.prompts.clone(),
            default_prompt: self.default_prompt.clone(),
            include_prompt: self.include_prompt,
            similarity: self.similarity.clone(),
            lower_case: self.lower_case,
            quantize: self.quantize,
            padding_token: self.padding_token,
        })
    }
}

/// The name of an encoding in contracts.
pub fn encoding_name(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::Text => "text",
        Encoding::Chunks => "chunks",
        Encoding::Tokens => "tokens",
        Encoding::Labels => "labels",
    }
}

/// The name of a norm form in contracts.
fn norm_name(norm: NormForm) -> &'static str {
    match norm {
        NormForm::Scaled => "scaled",
        NormForm::Native => "native",
        NormForm::Cat => "cat",
    }
}

/// Inputs, states and outputs of every function. A value whose role is unknown is an error.
pub fn ports(program: &Program) -> Result<BTreeMap<String, Ports>, ContractError> {
    program
        .functions()
        .iter()
        .map(|f| Ok((f.name.clone(), function_ports(f)?)))
        .collect()
}

fn function_ports(f: &Function) -> Result<Ports, ContractError> {
    let (mut inputs, mut states) = (Vec::new(), Vec::new());
    for &input in &f.body().inputs {
        let to = if matches!(f.value(input).ty, Type::State(_)) {
            &mut states
        } else {
            &mut inputs
        };
        to.push(port(f, input, true)?);
    }
    let outputs = f
        .body()
        .outputs
        .iter()
        .map(|v| port(f, *v, false))
        .collect::<Result<_, ContractError>>()?;
    Ok(Ports {
        inputs,
        states,
        outputs,
    })
}

fn port(f: &Function, value: ValueId, is_input: bool) -> Result<Port, ContractError> {
    let value = f.value(value);
    let ty = value
        .ty
        .tensor_or_state()
        .ok_or_else(|| ContractError::NotATensor {
            function: f.name.clone(),
            value: value.name.clone(),
            ty: value.ty.to_string(),
        })?;
    let role = match value.name.as_str() {
        "input_ids" => "tokens",
        "position" | "positions" => "position",
        "logits" => "logits",
        name if name.starts_with("logits_") => "logits",
        "top_logits" => "top_logits",
        "top_tokens" => "top_tokens",
        "write_begin" | "write_end" => "cache_slot",
        "last_token" => "selection",
        "attention_mask" | "full_mask" => "mask",
        "pooling_mask" => "pooling_mask",
        "sliding_mask" => "sliding_mask",
        "streaming_mask" => "streaming_mask",
        "pool_matrix" => "pool_matrix",
        "hidden_states" | "output_hidden_states" => "hidden_states",
        "final_hidden_states" => "final_hidden_states",
        "per_layer_vectors" | "output_per_layer_vectors" => "per_layer_vectors",
        "token_embedding" => "token_row",
        "embedding" | "per_layer_embedding" if is_input => "token_row",
        "position_embedding" => "position_row",
        "embedding" | "token_embeddings" => "embedding",
        name if name.starts_with("rotary_") => "position_row",
        name if name.contains("kv_cache") => "key_value_cache",
        name if name.starts_with("new_k_") => "new_keys",
        name if name.starts_with("new_v_") => "new_values",
        name if name.starts_with("given_k_") => "given_keys",
        name if name.starts_with("given_v_") => "given_values",
        name if name.starts_with("k_cache_stream_") => "streaming_key_cache",
        name if name.starts_with("v_cache_stream_") => "streaming_value_cache",
        name if name.starts_with("k_cache_") => "key_cache",
        name if name.starts_with("v_cache_") => "value_cache",
        name if name.starts_with("new_conv_cache_") => "new_convolution_cache",
        name if name.starts_with("new_recurrent_") => "new_recurrent_state",
        name if name.contains("recurrent_cache") => "recurrent_state",
        name if name.starts_with("conv_cache_") => "convolution_cache",
        name if name.starts_with("recurrent_") => "recurrent_state",
        name => {
            return Err(ContractError::Role {
                function: f.name.clone(),
                value: name.to_owned(),
            });
        }
    };
    let shape = ty.shape.iter().map(|d| d.known()).collect();
    Ok(Port {
        name: value.name.clone(),
        dtype: ty.dtype.name().to_owned(),
        shape,
        role: role.to_owned(),
    })
}
