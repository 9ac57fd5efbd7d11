//! Uploaded files: kept in a folder within bounds, until they are deleted or their time is up.
//!
//! ```text
//! Uploads::admit ──► Turn::begin ──► Incoming::write … ──► Incoming::keep ──► Stored
//!                                    <id>.part                                <id>, <id>.json
//! ```
//! All that is known of a file lies beside it, so that what one server keeps another one finds: limits and lists are read
//! from the folder. An upload that is dropped before its end leaves nothing.
//!
//! This file knows nothing of HTTP. What a file's owner is called is the caller's affair.

mod folder;
mod format;
mod incoming;

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::config::FilesConfig;
use folder::Folder;
pub use incoming::{Incoming, Turn};

/// What a file can't be kept or had for. Messages are fit for callers.
#[derive(Debug, Clone, thiserror::Error)]
pub enum UploadError {
    /// Too many bytes.
    #[error("the file is larger than the {0} bytes this server takes")]
    TooLarge(u64),
    /// All files together are as many, or take as many bytes, as they may.
    #[error("the server holds as many files as it can: delete some, or wait until they expire")]
    Full,
    /// The files of this owner are as many, or take as many bytes, as they may.
    #[error("the files of this key take as much as they may: delete some, or wait until they expire")]
    ShareFull,
    /// Too many uploads at the same time.
    #[error("too many files are being uploaded, try again in a moment")]
    Busy,
    /// There is none of this name, or it is somebody else's.
    #[error("there is no such file")]
    NotFound,
    /// A fault of the machine's.
    #[error("the file could not be stored: {0}")]
    Storage(String),
}

impl UploadError {
    fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                tracing::error!(%error, "no disk space is left for uploads");
                Self::Full
            }
            _ => Self::Storage(error.to_string()),
        }
    }
}

/// The name of a file: when it came, and a number that can't be guessed. Names are in the order of time, so that a list goes
/// on after a file that is gone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct FileId(String);

impl FileId {
    const PREFIX: &str = "file-";
    /// 48 bits of milliseconds, 128 of chance.
    const DIGITS: usize = 12 + 32;

    fn new(ms: u64) -> Self {
        let ms = ms & 0xffff_ffff_ffff;
        Self(format!("{}{ms:012x}{}", Self::PREFIX, uuid::Uuid::new_v4().simple()))
    }

    /// Reads a name. Nothing else ever becomes part of a path.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(Self::PREFIX)?;
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (digits.len() == Self::DIGITS && digits.bytes().all(is_hex)).then(|| Self(text.to_owned()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for FileId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("no name of a file")
    }
}

/// What an upload says of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// Its name at the caller's, for people. It never becomes part of a path.
    pub filename: String,
    /// What it is for.
    pub purpose: String,
    /// Seconds to keep it, in place of the configured ones.
    pub expire_after_s: Option<u64>,
}

/// What is known of a file. It lies beside it as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Its name.
    pub id: FileId,
    /// Whose it is.
    owner: String,
    /// Its name at the caller's.
    pub filename: String,
    /// What it is for.
    pub purpose: String,
    /// Its length.
    pub bytes: u64,
    /// When it was complete, in seconds since 1970.
    pub created_at: u64,
    /// From when on it is gone.
    pub expires_at: u64,
    /// What it is by its first bytes.
    pub media_type: String,
}

impl Stored {
    fn is_for(&self, owner: &str, now: Duration) -> bool {
        self.owner == owner && !self.is_over(now)
    }

    fn is_over(&self, now: Duration) -> bool {
        self.expires_at <= now.as_secs()
    }
}

/// A file as a question names it: looked up, and opened when it is needed. Once open it can be deleted.
#[derive(Clone)]
pub struct Upload {
    folder: Arc<Folder>,
    stored: Arc<Stored>,
}

impl Upload {
    /// What is known of it.
    #[must_use]
    pub fn stored(&self) -> &Stored {
        &self.stored
    }

