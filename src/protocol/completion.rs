//! The answer of `POST /v1/chat/completions`, not streamed, and what it shares with the stream.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::logprobs::ChoiceLogprobs;
use super::tools::ToolCall;

/// An answer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ChatCompletionResponse {
    /// Names this answer.
    pub(crate) id: String,
    /// `chat.completion`.
    pub(crate) object: &'static str,
    /// Seconds since 1970.
    pub(crate) created: u64,
    /// The model card's name.
    pub(crate) model: String,
    /// As many as `n`.
    pub(crate) choices: Vec<Choice>,
    /// Tokens of all agents.
    pub(crate) usage: Usage,
    /// What paravt adds.
    pub(crate) paravt: ParavtResult,
}

/// A choice.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Choice {
    /// Its place.
    pub(crate) index: usize,
    /// The answer.
    pub(crate) message: AnswerMessage,
    /// Where the request asks for them.
    pub(crate) logprobs: Option<ChoiceLogprobs>,
    /// Why it ended.
    pub(crate) finish_reason: WireFinish,
}

/// The answer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct AnswerMessage {
    /// `assistant`.
    pub(crate) role: &'static str,
    /// The answer alone. `null` where there are only calls.
    pub(crate) content: Option<String>,
    /// `null`.
    #[schema(value_type = Option<String>)]
    pub(crate) refusal: Option<()>,
    /// Calls of the caller's tools, for the caller to run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub(crate) tool_calls: Vec<ToolCall>,
    /// The thinking of all turns, under the name DeepSeek gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) reasoning_content: Option<String>,
    /// The same under vLLM's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) reasoning: Option<String>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WireFinish {
    /// By itself or at a stop text.
    Stop,
    /// At the longest length.
    Length,
    /// With calls of the caller's tools.
    ToolCalls,
}

/// Tokens of all agents together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Usage {
    /// Read, frames included.
    pub(crate) prompt_tokens: u64,
    /// Written.
    pub(crate) completion_tokens: u64,
    /// Both.
    pub(crate) total_tokens: u64,
    /// Of the read.
    pub(crate) prompt_tokens_details: PromptDetails,
    /// Of the written.
    pub(crate) completion_tokens_details: CompletionDetails,
    /// The same by agent.
    pub(crate) paravt: UsageByAgent,
}

/// Of the tokens read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PromptDetails {
    /// Those whose keys and values were reused.
    pub(crate) cached_tokens: u64,
}

/// Of the tokens written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct CompletionDetails {
    /// Those of thinking and calls, estimated by share of text.
    pub(crate) reasoning_tokens: u64,
}

/// Tokens by agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct UsageByAgent {
    /// The main agent's turns.
    pub(crate) main: TokenCounts,
    /// All sub-agents.
    pub(crate) sub: TokenCounts,
}

/// Tokens of one kind of agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct TokenCounts {
    /// Read.
    pub(crate) prompt_tokens: u64,
    /// Of these, reused.
    pub(crate) cached_tokens: u64,
    /// Written.
    pub(crate) completion_tokens: u64,
}

/// What paravt adds to an answer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ParavtResult {
    /// Where the time went; of several choices, the slowest one's.
    pub(crate) timing: Timing,
    /// How the main agent's tokens were chosen.
    pub(crate) sampling: SamplingEcho,
    /// The whole story, when `paravt.trace` asked for it: windows with the times of their frames, summaries, tokens and
    /// milliseconds; turns; drafts; failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>, nullable = false)]
    pub(crate) trace: Option<Value>,
}

/// How the main agent's tokens were chosen: what the request says, and the model card's values where it says nothing. `null`:
/// neutral.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct SamplingEcho {
    /// 0 is greedy.
    pub(crate) temperature: Option<f64>,
    /// Nucleus mass.
    pub(crate) top_p: Option<f64>,
    /// Number of candidates.
    pub(crate) top_k: Option<u32>,
    /// Least share of the best candidate's probability.
    pub(crate) min_p: Option<f64>,
    /// Against repeating tokens, by count.
    pub(crate) frequency_penalty: Option<f64>,
    /// Against repeating tokens at all.
    pub(crate) presence_penalty: Option<f64>,
    /// Against repeating tokens; 1 is none.
    pub(crate) repetition_penalty: Option<f64>,
    /// The first choice's seed; where the request gives none and tokens are drawn, one that was drawn for it. `null` where the
    /// engine takes none.
    pub(crate) seed: Option<u64>,
    /// Longest answer in tokens: what was asked for, within what the card allows a turn.
    pub(crate) max_tokens: u32,
}

/// Where the time went, in milliseconds. All but `queue_ms` count from the moment the episode began.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub(crate) struct Timing {
    /// Waiting for a place among the running episodes.
    pub(crate) queue_ms: f64,
    /// Until all videos were open.
    pub(crate) open_ms: f64,
    /// Until all overview frames were decoded.
    pub(crate) overview_ms: f64,
    /// Until the first text of the main agent.
    pub(crate) first_token_ms: Option<f64>,
    /// Until the first text of the answer.
    pub(crate) first_answer_ms: Option<f64>,
    /// All of it.
    pub(crate) total_ms: f64,
}

impl Timing {
    /// The value of a `Server-Timing` header (W3C Server Timing, section 3).
    pub(crate) fn header(&self) -> String {
        let entries = [
            ("queue", Some(self.queue_ms)),
            ("open", Some(self.open_ms)),
            ("overview", Some(self.overview_ms)),
            ("first_token", self.first_token_ms),
            ("first_answer", self.first_answer_ms),
            ("total", Some(self.total_ms)),
        ];
        let entries: Vec<String> =
            entries.iter().filter_map(|(name, ms)| ms.map(|ms| format!("{name};dur={ms:.1}"))).collect();
        entries.join(", ")
    }
}
