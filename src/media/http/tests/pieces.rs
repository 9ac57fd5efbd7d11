//! Reading a file that stays on the web, from servers good and bad.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::guard::{KEYS, Stub, guarded, with_keys};
use super::server::{File, Reply, Seen, Server, bytes};
use super::{BLOCK_BYTES, is_remote, message, open, opened, sources};
use crate::media::MediaError;

const MIB: u64 = 1 << 20;

/// A server of one file whose answers from the second one on are changed.
async fn changed(change: impl Fn(&Seen, Reply) -> Reply + Send + Sync + 'static) -> Server {
    Server::start(move |seen| {
        let reply = File::tagged(10 * MIB).reply(seen);
        if seen.number == 0 { reply } else { change(seen, reply) }
    })
    .await
}

#[tokio::test]
async fn only_the_blocks_needed_are_asked_for_and_once() {
    let server = Server::of(File::tagged(10 * MIB)).await;
    let content = opened(&server, "/v").await;
    assert!(is_remote(&content));
    assert_eq!((content.bytes(), content.bytes_read(), server.sent()), (10 * MIB, BLOCK_BYTES, BLOCK_BYTES));
    for (start, end) in [(5, 50), (200_000, 430_000), (2 * MIB, 2 * MIB + 1), (10 * MIB - 3, 10 * MIB + 99)] {
        let got = content.read(start..end).await.expect("reads");
        assert_eq!(got, bytes(start..end.min(10 * MIB)), "{start}..{end}");
    }
    let asked = [0..65_536, 196_608..458_752, 2 * MIB..2 * MIB + BLOCK_BYTES, 10 * MIB - BLOCK_BYTES..10 * MIB];
    assert_eq!(server.ranges(0), asked);
    // All at hand, then the gap between two stretches that are.
    content.read(220_000..400_000).await.expect("reads");
    assert_eq!(server.requests(), 4);
    assert_eq!(content.read(100_000..530_000).await.expect("reads"), bytes(100_000..530_000));
    assert_eq!(server.ranges(4), [65_536..196_608, 458_752..589_824]);
    assert_eq!(content.bytes_read(), server.sent());
    assert!(server.seen().iter().skip(1).all(|seen| seen.header("if-range") == Some("\"one\"")));
}

#[tokio::test]
async fn an_overview_of_a_match_reads_less_than_a_fiftieth() {
    const TOTAL: u64 = 2_700_000_000;
    let server = Server::of(File::tagged(TOTAL)).await;
    let content = opened(&server, "/v").await;
    let tail = Arc::clone(&content);
    let index = tokio::task::spawn_blocking(move || {
        let mut index = vec![0; 2_000_000];
        let mut cursor = tail.cursor(Duration::MAX);
        cursor.seek(SeekFrom::End(-2_000_000)).expect("seeks");
        for piece in index.chunks_mut(1000) {
            cursor.read_exact(piece).expect("reads");
        }
        index
    });
    assert_eq!(index.await.expect("ends"), bytes(TOTAL - 2_000_000..TOTAL));
    assert!(server.requests() <= 8, "{} requests for an index of 2 MB", server.requests());
    let frames = (0..64).map(|i| content.read(i * 42_000_000..i * 42_000_000 + 230_000));
    futures::future::try_join_all(frames).await.expect("reads");
    assert!(server.sent() < TOTAL / 50, "{}", server.sent());
    assert_eq!(content.bytes_read(), server.sent());
    assert!(server.connections() <= 8, "{}", server.connections());
}

#[tokio::test]
async fn a_long_read_is_several_requests() {
    let server = Server::of(File::tagged(10 * MIB)).await;
    let content = opened(&server, "/v").await;
    assert_eq!(content.read(0..10 * MIB).await.expect("reads"), bytes(0..10 * MIB));
    let mut asked = server.ranges(1);
    asked.sort_by_key(|range| range.start);
    let start = BLOCK_BYTES;
    assert_eq!(asked, [start..start + 4 * MIB, start + 4 * MIB..start + 8 * MIB, start + 8 * MIB..10 * MIB]);
}

