//! A stream that fails when the other end takes what is written too slowly. Without it, clients
//! that never read their answers, or a few bytes now and then, would hold connections and answers
//! forever.
//!
//! Linux says that a socket can be written to only after a third of its send buffer has drained,
//! and the buffer grows to some megabytes: at the rate that clients must keep, that is minutes. So
//! [`bound_unsent`] bounds what waits there to be sent, but not what is on its way.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// Bytes that a client must take each second while the server waits for it.
const LEAST_RATE: f64 = 16_384.0;

/// Bytes of an answer that wait in the system to be sent; half of them is gone before more is
/// taken, within a few seconds at [`LEAST_RATE`].
#[cfg(target_os = "linux")]
const UNSENT_BYTES: u32 = 128 << 10;

/// Lets the system take more of an answer as soon as the client has taken a little.
pub(crate) fn bound_unsent(_stream: &TcpStream) {
    // Without it, clients that are slow may be taken for those that have stopped.
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(_stream).set_tcp_notsent_lowat(UNSENT_BYTES);
}

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
    use std::io::{Read, Write};

    use super::*;

    /// A client that takes its answer steadily is seen to do so, long before its time is over.
    #[cfg(target_os = "linux")]
    #[test]
    fn more_is_taken_once_the_client_has_taken_a_little() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        {
            let _entered = runtime.enter();
            let copy = stream.try_clone().unwrap();
            bound_unsent(&TcpStream::from_std(copy).unwrap());
        }
        let piece = [b'x'; 16 << 10];
        let is_full = |written: io::Result<usize>| match written {
            Ok(_) => false,
            Err(e) => e.kind() == io::ErrorKind::WouldBlock,
        };
        // The buffers of both ends find their sizes in the first rounds.
        for round in 0..20 {
            while !is_full(stream.write(&piece)) {}
            let mut n_taken = 0;
            let mut into = [0; 4 << 10];
            while is_full(stream.write(&piece)) {
                n_taken += client.read(&mut into).unwrap();
            }
            let most = (MOST.as_secs_f64() * LEAST_RATE) as usize;
            assert!(n_taken < most, "round {round}: {n_taken} bytes");
        }
    }

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
