//! Finds the module of the checkpoint that an op computes: from the program's own origins, else
//! from the names of weights and ops.

use std::collections::HashMap;

use thane_mil::program::{Op, OpId, ValueId};

use crate::view::View;

/// Words that numbers of layers stand behind.
const LAYERS: [&str; 8] = [
    "layers",
    "layer",
    "blk",
    "blocks",
    "block",
    "h",
    "encoder_layers",
    "decoder_layers",
];
/// What names of weights end with.
const ENDINGS: [&str; 10] = [
    "_to_fp16",
    "_palettized",
    "_quantized",
    "_codes",
    "_scale",
    "_offset",
    "_weight",
    "_bias",
    ".weight",
    ".bias",
];

/// The module of each op that computes. A name that ends in `?` is that of an op before it, whose
/// layer it is taken to be of.
pub fn modules(view: &View<'_>, ops: &[OpId]) -> HashMap<OpId, String> {
    let mut places = HashMap::with_capacity(ops.len());
    let mut last = String::new();
    for &id in ops {
        let op = view.op(id);
        let place = match said(op).or_else(|| named(view, op)) {
            Some(place) => {
                if let Some(layer) = layer(&place) {
                    last = layer;
                }
                place
            }
            None if last.is_empty() => String::new(),
            None => format!("{last}?"),
        };
        places.insert(id, place);
    }
    places
}

fn said(op: &Op) -> Option<String> {
    (!op.origin.place.is_empty()).then(|| op.origin.place.to_string())
}

fn named(view: &View<'_>, op: &Op) -> Option<String> {
    let weights = op
        .uses()
        .filter(|v| view.is_constant(*v) && is_weight(view, *v));
    let weight = weights.map(|v| view.f.value(v).name.as_str()).next();
    let names = op
        .name
        .iter()
        .map(String::as_str)
        .chain(op.results.iter().map(|r| view.f.value(*r).name.as_str()));
    // The weight's name is that of a tensor, whatever it is; names of ops count where they name a
    // layer.
    weight
        .map(trimmed)
        .or_else(|| names.map(trimmed).find(|name| layer(name).is_some()))
}

/// Scalars and lists of axes are no weights.
fn is_weight(view: &View<'_>, value: ValueId) -> bool {
    const LEAST: usize = 64;
    view.n_elements(value).is_some_and(|n| n >= LEAST)
        && view
            .dtype(value)
            .is_some_and(|d| d.bits() <= 16 || d.is_float())
}

fn trimmed(name: &str) -> String {
    let mut name = name;
    while let Some(rest) = ENDINGS
        .iter()
        .find_map(|e| name.strip_suffix(e))
        .filter(|rest| !rest.is_empty())
    {
        name = rest;
    }
    name.to_owned()
}

/// The part of a name up to a layer's number: `model_layers_3` of
/// `model_layers_3_self_attn_q_proj`.
pub fn layer(name: &str) -> Option<String> {
    let parts: Vec<(usize, &str)> = words(name);
    let pair = parts.windows(2).find(|w| {
        let (word, number) = (w[0].1.to_ascii_lowercase(), w[1].1);
        LAYERS.contains(&word.as_str())
            && !number.is_empty()
            && number.bytes().all(|b| b.is_ascii_digit())
    })?;
    Some(name[..pair[1].0 + pair[1].1.len()].to_owned())
}

/// Words between `_`, `.` and `/`, with where they begin.
fn words(name: &str) -> Vec<(usize, &str)> {
    let mut start = 0;
    let ends = name
        .match_indices(['_', '.', '/'])
        .map(|(i, _)| i)
        .chain([name.len()]);
    ends.map(|end| {
        let word = (start, &name[start..end]);
        start = end + 1;
        word
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_found_in_names() {
        let cases = [
            (
                "model_layers_3_self_attn_q_proj_weight",
                Some("model_layers_3"),
            ),
            ("blk_0_attn_q_weight", Some("blk_0")),
            ("model.layers.12.mlp", Some("model.layers.12")),
            ("transformer/h/7/attn", Some("transformer/h/7")),
            ("encoder_layer_2_output", Some("encoder_layer_2")),
            ("layers_x_2", None),
            ("x_12", None),
            ("", None),
            ("layers_", None),
        ];
        for (name, expected) in cases {
            assert_eq!(layer(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn endings_of_weights_are_cut() {
        assert_eq!(
            trimmed("model_layers_3_mlp_up_weight_to_fp16_palettized"),
            "model_layers_3_mlp_up"
        );
        assert_eq!(trimmed("_weight"), "_weight");
    }
}
