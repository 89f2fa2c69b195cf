//! The frequencies of rotary embeddings, and how they are scaled for long contexts.

use std::borrow::Cow;

use crate::checkpoint::{Range, RopeConfig, RopeScaling, Yarn};
use crate::error::ModelError;

/// The frequencies of programs for more tokens than the model was first trained for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Long {
    /// Tokens of the longest context whose frequencies are not these.
    pub(super) trained: usize,
    frequencies: LongFrequencies,
}

#[derive(Clone, Debug, PartialEq)]
enum LongFrequencies {
    /// One set for all long contexts (LongRoPE).
    Set(Vec<f32>),
    /// The base is raised with the length of the context.
    Dynamic { theta: f64, factor: f64 },
}

impl Long {
    /// The set for all long contexts; empty with dynamic scaling.
    pub(super) fn set(&self) -> &[f32] {
        match &self.frequencies {
            LongFrequencies::Set(set) => set,
            LongFrequencies::Dynamic { .. } => &[],
        }
    }

    /// The frequencies of `n_rotated` elements in a program for `context` tokens, which are more
    /// than [`Self::trained`].
    ///
    /// Dynamic scaling is that of transformers in one pass over `context` tokens.
    pub(super) fn for_context(&self, context: usize, n_rotated: usize) -> Cow<'_, [f32]> {
        match &self.frequencies {
            LongFrequencies::Set(set) => Cow::Borrowed(set),
            LongFrequencies::Dynamic { theta, factor } => {
                let raised = factor * context as f64 / self.trained as f64 - (factor - 1.0);
                let theta = raised_theta(*theta, raised, n_rotated);
                Cow::Owned(inverse_powers(theta, n_rotated).collect())
            }
        }
    }

    /// With dynamic scaling: the tokens that the model was trained for, and the most that it is
    /// scaled to.
    pub(super) fn dynamic_contexts(&self) -> Option<[usize; 2]> {
        match self.frequencies {
            LongFrequencies::Set(_) => None,
            LongFrequencies::Dynamic { factor, .. } => {
                let most = (self.trained as f64 * factor) as usize;
                Some([self.trained, most.min(Range::MOST_SIZE).max(self.trained)])
            }
        }
    }
}

/// The inverse frequencies of a head's pairs of elements, those of programs for long contexts if
/// they differ, and the factor of cosines and sines. Computed in fp32 like the reference
/// implementation does.
#[allow(clippy::type_complexity)] // one caller, which names the three parts
pub(super) fn scaled_frequencies(
    rope: &RopeConfig,
    theta: f64,
    head_dim: usize,
) -> Result<(Vec<f32>, Option<Long>, f64), ModelError> {
    let share = rope.partial_rotary_factor.unwrap_or(1.0);
    let proportional = matches!(rope.scaling, RopeScaling::Proportional { .. });
    // The reference rounds down.
    let rotated = (head_dim as f64 * share) as usize;
    if share > 1.0 || rotated < 2 || (rotated % 2 == 1 && !proportional) {
        return Err(ModelError::unsupported(
            "partial_rotary_factor",
            share,
            &format!(
                "expected a share of the {head_dim} elements of a head that is an even number"
            ),
        ));
    }
    let dim = if proportional { head_dim } else { rotated };
    let plain = inverse_powers(theta, dim);
    Ok(match &rope.scaling {
        RopeScaling::Default => (plain.collect(), None, 1.0),
        RopeScaling::Dynamic { factor, trained } => {
            let frequencies = LongFrequencies::Dynamic {
                theta,
                factor: *factor,
            };
            let long = trained.map(|trained| Long {
                trained,
                frequencies,
            });
            (plain.collect(), long, 1.0)
        }
        RopeScaling::Linear { factor } => (plain.map(|f| f / *factor as f32).collect(), None, 1.0),
        RopeScaling::NtkAlpha { alpha } => {
            let theta = raised_theta(theta, *alpha, dim);
            (inverse_powers(theta, dim).collect(), None, 1.0)
        }
        RopeScaling::Proportional { factor } => {
            let n = (share * head_dim as f64) as usize / 2;
            let scaled = plain.enumerate();
            let scaled = scaled.map(|(i, f)| if i < n { f / *factor as f32 } else { 0.0 });
            (scaled.collect(), None, 1.0)
        }
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => {
            let context = *original_max_position_embeddings as f64;
            let scaled =
                plain.map(|f| llama3(f, *factor, *low_freq_factor, *high_freq_factor, context));
            (scaled.collect(), None, 1.0)
        }
        RopeScaling::Yarn(yarn) => {
            let frequencies = yarn_frequencies(yarn, theta, &plain.collect::<Vec<f32>>());
            (frequencies, None, yarn.attention_factor)
        }
        RopeScaling::LongRope {
            short_factor,
            long_factor,
            attention_factor,
            original_max_position_embeddings,
        } => {
            let sets = [short_factor, long_factor];
            let [short, long] = long_rope(sets, theta, dim)?;
            let long = Long {
                trained: *original_max_position_embeddings,
                frequencies: LongFrequencies::Set(long),
            };
            (short, Some(long), *attention_factor)
        }
        RopeScaling::Unsupported(name) => {
            return Err(ModelError::unsupported(
                "rope_type",
                name,
                "expected default, linear, dynamic, llama3, yarn, longrope or proportional",
            ));
        }
    })
}

