//! A video's bytes, wherever they are: any range of them, read when it is needed and counted.
//!
//! This file knows where bytes come from and nothing of what they mean.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::MediaError;
use super::http::{BLOCK_BYTES, Remote};
use super::source::{Flights, Reservation};

/// Bytes a [`Cursor`] reads at once from a file, unless it is asked for more: headers are small and far apart.
const CURSOR_BYTES: u64 = 4 << 10;
/// Bytes it reads at once from the web after reading on and on: a header of megabytes is not asked for in hundreds of pieces.
const CURSOR_MAX_BYTES: u64 = 1 << 20;
/// The most it reads at once, however much it is asked for.
const READ_MAX_BYTES: u64 = 4 << 20;

/// The bytes of one video or picture. A file that is replaced stays the one that was opened, and what changes on the web
/// can't be read any more. A file that is overwritten in place does change while it is held; opened again, it is another.
#[derive(Debug)]
pub(super) struct Content {
    held: Arc<Held>,
    read: Arc<AtomicU64>,
}

/// What those who have the same content open at the same time hold together.
#[derive(Debug)]
pub(super) struct Held {
    id: Arc<str>,
    bytes: u64,
    place: Place,
}

/// Where bytes are.
#[derive(Debug)]
enum Place {
    /// In a file, held open. A temporary one has no name and goes with the value, and its space is then free.
    File { file: Arc<File>, temporary: Option<Reservation> },
    /// On the web, read in pieces; or as a whole into a file, once for all who need it so.
    Web { remote: Arc<Remote>, whole: Flights<(), Arc<Held>>, kept: Mutex<Weak<Held>> },
}

impl Held {
    /// A file of so many bytes.
    pub(super) fn file(id: String, bytes: u64, file: File, temporary: Option<Reservation>) -> Self {
        Self { id: id.into(), bytes, place: Place::File { file: Arc::new(file), temporary } }
    }

    /// What stays on the web.
    pub(super) fn web(remote: Arc<Remote>) -> Self {
        let (id, bytes) = (remote.id().into(), remote.bytes());
        let place = Place::Web { remote, whole: Flights::default(), kept: Mutex::default() };
        Self { id, bytes, place }
    }

    /// The same for the same content.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The web's side of it, where it stays there.
    pub(super) fn remote(&self) -> Option<&Arc<Remote>> {
        match &self.place {
            Place::File { .. } => None,
            Place::Web { remote, .. } => Some(remote),
        }
    }
}

impl Content {
    /// An opened regular file of so many bytes. `id` is the same for the same content.
    pub(super) fn file(id: String, bytes: u64, file: File, temporary: Option<Reservation>) -> Self {
        Self::new(Arc::new(Held::file(id, bytes, file, temporary)), 0)
    }

    /// What others may hold as well; opening it took `read` bytes.
    pub(super) fn new(held: Arc<Held>, read: u64) -> Self {
        Self { held, read: Arc::new(AtomicU64::new(read)) }
    }

    /// The same for the same content.
    pub(super) fn id(&self) -> &str {
        &self.held.id
    }

    /// Whether it is on this machine's disk, where small reads all over it cost next to nothing.
    pub(super) fn is_local(&self) -> bool {
        self.held.remote().is_none()
    }

    /// Whether it is on the web and can't be read in pieces any more, as the server turned out. It may still be had whole.
    pub(super) fn is_lost(&self) -> bool {
        self.held.remote().is_some_and(|remote| remote.is_lost())
    }

    /// Its length.
    pub(super) fn bytes(&self) -> u64 {
        self.held.bytes
    }

    /// Bytes read from where it is until now, by us: from the file (what ffmpeg reads from [`Self::opened`] is not seen), or
    /// from the network. What was downloaded counts once, not again when the temporary file is read.
    pub(super) fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// A handle of its own on the file, where it is one, for a program that reads it by itself. `None`: it stays on the web.
    ///
    /// # Errors
    /// [`MediaError::Internal`] when there are no handles left.
    pub(super) fn opened(&self) -> Result<Option<File>, MediaError> {
        match &self.held.place {
            Place::File { file, .. } => file.try_clone().map(Some).map_err(|error| failed(&error)),
            Place::Web { .. } => Ok(None),
        }
    }

