//! Where URLs and their redirects may lead.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use url::Url;

use super::server::{File, Reply, Server};
use super::{is_remote, message, open, sources};
use crate::config::MediaConfig;
use crate::media::MediaError;
use crate::media::address::{Reach, reach};
use crate::media::http::Guard;
use crate::media::http::guard::{MAX_LOOKUPS, Names};
use crate::media::source::Sources;

const PUBLIC: &str = "127.0.0.1";
const PRIVATE: &str = "127.0.0.2";
/// Where [`with_keys`] sees a metadata service. Were the guard broken, the tests would still stay on this machine.
pub(super) const KEYS: &str = "127.0.0.3";

/// A resolver with answers of its own: of several for a name, the last one stays.
#[derive(Debug, Default)]
pub(super) struct Stub {
    answers: Mutex<HashMap<&'static str, Vec<Vec<IpAddr>>>>,
    asked: Mutex<Vec<String>>,
}

impl Stub {
    pub(super) fn new<const N: usize>(answers: [(&'static str, &[&[&str]]); N]) -> Arc<Self> {
        let list = |addresses: &&[&str]| addresses.iter().map(|address| address.parse().expect("an address")).collect();
        let answers = answers.map(|(name, answers)| (name, answers.iter().map(list).rev().collect()));
        Arc::new(Self { answers: Mutex::new(answers.into()), asked: Mutex::default() })
    }

    fn asked(&self) -> usize {
        self.asked.lock().expect("a list").len()
    }
}

#[async_trait]
impl Names for Stub {
    async fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        self.asked.lock().expect("a list").push(name.to_owned());
        let mut answers = self.answers.lock().expect("a map");
        let answers = answers.get_mut(name).ok_or(io::ErrorKind::NotFound)?;
        let answer = if answers.len() > 1 { answers.pop() } else { answers.last().cloned() };
        Ok(answer.expect("an answer").into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
    }
}

/// One loopback address is taken for public, so that there is a server to talk to.
fn as_if(address: IpAddr) -> Reach {
    if address == IpAddr::V4(Ipv4Addr::LOCALHOST) { Reach::Public } else { reach(address) }
}

/// All of loopback is public but one address.
pub(super) fn with_keys(address: IpAddr) -> Reach {
    if address == IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3)) { Reach::Metadata } else { Reach::Public }
}

fn anything(_: IpAddr) -> Reach {
    Reach::Public
}

pub(super) fn guarded(names: &Arc<Stub>, reach: fn(IpAddr) -> Reach, change: impl FnOnce(&mut MediaConfig)) -> Sources {
    let mut config = MediaConfig::default();
    change(&mut config);
    Sources::with(&config, Guard::with(&config, Arc::clone(names) as Arc<dyn Names>, reach))
}

/// A server taken for public that sends to `to`, and one on the same port that must never be spoken to.
async fn pair(to: impl Fn(u16) -> String + Send + Sync + 'static) -> (Server, Server) {
    let public = Server::start(move |seen| match seen.path.as_str() {
        "/old" => Reply::redirect(&to(seen.port())),
        _ => File::tagged(500_000).reply(seen),
    })
    .await;
    let private = Server::at(&format!("{PRIVATE}:{}", public.port), |_| Reply::new("200 OK", "", "secret")).await;
    (public, private)
}

#[tokio::test]
async fn a_redirect_to_a_private_place_is_refused() {
    let names = Stub::new([
        ("inside.test", &[&[PRIVATE]]),
        ("mixed.test", &[&[PUBLIC, PRIVATE]]),
        ("metadata.test", &[&[KEYS]]),
    ]);
    for host in ["127.0.0.2", "inside.test", "mixed.test", "2130706434", "0x7f000002", "0177.0.0.2", "127.2"] {
        let (public, private) = pair(move |port| format!("http://{host}:{port}/v")).await;
        let got = open(&guarded(&names, as_if, |_| ()), &public.url("/old")).await;
        assert!(matches!(got, Err(MediaError::Forbidden(_))), "{host}: {got:?}");
        assert_eq!((public.requests(), private.connections()), (1, 0), "{host}");
    }
    // Not even where private addresses are allowed.
    let (public, _private) = pair(|port| format!("http://metadata.test:{port}/v")).await;
    let keys = Server::at(&format!("{KEYS}:{}", public.port), |_| Reply::new("200 OK", "", "secret")).await;
    let sources = guarded(&names, with_keys, |config| config.allow_private_addresses = true);
    let got = open(&sources, &public.url("/old")).await;
    assert!(matches!(got, Err(MediaError::Forbidden(_))), "{got:?}");
    assert_eq!((public.requests(), keys.connections()), (1, 0));
}

