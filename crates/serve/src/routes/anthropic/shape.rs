//! The JSON of an answer in Anthropic's API: a message with blocks.

use serde_json::{Value, json};
use thane_engine::generate::FinishReason;
use thane_engine::sample::TokenLogprob;
use thane_engine::schedule::Usage;
use thane_runtime::chat::{Part, ToolCall};

use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::shape::arguments_text;
use crate::stream::{Answer, End, Render};
use crate::written::Writer;

/// The JSON of an answer.
pub(super) struct Shape {
    id: String,
    model: String,
    /// The texts that end the answer.
    stop: Vec<String>,
    /// Tokens of the prompt.
    n_prompt: usize,
    /// Whether thoughts are shown as empty.
    pub hides_thoughts: bool,
    /// The kind of the block that a stream is in.
    open: Option<&'static str>,
    /// Blocks that a stream has begun.
    n_blocks: usize,
}

impl Shape {
    pub fn new(id: String, model: String, stop: Vec<String>, n_prompt: usize) -> Self {
        Self {
            id,
            model,
            stop,
            n_prompt,
            hides_thoughts: false,
            open: None,
            n_blocks: 0,
        }
    }

    fn message(&self, content: Vec<Value>, end: &Value, usage: Value) -> Value {
        let mut message = json!({
            "id": format!("msg_{}", self.id),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "usage": usage,
        });
        for field in ["stop_reason", "stop_sequence"] {
            message[field] = end[field].clone();
        }
        message
    }

    fn end_json(&self, end: &End) -> Value {
        let stop = end.usage.stop_idx.and_then(|idx| self.stop.get(idx));
        let reason = match end.reason {
            _ if stop.is_some() => "stop_sequence",
            FinishReason::Stop | FinishReason::Interrupted if end.has_calls => "tool_use",
            FinishReason::Stop | FinishReason::Interrupted => "end_turn",
            FinishReason::Length | FinishReason::Deadline => "max_tokens",
            FinishReason::Context => "model_context_window_exceeded",
        };
        json!({"stop_reason": reason, "stop_sequence": stop})
    }

    /// The `n`th block of the answer, a call of a tool.
    fn call(&self, n: usize, call: &ToolCall, input: Value) -> Value {
        let id = format!("toolu_{}{n:04x}", self.id);
        json!({"type": "tool_use", "id": id, "name": call.name, "input": input})
    }

    fn block(&self, n: usize, part: &Part) -> Value {
        match part {
            Part::Text(text) => text_block(text),
            Part::Thought(_) if self.hides_thoughts => thought_block(""),
            Part::Thought(text) => thought_block(text),
            Part::Call(call) => self.call(n, call, call.arguments.clone().into()),
        }
    }

    fn begin(&mut self, kind: &'static str, block: &Value, into: &mut Writer) {
        let index = self.n_blocks;
        self.open = Some(kind);
        self.n_blocks += 1;
        into.named(&json!({"type": "content_block_start", "index": index, "content_block": block}));
    }

    /// A piece of the block that is open.
    fn delta(&self, delta: &Value, into: &mut Writer) {
        let index = self.n_blocks.saturating_sub(1);
        into.named(&json!({"type": "content_block_delta", "index": index, "delta": delta}));
    }

    /// Ends the block that is open, unless the next part belongs to it.
    fn close(&mut self, next: Option<&'static str>, into: &mut Writer) {
        if self.open.is_none() || self.open == next {
            return;
        }
        self.open = None;
        let index = self.n_blocks.saturating_sub(1);
        into.named(&json!({"type": "content_block_stop", "index": index}));
    }
}

fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// Nobody signs the thoughts, and nobody checks that the client does not change them.
fn thought_block(text: &str) -> Value {
    json!({"type": "thinking", "thinking": text, "signature": ""})
}

impl Render for Shape {
    fn whole(&mut self, answers: Vec<Answer>, usage: &Usage, into: &mut Writer) {
        let Some(answer) = answers.into_iter().next() else {
            return;
        };
        let parts = answer.parts.iter().enumerate();
        let mut content: Vec<Value> = parts.map(|(n, (part, _))| self.block(n, part)).collect();
        if content.is_empty() {
            content.push(text_block(""));
        }
        into.json(&self.message(content, &self.end_json(&answer.end), usage_json(usage)));
    }

    fn first(&mut self, into: &mut Writer) {
        // How many of them a cache holds is known at the end.
        let usage = usage_json(&Usage {
            prompt_tokens: self.n_prompt,
            ..Usage::default()
        });
        let message = self.message(Vec::new(), &json!({}), usage);
        into.named(&json!({"type": "message_start", "message": message}));
    }

    fn part(&mut self, _: usize, part: Part, _: Vec<TokenLogprob>, into: &mut Writer) {
        let kind = match part {
            Part::Text(_) => "text",
            Part::Thought(_) => "thinking",
            Part::Call(_) => "tool_use",
        };
        self.close(Some(kind), into);
        let is_new = self.open.is_none();
        match &part {
            Part::Text(text) => {
                if is_new {
                    self.begin(kind, &text_block(""), into);
                }
                self.delta(&json!({"type": "text_delta", "text": text}), into);
            }
            Part::Thought(text) => {
                if is_new {
                    self.begin(kind, &thought_block(""), into);
                }
                if !self.hides_thoughts {
                    self.delta(&json!({"type": "thinking_delta", "thinking": text}), into);
                }
            }
            Part::Call(call) => {
                let block = self.call(self.n_blocks, call, json!({}));
                self.begin(kind, &block, into);
                let text = arguments_text(call);
                self.delta(
                    &json!({"type": "input_json_delta", "partial_json": text}),
                    into,
                );
                self.close(None, into);
            }
        }
    }

    fn end(&mut self, _: usize, end: &End, _: Vec<TokenLogprob>, into: &mut Writer) {
        if self.n_blocks == 0 {
            self.begin("text", &text_block(""), into);
        }
        self.close(None, into);
        let (delta, usage) = (self.end_json(end), usage_json(&end.usage));
        into.named(&json!({"type": "message_delta", "delta": delta, "usage": usage}));
        into.named(&json!({"type": "message_stop"}));
    }

    fn failure(&mut self, error: &ApiError, into: &mut Writer) {
        into.named(&Dialect::Anthropic.error(error));
    }
}

/// In this API, `input_tokens` are those that no cache held.
fn usage_json(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.answer_tokens,
    })
}
