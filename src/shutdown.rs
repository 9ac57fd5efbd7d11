//! Stopping in two steps: first *draining* (nothing new is taken on, what runs may finish), then *cut* (what still runs is
//! dropped). A plain value beside `types`: it knows signals, and nothing of what is stopped.

use std::convert::Infallible;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Whether the process is stopping. Cheap to clone; clones share the state, which only moves forward.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    draining: CancellationToken,
    cut: CancellationToken,
}

impl Shutdown {
    /// Running.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes nothing new on from here.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Drops what still runs.
    pub fn cut(&self) {
        self.draining.cancel();
        self.cut.cancel();
    }

    /// True from the first step on.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Returns at the first step.
    pub async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Returns at the second step.
    pub async fn cutting(&self) {
        self.cut.cancelled().await;
    }
}

/// SIGINT and SIGTERM. From its making on they end the process no more by themselves.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// When they can't be installed.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next one and gives its number.
    pub async fn next(&mut self) -> u8 {
        const SIGINT: u8 = 2;
        const SIGTERM: u8 = 15;
        tokio::select! {
            _ = self.interrupt.recv() => SIGINT,
            _ = self.terminate.recv() => SIGTERM,
        }
    }
}

/// Follows the process's signals: the first SIGINT or SIGTERM drains, the second cuts. Never ends well; run it beside what
/// it stops (`select!`).
///
/// # Errors
/// When the handlers can't be installed.
pub async fn follow_signals(shutdown: Shutdown) -> std::io::Result<Infallible> {
    let mut signals = Signals::new()?;
    loop {
        signals.next().await;
        if shutdown.is_draining() {
            tracing::warn!("a second signal: what still runs is dropped");
            shutdown.cut();
        } else {
            tracing::info!("a signal: finishing what runs, taking nothing new on");
            shutdown.drain();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cut_is_also_a_drain() {
        let shutdown = Shutdown::new();
        assert!(!shutdown.is_draining());
        shutdown.clone().cut();
        shutdown.draining().await;
        shutdown.cutting().await;
        assert!(shutdown.is_draining());
    }

    #[tokio::test]
    async fn a_drain_is_no_cut() {
        let shutdown = Shutdown::new();
        shutdown.drain();
        assert!(futures::FutureExt::now_or_never(shutdown.cutting()).is_none());
    }
}
