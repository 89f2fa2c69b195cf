//! An answer as server-sent events. The body polls the events of the scheduler itself, so a
//! connection that is dropped drops the receiver, which cancels the request.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use hyper::body::Frame;
use serde_json::Value;
use thane_engine::schedule::Event;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::error::{ApiError, error_chain, stopped};
use crate::shape::Shape;

/// The body of a streamed answer.
struct EventStream {
    shape: Shape,
    events: UnboundedReceiver<Event>,
    /// Complete events that were not sent yet.
    ready: VecDeque<Bytes>,
    is_over: bool,
}

/// Streams an answer.
pub(crate) fn stream(shape: Shape, events: UnboundedReceiver<Event>) -> Response<Body> {
    let first = shape.first_chunk();
    let body = EventStream {
        ready: first.iter().map(data).collect(),
        shape,
        events,
        is_over: false,
    };
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream");
    headers.insert(header::CONTENT_TYPE, kind);
    let no_cache = HeaderValue::from_static("no-cache");
    headers.insert(header::CACHE_CONTROL, no_cache);
    response
}

fn data(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}

impl EventStream {
    fn note(&mut self, event: Option<Event>) {
        self.is_over = matches!(event, None | Some(Event::Done(..) | Event::Failed(_)));
        match event {
            Some(Event::Scored(_) | Event::Logprob(_)) => {}
            Some(Event::Text(text)) => self.ready.push_back(data(&self.shape.piece(&text))),
            Some(Event::Done(reason, usage)) => {
                self.ready.push_back(data(&self.shape.last_chunk(reason)));
                let usage = self.shape.usage_chunk(&usage);
                self.ready.extend(usage.iter().map(data));
                self.ready
                    .push_back(Bytes::from_static(b"data: [DONE]\n\n"));
            }
            Some(Event::Failed(error)) => {
                let error = ApiError::failed(error_chain(error.as_ref()));
                self.ready.push_back(data(&error.body()));
            }
            None => self.ready.push_back(data(&stopped().body())),
        }
    }
}

impl hyper::body::Body for EventStream {
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
