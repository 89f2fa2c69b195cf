//! How long texts are, in tokens: counted from a file of texts, or read from a file of counts.

use std::fmt;
use std::path::Path;

use anyhow::Context;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use thane_audit::plan::bucket::Histogram;
use thane_mil::package::read_small;

use super::encoder::Words;
use super::job::in_a_line;
use super::rows::Texts;
use crate::app::App;
use crate::exit::{Code, Failure};
use crate::language::TOKENIZER_BYTES;

/// Keys that are listed before the rest is left to be found.
const MOST_FAULTS: usize = 8;
/// Bytes of a file of counts at most: a million lengths have some megabytes.
const MOST_BYTES: u64 = 1 << 26;

/// Lengths, and what has none.
#[derive(Debug, Default)]
pub struct Lengths {
    pub histogram: Histogram,
    /// Texts without a token, which no program takes.
    pub empty: u64,
}

/// Count the tokens of each text behind this prompt.
pub fn of_texts(texts: &Texts, words: &Words, prompt: &str, app: &App) -> Result<Lengths, Failure> {
    let usage = |e: anyhow::Error| Failure::new(Code::Usage, in_a_line(e));
    let n_rows = texts.check().map_err(usage)?;
    app.output.count("counting tokens", n_rows, 0);
    let mut lengths = Lengths::default();
    for row in texts.rows().map_err(usage)? {
        let row = row.map_err(usage)?;
        let text = [prompt, &row.texts.concat()].concat();
        let what = || format!("the tokens of {}", texts.place(row.number));
        let held = app
            .budget
            .reserve(text.len().saturating_mul(TOKENIZER_BYTES), what);
        let _held = held.map_err(|e| usage(e.into()))?;
        let ids = words
            .encode(&text)
            .map_err(|e| usage(e.context(texts.place(row.number))))?;
        match ids.len() {
            0 => lengths.empty += 1,
            n => lengths.histogram.add(n, 1),
        }
        app.output.advance(1);
    }
    app.output.clear();
    Ok(lengths)
}

/// Read `{"128": 5}`: five texts of 128 tokens. Keys that are no lengths and values that are no
/// counts are named.
pub fn of_counts(path: &Path) -> anyhow::Result<Histogram> {
    let shown = || path.display().to_string();
    let text = read_small(path, MOST_BYTES).with_context(shown)?;
    let Pairs(pairs) = serde_json::from_slice(&text)
        .map_err(|e| anyhow::anyhow!("{}: an object of lengths and counts is due: {e}", shown()))?;
    let (mut histogram, mut faults) = (Histogram::default(), Vec::new());
    for (key, value) in pairs {
        match (key.parse::<usize>(), value.as_u64()) {
            (Ok(length), Some(n)) if length > 0 => histogram.add(length, n),
            (Ok(length), _) if length > 0 => {
                faults.push(format!("`{key}` is {value}, a count is due: 0, 1, 2, ..."))
            }
            _ => faults.push(format!("`{key}` is no length: a whole number above 0")),
        }
        if faults.len() == MOST_FAULTS {
            break;
        }
    }
    anyhow::ensure!(faults.is_empty(), "{}: {}", shown(), faults.join("\n  "));
    Ok(histogram)
}

/// The pairs of an object in their order, a key that comes twice included.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object such as {\"128\": 5}")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        from.deserialize_map(Collect)
    }
}
