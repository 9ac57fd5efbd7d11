//! One modelled engine: the real scheduler, and whose its sequences are.

use std::collections::HashMap;
use std::time::Duration;

use super::episode::{Call, Episode};
use crate::engine::native::batch::{Batch, SequenceId};
use crate::engine::native::scheduler::{Scheduler, SchedulerConfig, SchedulerStats, SequenceRequest, SubmitError};

#[derive(Debug)]
pub(super) struct Node {
    scheduler: Scheduler,
    calls: HashMap<SequenceId, (usize, Call)>,
}

/// A sequence got its first token, or one of which something follows.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) id: SequenceId,
    /// Whose episode.
    pub(super) number: usize,
    /// It was the first token.
    pub(super) first: bool,
    /// It was the last token.
    pub(super) ended: bool,
    /// What the episode asks for now.
    pub(super) followers: Vec<Call>,
}

impl Node {
    pub(super) fn new(config: SchedulerConfig) -> Self {
        Self { scheduler: Scheduler::new(config), calls: HashMap::new() }
    }

    pub(super) fn submit(
        &mut self,
        request: SequenceRequest,
        number: usize,
        call: Call,
        at: Duration,
    ) -> Result<SequenceId, SubmitError> {
        let id = self.scheduler.submit(request, at)?;
        self.calls.insert(id, (number, call));
        Ok(id)
    }

    /// The next step, without the places of keys and values, which nobody reads here.
    pub(super) fn step(&mut self) -> Option<Batch> {
        let batch = self.scheduler.step(|_, _, _| Vec::new())?;
        Some(Batch { blocks: Vec::new(), ..batch })
    }

    /// A step was computed at `now`: every sequence that asked for a token gets it.
    pub(super) fn take(&mut self, batch: &Batch, episodes: &mut [Episode], now: Duration, mut tell: impl FnMut(Told)) {
        self.scheduler.commit(batch);
        for row in batch.rows.iter().filter(|row| row.outputs > 0) {
            let Some((number, call)) = self.calls.get(&row.id).copied() else { continue };
            let episode = &mut episodes[number];
            let generated = self.scheduler.sequence(row.id).map_or(0, |sequence| sequence.generated().len());
            self.scheduler.advance(row.id, &[episode.token(call, generated)]);
            let followers = episode.progress(call, generated + 1, now);
            let ended = episode.wanted(call) == generated + 1;
            if ended {
                self.scheduler.end(row.id);
                self.calls.remove(&row.id);
            }
            let first = generated == 0;
            if first || ended || !followers.is_empty() {
                tell(Told { id: row.id, number, first, ended, followers });
            }
        }
    }

    pub(super) fn stats(&self) -> SchedulerStats {
        self.scheduler.stats()
    }
}
