//! The items of `input`: messages, calls of functions with their outputs, reasoning, and references
//! to items of responses that are kept.

use axum::http::StatusCode;
use serde_json::{Map, Value};
use thane_runtime::Message;

use super::super::tools::{arguments, call_json};
use super::super::turns::Turns;
use crate::body::{Fields, refused};
use crate::error::ApiError;
use crate::kept::Responses;

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

/// Fields of the other items that do not change the answer.
const IGNORED: &[&str] = &[
    "caller",
    "encrypted_content",
    "id",
    "name",
    "status",
    "type",
];

/// The messages of a list of items, behind those of a conversation before. References name items of
/// `kept`.
pub(super) fn read(
    list: &Value,
    mut messages: Vec<Message>,
    kept: &Responses,
) -> Result<Vec<Message>, ApiError> {
    // Thoughts are those of the message or call behind them.
    let mut thoughts = String::new();
    for (place, item) in TURNS.items(list)? {
        let Some(id) = reference(item, &place)? else {
            add(item, &place, &mut messages, &mut thoughts)?;
            continue;
        };
        let found = kept.item(&id);
        let found = found.as_ref().and_then(Value::as_object);
        let found = found.ok_or_else(|| unknown(&id, &place))?;
        add(found, &place, &mut messages, &mut thoughts)?;
    }
    Ok(messages)
}

/// The id that an item refers to; `None` if it is no reference. The type may be left out.
pub(super) fn reference(
    item: &Map<String, Value>,
    place: &str,
) -> Result<Option<String>, ApiError> {
    let has_type = item.get("type").is_some_and(|kind| !kind.is_null());
    let is_reference = match has_type {
        true => item
            .get("type")
            .is_some_and(|kind| kind == "item_reference"),
        false => item.contains_key("id") && !item.contains_key("role"),
    };
    if !is_reference {
        return Ok(None);
    }
    let mut fields = Fields::new(item.clone(), format!("{place}."));
    let id = fields.require("id")?;
    fields.finish(&["type"], &[])?;
    Ok(Some(id))
}

/// The error of a reference to nothing.
fn unknown(id: &str, place: &str) -> ApiError {
    let message = format!(
        "Item with id '{id}' not found: the server keeps the items of the newest responses whose \
         `store` is not false, in memory"
    );
    ApiError::new(StatusCode::NOT_FOUND, message).with_param(place)
}

/// Adds an item to the messages before it.
fn add(
    item: &Map<String, Value>,
    place: &str,
    messages: &mut Vec<Message>,
    thoughts: &mut String,
) -> Result<(), ApiError> {
    let mut fields = Fields::new(item.clone(), format!("{place}."));
    match item.get("type").and_then(Value::as_str) {
        Some("reasoning") => thoughts.push_str(&reasoning(fields, place)?),
        Some("function_call") => {
            let name: String = fields.require("name")?;
            let call = call(fields, &name, place)?;
            add_call(messages, call, thoughts);
        }
        Some("function_call_output") => {
            let id: String = fields.require("call_id")?;
            let output: Value = fields.require("output")?;
            fields.finish(IGNORED, &[])?;
            let text = TURNS.text(&output, &format!("{place}.output"))?;
            let mut message = Message::new("tool", text);
            message.fields.insert("tool_call_id".to_owned(), id.into());
            messages.push(message);
        }
        None | Some("message") => {
            let mut message = TURNS.message(item, place)?;
            if message.role == "assistant" {
                set_thoughts(&mut message, thoughts);
            }
            messages.push(message);
        }
        Some(other) => {
            let expected = "message, function_call, function_call_output, reasoning or \
                            item_reference";
            let found = format!("`{other}`");
            return Err(refused(format!("{place}.type"), expected, &found));
        }
    }
    Ok(())
}

fn call(mut fields: Fields, name: &str, place: &str) -> Result<Value, ApiError> {
    let id: String = fields.require("call_id")?;
    let given: String = fields.require("arguments")?;
    fields.finish(IGNORED, &[])?;
    let arguments = arguments(&given.into(), &format!("{place}.arguments"))?;
    Ok(call_json(Some(&id), name, arguments))
}

