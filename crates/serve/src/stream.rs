//! Answers as the body of a response, in one piece or as a stream of frames. Each API says what the
//! frames are ([`Render`]). Several answers can share a body; each is a request of its own to the
//! scheduler ([`Choice`]).
//!
//! The body polls the events of the scheduler itself, so a connection that is dropped drops the
//! receivers, which cancels the requests.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use hyper::body::Frame;
use serde_json::Value;
use thane_engine::generate::{FinishReason, GenerateError};
use thane_engine::sample::TokenLogprob;
use thane_engine::schedule::{Event, Usage};
use thane_runtime::chat::{AnswerParser, Part};

use crate::answers::Waiting;
use crate::error::{ApiError, json_response, of_cause, stopped};

/// The answers of one API.
pub(crate) trait Render: Send + Unpin + 'static {
    /// The media type of a stream.
    const STREAM_TYPE: &'static str = "text/event-stream";

    /// The answers in one piece, and the tokens of all.
    fn whole(&mut self, answers: Vec<Answer>, usage: &Usage) -> Value;

    /// The frames of a stream before the first part.
    fn first(&mut self) -> Vec<Bytes> {
        Vec::new()
    }

    /// The frames of a part of an answer, with the tokens since the part before.
    fn part(&mut self, index: usize, part: Part, tokens: &[TokenLogprob]) -> Vec<Bytes>;

    /// The frames of the end of an answer, with the tokens since the last part.
    fn end(&mut self, index: usize, end: &End, tokens: &[TokenLogprob]) -> Vec<Bytes>;

    /// The frames after the end of all answers.
    fn last(&mut self, _usage: &Usage) -> Vec<Bytes> {
        Vec::new()
    }

    /// The frame of an error that ends a stream.
    fn failure(&mut self, error: &ApiError) -> Bytes;
}

/// An answer that is complete.
pub(crate) struct Answer {
    /// The parts, with the tokens of each where their log probabilities are asked for. Texts and
    /// thoughts in a row are one part.
    pub parts: Vec<(Part, Vec<TokenLogprob>)>,
    /// The tokens after the last part.
    pub rest: Vec<TokenLogprob>,
    pub end: End,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub reason: FinishReason,
    /// Whether the answer calls a tool.
    pub has_calls: bool,
    pub usage: Usage,
    /// When the first token was computed; what was before was for the prompt.
    pub first_token: Option<Instant>,
}

impl End {
    /// Whether the answer ended by itself and not at a limit.
    pub fn is_complete(&self) -> bool {
        match self.reason {
            FinishReason::Stop | FinishReason::Interrupted => true,
            FinishReason::Length | FinishReason::Context | FinishReason::Deadline => false,
        }
    }
}

impl Answer {
    /// The text for the user.
    pub fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|(part, _)| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Thought(_) | Part::Call(_) => None,
        });
        texts.collect()
    }

    /// All tokens.
    pub fn tokens(&self) -> Vec<TokenLogprob> {
        let of_parts = self.parts.iter().flat_map(|(_, tokens)| tokens);
        of_parts.chain(&self.rest).cloned().collect()
    }
}

/// Adds a part; a text or thought continues the one before.
fn push_part(
    parts: &mut Vec<(Part, Vec<TokenLogprob>)>,
    part: Part,
    mut tokens: Vec<TokenLogprob>,
) {
    if let Some((last, before)) = parts.last_mut() {
        match (last, &part) {
            (Part::Text(text), Part::Text(more)) | (Part::Thought(text), Part::Thought(more)) => {
                text.push_str(more);
                return before.append(&mut tokens);
            }
            _ => {}
        }
    }
    parts.push((part, tokens));
}

/// An answer, from its first event on.
pub(crate) struct Choice {
    waiting: Waiting,
    parser: AnswerParser,
    /// The prompt, if it is repeated before the answer.
    echo: Option<String>,
    /// Whether tokens that only mark where a part begins or ends are left out.
    drops_markup: bool,
    /// Calls that may still come; later ones are left out.
    n_calls_left: usize,
    /// Whether the choice is the first of its prompt, whose tokens count once.
    is_first: bool,
    /// Tokens that were not shown yet.
    tokens: Vec<TokenLogprob>,
    end: Option<End>,
}

impl Choice {
    /// An answer that has at most `max_calls` calls of tools.
    pub fn new(waiting: Waiting, parser: AnswerParser, max_calls: usize) -> Self {
        Self {
            waiting,
            parser,
            echo: None,
            drops_markup: false,
            n_calls_left: max_calls,
            is_first: true,
            tokens: Vec::new(),
            end: None,
        }
    }

    /// The choice of a prompt that is repeated before the answer with `echo`, and whose tokens
    /// count with the first of its choices.
    pub fn of_prompt(self, echo: Option<String>, is_first: bool) -> Self {
        Self {
            echo,
            is_first,
            ..self
        }
    }

    /// The choice without the tokens that only mark where a part begins or ends.
    pub fn without_markup(self) -> Self {
        Self {
            drops_markup: true,
            ..self
        }
    }

