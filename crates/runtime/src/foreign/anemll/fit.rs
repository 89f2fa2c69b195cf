//! Whether the parts of a bundle fit together: lengths, the order of chunks, and the vocabulary.

use thane_engine::chain::Logits;
use thane_mil::program::Function;

use super::super::checks::{table_rows, written_rows};
use super::super::fault::ForeignError;
use super::super::part::{self, ForeignPart};
use super::META;
use super::parameters::{Parameters, key};

/// The block of `prefill` is that of `meta.yaml`.
pub(super) fn check_block(p: &Parameters, part: &ForeignPart) -> Result<(), ForeignError> {
    let prefill = part.need("prefill")?;
    match part::input(prefill, "position_ids").and_then(|port| port.dim(0)) {
        Some(found) if found != p.block => Err(p.fault(
            "batch_size",
            format!(
                "expected {found}, which `prefill` of {} takes, found {}",
                part.file(),
                p.block
            ),
        )),
        _ => Ok(()),
    }
}

/// Checks the masks, tables and caches of all chunks. Returns the number of layers, and the tokens
/// that the cache of local layers holds, if it has one of its own.
pub(super) fn check_chunks(
    p: &Parameters,
    chunks: &[&ForeignPart],
) -> Result<(usize, Option<usize>), ForeignError> {
    for chunk in chunks {
        let f = chunk.need("infer")?;
        let inputs = ["current_pos", "position_ids"];
        if let Some(rows) = table_rows(f, &inputs).filter(|rows| *rows < p.context) {
            return Err(too_short(p, chunk, f, "the table of angles", rows));
        }
        let width = part::input(f, "causal_mask").and_then(|port| port.width());
        if let Some(width) = width.filter(|width| *width < p.context) {
            return Err(too_short(p, chunk, f, "`causal_mask`", width));
        }
    }
    let first = chunks[0].need("infer")?;
    let (mut n_layers, mut window) = (0, None);
    for state in part::inputs(first).filter(|port| port.is_state) {
        let dim = |axis: usize| state.dim(axis).unwrap_or(0);
        if state.name.ends_with("local") {
            window = Some(dim(2));
        } else if dim(2) < p.context {
            return Err(too_short(p, chunks[0], first, state.name, dim(2)));
        }
        check_order(p, chunks, state.name, dim(0) / 2)?;
        n_layers += dim(0) / 2;
    }
    Ok((n_layers, window))
}

fn too_short(
    p: &Parameters,
    part: &ForeignPart,
    f: &Function,
    what: &str,
    n: usize,
) -> ForeignError {
    part.fault(
        f,
        format!(
            "{what}: expected room for the context of {} tokens that {META} names, found {n}",
            p.context
        ),
    )
    .remedy("the meta.yaml that belongs to these packages, or convert the model again")
}

/// The chunks write the keys and values of layers 0, 1, … of a cache, in their order.
fn check_order(
    p: &Parameters,
    chunks: &[&ForeignPart],
    state: &str,
    n_layers: usize,
) -> Result<(), ForeignError> {
    let mut next = 0;
    for (i, chunk) in chunks.iter().enumerate() {
        let f = chunk.need("infer")?;
        let Some(rows) = written_rows(f, state) else {
            return Ok(());
        };
        let layers: Vec<usize> = rows.into_iter().filter(|row| *row < n_layers).collect();
        let expected: Vec<usize> = (next..next + layers.len()).collect();
        if layers != expected {
            let what = format!(
                "state `{state}`: expected chunk {} of {} to write the layers from {next} on, \
                 found {layers:?}",
                i + 1,
                chunks.len()
            );
            return Err(chunk.fault(f, what).remedy(
                "the files under their published names: chunks are out of order, or each has a \
                 cache of its own",
            ));
        }
        next += layers.len();
    }
    if next < n_layers {
        let what = format!(
            "expected {n_layers} layers in {} chunks, found {next}: layers are missing",
            chunks.len()
        );
        return Err(p.fault("num_chunks", what).remedy(
            "a bundle of ANEMLL 0.3.5, or one chunk: 0.3.4 loses the remainder of layers",
        ));
    }
    Ok(())
}

/// The outputs with logits, and the size of the vocabulary.
pub(super) fn logits(
    p: &Parameters,
    embeddings: Option<&ForeignPart>,
    part: &ForeignPart,
    f: &Function,
) -> Result<(Logits, usize), ForeignError> {
    let giver = embeddings.unwrap_or(part);
    let embedded = giver
        .program()
        .functions()
        .iter()
        .find_map(|f| table_rows(f, &["input_ids"]));
    let (logits, vocab_size) = if p.flag("argmax_in_model")? {
        greatest(p, part, f, embedded)?
    } else {
        all_logits(part, f)?
    };
    match embedded {
        Some(rows) if rows != vocab_size => Err(part.fault(
            f,
            format!(
                "expected the logits of {rows} tokens, which the embeddings of {} have, found \
                 {vocab_size}",
                giver.file()
            ),
        )),
        _ => Ok((logits, vocab_size)),
    }
}

fn all_logits(part: &ForeignPart, f: &Function) -> Result<(Logits, usize), ForeignError> {
    let mut slices = Vec::new();
    for port in part::outputs(f) {
        let number = match port.name {
            "logits" | "output_logits" => Some(1),
            name => name.strip_prefix("logits").and_then(|n| n.parse().ok()),
        };
        if let (Some(number), Some(width)) = (number, port.width()) {
            slices.push((number, port.name.to_owned(), width));
        }
    }
    // By number: `logits10` comes after `logits9`.
    slices.sort_by_key(|(number, ..): &(usize, String, usize)| *number);
    let in_order = slices.iter().enumerate().all(|(i, slice)| slice.0 == i + 1);
    if slices.is_empty() || !in_order {
        let names = part::output_names(f);
        let what = format!("expected logits or logits1, logits2, …, found {names}");
        return Err(part.fault(f, what));
    }
    let vocab_size = slices.iter().map(|slice| slice.2).sum();
    let names = slices.into_iter().map(|slice| slice.1).collect();
    Ok((Logits::Joined(names), vocab_size))
}

/// The tokens and logits of a head that gives the best token of each slice.
fn greatest(
    p: &Parameters,
    part: &ForeignPart,
    f: &Function,
    embedded: Option<usize>,
) -> Result<(Logits, usize), ForeignError> {
    let named = |name: &str| {
        part::output(f, name).ok_or_else(|| part.fault(f, format!("expected the output `{name}`")))
    };
    let (tokens, logits) = (named("argmax_idx")?, named("argmax_val")?);
    let n = tokens.ty.n_elements().unwrap_or(1);
    let sizes = match p.meta.counts(&key("lm_head_chunk_sizes"))? {
        Some(sizes) => sizes,
        None => {
            let total = p.meta.count(&key("vocab_size"))?.or(embedded);
            let total = total.ok_or_else(|| {
                p.fault(
                    "lm_head_chunk_sizes",
                    "expected the sizes of the head's slices",
                )
            })?;
            (0..n)
                .map(|i| total / n + usize::from(i < total % n))
                .collect()
        }
    };
    if sizes.len() != n {
        let what = format!(
            "expected {n} sizes, one for each slice, found {}",
            sizes.len()
        );
        return Err(p.fault("lm_head_chunk_sizes", what));
    }
    let vocab_size = sizes.iter().sum();
    let logits = Logits::Greatest {
        tokens: tokens.name.to_owned(),
        logits: logits.name.to_owned(),
        slices: sizes,
    };
    Ok((logits, vocab_size))
}