    /// Whether it is a still picture by its first bytes.
    #[must_use]
    pub fn is_picture(&self) -> bool {
        format::is_picture(&self.stored.media_type)
    }

    /// Opens it for reading. Blocks.
    ///
    /// # Errors
    /// When it was deleted since, or no longer is a regular file.
    pub(super) fn open_blocking(&self) -> io::Result<File> {
        self.folder.open(&self.stored.id)
    }

    /// Opens it for reading.
    ///
    /// # Errors
    /// [`UploadError::NotFound`] when it was deleted since.
    pub async fn open(&self) -> Result<File, UploadError> {
        let upload = self.clone();
        blocking(move || upload.open_blocking().map_err(|_| UploadError::NotFound)).await
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Upload").field(&self.stored.id).finish()
    }
}

impl PartialEq for Upload {
    fn eq(&self, other: &Self) -> bool {
        self.stored.id == other.stored.id
    }
}

impl Eq for Upload {}

/// Which files a list holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Only those for this.
    pub purpose: Option<String>,
    /// Only those after this one in the order asked for, whether it still exists or not.
    pub after: Option<FileId>,
    /// The oldest first.
    pub oldest_first: bool,
    /// At most so many.
    pub limit: usize,
}

/// Tells the time since 1970.
type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// All uploaded files. Cheap to clone.
#[derive(Clone)]
pub struct Uploads {
    inner: Arc<Inner>,
}

struct Inner {
    config: FilesConfig,
    clock: Clock,
    folder: Arc<Folder>,
    /// Uploads under way in this process.
    under_way: Mutex<UnderWay>,
    /// Told when none is any more.
    idle: Notify,
    /// Bytes of all files when they were last counted.
    bytes: AtomicU64,
    /// The millisecond of the latest name.
    named: AtomicU64,
}

#[derive(Debug, Default)]
struct UnderWay {
    turns: usize,
    turns_of: HashMap<Arc<str>, usize>,
    /// Whose a file is that is not complete yet. The folder does not know.
    owners: HashMap<FileId, Arc<str>>,
}

impl fmt::Debug for Uploads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uploads").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

impl Uploads {
    /// Opens the folder, or makes one for this process.
    ///
    /// # Errors
    /// [`UploadError::Storage`] when that fails.
    pub fn new(config: FilesConfig) -> Result<Self, UploadError> {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::with_clock(config, clock)
    }

