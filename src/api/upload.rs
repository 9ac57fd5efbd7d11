//! A multipart body on its way to the disk: never more of it in memory than one piece.
//!
//! multer finds the parts. It bounds neither what comes before a part nor its head, and takes whatever is ready in one go,
//! so a gate stands before it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName};
use bytes::Bytes;
use futures::Stream;
use multer::{Field, Multipart};
use tokio::time::{Instant, timeout};

use super::error::ApiError;
use crate::config::FilesConfig;
use crate::media::{About, Incoming, Stored, Turn, Uploads};
use crate::protocol::Invalid;
use crate::protocol::files::UploadFields;

/// Bytes before a part and of its head.
const HEAD_MAX: u64 = 16 << 10;
/// Bytes of a text field.
const TEXT_MAX: usize = 1 << 10;
/// Bytes of a field that is not ours.
const UNKNOWN_MAX: u64 = 64 << 10;
/// Fields in all.
const FIELDS_MAX: usize = 32;
/// Bytes of a file's name.
const NAME_MAX: usize = 255;

/// The name of the field with the file.
const FILE: &str = "file";

/// Refuses what a page of another site sends by itself: a browser asks nobody before it posts a form to a server on
/// localhost. With an `Authorization` it would ask, and we would say no.
pub(super) fn check_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let Some(origin) = text(&ORIGIN).filter(|_| !headers.contains_key(AUTHORIZATION)) else { return Ok(()) };
    let site = origin.split_once("://").map(|(_, site)| site);
    if site.is_some() && site == text(&HOST) { Ok(()) } else { Err(ApiError::OriginNotAllowed) }
}

/// Where the parts are told apart, of a body that has some.
pub(super) fn boundary(headers: &HeaderMap) -> Result<String, ApiError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.and_then(|kind| multer::parse_boundary(kind).ok()).ok_or(ApiError::NoForm)
}

/// A place among the uploads, if what the client tells of its body is within bounds.
pub(super) fn admit(uploads: &Uploads, owner: &str, headers: &HeaderMap) -> Result<Turn, ApiError> {
    let told = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    Ok(uploads.admit(owner, told)?)
}

/// Reads a body into a file. Dropped, or in an error, it leaves nothing.
pub(super) async fn receive<E: std::error::Error + Send + Sync + 'static>(
    pieces: impl Stream<Item = Result<Bytes, E>> + Send + Unpin + 'static,
    boundary: String,
    turn: Turn,
    config: &FilesConfig,
) -> Result<Arc<Stored>, ApiError> {
    let head = Arc::new(AtomicU64::new(HEAD_MAX));
    let mut parts = Multipart::new(Gate { pieces, head: Arc::clone(&head), full: false }, boundary);
    let mut client = Client::new(config);
    let mut fields = UploadFields::default();
    let (mut turn, mut file) = (Some(turn), None);
    for _ in 0..FIELDS_MAX {
        head.store(HEAD_MAX, Ordering::Relaxed);
        let Some(mut field) = client.wait(parts.next_field()).await? else {
            let (incoming, filename): (Incoming, String) = file.ok_or_else(|| missing(FILE))?;
            if incoming.bytes() == 0 {
                return Err(Invalid::new(FILE, "must not be empty").into());
            }
            let (purpose, expire_after_s) = fields.done()?;
            return Ok(incoming.keep(About { filename, purpose, expire_after_s }).await?);
        };
        head.store(u64::MAX, Ordering::Relaxed);
        match field.name().unwrap_or_default().to_owned() {
            name if name == FILE => {
                let turn = turn.take().ok_or_else(|| Invalid::new(FILE, "must be one file"))?;
                let filename = clean(field.file_name().unwrap_or_default());
                let mut incoming = turn.begin().await?;
                while let Some(piece) = client.next(&mut field).await? {
                    incoming.write(&piece).await?;
                }
                file = Some((incoming, filename));
            }
            name if UploadFields::knows(&name) => {
                let text = text(&mut field, &mut client, &name).await?;
                fields.take(&name, &text)?;
            }
            _ => {
                let mut bytes = 0;
                while let Some(piece) = client.next(&mut field).await? {
                    bytes += piece.len() as u64;
                    if bytes > UNKNOWN_MAX {
                        return Err(ApiError::BadForm("holds a field that is too long"));
                    }
                }
            }
        }
    }
    Err(ApiError::BadForm("holds too many fields"))
}

