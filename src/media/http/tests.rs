//! The web as a stranger may make it: servers that redirect, lie, break off and change their mind, all on loopback.

mod guard;
mod open;
mod pieces;
mod server;

use std::sync::Arc;

use self::server::Server;
use super::BLOCK_BYTES;
use crate::config::MediaConfig;
use crate::media::content::Content;
use crate::media::source::{Kind, Sources};
use crate::media::{MediaError, SourceRequest};

/// Sources that may read from loopback.
fn sources(change: impl FnOnce(&mut MediaConfig)) -> Sources {
    let mut config = MediaConfig { allow_private_addresses: true, ..MediaConfig::default() };
    change(&mut config);
    Sources::new(&config)
}

async fn open(sources: &Sources, url: &str) -> Result<Content, MediaError> {
    sources.open(&SourceRequest::Url(url.to_owned()), Kind::Video, 8 << 30).await
}

/// Opens with sources of its own.
async fn opened(server: &Server, path: &str) -> Arc<Content> {
    Arc::new(open(&sources(|_| ()), &server.url(path)).await.expect("opens"))
}

fn is_remote(content: &Content) -> bool {
    content.opened().expect("a handle").is_none()
}

fn message(got: Result<impl std::fmt::Debug, MediaError>) -> String {
    let Err(MediaError::Fetch(message)) = got else { panic!("{got:?}") };
    message
}
