//! What `meta.yaml` says.

use std::path::Path;

use thane_mil::package;

use super::super::fault::ForeignError;
use super::super::meta::Meta;
use super::{CHUNKS_FILE, META, VERSION};
use crate::error::{ContractError, RuntimeError};

/// Bytes of `meta.yaml` at most; published ones have some kilobytes.
const MOST_BYTES: u64 = 1 << 20;
/// Newest version whose layout is known.
const NEWEST: (u32, u32) = (0, 3);

/// Keys of `model_info.parameters` that are read here.
const READ: [&str; 27] = [
    "argmax_in_model",
    "batch_size",
    "context_length",
    "embeddings",
    "ffn",
    "functions",
    "lm_head",
    "lm_head_chunk_sizes",
    "lut_bits",
    "lut_embeddings",
    "lut_ffn",
    "lut_lmhead",
    "model_prefix",
    "monolithic_model",
    "num_chunks",
    "num_logits",
    "pf",
    "prefill_dynamic_slice",
    "prefill_last_token_output",
    "sliding_window",
    "split_lm_head",
    "split_rotate",
    "state_length",
    "update_mask_prefill",
    "vocab_size",
    "single_cache",
    "per_layer_inputs",
];
/// Keys that change nothing of what the host does, or that programs say themselves.
const HARMLESS: [&str; 9] = [
    "layer_types",
    "hidden_size",
    "lut_embeddings_per_channel",
    "lut_ffn_per_channel",
    "lut_lmhead_per_channel",
    "num_layers",
    "prefill_full_batches_only",
    "recommended_sampling",
    "tokenizer_path",
];

/// What `meta.yaml` says.
pub(super) struct Parameters {
    pub meta: Meta,
    pub prefix: String,
    pub context: usize,
    pub block: usize,
    pub n_chunks: usize,
}

impl Parameters {
    pub fn read(folder: &Path) -> Result<Self, RuntimeError> {
        let path = folder.join(META);
        let bytes = package::read_small(&path, MOST_BYTES).map_err(|source| {
            RuntimeError::Contract(ContractError::Read {
                path: path.clone(),
                source,
            })
        })?;
        let text = String::from_utf8_lossy(&bytes);
        let meta = Meta::parse(&path, &text)?;
        check_version(&meta)?;
        check_keys(&meta)?;
        let needed = |name: &str| -> Result<usize, ForeignError> {
            let place = key(name);
            let found = meta.count(&place)?;
            found.ok_or_else(|| meta.fault(&place, "expected this key under `parameters`"))
        };
        Ok(Self {
            context: needed("context_length")?,
            block: needed("batch_size")?,
            n_chunks: meta.count(&key("num_chunks"))?.unwrap_or(1),
            prefix: meta
                .text(&key("model_prefix"))
                .unwrap_or("llama")
                .to_owned(),
            meta,
        })
    }

    pub fn flag(&self, name: &str) -> Result<bool, ForeignError> {
        self.meta.flag(&key(name))
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.meta.text(&key(name))
    }

    pub fn fault(&self, name: &str, what: impl Into<String>) -> ForeignError {
        self.meta.fault(&key(name), what)
    }

    /// The file of a part: what the key `name` says, or the name that old versions build.
    pub fn file(&self, name: &str, part: &str, lut: &str) -> String {
        let suffix = match self.text(lut) {
            None | Some("none") => String::new(),
            Some(bits) => format!("_lut{bits}"),
        };
        let built = || format!("{}_{part}{suffix}", self.prefix);
        self.text(name).map_or_else(built, str::to_owned)
    }

    /// The stem of the files of chunks, which the number of a chunk follows.
    pub fn chunk_stem(&self) -> String {
        let file = self.file("ffn", CHUNKS_FILE, "lut_ffn");
        let stem = file.strip_suffix(".mlmodelc").unwrap_or(&file);
        match stem.rfind("_chunk_") {
            Some(end) => stem[..end].to_owned(),
            None => stem.to_owned(),
        }
    }
}

/// The path of a key of `model_info.parameters`.
pub(super) fn key(name: &str) -> String {
    format!("model_info.parameters.{name}")
}

fn check_version(meta: &Meta) -> Result<(), ForeignError> {
    let place = "model_info.version";
    let Some(version) = meta.text(place) else {
        return Ok(());
    };
    let mut numbers = version.split('.').map(|n| n.parse::<u32>().ok());
    let (major, minor) = (numbers.next().flatten(), numbers.next().flatten());
    match (major, minor) {
        (Some(major), Some(minor)) if (major, minor) <= NEWEST => Ok(()),
        _ => Err(meta
            .fault(
                place,
                format!(
                    "expected a version up to {}.{}, found `{version}`",
                    NEWEST.0, NEWEST.1
                ),
            )
            .remedy("a bundle of version 0.3, or a newer thane")),
    }
}

fn check_keys(meta: &Meta) -> Result<(), ForeignError> {
    let prefix = key("");
    for name in meta.keys(&prefix) {
        let first = name.split(['.', '[']).next().unwrap_or(name);
        let is_known =
            READ.contains(&first) || HARMLESS.contains(&first) || first.starts_with("quant_");
        if !is_known {
            return Err(meta
                .fault(
                    &key(name),
                    "this key is unknown and may change the computation",
                )
                .remedy(format!(
                    "a bundle of ANEMLL {VERSION} or older, or a newer thane"
                )));
        }
    }
    Ok(())
}
