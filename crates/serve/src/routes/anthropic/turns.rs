//! Messages of Anthropic's API: texts, thoughts, calls of tools and their results, as blocks.

use serde_json::{Map, Value};
use thane_runtime::Message;

use super::super::conversation::Begun;
use super::super::tools::call_json;
use super::super::turns::Turns;
use crate::body::{Fields, refused};
use crate::error::ApiError;

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

/// Fields of blocks that do not change the answer.
const IGNORED: &[&str] = &[
    "cache_control",
    "caller",
    "is_error",
    "signature",
    "toolset_name",
    "type",
];

/// The messages, with the system prompt as the first of them, and the beginning of the answer.
/// Turns of one role that follow each other are one turn, as the API has it: templates refuse them.
pub(super) fn take(fields: &mut Fields) -> Result<(Vec<Message>, Option<Begun>), ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = fields.take::<Value>("system")? {
        messages.push(Message::new("system", TURNS.text(&system, "system")?));
    }
    for (place, item) in TURNS.items(&fields.require("messages")?)? {
        for message in read(item, &place)? {
            join(&mut messages, message);
        }
    }
    let begun = take_begun(&mut messages)?;
    let is_asked = |last: &Message| last.role == "user" || last.role == "tool";
    if messages.last().is_some_and(is_asked) {
        return Ok((messages, begun));
    }
    let expected = "a message of the user, or one of the assistant behind it, as the last one";
    Err(refused("messages", expected, "another or none"))
}

/// Takes a last message of the assistant, with which the answer begins.
fn take_begun(messages: &mut Vec<Message>) -> Result<Option<Begun>, ApiError> {
    let Some(last) = messages.pop_if(|last| last.role == "assistant") else {
        return Ok(None);
    };
    if !last.fields.is_empty() {
        let found = "other blocks: calls of tools need their results behind them";
        let expected = "texts in the message with which the answer begins";
        return Err(refused("messages", expected, found));
    }
    Ok((!last.content.is_empty()).then_some(Begun {
        text: last.content,
        field: "messages",
    }))
}

/// Adds a message, to the one before it if both have one role.
fn join(messages: &mut Vec<Message>, message: Message) {
    let before = messages.last_mut();
    let Some(last) = before.filter(|last| last.role == message.role && last.role != "tool") else {
        return messages.push(message);
    };
    if !last.content.is_empty() && !message.content.is_empty() {
        last.content.push_str("\n\n");
    }
    last.content.push_str(&message.content);
    for (name, value) in message.fields {
        add(&mut last.fields, &name, value);
    }
}

/// Adds a value to those of its name.
fn add(fields: &mut Map<String, Value>, name: &str, value: Value) {
    match (fields.get_mut(name), value) {
        (Some(Value::Array(before)), Value::Array(more)) => before.extend(more),
        (Some(Value::String(before)), Value::String(more)) => before.push_str(&more),
        (_, value) => {
            fields.insert(name.to_owned(), value);
        }
    }
}

/// The messages of a turn: results of tools have messages of their own, before the text.
fn read(item: &Map<String, Value>, place: &str) -> Result<Vec<Message>, ApiError> {
    let Some(Value::Array(blocks)) = item.get("content") else {
        return Ok(vec![TURNS.message(item, place)?]);
    };
    let (mut results, mut fields, mut texts) = (Vec::new(), Map::new(), Vec::new());
    let role = item.get("role").and_then(Value::as_str).unwrap_or_default();
    for (idx, block) in blocks.iter().enumerate() {
        let place = format!("{place}.content[{idx}]");
        match (role, block["type"].as_str()) {
            ("user", Some("tool_result")) => {
                results.push(result(fields_of(block, &place), &place)?);
            }
            ("assistant", Some("tool_use")) => {
                let calls = vec![call(fields_of(block, &place))?];
                add(&mut fields, "tool_calls", calls.into());
            }
            ("assistant", Some("thinking")) => {
                let mut block = fields_of(block, &place);
                let text: String = block.require("thinking")?;
                block.finish(IGNORED, &[])?;
                add(&mut fields, "reasoning_content", text.into());
            }
            _ => texts.push(TURNS.part(block, &place)?),
        }
    }
    let is_only_results = texts.is_empty() && !results.is_empty();
    let mut message = TURNS.with_content(item, place, texts.concat())?;
    message.fields = fields;
    if !is_only_results {
        results.push(message);
    }
    Ok(results)
}

/// A block of the kinds that are not texts.
fn fields_of(block: &Value, place: &str) -> Fields {
    let fields = block.as_object().cloned().unwrap_or_default();
    Fields::new(fields, format!("{place}."))
}

/// A call of a tool.
fn call(mut block: Fields) -> Result<Value, ApiError> {
    let (id, name): (String, String) = (block.require("id")?, block.require("name")?);
    let arguments = block.require("input")?;
    block.finish(IGNORED, &[])?;
    Ok(call_json(Some(&id), &name, arguments))
}

/// The result of a call.
fn result(mut block: Fields, place: &str) -> Result<Message, ApiError> {
    let id: String = block.require("tool_use_id")?;
    let text = match block.take::<Value>("content")? {
        None => String::new(),
        Some(content) => TURNS.text(&content, &format!("{place}.content"))?,
    };
    block.finish(IGNORED, &[])?;
    let mut message = Message::new("tool", text);
    message.fields.insert("tool_call_id".to_owned(), id.into());
    Ok(message)
}
