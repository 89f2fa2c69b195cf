//! Reads the rotary position embedding (RoPE) from `config.json` in both of its spellings.
//!
//! The old spelling has `rope_theta` and `rope_scaling` side by side, plus Gemma's
//! `rope_local_base_freq` for sliding-window layers. The new spelling has `rope_parameters`: one
//! object with `rope_theta` and `rope_type`, or one such object per layer type.

use super::config::{Config, ConfigError};
use super::range::Range;

/// The layer types that the old spelling of Gemma 3 describes.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
const ORIGINAL: &str = "original_max_position_embeddings";

/// The rotary embedding of a model.
#[derive(Debug, Clone, PartialEq)]
pub enum Rope {
    /// All layers have the same rotary embedding.
    Uniform(RopeConfig),
    /// Rotary embedding by layer type, such as `full_attention`, in file order.
    PerLayerType(Vec<(String, RopeConfig)>),
}

impl Rope {
    /// The rotary embedding of layers of type `name`, or `None` if the file does not describe them.
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

/// The rotary embedding of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies; `None` if the file leaves the value to the default of the family.
    pub theta: Option<f64>,
    /// How the frequencies are scaled for long contexts.
    pub scaling: RopeScaling,
    /// The fraction of a head's dimensions that is rotated, if the file says so.
    pub partial_rotary_factor: Option<f64>,
}

/// How the frequencies of a rotary embedding are scaled for long contexts.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    Default,
    /// Every frequency is divided by `factor`.
    Linear {
        /// The divisor; at least 1 in every published model.
        factor: f64,
    },
    /// Llama 3: low frequencies are divided by `factor`, high frequencies are kept, and frequencies
    /// between are interpolated.
    Llama3 {
        /// The divisor of the low frequencies.
        factor: f64,
        /// Wavelengths longer than `original_max_position_embeddings / low_freq_factor` are
        /// divided.
        low_freq_factor: f64,
        /// Wavelengths shorter than `original_max_position_embeddings / high_freq_factor` are kept.
        /// Greater than `low_freq_factor`.
        high_freq_factor: f64,
        /// Context length before scaling, in tokens.
        original_max_position_embeddings: usize,
    },
    /// Another base for contexts longer than the model was trained for; no scaling up to there.
    Dynamic {
        /// The longest context is that of training times this factor.
        factor: f64,
        /// Context length of training, in tokens, if the file says it.
        trained: Option<usize>,
    },
    /// A base that is raised by a constant: `theta * alpha^(d / (d - 2))` for heads of d elements.
    /// The class of Hunyuan alone has it.
    NtkAlpha {
        /// What the base is raised by.
        alpha: f64,
    },
    /// YaRN.
    Yarn(Yarn),
    /// LongRoPE: a divisor for each frequency.
    LongRope {
        /// Divisors for programs that hold up to `original_max_position_embeddings` tokens.
        short_factor: Vec<f64>,
        /// Divisors for programs that hold more tokens.
        long_factor: Vec<f64>,
        /// Factor of cosines and sines.
        attention_factor: f64,
        /// Context length before scaling, in tokens.
        original_max_position_embeddings: usize,
    },
    /// Gemma 4: frequencies of the whole head, of which the first share is rotated.
    Proportional {
        /// The divisor of all frequencies.
        factor: f64,
    },
    /// A scaling type that is not supported, by name. The family rejects it.
    Unsupported(String),
}

/// The parameters of YaRN.
#[derive(Debug, Clone, PartialEq)]
pub struct Yarn {
    /// The divisor of frequencies that the original context holds seldom.
    pub factor: f64,
    /// Context length before scaling, in tokens.
    pub original_max_position_embeddings: usize,
    /// Turns within the original context from which on a frequency is kept.
    pub beta_fast: f64,
    /// Turns within the original context up to which a frequency is divided.
    pub beta_slow: f64,
    /// Factor of cosines and sines.
    pub attention_factor: f64,
    /// Whether the bounds of interpolation are rounded to whole pairs.
    pub truncate: bool,
}

/// The values that one spelling gives; `None` for values that it leaves out.
#[derive(Debug, Clone, Default, PartialEq)]
struct PartialRope {
    theta: Option<f64>,
    scaling: Option<RopeScaling>,
    partial_rotary_factor: Option<f64>,
}

