//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's API.

mod shape;
mod turns;

use axum::body::Body;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use thane_runtime::{GrammarSource, Sampling};

use super::Shared;
use super::ask::{self, Ask, Prompt};
use super::conversation::Conversation;
use super::generate::language_model;
use super::sampling::take_stops;
use super::tools::{Declaration, ToolChoice, Tools};
use crate::body::{Fields, refused};
use crate::compiling::Form;
use crate::error::{Answered, ApiError, NO_THREADS, json_response};
use crate::random;
use crate::stream::respond;
use shape::Shape;

/// Tools of the client; those that run at Anthropic have other types.
const TOOL: Declaration = Declaration {
    kind: "custom",
    kind_is_optional: true,
    inner: None,
    schema: "input_schema",
    examples: Some("input_examples"),
    ignored: &["cache_control", "eager_input_streaming", "strict"],
};

/// Fields that do not change an answer.
const IGNORED: &[&str] = &[
    "cache_control",
    "inference_geo",
    "metadata",
    "service_tier",
    "user_profile_id",
];

/// Fewest tokens of thoughts that a client may allow, as in the API.
const MIN_BUDGET: usize = 1024;

/// Fields that are supported with one value only, which changes nothing.
fn neutral() -> [(&'static str, Value); 1] {
    [("speed", json!("standard"))]
}

pub(super) async fn create(State(app): Shared, body: Body) -> Answered {
    let (mut fields, model, number) = app.read(body).await?;
    let answers = language_model(&model)?;
    let max_tokens: usize = fields.require("max_tokens")?;
    let (conversation, thinking) = conversation(&mut fields, Some(max_tokens))?;
    let stop = take_stops(&mut fields, "stop_sequences", "stop_sequences")?;
    let sampling = Sampling {
        temperature: fields.take("temperature")?,
        top_k: fields.take("top_k")?,
        top_p: fields.take("top_p")?,
        seed: number,
        ..Sampling::default()
    };
    let ask = Ask {
        form: form(&mut fields)?,
        stop: stop.clone(),
        max_tokens: Some(max_tokens),
        ..Ask::new(vec![Prompt::Conversation(conversation)], sampling)
    };
    let is_stream = fields.take("stream")?.unwrap_or(false);
    fields.finish(IGNORED, &neutral())?;
    let begun = ask.begin(answers, "messages").await?;
    let mut shape = Shape::new(random::id()?, model.id.clone(), stop, begun.n_prompt);
    shape.hides_thoughts = thinking.display == Some(Display::Omitted);
    respond(shape, begun.choices, is_stream).await
}

pub(super) async fn count_tokens(State(app): Shared, body: Body) -> Answered {
    let (mut fields, model, _) = app.read(body).await?;
    let answers = language_model(&model)?;
    let (conversation, _) = conversation(&mut fields, None)?;
    let form = form(&mut fields)?;
    fields.finish(IGNORED, &neutral())?;
    let n = ask::count_tokens(conversation, form, answers, "messages").await?;
    Ok(json_response(&json!({"input_tokens": n})))
}

/// Messages, tools and thoughts. In this API, a model thinks only if it is asked to.
fn conversation(
    fields: &mut Fields,
    max_tokens: Option<usize>,
) -> Result<(Conversation, Thinking), ApiError> {
    if fields.take::<Value>("thread")?.is_some() {
        let message = "the field `thread` is not supported: send all messages with each request";
        return Err(ApiError::field("thread", message).with_code(NO_THREADS));
    }
    let (messages, begun) = turns::take(fields)?;
    let choice = tool_choice(fields)?;
    let mut conversation = Conversation {
        tools: Tools::take(fields, &TOOL, choice)?,
        begun,
        ..Conversation::new(messages)
    };
    let thinking: Thinking = fields.take("thinking")?.unwrap_or_default();
    let thinks = thinking.thinks(max_tokens)?;
    if thinks && conversation.begun.is_some() {
        let expected = "no thoughts where the client begins the answer";
        return Err(refused("thinking", expected, "both"));
    }
    conversation.set_thinks(thinks);
    Ok((conversation, thinking))
}

/// `thinking`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct Thinking {
    #[serde(rename = "type")]
    kind: ThinkingKind,
    budget_tokens: Option<usize>,
    display: Option<Display>,
}

#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum ThinkingKind {
    #[default]
    Disabled,
    Enabled,
    Adaptive,
}

/// How thoughts are shown. The text of a thought is never summarized.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Display {
    Omitted,
    Summarized,
}

impl Thinking {
    /// Whether the model thinks before it answers.
    fn thinks(&self, max_tokens: Option<usize>) -> Result<bool, ApiError> {
        let place = "thinking.budget_tokens";
        match (&self.kind, self.budget_tokens) {
            (ThinkingKind::Enabled, None) => Err(refused(place, "a number of tokens", "none")),
            (ThinkingKind::Enabled, Some(n)) => {
                let most = max_tokens.map_or(usize::MAX, |max| max.saturating_sub(1));
                if n < MIN_BUDGET || n > most {
                    let expected =
                        format_args!("at least {MIN_BUDGET}, and less than `max_tokens`");
                    return Err(refused(place, expected, n));
                }
                Ok(true)
            }
            (_, Some(n)) => Err(refused(place, "none with this type", n)),
            (ThinkingKind::Adaptive, None) => Ok(true),
            (ThinkingKind::Disabled, None) => Ok(false),
        }
    }
}

/// `tool_choice`, and whether an answer may have several calls.
fn tool_choice(fields: &mut Fields) -> Result<(ToolChoice, Option<bool>), ApiError> {
    let mut choice = fields.nested("tool_choice")?;
    let kind: Option<String> = choice.take("type")?;
    let name: Option<String> = choice.take("name")?;
    let is_single: Option<bool> = choice.take("disable_parallel_tool_use")?;
    choice.finish(&[], &[])?;
    let choice = match (kind.as_deref(), name) {
        (None | Some("auto"), None) => ToolChoice::Auto,
        (Some("none"), None) => ToolChoice::None,
        (Some("any"), None) => ToolChoice::Required,
        (Some("tool"), Some(name)) => ToolChoice::Named(name),
        (Some("tool"), None) => return Err(refused("tool_choice.name", "a string", "none")),
        (Some("auto" | "none" | "any") | None, Some(name)) => {
            let expected = "none without the type `tool`";
            return Err(refused(
                "tool_choice.name",
                expected,
                format_args!("`{name}`"),
            ));
        }
        (Some(other), _) => {
            let expected = "auto, any, tool or none";
            return Err(refused(
                "tool_choice.type",
                expected,
                format_args!("`{other}`"),
            ));
        }
    };
    Ok((choice, is_single.map(|is_single| !is_single)))
}

/// `format` of `output_config`: a JSON schema.
fn form(fields: &mut Fields) -> Result<Option<Form>, ApiError> {
    let mut config = fields.nested("output_config")?;
    let format: Option<Format> = config.take("format")?;
    config.finish(&[], &[])?;
    Ok(format.map(|Format::JsonSchema { schema }| Form {
        source: GrammarSource::JsonSchema(schema),
        field: "output_config.format",
    }))
}

/// A form of answers.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Format {
    JsonSchema { schema: Value },
}
