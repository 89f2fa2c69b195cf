//! Checkpoints of llama2.c: one `.bin` file with a header of sizes and all tensors in a fixed
//! order.
//!
//! | version | header | tensors |
//! |---|---|---|
//! | 0 | 7 int32: sizes; the vocabulary is negative if the output head has its own matrix | F32 |
//! | 1 | 256 bytes: `ak42` as a number, version, 7 sizes, whether the head is shared | F32 |
//! | 2 | the same, then the group size | norms F32; matrices int8, each followed by F32 scales |
//!
//! Version 0 has no magic bytes: it is recognized by sizes that give exactly the file's length. The
//! order of tensors is that of `export.py`, and of `run.c` and `runq.c`, which read them. The
//! result has the tensor names of Hugging Face and a configuration of the same form, so that the
//! family `llama2.c` reads it like a folder.

mod tokenizer;

use std::path::Path;

use serde_json::json;
use thane_mil::data::Bytes;

use super::config::Config;
use super::error::CheckpointError;
use super::folder::HuggingFace;
use super::scaled::{Codes, Number, Packing, ScaleType, Scaled, Scales};
use super::tensor::{Tensor, TensorType};
use super::{Checkpoint, Source, Tensors, map};

pub use tokenizer::{Llama2cToken, read_tokenizer};

/// The magic number of versions 1 and 2, "ak42" read as a number, as it is stored.
const MAGIC: &[u8; 4] = b"24ka";
const HEADER_BYTES: usize = 256;
const N_SIZES: usize = 7;
/// Largest accepted number of layers.
const MAX_LAYERS: usize = 1024;

/// The sizes of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    dim: usize,
    hidden_dim: usize,
    n_layers: usize,
    n_heads: usize,
    n_kv_heads: usize,
    vocab_size: usize,
    seq_len: usize,
    /// Whether the output head shares the embedding's tensor.
    shared: bool,
}

impl Sizes {
    /// Reads 7 numbers. `shared` is what the header says apart from them. `None` if they are not
    /// the sizes of a model.
    fn read(bytes: &[u8], shared: Option<bool>) -> Option<Self> {
        let numbers: Vec<i32> = bytes
            .get(..4 * N_SIZES)?
            .as_chunks()
            .0
            .iter()
            .map(|b| i32::from_le_bytes(*b))
            .collect();
        let vocab = numbers[5];
        let size = |n: i32| usize::try_from(n).ok().filter(|n| *n > 0);
        let sizes = Self {
            dim: size(numbers[0])?,
            hidden_dim: size(numbers[1])?,
            n_layers: size(numbers[2]).filter(|n| *n <= MAX_LAYERS)?,
            n_heads: size(numbers[3])?,
            n_kv_heads: size(numbers[4])?,
            vocab_size: match shared {
                Some(_) => size(vocab)?,
                None => vocab.unsigned_abs() as usize,
            },
            seq_len: size(numbers[6])?,
            shared: shared.unwrap_or(vocab > 0),
        };
        let fits = sizes.vocab_size > 0
            && sizes.dim.is_multiple_of(sizes.n_heads)
            && sizes.head_dim().is_multiple_of(2)
            && sizes.n_heads.is_multiple_of(sizes.n_kv_heads);
        fits.then_some(sizes)
    }

    fn head_dim(&self) -> usize {
        self.dim / self.n_heads
    }

    fn kv_dim(&self) -> usize {
        self.head_dim() * self.n_kv_heads
    }

    /// The tensors in the order of the file.
    fn order(&self, version: Version) -> Vec<Entry> {
        let (d, h, kv) = (self.dim, self.hidden_dim, self.kv_dim());
        let layers = |module, shape: &[usize]| Entry::Layers(module, shape.to_vec());
        let one = |module, shape: &[usize]| Entry::One(module, shape.to_vec());
        let table = one("model.embed_tokens", &[self.vocab_size, d]);
        let norm = one("model.norm", &[d]);
        let [before, after] =
            ["input_layernorm", "post_attention_layernorm"].map(|module| layers(module, &[d]));
        let attention = [
            layers("self_attn.q_proj", &[d, d]),
            layers("self_attn.k_proj", &[kv, d]),
            layers("self_attn.v_proj", &[kv, d]),
            layers("self_attn.o_proj", &[d, d]),
        ];
        let mlp = [
            layers("mlp.gate_proj", &[h, d]),
            layers("mlp.down_proj", &[d, h]),
            layers("mlp.up_proj", &[h, d]),
        ];
        let mut parts = Vec::new();
        if version == Version::Legacy {
            parts.extend([table, before]);
            parts.extend(attention);
            parts.push(after);
            parts.extend(mlp);
            // Cosines and sines of the rotary embedding, which the sizes determine.
            parts.extend([norm, Entry::Skipped(self.seq_len * self.head_dim())]);
        } else {
            parts.extend([before, after, norm, table]);
            parts.extend(attention);
            parts.extend(mlp);
        }
        if !self.shared {
            parts.push(one("lm_head", &[self.vocab_size, d]));
        }
        parts
    }

