//! Where a video or picture comes from: an allowed file, bytes in the request, or the web. The result is a local file.
//!
//! This file knows the rules for untrusted URLs; it does not look into what it fetches.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use sha2::{Digest as _, Sha256};
use tempfile::TempPath;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};
use url::Url;

use super::{MediaError, http};
use crate::config::MediaConfig;

/// A video or picture as a request names it. Checked when opened, not before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceRequest {
    /// `http(s)://`, `file://` or `data:` URL from an untrusted caller.
    Url(String),
    /// A path given by the operator on the command line: trusted, no allow-list.
    Path(PathBuf),
}

/// What a source is asked for: which `data:` types are taken, and the word for it in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A video.
    Video,
    /// A still picture.
    Image,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Video => "video",
            Self::Image => "picture",
        }
    }

    fn takes(self, media_type: &str) -> bool {
        let media_type = media_type.to_ascii_lowercase();
        match self {
            // An animated GIF is a video to ffmpeg, and browsers know it as a picture.
            Self::Video => {
                media_type.starts_with("video/")
                    || ["image/gif", "application/mp4", "application/ogg", "application/octet-stream"]
                        .contains(&media_type.as_str())
            }
            Self::Image => media_type.starts_with("image/") || media_type == "application/octet-stream",
        }
    }
}

/// A regular file on this machine. A downloaded one goes with the value.
#[derive(Debug)]
pub(super) struct Local {
    /// Absolute, symlinks resolved.
    pub(super) path: PathBuf,
    /// The same for the same content.
    pub(super) id: String,
    /// Its size.
    pub(super) bytes: u64,
    _temporary: Option<TempPath>,
}

/// Fetches what a request names, within `max_bytes`.
///
/// # Errors
/// [`MediaError`] by cause: a URL that can't be read, a place not allowed, nothing there, too large, broken off.
pub(super) async fn fetch(
    request: &SourceRequest,
    kind: Kind,
    max_bytes: u64,
    config: &MediaConfig,
) -> Result<Local, MediaError> {
    let text = match request {
        SourceRequest::Path(path) => {
            let path = canonical(path).await.ok_or_else(|| missing(kind))?;
            return file(path, kind, max_bytes).await;
        }
        SourceRequest::Url(text) => text,
    };
    if text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:")) {
        // Not through `Url`, which would copy a long one several times.
        return data(text.get(5..).unwrap_or_default(), kind, max_bytes).await;
    }
    if text.len() > URL_MAX {
        return Err(MediaError::BadSource(format!("the {} URL is too long", kind.name())));
    }
    let url = Url::parse(text).map_err(|_| MediaError::BadSource(format!("the {} URL can't be read", kind.name())))?;
    match url.scheme() {
        "file" => {
            let path = allowed(&url, kind, config).await?;
            file(path, kind, max_bytes).await
        }
        "http" | "https" if config.allow_http => {
            let mut download = Download::new(kind, max_bytes)?;
            http::fetch(url, &mut download, config).await?;
            download.finish().await
        }
        "http" | "https" => Err(MediaError::Forbidden("fetching from the web is turned off on this server".to_owned())),
        _ => Err(MediaError::BadSource(format!(
            "the {} URL must start with http://, https://, data: or file://",
            kind.name()
        ))),
    }
}

/// Longest URL that is read, `data:` URLs aside.
const URL_MAX: usize = 8 << 10;

fn missing(kind: Kind) -> MediaError {
    MediaError::NotFound(format!("there is no such {} file", kind.name()))
}

fn too_large(kind: Kind, max_bytes: u64) -> MediaError {
    MediaError::TooLarge(format!("the {} is larger than the {max_bytes} bytes this server takes", kind.name()))
}

fn failed(error: &std::io::Error) -> MediaError {
    MediaError::Internal(format!("temporary file: {}", error.kind()))
}

async fn canonical(path: &Path) -> Option<PathBuf> {
    tokio::fs::canonicalize(path).await.ok()
}

