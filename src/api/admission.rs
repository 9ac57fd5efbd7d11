//! Who may run, and whose body may be held. A permit is a value held for the life of an episode; whoever gives up waiting
//! is skipped.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ApiError;
use crate::config::ServerConfig;
use crate::shutdown::Shutdown;

/// Bodies are weighed in units of so many bytes: `acquire_many` counts in u32.
const UNIT: usize = 64 << 10;

/// Places for running episodes, and for those that wait, first come first served.
#[derive(Debug)]
pub(super) struct Admission {
    max_running: usize,
    max_queued: usize,
    /// tokio's semaphore is fair, and a dropped waiter leaves its queue.
    running: Arc<Semaphore>,
    queue: Semaphore,
    /// Bodies may be large: no more are read at once than could be admitted.
    bodies: Arc<Semaphore>,
    /// Units of all bodies together.
    units: Arc<Semaphore>,
    shutdown: Shutdown,
}

/// The right to run one episode.
#[derive(Debug)]
pub(super) struct Permit {
    _place: OwnedSemaphorePermit,
    /// Milliseconds waited for it.
    pub(super) waited_ms: f64,
    /// The request's body: its `data:` URLs stay in memory until the episode is over.
    _body: Option<Weight>,
}

impl Permit {
    /// Keeps the body's weight as long as the place.
    pub(super) fn holding(self, body: Weight) -> Self {
        Self { _body: Some(body), ..self }
    }
}

/// The right to read one body and to work through it. Dropped, or turned into what goes on being held.
#[derive(Debug)]
pub(super) struct Reading {
    _turn: OwnedSemaphorePermit,
    weight: Weight,
}

impl Reading {
    /// So many bytes more have arrived.
    ///
    /// # Errors
    /// [`ApiError::BodiesFull`] when all bodies together are over the limit.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.weight.grow(bytes)
    }

    /// The body is read: another may be, but it still weighs what it weighs.
    pub(super) fn done(self) -> Weight {
        self.weight
    }
}

/// What a body takes of the room for all bodies. Given back when dropped.
#[derive(Debug)]
pub(super) struct Weight {
    units: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    bytes: usize,
}

impl Weight {
    fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.bytes = self.bytes.saturating_add(bytes);
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing =
            u32::try_from(self.bytes.div_ceil(UNIT).saturating_sub(held)).map_err(|_| ApiError::BodiesFull)?;
        if missing == 0 {
            return Ok(());
        }
        let more = Arc::clone(&self.units).try_acquire_many_owned(missing).map_err(|_| ApiError::BodiesFull)?;
        match &mut self.held {
            Some(held) => held.merge(more),
            held => *held = Some(more),
        }
        Ok(())
    }
}

/// Milliseconds an episode waited for its place, once it has one. Clones share it: an answer may begin before.
#[derive(Debug, Clone, Default)]
pub(super) struct Waited(Arc<OnceLock<f64>>);

impl Waited {
    /// It has its place. Only the first call counts.
    pub(super) fn set(&self, ms: f64) {
        let _ = self.0.set(ms);
    }

    /// 0 as long as it waits.
    pub(super) fn ms(&self) -> f64 {
        self.0.get().copied().unwrap_or_default()
    }
}

impl Admission {
    pub(super) fn new(config: &ServerConfig, shutdown: Shutdown) -> Self {
        // `acquire_many` counts in u32.
        let most = Semaphore::MAX_PERMITS.min(u32::MAX as usize) / 2;
        let (max_running, max_queued) = (config.max_running.min(most), config.max_queued.min(most));
        Self {
            max_running,
            max_queued,
            running: Arc::new(Semaphore::new(max_running)),
            queue: Semaphore::new(max_queued),
            bodies: Arc::new(Semaphore::new(max_running + max_queued)),
            units: Arc::new(Semaphore::new(config.max_bodies_bytes.div_ceil(UNIT).min(most))),
            shutdown,
        }
    }

