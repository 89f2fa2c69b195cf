//! The flags that say how weights are compressed, and what is said of it afterwards.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use thane_audit::target::Target;
use thane_compile::compress::program::Settings;
pub use thane_compile::compress::report::Report;
use thane_compile::compress::report::Row;
use thane_compile::compress::{Encoding, Scale};
use thane_mil::opset::Opset;
use thane_runtime::{
    CompressOptions, Fault, MakeSubject, TriedEncoding, choose_encoding, price_encodings,
    pricing_settings,
};

use crate::app::App;
use crate::calibrate::Calibrate;
use crate::exit::{Failure, Outcome};
use crate::model::n_threads;
use crate::output::{bytes, counted};

/// Flags of `thane convert` and `thane compress`.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = "Compression")]
pub struct CompressFlags {
    /// Compress weights: auto, pal4, pal4g32, pal6, 2x16, int8, ..
    ///
    /// palN is a table of 2^N values (N is 1, 2, 3, 4, 6 or 8), with gM one for each M output
    /// channels. 2x16 is one table of 16 pairs of output channels. intN has a scale for each output
    /// channel, with t one for all, with bM one for each M inputs, which the Neural Engine does not
    /// read. sparse50 keeps the greater half, 2:4 the two greatest of four inputs, and
    /// sparse50+pal4 compresses what is kept. w8a8 and w4a8 are int8 and int4 with the activations
    /// of products in 8 bits, whose range the text of --calibrate says. auto is pal4, with scales
    /// and tables for groups of channels as they are predicted to be fastest on the targets, and
    /// --compress-tables int8. An encoding that a target does not run or computes wrong is refused.
    #[arg(long, value_name = "ENCODING", value_parser = encoding)]
    pub compress: Option<Asked>,
    /// Encoding of embeddings and head [default: that of --compress].
    ///
    /// That is: of tables that tokens are looked up in, and of the matrix that gives the logits.
    #[arg(long, value_name = "ENCODING", value_parser = tables)]
    pub compress_tables: Option<Encoding>,
    /// Where a palette's channel scales stand: none, inside, behind.
    ///
    /// inside needs iOS 18; behind is a multiplication after the product. [default: behind where it
    /// lowers the error, otherwise none].
    #[arg(long, value_name = "WHERE", hide_possible_values = true, value_enum)]
    pub scale: Option<ScaleFlag>,
    /// The oldest system that the output is for, where another flag says it.
    #[arg(skip)]
    pub oldest: Option<Opset>,
}

/// The values of `--compress`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Palettes of 4 bits, in the way that is best for the targets.
    Auto,
    One(Encoding),
    /// With activations of 8 bits.
    Quantized(Encoding),
}

/// The names of encodings with activations of 8 bits.
const QUANTIZED: [(&str, &str); 2] = [("w8a8", "int8"), ("w4a8", "int4")];

impl Asked {
    fn encoding(self) -> Encoding {
        match self {
            Self::Auto => Encoding::palette(4),
            Self::One(encoding) | Self::Quantized(encoding) => encoding,
        }
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::One(encoding) => encoding.fmt(f),
            Self::Quantized(encoding) => {
                let weights = encoding.to_string();
                let known = QUANTIZED.iter().find(|(_, of)| *of == weights);
                f.write_str(known.map_or("", |(name, _)| name))
            }
        }
    }
}

/// The values of `--scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ScaleFlag {
    None,
    Inside,
    Behind,
}

impl ScaleFlag {
    fn scale(self) -> Scale {
        match self {
            Self::None => Scale::None,
            Self::Inside => Scale::Inside,
            Self::Behind => Scale::Behind,
        }
    }
}

fn encoding(text: &str) -> Result<Asked, String> {
    if text == "auto" {
        return Ok(Asked::Auto);
    }
    if let Some((_, weights)) = QUANTIZED.iter().find(|(name, _)| *name == text) {
        return tables(weights).map(Asked::Quantized);
    }
    let also = "; w8a8 or w4a8, with activations of 8 bits";
    tables(text).map(Asked::One).map_err(|e| e + also)
}

