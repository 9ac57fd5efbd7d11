//! What a form may hold, how slow its sender may be, and that nothing is left of what breaks off.

use std::convert::Infallible;

use axum::http::HeaderValue;
use futures::channel::mpsc;
use futures::{FutureExt as _, SinkExt as _, StreamExt as _, stream};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::media::Listing;

const PURPOSE: &str = "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nuser_data\r\n";
const FILE_HEAD: &str = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"../a.mp4\"\r\n\
    Content-Type: text/html\r\n\r\n";

fn uploads(set: impl FnOnce(&mut FilesConfig)) -> Uploads {
    let mut config = FilesConfig::default();
    set(&mut config);
    Uploads::new(config).expect("a folder")
}

/// Reads a body that comes in pieces of so many bytes.
async fn read(uploads: &Uploads, body: &[u8], step: usize) -> Result<Arc<Stored>, ApiError> {
    let pieces: Vec<_> = body.chunks(step).map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece))).collect();
    let turn = uploads.admit("", None).expect("a place");
    receive(stream::iter(pieces), "b".to_owned(), turn, uploads.config()).await
}

async fn count(uploads: &Uploads) -> usize {
    uploads.sweep().await.expect("sweeps");
    let listed = uploads.list("", Listing { limit: 100, ..Listing::default() }).await.expect("lists");
    assert_eq!(uploads.bytes(), listed.0.iter().map(|stored| stored.bytes).sum::<u64>(), "no part is left");
    listed.0.len()
}

#[tokio::test]
async fn fields_come_in_any_order_and_in_any_pieces() {
    let uploads = uploads(|_| ());
    let content = "\r\n--\r\n--a\r\n--\0 \r\r\n";
    let other = "--b\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\nignored\r\n";
    for body in [
        format!("{PURPOSE}{FILE_HEAD}{content}\r\n--b--\r\n"),
        format!("preamble\r\n{FILE_HEAD}{content}\r\n{other}{PURPOSE}--b--"),
    ] {
        for step in [1, 2, 3, 7, 1 << 20] {
            let stored = read(&uploads, body.as_bytes(), step).await.expect("read");
            assert_eq!((stored.bytes, stored.filename.as_str()), (content.len() as u64, "a.mp4"), "{step}");
            let upload = uploads.get("", &stored.id).await.expect("there");
            let kept = std::io::read_to_string(upload.open().await.expect("opens")).expect("text");
            assert_eq!(kept, content);
        }
    }
    assert_eq!(count(&uploads).await, 10);
}

#[tokio::test]
async fn what_is_wrong_names_the_field_and_leaves_nothing() {
    let uploads = uploads(|config| config.max_bytes = 100);
    let file = format!("{FILE_HEAD}abc\r\n");
    let long = "x".repeat(2 << 10);
    for (body, expected) in [
        (format!("{PURPOSE}--b--"), "file is required"),
        (format!("{file}--b--"), "purpose is required"),
        (format!("{PURPOSE}{FILE_HEAD}\r\n--b--"), "file must not be empty"),
        (format!("{PURPOSE}{file}{file}--b--"), "file must be one file"),
        (format!("{file}{}--b--", PURPOSE.replace("user_data", "x")), "purpose must be one of"),
        (format!("{file}{}--b--", PURPOSE.replace("user_data", &long)), "purpose is too long"),
        (format!("{PURPOSE}{file}"), "ends before its last boundary"),
        (format!("{PURPOSE}{FILE_HEAD}abc"), "ends before its last boundary"),
        (String::new(), "ends before its last boundary"),
        (long.repeat(20), "head is too long"),
        (format!("--b\r\nX-Long: {}", long.repeat(20)), "head is too long"),
        (format!("{}{PURPOSE}{file}--b--", PURPOSE.repeat(40)), "too many fields"),
        (format!("{FILE_HEAD}{long}\r\n{PURPOSE}--b--"), "larger than the 100 bytes"),
    ] {
        for step in [100, 1 << 10] {
            let error = read(&uploads, body.as_bytes(), step).await.expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}, not {expected}");
            assert_eq!(count(&uploads).await, 0, "{expected}");
        }
    }
}

/// How often a client that sends so much every so many seconds may go on, of an hour.
fn goes_on(every: u64, bytes: u64) -> u64 {
    let mut pace = Pace { over: Duration::from_secs(30), slowest: 1000, waited: Duration::ZERO, bytes: 0 };
    let mut passed = 0;
    while passed < 3600 {
        pace.waited += Duration::from_secs(every);
        if pace.bytes(bytes).is_err() {
            break;
        }
        passed += every;
    }
    passed
}

#[test]
fn who_sends_steadily_may_take_as_long_as_it_takes() {
    for (every, bytes) in [(1, 1000), (10, 10_000), (29, 29_000)] {
        assert!(goes_on(every, bytes) >= 3600, "{every} {bytes}");
    }
}

