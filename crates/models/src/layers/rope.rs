//! Rotary position embedding (RoPE).
//!
//! In fp32 the angles are computed from run-time positions, once per function instead of once per
//! layer, like the reference implementation does, and no table of the context's length is stored.
//! Programs in fp16 gather cosines and sines from tables.

use thane_mil::build::BuildError;
use thane_mil::program::ValueId;

use crate::checkpoint::{RopeConfig, RopeScaling};
use crate::error::ModelError;
use crate::graph::{Graph, Layout, ValueResult};

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Element i with element i + head_dim / 2: Hugging Face.
    Half,
    /// Element 2i with element 2i + 1: GGUF files of the llama architecture, whose rows are
    /// permuted accordingly.
    Interleaved,
}

/// Cosines and sines for one function, both [tokens, head_dim / 2], or [head_dim / 2, tokens] in
/// the channel layout.
#[derive(Clone, Copy, Debug)]
pub struct Rotary {
    cos: ValueId,
    sin: ValueId,
    style: Style,
}

impl Rotary {
    /// Computes the angles of `positions` [tokens], which are floats.
    pub fn new(
        g: &mut Graph,
        positions: ValueId,
        inverse_frequencies: &[f32],
        style: Style,
    ) -> Result<Self, ModelError> {
        g.at_module("rotary");
        let column = g.expand_dims(positions, &[1])?; // [tokens, 1]
        let row = g.floats(inverse_frequencies, &[1, inverse_frequencies.len()])?;
        let angles = g.mul(column, row)?; // [tokens, head_dim / 2]
        let cos = g.op("cos", "cos", [("x", angles)])?;
        let sin = g.op("sin", "sin", [("x", angles)])?;
        Ok(Self { cos, sin, style })
    }

    /// Like [`Self::new`], but gathers from tables of the first `n` positions; `positions` are
    /// int32 [tokens].
    ///
    /// fp16 cannot represent angles beyond a few hundred precisely, and a table that run-time
    /// positions index is the same constant in functions of every length.
    pub fn from_table(
        g: &mut Graph,
        positions: ValueId,
        inverse_frequencies: &[f32],
        n: usize,
        style: Style,
    ) -> Result<Self, ModelError> {
        g.at_module("rotary");
        let table = |f: fn(f32) -> f32| -> Vec<f32> {
            (0..n)
                .flat_map(|p| inverse_frequencies.iter().map(move |w| f(p as f32 * w)))
                .collect()
        };
        let shape = [n, inverse_frequencies.len()];
        let mut part = |values: &[f32]| -> ValueResult {
            let table = g.floats(values, &shape)?;
            let rows = g.gather(table, positions)?; // [tokens, head_dim / 2]
            if g.form().layout == Layout::Rows {
                Ok(rows)
            } else {
                g.transpose(rows, &[1, 0])
            }
        };
        let (cos, sin) = (part(&table(f32::cos))?, part(&table(f32::sin))?);
        Ok(Self { cos, sin, style })
    }

    /// Cosines and sines of the last token, in the row layout.
    pub fn last(&self, g: &mut Graph) -> Result<Self, BuildError> {
        Ok(Self {
            cos: g.last(self.cos, 0)?,
            sin: g.last(self.sin, 0)?,
            style: self.style,
        })
    }

