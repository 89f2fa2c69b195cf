//! `POST /api/generate` and `POST /api/chat`.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::State;
use serde_json::{Map, Value, json};
use thane_runtime::{GrammarSource, Message, Sampling};

use super::super::ask::{Ask, Prompt};
use super::super::conversation::Conversation;
use super::super::generate::{language_model, top_logprobs};
use super::super::sampling::take_stops;
use super::super::tools::{self, Declaration, FUNCTION, ToolChoice, Tools};
use super::super::turns::Turns;
use super::super::{App, Shared};
use super::shape::{Said, Shape};
use super::{LOAD_OPTIONS, model_of};
use crate::answers::Answers;
use crate::body::{Fields, kind, refused};
use crate::compiling::Form;
use crate::error::{Answered, ApiError, json_response};
use crate::random;
use crate::stream::respond;

const TURNS: Turns = Turns {
    field: "messages",
    roles: &[
        ("system", "system"),
        ("user", "user"),
        ("assistant", "assistant"),
        ("tool", "tool"),
    ],
    parts: &[],
    item_type: None,
    ignored: &[],
};

const TOOL: Declaration = Declaration {
    kind_is_optional: true,
    ..FUNCTION
};

/// Fields that are supported with one value only, which changes nothing.
fn neutral() -> [(&'static str, Value); 6] {
    [
        ("context", json!([])),
        ("images", json!([])),
        ("suffix", json!("")),
        ("template", json!("")),
        ("tools", json!([])),
        ("truncate", json!(false)),
    ]
}

pub(super) async fn generate(State(app): Shared, body: Body) -> Answered {
    answer(&app, body, false, |fields, answers| {
        let prompt: String = fields.take("prompt")?.unwrap_or_default();
        let system: Option<String> = fields.take("system")?;
        let system = system.filter(|system| !system.is_empty());
        let is_raw = fields.take("raw")?.unwrap_or(false);
        if is_raw && system.is_some() {
            let message = "`system`: expected none, because `raw` asks for the prompt alone";
            return Err(ApiError::field("system", message));
        }
        if prompt.is_empty() {
            return Ok(None);
        }
        if is_raw || system.is_none() && !answers.prompts.has_template() {
            return Ok(Some(Prompt::Text(prompt)));
        }
        let system = system.map(|system| Message::new("system", system));
        let messages = system.into_iter().chain([Message::new("user", prompt)]);
        let conversation = Conversation::new(messages.collect());
        Ok(Some(Prompt::Conversation(conversation)))
    })
    .await
}

pub(super) async fn chat(State(app): Shared, body: Body) -> Answered {
    answer(&app, body, true, |fields, _| {
        let list = fields.take("messages")?.unwrap_or(json!([]));
        let items = TURNS.items(&list)?;
        let messages = items.iter().map(|(place, item)| message(item, place));
        let mut messages = messages.collect::<Result<Vec<Message>, _>>()?;
        forget_unmatched(&mut messages);
        let tools = Tools::take(fields, &TOOL, (ToolChoice::Auto, None))?;
        let conversation = Conversation {
            tools,
            ..Conversation::new(messages)
        };
        let is_asked = !conversation.messages.is_empty();
        Ok(is_asked.then_some(Prompt::Conversation(conversation)))
    })
    .await
}

/// Drops the ids of results where no call has one: calls of older clients have none.
fn forget_unmatched(messages: &mut [Message]) {
    let calls = messages.iter().filter_map(|m| m.fields.get("tool_calls"));
    let mut calls = calls.filter_map(Value::as_array).flatten();
    if calls.any(|call| call["id"].is_string()) {
        return;
    }
    for message in messages {
        message.fields.remove("tool_call_id");
    }
}

/// A message. A result names its tool, or the id of a call that has one.
fn message(item: &Map<String, Value>, place: &str) -> Result<Message, ApiError> {
    let mut item = item.clone();
    let role = item.get("role").cloned().unwrap_or_default();
    let mut take = |name: &str, of: &str| {
        let value = item.remove(name).filter(|value| match value {
            Value::Array(list) => !list.is_empty(),
            Value::String(text) => !text.is_empty(),
            value => !value.is_null(),
        })?;
        if role == of {
            return Some(Ok(value));
        }
        let place = format_args!("{place}.{name}");
        Some(Err(refused(
            place,
            format_args!("none for {role}"),
            kind(&value),
        )))
    };
    let mut fields = Map::new();
    for (name, of, known) in [
        ("thinking", "assistant", "reasoning_content"),
        ("tool_name", "tool", "name"),
        ("tool_call_id", "tool", "tool_call_id"),
    ] {
        let Some(value) = take(name, of).transpose()? else {
            continue;
        };
        if !value.is_string() {
            let place = format_args!("{place}.{name}");
            return Err(refused(place, "a string", kind(&value)));
        }
        fields.insert(known.to_owned(), value);
    }
    if let Some(list) = take("tool_calls", "assistant").transpose()? {
        let calls = tools::calls(&list, &format!("{place}.tool_calls"))?;
        fields.insert("tool_calls".to_owned(), calls);
        // The client leaves it out.
        item.entry("content").or_insert(json!(""));
    }
    let mut message = TURNS.message(&item, place)?;
    message.fields = fields;
    Ok(message)
}

/// Answers the prompt that `prompt` takes from the fields. Without one, a client wants the model to
/// be loaded, and it is.
async fn answer(
    app: &App,
    body: Body,
    is_chat: bool,
    prompt: impl FnOnce(&mut Fields, &Answers) -> Result<Option<Prompt>, ApiError>,
) -> Answered {
    let mut fields = Fields::read(body, app.body).await?;
    let arrived = Instant::now();
    let model = &*model_of(app, &mut fields).await?;
    let answers = language_model(model)?;
    let is_stream = fields.take("stream")?.unwrap_or(true);
    let mut options = fields.nested("options")?;
    let stop = take_stops(&mut options, "stop", "options.stop")?;
    let max_tokens = max_tokens(options.take("num_predict")?)?;
    let sampling = sampling(&mut options, answers, random::number()?)?;
    check_context(options.take("num_ctx")?, answers)?;
    finish(options)?;
    let form = form(&mut fields)?;
    let thinks = thinks(&mut fields, answers)?;
    let logprobs = top_logprobs(&mut fields, answers)?;
    let mut prompt = prompt(&mut fields, answers)?;
    fields.finish(&[], &neutral())?;
    let shape = Shape {
        model: model.id.clone(),
        is_chat,
        arrived,
        logprobs: logprobs.map(|_| Arc::clone(&answers.prompts)),
    };
    if let (Some(Prompt::Conversation(conversation)), Some(thinks)) = (&mut prompt, thinks) {
        conversation.set_thinks(thinks);
    }
    let Some(prompt) = prompt else {
        let mut loaded = shape.object(&Said::default(), true);
        loaded["done_reason"] = json!("load");
        return Ok(json_response(&loaded));
    };
    let ask = Ask {
        form,
        stop,
        max_tokens,
        logprobs,
        ..Ask::new(vec![prompt], sampling)
    };
    let param = if is_chat { "messages" } else { "prompt" };
    respond(shape, ask.begin(answers, param).await?.choices, is_stream).await
}

/// `think`: whether the model thinks, if the client says so.
fn thinks(fields: &mut Fields, answers: &Answers) -> Result<Option<bool>, ApiError> {
    match fields.take::<Value>("think")? {
        None => Ok(None),
        Some(Value::Bool(true)) if answers.prompts.syntax().thoughts.is_none() => {
            let found = "true for a model whose chat template has no thoughts";
            Err(refused("think", "false", found))
        }
        Some(Value::Bool(thinks)) => Ok(Some(thinks)),
        Some(other) => {
            let found = other.as_str().map(|text| format!("`{text}`"));
            let found = found.unwrap_or_else(|| kind(&other).to_owned());
            Err(refused("think", "true or false", found))
        }
    }
}

fn sampling(options: &mut Fields, answers: &Answers, number: u64) -> Result<Sampling, ApiError> {
    let sampling = super::super::sampling::take(options, answers, number)?;
    let penalty = options.take("repeat_penalty")?;
    Ok(Sampling {
        repetition_penalty: penalty.or(sampling.repetition_penalty),
        ..sampling
    })
}

/// `format`: `json`, or a schema.
fn form(fields: &mut Fields) -> Result<Option<Form>, ApiError> {
    let field = "format";
    let source = match fields.take::<Value>(field)? {
        None => return Ok(None),
        Some(Value::String(name)) if name.is_empty() => return Ok(None),
        Some(Value::String(name)) if name == "json" => GrammarSource::json_object(),
        Some(schema @ Value::Object(_)) => GrammarSource::JsonSchema(schema),
        Some(_) => {
            return Err(refused(field, "json or a JSON schema", "another value"));
        }
    };
    Ok(Some(Form { source, field }))
}

/// -1 and -2 are as many as fit.
fn max_tokens(asked: Option<i64>) -> Result<Option<usize>, ApiError> {
    match asked {
        None | Some(-2 | -1) => Ok(None),
        Some(n) => usize::try_from(n)
            .map(Some)
            .map_err(|_| refused("options.num_predict", "-2, -1 or more", n)),
    }
}

/// The context is what the server was started with; a smaller one would only cut conversations.
fn check_context(asked: Option<usize>, answers: &Answers) -> Result<(), ApiError> {
    let most = answers.context;
    match asked {
        Some(n) if n > most => {
            let message = format!(
                "`options.num_ctx`: expected at most {most}, found {n}: `thane serve --context` \
                 sets the context"
            );
            Err(ApiError::field("options.num_ctx", message))
        }
        _ => Ok(()),
    }
}

fn finish(options: Fields) -> Result<(), ApiError> {
    let neutral = [("penalize_newline", json!(true)), ("tfs_z", json!(1))];
    options.finish(LOAD_OPTIONS, &neutral)
}
