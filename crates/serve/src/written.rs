//! The text of answers. It counts as memory while it is written and until it is sent: an answer may
//! be ten thousand times as long as its request, and a client may read it slowly.

use std::convert::Infallible;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, Response};
use hyper::body::{Frame, SizeHint};
use serde::Serialize;
use serde_json::Value;
use thane_mil::budget::{Budget, OverBudget, Reservation};

use crate::apart::note_freed;
use crate::error::{Answered, ApiError, json_body};
use crate::log::current_budget;

/// Most bytes of a piece. A text in pieces is not moved when it grows.
const PIECE_BYTES: usize = 64 << 10;
/// Bytes for which a piece first has room.
const FIRST_BYTES: usize = 512;

/// Writes a text whose memory counts against a budget. After a failure it writes nothing more.
pub(crate) struct Writer {
    budget: Budget,
    /// Whether nobody reads what is written.
    is_idle: bool,
    pieces: Vec<Bytes>,
    /// The piece that is being written.
    last: Vec<u8>,
    held: Option<Reservation>,
    failure: Option<ApiError>,
}

/// A text that was written. It counts until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pieces: Vec<Bytes>,
    held: Option<Reservation>,
}

impl Writer {
    pub fn new(budget: Budget) -> Self {
        Self {
            budget,
            is_idle: false,
            pieces: Vec::new(),
            last: Vec::new(),
            held: None,
            failure: None,
        }
    }

    /// A writer that writes nothing.
    pub fn idle(budget: Budget) -> Self {
        Self {
            is_idle: true,
            ..Self::new(budget)
        }
    }

