//! A connection that is closed so that the other side still gets to read what was said last.
//!
//! A request may be answered before its body was read (401, 413, 429). Closed at once, the system would answer what the client
//! still sends with a reset, and a reset takes away what the client has not read yet: it would see a broken connection in place
//! of the error. So we say that we are done, and throw away what comes until the client is, too, or has had its time (what
//! nginx calls `lingering_close`). Where all bodies were read to their end, there is nothing to wait for.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::HttpBody;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// See [`Lingering::most`].
const MOST: Duration = Duration::from_secs(30);
/// See [`Lingering::idle`].
const IDLE: Duration = Duration::from_secs(2);
/// Bytes thrown away at once.
const PIECE: usize = 16 << 10;
/// Pieces thrown away before others have their turn.
const AT_ONCE: usize = 16;

/// Whether a body of a connection was left unread. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Unread(Arc<AtomicBool>);

impl Unread {
    /// The body, watched.
    pub(super) const fn watch<B: HttpBody + Unpin>(self, body: B) -> Watched<B> {
        Watched { body, over: false, unread: self }
    }
}

/// A body that tells when it is dropped before its end.
#[derive(Debug)]
pub(super) struct Watched<B: HttpBody + Unpin> {
    body: B,
    over: bool,
    unread: Unread,
}

impl<B: HttpBody<Data = Bytes> + Unpin> HttpBody for Watched<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.over |= frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: HttpBody + Unpin> Drop for Watched<B> {
    fn drop(&mut self) {
        if !self.over && !self.body.is_end_stream() {
            self.unread.0.store(true, Ordering::Relaxed);
        }
    }
}

/// A connection, and its end.
#[derive(Debug)]
pub(super) struct Lingering<S> {
    stream: S,
    unread: Unread,
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
    pub(super) const fn new(stream: S, unread: Unread) -> Self {
        Self { stream, unread, most: MOST, idle: IDLE, ending: None }
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
            if !this.unread.0.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
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
    use axum::body::Body;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::timeout;

    use super::*;

    /// What takes longer hangs.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn unread() -> Unread {
        let unread = Unread::default();
        drop(unread.clone().watch(Body::from("left")));
        unread
    }

    #[tokio::test]
    async fn a_body_is_unread_until_its_end() {
        let unread = Unread::default();
        let read = axum::body::to_bytes(Body::new(unread.clone().watch(Body::from("all"))), 9).await.expect("reads");
        assert_eq!(read, "all");
        drop(unread.clone().watch(Body::empty()));
        assert!(!unread.0.load(Ordering::Relaxed));
        assert!(self::unread().0.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn it_closes_when_the_other_side_does() {
        let (ours, mut theirs) = duplex(64);
        let mut ours = Lingering { most: PATIENCE, idle: PATIENCE, ..Lingering::new(ours, unread()) };
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
        let both = timeout(PATIENCE / 2, async { tokio::join!(client, server).0 });
        assert_eq!(both.await.expect("in time"), "no");
    }

    #[tokio::test]
    async fn nobody_is_waited_for_whose_bodies_were_read() {
        let (ours, _theirs) = duplex(64);
        let mut ours = Lingering { idle: PATIENCE, ..Lingering::new(ours, Unread::default()) };
        timeout(PATIENCE / 2, ours.shutdown()).await.expect("at once").expect("closes");
    }

    #[tokio::test]
    async fn who_neither_sends_nor_closes_is_not_waited_for_for_ever() {
        let (ours, _theirs) = duplex(64);
        let mut ours = Lingering { idle: Duration::from_millis(20), ..Lingering::new(ours, unread()) };
        timeout(PATIENCE, ours.shutdown()).await.expect("in time").expect("closes");
    }

    #[tokio::test]
    async fn who_sends_for_ever_is_not_read_for_ever() {
        let (ours, mut theirs) = duplex(64);
        let mut ours = Lingering { most: Duration::from_millis(100), ..Lingering::new(ours, unread()) };
        let endless = async { while theirs.write_all(&[7; 64]).await.is_ok() {} };
        let closing = async move {
            ours.shutdown().await.expect("closes");
            drop(ours);
        };
        timeout(PATIENCE, async { tokio::join!(endless, closing) }).await.expect("in time");
    }
}