    /// Takes an event; returns the parts of the answer that it brings.
    fn take(&mut self, event: Option<Event>) -> Result<Vec<Part>, ApiError> {
        let mut parts = match event {
            Some(Event::Scored(token) | Event::Logprob(token)) => {
                self.tokens.push(token);
                return Ok(Vec::new());
            }
            Some(Event::Text(text)) => {
                let parts = self.parser.push(&text);
                if self.drops_markup && parts.is_empty() && !self.parser.is_holding() {
                    self.tokens.clear();
                }
                parts
            }
            Some(Event::Done(reason, usage, _)) => {
                let mut end = End {
                    reason,
                    has_calls: false,
                    usage,
                    first_token: self.waiting.first_token.get().copied(),
                };
                let parts = match end.is_complete() && usage.stop_idx.is_none() {
                    true => self.parser.finish(),
                    false => self.parser.finish_cut(),
                };
                end.has_calls = self.parser.has_calls();
                self.end = Some(end);
                parts
            }
            Some(Event::Failed(error)) => {
                return Err(of_cause(error.as_ref(), |said| match *error {
                    // The client can send a simpler one.
                    GenerateError::Grammar(_) => ApiError::invalid(said),
                    _ => ApiError::failed(said),
                }));
            }
            None => return Err(stopped()),
        };
        if let Some(prompt) = self.echo.take() {
            parts.insert(0, Part::Text(prompt));
        }
        parts.retain(|part| {
            let is_call = matches!(part, Part::Call(_));
            let is_due = !is_call || self.n_calls_left > 0;
            self.n_calls_left -= usize::from(is_call && is_due);
            is_due
        });
        Ok(parts)
    }

    /// The whole answer.
    async fn collect(&mut self) -> Result<Answer, ApiError> {
        let mut parts = Vec::new();
        loop {
            let event = self.waiting.events.recv().await;
            for part in self.take(event)? {
                push_part(&mut parts, part, std::mem::take(&mut self.tokens));
            }
            if let Some(end) = self.end {
                let rest = std::mem::take(&mut self.tokens);
                return Ok(Answer { parts, rest, end });
            }
        }
    }

    /// Adds the tokens of the choice to the usage of all.
    fn count(&self, usage: &mut Usage) {
        let Some(End { usage: own, .. }) = &self.end else {
            return;
        };
        usage.answer_tokens += own.answer_tokens;
        if self.is_first {
            usage.prompt_tokens += own.prompt_tokens;
            usage.cached_tokens += own.cached_tokens;
        }
    }
}

/// The response with all answers.
pub(crate) async fn respond(
    mut render: impl Render,
    choices: Vec<Choice>,
    is_stream: bool,
) -> Result<Response<Body>, ApiError> {
    if is_stream {
        return Ok(stream(render, choices));
    }
    let mut answers = Vec::with_capacity(choices.len());
    let mut usage = Usage::default();
    for mut choice in choices {
        answers.push(choice.collect().await?);
        choice.count(&mut usage);
    }
    Ok(json_response(&render.whole(answers, &usage)))
}

/// The body of streamed answers.
struct EventStream<R> {
    render: R,
    choices: Vec<Choice>,
    /// Complete frames that were not sent yet.
    ready: VecDeque<Bytes>,
    is_over: bool,
}

fn stream<R: Render>(mut render: R, choices: Vec<Choice>) -> Response<Body> {
    let body = EventStream {
        ready: render.first().into(),
        render,
        choices,
        is_over: false,
    };
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static(R::STREAM_TYPE);
    headers.insert(header::CONTENT_TYPE, kind);
    let no_cache = HeaderValue::from_static("no-cache");
    headers.insert(header::CACHE_CONTROL, no_cache);
    response
}

/// A server-sent event without a name.
pub(crate) fn data(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}

/// A server-sent event with a name, which is also the field `type` of its data.
pub(crate) fn named(event: &Value) -> Bytes {
    let name = event["type"].as_str().unwrap_or_default();
    Bytes::from(format!("event: {name}\ndata: {event}\n\n"))
}

impl<R: Render> EventStream<R> {
    fn note(&mut self, index: usize, event: Option<Event>) {
        let choice = &mut self.choices[index];
        let parts = match choice.take(event) {
            Ok(parts) => parts,
            Err(error) => {
                self.is_over = true;
                return self.ready.push_back(self.render.failure(&error));
            }
        };
        for part in parts {
            let tokens = std::mem::take(&mut choice.tokens);
            self.ready.extend(self.render.part(index, part, &tokens));
        }
        let Some(end) = choice.end else { return };
        let tokens = std::mem::take(&mut choice.tokens);
        self.ready.extend(self.render.end(index, &end, &tokens));
        if self.choices.iter().all(|choice| choice.end.is_some()) {
            let mut usage = Usage::default();
            let choices = self.choices.iter();
            choices.for_each(|choice| choice.count(&mut usage));
            self.ready.extend(self.render.last(&usage));
            self.is_over = true;
        }
    }

    /// Takes the events that have come; whether there were any.
    fn poll_events(&mut self, context: &mut Context<'_>) -> bool {
        let mut has_any = false;
        for index in 0..self.choices.len() {
            let choice = &mut self.choices[index];
            if self.is_over || choice.end.is_some() {
                continue;
            }
            if let Poll::Ready(event) = choice.waiting.events.poll_recv(context) {
                has_any = true;
                self.note(index, event);
            }
        }
        has_any
    }
}

impl<R: Render> hyper::body::Body for EventStream<R> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            if !self.poll_events(context) {
                return Poll::Pending;
            }
        }
    }
}