#[tokio::test]
async fn a_cursor_reads_ahead_until_it_is_sent_elsewhere() {
    let server = Server::of(File::tagged(10 * MIB)).await;
    let content = opened(&server, "/v").await;
    let read = tokio::task::spawn_blocking(move || {
        let mut cursor = content.cursor(Duration::MAX);
        let mut piece = [0; 100];
        for at in [5_000_000, 5_000_200, 5_001_000, 8_000_000] {
            cursor.seek(SeekFrom::Start(at)).expect("seeks");
            cursor.read_exact(&mut piece).expect("reads");
            assert_eq!(piece.as_slice(), bytes(at..at + 100));
        }
        let mut long = vec![0; 3_000_000];
        cursor.seek(SeekFrom::Start(1_000_000)).expect("seeks");
        cursor.read_exact(&mut long).expect("reads");
        assert_eq!(long, bytes(1_000_000..4_000_000));
        let mut rest = Vec::new();
        cursor.seek(SeekFrom::Start(10 * MIB - 10)).expect("seeks");
        cursor.read_to_end(&mut rest).expect("reads");
        assert_eq!(rest, bytes(10 * MIB - 10..10 * MIB));
    });
    read.await.expect("ends");
    let asked = server.ranges(1);
    let lengths: Vec<u64> = asked.iter().map(|range| range.end - range.start).collect();
    assert_eq!(lengths, [BLOCK_BYTES, BLOCK_BYTES, 46 * BLOCK_BYTES + BLOCK_BYTES, BLOCK_BYTES], "{asked:?}");
}

#[tokio::test]
async fn a_cursor_nobody_waits_for_lets_its_thread_go() {
    let server = changed(|_, reply| Reply { gate: Some(Arc::new(Semaphore::new(0))), ..reply }).await;
    let content = opened(&server, "/v").await;
    let mut cursor = content.cursor(Duration::MAX);
    let stopper = cursor.stopper();
    let read = tokio::task::spawn_blocking(move || {
        let read = |cursor: &mut crate::media::content::Cursor, at| {
            cursor.seek(SeekFrom::Start(at)).expect("seeks");
            cursor.read(&mut [0; 9]).is_err()
        };
        read(&mut cursor, MIB) && read(&mut cursor, 2 * MIB) && cursor.into_error().is_some()
    });
    server.asked(2).await;
    drop(stopper);
    assert!(read.await.expect("ends"));
    assert_eq!(server.requests(), 2, "nothing is asked for any more");
}

#[tokio::test]
async fn readers_of_the_same_blocks_share_one_request_and_none_hinders_another() {
    let gate = Arc::new(Semaphore::new(0));
    let theirs = Arc::clone(&gate);
    let server = changed(move |_, reply| Reply { gate: Some(Arc::clone(&theirs)), ..reply }).await;
    let content = opened(&server, "/v").await;
    let mut first = Box::pin(content.read(MIB..2 * MIB));
    assert!(futures::poll!(&mut first).is_pending());
    server.asked(2).await;
    let mut second = Box::pin(content.read(MIB + 100_000..2 * MIB + 100));
    assert!(futures::poll!(&mut second).is_pending());
    server.asked(3).await;
    drop(first);
    gate.add_permits(2);
    assert_eq!(second.await.expect("reads"), bytes(MIB + 100_000..2 * MIB + 100));
    assert_eq!(server.ranges(1), [MIB..2 * MIB, 2 * MIB..2 * MIB + BLOCK_BYTES]);
    assert_eq!(content.read(MIB..MIB + 9).await.expect("is kept"), bytes(MIB..MIB + 9));
    assert_eq!(server.requests(), 3);
}

#[tokio::test]
async fn a_request_nobody_waits_for_is_given_up_and_asked_anew() {
    let server = changed(|seen, reply| match seen.number {
        1..=20 => Reply { gate: Some(Arc::new(Semaphore::new(0))), ..reply },
        _ => reply,
    })
    .await;
    let content = opened(&server, "/v").await;
    // More than there are places for one source, so that each must be given back.
    for number in 0..20 {
        let mut read = Box::pin(content.read(MIB..MIB + 1));
        assert!(futures::poll!(&mut read).is_pending());
        server.asked(number + 2).await;
    }
    assert_eq!(content.read(MIB..MIB + 9).await.expect("reads"), bytes(MIB..MIB + 9));
}

