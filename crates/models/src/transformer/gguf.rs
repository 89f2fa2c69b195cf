//! Reads a [`Transformer`] from the metadata of a GGUF file.

use super::config::{Defaults, RMS, by_pattern};
use super::{Layer, Transformer};
use crate::checkpoint::gguf::Value;
use crate::checkpoint::{Gguf, MetadataError, Range, RopeConfig, RopeScaling, Yarn};
use crate::checks::{
    HeadKeys, check_heads, check_layers, check_positive, check_size, default_head_dim,
};
use crate::error::ModelError;
use crate::layers::attention::{Attention, QkNorm};
use crate::layers::decoder::Mask;
use crate::layers::mlp::{Activation, Mlp};
use crate::layers::norm::Norm;
use crate::layers::rope::Rotation;
use crate::weights::Weights;

const HEADS: &str = "attention.head_count";
const KV_HEADS: &str = "attention.head_count_kv";
const HEAD_DIM: &str = "attention.key_length";
/// Base of the rotary frequencies where the file has none: that of llama.cpp for all architectures.
const THETA: f64 = 10_000.0;

/// The metadata of an architecture: keys begin with its name.
#[derive(Clone, Copy)]
pub struct Keys<'a> {
    gguf: &'a Gguf,
    architecture: &'a str,
}

impl<'a> Keys<'a> {
    /// The metadata of the architecture that the file names.
    ///
    /// # Errors
    ///
    /// If the file names none.
    pub fn new(gguf: &'a Gguf) -> Result<Self, ModelError> {
        let architecture = gguf.str("general.architecture")?;
        Ok(Self { gguf, architecture })
    }

    /// The key `name` of the architecture.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// Rejects a file that lacks keys which llama.cpp's converter always writes for the
    /// architecture. Without such a key a default would hold, which may be that of another model.
    ///
    /// # Errors
    ///
    /// All keys that are missing.
    pub fn require(&self, names: &[&str]) -> Result<(), ModelError> {
        let keys = names.iter().map(|name| self.key(name));
        let keys: Vec<String> = keys.filter(|key| !self.gguf.has(key)).collect();
        if keys.is_empty() {
            return Ok(());
        }
        Err(MetadataError::NotWritten { keys }.into())
    }

    /// Whether the key `name` is present.
    pub fn has(&self, name: &str) -> bool {
        self.gguf.has(&self.key(name))
    }

    /// The number of layers.
    ///
    /// # Errors
    ///
    /// If the key is missing or no size.
    fn n_layers(&self) -> Result<usize, ModelError> {
        let key = self.key("block_count");
        check_layers(&key, self.gguf.u32(&key)? as usize)
    }

    /// A size.
    ///
    /// # Errors
    ///
    /// If the key is missing or no size.
    pub fn size(&self, name: &str) -> Result<usize, ModelError> {
        let key = self.key(name);
        check_size(&key, self.gguf.u32(&key)? as usize)
    }

    /// A size, if the key is present.
    ///
    /// # Errors
    ///
    /// If the key is no size.
    pub fn opt_size(&self, name: &str) -> Result<Option<usize>, ModelError> {
        let key = self.key(name);
        let size = self.gguf.opt_u32(&key)?;
        size.map(|n| check_size(&key, n as usize)).transpose()
    }

    /// The size of a head: an even number that does not overflow shapes.
    ///
    /// # Errors
    ///
    /// If the key is missing or no such size.
    pub fn head_size(&self, name: &str, n_heads: usize) -> Result<usize, ModelError> {
        let size = self.size(name)?;
        let (heads, key) = (self.key(HEADS), self.key(name));
        let keys = HeadKeys {
            heads: &heads,
            kv_heads: &heads,
            head_dim: &key,
        };
        check_heads(keys, n_heads, n_heads, size).map(|()| size)
    }

    /// Records that a size in the shapes of tensors is the product of these keys. Keys that the
    /// file lacks say nothing.
    pub fn name_size(&self, w: &Weights<'_>, size: usize, names: &[&str]) {
        if names.iter().all(|name| self.has(name)) {
            let keys = names.iter().map(|name| format!("`{}`", self.key(name)));
            w.name_size(size, keys.collect::<Vec<_>>().join(" * "));
        }
    }

