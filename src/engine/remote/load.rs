//! Counting what is under way.

use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::{EngineError, EngineLoad};

/// What is under way.
#[derive(Debug, Clone, Default)]
pub(super) struct Counter(Arc<Mutex<EngineLoad>>);

/// One generation being counted, until it is dropped.
#[derive(Debug)]
pub(super) struct Counted {
    counter: Counter,
    running: bool,
}

impl Counter {
    pub(super) fn now(&self) -> EngineLoad {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more in the queue.
    ///
    /// # Errors
    /// [`EngineError::Overloaded`] when there are `most` already.
    pub(super) fn queue(&self, most: usize) -> Result<Counted, EngineError> {
        let mut load = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if load.queued >= most {
            return Err(EngineError::Overloaded);
        }
        load.queued += 1;
        Ok(Counted { counter: self.clone(), running: false })
    }
}

impl Counted {
    /// From the queue to the running ones. True the first time.
    pub(super) fn start(&mut self) -> bool {
        if self.running {
            return false;
        }
        self.running = true;
        let mut load = self.counter.0.lock().unwrap_or_else(PoisonError::into_inner);
        load.queued -= 1;
        load.running += 1;
        true
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut load = self.counter.0.lock().unwrap_or_else(PoisonError::into_inner);
        if self.running {
            load.running -= 1;
        } else {
            load.queued -= 1;
        }
    }
}
