//! Where a video or picture comes from: an allowed or uploaded file, bytes in the request, or the web. The result is content that can be read.
//!
//! This file tells them apart and sees to it that what several open at the same time is opened once. It does not look
//! into what it opens.

mod data;
mod download;
mod file;
mod flights;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sha2::{Digest as _, Sha256};
use url::Url;

use super::MediaError;
use super::content::{Content, Held};
use super::http::{Found, Guard, Tag, Web};
use super::media::Video;
use super::uploads::Upload;
use crate::config::MediaConfig;
use crate::types::hex;

pub(super) use download::{Download, Downloaded, Reservation, Storage};
pub(super) use flights::{Flight, Flights, WeakFlight, start};

/// Of the space for temporary files, the part that those from one host may take.
const SHARE: u64 = 4;
/// Longest URL that is read, `data:` URLs aside.
const URL_MAX: usize = 8 << 10;

/// A video or picture as a request names it. Checked when opened, not before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceRequest {
    /// `http(s)://`, `file://` or `data:` URL from an untrusted caller.
    Url(String),
    /// A path given by the operator on the command line: trusted, no allow-list.
    Path(PathBuf),
    /// A file the caller uploaded, which was looked up for it.
    Upload(Upload),
    /// A video that is open already, or a part of one.
    Open(Video),
}

impl SourceRequest {
    /// What the operator names: an `http(s)://` address, or a file.
    #[must_use]
    pub fn named(video: &Path) -> Self {
        match video.to_str().filter(|text| text.starts_with("http://") || text.starts_with("https://")) {
            Some(url) => Self::Url(url.to_owned()),
            None => Self::Path(video.to_owned()),
        }
    }
}

/// What a source is asked for: which `data:` types are taken, and the word for it in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// A video.
    Video,
    /// A still picture.
    Image,
}

impl Kind {
    /// The word for it in messages.
    pub(super) const fn name(self) -> &'static str {
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

/// What is asked of the web: which URL, and how much of it may come. Who asks the same at the same time shares the answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Wish {
    url: Url,
    kind: Kind,
    max_bytes: u64,
    in_pieces: bool,
}

/// What a URL gave, as long as somebody holds it.
#[derive(Debug)]
struct Known {
    tag: Option<Tag>,
    held: Weak<Held>,
}

/// Opens what requests name. One for the process: it holds what openings share.
#[derive(Debug)]
pub(super) struct Sources {
    allowed_directories: Vec<PathBuf>,
    allow_http: bool,
    storage: Arc<Storage>,
    web: Arc<Web>,
    opening: Flights<Wish, (Arc<Held>, u64)>,
    known: Arc<Mutex<HashMap<Wish, Known>>>,
}

impl Sources {
    /// As configured. Nothing is open yet.
    pub(super) fn new(config: &MediaConfig) -> Self {
        Self::with(config, Guard::new(config))
    }

    /// As [`Self::new`], with another opinion on hosts.
    pub(super) fn with(config: &MediaConfig, guard: Guard) -> Self {
        // A largest video must fit in any case.
        let share = (config.max_temporary_bytes / SHARE).max(config.max_bytes);
        let storage = Arc::new(Storage::new(config.max_temporary_bytes, share));
        Self {
            allowed_directories: config.allowed_directories.clone(),
            allow_http: config.allow_http,
            web: Arc::new(Web::new(config, guard, Arc::clone(&storage))),
            storage,
            opening: Flights::default(),
            known: Arc::default(),
        }
    }

    /// Bytes that came from the web since the start.
    pub(super) fn fetched_bytes(&self) -> u64 {
        self.web.fetched_bytes()
    }

    /// Bytes that temporary files take.
    #[cfg(test)]
    pub(super) fn taken(&self) -> u64 {
        self.storage.taken()
    }

    /// Opens what a request names, of up to `max_bytes`: a file in place, bytes of the request in a temporary file, and of
    /// the web what must be there at once.
    ///
    /// # Errors
    /// [`MediaError`] by cause: a URL that can't be read, a place not allowed, nothing there, too large, broken off, no space.
    pub(super) async fn open(
        &self,
        request: &SourceRequest,
        kind: Kind,
        max_bytes: u64,
    ) -> Result<Content, MediaError> {
        // A picture is always needed whole.
        self.open_as(request, kind, max_bytes, kind == Kind::Video).await
    }

