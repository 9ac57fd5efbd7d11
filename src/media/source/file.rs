//! Files on this machine: which may be read, opening them without a gap between check and use, and telling one from another.
//!
//! This file does not know the formats of URLs other than `file://`.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use url::Url;

use super::{Kind, name, too_large};
use crate::media::MediaError;
use crate::media::content::{Content, read_at};
use crate::media::uploads::Upload;

/// Bytes of a file's head and tail that are part of its identity.
const EDGE: u64 = 64 << 10;

/// A path that was looked at, and the folder it must still be below when it is opened.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    folder: Option<PathBuf>,
}

/// A path the operator names: any file.
///
/// # Errors
/// [`MediaError::NotFound`].
pub(super) async fn trusted(path: &Path, kind: Kind) -> Result<Place, MediaError> {
    let path = canonical(path).await.ok_or_else(|| missing(kind))?;
    Ok(Place { path, folder: None })
}

/// The place of a `file://` URL when it is below an allowed folder, with all symlinks resolved.
///
/// What is elsewhere is refused in the same words whether it exists or not.
///
/// # Errors
/// [`MediaError::Forbidden`], [`MediaError::NotFound`] for what is missing in an allowed folder, [`MediaError::BadSource`].
pub(super) async fn allowed(url: &Url, kind: Kind, directories: &[PathBuf]) -> Result<Place, MediaError> {
    if directories.is_empty() {
        return Err(forbidden());
    }
    let odd = || MediaError::BadSource("a file URL looks like file:///folder/video.mp4".to_owned());
    if url.host().is_some() {
        // On some systems a host makes it a path on another machine, which would be asked already by looking.
        return Err(odd());
    }
    let path = url.to_file_path().map_err(|()| odd())?;
    let mut folders = Vec::new();
    for folder in directories {
        folders.extend(canonical(folder).await);
    }
    let folder_of = |path: &Path| folders.iter().find(|folder| path.starts_with(folder)).cloned();
    if let Some(real) = canonical(&path).await {
        let folder = folder_of(&real).ok_or_else(forbidden)?;
        return Ok(Place { path: real, folder: Some(folder) });
    }
    // Only one who may read the folder is told that the file is missing. The deepest folder that exists decides.
    for ancestor in path.ancestors().skip(1) {
        if let Some(real) = canonical(ancestor).await {
            return Err(if folder_of(&real).is_some() { missing(kind) } else { forbidden() });
        }
    }
    Err(forbidden())
}

/// Opens a file in place: regular, not too large, and known by where it is, its size, its age, its head and its tail.
///
/// # Errors
/// [`MediaError::Forbidden`] when it is no longer below its folder, [`MediaError::NotFound`], [`MediaError::BadSource`] for
/// what is no regular file, [`MediaError::TooLarge`].
pub(super) async fn open(place: Place, kind: Kind, max_bytes: u64) -> Result<Content, MediaError> {
    blocking(move || open_blocking(&place, kind, max_bytes)).await
}

/// As [`open`], for an uploaded file. Deleted from here on, it stays readable as long as it is held.
///
/// # Errors
/// [`MediaError::NotFound`] when it was deleted since it was looked up, [`MediaError::TooLarge`].
pub(super) async fn open_upload(upload: Upload, kind: Kind, max_bytes: u64) -> Result<Content, MediaError> {
    blocking(move || {
        let file = upload.open_blocking().map_err(|_| missing(kind))?;
        content(file, upload.stored().id.as_str().as_bytes(), kind, max_bytes)
    })
    .await
}

async fn blocking(open: impl FnOnce() -> Result<Content, MediaError> + Send + 'static) -> Result<Content, MediaError> {
    let opened = tokio::task::spawn_blocking(open).await;
    opened.map_err(|_| MediaError::Internal("opening broke off".to_owned()))?
}

fn open_blocking(place: &Place, kind: Kind, max_bytes: u64) -> Result<Content, MediaError> {
    let unreadable = |_| missing(kind);
    let file = match &place.folder {
        None => readable(&place.path).map_err(unreadable)?,
        Some(folder) => {
            let below = place.path.strip_prefix(folder).map_err(|_| forbidden())?;
            match open_below(folder, below) {
                Ok(Some(file)) => file,
                Ok(None) => return Err(forbidden()),
                Err(_) => return Err(missing(kind)),
            }
        }
    };
    content(file, place.path.as_os_str().as_encoded_bytes(), kind, max_bytes)
}

/// What was opened by this name. All is asked of the handle: what the name leads to may change.
fn content(file: File, place: &[u8], kind: Kind, max_bytes: u64) -> Result<Content, MediaError> {
    let unreadable = |_| missing(kind);
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(MediaError::BadSource(format!("the {} is not a regular file", kind.name())));
    }
    let bytes = metadata.len();
    if bytes > max_bytes {
        return Err(too_large(kind, max_bytes));
    }
    let mut hash = Sha256::new();
    hash.update(place);
    hash.update(bytes.to_le_bytes());
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        for number in [metadata.dev(), metadata.ino()] {
            hash.update(number.to_le_bytes());
        }
        for number in [metadata.mtime(), metadata.mtime_nsec()] {
            hash.update(number.to_le_bytes());
        }
    }
    hash.update(read_at(&file, 0..EDGE.min(bytes)).map_err(unreadable)?);
    if bytes > EDGE {
        hash.update(read_at(&file, (bytes - EDGE).max(EDGE)..bytes).map_err(unreadable)?);
    }
    Ok(Content::file(name("file", hash), bytes, file, None))
}

/// Opens for reading. A pipe does not wait for its writer here, and a terminal does not become ours.
#[cfg(unix)]
fn readable(path: &Path) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

