//! The JSON of a response: a list of items, each of them begun, continued and ended by events.

use std::sync::Arc;

use axum::body::Bytes;
use serde_json::{Value, json};
use thane_engine::sample::TokenLogprob;
use thane_engine::schedule::Usage;
use thane_engine::text::EncodeOptions;
use thane_runtime::chat::{Part, ToolCall};
use thane_runtime::{Message, PromptEncoder};

use super::super::now_s;
use super::super::tools::call_json;
use super::items;
use crate::error::ApiError;
use crate::kept::{Kept, Responses};
use crate::logprobs::tokens_json;
use crate::shape::arguments_text;
use crate::stream::{Answer, End, Render, named};

/// The JSON of a response.
pub(super) struct Shape {
    /// The fields that do not change.
    about: Value,
    /// What the ids of items end with.
    id: String,
    prompts: Arc<PromptEncoder>,
    pub shows_logprobs: bool,
    /// Where the response is kept, and the conversation before the answer, also as items.
    pub kept: Option<(Responses, Vec<Message>, Vec<Value>)>,
    /// Events so far, which are numbered.
    n_events: u64,
    /// Items that are complete.
    output: Vec<Value>,
    open: Option<Item>,
    /// What the answer adds to the conversation.
    text: String,
    thoughts: String,
    calls: Vec<Value>,
    /// The complete response.
    finished: Value,
}

/// An item of text that is not complete.
struct Item {
    kind: Kind,
    text: String,
    logprobs: Vec<Value>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
}

impl Shape {
    pub fn new(about: Value, id: String, prompts: Arc<PromptEncoder>) -> Self {
        Self {
            about,
            id,
            prompts,
            shows_logprobs: false,
            kept: None,
            n_events: 0,
            output: Vec::new(),
            open: None,
            text: String::new(),
            thoughts: String::new(),
            calls: Vec::new(),
            finished: Value::Null,
        }
    }

    /// The response with its state and what else changes.
    fn response(&self, status: &str, usage: Value) -> Value {
        let mut response = self.about.clone();
        response["status"] = json!(status);
        response["output"] = json!(self.output);
        response["usage"] = usage;
        response["incomplete_details"] = match status {
            "incomplete" => json!({"reason": "max_output_tokens"}),
            _ => Value::Null,
        };
        response
    }

    /// The id of the item that is open, or comes next.
    fn item_id(&self, prefix: &str) -> String {
        format!("{prefix}_{}{:04x}", self.id, self.output.len())
    }

    /// An event with its number.
    fn event(&mut self, kind: &str, mut event: Value) -> Bytes {
        event["type"] = json!(format!("response.{kind}"));
        event["sequence_number"] = self.n_events.into();
        self.n_events += 1;
        named(&event)
    }

    /// An event about an item.
    fn item_event(&mut self, kind: &str, id: &str, mut event: Value) -> Bytes {
        event["item_id"] = json!(id);
        event["output_index"] = self.output.len().into();
        self.event(kind, event)
    }

    /// An event about the text of the item that is open.
    fn text_event(&mut self, kind: &str, mut event: Value) -> Bytes {
        let item = self.open.as_ref().map_or(Kind::Message, |item| item.kind);
        event["content_index"] = 0.into();
        let id = self.item_id(item.prefix());
        self.item_event(kind, &id, event)
    }

    fn begin(&mut self, kind: Kind) -> Vec<Bytes> {
        let item = Item {
            kind,
            text: String::new(),
            logprobs: Vec::new(),
        };
        let part = item.part();
        let shown = kind.item(&self.item_id(kind.prefix()), "in_progress", json!([]));
        self.open = Some(item);
        let added = json!({"output_index": self.output.len(), "item": shown});
        vec![
            self.event("output_item.added", added),
            self.text_event("content_part.added", json!({"part": part})),
        ]
    }

    /// Ends the item that is open, unless the next part belongs to it.
    fn close(&mut self, next: Option<Kind>, status: &str) -> Vec<Bytes> {
        let Some(item) = self.open.take_if(|item| Some(item.kind) != next) else {
            return Vec::new();
        };
        let part = item.part();
        let id = self.item_id(item.kind.prefix());
        let shown = item.kind.item(&id, status, json!([part]));
        let done = json!({"output_index": self.output.len(), "item": shown});
        let mut text = json!({"text": item.text});
        if item.kind == Kind::Message {
            text["logprobs"] = json!(item.logprobs);
        }
        let kind = format!("{}.done", item.kind.text_event());
        self.open = Some(item);
        let frames = vec![
            self.text_event(&kind, text),
            self.text_event("content_part.done", json!({"part": part})),
            self.event("output_item.done", done),
        ];
        self.open = None;
        self.output.push(shown);
        frames
    }

    /// Continues the text of an item, which is begun if it is not open.
    fn text(&mut self, kind: Kind, text: &str, tokens: &[TokenLogprob]) -> Vec<Bytes> {
        let mut frames = self.close(Some(kind), "completed");
        if self.open.is_none() {
            frames.extend(self.begin(kind));
        }
        let shows_logprobs = self.shows_logprobs && kind == Kind::Message;
        let logprobs = match shows_logprobs {
            true => tokens_json(tokens, &self.prompts),
            false => Vec::new(),
        };
        let mut delta = json!({"delta": text});
        if kind == Kind::Message {
            delta["logprobs"] = json!(logprobs);
        }
        if let Some(item) = &mut self.open {
            item.text.push_str(text);
            item.logprobs.extend(logprobs);
        }
        frames.push(self.text_event(&format!("{}.delta", kind.text_event()), delta));
        frames
    }

