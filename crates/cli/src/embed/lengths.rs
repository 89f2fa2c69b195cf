//! Lengths of texts in tokens: counted from a file of texts, or read from a histogram.

use std::path::Path;

use anyhow::Context;
use thane_audit::plan::bucket::Histogram;
use thane_mil::budget::Budget;
use thane_runtime::{TOKENIZER_BYTES, TextEncoder};
use thane_serve::most_memory_of;

use super::reader::in_a_line;
use crate::app::App;
use crate::exit::{Failure, usage};
use crate::source::read_parsed;
use thane_texts::rows::Texts;

/// Most bytes of a histogram. A million lengths take some megabytes.
const MOST_BYTES: u64 = 1 << 26;

/// A histogram of lengths.
#[derive(Debug, Default)]
pub struct Lengths {
    pub histogram: Histogram,
    /// Number of texts without a token, which no program takes.
    pub empty: u64,
}

/// Counts the tokens of each text with this prompt before it.
pub fn of_texts(
    texts: &Texts,
    encoder: &TextEncoder,
    prompt: &str,
    app: &App,
) -> Result<Lengths, Failure> {
    let refused = |e: anyhow::Error| usage(in_a_line(e));
    let n_rows = texts.check().map_err(refused)?;
    app.output.count("counting tokens", n_rows, 0);
    let mut lengths = Lengths::default();
    for row in texts.rows() {
        let row = row.map_err(refused)?;
        let text = [prompt, &row.texts.concat()].concat();
        let what = || format!("the tokens of {}", texts.place(row.place));
        let held = app
            .budget
            .reserve(text.len().saturating_mul(TOKENIZER_BYTES), what);
        let _held = held.map_err(usage)?;
        let ids = encoder
            .encode(&text)
            .map_err(|e| refused(anyhow::Error::new(e).context(texts.place(row.place))))?;
        match ids.len() {
            0 => lengths.empty += 1,
            n => lengths.histogram.add(n, 1),
        }
        app.output.advance(1);
    }
    app.output.clear();
    Ok(lengths)
}

/// Reads a histogram such as `{"128": 5}`: five texts of 128 tokens. The error lists keys that are
/// no lengths and values that are no counts.
pub fn of_counts(path: &Path, budget: &Budget) -> anyhow::Result<Histogram> {
    let shown = || path.display().to_string();
    let parsed_bytes = |json: &[u8]| most_memory_of(json).saturating_mul(2);
    let (text, _held) = read_parsed(path, MOST_BYTES, parsed_bytes, budget).with_context(shown)?;
    Histogram::from_json(&text).map_err(|faults| anyhow::anyhow!("{}: {faults}", shown()))
}
