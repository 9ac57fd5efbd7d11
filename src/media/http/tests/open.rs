//! Opening a URL: what stays on the web, what is downloaded, and what several share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::server::{File, Reply, Server, bytes};
use super::{BLOCK_BYTES, is_remote, message, open, opened, sources};
use crate::media::source::Kind;
use crate::media::{MediaError, SourceRequest};

const DATE: &str = "Mon, 01 Jan 2024 00:00:00 GMT";

#[tokio::test]
async fn a_server_that_ignores_ranges_is_asked_once_and_its_file_downloaded() {
    let server = Server::start(|_| File::tagged(300_000).whole()).await;
    let content = opened(&server, "/v").await;
    assert!(!is_remote(&content) && content.id().starts_with("content-"), "{}", content.id());
    assert_eq!((server.requests(), server.sent(), content.bytes_read()), (1, 300_000, 300_000));
    assert_eq!(content.read(70_000..70_100).await.expect("reads"), bytes(70_000..70_100));
    assert_eq!(content.bytes_read(), 300_000, "the network's bytes, once");
}

#[tokio::test]
async fn odd_answers_to_a_range_lead_to_a_plain_download() {
    let file = File::tagged(300_000);
    let part = |range: &str, more: &str| {
        let headers = format!("content-range: {range}\r\n{more}");
        Reply::new("206 Partial Content", &headers, bytes(0..BLOCK_BYTES))
    };
    for (name, odd) in [
        ("416", Reply::new("416 Range Not Satisfiable", "content-range: bytes */300000\r\n", "")),
        ("no place", Reply::new("206 Partial Content", "etag: \"one\"\r\n", bytes(0..BLOCK_BYTES))),
        ("another place", part("bytes 1-65536/300000", "etag: \"one\"\r\n")),
        ("less", part("bytes 0-9/300000", "etag: \"one\"\r\n")),
        ("no total", part("bytes 0-65535/*", "etag: \"one\"\r\n")),
        ("several", part("", "content-type: multipart/byteranges; boundary=x\r\netag: \"one\"\r\n")),
        ("compressed", part("bytes 0-65535/300000", "etag: \"one\"\r\ncontent-encoding: gzip\r\n")),
        ("weak tag", part("bytes 0-65535/300000", "etag: W/\"one\"\r\n")),
        ("no validator", part("bytes 0-65535/300000", "")),
    ] {
        let whole = file.whole();
        let server = Server::start(move |seen| if seen.range().is_some() { odd.clone() } else { whole.clone() }).await;
        let content = opened(&server, "/v").await;
        assert!(!is_remote(&content), "{name}");
        assert_eq!(content.read(0..1 << 20).await.expect("reads"), bytes(0..300_000), "{name}");
        assert_eq!(server.requests(), 2, "{name}");
    }
}

#[tokio::test]
async fn a_short_file_comes_whole_with_the_first_answer() {
    let server = Server::of(File::tagged(500)).await;
    let content = opened(&server, "/v").await;
    assert!(!is_remote(&content));
    assert_eq!((content.read(0..999).await.expect("reads").len(), server.requests()), (500, 1));
    let empty = Server::start(|seen| match seen.range() {
        Some(_) => Reply::new("416 Range Not Satisfiable", "content-range: bytes */0\r\n", ""),
        None => Reply::new("200 OK", "", ""),
    })
    .await;
    assert_eq!(opened(&empty, "/v").await.bytes(), 0);
}

#[tokio::test]
async fn a_first_block_that_breaks_off_is_asked_for_once_more() {
    let breaking = |times| {
        Server::start(move |seen| Reply {
            cut: (seen.number < times).then_some(100),
            ..File::tagged(300_000).reply(seen)
        })
    };
    let server = breaking(1).await;
    let content = opened(&server, "/v").await;
    assert_eq!(content.read(0..1000).await.expect("reads"), bytes(0..1000));
    assert_eq!(server.requests(), 2);
    let server = breaking(9).await;
    assert_eq!(message(open(&sources(|_| ()), &server.url("/v")).await), "the connection broke off");
    assert_eq!(server.requests(), 2);
}

