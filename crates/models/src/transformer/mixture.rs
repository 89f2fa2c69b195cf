//! Reads which layers are mixtures of experts, from `config.json` and from GGUF.

use super::Transformer;
use super::config::Defaults;
use super::gguf::{self, Keys};
use crate::checkpoint::{Config, Gguf};
use crate::checks::check_size;
use crate::error::ModelError;
use crate::layers::experts::Experts;
use crate::layers::mlp::Mlp;
use crate::weights::Weights;

/// Largest accepted number of experts; published models have up to 512.
const MAX_EXPERTS: usize = 1 << 14;

/// `expert_gating_func` of GGUF for softmax over all experts.
const SOFTMAX: u32 = 1;

/// How a family spells its mixture of experts, and what it means where the file says nothing.
#[derive(Clone, Copy, Debug)]
pub struct Mixture {
    /// Number of experts.
    pub n_experts: usize,
    /// Number of experts that a token uses.
    pub n_used: usize,
    /// The key and the default of the size between the projections of an expert; `None` for that
    /// of feed-forward layers.
    pub intermediate: Option<(&'static str, usize)>,
    /// Whether probabilities are divided by their sum, unless `norm_topk_prob` says otherwise;
    /// `None` for families that always divide them.
    pub normalized: Option<bool>,
    /// Whether keys say which layers are mixtures.
    pub chooses_layers: bool,
    /// The key and the default of the size between the projections of an expert that all tokens
    /// use.
    pub shared: Option<(&'static str, usize)>,
}

/// Makes the layers that `config.json` names mixtures of experts.
///
/// # Errors
///
/// If a key has the wrong type or a value that is not supported.
pub fn from_config(c: &Config, d: &Mixture, model: &mut Transformer) -> Result<(), ModelError> {
    // Of training alone.
    c.acknowledge(&[
        "output_router_logits",
        "router_aux_loss_coef",
        "router_jitter_noise",
    ]);
    let n_experts = n_experts(c, d)?;
    let used = "num_experts_per_tok";
    let n_used = c.opt_usize(used)?.unwrap_or(d.n_used);
    let normalized = match d.normalized {
        None => true,
        Some(default) => c.bool_or("norm_topk_prob", default)?,
    };
    let size = |(key, default): (&str, usize)| -> Result<usize, ModelError> {
        check_size(key, c.opt_usize(key)?.unwrap_or(default))
    };
    let inner = d.intermediate.map(size).transpose()?;
    let shared = d.shared.map(size).transpose()?;
    let is_mixture = layers(c, d, model.layers.len())?;
    if n_experts == 0 {
        return Ok(());
    }
    check_used(used, n_used, n_experts)?;
    for (layer, _) in model
        .layers
        .iter_mut()
        .zip(is_mixture)
        .filter(|(_, is)| *is)
    {
        layer.experts = Some(Experts {
            normalized,
            ..experts(layer.mlp, (n_experts, n_used), (inner, shared))
        });
    }
    Ok(())
}

/// Reads a GGUF file in which layers with a router are mixtures of experts. `normalized` says
/// whether llama.cpp divides the architecture's probabilities by their sum.
///
/// # Errors
///
/// If a key is missing or its value is not supported.
pub fn read_gguf(
    gguf: &Gguf,
    w: &Weights<'_>,
    d: &Defaults,
    normalized: bool,
) -> Result<Transformer, ModelError> {
    let mut model = gguf::read_dense(gguf, w, d)?;
    from_gguf(gguf, w, normalized, &mut model)?;
    Ok(model)
}

fn from_gguf(
    gguf: &Gguf,
    w: &Weights<'_>,
    normalized: bool,
    model: &mut Transformer,
) -> Result<(), ModelError> {
    let keys = Keys::new(gguf)?;
    let key = keys.key("expert_count");
    let n_experts = gguf.opt_u32(&key)?.unwrap_or(0) as usize;
    let n_used = gguf.opt_u32(&keys.key("expert_used_count"))?.unwrap_or(0) as usize;
    let inner = keys.opt_size("expert_feed_forward_length")?;
    let shared = keys.opt_size("expert_shared_feed_forward_length")?;
    let normalized = gguf
        .opt_bool(&keys.key("expert_weights_norm"))?
        .unwrap_or(normalized);
    let gating = keys.key("expert_gating_func");
    if let Some(other) = gguf.opt_u32(&gating)?.filter(|n| *n != SOFTMAX) {
        return Err(ModelError::unsupported(
            &gating,
            other,
            "expected 1, softmax over all experts",
        ));
    }
    let scale = keys.key("expert_weights_scale");
    if let Some(other) = gguf.opt_f32(&scale)?.filter(|n| *n != 0.0 && *n != 1.0) {
        return Err(ModelError::unsupported(&scale, other, "expected 1"));
    }
    if n_experts == 0 {
        return Ok(());
    }
    check_experts(&key, n_experts)?;
    check_used(&keys.key("expert_used_count"), n_used, n_experts)?;
    for (i, layer) in model.layers.iter_mut().enumerate() {
        if !w.has(&format!("model.layers.{i}.mlp.gate"), "weight") {
            continue;
        }
        layer.experts = Some(Experts {
            normalized,
            ..experts(layer.mlp, (n_experts, n_used), (inner, shared))
        });
    }
    Ok(())
}

/// Experts like the feed-forward layer that they replace, of other sizes where there are such, with
/// one that all tokens share if `shared` says its size.
fn experts(
    mlp: Mlp,
    (n_experts, n_used): (usize, usize),
    (inner, shared): (Option<usize>, Option<usize>),
) -> Experts {
    Experts {
        hidden: mlp.hidden,
        intermediate: inner.unwrap_or(mlp.intermediate),
        activation: mlp.activation,
        n_experts,
        n_used,
        normalized: true,
        shared: shared.map(|intermediate| Mlp {
            intermediate,
            ..mlp
        }),
    }
}

/// The number of experts, which transformers writes under two names.
fn n_experts(c: &Config, d: &Mixture) -> Result<usize, ModelError> {
    let [own, other] = ["num_experts", "num_local_experts"].map(|key| (key, c.opt_usize(key)));
    let (own, other) = ((own.0, own.1?), (other.0, other.1?));
    match (own.1, other.1) {
        (Some(a), Some(b)) if a != b => Err(ModelError::unsupported(
            own.0,
            a,
            &format!("expected {b}, the value of {}", other.0),
        )),
        (None, None) => Ok(d.n_experts),
        // Without experts, all layers are feed-forward layers.
        (Some(0), _) | (None, Some(0)) if d.chooses_layers => Ok(0),
        (Some(n), _) => check_experts(own.0, n),
        (None, Some(n)) => check_experts(other.0, n),
    }
}

/// Which layers are mixtures: every `decoder_sparse_step`-th one that `mlp_only_layers` does not
/// name.
fn layers(c: &Config, d: &Mixture, n_layers: usize) -> Result<Vec<bool>, ModelError> {
    if !d.chooses_layers {
        return Ok(vec![true; n_layers]);
    }
    let step = "decoder_sparse_step";
    let step = check_size(step, c.opt_usize(step)?.unwrap_or(1))?;
    let dense = c.opt_usizes("mlp_only_layers")?.unwrap_or_default();
    let is_mixture = |i: usize| (i + 1).is_multiple_of(step) && !dense.contains(&i);
    Ok((0..n_layers).map(is_mixture).collect())
}

fn check_experts(key: &str, n: usize) -> Result<usize, ModelError> {
    if n == 0 || n > MAX_EXPERTS {
        let reason = format!("expected 1 to {MAX_EXPERTS} experts");
        return Err(ModelError::unsupported(key, n, &reason));
    }
    Ok(n)
}

fn check_used(key: &str, n_used: usize, n_experts: usize) -> Result<(), ModelError> {
    if n_used == 0 || n_used > n_experts {
        let reason = format!("expected 1 to {n_experts}, the number of experts");
        return Err(ModelError::unsupported(key, n_used, &reason));
    }
    Ok(())
}
