//! Work that several wait for and one does: whoever asks for what is under way joins in, and when the last one has gone
//! away, the work is aborted.
//!
//! This file knows nothing of what is done.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use tokio_util::task::AbortOnDropHandle;

use crate::media::MediaError;

type Work<T> = BoxFuture<'static, Result<T, MediaError>>;

/// A share in work under way. The work goes on while one is held, polled or not.
pub(in crate::media) type Flight<T> = Shared<Work<T>>;
/// A share that doesn't keep the work going.
pub(in crate::media) type WeakFlight<T> = WeakShared<Work<T>>;

/// Starts work that belongs to its shares. It runs by itself: a share that isn't polled for a while, because its holder is
/// busy with something else, holds up none of the others.
pub(in crate::media) fn start<T: Clone + Send + Sync + 'static>(
    work: impl Future<Output = Result<T, MediaError>> + Send + 'static,
) -> Flight<T> {
    let task = AbortOnDropHandle::new(tokio::spawn(work));
    let work = async move { task.await.unwrap_or_else(|_| Err(MediaError::Internal("fetching broke off".to_owned()))) };
    work.boxed().shared()
}

/// Works under way by what they are for.
#[derive(Debug)]
pub(in crate::media) struct Flights<K, T>
where
    T: Clone,
{
    under_way: Mutex<HashMap<K, WeakFlight<T>>>,
}

impl<K, T: Clone> Default for Flights<K, T> {
    fn default() -> Self {
        Self { under_way: Mutex::default() }
    }
}

impl<K: Eq + Hash, T: Clone + Send + Sync + 'static> Flights<K, T> {
    /// What is under way for the key, else `work`, begun now.
    pub(in crate::media) fn join<F>(&self, key: K, work: impl FnOnce() -> F) -> Flight<T>
    where
        F: Future<Output = Result<T, MediaError>> + Send + 'static,
    {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        // What has ended is not joined: who comes later looks anew.
        if let Some(flight) = under_way.get(&key).and_then(WeakFlight::upgrade).filter(|flight| flight.peek().is_none())
        {
            return flight;
        }
        // No more are left than are under way.
        under_way.retain(|_, flight| flight.upgrade().is_some());
        let flight = start(work());
        if let Some(weak) = flight.downgrade() {
            under_way.insert(key, weak);
        }
        flight
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::{Notify, oneshot};

    use super::*;

    #[tokio::test]
    async fn work_is_done_once_for_all_who_ask_meanwhile() {
        let (flights, begun, gate) =
            (Flights::<_, usize>::default(), Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let join = || {
            let (begun, gate) = (Arc::clone(&begun), Arc::clone(&gate));
            flights.join("key", || async move {
                let number = begun.fetch_add(1, Ordering::Relaxed);
                gate.notified().await;
                Ok(number)
            })
        };
        let (first, second) = (join(), join());
        // The one who began it goes away; the other is not hindered.
        drop(first);
        gate.notify_one();
        assert_eq!(second.await.expect("done"), 0);
        gate.notify_one();
        assert_eq!(join().await.expect("done"), 1, "what has ended is not joined");
    }

    #[tokio::test]
    async fn work_nobody_waits_for_is_aborted() {
        let flights = Flights::<_, ()>::default();
        let (alive, gone) = oneshot::channel::<()>();
        let (first, second) = (
            flights.join(1, || async move {
                let _alive = alive;
                std::future::pending().await
            }),
            flights.join(1, || async { Err(MediaError::Busy) }),
        );
        drop(first);
        drop(second);
        assert!(gone.await.is_err(), "dropped with its last share");
        assert!(matches!(flights.join(1, || async { Err(MediaError::Busy) }).await, Err(MediaError::Busy)));
    }
}
