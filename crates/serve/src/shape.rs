//! The JSON of OpenAI's answers: `chat.completion`, `text_completion` and the chunks of both.

use std::sync::Arc;

use axum::body::Bytes;
use serde_json::{Map, Value, json};
use thane_engine::sample::TokenLogprob;
use thane_engine::schedule::Usage;
use thane_runtime::PromptEncoder;
use thane_runtime::chat::{Part, ToolCall};

use crate::error::ApiError;
use crate::logprobs::{Place, number, spelled, tokens_json};
use crate::stream::{Answer, End, Render, data};

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

impl Render for Shape {
    fn whole(&mut self, answers: Vec<Answer>, usage: &Usage) -> Value {
        let object = match self.api {
            Api::Chat => "chat.completion",
            Api::Text => "text_completion",
        };
        let answers = answers.iter().enumerate();
        let choices = answers.map(|(index, answer)| self.choice(index, answer));
        let mut whole = self.object(object, choices.collect());
        whole["usage"] = usage_json(usage);
        whole
    }

    /// The chunks before the first piece of a chat, which have the role.
    fn first(&mut self) -> Vec<Bytes> {
        if self.api == Api::Text {
            return Vec::new();
        }
        let delta = json!({"role": "assistant", "content": ""});
        let chunk = |index| data(&self.chunk(index, delta.clone(), "", Value::Null, Value::Null));
        (0..self.shown.len()).map(chunk).collect()
    }

    fn part(&mut self, index: usize, part: Part, tokens: &[TokenLogprob]) -> Vec<Bytes> {
        let logprobs = self.next_logprobs(index, tokens);
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
        let text = match &part {
            Part::Text(text) => text,
            Part::Thought(_) | Part::Call(_) => "",
        };
        vec![data(&self.chunk(index, delta, text, logprobs, Value::Null))]
    }

    fn end(&mut self, index: usize, end: &End, tokens: &[TokenLogprob]) -> Vec<Bytes> {
        let logprobs = self.next_logprobs(index, tokens);
        let reason = finish_reason(end).into();
        vec![data(&self.chunk(index, json!({}), "", logprobs, reason))]
    }

    /// The usage, if the client asked for it, and the mark of the end.
    fn last(&mut self, usage: &Usage) -> Vec<Bytes> {
        let mut frames = Vec::new();
        if self.include_usage {
            let mut chunk = self.object(self.chunk_name(), Vec::new());
            chunk["usage"] = usage_json(usage);
            frames.push(data(&chunk));
        }
        frames.push(Bytes::from_static(b"data: [DONE]\n\n"));
        frames
    }

    fn failure(&mut self, error: &ApiError) -> Bytes {
        data(&error.body())
    }
}

impl Shape {
    /// A choice of the whole answer.
    fn choice(&self, index: usize, answer: &Answer) -> Value {
        let logprobs = self.logprobs(&answer.tokens(), Place::default()).0;
        let reason = finish_reason(&answer.end);
        match self.api {
            Api::Chat => json!({
                "index": index,
                "message": self.message(index, answer),
                "logprobs": logprobs,
                "finish_reason": reason,
            }),
            Api::Text => json!({
                "index": index,
                "text": answer.text(),
                "logprobs": logprobs,
                "finish_reason": reason,
            }),
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

    fn chunk(
        &self,
        index: usize,
        delta: Value,
        text: &str,
        logprobs: Value,
        reason: Value,
    ) -> Value {
        let choice = match self.api {
            Api::Chat => json!({
                "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason,
            }),
            Api::Text => json!({
                "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason,
            }),
        };
        let mut chunk = self.object(self.chunk_name(), vec![choice]);
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn chunk_name(&self) -> &'static str {
        match self.api {
            Api::Chat => "chat.completion.chunk",
            Api::Text => "text_completion",
        }
    }

    fn object(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    /// The log probabilities of the next tokens of a stream.
    fn next_logprobs(&mut self, index: usize, tokens: &[TokenLogprob]) -> Value {
        let (logprobs, place) = self.logprobs(tokens, self.shown[index].place);
        self.shown[index].place = place;
        logprobs
    }

    /// Log probabilities as the API shows them; null if they are not wanted or there are none. The
    /// first token begins at `place`; also where the next one would.
    fn logprobs(&self, tokens: &[TokenLogprob], place: Place) -> (Value, Place) {
        if !self.shows_logprobs || tokens.is_empty() {
            return (Value::Null, place);
        }
        match self.api {
            Api::Chat => {
                let content = tokens_json(tokens, &self.prompts);
                (json!({"content": content, "refusal": null}), place)
            }
            Api::Text => self.text_logprobs(tokens, place),
        }
    }

    fn text_logprobs(&self, tokens: &[TokenLogprob], mut place: Place) -> (Value, Place) {
        let (mut texts, mut numbers, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
        let bytes = |id: u32| self.prompts.tokenizer().token_bytes(id);
        let text = |id: u32| spelled(bytes(id), "bytes:");
        for token in tokens {
            offsets.push(place.pass(bytes(token.token)));
            texts.push(text(token.token));
            numbers.push(number(token.logprob));
            let mut top = Map::new();
            for (id, logprob) in &token.top {
                // The likeliest of tokens with one text, which come first.
                top.entry(text(*id)).or_insert(number(Some(*logprob)));
            }
            // The first token of a prompt follows nothing.
            tops.push(if top.is_empty() {
                Value::Null
            } else {
                top.into()
            });
        }
        let shown = json!({
            "tokens": texts,
            "token_logprobs": numbers,
            "top_logprobs": tops,
            "text_offset": offsets,
        });
        (shown, place)
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
