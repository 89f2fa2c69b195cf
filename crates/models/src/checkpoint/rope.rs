//! Rotary position embedding as `config.json` has it, in either spelling, brought to one form.
//!
//! Old: `rope_theta` and `rope_scaling` side by side, and Gemma's `rope_local_base_freq` for its
//! sliding layers. New: `rope_parameters`, one object with `rope_theta` and `rope_type`, or one
//! such object per layer type.

use super::config::{Config, ConfigError, shorten};

/// The layer types that Gemma's old spelling speaks of.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// The rotary embedding of a model.
#[derive(Debug, Clone, PartialEq)]
pub enum Rope {
    /// All layers have the same.
    Uniform(RopeConfig),
    /// Layer type, such as `full_attention`, and what its layers have; in the file's order.
    PerLayerType(Vec<(String, RopeConfig)>),
}

impl Rope {
    /// What layers of this type have.
    pub fn layer_type(&self, name: &str) -> Option<&RopeConfig> {
        match self {
            Self::Uniform(config) => Some(config),
            Self::PerLayerType(types) => types
                .iter()
                .find(|(ty, _)| ty == name)
                .map(|(_, config)| config),
        }
    }
}

/// The rotary embedding of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies; `None` where the file leaves it to the family's own default.
    pub theta: Option<f64>,
    /// How frequencies are stretched.
    pub scaling: RopeScaling,
    /// The part of a head's dimensions that is rotated, where the file says so.
    pub partial_rotary_factor: Option<f64>,
}

/// How the frequencies of a rotary embedding are stretched.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// All divided by `factor`.
    Linear {
        /// At least 1 in every published model.
        factor: f64,
    },
    /// Llama 3's: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths longer than the original context over this are divided.
        low_freq_factor: f64,
        /// Wavelengths shorter than the original context over this are kept; greater than
        /// `low_freq_factor`.
        high_freq_factor: f64,
        /// Context length before stretching.
        original_max_position_embeddings: usize,
    },
    /// A type that is not supported, by name (`dynamic`, `yarn`, `longrope`, ...): the family
    /// refuses it.
    Unsupported(String),
}

/// What one spelling says; absent parts are left open.
#[derive(Debug, Clone, Default, PartialEq)]
struct Part {
    theta: Option<f64>,
    scaling: Option<RopeScaling>,
    partial_rotary_factor: Option<f64>,
}

impl Config {
    /// The rotary embedding, from either spelling; where both are given, they must agree.
    pub fn rope(&self) -> Result<Rope, ConfigError> {
        let old = self.old_full()?;
        let old_sliding = self.positive("rope_local_base_freq")?.map(|theta| Part {
            theta: Some(theta),
            ..Part::default()
        });
        let new = self.opt_object("rope_parameters")?;
        let Some(new) = new else {
            return Ok(match old_sliding {
                None => Rope::Uniform(old.finish()),
                Some(sliding) => Rope::PerLayerType(vec![
                    (FULL.into(), old.finish()),
                    (SLIDING.into(), sliding.finish()),
                ]),
            });
        };
        if !new.is_per_layer_type()? {
            if old_sliding.is_some() {
                return Err(contradiction(
                    "rope_local_base_freq",
                    "rope_parameters",
                    "one of them has a layer type more",
                ));
            }
            return Ok(Rope::Uniform(
                merge(
                    old,
                    new.part(self)?,
                    "rope_theta/rope_scaling",
                    "rope_parameters",
                )?
                .finish(),
            ));
        }
        self.per_layer_type(&new, old, old_sliding)
    }

    fn per_layer_type(
        &self,
        new: &Self,
        old: Part,
        old_sliding: Option<Part>,
    ) -> Result<Rope, ConfigError> {
        let mut types = Vec::new();
        for name in new.keys().map(str::to_owned).collect::<Vec<_>>() {
            let Some(inner) = new.opt_object(&name)? else {
                continue;
            };
            let part = inner.part(self)?;
            let path = new.path(&name);
            let part = match name.as_str() {
                FULL => merge(old.clone(), part, "rope_theta/rope_scaling", &path)?,
                SLIDING => merge(
                    old_sliding.clone().unwrap_or_default(),
                    part,
                    "rope_local_base_freq",
                    &path,
                )?,
                _ => part,
            };
            types.push((name, part.finish()));
        }
        Ok(Rope::PerLayerType(types))
    }

    /// The old spelling; for a model with sliding layers, what it says of the full ones.
    fn old_full(&self) -> Result<Part, ConfigError> {
        let theta = self.positive("rope_theta")?;
        let scaling = self.opt_object("rope_scaling")?;
        let inner = scaling
            .map(|scaling| scaling.part(self))
            .transpose()?
            .unwrap_or_default();
        let partial_rotary_factor = self.positive("partial_rotary_factor")?;
        merge(
            Part {
                theta,
                scaling: None,
                partial_rotary_factor,
            },
            inner,
            "rope_theta",
            "rope_scaling.rope_theta",
        )
    }

