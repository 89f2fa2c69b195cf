//! A body of lines that come one by one.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// A body of lines that come one by one.
pub(crate) struct Lines(UnboundedReceiver<Bytes>);

impl Lines {
    /// A body, and where its lines come from. It ends when that is dropped.
    pub fn new() -> (UnboundedSender<Bytes>, Self) {
        let (lines, receiver) = unbounded_channel();
        (lines, Self(receiver))
    }
}

impl Body for Lines {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let line = self.0.poll_recv(context);
        line.map(|line| line.map(|line| Ok(Frame::data(line))))
    }
}