#[cfg(not(unix))]
fn readable(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Opens what is below a folder; `None` when it leads out of it, whatever changed since the path was looked at.
#[cfg(target_os = "linux")]
fn open_below(folder: &Path, below: &Path) -> io::Result<Option<File>> {
    use rustix::io::Errno;
    match open_beneath(folder, below) {
        // A kernel before 5.6, or a sandbox that does not know the call and refuses it.
        Err(Errno::NOSYS | Errno::PERM) => open_and_ask(folder, below),
        Err(Errno::XDEV | Errno::LOOP) => Ok(None),
        other => Ok(Some(other?)),
    }
}

/// The kernel sees to it that no step leaves the folder.
#[cfg(target_os = "linux")]
fn open_beneath(folder: &Path, below: &Path) -> rustix::io::Result<File> {
    use rustix::fs::{Mode, OFlags, ResolveFlags};
    use rustix::io::Errno;
    /// Something was renamed meanwhile, and the kernel could not be sure.
    const TRIES: usize = 8;
    let folder = rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let mut last = Errno::AGAIN;
    for _ in 0..TRIES {
        match rustix::fs::openat2(&folder, below, flags, Mode::empty(), resolve) {
            Ok(file) => return Ok(File::from(file)),
            Err(Errno::AGAIN) => {}
            Err(error) => {
                last = error;
                break;
            }
        }
    }
    Err(last)
}

/// Opens, then asks where the handle leads. An outsider is opened in between, and neither read nor told about.
#[cfg(target_os = "linux")]
fn open_and_ask(folder: &Path, below: &Path) -> io::Result<Option<File>> {
    use std::os::fd::AsRawFd as _;
    let file = readable(&folder.join(below))?;
    let real = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(real.starts_with(folder).then_some(file))
}

/// Opens, then looks whether the path still leads below the folder, and to what was opened. Better than nothing: these
/// systems have no call that does it in one step.
#[cfg(not(target_os = "linux"))]
fn open_below(folder: &Path, below: &Path) -> io::Result<Option<File>> {
    let path = folder.join(below);
    let file = readable(&path)?;
    let real = std::fs::canonicalize(&path)?;
    #[cfg(unix)]
    let same = {
        use std::os::unix::fs::MetadataExt as _;
        let (ours, theirs) = (file.metadata()?, std::fs::metadata(&real)?);
        (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino())
    };
    #[cfg(not(unix))]
    let same = true;
    Ok((same && real.starts_with(folder)).then_some(file))
}

async fn canonical(path: &Path) -> Option<PathBuf> {
    tokio::fs::canonicalize(path).await.ok()
}

fn missing(kind: Kind) -> MediaError {
    MediaError::NotFound(format!("there is no such {} file", kind.name()))
}

fn forbidden() -> MediaError {
    MediaError::Forbidden("the file is not below a folder this server may read".to_owned())
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Folders {
        root: tempfile::TempDir,
        allowed: PathBuf,
    }

    impl Folders {
        fn new() -> Self {
            let root = tempfile::tempdir().expect("tempdir");
            let allowed = root.path().canonicalize().expect("a folder").join("allowed");
            for folder in ["allowed/inner", "outside/inner"] {
                std::fs::create_dir_all(root.path().join(folder)).expect("mkdir");
                std::fs::write(root.path().join(folder).join("v.mp4"), folder).expect("write");
            }
            Self { root, allowed }
        }

        async fn look(&self) -> Place {
            let url = Url::from_file_path(self.allowed.join("inner/v.mp4")).expect("absolute");
            allowed(&url, Kind::Video, std::slice::from_ref(&self.allowed)).await.expect("allowed")
        }

        /// Puts a link to the outside where a name inside was.
        fn swap(&self, name: &str) {
            let path = self.allowed.join(name);
            std::fs::rename(&path, self.root.path().join("moved")).expect("renames");
            symlink(self.root.path().join("outside").join(name), path).expect("symlink");
        }
    }

    #[tokio::test]
    async fn a_link_put_in_place_after_the_look_is_refused() {
        let unchanged = Folders::new();
        let content = open(unchanged.look().await, Kind::Video, 100).await.expect("opens");
        assert_eq!(content.read(0..99).await.expect("reads"), "allowed/inner");
        for swapped in ["inner/v.mp4", "inner"] {
            let folders = Folders::new();
            let place = folders.look().await;
            folders.swap(swapped);
            let got = open(place, Kind::Video, 100).await;
            assert!(matches!(got, Err(MediaError::Forbidden(_))), "{swapped}: {got:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn old_kernels_refuse_it_too() {
        let below = Path::new("inner/v.mp4");
        for swapped in ["inner/v.mp4", "inner"] {
            let folders = Folders::new();
            assert!(open_and_ask(&folders.allowed, below).expect("opens").is_some());
            folders.swap(swapped);
            assert!(open_and_ask(&folders.allowed, below).expect("opens").is_none(), "{swapped}");
        }
        let folders = Folders::new();
        let sibling = folders.root.path().join("allowed-too");
        std::fs::create_dir(&sibling).expect("mkdir");
        std::fs::write(sibling.join("v.mp4"), "").expect("write");
        assert!(open_and_ask(&folders.allowed, Path::new("../allowed-too/v.mp4")).expect("opens").is_none());
    }

    #[tokio::test]
    async fn a_pipe_put_in_place_does_not_hold_us() {
        let folders = Folders::new();
        let place = folders.look().await;
        std::fs::remove_file(&place.path).expect("removes");
        let made = std::process::Command::new("mkfifo").arg(&place.path).status().expect("mkfifo");
        assert!(made.success());
        let got = open(place, Kind::Video, 100).await;
        assert!(matches!(got, Err(MediaError::BadSource(_))), "{got:?}");
    }
}