    /// As [`Self::open`], and nothing stays on the web.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(super) async fn open_whole(
        &self,
        request: &SourceRequest,
        kind: Kind,
        max_bytes: u64,
    ) -> Result<Content, MediaError> {
        self.open_as(request, kind, max_bytes, false).await
    }

    async fn open_as(
        &self,
        request: &SourceRequest,
        kind: Kind,
        max_bytes: u64,
        in_pieces: bool,
    ) -> Result<Content, MediaError> {
        let text = match request {
            SourceRequest::Path(path) => return file::open(file::trusted(path, kind).await?, kind, max_bytes).await,
            SourceRequest::Upload(upload) => return file::open_upload(upload.clone(), kind, max_bytes).await,
            SourceRequest::Open(_) => {
                return Err(MediaError::BadSource(format!("an open video is no {} to be opened", kind.name())));
            }
            SourceRequest::Url(text) => text,
        };
        if text.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:")) {
            // Not through `Url`, which would copy a long one several times.
            let body = text.get(5..).unwrap_or_default();
            let Downloaded { id, bytes, file, reservation } =
                data::decode(body, kind, max_bytes, &self.storage).await?;
            return Ok(Content::new(Arc::new(Held::file(id, bytes, file, Some(reservation))), bytes));
        }
        if text.len() > URL_MAX {
            return Err(MediaError::BadSource(format!("the {} URL is too long", kind.name())));
        }
        let url =
            Url::parse(text).map_err(|_| MediaError::BadSource(format!("the {} URL can't be read", kind.name())))?;
        match url.scheme() {
            "file" => {
                let place = file::allowed(&url, kind, &self.allowed_directories).await?;
                file::open(place, kind, max_bytes).await
            }
            "http" | "https" if self.allow_http => self.open_web(Wish { url, kind, max_bytes, in_pieces }).await,
            "http" | "https" => {
                Err(MediaError::Forbidden("fetching from the web is turned off on this server".to_owned()))
            }
            _ => Err(MediaError::BadSource(format!(
                "the {} URL must start with http://, https://, data: or file://",
                kind.name()
            ))),
        }
    }

    async fn open_web(&self, mut wish: Wish) -> Result<Content, MediaError> {
        wish.url.set_fragment(None);
        let flight = self.opening.join(wish.clone(), || {
            let (web, known) = (Arc::clone(&self.web), Arc::clone(&self.known));
            Box::pin(look(web, known, wish))
        });
        let (held, read) = flight.await?;
        Ok(Content::new(held, read))
    }
}

/// Asks the web, or whether what another still holds is what the URL still gives.
async fn look(
    web: Arc<Web>,
    known: Arc<Mutex<HashMap<Wish, Known>>>,
    wish: Wish,
) -> Result<(Arc<Held>, u64), MediaError> {
    let before = {
        let known = known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&wish).and_then(|known| Some((known.held.upgrade()?, known.tag.clone())))
    };
    let tag = before.as_ref().and_then(|(_, tag)| tag.as_ref());
    let answer = web.open(&wish.url, wish.kind, wish.max_bytes, wish.in_pieces, tag).await?;
    let (held, tag, read) = match (answer.found, before) {
        (Found::Unchanged, Some((held, tag))) => (held, tag, 0),
        (Found::Unchanged, None) => return Err(MediaError::Fetch("the server answered 304".to_owned())),
        (Found::Remote(remote), _) => (Arc::new(Held::web(remote)), answer.tag, answer.read),
        (Found::Whole(got), _) => {
            let held = Held::file(got.id, got.bytes, got.file, Some(got.reservation));
            (Arc::new(held), answer.tag, answer.read)
        }
    };
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    // The same content under the same URL with another signature: who reads it shares what is being fetched.
    let same = known.values().filter_map(|known| known.held.upgrade()).find(|other| other.id() == held.id());
    known.retain(|_, known| known.held.strong_count() > 0);
    let held = same.unwrap_or(held);
    if let Some(remote) = held.remote() {
        remote.take(answer.route);
    }
    known.insert(wish, Known { tag, held: Arc::downgrade(&held) });
    Ok((held, read))
}

/// What is larger than `max_bytes`.
pub(super) fn too_large(kind: Kind, max_bytes: u64) -> MediaError {
    MediaError::TooLarge(format!("the {} is larger than the {max_bytes} bytes this server takes", kind.name()))
}

/// An identity: where the content was found, and a hash of what makes it itself.
pub(super) fn name(place: &str, hash: Sha256) -> String {
    format!("{place}-{}", hex(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;

    use super::*;

    const LIMIT: u64 = 1 << 20;

    async fn get(request: SourceRequest, config: &MediaConfig) -> Result<Content, MediaError> {
        Sources::new(config).open(&request, Kind::Video, LIMIT).await
    }

    async fn url(text: impl Into<String>, config: &MediaConfig) -> Result<Content, MediaError> {
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
        assert_eq!(local.bytes(), 5);
        assert_eq!(local.read(0..99).await.expect("reads"), "video");
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
        assert_eq!(local.bytes(), 6);
    }

    #[tokio::test]
    async fn a_file_that_changes_is_another() {
        let places = places();
        let request = SourceRequest::Path(places.secret.clone());
        let before = get(request.clone(), &places.config).await.expect("reads");
        assert_eq!(get(request.clone(), &places.config).await.expect("reads").id(), before.id());
        std::fs::write(&places.secret, b"SECRET").expect("write");
        assert_ne!(get(request, &places.config).await.expect("reads").id(), before.id());
    }

    #[tokio::test]
    async fn data_urls_become_files_that_go_with_the_value() {
        let config = MediaConfig::default();
        let content: Vec<u8> = (0..200_000_u32).map(|i| (i % 251) as u8).collect();
        let encoded = base64::engine::general_purpose::STANDARD.encode(&content);
        let local = url(format!("data:video/mp4;base64,{encoded}"), &config).await.expect("reads");
        assert_eq!(local.read(0..1 << 20).await.expect("reads"), content);
        let unpadded = encoded.trim_end_matches('=');
        let again = url(format!("DATA:video/webm;codecs=vp9;base64,{unpadded}"), &config).await.expect("reads");
        assert_eq!(again.id(), local.id());
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
