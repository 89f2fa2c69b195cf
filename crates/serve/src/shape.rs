//! The JSON of OpenAI's answers: `chat.completion`, `text_completion` and the chunks of both.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use thane_engine::sample::TokenLogprob;
use thane_engine::schedule::Usage;
use thane_runtime::PromptEncoder;
use thane_runtime::chat::{Part, ToolCall};

use crate::error::ApiError;
use crate::logprobs::{Place, TextTokens, Tokens};
use crate::stream::{Answer, End, Render};
use crate::written::Writer;

/// Which API an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// What all objects of an answer have in common.
pub(crate) struct Shape {
    pub api: Api,
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    /// Whether a stream ends with a chunk that has the usage.
    pub include_usage: bool,
    /// Whether log probabilities are shown.
    pub shows_logprobs: bool,
    /// Spells the tokens of log probabilities.
    pub prompts: Arc<PromptEncoder>,
    /// What a stream has shown of each choice.
    pub shown: Vec<Shown>,
}

/// What a stream has shown of a choice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown {
    n_calls: usize,
    /// Behind the tokens whose log probabilities were shown.
    place: Place,
}

/// An object of the API.
#[derive(Serialize)]
struct Object<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChoiceShown<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

/// A choice, or what a chunk says of one. What it says is in one field.
#[derive(Serialize)]
struct ChoiceShown<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    logprobs: Option<Logprobs<'a>>,
    finish_reason: Option<&'static str>,
}

