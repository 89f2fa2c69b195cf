//! Lowers a decoder to the functions of the form for the Neural Engine.

use std::ops::Range;

use thane_calls::{CacheForm, Call, Calls, Form, Head, HostHead, Lookup, Split, StreamingCache};
use thane_mil::program::Function;
use thane_mil::types::DType;

use super::{Asked, Interface};
use crate::error::ModelError;
use crate::graph::{Graph, Layout, Spelling};
use crate::layers::decoder::{FixedFunction, FixedIo, Lowering, Mask, Mode, head_parts};
use crate::transformer::{Layer, Transformer};
use crate::{AneDecoder, BundleFacts, Table};

/// Bytes of an element of weights.
const FP16_BYTES: usize = 2;

/// The functions of a decoder, and what is needed to call them.
pub(super) struct Built {
    /// The functions.
    pub functions: Vec<Function>,
    /// The tables that callers look up.
    pub tables: Vec<Table>,
    /// Element type of the cache.
    pub cache: DType,
    /// How functions of fixed length are called.
    pub fixed: Option<Calls>,
    /// What a bundle of another project says of the model.
    pub bundle: Option<BundleFacts>,
}

/// The names, shapes and calls of this project.
pub static THANE: Interface = Interface { functions };

/// Builds the functions of a decoder for the Neural Engine: for each context length, mode and chunk
/// of layers.
fn functions(asked: &Asked<'_>) -> Result<Built, ModelError> {
    let Asked {
        decoder,
        weights,
        ane,
        context,
        shared,
        ..
    } = *asked;
    let head = head(ane, decoder)?;
    let chunks = chunks(&ane.form, decoder)?;
    let contexts = contexts(&ane.form.contexts, context)?;
    let modes = modes(decoder, &ane.form, contexts[0])?;
    check_direct(decoder, &ane.form, &modes)?;
    let ring = ring(decoder, &ane.form, &modes).filter(|rows| *rows < context);
    let streaming = streaming(decoder, &ane.form, &modes, context)?;
    let form = Spelling {
        layout: Layout::Channels,
        float: ane.float,
        norm: ane.norm,
    };
    let mut built = Built {
        functions: Vec::new(),
        tables: Vec::new(),
        cache: ane.float,
        fixed: None,
        bundle: None,
    };
    let tied_rows = tied_rows(decoder, &ane.form, &chunks);
    let mut calls = Vec::new();
    for &of_context in &contexts {
        let suffix = if contexts.len() > 1 {
            format!("_{of_context}")
        } else {
            String::new()
        };
        for &(mode, tokens) in &modes {
            let mut names = Vec::new();
            for (i, part) in chunks.iter().enumerate() {
                let chunk = (chunks.len() > 1).then(|| format!("chunk{}_", i + 1));
                let chunk = chunk.unwrap_or_default();
                let name = format!("{chunk}{}{suffix}", name(mode, tokens, &modes));
                let of = Variant {
                    part,
                    chunk: &chunk,
                    mode: (mode, tokens),
                    contexts: (of_context, context),
                    suffix: &suffix,
                    tied_rows: &tied_rows,
                };
                let lowering = lowering(decoder, ane, &of, (ring, streaming));
                let graph = Graph::new(&name, shared.clone(), form);
                let (function, tables) =
                    decoder.decoder_function(graph, weights, mode, &lowering)?;
                built.functions.push(function);
                for table in tables {
                    if built.tables.iter().all(|known| known.input != table.input) {
                        built.tables.push(table);
                    }
                }
                names.push(name);
            }
            let lanes = if mode == Mode::Lanes { tokens } else { 1 };
            calls.push(Call {
                tokens: tokens / lanes,
                lanes,
                context: of_context,
                logits: mode.given(),
                functions: names,
            });
        }
    }
    built.fixed = Some(Calls {
        window: decoder.window(),
        streaming,
        head,
        calls,
    });
    Ok(built)
}

/// The name of a function: of several that differ in the number of tokens, each has that number.
fn name(mode: Mode, tokens: usize, all: &[(Mode, usize)]) -> String {
    match all.iter().filter(|(other, _)| *other == mode).count() {
        0 | 1 => mode.name().to_owned(),
        _ => format!("{}_{tokens}", mode.name()),
    }
}

