//! The flags that say how an embedding model is written as packages.

use thane_models::{Encoding, Pooling, Poolings};
use thane_runtime::BundleOptions;

use crate::form::FormFlags;

/// Flags of `thane convert --task embed`.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Embedding models (--task embed)")]
pub struct Flags {
    /// Lengths in tokens that get a function of their own, such as 128,512.
    ///
    /// [default: 128,256,512,1024,2048,4096, as far as the model goes].
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pub buckets: Vec<usize>,
    /// Leave out the function that takes any length.
    #[arg(long)]
    pub no_flexible: bool,
    /// Write one package with a function per bucket, or a folder with a package per bucket.
    ///
    /// The packages of a folder share one file of weights.
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Layout::Package)]
    pub layout: Layout,
    /// Embed the chunks of one text in one pass (late chunking), pooled by a matrix.
    #[arg(long)]
    pub chunks: bool,
    /// Pooling of token vectors: mean, cls, lasttoken, max, weightedmean, mean_sqrt_len_tokens, or
    /// several that are joined, such as mean+max [default: the model's].
    #[arg(long, value_name = "HOW", value_parser = pooling)]
    pub pooling: Option<Poolings>,
    #[command(flatten)]
    pub form: FormFlags,
}

/// The values of `--layout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Layout {
    Package,
    Folder,
}

impl Flags {
    /// The first flag that differs from its default.
    pub fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--buckets", !self.buckets.is_empty()),
            ("--no-flexible", self.no_flexible),
            ("--layout", self.layout != Layout::Package),
            ("--chunks", self.chunks),
            ("--pooling", self.pooling.is_some()),
        ];
        let given = flags
            .into_iter()
            .find_map(|(name, is_given)| is_given.then_some(name));
        given.or_else(|| self.form.given())
    }

    /// The options that these flags stand for; with `replace`, what exists is replaced.
    pub fn options(&self, replace: bool) -> BundleOptions {
        BundleOptions {
            replace,
            buckets: self.buckets.clone(),
            flexible: !self.no_flexible,
            layout: match self.layout {
                Layout::Package => thane_runtime::Layout::Package,
                Layout::Folder => thane_runtime::Layout::Folder,
            },
            encoding: if self.chunks {
                Encoding::Chunks
            } else {
                Encoding::Text
            },
            pooling: self.pooling,
            residual_divisor: self.form.residual_divisor,
            norm: self.form.norm_form(),
            targets: Vec::new(),
        }
    }
}

pub fn pooling(name: &str) -> Result<Poolings, String> {
    Poolings::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = Pooling::ALL.iter().map(|p| p.name()).collect();
        format!("expected {}, or several joined by +", known.join(", "))
    })
}
