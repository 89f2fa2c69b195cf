//! The JSON of an answer in Ollama's API.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use serde_json::{Value, json};
use thane_engine::sample::TokenLogprob;
use thane_engine::schedule::Usage;
use thane_runtime::chat::Part;
use thane_runtime::{PromptEncoder, rfc3339};

use super::ns;
use crate::dialect::Dialect;
use crate::error::ApiError;
use crate::logprobs::Tokens;
use crate::stream::{Answer, End, Render};
use crate::written::Writer;

/// The JSON of an answer: a line for each piece, and one with the counts.
pub(super) struct Shape {
    pub model: String,
    pub is_chat: bool,
    pub arrived: Instant,
    /// Spells the tokens of log probabilities; `None` if none are shown.
    pub logprobs: Option<Arc<PromptEncoder>>,
}

/// What a line says.
#[derive(Default)]
pub(super) struct Said {
    text: String,
    thoughts: String,
    calls: Vec<Value>,
}

/// A line, or the whole answer.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    object: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Tokens<'a>>,
}

impl Said {
    fn add(&mut self, part: Part) {
        match part {
            Part::Text(text) => self.text.push_str(&text),
            Part::Thought(text) => self.thoughts.push_str(&text),
            Part::Call(call) => self.calls.push(json!({
                "function": {"name": call.name, "arguments": call.arguments},
            })),
        }
    }
}

impl Shape {
    pub fn object(&self, said: &Said, is_done: bool) -> Value {
        let mut object = json!({
            "model": self.model,
            "created_at": rfc3339(SystemTime::now()),
            "done": is_done,
        });
        let (text, thoughts) = (
            &said.text,
            (!said.thoughts.is_empty()).then_some(&said.thoughts),
        );
        if self.is_chat {
            let mut message = json!({"role": "assistant", "content": text});
            if let Some(thoughts) = thoughts {
                message["thinking"] = json!(thoughts);
            }
            if !said.calls.is_empty() {
                message["tool_calls"] = json!(said.calls);
            }
            object["message"] = message;
        } else {
            object["response"] = json!(text);
            if let Some(thoughts) = thoughts {
                object["thinking"] = json!(thoughts);
            }
        }
        object
    }

    fn line<'a>(&'a self, object: Value, lists: Vec<&'a [TokenLogprob]>) -> Line<'a> {
        let is_shown = lists.iter().any(|list| !list.is_empty());
        let prompts = self.logprobs.as_deref().filter(|_| is_shown);
        let logprobs = prompts.map(|prompts| Tokens { lists, prompts });
        Line { object, logprobs }
    }

    fn done(&self, said: &Said, end: &End) -> Value {
        let total = self.arrived.elapsed();
        let prompt = end.first_token.map_or(total, |at| at - self.arrived);
        let mut object = self.object(said, true);
        object["done_reason"] = json!(if end.is_complete() { "stop" } else { "length" });
        object["total_duration"] = ns(total);
        object["load_duration"] = ns(Duration::ZERO);
        object["prompt_eval_count"] = end.usage.prompt_tokens.into();
        object["prompt_eval_duration"] = ns(prompt);
        object["eval_count"] = end.usage.answer_tokens.into();
        object["eval_duration"] = ns(total - prompt);
        object
    }
}

impl Render for Shape {
    const STREAM_TYPE: &'static str = "application/x-ndjson";

    fn whole(&mut self, mut answers: Vec<Answer>, _: &Usage, into: &mut Writer) {
        let Some(answer) = answers.first_mut() else {
            return;
        };
        let mut said = Said::default();
        let parts = std::mem::take(&mut answer.parts).into_iter();
        let (parts, lists): (Vec<Part>, Vec<Vec<TokenLogprob>>) = parts.unzip();
        parts.into_iter().for_each(|part| said.add(part));
        let lists = lists.iter().chain([&answer.rest]).map(Vec::as_slice);
        into.json(&self.line(self.done(&said, &answer.end), lists.collect()));
    }

    fn part(&mut self, _: usize, part: Part, tokens: Vec<TokenLogprob>, into: &mut Writer) {
        let mut said = Said::default();
        said.add(part);
        let line = self.line(self.object(&said, false), vec![&tokens]);
        into.frame("", &line, "\n");
    }

    fn end(&mut self, _: usize, end: &End, tokens: Vec<TokenLogprob>, into: &mut Writer) {
        let line = self.line(self.done(&Said::default(), end), vec![&tokens]);
        into.frame("", &line, "\n");
    }

    fn failure(&mut self, error: &ApiError, into: &mut Writer) {
        into.frame("", &Dialect::Ollama.error(error), "\n");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;
    use thane_mil::budget::Budget;
    use thane_runtime::chat::ToolCall;

    use super::*;

    #[test]
    fn calls_have_arguments_that_are_an_object() {
        let mut shape = Shape {
            model: "m".to_owned(),
            is_chat: true,
            arrived: Instant::now(),
            logprobs: None,
        };
        let arguments = Map::from_iter([("x".to_owned(), json!(1))]);
        let call = Part::Call(ToolCall {
            name: "f".to_owned(),
            arguments,
        });
        let mut writer = Writer::new(Budget::unlimited());
        shape.part(0, call, Vec::new(), &mut writer);
        let written = writer.take().unwrap();
        let line: Value = serde_json::from_slice(&written.pieces()[0]).unwrap();
        let call = json!({"function": {"name": "f", "arguments": {"x": 1}}});
        let message = json!({"role": "assistant", "content": "", "tool_calls": [call]});
        assert_eq!((&line["message"], &line["done"]), (&message, &json!(false)));
    }
}
