//! The HTTP server's settings.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;

use super::{ConfigError, PlainKeys, positive};

/// Settings of the HTTP server.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Address to listen on. Another one than loopback needs keys, or [`Self::allow_anonymous`].
    pub listen: SocketAddr,
    /// File of hashed keys (see [`super::KeyEntry`]); `paravt keys new` makes them. Read again when it changes. With this or
    /// [`Self::keys`], everything but `/health`, `/ready`, `/openapi.json` and `/` wants `Authorization: Bearer …`.
    pub keys_file: Option<PathBuf>,
    /// Keys themselves, beside those of the file, for where an environment variable (`PARAVT_SERVER_KEYS`) is at hand. They have
    /// no limits of their own and are called `config-1`, `config-2` and so on.
    pub keys: PlainKeys,
    /// Serve anybody who reaches an address that is not loopback, without keys: for networks where only friends are, and
    /// behind proxies that ask for keys themselves.
    pub allow_anonymous: bool,
    /// Names by which clients may call the server (their `Host` header, without a port), besides `localhost` and addresses.
    ///
    /// Checked while the server listens on a loopback address, and wherever this list is not empty. A server on loopback
    /// trusts its own machine, but a web page can point a name of its own there (DNS rebinding) and would then be of the
    /// same origin; it can't choose the name its browser sends. A proxy in front that passes its own name on is listed here.
    pub allowed_hosts: Vec<String>,
    /// Largest request body in bytes (a `data:` URL carries the whole video).
    pub max_body_bytes: usize,
    /// Most bytes of all request bodies together, from when they arrive until their episodes are over (a `data:` URL stays
    /// in memory as long); what doesn't fit gets 429. Not counted: a body's second copy while its JSON is read.
    pub max_bodies_bytes: usize,
    /// Typical episodes at work at the same time; more wait. What a request takes is estimated before any work: a card's full
    /// episode (one whole video, one full burst of windows) is one place, a short text an eighth of one, eight videos are
    /// several, and nothing is more than all.
    pub max_running: usize,
    /// Requests that may wait; more get 429. Callers with different keys take turns, and one that has nobody waiting may still
    /// send one when others have filled the queue.
    pub max_queued: usize,
    /// Longest expected wait in seconds: a request that would wait longer, by how long those before it took, gets 429 at once.
    /// 0: however long.
    pub max_wait_s: u64,
    /// Connections at the same time; more wait until others go.
    pub max_connections: usize,
    /// Seconds a client may take to send its request: its head, and its body. Also how long a connection may stand idle.
    pub read_timeout_s: u64,
    /// Seconds a client may send nothing of a body that is not complete yet.
    pub body_idle_s: u64,
    /// Seconds between comment lines on an idle stream.
    pub keep_alive_s: u64,
    /// Seconds that running episodes get to finish after a signal to stop.
    pub drain_s: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            keys_file: None,
            keys: PlainKeys::default(),
            allow_anonymous: false,
            allowed_hosts: Vec::new(),
            max_body_bytes: 256 << 20,
            max_bodies_bytes: 1 << 30,
            max_running: 16,
            max_queued: 64,
            max_connections: 8192,
            max_wait_s: 30,
            read_timeout_s: 60,
            body_idle_s: 10,
            keep_alive_s: 10,
            drain_s: 30,
        }
    }
}

impl ServerConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        positive(self.max_running as u64, "server.max_running")?;
        positive(self.max_body_bytes as u64, "server.max_body_bytes")?;
        positive(self.max_connections as u64, "server.max_connections")?;
        positive(self.read_timeout_s, "server.read_timeout_s")?;
        positive(self.body_idle_s, "server.body_idle_s")?;
        positive(self.keep_alive_s, "server.keep_alive_s")?;
        if self.max_bodies_bytes < self.max_body_bytes {
            let problem = "must not be below server.max_body_bytes";
            return Err(ConfigError::Value { field: "server.max_bodies_bytes", problem });
        }
        let is_name = |name: &String| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        };
        if !self.allowed_hosts.iter().all(is_name) {
            let problem = "must hold host names, without scheme, port or wildcard";
            return Err(ConfigError::Value { field: "server.allowed_hosts", problem });
        }
        Ok(())
    }

    /// Whether callers must show a key.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.keys_file.is_some() || !self.keys.is_empty()
    }

    /// Checks that not everybody on a network is served by an oversight. Apart from [`super::Config::check`], since the
    /// command line may still choose another address than the file does, and most commands listen on none.
    ///
    /// # Errors
    /// [`ConfigError::Value`], which says what to do.
    pub fn check_exposure(&self) -> Result<(), ConfigError> {
        if self.is_on_loopback() || self.has_keys() || self.allow_anonymous {
            return Ok(());
        }
        let problem = "is not loopback, and there are no keys: make one with `paravt keys new --name NAME --append FILE` and \
                       set server.keys_file = \"FILE\", or set server.keys; to serve anybody, or behind a proxy that asks \
                       for keys itself, set server.allow_anonymous = true";
        Err(ConfigError::Value { field: "server.listen", problem })
    }

    /// Whether clients must call the server by a name it knows: see [`Self::allowed_hosts`].
    pub(crate) fn checks_hosts(&self) -> bool {
        self.is_on_loopback() || !self.allowed_hosts.is_empty()
    }

    fn is_on_loopback(&self) -> bool {
        self.listen.ip().to_canonical().is_loopback()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_never_work_is_refused() {
        let host = |name: &str| ServerConfig { allowed_hosts: vec![name.to_owned()], ..ServerConfig::default() };
        assert!(host("paravt.example").check().is_ok());
        for name in ["", "*", "http://paravt.example", "paravt.example:80", "a b"] {
            assert!(host(name).check().is_err(), "{name}");
        }
        let small = ServerConfig { max_bodies_bytes: 5, max_body_bytes: 6, ..ServerConfig::default() };
        assert!(small.check().is_err());
        assert!(ServerConfig { body_idle_s: 0, ..ServerConfig::default() }.check().is_err());
    }

    #[test]
    fn only_loopback_is_served_without_keys_unless_asked_for() {
        let at = |listen: &str| ServerConfig { listen: listen.parse().expect("an address"), ..ServerConfig::default() };
        for listen in ["127.0.0.1:1", "[::1]:1", "127.9.9.9:1", "[::ffff:127.0.0.1]:1"] {
            assert!(at(listen).check_exposure().is_ok(), "{listen}");
        }
        for listen in ["0.0.0.0:1", "[::]:1", "192.168.1.5:1"] {
            let error = at(listen).check_exposure().expect_err(listen).to_string();
            assert!(error.contains("server.keys_file") && error.contains("server.allow_anonymous"), "{error}");
            assert!(ServerConfig { allow_anonymous: true, ..at(listen) }.check_exposure().is_ok());
            assert!(ServerConfig { keys_file: Some("keys.toml".into()), ..at(listen) }.check_exposure().is_ok());
        }
    }

    #[test]
    fn hosts_are_checked_on_loopback_and_where_they_are_named() {
        let checks = |listen: &str, names: &[&str]| {
            let allowed_hosts = names.iter().map(|name| (*name).to_owned()).collect();
            let listen = listen.parse().expect("an address");
            ServerConfig { listen, allowed_hosts, ..ServerConfig::default() }.checks_hosts()
        };
        assert!(checks("127.0.0.1:1", &[]) && checks("[::1]:1", &[]) && checks("[::ffff:127.0.0.1]:1", &[]));
        assert!(!checks("0.0.0.0:1", &[]) && !checks("[::]:1", &[]));
        assert!(checks("0.0.0.0:1", &["paravt.example"]));
    }
}
