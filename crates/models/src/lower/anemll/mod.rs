//! Lowers a decoder to the functions of an ANEMLL bundle: embeddings, chunks of layers, and a head
//! in slices. `docs/bundles.md` describes the bundle.

mod io;
mod parts;

use std::ops::Range;

use thane_calls::{CacheForm, Head, Lookup, Split};

use super::ane::{Built, check_ranges, layers_within, modes};
use super::{Asked, Interface};
use crate::error::ModelError;
use crate::graph::{Graph, Layout, Spelling};
use crate::layers::attention::Attention;
use crate::layers::decoder::{FixedFunction, Lowering, Mode};
use crate::transformer::Transformer;
use crate::{AneDecoder, BundleFacts};
use io::ChunkIo;

/// The failure of what a bundle has no place for.
fn cannot_have(what: impl Into<String>) -> ModelError {
    ModelError::Bundle {
        project: "ANEMLL",
        what: what.into(),
    }
}

/// How a bundle names a model.
struct Kind {
    architecture: &'static str,
    prefix: &'static str,
    tokenizer_class: &'static str,
    head_slices: usize,
}

/// The architectures of ANEMLL 0.3.5. Prefixes and slices are those of its `convert_model.sh`.
const KINDS: [Kind; 5] = [
    Kind::new("llama", "llama", "LlamaTokenizer", 8),
    Kind::new("qwen2", "qwen25", "Qwen2Tokenizer", 16),
    Kind::new("qwen3", "qwen", "Qwen2Tokenizer", 16),
    Kind::new("gemma3", "gemma3", "GemmaTokenizer", 16),
    Kind::new("gemma3_text", "gemma3", "GemmaTokenizer", 16),
];

impl Kind {
    const fn new(
        architecture: &'static str,
        prefix: &'static str,
        tokenizer_class: &'static str,
        head_slices: usize,
    ) -> Self {
        Self {
            architecture,
            prefix,
            tokenizer_class,
            head_slices,
        }
    }

    /// The kind of an architecture.
    fn of(architecture: &str) -> Result<&'static Self, ModelError> {
        let found = KINDS.iter().find(|kind| kind.architecture == architecture);
        found.ok_or_else(|| {
            let known: Vec<&str> = KINDS.iter().map(|kind| kind.architecture).collect();
            cannot_have(format!(
                "the architecture `{architecture}` (expected {})",
                known.join(", ")
            ))
        })
    }
}

/// The names, shapes and calls of ANEMLL bundles: `embeddings`, `chunk1_infer`, `chunk1_prefill`
/// and on, and `head`. [`Whole`](Split::Whole) stands for as few chunks as have at most 950 MB of
/// fp16 weights each.
pub static ANEMLL: Interface = Interface { functions };

/// Bytes of fp16 weights that the layers of a chunk have at most by default, the limit of ANEMLL
/// 0.3.5 where it chooses the number of chunks.
const MOST_CHUNK_BYTES: usize = 950_000_000;

