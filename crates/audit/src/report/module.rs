//! Finds the module of the checkpoint that an op computes: from the program's own origins, else
//! from the names of weights and ops.

use std::collections::HashMap;

use thane_mil::program::{Op, OpId, ValueId};

use crate::view::View;

/// Words that numbers of layers stand behind: `layers_3`, `features.3`.
const LAYERS: [&str; 9] = [
    "layers", "layer", "blk", "blocks", "block", "h", "features", "stages", "stage",
];
/// Words that end in the number of a layer or stage, as those of torchvision do: `layer1.0`,
/// `block3`, `denselayer2`.
const NUMBERED: [&str; 5] = ["layer", "block", "stage", "denseblock", "denselayer"];
/// Words of stages, which may have layers of their own: `stages.2.blocks.0`.
const STAGES: [&str; 3] = ["stages", "stage", "denseblock"];
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
/// layer it is taken to be of. What follows the last op that names a layer is of none: norms and
/// heads stand there.
pub fn modules(view: &View<'_>, ops: &[OpId]) -> HashMap<OpId, String> {
    let own = ops.iter().map(|id| {
        let op = view.op(*id);
        said(op).or_else(|| named(view, op))
    });
    let own: Vec<Option<String>> = own.collect();
    let names_layer = |place: &Option<String>| place.as_deref().and_then(layer).is_some();
    let end = own.iter().rposition(names_layer).unwrap_or(0);
    let mut places = HashMap::with_capacity(ops.len());
    let mut last = String::new();
    for (at, (&id, place)) in ops.iter().zip(own).enumerate() {
        let place = match place {
            Some(place) => {
                if let Some(layer) = layer(&place) {
                    last = layer;
                }
                place
            }
            None if last.is_empty() || at > end => String::new(),
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
    let weight = weights.map(|v| view.name(v)).next();
    let names = op
        .name
        .iter()
        .map(String::as_str)
        .chain(op.results.iter().map(|r| view.name(*r)));
    let weight = weight.map(trimmed);
    let own = names.map(trimmed).find(|name| layer(name).is_some());
    // The weight's name is that of a tensor, whatever it is; names of ops count where they name a
    // layer. A weight of another layer, or of none, is one that several layers share, or has a name
    // of its own in the checkpoint.
    match (weight, own) {
        (Some(weight), Some(own)) if !are_of_one_layer(&weight, &own) => Some(own),
        (weight, own) => weight.or(own),
    }
}

/// Whether two names are of one layer, with more or fewer modules around it.
fn are_of_one_layer(a: &str, b: &str) -> bool {
    let plain = |name: &str| layer(name).map(|name| name.replace(['.', '/'], "_"));
    let (Some(a), Some(b)) = (plain(a), plain(b)) else {
        return false;
    };
    is_within(&a, &b) || is_within(&b, &a)
}

/// Whether `inner` is the end of `outer` behind other modules, or all of it.
pub fn is_within(outer: &str, inner: &str) -> bool {
    let before = outer.strip_suffix(inner);
    !inner.is_empty() && before.is_some_and(|before| before.is_empty() || before.ends_with('_'))
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
    let words = words(name);
    let (first, last) = (0..words.len()).find_map(|at| Some((at, layer_end(&words, at)?)))?;
    let is_stage = STAGES.contains(&stem(words[first].1).to_ascii_lowercase().as_str());
    let inner = is_stage.then(|| layer_end(&words, last + 1)).flatten();
    let (start, word) = words[inner.unwrap_or(last)];
    Some(name[..start + word.len()].to_owned())
}

/// The last word of the layer that the word `at` begins, if it begins one.
fn layer_end(words: &[(usize, &str)], at: usize) -> Option<usize> {
    let word = words.get(at)?.1.to_ascii_lowercase();
    let is_number = |w: &&(usize, &str)| !w.1.is_empty() && stem(w.1).is_empty();
    let number = words.get(at + 1).filter(is_number).map(|_| at + 1);
    let stem = stem(&word);
    if stem.len() < word.len() && NUMBERED.contains(&stem) {
        return Some(number.unwrap_or(at));
    }
    number.filter(|_| LAYERS.contains(&word.as_str()))
}

/// A word without the digits at its end.
fn stem(word: &str) -> &str {
    word.trim_end_matches(|c: char| c.is_ascii_digit())
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
            ("features_3_conv_0_0_weight", Some("features_3")),
            ("features.3.conv", Some("features.3")),
            (
                "encoder_stages_2_layers_1_dwconv",
                Some("encoder_stages_2_layers_1"),
            ),
            ("stages.2.blocks.0.mlp", Some("stages.2.blocks.0")),
            ("stages_2_downsample", Some("stages_2")),
            ("layer1_0_conv1_weight", Some("layer1_0")),
            ("backbone.layer4.1.bn2", Some("backbone.layer4.1")),
            ("block1_conv2", Some("block1")),
            (
                "features_denseblock2_denselayer11_conv1",
                Some("features_denseblock2_denselayer11"),
            ),
            ("down_blocks_0_resnets_1_conv1", Some("down_blocks_0")),
            ("features_x", None),
            ("layer_norm_3", None),
            ("conv1_weight", None),
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
