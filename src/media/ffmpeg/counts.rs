//! How many children there are, and how many came to a bad end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::OwnedSemaphorePermit;

use super::Exit;

/// Of all children since the start.
#[derive(Debug, Default)]
pub(super) struct Counts {
    alive: AtomicUsize,
    failures: AtomicU64,
}

impl Counts {
    /// Started and not yet reaped.
    pub(super) fn alive(&self) -> usize {
        self.alive.load(Ordering::Relaxed)
    }

    /// Ended with an error, or took too long.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

/// One running child, counted; the next may start when it goes.
#[derive(Debug)]
pub(super) struct Alive {
    counts: Arc<Counts>,
    _permit: OwnedSemaphorePermit,
}

impl Alive {
    pub(super) fn new(counts: &Arc<Counts>, permit: OwnedSemaphorePermit) -> Self {
        counts.alive.fetch_add(1, Ordering::Relaxed);
        Self { counts: Arc::clone(counts), _permit: permit }
    }

    /// It is over. One that nobody wanted any more has not failed.
    pub(super) fn ended(self, exit: Exit) {
        let failed = match exit {
            Exit::Done(status) => !status.success(),
            Exit::TimedOut | Exit::Killed => true,
            Exit::Stopped => false,
        };
        if failed {
            self.counts.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.counts.alive.fetch_sub(1, Ordering::Relaxed);
    }
}
