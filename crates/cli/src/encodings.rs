//! What encodings of the weights take, each in the form that `convert --compress` would choose.

use serde::Serialize;
use thane_audit::plan::form::Choice;
use thane_audit::target::Target;
use thane_compile::compress::Encoding;
use thane_runtime::{EncodingPrice, Model, price_encodings};

use crate::app::App;
use crate::compress::{CompressFlags, ScaleFlag};
use crate::exit::Failure;
use crate::output::bytes;
use crate::planned::{self, Asked, Planned, built};

/// The encodings that are priced, beside fp16.
const PRICED: [&str; 5] = ["int8", "pal8", "pal6", "pal4", "2x16"];

/// What an encoding takes on a target.
#[derive(Serialize)]
pub struct EncodingRow {
    /// As `--compress` has it, or `fp16`.
    encoding: String,
    /// The form that is chosen with it, in words.
    form: String,
    /// Number of programs that layers and head are cut into.
    programs: usize,
    /// Milliseconds of a token of an answer in the greatest context.
    ms: f64,
    /// Bytes of the packages, without what is beside weights and tables.
    disk_bytes: u64,
    /// Bytes of memory once all functions are loaded.
    loaded_bytes: Option<f64>,
    /// The rules that say that the target does not run it, or computes it wrong.
    faults: Vec<&'static str>,
}

/// The rows of each target: without compression, which was planned, and with each encoding in the
/// form that is best with it.
pub fn rows(
    model: &Model,
    asked: &Asked<'_>,
    plain: &Planned,
    app: &App,
) -> Result<Vec<Vec<EncodingRow>>, Failure> {
    app.output.busy("pricing encodings");
    let mut rows: Vec<Vec<EncodingRow>> = plain.choices.iter().map(|_| Vec::new()).collect();
    let mut add = |name: String, planned: &Planned| -> Result<(), Failure> {
        let made = built(model, asked.context, Some(planned.decoder.clone()))?;
        let targets: Vec<Target> = planned.choices.iter().map(|choice| choice.target).collect();
        let ways = [planned.compress.clone()];
        let prices = price_encodings(&|way| made.subject("", way), &ways, &targets)?;
        let of_targets = rows.iter_mut().zip(&planned.choices);
        for ((of_target, choice), price) in of_targets.zip(prices.iter().flatten()) {
            of_target.push(row(name.clone(), choice, price));
        }
        Ok(())
    };
    add("fp16".to_owned(), plain)?;
    for encoding in PRICED {
        let encoding: Encoding = encoding.parse().map_err(anyhow::Error::new)?;
        let asked = Asked {
            compression: CompressFlags::of(encoding, ScaleFlag::None),
            ..*asked
        };
        add(encoding.to_string(), &planned::choose(model, &asked, app)?)?;
    }
    Ok(rows)
}

fn row(encoding: String, choice: &Choice, price: &EncodingPrice) -> EncodingRow {
    EncodingRow {
        encoding,
        form: planned::short(&choice.chosen),
        programs: choice.chosen.programs,
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
            "{:<9}{:>7}{:>9}{:>9}  form; rules against it\n",
            "encoding", "ms", "disk", "loaded"
        );
        for row in rows {
            let loaded = row.loaded_bytes.map(|n| bytes(n as u64));
            let rules = match row.faults.is_empty() {
                true => String::new(),
                false => format!("; {}", row.faults.join(", ")),
            };
            text += &format!(
                "{:<9}{:>7.2}{:>9}{:>9}  {}{rules}\n",
                row.encoding,
                row.ms,
                bytes(row.disk_bytes),
                loaded.unwrap_or_default(),
                row.form,
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
    loaded: memory of all\nfunctions; encodings are those of --compress with --scale none, each in \
    the form that is best\nwith it; thane explain RULE says why a target does not run an encoding \
    right\n";
