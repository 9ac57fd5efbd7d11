//! A small HTTP server in the test's own process, which does as it is told and writes down what it was asked.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// A request as it came.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    pub(super) path: String,
    pub(super) headers: HashMap<String, String>,
    /// Which one it is of all requests, from 0.
    pub(super) number: usize,
}

impl Seen {
    pub(super) fn range(&self) -> Option<Range<u64>> {
        let (first, last) = self.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some(first.parse().expect("a number")..last.parse::<u64>().expect("a number") + 1)
    }

    /// The port it came to.
    pub(super) fn port(&self) -> u16 {
        let port = self.header("host").and_then(|host| host.rsplit_once(':')).expect("a port").1;
        port.parse().expect("a port")
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// What to answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Reply {
    pub(super) head: String,
    pub(super) body: Vec<u8>,
    /// Send so many bytes of the body, then close.
    pub(super) cut: Option<usize>,
    /// Wait for a permit before the body.
    pub(super) gate: Option<Arc<Semaphore>>,
}

impl Reply {
    pub(super) fn new(status: &str, headers: &str, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
        Self { head, body, ..Self::default() }
    }

    pub(super) fn redirect(to: &str) -> Self {
        Self::new("302 Found", &format!("location: {to}\r\nset-cookie: a=b\r\n"), "")
    }
}

/// A file as a good server serves it. Its bytes are a function of their place.
#[derive(Debug, Clone, Default)]
pub(super) struct File {
    pub(super) bytes: u64,
    pub(super) etag: Option<&'static str>,
    pub(super) modified: Option<&'static str>,
}

pub(super) fn bytes(range: Range<u64>) -> Vec<u8> {
    range.map(|i| (i % 251) as u8 ^ (i >> 16) as u8).collect()
}

impl File {
    pub(super) fn tagged(bytes: u64) -> Self {
        Self { bytes, etag: Some("\"one\""), modified: None }
    }

    pub(super) fn headers(&self) -> String {
        let etag = self.etag.map(|etag| format!("etag: {etag}\r\n"));
        let date = "date: Mon, 01 Jan 2024 01:00:00 GMT\r\n";
        let modified = self.modified.map(|modified| format!("{date}last-modified: {modified}\r\n"));
        etag.unwrap_or_default() + &modified.unwrap_or_default()
    }

    pub(super) fn reply(&self, seen: &Seen) -> Reply {
        if self.etag.is_some() && seen.header("if-none-match") == self.etag {
            return Reply::new("304 Not Modified", &self.headers(), "");
        }
        let same = seen.header("if-range").is_none_or(|tag| Some(tag) == self.etag);
        match seen.range().filter(|_| same) {
            Some(range) => self.part(range.start..range.end.min(self.bytes)),
            None => self.whole(),
        }
    }

    pub(super) fn whole(&self) -> Reply {
        Reply::new("200 OK", &self.headers(), bytes(0..self.bytes))
    }

    pub(super) fn part(&self, range: Range<u64>) -> Reply {
        let place = format!("content-range: bytes {}-{}/{}\r\n", range.start, range.end - 1, self.bytes);
        Reply::new("206 Partial Content", &(place + &self.headers()), bytes(range))
    }
}

type Handler = dyn Fn(&Seen) -> Reply + Send + Sync;

/// The server. It stops with the value.
pub(super) struct Server {
    pub(super) port: u16,
    host: String,
    log: Arc<Log>,
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Log {
    seen: Mutex<Vec<Seen>>,
    connections: AtomicUsize,
    sent: AtomicU64,
}

impl Server {
    pub(super) async fn start(handler: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0", handler).await
    }

    pub(super) async fn at(address: &str, handler: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(address).await.expect("binds");
        let address = listener.local_addr().expect("an address");
        let (log, handler) = (Arc::new(Log::default()), Arc::new(handler) as Arc<Handler>);
        let mut tasks = JoinSet::new();
        let theirs = Arc::clone(&log);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                theirs.connections.fetch_add(1, Ordering::SeqCst);
                connections.spawn(serve(socket, Arc::clone(&handler), Arc::clone(&theirs)));
            }
        });
        Self { port: address.port(), host: address.to_string(), log, _tasks: tasks }
    }

    /// A server that has one file, at every path.
    pub(super) async fn of(file: File) -> Self {
        Self::start(move |seen| file.reply(seen)).await
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.host)
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.log.seen.lock().expect("a log").clone()
    }

    pub(super) fn requests(&self) -> usize {
        self.seen().len()
    }

    /// Ranges asked for, those from `skip` on.
    pub(super) fn ranges(&self, skip: usize) -> Vec<Range<u64>> {
        self.seen().iter().skip(skip).filter_map(Seen::range).collect()
    }

    pub(super) fn connections(&self) -> usize {
        self.log.connections.load(Ordering::SeqCst)
    }

    /// Bytes of bodies sent.
    pub(super) fn sent(&self) -> u64 {
        self.log.sent.load(Ordering::SeqCst)
    }

    /// Waits until so many requests have come.
    pub(super) async fn asked(&self, requests: usize) {
        while self.requests() < requests {
            tokio::task::yield_now().await;
        }
    }
}

async fn serve(mut socket: TcpStream, handler: Arc<Handler>, log: Arc<Log>) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match socket.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lines = head.lines();
        let path = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        let seen = {
            let mut all = log.seen.lock().expect("a log");
            let seen = Seen { path, headers, number: all.len() };
            all.push(seen.clone());
            seen
        };
        let reply = handler(&seen);
        if socket.write_all(reply.head.as_bytes()).await.is_err() {
            return;
        }
        if let Some(gate) = &reply.gate {
            gate.acquire().await.expect("open").forget();
        }
        let body = &reply.body[..reply.cut.unwrap_or(reply.body.len())];
        log.sent.fetch_add(body.len() as u64, Ordering::SeqCst);
        if socket.write_all(body).await.is_err() || reply.cut.is_some() {
            return;
        }
    }
}