    /// A list with a number for each layer, if the key is present and a list.
    ///
    /// # Errors
    ///
    /// If the list has another length.
    pub fn opt_list_of_layers(&self, name: &str) -> Result<Option<Vec<i32>>, ModelError> {
        let key = self.key(name);
        if !matches!(self.gguf.value(&key), Some(Value::Array(_))) {
            return Ok(None);
        }
        let list = self.gguf.i32s(&key)?;
        check_list(&key, list.len(), self.n_layers()?)?;
        Ok(Some(list))
    }

    /// A size for each layer, if the key is present: a list, or one size for all layers. A 0 in a
    /// list means that the layer has nothing of that size; it gets the size of another layer.
    ///
    /// # Errors
    ///
    /// If the key is no size, or the list has another length.
    pub fn opt_sizes_of_layers(&self, name: &str) -> Result<Option<Vec<usize>>, ModelError> {
        let n_layers = self.n_layers()?;
        let Some(sizes) = self.opt_list_of_layers(name)? else {
            return Ok(self.opt_size(name)?.map(|size| vec![size; n_layers]));
        };
        let key = self.key(name);
        let some = sizes.iter().copied().find(|n| *n != 0).unwrap_or(0);
        let size = |n| usize::try_from(if n == 0 { some } else { n }).unwrap_or(0);
        let sizes = sizes.into_iter().map(|n| check_size(&key, size(n)));
        sizes.collect::<Result<Vec<usize>, _>>().map(Some)
    }

    /// A number within a range, if the key is present.
    ///
    /// # Errors
    ///
    /// If the key is no number, or beyond the range.
    pub fn opt_number(&self, name: &str, range: &Range) -> Result<Option<f64>, ModelError> {
        let number = self.gguf.opt_number(&self.key(name), range)?;
        Ok(number.map(f64::from))
    }

    /// The base of rotary frequencies, if the key is present.
    ///
    /// # Errors
    ///
    /// If the key is no number, or beyond the range.
    pub fn opt_theta(&self, name: &str) -> Result<Option<f64>, ModelError> {
        self.opt_number(name, &Range::THETA)
    }

    /// A cap of scores or logits, if the key is present.
    ///
    /// # Errors
    ///
    /// If the key is no number, or beyond the range.
    pub fn opt_cap(&self, name: &str) -> Result<Option<f32>, ModelError> {
        Ok(self.gguf.opt_number(&self.key(name), &Range::SOFT_CAP)?)
    }

    /// A multiplier, divisor or scaling, if the key is present.
    ///
    /// # Errors
    ///
    /// If the key is no number, or beyond the range.
    pub fn opt_factor(&self, name: &str) -> Result<Option<f64>, ModelError> {
        self.opt_number(name, &Range::FACTOR)
    }

    /// The window of sliding-window layers; 0 means that there are none, as in Phi-4.
    ///
    /// # Errors
    ///
    /// If the key is no size.
    pub fn window(&self) -> Result<Option<usize>, ModelError> {
        let name = "attention.sliding_window";
        match self.gguf.opt_u32(&self.key(name))? {
            None | Some(0) => Ok(None),
            Some(_) => self.opt_size(name),
        }
    }
}

/// Reads the keys that almost all decoders have. Biases and norms of queries and keys are there if
/// their tensors are.
///
/// # Errors
///
/// If a key is missing or its value is not supported.
pub fn read(gguf: &Gguf, w: &Weights<'_>, d: &Defaults) -> Result<Transformer, ModelError> {
    refuse_experts(Keys::new(gguf)?)?;
    read_dense(gguf, w, d)
}

/// Like [`read`], of a family whose norms add 1 to their weights, which the converter has done.
///
/// # Errors
///
/// If a key is missing or its value is not supported.
pub fn read_plus_one(
    gguf: &Gguf,
    w: &Weights<'_>,
    d: &Defaults,
) -> Result<Transformer, ModelError> {
    read(gguf, w, &Defaults { norm: RMS, ..*d })
}

