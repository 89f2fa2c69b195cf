//! The JSON of OpenAI's answers: `chat.completion`, `text_completion` and the chunks of both.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use thane_engine::generate::FinishReason;
use thane_engine::sample::TokenLogprob;
use thane_engine::schedule::Usage;
use thane_runtime::PromptEncoder;
use thane_runtime::chat::{Part, ToolCall};

/// Which API an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// What all objects of an answer have in common.
#[derive(Clone)]
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
}

impl Shape {
    /// The whole answer.
    pub fn whole(&self, choices: Vec<Value>, usage: &Usage) -> Value {
        let object = match self.api {
            Api::Chat => "chat.completion",
            Api::Text => "text_completion",
        };
        let mut whole = self.object(object, choices);
        whole["usage"] = usage_json(usage);
        whole
    }

    /// A choice of the whole answer.
    pub fn choice(
        &self,
        index: usize,
        parts: &[Part],
        logprobs: &[TokenLogprob],
        reason: &str,
    ) -> Value {
        let logprobs = self.logprobs(logprobs, 0).0;
        let text: String = parts.iter().filter_map(text_of).collect();
        match self.api {
            Api::Chat => json!({
                "index": index,
                "message": self.message(index, parts, text),
                "logprobs": logprobs,
                "finish_reason": reason,
            }),
            Api::Text => json!({
                "index": index, "text": text, "logprobs": logprobs, "finish_reason": reason,
            }),
        }
    }

    fn message(&self, index: usize, parts: &[Part], text: String) -> Value {
        let thoughts: String = parts.iter().filter_map(thought_of).collect();
        let calls = parts.iter().filter_map(call_of).enumerate();
        let calls: Vec<Value> = calls.map(|(n, c)| self.call(index, n, c)).collect();
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
        // Arguments are text that the client parses.
        let arguments = Value::Object(call.arguments.clone()).to_string();
        json!({
            "id": format!("call-{}-{index}-{n}", self.id),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        })
    }

    /// The chunk before the first piece of a chat, which has the role.
    pub fn first_chunk(&self, index: usize) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": ""});
        (self.api == Api::Chat).then(|| self.chunk(index, delta, "", Value::Null, Value::Null))
    }

    /// A part of a choice. `n_calls` calls came before it.
    pub fn part_chunk(&self, index: usize, part: &Part, n_calls: usize, logprobs: Value) -> Value {
        let delta = match part {
            Part::Text(text) => json!({"content": text}),
            Part::Thought(text) => json!({"reasoning_content": text}),
            Part::Call(call) => {
                let mut call = self.call(index, n_calls, call);
                call["index"] = n_calls.into();
                json!({"tool_calls": [call]})
            }
        };
        let text = text_of(part).unwrap_or_default();
        self.chunk(index, delta, text, logprobs, Value::Null)
    }

    /// The chunk that says why a choice ended.
    pub fn last_chunk(&self, index: usize, logprobs: Value, reason: &str) -> Value {
        self.chunk(index, json!({}), "", logprobs, reason.into())
    }

    /// The chunk after the last one, if the client asked for it.
    pub fn usage_chunk(&self, usage: &Usage) -> Option<Value> {
        self.include_usage.then(|| {
            let mut chunk = self.object(self.chunk_name(), Vec::new());
            chunk["usage"] = usage_json(usage);
            chunk
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

    /// Log probabilities as the API shows them; null if they are not wanted or there are none. The
    /// text of the first token begins at `offset`; also where the next one would.
    pub fn logprobs(&self, tokens: &[TokenLogprob], offset: usize) -> (Value, usize) {
        if !self.shows_logprobs || tokens.is_empty() {
            return (Value::Null, offset);
        }
        match self.api {
            Api::Chat => {
                let content: Vec<Value> = tokens.iter().map(|token| self.token(token)).collect();
                (json!({"content": content, "refusal": null}), offset)
            }
            Api::Text => self.text_logprobs(tokens, offset),
        }
    }

    fn token(&self, token: &TokenLogprob) -> Value {
        let one = |id: u32, logprob: Option<f32>| {
            let bytes = self.prompts.tokenizer().token_bytes(id);
            json!({"token": self.text(id), "logprob": number(logprob), "bytes": bytes})
        };
        let top = token
            .top
            .iter()
            .map(|(id, logprob)| one(*id, Some(*logprob)));
        let mut shown = one(token.token, token.logprob);
        shown["top_logprobs"] = top.collect::<Vec<Value>>().into();
        shown
    }

    fn text_logprobs(&self, tokens: &[TokenLogprob], offset: usize) -> (Value, usize) {
        let (mut texts, mut numbers, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
        let mut at = offset;
        for token in tokens {
            let text = self.text(token.token);
            offsets.push(at);
            at += text.chars().count();
            texts.push(text);
            numbers.push(number(token.logprob));
            let top = token.top.iter();
            let top: Map<String, Value> = top
                .map(|(id, logprob)| (self.text(*id), number(Some(*logprob))))
                .collect();
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
        (shown, at)
    }

    /// The text of a token.
    fn text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.prompts.tokenizer().token_bytes(id)).into_owned()
    }
}

/// JSON has no infinity; the API has this number for it.
fn number(logprob: Option<f32>) -> Value {
    logprob.map_or(Value::Null, |x| json!(x.max(-9999.0)))
}

fn text_of(part: &Part) -> Option<&str> {
    match part {
        Part::Text(text) => Some(text),
        _ => None,
    }
}

fn thought_of(part: &Part) -> Option<&str> {
    match part {
        Part::Thought(text) => Some(text),
        _ => None,
    }
}

fn call_of(part: &Part) -> Option<&ToolCall> {
    match part {
        Part::Call(call) => Some(call),
        _ => None,
    }
}

/// Why an answer ended. The API has no reason of its own for a full context.
pub(crate) fn finish_reason(reason: FinishReason, has_calls: bool) -> &'static str {
    match reason {
        FinishReason::Stop | FinishReason::Interrupted if has_calls => "tool_calls",
        FinishReason::Stop | FinishReason::Interrupted => "stop",
        FinishReason::Length | FinishReason::Context => "length",
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