    /// The right to read one body, `told` bytes long as its sender says.
    ///
    /// Only what has arrived takes room: else a sender of promises could shut out all others.
    ///
    /// # Errors
    /// [`ApiError::QueueFull`] when the queue is full already, [`ApiError::BodiesFull`] when there is no room now, so that
    /// nobody sends 200 MB for a 429.
    pub(super) fn read_body(&self, told: Option<u64>) -> Result<Reading, ApiError> {
        let full = self.running.available_permits() == 0 && self.queue.available_permits() == 0;
        if full {
            return Err(ApiError::QueueFull);
        }
        let needed = told.unwrap_or_default().max(1).div_ceil(UNIT as u64);
        if needed > self.units.available_permits() as u64 {
            return Err(ApiError::BodiesFull);
        }
        let turn = Arc::clone(&self.bodies).try_acquire_owned().map_err(|_| ApiError::QueueFull)?;
        Ok(Reading { _turn: turn, weight: Weight { units: Arc::clone(&self.units), held: None, bytes: 0 } })
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// [`ApiError::QueueFull`] at once when too many wait, [`ApiError::Draining`] when the server begins to stop.
    pub(super) async fn enter(&self) -> Result<Permit, ApiError> {
        if self.shutdown.is_draining() {
            return Err(ApiError::Draining);
        }
        if let Ok(place) = Arc::clone(&self.running).try_acquire_owned() {
            return Ok(Permit { _place: place, waited_ms: 0.0, _body: None });
        }
        let _ticket = self.queue.try_acquire().map_err(|_| ApiError::QueueFull)?;
        let began = Instant::now();
        tokio::select! {
            () = self.shutdown.draining() => Err(ApiError::Draining),
            place = Arc::clone(&self.running).acquire_owned() => {
                // The semaphore is never closed.
                let place = place.map_err(|_| ApiError::Draining)?;
                Ok(Permit { _place: place, waited_ms: began.elapsed().as_secs_f64() * 1e3, _body: None })
            },
        }
    }

    /// Returns when nothing runs. Meant for draining, when nothing new comes in.
    pub(super) async fn idle(&self) {
        let all = u32::try_from(self.max_running).unwrap_or(u32::MAX);
        drop(self.running.acquire_many(all).await);
    }

    /// Episodes at work.
    pub(super) fn running(&self) -> usize {
        self.max_running - self.running.available_permits()
    }

    /// Episodes waiting.
    pub(super) fn queued(&self) -> usize {
        self.max_queued - self.queue.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures::FutureExt as _;
    use futures::poll;

    use super::*;

    fn admission(max_running: usize, max_queued: usize) -> Admission {
        Admission::new(&ServerConfig { max_running, max_queued, ..ServerConfig::default() }, Shutdown::new())
    }

    #[tokio::test]
    async fn over_the_queue_is_refused_at_once() {
        let admission = admission(1, 1);
        let running = admission.enter().await.expect("a place");
        let mut waiting = Box::pin(admission.enter());
        assert!(poll!(&mut waiting).is_pending());
        assert_eq!((admission.running(), admission.queued()), (1, 1));
        assert!(matches!(admission.enter().now_or_never(), Some(Err(ApiError::QueueFull))));
        assert!(matches!(admission.read_body(None), Err(ApiError::QueueFull)));
        drop(running);
        waiting.await.expect("its turn");
        assert_eq!((admission.running(), admission.queued()), (0, 0));
    }

    #[tokio::test]
    async fn bodies_are_bounded_together_as_long_as_they_are_held() {
        let config = ServerConfig { max_bodies_bytes: 3 * UNIT, ..ServerConfig::default() };
        let admission = Admission::new(&config, Shutdown::new());
        let full = |result: Result<_, ApiError>| matches!(result, Err(ApiError::BodiesFull));
        assert!(full(admission.read_body(Some(3 * UNIT as u64 + 1)).map(drop)));
        let mut first = admission.read_body(Some(3 * UNIT as u64)).expect("room");
        // A promise takes no room.
        let mut second = admission.read_body(Some(3 * UNIT as u64)).expect("room");
        first.grow(UNIT).expect("room");
        first.grow(1).expect("room");
        first.grow(UNIT - 1).expect("within the unit it has");
        second.grow(1).expect("room");
        assert!(full(first.grow(1)));
        assert!(full(admission.read_body(None).map(drop)));
        // Given back only with the place it is held with.
        let permit = admission.enter().await.expect("a place").holding(second.done());
        drop(first);
        assert!(full(admission.read_body(Some(3 * UNIT as u64)).map(drop)));
        drop(permit);
        admission.read_body(Some(3 * UNIT as u64)).expect("room");
    }

    #[tokio::test]
    async fn first_come_first_served_and_who_gave_up_is_skipped() {
        let admission = admission(1, 3);
        let running = admission.enter().await.expect("a place");
        let (mut first, mut second, mut third) =
            (Box::pin(admission.enter()), Box::pin(admission.enter()), Box::pin(admission.enter()));
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        drop(first);
        drop(running);
        assert!(poll!(&mut third).is_pending());
        let Poll::Ready(Ok(permit)) = poll!(&mut second) else { panic!("the second is next") };
        assert!(poll!(&mut third).is_pending());
        drop(permit);
        third.await.expect("its turn");
    }

    #[tokio::test]
    async fn draining_refuses_who_waits_and_who_comes() {
        let admission = admission(1, 1);
        let running = admission.enter().await.expect("a place");
        let mut waiting = Box::pin(admission.enter());
        assert!(poll!(&mut waiting).is_pending());
        admission.shutdown.drain();
        assert!(matches!(waiting.await, Err(ApiError::Draining)));
        assert!(matches!(admission.enter().await, Err(ApiError::Draining)));
        let mut idle = Box::pin(admission.idle());
        assert!(poll!(&mut idle).is_pending());
        drop(running);
        idle.await;
    }
}
