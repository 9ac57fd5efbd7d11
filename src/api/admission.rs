//! Who may run, and whose body may be held. A permit is a value held for the life of an episode; whoever gives up waiting
//! is skipped.
//!
//! The rules are in [`scheduler`], which is plain and synchronous; here is a lock around it, and a channel for each who waits.

mod bodies;
mod cost;
mod pace;
mod rate;
mod scheduler;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

pub(super) use bodies::{Reading, Weight};
pub(super) use cost::Cost;
pub(super) use scheduler::{Reason, Refusal};

use super::caller::Caller;
use super::error::ApiError;
use crate::config::ServerConfig;
use crate::shutdown::Shutdown;
use bodies::Bodies;
use scheduler::{Bounds, Scheduler, Sum, Ticket};

/// Places for running episodes, and for those that wait.
#[derive(Debug)]
pub(super) struct Admission {
    house: Arc<House>,
    bodies: Bodies,
    shutdown: Shutdown,
}

#[derive(Debug)]
struct House {
    door: Mutex<Door>,
}

#[derive(Debug)]
struct Door {
    scheduler: Scheduler,
    /// How those who wait are told.
    waiting: HashMap<Ticket, oneshot::Sender<()>>,
}

impl House {
    /// Never held across an await. What a panic under it might leave behind is whole: every call finishes its sums.
    fn door(&self) -> MutexGuard<'_, Door> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that was taken on, whether it waits or runs. Dropped, it is over.
#[derive(Debug)]
struct Place {
    house: Arc<House>,
    ticket: Ticket,
}

impl Drop for Place {
    fn drop(&mut self) {
        let told: Vec<_> = {
            let mut door = self.house.door();
            door.waiting.remove(&self.ticket);
            let started = door.scheduler.leave(self.ticket, Instant::now());
            started.iter().filter_map(|ticket| door.waiting.remove(ticket)).collect()
        };
        for start in told {
            // Who has gone meanwhile drops its own place.
            let _ = start.send(());
        }
    }
}

/// The right to run one episode.
#[derive(Debug)]
pub(super) struct Permit {
    _place: Place,
    /// Milliseconds waited for it.
    pub(super) waited_ms: f64,
    /// The request's body: its `data:` URLs stay in memory until the episode is over.
    _body: Weight,
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
        let max_wait = (config.max_wait_s > 0).then(|| Duration::from_secs(config.max_wait_s));
        let bounds = Bounds { places: config.max_running as u64, max_queued: config.max_queued, max_wait };
        let door = Door { scheduler: Scheduler::new(bounds), waiting: HashMap::new() };
        Self {
            house: Arc::new(House { door: Mutex::new(door) }),
            bodies: Bodies::new(
                config.max_running.saturating_add(config.max_queued),
                config.max_bodies_bytes,
                config.max_body_bytes,
            ),
            shutdown,
        }
    }

    /// The right to read one body of this caller, `told` bytes long as its sender says. Counts towards what the caller may ask
    /// a minute.
    ///
    /// # Errors
    /// [`Refusal`] when not even the cheapest request could be taken on, so that nobody sends 200 MB for a 429.
    pub(super) fn read_body(&self, caller: &Caller, told: Option<u64>) -> Result<Reading, Refusal> {
        let mut door = self.house.door();
        door.scheduler.may_ask(caller)?;
        let reading = self.bodies.read(caller, told)?;
        // Last, so that only what is read counts.
        door.scheduler.count(caller, Instant::now())?;
        Ok(reading)
    }

