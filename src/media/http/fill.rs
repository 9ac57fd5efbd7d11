//! Answers as they come in: a body held to its promise, the blocks it fills, and whether to ask again.
//!
//! This file sends nothing and knows nothing of headers and servers.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use reqwest::Response;

use super::{BLOCK_BYTES, broke_off};
use crate::media::MediaError;

/// Answers in a row that may bring no block.
const MAX_TRIES: u32 = 3;
/// Wait before the second try; the third waits twice as long.
const PAUSE: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_millis(250) };

/// Why an answer brought nothing.
pub(super) enum Failure {
    /// The next try may do better.
    Again(MediaError),
    /// It won't.
    Final(MediaError),
}

impl From<MediaError> for Failure {
    fn from(error: MediaError) -> Self {
        Self::Final(error)
    }
}

/// The body of an answer. What comes is added to `fetched`.
pub(super) fn body(response: Response, fetched: &Arc<AtomicU64>) -> BoxStream<'static, reqwest::Result<Bytes>> {
    let fetched = Arc::clone(fetched);
    let count = move |chunk: &Bytes| {
        fetched.fetch_add(chunk.len() as u64, Ordering::Relaxed);
    };
    response.bytes_stream().inspect_ok(count).boxed()
}

/// The body of an answer: as many bytes as were promised.
pub(super) struct Part {
    body: BoxStream<'static, reqwest::Result<Bytes>>,
    left: u64,
}

impl Part {
    /// A body that shall be so long. What comes is added to `fetched`.
    pub(super) fn new(response: Response, left: u64, fetched: &Arc<AtomicU64>) -> Self {
        Self { body: body(response, fetched), left }
    }

    /// The next bytes; `None` when all have come.
    ///
    /// # Errors
    /// [`MediaError::Fetch`] when fewer come, or more.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, MediaError> {
        match self.body.next().await {
            // How it ends makes no difference once all is there.
            None | Some(Err(_)) if self.left == 0 => Ok(None),
            None | Some(Err(_)) => Err(broke_off()),
            Some(Ok(chunk)) => {
                let left = self.left.checked_sub(chunk.len() as u64);
                self.left = left.ok_or_else(|| MediaError::Fetch("the server sends more than it says".to_owned()))?;
                Ok(Some(chunk))
            }
        }
    }
}

/// Blocks being filled.
pub(super) struct Filling {
    range: Range<u64>,
    /// The next byte's place.
    pub(super) at: u64,
    pub(super) blocks: Vec<Bytes>,
    block: BytesMut,
}

impl Filling {
    /// From a block's start to a block's end, or the file's.
    pub(super) fn new(range: Range<u64>) -> Self {
        Self { at: range.start, range, blocks: Vec::new(), block: BytesMut::new() }
    }

    /// Whether there is nothing left to ask for.
    pub(super) const fn is_full(&self) -> bool {
        self.at >= self.range.end
    }

    /// Takes the next bytes; what comes after the end is not kept.
    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.is_full() {
            let end = (self.at - self.at % BLOCK_BYTES).saturating_add(BLOCK_BYTES).min(self.range.end);
            let room = usize::try_from(end - self.at).unwrap_or(usize::MAX).min(bytes.len());
            let (here, rest) = bytes.split_at(room);
            if self.block.is_empty() {
                self.block.reserve(usize::try_from(end - self.at).unwrap_or(0));
            }
            self.block.extend_from_slice(here);
            self.at += room as u64;
            bytes = rest;
            if self.at == end {
                // Its own memory, no more than its bytes: it may be kept long after its neighbours are gone.
                self.blocks.push(std::mem::take(&mut self.block).freeze());
            }
        }
    }

    /// Back to the end of the last whole block.
    pub(super) fn rewind(&mut self) {
        self.at -= self.block.len() as u64;
        self.block.clear();
    }
}

/// Answers in a row that brought no block.
#[derive(Default)]
pub(super) struct Tries {
    failed: u32,
}

impl Tries {
    /// After an answer: on with the next one, after a pause where this one was bad, or the end with what went wrong.
    /// `progress`: it brought a whole block or the range's end. A server that sends a byte at a time does not keep us asking.
    pub(super) async fn after(&mut self, answer: Result<(), Failure>, progress: bool) -> Result<(), MediaError> {
        let error = match answer {
            Ok(()) if progress => {
                self.failed = 0;
                return Ok(());
            }
            Ok(()) => MediaError::Fetch("the server sends too little at once".to_owned()),
            Err(Failure::Again(error)) => error,
            Err(Failure::Final(error)) => return Err(error),
        };
        self.failed = if progress { 1 } else { self.failed + 1 };
        if self.failed >= MAX_TRIES {
            return Err(error);
        }
        tokio::time::sleep(PAUSE * self.failed).await;
        Ok(())
    }
}
