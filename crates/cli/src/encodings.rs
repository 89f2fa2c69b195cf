//! What encodings of the weights take, beside the form that was chosen for a decoder.

use serde::Serialize;
use thane_audit::target::Target;
use thane_compile::compress::program::Settings;
use thane_compile::compress::{Encoding, Scale};
use thane_models::AneDecoder;
use thane_runtime::{CompressOptions, EncodingPrice, Model, price_encodings};

use crate::app::App;
use crate::exit::Failure;
use crate::model::n_threads;
use crate::output::bytes;
use crate::planned::built;

/// The encodings that are priced, beside fp16.
const PRICED: [&str; 5] = ["int8", "pal8", "pal6", "pal4", "2x16"];

/// What an encoding takes on a target.
#[derive(Serialize)]
pub struct EncodingRow {
    /// As `--compress` has it, or `fp16`.
    encoding: String,
    /// Milliseconds of a token of an answer in the greatest context.
    ms: f64,
    /// Bytes of the packages, without what is beside weights and tables.
    disk_bytes: u64,
    /// Bytes of memory once all functions are loaded.
    loaded_bytes: Option<f64>,
    /// The rules that say that the target does not run it, or computes it wrong.
    faults: Vec<&'static str>,
}

/// The rows of each target, for a decoder in the form that was chosen.
pub fn rows(
    model: &Model,
    context: Option<usize>,
    decoder: &AneDecoder,
    targets: &[Target],
    app: &App,
) -> Result<Vec<Vec<EncodingRow>>, Failure> {
    app.output.busy("pricing encodings");
    let encodings: Vec<Encoding> = PRICED.iter().filter_map(|text| text.parse().ok()).collect();
    let options = |encoding: &Encoding| {
        let settings = Settings {
            encoding: *encoding,
            scale: Some(Scale::None),
            ..Settings::default()
        };
        Some(CompressOptions::new(settings, n_threads(None)))
    };
    let ways: Vec<_> = std::iter::once(None)
        .chain(encodings.iter().map(options))
        .collect();
    let made = built(model, context, Some(decoder.clone()))?;
    let prices = price_encodings(&|way| made.subject("", way), &ways, targets)?;
    let names = std::iter::once("fp16".to_owned()).chain(encodings.iter().map(Encoding::to_string));
    let mut rows: Vec<Vec<EncodingRow>> = targets.iter().map(|_| Vec::new()).collect();
    for (name, prices) in names.zip(prices) {
        for (of_target, price) in rows.iter_mut().zip(prices) {
            of_target.push(row(name.clone(), &price));
        }
    }
    Ok(rows)
}

fn row(encoding: String, price: &EncodingPrice) -> EncodingRow {
    EncodingRow {
        encoding,
        ms: price.ms,
        disk_bytes: price.disk_bytes,
        loaded_bytes: price.loaded_bytes,
        faults: price.faults.iter().map(|fault| fault.rule.id).collect(),
    }
}

/// The table of each target, and what its columns are.
pub fn tables(rows: &[Vec<EncodingRow>], targets: &[Target]) -> String {
    let mut text = String::new();
    let targets = rows.iter().zip(targets);
    for (rows, target) in targets.filter(|(rows, _)| !rows.is_empty()) {
        text += &format!("\n{}\n", target.described());
        text += &format!(
            "{:<9}{:>8}{:>10}{:>10}  rules\n",
            "encoding", "ms", "disk", "loaded"
        );
        for row in rows {
            let loaded = row.loaded_bytes.map(|n| bytes(n as u64));
            let rules = match row.faults.is_empty() {
                true => String::new(),
                false => format!("  not run right: {}", row.faults.join(", ")),
            };
            text += &format!(
                "{:<9}{:>8.2}{:>10}{:>10}{rules}\n",
                row.encoding,
                row.ms,
                bytes(row.disk_bytes),
                loaded.unwrap_or_default(),
            );
        }
    }
    match text.is_empty() {
        true => text,
        false => text + COLUMNS,
    }
}

/// What the columns are.
const COLUMNS: &str = "ms: a token of an answer with a full cache; disk: weights and tables; \
    loaded: memory of all functions;\nencodings are those of --compress, without scales of \
    channels (--scale none); thane explain RULE says why\n";