    /// Waits for a place for a request of this cost, whose body this is.
    ///
    /// # Errors
    /// [`ApiError::Refused`] at once when it may not even wait, [`ApiError::Draining`] when the server stops before its turn: whose
    /// body was read was taken on, and has its turn as long as there is time.
    pub(super) async fn enter(&self, body: Weight, cost: Cost) -> Result<Permit, ApiError> {
        let began = Instant::now();
        let (place, turn) = self.ask(body.caller(), cost, began)?;
        let Some(turn) = turn else { return Ok(Permit { _place: place, waited_ms: 0.0, _body: body }) };
        tokio::select! {
            () = self.shutdown.cutting() => Err(ApiError::Draining),
            told = turn => {
                // The sender lives until it sends.
                told.map_err(|_| ApiError::Internal)?;
                Ok(Permit { _place: place, waited_ms: began.elapsed().as_secs_f64() * 1e3, _body: body })
            },
        }
    }

    /// A place, and a channel that tells when it may be used, if that is not now.
    fn ask(
        &self,
        caller: &Caller,
        cost: Cost,
        now: Instant,
    ) -> Result<(Place, Option<oneshot::Receiver<()>>), Refusal> {
        let mut door = self.house.door();
        let (ticket, runs) = door.scheduler.enter(caller, cost, now)?;
        let place = Place { house: Arc::clone(&self.house), ticket };
        if runs {
            return Ok((place, None));
        }
        let (start, turn) = oneshot::channel();
        door.waiting.insert(ticket, start);
        Ok((place, Some(turn)))
    }

    /// Returns when no body is read or held, so that nothing waits or runs. Meant for draining, when nothing new comes in.
    pub(super) async fn idle(&self) {
        self.bodies.idle().await;
    }

    /// Episodes at work.
    pub(super) fn running(&self) -> Sum {
        self.house.door().scheduler.running()
    }

