//! Splits an answer that arrives in pieces into text, thoughts and calls.

use thane_models::chat::{CallBody, CallSyntax, GENERIC_CALLS};

use super::calls::{ToolCall, parse_calls};
use super::{ChatSyntax, Tool};

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text for the user.
    Text(String),
    /// What the model thinks before it answers.
    Thought(String),
    /// A call of a tool.
    Call(ToolCall),
}

/// Finds the parts of an answer. Text is passed on as soon as no later text can make it a part of
/// something else.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    syntax: ChatSyntax,
    tools: Vec<Tool>,
    state: State,
    /// What was not passed on yet.
    held: String,
    /// Whether any text was passed on.
    has_text: bool,
    has_thoughts: bool,
    has_calls: bool,
    /// Whether a grammar holds the answer to calls, or to a text of some form.
    has_form: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first text, where thoughts can begin, and an answer that is a call.
    Start,
    Thought,
    Text,
    Call,
    /// The whole answer may be a call.
    WholeCall,
}

impl AnswerParser {
    /// A parser at the start of an answer to `prompt`, which may have begun the thoughts.
    pub fn new(syntax: ChatSyntax, tools: Vec<Tool>, prompt: &str) -> Self {
        let thoughts = syntax.thoughts;
        let thinks = thoughts.is_some_and(|s| prompt.trim_end().ends_with(s.begin));
        let calls = syntax.calls.filter(|_| !tools.is_empty());
        Self {
            syntax: ChatSyntax { calls, thoughts },
            tools,
            state: if thinks { State::Thought } else { State::Start },
            held: String::new(),
            has_text: false,
            has_thoughts: false,
            has_calls: false,
            has_form: false,
        }
    }

    /// A parser of an answer that is calls alone, or a text of some form: a text that does not
    /// begin as calls do has none, whatever its strings spell.
    #[must_use]
    pub fn of_form(self) -> Self {
        Self {
            has_form: true,
            ..self
        }
    }

    /// A parser of an answer whose first text is in the prompt.
    #[must_use]
    pub fn within_text(self) -> Self {
        Self {
            state: State::Text,
            has_text: true,
            ..self
        }
    }

    /// Whether the text that comes next is a thought.
    pub fn is_thinking(&self) -> bool {
        self.state == State::Thought
    }

    /// Whether some text is held, because what comes next decides what it is.
    pub fn is_holding(&self) -> bool {
        !self.held.is_empty()
    }