fn tables(text: &str) -> Result<Encoding, String> {
    Encoding::from_str(text).map_err(|e| e.to_string())
}

impl CompressFlags {
    /// The flags that ask for an encoding and where its scales stand.
    pub fn of(encoding: Encoding, scale: ScaleFlag) -> Self {
        Self {
            compress: Some(Asked::One(encoding)),
            scale: Some(scale),
            ..Self::default()
        }
    }

    /// The settings that flags stand for where no target decides more; `None` without `--compress`.
    pub fn settings(&self) -> Option<Settings> {
        let asked = self.compress?;
        Some(Settings {
            encoding: asked.encoding(),
            tables: self.tables(),
            scale: self.scale.map(ScaleFlag::scale),
            activations: self.quantizes_activations(),
            ..Settings::default()
        })
    }

    /// How tables are stored, if not as other weights are.
    fn tables(&self) -> Option<Encoding> {
        let usual = self.is_auto().then_some(Encoding::INT8);
        self.compress_tables.or(usual)
    }

    /// What programs are priced with until targets decide more; `None` without `--compress`.
    pub fn pricing(&self) -> Option<CompressOptions> {
        let settings = match self.compress? {
            Asked::Auto => pricing_settings(self.scale.map(ScaleFlag::scale), self.tables()),
            Asked::One(_) | Asked::Quantized(_) => self.settings()?,
        };
        Some(CompressOptions::new(settings, n_threads(None)))
    }

    /// True if activations become integers, for which a text must be computed.
    pub fn quantizes_activations(&self) -> bool {
        matches!(self.compress, Some(Asked::Quantized(_)))
    }

    /// Refuses activations of 8 bits without a text that says how large they are.
    pub fn check_text(&self, text: Option<&Calibrate>) -> Outcome {
        let refused = self.quantizes_activations() && text == Some(&Calibrate::Nothing);
        match (refused, self.compress) {
            (true, Some(asked)) => Err(usage!(
                "--compress {asked} needs a text that says how large activations are, and \
                 --calibrate none computes none"
            )
            .remedy("--calibrate FILE, or leave --calibrate out")),
            _ => Ok(()),
        }
    }

    /// Whether the targets decide on the encoding.
    pub fn is_auto(&self) -> bool {
        self.compress == Some(Asked::Auto)
    }

