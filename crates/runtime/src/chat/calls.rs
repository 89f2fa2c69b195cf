//! The calls of tools in an answer, from the syntax of a model to names and JSON.

use serde_json::{Deserializer, Map, Value};
use thane_models::chat::CallBody;

use super::Tool;
use super::literals::Literals;

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// Name of the function.
    pub name: String,
    /// The arguments: a JSON object.
    pub arguments: Map<String, Value>,
}

/// The calls that `text` stands for; `None` if it has another form.
pub(super) fn parse_calls(text: &str, body: CallBody, tools: &[Tool]) -> Option<Vec<ToolCall>> {
    let calls = match body {
        CallBody::Json { .. } => json_calls(text)?,
        // Models that were shown JSON write it here too.
        CallBody::Python => python_calls(text).or_else(|| json_calls(text))?,
        CallBody::Braces { quote } => vec![braces_call(text, quote)?],
        CallBody::Tags => tag_calls(text, tools)?,
    };
    Some(calls).filter(|calls| !calls.is_empty())
}

/// Objects one after another, or in a list.
fn json_calls(text: &str) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let mut values = Deserializer::from_str(rest).into_iter::<Value>();
        let value = values.next()?.ok()?;
        rest = rest[values.byte_offset()..].trim_start_matches([' ', '\n', ';', ',']);
        match value {
            Value::Array(values) => {
                for value in values {
                    calls.push(json_call(value)?);
                }
            }
            value => calls.push(json_call(value)?),
        }
    }
    Some(calls)
}

fn json_call(value: Value) -> Option<ToolCall> {
    let Value::Object(mut fields) = value else {
        return None;
    };
    let Some(Value::String(name)) = fields.remove("name") else {
        return None;
    };
    let arguments = fields.remove("arguments").or(fields.remove("parameters"));
    let arguments = match arguments {
        Some(Value::Object(arguments)) => arguments,
        Some(Value::String(text)) => serde_json::from_str(&text).ok()?,
        None | Some(Value::Null) => Map::new(),
        Some(_) => return None,
    };
    Some(ToolCall { name, arguments })
}

/// `[f(x=1, y="a"), g()]`, with or without brackets.
fn python_calls(text: &str) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    let inner = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let mut literals = Literals::new(inner.unwrap_or(text), None);
    let mut calls = Vec::new();
    loop {
        let name = literals.name()?;
        literals.expect('(')?;
        let mut arguments = Map::new();
        while !literals.take(')') {
            let argument = literals.name()?;
            literals.expect('=')?;
            arguments.insert(argument, literals.value()?);
            if !literals.take(',') && !literals.is_at(')') {
                return None;
            }
        }
        calls.push(ToolCall { name, arguments });
        if !literals.take(',') {
            return literals.is_over().then_some(calls);
        }
    }
}

/// `call:f{x:1,y:<quote>a<quote>}`.
fn braces_call(text: &str, quote: &'static str) -> Option<ToolCall> {
    let mut literals = Literals::new(text.trim().strip_prefix("call:")?, Some(quote));
    let name = literals.name()?;
    let Value::Object(arguments) = literals.value()? else {
        return None;
    };
    literals.is_over().then_some(ToolCall { name, arguments })
}

/// `<function=f>` with `<parameter=x>` for each argument. Values are texts, unless the schema wants
/// something else.
fn tag_calls(text: &str, tools: &[Tool]) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    for function in text.split("<function=").skip(1) {
        let (name, body) = function.split_once('>')?;
        let body = body.split("</function>").next()?;
        let tool = tools.iter().find(|tool| tool.name == name);
        let mut arguments = Map::new();
        for parameter in body.split("<parameter=").skip(1) {
            let (parameter, value) = parameter.split_once('>')?;
            let value = value.split("</parameter>").next()?;
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            let is_text = tool.is_some_and(|tool| tool.is_text(parameter));
            let parsed = serde_json::from_str(value).ok().filter(|_| !is_text);
            let value = parsed.unwrap_or_else(|| Value::from(value));
            arguments.insert(parameter.to_owned(), value);
        }
        calls.push(ToolCall {
            name: name.to_owned(),
            arguments,
        });
    }
    Some(calls)
}

impl Tool {
    /// Whether the schema wants a string for an argument.
    pub(super) fn is_text(&self, argument: &str) -> bool {
        self.parameters["properties"][argument]["type"] == "string"
    }
}
