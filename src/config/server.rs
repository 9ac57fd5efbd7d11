//! The HTTP server's settings.

use std::net::{Ipv4Addr, SocketAddr};

use serde::Deserialize;

use super::{ConfigError, positive};

/// Settings of the HTTP server.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Address to listen on. Loopback by default: there are no keys yet.
    pub listen: SocketAddr,
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
    /// Episodes at work at the same time; more wait.
    pub max_running: usize,
    /// Episodes that may wait; more get 429.
    pub max_queued: usize,
    /// Seconds a client may take to send its request.
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
            allowed_hosts: Vec::new(),
            max_body_bytes: 256 << 20,
            max_bodies_bytes: 1 << 30,
            max_running: 16,
            max_queued: 64,
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

    /// Whether clients must call the server by a name it knows: see [`Self::allowed_hosts`].
    pub(crate) fn checks_hosts(&self) -> bool {
        self.listen.ip().to_canonical().is_loopback() || !self.allowed_hosts.is_empty()
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