    /// What the texts of this writer count against.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    pub fn json(&mut self, value: &impl Serialize) {
        if self.is_idle || self.failure.is_some() {
            return;
        }
        if let Err(error) = serde_json::to_writer(&mut *self, value) {
            let failed = || ApiError::failed(error.to_string());
            self.failure.get_or_insert_with(failed);
        }
    }

    /// Adds a frame of JSON between two texts.
    pub fn frame(&mut self, before: &str, value: &impl Serialize, after: &str) {
        if self.is_idle {
            return;
        }
        // A failure is noted where it happens.
        let _ = self.write_all(before.as_bytes());
        self.json(value);
        let _ = self.write_all(after.as_bytes());
        self.end_piece();
    }

    /// Adds a frame that is written already.
    pub fn text(&mut self, frame: &str) {
        // A failure is noted where it happens.
        let _ = self.write_all(frame.as_bytes());
        self.end_piece();
    }

    /// Adds a server-sent event without a name.
    pub fn data(&mut self, value: &impl Serialize) {
        self.frame("data: ", value, "\n\n");
    }

    /// Adds a server-sent event with a name, which is also the field `type` of its data.
    pub fn named(&mut self, event: &Value) {
        let name = event["type"].as_str().unwrap_or_default();
        self.event(name, event);
    }

    /// Adds a server-sent event with this name.
    pub fn event(&mut self, name: &str, value: &impl Serialize) {
        self.frame(&format!("event: {name}\ndata: "), value, "\n\n");
    }

    /// What was written so far, or why it could not be. The writer begins anew.
    pub fn take(&mut self) -> Result<Written, ApiError> {
        self.end_piece();
        let pieces = std::mem::take(&mut self.pieces);
        let held = self.held.take();
        let written = Written { pieces, held };
        self.failure.take().map_or(Ok(written), Err)
    }

    fn end_piece(&mut self) {
        if !self.last.is_empty() {
            let piece = std::mem::take(&mut self.last);
            self.pieces.push(piece.into());
        }
    }

    /// Makes room for at least one byte of `n` more.
    fn make_room(&mut self, n: usize) -> Result<(), OverBudget> {
        let mut n_had = self.last.capacity();
        if self.last.len() < n_had {
            return Ok(());
        }
        let mut n_due = (2 * n_had).max(n).clamp(FIRST_BYTES, PIECE_BYTES);
        if n_had >= PIECE_BYTES {
            self.end_piece();
            // Long texts go on.
            (n_had, n_due) = (0, PIECE_BYTES);
        }
        let more = n_due - n_had;
        let what = || "an answer".to_owned();
        match &mut self.held {
            Some(held) => held.grow(more, what)?,
            none => *none = Some(self.budget.reserve(more, what)?),
        }
        self.last.reserve_exact(n_due - self.last.len());
        Ok(())
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failure.is_some() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if let Err(mut error) = self.make_room(bytes.len()) {
            // What there is of the answer is a part of what it needs.
            let n_held = self.held.as_ref().map_or(0, Reservation::bytes);
            error.needed_bytes += n_held;
            error.used_bytes = error.used_bytes.saturating_sub(n_held);
            self.failure = Some(error.into());
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let n = bytes.len().min(self.last.capacity() - self.last.len());
        self.last.extend_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Written {
    pub fn n_bytes(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    /// A body that counts as memory until it is sent.
    pub fn body(self: Arc<Self>) -> Body {
        let n_left = self.n_bytes() as u64;
        Body::new(Sending {
            written: self,
            next: 0,
            n_left,
        })
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let n_bytes = self.held.as_ref().map_or(0, Reservation::bytes);
        self.pieces.clear();
        note_freed(n_bytes);
    }
}

/// An answer of JSON that counts as memory until it is sent.
pub(crate) fn json_answer(body: &impl Serialize) -> Answered {
    let mut writer = Writer::new(current_budget());
    writer.json(body);
    Ok(written_answer(writer.take()?))
}

/// The same, which says in a header how many inputs were cut, if any.
pub(crate) fn json_of_cut(body: &impl Serialize, n_cut: usize) -> Answered {
    let mut response = json_answer(body)?;
    if n_cut > 0 {
        let name = HeaderName::from_static("x-truncated-inputs");
        response
            .headers_mut()
            .insert(name, HeaderValue::from(n_cut));
    }
    Ok(response)
}

/// An answer of JSON that was written before.
pub(crate) fn written_answer(written: impl Into<Arc<Written>>) -> Response<Body> {
    json_body(written.into().body())
}

/// The body of a text.
struct Sending {
    written: Arc<Written>,
    /// The piece that comes next.
    next: usize,
    n_left: u64,
}

impl hyper::body::Body for Sending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(piece) = self.written.pieces.get(self.next).cloned() else {
            return Poll::Ready(None);
        };
        self.next += 1;
        self.n_left -= piece.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.n_left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.n_left)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use hyper::body::Body as _;
    use serde_json::json;

    use super::*;

    fn text(written: &Written) -> String {
        let pieces = written.pieces().iter();
        String::from_utf8(pieces.flat_map(|piece| piece.to_vec()).collect()).unwrap()
    }

    #[test]
    fn texts_count_until_they_are_dropped() {
        let budget = Budget::new(1 << 20);
        let mut writer = Writer::new(budget.clone());
        let list = vec!["a text"; 20_000];
        writer.json(&list);
        let written = writer.take().unwrap();
        assert_eq!(text(&written), json!(list).to_string());
        assert!(written.pieces().len() > 2);
        let (held, n_bytes) = (budget.used_bytes(), written.n_bytes());
        assert!((n_bytes..n_bytes + PIECE_BYTES).contains(&held), "{held}");
        let body = Arc::new(written).body();
        assert_eq!(body.size_hint().exact(), Some(n_bytes as u64));
        assert_eq!(budget.used_bytes(), held);
        drop(body);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn a_text_without_room_is_refused_and_counts_no_more() {
        let budget = Budget::new(1 << 20);
        let mut writer = Writer::new(budget.clone());
        let mut other = budget.reserve(0, String::new).unwrap();
        for status in [
            StatusCode::PAYLOAD_TOO_LARGE,
            StatusCode::SERVICE_UNAVAILABLE,
        ] {
            writer.data(&"x".repeat(1 << 20));
            writer.data(&"nothing comes behind a failure");
            assert_eq!(writer.take().unwrap_err().status, status);
            assert_eq!(budget.used_bytes(), other.bytes());
            other.grow(1 << 19, String::new).unwrap();
        }
        drop(other);
        writer.named(&json!({"type": "end"}));
        let found = text(&writer.take().unwrap());
        assert_eq!(found, "event: end\ndata: {\"type\":\"end\"}\n\n");
        let mut idle = Writer::idle(budget);
        idle.data(&1);
        assert_eq!(idle.take().unwrap().n_bytes(), 0);
    }
}
