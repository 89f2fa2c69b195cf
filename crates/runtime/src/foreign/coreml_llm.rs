//! CoreML-LLM bundles: `model_config.json` and one package, or chunks whose embeddings, angles,
//! masks and caches come from the host. Facts about the layout are in `docs/bundles.md`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use thane_engine::chain::{Feed, Logits, Rows, Step};
use thane_mil::data::Bytes;
use thane_mil::literal::f16_to_f32;
use thane_mil::program::Function;
use thane_mil::types::TensorType;

use super::chaining::{Chaining, Run, call};
use super::checks::{argmax_width, table_rows};
use super::fault::ForeignError;
use super::part::{self, ForeignPart};
use super::{ForeignLayout, Reading};
use crate::error::{ContractError, RuntimeError};
use crate::files::read_within;
use crate::tables::{HostTable, map};

/// The layout of CoreML-LLM: `model_config.json` beside chunks and tables, or one package.
pub(super) static LAYOUT: ForeignLayout = ForeignLayout {
    name: "CoreML-LLM",
    description: CONFIG,
    read,
    writer: None,
};

/// The file that describes the model.
const CONFIG: &str = "model_config.json";
/// Bytes of `model_config.json` at most; published ones have some kilobytes.
const MOST_BYTES: u64 = 1 << 20;
/// Names of the function that decodes one token.
const DECODE: [&str; 3] = ["main", "decode_q1", "decode"];
/// Packages beside those that decode.
const NOT_RUN: [&str; 9] = [
    "prefill_chunk1",
    "prefill_chunk2",
    "prefill_chunk3",
    "prefill_chunk4",
    "prefill",
    "vision",
    "vision.ane",
    "vision_video",
    "audio",
];

/// The content of `model_config.json`. No key has a default: a key that is needed and missing is an
/// error.
struct Config<'a> {
    folder: &'a Path,
    json: Value,
}

impl Config<'_> {
    fn fault(&self, key: &str, what: impl Into<String>) -> ForeignError {
        ForeignError::new(&self.folder.join(CONFIG), format!("`{key}`")).found(what)
    }

    fn count(&self, key: &str) -> Result<usize, ForeignError> {
        let found = self.json[key]
            .as_u64()
            .and_then(|n| usize::try_from(n).ok());
        found.filter(|n| *n > 0).ok_or_else(|| {
            let what = format!("expected a number above 0, found {}", self.json[key]);
            self.fault(key, what)
        })
    }

    fn number(&self, key: &str) -> Result<f32, ForeignError> {
        let found = self.json[key].as_f64().map(|x| x as f32);
        found.filter(|x| x.is_finite()).ok_or_else(|| {
            let what = format!("expected a number, found {}", self.json[key]);
            self.fault(key, what)
        })
    }
}

/// Reads and checks the bundle in `folder`.
fn read(folder: &Path) -> Result<Reading, RuntimeError> {
    let path = folder.join(CONFIG);
    let json = serde_json::from_slice(&read_within(&path, MOST_BYTES)?)
        .map_err(|source| ContractError::Json { path, source })?;
    let config = Config { folder, json };
    let mut parts = decoders(&config)?;
    let n_run = parts.len();
    for name in NOT_RUN {
        if part::find(folder, name).is_some() {
            let part = ForeignPart::open(folder, &name.replace('.', "_"), name)?;
            parts.push(ForeignPart {
                is_run: false,
                ..part
            });
        }
    }
    let mut host = Host::new(&config, parts.first())?;
    let mut steps = Vec::new();
    for part in &parts[..n_run] {
        steps.push(host.step(&config, part)?);
    }
    let context = config.count("context_length")?;
    let vocab_size = config.count("vocab_size")?;
    let last = &parts[n_run - 1];
    let logits = logits(last, decode(last)?, vocab_size)?;
    check_tables(&config, &parts[..n_run], context, vocab_size)?;
    let mut notes = host.notes;
    if parts.iter().any(|part| part.name.starts_with("prefill")) {
        notes.push(
            "prompts are computed token by token: packages for blocks take one mask for local and \
             global attention, so that local attention would see too far"
                .to_owned(),
        );
    }
    let has_caches = !host.caches.is_empty();
    let architecture = config.json["architecture"].as_str();
    let tokenizer = folder.join("hf_model");
    Ok(Reading {
        version: None,
        architecture: architecture.unwrap_or("unknown").to_owned(),
        n_layers: config.count("num_hidden_layers")?,
        vocab_size,
        context,
        chaining: host.chaining,
        // The only call takes a token at any position.
        calls: vec![call(1, 0..context, true, steps)],
        logits,
        rewind_limit: if has_caches { 0 } else { usize::MAX },
        notes,
        tokenizer: if tokenizer.is_dir() {
            tokenizer
        } else {
            folder.to_owned()
        },
        parts,
    })
}

