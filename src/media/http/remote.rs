//! A file that stays on the web and is read in pieces: blocks that are at hand or on their way are not asked for again, and
//! each answer is checked to be of the file that was opened.
//!
//! This file does not know what the bytes mean, nor which hosts are allowed.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::future::try_join_all;
use reqwest::header::{HeaderMap, IF_RANGE, RANGE};
use reqwest::{Response, StatusCode};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::answer::{self, Validator};
use super::blocks::{self, MAX_RUN, Run, Runs};
use super::fill::{Failure, Filling, Part, Tries};
use super::pace::Pace;
use super::{BLOCK_BYTES, Route, Web, changed, is_redirect, refusal, send, unreachable};
use crate::media::MediaError;
use crate::media::source::{self, Download, Downloaded, Kind};

/// Requests to one source at the same time.
const MAX_REQUESTS: usize = 8;

/// A file on the web.
#[derive(Debug)]
pub(in crate::media) struct Remote {
    web: Arc<Web>,
    id: Arc<str>,
    bytes: u64,
    kind: Kind,
    validator: Validator,
    /// The first block and, where the identity needed them, the last ones: at hand whatever the cache keeps.
    pinned: Vec<(u64, Bytes)>,
    ways: Mutex<Ways>,
    /// Set when the server gave something else than pieces of this file.
    lost: AtomicBool,
    /// Held by the one who looks for a new way.
    renewing: tokio::sync::Mutex<()>,
    requests: Semaphore,
    runs: tokio::sync::Mutex<Runs>,
    /// For readers that block: the runtime it was opened in.
    runtime: Handle,
}

/// How to get there.
#[derive(Debug)]
struct Ways {
    /// The one taken, as long as it leads there.
    now: Arc<Route>,
    /// What another found under the same URL with another signature. Which of the two lasts longer is not known.
    spare: Option<Arc<Route>>,
}

impl Remote {
    /// What was found to be so many bytes, with its first block. It has no id yet: see [`Self::identify`].
    pub(super) fn new(
        web: &Arc<Web>,
        route: Arc<Route>,
        kind: Kind,
        bytes: u64,
        validator: Validator,
        head: Bytes,
    ) -> Self {
        Self {
            web: Arc::clone(web),
            id: "".into(),
            bytes,
            kind,
            validator,
            pinned: vec![(0, head)],
            ways: Mutex::new(Ways { now: route, spare: None }),
            lost: AtomicBool::new(false),
            renewing: tokio::sync::Mutex::default(),
            requests: Semaphore::new(MAX_REQUESTS),
            runs: tokio::sync::Mutex::default(),
            runtime: Handle::current(),
        }
    }

