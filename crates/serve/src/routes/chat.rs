//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;
use serde_json::{Map, Value, json};
use thane_engine::choose::Grammar;
use thane_runtime::chat::{AnswerParser, Tool};
use thane_runtime::{Message, PromptEncoder, TemplateInput};

use super::App;
use super::generate::{
    IGNORED, Prepared, Wish, answer, beside, compile, invalid, language_model, places,
};
use super::tools::{self, Tools};
use crate::body::{Fields, kind};
use crate::error::ApiError;
use crate::shape::Api;

pub(super) async fn create(
    State(app): State<Arc<App>>,
    body: Body,
) -> Result<Response<Body>, ApiError> {
    let mut fields = Fields::read(body, app.body).await?;
    let model = &*app.model_of(&mut fields).await?;
    let answers = language_model(model)?;
    let number = app.next_request();
    let mut wish = Wish::take(&mut fields, answers, Api::Chat, number)?;
    let newer = fields.take("max_completion_tokens")?;
    wish.max_tokens = newer.or(fields.take("max_tokens")?);
    let shows_logprobs = fields.take("logprobs")?.unwrap_or(false);
    let top: Option<usize> = fields.take("top_logprobs")?;
    if top.is_some_and(|top| top > 0) && !shows_logprobs {
        let message = "`top_logprobs` needs `logprobs` to be true";
        return Err(ApiError::field("top_logprobs", message));
    }
    let n_top = shows_logprobs.then_some(top.unwrap_or(0));
    wish.show_logprobs(n_top, "top_logprobs", answers)?;
    let conversation = Conversation {
        messages: messages(&fields.require("messages")?)?,
        variables: fields.take("chat_template_kwargs")?.unwrap_or_default(),
        tools: tools::take(&mut fields)?,
    };
    if let Some(form) = wish.form.as_ref().filter(|_| conversation.tools.has_any()) {
        let message = "expected `tools`, or the form of a text, found both";
        return Err(ApiError::field(form.field, message));
    }
    fields.finish(IGNORED, &[("modalities", json!(["text"]))])?;
    let places = places(answers, wish.n)?;
    let prompts = Arc::clone(&answers.prompts);
    if let Some(known) = answers.known.as_ref().filter(|_| conversation.is_forced()) {
        return Err(invalid(known.lacks("a grammar")).with_param("tool_choice"));
    }
    let form = wish.form.take();
    let (prepared, grammar) = beside(move || {
        let grammar = match form {
            Some(form) => Some(compile(&prompts, &form.source, form.field)?),
            None => conversation.forced_grammar(&prompts)?,
        };
        let prepared = conversation.prepare(&prompts, grammar.is_some())?;
        Ok((prepared, grammar))
    })
    .await?;
    let prompts = (vec![prepared], grammar);
    answer(&app, model, (Api::Chat, number), wish, prompts, places).await
}

/// What the chat template renders.
struct Conversation {
    messages: Vec<Message>,
    /// Variables of the template, such as `enable_thinking`.
    variables: Map<String, Value>,
    tools: Tools,
}

impl Conversation {
    fn is_forced(&self) -> bool {
        !self.tools.forced.is_empty()
    }

    /// The grammar of an answer that must call a tool.
    fn forced_grammar(
        &self,
        prompts: &PromptEncoder,
    ) -> Result<Option<Arc<dyn Grammar>>, ApiError> {
        let Some(calls) = prompts.syntax().calls.filter(|_| self.is_forced()) else {
            return Ok(None);
        };
        let (forced, is_parallel) = (&self.tools.forced, self.tools.is_parallel);
        let source = Tool::grammar(forced, &calls, prompts.tokenizer(), is_parallel);
        compile(prompts, &source, "tools").map(Some)
    }