    /// Whether the members of this object are objects, one for each layer type.
    fn is_per_layer_type(&self) -> Result<bool, ConfigError> {
        let keys = || self.keys().filter(|key| self.has(key));
        let objects = keys().filter(|key| self.is_object(key)).count();
        if objects == 0 {
            return Ok(false);
        }
        match keys().find(|key| !self.is_object(key)) {
            None => Ok(true),
            Some(key) => Err(ConfigError::Type {
                key: self.path(key),
                expected: "an object, as beside it, for a layer type",
                found: self.value(key).map(shorten).unwrap_or_default(),
            }),
        }
    }

    /// Reads this object as the parameters of one rotary embedding. `root` may hold the original
    /// context length.
    fn part(&self, root: &Self) -> Result<Part, ConfigError> {
        let theta = self.positive("rope_theta")?;
        let partial_rotary_factor = self.positive("partial_rotary_factor")?;
        let scaling = match self.rope_type()? {
            None => None,
            Some("default") => Some(RopeScaling::Default),
            Some("linear") => Some(RopeScaling::Linear {
                factor: self.required_positive("factor")?,
            }),
            Some("llama3") => Some(self.llama3(root)?),
            Some(other) => Some(RopeScaling::Unsupported(other.to_owned())),
        };
        Ok(Part {
            theta,
            scaling,
            partial_rotary_factor,
        })
    }

    /// `rope_type`, or `type` as it was once called.
    fn rope_type(&self) -> Result<Option<&str>, ConfigError> {
        let (new, old) = (self.opt_str("rope_type")?, self.opt_str("type")?);
        if let (Some(new), Some(old)) = (new, old)
            && new != old
        {
            let detail = format!("{new:?} and {old:?}");
            return Err(contradiction(
                &self.path("rope_type"),
                &self.path("type"),
                &detail,
            ));
        }
        let named = new.or(old);
        // A factor without a type was never valid; to take it for "default" would drop it in
        // silence.
        if named.is_none() && self.has("factor") {
            return Err(ConfigError::Missing {
                key: self.path("rope_type"),
                expected: "a string",
            });
        }
        Ok(named)
    }

    fn llama3(&self, root: &Self) -> Result<RopeScaling, ConfigError> {
        let key = "original_max_position_embeddings";
        let original = match self.opt_usize(key)? {
            Some(original) => Some(original),
            None => root.opt_usize(key)?,
        };
        let Some(original_max_position_embeddings) = original.filter(|&original| original > 0)
        else {
            return Err(ConfigError::Missing {
                key: self.path(key),
                expected: "a whole number above zero",
            });
        };
        let low_freq_factor = self.required_positive("low_freq_factor")?;
        let high_freq_factor = self.required_positive("high_freq_factor")?;
        if low_freq_factor >= high_freq_factor {
            return Err(ConfigError::Value {
                key: self.path("low_freq_factor"),
                expected: "less than high_freq_factor",
                found: format!("{low_freq_factor}, high_freq_factor {high_freq_factor}"),
            });
        }
        let factor = self.required_positive("factor")?;
        Ok(RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        })
    }

    fn positive(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        let number = self.opt_f64(key)?;
        match number {
            Some(number) if number <= 0.0 => Err(ConfigError::Value {
                key: self.path(key),
                expected: "above zero",
                found: number.to_string(),
            }),
            number => Ok(number),
        }
    }

    fn required_positive(&self, key: &str) -> Result<f64, ConfigError> {
        self.positive(key)?.ok_or_else(|| ConfigError::Missing {
            key: self.path(key),
            expected: "a number",
        })
    }
}

impl Part {
    fn finish(self) -> RopeConfig {
        RopeConfig {
            theta: self.theta,
            scaling: self.scaling.unwrap_or(RopeScaling::Default),
            partial_rotary_factor: self.partial_rotary_factor,
        }
    }
}

/// What either says, where not both say different things.
fn merge(a: Part, b: Part, a_name: &str, b_name: &str) -> Result<Part, ConfigError> {
    fn one<T: PartialEq + std::fmt::Debug>(
        a: Option<T>,
        b: Option<T>,
    ) -> Result<Option<T>, String> {
        match (a, b) {
            (Some(a), Some(b)) if a != b => Err(format!("{a:?} and {b:?}")),
            (a, b) => Ok(a.or(b)),
        }
    }
    let merged = || -> Result<Part, String> {
        Ok(Part {
            theta: one(a.theta, b.theta)?,
            scaling: one(a.scaling, b.scaling)?,
            partial_rotary_factor: one(a.partial_rotary_factor, b.partial_rotary_factor)?,
        })
    };
    merged().map_err(|detail| contradiction(a_name, b_name, &detail))
}

fn contradiction(first: &str, second: &str, detail: &str) -> ConfigError {
    ConfigError::Contradiction {
        first: first.into(),
        second: second.into(),
        detail: detail.into(),
    }
}