#[tokio::test]
async fn the_same_file_under_two_signatures_is_read_once() {
    let server = Server::of(File::tagged(300_000)).await;
    let sources = sources(|_| ());
    let first = open(&sources, &server.url("/v?Signature=1")).await.expect("opens");
    first.read(100_000..100_001).await.expect("reads");
    let second = open(&sources, &server.url("/v?Signature=2")).await.expect("opens");
    assert_eq!((second.id(), server.requests()), (first.id(), 3));
    assert_eq!(second.read(100_000..100_001).await.expect("reads"), bytes(100_000..100_001));
    assert_eq!((server.requests(), second.bytes_read()), (3, BLOCK_BYTES), "nothing but its opening");
}

#[tokio::test]
async fn of_two_signatures_the_one_that_lasts_longer_serves_both() {
    for (gone, lasts) in [("/v?Signature=1", "/v?Signature=2"), ("/v?Signature=2", "/v?Signature=1")] {
        let ran_out = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&ran_out);
        let server = Server::start(move |seen| match (seen.path == gone, theirs.load(Ordering::SeqCst)) {
            (true, true) => Reply::new("403 Forbidden", "", ""),
            _ => File::tagged(300_000).reply(seen),
        })
        .await;
        let sources = sources(|_| ());
        let first = open(&sources, &server.url("/v?Signature=1")).await.expect("opens");
        let second = open(&sources, &server.url("/v?Signature=2")).await.expect("opens");
        ran_out.store(true, Ordering::SeqCst);
        for content in [second, first] {
            assert_eq!(content.read(100_000..100_009).await.expect("reads"), bytes(100_000..100_009));
        }
        assert_eq!(server.seen().last().map(|seen| seen.path.clone()).as_deref(), Some(lasts));
    }
}

#[tokio::test]
async fn a_bad_signature_gives_nothing_though_another_has_the_file() {
    let server = Server::start(|seen| match seen.path.as_str() {
        "/v?Signature=good" => File::tagged(300_000).reply(seen),
        _ => Reply::new("403 Forbidden", "", ""),
    })
    .await;
    let sources = sources(|_| ());
    let good = open(&sources, &server.url("/v?Signature=good")).await.expect("opens");
    good.read(0..300_000).await.expect("reads");
    let bad = open(&sources, &server.url("/v?Signature=bad")).await;
    assert_eq!(message(bad), "the server answered 403");
}

const PROXIED_URL: &str = "PARAVT_TEST_PROXIED_URL";

/// Only as the child of the next test, which sets its environment.
#[tokio::test]
#[ignore = "run by the next test"]
#[expect(clippy::disallowed_methods, reason = "a test's own child is told by its environment")]
async fn opens_what_the_environment_names() {
    let url = std::env::var(PROXIED_URL).expect("a URL");
    assert_eq!(open(&sources(|_| ()), &url).await.expect("opens").bytes(), 300_000);
}

#[tokio::test]
async fn a_proxy_in_the_environment_is_not_asked() {
    // It would look up names by itself and dial what nobody has checked.
    let (server, proxy) = (Server::of(File::tagged(300_000)).await, Server::of(File::tagged(300_000)).await);
    let this = std::env::current_exe().expect("a path");
    let mut child = tokio::process::Command::new(this);
    let module = module_path!().split_once("::").expect("below the crate").1;
    child.args([&format!("{module}::opens_what_the_environment_names"), "--exact", "--ignored", "--test-threads=1"]);
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        child.env(name, proxy.url(""));
    }
    let output = child.env_remove("NO_PROXY").env_remove("no_proxy").env(PROXIED_URL, server.url("/v")).output().await;
    let output = output.expect("runs");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
    assert_eq!((proxy.connections(), server.requests()), (0, 1));
}

#[tokio::test]
async fn a_compressed_body_is_refused() {
    let server = Server::start(|_| Reply::new("200 OK", "content-encoding: br\r\n", "????")).await;
    assert_eq!(message(open(&sources(|_| ()), &server.url("/v")).await), "the server sends the file compressed");
}

