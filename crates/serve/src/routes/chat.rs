//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::{Map, Value, json};
use thane_runtime::Message;

use super::App;
use super::generate::{Encoded, IGNORED, Wish, answer, encode, language_model, neutral};
use crate::body::{Fields, kind};
use crate::error::ApiError;
use crate::shape::Api;

pub(super) async fn create(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let mut fields = Fields::read(body, app.max_body_bytes).await?;
    let model = app.model_of(&mut fields)?;
    let answers = language_model(model)?;
    let number = app.next_request();
    let wish = Wish::take(&mut fields, answers, Api::Chat, number)?;
    let newer = fields.take("max_completion_tokens")?;
    let max_tokens = newer.or(fields.take("max_tokens")?);
    let messages = messages(&fields.require("messages")?)?;
    let mut neutral = neutral();
    neutral.extend([
        ("logprobs", json!(false)),
        ("modalities", json!(["text"])),
        ("response_format", json!({"type": "text"})),
        ("tool_choice", json!("none")),
        ("tools", json!([])),
        ("top_logprobs", json!(0)),
    ]);
    fields.finish(IGNORED, &neutral)?;
    let place = answers.places.take()?;
    let prompts = Arc::clone(&answers.prompts);
    let tokens = encode(move || prompts.encode_messages(&messages)).await?;
    let prompt = Encoded { tokens, place };
    answer(&app, model, (Api::Chat, number), (wish, max_tokens), prompt).await
}

/// The messages of a conversation.
fn messages(list: &Value) -> Result<Vec<Message>, ApiError> {
    let refused = |found: &str| {
        let message = format!("`messages`: expected a list of at least one message, found {found}");
        ApiError::field("messages", message)
    };
    let list = list.as_array().ok_or_else(|| refused(kind(list)))?;
    if list.is_empty() {
        return Err(refused("none"));
    }
    list.iter()
        .enumerate()
        .map(|(i, m)| message(m, i))
        .collect()
}

fn message(value: &Value, idx: usize) -> Result<Message, ApiError> {
    let place = format!("messages[{idx}]");
    let refused = |at: &str, expected: &str, found: &str| {
        let param = format!("{place}{at}");
        let message = format!("`{param}`: expected {expected}, found {found}");
        ApiError::field(param, message)
    };
    let Value::Object(fields) = value else {
        return Err(refused("", "an object", kind(value)));
    };
    let role = match fields.get("role").and_then(Value::as_str) {
        // The newer name of the same role, which templates do not know.
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant")) => role,
        Some(other) => {
            let found = format!("`{other}`");
            return Err(refused(
                ".role",
                "system, developer, user or assistant",
                &found,
            ));
        }
        None => return Err(refused(".role", "a string", "none")),
    };
    check_rest(fields, &place)?;
    let text = match fields.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|part| text_of(part).ok_or_else(|| refused(".content", "parts of text", "others")))
            .collect::<Result<String, _>>()?,
        other => {
            let found = other.map_or("none", kind);
            return Err(refused(".content", "a string or a list of texts", found));
        }
    };
    Ok(Message::new(role, text))
}

/// The text of a part of a message.
fn text_of(part: &Value) -> Option<&str> {
    let is_text = part.get("type").and_then(Value::as_str) == Some("text");
    part.get("text").and_then(Value::as_str).filter(|_| is_text)
}

/// Refuses what a template would have to be told.
fn check_rest(fields: &Map<String, Value>, place: &str) -> Result<(), ApiError> {
    let is_empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    let unknown = fields
        .iter()
        .find(|(name, value)| !["role", "content"].contains(&name.as_str()) && !is_empty(value));
    match unknown {
        None => Ok(()),
        Some((name, _)) => {
            let param = format!("{place}.{name}");
            let message = format!("the field `{param}` is not supported");
            Err(ApiError::field(param, message).with_code("unsupported_parameter"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_texts_with_a_role() {
        let list = json!([
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c", "tool_calls": [], "refusal": null},
        ]);
        let expected = [
            Message::new("system", "Be brief."),
            Message::new("user", "ab"),
            Message::new("assistant", "c"),
        ];
        assert_eq!(messages(&list).unwrap(), expected);
    }

    #[test]
    fn other_messages_are_refused_by_place() {
        for (list, said) in [
            (
                json!([]),
                "`messages`: expected a list of at least one message, found none",
            ),
            (
                json!("hi"),
                "`messages`: expected a list of at least one message, found a string",
            ),
            (
                json!(["hi"]),
                "`messages[0]`: expected an object, found a string",
            ),
            (
                json!([{"role": "tool", "content": "x"}]),
                "`messages[0].role`: expected system",
            ),
            (
                json!([{"role": "user"}]),
                "`messages[0].content`: expected a string",
            ),
            (
                json!([{"role": "user", "content": [{"type": "image_url"}]}]),
                "`messages[0].content`: expected parts of text",
            ),
            (
                json!([{"role": "user", "content": "x", "name": "Ann"}]),
                "the field `messages[0].name` is not supported",
            ),
        ] {
            let error = messages(&list).unwrap_err();
            let message = error.body()["error"]["message"]
                .as_str()
                .unwrap()
                .to_owned();
            assert!(message.starts_with(said), "{message}");
        }
    }
}
