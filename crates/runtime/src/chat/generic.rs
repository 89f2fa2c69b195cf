//! Tools for models whose chat template has none: messages that tell the model which tools there
//! are, which it called, and what the results were, as texts that every template renders.
//!
//! The form is [`GENERIC_CALLS`](thane_models::chat::GENERIC_CALLS), in the spacing of the grammars
//! of calls, so that a call is the same text in the answer and in the next prompt.

use std::io;

use serde_json::ser::Formatter;
use serde_json::{Value, json};
use thane_engine::text::Message;
use thane_models::chat::GENERIC_CALLS;

/// The field of the calls of a message.
const CALLS: &str = "tool_calls";

/// What the model is told before the list of tools.
const BEFORE: &str = "You can call these tools, each with the JSON schema of its arguments:\n\
                      <tools>\n";

/// What the model is told after the list of tools.
const AFTER: &str = "</tools>\n\nTo call a tool, answer with its name and arguments as JSON:\n\
                     <tool_call>\n{\"name\": \"...\", \"arguments\": {...}}\n\
                     </tool_call>\nFor several calls, write several blocks. If no tool helps, \
                     answer with text.";

/// Whether a message calls tools, or is a result.
pub(crate) fn has_calls(message: &Message) -> bool {
    message.role == "tool" || message.fields.contains_key(CALLS)
}

/// What the model is told of tools.
pub(crate) fn told(tools: &[Value]) -> String {
    let lines = tools.iter().map(|tool| spaced(&tool["function"]) + "\n");
    [BEFORE, &lines.collect::<String>(), AFTER].concat()
}

/// Messages that begin with what the model is told: in the first message of a role, which is added
/// if there is none.
pub(crate) fn told_by(role: &str, told: &str, mut messages: Vec<Message>) -> Vec<Message> {
    let is_system = |message: &&Message| message.role == "system";
    let n_system = messages.iter().take_while(is_system).count();
    let first = match role {
        "system" => messages[..n_system].first_mut(),
        role => messages.iter_mut().find(|message| message.role == role),
    };
    match (first, role) {
        (Some(first), "system") => first.content = format!("{}\n\n{told}", first.content),
        (Some(first), _) => first.content = format!("{told}\n\n{}", first.content),
        (None, _) => messages.insert(n_system, Message::new(role, told)),
    }
    messages
}

/// Messages whose calls and results are texts. Results are the user's, together with what the user
/// says after them, because many templates want user and assistant to take turns.
pub(crate) fn as_texts(messages: &[Message]) -> Vec<Message> {
    let mut texts: Vec<Message> = Vec::with_capacity(messages.len());
    let mut is_after_result = false;
    for message in messages {
        let text = as_text(message);
        match texts.last_mut().filter(|_| is_after_result) {
            Some(results) if text.role == "user" => {
                results.content.push('\n');
                results.content.push_str(&text.content);
            }
            _ => texts.push(text),
        }
        is_after_result = message.role == "tool";
    }
    texts
}

fn as_text(message: &Message) -> Message {
    let mut text = message.clone();
    let calls = text.fields.shift_remove(CALLS);
    let calls = calls.as_ref().and_then(Value::as_array);
    for call in calls.into_iter().flatten() {
        if !text.content.is_empty() {
            text.content.push('\n');
        }
        text.content.push_str(&written(&call["function"]));
    }
    if message.role == "tool" {
        let name = message.fields.get("name").and_then(Value::as_str);
        let of = name.map_or(String::new(), |name| format!(" name={}", json!(name)));
        let content = format!("<tool_response{of}>\n{}\n</tool_response>", text.content);
        return Message::new("user", content);
    }
    text
}

/// A call as the model is asked to write it.
fn written(function: &Value) -> String {
    let call = json!({"name": function["name"], "arguments": function["arguments"]});
    let (begin, end) = (GENERIC_CALLS.begin, GENERIC_CALLS.end);
    format!("{begin}\n{}\n{end}", spaced(&call))
}

/// JSON on one line, with a space after each comma and colon.
fn spaced(value: &Value) -> String {
    let mut text = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, Spaced);
    serde::Serialize::serialize(value, &mut serializer).expect("a value is JSON");
    String::from_utf8_lossy(&text).into_owned()
}

struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W>(&mut self, into: &mut W, is_first: bool) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        into.write_all(if is_first { b"" } else { b", " })
    }

    fn begin_object_key<W>(&mut self, into: &mut W, is_first: bool) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        into.write_all(if is_first { b"" } else { b", " })
    }

    fn begin_object_value<W>(&mut self, into: &mut W) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        into.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Python's `json.dumps(value, ensure_ascii=False)` writes it.
    #[test]
    fn json_has_a_space_after_each_comma_and_colon() {
        let value =
            json!({"a": [1, -2.5, true, null], "b,:": {"c": "d, \"é\": \n"}, "e": [], "f": {}});
        let due = r#"{"a": [1, -2.5, true, null], "b,:": {"c": "d, \"é\": \n"}, "e": [], "f": {}}"#;
        assert_eq!(spaced(&value), due);
    }

    #[test]
    fn user_and_assistant_take_turns() {
        let mut calls = Message::new("assistant", "");
        let call = json!({"type": "function", "function": {"name": "f", "arguments": {"x": 1}}});
        calls.fields.insert(CALLS.to_owned(), json!([call, call]));
        let mut named = Message::new("tool", "2");
        named.fields.insert("name".to_owned(), json!("f"));
        let messages = [
            Message::new("user", "a"),
            Message::new("user", "b"),
            calls,
            named,
            Message::new("tool", "3"),
            Message::new("user", "c"),
            Message::new("user", "d"),
        ];
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
        let results = "<tool_response name=\"f\">\n2\n</tool_response>\n<tool_response>\n3\n\
                       </tool_response>\nc";
        let due = [
            Message::new("user", "a"),
            Message::new("user", "b"),
            Message::new("assistant", format!("{call}\n{call}")),
            Message::new("user", results),
            Message::new("user", "d"),
        ];
        assert_eq!(as_texts(&messages), due);
    }

    #[test]
    fn tools_are_told_before_all_else() {
        let of = |roles: &[&str]| -> Vec<Message> {
            roles
                .iter()
                .map(|role| Message::new(*role, *role))
                .collect()
        };
        for (role, roles, due) in [
            ("system", &["user"][..], &["T", "user"][..]),
            ("system", &["system", "user"], &["system\n\nT", "user"]),
            (
                "user",
                &["assistant", "user", "user"],
                &["assistant", "T\n\nuser", "user"],
            ),
            (
                "user",
                &["system", "assistant"],
                &["system", "T", "assistant"],
            ),
            ("user", &[], &["T"]),
        ] {
            let found = told_by(role, "T", of(roles));
            let found: Vec<&str> = found
                .iter()
                .map(|message| message.content.as_str())
                .collect();
            assert_eq!(found, due, "{role} {roles:?}");
        }
    }
}