    /// The same content as a file: what stays on the web is downloaded, with the id it has. Those who ask at the same time,
    /// or while another still holds the result, share it.
    ///
    /// # Errors
    /// [`MediaError::Fetch`], [`MediaError::Timeout`], [`MediaError::Busy`] when there is no space, and [`MediaError::Internal`].
    pub(super) async fn download(&self) -> Result<Self, MediaError> {
        let Place::Web { remote, whole, kept } = &self.held.place else {
            return Ok(Self { held: Arc::clone(&self.held), read: Arc::clone(&self.read) });
        };
        let present = kept.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        if let Some(held) = present {
            return Ok(Self { held, read: Arc::clone(&self.read) });
        }
        let flight = whole.join((), || {
            let (remote, read) = (Arc::clone(remote), Arc::clone(&self.read));
            async move {
                let got = remote.download(&read).await?;
                Ok(Arc::new(Held::file(remote.id().to_owned(), got.bytes, got.file, Some(got.reservation))))
            }
        });
        let held = flight.await?;
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&held);
        Ok(Self { held, read: Arc::clone(&self.read) })
    }

    /// Bytes of a range; fewer only where the content ends. The caller bounds the range's length.
    ///
    /// # Errors
    /// [`MediaError::Internal`] when the disk fails, [`MediaError::Fetch`] and [`MediaError::Timeout`] when the network does.
    pub(super) async fn read(&self, range: Range<u64>) -> Result<Bytes, MediaError> {
        let range = self.within(range);
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        match &self.held.place {
            Place::File { file, temporary } => {
                let file = Arc::clone(file);
                let read = tokio::task::spawn_blocking(move || read_at(&file, range)).await;
                let bytes = read
                    .map_err(|_| MediaError::Internal("reading broke off".to_owned()))?
                    .map_err(|error| failed(&error))?;
                self.count(&bytes, temporary.is_some());
                Ok(bytes)
            }
            Place::Web { remote, .. } => Box::pin(remote.read(range, &self.read)).await,
        }
    }

    /// As [`Self::read`], for threads that may block: inside [`tokio::task::spawn_blocking`] only. The error holds a
    /// [`MediaError`] where the network failed, the time is up or `stop` is cancelled.
    fn read_blocking(&self, range: Range<u64>, until: Instant, stop: &CancellationToken) -> io::Result<Bytes> {
        if stop.is_cancelled() {
            return Err(io::Error::other(MediaError::Internal("nobody waits for it any more".to_owned())));
        }
        if Instant::now() >= until {
            return Err(io::Error::other(MediaError::Timeout("reading the video's index")));
        }
        let range = self.within(range);
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        match &self.held.place {
            Place::File { file, temporary } => {
                let bytes = read_at(file, range)?;
                self.count(&bytes, temporary.is_some());
                Ok(bytes)
            }
            Place::Web { remote, .. } => remote.read_blocking(range, &self.read, until, stop).map_err(io::Error::other),
        }
    }

    fn within(&self, range: Range<u64>) -> Range<u64> {
        range.start.min(self.held.bytes)..range.end.min(self.held.bytes)
    }

    fn count(&self, bytes: &Bytes, temporary: bool) {
        if !temporary {
            self.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
    }

    /// A reader over all of it, for code that blocks. Made and used wherever, but read only on threads that may block. All
    /// its reads together may take so long from now on.
    pub(super) fn cursor(self: &Arc<Self>, limit: Duration) -> Cursor {
        let now = Instant::now();
        Cursor {
            content: Arc::clone(self),
            until: now.checked_add(limit).unwrap_or(now + Duration::from_secs(1 << 30)),
            stop: CancellationToken::new(),
            at: 0,
            kept: Bytes::new(),
            kept_at: 0,
            failed: None,
            ahead: 0,
        }
    }
}

fn failed(error: &io::Error) -> MediaError {
    MediaError::Internal(format!("reading the file: {}", error.kind()))
}

/// Bytes of a file, fewer only where it ends.
#[cfg(unix)]
pub(super) fn read_at(file: &File, range: Range<u64>) -> io::Result<Bytes> {
    use std::os::unix::fs::FileExt as _;
    let wanted = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
    let mut bytes = vec![0; wanted];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, range.start + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes.into())
}

