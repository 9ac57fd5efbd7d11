//! Fetching over HTTP from hosts that a stranger names. Of this room, it alone imports reqwest.
//!
//! Each hop is checked before it is dialled: the scheme, and every address its host resolves to. The addresses checked
//! are the ones dialled, so a name that changes its mind in between leads nowhere else.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::StreamExt as _;
use reqwest::StatusCode;
use reqwest::header::LOCATION;
use url::{Host, Url};

use super::MediaError;
use super::address::{is_link_local, is_public};
use super::source::Download;
use crate::config::MediaConfig;

/// Redirects followed.
const MAX_HOPS: usize = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Streams what a URL leads to into a download.
///
/// # Errors
/// [`MediaError::Forbidden`] for an address that is not public, [`MediaError::NotFound`], [`MediaError::TooLarge`],
/// [`MediaError::Timeout`], and [`MediaError::Fetch`] for all that goes wrong on the way.
pub(super) async fn fetch(url: Url, download: &mut Download, config: &MediaConfig) -> Result<(), MediaError> {
    let limit = Duration::from_secs(config.fetch_timeout_s);
    let work = Box::pin(follow(url, download, config));
    tokio::time::timeout(limit, work).await.map_err(|_| MediaError::Timeout("fetching the file"))?
}

async fn follow(mut url: Url, download: &mut Download, config: &MediaConfig) -> Result<(), MediaError> {
    for _ in 0..=MAX_HOPS {
        let response = dial(&url, config).await?;
        if !response.status().is_redirection() {
            return receive(response, download).await;
        }
        let next = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        url = next
            .and_then(|next| url.join(next).ok())
            .ok_or_else(|| MediaError::Fetch("the server redirects to nowhere".to_owned()))?;
    }
    Err(MediaError::Fetch(format!("the server redirects more than {MAX_HOPS} times")))
}

async fn dial(url: &Url, config: &MediaConfig) -> Result<reqwest::Response, MediaError> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(MediaError::Forbidden("the server redirects to something that is not http".to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(MediaError::BadSource("a URL with a user name or password is not taken".to_owned()));
    }
    let addresses = resolve(url).await?;
    if addresses.iter().any(|address| is_link_local(address.ip())) {
        return Err(MediaError::Forbidden("the host is link-local".to_owned()));
    }
    if !config.allow_private_addresses && !addresses.iter().all(|address| is_public(address.ip())) {
        return Err(MediaError::Forbidden("the host is not on the public internet".to_owned()));
    }
    let mut client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("paravt/", env!("CARGO_PKG_VERSION")));
    if let Some(Host::Domain(domain)) = url.host() {
        client = client.resolve_to_addrs(domain, &addresses);
    }
    let client = client.build().map_err(|_| MediaError::Internal("the HTTP client does not start".to_owned()))?;
    client.get(url.clone()).send().await.map_err(|error| {
        let problem = if error.is_timeout() { "the server does not answer" } else { "the server can't be reached" };
        MediaError::Fetch(problem.to_owned())
    })
}

/// All addresses of a URL's host.
async fn resolve(url: &Url) -> Result<Vec<SocketAddr>, MediaError> {
    let unknown = || MediaError::Fetch("the host is not known".to_owned());
    let port = url.port_or_known_default().ok_or_else(unknown)?;
    let addresses = match url.host().ok_or_else(unknown)? {
        Host::Ipv4(ip) => vec![SocketAddr::new(IpAddr::V4(ip), port)],
        Host::Ipv6(ip) => vec![SocketAddr::new(IpAddr::V6(ip), port)],
        Host::Domain(domain) => tokio::net::lookup_host((domain, port)).await.map_err(|_| unknown())?.collect(),
    };
    if addresses.is_empty() { Err(unknown()) } else { Ok(addresses) }
}

