//! A stream that fails when the other end takes what is written too slowly. Without it, clients
//! that never read their answers, or a few bytes now and then, would hold connections and answers
//! forever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Bytes that a client must take each second while the server waits for it.
const LEAST_RATE: f64 = 16_384.0;

/// A stream whose writes may wait for a time in all, to which each byte that is taken adds.
pub(crate) struct Patient<S> {
    stream: S,
    left: Left,
    /// Since when a write waits, and what ends the wait.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

/// How long writes may still wait.
struct Left {
    most: Duration,
    left: Duration,
}

impl Left {
    /// Notes that `n` bytes were taken after a wait.
    fn note(&mut self, waited: Duration, n: usize) {
        let earned = Duration::from_secs_f64(n as f64 / LEAST_RATE);
        let left = self.left.saturating_sub(waited).saturating_add(earned);
        self.left = left.min(self.most);
    }
}

impl<S> Patient<S> {
    pub fn new(stream: S, time: Duration) -> Self {
        let (most, left) = (time, time);
        Self {
            stream,
            left: Left { most, left },
            waiting: None,
        }
    }

    /// The result of a write that takes `n_taken` bytes, or an error if writes have waited for too
    /// long.
    fn within<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
        n_taken: impl Fn(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(written) = written {
            let n = written.as_ref().map_or(0, n_taken);
            let waited = self.waiting.take().map(|(since, _)| since.elapsed());
            self.left.note(waited.unwrap_or_default(), n);
            return Poll::Ready(written);
        }
        let left = self.left.left;
        let waiting = self.waiting.get_or_insert_with(|| {
            let end = Box::pin(sleep(left));
            (Instant::now(), end)
        });
        let elapsed = waiting.1.as_mut().poll(context);
        elapsed.map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.within(context, written, |n| *n)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.within(context, written, |n| *n)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.within(context, flushed, |()| 0)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(context);
        self.within(context, ended, |()| 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_secs(30);

    /// Waits until a client that takes `n` bytes after each wait has lost its connection.
    fn n_waits(wait: Duration, n: usize) -> Option<usize> {
        let mut left = Left {
            most: MOST,
            left: MOST,
        };
        (1..1000).find(|_| {
            let is_over = left.left <= wait;
            left.note(wait, n);
            is_over
        })
    }

    #[test]
    fn a_client_must_take_its_answer_at_a_rate() {
        let seconds = Duration::from_secs;
        for (wait, n, expected) in [
            (seconds(30), 0, Some(1)),
            (seconds(1), 0, Some(30)),
            // Two kB each second.
            (seconds(4), 8192, Some(9)),
            (seconds(1), 1, Some(31)),
            (seconds(1), 16_384, None),
            (seconds(20), 400_000, None),
        ] {
            assert_eq!(n_waits(wait, n), expected, "{wait:?} {n}");
        }
    }
}
