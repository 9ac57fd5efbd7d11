//! Fetching over HTTP from hosts that a stranger names. Of this room, it alone imports reqwest.
//!
//! Each hop is checked before it is dialled (`guard`), and the addresses checked are the ones dialled (`clients`), so a name
//! that changes its mind in between leads nowhere else. What can be read in pieces stays on the web (`remote`); the rest is
//! downloaded.

mod answer;
mod blocks;
mod clients;
mod fill;
mod guard;
mod pace;
mod remote;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use reqwest::header::{HeaderMap, IF_NONE_MATCH, LOCATION, RANGE};
use reqwest::{Response, StatusCode};
use tokio::sync::Semaphore;
use url::Url;

use self::answer::Validator;
use self::blocks::Blocks;
use self::clients::Clients;
use self::pace::Pace;
use super::MediaError;
use super::source::{Download, Downloaded, Kind, Storage, too_large};
use crate::config::MediaConfig;

pub(super) use answer::Tag;
pub(super) use guard::Guard;
pub(super) use remote::Remote;

/// Bytes of a block: what is asked for and kept at the least.
pub(super) const BLOCK_BYTES: u64 = 64 << 10;
/// Redirects followed.
const MAX_HOPS: usize = 5;
/// Blocks being fetched at a time, of all sources together: what they take in memory until they are in the cache.
const MAX_BLOCKS_IN_FLIGHT: usize = 1024;

/// The way to the web, one for the process: whom it may ask, and what is kept of the answers.
#[derive(Debug)]
pub(super) struct Web {
    guard: Guard,
    clients: Clients,
    blocks: Blocks,
    in_flight: Semaphore,
    storage: Arc<Storage>,
    limit: Duration,
    /// Bytes of bodies that came since the start.
    fetched: Arc<AtomicU64>,
}

/// Where a URL led, after its redirects.
#[derive(Debug)]
pub(super) struct Route {
    original: Url,
    url: Url,
    client: reqwest::Client,
}

impl Route {
    /// Who sends the bytes: what it may take of the disk is counted for it.
    fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }
}

/// What a URL gave.
#[derive(Debug)]
pub(super) struct Answer {
    /// The content.
    pub(super) found: Found,
    /// By which the server tells later whether it is still the same.
    pub(super) tag: Option<Tag>,
    /// Where it was.
    pub(super) route: Arc<Route>,
    /// Bytes of content that came.
    pub(super) read: u64,
}

/// What was found at a URL.
#[derive(Debug)]
pub(super) enum Found {
    /// What the caller's tag is of.
    Unchanged,
    /// Content that can be read in pieces where it is.
    Remote(Arc<Remote>),
    /// All of it, downloaded: the server knows no ranges, or nothing by which a change would be noticed; or it is short.
    Whole(Downloaded),
}

impl Web {
    /// As configured. Downloads take their space from `storage`.
    pub(super) fn new(config: &MediaConfig, guard: Guard, storage: Arc<Storage>) -> Self {
        Self {
            guard,
            clients: Clients::new(),
            blocks: Blocks::new(config.range_cache_bytes),
            in_flight: Semaphore::new(MAX_BLOCKS_IN_FLIGHT),
            storage,
            limit: Duration::from_secs(config.fetch_timeout_s),
            fetched: Arc::default(),
        }
    }

    /// Bytes that came since the start.
    pub(super) fn fetched_bytes(&self) -> u64 {
        self.fetched.load(Ordering::Relaxed)
    }

    /// Asks a URL for what it gives. `in_pieces`: for its first block only; it comes as a whole where the server can't do that.
    /// `tag` is of what the caller holds from this URL.
    ///
    /// # Errors
    /// [`MediaError::Forbidden`] for a host or an address that is not allowed, [`MediaError::NotFound`],
    /// [`MediaError::TooLarge`], [`MediaError::Timeout`], [`MediaError::Busy`], and [`MediaError::Fetch`] for all that goes
    /// wrong on the way.
    pub(super) async fn open(
        self: &Arc<Self>,
        url: &Url,
        kind: Kind,
        max_bytes: u64,
        in_pieces: bool,
        tag: Option<&Tag>,
    ) -> Result<Answer, MediaError> {
        let work = Box::pin(self.look(url, kind, max_bytes, in_pieces, tag));
        self.within(work).await
    }

    /// Gives up when it takes longer than a fetch may.
    async fn within<T>(&self, work: impl Future<Output = Result<T, MediaError>>) -> Result<T, MediaError> {
        tokio::time::timeout(self.limit, work).await.map_err(|_| MediaError::Timeout("fetching the file"))?
    }