/// Log probabilities as the API shows them.
#[derive(Serialize)]
#[serde(untagged)]
enum Logprobs<'a> {
    Chat { content: Tokens<'a>, refusal: () },
    Text(TextTokens<'a>),
}

impl Render for Shape {
    fn whole(&mut self, answers: Vec<Answer>, usage: &Usage, into: &mut Writer) {
        let object = match self.api {
            Api::Chat => "chat.completion",
            Api::Text => "text_completion",
        };
        let choices = answers.iter().enumerate();
        let choices = choices.map(|(index, answer)| self.choice(index, answer));
        let mut whole = self.object(object, choices.collect());
        whole.usage = Some(usage_json(usage));
        into.json(&whole);
    }

    /// The chunks before the first piece of a chat, which have the role.
    fn first(&mut self, into: &mut Writer) {
        if self.api == Api::Text {
            return;
        }
        let delta = json!({"role": "assistant", "content": ""});
        for index in 0..self.shown.len() {
            let choice = self.choice_of_chunk(index, delta.clone(), String::new());
            into.data(&self.chunk(choice));
        }
    }

    fn part(&mut self, index: usize, part: Part, tokens: Vec<TokenLogprob>, into: &mut Writer) {
        let n_calls = self.shown[index].n_calls;
        let delta = match &part {
            Part::Text(text) => json!({"content": text}),
            Part::Thought(text) => json!({"reasoning_content": text}),
            Part::Call(call) => {
                self.shown[index].n_calls += 1;
                let mut call = self.call(index, n_calls, call);
                call["index"] = n_calls.into();
                json!({"tool_calls": [call]})
            }
        };
        let text = match part {
            Part::Text(text) => text,
            Part::Thought(_) | Part::Call(_) => String::new(),
        };
        let mut choice = self.choice_of_chunk(index, delta, text);
        choice.logprobs = self.logprobs(vec![&tokens], self.shown[index].place);
        into.data(&self.chunk(choice));
        self.pass(index, &tokens);
    }

    fn end(&mut self, index: usize, end: &End, tokens: Vec<TokenLogprob>, into: &mut Writer) {
        let mut choice = self.choice_of_chunk(index, json!({}), String::new());
        choice.logprobs = self.logprobs(vec![&tokens], self.shown[index].place);
        choice.finish_reason = Some(finish_reason(end));
        into.data(&self.chunk(choice));
        self.pass(index, &tokens);
    }

    /// The usage, if the client asked for it, and the mark of the end.
    fn last(&mut self, usage: &Usage, into: &mut Writer) {
        if self.include_usage {
            let mut chunk = self.object(self.chunk_name(), Vec::new());
            chunk.usage = Some(usage_json(usage));
            into.data(&chunk);
        }
        into.text("data: [DONE]\n\n");
    }

    fn failure(&mut self, error: &ApiError, into: &mut Writer) {
        into.data(&error.body());
    }
}

impl Shape {
    fn choice<'a>(&'a self, index: usize, answer: &'a Answer) -> ChoiceShown<'a> {
        let (message, text) = match self.api {
            Api::Chat => (Some(self.message(index, answer)), None),
            Api::Text => (None, Some(answer.text())),
        };
        ChoiceShown {
            index,
            message,
            delta: None,
            text,
            logprobs: self.logprobs(answer.tokens(), Place::default()),
            finish_reason: Some(finish_reason(&answer.end)),
        }
    }

    fn message(&self, index: usize, answer: &Answer) -> Value {
        let (mut thoughts, mut calls) = (String::new(), Vec::new());
        for (part, _) in &answer.parts {
            match part {
                Part::Text(_) => {}
                Part::Thought(text) => thoughts.push_str(text),
                Part::Call(call) => calls.push(self.call(index, calls.len(), call)),
            }
        }
        let text = answer.text();
        let content = match text.is_empty() && !calls.is_empty() {
            true => Value::Null,
            false => text.into(),
        };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !thoughts.is_empty() {
            message["reasoning_content"] = thoughts.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        message
    }

    /// A call of a tool, the `n`th of its choice.
    fn call(&self, index: usize, n: usize, call: &ToolCall) -> Value {
        json!({
            "id": format!("call-{}-{index}-{n}", self.id),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
        })
    }

    /// What a chunk says of a choice, for either API.
    fn choice_of_chunk<'a>(&self, index: usize, delta: Value, text: String) -> ChoiceShown<'a> {
        let is_chat = self.api == Api::Chat;
        ChoiceShown {
            index,
            message: None,
            delta: is_chat.then_some(delta),
            text: (!is_chat).then_some(text),
            logprobs: None,
            finish_reason: None,
        }
    }

    fn chunk<'a>(&'a self, choice: ChoiceShown<'a>) -> Object<'a> {
        let mut chunk = self.object(self.chunk_name(), vec![choice]);
        if self.include_usage {
            chunk.usage = Some(Value::Null);
        }
        chunk
    }

    fn chunk_name(&self) -> &'static str {
        match self.api {
            Api::Chat => "chat.completion.chunk",
            Api::Text => "text_completion",
        }
    }

    fn object<'a>(&'a self, object: &'static str, choices: Vec<ChoiceShown<'a>>) -> Object<'a> {
        Object {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            choices,
            usage: None,
        }
    }

    /// Goes behind tokens of a stream.
    fn pass(&mut self, index: usize, tokens: &[TokenLogprob]) {
        if self.api == Api::Text && self.shows_logprobs {
            let tokens = Tokens::new(tokens, &self.prompts);
            self.shown[index].place.pass_all(&tokens);
        }
    }

    /// Log probabilities as the API shows them; `None` if they are not wanted or there are none.
    /// The first token begins at `place`.
    fn logprobs<'a>(
        &'a self,
        lists: Vec<&'a [TokenLogprob]>,
        place: Place,
    ) -> Option<Logprobs<'a>> {
        if !self.shows_logprobs || lists.iter().all(|list| list.is_empty()) {
            return None;
        }
        let prompts = &*self.prompts;
        let tokens = Tokens { lists, prompts };
        Some(match self.api {
            Api::Chat => Logprobs::Chat {
                content: tokens,
                refusal: (),
            },
            Api::Text => Logprobs::Text(TextTokens { tokens, place }),
        })
    }
}

/// The arguments of a call, as text that the client parses.
pub(crate) fn arguments_text(call: &ToolCall) -> String {
    Value::Object(call.arguments.clone()).to_string()
}

/// Why an answer ended. The API has no reason of its own for a full context.
fn finish_reason(end: &End) -> &'static str {
    match end.is_complete() {
        true if end.has_calls => "tool_calls",
        true => "stop",
        false => "length",
    }
}

fn usage_json(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.answer_tokens,
        "total_tokens": usage.prompt_tokens + usage.answer_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}