    /// Bytes of all tensors. Sizes below 2^31 cannot overflow 128 bits.
    fn byte_len(&self, version: Version) -> u128 {
        let bytes = |shape: &[usize]| {
            let n: u128 = shape.iter().map(|d| *d as u128).product();
            match version {
                Version::Groups(len) if shape.len() == 2 => n + n / len as u128 * 4,
                _ => 4 * n,
            }
        };
        let parts = self.order(version).into_iter().map(|part| match part {
            Entry::One(_, shape) => bytes(&shape),
            Entry::Layers(_, shape) => self.n_layers as u128 * bytes(&shape),
            Entry::Skipped(n) => 4 * n as u128,
        });
        parts.sum()
    }

    fn config(&self) -> String {
        json!({
            "model_type": "llama2.c",
            "hidden_size": self.dim,
            "intermediate_size": self.hidden_dim,
            "num_hidden_layers": self.n_layers,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.seq_len,
            "tie_word_embeddings": self.shared,
        })
        .to_string()
    }
}

/// What the file stores next.
enum Entry {
    /// `module.weight`.
    One(&'static str, Vec<usize>),
    /// `model.layers.{}.module.weight` of all layers.
    Layers(&'static str, Vec<usize>),
    /// Floats that are not needed.
    Skipped(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// Version 0.
    Legacy,
    /// Version 1.
    Floats,
    /// Version 2, with the number of columns that share a scale.
    Groups(usize),
}

/// Opens the folder of a model that llama2.c trained, whose script names the file `model.bin`;
/// `None` if the folder has no such file.
pub(super) fn open_folder(folder: &Path) -> Option<Result<Checkpoint, CheckpointError>> {
    let path = folder.join("model.bin");
    if folder.join("config.json").exists() || !path.is_file() {
        return None;
    }
    match map::map(&path) {
        Ok(bytes) => open(&path, &bytes),
        Err(error) => Some(Err(error)),
    }
}

/// Opens a checkpoint of llama2.c; `None` if the file is not one.
pub(super) fn open(path: &Path, bytes: &Bytes) -> Option<Result<Checkpoint, CheckpointError>> {
    let file = bytes.as_slice();
    if file.starts_with(MAGIC) {
        let read = header(file).and_then(|(sizes, version)| {
            let expected = sizes.byte_len(version) + HEADER_BYTES as u128;
            if expected == file.len() as u128 {
                return Ok((sizes, version));
            }
            Err(format!(
                "expected {expected} bytes for the sizes of the header, found {}: fetch the file \
                 again",
                file.len()
            ))
        });
        let result = read.map_err(|reason| unusable(path, &reason));
        return Some(result.and_then(|(s, v)| checkpoint(path, bytes, s, v, HEADER_BYTES)));
    }
    let sizes = Sizes::read(file, None)?;
    let start = 4 * N_SIZES;
    let is_legacy = sizes.byte_len(Version::Legacy) + start as u128 == file.len() as u128;
    is_legacy.then(|| checkpoint(path, bytes, sizes, Version::Legacy, start))
}

fn unusable(path: &Path, reason: &str) -> CheckpointError {
    CheckpointError::Unusable {
        path: path.to_owned(),
        reason: format!("llama2.c checkpoint: {reason}"),
    }
}

/// Reads the header of version 1 or 2.
fn header(file: &[u8]) -> Result<(Sizes, Version), String> {
    let header = file
        .get(..HEADER_BYTES)
        .ok_or("the file ends within the header: fetch it again")?;
    let number = |at: usize| i32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
    let shared = header[8 + 4 * N_SIZES] != 0;
    let sizes = Sizes::read(&header[8..], Some(shared))
        .ok_or("the header does not have the sizes of a model: fetch the file again")?;
    match number(4) {
        1 => Ok((sizes, Version::Floats)),
        2 => {
            // The number is not aligned.
            let len = number(9 + 4 * N_SIZES);
            let divides = |len: &usize| {
                *len > 0 && sizes.dim.is_multiple_of(*len) && sizes.hidden_dim.is_multiple_of(*len)
            };
            match usize::try_from(len).ok().filter(divides) {
                Some(len) => Ok((sizes, Version::Groups(len))),
                None => Err(format!(
                    "expected a group size that divides {} and {}, found {len}",
                    sizes.dim, sizes.hidden_dim
                )),
            }
        }
        other => Err(format!("expected version 1 or 2, found {other}")),
    }
}

/// A checkpoint whose tensors begin at `start`. The file has exactly as many bytes as they need.
fn checkpoint(
    path: &Path,
    bytes: &Bytes,
    sizes: Sizes,
    version: Version,
    start: usize,
) -> Result<Checkpoint, CheckpointError> {
    let mut reader = Reader {
        bytes,
        at: start,
        version,
        tensors: Tensors::new(),
    };
    for part in sizes.order(version) {
        match part {
            Entry::One(module, shape) => reader.tensor(module, shape),
            Entry::Layers(module, shape) => {
                for i in 0..sizes.n_layers {
                    reader.tensor(&format!("model.layers.{i}.{module}"), shape.clone());
                }
            }
            Entry::Skipped(n) => reader.at += 4 * n,
        }
    }
    let config = Config::parse(sizes.config().as_bytes())
        .map_err(|fault| unusable(path, &fault.to_string()))?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let note = "runq.c of llama2.c also quantizes activations: Thane does not, so results differ \
                slightly"
        .to_owned();
    Ok(Checkpoint {
        path: path.to_owned(),
        source: Source::HuggingFace(HuggingFace {
            folder: folder.to_owned(),
            config,
            generation_config: None,
            tokenizer_json: None,
            tokenizer_config: None,
            tokenizer_model: None,
            tokenizer_bin: Some(folder.join("tokenizer.bin")).filter(|path| path.is_file()),
            chat_template: None,
        }),
        tensors: reader.tensors,
        notes: matches!(version, Version::Groups(_))
            .then_some(note)
            .into_iter()
            .collect(),
    })
}

/// Takes tensors one after the other.
struct Reader<'a> {
    bytes: &'a Bytes,
    at: usize,
    version: Version,
    tensors: Tensors,
}

impl Reader<'_> {
    fn take(&mut self, len: usize) -> Bytes {
        let bytes = self.bytes.slice(self.at..self.at + len);
        self.at += len;
        bytes.expect("the length of the file was compared with all sizes")
    }

    fn tensor(&mut self, module: &str, shape: Vec<usize>) {
        let n: usize = shape.iter().product();
        let name = format!("{module}.weight");
        let tensor = match (self.version, &shape[..]) {
            (Version::Groups(len), &[rows, columns]) => {
                let (codes, scales) = (self.take(n), self.take(n / len * 4));
                let scaled = groups(codes.clone(), scales, [rows, columns], len);
                Tensor {
                    name: name.clone(),
                    ty: TensorType::I8,
                    shape,
                    bytes: codes,
                    scaled: Some(scaled.into()),
                }
            }
            _ => Tensor {
                name: name.clone(),
                ty: TensorType::F32,
                shape,
                bytes: self.take(4 * n),
                scaled: None,
            },
        };
        self.tensors.insert(name, tensor);
    }
}

/// A matrix of int8 codes, of which `len` columns of a row share a scale.
fn groups(codes: Bytes, scales: Bytes, shape @ [_, columns]: [usize; 2], len: usize) -> Scaled {
    Scaled {
        shape,
        first_row: 0,
        block: [1, len],
        codes: Codes {
            bytes: codes,
            packing: Packing::bytes([columns, 1]),
            number: Number::Signed,
        },
        scales: Some(Scales {
            bytes: scales,
            ty: ScaleType::F32,
            strides: [columns / len, 1],
        }),
        offsets: None,
        groups: None,
    }
}
