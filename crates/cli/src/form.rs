//! The form of programs for the Neural Engine: the flags that say how it is spelled.

use thane_models::{DecoderEngine, NormForm};

/// How programs for the Neural Engine are spelled; flags of every verb that makes one.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Programs for the Neural Engine (--form engine, --task embed)")]
pub struct FormFlags {
    /// What the residual stream is divided by, so that fp16 can hold it [default: what the family
    /// needs].
    #[arg(long, value_name = "K", value_parser = divisor)]
    pub residual_divisor: Option<f32>,
    /// How root mean square norms are spelled: scaled cannot overflow, native has fewer ops, cat is
    /// a layer norm.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Norm::Scaled)]
    pub norm: Norm,
    /// Tokens of a prompt that one call of prefill takes [default: 64, or the context if that is
    /// less].
    #[arg(long, value_name = "TOKENS")]
    pub block: Option<usize>,
}

impl FormFlags {
    /// The first of them that says something else than what is usual.
    pub fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--residual-divisor", self.residual_divisor.is_some()),
            ("--norm", self.norm != Norm::Scaled),
            ("--block", self.block.is_some()),
        ];
        flags
            .into_iter()
            .find_map(|(name, is_given)| is_given.then_some(name))
    }

    /// The form that they say, of a decoder.
    pub fn decoder(&self) -> DecoderEngine {
        DecoderEngine {
            block: self.block,
            residual_divisor: self.residual_divisor,
            norm: self.norm.form(),
        }
    }
}

/// The values of `--form`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// The reference: fp32, any number of tokens.
    Portable,
    /// For the Neural Engine: fp16, features in channels, fixed lengths.
    Engine,
}

/// The values of `--norm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Norm {
    Scaled,
    Native,
    Cat,
}

impl Norm {
    /// The word of it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scaled => "scaled",
            Self::Native => "native",
            Self::Cat => "cat",
        }
    }

    /// What it asks for.
    pub fn form(self) -> NormForm {
        match self {
            Self::Scaled => NormForm::Scaled,
            Self::Native => NormForm::Native,
            Self::Cat => NormForm::Cat,
        }
    }
}

fn divisor(text: &str) -> Result<f32, String> {
    let value: f32 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    let fits = (1.0..=1024.0).contains(&value) && value.log2().fract() == 0.0;
    if fits {
        Ok(value)
    } else {
        Err("a power of two from 1 to 1024 keeps every weight exact".to_owned())
    }
}
