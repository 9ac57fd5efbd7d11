//! The real dispatcher of the remote engine in modelled time: the one place of the simulation that calls it.

use std::time::{Duration, Instant};

use crate::engine::remote::replicas::{Place, Replicas, Wish};
use crate::engine::{SessionKey, Speaker};

/// One front end's. It knows of its own requests alone.
#[derive(Debug)]
pub(super) struct Dispatcher {
    replicas: Replicas,
    /// Modelled time begins here. The replicas here are never down, so that no report depends on when this is.
    epoch: Instant,
}

impl Dispatcher {
    /// Of so many replicas, of which the `first`th is taken first.
    pub(super) fn new(replicas: usize, first: usize) -> Self {
        Self { replicas: Replicas::new((0..replicas).map(|name| name as u64), first), epoch: Instant::now() }
    }

    /// A place on a replica that was not tried yet. Each episode is about a video of its own: no other has its prefix.
    pub(super) fn take(
        &mut self,
        (speaker, session, episode): (Speaker, &SessionKey, usize),
        tried: &[usize],
        now: Duration,
    ) -> Option<Place> {
        self.replicas.take(Wish { speaker, session, prefix: Some(episode as u64) }, tried, self.epoch + now)
    }

    /// The first text came.
    pub(super) fn spoke(&mut self, place: &mut Place, now: Duration) {
        *place = self.replicas.spoke(*place, self.epoch + now);
    }

    pub(super) fn release(&mut self, place: Place) {
        self.replicas.release(place);
    }
}