    /// The flag that is given, if one is.
    pub fn given(&self) -> Option<&'static str> {
        let scale = self.scale.map(|_| "--scale");
        self.compress.map(|_| "--compress").or(scale)
    }

    /// What `auto` chooses for the packages that `make` makes, and `start` for other encodings.
    /// Says what was chosen and why.
    pub fn decided(
        &self,
        start: CompressOptions,
        make: &MakeSubject<'_>,
        targets: &[Target],
        app: &App,
    ) -> Result<CompressOptions, Failure> {
        if !self.is_auto() || targets.is_empty() {
            return Ok(start);
        }
        app.output.busy("choosing an encoding");
        let scale = self.scale.map(ScaleFlag::scale);
        let opsets = targets.iter().map(|t| t.release.opset).chain(self.oldest);
        let asked = (scale, opsets.min().unwrap_or(Opset::CoreMl8));
        let tried = choose_encoding(make, &start, asked, targets)?;
        let Some(chosen) = tried.first() else {
            return Ok(start);
        };
        app.output.say(&why(&tried, targets));
        Ok(CompressOptions {
            settings: chosen.settings,
            ..start
        })
    }

    /// Refuses an encoding that a target does not run or computes wrong, by the rules of the audit.
    pub fn check_faults(
        &self,
        options: &CompressOptions,
        make: &MakeSubject<'_>,
        targets: &[Target],
    ) -> Outcome {
        let prices = price_encodings(make, &[Some(options.clone())], targets)?;
        for (target, price) in targets.iter().zip(prices.iter().flatten()) {
            if let Some(fault) = price.faults.first() {
                let asked = self.compress.filter(|asked| *asked != Asked::Auto);
                let asked = asked.unwrap_or(Asked::One(options.settings.encoding));
                return Err(refused(asked, target, fault));
            }
        }
        Ok(())
    }

    /// Refuses what no model can have, before any work: flags without a meaning, and an encoding
    /// that the oldest system lacks.
    pub fn check(&self, targets: &[Target]) -> Outcome {
        let Some(settings) = self.settings() else {
            let flags = [
                ("--scale", self.scale.is_some()),
                ("--compress-tables", self.compress_tables.is_some()),
            ];
            return match flags.iter().find(|(_, is_given)| *is_given) {
                Some((flag, _)) => Err(usage!("{flag} says how --compress does it")
                    .remedy(format!("--compress pal4, or leave {flag} out"))),
                None => Ok(()),
            };
        };
        let encoding = settings.encoding;
        if self.scale.is_some_and(|s| s != ScaleFlag::None) && !encoding.takes_scales() {
            return Err(usage!(
                "--scale {}: {encoding} has no scales of channels beside it",
                self.scale.map_or("", |s| s.scale().name())
            )
            .remedy("--compress pal4, or leave --scale out"));
        }
        let asked = self.compress.filter(|asked| *asked != Asked::Auto);
        let asked = asked.unwrap_or(Asked::One(encoding));
        let scale = self.scale.map_or(Scale::Behind, ScaleFlag::scale);
        let needs = settings.oldest_opset();
        let reads = targets
            .iter()
            .map(|t| t.release.opset)
            .chain(self.oldest)
            .min();
        match reads.filter(|opset| *opset < needs) {
            None => Ok(()),
            Some(opset) => Err(usage!(
                "--compress {asked}{} needs {}, and the oldest system reads {}",
                match scale {
                    Scale::Inside => " with --scale inside",
                    _ => "",
                },
                needs.name(),
                opset.name()
            )
            .remedy(format!("--min-os {}, or a later --target", needs.name()))
            .remedy("--compress pal4, pal6 or int8, with one table or one scale a channel")),
        }
    }
}

fn refused(asked: Asked, target: &Target, fault: &Fault) -> Failure {
    let rule = fault.rule;
    let disputed = match rule.disputed {
        "" => String::new(),
        said => format!(" (disputed: {said})"),
    };
    usage!(
        "--compress {asked}: {} does not run it right, {}: {}: {}; source: {}{disputed}",
        target.described(),
        rule.id,
        rule.title,
        fault.message,
        rule.source
    )
    .remedy(rule.fix)
    .remedy("--form portable without --target, for the CPU and GPU")
}

/// What `auto` chose, and what came second.
fn why(tried: &[TriedEncoding], targets: &[Target]) -> String {
    let name = |one: &TriedEncoding| {
        let scale = one.settings.scale.unwrap_or(Scale::None).name();
        format!("{} --scale {scale}", one.settings.encoding)
    };
    let figures = |one: &TriedEncoding| {
        let times = targets.iter().zip(&one.prices);
        let times =
            times.map(|(target, price)| format!("{:.2} ms on {}", price.ms, target.chip.name));
        let times: Vec<String> = times.collect();
        format!(
            "{}, relative error {:.2} % of samples",
            times.join(", "),
            100.0 * one.error
        )
    };
    let [chosen, others @ ..] = tried else {
        return String::new();
    };
    let second = others
        .first()
        .map(|other| format!("; next {}: {}", name(other), figures(other)));
    format!(
        "--compress auto: {}: {}, the fastest of those whose error is at most 1.1 times the \
         least{}",
        name(chosen),
        figures(chosen),
        second.unwrap_or_default()
    )
}

/// A report as `--json` prints it.
#[derive(Serialize)]
pub struct Printed {
    /// Weights that were compressed.
    weights: usize,
    /// Bits of such a weight, tables and scales counted.
    bits: f64,
    bytes_before: usize,
    bytes: usize,
    /// sqrt(sum (w - q)^2 / sum w^2).
    error: f64,
    /// Products whose activations are 8-bit integers, of all functions.
    activations: usize,
    tensors: Vec<TensorRow>,
    left: Vec<LeftRow>,
}

