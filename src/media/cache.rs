//! Decoded frames, kept by what they are of and weighed by their bytes. The same request twice at a time is decoded once.
//!
//! This file knows nothing of how frames come about.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::MediaError;
use super::decode::Decoded;
use super::plan::Target;
use crate::types::FrameSize;

/// What was decoded: the content, the frames, the size.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Identity of the content.
    pub(super) content: Arc<str>,
    /// Which frames.
    pub(super) targets: Vec<Target>,
    /// Scaled to this.
    pub(super) size: FrameSize,
}

/// The cache. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Frames {
    kept: moka::future::Cache<Key, Arc<Decoded>>,
    counts: Arc<Counts>,
}

/// What came of the requests. Both only grow.
#[derive(Debug, Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Frames {
    /// Keeps up to so many bytes of pixels; with 0, nothing.
    pub(super) fn new(bytes: u64) -> Self {
        let kept = moka::future::Cache::builder()
            .max_capacity(bytes)
            .weigher(|key: &Key, decoded: &Arc<Decoded>| weight(key, decoded))
            .build();
        Self { kept, counts: Arc::default() }
    }

    /// What is kept under the key, else what `decode` gives. Several callers at a time share one decoding; when the one
    /// who decodes goes away, another takes over. Failures are not kept.
    ///
    /// # Errors
    /// As `decode`.
    pub(super) async fn get(
        &self,
        key: Key,
        decode: impl Future<Output = Result<Decoded, MediaError>>,
    ) -> Result<Arc<Decoded>, MediaError> {
        let mut ours = false;
        let decode = async {
            ours = true;
            self.counts.misses.fetch_add(1, Ordering::Relaxed);
            decode.await.map(Arc::new)
        };
        let decoded = self.kept.try_get_with(key, decode).await.map_err(|error| MediaError::clone(&error))?;
        if !ours {
            self.counts.hits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(decoded)
    }

    /// Requests served without decoding themselves, decodings begun, and bytes kept (as of the cache's last housekeeping).
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let Counts { hits, misses } = &*self.counts;
        (hits.load(Ordering::Relaxed), misses.load(Ordering::Relaxed), self.kept.weighted_size())
    }
}

fn weight(key: &Key, decoded: &Decoded) -> u32 {
    let pixels: usize = decoded.frames.iter().map(|frame| frame.rgb.len()).sum();
    let rest = size_of_val(key.targets.as_slice()) + size_of_val(decoded.frames.as_slice()) + key.content.len();
    u32::try_from(pixels + rest).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::Notify;

    use super::*;
    use crate::types::{Frame, MediaTime};

    const SIZE: FrameSize = FrameSize { width: 10, height: 10 };

    fn key(time: i64) -> Key {
        Key { content: "content".into(), targets: vec![Target { time, from: time }], size: SIZE }
    }

    fn decoded() -> Decoded {
        let frame = Frame { time: Some(MediaTime::ZERO), size: SIZE, rgb: vec![0; 300].into() };
        Decoded { frames: vec![frame], partial: false }
    }

    #[tokio::test]
    async fn the_same_request_at_the_same_time_is_decoded_once() {
        let (frames, gate, count) = (Frames::new(1 << 20), Notify::new(), AtomicUsize::new(0));
        let get = || {
            frames.get(key(1), async {
                count.fetch_add(1, Ordering::Relaxed);
                gate.notified().await;
                Ok(decoded())
            })
        };
        let opener = async { gate.notify_one() };
        let (first, second, ()) = tokio::join!(get(), get(), opener);
        assert!(Arc::ptr_eq(&first.expect("decodes"), &second.expect("decodes")));
        assert_eq!(count.load(Ordering::Relaxed), 1);
        let (hits, misses, _) = frames.counts();
        assert_eq!((hits, misses), (1, 1));
    }

    #[tokio::test]
    async fn hits_are_counted_when_they_are_served_and_never_taken_back() {
        let frames = Frames::new(1 << 20);
        let counts = || (frames.counts().0, frames.counts().1);
        let mut first = Box::pin(frames.get(key(1), std::future::pending()));
        let mut second = Box::pin(frames.get(key(1), async { Ok(decoded()) }));
        assert!(futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending());
        assert_eq!(counts(), (0, 1), "the second one waits and has nothing yet");
        drop(first);
        second.await.expect("takes over and decodes");
        assert_eq!(counts(), (0, 2));
        frames.get(key(1), std::future::pending()).await.expect("is kept");
        assert_eq!(counts(), (1, 2));
    }

    #[tokio::test]
    async fn failures_are_not_kept() {
        let frames = Frames::new(1 << 20);
        let failure = frames.get(key(1), async { Err(MediaError::Timeout("decoding")) }).await;
        assert!(matches!(failure, Err(MediaError::Timeout(_))));
        assert!(frames.get(key(1), async { Ok(decoded()) }).await.is_ok());
    }

    #[tokio::test]
    async fn no_more_bytes_are_kept_than_allowed() {
        let frames = Frames::new(2000);
        for time in 0..50 {
            frames.get(key(time), async { Ok(decoded()) }).await.expect("decodes");
        }
        frames.kept.run_pending_tasks().await;
        assert!(frames.kept.weighted_size() <= 2000);
        assert!(frames.kept.entry_count() >= 1);
    }
}