    /// Renders and encodes the messages. A grammar holds for the whole answer, so the model shall
    /// not think before it.
    fn prepare(mut self, prompts: &PromptEncoder, has_grammar: bool) -> Result<Prepared, ApiError> {
        let mut syntax = prompts.syntax();
        if self.tools.has_any() && syntax.calls.is_none() {
            let message = "the chat template of the model has no tools, or their syntax is unknown";
            return Err(ApiError::field("tools", message));
        }
        if has_grammar {
            let thinks = self.variables.entry("enable_thinking");
            thinks.or_insert(Value::Bool(false));
            syntax.thoughts = None;
        }
        if !self.tools.has_any() {
            syntax.calls = None;
        }
        let given = TemplateInput {
            tools: self.tools.written,
            variables: self.variables,
        };
        let rendered = prompts.render(&self.messages, &given).map_err(invalid)?;
        let tokens = prompts.encode_rendered(&rendered).map_err(invalid)?;
        Ok(Prepared {
            tokens,
            shown: syntax.shown_tokens(prompts.tokenizer()),
            parser: AnswerParser::new(syntax, self.tools.tools, &rendered.text),
            echo: None,
        })
    }
}

/// The messages of a conversation.
fn messages(list: &Value) -> Result<Vec<Message>, ApiError> {
    let refused = |found: &str| refused("messages", "a list of at least one message", found);
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
    let Value::Object(fields) = value else {
        return Err(refused(&place, "an object", kind(value)));
    };
    let role = match fields.get("role").and_then(Value::as_str) {
        // The newer name of the same role, which templates do not know.
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant" | "tool")) => role,
        Some(other) => {
            let expected = "system, developer, user, assistant or tool";
            return Err(refused(
                &format!("{place}.role"),
                expected,
                &format!("`{other}`"),
            ));
        }
        None => return Err(refused(&format!("{place}.role"), "a string", "none")),
    };
    let others = other_fields(fields, role, &place)?;
    let content = format!("{place}.content");
    let text = match fields.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts
            .iter()
            .map(|part| text_of(part).ok_or_else(|| refused(&content, "parts of text", "others")))
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

fn refused(param: &str, expected: &str, found: &str) -> ApiError {
    let message = format!("`{param}`: expected {expected}, found {found}");
    ApiError::field(param, message)
}

/// The text of a part of a message.
fn text_of(part: &Value) -> Option<&str> {
    let is_text = part.get("type").and_then(Value::as_str) == Some("text");
    part.get("text").and_then(Value::as_str).filter(|_| is_text)
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
                known.insert(name.clone(), calls(value, &param)?);
            }
            ("assistant", "reasoning_content") | ("tool", "tool_call_id" | "name") => {
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

/// Calls of tools as templates read them: arguments are an object, not its text.
fn calls(list: &Value, place: &str) -> Result<Value, ApiError> {
    let list = list.as_array();
    let list = list.ok_or_else(|| refused(place, "a list of calls", "something else"))?;
    let call = |(idx, call): (usize, &Value)| {
        let place = format!("{place}[{idx}].function");
        let function = &call["function"];
        let name = function["name"].as_str();
        let name = name.ok_or_else(|| refused(&format!("{place}.name"), "a string", "none"))?;
        let arguments = match &function["arguments"] {
            Value::String(text) if text.trim().is_empty() => Ok(Map::new()),
            Value::String(text) => serde_json::from_str(text),
            other => serde_json::from_value(other.clone()),
        };
        let arguments: Map<String, Value> = arguments.map_err(|_| {
            let place = format!("{place}.arguments");
            refused(&place, "the text of a JSON object", "something else")
        })?;
        Ok(json!({
            "id": call["id"],
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }))
    };
    let calls = list.iter().enumerate().map(call);
    calls.collect::<Result<Vec<Value>, _>>().map(Value::from)
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
                "`messages[0].content`: expected parts of text",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [{"function": {}}]}]),
                "`messages[0].tool_calls[0].function.name`: expected a string",
            ),
            (
                json!([{"role": "assistant", "tool_calls": [
                    {"function": {"name": "f", "arguments": "[1]"}},
                ]}]),
                "`messages[0].tool_calls[0].function.arguments`: expected the text of a JSON object",
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