/// The packages that decode, in order: one, or four, three, two or one chunks.
fn decoders(config: &Config<'_>) -> Result<Vec<ForeignPart>, RuntimeError> {
    let folder = config.folder;
    if let Some(file) = config.json["parts"]["model"].as_str() {
        return Ok(vec![ForeignPart::open(folder, "model", file)?]);
    }
    let has = |stem: &str| part::find(folder, stem).is_some();
    let stems: Vec<String> = if has("chunk2_3way") || has("chunk3_3way") {
        ["chunk1", "chunk2_3way", "chunk3_3way"]
            .map(str::to_owned)
            .to_vec()
    } else {
        let last = (1..=4)
            .rev()
            .find(|n| has(&format!("chunk{n}")))
            .unwrap_or(1);
        (1..=last).map(|n| format!("chunk{n}")).collect()
    };
    let open =
        |(i, stem): (usize, &String)| ForeignPart::open(folder, &format!("chunk{}", i + 1), stem);
    stems.iter().enumerate().map(open).collect()
}

/// The function of a part that decodes one token.
fn decode(part: &ForeignPart) -> Result<&Function, ForeignError> {
    let found = DECODE.iter().find_map(|name| part.function(name));
    found.map_or_else(|| part.need(DECODE[0]), Ok)
}

/// What the host keeps and looks up.
struct Host {
    chaining: Chaining,
    /// Tables by the input that gets their rows.
    tables: BTreeMap<&'static str, Feed>,
    /// Slots of values that later chunks take.
    passed: BTreeMap<&'static str, usize>,
    /// Slots of caches, by part and name.
    caches: BTreeMap<String, usize>,
    notes: Vec<String>,
}

/// Outputs that later chunks take, and the inputs that take them.
const PASSED: [(&str, &str); 6] = [
    ("hidden_states_out", "hidden_states"),
    ("per_layer_combined_out", "per_layer_combined"),
    ("kv13_k", "kv13_k"),
    ("kv13_v", "kv13_v"),
    ("kv14_k", "kv14_k"),
    ("kv14_v", "kv14_v"),
];
/// Tables of embeddings: input, file, keys whose product is the number of columns, and key of the
/// factor.
const EMBEDDINGS: [(&str, &str, &[&str], &str); 2] = [
    (
        "hidden_states",
        "embed_tokens",
        &["hidden_size"],
        "embed_scale",
    ),
    (
        "per_layer_raw",
        "embed_tokens_per_layer",
        &["per_layer_dim", "num_hidden_layers"],
        "per_layer_embed_scale",
    ),
];
/// Tables of angles: input, file and key of the number of columns.
const ANGLES: [(&str, &str, &str); 4] = [
    ("cos_s", "cos_sliding.npy", "head_dim"),
    ("sin_s", "sin_sliding.npy", "head_dim"),
    ("cos_f", "cos_full.npy", "global_head_dim"),
    ("sin_f", "sin_full.npy", "global_head_dim"),
];

impl Host {
    /// Opens the tables that the first part takes rows of.
    fn new(config: &Config<'_>, first: Option<&ForeignPart>) -> Result<Self, RuntimeError> {
        let mut chaining = Chaining::default();
        let passed = PASSED
            .iter()
            .map(|(_, input)| (*input, chaining.slot(input)));
        let passed = passed.collect();
        let mut host = Self {
            chaining,
            tables: BTreeMap::new(),
            passed,
            caches: BTreeMap::new(),
            notes: Vec::new(),
        };
        let Some(first) = first else {
            return Ok(host);
        };
        let f = decode(first)?;
        let takes = |name: &str| part::input(f, name).is_some();
        let folder = config.folder;
        for (input, file, keys, factor) in EMBEDDINGS {
            if takes(input) {
                let n_columns = keys.iter().map(|key| config.count(key));
                let n_columns = n_columns.product::<Result<usize, _>>()?;
                let size = (config.count("vocab_size")?, n_columns);
                let table = QuantizedRows::open(folder, file, size, config.number(factor)?)?;
                host.tables
                    .insert(input, Feed::TokenColumns(Arc::new(table)));
            }
        }
        for (input, file, key) in ANGLES {
            if takes(input) {
                let table = angles(config, file, key)?;
                if input == "cos_f" {
                    host.notes.extend(rotation_note(config, &table));
                }
                host.tables
                    .insert(input, Feed::PositionColumns(Arc::new(table)));
            }
        }
        Ok(host)
    }

