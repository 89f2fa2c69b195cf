//! Compares the power of the Neural Engine while a program runs back to back with what others read
//! from its rail.

use serde::Serialize;

use super::csv::Table;
use super::measurements::{self, LoadError, Row};
use crate::format::wrap::{item, shorten};
use crate::latency::Latency;
use crate::number::short;

/// A row that no program says.
#[derive(Debug, Serialize)]
pub struct LeftOut {
    /// Id of the row.
    pub id: String,
    /// Why not.
    pub reason: String,
}

/// For a terminal.
pub fn left_out_text(left_out: &[LeftOut]) -> String {
    let line = |left: &LeftOut| item("left out", &format!("{}: {}", left.id, left.reason));
    left_out.iter().map(line).collect()
}

/// The power of the Neural Engine while a program runs.
#[derive(Debug, Serialize)]
pub struct PowerRow {
    /// Id of the row.
    pub id: String,
    /// What ran, as the source calls it.
    pub model: String,
    /// Name of the chip in the tables.
    pub chip: &'static str,
    /// Whether numbers of the model were chosen with the row in view.
    pub seen: bool,
    /// Published watts.
    pub published_w: f64,
    /// Predicted watts: the energy of a call on the engine over the time of the call.
    pub predicted_w: f64,
    /// Watts by the least and the most that figures of energy leave open, for the predicted time.
    pub interval_w: (f64, f64),
    /// Where it is published.
    pub source: String,
}

/// The rows of a table that publish a power, and those that are not predicted.
pub fn score(text: &str) -> Result<(Vec<PowerRow>, Vec<LeftOut>), LoadError> {
    let table = Table::parse(text)?;
    let rows = if table.column("program").is_ok() {
        measurements::whole_models(&table, &["watts"])?
    } else {
        measurements::powers(&table)?
    };
    let (mut predicted, mut left_out) = (Vec::new(), Vec::new());
    for row in rows {
        match predict(&row) {
            Ok((latency, chip)) => predicted.push(power(row, &latency, chip)),
            Err(reason) => left_out.push(LeftOut { id: row.id, reason }),
        }
    }
    Ok((predicted, left_out))
}

fn predict(row: &Row) -> Result<(Latency, &'static str), String> {
    if row.rebuilt.as_ref().is_some_and(|r| r.units == "cpuAndGPU") {
        return Err("the power of the GPU is not predicted".to_owned());
    }
    let (_, latency, chip) = measurements::judged(row)?;
    Ok((latency, chip))
}

fn power(row: Row, latency: &Latency, chip: &'static str) -> PowerRow {
    let watts = |mj: f64| {
        if latency.ms > 0.0 {
            mj / latency.ms
        } else {
            0.0
        }
    };
    let ane = latency.energy.ane();
    PowerRow {
        seen: row.is_seen(),
        id: row.id,
        model: row.model,
        chip,
        published_w: row.value,
        predicted_w: watts(ane.mj),
        interval_w: (watts(ane.interval_mj.0), watts(ane.interval_mj.1)),
        source: row.source,
    }
}

/// For a terminal.
pub fn text(rows: &[PowerRow], left_out: &[LeftOut]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut out = format!(
        "\npower of the engine, in watts\n\n{:<34} {:<9} {:<6} {:>9} {:>9} {:>13}  source\n",
        "model", "chip", "fitted", "published", "predicted", "interval"
    );
    for row in rows {
        let interval = format!("{} to {}", short(row.interval_w.0), short(row.interval_w.1));
        out += &format!(
            "{:<34} {:<9} {:<6} {:>9} {:>9} {:>13}  {}\n",
            shorten(&row.model, 34),
            row.chip,
            if row.seen { "yes" } else { "no" },
            short(row.published_w),
            short(row.predicted_w),
            interval,
            row.source
        );
    }
    out + &left_out_text(left_out)
}
