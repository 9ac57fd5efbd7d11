//! Whose body may be held: what request bodies weigh together, from their first byte until their episodes are over.
//!
//! Who has a key gets no more than half of the room, so that no key shuts out the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
}

/// What is taken, in all and by each caller that has anything.
#[derive(Debug, Default)]
struct Taken {
    all: Share,
    callers: HashMap<Caller, Share>,
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

    /// Takes so much more, if `told` bytes in all would fit too.
    fn take(&self, caller: &Caller, more: Share, told: usize) -> Result<(), Refusal> {
        let mut guard = self.taken();
        let taken = &mut *guard;
        let own = taken.callers.get(caller).copied().unwrap_or_default();
        let (turns, bytes) = if caller.name().is_empty() {
            (self.turns, self.bytes)
        } else {
            (self.turns.div_ceil(2), (self.bytes / 2).max(self.largest.min(self.bytes)))
        };
        let fits = |taken: usize, more: usize, most: usize| taken.saturating_add(more) <= most;
        let weight = more.bytes.max(told);
        if !(fits(taken.all.bytes, weight, self.bytes) && fits(own.bytes, weight, bytes)) {
            return Err(Refusal::new(Reason::Bodies, None));
        }
        if !(fits(taken.all.turns, more.turns, self.turns) && fits(own.turns, more.turns, turns)) {
            return Err(Refusal::new(Reason::Queue, None));
        }
        for share in [&mut taken.all, taken.callers.entry(caller.clone()).or_default()] {
            *share = Share { turns: share.turns + more.turns, bytes: share.bytes + more.bytes };
        }
        Ok(())
    }

    fn give_back(&self, caller: &Caller, less: Share) {
        let mut taken = self.taken();
        let without = |share: Share| Share {
            turns: share.turns.saturating_sub(less.turns),
            bytes: share.bytes.saturating_sub(less.bytes),
        };
        taken.all = without(taken.all);
        let own = taken.callers.get(caller).copied().map(without).unwrap_or_default();
        if own == Share::default() {
            taken.callers.remove(caller);
        } else {
            taken.callers.insert(caller.clone(), own);
        }
    }
}

impl Bodies {
    /// Room for so many bodies read at once, and so many bytes held, of bodies of `largest` bytes at most.
    pub(super) fn new(at_once: usize, bytes: usize, largest: usize) -> Self {
        Self { room: Arc::new(Room { turns: at_once, bytes, largest, taken: Mutex::default() }) }
    }

    /// The right to read one body, `told` bytes long as its sender says.
    ///
    /// Only what has arrived takes room: else a sender of promises could shut out all others.
    pub(super) fn read(&self, caller: &Caller, told: Option<u64>) -> Result<Reading, Refusal> {
        let told = usize::try_from(told.unwrap_or_default().max(1)).unwrap_or(usize::MAX);
        self.room.take(caller, Share { turns: 1, bytes: 0 }, told)?;
        let held =
            |turns| Held { caller: caller.clone(), room: Arc::clone(&self.room), share: Share { turns, bytes: 0 } };
        Ok(Reading { _turn: held(1), weight: Weight(held(0)) })
    }
}

#[cfg(test)]
impl Bodies {
    /// Whether nobody has anything.
    pub(super) fn is_empty(&self) -> bool {
        let taken = self.room.taken();
        taken.all == Share::default() && taken.callers.is_empty()
    }
}

/// What somebody has of the room. Given back when dropped.
#[derive(Debug)]
struct Held {
    caller: Caller,
    room: Arc<Room>,
    share: Share,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.give_back(&self.caller, self.share);
    }
}

/// The right to read one body and to work through it. Dropped, or turned into what goes on being held.
#[derive(Debug)]
pub(in crate::api) struct Reading {
    _turn: Held,
    weight: Weight,
}

impl Reading {
    /// So many bytes more have arrived.
    ///
    /// # Errors
    /// [`Refusal`] when all bodies together are over the limit, or all of this caller.
    pub(in crate::api) fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.weight.grow(bytes)
    }

    /// The body is read: another may be, but it still weighs what it weighs.
    pub(in crate::api) fn done(self) -> Weight {
        self.weight
    }
}

/// What a body takes of the room for all bodies, and whose it is. Given back when dropped.
#[derive(Debug)]
pub(in crate::api) struct Weight(Held);

impl Weight {
    /// Who sent it.
    pub(super) const fn caller(&self) -> &Caller {
        &self.0.caller
    }

    fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.0.room.take(&self.0.caller, Share { turns: 0, bytes }, 0)?;
        self.0.share.bytes = self.0.share.bytes.saturating_add(bytes);
        Ok(())
    }
}