/// A function among those of a decoder.
struct Variant<'a> {
    part: &'a Chunk,
    /// Prefix of its package.
    chunk: &'a str,
    /// With the number of tokens.
    mode: (Mode, usize),
    /// Its context, and the greatest.
    contexts: (usize, usize),
    /// Suffix of its context.
    suffix: &'a str,
    /// The rows of each constant of the output head, if the caller looks tokens up there.
    tied_rows: &'a [Range<usize>],
}

/// How a function is lowered.
fn lowering(
    decoder: &Transformer,
    ane: &AneDecoder,
    of: &Variant<'_>,
    (ring, streaming): (Option<usize>, Option<StreamingCache>),
) -> Lowering {
    let Variant {
        part,
        chunk,
        mode: (mode, tokens),
        contexts: (context, most_context),
        suffix,
        tied_rows,
    } = *of;
    Lowering {
        context,
        cache: ane.float,
        residual_divisor: ane.residual_divisor.unwrap_or(decoder.residual_divisor),
        fixed: Some(FixedFunction {
            given: mode.given(),
            tokens,
            in_lanes: mode == Mode::Lanes,
            context,
            most_context,
            layers: part.layers.clone(),
            n_layers: decoder.layers.len(),
            head: part.head.clone(),
            tied_rows: tied_rows.to_vec(),
            form: ane.form.clone(),
            state: format!("{chunk}kv_cache{suffix}"),
            // Has one size, whatever the context.
            recurrent_state: format!("{chunk}recurrent_cache"),
            attends: decoder.layers[part.layers.clone()]
                .iter()
                .any(Layer::attends),
            window: decoder.window(),
            ring,
            streaming,
            io: FixedIo::declare,
        }),
    }
}

/// The rows of each constant that the output head of these chunks has, if the caller looks tokens
/// up there.
fn tied_rows(decoder: &Transformer, form: &Form, chunks: &[Chunk]) -> Vec<Range<usize>> {
    if !decoder.looks_up_matrix(form.lookup) {
        return Vec::new();
    }
    let heads = chunks.iter().filter_map(|chunk| chunk.head.clone());
    heads.flat_map(|rows| head_parts(rows, form)).collect()
}

/// What the last functions give, and what the caller makes of it.
fn head(ane: &AneDecoder, decoder: &Transformer) -> Result<Head<HostHead>, ModelError> {
    Ok(match ane.form.head {
        Head::Logits => Head::Logits,
        Head::Greatest(0) => {
            return Err(ModelError::unsupported(
                "top",
                0,
                "expected at least one logit",
            ));
        }
        Head::Greatest(n) if n > decoder.vocab_size => {
            let reason = format!("expected at most {}, the vocabulary", decoder.vocab_size);
            return Err(ModelError::unsupported("top", n, &reason));
        }
        Head::Greatest(n) => Head::Greatest(n),
        Head::Host(()) => Head::Host(decoder.host_head(ane.form.lookup)),
    })
}

/// The kinds of functions with their numbers of tokens. `least` is the shortest context.
pub(super) fn modes(
    decoder: &Transformer,
    form: &Form,
    least: usize,
) -> Result<Vec<(Mode, usize)>, ModelError> {
    let usual = if decoder.has_delta_nets() {
        Form::DELTA_BLOCK
    } else if decoder.recurrent_elements(true) != 0 {
        Form::RECURRENT_BLOCK
    } else {
        Form::DEFAULT_BLOCK
    };
    let usual = match form.direct.is_some() {
        true => Form::DIRECT_COLUMNS,
        false => usual.min(least),
    };
    let block = form.block.unwrap_or(usual);
    let mut modes = vec![(Mode::Prefill, block)];
    if form.direct.is_none() {
        modes.push((Mode::Decode, 1));
    }
    let mut widths = form.verify.clone();
    widths.sort_unstable();
    widths.dedup();
    modes.extend(widths.into_iter().map(|n| (Mode::Verify, n)));
    let most = Form::MOST_DELTA_BLOCK;
    let mut all = modes.iter();
    if let Some((mode, asked)) = all.find(|(_, n)| decoder.has_delta_nets() && *n > most) {
        return Err(ModelError::DeltaBlock {
            function: mode.name(),
            asked: *asked,
            most,
        });
    }
    match modes.iter().find(|(_, n)| *n == 0 || *n > least) {
        None => {
            check_lanes(form)?;
            modes.extend(form.lanes.map(|n| (Mode::Lanes, n)));
            Ok(modes)
        }
        Some((mode, asked)) => Err(ModelError::Block {
            function: mode.name(),
            asked: *asked,
            context: least,
        }),
    }
}