#[tokio::test]
async fn so_many_requests_at_a_time_and_no_more() {
    let (gate, open) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let theirs = Arc::clone(&gate);
    let server = changed(move |_, reply| Reply { gate: Some(Arc::clone(&theirs)), ..reply }).await;
    let content = opened(&server, "/v").await;
    let reads: Vec<_> = (1..30)
        .map(|block| {
            let (content, open) = (Arc::clone(&content), Arc::clone(&open));
            tokio::spawn(async move {
                let got = content.read(block * 2 * BLOCK_BYTES..block * 2 * BLOCK_BYTES + 1).await;
                open.fetch_add(1, Ordering::SeqCst);
                got
            })
        })
        .collect();
    server.asked(9).await;
    for done in 1..=29 {
        assert!(server.requests() <= 1 + 8 + done, "{} requests, {done} answered", server.requests());
        gate.add_permits(1);
        while open.load(Ordering::SeqCst) < done {
            tokio::task::yield_now().await;
        }
    }
    for read in reads {
        read.await.expect("ends").expect("reads");
    }
    assert!(server.connections() <= 8);
}

#[tokio::test]
async fn a_file_that_changes_is_not_mixed() {
    let other = |etag, bytes| File { bytes, etag: Some(etag), modified: None };
    type Change = Box<dyn Fn(&Seen, Reply) -> Reply + Send + Sync>;
    let cases: [(&str, Change); 5] = [
        ("heeds the condition", Box::new(move |seen, _| other("\"two\"", MIB).reply(seen))),
        ("ignores it", Box::new(move |seen, _| other("\"two\"", 10 * MIB).part(seen.range().expect("a range")))),
        ("says it failed", Box::new(|_, _| Reply::new("412 Precondition Failed", "", ""))),
        ("has another length", Box::new(move |seen, _| other("\"one\"", 9 * MIB).part(seen.range().expect("a range")))),
        (
            "tells no tag",
            Box::new(move |seen, _| File { bytes: 10 * MIB, ..File::default() }.part(seen.range().expect("a range"))),
        ),
    ];
    for (name, change) in cases {
        let server = changed(change).await;
        let content = opened(&server, "/v").await;
        let got = content.read(MIB..MIB + 10).await;
        assert_eq!(message(got), "the file changed while it was read", "{name}");
        assert_eq!(server.requests(), 2, "{name}: not asked again");
    }
    let dated = |date| File { bytes: MIB, etag: None, modified: Some(date) };
    let server = Server::start(move |seen| {
        dated(if seen.number < 2 { "Mon, 01 Jan 2024 00:00:00 GMT" } else { "Mon, 01 Jan 2024 00:00:07 GMT" })
            .reply(seen)
    })
    .await;
    let content = opened(&server, "/v").await;
    assert_eq!(message(content.read(500_000..500_010).await), "the file changed while it was read");
}

