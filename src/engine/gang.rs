//! A burst that should start together.
//!
//! Windows are dispatched while the burst is still being written, each with a [`Seat`]. An engine for which a common start
//! matters holds a seated request until every seat of its gang has been given back; others give the seat back at once.
//! A seat given up early (the window failed to decode, the request was cancelled) no longer holds the others back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// A burst, as seen by the one who dispatches it.
#[derive(Debug, Clone)]
pub struct Gang {
    id: u64,
    outstanding: Arc<watch::Sender<usize>>,
}

impl Gang {
    /// A gang nobody has joined.
    #[must_use]
    pub fn new() -> Self {
        Self { id: NEXT_ID.fetch_add(1, Ordering::Relaxed), outstanding: Arc::new(watch::Sender::new(0)) }
    }

    /// One more that the others wait for. The dispatcher takes one for itself while the burst is being written.
    #[must_use]
    pub fn seat(&self) -> Seat {
        self.outstanding.send_modify(|n| *n += 1);
        Seat { gang: self.clone() }
    }

    /// Same gang, same number; other gangs, other numbers.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// True when nobody is awaited.
    #[must_use]
    pub fn complete(&self) -> bool {
        *self.outstanding.borrow() == 0
    }

    /// Returns when nobody is awaited any more.
    pub async fn completed(&self) {
        // The sender lives in `self`, so this can't fail.
        let _ = self.outstanding.subscribe().wait_for(|n| *n == 0).await;
    }
}

impl Default for Gang {
    fn default() -> Self {
        Self::new()
    }
}

/// A place in a gang, held until the request has reached the engine's queue; dropping it says "do not wait for me".
#[derive(Debug)]
pub struct Seat {
    gang: Gang,
}

impl Seat {
    /// The gang this seat belongs to.
    #[must_use]
    pub const fn gang(&self) -> &Gang {
        &self.gang
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.gang.outstanding.send_modify(|n| *n -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_gang_completes_when_its_last_seat_is_given_back() {
        let gang = Gang::new();
        let (first, second) = (gang.seat(), gang.seat());
        drop(first);
        assert!(!gang.complete());
        drop(second);
        gang.completed().await;
        assert!(gang.complete());
    }
}