#[tokio::test]
async fn what_is_too_large_is_refused_before_it_comes() {
    for ranges in [true, false] {
        let server = Server::start(move |seen| {
            let mut reply = File::tagged(300_000).reply(seen);
            if !ranges {
                reply = File::tagged(300_000).whole();
            }
            reply.gate = Some(Arc::new(Semaphore::new(0)));
            reply
        })
        .await;
        let request = SourceRequest::Url(server.url("/v"));
        let got = sources(|_| ()).open(&request, Kind::Video, 299_999).await;
        assert!(matches!(got, Err(MediaError::TooLarge(_))), "{got:?}");
        assert_eq!((server.requests(), server.sent()), (1, 0));
    }
    // A body that doesn't say how long it is.
    let server = Server::start(|_| Reply {
        head: "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n".to_owned(),
        body: bytes(0..300_000),
        cut: Some(300_000),
        gate: None,
    })
    .await;
    let request = SourceRequest::Url(server.url("/v"));
    let got = sources(|_| ()).open(&request, Kind::Video, 299_999).await;
    assert!(matches!(got, Err(MediaError::TooLarge(_))), "{got:?}");
    assert_eq!(sources(|_| ()).open(&request, Kind::Video, 300_000).await.expect("opens").bytes(), 300_000);
}

#[tokio::test]
async fn a_picture_is_asked_for_as_a_whole() {
    let server = Server::of(File::tagged(300_000)).await;
    let picture = sources(|_| ()).open(&SourceRequest::Url(server.url("/p")), Kind::Image, 1 << 20).await;
    assert!(!is_remote(&picture.expect("opens")));
    assert_eq!((server.requests(), server.ranges(0).len()), (1, 0));
}

#[tokio::test]
async fn what_the_server_says_is_told_without_its_address() {
    let server = Server::start(|seen| match seen.path.as_str() {
        "/500" => Reply::new("500 Oops", "", ""),
        "/300" => Reply::new("300 Multiple Choices", "location: /v\r\n", ""),
        "/304" => Reply::new("304 Not Modified", "", ""),
        "/short" => Reply { cut: Some(5), ..Reply::new("200 OK", "", bytes(0..50)) },
        _ => Reply::new("404 Not Found", "", ""),
    })
    .await;
    assert!(matches!(open(&sources(|_| ()), &server.url("/none")).await, Err(MediaError::NotFound(_))));
    for path in ["/500", "/300", "/304", "/short"] {
        let error = message(open(&sources(|_| ()), &server.url(path)).await);
        assert!(!error.contains("127.0.0.1") && !error.contains(path), "{error}");
    }
    let closed = open(&sources(|_| ()), "http://127.0.0.1:1/v").await;
    assert_eq!(message(closed), "the server can't be reached");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let url = format!("http://{}/v", listener.local_addr().expect("an address"));
    let got = open(&sources(|config| config.fetch_timeout_s = 1), &url).await;
    assert!(matches!(got, Err(MediaError::Timeout(_))), "{got:?}");
}

#[tokio::test]
async fn the_identity_is_the_contents() {
    let ids = async |file: File| {
        let server = Server::start(move |seen| file.reply(seen)).await;
        let mut ids = Vec::new();
        for path in ["/v", "/v?Signature=1&Expires=2", "/v?Signature=3&Expires=4", "/w", "/v?id=1"] {
            let content = opened(&server, path).await;
            assert!(is_remote(&content) && content.id().starts_with("web-"));
            ids.push(content.id().to_owned());
        }
        assert!(ids[0] == ids[1] && ids[1] == ids[2], "a signature makes no other file");
        assert!(ids[0] != ids[3] && ids[0] != ids[4] && ids[3] != ids[4]);
        server
    };
    ids(File::tagged(300_000)).await;
    let dated = File { bytes: 300_000, etag: Some("W/\"one\""), modified: Some(DATE) };
    let server = ids(dated).await;
    assert_eq!(server.ranges(0)[..2], [0..65_536, 196_608..300_000], "without a strong tag, the tail is read too");

    // The same URL, another content: by tag, by length, by head.
    let changing = Server::start(|seen| {
        let (etag, bytes) = [("\"one\"", 300_000), ("\"two\"", 300_000), ("\"two\"", 300_001)][seen.number % 3];
        File { bytes, etag: Some(etag), modified: None }.reply(seen)
    })
    .await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(opened(&changing, "/v").await.id().to_owned());
    }
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2], "{ids:?}");
}

