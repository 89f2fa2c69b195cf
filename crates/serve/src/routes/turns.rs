//! Messages of a conversation, as APIs beside OpenAI's chat write them: texts, or lists of parts
//! that are texts, by roles.

use serde_json::{Map, Value};
use thane_runtime::Message;

use super::conversation::check_count;
use crate::body::{kind, refused};
use crate::error::ApiError;

/// How an API writes messages.
pub(super) struct Turns {
    /// The field that has the list.
    pub field: &'static str,
    /// The names of roles, each with the one that chat templates know.
    pub roles: &'static [(&'static str, &'static str)],
    /// Types of parts that are texts.
    pub parts: &'static [&'static str],
    /// The type of messages, in APIs whose lists also have other items.
    pub item_type: Option<&'static str>,
    /// Fields of a message, and of a part, that do not change the answer.
    pub ignored: &'static [&'static str],
}

/// An object of a list, behind its place.
type Item<'l> = (String, &'l Map<String, Value>);

impl Turns {
    /// The objects of a list, each with its place.
    pub fn items<'l>(&self, list: &'l Value) -> Result<Vec<Item<'l>>, ApiError> {
        let Value::Array(list) = list else {
            return Err(refused(self.field, "a list of messages", kind(list)));
        };
        check_count(list.len(), self.field)?;
        let places = (0..).map(|idx| format!("{}[{idx}]", self.field));
        let item = |(value, place): (&'l Value, String)| match value {
            Value::Object(item) => Ok((place, item)),
            other => Err(refused(&place, "an object", kind(other))),
        };
        list.iter().zip(places).map(item).collect()
    }

    /// A message whose content is text.
    pub fn message(&self, item: &Map<String, Value>, place: &str) -> Result<Message, ApiError> {
        let message = self.with_content(item, place, String::new())?;
        let content = item.get("content").unwrap_or(&Value::Null);
        Ok(Message {
            content: self.text(content, &format!("{place}.content"))?,
            ..message
        })
    }

    /// A message with a content that was read apart.
    pub fn with_content(
        &self,
        item: &Map<String, Value>,
        place: &str,
        content: String,
    ) -> Result<Message, ApiError> {
        self.check_type(item, place)?;
        let given = item.get("role").and_then(Value::as_str);
        let known = self.roles.iter().find(|(name, _)| Some(*name) == given);
        let Some((_, role)) = known else {
            let names: Vec<&str> = self.roles.iter().map(|(name, _)| *name).collect();
            let found = given.map_or("none".to_owned(), |role| format!("`{role}`"));
            let place = format!("{place}.role");
            return Err(refused(&place, one_of(&names), &found));
        };
        self.check_rest(item, &["role", "content", "type"], place)?;
        Ok(Message::new(*role, content))
    }

    /// Refuses items that are not messages; without a type, an item is one.
    fn check_type(&self, fields: &Map<String, Value>, place: &str) -> Result<(), ApiError> {
        let place = format!("{place}.type");
        match (fields.get("type"), self.item_type) {
            (None, _) => Ok(()),
            (Some(found), Some(expected)) if found == expected => Ok(()),
            (Some(found), Some(expected)) => Err(refused(&place, expected, found.to_string())),
            (Some(_), None) => {
                let message = format!("the field `{place}` is not supported");
                Err(ApiError::field(place, message).with_code("unsupported_parameter"))
            }
        }
    }

    /// The text of a string, or of a list of parts.
    pub fn text(&self, content: &Value, place: &str) -> Result<String, ApiError> {
        let parts = match content {
            Value::String(text) => return Ok(text.clone()),
            Value::Array(parts) if !self.parts.is_empty() => parts,
            _ if self.parts.is_empty() => return Err(refused(place, "a string", kind(content))),
            _ => return Err(refused(place, "a string or a list of texts", kind(content))),
        };
        let parts = parts.iter().enumerate();
        parts
            .map(|(idx, part)| self.part(part, &format!("{place}[{idx}]")))
            .collect()
    }

    /// The text of a part.
    pub fn part<'p>(&self, part: &'p Value, place: &str) -> Result<&'p str, ApiError> {
        let Value::Object(fields) = part else {
            return Err(refused(place, "an object", kind(part)));
        };
        let found = fields.get("type").and_then(Value::as_str).unwrap_or("none");
        if !self.parts.contains(&found) {
            let place = format!("{place}.type");
            return Err(refused(&place, one_of(self.parts), format!("`{found}`")));
        }
        self.check_rest(fields, &["type", "text"], place)?;
        let text = fields.get("text").unwrap_or(&Value::Null);
        let place = || format!("{place}.text");
        text.as_str()
            .ok_or_else(|| refused(place(), "a string", kind(text)))
    }

    /// Refuses what a template would have to be told.
    fn check_rest(
        &self,
        fields: &Map<String, Value>,
        known: &[&str],
        place: &str,
    ) -> Result<(), ApiError> {
        let is_empty = |value: &Value| match value {
            Value::Null => true,
            Value::Array(list) => list.is_empty(),
            _ => false,
        };
        let unknown = fields.iter().find(|(name, value)| {
            let name = name.as_str();
            !known.contains(&name) && !self.ignored.contains(&name) && !is_empty(value)
        });
        let Some((name, _)) = unknown else {
            return Ok(());
        };
        let param = format!("{place}.{name}");
        let message = format!("the field `{param}` is not supported");
        Err(ApiError::field(param, message).with_code("unsupported_parameter"))
    }
}

/// `a, b or c`.
fn one_of(names: &[&str]) -> String {
    match names {
        [before @ .., last] if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TURNS: Turns = Turns {
        field: "messages",
        roles: &[("developer", "system"), ("user", "user")],
        parts: &["text"],
        item_type: Some("message"),
        ignored: &["cache_control"],
    };

    fn read(list: &Value) -> Result<Vec<Message>, ApiError> {
        let items = TURNS.items(list)?.into_iter();
        items
            .map(|(place, item)| TURNS.message(item, &place))
            .collect()
    }

    #[test]
    fn messages_are_texts_with_a_role() {
        let list = json!([
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "images": [], "content": [
                {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "b"},
            ]},
        ]);
        let expected = [
            Message::new("system", "Be brief."),
            Message::new("user", "ab"),
        ];
        assert_eq!(read(&list).unwrap(), expected);
    }

    #[test]
    fn other_messages_are_refused_by_place() {
        for (list, said) in [
            (
                json!("hi"),
                "`messages`: expected a list of messages, found a string",
            ),
            (
                json!(["hi"]),
                "`messages[0]`: expected an object, found a string",
            ),
            (
                json!([{"type": "function_call"}]),
                "`messages[0].type`: expected message, found \"function_call\"",
            ),
            (
                json!([{"role": "tool"}]),
                "`messages[0].role`: expected developer or user, found `tool`",
            ),
            (
                json!([{"role": "user"}]),
                "`messages[0].content`: expected a string or a list",
            ),
            (
                json!([{"role": "user", "content": [{"type": "image"}]}]),
                "`messages[0].content[0].type`: expected text, found `image`",
            ),
            (
                json!([{"role": "user", "content": [{"type": "text"}]}]),
                "`messages[0].content[0].text`: expected a string, found null",
            ),
            (
                json!([{"role": "user", "content": "x", "images": ["aGk="]}]),
                "the field `messages[0].images` is not supported",
            ),
        ] {
            let error = read(&list).unwrap_err();
            assert!(error.message.starts_with(said), "{}", error.message);
        }
    }
}
