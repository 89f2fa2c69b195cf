//! The flags that say how weights are compressed, and what is said of it afterwards.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use serde::Serialize;
use thane_audit::target::Target;
use thane_compile::compress::program::Settings;
pub use thane_compile::compress::report::Report;
use thane_compile::compress::report::Row;
use thane_compile::compress::{Blocks, Codes, Encoding, Scale};
use thane_mil::opset::Opset;
use thane_runtime::{CompressOptions, Folder};

use crate::exit::Outcome;
use crate::model::n_threads;
use crate::out::beside;
use crate::output::{bytes, counted};

/// Flags of `thane convert` and `thane compress`.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = "Compression")]
pub struct CompressFlags {
    /// Compress weights: auto, pal4, pal6, pal4g32, 2x16, int8, int4, sparse50, ..
    ///
    /// palN is a table of 2^N values (N is 1, 2, 3, 4, 6 or 8), with gM one for each M output
    /// channels. 2x16 is one table of 16 pairs of output channels. intN has a scale for each output
    /// channel, with t one for all, with bM one for each M inputs, which the Neural Engine does not
    /// read. sparse50 keeps the greater half, 2:4 the two greatest of four inputs, and
    /// sparse50+pal4 compresses what is kept. auto is pal4, with --compress-tables int8.
    #[arg(long, value_name = "ENCODING", value_parser = encoding)]
    pub compress: Option<Choice>,
    /// The encoding of tables that tokens are looked up in, and of the matrix that gives the logits
    /// [default: that of --compress].
    #[arg(long, value_name = "ENCODING", value_parser = tables)]
    pub compress_tables: Option<Encoding>,
    /// Where scales of output channels stand beside palettes: none, inside, or behind.
    ///
    /// inside needs iOS 18; behind is a multiplication after the product. [default: behind where it
    /// lowers the error, otherwise none].
    #[arg(long, value_name = "WHERE", hide_possible_values = true, value_enum)]
    pub scale: Option<ScaleFlag>,
}

/// A scale for each channel.
const INT8: Encoding = Encoding {
    sparsity: None,
    codes: Some(Codes::Integers(8, Blocks::Channel)),
};

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

/// The values of `--compress`.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    /// Palettes of 4 bits, and int8 where they cost most.
    Auto,
    One(Encoding),
}

fn encoding(text: &str) -> Result<Choice, String> {
    match text {
        "auto" => Ok(Choice::Auto),
        _ => tables(text).map(Choice::One),
    }
}

fn tables(text: &str) -> Result<Encoding, String> {
    Encoding::from_str(text).map_err(|e| e.to_string())
}

/// Options, and where finished tensors are kept beside an output.
pub struct Compressing {
    pub options: CompressOptions,
    folder: Arc<Folder>,
}

impl Compressing {
    /// The output is complete: finished tensors are in it.
    pub fn done(&self) {
        self.folder.remove();
    }
}

impl CompressFlags {
    /// The settings that flags stand for; `None` without `--compress`.
    pub fn settings(&self) -> Option<Settings> {
        let (encoding, tables) = match self.compress? {
            Choice::Auto => (Encoding::palette(4), Some(INT8)),
            Choice::One(encoding) => (encoding, None),
        };
        Some(Settings {
            encoding,
            tables: self.compress_tables.or(tables),
            scale: self.scale.map(ScaleFlag::scale),
            ..Settings::default()
        })
    }

    /// How weights of an output are compressed; `None` without `--compress`.
    pub fn compressing(&self, out: &Path) -> Option<Compressing> {
        let settings = self.settings()?;
        let folder = Arc::new(Folder::new(beside(out, ".codes")));
        let mut options = CompressOptions::new(settings, n_threads(None));
        options.store = Arc::clone(&folder) as Arc<_>;
        Some(Compressing { options, folder })
    }

    /// Refuses what no model can have, before any work: flags without a meaning, an encoding that
    /// the oldest system lacks, and one that the Neural Engine computes wrong.
    pub fn check(&self, oldest: Option<Opset>, targets: &[Target], is_for_ane: bool) -> Outcome {
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
        let all = [Some(encoding), settings.tables];
        let portable = all.into_iter().flatten().find(Encoding::is_portable_only);
        if let Some(encoding) = portable.filter(|_| is_for_ane || !targets.is_empty()) {
            return Err(usage!(
                "--compress {encoding}: the Neural Engine does not compile scales along inputs, or \
                 computes them wrong"
            )
            .remedy("--compress int4 or int8, with a scale for each output channel")
            .remedy("--form portable, for the CPU and GPU"));
        }
        let scale = self.scale.map_or(Scale::Behind, ScaleFlag::scale);
        let needs = settings.oldest_opset();
        let reads = targets.iter().map(|t| t.release.opset).chain(oldest).min();
        match reads.filter(|opset| *opset < needs) {
            None => Ok(()),
            Some(opset) => Err(usage!(
                "--compress {encoding}{} needs {}, and the oldest system reads {}",
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
    let mut lines = vec![format!(
        "compressed {} to {:.2} bits a weight, {} to {}; relative error {:.2} %{scales}",
        counted(report.rows.len(), "tensor"),
        totals.bits(),
        bytes(totals.bytes_before as u64),
        bytes(totals.bytes as u64),
        100.0 * totals.error,
    )];
    let mut reasons: BTreeMap<&str, (usize, usize, &str)> = BTreeMap::new();
    for left in &report.left {
        let entry = reasons.entry(&left.reason).or_insert((0, 0, &left.name));
        entry.0 += 1;
        entry.1 += left.bytes;
    }
    for (reason, (n, size, first)) in reasons {
        let size = bytes(size as u64);
        lines.push(match n {
            1 => format!("left as it is, {size}: {first}: {reason}"),
            n => format!("left as they are, {n} such as {first}, {size}: {reason}"),
        });
    }
    lines
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
