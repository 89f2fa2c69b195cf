//! Reads encoders of the BERT kind from the metadata of GGUF files, as llama.cpp's converters write
//! it (conversion/bert.py, `KEY` constants of the `gguf` package).

use super::post_norm::{Learned, Modules, Positions, PostNorm, Projections};
use crate::checkpoint::{Dense, DenseActivation, Gguf, Range, RopeConfig, RopeScaling, Step};
use crate::checks::{HeadKeys, check_heads, check_layers, check_size, default_head_dim};
use crate::error::ModelError;
use crate::layers::activation::Activation;
use crate::layers::attention::Attention;
use crate::layers::encoder::Direction;
use crate::layers::norm::LayerNorm;
use crate::layers::rope::{Rotation, Style};
use crate::pooling::{Pooling, Poolings};
use crate::weights::Weights;

/// What the files of an architecture do not say.
pub(crate) struct Architecture {
    /// Name in the file, with which its keys begin.
    pub name: &'static str,
    pub modules: Modules,
    pub activation: Activation,
    /// Whether positions are rotary; otherwise they are learned.
    pub is_rotary: bool,
}

/// Reads the configuration of an encoder.
pub(crate) fn read(
    gguf: &Gguf,
    w: &Weights<'_>,
    architecture: Architecture,
) -> Result<PostNorm, ModelError> {
    let Architecture {
        name,
        modules,
        activation,
        is_rotary,
    } = architecture;
    let key = |part: &str| format!("{name}.{part}");
    let size = |part: &str| check_size(&key(part), gguf.u32(&key(part))? as usize);
    let causal = key("attention.causal");
    if gguf.opt_bool(&causal)? == Some(true) {
        return Err(ModelError::unsupported(&causal, true, "expected false"));
    }
    let (hidden, n_heads) = (size("embedding_length")?, size("attention.head_count")?);
    let head_dim = default_head_dim(&key("attention.key_length"), hidden, n_heads)?;
    let n_positions = size("context_length")?;
    let positions = if is_rotary {
        let [width, heads] = ["embedding_length", "attention.head_count"].map(key);
        let keys = HeadKeys {
            heads: &heads,
            kv_heads: &heads,
            head_dim: &format!("{width} / {heads}"),
        };
        check_heads(keys, n_heads, n_heads, head_dim)?;
        let theta = key("rope.freq_base");
        let theta = f64::from(gguf.number(&theta, &Range::THETA)?);
        let rope = RopeConfig {
            theta: Some(theta),
            scaling: RopeScaling::Default,
            partial_rotary_factor: None,
        };
        Positions::Rotary {
            rotation: Some(Rotation::new(&rope, theta, head_dim, Style::Half)?),
            n_positions,
        }
    } else {
        // Rows for the padding token are cut off by the converter.
        Positions::Learned(Learned {
            rows: n_positions,
            padding: None,
            buckets: None,
        })
    };
    let first = |part: &str| format!("{}.{}.0.{part}", modules.base, modules.layers);
    let has_bias = |part: &str| w.has(&first(part), "bias");
    let projection = match modules.projections {
        Projections::Separate([q, ..]) => q,
        Projections::Fused(qkv) => qkv,
    };
    let table = |kind: &str| {
        let module = format!("{}.embeddings.{kind}_embeddings", modules.base);
        w.shape_of(&module, "weight")
            .and_then(|shape| shape.first().copied())
    };
    let epsilon = key("attention.layer_norm_epsilon");
    let n_layers = key("block_count");
    Ok(PostNorm {
        modules,
        attention: Attention {
            output_bias: has_bias(modules.attention_output),
            ..Attention::multi_head(hidden, n_heads, head_dim, has_bias(projection))
        },
        intermediate: size("feed_forward_length")?,
        activation,
        mlp_bias: has_bias(modules.up),
        norm: LayerNorm {
            epsilon: gguf.number(&epsilon, &Range::EPSILON)?,
        },
        n_layers: check_layers(&n_layers, gguf.u32(&n_layers)? as usize)?,
        vocab_size: check_size("token_embd", table("word").unwrap_or(1))?,
        positions,
        n_types: table("token_type").unwrap_or(0),
        n_labels: None,
    })
}

/// Whether the file names a pooling, and so is that of an embedding model.
pub(crate) fn names_pooling(gguf: &Gguf, architecture: &str) -> Result<bool, ModelError> {
    let pooling = gguf.opt_u32(&format!("{architecture}.pooling_type"))?;
    Ok(pooling.is_some_and(|pooling| pooling != 0))
}

/// Whether each token of a decoder that embeds sees all others. The file may say so; otherwise
/// `default` holds, which llama.cpp knows by the architecture.
pub(crate) fn direction(
    gguf: &Gguf,
    architecture: &str,
    default: Direction,
) -> Result<Direction, ModelError> {
    let is_causal = gguf.opt_bool(&format!("{architecture}.attention.causal"))?;
    Ok(match is_causal {
        None => default,
        Some(true) => Direction::Causal,
        Some(false) => Direction::Bidirectional,
    })
}

/// The dense layers behind the pooling, as converters of sentence-transformers write them: without
/// biases, and with their sizes as keys. The file does not say whether vectors are normalized;
/// llama.cpp's programs do it unless told otherwise.
pub(crate) fn steps(
    gguf: &Gguf,
    architecture: &str,
    w: &Weights<'_>,
) -> Result<Vec<Step>, ModelError> {
    let mut steps = Vec::new();
    for name in ["dense_2", "dense_3"] {
        let Some(&[outputs, inputs]) = w.shape_of(&format!("{name}.linear"), "weight") else {
            continue;
        };
        for (part, size) in [("in", inputs), ("out", outputs)] {
            let key = format!("{architecture}.{name}_feat_{part}");
            let found = gguf.opt_u32(&key)?.map(|n| n as usize);
            if found.is_some_and(|found| found != size) {
                let expected = format!("expected {size}, as {name}.weight has");
                return Err(ModelError::unsupported(&key, found.unwrap_or(0), &expected));
            }
        }
        steps.push(Step::Dense(Dense {
            folder: name.to_owned(),
            inputs,
            outputs,
            bias: false,
            activation: DenseActivation::Named("Identity"),
            residual: false,
        }));
    }
    steps.push(Step::Normalize);
    Ok(steps)
}

/// The pooling of an embedding model, if the file names one. Source: `PoolingType` of the `gguf`
/// package.
pub(crate) fn pooling(gguf: &Gguf, architecture: &str) -> Result<Option<Poolings>, ModelError> {
    let key = format!("{architecture}.pooling_type");
    Ok(Some(match gguf.opt_u32(&key)? {
        None | Some(0) => return Ok(None),
        Some(1) => Pooling::Mean.into(),
        Some(2) => Pooling::Cls.into(),
        Some(3) => Pooling::LastToken.into(),
        Some(other) => {
            return Err(ModelError::unsupported(
                &key,
                other,
                "expected 1 (mean), 2 (cls) or 3 (last); 4 is a reranker, which is only supported \
                 as a Hugging Face folder",
            ));
        }
    }))
}
