//! The books: what became of each request. A request is opened once and closed once, also by being dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use serde::Serialize;

use crate::engine::EngineError;
use crate::types::TokenUsage;

/// Shared by everyone who asks.
#[derive(Debug, Default)]
pub(super) struct Counts {
    asked: AtomicU64,
    finished: AtomicU64,
    cancelled: AtomicU64,
    refused: AtomicU64,
    late: AtomicU64,
    failed: AtomicU64,
    unended: AtomicU64,
    prompt_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    /// From now on nobody leaves by himself.
    closing: AtomicBool,
}

/// The books at a moment, since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Count {
    /// All requests.
    pub(super) asked: u64,
    /// Came to their end.
    pub(super) finished: u64,
    /// Were dropped by their client.
    pub(super) cancelled: u64,
    /// Were not taken: too long, not understood, the queue full.
    pub(super) refused: u64,
    /// Ended by their deadline.
    pub(super) late: u64,
    /// Failed in the engine.
    pub(super) failed: u64,
    /// Had no end: neither text nor an error, however long one waited, or a stream that just stopped.
    pub(super) unended: u64,
    /// Tokens read by those that finished.
    pub(super) prompt_tokens: u64,
    /// Tokens written by those that finished.
    pub(super) completion_tokens: u64,
}

impl Count {
    /// Requests that are neither over nor given up.
    pub(super) const fn open(&self) -> u64 {
        let over = self.finished + self.cancelled + self.refused + self.late + self.failed + self.unended;
        self.asked.saturating_sub(over)
    }

    /// What came after an earlier moment.
    pub(super) const fn since(&self, before: &Self) -> Self {
        Self {
            asked: self.asked - before.asked,
            finished: self.finished - before.finished,
            cancelled: self.cancelled - before.cancelled,
            refused: self.refused - before.refused,
            late: self.late - before.late,
            failed: self.failed - before.failed,
            unended: self.unended - before.unended,
            prompt_tokens: self.prompt_tokens - before.prompt_tokens,
            completion_tokens: self.completion_tokens - before.completion_tokens,
        }
    }

    /// For people.
    pub(super) fn told(&self) -> String {
        let Self { asked, finished, cancelled, refused, late, failed, unended, prompt_tokens, completion_tokens } =
            self;
        format!(
            "{asked} asked: {finished} finished, {cancelled} cancelled, {refused} refused, {late} late, {failed} failed, \
             {unended} without an end; {prompt_tokens} tokens read, {completion_tokens} written"
        )
    }
}

impl Counts {
    /// A request is made.
    pub(super) fn open(self: &Arc<Self>) -> Open {
        self.asked.fetch_add(1, Relaxed);
        Open { counts: Arc::clone(self), closed: false }
    }

    /// Something of ours broke off.
    pub(super) fn broke(&self) {
        self.failed.fetch_add(1, Relaxed);
        self.asked.fetch_add(1, Relaxed);
    }

    /// Who is dropped from now on was waiting for an end that didn't come.
    pub(super) fn close(&self) {
        self.closing.store(true, Relaxed);
    }

    /// The books now.
    pub(super) fn now(&self) -> Count {
        Count {
            finished: self.finished.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
            refused: self.refused.load(Relaxed),
            late: self.late.load(Relaxed),
            failed: self.failed.load(Relaxed),
            unended: self.unended.load(Relaxed),
            prompt_tokens: self.prompt_tokens.load(Relaxed),
            completion_tokens: self.completion_tokens.load(Relaxed),
            // Last: who is over was asked before.
            asked: self.asked.load(Relaxed),
        }
    }
}

/// A request that is under way. Dropping it is leaving.
#[derive(Debug)]
pub(super) struct Open {
    counts: Arc<Counts>,
    closed: bool,
}

impl Open {
    /// It came to its end.
    pub(super) fn finished(mut self, usage: TokenUsage) {
        self.closed = true;
        self.counts.finished.fetch_add(1, Relaxed);
        self.counts.prompt_tokens.fetch_add(usage.prompt_tokens, Relaxed);
        self.counts.completion_tokens.fetch_add(usage.completion_tokens, Relaxed);
    }

    /// It ended in an error.
    pub(super) fn ended(mut self, error: &EngineError) {
        self.closed = true;
        let counted = match error {
            EngineError::TooLong { .. }
            | EngineError::Unsupported(_)
            | EngineError::Invalid(_)
            | EngineError::Overloaded => &self.counts.refused,
            EngineError::DeadlineExceeded => &self.counts.late,
            EngineError::Unavailable(_) | EngineError::Failed(_) | EngineError::Load(_) => &self.counts.failed,
        };
        counted.fetch_add(1, Relaxed);
    }

    /// Its stream stopped without an end.
    pub(super) fn stopped(mut self) {
        self.closed = true;
        self.counts.unended.fetch_add(1, Relaxed);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.closed {
            let closing = self.counts.closing.load(Relaxed);
            let counted = if closing { &self.counts.unended } else { &self.counts.cancelled };
            counted.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_closed_once_by_what_became_of_it() {
        let counts = Arc::new(Counts::default());
        let usage = TokenUsage { prompt_tokens: 5, cached_tokens: 1, completion_tokens: 2 };
        counts.open().finished(usage);
        counts.open().ended(&EngineError::Overloaded);
        counts.open().ended(&EngineError::TooLong { needed: 2, limit: 1 });
        counts.open().ended(&EngineError::DeadlineExceeded);
        counts.open().ended(&EngineError::Failed("x".to_owned()));
        counts.open().stopped();
        drop(counts.open());
        let open = counts.open();
        let expected = Count {
            asked: 8,
            finished: 1,
            cancelled: 1,
            refused: 2,
            late: 1,
            failed: 1,
            unended: 1,
            prompt_tokens: 5,
            completion_tokens: 2,
        };
        assert_eq!((counts.now(), counts.now().open()), (expected, 1));
        counts.close();
        drop(open);
        assert_eq!((counts.now(), counts.now().open()), (Count { unended: 2, ..expected }, 0));
    }
}
