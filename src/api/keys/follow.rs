//! Notices that the file of keys changed, and that an operator says so (SIGHUP).

use std::convert::Infallible;
use std::fs::Metadata;
use std::future::pending;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use super::Keyring;

/// How soon a change is noticed. A look is one `stat`.
const EVERY: Duration = Duration::from_secs(2);

/// What a change changes. The inode too: editors and orchestrators put a new file in the old one's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    modified: Option<SystemTime>,
    bytes: u64,
    inode: u64,
}

impl Look {
    fn of(metadata: &Metadata) -> Self {
        Self { modified: metadata.modified().ok(), bytes: metadata.len(), inode: metadata.ino() }
    }

    /// `None` where there is no file: then the keys stay as they are.
    async fn at(path: &Path) -> Option<Self> {
        tokio::fs::metadata(path).await.ok().map(|metadata| Self::of(&metadata))
    }
}

impl Keyring {
    /// Reads the file again whenever it changes. Never ends; run it beside what the keys are for (`select!`).
    ///
    /// From its beginning on SIGHUP ends the process no more by itself, where there is a file.
    pub(in crate::api) async fn follow(self: Arc<Self>) -> Infallible {
        let Some(path) = &self.file else { return pending().await };
        let mut hangup = signal(SignalKind::hangup()).ok();
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is at once: the file may have changed since it was read, so that it is read once more.
        let mut seen = None;
        loop {
            let asked = tokio::select! {
                _ = ticks.tick() => false,
                () = next(hangup.as_mut()) => true,
            };
            let look = Look::at(path).await;
            if (look != seen && look.is_some()) || asked {
                self.reload().await;
            }
            seen = look;
        }
    }

    async fn reload(self: &Arc<Self>) {
        let ring = Arc::clone(self);
        match tokio::task::spawn_blocking(move || ring.load()).await {
            Ok(Ok(())) if self.count() == 0 => tracing::warn!("there are no keys: nobody is served"),
            Ok(Ok(())) => tracing::info!(keys = self.count(), "the keys were read"),
            Ok(Err(error)) => tracing::error!(%error, "the keys stay as they were"),
            Err(_) => tracing::error!("reading the keys broke off; they stay as they were"),
        }
    }
}

async fn next(signal: Option<&mut Signal>) {
    let Some(signal) = signal else { return pending().await };
    if signal.recv().await.is_none() {
        pending::<()>().await;
    }
}