    /// Gives it its id. Without a strong validator the last blocks are read for it; tells how many bytes that took.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(super) async fn identify(&mut self) -> Result<u64, MediaError> {
        let read = AtomicU64::new(0);
        let mut tail = Vec::new();
        if matches!(self.validator, Validator::Modified(_)) {
            let edge = self.bytes.saturating_sub(BLOCK_BYTES)..self.bytes;
            let blocks = blocks::blocks_of(&edge);
            let blocks = blocks.start.max(1)..blocks.end;
            for (block, bytes) in blocks.clone().zip(self.fetch(blocks, &read).await?.iter()) {
                tail.extend_from_slice(bytes);
                self.pinned.push((block, bytes.clone()));
            }
        }
        let head = self.pinned.first().map(|(_, head)| head.clone()).unwrap_or_default();
        let tail = (!tail.is_empty()).then_some(tail.as_slice());
        let route = self.route();
        let place = (&route.original, &route.url);
        self.id = answer::identity(place, &self.validator, self.bytes, &head, tail).into();
        Ok(read.into_inner())
    }

    /// The same for the same content.
    pub(in crate::media) fn id(&self) -> &str {
        &self.id
    }

    /// Its length.
    pub(in crate::media) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the server turned out not to give pieces of this file: it has another by now, several that differ, or has
    /// stopped knowing ranges.
    pub(in crate::media) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    fn lose(&self, error: MediaError) -> Failure {
        self.lost.store(true, Ordering::Relaxed);
        Failure::Final(error)
    }

    /// Goes this way too, when the one known leads there no more. Not before: a signature that is about to run out must not
    /// take the place of one that isn't.
    pub(in crate::media) fn take(&self, route: Arc<Route>) {
        let mut ways = self.ways();
        if route.original != ways.now.original {
            ways.spare = Some(route);
        }
    }

    fn ways(&self) -> MutexGuard<'_, Ways> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn route(&self) -> Arc<Route> {
        Arc::clone(&self.ways().now)
    }

    /// Bytes of a range that is not empty and within the file. What is fetched for it is added to `read`.
    ///
    /// # Errors
    /// [`MediaError::Fetch`] when the server can't be reached, breaks off, or has another file by now, and
    /// [`MediaError::Timeout`].
    pub(in crate::media) async fn read(
        self: &Arc<Self>,
        range: Range<u64>,
        read: &Arc<AtomicU64>,
    ) -> Result<Bytes, MediaError> {
        let parts = self.parts(blocks::blocks_of(&range), read).await;
        let got = parts.into_iter().map(|part| async {
            Ok::<_, MediaError>(match part {
                blocks::Part::Kept(block) => vec![block],
                blocks::Part::Coming(flight, of) => flight.await?.get(of).unwrap_or_default().to_vec(),
            })
        });
        Ok(blocks::cut(&try_join_all(got).await?.concat(), &range))
    }

    /// As [`Self::read`], for threads that may block: until then at the latest, and given up at once when `stop` is
    /// cancelled.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(in crate::media) fn read_blocking(
        self: &Arc<Self>,
        range: Range<u64>,
        read: &Arc<AtomicU64>,
        until: Instant,
        stop: &CancellationToken,
    ) -> Result<Bytes, MediaError> {
        let work = async {
            let read = stop.run_until_cancelled(timeout_at(until, self.read(range, read))).await;
            let read = read.ok_or_else(|| MediaError::Internal("nobody waits for it any more".to_owned()))?;
            read.map_err(|_| MediaError::Timeout("reading the video's index"))?
        };
        self.runtime.block_on(Box::pin(work))
    }

    /// Where the blocks come from; those that are nowhere are now on their way.
    async fn parts(self: &Arc<Self>, wanted: Range<u64>, read: &Arc<AtomicU64>) -> Vec<blocks::Part> {
        let mut parts = Vec::new();
        let mut missing: Option<Range<u64>> = None;
        // Held throughout, so that no two readers ask for the same.
        let mut runs = self.runs.lock().await;
        let mut next = wanted.start;
        while next < wanted.end {
            let coming = runs.with(next);
            let kept = match coming {
                Some(_) => None,
                None => self.kept(next).await,
            };
            let at_hand = coming.is_some() || kept.is_some();
            let full = missing.as_ref().is_some_and(|blocks| blocks.end - blocks.start >= MAX_RUN);
            if (at_hand || full)
                && let Some(blocks) = missing.take()
            {
                parts.push(self.start(&mut runs, blocks, read));
            }
            if let Some((blocks, flight)) = coming {
                let end = blocks.end.min(wanted.end);
                let of = |block: u64| usize::try_from(block - blocks.start).unwrap_or(usize::MAX);
                parts.push(blocks::Part::Coming(flight, of(next)..of(end)));
                next = end;
                continue;
            }
            match kept {
                Some(block) => parts.push(blocks::Part::Kept(block)),
                None => missing = Some(missing.map_or(next, |blocks| blocks.start)..next + 1),
            }
            next += 1;
        }
        if let Some(blocks) = missing {
            parts.push(self.start(&mut runs, blocks, read));
        }
        parts
    }

    async fn kept(&self, block: u64) -> Option<Bytes> {
        match self.pinned.iter().find(|(pinned, _)| *pinned == block) {
            Some((_, bytes)) => Some(bytes.clone()),
            None => self.web.blocks.get(&self.id, block).await,
        }
    }

    fn start(self: &Arc<Self>, runs: &mut Runs, blocks: Range<u64>, read: &Arc<AtomicU64>) -> blocks::Part {
        let (remote, read, of) = (Arc::clone(self), Arc::clone(read), blocks.clone());
        let flight = source::start(Box::pin(async move {
            let run = remote.fetch(of.clone(), &read).await?;
            for (block, bytes) in of.zip(run.iter()) {
                remote.web.blocks.put(&remote.id, block, bytes.clone()).await;
            }
            Ok(run)
        }));
        runs.add(blocks.clone(), &flight);
        let count = usize::try_from(blocks.end - blocks.start).unwrap_or(usize::MAX);
        blocks::Part::Coming(flight, 0..count)
    }

    /// Fetches neighbouring blocks, at most [`MAX_RUN`]. What came before a connection broke off is not asked for again.
    async fn fetch(&self, blocks: Range<u64>, read: &AtomicU64) -> Result<Run, MediaError> {
        let range = blocks::bytes_of(&blocks, self.bytes);
        let count = u32::try_from(blocks.end - blocks.start).unwrap_or(u32::MAX);
        let closed = |_| MediaError::Internal("shutting down".to_owned());
        let work = async {
            let _ours = self.requests.acquire().await.map_err(closed)?;
            let _all = self.web.in_flight.acquire_many(count).await.map_err(closed)?;
            // Waiting for a place is not the server's fault.
            Pace::new().keep(range.end - range.start, self.fill(range, read)).await?
        };
        self.web.within(Box::pin(work)).await
    }

    async fn fill(&self, range: Range<u64>, read: &AtomicU64) -> Result<Run, MediaError> {
        let (mut got, mut tries) = (Filling::new(range.clone()), Tries::default());
        while !got.is_full() {
            let before = got.blocks.len();
            let answer = self.pour(got.at..range.end, read, &mut got).await;
            if answer.is_err() {
                got.rewind();
            }
            tries.after(answer, got.blocks.len() > before).await?;
        }
        Ok(got.blocks.into())
    }

    async fn pour(&self, range: Range<u64>, read: &AtomicU64, got: &mut Filling) -> Result<(), Failure> {
        let mut part = self.ask(range).await?;
        while let Some(chunk) = part.chunk().await.map_err(Failure::Again)? {
            read.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            got.add(&chunk);
        }
        Ok(())
    }

    /// All of it, into a file. Where a connection breaks off, the next one goes on.
    ///
    /// # Errors
    /// As [`Self::read`], and as [`Download::write`].
    pub(in crate::media) async fn download(&self, read: &AtomicU64) -> Result<Downloaded, MediaError> {
        let work = async {
            let mut download = Download::new(self.kind, self.bytes, self.route().host(), &self.web.storage)?;
            download.expect(self.bytes)?;
            let (mut tries, pace) = (Tries::default(), Pace::new());
            while download.bytes() < self.bytes {
                let before = download.bytes() / BLOCK_BYTES;
                let answer = self.pour_all(read, &mut download, &pace).await;
                let progress = download.bytes() / BLOCK_BYTES > before || download.bytes() == self.bytes;
                tries.after(answer, progress).await?;
            }
            download.finish().await
        };
        self.web.within(Box::pin(work)).await
    }

    async fn pour_all(&self, read: &AtomicU64, download: &mut Download, pace: &Pace) -> Result<(), Failure> {
        let mut part = pace.keep(download.bytes(), self.ask(download.bytes()..self.bytes)).await??;
        while let Some(chunk) = pace.keep(download.bytes(), part.chunk()).await?.map_err(Failure::Again)? {
            read.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            download.write(&chunk).await?;
        }
        Ok(())
    }

    /// Asks for a range. A way that has run out is renewed, once.
    async fn ask(&self, range: Range<u64>) -> Result<Part, Failure> {
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, answer::range(&range));
        if let Validator::Strong(tag) = &self.validator {
            headers.insert(IF_RANGE, tag.clone());
        }
        let mut renewed = false;
        loop {
            let route = self.route();
            let response = match send(&route.client, &route.url, &headers).await {
                Ok(response) => response,
                Err(error) if error.is_connect() && !renewed => {
                    renewed = true;
                    self.renew(&route).await?;
                    continue;
                }
                Err(error) => return Err(Failure::Again(unreachable(&error))),
            };
            let status = response.status();
            match status.as_u16() {
                206 => return self.check(response, &range),
                // The condition did not hold, and here is all of the new file. Or it did, and ranges are over.
                200 if self.validator.holds(response.headers()) => {
                    return Err(self.lose(MediaError::Fetch("the server no longer sends pieces".to_owned())));
                }
                200 | 412 | 416 => return Err(self.lose(changed())),
                401 | 403 | 410 if !renewed => {}
                _ if is_redirect(status) && !renewed => {}
                408 | 425 | 429 | 500 | 502 | 503 | 504 => return Err(Failure::Again(refusal(status, self.kind))),
                _ => return Err(Failure::Final(refusal(status, self.kind))),
            }
            renewed = true;
            self.renew(&route).await?;
        }
    }

    /// Whether an answer holds what was asked for, from its first byte on. It may hold less of it: some servers send no more
    /// than so much at once.
    fn check(&self, response: Response, range: &Range<u64>) -> Result<Part, Failure> {
        let headers = response.headers();
        let odd = || self.lose(MediaError::Fetch("the server answers ranges wrongly".to_owned()));
        if !answer::is_identity(headers) {
            return Err(odd());
        }
        let (got, total) = answer::content_range(headers).ok_or_else(odd)?;
        if total != self.bytes || !self.validator.holds(headers) {
            return Err(self.lose(changed()));
        }
        if got.start != range.start || got.end > range.end {
            return Err(odd());
        }
        Ok(Part::new(response, got.end - got.start, &self.web.fetched))
    }

    /// Asks where the file is now, unless another reader has done so meanwhile: the URL the way came from, then the spare's.
    async fn renew(&self, old: &Arc<Route>) -> Result<(), Failure> {
        let _one = self.renewing.lock().await;
        let spare = {
            let ways = self.ways();
            if !Arc::ptr_eq(old, &ways.now) {
                return Ok(());
            }
            ways.spare.clone()
        };
        let (route, unused) = match (self.find(&old.original).await, spare) {
            (Ok(route), spare) => (route, spare),
            (Err(error), None) => return Err(error.into()),
            (Err(error), Some(spare)) => (self.find(&spare.original).await.map_err(|_| error)?, Some(Arc::clone(old))),
        };
        *self.ways() = Ways { now: route, spare: unused };
        Ok(())
    }

    /// Where a URL leads to this file, as far as its length and its validator tell: of the bytes, only the URL's owner can
    /// say. That is why the URL is part of the identity.
    async fn find(&self, original: &Url) -> Result<Arc<Route>, MediaError> {
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, answer::range(&(0..1)));
        let (response, route) = self.web.follow(original, &headers).await?;
        if response.status() != StatusCode::PARTIAL_CONTENT {
            return Err(refusal(response.status(), self.kind));
        }
        let total = answer::content_range(response.headers()).map(|(_, total)| total);
        if total != Some(self.bytes) || !self.validator.holds(response.headers()) {
            return Err(changed());
        }
        Ok(route)
    }
}
