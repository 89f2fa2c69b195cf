//! A report as one JSON object on one line; docs/json.md has its fields.

use super::report::Report;

pub fn print(report: &Report) -> anyhow::Result<String> {
    let mut text = serde_json::to_string(report)?;
    text.push('\n');
    Ok(text)
}
