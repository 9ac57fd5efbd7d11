//! By which names a server is called: the guard against DNS rebinding (see `ServerConfig::allowed_hosts`).

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::extract::{Request, State};
use axum::http::header::HOST;
use axum::middleware::Next;
use axum::response::Response;

use crate::api::error::ApiError;
use crate::api::state::ApiState;

/// Refuses a request to a name that is not ours with 403. `/health` tells nothing and is asked by probes of any name.
pub(super) async fn check(State(state): State<ApiState>, request: Request, next: Next) -> Result<Response, ApiError> {
    let config = state.config();
    if config.checks_hosts() && request.uri().path() != "/health" && !is_ours(&request, &config.allowed_hosts) {
        return Err(ApiError::HostNotAllowed);
    }
    Ok(next.run(request).await)
}

/// Every name the request gives must be ours, and it must give one: the header, and the authority of a URI in absolute form
/// (HTTP/2 has only that).
fn is_ours(request: &Request, names: &[String]) -> bool {
    let authority = request.uri().authority().map(|authority| authority.as_str());
    let headers = request.headers().get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let mut hosts = headers.chain(authority).peekable();
    hosts.peek().is_some() && hosts.all(|host| is_allowed(host, names))
}

/// Addresses are always allowed: only a name can be pointed elsewhere.
fn is_allowed(host: &str, names: &[String]) -> bool {
    let host = without_port(host);
    let address = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => host.parse::<Ipv4Addr>().is_ok(),
    };
    address || host.eq_ignore_ascii_case("localhost") || names.iter().any(|name| host.eq_ignore_ascii_case(name))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localhost_addresses_and_named_hosts_are_ours() {
        let names = ["Paravt.example".to_owned()];
        for host in [
            "localhost",
            "LocalHost:8080",
            "127.0.0.1",
            "127.0.0.1:80",
            "192.168.1.5:80",
            "[::1]",
            "[::1]:80",
            "paravt.example",
            "PARAVT.example:443",
        ] {
            assert!(is_allowed(host, &names), "{host}");
        }
        for host in [
            "",
            ":80",
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil.example",
            "evil.example@127.0.0.1",
            "[evil.example]",
            "[::1].evil.example",
            "localhost:80:80",
            "localhost:x",
            "sub.paravt.example",
        ] {
            assert!(!is_allowed(host, &names), "{host}");
        }
    }

    #[test]
    fn every_name_a_request_gives_must_be_ours() {
        let ours = |uri: &str, hosts: &[&str]| {
            let request = hosts.iter().fold(Request::get(uri), |request, host| request.header(HOST, *host));
            is_ours(&request.body(axum::body::Body::empty()).expect("a request"), &[])
        };
        assert!(ours("/", &["localhost"]) && ours("http://localhost/", &["localhost"]));
        assert!(!ours("/", &[]));
        assert!(!ours("/", &["localhost", "evil.example"]));
        assert!(!ours("http://evil.example/", &["localhost"]));
    }
}
