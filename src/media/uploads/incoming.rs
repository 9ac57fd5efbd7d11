//! A file on its way: a place among the uploads, then bytes, then its name.
//!
//! Space is taken before bytes come: all that the client told of where it did, else in steps. Two uploads that don't fit
//! together are so found out at the second's beginning, not at the end of both.

use std::fs::File;
use std::sync::Arc;

use tokio::io::{AsyncWriteExt as _, BufWriter};

use super::folder::{Locked, Scan};
use super::{About, FileId, Inner, Stored, UploadError, Uploads, blocking, format};

/// Bytes taken at once where the length is not known before.
const STEP: u64 = 64 << 20;
/// What a request may hold beside the file: its other fields, and what separates them.
pub(super) const AROUND: u64 = 4 << 10;
/// Bytes collected before they are written.
const BUFFER: usize = 256 << 10;

/// A place among the uploads of this process, given back with the value.
#[derive(Debug)]
pub struct Turn {
    uploads: Uploads,
    owner: Arc<str>,
    told: u64,
}

impl Uploads {
    /// A place for an upload of this owner's; `told` is the length of the request, where it is known.
    ///
    /// # Errors
    /// [`UploadError::Busy`] when all places are taken, [`UploadError::TooLarge`] for what is known to be.
    pub fn admit(&self, owner: &str, told: Option<u64>) -> Result<Turn, UploadError> {
        let config = &self.inner.config;
        let told = told.unwrap_or_default().saturating_sub(AROUND);
        if told > config.max_bytes {
            return Err(UploadError::TooLarge(config.max_bytes));
        }
        let owner: Arc<str> = owner.into();
        let mut under_way = self.under_way();
        let theirs = under_way.turns_of.get(&owner).copied().unwrap_or_default();
        if under_way.turns >= config.max_uploads || (theirs >= half(config.max_uploads) && !owner.is_empty()) {
            return Err(UploadError::Busy);
        }
        under_way.turns += 1;
        under_way.turns_of.insert(Arc::clone(&owner), theirs + 1);
        Ok(Turn { uploads: self.clone(), owner, told })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut under_way = self.uploads.under_way();
        under_way.turns = under_way.turns.saturating_sub(1);
        if under_way.turns == 0 {
            self.uploads.inner.idle.notify_waiters();
        }
        if let Some(theirs) = under_way.turns_of.get_mut(&self.owner) {
            *theirs = theirs.saturating_sub(1);
            if *theirs == 0 {
                under_way.turns_of.remove(&self.owner);
            }
        }
    }
}

impl Turn {
    /// Begins the file, if there is space for what was told of it.
    ///
    /// # Errors
    /// [`UploadError::Full`], [`UploadError::ShareFull`], [`UploadError::Storage`].
    pub async fn begin(self) -> Result<Incoming, UploadError> {
        blocking(move || {
            let uploads = self.uploads.clone();
            let (inner, now) = (&uploads.inner, uploads.now());
            let locked = inner.folder.lock().map_err(|error| UploadError::of(&error))?;
            locked.sweep(now).map_err(|error| UploadError::of(&error))?;
            let scan = inner.folder.scan().map_err(|error| UploadError::of(&error))?;
            inner.number_fits(&scan, &self.owner)?;
            let part = Part { turn: self, id: uploads.name(now) };
            let file = locked.create(&part.id).map_err(|error| UploadError::of(&error))?;
            let size = file.try_clone().map_err(|error| UploadError::of(&error))?;
            uploads.under_way().owners.insert(part.id.clone(), Arc::clone(&part.turn.owner));
            let reserved = part.turn.told;
            inner.reserve(&locked, &part, &size, 0, reserved)?;
            let writer = BufWriter::with_capacity(BUFFER, tokio::fs::File::from_std(file));
            drop(locked);
            Ok(Incoming { size: Arc::new(size), reserved, written: 0, head: Vec::new(), writer, part: Arc::new(part) })
        })
        .await
    }
}

/// A part by its name. Dropped, it is gone, unless it has become a file.
#[derive(Debug)]
struct Part {
    turn: Turn,
    id: FileId,
}

impl Drop for Part {
    fn drop(&mut self) {
        let inner = &self.turn.uploads.inner;
        inner.folder.discard(&self.id);
        self.turn.uploads.under_way().owners.remove(&self.id);
    }
}

/// A file on its way. Dropped before [`Self::keep`], nothing is left of it.
#[derive(Debug)]
pub struct Incoming {
    writer: BufWriter<tokio::fs::File>,
    /// The same file.
    size: Arc<File>,
    reserved: u64,
    written: u64,
    /// Its first bytes.
    head: Vec<u8>,
    // Last: the part goes when nobody writes to it any more.
    part: Arc<Part>,
}

