//! The flags that say what form an answer has.

use std::path::Path;

use thane_mil::budget::Budget;
use thane_runtime::GrammarSource;

use crate::exit::{Failure, usage};
use crate::source::read_text;

/// The flags.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Form of the answer")]
pub struct StructureFlags {
    /// Hold the answer to a JSON schema: a file, or the schema itself.
    #[arg(long, value_name = "FILE|JSON", conflicts_with = "grammar")]
    json_schema: Option<String>,
    /// Hold the answer to a grammar: a file in llguidance's variant of Lark.
    #[arg(long, value_name = "FILE")]
    grammar: Option<String>,
    /// With --json: print the log probability of each token, and of the N most likely ones.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=20))]
    logprobs: Option<u8>,
}

impl StructureFlags {
    /// The number of most likely tokens to print beside each.
    pub fn logprobs(&self) -> Option<usize> {
        self.logprobs.map(usize::from)
    }

    /// Whether a token is chosen from all logits.
    pub fn needs_all_logits(&self) -> bool {
        self.json_schema.is_some() || self.grammar.is_some() || self.logprobs.is_some()
    }

    /// The grammar of the answer.
    pub fn grammar(&self, budget: &Budget) -> Result<Option<GrammarSource>, Failure> {
        let read = |path: &str| {
            let text = read_text(Path::new(path), budget);
            text.map(|(text, _)| text).map_err(usage)
        };
        if let Some(path) = &self.grammar {
            return read(path).map(|lark| Some(GrammarSource::Lark(lark)));
        }
        let Some(given) = &self.json_schema else {
            return Ok(None);
        };
        let text = match given.trim_start().starts_with('{') {
            true => given.clone(),
            false => read(given)?,
        };
        let schema = serde_json::from_str(&text).map_err(|e| {
            usage!("--json-schema: expected a JSON schema: {e}")
                .remedy("--json-schema '{\"type\": \"object\"}', or a file with a schema")
        })?;
        Ok(Some(GrammarSource::JsonSchema(schema)))
    }
}