async fn receive(response: reqwest::Response, download: &mut Download) -> Result<(), MediaError> {
    match response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND | StatusCode::GONE => {
            return Err(MediaError::NotFound(format!("the server has no such {}", download.noun())));
        }
        status => return Err(MediaError::Fetch(format!("the server answered {}", status.as_u16()))),
    }
    if let Some(bytes) = response.content_length() {
        download.expect(bytes)?;
    }
    let mut body = response.bytes_stream();
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|_| MediaError::Fetch("the connection broke off".to_owned()))?;
        download.write(&chunk).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::media::SourceRequest;
    use crate::media::source::{self, Kind, Local};

    /// A server that gives each path its answer, and stops with its test.
    async fn server(answers: &'static [(&'static str, &'static str)]) -> (String, tokio::task::JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    match socket.read_u8().await {
                        Ok(byte) => request.push(byte),
                        Err(_) => break,
                    }
                }
                let request = String::from_utf8_lossy(&request).into_owned();
                let path = request.split(' ').nth(1).unwrap_or_default();
                let answer = answers.iter().find(|(known, _)| *known == path);
                let answer = answer.map_or("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", |(_, answer)| answer);
                drop(socket.write_all(answer.as_bytes()).await);
            }
        });
        (base, tasks)
    }

    async fn get(url: String, change: impl FnOnce(&mut MediaConfig)) -> Result<Local, MediaError> {
        let mut config = MediaConfig { allow_private_addresses: true, ..MediaConfig::default() };
        change(&mut config);
        source::fetch(&SourceRequest::Url(url), Kind::Video, 100, &config).await
    }

    #[tokio::test]
    async fn a_redirected_body_is_fetched() {
        let (base, _tasks) = server(&[
            ("/old", "HTTP/1.1 302 Found\r\nlocation: /new\r\ncontent-length: 0\r\n\r\n"),
            ("/new", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nvideo"),
        ])
        .await;
        let local = get(format!("{base}/old"), |_| ()).await.expect("fetches");
        assert_eq!(std::fs::read(&local.path).expect("reads"), b"video");
    }

    #[tokio::test]
    async fn private_addresses_are_refused_by_default() {
        let (base, _tasks) = server(&[("/v", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nvideo")]).await;
        let port = base.rsplit(':').next().expect("a port").to_owned();
        for host in ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "0x7f.1"] {
            let got = get(format!("http://{host}:{port}/v"), |config| config.allow_private_addresses = false).await;
            assert!(matches!(got, Err(MediaError::Forbidden(_))), "{host}: {got:?}");
        }
    }

    #[tokio::test]
    async fn redirects_are_checked_and_counted() {
        let (base, _tasks) = server(&[
            ("/file", "HTTP/1.1 302 Found\r\nlocation: file:///etc/passwd\r\ncontent-length: 0\r\n\r\n"),
            ("/loop", "HTTP/1.1 302 Found\r\nlocation: /loop\r\ncontent-length: 0\r\n\r\n"),
            ("/nowhere", "HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n"),
            ("/user", "HTTP/1.1 302 Found\r\nlocation: http://a:b@127.0.0.1/\r\ncontent-length: 0\r\n\r\n"),
        ])
        .await;
        assert!(matches!(get(format!("{base}/file"), |_| ()).await, Err(MediaError::Forbidden(_))));
        assert!(matches!(get(format!("{base}/loop"), |_| ()).await, Err(MediaError::Fetch(_))));
        assert!(matches!(get(format!("{base}/nowhere"), |_| ()).await, Err(MediaError::Fetch(_))));
        assert!(matches!(get(format!("{base}/user"), |_| ()).await, Err(MediaError::BadSource(_))));
    }

    #[tokio::test]
    async fn bodies_are_bounded_announced_or_not() {
        const LONG: &str = concat!(
            "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n",
            "0123456789012345678901234567890123456789012345678901234567890123456789",
            "0123456789012345678901234567890123456789012345678901234567890123456789",
        );
        let (base, _tasks) =
            server(&[("/told", "HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n"), ("/untold", LONG)]).await;
        assert!(matches!(get(format!("{base}/told"), |_| ()).await, Err(MediaError::TooLarge(_))));
        assert!(matches!(get(format!("{base}/untold"), |_| ()).await, Err(MediaError::TooLarge(_))));
    }

    #[tokio::test]
    async fn what_the_server_says_is_told_without_its_address() {
        let (base, _tasks) = server(&[
            ("/500", "HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"),
            ("/short", "HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nvideo"),
        ])
        .await;
        assert!(matches!(get(format!("{base}/none"), |_| ()).await, Err(MediaError::NotFound(_))));
        for path in ["500", "short"] {
            let error = get(format!("{base}/{path}"), |_| ()).await.expect_err(path);
            assert!(matches!(error, MediaError::Fetch(_)), "{error:?}");
            assert!(!error.to_string().contains("127.0.0.1"), "{error}");
        }
        let closed = get("http://127.0.0.1:1/v".to_owned(), |_| ()).await;
        assert!(matches!(closed, Err(MediaError::Fetch(_))), "{closed:?}");
    }

    #[tokio::test]
    async fn a_server_that_says_nothing_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let url = format!("http://{}/v", listener.local_addr().expect("an address"));
        let got = get(url, |config| config.fetch_timeout_s = 1).await;
        assert!(matches!(got, Err(MediaError::Timeout(_))), "{got:?}");
    }
}
