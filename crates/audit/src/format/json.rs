//! A report as one JSON object on one line; docs/json.md has its fields.

use crate::report::Report;

/// The report as JSON.
pub fn print(report: &Report) -> serde_json::Result<String> {
    let mut text = serde_json::to_string(report)?;
    text.push('\n');
    Ok(text)
}