#[test]
fn who_sends_too_little_is_given_up_soon() {
    for (every, bytes) in [(1, 999), (10, 9_999), (29, 1), (29, 28_999), (1, 0)] {
        assert!(goes_on(every, bytes) < 60, "{every} {bytes}");
    }
}

#[tokio::test]
async fn who_sends_nothing_is_given_up_and_leaves_nothing() {
    let mut sender = Sender::begin(1).await;
    sender.send(&[7; 1000]).await;
    let Sender { pieces, uploads, reading } = sender;
    let result = reading.await.expect("no panic");
    assert!(matches!(result, Err(ApiError::ReadTimeout)), "{result:?}");
    assert_eq!(count(&uploads).await, 0);
    drop(pieces);
}

/// A body that is sent piece by piece.
struct Sender {
    pieces: mpsc::Sender<Result<Bytes, std::io::Error>>,
    uploads: Uploads,
    reading: AbortOnDropHandle<Result<Arc<Stored>, ApiError>>,
}

impl Sender {
    async fn begin(idle_timeout_s: u64) -> Self {
        let uploads = uploads(|config| config.idle_timeout_s = idle_timeout_s);
        let (pieces, receiver) = mpsc::channel(0);
        let turn = uploads.admit("", None).expect("a place");
        let config = uploads.config().clone();
        let reading = tokio::spawn(async move { receive(receiver, "b".to_owned(), turn, &config).await });
        let mut sender = Self { pieces, uploads, reading: AbortOnDropHandle::new(reading) };
        sender.send(format!("{PURPOSE}{FILE_HEAD}").as_bytes()).await;
        sender
    }

    async fn send(&mut self, bytes: &[u8]) {
        // It may have given up meanwhile.
        let _ = self.pieces.send(Ok(Bytes::copy_from_slice(bytes))).await;
    }
}

#[tokio::test]
async fn a_body_cut_half_way_leaves_nothing() {
    let mut sender = Sender::begin(3600).await;
    sender.send(&vec![7; 1 << 20]).await;
    let _ = sender.pieces.send(Err(std::io::ErrorKind::ConnectionReset.into())).await;
    let Sender { uploads, reading, .. } = sender;
    let result = reading.await.expect("no panic");
    assert!(matches!(result, Err(ApiError::ReadTimeout)), "{result:?}");
    assert_eq!(count(&uploads).await, 0);

    // And so does a reader that is dropped, as when the server stops.
    let mut sender = Sender::begin(3600).await;
    sender.send(&vec![7; 1 << 20]).await;
    let Sender { uploads, reading, .. } = sender;
    reading.abort();
    assert!(reading.await.expect_err("aborted").is_cancelled());
    // Space that was being taken when it was dropped is given back when that is done.
    while count(&uploads).await > 0 || uploads.bytes() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn one_piece_is_held_at_a_time() {
    let taken = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&taken);
    // All of it is ready at once.
    let pieces = stream::repeat_with(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(Bytes::from_static(&[7; 1024]))
    });
    let head = Arc::new(AtomicU64::new(u64::MAX));
    let mut gate = Gate { pieces: Box::pin(pieces), head, full: false };
    assert!(gate.next().now_or_never().is_some());
    assert!(gate.next().now_or_never().is_none());
    assert_eq!(taken.load(Ordering::Relaxed), 1);
    assert!(gate.next().await.is_some());
    assert_eq!(taken.load(Ordering::Relaxed), 2);
}

#[test]
fn names_are_for_people_alone() {
    for (name, expected) in [
        ("match.mp4", "match.mp4"),
        ("../../etc/passwd", "passwd"),
        ("C:\\videos\\Ünïcode 日本.mp4", "Ünïcode 日本.mp4"),
        ("a\r\nX: y\0\u{7f}\u{202e}4pm.exe", "aX: y4pm.exe"),
        ("", "upload"),
        ("..", "upload"),
        ("a/", "upload"),
    ] {
        assert_eq!(clean(name), expected, "{name:?}");
    }
    assert_eq!(clean(&"é".repeat(300)).len(), 254);
}

#[test]
fn a_page_of_another_site_cannot_upload() {
    let check = |pairs: &[(HeaderName, &'static str)]| {
        let headers = pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
        check_origin(&headers)
    };
    let host = (HOST, "localhost:8080");
    assert!(check(std::slice::from_ref(&host)).is_ok());
    assert!(check(&[host.clone(), (ORIGIN, "http://localhost:8080")]).is_ok());
    for origin in ["http://evil.example", "http://localhost:8081", "null", "http://localhost", ""] {
        assert!(check(&[host.clone(), (ORIGIN, origin)]).is_err(), "{origin}");
        // A browser asks before it sends this one, and is told no.
        assert!(check(&[host.clone(), (ORIGIN, origin), (AUTHORIZATION, "Bearer x")]).is_ok(), "{origin}");
    }
    assert!(check(&[(ORIGIN, "http://localhost:8080")]).is_err());
}
