//! StarCoder2: LayerNorm, biases everywhere, and a feed-forward layer without a gate.

use super::{DecoderResult, Family, GGUF_NORMS_BEFORE};
use crate::checkpoint::Config;
use crate::layers::decoder::Mask;
use crate::layers::mlp::MlpKind;
use crate::transformer::config::{self, Defaults, KvHeads, LAYER_NORM_BIAS};
use crate::transformer::gguf;
use crate::weights::Weights;

pub(super) const FAMILY: Family = Family {
    names: &["starcoder2"],
    about: "StarCoder2",
    checked: &[
        "tiny/starcoder2",
        "tiny/starcoder2-full",
        "tiny-gguf/starcoder2-full",
    ],
    tensor_names: &[
        ("model.layers.{}.mlp.up_proj", "model.layers.{}.mlp.c_fc"),
        (
            "model.layers.{}.mlp.down_proj",
            "model.layers.{}.mlp.c_proj",
        ),
    ],
    gguf_names: GGUF_NORMS_BEFORE,
    config: Some(from_config),
    gguf: Some(|file, w| gguf::read(file, w, &DEFAULTS)),
    ..Family::NONE
};

/// Defaults of Starcoder2Config.
const DEFAULTS: Defaults = Defaults {
    activation: "gelu_pytorch_tanh",
    epsilon_key: "norm_epsilon",
    epsilon: 1e-5,
    norm: LAYER_NORM_BIAS,
    kv_heads: KvHeads::NotNull(2),
    max_context: 4096,
    tied: true,
    mlp: MlpKind::Plain,
    ..Defaults::LLAMA
};

fn from_config(c: &Config, w: &Weights<'_>) -> DecoderResult {
    c.acknowledge(&[
        "embedding_dropout",
        "mlp_type",
        "norm_type",
        "residual_dropout",
    ]);
    let mut model = config::read(c, &DEFAULTS)?;
    let bias = Some(("use_bias", true));
    config::read_biases(c, &mut model, bias, bias)?;
    model.window = config::read_window(c, None)?;
    let mask = model.window.map_or(Mask::Full, |_| Mask::Sliding);
    model.change_layers(|layer| layer.mask = mask);
    config::decoder(model, w)
}
