//! How many requests the engine has taken on, and how many bytes of pixels they hold: bounded before any work is done.
//!
//! A request holds a [`Lease`] from before it is prepared until its last event was read. Pure accounting: knows nothing of
//! what a request is.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::{EngineError, EngineLoad};

/// What may be held at the same time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Requests that somebody waits for. As many more may be on their way out, their callers gone.
    pub(super) requests: usize,
    /// Pixels of all of them.
    pub(super) pixel_bytes: usize,
}

/// The places there are, and who holds them.
#[derive(Debug)]
pub(super) struct Places {
    bounds: Bounds,
    held: Mutex<Held>,
    running: AtomicUsize,
}

#[derive(Debug, Default)]
struct Held {
    requests: usize,
    /// Of them, those that somebody waits for.
    wanted: usize,
    pixel_bytes: usize,
}

/// One request's place until it is dropped.
#[derive(Debug)]
pub(super) struct Lease {
    places: Arc<Places>,
    pixel_bytes: usize,
    wanted: bool,
}

impl Places {
    /// All of them free.
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, held: Mutex::default(), running: AtomicUsize::new(0) }
    }

    /// A place for a request with so many bytes of pixels.
    ///
    /// # Errors
    /// [`EngineError::Overloaded`] when there is none now, [`EngineError::Invalid`] when there never is.
    pub(super) fn take(self: &Arc<Self>, pixel_bytes: usize) -> Result<Lease, EngineError> {
        let Bounds { requests, pixel_bytes: most } = self.bounds;
        if pixel_bytes > most {
            return Err(EngineError::Invalid(format!("its frames are {pixel_bytes} bytes, and {most} are taken")));
        }
        let mut held = self.held();
        if held.wanted >= requests
            || held.requests >= requests.saturating_mul(2)
            || pixel_bytes > most.saturating_sub(held.pixel_bytes)
        {
            return Err(EngineError::Overloaded);
        }
        held.requests += 1;
        held.wanted += 1;
        held.pixel_bytes += pixel_bytes;
        Ok(Lease { places: Arc::clone(self), pixel_bytes, wanted: true })
    }

    /// So many of them are being computed.
    pub(super) fn set_running(&self, running: usize) {
        self.running.store(running, Ordering::Relaxed);
    }

    /// Who is computed and who waits. What is in preparation waits, and so does what is over and not read to its end.
    pub(super) fn load(&self) -> EngineLoad {
        let requests = self.held().requests;
        let running = self.running.load(Ordering::Relaxed).min(requests);
        EngineLoad { running, queued: requests - running }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    /// Nobody waits for it any more: somebody else may, while its memory stays counted.
    pub(super) fn abandon(&mut self) {
        if std::mem::take(&mut self.wanted) {
            self.places.held().wanted -= 1;
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.abandon();
        let mut held = self.places.held();
        held.requests -= 1;
        held.pixel_bytes -= self.pixel_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(requests: usize, pixel_bytes: usize) -> Arc<Places> {
        Arc::new(Places::new(Bounds { requests, pixel_bytes }))
    }

    #[test]
    fn there_are_so_many_places_and_one_that_is_given_back_is_free() {
        let places = places(2, 0);
        let (first, _second) = (places.take(0).expect("free"), places.take(0).expect("free"));
        assert!(matches!(places.take(0), Err(EngineError::Overloaded)));
        places.set_running(1);
        assert_eq!(places.load(), EngineLoad { running: 1, queued: 1 });
        drop(first);
        assert!(places.take(0).is_ok());
    }

    #[test]
    fn pixels_are_bounded_together_and_more_than_all_is_never_taken() {
        let places = places(9, 100);
        let first = places.take(60).expect("free");
        assert!(matches!(places.take(41), Err(EngineError::Overloaded)));
        assert!(places.take(40).is_ok());
        assert!(matches!(places.take(101), Err(EngineError::Invalid(_))));
        drop(first);
        assert!(places.take(100).is_ok());
    }

    #[test]
    fn the_abandoned_leave_their_places_to_others_and_are_bounded_too() {
        let places = places(2, 100);
        let mut leases: Vec<Lease> = (0..2).map(|_| places.take(50).expect("free")).collect();
        leases.iter_mut().for_each(Lease::abandon);
        leases[0].abandon();
        assert!(matches!(places.take(1), Err(EngineError::Overloaded)), "their pixels are still there");
        let others: Vec<Lease> = (0..2).map(|_| places.take(0).expect("free")).collect();
        assert!(matches!(places.take(0), Err(EngineError::Overloaded)));
        drop(others);
        drop(leases);
        assert_eq!(places.load(), EngineLoad::default());
        assert!(places.take(100).is_ok());
    }
}