impl Config {
    /// The rotary embedding, from either spelling, in a family whose base is `default` unless the
    /// file has one.
    ///
    /// # Errors
    ///
    /// If both spellings are present and disagree, or a value has the wrong type or range.
    pub fn rope(&self, default: Option<f64>) -> Result<Rope, ConfigError> {
        self.read_rope(false, default)
    }

    /// Like [`Self::rope`], for classes of transformers that keep a rotary embedding for each layer
    /// type whatever the spelling.
    ///
    /// # Errors
    ///
    /// If both spellings are present and disagree, or a value has the wrong type or range.
    pub fn rope_by_layer_type(&self) -> Result<Rope, ConfigError> {
        self.read_rope(true, None)
    }

    fn read_rope(&self, by_layer_type: bool, default: Option<f64>) -> Result<Rope, ConfigError> {
        let new = self.opt_object("rope_parameters")?;
        let is_nested = match &new {
            Some(new) => new.is_per_layer_type()?,
            None => false,
        };
        let file = File {
            root: self,
            by_layer_type: by_layer_type || is_nested,
        };
        let old = file.old_full()?;
        let old_sliding = self
            .opt_number("rope_local_base_freq", &Range::THETA)?
            .map(|theta| PartialRope {
                theta: Some(theta),
                ..PartialRope::default()
            });
        let Some(new) = new else {
            return Ok(match old_sliding {
                None => Rope::Uniform(old.finish()),
                Some(sliding) => Rope::PerLayerType(vec![
                    (FULL.into(), old.finish()),
                    (SLIDING.into(), sliding.finish()),
                ]),
            });
        };
        if !is_nested {
            if old_sliding.is_some() {
                return Err(contradiction(
                    "rope_local_base_freq",
                    "rope_parameters",
                    "only one of them describes sliding layers",
                ));
            }
            return file.both_spellings(old, &new, default);
        }
        file.per_layer_type(&new, old, old_sliding)
    }
}

/// The file around the parameters of a rotary embedding.
#[derive(Clone, Copy)]
struct File<'a> {
    root: &'a Config,
    /// Whether the class of transformers keeps an embedding for each layer type. Such a class reads
    /// neither `original_max_position_embeddings` outside the parameters nor `truncate` inside.
    by_layer_type: bool,
}

impl File<'_> {
    /// One embedding for all layers, in both spellings. transformers takes `rope_scaling` alone if
    /// it has any key, with the base of the whole file or of the class. Then `rope_parameters` must
    /// add nothing to that.
    fn both_spellings(
        self,
        old: PartialRope,
        new: &Config,
        default: Option<f64>,
    ) -> Result<Rope, ConfigError> {
        let [theirs, ours] = ["rope_theta/rope_scaling", "rope_parameters"];
        let both = merge(old.clone(), new.part(self)?, theirs, ours)?;
        let scaling = self.root.opt_object("rope_scaling")?;
        let whole = |rope: &PartialRope| PartialRope {
            theta: rope.theta.or(default),
            scaling: Some(rope.scaling.clone().unwrap_or(RopeScaling::Default)),
            ..rope.clone()
        };
        if whole(&both) != whole(&old)
            && scaling.is_some_and(|scaling| scaling.keys().next().is_some())
        {
            let detail = "`rope_scaling` would replace all of `rope_parameters`: remove it";
            return Err(contradiction("rope_scaling", ours, detail));
        }
        Ok(Rope::Uniform(both.finish()))
    }

    fn per_layer_type(
        self,
        new: &Config,
        old: PartialRope,
        old_sliding: Option<PartialRope>,
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
        // The old spelling describes what the new one leaves out.
        for (name, part) in [(FULL, Some(old)), (SLIDING, old_sliding)] {
            if let Some(part) = part.filter(|_| types.iter().all(|(found, _)| found != name)) {
                types.push((name.to_owned(), part.finish()));
            }
        }
        Ok(Rope::PerLayerType(types))
    }

    /// The old spelling. In a model with sliding-window layers it describes the full-attention
    /// layers.
    fn old_full(self) -> Result<PartialRope, ConfigError> {
        let theta = self.root.opt_number("rope_theta", &Range::THETA)?;
        let scaling = self.root.opt_object("rope_scaling")?;
        let inner = scaling
            .map(|scaling| scaling.part(self))
            .transpose()?
            .unwrap_or_default();
        if inner.theta.is_none() {
            self.root.check_not_null(&["rope_theta"])?;
        }
        let partial_rotary_factor = self.root.factor("partial_rotary_factor")?;
        merge(
            PartialRope {
                theta,
                scaling: None,
                partial_rotary_factor,
            },
            inner,
            "rope_theta",
            "rope_scaling.rope_theta",
        )
    }

    /// The context length before scaling, from the parameters or the whole file. As in
    /// transformers, a file that does not say it has that of the model.
    fn original_context(self, parameters: &Config) -> Result<usize, ConfigError> {
        // LongRoPE divides by the logarithm.
        let expected = "an integer above 1";
        // Both at once: transformers takes that of the whole file.
        let (place, key, original) = match (self.outer_context()?, parameters.opt_usize(ORIGINAL)?)
        {
            (Some(outer), _) => (self.root, ORIGINAL, outer),
            (None, Some(own)) => (parameters, ORIGINAL, own),
            (None, None) => (self.root, "max_position_embeddings", self.context()?),
        };
        match original {
            0 | 1 => Err(place.refused(key, expected)),
            _ => Ok(original),
        }
    }

    /// The context length before scaling outside the parameters.
    fn outer_context(self) -> Result<Option<usize>, ConfigError> {
        if self.by_layer_type {
            let reason = "a class with a rotary embedding for each layer type reads it among the \
                          parameters alone";
            self.root.note_unused(ORIGINAL, reason);
            return Ok(None);
        }
        self.root.opt_usize(ORIGINAL)
    }

    /// Whether YaRN rounds the bounds of interpolation.
    fn truncates(self, parameters: &Config) -> Result<bool, ConfigError> {
        let key = "truncate";
        // As in transformers, a null is false.
        let given = !parameters.is_null(key) && parameters.bool_or(key, true)?;
        if self.by_layer_type && !given {
            let reason = "a class with a rotary embedding for each layer type does not read it";
            parameters.note_unused(key, reason);
        }
        Ok(given || self.by_layer_type)
    }

    /// The context length of the model.
    fn context(self) -> Result<usize, ConfigError> {
        self.root.usize("max_position_embeddings")
    }
}

