//! The flags that say how an embedding model is written as packages.

use thane_audit::number::{counted, share};
use thane_audit::target::Target;
use thane_calls::Lookup;
use thane_models::checkpoint::Checkpoint;
use thane_models::{Encoding, Pooling, Poolings};
use thane_runtime::{
    BundleOptions, CompressOptions, PricedEncoder, encoder_subject, lower_for_ane, price_lookups,
};

use crate::app::App;
use crate::compress::CompressFlags;
use crate::exit::Failure;
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
    /// The options, whose lookup is the one that is predicted to be faster unless a flag pins it,
    /// and the prices on each target, those of the chosen one first. With a flag, those of the
    /// others are not computed. Weights are compressed as `compression` says.
    pub fn priced(
        &self,
        checkpoint: &Checkpoint,
        targets: &[Target],
        compression: &CompressFlags,
        app: &App,
    ) -> Result<(BundleOptions, Vec<Vec<PricedEncoder>>), Failure> {
        let options = BundleOptions {
            compress: compression.pricing(),
            ..self.options(false)
        };
        let lookups = match self.form.lookup {
            Some(lookup) => vec![lookup],
            None => vec![Lookup::Inside, Lookup::Host],
        };
        let output = app.output.as_ref();
        let mut priced = price_lookups(checkpoint, &options, &lookups, targets, output)?;
        let best = priced.first().and_then(|prices| prices.first());
        let lookup = best.map_or(options.lookup, |best| best.lookup);
        let mut options = BundleOptions { lookup, ..options };
        if let Some(start) = options.compress.clone().filter(|_| compression.is_auto()) {
            let made = lower_for_ane(checkpoint, &options, output)?;
            let make = |way: Option<&CompressOptions>| encoder_subject("", &made, way);
            options.compress = Some(compression.decided(start, &make, targets, app)?);
            priced = price_lookups(checkpoint, &options, &[lookup], targets, output)?;
        }
        Ok((options, priced))
    }

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

    /// The options that these flags stand for; with `replace`, what exists is replaced. Rows are
    /// looked up inside, unless a flag says otherwise.
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
            newest: None,
            lookup: self.form.lookup.unwrap_or_default(),
            compress: None,
        }
    }
}

/// What was chosen, with its price on each target, and the runner-up, in a sentence each.
pub fn sentences(ways: &[Vec<PricedEncoder>], targets: &[Target]) -> Vec<String> {
    let price = |priced: &PricedEncoder| {
        let share = share(100.0 * priced.ane_ops as f64 / priced.ops.max(1) as f64);
        let (ops, function, ms) = (counted(priced.ops, "op"), &priced.function, priced.ms);
        let place = match priced.lookup {
            Lookup::Inside => "tables inside",
            Lookup::Host | Lookup::HostInt8 => "tables on the host",
        };
        let off = elsewhere(priced);
        format!("{place}; {ms:.2} ms a call of {function}, {share} % of {ops} on the engine{off}")
    };
    let of_target = |(at, target): (usize, &Target)| {
        let whose = [
            format!("for {}", target.described()),
            "  next best".to_owned(),
        ];
        let lines = ways.iter().map(|way| &way[at]).zip(whose);
        let lines = lines.map(|(priced, whose)| format!("{whose}: {}", price(priced)));
        lines.collect::<Vec<_>>()
    };
    targets.iter().enumerate().flat_map(of_target).collect()
}

/// The ops that run elsewhere, unless all do.
fn elsewhere(priced: &PricedEncoder) -> String {
    /// Kinds that are named.
    const MOST: usize = 6;
    if priced.ane_ops == 0 || priced.elsewhere.is_empty() {
        return String::new();
    }
    let kinds = priced.elsewhere.iter().take(MOST);
    let kinds: Vec<String> = kinds.map(|(kind, n)| format!("{n} {kind}")).collect();
    let more = priced.elsewhere.len().saturating_sub(MOST);
    let more = match more {
        0 => String::new(),
        n => format!(" and {}", counted(n, "more kind")),
    };
    format!("; elsewhere {}{more}", kinds.join(", "))
}

pub fn pooling(name: &str) -> Result<Poolings, String> {
    Poolings::from_name(name).ok_or_else(|| {
        let known: Vec<&str> = Pooling::ALL.iter().map(|p| p.name()).collect();
        format!("expected {}, or several joined by +", known.join(", "))
    })
}
