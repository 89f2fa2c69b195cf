//! Tells clients that have gone from clients that are done with sending (`nc -N`,
//! `shutdown(SHUT_WR)`).
//!
//! Both end what the server reads, so the end of reading says nothing. hyper goes on with the
//! answer (`half_close`), and [`gone`] finds out whether anybody waits for it. The system of a
//! client that has closed its socket answers data with a reset, on Linux, macOS and Windows. A
//! write of the answer is such data, but the next one may be a minute away: that of an answer that
//! is not streamed, or of one in the queue. An interim answer (status 102) would do, and breaks
//! clients that take the first head for the last; TCP's keep-alive probes are acknowledged for a
//! closed socket for a minute. So [`gone`] sends a byte of urgent data (`MSG_OOB`): it has its
//! place in the stream of TCP, so a closed socket resets the connection, and programs that read the
//! stream do not see it. TLS, which is above, does not either. The byte is a line feed, which many
//! parsers of HTTP skip before a head, for a middlebox that makes ordinary data of urgent data.
//!
//! A proxy that passes on the end of reading and keeps its own socket open (HAProxy, `ssh -L`)
//! looks like a client that is done with sending. A client behind it is gone at the next write.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::sleep;

/// How often a connection is looked at whose client may have gone. Short answers are there before
/// the first look.
const INTERVAL: Duration = Duration::from_millis(100);

/// Returns when the client has closed its socket, or the connection was reset.
pub(crate) async fn gone(stream: &TcpStream) {
    // Also ready while there is a request that nobody has read yet.
    while stream
        .ready(Interest::READABLE)
        .await
        .is_ok_and(|ready| !ready.is_read_closed())
    {
        sleep(INTERVAL).await;
    }
    let mut is_probed = false;
    loop {
        sleep(INTERVAL).await;
        if !matches!(stream.take_error(), Ok(None)) {
            return;
        }
        if is_probed {
            continue;
        }
        match SockRef::from(stream).send_out_of_band(b"\n") {
            Ok(_) => is_probed = true,
            // Much of the answer waits to be sent, so the connection is being probed.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// A connection that is also watched.
pub(crate) struct Watched(pub Arc<TcpStream>);

impl AsyncRead for Watched {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            match self.0.try_read(into.initialize_unfilled()) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(|n| into.advance(n))),
            }
        }
    }
}

impl Watched {
    /// The result of a write, once the system takes some.
    fn poll_with(
        &self,
        context: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match write(&self.0) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(context, |stream| stream.try_write_vectored(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}