#[tokio::test]
async fn a_name_with_one_private_address_is_refused() {
    let names = Stub::new([("mixed.test", &[&[PUBLIC, PRIVATE]]), ("none.test", &[&[]])]);
    let (public, private) = pair(|_| String::new()).await;
    // And in the same words as one that is not there: names inside are nobody's business.
    for host in ["mixed.test", "none.test", "unknown.test", PRIVATE] {
        let got = open(&guarded(&names, as_if, |_| ()), &format!("http://{host}:{}/v", public.port)).await;
        let Err(MediaError::Forbidden(words)) = got else { panic!("{host}: {got:?}") };
        assert_eq!(words, "the host is not known, or not one this server may fetch from", "{host}");
    }
    assert_eq!((public.connections(), private.connections()), (0, 0));
}

#[tokio::test]
async fn the_address_checked_is_the_one_dialled() {
    // Both addresses would be allowed, so that only what was looked up first keeps us from the second.
    let names = Stub::new([("rebinds.test", &[&[PUBLIC], &[PRIVATE]])]);
    let (public, private) = pair(|_| String::new()).await;
    let sources = guarded(&names, anything, |_| ());
    let content = open(&sources, &format!("http://rebinds.test:{}/v", public.port)).await.expect("opens");
    assert!(is_remote(&content));
    for start in [100_000, 300_000, 450_000] {
        content.read(start..start + 10).await.expect("reads");
    }
    assert_eq!((names.asked(), private.connections()), (1, 0), "asked once a hop");
    assert_eq!((public.requests(), public.connections()), (4, 1), "and one connection does for all");
}

/// A resolver that never answers.
#[derive(Debug, Default)]
struct Silent {
    asked: AtomicUsize,
}

#[async_trait]
impl Names for Silent {
    async fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    }
}