    fn step(&mut self, config: &Config<'_>, part: &ForeignPart) -> Result<Step, ForeignError> {
        let f = decode(part)?;
        check_masks(config, part, f)?;
        let mut keeps = Vec::new();
        for (output, input) in PASSED {
            if part::output(f, output).is_some() {
                keeps.push((output.to_owned(), self.passed[input]));
            }
        }
        for port in part::inputs(f).filter(|port| !port.is_state) {
            let Some(name) = port.name.strip_suffix("_in") else {
                continue;
            };
            let slot = self.cache(part, port.name, port.ty);
            keeps.push((format!("{name}_out"), slot));
        }
        let is_first = part.name == "chunk1";
        let feed = |input: &str| match input {
            "input_ids" => Some(Feed::Tokens),
            "position_ids" => Some(Feed::Positions),
            "current_pos" => Some(Feed::Position),
            "causal_mask" | "causal_mask_full" => Some(Feed::CausalMask),
            "causal_mask_sliding" => Some(Feed::RecentMask),
            "update_mask" => Some(Feed::WriteMask),
            "hidden_states" if is_first => self.tables.get(input).cloned(),
            _ => {
                let cache = self.caches.get(&format!("{}/{input}", part.name)).copied();
                let slot = cache.or_else(|| self.passed.get(input).copied());
                slot.map(Feed::Slot)
                    .or_else(|| self.tables.get(input).cloned())
            }
        };
        self.chaining.step(Run {
            part,
            function: &f.name,
            n_tokens: 1,
            feed: &feed,
            keeps,
        })
    }

    fn cache(&mut self, part: &ForeignPart, input: &str, ty: &TensorType) -> usize {
        let slot = self.chaining.cache(input, ty);
        self.caches.insert(format!("{}/{input}", part.name), slot);
        slot
    }
}

/// A table of angles with a row for each position of the context.
fn angles(config: &Config<'_>, file: &str, key: &str) -> Result<HostTable, ForeignError> {
    let path = config.folder.join(file);
    let table = HostTable::open(&path)?;
    let (context, n_columns) = (config.count("context_length")?, config.count(key)?);
    let shape = |what: String| ForeignError::new(&path, "shape").found(what);
    if table.n_rows() < context {
        return Err(shape(format!(
            "expected a row for each of the {context} positions of the context, found {} rows",
            table.n_rows()
        ))
        .remedy("tables of the same conversion as the chunks, with as many rows as the context"));
    }
    if table.n_columns() != n_columns {
        return Err(shape(format!(
            "expected {n_columns} columns, as `{key}` of {CONFIG} says, found {}",
            table.n_columns()
        )));
    }
    Ok(table)
}

/// Whether the table of global angles rotates more pairs than the checkpoint's configuration says.
fn rotation_note(config: &Config<'_>, table: &HostTable) -> Option<String> {
    let path = config.folder.join("hf_model/config.json");
    let json: Value = serde_json::from_slice(&read_within(&path, MOST_BYTES).ok()?).ok()?;
    let text = json.get("text_config").unwrap_or(&json);
    let rope = &text["rope_parameters"]["full_attention"];
    let share = rope["partial_rotary_factor"].as_f64()?;
    let half = table.n_columns() / 2;
    let expected = (share * half as f64).floor() as usize;
    let found = table.n_rotating_pairs();
    (rope["rope_type"] == "proportional" && found > expected).then(|| {
        format!(
            "cos_full.npy rotates {found} of {half} pairs, where the checkpoint's configuration \
             rotates {expected}: answers differ from the checkpoint's; a bundle converted again \
             with the tables mended has the right ones"
        )
    })
}

