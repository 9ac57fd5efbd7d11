//! One piece of a streamed answer.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::completion::{ParavtResult, Usage, WireFinish};
use super::logprobs::ChoiceLogprobs;
use super::tools::ToolCall;
use crate::types::MediaTime;

/// One piece.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ChatCompletionChunk {
    /// Names the answer, the same in all chunks.
    pub(crate) id: String,
    /// `chat.completion.chunk`.
    pub(crate) object: &'static str,
    /// Seconds since 1970, the same in all chunks.
    pub(crate) created: u64,
    /// The model card's name.
    pub(crate) model: String,
    /// One choice, or none in the chunk of the usage.
    pub(crate) choices: Vec<ChunkChoice>,
    /// With `stream_options.include_usage`: `null`, and in the last chunk tokens of all agents. Without: absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Usage>)]
    pub(crate) usage: Option<Option<Usage>>,
    /// What paravt adds: an event, or in the last chunk the timing and the trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) paravt: Option<ChunkExtra>,
}

/// A choice of a chunk.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ChunkChoice {
    /// Which of the `n` answers it belongs to.
    pub(crate) index: usize,
    /// What is new.
    pub(crate) delta: Delta,
    /// Of the tokens that are new, where the request asks for them.
    pub(crate) logprobs: Option<ChoiceLogprobs>,
    /// Why it ended; `null` before.
    pub(crate) finish_reason: Option<WireFinish>,
}

/// What is new.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub(crate) struct Delta {
    /// `assistant`, in the first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub(crate) role: Option<&'static str>,
    /// More of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) content: Option<String>,
    /// Calls of the caller's tools, each whole and under an index of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) tool_calls: Option<Vec<ChunkToolCall>>,
    /// More of the thinking.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) reasoning_content: Option<String>,
    /// The same.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) reasoning: Option<String>,
}

/// A call of the caller's tool.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ChunkToolCall {
    /// Its place among the answer's calls.
    pub(crate) index: usize,
    /// The call.
    #[serde(flatten)]
    pub(crate) call: ToolCall,
}

/// What paravt adds to a chunk.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum ChunkExtra {
    /// Something happened (`paravt.events`).
    Event(EpisodeEvent),
    /// The end.
    Result(ParavtResult),
}

/// What happened. Times in seconds of video; `at_ms` milliseconds since the episode began.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(tag = "event")]
pub(crate) enum EpisodeEvent {
    /// A video is open and its overview decoded.
    #[serde(rename = "overview")]
    Overview {
        /// Which video, its length, the frames the main agent sees, and what was done to them.
        #[serde(flatten)]
        #[schema(value_type = Object)]
        record: Value,
        /// The frames as JPEG `data:` URLs, with `paravt.thumbnails`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schema(required = false)]
        thumbnails: Vec<String>,
    },
    /// The main agent begins a turn.
    #[serde(rename = "turn.started")]
    TurnStarted {
        /// Which turn, from 0.
        turn: u32,
        /// When.
        at_ms: f64,
    },
    /// The main agent's turn is over.
    #[serde(rename = "turn.finished")]
    TurnFinished {
        /// Its story.
        #[serde(flatten)]
        #[schema(value_type = Object)]
        record: Value,
    },
    /// A window is on its way.
    #[serde(rename = "window.started")]
    WindowStarted {
        /// Which window of the episode, from 0.
        id: usize,
        /// Which turn called it.
        turn: u32,
        /// Which video.
        video: usize,
        /// From.
        #[schema(value_type = f64)]
        start: MediaTime,
        /// To.
        #[schema(value_type = f64)]
        end: MediaTime,
        /// When.
        at_ms: f64,
    },
    /// Its frames are decoded.
    #[serde(rename = "window.frames")]
    WindowFrames {
        /// Which window.
        id: usize,
        /// Its frames.
        #[schema(value_type = Vec<f64>)]
        frame_times: Vec<MediaTime>,
        /// The frames as JPEG `data:` URLs, with `paravt.thumbnails`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[schema(required = false)]
        thumbnails: Vec<String>,
        /// When.
        at_ms: f64,
    },
    /// More of its summary.
    #[serde(rename = "window.delta")]
    WindowDelta {
        /// Which window.
        id: usize,
        /// The new text.
        text: String,
    },
    /// It has a summary.
    #[serde(rename = "window.finished")]
    WindowFinished {
        /// Its story.
        #[serde(flatten)]
        #[schema(value_type = Object)]
        record: Value,
    },
    /// It has none, and says why in `error`.
    #[serde(rename = "window.failed")]
    WindowFailed {
        /// Its story.
        #[serde(flatten)]
        #[schema(value_type = Object)]
        record: Value,
    },
}
