//! The folder: `<id>` is a file, `<id>.json` what is known of it, `<id>.part` a file on its way, `.lock` whose turn it is to
//! change anything. A file is there when its JSON is, which comes last and goes first.
//!
//! Everything here blocks. All names are made from a [`FileId`] and looked up in the folder as it was opened, never through a
//! link. Several processes may share the folder: a lock on it goes with the process that holds it, and so does the lock on a
//! part, so that what a dead one left is known from what a living one writes.

use std::collections::HashMap;
use std::ffi::CStr;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use tempfile::TempDir;

use super::{FileId, Stored};

const LOCK: &str = ".lock";
const JSON: &str = ".json";
const PART: &str = ".part";
const JSON_PART: &str = ".json.part";
/// What a process's own folder is called, and some digits.
const OWN: &str = "paravt-files-";
/// In a process's own folder: locked as long as the process lives.
const ALIVE: &str = ".alive";
/// Longest JSON that is read. A name of 255 bytes, twice as long in JSON, is the longest of it.
const JSON_MAX: u64 = 16 << 10;

/// The folder, opened once.
#[derive(Debug)]
pub(super) struct Folder {
    handle: File,
    /// What was read of it. A file's JSON never changes.
    known: Mutex<HashMap<FileId, Arc<Stored>>>,
    /// The folder, where it is this process's own, and what says that the process lives.
    own: Mutex<Option<(TempDir, File)>>,
}

/// What is in the folder.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Files, expired ones too.
    pub(super) stored: Vec<Arc<Stored>>,
    /// Files on their way, with the bytes they take.
    pub(super) parts: Vec<(FileId, u64)>,
    /// Files without JSON.
    data: Vec<FileId>,
    /// JSON on its way.
    json_parts: Vec<FileId>,
}

impl Scan {
    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        let stored: u64 = self.stored.iter().map(|stored| stored.bytes).sum();
        self.parts.iter().fold(stored, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// All files.
    pub(super) fn files(&self) -> usize {
        self.stored.len() + self.parts.len()
    }
}

/// The right to change what is in the folder: nobody else does meanwhile, in this process or another.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    folder: &'a Folder,
    _lock: File,
}

impl Folder {
    /// Opens it and makes it where it is missing; `None` makes one that goes with the value. Nobody else may look into what
    /// is made here.
    ///
    /// # Errors
    /// When it can't be made or opened.
    pub(super) fn new(path: Option<&Path>) -> io::Result<Self> {
        let own = match path {
            Some(path) => {
                DirBuilder::new().recursive(true).mode(0o700).create(path)?;
                None
            }
            None => {
                remove_abandoned(&std::env::temp_dir());
                let folder =
                    tempfile::Builder::new().prefix(OWN).permissions(Permissions::from_mode(0o700)).tempdir()?;
                let alive = tempfile::NamedTempFile::new_in(folder.path())?;
                alive.as_file().lock()?;
                // Under its name only once it is locked.
                let alive = alive.persist(folder.path().join(ALIVE))?;
                Some((folder, alive))
            }
        };
        let path = own.as_ref().map(|(folder, _)| folder.path()).or(path).unwrap_or_else(|| Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        Ok(Self { handle, known: Mutex::default(), own: Mutex::new(own) })
    }

    /// Removes it, where it is this process's own.
    pub(super) fn close(&self) {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = own.map(|(folder, _)| folder.close()) {
            tracing::warn!(%error, "the folder of uploaded files could not be removed");
        }
    }

    /// Where it is, where it is this process's own.
    #[cfg(test)]
    pub(super) fn own_path(&self) -> Option<std::path::PathBuf> {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.as_ref().map(|(folder, _)| folder.path().to_owned())
    }

    /// Waits for its turn.
    ///
    /// # Errors
    /// When there is no lock to be had, as on a file system that has none.
    pub(super) fn lock(&self) -> io::Result<Locked<'_>> {
        let lock = self.at(LOCK, OFlags::CREATE | OFlags::RDWR)?;
        lock.lock()?;
        Ok(Locked { folder: self, _lock: lock })
    }

    /// A regular file for reading.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn open(&self, id: &FileId) -> io::Result<File> {
        self.regular(id.as_str())
    }

    /// What is known of a file.
    pub(super) fn read(&self, id: &FileId) -> Option<Arc<Stored>> {
        let mut text = Vec::new();
        let file = self.regular(&format!("{}{JSON}", id.as_str())).ok()?;
        file.take(JSON_MAX).read_to_end(&mut text).ok()?;
        // What is not ours is not there.
        serde_json::from_slice::<Stored>(&text).ok().filter(|stored| stored.id == *id).map(Arc::new)
    }

    /// All there is. JSON is read once.
    ///
    /// # Errors
    /// When the folder can't be read.
    pub(super) fn scan(&self) -> io::Result<Scan> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut found, mut scan) = (HashMap::with_capacity(known.len()), Scan::default());
        for entry in Dir::read_from(&self.handle)? {
            let entry = entry?;
            let Some((id, ending)) = parse(entry.file_name()) else { continue };
            match ending {
                JSON => {
                    if let Some(stored) = known.get(&id).cloned().or_else(|| self.read(&id)) {
                        found.insert(id, Arc::clone(&stored));
                        scan.stored.push(stored);
                    }
                }
                PART => {
                    // It may be complete, or gone, by now.
                    if let Ok(stat) = rustix::fs::statat(&self.handle, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                        scan.parts.push((id, u64::try_from(stat.st_size).unwrap_or_default()));
                    }
                }
                JSON_PART => scan.json_parts.push(id),
                _ => scan.data.push(id),
            }
        }
        scan.data.retain(|id| !found.contains_key(id));
        *known = found;
        Ok(scan)
    }

    /// Removes a part, if there is one. It needs no turn: only its writer knows it.
    pub(super) fn discard(&self, id: &FileId) {
        let _ = self.unlink(id, PART);
    }

    fn regular(&self, name: &str) -> io::Result<File> {
        let file = self.at(name, OFlags::RDONLY)?;
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Opens a name in the folder: no link is followed, a pipe does not wait for its writer.
    fn at(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(&self.handle, name, flags, Mode::RUSR | Mode::WUSR)?))
    }

    fn rename(&self, id: &FileId, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (format!("{}{from}", id.as_str()), format!("{}{to}", id.as_str()));
        Ok(rustix::fs::renameat(&self.handle, from, &self.handle, to)?)
    }

    fn unlink(&self, id: &FileId, ending: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.handle, format!("{}{ending}", id.as_str()), AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            other => Ok(other?),
        }
    }
}

