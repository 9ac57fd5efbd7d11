//! Whose body may be held: what request bodies weigh together, from their first byte until their episodes are over.
//!
//! Where there are several keys, none gets more than half of the room, so that it shuts out no other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::scheduler::{Reason, Refusal};
use crate::api::caller::Caller;

/// Room for the bodies of all requests.
#[derive(Debug)]
pub(super) struct Bodies {
    room: Arc<Room>,
}

#[derive(Debug)]
struct Room {
    /// Bodies may be large: no more are read at once than could be admitted.
    turns: usize,
    /// Bytes of all bodies together.
    bytes: usize,
    /// Bytes of the largest body, which a caller may have also where that is more than half.
    largest: usize,
    taken: Mutex<Taken>,
    /// Told when nobody has anything any more.
    idle: Notify,
}

/// What is taken, in all and by each caller that has anything.
#[derive(Debug, Default)]
struct Taken {
    all: Share,
    callers: HashMap<Caller, Share>,
    /// Requests.
    count: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Share {
    turns: usize,
    bytes: usize,
}

impl Room {
    /// Never held across an await, and nothing under it panics.
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes so much more for a request, if `told` bytes in all would fit too.
    fn take(&self, caller: &Caller, more: Share, told: usize) -> Result<(), Refusal> {
        let mut guard = self.taken();
        let taken = &mut *guard;
        let own = taken.callers.get(caller).copied().unwrap_or_default();
        let weight = more.bytes.max(told);
        let fits = |taken: usize, more: usize, most: usize| taken.saturating_add(more) <= most;
        let all = (fits(taken.all.turns, more.turns, self.turns), fits(taken.all.bytes, weight, self.bytes));
        let half = (self.bytes / 2).max(self.largest);
        let share =
            !caller.shares() || fits(own.turns, more.turns, self.turns.div_ceil(2)) && fits(own.bytes, weight, half);
        match (all, share) {
            ((true, true), true) => {}
            ((_, false), _) => return Err(Refusal::new(Reason::Bodies, None)),
            ((false, _), _) => return Err(Refusal::new(Reason::Queue, None)),
            (_, false) => return Err(Refusal::new(Reason::KeyBodies, None)),
        }
        for share in [&mut taken.all, taken.callers.entry(caller.clone()).or_default()] {
            share.turns += more.turns;
            share.bytes += more.bytes;
        }
        Ok(())
    }

    fn give_back(&self, caller: &Caller, less: Share) {
        let mut guard = self.taken();
        let taken = &mut *guard;
        let own = taken.callers.entry(caller.clone()).or_default();
        for share in [&mut taken.all, own] {
            share.turns = share.turns.saturating_sub(less.turns);
            share.bytes = share.bytes.saturating_sub(less.bytes);
        }
        taken.callers.retain(|_, share| *share != Share::default());
    }
}

impl Bodies {
    /// Room for so many bodies read at once, and so many bytes held, of bodies of `largest` bytes at most.
    pub(super) fn new(at_once: usize, bytes: usize, largest: usize) -> Self {
        let (taken, idle) = (Mutex::default(), Notify::new());
        Self { room: Arc::new(Room { turns: at_once, bytes, largest, taken, idle }) }
    }

    /// The right to read one body, `told` bytes long as its sender says.
    ///
    /// Only what has arrived takes room: else a sender of promises could shut out all others.
    pub(super) fn read(&self, caller: &Caller, told: Option<u64>) -> Result<Reading, Refusal> {
        let told = usize::try_from(told.unwrap_or_default().max(1)).unwrap_or(usize::MAX);
        let share = Share { turns: 1, bytes: 0 };
        self.room.take(caller, share, told)?;
        self.room.taken().count += 1;
        Ok(Reading(Weight { caller: caller.clone(), room: Arc::clone(&self.room), share }))
    }

    /// Returns when no body is read or held.
    pub(super) async fn idle(&self) {
        loop {
            // Listens before it looks.
            let told = self.room.idle.notified();
            if self.room.taken().count == 0 {
                return;
            }
            told.await;
        }
    }
}

/// The right to read one body and to work through it. Dropped, or turned into what goes on being held.
#[derive(Debug)]
pub(in crate::api) struct Reading(Weight);

impl Reading {
    /// So many bytes more have arrived.
    ///
    /// # Errors
    /// [`Refusal`] when all bodies together are over the limit, or all of this caller.
    pub(in crate::api) fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        let Self(Weight { caller, room, share }) = self;
        room.take(caller, Share { turns: 0, bytes }, 0)?;
        share.bytes += bytes;
        Ok(())
    }

    /// The body is read: another may be, but it still weighs what it weighs.
    pub(in crate::api) fn done(self) -> Weight {
        let Self(mut weight) = self;
        let turn = Share { turns: std::mem::take(&mut weight.share.turns), bytes: 0 };
        weight.room.give_back(&weight.caller, turn);
        weight
    }
}

/// What a request's body takes of the room for all bodies, and whose it is. Given back when dropped.
#[derive(Debug)]
pub(in crate::api) struct Weight {
    caller: Caller,
    room: Arc<Room>,
    share: Share,
}

impl Weight {
    /// Who sent it.
    pub(super) const fn caller(&self) -> &Caller {
        &self.caller
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        self.room.give_back(&self.caller, self.share);
        let mut taken = self.room.taken();
        taken.count = taken.count.saturating_sub(1);
        if taken.count == 0 {
            self.room.idle.notify_waiters();
        }
    }
}