impl Config {
    /// Whether the members of this object are objects, one for each layer type.
    fn is_per_layer_type(&self) -> Result<bool, ConfigError> {
        let keys = || self.keys().filter(|key| self.has(key));
        let objects = keys().filter(|key| self.is_object(key)).count();
        if objects == 0 {
            return Ok(false);
        }
        match keys().find(|key| !self.is_object(key)) {
            None => Ok(true),
            Some(key) => Err(self.refused(key, "an object for each layer type")),
        }
    }

    /// Reads this object as the parameters of one rotary embedding of `file`.
    fn part(&self, file: File<'_>) -> Result<PartialRope, ConfigError> {
        self.check_not_null(&["rope_theta"])?;
        let theta = self.opt_number("rope_theta", &Range::THETA)?;
        let partial_rotary_factor = self.factor("partial_rotary_factor")?;
        let scaling = match self.rope_type()? {
            None => None,
            Some("default") => Some(RopeScaling::Default),
            Some("linear") => Some(RopeScaling::Linear {
                factor: self.required_factor("factor")?,
            }),
            Some("llama3") => Some(self.llama3(file)?),
            Some("dynamic") => Some(self.dynamic(file)?),
            Some("yarn") => Some(self.yarn(file)?),
            // `su` is the former name.
            Some("longrope" | "su") => Some(self.long_rope(file)?),
            Some("proportional") => Some(RopeScaling::Proportional {
                factor: self.factor("factor")?.unwrap_or(1.0),
            }),
            Some(other) => Some(RopeScaling::Unsupported(other.to_owned())),
        };
        Ok(PartialRope {
            theta,
            scaling,
            partial_rotary_factor,
        })
    }