/// The path of a `file://` URL when it is below an allowed folder, with all symlinks resolved.
///
/// What is elsewhere is refused in the same words whether it exists or not.
async fn allowed(url: &Url, kind: Kind, config: &MediaConfig) -> Result<PathBuf, MediaError> {
    let forbidden = || MediaError::Forbidden("the file is not below a folder this server may read".to_owned());
    if config.allowed_directories.is_empty() {
        return Err(forbidden());
    }
    let path = url
        .to_file_path()
        .map_err(|()| MediaError::BadSource("a file URL looks like file:///folder/video.mp4".to_owned()))?;
    let mut folders = Vec::new();
    for folder in &config.allowed_directories {
        folders.extend(canonical(folder).await);
    }
    let below = |path: &Path, folder: &PathBuf| path.starts_with(folder);
    match canonical(&path).await {
        Some(real) if folders.iter().any(|folder| below(&real, folder)) => Ok(real),
        Some(_) => Err(forbidden()),
        None => {
            // Only one who may read the folder is told that the file is missing. The deepest folder that exists decides.
            let parent = async {
                for ancestor in path.ancestors().skip(1) {
                    if let Some(real) = canonical(ancestor).await {
                        return Some(real);
                    }
                }
                None
            };
            match parent.await {
                Some(real) if folders.iter().any(|folder| below(&real, folder)) => Err(missing(kind)),
                _ => Err(forbidden()),
            }
        }
    }
}

/// A file in place: regular, not too large, and known by where it is, its size, its age, its head and its tail.
async fn file(path: PathBuf, kind: Kind, max_bytes: u64) -> Result<Local, MediaError> {
    const EDGE: u64 = 64 << 10;
    let unreadable = |_| missing(kind);
    // Asked before it is opened: opening a pipe would wait for its writer.
    let metadata = tokio::fs::metadata(&path).await.map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(MediaError::BadSource(format!("the {} is not a regular file", kind.name())));
    }
    let bytes = metadata.len();
    if bytes > max_bytes {
        return Err(too_large(kind, max_bytes));
    }
    let mut hash = Sha256::new();
    hash.update(path.as_os_str().as_encoded_bytes());
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
    let mut opened = tokio::fs::File::open(&path).await.map_err(unreadable)?;
    let mut edge = Vec::new();
    (&mut opened).take(EDGE).read_to_end(&mut edge).await.map_err(unreadable)?;
    hash.update(&edge);
    if bytes > EDGE {
        edge.clear();
        opened.seek(std::io::SeekFrom::Start((bytes - EDGE).max(EDGE))).await.map_err(unreadable)?;
        opened.take(EDGE).read_to_end(&mut edge).await.map_err(unreadable)?;
        hash.update(&edge);
    }
    Ok(Local { path, id: name("file", hash), bytes, _temporary: None })
}

fn name(place: &str, hash: Sha256) -> String {
    let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{place}-{hex}")
}

