//! The flags that say in which form a program for the Neural Engine is written.

use thane_models::{DecoderEngine, NormForm};

/// The form of programs for the Neural Engine; flags of every verb that writes one.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Programs for the Neural Engine (--form engine, --task embed)")]
pub struct FormFlags {
    /// Divide the residual stream by K, so that fp16 can hold it [default: what the family needs].
    #[arg(long, value_name = "K", value_parser = divisor)]
    pub residual_divisor: Option<f32>,
    /// Form of root mean square norms: scaled cannot overflow, native has fewer ops, cat is a layer
    /// norm.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Norm::Scaled)]
    pub norm: Norm,
    /// Tokens of a prompt per call of prefill [default: 64, or the context if that is less].
    #[arg(long, value_name = "TOKENS")]
    pub block: Option<usize>,
}

impl FormFlags {
    /// The first flag that differs from its default.
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

    /// The form of a decoder that these flags stand for.
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
    /// fp32, any number of tokens: the reference.
    Portable,
    /// fp16, features in channels, fixed lengths: for the Neural Engine.
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
    /// The form of norms that it stands for.
    pub fn form(self) -> NormForm {
        match self {
            Self::Scaled => NormForm::Scaled,
            Self::Native => NormForm::Native,
            Self::Cat => NormForm::Cat,
        }
    }
}

fn divisor(text: &str) -> Result<f32, String> {
    let value: f32 = text
        .parse()
        .map_err(|_| format!("expected a number, found `{text}`"))?;
    let fits = (1.0..=1024.0).contains(&value) && value.log2().fract() == 0.0;
    if fits {
        Ok(value)
    } else {
        Err("expected a power of two from 1 to 1024, which keeps every weight exact".to_owned())
    }
}