/// Without Core ML, the tokens of a call fill rows of 64 bytes. Where heads, contexts or logits do
/// not, the audit says so.
fn check_direct(
    decoder: &Transformer,
    form: &Form,
    modes: &[(Mode, usize)],
) -> Result<(), ModelError> {
    if form.direct.is_none() {
        return Ok(());
    }
    let fault = |what: String| Err(ModelError::Direct(what));
    if form.cache == CacheForm::State || form.lookup == Lookup::Inside {
        return fault("it has --kv explicit and --lookup host".to_owned());
    }
    if decoder.recurrent_elements(true) != 0 {
        return fault(
            "layers with convolutions and delta nets need calls of one token, whose rows do not \
             fill 64 bytes"
                .to_owned(),
        );
    }
    if form.head != Head::Logits {
        return fault("it has --head logits".to_owned());
    }
    let n = Form::DIRECT_COLUMNS;
    match modes.iter().find(|(_, tokens)| tokens % n != 0) {
        None => Ok(()),
        Some((mode, tokens)) => fault(format!(
            "tokens of a call fill rows of 64 bytes: expected a multiple of {n} in {}, found {tokens}",
            mode.name()
        )),
    }
}

/// Sequences side by side need caches that the caller fills, each at a position of its own.
fn check_lanes(form: &Form) -> Result<(), ModelError> {
    let most = Form::MOST_LANES;
    match form.lanes {
        None => Ok(()),
        Some(asked) if !(2..=most).contains(&asked) => Err(ModelError::Lanes { asked, most }),
        Some(_) if form.cache == CacheForm::State => Err(ModelError::LanesOfState),
        Some(_) => Ok(()),
    }
}

/// Rows of a ring that holds the window of each token of a call, and lets the caller go back by a
/// call, in multiples of 32.
fn ring(decoder: &Transformer, form: &Form, modes: &[(Mode, usize)]) -> Option<usize> {
    let window = decoder
        .window()
        .filter(|_| form.cache == CacheForm::Explicit)?;
    let in_order = modes.iter().filter(|(mode, _)| *mode != Mode::Lanes);
    let most = in_order.map(|(_, n)| *n).max()?;
    Some((window + most).next_multiple_of(32))
}

