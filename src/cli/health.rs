//! `paravt health`: asks a running server, so that a container needs no other program for its health check.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use clap::Args;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::CliError;
use crate::config::Config;

/// Bytes of an answer that are looked at: its first line.
const HEAD: usize = 64;

/// Arguments of `health`.
#[derive(Debug, Args)]
pub(super) struct HealthArgs {
    /// Where the server listens [default: where this configuration would]
    #[arg(long, value_name = "ADDRESS:PORT")]
    address: Option<SocketAddr>,
    /// Ask whether questions are answered now, not just whether the process is alive
    #[arg(long)]
    ready: bool,
    /// Seconds to wait
    #[arg(long, value_name = "SECONDS", default_value_t = 3)]
    timeout: u64,
}

/// Runs the command: status 0 when the server says yes.
pub(super) async fn run(args: &HealthArgs, config: &Config) -> Result<(), CliError> {
    let address = reachable(args.address.unwrap_or(config.server.listen));
    let path = if args.ready { "/ready" } else { "/health" };
    let asked = tokio::time::timeout(Duration::from_secs(args.timeout), ask(address, path)).await;
    match asked {
        Ok(Ok(200)) => Ok(()),
        Ok(Ok(status)) => Err(CliError::Failed(format!("{path} answers {status}"))),
        Ok(Err(error)) => Err(CliError::Failed(format!("no answer from {address}: {}", error.kind()))),
        Err(_) => Err(CliError::Failed(format!("no answer from {address} within {} s", args.timeout))),
    }
}

/// A server that listens everywhere is asked on loopback.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, listen.port())
}

/// The status of `GET path`.
async fn ask(address: SocketAddr, path: &str) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut head = Vec::with_capacity(HEAD);
    stream.take(HEAD as u64).read_to_end(&mut head).await?;
    let head = String::from_utf8_lossy(&head);
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::InvalidData))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_listens_everywhere_is_asked_on_loopback() {
        let at = |text: &str| reachable(text.parse().expect("an address")).to_string();
        assert_eq!(at("0.0.0.0:80"), "127.0.0.1:80");
        assert_eq!(at("[::]:80"), "[::1]:80");
        assert_eq!(at("10.0.0.5:80"), "10.0.0.5:80");
    }
}
