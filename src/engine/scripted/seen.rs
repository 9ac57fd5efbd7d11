//! What the scripted engine was asked.

use crate::engine::{GenerateRequest, Sampling, SessionKey, Speaker};
use crate::types::{MediaTime, Part, Role, TraceContext, Turn};

/// A request as it arrived, less the pixels.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenRequest {
    /// The conversation.
    pub turns: Vec<SeenTurn>,
    /// See [`GenerateRequest::prefix`].
    pub prefix: String,
    /// Who asked.
    pub speaker: Speaker,
    /// The episode.
    pub session: SessionKey,
    /// How to choose tokens.
    pub sampling: Sampling,
    /// [`crate::engine::Gang::id`] of the seat that came with it.
    pub gang: Option<u64>,
    /// See [`GenerateRequest::trace`].
    pub trace: Option<TraceContext>,
}

/// A turn of a [`SeenRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenTurn {
    /// Who speaks.
    pub role: Role,
    /// Its text parts, joined with nothing between.
    pub text: String,
    /// Its frames' times, in order: as many as there are frames.
    pub frames: Vec<Option<MediaTime>>,
}

impl SeenRequest {
    pub(super) fn of(request: &GenerateRequest) -> Self {
        Self {
            turns: request.turns.iter().map(SeenTurn::of).collect(),
            prefix: request.prefix.clone(),
            speaker: request.speaker,
            session: request.session.clone(),
            sampling: request.sampling.clone(),
            gang: request.seat.as_ref().map(|seat| seat.gang().id()),
            trace: request.trace,
        }
    }

    /// All text of all turns, a line break between turns.
    #[must_use]
    pub fn text(&self) -> String {
        self.turns.iter().map(|turn| turn.text.as_str()).collect::<Vec<_>>().join("\n")
    }

    /// The times of all frames of all turns, in order.
    #[must_use]
    pub fn frames(&self) -> Vec<Option<MediaTime>> {
        self.turns.iter().flat_map(|turn| turn.frames.iter().copied()).collect()
    }
}

impl SeenTurn {
    fn of(turn: &Turn) -> Self {
        let text = turn.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Frame(_) | Part::FramePair(_) => None,
        });
        Self { role: turn.role, text: text.collect(), frames: turn.frames().map(|frame| frame.time).collect() }
    }
}
