//! Checkpoints of llama2.c, such as the TinyStories models: Llama with rotary pairs side by side.
//!
//! The file says no more than sizes: the other numbers are those of `run.c`.

use super::Family;
use crate::layers::rope::Style;
use crate::transformer::config::{self, Defaults};

pub(super) const FAMILY: Family = Family {
    names: &["llama2.c"],
    about: "TinyStories, llama2.c .bin files",
    checked: &[
        "tiny/llama2c-v0",
        "tiny/llama2c-v0-head",
        "tiny/llama2c-v1",
        "tiny/llama2c-v2",
    ],
    config: Some(|c, w| config::decoder(config::read(c, &DEFAULTS)?, w)),
    ..Family::NONE
};

const DEFAULTS: Defaults = Defaults {
    epsilon: 1e-5,
    theta: 10_000.0,
    style: Style::Interleaved,
    ..Defaults::LLAMA
};