    /// Rotates `x` [batch, heads, tokens, head_dim], or [1, heads, head_dim, tokens] in the channel
    /// layout.
    pub fn apply(&self, g: &mut Graph, x: ValueId) -> ValueResult {
        match self.style {
            Style::Half => {
                let axis = if g.form().layout == Layout::Rows {
                    -1
                } else {
                    2
                };
                let [a, b] = g.halves(x, axis)?;
                let (left, right) = self.rotate(g, a, b)?;
                g.join("concat", &[left, right], axis)
            }
            Style::Interleaved if g.form().layout == Layout::Channels => {
                let (a, b) = (every_second(g, x, 0)?, every_second(g, x, 1)?);
                let (left, right) = self.rotate(g, a, b)?;
                // Queries and keys come out in the same permuted order, which their dot products do
                // not see.
                g.join("concat", &[left, right], 2)
            }
            Style::Interleaved => {
                let dims: Vec<i32> = g
                    .shape(x)
                    .iter()
                    .map(|d| d.known().map_or(-1, |n| n as i32))
                    .collect();
                let pairs = g.reshape(x, &[dims[0], dims[1], dims[2], dims[3] / 2, 2])?;
                let [a, b] = g.halves(pairs, -1)?;
                let (a, b) = (g.squeeze(a, &[-1])?, g.squeeze(b, &[-1])?);
                let (left, right) = self.rotate(g, a, b)?;
                let pairs = g.join("stack", &[left, right], -1)?;
                g.reshape(pairs, &dims)
            }
        }
    }

    /// `(a cos - b sin, b cos + a sin)`.
    fn rotate(
        &self,
        g: &mut Graph,
        a: ValueId,
        b: ValueId,
    ) -> Result<(ValueId, ValueId), BuildError> {
        let (ac, bs) = (g.mul(a, self.cos)?, g.mul(b, self.sin)?);
        let (bc, as_) = (g.mul(b, self.cos)?, g.mul(a, self.sin)?);
        Ok((g.sub(ac, bs)?, g.add(bc, as_)?))
    }
}

/// The elements `first`, `first + 2`, .. of each head in `x` [1, heads, head_dim, tokens].
fn every_second(g: &mut Graph, x: ValueId, first: i32) -> ValueResult {
    let (begin, end, stride) = (
        g.ints(&[0, 0, first, 0])?,
        g.ints(&[0; 4])?,
        g.ints(&[1, 1, 2, 1])?,
    );
    let (begin_mask, end_mask) = (g.bools(&[true, true, false, true])?, g.bools(&[true; 4])?);
    let args = [
        ("x", x),
        ("begin", begin),
        ("end", end),
        ("stride", stride),
        ("begin_mask", begin_mask),
        ("end_mask", end_mask),
    ];
    g.op("slice_by_index", "of_pairs", args)
}

/// The inverse frequencies of a head's pairs of elements, computed in fp32 like the reference
/// implementation does.
pub fn inverse_frequencies(
    rope: &RopeConfig,
    theta: f64,
    head_dim: usize,
) -> Result<Vec<f32>, ModelError> {
    if rope.partial_rotary_factor.is_some_and(|f| f != 1.0) {
        let value = rope.partial_rotary_factor.unwrap_or_default();
        return Err(ModelError::unsupported(
            "partial_rotary_factor",
            value,
            "expected 1, because only whole heads can be rotated",
        ));
    }
    let base = |i: usize| 1.0 / (theta.powf(f64::from((2 * i) as f32 / head_dim as f32)) as f32);
    let plain = (0..head_dim / 2).map(base);
    Ok(match &rope.scaling {
        RopeScaling::Default => plain.collect(),
        RopeScaling::Linear { factor } => plain.map(|f| f / *factor as f32).collect(),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => {
            let context = *original_max_position_embeddings as f64;
            plain
                .map(|f| llama3(f, *factor, *low_freq_factor, *high_freq_factor, context))
                .collect()
        }
        RopeScaling::Unsupported(name) => {
            return Err(ModelError::unsupported(
                "rope_type",
                name,
                "expected default, linear or llama3",
            ));
        }
    })
}

/// Llama 3's frequency scaling: divides frequencies of long wavelengths by `factor`, keeps short
/// ones, and interpolates between.
fn llama3(frequency: f32, factor: f64, low: f64, high: f64, context: f64) -> f32 {
    let wavelength = 2.0 * std::f64::consts::PI / f64::from(frequency);
    if wavelength < context / high {
        return frequency;
    }
    let stretched = f64::from(frequency) / factor;
    if wavelength > context / low {
        return stretched as f32;
    }
    let smooth = (context / wavelength - low) / (high - low);
    ((1.0 - smooth) * stretched + smooth * f64::from(frequency)) as f32
}
