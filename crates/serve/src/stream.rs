//! Answers as the body of a response, in one piece or as a stream of frames. Each API says what the
//! frames are ([`Render`]). Several answers can share a body; each is a request of its own to the
//! scheduler ([`Choice`]).
//!
//! A stream is written by a task beside the thread of connections, because frames with log
//! probabilities take long. A connection that is dropped ends the task, which drops the receivers
//! of events, which cancels the requests.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use hyper::body::Frame;
use thane_engine::generate::{FinishReason, GenerateError};
use thane_engine::sample::TokenLogprob;
use thane_engine::schedule::{Event, Usage};
use thane_runtime::chat::{AnswerParser, Part};
use tokio::sync::mpsc;

use crate::answers::{Sent, Waiting};
use crate::apart::note_freed;
use crate::error::{Answered, ApiError, of_cause, stopped};
use crate::log::current_budget;
use crate::threads::lock;
use crate::written::{Writer, Written, written_answer};

/// Texts of a stream that wait to be sent. Those of a slow client are written when it reads.
const MAX_READY: usize = 4;

/// The answers of one API.
pub(crate) trait Render: Send + Unpin + 'static {
    /// The media type of a stream.
    const STREAM_TYPE: &'static str = "text/event-stream";

    /// Writes the answers in one piece, with the tokens of all.
    fn whole(&mut self, answers: Vec<Answer>, usage: &Usage, into: &mut Writer);

    /// Writes the frames of a stream before the first part.
    fn first(&mut self, _into: &mut Writer) {}

    /// Writes the frames of a part of an answer, with the tokens since the part before.
    fn part(&mut self, index: usize, part: Part, tokens: Vec<TokenLogprob>, into: &mut Writer);

    /// Writes the frames of the end of an answer, with the tokens since the last part.
    fn end(&mut self, index: usize, end: &End, tokens: Vec<TokenLogprob>, into: &mut Writer);

    /// Writes the frames after the end of all answers.
    fn last(&mut self, _usage: &Usage, _into: &mut Writer) {}

    /// Writes the frame of an error that ends a stream.
    fn failure(&mut self, error: &ApiError, into: &mut Writer);
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

    /// All tokens, in lists that follow one another.
    pub fn tokens(&self) -> Vec<&[TokenLogprob]> {
        let of_parts = self.parts.iter().map(|(_, tokens)| tokens.as_slice());
        let all = of_parts.chain([self.rest.as_slice()]);
        all.filter(|tokens| !tokens.is_empty()).collect()
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
    pub echo: Option<String>,
    /// Whether tokens that only mark where a part begins or ends are left out.
    pub drops_markup: bool,
    /// Calls that may still come; later ones are left out.
    n_calls_left: usize,
    /// Whether the choice is the first of its prompt, whose tokens count once.
    pub is_first: bool,
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

    /// Takes an event; returns the parts of the answer that it brings.
    fn take(&mut self, event: Option<Sent>) -> Result<Vec<Part>, ApiError> {
        let event = event.transpose()?;
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

    /// Bytes of memory of its events.
    fn held_bytes(&self) -> usize {
        lock(&self.waiting.held).bytes()
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
    mut choices: Vec<Choice>,
    is_stream: bool,
) -> Answered {
    let mut writer = Writer::new(current_budget());
    if is_stream {
        return Ok(stream(render, choices, writer));
    }
    let mut answers = Vec::with_capacity(choices.len());
    let mut usage = Usage::default();
    for choice in &mut choices {
        answers.push(choice.collect().await?);
        choice.count(&mut usage);
    }
    render.whole(answers, &usage, &mut writer);
    note_freed(choices.iter().map(Choice::held_bytes).sum());
    drop(choices);
    Ok(written_answer(writer.take()?))
}

/// Writes streamed answers.
struct EventStream<R> {
    render: R,
    choices: Vec<Choice>,
    writer: Writer,
    is_over: bool,
}

fn stream<R: Render>(mut render: R, choices: Vec<Choice>, mut writer: Writer) -> Response<Body> {
    render.first(&mut writer);
    let events = EventStream {
        render,
        choices,
        writer,
        is_over: false,
    };
    let (ready, frames) = mpsc::channel(MAX_READY);
    tokio::spawn(events.run(ready));
    let mut response = Response::new(Body::new(Frames {
        frames,
        current: Vec::new().into_iter(),
        _written: Written::default(),
    }));
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static(R::STREAM_TYPE);
    headers.insert(header::CONTENT_TYPE, kind);
    let no_cache = HeaderValue::from_static("no-cache");
    headers.insert(header::CACHE_CONTROL, no_cache);
    response
}

impl<R: Render> EventStream<R> {
    /// Writes until all answers have ended, or the client has gone.
    async fn run(mut self, ready: mpsc::Sender<Written>) {
        loop {
            let written = self.written();
            if written.n_bytes() > 0 && ready.send(written).await.is_err() {
                return;
            }
            if self.is_over {
                return;
            }
            let events = poll_fn(|context| match self.poll_events(context) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            });
            tokio::select! {
                () = events => {}
                () = ready.closed() => return,
            }
        }
    }

    /// What was written since it was asked last. Where it is an error, the stream is over.
    fn written(&mut self) -> Written {
        self.writer.take().unwrap_or_else(|error| {
            self.is_over = true;
            self.render.failure(&error, &mut self.writer);
            self.writer.take().unwrap_or_default()
        })
    }

    fn note(&mut self, index: usize, event: Option<Sent>) {
        let choice = &mut self.choices[index];
        let parts = match choice.take(event) {
            Ok(parts) => parts,
            Err(error) => {
                self.is_over = true;
                return self.render.failure(&error, &mut self.writer);
            }
        };
        for part in parts {
            let tokens = std::mem::take(&mut choice.tokens);
            self.render.part(index, part, tokens, &mut self.writer);
        }
        let Some(end) = choice.end else { return };
        let tokens = std::mem::take(&mut choice.tokens);
        self.render.end(index, &end, tokens, &mut self.writer);
        if self.choices.iter().all(|choice| choice.end.is_some()) {
            let mut usage = Usage::default();
            let choices = self.choices.iter();
            choices.for_each(|choice| choice.count(&mut usage));
            self.render.last(&usage, &mut self.writer);
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

/// The body of a stream.
struct Frames {
    frames: mpsc::Receiver<Written>,
    /// What is left of a text that is being sent.
    current: std::vec::IntoIter<Bytes>,
    /// That text, which counts as memory.
    _written: Written,
}

impl hyper::body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(piece) = self.current.next() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            match self.frames.poll_recv(context) {
                Poll::Ready(Some(written)) => {
                    self.current = written.pieces().to_vec().into_iter();
                    self._written = written;
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::thread::ThreadId;

    use http_body_util::BodyExt;
    use thane_mil::budget::Budget;
    use thane_runtime::chat::ChatSyntax;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

    use super::*;

    /// Writes each part and notes the thread that does.
    struct Noted(Arc<Mutex<Vec<ThreadId>>>);

    impl Render for Noted {
        fn whole(&mut self, _: Vec<Answer>, _: &Usage, _: &mut Writer) {}

        fn part(&mut self, _: usize, part: Part, _: Vec<TokenLogprob>, into: &mut Writer) {
            let thread = std::thread::current().id();
            self.0.lock().unwrap().push(thread);
            if let Part::Text(text) = part {
                into.data(&text);
            }
        }

        fn end(&mut self, _: usize, _: &End, _: Vec<TokenLogprob>, into: &mut Writer) {
            into.text("end");
        }

        fn failure(&mut self, error: &ApiError, into: &mut Writer) {
            into.text(error.code.unwrap_or("failure"));
        }
    }

    fn choice() -> (UnboundedSender<Sent>, Choice) {
        let (sender, events) = unbounded_channel();
        let held = Budget::unlimited().reserve(0, String::new).unwrap();
        let waiting = Waiting {
            events,
            held: Arc::new(Mutex::new(held)),
            first_token: Arc::default(),
        };
        let parser = AnswerParser::new(ChatSyntax::default(), Vec::new(), "");
        (sender, Choice::new(waiting, parser, 0))
    }

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).build().unwrap()
    }

    #[test]
    fn streams_are_written_beside_the_thread_that_sends_them() {
        let threads = Arc::<Mutex<Vec<ThreadId>>>::default();
        let found = runtime().block_on(async {
            let (sender, choice) = choice();
            let answer = respond(Noted(Arc::clone(&threads)), vec![choice], true);
            for text in ["a", "b"] {
                sender.send(Ok(Event::Text(text.to_owned()))).unwrap();
            }
            let done = Event::Done(FinishReason::Stop, Usage::default(), Vec::new());
            sender.send(Ok(done)).unwrap();
            let body = answer.await.unwrap().into_body();
            body.collect().await.unwrap().to_bytes()
        });
        assert_eq!(&found[..], b"data: \"a\"\n\ndata: \"b\"\n\nend");
        let threads = threads.lock().unwrap();
        assert_eq!(threads.len(), 2);
        assert!(!threads.contains(&std::thread::current().id()));
    }

    #[test]
    fn a_stream_ends_with_its_client_and_with_its_memory() {
        runtime().block_on(async {
            let (sender, first) = choice();
            let answer = respond(Noted(Arc::default()), vec![first], true).await;
            drop(answer.unwrap());
            // The request is cancelled by this.
            sender.closed().await;
            let (sender, second) = choice();
            let answer = respond(Noted(Arc::default()), vec![second], true).await;
            let budget = Budget::new(9);
            let _held = budget.reserve(5, String::new).unwrap();
            let over = budget.reserve(6, String::new).unwrap_err();
            sender.send(Err(over)).unwrap();
            let body = answer.unwrap().into_body();
            let found = body.collect().await.unwrap().to_bytes();
            assert_eq!(&found[..], b"memory_full");
        });
    }
}
