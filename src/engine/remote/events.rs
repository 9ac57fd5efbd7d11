//! Server-sent events out of bytes, with bounds: on silence and on the size of an event.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use eventsource_stream::{EventStream, EventStreamError};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};

/// Longest event in bytes. A chunk with a whole answer in it is far below.
const EVENT_BYTES: usize = 1 << 20;

/// A response's body. It ends with a loss, where it broke off.
pub(super) type Body = BoxStream<'static, Result<Bytes, Lost>>;

/// Why there are no more events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Lost {
    /// The connection broke.
    #[error("the upstream's stream broke off")]
    Closed,
    /// Nobody is there any more.
    #[error("the upstream is cut off")]
    CutOff,
    /// Nothing came for too long.
    #[error("the upstream went silent")]
    Silent,
    /// An event has no end.
    #[error("the upstream sent an event that is too large")]
    TooLarge,
    /// Not an event stream.
    #[error("the upstream sent what is no event stream")]
    NotEvents,
}

/// The data of each event. Ends after the first error.
pub(super) fn events(body: Body, silence: Duration) -> BoxStream<'static, Result<String, Lost>> {
    let unread = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&unread);
    let mut lines = Lines::default();
    let lines = heard(body, silence).flat_map(move |bytes| stream::iter(lines.push(bytes))).map(move |line| {
        let line = line?;
        let size = counted.fetch_add(line.len(), Ordering::Relaxed) + line.len();
        if size > EVENT_BYTES { Err(Lost::TooLarge) } else { Ok(line) }
    });
    let events = EventStream::new(lines.boxed()).map(move |event| match event {
        Ok(event) => {
            unread.store(0, Ordering::Relaxed);
            Ok(event.data)
        }
        Err(EventStreamError::Transport(lost)) => Err(lost),
        Err(EventStreamError::Utf8(_) | EventStreamError::Parser(_)) => Err(Lost::NotEvents),
    });
    let until_error = events.scan(false, |failed, event| {
        let event = (!*failed).then_some(event);
        *failed = matches!(event, Some(Err(_)));
        std::future::ready(event)
    });
    until_error.boxed()
}

/// The body, as long as something comes in time. A comment line counts: the upstream lives.
fn heard(body: Body, silence: Duration) -> impl Stream<Item = Result<Bytes, Lost>> {
    stream::unfold(body, move |mut body| async move {
        let bytes = match tokio::time::timeout(silence, body.next()).await {
            Ok(bytes) => bytes?,
            Err(_) => Err(Lost::Silent),
        };
        Some((bytes, body))
    })
}

/// Cuts bytes into whole lines. The parser would look at all of an unfinished line again for each piece of it, and move
/// all that is behind a line for each line: fed line by line its work stays linear, whatever an upstream sends.
#[derive(Debug, Default)]
struct Lines {
    unfinished: Vec<u8>,
}

impl Lines {
    fn push(&mut self, bytes: Result<Bytes, Lost>) -> Vec<Result<Bytes, Lost>> {
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(lost) => return vec![Err(lost)],
        };
        let mut lines = Vec::new();
        for part in bytes.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
            self.unfinished.extend_from_slice(part);
            if part.ends_with(b"\n") || part.ends_with(b"\r") {
                lines.push(Ok(std::mem::take(&mut self.unfinished).into()));
            }
        }
        if self.unfinished.len() > EVENT_BYTES {
            lines.push(Err(Lost::TooLarge));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(chunks: Vec<Result<Bytes, Lost>>) -> Vec<Result<String, Lost>> {
        events(stream::iter(chunks).boxed(), Duration::from_secs(60)).collect().await
    }

    #[tokio::test]
    async fn events_are_the_same_however_their_bytes_are_cut() {
        let text = ": hello\n\ndata: {\"a\": \"ä€\"}\r\n\r\ndata: two\ndata: lines\n\nevent: x\n\ndata: [DONE]\n\n";
        let expected: Vec<_> = ["{\"a\": \"ä€\"}", "two\nlines", "[DONE]"].map(|data| Ok(data.to_owned())).into();
        for size in [1, 2, 3, 7, 1000] {
            let chunks = text.as_bytes().chunks(size).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
            assert_eq!(read(chunks).await, expected, "{size}");
        }
    }

    #[tokio::test]
    async fn an_event_without_end_is_given_up() {
        let chunks = std::iter::once(Ok(Bytes::from_static(b"data: ")))
            .chain((0..3000).map(|_| Ok(Bytes::from(vec![b'x'; 1000]))))
            .collect();
        assert_eq!(read(chunks).await, [Err(Lost::TooLarge)]);
    }

    #[tokio::test]
    async fn many_events_may_together_be_larger_than_one() {
        let event = format!("data: {}\n\n", "x".repeat(EVENT_BYTES / 2));
        let chunks = (0..4).map(|_| Ok(Bytes::from(event.clone()))).collect();
        assert!(read(chunks).await.iter().all(Result::is_ok));
    }

    #[tokio::test]
    async fn a_broken_connection_and_bytes_that_are_no_text_end_it() {
        let data = || Ok(Bytes::from_static(b"data: a\n\n"));
        assert_eq!(read(vec![data(), Err(Lost::Closed), data()]).await, [Ok("a".to_owned()), Err(Lost::Closed)]);
        let noise = vec![Ok(Bytes::from_static(b"data: \xff\xfe\n\n")), data()];
        assert_eq!(read(noise).await.first(), Some(&Err(Lost::NotEvents)));
    }

    #[tokio::test]
    async fn silence_ends_it() {
        let body = stream::iter([Ok(Bytes::from_static(b"data: a\n\n"))]).chain(stream::pending());
        let events: Vec<_> = events(body.boxed(), Duration::from_millis(1)).collect().await;
        assert_eq!(events, [Ok("a".to_owned()), Err(Lost::Silent)]);
    }
}