    /// Episodes waiting.
    pub(super) fn queued(&self) -> Sum {
        self.house.door().scheduler.queued()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use futures::FutureExt as _;
    use futures::poll;

    use super::*;
    use crate::config::KeyLimits;

    fn admission(max_running: usize, max_queued: usize) -> Admission {
        Admission::new(&ServerConfig { max_running, max_queued, ..ServerConfig::default() }, Shutdown::new())
    }

    /// A whole place for nobody in particular, whose body is read already.
    fn enter(admission: &Admission) -> impl Future<Output = Result<Permit, ApiError>> {
        let idle = Admission::new(&ServerConfig::default(), Shutdown::new());
        let body = idle.read_body(&Caller::default(), None).expect("room").done();
        admission.enter(body, Cost::PLACE)
    }

    fn refused<T>(result: &Result<T, Refusal>) -> Option<Reason> {
        result.as_ref().err().map(|refusal| refusal.reason)
    }

    #[tokio::test]
    async fn over_the_queue_is_refused_at_once() {
        let (admission, nobody) = (admission(1, 1), Caller::default());
        let running = enter(&admission).await.expect("a place");
        let mut waiting = Box::pin(enter(&admission));
        assert!(poll!(&mut waiting).is_pending());
        assert_eq!((admission.running().count, admission.queued().count), (1, 1));
        let refusal = enter(&admission).now_or_never().expect("at once").expect_err("refused");
        assert!(matches!(refusal, ApiError::Refused(Refusal { reason: Reason::Queue, .. })), "{refusal:?}");
        assert_eq!(refused(&admission.read_body(&nobody, None)), Some(Reason::Queue));
        drop(running);
        waiting.await.expect("its turn");
        assert_eq!((admission.running(), admission.queued()), (Sum::default(), Sum::default()));
        assert!(admission.house.door().waiting.is_empty());
    }

    #[tokio::test]
    async fn bodies_are_bounded_together_as_long_as_they_are_held() {
        let config = ServerConfig { max_bodies_bytes: 30, max_body_bytes: 30, ..ServerConfig::default() };
        let (admission, nobody) = (Admission::new(&config, Shutdown::new()), Caller::default());
        let full = |result: Result<(), Refusal>| refused(&result) == Some(Reason::Bodies);
        let read = |bytes: u64| admission.read_body(&nobody, Some(bytes));
        assert!(full(read(31).map(drop)));
        let mut first = read(30).expect("room");
        // A promise takes no room.
        let mut second = read(30).expect("room");
        first.grow(20).expect("room");
        second.grow(10).expect("room");
        assert!(full(first.grow(1)));
        assert!(full(admission.read_body(&nobody, None).map(drop)));
        // Given back only with the place it is held with.
        let permit = admission.enter(second.done(), Cost::PLACE).await.expect("a place");
        drop(first);
        assert!(full(read(30).map(drop)));
        drop(permit);
        read(30).expect("room");
    }

    #[tokio::test]
    async fn no_key_takes_all_the_room_for_bodies() {
        let config = ServerConfig {
            max_bodies_bytes: 30,
            max_body_bytes: 10,
            max_running: 3,
            max_queued: 1,
            ..ServerConfig::default()
        };
        let admission = Admission::new(&config, Shutdown::new());
        let key = |name: &str| Caller::new(name.into(), KeyLimits::default(), None).among(2);
        let (greedy, other) = (key("greedy"), key("other"));
        let mut held = admission.read_body(&greedy, Some(10)).expect("room");
        held.grow(10).expect("room");
        assert_eq!(refused(&admission.read_body(&greedy, Some(6))), Some(Reason::KeyBodies), "15 of 30 bytes");
        let second = admission.read_body(&greedy, Some(5)).expect("room");
        assert_eq!(refused(&admission.read_body(&greedy, Some(5))), Some(Reason::KeyBodies), "2 of 4 turns");
        let mut others = admission.read_body(&other, Some(10)).expect("room");
        others.grow(10).expect("room");
        drop(second);
        let alone = Caller::new("greedy".into(), KeyLimits::default(), None).among(1);
        admission.read_body(&alone, Some(10)).expect("nobody to leave room for");
        // What one may have at most is its body, however little half of the room is.
        let config = ServerConfig { max_bodies_bytes: 30, max_body_bytes: 30, ..config };
        let admission = Admission::new(&config, Shutdown::new());
        admission.read_body(&greedy, Some(30)).expect("room").grow(30).expect("room");
        assert!(admission.idle().now_or_never().is_some(), "all is given back");
    }

    #[tokio::test]
    async fn first_come_first_served_and_who_gave_up_is_skipped() {
        let admission = admission(1, 3);
        let running = enter(&admission).await.expect("a place");
        let (mut first, mut second, mut third) =
            (Box::pin(enter(&admission)), Box::pin(enter(&admission)), Box::pin(enter(&admission)));
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
    async fn who_goes_after_it_was_told_and_before_it_noticed_passes_its_place_on() {
        let admission = admission(1, 2);
        let running = enter(&admission).await.expect("a place");
        let (mut first, mut second) = (Box::pin(enter(&admission)), Box::pin(enter(&admission)));
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        drop(running);
        assert_eq!(admission.running().count, 1, "the first has it by now");
        drop(first);
        second.await.expect("its turn");
        assert_eq!(admission.running().count, 0);
    }

    #[tokio::test]
    async fn draining_waits_for_all_whose_body_was_begun() {
        let (admission, nobody) = (admission(1, 2), Caller::default());
        let read = || admission.read_body(&nobody, None).expect("room");
        let running = admission.enter(read().done(), Cost::PLACE).await.expect("a place");
        let (reading, mut first, mut second) = (
            read(),
            Box::pin(admission.enter(read().done(), Cost::PLACE)),
            Box::pin(admission.enter(read().done(), Cost::PLACE)),
        );
        assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
        admission.shutdown.drain();
        let mut idle = Box::pin(admission.idle());
        drop(running);
        let first = first.await.expect("its turn");
        assert!(poll!(&mut idle).is_pending());
        admission.shutdown.cut();
        assert!(matches!(second.await, Err(ApiError::Draining)));
        drop(first);
        assert!(poll!(&mut idle).is_pending());
        drop(reading);
        idle.await;
    }
}