#[tokio::test]
async fn wrong_answers_are_refused() {
    for (name, answer) in [
        ("another place", File::tagged(10 * MIB).part(0..BLOCK_BYTES)),
        ("more", File::tagged(10 * MIB).part(MIB..MIB + 2 * BLOCK_BYTES)),
        ("no place", Reply::new("206 Partial Content", "etag: \"one\"\r\n", bytes(MIB..MIB + BLOCK_BYTES))),
        ("compressed", {
            let mut reply = File::tagged(10 * MIB).part(MIB..MIB + BLOCK_BYTES);
            reply.head = reply.head.replace("etag:", "content-encoding: gzip\r\netag:");
            reply
        }),
        ("no pieces any more", Reply::new("200 OK", "etag: \"one\"\r\n", "")),
        ("teapot", Reply::new("418 I'm a teapot", "", "")),
    ] {
        let server = changed(move |_, _| answer.clone()).await;
        let content = opened(&server, "/v").await;
        message(content.read(MIB..MIB + 10).await);
        assert_eq!(server.requests(), 2, "{name}: not asked again");
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_is_gone_on_with() {
    // It breaks once, in the middle of the second block.
    let server = changed(|seen, reply| Reply { cut: (seen.number == 1).then_some(100_000), ..reply }).await;
    let content = opened(&server, "/v").await;
    let end = MIB + 4 * BLOCK_BYTES;
    assert_eq!(content.read(MIB..end).await.expect("reads"), bytes(MIB..end));
    assert_eq!(server.ranges(1), [MIB..end, MIB + BLOCK_BYTES..end]);

    let never = changed(|_, reply| Reply { cut: Some(10), ..reply }).await;
    let content = opened(&never, "/v").await;
    assert_eq!(message(content.read(MIB..MIB + 10).await), "the connection broke off");
    assert_eq!(never.requests(), 1 + 3, "tried three times");

    let ill = changed(|seen, reply| if seen.number < 3 { Reply::new("503 Busy", "", "") } else { reply }).await;
    let content = opened(&ill, "/v").await;
    assert_eq!(content.read(MIB..MIB + 10).await.expect("reads"), bytes(MIB..MIB + 10));
}

#[tokio::test]
async fn a_server_that_sends_little_at_once_is_asked_more_often() {
    let server = changed(|seen, _| {
        let range = seen.range().expect("a range");
        File::tagged(10 * MIB).part(range.start..range.end.min(range.start + 100_000))
    })
    .await;
    let content = opened(&server, "/v").await;
    assert_eq!(content.read(MIB..2 * MIB).await.expect("reads"), bytes(MIB..2 * MIB));
}

#[tokio::test]
async fn a_server_that_sends_a_byte_at_a_time_is_given_up() {
    let server = changed(|seen, _| {
        let range = seen.range().expect("a range");
        File::tagged(10 * MIB).part(range.start..range.start + 1)
    })
    .await;
    let content = opened(&server, "/v").await;
    assert_eq!(message(content.read(MIB..2 * MIB).await), "the server sends too little at once");
    assert_eq!(server.requests(), 1 + 3);
    assert_eq!(message(content.download().await.map(drop)), "the server sends too little at once");
    assert_eq!(server.requests(), 1 + 3 + 3);
}

#[tokio::test]
async fn what_a_stranger_puts_in_stays_with_those_who_asked_the_stranger() {
    let moved = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&moved);
    let server = Server::start(move |seen| match (seen.path.as_str(), theirs.load(Ordering::SeqCst)) {
        ("/stranger", false) => Reply::redirect("/v?Signature=1"),
        ("/stranger", true) => Reply::redirect("/forged"),
        ("/v?Signature=1", true) => Reply::new("403 Forbidden", "", ""),
        ("/forged", _) => {
            let mut reply = File::tagged(10 * MIB).reply(seen);
            reply.body.fill(0);
            reply
        }
        _ => File::tagged(10 * MIB).reply(seen),
    })
    .await;
    let sources = sources(|_| ());
    let stranger = open(&sources, &server.url("/stranger")).await.expect("opens");
    let early = open(&sources, &server.url("/v?Signature=2")).await.expect("opens");
    moved.store(true, Ordering::SeqCst);
    assert_eq!(stranger.read(MIB..MIB + 9).await.expect("reads"), [0; 9].as_slice());
    let late = open(&sources, &server.url("/v?Signature=3")).await.expect("opens");
    for content in [early, late] {
        assert_eq!(content.read(MIB..MIB + 9).await.expect("reads"), bytes(MIB..MIB + 9));
        assert_ne!(content.id(), stranger.id());
    }
}

#[tokio::test]
async fn a_signed_way_that_has_run_out_is_renewed_once() {
    let expired = Arc::new(AtomicUsize::new(0));
    let theirs = Arc::clone(&expired);
    let server = Server::start(move |seen| {
        let now = theirs.load(Ordering::SeqCst);
        match seen.path.as_str() {
            "/v" => Reply::redirect(&format!("/signed?Signature={now}")),
            path if path == format!("/signed?Signature={now}") => File::tagged(10 * MIB).reply(seen),
            _ => Reply::new("403 Forbidden", "", ""),
        }
    })
    .await;
    let content = opened(&server, "/v").await;
    assert_eq!(server.requests(), 2);
    expired.store(1, Ordering::SeqCst);
    let (first, second) = tokio::join!(content.read(MIB..MIB + 10), content.read(3 * MIB..3 * MIB + 10));
    assert_eq!(
        (first.expect("reads").to_vec(), second.expect("reads").to_vec()),
        (bytes(MIB..MIB + 10), bytes(3 * MIB..3 * MIB + 10))
    );
    let originals = server.seen().iter().filter(|seen| seen.path == "/v").count();
    assert_eq!(originals, 2, "one reader asked for both");
    assert!(server.ranges(2).iter().filter(|range| **range == (0..1)).count() <= 2);

    // Where the original gives no way either, that is the end.
    let server = Server::start(|seen| match (seen.path.as_str(), seen.number) {
        ("/v", _) => Reply::redirect("/signed"),
        (_, 0 | 1) => File::tagged(10 * MIB).reply(seen),
        _ => Reply::new("403 Forbidden", "", ""),
    })
    .await;
    let content = opened(&server, "/v").await;
    assert_eq!(message(content.read(MIB..MIB + 10).await), "the server answered 403");
    assert_eq!(server.requests(), 2 + 1 + 2);
}

#[tokio::test]
async fn a_new_way_is_guarded_as_the_first_one() {
    let server = Server::start(|seen| match (seen.path.as_str(), seen.number) {
        ("/v", 0) => Reply::redirect("/signed"),
        ("/v", _) => Reply::redirect(&format!("http://{KEYS}:{}/latest", seen.port())),
        (_, 1) => File::tagged(10 * MIB).reply(seen),
        _ => Reply::new("401 Unauthorized", "", ""),
    })
    .await;
    let keys = Server::at(&format!("{KEYS}:{}", server.port), |_| Reply::new("200 OK", "", "secret")).await;
    let content = open(&guarded(&Stub::new([]), with_keys, |_| ()), &server.url("/v")).await.expect("opens");
    let got = content.read(MIB..MIB + 10).await;
    assert!(matches!(got, Err(MediaError::Forbidden(_))), "{got:?}");
    assert_eq!(keys.connections(), 0);
}

#[tokio::test]
async fn a_redirect_while_reading_goes_through_the_guard_too() {
    let moved = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&moved);
    let server = Server::start(move |seen| match (seen.path.as_str(), theirs.load(Ordering::SeqCst)) {
        ("/v", true) => Reply::redirect("/new"),
        _ => File::tagged(10 * MIB).reply(seen),
    })
    .await;
    let content = opened(&server, "/v").await;
    moved.store(true, Ordering::SeqCst);
    assert_eq!(content.read(MIB..MIB + 10).await.expect("reads"), bytes(MIB..MIB + 10));
    assert_eq!(server.seen().last().map(|seen| seen.path.clone()).as_deref(), Some("/new"));
}