#[tokio::test]
async fn look_ups_that_nobody_waits_for_still_count() {
    let (names, config) = (Arc::new(Silent::default()), MediaConfig::default());
    let guard = Guard::with(&config, Arc::clone(&names) as Arc<dyn Names>, reach);
    for number in 0..3 * MAX_LOOKUPS {
        let url = Url::parse(&format!("http://{number}.test/v")).expect("a URL");
        let mut check = Box::pin(guard.check(&url, None));
        for _ in 0..3 {
            assert!(futures::poll!(&mut check).is_pending());
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(names.asked.load(Ordering::SeqCst), MAX_LOOKUPS);
}

#[tokio::test]
async fn each_hop_is_looked_up_once() {
    let names = Stub::new([("a.test", &[&[PUBLIC]]), ("b.test", &[&[PUBLIC]])]);
    let (public, _private) = pair(|port| format!("http://b.test:{port}/v")).await;
    let sources = guarded(&names, as_if, |_| ());
    open(&sources, &format!("http://a.test:{}/old", public.port)).await.expect("opens");
    assert_eq!(*names.asked.lock().expect("a list"), ["a.test", "b.test"]);
}

#[tokio::test]
async fn addresses_in_disguise_are_refused() {
    let (public, private) = pair(|_| String::new()).await;
    let names = Stub::new([]);
    for host in [
        "127.0.0.2",
        "127.2",
        "127.0.2",
        "2130706434",
        "0x7f.2",
        "0x7F000002",
        "0177.0.0.02",
        "017700000002",
        "127.0.0.2.",
        "%31%32%37.0.0.2",
        "127。0。0。2",
        "[::ffff:127.0.0.2]",
        "[::ffff:7f00:2]",
        "[::1]",
    ] {
        let got = open(&guarded(&names, as_if, |_| ()), &format!("http://{host}:{}/v", public.port)).await;
        assert!(matches!(got, Err(MediaError::Forbidden(_))), "{host}: {got:?}");
    }
    // Only looked at: were the guard broken, these would be dialled outside of this machine.
    let config = MediaConfig::default();
    let guard = Guard::with(&config, Arc::clone(&names) as Arc<dyn Names>, as_if);
    for host in [
        "[::ffff:0:127.0.0.2]",
        "[::127.0.0.2]",
        "[64:ff9b::127.0.0.2]",
        "[64:ff9b:1::127.0.0.2]",
        "[2002:7f00:2::]",
        "[::]",
        "0.0.0.0",
        "0",
        "10.0.0.1",
        "[fd00::1]",
        "169.254.169.254",
        "[::ffff:a9fe:a9fe]",
    ] {
        let url = Url::parse(&format!("http://{host}/v")).expect("a URL");
        let got = guard.check(&url, None).await;
        assert!(matches!(got, Err(MediaError::Forbidden(_))), "{host}: {got:?}");
    }
    assert_eq!((public.connections(), private.connections(), names.asked()), (0, 0, 0));
}

#[tokio::test]
async fn only_hosts_on_the_list_are_asked() {
    let names = Stub::new([
        ("a.example.test", &[&[PUBLIC]]),
        ("evil.test", &[&[PUBLIC]]),
        ("inside.example.test", &[&[PRIVATE]]),
    ]);
    let (public, private) = pair(|port| format!("http://evil.test:{port}/v")).await;
    let listed = || guarded(&names, as_if, |config| config.allowed_hosts = vec!["*.Example.test".to_owned()]);
    let url = |host: &str, path: &str| format!("http://{host}:{}{path}", public.port);
    for host in ["a.example.test", "A.EXAMPLE.TEST"] {
        open(&listed(), &url(host, "/v")).await.expect("on the list");
    }
    let before = (public.requests(), names.asked());
    for host in ["evil.test", "example.test", PUBLIC] {
        let got = open(&listed(), &url(host, "/v")).await;
        assert!(matches!(got, Err(MediaError::Forbidden(_))), "{host}: {got:?}");
    }
    assert_eq!((public.requests(), names.asked()), before, "nor looked up");
    let redirected = open(&listed(), &url("a.example.test", "/old")).await;
    assert!(matches!(redirected, Err(MediaError::Forbidden(_))), "{redirected:?}");
    assert_eq!(public.requests(), before.0 + 1);
    let inside = open(&listed(), &url("inside.example.test", "/v")).await;
    assert!(matches!(inside, Err(MediaError::Forbidden(_))), "{inside:?}");
    assert_eq!(private.connections(), 0);
    let nothing = guarded(&names, as_if, |config| config.allowed_hosts = vec!["not a host".to_owned()]);
    assert!(matches!(open(&nothing, &url("evil.test", "/v")).await, Err(MediaError::Forbidden(_))));
}

#[tokio::test]
async fn an_odd_port_is_taken_and_a_downgrade_is_not() {
    let names = Stub::new([("a.test", &[&["8.8.8.8"]])]);
    let config = MediaConfig::default();
    let guard = Guard::with(&config, Arc::clone(&names) as Arc<dyn Names>, reach);
    let url = |text: &str| Url::parse(text).expect("a URL");
    let check = async |text: &str, from: Option<&str>| guard.check(&url(text), from.map(url).as_ref()).await;
    let target = check("https://a.test:4711/v", Some("http://a.test/")).await.expect("allowed");
    assert_eq!(target.addresses, ["8.8.8.8:4711".parse().expect("an address")]);
    check("http://a.test/v", Some("http://a.test/")).await.expect("allowed");
    for (text, from) in [
        ("http://a.test/v", Some("https://a.test/")),
        ("ftp://a.test/v", Some("http://a.test/")),
        ("gopher://a.test/v", None),
    ] {
        assert!(matches!(check(text, from).await, Err(MediaError::Forbidden(_))), "{text}");
    }
    for text in ["http://user@a.test/v", "http://user:word@a.test/v", "http://:word@a.test/v"] {
        assert!(matches!(check(text, None).await, Err(MediaError::BadSource(_))), "{text}");
    }
}

#[tokio::test]
async fn redirects_are_checked_and_counted() {
    let server = Server::start(|seen| match seen.path.as_str() {
        "/file" => Reply::redirect("file:///etc/passwd"),
        "/nowhere" => Reply::new("302 Found", "", ""),
        "/user" => Reply::redirect("http://a:b@127.0.0.1/"),
        "/0" => File::tagged(5).reply(seen),
        path => Reply::redirect(&format!("/{}", path[1..].parse::<u32>().expect("a number") - 1)),
    })
    .await;
    let get = async |path: &str| open(&sources(|_| ()), &server.url(path)).await;
    assert!(matches!(get("/file").await, Err(MediaError::Forbidden(_))));
    assert_eq!(message(get("/nowhere").await), "the server redirects to nowhere");
    assert!(matches!(get("/user").await, Err(MediaError::BadSource(_))));
    assert_eq!(get("/5").await.expect("five are followed").bytes(), 5);
    assert_eq!(message(get("/6").await), "the server redirects more than 5 times");
}

#[tokio::test]
async fn no_more_is_told_than_needed() {
    let server = Server::start(|seen| match seen.path.as_str() {
        "/old?secret=1" => Reply::redirect("/v"),
        _ => File::tagged(200_000).reply(seen),
    })
    .await;
    let content = open(&sources(|_| ()), &server.url("/old?secret=1#part")).await.expect("opens");
    content.read(100_000..100_001).await.expect("reads");
    let seen = server.seen();
    assert_eq!(seen.len(), 3);
    for request in seen {
        assert_eq!(request.header("accept-encoding"), Some("identity"));
        for name in ["cookie", "referer", "authorization", "origin"] {
            assert_eq!(request.header(name), None, "{name}");
        }
        assert!(!request.path.contains('#'), "{}", request.path);
    }
}