/// What full-attention layers keep, if not all tokens.
fn streaming(
    decoder: &Transformer,
    form: &Form,
    modes: &[(Mode, usize)],
    context: usize,
) -> Result<Option<StreamingCache>, ModelError> {
    let asked = &form.attention;
    let fault = |what: String| Err(ModelError::AttentionForm(what));
    if let Some(tile) = asked.tile.filter(|tile| *tile == 0 || tile % 32 != 0) {
        return fault(format!(
            "expected --attention-tile of a multiple of 32, found {tile}"
        ));
    }
    let has_heads = asked.tile.is_some() || !asked.retrieval_heads.is_empty();
    if form.lanes.is_some() && has_heads {
        return fault("lanes have no --attention-tile and no --retrieval-heads yet".to_owned());
    }
    let Some(seen) = asked.streaming else {
        return Ok(None);
    };
    if form.cache == CacheForm::State {
        return fault(
            "a cache that does not keep all tokens is held by the host: add --kv explicit"
                .to_owned(),
        );
    }
    // A lane has one token.
    let in_order = modes.iter().filter(|(mode, _)| *mode != Mode::Lanes);
    let most = in_order.map(|(_, n)| *n).max().unwrap_or(1);
    if let Some(n) = seen.pool.filter(|n| *n == 0 || *n > context) {
        return fault(format!(
            "expected --attention-pool from 1 to {context}, found {n}"
        ));
    }
    if seen.window < most || seen.sinks.saturating_add(seen.window) > context {
        return fault(format!(
            "expected --attention-window from {most}, the most tokens of a call, to the context of \
             {context} less the sinks, found {} with {} sinks",
            seen.window, seen.sinks
        ));
    }
    let (n_layers, n_lines) = (decoder.layers.len(), asked.retrieval_heads.len());
    if n_lines > n_layers {
        return fault(format!(
            "expected a line for each of {n_layers} layers in --retrieval-heads, found {n_lines}"
        ));
    }
    let layers = decoder.layers.iter().enumerate();
    let layers = layers.filter(|_| !asked.retrieval_heads.is_empty());
    let attends = |layer: &Layer| layer.attends() && layer.mask == Mask::Full;
    for (i, layer) in layers.filter(|(_, layer)| attends(layer)) {
        let n = layer.attention.n_kv_heads;
        let found = asked.retrieval_heads.get(i).map_or(0, Vec::len);
        if found != n {
            return fault(format!(
                "expected {n} key heads of layer {i} in --retrieval-heads, found {found}"
            ));
        }
    }
    Ok(Some(StreamingCache::new(seen, most)))
}

/// What the functions of one package compute.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chunk {
    /// The layers; none if it is a part of the output head.
    layers: Range<usize>,
    /// The rows of the output head; `None` for all layers but the last.
    head: Option<Range<usize>>,
}

/// The chunks of a decoder.
fn chunks(form: &Form, decoder: &Transformer) -> Result<Vec<Chunk>, ModelError> {
    let (n_layers, all) = (decoder.layers.len(), 0..decoder.vocab_size);
    let is_on_host = form.head == Head::Host(());
    let (ranges, head_is_apart) = match &form.split {
        Split::Whole => (std::iter::once(0..n_layers).collect(), false),
        Split::Into(n) if *n == 0 || *n > n_layers => {
            return Err(ModelError::SplitInto {
                asked: *n,
                n_layers,
            });
        }
        Split::Into(n) => {
            let at = |i: usize| i * n_layers / n;
            ((0..*n).map(|i| at(i)..at(i + 1)).collect(), false)
        }
        Split::Ranges { head: true, .. } if is_on_host => return Err(ModelError::NoHeadToCut),
        Split::Ranges { layers, head } => (layers.clone(), *head),
        Split::Within(bytes) => return Ok(within(*bytes, decoder, form)),
    };
    check_ranges(&ranges, n_layers)?;
    let mut chunks: Vec<Chunk> = ranges.into_iter().map(Chunk::of_layers).collect();
    match chunks.last_mut() {
        Some(last) if !head_is_apart => last.head = Some(all),
        _ => chunks.push(Chunk::of_head(n_layers, all)),
    }
    Ok(chunks)
}

/// Ranges must follow each other from the first layer to the last.
pub(super) fn check_ranges(chunks: &[Range<usize>], n_layers: usize) -> Result<(), ModelError> {
    let starts = chunks.iter().map(|chunk| chunk.start);
    let ends = std::iter::once(0).chain(chunks.iter().map(|chunk| chunk.end));
    let follow = starts.zip(ends).all(|(start, end)| start == end);
    let reaches = chunks.last().is_some_and(|last| last.end == n_layers);
    if follow && reaches && !chunks.iter().any(Range::is_empty) {
        return Ok(());
    }
    Err(ModelError::Split {
        chunks: chunks.to_vec(),
        n_layers,
    })
}

