//! The JSON of a response: a list of items, each of them begun, continued and ended by events.

use std::cell::Cell;
use std::sync::Arc;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Map, Value, json};
use thane_engine::sample::TokenLogprob;
use thane_engine::schedule::Usage;
use thane_engine::text::EncodeOptions;
use thane_mil::budget::Budget;
use thane_runtime::chat::{Part, ToolCall};
use thane_runtime::{Message, PromptEncoder};

use super::super::now_s;
use super::super::tools::call_json;
use super::items;
use crate::error::ApiError;
use crate::kept::{Kept, Responses};
use crate::logprobs::Tokens;
use crate::shape::arguments_text;
use crate::stream::{Answer, End, Render};
use crate::written::Writer;

/// The JSON of a response.
pub(super) struct Shape {
    /// The fields that do not change.
    about: Map<String, Value>,
    /// What the ids of items end with.
    id: String,
    prompts: Arc<PromptEncoder>,
    pub shows_logprobs: bool,
    /// Where the response is kept, and the conversation before the answer, also as items.
    pub kept: Option<(Responses, Vec<Message>, Vec<Value>)>,
    /// Events so far, which are numbered.
    n_events: Cell<u64>,
    /// Items that are complete.
    output: Vec<Item>,
    open: Option<TextItem>,
    /// What the answer adds to the conversation.
    text: String,
    thoughts: String,
    calls: Vec<Value>,
}

/// An item of the output.
enum Item {
    Text(TextItem),
    Call(Value),
}

struct TextItem {
    kind: Kind,
    id: String,
    status: &'static str,
    text: String,
    logprobs: Vec<TokenLogprob>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
}

/// An event with its number.
#[derive(Serialize)]
struct Event<T> {
    #[serde(flatten)]
    event: T,
    r#type: String,
    sequence_number: u64,
}

/// An event about the text of an item.
#[derive(Default, Serialize)]
struct TextEvent<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Tokens<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<Content<'a>>,
    content_index: usize,
    item_id: &'a str,
    output_index: usize,
}

#[derive(Serialize)]
struct ItemEvent<'a> {
    output_index: usize,
    item: ItemShown<'a>,
}

/// An item as it is written.
#[derive(Serialize)]
#[serde(untagged)]
enum ItemShown<'a> {
    Text {
        r#type: &'static str,
        id: &'a str,
        status: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        role: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        summary: Option<[(); 0]>,
        content: Vec<Content<'a>>,
    },
    Call(&'a Value),
}

/// The part of the content that is all of an item; thoughts have no more than a text.
#[derive(Serialize)]
struct Content<'a> {
    r#type: &'static str,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<[(); 0]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Tokens<'a>>,
}

/// A response as it is written: the fields that do not change, those that do, and the output.
struct ResponseShown<'a> {
    about: &'a Map<String, Value>,
    changed: &'a Value,
    output: Vec<ItemShown<'a>>,
}

impl Serialize for ResponseShown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut shown = serializer.serialize_map(None)?;
        let changed = self.changed.as_object().into_iter().flatten();
        for (name, value) in self.about.iter().chain(changed) {
            shown.serialize_entry(name, value)?;
        }
        shown.serialize_entry("output", &self.output)?;
        shown.end()
    }
}

#[derive(Serialize)]
struct ResponseEvent<'a> {
    response: ResponseShown<'a>,
}

impl Shape {
    pub fn new(about: Map<String, Value>, id: String, prompts: Arc<PromptEncoder>) -> Self {
        Self {
            about,
            id,
            prompts,
            shows_logprobs: false,
            kept: None,
            n_events: Cell::new(0),
            output: Vec::new(),
            open: None,
            text: String::new(),
            thoughts: String::new(),
            calls: Vec::new(),
        }
    }

    /// The response with what changes.
    fn response<'a>(&'a self, changed: &'a Value) -> ResponseShown<'a> {
        let output = self.output.iter().map(|item| item.shown(&self.prompts));
        ResponseShown {
            about: &self.about,
            changed,
            output: output.collect(),
        }
    }

    /// The id of the item that comes next.
    fn item_id(&self, prefix: &str) -> String {
        format!("{prefix}_{}{:04x}", self.id, self.output.len())
    }

    fn event(&self, kind: &str, event: impl Serialize, into: &mut Writer) {
        let name = format!("response.{kind}");
        let event = Event {
            event,
            r#type: name.clone(),
            sequence_number: self.n_events.replace(self.n_events.get() + 1),
        };
        into.event(&name, &event);
    }

