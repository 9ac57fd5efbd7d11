//! A connection that is closed so that the other side still gets to read what was said last.
//!
//! A request may be answered before its body was read (401, 413, 429). Closed at once, the system would answer what the client
//! still sends with a reset, and a reset takes away what the client has not read yet: it would see a broken connection in place
//! of the error. So we say that we are done, and throw away what comes until the client is, too, or has had its time (what
//! nginx calls `lingering_close`).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// See [`Lingering::most`].
const MOST: Duration = Duration::from_secs(10);
/// See [`Lingering::idle`].
const IDLE: Duration = Duration::from_secs(2);
/// Bytes thrown away at once.
const PIECE: usize = 16 << 10;
/// Pieces thrown away before others have their turn.
const AT_ONCE: usize = 16;

/// A connection, and its end.
#[derive(Debug)]
pub(super) struct Lingering<S> {
    stream: S,
    /// Longest that the client may go on sending.
    most: Duration,
    /// Longest that it may send nothing and not close.
    idle: Duration,
    ending: Option<Ending>,
}

#[derive(Debug)]
struct Ending {
    latest: Instant,
    timer: Pin<Box<Sleep>>,
}

impl<S> Lingering<S> {
    pub(super) const fn new(stream: S) -> Self {
        Self { stream, most: MOST, idle: IDLE, ending: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lingering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Lingering<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.ending.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
        }
        let now = Instant::now();
        let (latest, idle) = (now + this.most, now + this.idle);
        let ending = this.ending.get_or_insert_with(|| Ending { latest, timer: Box::pin(sleep_until(idle)) });
        let mut came = false;
        for _ in 0..AT_ONCE {
            let mut space = [0; PIECE];
            let mut buffer = ReadBuf::new(&mut space);
            match Pin::new(&mut this.stream).poll_read(context, &mut buffer) {
                // It is done, or gone.
                Poll::Ready(Ok(())) if buffer.filled().is_empty() => return Poll::Ready(Ok(())),
                Poll::Ready(Err(_)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => came = true,
                Poll::Pending => {
                    if came {
                        ending.timer.as_mut().reset(idle.min(ending.latest));
                    }
                    return ending.timer.as_mut().poll(context).map(Ok);
                }
            }
        }
        if now >= ending.latest {
            return Poll::Ready(Ok(()));
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn it_closes_when_the_other_side_does() {
        let (ours, mut theirs) = duplex(64);
        let hour = Duration::from_secs(3600);
        let mut ours = Lingering { most: hour, idle: hour, ..Lingering::new(ours) };
        let client = async {
            theirs.write_all(&[7; 1_000_000]).await.expect("taken");
            let mut said = String::new();
            theirs.read_to_string(&mut said).await.expect("the answer");
            theirs.shutdown().await.expect("closes");
            said
        };
        let server = async {
            ours.write_all(b"no").await.expect("written");
            ours.shutdown().await.expect("closes");
        };
        assert_eq!(tokio::join!(client, server).0, "no");
    }

    #[tokio::test]
    async fn who_neither_sends_nor_closes_is_not_waited_for_for_ever() {
        let (ours, _theirs) = duplex(64);
        let mut ours = Lingering { idle: Duration::from_millis(20), ..Lingering::new(ours) };
        ours.shutdown().await.expect("closes");
    }

    #[tokio::test]
    async fn who_sends_for_ever_is_not_read_for_ever() {
        let (ours, mut theirs) = duplex(64);
        let mut ours = Lingering { most: Duration::from_millis(100), ..Lingering::new(ours) };
        let endless = async { while theirs.write_all(&[7; 64]).await.is_ok() {} };
        let closing = async move {
            ours.shutdown().await.expect("closes");
            drop(ours);
        };
        tokio::join!(endless, closing);
    }
}