fn functions(asked: &Asked<'_>) -> Result<Built, ModelError> {
    let Asked {
        architecture,
        decoder,
        weights,
        ane,
        context,
        shared,
    } = *asked;
    let kind = Kind::of(architecture)?;
    refuse(decoder, ane)?;
    let chunks = chunks(&ane.form.split, decoder)?;
    let modes = modes(decoder, &ane.form, context)?;
    let divisor = ane.residual_divisor.unwrap_or(decoder.residual_divisor);
    let form = Spelling {
        layout: Layout::Channels,
        float: ane.float,
        norm: ane.norm,
    };
    let graph = |name: &str| Graph::new(name, shared.clone(), form);
    let embeddings = decoder.embeddings_function(graph("embeddings"), weights, divisor)?;
    let mut functions = vec![embeddings];
    for (i, layers) in chunks.iter().enumerate() {
        // Hosts take the first function for the default one.
        for (mode, tokens) in modes.iter().rev() {
            let lowering = Lowering {
                context,
                cache: ane.float,
                residual_divisor: divisor,
                fixed: Some(FixedFunction {
                    given: mode.given(),
                    tokens: *tokens,
                    in_lanes: false,
                    context,
                    most_context: context,
                    layers: layers.clone(),
                    n_layers: decoder.layers.len(),
                    head: None,
                    tied_rows: Vec::new(),
                    form: ane.form.clone(),
                    state: "model_model_kv_cache_0".to_owned(),
                    recurrent_state: String::new(),
                    attends: true,
                    window: decoder.window(),
                    ring: None,
                    streaming: None,
                    io: ChunkIo::declare,
                }),
            };
            let name = if *mode == Mode::Decode {
                "infer"
            } else {
                "prefill"
            };
            let graph = graph(&format!("chunk{}_{name}", i + 1));
            let (function, _) = decoder.decoder_function(graph, weights, *mode, &lowering)?;
            functions.push(function);
        }
    }
    let slices = balanced(decoder.vocab_size, kind.head_slices.min(decoder.vocab_size));
    functions.push(decoder.head_function(graph("head"), weights, &slices)?);
    Ok(Built {
        functions,
        tables: Vec::new(),
        cache: ane.float,
        fixed: None,
        bundle: Some(BundleFacts {
            prefix: kind.prefix,
            tokenizer_class: kind.tokenizer_class,
            block: modes.first().map_or(1, |(_, tokens)| *tokens),
            n_chunks: chunks.len(),
            head_slices: slices.iter().map(Range::len).collect(),
            window: decoder.window(),
        }),
    })
}

/// Refuses what a bundle has no place for.
fn refuse(decoder: &Transformer, ane: &AneDecoder) -> Result<(), ModelError> {
    let first = &decoder.layers[0].attention;
    let size = (first.n_kv_heads, first.head_dim);
    let form = &ane.form;
    let has = |attention: &Attention| (attention.n_kv_heads, attention.head_dim) == size;
    let refused = [
        ("an explicit KV cache", form.cache == CacheForm::Explicit),
        ("tables on the host", form.lookup != Lookup::Inside),
        ("the function verify", !form.verify.is_empty()),
        ("shorter contexts", !form.contexts.is_empty()),
        ("another output head", form.head != Head::Logits),
        ("lanes", form.lanes.is_some()),
        ("calls without Core ML", form.direct.is_some()),
        (
            "attention to a part of the tokens",
            form.attention.streaming.is_some(),
        ),
        ("embeddings of positions", decoder.learned_positions),
        (
            "layers that share keys and values, or whose caches differ in size",
            decoder
                .layers
                .iter()
                .any(|layer| layer.shares.is_some() || !has(&layer.attention)),
        ),
    ];
    match refused.iter().find(|(_, is_asked)| *is_asked) {
        Some((what, _)) => Err(cannot_have(*what)),
        None => Ok(()),
    }
}

/// The layers of each chunk.
fn chunks(split: &Split, decoder: &Transformer) -> Result<Vec<Range<usize>>, ModelError> {
    let n_layers = decoder.layers.len();
    let chunks = match split {
        Split::Whole => layers_within(MOST_CHUNK_BYTES, (0, 0), decoder).0,
        Split::Within(bytes) => layers_within(*bytes, (0, 0), decoder).0,
        Split::Into(n) if *n == 0 || *n > n_layers => {
            return Err(ModelError::SplitInto {
                asked: *n,
                n_layers,
            });
        }
        Split::Into(n) => balanced(n_layers, *n),
        // The head is a package by itself in any case.
        Split::Ranges { layers, .. } => layers.clone(),
    };
    check_ranges(&chunks, n_layers)?;
    if chunks.len() > 99 {
        let what = format!("{} chunks (expected at most 99)", chunks.len());
        return Err(cannot_have(what));
    }
    Ok(chunks)
}

/// `n` ranges that cover `0..total`, of which the first ones are longer by one.
fn balanced(total: usize, n: usize) -> Vec<Range<usize>> {
    let (each, longer) = (total / n, total % n);
    let start = |i: usize| i * each + i.min(longer);
    (0..n).map(|i| start(i)..start(i + 1)).collect()
}