    fn item_event(&self, kind: &str, item: ItemShown<'_>, into: &mut Writer) {
        let output_index = self.output.len();
        self.event(kind, ItemEvent { output_index, item }, into);
    }

    fn begin(&mut self, kind: Kind, into: &mut Writer) {
        let item = TextItem {
            kind,
            id: self.item_id(kind.prefix()),
            status: "in_progress",
            text: String::new(),
            logprobs: Vec::new(),
        };
        let shown = item.shown(Vec::new());
        self.item_event("output_item.added", shown, into);
        let added = TextEvent {
            part: Some(item.content(&self.prompts)),
            item_id: &item.id,
            output_index: self.output.len(),
            ..TextEvent::default()
        };
        self.event("content_part.added", added, into);
        self.open = Some(item);
    }

    /// Ends the item that is open, unless the next part belongs to it.
    fn close(&mut self, next: Option<Kind>, status: &'static str, into: &mut Writer) {
        let Some(mut item) = self.open.take_if(|item| Some(item.kind) != next) else {
            return;
        };
        item.status = status;
        let prompts = &self.prompts;
        let event = || TextEvent {
            item_id: &item.id,
            output_index: self.output.len(),
            ..TextEvent::default()
        };
        let is_message = item.kind == Kind::Message;
        let done = TextEvent {
            text: Some(&item.text),
            logprobs: is_message.then(|| Tokens::new(&item.logprobs, prompts)),
            ..event()
        };
        self.event(&format!("{}.done", item.kind.text_event()), done, into);
        let done = TextEvent {
            part: Some(item.content(prompts)),
            ..event()
        };
        self.event("content_part.done", done, into);
        let shown = item.shown(vec![item.content(prompts)]);
        self.item_event("output_item.done", shown, into);
        self.output.push(Item::Text(item));
    }

    /// Continues the text of an item, which is begun if it is not open.
    fn text(&mut self, kind: Kind, text: &str, tokens: Vec<TokenLogprob>, into: &mut Writer) {
        self.close(Some(kind), "completed", into);
        if self.open.is_none() {
            self.begin(kind, into);
        }
        let is_message = kind == Kind::Message;
        let mut logprobs = match self.shows_logprobs && is_message {
            true => tokens,
            false => Vec::new(),
        };
        let Some(mut item) = self.open.take() else {
            return;
        };
        let delta = TextEvent {
            delta: Some(text),
            logprobs: is_message.then(|| Tokens::new(&logprobs, &self.prompts)),
            item_id: &item.id,
            output_index: self.output.len(),
            ..TextEvent::default()
        };
        self.event(&format!("{}.delta", kind.text_event()), delta, into);
        item.text.push_str(text);
        item.logprobs.append(&mut logprobs);
        self.open = Some(item);
    }

    /// An item that is a call of a function.
    fn call(&mut self, call: &ToolCall, into: &mut Writer) {
        self.close(None, "completed", into);
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
        let begun = item("in_progress", "");
        self.item_event("output_item.added", ItemShown::Call(&begun), into);
        let (kind, index) = ("function_call_arguments", self.output.len());
        let delta = json!({"delta": arguments, "item_id": id, "output_index": index});
        self.event(&format!("{kind}.delta"), delta, into);
        let done = json!({"arguments": arguments, "name": call.name, "item_id": id,
            "output_index": index});
        self.event(&format!("{kind}.done"), done, into);
        let item = item("completed", &arguments);
        self.item_event("output_item.done", ItemShown::Call(&item), into);
        self.output.push(Item::Call(item));
    }

    /// Ends the answer, and keeps the response. Returns what changes of it.
    fn finish(&mut self, end: &End, into: &mut Writer) -> Value {
        if self.open.is_none() && self.output.is_empty() {
            self.begin(Kind::Message, into);
        }
        let status = status(end);
        self.close(None, status, into);
        let changed = json!({
            "status": status,
            "usage": self.usage_json(&end.usage),
            "incomplete_details": match status {
                "incomplete" => json!({"reason": "max_output_tokens"}),
                _ => Value::Null,
            },
            "completed_at": now_s(),
        });
        if let Some((responses, messages, input)) = self.kept.take() {
            self.keep(&responses, (messages, input), &changed, into.budget());
        }
        changed
    }