#[tokio::test]
async fn with_nothing_kept_all_is_still_read() {
    let server = Server::of(File::tagged(10 * MIB)).await;
    let sources = sources(|config| config.range_cache_bytes = 0);
    let content = open(&sources, &server.url("/v")).await.expect("opens");
    for _ in 0..2 {
        assert_eq!(content.read(0..300_000).await.expect("reads"), bytes(0..300_000));
    }
    assert_eq!(content.bytes_read(), server.sent());
}

#[tokio::test]
async fn the_whole_is_downloaded_once_for_all_who_need_it() {
    // It breaks off in between, and the next request goes on.
    let server = changed(|seen, reply| Reply { cut: (seen.number == 1).then_some(3_000_000), ..reply }).await;
    let sources = sources(|_| ());
    let content = open(&sources, &server.url("/v")).await.expect("opens");
    let (first, second) = tokio::join!(content.download(), content.download());
    let (first, second) = (first.expect("downloads"), second.expect("downloads"));
    assert_eq!(server.requests(), 3);
    assert_eq!(server.ranges(2)[0].end, 10 * MIB);
    let third = content.download().await.expect("is there");
    assert_eq!(server.requests(), 3);
    for whole in [&first, &second, &third] {
        assert_eq!((whole.id(), whole.bytes(), is_remote(whole)), (content.id(), 10 * MIB, false));
        assert_eq!(whole.read(4 * MIB..5 * MIB).await.expect("reads"), bytes(4 * MIB..5 * MIB));
    }
    assert_eq!((content.bytes_read(), sources.taken()), (server.sent(), 10 * MIB));
    drop((first, second, third));
    assert_eq!(sources.taken(), 0);
}

#[tokio::test]
async fn a_download_of_a_changed_file_or_without_space_fails() {
    let server = changed(|seen, _| File { bytes: 10 * MIB, etag: Some("\"two\""), modified: None }.reply(seen)).await;
    let content = opened(&server, "/v").await;
    assert_eq!(message(content.download().await), "the file changed while it was read");
    let server = Server::of(File::tagged(10 * MIB)).await;
    let sources = sources(|config| config.max_temporary_bytes = 5 * MIB);
    let content = open(&sources, &server.url("/v")).await.expect("opens");
    assert!(matches!(content.download().await, Err(MediaError::Busy)));
    assert_eq!(sources.taken(), 0);
}

#[tokio::test]
async fn a_server_that_falls_silent_is_given_up() {
    let server = changed(|_, reply| Reply { gate: Some(Arc::new(Semaphore::new(0))), ..reply }).await;
    let sources = sources(|config| config.fetch_timeout_s = 1);
    let content = open(&sources, &server.url("/v")).await.expect("opens");
    assert!(matches!(content.read(MIB..MIB + 1).await, Err(MediaError::Timeout(_))));
}