    async fn look(
        self: &Arc<Self>,
        url: &Url,
        kind: Kind,
        max_bytes: u64,
        mut in_pieces: bool,
        mut tag: Option<&Tag>,
    ) -> Result<Answer, MediaError> {
        let mut broken = false;
        // Once as wished, once more where the answer broke off, once without the tag, once without pieces.
        loop {
            let mut headers = HeaderMap::new();
            if in_pieces {
                headers.insert(RANGE, answer::range(&(0..BLOCK_BYTES)));
            }
            if let Some(tag) = tag {
                headers.insert(IF_NONE_MATCH, tag.etag.clone());
            }
            let (response, route) = self.follow(url, &headers).await?;
            let known = Tag::new(response.headers(), &route.url);
            match response.status() {
                StatusCode::NOT_MODIFIED if tag.is_some() => {
                    // Another file may have the same tag: it must be of the same place.
                    if tag.is_some_and(|tag| tag.resource == answer::resource(&route.url)) {
                        return Ok(Answer { found: Found::Unchanged, tag: None, route, read: 0 });
                    }
                    tag = None;
                }
                StatusCode::PARTIAL_CONTENT if in_pieces => match answer::first(response.headers()) {
                    Some((total, _)) if total > max_bytes => return Err(too_large(kind, max_bytes)),
                    Some((total, validator)) => match head(response, total.min(BLOCK_BYTES), &self.fetched).await {
                        Ok(head) => return self.first(head, route, kind, total, validator, known).await,
                        Err(error) if broken => return Err(error),
                        Err(_) => broken = true,
                    },
                    None => in_pieces = false,
                },
                StatusCode::RANGE_NOT_SATISFIABLE if in_pieces => in_pieces = false,
                _ => {
                    let download = Download::new(kind, max_bytes, route.host(), &self.storage)?;
                    return receive(response, route, kind, download, &self.fetched).await;
                }
            }
        }
    }

    /// A server that knows ranges has sent the first block.
    async fn first(
        self: &Arc<Self>,
        head: Bytes,
        route: Arc<Route>,
        kind: Kind,
        total: u64,
        validator: Validator,
        tag: Option<Tag>,
    ) -> Result<Answer, MediaError> {
        let mut read = head.len() as u64;
        if total <= BLOCK_BYTES {
            let mut download = Download::new(kind, total, route.host(), &self.storage)?;
            download.write(&head).await?;
            let found = Found::Whole(download.finish().await?);
            return Ok(Answer { found, tag, route, read });
        }
        let mut remote = Remote::new(self, Arc::clone(&route), kind, total, validator, head);
        read += remote.identify().await?;
        Ok(Answer { found: Found::Remote(Arc::new(remote)), tag, route, read })
    }

    /// Goes where a URL leads, checking each step.
    async fn follow(&self, url: &Url, headers: &HeaderMap) -> Result<(Response, Arc<Route>), MediaError> {
        let mut at = url.clone();
        for hop in 0..=MAX_HOPS {
            let target = self.guard.check(&at, (hop > 0).then_some(url)).await?;
            let client = self.clients.get(target).await?;
            let response = send(&client, &at, headers).await.map_err(|error| unreachable(&error))?;
            if !is_redirect(response.status()) {
                return Ok((response, Arc::new(Route { original: url.clone(), url: at, client })));
            }
            let next = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let next = next.and_then(|next| at.join(next).ok());
            at = next.ok_or_else(|| MediaError::Fetch("the server redirects to nowhere".to_owned()))?;
            at.set_fragment(None);
        }
        Err(MediaError::Fetch(format!("the server redirects more than {MAX_HOPS} times")))
    }
}

/// Asks, and asks again when a connection that lay idle turns out to be closed.
async fn send(client: &reqwest::Client, url: &Url, headers: &HeaderMap) -> reqwest::Result<Response> {
    let once = || client.get(url.clone()).headers(headers.clone()).send();
    match once().await {
        Err(error) if !error.is_timeout() && !error.is_connect() => once().await,
        answer => answer,
    }
}

fn unreachable(error: &reqwest::Error) -> MediaError {
    let problem = if error.is_timeout() { "the server does not answer" } else { "the server can't be reached" };
    MediaError::Fetch(problem.to_owned())
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// What a status that is no answer to the question means.
fn refusal(status: StatusCode, kind: Kind) -> MediaError {
    match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => {
            MediaError::NotFound(format!("the server has no such {}", kind.name()))
        }
        status => MediaError::Fetch(format!("the server answered {}", status.as_u16())),
    }
}

/// The body of an answer of so many bytes, few enough for the memory.
async fn head(response: Response, length: u64, fetched: &Arc<AtomicU64>) -> Result<Bytes, MediaError> {
    let mut part = fill::Part::new(response, length, fetched);
    let mut bytes = Vec::new();
    while let Some(chunk) = part.chunk().await? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.into())
}

/// Streams a whole body into a download.
async fn receive(
    response: Response,
    route: Arc<Route>,
    kind: Kind,
    mut download: Download,
    fetched: &Arc<AtomicU64>,
) -> Result<Answer, MediaError> {
    if response.status() != StatusCode::OK {
        return Err(refusal(response.status(), kind));
    }
    if !answer::is_identity(response.headers()) {
        return Err(MediaError::Fetch("the server sends the file compressed".to_owned()));
    }
    if let Some(bytes) = response.content_length() {
        download.expect(bytes)?;
    }
    let tag = Tag::new(response.headers(), &route.url);
    let (mut body, pace) = (fill::body(response, fetched), Pace::new());
    while let Some(chunk) = pace.keep(download.bytes(), body.next()).await? {
        let chunk = chunk.map_err(|_| broke_off())?;
        download.write(&chunk).await?;
    }
    let read = download.bytes();
    Ok(Answer { found: Found::Whole(download.finish().await?), tag, route, read })
}

fn broke_off() -> MediaError {
    MediaError::Fetch("the connection broke off".to_owned())
}

fn changed() -> MediaError {
    MediaError::Fetch("the file changed while it was read".to_owned())
}
