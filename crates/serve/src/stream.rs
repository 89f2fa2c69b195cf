//! An answer as the body of a response, in one piece or as a stream of frames. Each API says what
//! the frames are ([`Render`]).
//!
//! The body polls the events of the scheduler itself, so a connection that is dropped drops the
//! receiver, which cancels the request.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use hyper::body::Frame;
use serde_json::Value;
use thane_engine::generate::FinishReason;
use thane_engine::schedule::{Event, Usage};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::error::{ApiError, error_chain, json_response, stopped};

/// The answers of one API.
pub(crate) trait Render: Send + Unpin + 'static {
    /// The media type of a stream.
    const STREAM_TYPE: &'static str = "text/event-stream";

    /// The answer in one piece.
    fn whole(&mut self, text: &str, reason: FinishReason, usage: &Usage) -> Value;

    /// The frames of a stream before the first piece.
    fn first(&mut self) -> Vec<Bytes>;

    /// The frame of a piece.
    fn piece(&mut self, text: &str) -> Bytes;

    /// The frames after the last piece.
    fn last(&mut self, reason: FinishReason, usage: &Usage) -> Vec<Bytes>;

    /// The frame of an error that ends a stream.
    fn failure(&mut self, error: &ApiError) -> Bytes;
}

/// The response with the answer.
pub(crate) async fn respond(
    mut render: impl Render,
    events: UnboundedReceiver<Event>,
    is_stream: bool,
) -> Result<Response<Body>, ApiError> {
    if is_stream {
        return Ok(stream(render, events));
    }
    let (text, reason, usage) = collect(events).await?;
    Ok(json_response(&render.whole(&text, reason, &usage)))
}

/// The text of an answer, why it ended, and its tokens.
async fn collect(
    mut events: UnboundedReceiver<Event>,
) -> Result<(String, FinishReason, Usage), ApiError> {
    let mut text = String::new();
    loop {
        match events.recv().await {
            Some(Event::Scored(_) | Event::Logprob(_)) => {}
            Some(Event::Text(piece)) => text.push_str(&piece),
            Some(Event::Done(reason, usage)) => return Ok((text, reason, usage)),
            Some(Event::Failed(error)) => {
                return Err(ApiError::failed(error_chain(error.as_ref())));
            }
            None => return Err(stopped()),
        }
    }
}

/// The body of a streamed answer.
struct EventStream<R> {
    render: R,
    events: UnboundedReceiver<Event>,
    /// Complete frames that were not sent yet.
    ready: VecDeque<Bytes>,
    is_over: bool,
}

fn stream<R: Render>(mut render: R, events: UnboundedReceiver<Event>) -> Response<Body> {
    let body = EventStream {
        ready: render.first().into(),
        render,
        events,
        is_over: false,
    };
    let mut response = event_stream(Body::new(body));
    let kind = HeaderValue::from_static(R::STREAM_TYPE);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// The response with a stream of server-sent events.
pub(crate) fn event_stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream");
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
    fn note(&mut self, event: Option<Event>) {
        self.is_over = matches!(event, None | Some(Event::Done(..) | Event::Failed(_)));
        let error = match event {
            // No API beside OpenAI's asks for them.
            Some(Event::Scored(_) | Event::Logprob(_)) => return,
            Some(Event::Text(text)) => return self.ready.push_back(self.render.piece(&text)),
            Some(Event::Done(reason, usage)) => {
                return self.ready.extend(self.render.last(reason, &usage));
            }
            Some(Event::Failed(error)) => ApiError::failed(error_chain(error.as_ref())),
            None => stopped(),
        };
        self.ready.push_back(self.render.failure(&error));
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
            match self.events.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(event) => self.note(event),
            }
        }
    }
}