    /// As [`Self::new`], with another opinion on the time.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_clock(
        config: FilesConfig,
        clock: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Result<Self, UploadError> {
        let folder = Folder::new(config.directory.as_deref()).map_err(|error| UploadError::of(&error))?;
        let inner = Inner {
            config,
            clock: Arc::new(clock),
            folder: Arc::new(folder),
            under_way: Mutex::default(),
            idle: Notify::new(),
            bytes: AtomicU64::new(0),
            named: AtomicU64::new(0),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Its limits.
    #[must_use]
    pub fn config(&self) -> &FilesConfig {
        &self.inner.config
    }

    fn now(&self) -> Duration {
        (self.inner.clock)()
    }

    fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        self.inner.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One file of this owner's.
    ///
    /// # Errors
    /// [`UploadError::NotFound`].
    pub async fn get(&self, owner: &str, id: &FileId) -> Result<Upload, UploadError> {
        let (uploads, owner, id) = (self.clone(), owner.to_owned(), id.clone());
        blocking(move || uploads.get_blocking(&owner, &id)).await
    }

    fn get_blocking(&self, owner: &str, id: &FileId) -> Result<Upload, UploadError> {
        let folder = &self.inner.folder;
        let stored = folder.read(id).filter(|stored| stored.is_for(owner, self.now()));
        stored.map(|stored| Upload { folder: Arc::clone(folder), stored }).ok_or(UploadError::NotFound)
    }

    /// Some files of this owner's, and whether there are more.
    ///
    /// # Errors
    /// [`UploadError::Storage`] when the folder can't be read.
    pub async fn list(&self, owner: &str, listing: Listing) -> Result<(Vec<Arc<Stored>>, bool), UploadError> {
        let (uploads, owner) = (self.clone(), owner.to_owned());
        blocking(move || {
            let now = uploads.now();
            let mut found = uploads.inner.folder.scan().map_err(|error| UploadError::of(&error))?.stored;
            let passed = |id: &FileId| match &listing.after {
                Some(after) if listing.oldest_first => id > after,
                Some(after) => id < after,
                None => true,
            };
            found.retain(|stored| {
                let meant = listing.purpose.as_ref().is_none_or(|purpose| *purpose == stored.purpose);
                meant && stored.is_for(&owner, now) && passed(&stored.id)
            });
            found.sort_unstable_by(|a, b| if listing.oldest_first { a.id.cmp(&b.id) } else { b.id.cmp(&a.id) });
            let more = found.len() > listing.limit;
            found.truncate(listing.limit);
            Ok((found, more))
        })
        .await
    }

    /// Removes a file of this owner's, at once. Who has it open goes on reading.
    ///
    /// # Errors
    /// [`UploadError::NotFound`], [`UploadError::Storage`].
    pub async fn delete(&self, owner: &str, id: &FileId) -> Result<(), UploadError> {
        let (uploads, owner, id) = (self.clone(), owner.to_owned(), id.clone());
        blocking(move || {
            let locked = uploads.inner.folder.lock().map_err(|error| UploadError::of(&error))?;
            uploads.get_blocking(&owner, &id)?;
            locked.remove(&id).map_err(|error| UploadError::of(&error))?;
            drop(locked);
            uploads.count().map(drop)
        })
        .await
    }

    /// Removes what has expired, and what a process that ended in the middle left behind.
    ///
    /// # Errors
    /// [`UploadError::Storage`] when the folder can't be read.
    pub async fn sweep(&self) -> Result<(), UploadError> {
        let uploads = self.clone();
        blocking(move || {
            let locked = uploads.inner.folder.lock().map_err(|error| UploadError::of(&error))?;
            locked.sweep(uploads.now()).map_err(|error| UploadError::of(&error))?;
            drop(locked);
            uploads.count().map(drop)
        })
        .await
    }

    /// Bytes of all files, as they were last counted.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.inner.bytes.load(Ordering::Relaxed)
    }

    /// Returns when no upload is under way. Meant for draining, when no new ones come.
    pub async fn idle(&self) {
        loop {
            // Listens before it looks.
            let told = self.inner.idle.notified();
            if self.under_way().turns == 0 {
                return;
            }
            told.await;
        }
    }

    /// Removes the folder, where it is this process's own. Nothing can be kept from here on.
    pub async fn close(&self) {
        let folder = Arc::clone(&self.inner.folder);
        // It goes with the value in any case: this is for values that somebody forgets.
        let _ = tokio::task::spawn_blocking(move || folder.close()).await;
    }

    /// A name after all that this process gave before: two files of one millisecond are in order, too.
    fn name(&self, now: Duration) -> FileId {
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let next = |last: u64| now.max(last.saturating_add(1));
        let last = self.inner.named.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(next(last)));
        FileId::new(next(last.unwrap_or_else(|last| last)))
    }

    /// What is in the folder.
    fn count(&self) -> Result<folder::Scan, UploadError> {
        let scan = self.inner.folder.scan().map_err(|error| UploadError::of(&error))?;
        self.inner.bytes.store(scan.bytes(), Ordering::Relaxed);
        Ok(scan)
    }
}

/// Does what may wait for a disk where that holds up nobody.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, UploadError> + Send + 'static,
) -> Result<T, UploadError> {
    let broken = |_| UploadError::Storage("a task broke off".to_owned());
    tokio::task::spawn_blocking(work).await.map_err(broken)?
}

#[cfg(test)]
mod tests;
