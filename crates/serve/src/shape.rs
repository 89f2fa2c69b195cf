//! The JSON of answers: `chat.completion`, `text_completion` and the chunks of both.

use axum::body::Bytes;
use serde_json::{Value, json};
use thane_engine::generate::FinishReason;
use thane_engine::schedule::Usage;

use crate::error::ApiError;
use crate::stream::{Render, data};

/// Which API an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// What all objects of an answer have in common.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub api: Api,
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    /// Whether a stream ends with a chunk that has the usage.
    pub include_usage: bool,
}

impl Render for Shape {
    fn whole(&mut self, text: &str, reason: FinishReason, usage: &Usage) -> Value {
        let reason = finish_reason(reason);
        let (object, choice) = match self.api {
            Api::Chat => (
                "chat.completion",
                json!({
                    "index": 0,
                    "message": {"role": "assistant", "content": text, "refusal": null},
                    "logprobs": null,
                    "finish_reason": reason,
                }),
            ),
            Api::Text => (
                "text_completion",
                json!({"index": 0, "text": text, "logprobs": null, "finish_reason": reason}),
            ),
        };
        let mut whole = self.object(object, json!([choice]));
        whole["usage"] = usage_json(usage);
        whole
    }

    fn first(&mut self) -> Vec<Bytes> {
        let role = self.chunk(json!({"role": "assistant", "content": ""}), "", Value::Null);
        let is_chat = self.api == Api::Chat;
        is_chat.then(|| data(&role)).into_iter().collect()
    }

    fn piece(&mut self, text: &str) -> Bytes {
        data(&self.chunk(json!({"content": text}), text, Value::Null))
    }

    fn last(&mut self, reason: FinishReason, usage: &Usage) -> Vec<Bytes> {
        let reason = finish_reason(reason).into();
        let mut frames = vec![data(&self.chunk(json!({}), "", reason))];
        if self.include_usage {
            let mut chunk = self.object(self.chunk_name(), json!([]));
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
    fn chunk(&self, delta: Value, text: &str, reason: Value) -> Value {
        let choice = match self.api {
            Api::Chat => {
                json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason})
            }
            Api::Text => {
                json!({"index": 0, "text": text, "logprobs": null, "finish_reason": reason})
            }
        };
        let mut chunk = self.object(self.chunk_name(), json!([choice]));
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

    fn object(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}

/// The API has no reason of its own for a full context.
fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
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
