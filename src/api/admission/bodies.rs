//! Whose body may be held: what request bodies weigh together, from their first byte until their episodes are over.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::scheduler::{Reason, Refusal};
use crate::api::caller::Caller;

/// Bodies are weighed in units of so many bytes: `acquire_many` counts in u32.
pub(super) const UNIT: usize = 64 << 10;

/// Room for the bodies of all requests.
#[derive(Debug)]
pub(super) struct Bodies {
    /// Bodies may be large: no more are read at once than could be admitted.
    turns: Arc<Semaphore>,
    /// Units of all bodies together.
    units: Arc<Semaphore>,
}

impl Bodies {
    /// Room for so many bodies read at once, and so many bytes held.
    pub(super) fn new(at_once: usize, bytes: usize) -> Self {
        // `acquire_many` counts in u32.
        let most = Semaphore::MAX_PERMITS.min(u32::MAX as usize) / 2;
        let room = |permits: usize| Arc::new(Semaphore::new(permits.min(most)));
        Self { turns: room(at_once), units: room(bytes.div_ceil(UNIT)) }
    }

    /// The right to read one body, `told` bytes long as its sender says.
    ///
    /// Only what has arrived takes room: else a sender of promises could shut out all others.
    pub(super) fn read(&self, caller: &Caller, told: Option<u64>) -> Result<Reading, Refusal> {
        let needed = told.unwrap_or_default().max(1).div_ceil(UNIT as u64);
        if needed > self.units.available_permits() as u64 {
            return Err(Refusal::new(Reason::Bodies, None));
        }
        let turn = Arc::clone(&self.turns).try_acquire_owned().map_err(|_| Refusal::new(Reason::Queue, None))?;
        let weight = Weight { caller: caller.clone(), units: Arc::clone(&self.units), held: None, bytes: 0 };
        Ok(Reading { _turn: turn, weight })
    }
}

/// The right to read one body and to work through it. Dropped, or turned into what goes on being held.
#[derive(Debug)]
pub(in crate::api) struct Reading {
    _turn: OwnedSemaphorePermit,
    weight: Weight,
}

impl Reading {
    /// So many bytes more have arrived.
    ///
    /// # Errors
    /// [`Refusal`] when all bodies together are over the limit.
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
pub(in crate::api) struct Weight {
    caller: Caller,
    units: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    bytes: usize,
}

impl Weight {
    /// Who sent it.
    pub(super) const fn caller(&self) -> &Caller {
        &self.caller
    }

    fn grow(&mut self, bytes: usize) -> Result<(), Refusal> {
        let full = || Refusal::new(Reason::Bodies, None);
        self.bytes = self.bytes.saturating_add(bytes);
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = u32::try_from(self.bytes.div_ceil(UNIT).saturating_sub(held)).map_err(|_| full())?;
        if missing == 0 {
            return Ok(());
        }
        let more = Arc::clone(&self.units).try_acquire_many_owned(missing).map_err(|_| full())?;
        match &mut self.held {
            Some(held) => held.merge(more),
            held => *held = Some(more),
        }
        Ok(())
    }
}
