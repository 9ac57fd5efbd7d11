//! What an episode tells while it runs, and the record it leaves.

use serde::Serialize;

use super::parser::ToolCall;
use crate::engine::{FinishReason, Sampling, TokenInfo};
use crate::types::{Frame, MediaTime, TimeSpan, TokenUsage};

/// One thing that happened. Times called `*_ms` are milliseconds since the episode began.
#[derive(Debug, Clone)]
pub enum AgentEvent {
    /// A video is open and its overview frames are decoded.
    Overview(OverviewRecord),
    /// The main agent begins a turn (from 0).
    TurnStarted {
        /// Which turn.
        turn: u32,
        /// When.
        at_ms: f64,
    },
    /// More of the thinking.
    Reasoning(String),
    /// More of the answer.
    Answer(String),
    /// The tokens of the answer's next piece, where the request asks for log-probabilities.
    AnswerTokens(Vec<TokenInfo>),
    /// A call of the caller's own tool: a part of the answer.
    ToolCall(ToolCall),
    /// A call is complete in the stream; its window is on its way.
    WindowStarted {
        /// Number of the window in this episode, from 0, in call order.
        id: usize,
        /// Which turn called it.
        turn: u32,
        /// Which video.
        video: usize,
        /// The window, clamped.
        window: TimeSpan,
        /// When.
        at_ms: f64,
    },
    /// The window's frames are decoded.
    WindowFrames {
        /// Which window.
        id: usize,
        /// Times of the frames really chosen.
        frame_times: Vec<MediaTime>,
        /// The frames.
        frames: Vec<Frame>,
        /// When.
        at_ms: f64,
    },
    /// More of the window's summary.
    WindowDelta {
        /// Which window.
        id: usize,
        /// The new text.
        text: String,
    },
    /// The window is over, well or not: see its `status`.
    WindowFinished(WindowRecord),
    /// The main agent's turn is over.
    TurnFinished(TurnRecord),
    /// The last event.
    Finished(Box<Outcome>),
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowStatus {
    /// It has a summary.
    Ok,
    /// It shares the summary of an equal window.
    Shared,
    /// Refused before it ran: malformed, unknown tool, outside the video.
    Refused,
    /// Over the number of calls a turn.
    NotRun,
    /// Decoding or the sub-agent failed.
    Failed,
    /// Its own deadline passed.
    Late,
}

impl WindowStatus {
    /// Name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Shared => "shared",
            Self::Refused => "refused",
            Self::NotRun => "not_run",
            Self::Failed => "failed",
            Self::Late => "late",
        }
    }
}

/// The story of one call.
#[derive(Debug, Clone, Serialize)]
pub struct WindowRecord {
    /// Number in the episode, from 0, in call order.
    pub id: usize,
    /// Which turn called it.
    pub turn: u32,
    /// Which video.
    pub video: usize,
    /// Where it starts, clamped; `None` when the call had no readable window.
    pub start: Option<MediaTime>,
    /// Where it ends.
    pub end: Option<MediaTime>,
    /// How it ended.
    pub status: WindowStatus,
    /// The sub-agent's text.
    pub summary: Option<String>,
    /// What went wrong, in the words the main agent is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The window whose summary it shares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_with: Option<usize>,
    /// Times of the frames really used.
    pub frame_times: Vec<MediaTime>,
    /// True when the file broke before all frames had decoded.
    pub partial: bool,
    /// When its call was complete.
    pub started_ms: f64,
    /// When it was over.
    pub finished_ms: f64,
    /// Milliseconds of each stage.
    pub timing: StageTiming,
    /// Tokens of its sub-agent.
    pub usage: TokenUsage,
}

impl WindowRecord {
    /// A call that was just read.
    pub(crate) const fn called(id: usize, turn: u32) -> Self {
        Self {
            id,
            turn,
            video: 0,
            start: None,
            end: None,
            status: WindowStatus::Ok,
            summary: None,
            error: None,
            shared_with: None,
            frame_times: Vec::new(),
            partial: false,
            started_ms: 0.0,
            finished_ms: 0.0,
            timing: StageTiming { decode_ms: 0.0, queue_ms: 0.0, prefill_ms: 0.0, generate_ms: 0.0 },
            usage: TokenUsage { prompt_tokens: 0, cached_tokens: 0, completion_tokens: 0 },
        }
    }

    /// Its window, where it has one.
    #[must_use]
    pub fn span(&self) -> Option<TimeSpan> {
        TimeSpan::new(self.start?, self.end?)
    }
}

/// Milliseconds spent by one generation and the decoding before it.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct StageTiming {
    /// Decoding frames.
    pub decode_ms: f64,
    /// Waiting for the engine.
    pub queue_ms: f64,
    /// From the engine's start to the first token.
    pub prefill_ms: f64,
    /// From the first token to the end.
    pub generate_ms: f64,
}