/// As few chunks as have at most so many bytes of weights each, of about equal size. A layer or row
/// that has more is a chunk by itself. A head on the host counts nothing, and the embedding counts
/// if the program looks it up.
fn within(most: usize, decoder: &Transformer, form: &Form) -> Vec<Chunk> {
    let n_layers = decoder.layers.len();
    let vocab = decoder.vocab_size;
    let matrix = vocab
        .saturating_mul(decoder.hidden)
        .saturating_mul(FP16_BYTES);
    let embedding = match form.lookup {
        Lookup::Inside => matrix,
        Lookup::Host | Lookup::HostInt8 => 0,
    };
    // A tied head is the matrix that the embedding is.
    let is_one = layers_within(most, (embedding, 0), decoder).0.len() == 1;
    let shares = decoder.tied && is_one && form.lookup == Lookup::Inside;
    let is_free = form.head == Head::Host(()) || shares;
    let head = if is_free { 0 } else { matrix };
    let (ranges, last_bytes) = layers_within(most, (embedding, head), decoder);
    let mut chunks: Vec<Chunk> = ranges.into_iter().map(Chunk::of_layers).collect();
    match chunks.last_mut() {
        Some(last) if is_free || last_bytes.saturating_add(head) <= most => {
            last.head = Some(0..vocab);
        }
        _ => {
            let n = head.div_ceil(most.max(1)).clamp(1, vocab.max(1));
            // Parts of a multiple of 64 rows.
            let rows = vocab.div_ceil(n).next_multiple_of(64);
            let parts = (0..n).map(|i| i * rows..((i + 1) * rows).min(vocab));
            let parts = parts.filter(|rows| !rows.is_empty());
            chunks.extend(parts.map(|rows| Chunk::of_head(n_layers, rows)));
        }
    }
    chunks
}

/// As few ranges of layers as have at most so many bytes of weights each, of about equal size, and
/// the bytes of the last one. A layer that has more is a range by itself. The first range also has
/// `before` bytes, and the last one leaves room for `behind` if that needs no further range.
pub(super) fn layers_within(
    most: usize,
    (before, behind): (usize, usize),
    decoder: &Transformer,
) -> (Vec<Range<usize>>, usize) {
    let of_layer = |i: usize| {
        let elements = decoder.layers[i].weight_elements();
        elements.saturating_mul(FP16_BYTES)
    };
    let n_layers = decoder.layers.len();
    let fill = |most: usize| {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        let mut bytes = before;
        for i in 0..n_layers {
            let layer = of_layer(i);
            match ranges.last_mut() {
                Some(last) if bytes.saturating_add(layer) <= most => last.end = i + 1,
                None => ranges.push(i..i + 1),
                Some(_) => {
                    ranges.push(i..i + 1);
                    bytes = 0;
                }
            }
            bytes = bytes.saturating_add(layer);
        }
        (ranges, bytes)
    };
    // The smallest bound that needs no more ranges makes them about equal.
    let (n, _) = fill(most);
    let all = (0..n_layers)
        .map(of_layer)
        .fold(before, usize::saturating_add);
    let even = all.div_ceil(n.len().max(1));
    let step = (most.saturating_sub(even) / 16).max(1);
    let bounds = (0..16).map(|i| even.saturating_add(i * step).min(most));
    let ways = bounds.chain([most]).map(fill);
    let mut ways = ways.filter(|(ranges, _)| ranges.len() == n.len());
    let first = ways.next().unwrap_or_else(|| fill(most));
    let has_room = |(_, last): &(_, usize)| last.saturating_add(behind) <= most;
    match has_room(&first) {
        true => first,
        false => ways.find(has_room).unwrap_or(first),
    }
}

impl Chunk {
    fn of_layers(layers: Range<usize>) -> Self {
        Self { layers, head: None }
    }

    fn of_head(n_layers: usize, rows: Range<usize>) -> Self {
        Self {
            layers: n_layers..n_layers,
            head: Some(rows),
        }
    }
}

/// All context lengths, ascending; `context` is the greatest.
fn contexts(shorter: &[usize], context: usize) -> Result<Vec<usize>, ModelError> {
    if let Some(asked) = shorter.iter().find(|n| **n == 0 || **n > context) {
        return Err(ModelError::ShortContext {
            asked: *asked,
            context,
        });
    }
    let mut contexts = shorter.to_vec();
    contexts.push(context);
    contexts.sort_unstable();
    contexts.dedup();
    Ok(contexts)
}
