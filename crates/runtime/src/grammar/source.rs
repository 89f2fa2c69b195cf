//! What grammars are written in, and how large they may be.

use llguidance::api::TopLevelGrammar;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thane_engine::choose::GrammarError;

use super::schema::{self, with_spacing};

/// Longest Lark grammar and regular expression. The time to compile grows with the square.
pub(crate) const MAX_TEXT_BYTES: usize = 64 << 10;

/// What a grammar is written in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GrammarSource {
    /// A JSON schema. Unless it has `x-guidance`, the JSON has a space after each comma and colon,
    /// and no other between tokens.
    JsonSchema(#[serde(with = "as_text")] Value),
    /// A regular expression of the whole answer, in the syntax of the Rust crate `regex`.
    Regex(String),
    /// A grammar in llguidance's variant of Lark, which begins at `start`.
    Lark(String),
    /// Two grammars, of which an answer follows one: `form`, or one of Lark that has it as `@form`.
    Either {
        /// The grammar of Lark.
        lark: String,
        /// The other one.
        form: Box<Self>,
    },
}

/// A schema may be nested as deeply as a body can be, so it goes as text, in which it is not nested
/// deeper.
mod as_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use serde_json::Value;

    pub fn serialize<S: Serializer>(value: &Value, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&value.to_string())
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Value, D::Error> {
        let text = String::deserialize(from)?;
        serde_json::from_str(&text).map_err(D::Error::custom)
    }
}

impl GrammarSource {
    /// Refuses what is too large to be compiled, and numbers that a grammar would round.
    pub(super) fn check(&self) -> Result<(), GrammarError> {
        let (n, most) = match self {
            Self::JsonSchema(schema) => {
                schema::check_numbers(schema)?;
                (schema.to_string().len(), schema::MAX_BYTES)
            }
            Self::Regex(text) | Self::Lark(text) => (text.len(), MAX_TEXT_BYTES),
            Self::Either { lark, form } => {
                form.check()?;
                (lark.len(), MAX_TEXT_BYTES)
            }
        };
        if n > most {
            let error = format!("expected at most {most} bytes, found {n}");
            return Err(GrammarError(error));
        }
        Ok(())
    }

    /// Refuses a schema that would take this process any time and memory.
    pub(super) fn check_states(&self) -> Result<(), GrammarError> {
        match self {
            Self::JsonSchema(schema) => schema::check_divisors(schema),
            Self::Either { form, .. } => form.check_states(),
            Self::Regex(_) | Self::Lark(_) => Ok(()),
        }
    }

    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::JsonSchema(json!({"type": "object"}))
    }

    /// One of these texts.
    pub fn choice(texts: &[String]) -> Self {
        let texts: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
        Self::Lark(format!("start: {}", texts.join(" | ")))
    }

    pub(super) fn parsed(&self) -> TopLevelGrammar {
        match self {
            Self::JsonSchema(schema) => TopLevelGrammar::from_json_schema(with_spacing(schema)),
            Self::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Self::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
            Self::Either { lark, form } => {
                let mut all = TopLevelGrammar::from_lark(lark.clone());
                all.grammars.extend(form.parsed().grammars);
                if let Some(form) = all.grammars.get_mut(1) {
                    form.name = Some("form".to_owned());
                }
                all
            }
        }
    }
}
