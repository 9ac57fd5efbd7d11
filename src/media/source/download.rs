//! Bytes on their way into a temporary file, within what one video and all of them together may take.
//!
//! This file does not know where the bytes come from.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use super::{Kind, name, too_large};
use crate::media::MediaError;

/// Disk space for temporary files: what may be taken by all and by each source, and what is.
#[derive(Debug)]
pub(in crate::media) struct Storage {
    max_bytes: u64,
    max_share: u64,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: u64,
    /// By source, those that hold some.
    shares: HashMap<Arc<str>, u64>,
}

impl Storage {
    /// So many bytes for all temporary files together, and so many for those from one source.
    pub(in crate::media) fn new(max_bytes: u64, max_share: u64) -> Self {
        Self { max_bytes, max_share, taken: Mutex::default() }
    }

    /// Bytes taken.
    #[cfg(test)]
    pub(in crate::media) fn taken(&self) -> u64 {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Disk space that a file takes or will take. Given back with the value.
#[derive(Debug)]
pub(in crate::media) struct Reservation {
    storage: Arc<Storage>,
    source: Arc<str>,
    bytes: u64,
}

impl Reservation {
    /// Holds at least so many bytes from now on.
    fn cover(&mut self, bytes: u64) -> Result<(), MediaError> {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        let mut taken = self.storage.lock();
        let all = taken.all.saturating_add(more);
        let share = taken.shares.get(&self.source).copied().unwrap_or(0).saturating_add(more);
        if all > self.storage.max_bytes || share > self.storage.max_share {
            return Err(MediaError::Busy);
        }
        taken.all = all;
        taken.shares.insert(Arc::clone(&self.source), share);
        self.bytes = bytes;
        Ok(())
    }

    /// Gives back what is over so many bytes.
    fn shrink(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        let mut taken = self.storage.lock();
        taken.all = taken.all.saturating_sub(less);
        if let Some(share) = taken.shares.get_mut(&self.source) {
            *share = share.saturating_sub(less);
            if *share == 0 {
                taken.shares.remove(&self.source);
            }
        }
        self.bytes = self.bytes.min(bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// A file being filled, counted and hashed. It has no name, so that nothing is left of it however we end.
#[derive(Debug)]
pub(in crate::media) struct Download {
    kind: Kind,
    max_bytes: u64,
    bytes: u64,
    hash: Sha256,
    file: tokio::fs::File,
    reservation: Reservation,
}

/// A downloaded file.
#[derive(Debug)]
pub(in crate::media) struct Downloaded {
    /// From all of its bytes.
    pub(in crate::media) id: String,
    /// Its length.
    pub(in crate::media) bytes: u64,
    /// The file.
    pub(in crate::media) file: File,
    /// The space it takes.
    pub(in crate::media) reservation: Reservation,
}

impl Download {
    /// An empty file for up to so many bytes from a source: a host.
    ///
    /// # Errors
    /// [`MediaError::Internal`] when there is no place for temporary files, [`MediaError::Busy`] when the disk is full.
    pub(in crate::media) fn new(
        kind: Kind,
        max_bytes: u64,
        source: &str,
        storage: &Arc<Storage>,
    ) -> Result<Self, MediaError> {
        let file = tokio::fs::File::from_std(tempfile::tempfile().map_err(|error| failed(&error))?);
        let reservation = Reservation { storage: Arc::clone(storage), source: source.into(), bytes: 0 };
        Ok(Self { kind, max_bytes, bytes: 0, hash: Sha256::new(), file, reservation })
    }

    /// Takes the space for so many bytes in all, before they come: else several that don't fit together would all go on
    /// until none does.
    ///
    /// # Errors
    /// [`MediaError::TooLarge`], and [`MediaError::Busy`] when there is no space for them.
    pub(in crate::media) fn expect(&mut self, bytes: u64) -> Result<(), MediaError> {
        if bytes > self.max_bytes {
            return Err(too_large(self.kind, self.max_bytes));
        }
        self.reservation.cover(bytes)
    }

    /// Bytes until now.
    pub(in crate::media) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// [`MediaError::TooLarge`], [`MediaError::Busy`] when all files together are or the disk is full, or
    /// [`MediaError::Internal`] when it fails.
    pub(in crate::media) async fn write(&mut self, bytes: &[u8]) -> Result<(), MediaError> {
        let all = self.bytes.saturating_add(bytes.len() as u64);
        self.expect(all)?;
        self.bytes = all;
        self.hash.update(bytes);
        self.file.write_all(bytes).await.map_err(|error| failed(&error))
    }

    /// The file, whole.
    ///
    /// # Errors
    /// [`MediaError::Busy`] when the disk is full, [`MediaError::Internal`] when it fails.
    pub(in crate::media) async fn finish(mut self) -> Result<Downloaded, MediaError> {
        self.file.flush().await.map_err(|error| failed(&error))?;
        let file = self.file.into_std().await;
        self.reservation.shrink(self.bytes);
        Ok(Downloaded { id: name("content", self.hash), bytes: self.bytes, file, reservation: self.reservation })
    }
}

fn failed(error: &io::Error) -> MediaError {
    match error.kind() {
        // Others use the disk as well; it gets free again.
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => MediaError::Busy,
        kind => MediaError::Internal(format!("temporary file: {kind}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn space_is_taken_as_files_grow_and_given_back_with_them() {
        let storage = Arc::new(Storage::new(10, 10));
        let start = || Download::new(Kind::Video, 8, "a.test", &storage).expect("starts");
        let (mut first, mut second) = (start(), start());
        first.write(b"123456").await.expect("fits");
        assert!(matches!(second.write(b"12345").await, Err(MediaError::Busy)));
        second.write(b"1234").await.expect("fits");
        assert!(matches!(second.write(b"12345").await, Err(MediaError::TooLarge(_))));
        assert_eq!(storage.taken(), 10);
        drop(second);
        let first = first.finish().await.expect("ends");
        assert_eq!((storage.taken(), first.bytes), (6, 6));
        drop(first);
        assert_eq!(storage.taken(), 0);
    }

    #[tokio::test]
    async fn announced_bytes_are_taken_at_once_and_one_source_leaves_space_for_others() {
        let storage = Arc::new(Storage::new(10, 6));
        let start = |source| Download::new(Kind::Video, 8, source, &storage).expect("starts");
        let (mut first, mut second, mut third) = (start("a.test"), start("a.test"), start("b.test"));
        first.expect(4).expect("fits");
        assert_eq!(storage.taken(), 4);
        assert!(matches!(second.expect(3), Err(MediaError::Busy)), "its share");
        third.expect(6).expect("fits");
        assert!(matches!(second.write(b"1").await, Err(MediaError::Busy)), "all");
        first.write(b"12").await.expect("is taken already");
        let first = first.finish().await.expect("ends");
        assert_eq!(storage.taken(), 2 + 6, "what did not come is given back");
        second.write(b"12").await.expect("fits");
        drop((first, second, third));
        assert!(storage.taken() == 0 && storage.lock().shares.is_empty());
    }

    #[test]
    fn a_full_disk_gets_free_again() {
        assert!(matches!(failed(&io::ErrorKind::StorageFull.into()), MediaError::Busy));
        assert!(matches!(failed(&io::ErrorKind::PermissionDenied.into()), MediaError::Internal(_)));
    }
}