    /// An item that is a call of a function.
    fn call(&mut self, call: &ToolCall) -> Vec<Bytes> {
        let mut frames = self.close(None, "completed");
        let (id, call_id) = (self.item_id("fc"), self.item_id("call"));
        let arguments = arguments_text(call);
        let written = call_json(Some(&call_id), &call.name, call.arguments.clone());
        self.calls.push(written);
        let item = |status: &str, arguments: &str| {
            json!({
                "type": "function_call",
                "id": id,
                "call_id": call_id,
                "name": call.name,
                "arguments": arguments,
                "status": status,
            })
        };
        let index = self.output.len();
        let added = json!({"output_index": index, "item": item("in_progress", "")});
        frames.push(self.event("output_item.added", added));
        let kind = "function_call_arguments";
        let delta = json!({"delta": arguments});
        frames.push(self.item_event(&format!("{kind}.delta"), &id, delta));
        let done = json!({"arguments": arguments, "name": call.name});
        frames.push(self.item_event(&format!("{kind}.done"), &id, done));
        let item = item("completed", &arguments);
        let done = json!({"output_index": index, "item": item});
        frames.push(self.event("output_item.done", done));
        self.output.push(item);
        frames
    }

    /// The complete response, which is kept.
    fn finish(&mut self, status: &str, usage: &Usage) -> Value {
        let mut response = self.response(status, self.usage_json(usage));
        response["completed_at"] = now_s().into();
        if let Some((responses, mut messages, input)) = self.kept.take() {
            let calls = std::mem::take(&mut self.calls);
            messages.push(items::answer(&self.text, &self.thoughts, calls));
            responses.keep(Kept {
                id: response["id"].as_str().unwrap_or_default().to_owned(),
                messages,
                input,
                response: response.clone(),
            });
        }
        response
    }

    /// The tokens of thoughts are those of their text, encoded again.
    fn usage_json(&self, usage: &Usage) -> Value {
        let options = EncodeOptions {
            add_special: false,
            parse_special: false,
        };
        let thoughts = self.prompts.tokenizer().encode(&self.thoughts, options);
        let n_thoughts = thoughts.map_or(0, |tokens| tokens.len());
        json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": usage.answer_tokens,
            "output_tokens_details": {"reasoning_tokens": n_thoughts.min(usage.answer_tokens)},
            "total_tokens": usage.prompt_tokens + usage.answer_tokens,
        })
    }
}

impl Item {
    /// The part of the content that is all of the item.
    fn part(&self) -> Value {
        match self.kind {
            Kind::Message => json!({
                "type": "output_text",
                "text": self.text,
                "annotations": [],
                "logprobs": self.logprobs,
            }),
            Kind::Reasoning => json!({"type": "reasoning_text", "text": self.text}),
        }
    }
}

impl Kind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Message => "msg",
            Self::Reasoning => "rs",
        }
    }

    fn text_event(self) -> &'static str {
        match self {
            Self::Message => "output_text",
            Self::Reasoning => "reasoning_text",
        }
    }

    fn item(self, id: &str, status: &str, content: Value) -> Value {
        match self {
            Self::Message => json!({
                "type": "message",
                "id": id,
                "status": status,
                "role": "assistant",
                "content": content,
            }),
            Self::Reasoning => json!({
                "type": "reasoning",
                "id": id,
                "status": status,
                "summary": [],
                "content": content,
            }),
        }
    }
}

impl Render for Shape {
    fn whole(&mut self, answers: Vec<Answer>, _: &Usage) -> Value {
        let Some(answer) = answers.into_iter().next() else {
            return Value::Null;
        };
        for (part, tokens) in answer.parts {
            self.part(0, part, &tokens);
        }
        self.end(0, &answer.end, &answer.rest);
        std::mem::take(&mut self.finished)
    }

    fn first(&mut self) -> Vec<Bytes> {
        let response = self.response("in_progress", Value::Null);
        vec![
            self.event("created", json!({"response": response})),
            self.event("in_progress", json!({"response": response})),
        ]
    }

    fn part(&mut self, _: usize, part: Part, tokens: &[TokenLogprob]) -> Vec<Bytes> {
        match part {
            Part::Text(text) => {
                self.text.push_str(&text);
                self.text(Kind::Message, &text, tokens)
            }
            Part::Thought(text) => {
                self.thoughts.push_str(&text);
                self.text(Kind::Reasoning, &text, tokens)
            }
            Part::Call(call) => self.call(&call),
        }
    }

    fn end(&mut self, _: usize, end: &End, _: &[TokenLogprob]) -> Vec<Bytes> {
        let mut frames = Vec::new();
        if self.open.is_none() && self.output.is_empty() {
            frames.extend(self.begin(Kind::Message));
        }
        let status = status(end);
        frames.extend(self.close(None, status));
        self.finished = self.finish(status, &end.usage);
        let event = json!({"response": self.finished});
        frames.push(self.event(status, event));
        frames
    }

    fn failure(&mut self, error: &ApiError) -> Bytes {
        let event = json!({
            "type": "error",
            "sequence_number": self.n_events,
            "code": error.kind(),
            "message": error.message(),
            "param": null,
        });
        named(&event)
    }
}

fn status(end: &End) -> &'static str {
    match end.is_complete() {
        true => "completed",
        false => "incomplete",
    }
}