/// Like [`read`], of a file whose experts the caller reads.
///
/// # Errors
///
/// If a key is missing or its value is not supported.
pub fn read_dense(gguf: &Gguf, w: &Weights<'_>, d: &Defaults) -> Result<Transformer, ModelError> {
    let keys = Keys::new(gguf)?;
    let hidden = keys.size("embedding_length")?;
    let n_heads = keys.size(HEADS)?;
    let n_layers = keys.n_layers()?;
    let n_kv_heads = keys.opt_sizes_of_layers(KV_HEADS)?;
    let n_kv_heads = n_kv_heads.unwrap_or_else(|| vec![n_heads; n_layers]);
    let head_dim = match keys.opt_size(HEAD_DIM)? {
        Some(n) => n,
        None => default_head_dim(&keys.key(HEAD_DIM), hidden, n_heads)?,
    };
    let head_keys = [HEADS, KV_HEADS, HEAD_DIM].map(|name| keys.key(name));
    let head_keys = HeadKeys {
        heads: &head_keys[0],
        kv_heads: &head_keys[1],
        head_dim: &head_keys[2],
    };
    for n in &n_kv_heads {
        check_heads(head_keys, n_heads, *n, head_dim)?;
    }
    let values = keys.opt_size("attention.value_length")?.unwrap_or(head_dim);
    if values != head_dim {
        let reason = format!(
            "expected the size of a key head, `{}`, {head_dim}",
            head_keys.head_dim
        );
        let key = keys.key("attention.value_length");
        return Err(ModelError::unsupported(&key, values, &reason));
    }
    let norm = d.norm.with_epsilon(epsilon(keys, d)?);
    let has = |module: &str| w.has(&format!("model.layers.0.{module}"), "bias");
    let qk = w.has("model.layers.0.self_attn.q_norm", "weight");
    let rotation = rotation(gguf, w, keys, d, head_dim)?;
    let attention = Attention {
        qkv_bias: has("self_attn.q_proj") || has("self_attn.qkv_proj"),
        output_bias: has("self_attn.o_proj"),
        qk_norm: match norm {
            Norm::Rms(norm) if qk => Some(QkNorm::of_heads(norm)),
            _ => None,
        },
        ..Attention::multi_head(hidden, n_heads, head_dim, false)
    };
    let inner = match keys.opt_sizes_of_layers("feed_forward_length")? {
        Some(inner) => inner,
        None => vec![keys.size("feed_forward_length")?; n_layers],
    };
    let mlp = Mlp {
        hidden,
        intermediate: inner[0],
        activation: Activation::from_name(d.activation_key, d.activation)?,
        bias: has("mlp.up_proj"),
        kind: d.mlp,
    };
    let mut layers = vec![Layer::new(attention, mlp, norm, d.norms); n_layers];
    for (layer, (n_kv_heads, inner)) in layers.iter_mut().zip(n_kv_heads.into_iter().zip(inner)) {
        layer.attention.n_kv_heads = n_kv_heads;
        layer.mlp.intermediate = inner;
    }
    let (vocab_size, context) = (vocab_size(gguf, w, keys)?, keys.size("context_length")?);
    name_sizes(keys, w, &layers, vocab_size);
    Ok(Transformer {
        rotations: vec![rotation],
        tied: !w.has("lm_head", "weight"),
        head_bias: w.has("lm_head", "bias"),
        ..Transformer::of_layers(layers, vocab_size, context)
    })
}

/// Says which keys the shapes of tensors follow from.
fn name_sizes(keys: Keys<'_>, w: &Weights<'_>, layers: &[Layer], vocab_size: usize) {
    keys.name_size(w, vocab_size, &["vocab_size"]);
    for Layer { attention, mlp, .. } in layers {
        let Attention {
            n_heads,
            n_kv_heads,
            head_dim,
            ..
        } = *attention;
        keys.name_size(w, attention.hidden, &["embedding_length"]);
        keys.name_size(w, head_dim, &[HEAD_DIM]);
        keys.name_size(w, n_heads * head_dim, &[HEADS, HEAD_DIM]);
        keys.name_size(w, n_kv_heads * head_dim, &[KV_HEADS, HEAD_DIM]);
        keys.name_size(w, mlp.intermediate, &["feed_forward_length"]);
    }
}

/// The masks of layers as the file says: a list that says of each layer whether it slides, or a
/// number n for full attention in every n-th layer. Without the key, `pattern` is that number.
///
/// # Errors
///
/// If the pattern in the file is neither a size nor a list of bools for all layers.
pub fn masks(keys: Keys<'_>, n_layers: usize, pattern: usize) -> Result<Vec<Mask>, ModelError> {
    let name = "attention.sliding_window_pattern";
    let key = keys.key(name);
    if !matches!(keys.gguf.value(&key), Some(Value::Array(_))) {
        let pattern = keys.opt_size(name)?.unwrap_or(pattern);
        return by_pattern(&key, n_layers, pattern);
    }
    let slides = keys.gguf.opt_bools(&key)?.unwrap_or_default();
    check_list(&key, slides.len(), n_layers)?;
    let mask = |slides| if slides { Mask::Sliding } else { Mask::Full };
    Ok(slides.into_iter().map(mask).collect())
}