    /// Takes the next piece of the answer.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while self.advance(&mut parts) {}
        parts
    }

    /// The last parts of an answer that was cut. A call that was begun is no text, and none that
    /// the client could make, so it is left out.
    pub fn finish_cut(&mut self) -> Vec<Part> {
        let held = self.held.trim_start();
        let is_begun = self.syntax.calls.is_some_and(|calls| match self.state {
            State::Thought => false,
            State::Call => self.parsed(held).is_none(),
            State::WholeCall => {
                let is_marked = !calls.marker.is_empty() && held.starts_with(calls.marker);
                self.whole_calls(held).is_none() && (is_marked || is_start_of_call(held))
            }
            State::Start | State::Text => {
                // One character may as well be text.
                let is_likely = held.len() > 1 || !self.has_text;
                is_likely && !held.is_empty() && calls.begin.starts_with(held)
            }
        });
        if is_begun {
            self.held.clear();
            self.state = State::Text;
        }
        self.finish()
    }

    /// The last parts.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        while let Some(at) = self.hidden_end() {
            self.end_call(at, &mut parts);
            while self.advance(&mut parts) {}
        }
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Thought => self.thought(&held, &mut parts),
            State::Call => self.calls(&held, "", &mut parts),
            State::WholeCall => match self.whole_calls(&held) {
                Some(calls) => parts.extend(calls.into_iter().map(Part::Call)),
                None => self.text(&held, &mut parts),
            },
            State::Start | State::Text => {
                // Space around calls is none of the text.
                let is_space = self.has_calls && held.trim().is_empty();
                self.text(if is_space { "" } else { &held }, &mut parts);
            }
        }
        self.has_calls |= parts.iter().any(|part| matches!(part, Part::Call(_)));
        parts
    }

    /// Whether the answer had calls so far.
    pub fn has_calls(&self) -> bool {
        self.has_calls
    }

    /// Takes what can be taken of the held text; false if more is needed.
    fn advance(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.state {
            State::Start => self.start(),
            State::Thought => {
                let end = self.syntax.thoughts.map_or("", |s| s.end);
                let (before, is_whole) = take_until(&mut self.held, end, false);
                self.thought(&before, parts);
                if is_whole {
                    self.state = State::Text;
                    return true;
                }
                false
            }
            State::Text => self.next_text(parts),
            State::Call => {
                let Some(syntax) = self.syntax.calls else {
                    return false;
                };
                let Some(at) = end_of_call(&self.held, &syntax) else {
                    return false;
                };
                self.end_call(at, parts);
                true
            }
            State::WholeCall => false,
        }
    }

    /// Takes a call whose end is there.
    fn end_call(&mut self, at: usize, parts: &mut Vec<Part>) {
        let end = self.syntax.calls.map_or("", |syntax| syntax.end);
        let rest = self.held.split_off(at + end.len());
        let body = std::mem::replace(&mut self.held, rest);
        self.state = State::Text;
        self.calls(&body[..at], end, parts);
    }

    /// The end of a call that was taken for a part of a value, which never ended.
    fn hidden_end(&self) -> Option<usize> {
        let syntax = self.syntax.calls.filter(|_| self.state == State::Call)?;
        let at = self.held.find(syntax.end)?;
        self.parsed(&self.held).is_none().then_some(at)
    }

    fn start(&mut self) -> bool {
        let text = self.held.trim_start();
        if let Some(calls) = self.syntax.calls.filter(|_| self.has_form) {
            let is_call = text.starts_with(calls.begin);
            if !is_call && calls.begin.starts_with(text) {
                return false;
            }
            self.syntax.calls = Some(calls).filter(|_| is_call);
            self.state = State::Text;
            return true;
        }
        if let Some(thoughts) = self.syntax.thoughts {
            if let Some(rest) = text.strip_prefix(thoughts.begin) {
                self.held = rest.to_owned();
                self.state = State::Thought;
                return true;
            }
            if thoughts.begin.starts_with(text) {
                return false;
            }
        }
        if let Some(calls) = self.syntax.calls.filter(may_be_whole) {
            let is_marked = !calls.marker.is_empty() && text.starts_with(calls.marker);
            if text.starts_with('{') || is_marked {
                self.state = State::WholeCall;
                return true;
            }
            if calls.marker.starts_with(text) {
                return false;
            }
        }
        self.state = State::Text;
        true
    }

    fn next_text(&mut self, parts: &mut Vec<Part>) -> bool {
        let begin = self.syntax.calls.map_or("", |s| s.begin);
        let keeps_space = !begin.is_empty() || (self.syntax.thoughts.is_some() && !self.has_text);
        let (before, has_begun) = take_until(&mut self.held, begin, keeps_space);
        if has_begun {
            self.text(before.trim_end(), parts);
            self.state = State::Call;
            return true;
        }
        self.text(&before, parts);
        false
    }

    /// Adds a thought, without line breaks before the first.
    fn thought(&mut self, text: &str, parts: &mut Vec<Part>) {
        let text = match self.has_thoughts {
            true => text,
            false => text.trim_start_matches('\n'),
        };
        if !text.is_empty() {
            self.has_thoughts = true;
            parts.push(Part::Thought(text.to_owned()));
        }
    }

    /// Adds text, without line breaks before the first.
    fn text(&mut self, text: &str, parts: &mut Vec<Part>) {
        let is_chat = self.syntax != ChatSyntax::default();
        let text = match is_chat && !self.has_text {
            true => text.trim_start_matches('\n'),
            false => text,
        };
        if !text.is_empty() {
            self.has_text = true;
            parts.push(Part::Text(text.to_owned()));
        }
    }

    /// Adds the calls of a body, or the body as text if it has none.
    fn calls(&mut self, body: &str, end: &str, parts: &mut Vec<Part>) {
        match self.parsed(body) {
            Some(calls) => {
                self.has_calls = true;
                parts.extend(calls.into_iter().map(Part::Call));
            }
            None => {
                let begin = self.syntax.calls.map_or("", |s| s.begin);
                self.text(&[begin, body, end].concat(), parts);
            }
        }
    }

    /// The calls of an answer that is nothing else. Models that were asked for marks may leave them
    /// out, so without marks their calls are known by the names of tools.
    fn whole_calls(&self, answer: &str) -> Option<Vec<ToolCall>> {
        let syntax = self.syntax.calls?;
        let answer = answer.trim_start();
        let body = answer.strip_prefix(syntax.marker).unwrap_or(answer);
        let is_known = |call: &ToolCall| self.tools.iter().any(|tool| tool.name == call.name);
        let calls = self.parsed(body)?;
        Some(calls).filter(|calls| syntax.begin.is_empty() || calls.iter().all(is_known))
    }

    fn parsed(&self, body: &str) -> Option<Vec<ToolCall>> {
        let syntax = self.syntax.calls?;
        parse_calls(body, syntax.body, &self.tools)
    }
}