#[derive(Serialize)]
struct TensorRow {
    name: String,
    place: String,
    shape: Vec<usize>,
    encoding: String,
    /// `none`, `inside` or `behind`.
    scale: &'static str,
    bits: f64,
    error: f64,
    /// The error without scales, where both were computed.
    error_without_scale: Option<f64>,
}

#[derive(Serialize)]
struct LeftRow {
    name: String,
    elements: usize,
    bytes: usize,
    reason: String,
}

impl From<&Report> for Printed {
    fn from(report: &Report) -> Self {
        let totals = report.totals();
        let row = |row: &Row| TensorRow {
            name: row.name.clone(),
            place: row.place.clone(),
            shape: row.shape.clone(),
            encoding: row.encoding.clone(),
            scale: row.scale,
            bits: row.bits,
            error: row.error,
            error_without_scale: row.error_without_scale,
        };
        let left = report.left.iter().map(|left| LeftRow {
            name: left.name.clone(),
            elements: left.n_weights,
            bytes: left.bytes,
            reason: left.reason.clone(),
        });
        Self {
            weights: totals.n_weights,
            bits: totals.bits(),
            bytes_before: totals.bytes_before,
            bytes: totals.bytes,
            error: totals.error,
            activations: report.n_quantized,
            tensors: report.rows.iter().map(row).collect(),
            left: left.collect(),
        }
    }
}

/// The sums, and what was left as it is, by the reason.
pub fn sentences(report: &Report) -> Vec<String> {
    let totals = report.totals();
    let scaled = report.rows.iter().filter(|row| row.scale != "none").count();
    let scales = match scaled {
        0 => String::new(),
        n => format!(", {} with scales of channels", counted(n, "tensor")),
    };
    if report.rows.is_empty() {
        return std::iter::once("no weight is compressed".to_owned())
            .chain(left_lines(report))
            .collect();
    }
    let mut lines = vec![format!(
        "compressed {} to {:.2} bits a weight, {} to {}; relative error {:.2} %{scales}",
        counted(report.rows.len(), "tensor"),
        totals.bits(),
        bytes(totals.bytes_before as u64),
        bytes(totals.bytes as u64),
        100.0 * totals.error,
    )];
    if report.n_quantized > 0 {
        let n = counted(report.n_quantized, "product");
        lines.push(match report.n_unknown {
            0 => format!("activations of {n} are 8-bit integers"),
            left => format!(
                "activations of {n} are 8-bit integers; those of {left} stay as they are, since \
                 the text was not computed by their functions"
            ),
        });
    }
    lines.extend(left_lines(report));
    lines
}

/// A line for each reason why constants were left as they are.
fn left_lines(report: &Report) -> Vec<String> {
    let mut reasons: BTreeMap<&str, (usize, usize, &str)> = BTreeMap::new();
    for left in &report.left {
        let entry = reasons.entry(&left.reason).or_insert((0, 0, &left.name));
        entry.0 += 1;
        entry.1 += left.bytes;
    }
    let line = |(reason, (n, size, first)): (&str, (usize, usize, &str))| {
        let size = bytes(size as u64);
        match n {
            1 => format!("left as it is, {size}: {first}: {reason}"),
            n => format!("left as they are, {n} such as {first}, {size}: {reason}"),
        }
    };
    reasons.into_iter().map(line).collect()
}

/// A line for each tensor.
pub fn table(report: &Report) -> String {
    let mut out = "  bits   error   scale  tensor\n".to_owned();
    for row in &report.rows {
        let without = match row.error_without_scale {
            Some(error) if row.scale != "none" => format!(" ({:.2} % without)", 100.0 * error),
            _ => String::new(),
        };
        out += &format!(
            "{:>6.2} {:>6.2} % {:>6}  {}{without}\n",
            row.bits,
            100.0 * row.error,
            row.scale,
            row.name,
        );
    }
    out
}