/// The thoughts of an item: its content, or what the client has of it, a summary.
fn reasoning(mut fields: Fields, place: &str) -> Result<String, ApiError> {
    let texts = |list: Option<Vec<Value>>, field: &str| -> Result<String, ApiError> {
        let list = list.unwrap_or_default().into_iter().enumerate();
        let text = |(idx, part): (usize, Value)| {
            let place = format!("{place}.{field}[{idx}].text");
            let text = part["text"].as_str().map(str::to_owned);
            text.ok_or_else(|| refused(&place, "a string", "none"))
        };
        list.map(text).collect()
    };
    let content = texts(fields.take("content")?, "content")?;
    let summary = texts(fields.take("summary")?, "summary")?;
    fields.finish(IGNORED, &[])?;
    Ok(if content.is_empty() { summary } else { content })
}

/// Adds a call to the message of the assistant that ends the conversation, or as one.
fn add_call(messages: &mut Vec<Message>, call: Value, thoughts: &mut String) {
    let is_apart =
        !thoughts.is_empty() || messages.last().is_none_or(|last| last.role != "assistant");
    if is_apart {
        let mut message = Message::new("assistant", "");
        set_thoughts(&mut message, thoughts);
        messages.push(message);
    }
    let Some(last) = messages.last_mut() else {
        return;
    };
    let calls = last.fields.entry("tool_calls");
    if let Value::Array(calls) = calls.or_insert_with(|| Value::Array(Vec::new())) {
        calls.push(call);
    }
}

fn set_thoughts(message: &mut Message, thoughts: &mut String) {
    if !thoughts.is_empty() {
        let thoughts = std::mem::take(thoughts);
        message
            .fields
            .insert("reasoning_content".to_owned(), thoughts.into());
    }
}

/// What an answer adds to the conversation.
pub(super) fn answer(text: &str, thoughts: &str, calls: Vec<Value>) -> Message {
    let mut message = Message::new("assistant", text);
    set_thoughts(&mut message, &mut thoughts.to_owned());
    if !calls.is_empty() {
        message.fields.insert("tool_calls".to_owned(), calls.into());
    }
    message
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_and_thoughts_are_parts_of_messages() {
        let list = json!([
            {"role": "user", "content": "hi"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [
                {"type": "reasoning_text", "text": "hm"},
            ]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{\"x\": 1}"},
            {"type": "function_call", "call_id": "b", "name": "g", "arguments": ""},
            {"type": "function_call_output", "call_id": "a", "output": "1"},
            {"type": "function_call_output", "call_id": "b", "output": [
                {"type": "input_text", "text": "2"},
            ]},
        ]);
        let found = read(&list, Vec::new(), &Responses::default()).unwrap();
        let roles: Vec<&str> = found.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool"]);
        let call = |id, name, arguments| json!({"type": "function", "function": {"name": name, "arguments": arguments}, "id": id});
        let calls = json!([call("a", "f", json!({"x": 1})), call("b", "g", json!({}))]);
        assert_eq!(found[1].fields["tool_calls"], calls);
        assert_eq!(found[1].fields["reasoning_content"], "hm");
        assert_eq!(
            (found[3].content.as_str(), &found[3].fields["tool_call_id"]),
            ("2", &json!("b"))
        );
    }

    #[test]
    fn other_items_are_refused_by_place() {
        for (item, said) in [
            (
                json!({"type": "web_search_call"}),
                "`input[0].type`: expected message, function_call, function_call_output, reasoning",
            ),
            (
                json!({"type": "item_reference", "id": "msg_1"}),
                "Item with id 'msg_1' not found",
            ),
            (
                json!({"id": "msg_1", "status": "completed"}),
                "the field `input[0].status` is not supported",
            ),
            (
                json!({"type": "function_call", "name": "f", "arguments": "{}"}),
                "expected the field `input[0].call_id`, found none",
            ),
            (
                json!({"type": "function_call", "call_id": "a", "name": "f", "arguments": "[1]"}),
                "`input[0].arguments`: expected a JSON object, or its text",
            ),
            (
                json!({"type": "function_call_output", "call_id": "a", "output": [
                    {"type": "input_image"},
                ]}),
                "`input[0].output[0].type`: expected input_text or output_text",
            ),
            (
                json!({"type": "reasoning", "content": [{"type": "reasoning_text"}]}),
                "`input[0].content[0].text`: expected a string, found none",
            ),
        ] {
            let error = read(&json!([item]), Vec::new(), &Responses::default()).unwrap_err();
            assert!(error.message.starts_with(said), "{}", error.message);
        }
    }
}
