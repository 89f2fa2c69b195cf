//! `/v1/responses`: OpenAI's newer API of conversations. The server keeps responses, so that a
//! request can continue one by its id.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{Response, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use thane_engine::generate::FinishReason;
use thane_engine::schedule::Usage;
use thane_runtime::{GrammarSource, Message, Sampling};

use super::ask::{Ask, Prompt};
use super::format::Form;
use super::generate::language_model;
use super::turns::Turns;
use super::{App, now_s};
use crate::body::Fields;
use crate::error::{ApiError, json_response};
use crate::kept::{Kept, Responses};
use crate::stream::{Render, named, respond};

const TURNS: Turns = Turns {
    field: "input",
    roles: &[
        ("user", "user"),
        ("assistant", "assistant"),
        ("system", "system"),
        ("developer", "system"),
    ],
    parts: &["input_text", "output_text"],
    item_type: Some("message"),
    ignored: &["annotations", "id", "logprobs", "phase", "status"],
};

/// Fields that do not change an answer.
const IGNORED: &[&str] = &[
    "max_tool_calls",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "stream_options",
    "user",
];

/// Fields that are supported with one value only, which changes nothing.
fn neutral() -> [(&'static str, Value); 8] {
    [
        ("background", json!(false)),
        ("context_management", json!([])),
        ("include", json!([])),
        ("reasoning", json!({})),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_logprobs", json!(0)),
        ("truncation", json!("disabled")),
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
    let instructions: Option<String> = fields.take("instructions")?;
    let previous: Option<String> = fields.take("previous_response_id")?;
    let messages = messages(
        &app.responses,
        previous.as_deref(),
        &fields.require("input")?,
    )?;
    let sampling = Sampling {
        temperature: fields.take("temperature")?,
        top_p: fields.take("top_p")?,
        seed: number,
        ..Sampling::default()
    };
    let max_tokens: Option<usize> = fields.take("max_output_tokens")?;
    let mut text = fields.nested("text")?;
    let format: Option<Value> = text.take("format")?;
    text.finish(&[], &[])?;
    let format = format.unwrap_or_else(|| json!({"type": "text"}));
    let form = form(&format)?;
    let is_stream = fields.take("stream")?.unwrap_or(false);
    let is_kept = fields.take("store")?.unwrap_or(true);
    let metadata: Map<String, Value> = fields.take("metadata")?.unwrap_or_default();
    fields.finish(IGNORED, &neutral())?;
    let id = format!("{:x}{number:08x}", app.started);
    let about = json!({
        "id": format!("resp_{id}"),
        "object": "response",
        "created_at": now_s(),
        "background": false,
        "error": null,
        "instructions": instructions,
        "max_output_tokens": max_tokens,
        "metadata": metadata,
        "model": model.id,
        "parallel_tool_calls": true,
        "previous_response_id": previous,
        "reasoning": {"effort": null, "summary": null},
        "store": is_kept,
        "temperature": sampling.temperature,
        "text": {"format": format},
        "tool_choice": "auto",
        "tools": [],
        "top_p": sampling.top_p,
        "truncation": "disabled",
    });
    let system = instructions.map(|text| Message::new("system", text));
    let asked = system.into_iter().chain(messages.iter().cloned());
    let ask = Ask {
        prompt: Prompt::Messages(asked.collect()),
        sampling,
        form,
        stop: Vec::new(),
        max_tokens,
    };
    let begun = ask.begin(answers, ("input", "stop")).await?;
    let shape = Shape {
        about,
        item_id: format!("msg_{id}"),
        text: String::new(),
        n_events: 0,
        messages,
        responses: is_kept.then(|| Arc::clone(&app.responses)),
    };
    respond(shape, begun.events, is_stream).await
}

/// `text.format`.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Format {
    Text,
    JsonObject,
    JsonSchema {
        schema: Value,
        #[serde(rename = "name")]
        _name: Option<String>,
        #[serde(rename = "description")]
        _description: Option<String>,
        /// Answers always follow the schema.
        #[serde(rename = "strict")]
        _strict: Option<bool>,
    },
}

fn form(format: &Value) -> Result<Option<Form>, ApiError> {
    let field = "text.format";
    let refused = |e: serde_json::Error| ApiError::field(field, format!("`{field}`: {e}"));
    let source = match Format::deserialize(format).map_err(refused)? {
        Format::Text => return Ok(None),
        Format::JsonObject => GrammarSource::json_object(),
        Format::JsonSchema { schema, .. } => GrammarSource::JsonSchema(schema),
    };
    Ok(Some(Form { source, field }))
}

/// The conversation so far: that of the previous response, and the input.
fn messages(
    responses: &Responses,
    previous: Option<&str>,
    input: &Value,
) -> Result<Vec<Message>, ApiError> {
    let mut messages = match previous {
        Some(id) => responses.get(id).ok_or_else(|| unknown(id))?.messages,
        None => Vec::new(),
    };
    match input {
        Value::String(text) => messages.push(Message::new("user", text.as_str())),
        list => messages.extend(TURNS.read(list)?),
    }
    if messages.is_empty() {
        let message = "`input`: expected a text or at least one message, found none";
        return Err(ApiError::field("input", message));
    }
    Ok(messages)
}

fn unknown(id: &str) -> ApiError {
    let message = format!(
        "expected the id of a response that is kept, found `{id}`: the server keeps the newest in \
         memory"
    );
    ApiError::new(StatusCode::NOT_FOUND, message).with_param("previous_response_id")
}

pub(super) async fn retrieve(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Response<Body>, ApiError> {
    let kept = app.responses.get(&id).ok_or_else(|| unknown(&id))?;
    Ok(json_response(&kept.response))
}

pub(super) async fn remove(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Response<Body>, ApiError> {
    if !app.responses.remove(&id) {
        return Err(unknown(&id));
    }
    let removed = json!({"id": id, "object": "response", "deleted": true});
    Ok(json_response(&removed))
}

/// The JSON of a response.
struct Shape {
    /// The fields that do not change.
    about: Value,
    /// The id of the message that is the answer.
    item_id: String,
    /// The answer so far.
    text: String,
    /// Events so far, which are numbered.
    n_events: u64,
    /// The conversation before the answer.
    messages: Vec<Message>,
    /// Where the response is kept.
    responses: Option<Arc<Responses>>,
}

impl Shape {
    /// The response with its state and what else changes.
    fn response(&self, status: &str, output: Value, usage: Value) -> Value {
        let mut response = self.about.clone();
        response["status"] = json!(status);
        response["output"] = output;
        response["usage"] = usage;
        response["incomplete_details"] = match status {
            "incomplete" => json!({"reason": "max_output_tokens"}),
            _ => Value::Null,
        };
        response
    }

    fn part(&self) -> Value {
        json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": []})
    }

    fn item(&self, status: &str, content: Value) -> Value {
        json!({
            "type": "message",
            "id": self.item_id,
            "status": status,
            "role": "assistant",
            "content": content,
        })
    }

    /// The complete response, which is kept.
    fn finished(&mut self, reason: FinishReason, usage: &Usage) -> Value {
        let status = status(reason);
        let output = json!([self.item(status, json!([self.part()]))]);
        let mut response = self.response(status, output, usage_json(usage));
        response["completed_at"] = now_s().into();
        if let Some(responses) = &self.responses {
            let mut messages = std::mem::take(&mut self.messages);
            messages.push(Message::new("assistant", self.text.as_str()));
            responses.keep(Kept {
                id: response["id"].as_str().unwrap_or_default().to_owned(),
                messages,
                response: response.clone(),
            });
        }
        response
    }

    /// An event with its number.
    fn event(&mut self, kind: &str, mut event: Value) -> Bytes {
        event["type"] = json!(kind);
        event["sequence_number"] = self.n_events.into();
        self.n_events += 1;
        named(&event)
    }

    /// An event about the text of the answer.
    fn text_event(&mut self, kind: &str, mut event: Value) -> Bytes {
        event["item_id"] = json!(self.item_id);
        event["output_index"] = 0.into();
        event["content_index"] = 0.into();
        self.event(kind, event)
    }
}

impl Render for Shape {
    fn whole(&mut self, text: &str, reason: FinishReason, usage: &Usage) -> Value {
        text.clone_into(&mut self.text);
        self.finished(reason, usage)
    }

    fn first(&mut self) -> Vec<Bytes> {
        let response = self.response("in_progress", json!([]), Value::Null);
        let item = self.item("in_progress", json!([]));
        let (item, part) = (json!({"output_index": 0, "item": item}), self.part());
        vec![
            self.event("response.created", json!({"response": response})),
            self.event("response.in_progress", json!({"response": response})),
            self.event("response.output_item.added", item),
            self.text_event("response.content_part.added", json!({"part": part})),
        ]
    }

    fn piece(&mut self, text: &str) -> Bytes {
        self.text.push_str(text);
        let delta = json!({"delta": text, "logprobs": []});
        self.text_event("response.output_text.delta", delta)
    }

    fn last(&mut self, reason: FinishReason, usage: &Usage) -> Vec<Bytes> {
        let status = status(reason);
        let text = json!({"text": self.text, "logprobs": []});
        let part = self.part();
        let item = self.item(status, json!([part]));
        let item = json!({"output_index": 0, "item": item});
        let response = self.finished(reason, usage);
        vec![
            self.text_event("response.output_text.done", text),
            self.text_event("response.content_part.done", json!({"part": part})),
            self.event("response.output_item.done", item),
            self.event(&format!("response.{status}"), json!({"response": response})),
        ]
    }

    fn failure(&mut self, error: &ApiError) -> Bytes {
        let event = json!({"code": error.kind(), "message": error.message(), "param": null});
        self.event("error", event)
    }
}

fn status(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop | FinishReason::Interrupted => "completed",
        FinishReason::Length | FinishReason::Context => "incomplete",
    }
}

fn usage_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.answer_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.answer_tokens,
    })
}