/// Masks belong to the context and the window that the configuration names.
fn check_masks(config: &Config<'_>, part: &ForeignPart, f: &Function) -> Result<(), ForeignError> {
    let keys = [
        ("causal_mask", 3, "context_length"),
        ("causal_mask_full", 3, "context_length"),
        ("causal_mask_sliding", 3, "sliding_window"),
        ("update_mask", 2, "context_length"),
    ];
    for (input, axis, key) in keys {
        let Some(found) = part::input(f, input).and_then(|port| port.dim(axis)) else {
            continue;
        };
        let expected = config.count(key)?;
        if found != expected {
            let what = format!(
                "input `{input}`: expected {expected} columns, as `{key}` of {CONFIG} says, found \
                 {found}"
            );
            return Err(part
                .fault(f, what)
                .remedy("the model_config.json of the same conversion as the packages"));
        }
    }
    Ok(())
}

/// Tables inside of packages have a row for each position and each token.
fn check_tables(
    config: &Config<'_>,
    parts: &[ForeignPart],
    context: usize,
    vocab_size: usize,
) -> Result<(), ForeignError> {
    for part in parts {
        let f = decode(part)?;
        if let Some(rows) = table_rows(f, &["position_ids", "current_pos"])
            && rows < context
        {
            let what = format!("expected a table of angles with {context} rows, found {rows}");
            return Err(part.fault(f, what));
        }
        if let Some(rows) = table_rows(f, &["input_ids"]).filter(|rows| *rows != vocab_size) {
            let what = format!(
                "expected {rows}, the rows of the embeddings of {}, found {vocab_size}",
                part.file()
            );
            return Err(config.fault("vocab_size", what));
        }
    }
    Ok(())
}

/// What the last part gives.
fn logits(part: &ForeignPart, f: &Function, vocab_size: usize) -> Result<Logits, ForeignError> {
    let has = |name: &str| part::output(f, name).is_some();
    let (logits, width) = if has("token_id") && has("token_logit") {
        let logits = Logits::Greatest {
            tokens: "token_id".to_owned(),
            logits: "token_logit".to_owned(),
            slices: vec![vocab_size],
        };
        (logits, argmax_width(f))
    } else if let Some(port) = part::output(f, "logits") {
        (Logits::Joined(vec!["logits".to_owned()]), port.width())
    } else {
        let names = part::output_names(f);
        let what = format!(
            "expected token_id and token_logit, or logits, from the last part, found {names}: a \
             part is missing, or the parts are out of order"
        );
        return Err(part.fault(f, what));
    };
    match width {
        Some(width) if width != vocab_size => {
            let what = format!(
                "expected a head of {vocab_size} tokens, as `vocab_size` of {CONFIG} says, found \
                 {width}"
            );
            Err(part.fault(f, what))
        }
        _ => Ok(logits),
    }
}

/// Rows of int8: element = code * scale of the row / 127 * factor.
struct QuantizedRows {
    codes: Bytes,
    /// fp16, one for each row.
    scales: Bytes,
    n_columns: usize,
    factor: f32,
}

impl QuantizedRows {
    /// Maps `NAME_q8.bin` and `NAME_scales.bin`, which have `n_rows` rows.
    fn open(
        folder: &Path,
        name: &str,
        (n_rows, n_columns): (usize, usize),
        factor: f32,
    ) -> Result<Self, ForeignError> {
        let sized = |suffix: &str, n_bytes: usize| {
            let path = folder.join(format!("{name}_{suffix}.bin"));
            let bytes = map(&path)?;
            if bytes.len() == n_bytes {
                return Ok(bytes);
            }
            let what = format!(
                "expected {n_bytes} bytes for {n_rows} rows of {n_columns}, as model_config.json \
                 says, found {}",
                bytes.len()
            );
            Err(ForeignError::new(&path, "size").found(what))
        };
        Ok(Self {
            codes: sized("q8", n_rows.saturating_mul(n_columns))?,
            scales: sized("scales", n_rows.saturating_mul(2))?,
            n_columns,
            factor,
        })
    }
}

impl Rows for QuantizedRows {
    fn n_rows(&self) -> usize {
        self.scales.len() / 2
    }

    fn n_columns(&self) -> usize {
        self.n_columns
    }

    fn read(&self, idx: usize, out: &mut [f32]) {
        let scale = self.scales.as_slice().as_chunks::<2>().0[idx];
        let scale = f16_to_f32(u16::from_le_bytes(scale)) / 127.0 * self.factor;
        let codes = &self.codes.as_slice()[idx * self.n_columns..];
        for (x, code) in out.iter_mut().zip(codes) {
            *x = f32::from(code.cast_signed()) * scale;
        }
    }
}