fn check_list(key: &str, len: usize, n_layers: usize) -> Result<(), ModelError> {
    if len == n_layers {
        return Ok(());
    }
    Err(ModelError::unsupported(
        key,
        format!("a list of {len}"),
        &format!("expected one for each of the {n_layers} layers"),
    ))
}

fn refuse_experts(keys: Keys<'_>) -> Result<(), ModelError> {
    let key = keys.key("expert_count");
    // A dense Hunyuan model may say that it has 1 expert, as in llama.cpp.
    let most = if keys.architecture == "hunyuan-dense" {
        keys.gguf.opt_u32(&keys.key("expert_used_count"))?;
        1
    } else {
        0
    };
    match keys.gguf.opt_u32(&key)?.filter(|n| *n > most) {
        None => Ok(()),
        Some(n) => Err(ModelError::unsupported(
            &key,
            n,
            "mixtures of experts are not supported in this architecture",
        )),
    }
}

fn epsilon(keys: Keys<'_>, d: &Defaults) -> Result<f32, ModelError> {
    let name = match d.norm {
        Norm::Rms(_) => "attention.layer_norm_rms_epsilon",
        Norm::Layer { .. } => "attention.layer_norm_epsilon",
    };
    let key = keys.key(name);
    Ok(keys.gguf.number(&key, &Range::EPSILON)?)
}

/// The rotary embedding. Llama 3's scaling is stored as one divisor for each frequency.
fn rotation(
    gguf: &Gguf,
    w: &Weights<'_>,
    keys: Keys<'_>,
    d: &Defaults,
    head_dim: usize,
) -> Result<Rotation, ModelError> {
    let name = "rope.dimension_count";
    let rotated = keys
        .opt_size(name)?
        .unwrap_or((head_dim as f64 * d.rotated_share.unwrap_or(1.0)) as usize);
    if rotated > head_dim || rotated % 2 == 1 || (d.rotated_share.is_none() && rotated != head_dim)
    {
        let reason = match d.rotated_share {
            None => "expected the size of a key head".to_owned(),
            Some(_) => format!("expected an even number up to {head_dim}, the size of a key head"),
        };
        return Err(ModelError::unsupported(&keys.key(name), rotated, &reason));
    }
    let theta = keys.opt_theta("rope.freq_base")?.unwrap_or(THETA);
    let rope = RopeConfig {
        theta: Some(theta),
        scaling: scaling(gguf, w, keys, rotated / 2)?,
        partial_rotary_factor: Some(rotated as f64 / head_dim as f64),
    };
    let rotation = Rotation::new(&rope, theta, head_dim, d.style)?;
    if !w.has("rope_freqs", "weight") {
        return Ok(rotation);
    }
    let Some(divisors) = w.floats("rope_freqs", "weight", rotation.n_pairs()) else {
        return Ok(rotation);
    };
    for divisor in &divisors {
        check_positive("rope_freqs.weight", f64::from(*divisor))?;
    }
    Ok(rotation.divided(&divisors))
}

/// The rotary embedding of sliding-window layers that share nothing but the base with the others,
/// and not even the base if the file has one for them.
///
/// # Errors
///
/// If a base is not positive.
pub fn sliding_rotation(
    keys: Keys<'_>,
    d: &Defaults,
    head_dim: usize,
) -> Result<Rotation, ModelError> {
    let base = keys.opt_theta("rope.freq_base")?;
    let rope = RopeConfig {
        theta: keys.opt_theta("rope.freq_base_swa")?.or(base),
        scaling: RopeScaling::Default,
        partial_rotary_factor: None,
    };
    Rotation::new(&rope, THETA, head_dim, d.style)
}

