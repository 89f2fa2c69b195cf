//! Compares how much of a whole model runs on the Neural Engine with what Core ML's compute plan or
//! Xcode said.

use serde::Serialize;

use super::csv::Table;
use super::measurements::{LoadError, Row, judged};
use super::power::LeftOut;

/// The share of the ops of a whole model that run on the Neural Engine.
#[derive(Debug, Serialize)]
pub struct ShareRow {
    /// Id of the row.
    pub id: String,
    /// What ran, as the source calls it.
    pub model: String,
    /// Name of the chip in the tables.
    pub chip: &'static str,
    /// The compute units.
    pub units: String,
    /// Whether numbers of the model were chosen with the row in view.
    pub seen: bool,
    /// Published share, 0 to 1.
    pub published: f64,
    /// Predicted share, 0 to 1.
    pub predicted: f64,
    /// Where it is published.
    pub source: String,
}

/// The rows of a table that publish a share, or the ops on the engine beside the ops of the whole;
/// none of a table without whole models. Rows that are not predicted come with the reason.
pub fn score(text: &str) -> Result<(Vec<ShareRow>, Vec<LeftOut>), LoadError> {
    let table = Table::parse(text)?;
    if table.column("program").is_err() {
        return Ok((Vec::new(), Vec::new()));
    }
    let rows = super::measurements::whole_models(&table, &["ane_ops", "total_ops", "ane_ops_pct"])?;
    let total = |row: &Row| {
        rows.iter()
            .find(|other| {
                other.metric == "total_ops" && other.model == row.model && other.shape == row.shape
            })
            .map(|other| other.value)
    };
    let (mut shares, mut left_out) = (Vec::new(), Vec::new());
    for row in &rows {
        let published = match row.metric.as_str() {
            "ane_ops_pct" => Some(row.value / 100.0),
            "ane_ops" => total(row).map(|n| row.value / n),
            // The ops of a whole program are no share of anything.
            _ => continue,
        };
        let Some(rebuilt) = &row.rebuilt else {
            continue;
        };
        let found = published
            .ok_or_else(|| "the source does not say how many ops the program has".to_owned())
            .and_then(|published| Ok((published, judged(row)?)));
        let (published, (placement, _, chip)) = match found {
            Ok(found) => found,
            Err(reason) => {
                let id = row.id.clone();
                left_out.push(LeftOut { id, reason });
                continue;
            }
        };
        shares.push(ShareRow {
            id: row.id.clone(),
            model: row.model.clone(),
            chip,
            units: rebuilt.units.clone(),
            seen: row.is_seen(),
            published,
            predicted: placement.residency(),
            source: row.source.clone(),
        });
    }
    Ok((shares, left_out))
}