/// LongRoPE: both sets of frequencies, each of which has a divisor for each pair of `n` elements.
fn long_rope(
    [short, long]: [&Vec<f64>; 2],
    theta: f64,
    n: usize,
) -> Result<[Vec<f32>; 2], ModelError> {
    for (key, factors) in [("short_factor", short), ("long_factor", long)] {
        if factors.len() != n / 2 {
            return Err(ModelError::unsupported(
                key,
                format!("{} numbers", factors.len()),
                &format!("expected {}, one for each rotated pair of elements", n / 2),
            ));
        }
    }
    Ok([short, long].map(|factors| {
        let factors = factors.iter().enumerate();
        factors
            .map(|(i, f)| 1.0 / (*f as f32 * power(theta, i, n)))
            .collect()
    }))
}

/// `1 / theta^(2 i / n)` of the pairs of `n` elements.
fn inverse_powers(theta: f64, n: usize) -> impl Iterator<Item = f32> {
    (0..n / 2).map(move |i| 1.0 / power(theta, i, n))
}

fn power(theta: f64, i: usize, n: usize) -> f32 {
    theta.powf(f64::from((2 * i) as f32 / n as f32)) as f32
}

/// The base of `n` rotated elements whose longest wavelength is to be `factor` times as long.
fn raised_theta(theta: f64, factor: f64, n: usize) -> f64 {
    let n = n as f64;
    theta * factor.powf(n / (n - 2.0))
}

/// YaRN: frequencies whose wavelength the original context holds often are kept, those that it
/// holds seldom are divided by the factor, and those between are interpolated.
fn yarn_frequencies(yarn: &Yarn, theta: f64, plain: &[f32]) -> Vec<f32> {
    let dim = 2.0 * plain.len() as f64;
    let context = yarn.original_max_position_embeddings as f64;
    let pair_of = |turns: f64| {
        dim * (context / (turns * 2.0 * std::f64::consts::PI)).ln() / (2.0 * theta.ln())
    };
    let (mut low, mut high) = (pair_of(yarn.beta_fast), pair_of(yarn.beta_slow));
    if yarn.truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
    if low == high {
        high += 0.001;
    }
    let factor = yarn.factor as f32;
    let scaled = plain.iter().enumerate().map(|(i, f)| {
        let ramp = ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
        let keep = 1.0 - ramp;
        (f / factor) * (1.0 - keep) + f * keep
    });
    scaled.collect()
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
