//! A conversation as a prompt: the chat template renders messages, tools and variables, and the
//! answer is read as the model writes it.

use std::sync::Arc;

use serde_json::{Map, Value};
use thane_engine::choose::Grammar;
use thane_runtime::chat::{AnswerParser, Tool};
use thane_runtime::{Message, PromptEncoder, TemplateInput};

use super::format::Form;
use super::generate::{Prepared, Room, compile, invalid};
use super::tools::Tools;
use crate::body::refused;
use crate::error::ApiError;

/// The variable by which templates turn thoughts on and off.
const THINKS: &str = "enable_thinking";

/// What the chat template renders.
#[derive(Default)]
pub(super) struct Conversation {
    pub messages: Vec<Message>,
    /// Variables of the template, such as `enable_thinking`.
    pub variables: Map<String, Value>,
    pub tools: Tools,
    /// How the answer begins, where the client says so.
    pub begun: Option<Begun>,
}

/// The beginning of an answer.
pub(super) struct Begun {
    pub text: String,
    /// The field that has the text.
    pub field: &'static str,
}

impl Conversation {
    /// A conversation without tools.
    pub fn new(messages: Vec<Message>) -> Self {
        Self {
            messages,
            ..Self::default()
        }
    }

    /// Says whether the model thinks before it answers.
    pub fn set_thinks(&mut self, thinks: bool) {
        self.variables.insert(THINKS.to_owned(), thinks.into());
    }

    /// Refuses tools beside a form, and results of calls that nobody made. A template may need the
    /// name of the tool with its result.
    pub fn check(&mut self, form: Option<&Form>, field: &str) -> Result<(), ApiError> {
        if let Some(form) = form.filter(|_| self.tools.has_any()) {
            let message = "expected `tools`, or the form of a text, found both";
            return Err(ApiError::field(form.field, message));
        }
        let mut calls: Map<String, Value> = Map::new();
        for message in &mut self.messages {
            let listed = message.fields.get("tool_calls").and_then(Value::as_array);
            for call in listed.into_iter().flatten() {
                if let Some(id) = call["id"].as_str() {
                    calls.insert(id.to_owned(), call["function"]["name"].clone());
                }
            }
            let Some(id) = message.fields.get("tool_call_id").and_then(Value::as_str) else {
                continue;
            };
            let Some(name) = calls.get(id) else {
                let found = format!("a result for `{id}`");
                return Err(refused(
                    field,
                    "results of calls that come before them",
                    &found,
                ));
            };
            let name = name.clone();
            message.fields.entry("name").or_insert(name);
        }
        Ok(())
    }

    /// Whether the answer must call a tool.
    pub fn is_forced(&self) -> bool {
        !self.tools.forced.is_empty()
    }

    /// The grammar of the answer: that of `form`, or of the calls that it must have.
    pub fn grammar(
        &self,
        form: Option<&Form>,
        prompts: &PromptEncoder,
    ) -> Result<Option<Arc<dyn Grammar>>, ApiError> {
        if let Some(form) = form {
            return compile(prompts, &form.source, form.field).map(Some);
        }
        let Some(calls) = prompts.syntax().calls.filter(|_| self.is_forced()) else {
            return Ok(None);
        };
        let forced = &self.tools.forced;
        let source = Tool::grammar(
            forced,
            &calls,
            prompts.tokenizer(),
            self.tools.is_parallel(),
        );
        compile(prompts, &source, "tools").map(Some)
    }

    /// Renders and encodes the messages. A grammar holds for the whole answer, so the model shall
    /// not think before it.
    pub fn prepare(
        mut self,
        prompts: &PromptEncoder,
        has_grammar: bool,
        room: Room,
    ) -> Result<Prepared, ApiError> {
        let mut syntax = prompts.syntax();
        if self.tools.has_any() && syntax.calls.is_none() {
            let message = "the chat template of the model has no tools, or their syntax is unknown";
            return Err(ApiError::field("tools", message));
        }
        if has_grammar || self.begun.is_some() {
            let thinks = self.variables.entry(THINKS);
            thinks.or_insert(Value::Bool(false));
        }
        if has_grammar {
            syntax.thoughts = None;
        }
        if !self.tools.has_any() {
            syntax.calls = None;
        }
        let given = TemplateInput {
            tools: self.tools.written,
            variables: self.variables,
        };
        let mut rendered = prompts.render(&self.messages, &given).map_err(invalid)?;
        let shown = syntax.shown_tokens(prompts.tokenizer());
        let mut parser = AnswerParser::new(syntax, self.tools.tools, &rendered.text);
        let continues = self.begun.is_some();
        if let Some(begun) = self.begun {
            if parser.is_thinking() {
                let message = "the chat template of the model begins each answer with a thought, \
                               so the client cannot begin it";
                return Err(ApiError::field(begun.field, message));
            }
            parser = parser.within_text();
            let start = rendered.text.len();
            rendered.text.push_str(&begun.text);
            rendered.from_messages.push(start..rendered.text.len());
        }
        room.check_bytes(rendered.text.len())?;
        let tokens = prompts.encode_rendered(&rendered).map_err(invalid)?;
        Ok(Prepared {
            tokens,
            shown,
            parser,
            echo: None,
            continues,
            max_calls: self.tools.max_calls,
        })
    }
}