/// Where the mark stands that ends a call: behind the values of arguments, which may spell it too.
fn end_of_call(text: &str, syntax: &CallSyntax) -> Option<usize> {
    text.find(syntax.end)?;
    // What begins and ends a value.
    let json = ("\"", "\"");
    let values = match syntax.body {
        CallBody::Json { .. } => [json, json],
        CallBody::Python => [json, ("'", "'")],
        CallBody::Braces { quote } => [json, (quote, quote)],
        CallBody::Tags => [("<parameter=", "</parameter>"); 2],
    };
    let bytes = text.as_bytes();
    let has = |at: usize, mark: &str| bytes[at..].starts_with(mark.as_bytes());
    let (mut at, mut within) = (0, None);
    while at < bytes.len() {
        at += match within {
            Some(end) if has(at, end) => {
                within = None;
                end.len()
            }
            Some(end) if end.len() == 1 && bytes[at] == b'\\' => 2,
            Some(_) => 1,
            None if has(at, syntax.end) => return Some(at),
            None => match values.iter().find(|(begin, _)| has(at, begin)) {
                Some((begin, end)) => {
                    within = Some(*end);
                    begin.len()
                }
                None => 1,
            },
        };
    }
    None
}

/// Whether an answer may be a call as a whole, with nothing before it.
fn may_be_whole(syntax: &CallSyntax) -> bool {
    syntax.begin.is_empty() || *syntax == GENERIC_CALLS
}

/// Whether a text begins as a call does that is all of an answer, or may.
fn is_start_of_call(text: &str) -> bool {
    const START: &str = "{\"name\"";
    text.starts_with(START) || START.starts_with(text)
}

/// Takes the text before `end`, and the end; or the text that cannot belong to it, and false. Space
/// at the end of such text is left too with `keeps_space`.
fn take_until(held: &mut String, end: &str, keeps_space: bool) -> (String, bool) {
    if let Some(at) = held.find(end).filter(|_| !end.is_empty()) {
        let rest = held.split_off(at + end.len());
        let mut before = std::mem::replace(held, rest);
        before.truncate(at);
        return (before, true);
    }
    let longest = held.len().min(end.len().saturating_sub(1));
    let is_open = |n: &usize| end.is_char_boundary(*n) && held.ends_with(&end[..*n]);
    let n_open = (1..=longest).rev().find(is_open).unwrap_or(0);
    let mut n = held.len() - n_open;
    if keeps_space {
        n = held[..n].trim_end().len();
    }
    let rest = held.split_off(n);
    (std::mem::replace(held, rest), false)
}
