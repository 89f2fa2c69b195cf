//! A conversation as a prompt: the chat template renders messages, tools and variables, and the
//! answer is read as the model writes it.

use serde_json::{Map, Value};
use thane_runtime::chat::{AnswerParser, Tool};
use thane_runtime::{Message, PromptEncoder, TemplateInput};

use super::generate::{Prepared, Room, invalid};
use super::tools::Tools;
use crate::answers::Answers;
use crate::body::refused;
use crate::compiling::Form;
use crate::error::{ApiError, TOO_LARGE};

/// The variable by which templates turn thoughts on and off.
const THINKS: &str = "enable_thinking";

/// The variable by which templates know how much a model thinks.
const EFFORT: &str = "reasoning_effort";

/// Most messages of a conversation, and of a request, as in OpenAI's API: templates may look at all
/// for each.
const MAX_MESSAGES: usize = 2048;

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

    /// Says how much the model thinks; `None` leaves it to the chat template.
    pub fn set_effort(
        &mut self,
        effort: Option<String>,
        field: &str,
        answers: &Answers,
    ) -> Result<(), ApiError> {
        let Some(effort) = effort else {
            return Ok(());
        };
        if effort != "none" && !knows(&answers.prompts, EFFORT) {
            let expected = "none, because the chat template of the model has no `reasoning_effort`";
            return Err(refused(field, expected, format!("`{effort}`")));
        }
        self.set_thinks(effort != "none");
        let effort = Value::from(effort);
        self.variables.insert(EFFORT.to_owned(), effort);
        Ok(())
    }

    /// Refuses more messages than a conversation may have, and results of calls that nobody made. A
    /// template may need the name of the tool with its result.
    pub fn check(&mut self, field: &str) -> Result<(), ApiError> {
        check_count(self.messages.len(), field)?;
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

    /// The form of the answer: that of the calls that it must have, `form`, or either where it may
    /// have calls.
    pub fn form(
        &self,
        form: Option<Form>,
        prompts: &PromptEncoder,
    ) -> Result<Option<Form>, ApiError> {
        let (syntax, tokenizer) = (prompts.syntax(), prompts.tokenizer());
        let calls = syntax.calls.filter(|_| self.tools.has_any());
        let is_parallel = self.tools.is_parallel(syntax.is_generic());
        if calls.is_some() && (self.is_forced() || form.is_some()) {
            for tool in self.tools.tools.iter().chain(&self.tools.forced) {
                tool.check().map_err(|e| ApiError::field("tools", e.0))?;
            }
        }
        match (form, calls) {
            (_, Some(calls)) if self.is_forced() => Ok(Some(Form {
                source: Tool::grammar(&self.tools.forced, &calls, tokenizer, is_parallel),
                field: "tools",
            })),
            (None, _) => Ok(None),
            (form, None) => Ok(form),
            (Some(Form { source, field }), Some(calls)) => {
                let tools = &self.tools.tools;
                let either = Tool::grammar_or(tools, &calls, tokenizer, is_parallel, source);
                let source = either.ok_or_else(|| {
                    let message = "expected `tools`, or the form of a text, found both: this model \
                                   writes calls as JSON without a mark before them, so the client \
                                   has to choose";
                    ApiError::field(field, message)
                })?;
                Ok(Some(Form { source, field }))
            }
        }
    }

    /// Renders and encodes the messages. A grammar holds for the whole answer, so the model shall
    /// not think before an answer that has a form or must have calls.
    pub fn prepare(
        mut self,
        prompts: &PromptEncoder,
        has_form: bool,
        (room, is_gone): (Room, &dyn Fn() -> bool),
    ) -> Result<Prepared, ApiError> {
        let has_grammar = has_form || self.is_forced();
        let mut syntax = prompts.syntax();
        let is_either = has_form && self.tools.has_any() && !self.is_forced();
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
        let mut rendered = prompts
            .render(&self.messages, &given, is_gone)
            .map_err(invalid)?;
        let shown = syntax.shown_tokens(prompts.tokenizer());
        let mut parser = AnswerParser::new(syntax, self.tools.tools, &rendered.text);
        if is_either {
            parser = parser.of_form();
        }
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
        let tokens = prompts
            .encode_rendered(&rendered, is_gone)
            .map_err(invalid)?;
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

/// Refuses more messages than a conversation may have.
pub(super) fn check_count(n: usize, field: &str) -> Result<(), ApiError> {
    if n <= MAX_MESSAGES {
        return Ok(());
    }
    let expected = format!("at most {MAX_MESSAGES} messages");
    Err(refused(field, &expected, n.to_string()).with_code(TOO_LARGE))
}

/// Whether the chat template of a model has a variable.
fn knows(prompts: &PromptEncoder, variable: &str) -> bool {
    let template = prompts.language.template.as_ref();
    template.is_some_and(|template| template.all_text().contains(variable))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that the server keeps count with those of the request.
    #[test]
    fn a_conversation_has_only_so_many_messages() {
        let check = |n| Conversation::new(vec![Message::new("user", "x"); n]).check("input");
        assert!(check(MAX_MESSAGES).is_ok());
        let error = check(MAX_MESSAGES + 1).unwrap_err();
        let expected = "`input`: expected at most 2048 messages, found 2049";
        assert_eq!(error.message, expected);
        assert_eq!(error.code, Some(TOO_LARGE));
    }
}
