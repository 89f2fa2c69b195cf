//! `POST /v1/chat/completions`.

use axum::body::Body;
use axum::extract::State;
use serde_json::{Map, Value, json};
use thane_runtime::Message;

use super::Shared;
use super::ask::Prompt;
use super::conversation::{Conversation, check_count};
use super::generate::{language_model, top_logprobs};
use super::openai::{IGNORED, Wish};
use super::tools::{self, FUNCTION, Tools, take_choice};
use crate::answers::Answers;
use crate::body::{Fields, kind, refused};
use crate::error::{Answered, ApiError};
use crate::shape::Api;

pub(super) async fn create(State(app): Shared, body: Body) -> Answered {
    let (mut fields, model, number) = app.read(body).await?;
    let answers = language_model(&model)?;
    let mut wish = Wish::take(&mut fields, answers, number)?;
    let newer = fields.take("max_completion_tokens")?;
    wish.ask.max_tokens = newer.or(fields.take("max_tokens")?);
    wish.ask.logprobs = top_logprobs(&mut fields, answers)?;
    let conversation = conversation(&mut fields, answers)?;
    fields.finish(IGNORED, &neutral())?;
    wish.ask.prompts.push(Prompt::Conversation(conversation));
    wish.answer(&model, (Api::Chat, number), "messages").await
}

/// Fields that are supported with values only that change nothing.
fn neutral() -> [(&'static str, Value); 5] {
    [
        ("function_call", json!("none")),
        ("function_call", json!("auto")),
        ("functions", json!([])),
        ("modalities", json!(["text"])),
        ("verbosity", json!("medium")),
    ]
}

/// The prompt, with tools and with how much the model thinks.
fn conversation(fields: &mut Fields, answers: &Answers) -> Result<Conversation, ApiError> {
    let choice = take_choice(fields, |object| &object["function"]["name"])?;
    let is_parallel = fields.take("parallel_tool_calls")?;
    let mut conversation = Conversation::new(messages(&fields.require("messages")?)?);
    conversation.tools = Tools::take(fields, &FUNCTION, (choice, is_parallel))?;
    let effort = fields.take("reasoning_effort")?;
    conversation.set_effort(effort, "reasoning_effort", answers)?;
    let variables: Option<Map<String, Value>> = fields.take("chat_template_kwargs")?;
    conversation.variables.extend(variables.unwrap_or_default());
    Ok(conversation)
}

/// The messages of a conversation.
fn messages(list: &Value) -> Result<Vec<Message>, ApiError> {
    let refused = |found: &str| refused("messages", "a list of at least one message", found);
    let list = list.as_array().ok_or_else(|| refused(kind(list)))?;
    if list.is_empty() {
        return Err(refused("none"));
    }
    check_count(list.len(), "messages")?;
    list.iter()
        .enumerate()
        .map(|(i, m)| message(m, i))
        .collect()
}

fn message(value: &Value, idx: usize) -> Result<Message, ApiError> {
    let place = format!("messages[{idx}]");
    let Value::Object(fields) = value else {
        return Err(refused(&place, "an object", kind(value)));
    };
    let role = match fields.get("role").and_then(Value::as_str) {
        // The newer name of the same role, which templates do not know.
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
        Some(other) => {
            let expected = "system, developer, user, assistant or tool";
            let place = format_args!("{place}.role");
            return Err(refused(place, expected, format_args!("`{other}`")));
        }
        None => return Err(refused(format_args!("{place}.role"), "a string", "none")),
    };
    let others = other_fields(fields, role, &place)?;
    let content = format!("{place}.content");
    let text = match fields.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|part| text_of(part).ok_or_else(|| no_text(part, &content)))
            .collect::<Result<String, _>>()?,
        // A message that only calls tools.
        None | Some(Value::Null) if others.contains_key("tool_calls") => String::new(),
        other => {
            let found = other.map_or("none", kind);
            return Err(refused(&content, "a string or a list of texts", found));
        }
    };
    let mut message = Message::new(role, text);
    message.fields = others;
    Ok(message)
}

fn text_of(part: &Value) -> Option<&str> {
    let is_text = part.get("type").and_then(Value::as_str) == Some("text");
    part.get("text").and_then(Value::as_str).filter(|_| is_text)
}

fn no_text(part: &Value, content: &str) -> ApiError {
    let named = part.get("type").and_then(Value::as_str);
    let found = match named {
        Some("text") => "one without a text".to_owned(),
        Some(other) => format!("one of the type `{other}`"),
        None => format!("{} without a type", kind(part)),
    };
    refused(content, "parts of the type `text`", &found)
}

/// The fields beside role and content that templates know; others are refused.
fn other_fields(
    fields: &Map<String, Value>,
    role: &str,
    place: &str,
) -> Result<Map<String, Value>, ApiError> {
    let mut known = Map::new();
    for (name, value) in fields {
        let param = format!("{place}.{name}");
        let is_empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
        match (role, name.as_str()) {
            (_, "role" | "content") => {}
            _ if is_empty => {}
            ("assistant", "tool_calls") => {
                known.insert(name.clone(), tools::calls(value, &param)?);
            }
            (_, "name") | ("assistant", "reasoning_content") | ("tool", "tool_call_id") => {
                let text = value.as_str();
                let text = text.ok_or_else(|| refused(&param, "a string", kind(value)))?;
                known.insert(name.clone(), text.into());
            }
            _ => {
                let message = format!("the field `{param}` is not supported");
                let error = ApiError::field(param, message);
                return Err(error.with_code("unsupported_parameter"));
            }
        }
    }
    Ok(known)
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
    fn calls_and_their_results_are_messages() {
        let list = json!([
            {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [{
                "id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"},
            }]},
            {"role": "tool", "tool_call_id": "c", "content": "2"},
        ]);
        let found = messages(&list).unwrap();
        let call = json!({
            "id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": 1}},
        });
        assert_eq!(found[0].content, "");
        assert_eq!(found[0].fields["tool_calls"], json!([call]));
        assert_eq!(found[0].fields["reasoning_content"], "hm");
        assert_eq!(found[1].fields["tool_call_id"], "c");
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
                json!([{"role": "function", "content": "x"}]),
                "`messages[0].role`: expected system",
            ),
            (
                json!([{"role": "user"}]),
                "`messages[0].content`: expected a string",
            ),
            (
                json!([{"role": "user", "content": [{"type": "image_url"}]}]),
                "`messages[0].content`: expected parts of the type `text`, found one of the type \
                 `image_url`",
            ),
            (
                json!([{"role": "user", "content": ["x"]}]),
                "`messages[0].content`: expected parts of the type `text`, found a string without",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {}}]}]),
                "`messages[0].tool_calls[0].function.name`: expected a string",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [
                    {"function": {"name": "f", "arguments": "[1]"}},
                ]}]),
                "`messages[0].tool_calls[0].function.arguments`: expected a JSON object, or its text",
            ),
            (
                json!([{"role": "user", "content": "x", "name": 5}]),
                "`messages[0].name`: expected a string, found a number",
            ),
            (
                json!([{"role": "user", "content": "x", "tool_call_id": "c"}]),
                "the field `messages[0].tool_call_id` is not supported",
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