    /// Keeps the response, if there is memory for it.
    fn keep(
        &mut self,
        responses: &Responses,
        (mut messages, input): (Vec<Message>, Vec<Value>),
        changed: &Value,
        budget: &Budget,
    ) {
        let mut writer = Writer::new(budget.clone());
        writer.json(&self.response(changed));
        let Ok(response) = writer.take() else { return };
        let calls = std::mem::take(&mut self.calls);
        messages.push(items::answer(&self.text, &self.thoughts, calls));
        let id = self.about.get("id").and_then(Value::as_str);
        let outputs = self.output.iter().map(|item| item.plain(&self.prompts));
        responses.keep(Kept {
            id: id.unwrap_or_default().to_owned(),
            messages,
            input,
            output: outputs.collect(),
            response: Arc::new(response),
        });
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
    fn shown<'a>(&'a self, prompts: &'a PromptEncoder) -> ItemShown<'a> {
        match self {
            Self::Text(item) => item.shown(vec![item.content(prompts)]),
            Self::Call(call) => ItemShown::Call(call),
        }
    }

    /// The item without log probabilities, for requests that refer to it.
    fn plain(&self, prompts: &PromptEncoder) -> Value {
        match self {
            Self::Call(call) => call.clone(),
            Self::Text(item) => {
                let none = Tokens::new(&[], prompts);
                json!(item.shown(vec![item.content_with(none)]))
            }
        }
    }
}

impl TextItem {
    fn content<'a>(&'a self, prompts: &'a PromptEncoder) -> Content<'a> {
        self.content_with(Tokens::new(&self.logprobs, prompts))
    }

    fn content_with<'a>(&'a self, logprobs: Tokens<'a>) -> Content<'a> {
        let is_message = self.kind == Kind::Message;
        Content {
            r#type: self.kind.text_event(),
            text: &self.text,
            annotations: is_message.then_some([]),
            logprobs: is_message.then_some(logprobs),
        }
    }

    fn shown<'a>(&'a self, content: Vec<Content<'a>>) -> ItemShown<'a> {
        let is_message = self.kind == Kind::Message;
        ItemShown::Text {
            r#type: if is_message { "message" } else { "reasoning" },
            id: &self.id,
            status: self.status,
            role: is_message.then_some("assistant"),
            summary: (!is_message).then_some([]),
            content,
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

    /// The type of its content, and what events of its text begin with.
    fn text_event(self) -> &'static str {
        match self {
            Self::Message => "output_text",
            Self::Reasoning => "reasoning_text",
        }
    }
}

impl Render for Shape {
    fn whole(&mut self, answers: Vec<Answer>, _: &Usage, into: &mut Writer) {
        let Some(answer) = answers.into_iter().next() else {
            return;
        };
        let mut events = Writer::idle(into.budget().clone());
        for (part, tokens) in answer.parts {
            self.part(0, part, tokens, &mut events);
        }
        let changed = self.finish(&answer.end, &mut events);
        into.json(&self.response(&changed));
    }

    fn first(&mut self, into: &mut Writer) {
        let changed = json!({"status": "in_progress", "usage": null, "incomplete_details": null});
        for kind in ["created", "in_progress"] {
            let response = self.response(&changed);
            self.event(kind, ResponseEvent { response }, into);
        }
    }

    fn part(&mut self, _: usize, part: Part, tokens: Vec<TokenLogprob>, into: &mut Writer) {
        match part {
            Part::Text(text) => {
                self.text.push_str(&text);
                self.text(Kind::Message, &text, tokens, into);
            }
            Part::Thought(text) => {
                self.thoughts.push_str(&text);
                self.text(Kind::Reasoning, &text, tokens, into);
            }
            Part::Call(call) => self.call(&call, into),
        }
    }

    fn end(&mut self, _: usize, end: &End, _: Vec<TokenLogprob>, into: &mut Writer) {
        let changed = self.finish(end, into);
        let response = self.response(&changed);
        self.event(status(end), ResponseEvent { response }, into);
    }

    fn failure(&mut self, error: &ApiError, into: &mut Writer) {
        into.named(&json!({
            "type": "error",
            "sequence_number": self.n_events.get(),
            "code": error.kind(),
            "message": error.message,
            "param": null,
        }));
    }
}

fn status(end: &End) -> &'static str {
    match end.is_complete() {
        true => "completed",
        false => "incomplete",
    }
}