#[tokio::test]
async fn openings_at_the_same_time_are_one() {
    for ranges in [true, false] {
        let gate = Arc::new(Semaphore::new(0));
        let theirs = Arc::clone(&gate);
        let server = Server::start(move |seen| {
            let file = File::tagged(300_000);
            Reply { gate: Some(Arc::clone(&theirs)), ..if ranges { file.reply(seen) } else { file.whole() } }
        })
        .await;
        let (sources, url) = (sources(|_| ()), server.url("/v"));
        let (mut first, mut second, mut third) =
            (Box::pin(open(&sources, &url)), Box::pin(open(&sources, &url)), Box::pin(open(&sources, &url)));
        assert!(futures::poll!(&mut first).is_pending() && futures::poll!(&mut second).is_pending());
        assert!(futures::poll!(&mut third).is_pending());
        server.asked(1).await;
        // The one who came first goes away; the others are not hindered.
        drop(first);
        gate.add_permits(1);
        let (second, third) = (second.await.expect("opens"), third.await.expect("opens"));
        assert_eq!(server.requests(), 1);
        assert_eq!(sources.taken(), if ranges { 0 } else { 300_000 });
        drop(second);
        gate.add_permits(9);
        assert_eq!(third.read(250_000..250_010).await.expect("reads"), bytes(250_000..250_010));
        drop(third);
        assert_eq!(sources.taken(), 0, "the file goes with its last holder");
    }
}

#[tokio::test]
async fn an_opening_nobody_waits_for_is_given_up() {
    let server = Server::start(|_| Reply { gate: Some(Arc::new(Semaphore::new(0))), ..File::tagged(99).whole() }).await;
    let (sources, url) = (sources(|_| ()), server.url("/v"));
    let mut first = Box::pin(open(&sources, &url));
    assert!(futures::poll!(&mut first).is_pending());
    server.asked(1).await;
    drop(first);
    let mut second = Box::pin(open(&sources, &url));
    assert!(futures::poll!(&mut second).is_pending());
    server.asked(2).await;
}

#[tokio::test]
async fn what_is_held_is_asked_after_and_shared() {
    for ranges in [true, false] {
        let changed = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&changed);
        let server = Server::start(move |seen| {
            let etag = if theirs.load(Ordering::SeqCst) { "\"two\"" } else { "\"one\"" };
            let file = File { bytes: 300_000, etag: Some(etag), modified: None };
            if ranges || seen.header("if-none-match") == Some(etag) { file.reply(seen) } else { file.whole() }
        })
        .await;
        let (sources, url) = (sources(|_| ()), server.url("/v"));
        let first = open(&sources, &url).await.expect("opens");
        let sent = server.sent();
        let second = open(&sources, &url).await.expect("opens");
        assert_eq!((first.id(), server.sent(), second.bytes_read()), (second.id(), sent, 0), "304");
        assert_eq!(second.read(9..20).await.expect("reads"), bytes(9..20));
        changed.store(true, Ordering::SeqCst);
        let third = open(&sources, &url).await.expect("opens");
        assert!(server.sent() > sent);
        drop((first, second, third));
        let last = server.requests();
        open(&sources, &url).await.expect("opens");
        assert_eq!(server.seen()[last].header("if-none-match"), None, "nobody held it");
    }
}

#[tokio::test]
async fn the_same_tag_elsewhere_says_nothing() {
    let moved = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&moved);
    let server = Server::start(move |seen| match seen.path.as_str() {
        "/now" if theirs.load(Ordering::SeqCst) => Reply::redirect("/b"),
        "/now" => Reply::redirect("/a"),
        "/a" => File::tagged(300_000).reply(seen),
        _ => File::tagged(200_000).reply(seen),
    })
    .await;
    let (sources, url) = (sources(|_| ()), server.url("/now"));
    let first = open(&sources, &url).await.expect("opens");
    moved.store(true, Ordering::SeqCst);
    let second = open(&sources, &url).await.expect("opens");
    assert_eq!((first.bytes(), second.bytes()), (300_000, 200_000));
}

#[tokio::test]
async fn downloads_share_a_limited_space() {
    let server = Server::start(|_| File::tagged(300_000).whole()).await;
    let sources = sources(|config| config.max_temporary_bytes = 500_000);
    let first = open(&sources, &server.url("/a")).await.expect("fits");
    let second = open(&sources, &server.url("/b")).await;
    assert!(matches!(second, Err(MediaError::Busy)), "{second:?}");
    assert_eq!(sources.taken(), 300_000, "what did not fit has gone");
    drop(first);
    open(&sources, &server.url("/b")).await.expect("fits now");
}
