//! Points at which scripted generations wait for each other, or for the test.

use std::sync::Arc;

use tokio::sync::watch;

/// A gate that generations stop at until it opens. Clones are the same gate. Once open it stays open.
#[derive(Debug, Clone)]
pub struct Gate {
    state: Arc<watch::Sender<State>>,
    meeting: Option<usize>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    arrived: usize,
    open: bool,
}

impl Gate {
    /// Opens when `count` generations have arrived at it, so it opens only if they run at the same time.
    #[must_use]
    pub fn meeting(count: usize) -> Self {
        Self { state: Arc::default(), meeting: Some(count) }
    }

    /// Opens when [`Gate::open`] is called.
    #[must_use]
    pub fn closed() -> Self {
        Self { state: Arc::default(), meeting: None }
    }

    /// Lets through all that wait and all that come.
    pub fn open(&self) {
        self.state.send_modify(|state| state.open = true);
    }

    /// Returns when `count` generations have arrived (those that were cancelled here later are counted).
    pub async fn arrived(&self, count: usize) {
        self.until(|state| state.arrived >= count).await;
    }

    /// Arrives, and returns when the gate is open.
    pub(super) async fn pass(&self) {
        self.state.send_modify(|state| {
            state.arrived += 1;
            state.open |= self.meeting.is_some_and(|count| state.arrived >= count);
        });
        self.until(|state| state.open).await;
    }

    async fn until(&self, reached: impl FnMut(&State) -> bool) {
        // The sender lives in `self`, so this can't fail.
        let _ = self.state.subscribe().wait_for(reached).await;
    }
}