impl Incoming {
    /// Writes what has come.
    ///
    /// # Errors
    /// [`UploadError::TooLarge`], [`UploadError::Full`], [`UploadError::ShareFull`], [`UploadError::Storage`].
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), UploadError> {
        let max_bytes = self.part.turn.uploads.inner.config.max_bytes;
        let written = self.written.saturating_add(bytes.len() as u64);
        if written > max_bytes {
            return Err(UploadError::TooLarge(max_bytes));
        }
        if written > self.reserved {
            self.grow(written, written.saturating_add(STEP).min(max_bytes)).await?;
        }
        let missing = format::HEAD.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(bytes.get(..missing).unwrap_or_default());
        self.writer.write_all(bytes).await.map_err(|error| UploadError::of(&error))?;
        self.written = written;
        Ok(())
    }

    /// Bytes until now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.written
    }

    /// Takes more space: as much as is wished for, or at least what is needed.
    async fn grow(&mut self, least: u64, wish: u64) -> Result<(), UploadError> {
        let (part, size, before) = (Arc::clone(&self.part), Arc::clone(&self.size), self.reserved);
        self.reserved = blocking(move || {
            let inner = &part.turn.uploads.inner;
            let locked = inner.folder.lock().map_err(|error| UploadError::of(&error))?;
            match inner.reserve(&locked, &part, &size, before, wish) {
                Ok(()) => Ok(wish),
                Err(UploadError::Full | UploadError::ShareFull) => {
                    inner.reserve(&locked, &part, &size, before, least).map(|()| least)
                }
                Err(error) => Err(error),
            }
        })
        .await?;
        Ok(())
    }

    /// All has come: from here on the file is there.
    ///
    /// # Errors
    /// [`UploadError::Storage`], and [`UploadError::ShareFull`] when the owner's files have become too many meanwhile, by
    /// uploads to another server.
    pub async fn keep(mut self, about: About) -> Result<Arc<Stored>, UploadError> {
        self.writer.flush().await.map_err(|error| UploadError::of(&error))?;
        let Self { writer, size, written, head, part, .. } = self;
        blocking(move || {
            let Part { turn, id } = &*part;
            let inner = &turn.uploads.inner;
            let now = turn.uploads.now().as_secs();
            let stored = Stored {
                id: id.clone(),
                owner: turn.owner.to_string(),
                filename: about.filename,
                purpose: about.purpose,
                bytes: written,
                created_at: now,
                expires_at: now.saturating_add(about.expire_after_s.unwrap_or(inner.config.expire_after_s)),
                media_type: format::media_type(&head).to_owned(),
            };
            size.set_len(written).map_err(|error| UploadError::of(&error))?;
            let locked = inner.folder.lock().map_err(|error| UploadError::of(&error))?;
            let scan = inner.folder.scan().map_err(|error| UploadError::of(&error))?;
            inner.share_fits(&scan, &turn.owner, 0)?;
            locked.commit(&stored).map_err(|error| UploadError::of(&error))?;
            drop((locked, writer));
            turn.uploads.count()?;
            Ok(Arc::new(stored))
        })
        .await
    }
}

impl Inner {
    /// Takes space: the part is as long as what it has taken, so that every process counts it.
    fn reserve(&self, _: &Locked<'_>, part: &Part, size: &File, before: u64, bytes: u64) -> Result<(), UploadError> {
        let more = bytes.saturating_sub(before);
        if more == 0 {
            return Ok(());
        }
        let scan = self.folder.scan().map_err(|error| UploadError::of(&error))?;
        if scan.bytes().saturating_add(more) > self.config.quota_bytes {
            return Err(UploadError::Full);
        }
        self.share_fits(&scan, &part.turn.owner, more)?;
        size.set_len(bytes).map_err(|error| UploadError::of(&error))
    }

    /// Whether so many bytes more are within the owner's share. Parts of other processes count only once they are files.
    fn share_fits(&self, scan: &Scan, owner: &Arc<str>, more: u64) -> Result<(), UploadError> {
        if owner.is_empty() {
            return Ok(());
        }
        let taken = self.theirs(scan, owner).fold(more, u64::saturating_add);
        if taken > self.config.owner_quota_bytes { Err(UploadError::ShareFull) } else { Ok(()) }
    }

    /// Whether there may be one more file.
    fn number_fits(&self, scan: &Scan, owner: &Arc<str>) -> Result<(), UploadError> {
        if scan.files() >= self.config.max_files {
            return Err(UploadError::Full);
        }
        if !owner.is_empty() && self.theirs(scan, owner).count() >= half(self.config.max_files) {
            return Err(UploadError::ShareFull);
        }
        Ok(())
    }

    /// Bytes of each of the owner's files, as far as it is known whose they are.
    fn theirs<'a>(&self, scan: &'a Scan, owner: &'a Arc<str>) -> impl Iterator<Item = u64> + use<'a> {
        let owners = self.under_way.lock().unwrap_or_else(std::sync::PoisonError::into_inner).owners.clone();
        let parts = scan.parts.iter().filter(move |(id, _)| owners.get(id) == Some(owner)).map(|(_, bytes)| *bytes);
        let stored = scan.stored.iter().filter(|stored| *stored.owner == **owner).map(|stored| stored.bytes);
        stored.chain(parts)
    }
}

/// What one key may have of something.
fn half(all: usize) -> usize {
    all.div_ceil(2)
}