async fn text(field: &mut Field<'_>, client: &mut Client, name: &str) -> Result<String, ApiError> {
    let mut text = Vec::new();
    while let Some(piece) = client.next(field).await? {
        text.extend_from_slice(&piece);
        if text.len() > TEXT_MAX {
            return Err(Invalid::new(name, "is too long").into());
        }
    }
    String::from_utf8(text).map_err(|_| Invalid::new(name, "must be text in UTF-8").into())
}

fn missing(name: &str) -> ApiError {
    let (param, problem) = (name.to_owned(), "is required".to_owned());
    Invalid { param, problem, code: "missing_required_parameter" }.into()
}

/// A file's name for people: the last part of a path, without what moves the cursor or turns the text around, bounded.
fn clean(name: &str) -> String {
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let mut clean = String::new();
    for c in last.trim().chars().filter(|c| !c.is_control() && !turns(*c)) {
        if clean.len() + c.len_utf8() > NAME_MAX {
            break;
        }
        clean.push(c);
    }
    if matches!(clean.as_str(), "" | "." | "..") { "upload".to_owned() } else { clean }
}

/// Waits for the client: it may be slow, but not idle, and not slower than all would have to wait for.
struct Client {
    idle: Duration,
    pace: Pace,
}

impl Client {
    fn new(config: &FilesConfig) -> Self {
        let idle = Duration::from_secs(config.idle_timeout_s);
        Self { idle, pace: Pace { over: idle, slowest: config.min_bytes_per_s, waited: Duration::ZERO, bytes: 0 } }
    }

    async fn next(&mut self, field: &mut Field<'_>) -> Result<Option<Bytes>, ApiError> {
        let piece = self.wait(field.chunk()).await?;
        self.pace.bytes(piece.as_ref().map_or(0, Bytes::len) as u64)?;
        Ok(piece)
    }

    async fn wait<T>(&mut self, next: impl Future<Output = multer::Result<T>>) -> Result<T, ApiError> {
        let began = Instant::now();
        let next = timeout(self.idle, next).await.map_err(|_| ApiError::ReadTimeout)?;
        self.pace.waited = self.pace.waited.saturating_add(began.elapsed());
        next.map_err(|error| match error {
            multer::Error::StreamReadFailed(cause) if cause.is::<HeadTooLong>() => {
                ApiError::BadForm("holds a part whose head is too long")
            }
            // The client broke off; it will hardly read this.
            multer::Error::StreamReadFailed(_) => ApiError::ReadTimeout,
            multer::Error::IncompleteStream | multer::Error::IncompleteFieldData { .. } => {
                ApiError::BadForm("ends before its last boundary")
            }
            _ => ApiError::BadForm("can't be read"),
        })
    }
}

/// How fast a client is on average, over a stretch of waiting for it each time. Our own disk's time is not the client's.
struct Pace {
    over: Duration,
    /// Bytes a second.
    slowest: u64,
    /// Since it was last looked at.
    waited: Duration,
    bytes: u64,
}

impl Pace {
    fn bytes(&mut self, bytes: u64) -> Result<(), ApiError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.waited < self.over {
            return Ok(());
        }
        let least = u128::from(self.slowest) * self.waited.as_millis() / 1000;
        let came = std::mem::take(&mut self.bytes);
        self.waited = Duration::ZERO;
        if u128::from(came) < least { Err(ApiError::ReadTimeout) } else { Ok(()) }
    }
}

/// Gives one piece at a time, and only so much while no part has begun.
struct Gate<S> {
    pieces: S,
    head: Arc<AtomicU64>,
    /// A piece was given: it is to be worked through before the next one.
    full: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("the head of a part is too long")]
struct HeadTooLong;

type Cause = Box<dyn std::error::Error + Send + Sync>;

impl<S, E> Stream for Gate<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: Into<Cause>,
{
    type Item = Result<Bytes, Cause>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::take(&mut self.full) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let left = self.head.load(Ordering::Relaxed);
        if left == 0 {
            return Poll::Ready(Some(Err(HeadTooLong.into())));
        }
        let piece = ready!(Pin::new(&mut self.pieces).poll_next(context));
        if let Some(Ok(piece)) = &piece {
            self.full = true;
            if left < u64::MAX {
                self.head.store(left.saturating_sub(piece.len() as u64), Ordering::Relaxed);
            }
        }
        Poll::Ready(piece.map(|piece| piece.map_err(Into::into)))
    }
}

#[cfg(test)]
mod tests;
