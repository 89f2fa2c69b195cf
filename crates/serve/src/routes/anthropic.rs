//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's API.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use thane_engine::generate::FinishReason;
use thane_engine::schedule::Usage;
use thane_runtime::{GrammarSource, Message, Sampling};

use super::App;
use super::ask::{Ask, Prompt};
use super::format::Form;
use super::generate::language_model;
use super::turns::Turns;
use crate::body::Fields;
use crate::dialect::Dialect;
use crate::error::{ApiError, json_response};
use crate::stream::{Render, named, respond};

const TURNS: Turns = Turns {
    field: "messages",
    roles: &[
        ("user", "user"),
        ("assistant", "assistant"),
        ("system", "system"),
    ],
    parts: &["text"],
    item_type: None,
    ignored: &["cache_control", "citations"],
};

/// Fields that do not change an answer.
const IGNORED: &[&str] = &[
    "cache_control",
    "inference_geo",
    "metadata",
    "service_tier",
    "user_profile_id",
];

/// Fields that are supported with one value only, which changes nothing.
fn neutral() -> [(&'static str, Value); 4] {
    [
        ("speed", json!("standard")),
        ("thinking", json!({"type": "disabled"})),
        ("tool_choice", json!({"type": "none"})),
        ("tools", json!([])),
    ]
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let mut fields = Fields::read(body, app.body).await?;
    let model = &*app.model_of(&mut fields).await?;
    let answers = language_model(model)?;
    let number = app.next_request();
    let messages = messages(&mut fields)?;
    let max_tokens: usize = fields.require("max_tokens")?;
    let stop: Vec<String> = fields.take("stop_sequences")?.unwrap_or_default();
    let sampling = Sampling {
        temperature: fields.take("temperature")?,
        top_k: fields.take("top_k")?,
        top_p: fields.take("top_p")?,
        seed: number,
        ..Sampling::default()
    };
    let form = form(&mut fields)?;
    let is_stream = fields.take("stream")?.unwrap_or(false);
    fields.finish(IGNORED, &neutral())?;
    let ask = Ask {
        prompt: Prompt::Messages(messages),
        sampling,
        form,
        stop: stop.clone(),
        max_tokens: Some(max_tokens),
    };
    let begun = ask.begin(answers, ("messages", "stop_sequences")).await?;
    let shape = Shape {
        id: format!("msg_{:x}{number:08x}", app.started),
        model: model.id.clone(),
        stop,
        n_prompt: begun.n_prompt,
    };
    respond(shape, begun.events, is_stream).await
}

pub(super) async fn count_tokens(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let mut fields = Fields::read(body, app.body).await?;
    let model = &*app.model_of(&mut fields).await?;
    let answers = language_model(model)?;
    let messages = messages(&mut fields)?;
    form(&mut fields)?;
    fields.finish(IGNORED, &neutral())?;
    let tokens = Prompt::Messages(messages).encode(answers).await?;
    Ok(json_response(&json!({"input_tokens": tokens.len()})))
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

/// The messages, with the system prompt as the first of them. Turns of one role that follow each
/// other are one turn, as the API has it: templates refuse them.
fn messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = fields.take::<Value>("system")? {
        messages.push(Message::new("system", TURNS.text(&system, "system")?));
    }
    for message in TURNS.read(&fields.require("messages")?)? {
        match messages.last_mut() {
            Some(last) if last.role == message.role => {
                last.content = format!("{}\n\n{}", last.content, message.content);
            }
            _ => messages.push(message),
        }
    }
    if messages.last().is_some_and(|last| last.role == "user") {
        return Ok(messages);
    }
    let message = "`messages`: expected a message of the user as the last one, found another or \
                   none; an answer cannot be begun by the client";
    Err(ApiError::field("messages", message))
}

/// The JSON of an answer.
struct Shape {
    id: String,
    model: String,
    /// The texts that end the answer.
    stop: Vec<String>,
    /// Tokens of the prompt.
    n_prompt: usize,
}

impl Shape {
    fn message(&self, content: Value, end: Value, usage: Value) -> Value {
        let mut message = json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "usage": usage,
        });
        for field in ["stop_reason", "stop_sequence"] {
            message[field] = end[field].clone();
        }
        message
    }

    fn end(&self, reason: FinishReason, usage: &Usage) -> Value {
        let stop = usage.stop_idx.and_then(|idx| self.stop.get(idx));
        let reason = match reason {
            _ if stop.is_some() => "stop_sequence",
            FinishReason::Stop | FinishReason::Interrupted => "end_turn",
            FinishReason::Length => "max_tokens",
            FinishReason::Context => "model_context_window_exceeded",
        };
        json!({"stop_reason": reason, "stop_sequence": stop})
    }
}

impl Render for Shape {
    fn whole(&mut self, text: &str, reason: FinishReason, usage: &Usage) -> Value {
        let content = json!([{"type": "text", "text": text}]);
        self.message(content, self.end(reason, usage), usage_json(usage))
    }

    fn first(&mut self) -> Vec<Bytes> {
        // How many of them a cache holds is known at the end.
        let usage = usage_json(&Usage {
            prompt_tokens: self.n_prompt,
            ..Usage::default()
        });
        let message = self.message(json!([]), json!({}), usage);
        let block = json!({"type": "text", "text": ""});
        vec![
            named(&json!({"type": "message_start", "message": message})),
            named(&json!({"type": "content_block_start", "index": 0, "content_block": block})),
        ]
    }

    fn piece(&mut self, text: &str) -> Bytes {
        let delta = json!({"type": "text_delta", "text": text});
        named(&json!({"type": "content_block_delta", "index": 0, "delta": delta}))
    }

    fn last(&mut self, reason: FinishReason, usage: &Usage) -> Vec<Bytes> {
        let end = self.end(reason, usage);
        let usage = usage_json(usage);
        vec![
            named(&json!({"type": "content_block_stop", "index": 0})),
            named(&json!({"type": "message_delta", "delta": end, "usage": usage})),
            named(&json!({"type": "message_stop"})),
        ]
    }

    fn failure(&mut self, error: &ApiError) -> Bytes {
        named(&Dialect::Anthropic.error(error))
    }
}

/// In this API, `input_tokens` are those that no cache held.
fn usage_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.answer_tokens,
    })
}
