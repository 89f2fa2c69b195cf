//! The fields of a request that say what form an answer has: `response_format` of OpenAI's API, and
//! `structured_outputs` of vLLM's.

use serde::Deserialize;
use serde_json::Value;
use thane_runtime::GrammarSource;

use crate::body::Fields;
use crate::compiling::Form;
use crate::error::ApiError;

/// `response_format`.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum ResponseFormat {
    Text,
    JsonObject,
    JsonSchema { json_schema: NamedSchema },
}

/// `json_schema` of a `response_format`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedSchema {
    schema: Option<Value>,
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
    /// Answers always follow the schema.
    #[serde(rename = "strict")]
    _strict: Option<bool>,
}

/// `structured_outputs`; one of them.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Structure {
    /// A JSON schema, also as text.
    Json(Value),
    /// A regular expression.
    Regex(String),
    /// Texts of which the answer is one.
    Choice(Vec<String>),
    /// A Lark grammar.
    Grammar(String),
}

/// Takes the form of the answer; `None` for text.
pub(super) fn take(fields: &mut Fields) -> Result<Option<Form>, ApiError> {
    const FORMAT: &str = "response_format";
    const STRUCTURE: &str = "structured_outputs";
    let format = match fields.take(FORMAT)? {
        None | Some(ResponseFormat::Text) => None,
        Some(ResponseFormat::JsonObject) => Some(GrammarSource::json_object()),
        Some(ResponseFormat::JsonSchema { json_schema }) => {
            let schema = json_schema.schema.unwrap_or(Value::Bool(true));
            Some(GrammarSource::JsonSchema(schema))
        }
    };
    let structure = match fields.take(STRUCTURE)? {
        None => None,
        Some(Structure::Json(Value::String(text))) => {
            let schema = serde_json::from_str(&text).map_err(|e| {
                ApiError::field(STRUCTURE, format!("`{STRUCTURE}.json` is not JSON: {e}"))
            })?;
            Some(GrammarSource::JsonSchema(schema))
        }
        Some(Structure::Json(schema)) => Some(GrammarSource::JsonSchema(schema)),
        Some(Structure::Regex(regex)) => Some(GrammarSource::Regex(regex)),
        Some(Structure::Choice(texts)) if texts.is_empty() => {
            let message = format!("`{STRUCTURE}.choice`: expected at least one text, found none");
            return Err(ApiError::field(STRUCTURE, message));
        }
        Some(Structure::Choice(texts)) => Some(GrammarSource::choice(&texts)),
        Some(Structure::Grammar(lark)) => Some(GrammarSource::Lark(lark)),
    };
    match (format, structure) {
        (None, None) => Ok(None),
        (Some(source), None) => Ok(Some(Form {
            source,
            field: FORMAT,
        })),
        (None, Some(source)) => Ok(Some(Form {
            source,
            field: STRUCTURE,
        })),
        (Some(_), Some(_)) => {
            let message = format!("expected `{FORMAT}` or `{STRUCTURE}`, found both");
            Err(ApiError::field(STRUCTURE, message))
        }
    }
}