    /// The key `rope_type`, or its former name `type`.
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
        // A factor without a type was never valid. Reading it as "default" would silently drop the
        // factor.
        if named.is_none() && self.has("factor") {
            return Err(ConfigError::Missing {
                key: self.path("rope_type"),
                expected: "a string",
            });
        }
        Ok(named)
    }

    fn dynamic(&self, file: File<'_>) -> Result<RopeScaling, ConfigError> {
        // Hunyuan writes parameters of YaRN beside it, which its own code does not read.
        self.acknowledge(&["beta_fast", "beta_slow", "mscale", "mscale_all_dim"]);
        for place in [self, file.root] {
            place.note_unused(ORIGINAL, "dynamic scaling does not read it");
        }
        Ok(RopeScaling::Dynamic {
            factor: self.required_factor("factor")?,
            trained: file.root.opt_usize("max_position_embeddings")?,
        })
    }

    fn yarn(&self, file: File<'_>) -> Result<RopeScaling, ConfigError> {
        let has_original = self.has(ORIGINAL) || file.outer_context()?.is_some();
        let original = file.original_context(self)?;
        let factor = match self.factor("factor")? {
            Some(factor) => factor,
            None if has_original => file.context()? as f64 / original as f64,
            None => self.required_factor("factor")?,
        };
        let mscale = |m: f64| {
            if factor <= 1.0 {
                1.0
            } else {
                0.1 * m * factor.ln() + 1.0
            }
        };
        let scale = |key: &str| self.opt_number(key, &Range::FACTOR_OR_ZERO);
        let scales = (scale("mscale")?, scale("mscale_all_dim")?);
        let attention_factor = match (self.factor("attention_factor")?, scales) {
            (Some(given), _) => given,
            (None, (Some(one), Some(all))) if one != 0.0 && all != 0.0 => mscale(one) / mscale(all),
            (None, _) => mscale(1.0),
        };
        Ok(RopeScaling::Yarn(Yarn {
            factor,
            original_max_position_embeddings: original,
            beta_fast: self.factor("beta_fast")?.unwrap_or(32.0),
            beta_slow: self.factor("beta_slow")?.unwrap_or(1.0),
            attention_factor,
            truncate: file.truncates(self)?,
        }))
    }

    fn long_rope(&self, file: File<'_>) -> Result<RopeScaling, ConfigError> {
        let original = file.original_context(self)?;
        let factor = match self.factor("factor")? {
            Some(factor) => factor,
            None => file.context()? as f64 / original as f64,
        };
        let attention_factor = match self.factor("attention_factor")? {
            Some(given) => given,
            None if factor <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
        };
        let factors = |key: &str| {
            let factors = self.opt_f64s(key)?;
            let factors = factors.ok_or_else(|| ConfigError::Missing {
                key: self.path(key),
                expected: "a list of numbers",
            })?;
            match factors.iter().find(|f| !Range::FACTOR.holds(**f)) {
                None => Ok(factors),
                Some(_) => Err(self.refused(key, "numbers from 0.000001 to 1000000")),
            }
        };
        Ok(RopeScaling::LongRope {
            short_factor: factors("short_factor")?,
            long_factor: factors("long_factor")?,
            attention_factor,
            original_max_position_embeddings: original,
        })
    }

    fn llama3(&self, file: File<'_>) -> Result<RopeScaling, ConfigError> {
        let original_max_position_embeddings = file.original_context(self)?;
        let low_freq_factor = self.required_factor("low_freq_factor")?;
        let high_freq_factor = self.required_factor("high_freq_factor")?;
        if low_freq_factor >= high_freq_factor {
            return Err(self.refused("low_freq_factor", "less than high_freq_factor"));
        }
        let factor = self.required_factor("factor")?;
        Ok(RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        })
    }

    fn factor(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        self.opt_number(key, &Range::FACTOR)
    }

    fn required_factor(&self, key: &str) -> Result<f64, ConfigError> {
        self.number(key, &Range::FACTOR)
    }
}

impl PartialRope {
    fn finish(self) -> RopeConfig {
        RopeConfig {
            theta: self.theta,
            scaling: self.scaling.unwrap_or(RopeScaling::Default),
            partial_rotary_factor: self.partial_rotary_factor,
        }
    }
}

/// Combines the values of two spellings; an error if both give different values.
fn merge(
    a: PartialRope,
    b: PartialRope,
    a_name: &str,
    b_name: &str,
) -> Result<PartialRope, ConfigError> {
    fn one<T: PartialEq + std::fmt::Debug>(
        a: Option<T>,
        b: Option<T>,
    ) -> Result<Option<T>, String> {
        match (a, b) {
            (Some(a), Some(b)) if a != b => Err(format!("{a:?} and {b:?}")),
            (a, b) => Ok(a.or(b)),
        }
    }
    let merged = || -> Result<PartialRope, String> {
        Ok(PartialRope {
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
