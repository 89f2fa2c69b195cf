//! Compares how many ops rebuilt whole models have with how many their sources count.

use serde::Serialize;

use super::csv::Table;
use super::measurements::{self, LoadError};
use super::zoo;
use crate::format::wrap::shorten;

/// The number of ops of a whole model; constants and compressed weights are none.
#[derive(Debug, Serialize)]
pub struct OpCountRow {
    /// Id of the row.
    pub id: String,
    /// What was counted, as the source calls it.
    pub model: String,
    /// Published ops.
    pub published: usize,
    /// Ops of the rebuilt program.
    pub rebuilt: usize,
    /// Where it is published.
    pub source: String,
}

impl OpCountRow {
    /// How far the rebuilt program is off, over what is published.
    pub fn error(&self) -> f64 {
        (self.rebuilt as f64 / self.published as f64 - 1.0).abs()
    }
}

/// The rows of a table that publish the ops of a whole model; none of a table without whole models.
/// Rows that cannot be rebuilt are left out here: they stand among the latencies that are.
pub fn score(text: &str) -> Result<Vec<OpCountRow>, LoadError> {
    let table = Table::parse(text)?;
    if table.column("program").is_err() {
        return Ok(Vec::new());
    }
    let rows = measurements::whole_models(&table, &["total_ops"])?;
    let counted = rows.into_iter().filter_map(|row| {
        let rebuilt = n_ops(&row.rebuilt?.programs)?;
        Some(OpCountRow {
            id: row.id,
            model: row.model,
            published: row.value.round() as usize,
            rebuilt,
            source: row.source,
        })
    });
    Ok(counted.collect())
}

/// Ops of one program of the zoo.
fn n_ops(name: &str) -> Option<usize> {
    let program = zoo::program(name).ok()?;
    let function = program.functions().first()?;
    let ops = function.all_ops();
    Some(
        ops.iter()
            .filter(|id| !function.op(**id).def.is_constexpr())
            .count(),
    )
}

/// For a terminal.
pub fn text(rows: &[OpCountRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut out = format!(
        "\nops of rebuilt programs\n\n{:<38} {:>9} {:>9}  source\n",
        "model", "published", "rebuilt"
    );
    for row in rows {
        out += &format!(
            "{:<38} {:>9} {:>9}  {}\n",
            shorten(&row.model, 38),
            row.published,
            row.rebuilt,
            row.source
        );
    }
    out
}
