//! The choices of an answer of OpenAI's API: several answers to one prompt, or to several, in one
//! body. Each choice is a request of its own to the scheduler.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::Response;
use hyper::body::Frame;
use thane_engine::generate::GenerateError;
use thane_engine::sample::TokenLogprob;
use thane_engine::schedule::{Event, Usage};
use thane_runtime::chat::{AnswerParser, Part};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::error::{ApiError, error_chain, json_response, stopped};
use crate::shape::{Shape, finish_reason};
use crate::stream::{data, event_stream};

/// One choice, from its first event on.
pub(crate) struct Choice {
    events: UnboundedReceiver<Event>,
    parser: AnswerParser,
    /// The prompt, if it is repeated before the answer.
    echo: Option<String>,
    /// Log probabilities that were not shown yet.
    logprobs: Vec<TokenLogprob>,
    /// Characters of the tokens whose log probabilities were shown.
    offset: usize,
    n_calls: usize,
    /// Whether the choice is the first of its prompt, whose tokens count once.
    is_first: bool,
    end: Option<(&'static str, Usage)>,
}

impl Choice {
    pub fn new(
        events: UnboundedReceiver<Event>,
        parser: AnswerParser,
        echo: Option<String>,
        is_first: bool,
    ) -> Self {
        Self {
            events,
            parser,
            echo,
            logprobs: Vec::new(),
            offset: 0,
            n_calls: 0,
            is_first,
            end: None,
        }
    }

    /// Takes an event; returns the parts of the answer that it brings.
    fn take(&mut self, event: Option<Event>) -> Result<Vec<Part>, ApiError> {
        let mut parts = match event {
            Some(Event::Scored(logprob) | Event::Logprob(logprob)) => {
                self.logprobs.push(logprob);
                return Ok(Vec::new());
            }
            Some(Event::Text(text)) => self.parser.push(&text),
            Some(Event::Done(reason, usage)) => {
                let parts = self.parser.finish();
                let reason = finish_reason(reason, self.parser.has_calls());
                self.end = Some((reason, usage));
                parts
            }
            Some(Event::Failed(error)) => {
                let said = error_chain(error.as_ref());
                return Err(match *error {
                    // The client can send a simpler one.
                    GenerateError::Grammar(_) => ApiError::invalid(said),
                    _ => ApiError::failed(said),
                });
            }
            None => return Err(stopped()),
        };
        if let Some(prompt) = self.echo.take() {
            parts.insert(0, Part::Text(prompt));
        }
        Ok(parts)
    }

    /// Adds the tokens of the choice to the usage of all.
    fn count(&self, usage: &mut Usage) {
        let Some((_, own)) = &self.end else { return };
        usage.answer_tokens += own.answer_tokens;
        if self.is_first {
            usage.prompt_tokens += own.prompt_tokens;
            usage.cached_tokens += own.cached_tokens;
        }
    }
}

fn total(choices: &[Choice]) -> Usage {
    let mut usage = Usage::default();
    choices.iter().for_each(|choice| choice.count(&mut usage));
    usage
}

/// The response with all choices.
pub(crate) async fn respond(
    shape: Shape,
    mut choices: Vec<Choice>,
    is_stream: bool,
) -> Result<Response<Body>, ApiError> {
    if is_stream {
        let first = (0..choices.len()).filter_map(|index| shape.first_chunk(index));
        return Ok(event_stream(Body::new(ChoiceStream {
            ready: first.map(|chunk| data(&chunk)).collect(),
            shape,
            choices,
            is_over: false,
        })));
    }
    let mut shown = Vec::with_capacity(choices.len());
    for (index, choice) in choices.iter_mut().enumerate() {
        let mut parts = Vec::new();
        let reason = loop {
            let event = choice.events.recv().await;
            parts.extend(choice.take(event)?);
            if let Some((reason, _)) = choice.end {
                break reason;
            }
        };
        shown.push(shape.choice(index, &parts, &choice.logprobs, reason));
    }
    Ok(json_response(&shape.whole(shown, &total(&choices))))
}

/// The body of a streamed answer. It polls the events itself, so a connection that is dropped drops
/// the receivers, which cancels the requests.
struct ChoiceStream {
    shape: Shape,
    choices: Vec<Choice>,
    /// Complete frames that were not sent yet.
    ready: VecDeque<Bytes>,
    is_over: bool,
}

impl ChoiceStream {
    fn note(&mut self, index: usize, event: Option<Event>) {
        let choice = &mut self.choices[index];
        let parts = match choice.take(event) {
            Ok(parts) => parts,
            Err(error) => {
                self.is_over = true;
                return self.ready.push_back(data(&error.body()));
            }
        };
        let logprobs = |choice: &mut Choice| {
            let (shown, offset) = self.shape.logprobs(&choice.logprobs, choice.offset);
            choice.offset = offset;
            choice.logprobs.clear();
            shown
        };
        for part in parts {
            let shown = logprobs(choice);
            let chunk = self.shape.part_chunk(index, &part, choice.n_calls, shown);
            self.ready.push_back(data(&chunk));
            choice.n_calls += usize::from(matches!(part, Part::Call(_)));
        }
        if let Some((reason, _)) = choice.end {
            let shown = logprobs(choice);
            let chunk = self.shape.last_chunk(index, shown, reason);
            self.ready.push_back(data(&chunk));
        }
        if self.choices.iter().all(|choice| choice.end.is_some()) {
            let usage = self.shape.usage_chunk(&total(&self.choices));
            self.ready.extend(usage.iter().map(data));
            let done = Bytes::from_static(b"data: [DONE]\n\n");
            self.ready.push_back(done);
            self.is_over = true;
        }
    }
}

impl hyper::body::Body for ChoiceStream {
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
            let mut is_ready = false;
            for index in 0..self.choices.len() {
                if self.is_over || self.choices[index].end.is_some() {
                    continue;
                }
                let choice = &mut self.choices[index];
                if let Poll::Ready(event) = choice.events.poll_recv(context) {
                    is_ready = true;
                    self.note(index, event);
                }
            }
            if !is_ready {
                return Poll::Pending;
            }
        }
    }
}
