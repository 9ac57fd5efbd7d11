//! Whom a stranger's URL may make us talk to. Every hop goes through here before it is dialled: scheme, user info, host, and
//! every address the host has.
//!
//! This file sends nothing; it asks the resolver, once a hop.

use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Semaphore;
use url::{Host, Url};

use crate::config::{HostPattern, MediaConfig};
use crate::media::MediaError;
use crate::media::address::{Reach, reach};

/// Where names lead.
#[async_trait]
pub(in crate::media) trait Names: Debug + Send + Sync {
    /// All addresses of a name, with the port given.
    async fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// The system's resolver.
#[derive(Debug)]
struct System;

#[async_trait]
impl Names for System {
    async fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((name, port)).await?.collect())
    }
}

/// Names looked up at the same time. A look-up that nobody waits for any more still takes a thread until the system gives it
/// up, so it counts until then.
pub(super) const MAX_LOOKUPS: usize = 32;

/// The rules.
#[derive(Debug)]
pub(in crate::media) struct Guard {
    /// `None`: all hosts.
    hosts: Option<Vec<HostPattern>>,
    allow_private: bool,
    names: Arc<dyn Names>,
    reach: fn(IpAddr) -> Reach,
    lookups: Arc<Semaphore>,
}

/// A host that may be dialled, at these addresses and no others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Target {
    pub(super) host: String,
    pub(super) addresses: Vec<SocketAddr>,
}

impl Guard {
    /// The rules as configured.
    pub(in crate::media) fn new(config: &MediaConfig) -> Self {
        Self::with(config, Arc::new(System), reach)
    }

    /// The rules as configured, with another resolver and another opinion on addresses.
    pub(in crate::media) fn with(config: &MediaConfig, names: Arc<dyn Names>, reach: fn(IpAddr) -> Reach) -> Self {
        // The configuration is checked at start; what is no host would allow nothing.
        let hosts = config.allowed_hosts.iter().filter_map(|host| HostPattern::parse(host)).collect();
        let hosts = (!config.allowed_hosts.is_empty()).then_some(hosts);
        let lookups = Arc::new(Semaphore::new(MAX_LOOKUPS));
        Self { hosts, allow_private: config.allow_private_addresses, names, reach, lookups }
    }

    /// Whether a URL may be dialled; `from`: as a redirect, of what was asked at first.
    ///
    /// # Errors
    /// [`MediaError::Forbidden`], in the same words for a host that is not known and one that must not be known: a stranger is
    /// not told which names there are inside. [`MediaError::BadSource`] for a URL with user info.
    pub(super) async fn check(&self, url: &Url, from: Option<&Url>) -> Result<Target, MediaError> {
        let forbidden = |problem: &str| Err(MediaError::Forbidden(problem.to_owned()));
        if !matches!(url.scheme(), "http" | "https") {
            return forbidden("the server redirects to something that is not http");
        }
        if url.scheme() == "http" && from.is_some_and(|from| from.scheme() == "https") {
            // Who asks for https wants the file its server has. From here on, anyone on the way could put in another.
            return forbidden("the server redirects from https to http");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(MediaError::BadSource("a URL with a user name or password is not taken".to_owned()));
        }
        let unknown =
            || MediaError::Forbidden("the host is not known, or not one this server may fetch from".to_owned());
        let host = url.host_str().ok_or_else(unknown)?;
        if self.hosts.as_ref().is_some_and(|hosts| !hosts.iter().any(|pattern| pattern.matches(host))) {
            return forbidden("the host is not one this server may fetch from");
        }
        let port = url.port_or_known_default().ok_or_else(unknown)?;
        let addresses = match url.host().ok_or_else(unknown)? {
            Host::Ipv4(ip) => vec![SocketAddr::new(IpAddr::V4(ip), port)],
            Host::Ipv6(ip) => vec![SocketAddr::new(IpAddr::V6(ip), port)],
            Host::Domain(name) => self.look_up(name, port).await.map_err(|_| unknown())?,
        };
        if addresses.is_empty() {
            return Err(unknown());
        }
        // All must be good, not one of them: which one is dialled is not ours to say.
        let has = |kind| addresses.iter().any(|address| (self.reach)(address.ip()) == kind);
        if has(Reach::Metadata) || (!self.allow_private && has(Reach::Private)) {
            return Err(unknown());
        }
        Ok(Target { host: host.to_owned(), addresses })
    }

    async fn look_up(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let permit = Arc::clone(&self.lookups).acquire_owned().await.map_err(io::Error::other)?;
        let (names, name) = (Arc::clone(&self.names), name.to_owned());
        let looking = tokio::spawn(async move {
            let _permit = permit;
            names.resolve(&name, port).await
        });
        looking.await.map_err(io::Error::other)?
    }
}