/// The story of one main turn.
#[derive(Debug, Clone, Serialize)]
pub struct TurnRecord {
    /// Number, from 0.
    pub turn: u32,
    /// The model's raw text, prefix included.
    pub text: String,
    /// Bytes of it that the turn was opened with: not generated.
    #[serde(skip)]
    pub prefix: usize,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// When it began.
    pub started_ms: f64,
    /// When it was over.
    pub finished_ms: f64,
    /// Milliseconds of each stage (`decode_ms` is 0: the overview's is in [`Outcome`]).
    pub timing: StageTiming,
    /// Its tokens.
    pub usage: TokenUsage,
    /// An answer given beside calls, not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draft: Option<String>,
    /// Windows that ran for it.
    pub windows: Vec<usize>,
}

impl TurnRecord {
    /// A turn that begins.
    pub(super) fn begun(turn: u32, started_ms: f64) -> Self {
        Self {
            turn,
            text: String::new(),
            prefix: 0,
            finish_reason: FinishReason::Stop,
            started_ms,
            finished_ms: started_ms,
            timing: StageTiming::default(),
            usage: TokenUsage::default(),
            draft: None,
            windows: Vec::new(),
        }
    }
}

/// Tokens by agent.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct AgentUsage {
    /// Main turns.
    pub main: TokenUsage,
    /// Sub-agents.
    pub sub: TokenUsage,
    /// Of the completion tokens, those of thinking and calls (an estimate by share of text, exact when all is one kind).
    pub reasoning_tokens: u64,
}

/// What the main agent sees of a video.
#[derive(Debug, Clone, Serialize)]
pub struct OverviewRecord {
    /// Which video of the request, from 0.
    pub video: usize,
    /// Length of the video.
    pub duration: MediaTime,
    /// Times of the frames the main agent sees.
    pub frame_times: Vec<MediaTime>,
    /// Whether they are key frames, each the nearest to a frame that the sampling rules pick, with its own time.
    pub keyframes: bool,
    /// True when the file broke before all frames had decoded.
    pub partial: bool,
    /// What was done to the video's pictures beyond scaling, in words.
    pub treatment: Vec<String>,
    /// When the frames were there, in milliseconds since the episode began.
    pub at_ms: f64,
    /// The frames, in the event; not kept for the [`Outcome`].
    #[serde(skip)]
    pub frames: Vec<Frame>,
}

/// The whole story.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Outcome {
    /// The answer.
    pub answer: String,
    /// The thinking of all turns.
    pub reasoning: String,
    /// Calls of the caller's own tools, for the caller to run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The answer's tokens, where the request asks for log-probabilities.
    #[serde(skip)]
    pub tokens: Vec<TokenInfo>,
    /// Why the last turn ended.
    pub finish_reason: FinishReason,
    /// How the main agent's tokens were chosen: the request's values, and the card's where it has none.
    pub sampling: Sampling,
    /// The videos, in order.
    pub overviews: Vec<OverviewRecord>,
    /// All calls, in order.
    pub windows: Vec<WindowRecord>,
    /// All main turns, in order.
    pub turns: Vec<TurnRecord>,
    /// Tokens.
    pub usage: AgentUsage,
    /// Until all videos were open (fetched, probed).
    pub open_ms: f64,
    /// Until all overview frames were decoded.
    pub overview_ms: f64,
    /// Until the first text of the main agent.
    pub first_token_ms: Option<f64>,
    /// Until the first text of the answer.
    pub first_answer_ms: Option<f64>,
    /// All of it.
    pub total_ms: f64,
}

impl Outcome {
    /// Estimates the reasoning tokens: the main agent's, less those of the answer by its share of what the last turn wrote.
    pub(super) fn with_reasoning_share(mut self) -> Self {
        let answer = self.turns.last().map_or(0.0, |last| {
            let written = last.text.len().saturating_sub(last.prefix).max(self.answer.len()).max(1);
            last.usage.completion_tokens as f64 * self.answer.len() as f64 / written as f64
        });
        self.usage.reasoning_tokens = self.usage.main.completion_tokens.saturating_sub(answer.round() as u64);
        self
    }
}

/// What an episode has said and done so far.
#[derive(Debug)]
pub(super) struct Story {
    pub(super) windows: Vec<WindowRecord>,
    pub(super) turns: Vec<TurnRecord>,
    pub(super) reasoning: String,
    pub(super) answer: String,
    pub(super) tool_calls: Vec<ToolCall>,
    pub(super) tokens: Vec<TokenInfo>,
    pub(super) finish_reason: FinishReason,
}

impl Default for Story {
    fn default() -> Self {
        Self {
            windows: Vec::new(),
            turns: Vec::new(),
            reasoning: String::new(),
            answer: String::new(),
            tool_calls: Vec::new(),
            tokens: Vec::new(),
            finish_reason: FinishReason::Stop,
        }
    }
}