/// Removes the folders of processes that were killed before they could: those of this user in which nobody holds the lock.
fn remove_abandoned(below: &Path) {
    let Ok(entries) = std::fs::read_dir(below) else { return };
    let ours = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(OWN));
    for path in ours.map(|entry| entry.path()).filter(|path| is_abandoned(path)) {
        tracing::info!(folder = %path.display(), "removing the uploads of a process that was killed");
        if let Err(error) = std::fs::remove_dir_all(&path) {
            tracing::warn!(%error, "they could not be removed");
        }
    }
}

fn is_abandoned(path: &Path) -> bool {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let open = || {
        let folder = rustix::fs::open(path, flags | OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let alive = rustix::fs::openat(&folder, ALIVE, flags | OFlags::RDWR, Mode::empty())?;
        io::Result::Ok((File::from(folder).metadata()?, File::from(alive)))
    };
    open().is_ok_and(|(folder, alive)| folder.uid() == rustix::process::getuid().as_raw() && alive.try_lock().is_ok())
}

impl Locked<'_> {
    /// A new part, held by its writer as long as the handle is open.
    ///
    /// # Errors
    /// When it can't be made.
    pub(super) fn create(&self, id: &FileId) -> io::Result<File> {
        let file = self.folder.at(&format!("{}{PART}", id.as_str()), OFlags::CREATE | OFlags::EXCL | OFlags::RDWR)?;
        file.lock()?;
        Ok(file)
    }

    /// Makes a part a file.
    ///
    /// # Errors
    /// When something can't be written; then there is no file.
    pub(super) fn commit(&self, stored: &Stored) -> io::Result<()> {
        let (folder, id) = (self.folder, &stored.id);
        let write = || {
            folder.rename(id, PART, "")?;
            let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY;
            let mut json = folder.at(&format!("{}{JSON_PART}", id.as_str()), flags)?;
            json.write_all(&serde_json::to_vec(stored)?)?;
            folder.rename(id, JSON_PART, JSON)
        };
        write().inspect_err(|_| drop(self.remove(id)))
    }

    /// Removes a file.
    ///
    /// # Errors
    /// When that fails.
    pub(super) fn remove(&self, id: &FileId) -> io::Result<()> {
        self.folder.unlink(id, JSON)?;
        self.folder.unlink(id, JSON_PART)?;
        self.folder.unlink(id, "")
    }

    /// Removes what has expired, and what was left by processes that ended in the middle.
    ///
    /// # Errors
    /// When the folder can't be read.
    pub(super) fn sweep(&self, now: Duration) -> io::Result<()> {
        let scan = self.folder.scan()?;
        let over = scan.stored.iter().filter(|stored| stored.is_over(now)).map(|stored| &stored.id);
        for id in over.chain(&scan.data).chain(&scan.json_parts) {
            self.remove(id)?;
        }
        for (id, _) in &scan.parts {
            let part = self.folder.regular(&format!("{}{PART}", id.as_str()));
            if part.is_ok_and(|part| part.try_lock().is_ok()) {
                self.folder.discard(id);
            }
        }
        Ok(())
    }
}

/// Whose name it is, and its ending. What is not ours has neither.
fn parse(name: &CStr) -> Option<(FileId, &'static str)> {
    let name = name.to_str().ok()?;
    let ending = [JSON_PART, JSON, PART].into_iter().find(|ending| name.ends_with(ending)).unwrap_or_default();
    Some((FileId::parse(name.strip_suffix(ending)?)?, ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_a_dead_process_is_removed_and_that_of_a_living_one_is_not() {
        let below = tempfile::tempdir().expect("a folder");
        let made = |name: &str, alive: bool| {
            let path = below.path().join(name);
            std::fs::create_dir(&path).expect("made");
            std::fs::write(path.join(if alive { ALIVE } else { "file" }), "").expect("written");
            path
        };
        let (dead, living) = (made(&format!("{OWN}dead"), true), made(&format!("{OWN}living"), true));
        let (unknown, other) = (made(&format!("{OWN}unknown"), false), made("else", true));
        let held = File::open(living.join(ALIVE)).expect("opens");
        held.lock().expect("locks");
        std::os::unix::fs::symlink(&other, below.path().join(format!("{OWN}link"))).expect("made");
        remove_abandoned(below.path());
        assert!(!dead.exists());
        assert!(living.exists() && unknown.exists() && other.join(ALIVE).exists());
    }

    #[test]
    fn a_process_holds_its_own_folder() {
        let folder = Folder::new(None).expect("a folder");
        let path = folder.own_path().expect("its own");
        assert!(path.join(ALIVE).exists() && !is_abandoned(&path));
        folder.scan().expect("is none of the files");
    }
}