/// The frequency scaling in the metadata. A factor without a type means linear scaling, as in
/// llama.cpp; tensors of factors mean LongRoPE.
fn scaling(
    gguf: &Gguf,
    w: &Weights<'_>,
    keys: Keys<'_>,
    n_pairs: usize,
) -> Result<RopeScaling, ModelError> {
    let key = |name: &str| keys.key(&format!("rope.scaling.{name}"));
    let (ty, factor) = (gguf.opt_str(&key("type"))?, gguf.opt_f32(&key("factor"))?);
    // Converters write this key for scalings that do not need it, too.
    gguf.opt_u32(&key("original_context_length"))?;
    if w.has("rope_factors_long", "weight") {
        return long_rope(gguf, w, keys, n_pairs);
    }
    match (ty, factor) {
        (None | Some("none"), None) => Ok(RopeScaling::Default),
        (Some("none"), Some(1.0)) => Ok(RopeScaling::Default),
        (Some("none"), Some(factor)) => Err(ModelError::unsupported(
            &key("factor"),
            factor,
            "expected no factor, because the type is none",
        )),
        (None | Some("linear"), _) => Ok(RopeScaling::Linear {
            factor: gguf.number(&key("factor"), &Range::FACTOR)?.into(),
        }),
        (Some("yarn"), _) => yarn(gguf, keys),
        (Some(other), _) => Err(ModelError::unsupported(
            &key("type"),
            other,
            "expected none, linear or yarn",
        )),
    }
}

fn yarn(gguf: &Gguf, keys: Keys<'_>) -> Result<RopeScaling, ModelError> {
    let opt_number = |name: &str| keys.opt_factor(&format!("rope.scaling.{name}"));
    let number = |name: &str, default: f64| -> Result<f64, ModelError> {
        Ok(opt_number(name)?.unwrap_or(default))
    };
    let factor = keys.key("rope.scaling.factor");
    let factor = f64::from(gguf.number(&factor, &Range::FACTOR)?);
    let original = keys.size("rope.scaling.original_context_length")?;
    let by_factor = |mscale: f64| 1.0 + 0.1 * mscale * factor.max(1.0).ln();
    // The first key is `attention_factor` of config.json, which llama.cpp does not read. In
    // published files that factor is 1 + 0.1 * ln(factor), which llama.cpp multiplies cosines by.
    // The second key is `mscale_all_dim`, beside an `mscale` of 1.
    let attention_factor = match (
        opt_number("yarn_attn_factor")?,
        opt_number("yarn_log_multiplier")?,
    ) {
        (Some(given), _) => given,
        (None, Some(mscale)) => by_factor(1.0) / by_factor(mscale),
        (None, None) => by_factor(1.0),
    };
    let attention_factor = number("attn_factor", 1.0)? * attention_factor;
    Ok(RopeScaling::Yarn(Yarn {
        factor,
        original_max_position_embeddings: original,
        beta_fast: number("yarn_beta_fast", 32.0)?,
        beta_slow: number("yarn_beta_slow", 1.0)?,
        attention_factor,
        truncate: true,
    }))
}

fn long_rope(
    gguf: &Gguf,
    w: &Weights<'_>,
    keys: Keys<'_>,
    n_pairs: usize,
) -> Result<RopeScaling, ModelError> {
    let factors = |name: &str| -> Result<Vec<f64>, ModelError> {
        // A fault is reported with those of other tensors.
        let factors = w.floats(name, "weight", n_pairs);
        let factors = factors.unwrap_or_else(|| vec![1.0; n_pairs]);
        factors
            .iter()
            .map(|f| check_positive(&format!("{name}.weight"), f64::from(*f)))
            .collect()
    };
    // The type, if there is one, says the same.
    gguf.opt_str(&keys.key("rope.scaling.type"))?;
    Ok(RopeScaling::LongRope {
        short_factor: factors("rope_factors_short")?,
        long_factor: factors("rope_factors_long")?,
        attention_factor: keys.opt_factor("rope.scaling.attn_factor")?.unwrap_or(1.0),
        original_max_position_embeddings: keys.size("rope.scaling.original_context_length")?,
    })
}

/// Number of rows of the embedding: the key if it is present, otherwise the shape of the tensor.
fn vocab_size(gguf: &Gguf, w: &Weights<'_>, keys: Keys<'_>) -> Result<usize, ModelError> {
    let key = keys.key("vocab_size");
    let shape = w.shape_of("model.embed_tokens", "weight");
    let rows = shape.and_then(|s| s.first().copied()).unwrap_or(1);
    check_size(&key, gguf.opt_u32(&key)?.map_or(rows, |n| n as usize))
}
