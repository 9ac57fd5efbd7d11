//! What a scripted generation does.

use std::time::Duration;

use super::Gate;
use crate::engine::{EngineError, FinishReason};

/// Characters a chunk of [`Reply::text`] holds. One token, and short enough to cut every tag.
const CHUNK_CHARS: usize = 4;

/// One thing a scripted generation does.
#[derive(Debug, Clone)]
pub enum Step {
    /// Says this, in one piece.
    Text(String),
    /// Takes so long.
    Delay(Duration),
    /// Waits until the gate opens.
    Gate(Gate),
    /// Fails: the stream ends with this error.
    Fail(EngineError),
    /// Never goes on.
    Hang,
}

/// A whole reply.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Done before `steps`, in order.
    before: Vec<Step>,
    steps: Vec<Step>,
    pub(super) finish: FinishReason,
    pub(super) refusal: Option<EngineError>,
}

impl Reply {
    /// Says this in chunks of four characters, as a model would stream it.
    #[must_use]
    pub fn text(text: impl AsRef<str>) -> Self {
        Self::steps(chunks(text.as_ref()).map(Step::Text).collect())
    }

    /// Does these in order, then finishes.
    #[must_use]
    pub const fn steps(steps: Vec<Step>) -> Self {
        Self { before: Vec::new(), steps, finish: FinishReason::Stop, refusal: None }
    }

    /// Is not accepted: `generate` itself fails with this error.
    #[must_use]
    pub fn refuse(error: EngineError) -> Self {
        Self { refusal: Some(error), ..Self::steps(Vec::new()) }
    }

    /// Waits at a gate before the first text (after gates and delays given earlier).
    #[must_use]
    pub fn gate(mut self, gate: Gate) -> Self {
        self.before.push(Step::Gate(gate));
        self
    }

    /// Takes so long before the first text (after gates and delays given earlier).
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.before.push(Step::Delay(delay));
        self
    }

    /// Fails after the text, in place of finishing.
    #[must_use]
    pub fn fail(mut self, error: EngineError) -> Self {
        self.steps.push(Step::Fail(error));
        self
    }

    /// Never ends after the text.
    #[must_use]
    pub fn hang(mut self) -> Self {
        self.steps.push(Step::Hang);
        self
    }

    /// Ends for this reason. By default [`FinishReason::Stop`].
    #[must_use]
    pub const fn finish(mut self, reason: FinishReason) -> Self {
        self.finish = reason;
        self
    }

    /// All steps in order.
    pub(super) fn into_steps(self) -> impl Iterator<Item = Step> {
        self.before.into_iter().chain(self.steps)
    }
}

/// Cuts a text into chunks of [`CHUNK_CHARS`] characters.
pub(super) fn chunks(text: &str) -> impl Iterator<Item = String> {
    let mut rest = text.chars();
    std::iter::from_fn(move || Some(rest.by_ref().take(CHUNK_CHARS).collect::<String>()).filter(|c| !c.is_empty()))
}