/// Bytes of a file, fewer only where it ends.
#[cfg(windows)]
pub(super) fn read_at(file: &File, range: Range<u64>) -> io::Result<Bytes> {
    use std::os::windows::fs::FileExt as _;
    let wanted = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
    let mut bytes = vec![0; wanted];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.seek_read(rest, range.start + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    bytes.truncate(filled);
    Ok(bytes.into())
}

/// Reads content from front to back or wherever it is sent, on a thread that may block.
#[derive(Debug)]
pub(super) struct Cursor {
    content: Arc<Content>,
    until: Instant,
    stop: CancellationToken,
    at: u64,
    kept: Bytes,
    kept_at: u64,
    failed: Option<MediaError>,
    /// Bytes read at once last time, from the web.
    ahead: u64,
}

impl Cursor {
    /// Held by the one who waits for what is read: with the value dropped, the read under way on the web and all further
    /// ones fail at once. A thread can't be aborted; this ends it.
    pub(super) fn stopper(&self) -> DropGuard {
        self.stop.clone().drop_guard()
    }

    /// Why reading failed, if it did.
    pub(super) fn into_error(self) -> Option<MediaError> {
        self.failed
    }

    /// Where to stop reading, when so many bytes are asked for here and none are at hand.
    ///
    /// From the web, whole blocks: one after a seek, and ever more for who reads on.
    fn reach(&mut self, asked: usize) -> u64 {
        let asked = (asked as u64).min(READ_MAX_BYTES);
        if self.content.held.remote().is_none() {
            return self.at.saturating_add(asked.max(CURSOR_BYTES));
        }
        let reads_on = !self.kept.is_empty() && self.at == self.kept_at.saturating_add(self.kept.len() as u64);
        self.ahead = if reads_on { self.ahead.saturating_mul(2).min(CURSOR_MAX_BYTES) } else { BLOCK_BYTES };
        let wish = self.at.saturating_add(self.ahead);
        let least = self.at.saturating_add(asked.max(1));
        (wish - wish % BLOCK_BYTES).max(least.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(least))
    }
}

impl Read for Cursor {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let inside = self.at.checked_sub(self.kept_at).and_then(|skip| usize::try_from(skip).ok());
        let mut here = inside.and_then(|skip| self.kept.get(skip..)).unwrap_or_default();
        if here.is_empty() && !buffer.is_empty() {
            let end = self.reach(buffer.len());
            self.kept = self.content.read_blocking(self.at..end, self.until, &self.stop).map_err(|error| {
                let kind = error.kind();
                let told = error.get_ref().and_then(|error| error.downcast_ref::<MediaError>()).cloned();
                self.failed = Some(told.unwrap_or_else(|| failed(&error)));
                io::Error::from(kind)
            })?;
            self.kept_at = self.at;
            here = &self.kept;
        }
        let count = here.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..count), here.get(..count)) {
            to.copy_from_slice(from);
        }
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::End(by) => (self.content.bytes(), by),
            SeekFrom::Current(by) => (self.at, by),
        };
        let before_start = || io::Error::new(io::ErrorKind::InvalidInput, "before the start");
        self.at = base.checked_add_signed(by).ok_or_else(before_start)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn content(bytes: &[u8]) -> Arc<Content> {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("writes");
        Arc::new(Content::file("id".to_owned(), bytes.len() as u64, file, None))
    }

    #[tokio::test]
    async fn ranges_are_read_up_to_the_end_and_counted() {
        let content = content(b"0123456789");
        assert_eq!(content.read(2..5).await.expect("reads"), "234");
        assert_eq!(content.read(8..50).await.expect("reads"), "89");
        assert_eq!(content.read(50..60).await.expect("reads"), "");
        assert_eq!(content.bytes_read(), 5);
    }

    #[test]
    fn a_cursor_reads_as_a_file_does() {
        let bytes: Vec<u8> = (0..20_000_u32).map(|i| (i % 251) as u8).collect();
        let mut cursor = content(&bytes).cursor(Duration::MAX);
        let mut all = Vec::new();
        cursor.read_to_end(&mut all).expect("reads");
        assert_eq!(all, bytes);
        for (to, at) in [(SeekFrom::Start(7000), 7000), (SeekFrom::Current(-6000), 1004), (SeekFrom::End(-4), 19_996)] {
            assert_eq!(cursor.seek(to).expect("seeks"), at);
            let mut four = [0; 4];
            cursor.read_exact(&mut four).expect("reads");
            assert_eq!(four, bytes[at as usize..][..4]);
        }
        assert!(cursor.seek(SeekFrom::Start(90_000)).is_ok() && cursor.read(&mut [0]).expect("reads") == 0);
        assert!(cursor.seek(SeekFrom::Start(0)).is_ok() && cursor.seek(SeekFrom::Current(-1)).is_err());
    }

    #[test]
    fn a_cursor_ends_with_its_time_and_with_those_who_wait() {
        let content = content(&[7; 20_000]);
        let mut late = content.cursor(Duration::ZERO);
        assert!(late.read(&mut [0]).is_err());
        assert!(matches!(late.into_error(), Some(MediaError::Timeout(_))));
        let mut cursor = content.cursor(Duration::MAX);
        let stopper = cursor.stopper();
        assert_eq!(cursor.read(&mut [0]).expect("reads"), 1);
        drop(stopper);
        assert!(cursor.seek(SeekFrom::Start(10_000)).is_ok() && cursor.read(&mut [0]).is_err());
        assert!(cursor.into_error().is_some());
    }
}
