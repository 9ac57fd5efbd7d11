//! HTTP clients that dial what was checked and nothing else.
//!
//! This file does not judge addresses, and looks none up.

use std::net::SocketAddr;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{ACCEPT_ENCODING, HeaderMap, HeaderValue};

use super::guard::Target;
use crate::media::MediaError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server may send nothing.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection is kept for the next question.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections to one address kept so.
const MAX_IDLE: usize = 8;
/// Hosts whose connections are kept.
const MAX_CLIENTS: u64 = 64;

/// Clients by whom they dial, so that many questions to one host share its connections.
#[derive(Debug)]
pub(super) struct Clients {
    kept: moka::future::Cache<Target, reqwest::Client>,
}

impl Clients {
    /// None yet.
    pub(super) fn new() -> Self {
        let kept = moka::future::Cache::builder().max_capacity(MAX_CLIENTS).time_to_idle(2 * IDLE_TIMEOUT).build();
        Self { kept }
    }

    /// The client that dials a host's checked addresses, whatever the host's name says by now.
    ///
    /// # Errors
    /// [`MediaError::Internal`] when a client can't be built.
    pub(super) async fn get(&self, mut target: Target) -> Result<reqwest::Client, MediaError> {
        let addresses = target.addresses.clone();
        // Names with many addresses tell them in another order each time.
        target.addresses.sort_unstable();
        let failed = || MediaError::Internal("the HTTP client does not start".to_owned());
        // The system's certificates are read for it.
        let built = async { tokio::task::spawn_blocking(|| client(addresses)).await.ok().and_then(Result::ok) };
        self.kept.optionally_get_with(target, built).await.ok_or_else(failed)
    }
}

fn client(addresses: Vec<SocketAddr>) -> reqwest::Result<reqwest::Client> {
    let mut headers = HeaderMap::new();
    // Bytes as they lie in the file: only these can be counted and cut.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    reqwest::Client::builder()
        .dns_resolver(Checked(addresses))
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .no_proxy()
        .no_gzip()
        .no_brotli()
        .no_deflate()
        .no_zstd()
        .default_headers(headers)
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(SILENCE_TIMEOUT)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(MAX_IDLE)
        .user_agent(concat!("paravt/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// Knows one answer for all names, and never asks.
#[derive(Debug)]
struct Checked(Vec<SocketAddr>);

impl Resolve for Checked {
    fn resolve(&self, _: Name) -> Resolving {
        let addresses: Addrs = Box::new(self.0.clone().into_iter());
        Box::pin(std::future::ready(Ok(addresses)))
    }
}