/// The body of a `data:` URL, `video/mp4;base64,AAAA`.
async fn data(body: &str, kind: Kind, max_bytes: u64) -> Result<Local, MediaError> {
    const STEP: usize = 64 << 10;
    const _: () = assert!(STEP.is_multiple_of(4), "base64 comes in groups of four");
    let engine = GeneralPurpose::new(
        &alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let bad = |problem: &str| MediaError::BadSource(format!("the {} data URL {problem}", kind.name()));
    let (head, encoded) = body.split_once(',').ok_or_else(|| bad("has no comma"))?;
    let mut parameters = head.split(';').map(str::trim);
    let media_type = parameters.next().unwrap_or_default();
    if !kind.takes(media_type) {
        return Err(bad(match kind {
            Kind::Video => "must start with data:video/",
            Kind::Image => "must start with data:image/",
        }));
    }
    if !parameters.any(|parameter| parameter.eq_ignore_ascii_case("base64")) {
        return Err(bad("must be base64"));
    }
    let encoded = encoded.trim_ascii();
    if (encoded.len() as u64 / 4).saturating_mul(3) > max_bytes.saturating_add(3) {
        return Err(too_large(kind, max_bytes));
    }
    let mut download = Download::new(kind, max_bytes)?;
    for step in encoded.as_bytes().chunks(STEP) {
        let decoded = engine.decode(step).map_err(|_| bad("is not valid base64"))?;
        download.write(&decoded).await?;
    }
    download.finish().await
}

/// Bytes on their way into a temporary file, counted and hashed.
#[derive(Debug)]
pub(super) struct Download {
    kind: Kind,
    max_bytes: u64,
    bytes: u64,
    hash: Sha256,
    file: tokio::fs::File,
    path: TempPath,
}

impl Download {
    fn new(kind: Kind, max_bytes: u64) -> Result<Self, MediaError> {
        let temporary = tempfile::Builder::new().prefix("paravt-").tempfile().map_err(|error| failed(&error))?;
        let (file, path) = temporary.into_parts();
        Ok(Self { kind, max_bytes, bytes: 0, hash: Sha256::new(), file: tokio::fs::File::from_std(file), path })
    }

    /// What is being fetched, for messages.
    pub(super) const fn noun(&self) -> &'static str {
        self.kind.name()
    }

    /// Refuses early what is announced as too large.
    ///
    /// # Errors
    /// [`MediaError::TooLarge`].
    pub(super) fn expect(&self, bytes: u64) -> Result<(), MediaError> {
        if bytes > self.max_bytes { Err(too_large(self.kind, self.max_bytes)) } else { Ok(()) }
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// [`MediaError::TooLarge`], or [`MediaError::Internal`] when the disk is full.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), MediaError> {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        self.expect(self.bytes)?;
        self.hash.update(bytes);
        self.file.write_all(bytes).await.map_err(|error| failed(&error))
    }

    async fn finish(mut self) -> Result<Local, MediaError> {
        self.file.flush().await.map_err(|error| failed(&error))?;
        let path = canonical(&self.path).await.unwrap_or_else(|| self.path.to_path_buf());
        Ok(Local { path, id: name("content", self.hash), bytes: self.bytes, _temporary: Some(self.path) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1 << 20;

    async fn get(request: SourceRequest, config: &MediaConfig) -> Result<Local, MediaError> {
        fetch(&request, Kind::Video, LIMIT, config).await
    }

    async fn url(text: impl Into<String>, config: &MediaConfig) -> Result<Local, MediaError> {
        get(SourceRequest::Url(text.into()), config).await
    }

    struct Places {
        _root: tempfile::TempDir,
        allowed: PathBuf,
        secret: PathBuf,
        config: MediaConfig,
    }

    fn places() -> Places {
        let root = tempfile::tempdir().expect("tempdir");
        let allowed = root.path().join("allowed");
        std::fs::create_dir_all(allowed.join("sub folder")).expect("mkdir");
        std::fs::write(allowed.join("sub folder/ü.mp4"), b"video").expect("write");
        let secret = root.path().join("secret.mp4");
        std::fs::write(&secret, b"secret").expect("write");
        let config = MediaConfig { allowed_directories: vec![allowed.clone()], ..MediaConfig::default() };
        Places { allowed, secret, config, _root: root }
    }

    #[tokio::test]
    async fn an_endless_url_is_refused_before_it_is_walked() {
        let places = places();
        for long in ["a/".repeat(8 << 10), "x".repeat(1 << 20)] {
            let got = url(format!("file:///{long}"), &places.config).await;
            assert!(matches!(got, Err(MediaError::BadSource(_))));
        }
    }

    #[tokio::test]
    async fn a_file_below_an_allowed_folder_is_read() {
        let places = places();
        let path = places.allowed.join("sub folder/ü.mp4");
        let text = Url::from_file_path(&path).expect("absolute").to_string();
        assert!(text.contains("%20"), "{text}");
        let local = url(text, &places.config).await.expect("allowed");
        assert_eq!(local.bytes, 5);
        assert_eq!(std::fs::read(local.path).expect("reads"), b"video");
    }

    #[tokio::test]
    async fn a_file_elsewhere_is_refused_whether_it_exists_or_not() {
        let places = places();
        let base = places.allowed.display();
        for text in [
            format!("file://{}", places.secret.display()),
            format!("file://{base}/../secret.mp4"),
            format!("file://{base}/%2e%2e/secret.mp4"),
            format!("file://{base}/..%2fsecret.mp4"),
            format!("file://{base}/sub%20folder/..%2f..%2fsecret.mp4"),
            format!("file://{base}/..%2fmissing.mp4"),
            format!("file://{base}-beside/missing.mp4"),
            "file:///etc/passwd".to_owned(),
            "file:///no/such/file".to_owned(),
        ] {
            let error = url(text.clone(), &places.config).await.expect_err(&text);
            let MediaError::Forbidden(message) = error else { panic!("{text}: {error:?}") };
            assert_eq!(message, "the file is not below a folder this server may read");
        }
    }

    #[tokio::test]
    async fn nothing_is_allowed_by_default() {
        let places = places();
        let text = format!("file://{}", places.secret.display());
        assert!(matches!(url(text, &MediaConfig::default()).await, Err(MediaError::Forbidden(_))));
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_symlink_that_leads_out_is_refused() {
        let places = places();
        std::os::unix::fs::symlink(&places.secret, places.allowed.join("link.mp4")).expect("symlink");
        let text = format!("file://{}/link.mp4", places.allowed.display());
        assert!(matches!(url(text, &places.config).await, Err(MediaError::Forbidden(_))));
    }

    #[tokio::test]
    async fn a_missing_file_and_a_folder_are_told_apart() {
        let places = places();
        let base = places.allowed.display();
        let missing = url(format!("file://{base}/sub%20folder/no.mp4"), &places.config).await;
        assert!(matches!(missing, Err(MediaError::NotFound(_))), "{missing:?}");
        let folder = url(format!("file://{base}/sub%20folder"), &places.config).await;
        assert!(matches!(folder, Err(MediaError::BadSource(_))), "{folder:?}");
        let zero = url(format!("file://{base}/a%00b"), &places.config).await;
        assert!(zero.is_err());
        let host = url("file://host/video.mp4", &places.config).await;
        assert!(host.is_err());
    }

    #[tokio::test]
    async fn the_operator_may_name_any_file() {
        let places = places();
        let local = get(SourceRequest::Path(places.secret.clone()), &MediaConfig::default()).await.expect("trusted");
        assert_eq!(local.bytes, 6);
    }

    #[tokio::test]
    async fn a_file_that_changes_is_another() {
        let places = places();
        let request = SourceRequest::Path(places.secret.clone());
        let before = get(request.clone(), &places.config).await.expect("reads").id;
        assert_eq!(get(request.clone(), &places.config).await.expect("reads").id, before);
        std::fs::write(&places.secret, b"SECRET").expect("write");
        assert_ne!(get(request, &places.config).await.expect("reads").id, before);
    }

    #[tokio::test]
    async fn data_urls_become_files_that_go_with_the_value() {
        let config = MediaConfig::default();
        let content: Vec<u8> = (0..200_000_u32).map(|i| (i % 251) as u8).collect();
        let encoded = base64::engine::general_purpose::STANDARD.encode(&content);
        let local = url(format!("data:video/mp4;base64,{encoded}"), &config).await.expect("reads");
        assert_eq!(std::fs::read(&local.path).expect("reads"), content);
        let unpadded = encoded.trim_end_matches('=');
        let again = url(format!("DATA:video/webm;codecs=vp9;base64,{unpadded}"), &config).await.expect("reads");
        assert_eq!(again.id, local.id);
        let path = local.path.clone();
        drop(local);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn bad_data_urls_are_refused() {
        let config = MediaConfig::default();
        for text in [
            "data:",
            "data:video/mp4;base64",
            "data:video/mp4,AAAA",
            "data:text/html;base64,AAAA",
            "data:video/mp4;base64,A*AA",
            "data:video/mp4;base64,AA==AAAA",
        ] {
            let error = url(text, &config).await.expect_err(text);
            assert!(matches!(error, MediaError::BadSource(_)), "{text}: {error:?}");
        }
        let long = format!("data:video/mp4;base64,{}", "A".repeat(2 << 20));
        assert!(matches!(url(long, &config).await, Err(MediaError::TooLarge(_))));
    }

    #[tokio::test]
    async fn other_schemes_are_refused() {
        let config = MediaConfig { allow_http: false, ..MediaConfig::default() };
        for text in
            ["ftp://host/v.mp4", "concat:a|b", "/etc/passwd", "video.mp4", "", "subfile,,start,0,end,9,,:/etc/passwd"]
        {
            assert!(matches!(url(text, &config).await, Err(MediaError::BadSource(_))), "{text}");
        }
        assert!(matches!(url("http://example.com/v.mp4", &config).await, Err(MediaError::Forbidden(_))));
    }
}
