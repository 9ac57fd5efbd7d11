//! The answer of `POST /v1/responses`, and its items.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::ResponseTool;
use crate::protocol::completion::{ParavtResult, UsageByAgent};
use crate::protocol::logprobs::TokenLogprob;
use crate::protocol::tools::JsonSchemaFormat;

/// An answer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ResponseObject {
    /// Names this answer.
    pub(crate) id: String,
    /// `response`.
    pub(crate) object: &'static str,
    /// Seconds since 1970.
    pub(crate) created_at: u64,
    /// How far it is.
    pub(crate) status: ResponseStatus,
    /// `false`.
    pub(crate) background: bool,
    /// What went wrong, where it failed.
    pub(crate) error: Option<ResponseFailure>,
    /// Why it is incomplete, where it is.
    pub(crate) incomplete_details: Option<IncompleteDetails>,
    /// As in the request.
    pub(crate) instructions: Option<String>,
    /// As in the request.
    pub(crate) max_output_tokens: Option<u32>,
    /// The model card's name.
    pub(crate) model: String,
    /// Thinking, windows, calls and the answer, in the order they began.
    pub(crate) output: Vec<OutputItem>,
    /// As in the request.
    pub(crate) parallel_tool_calls: bool,
    /// `null`: nothing is stored.
    #[schema(value_type = Option<String>)]
    pub(crate) previous_response_id: Option<()>,
    /// `null` both.
    pub(crate) reasoning: ReasoningConfig,
    /// `false`: nothing is stored.
    pub(crate) store: bool,
    /// The temperature tokens were chosen with.
    pub(crate) temperature: Option<f64>,
    /// The answer's form.
    pub(crate) text: TextConfig,
    /// As in the request.
    #[schema(value_type = Value)]
    pub(crate) tool_choice: Value,
    /// As in the request.
    pub(crate) tools: Vec<ResponseTool>,
    /// As in the request.
    pub(crate) top_logprobs: u32,
    /// The nucleus mass tokens were chosen with.
    pub(crate) top_p: Option<f64>,
    /// `disabled`.
    pub(crate) truncation: &'static str,
    /// Tokens of all agents; `null` before the end.
    pub(crate) usage: Option<ResponseUsage>,
    /// As in the request.
    pub(crate) user: Option<String>,
    /// As in the request.
    #[schema(value_type = Object)]
    pub(crate) metadata: Map<String, Value>,
    /// What paravt adds, at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) paravt: Option<ParavtResult>,
}

/// How far an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResponseStatus {
    /// Being made.
    InProgress,
    /// Complete.
    Completed,
    /// Cut at its longest length.
    Incomplete,
    /// Failed.
    Failed,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ResponseFailure {
    /// `server_error`, `rate_limit_exceeded`, `invalid_prompt`.
    pub(crate) code: &'static str,
    /// For people.
    pub(crate) message: String,
}

/// Why an answer is incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct IncompleteDetails {
    /// `max_output_tokens`.
    pub(crate) reason: &'static str,
}

/// OpenAI's settings of thinking.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ReasoningConfig {
    /// `null`.
    #[schema(value_type = Option<String>)]
    pub(crate) effort: Option<()>,
    /// `null`.
    #[schema(value_type = Option<String>)]
    pub(crate) summary: Option<()>,
}

/// The answer's form.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct TextConfig {
    /// Its form.
    pub(crate) format: TextFormat,
}

/// What the answer must be.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum TextFormat {
    /// Text.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON of a schema.
    JsonSchema(JsonSchemaFormat),
}

/// Tokens of all agents together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ResponseUsage {
    /// Read, frames included.
    pub(crate) input_tokens: u64,
    /// Of the read.
    pub(crate) input_tokens_details: InputDetails,
    /// Written.
    pub(crate) output_tokens: u64,
    /// Of the written.
    pub(crate) output_tokens_details: OutputDetails,
    /// Both.
    pub(crate) total_tokens: u64,
    /// The same by agent.
    pub(crate) paravt: UsageByAgent,
}

/// Of the tokens read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct InputDetails {
    /// Those whose keys and values were reused.
    pub(crate) cached_tokens: u64,
}

/// Of the tokens written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct OutputDetails {
    /// Those of thinking and calls, estimated by share of text.
    pub(crate) reasoning_tokens: u64,
}

/// A part of the output.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem {
    /// The answer.
    Message(MessageItem),
    /// The thinking of one turn.
    Reasoning(ReasoningItem),
    /// A window that was watched: a call of a tool that the server runs, in the shape that OpenAI's clients know for those.
    McpCall(WindowItem),
    /// A call of the caller's tool, for the caller to run.
    FunctionCall(FunctionCallItem),
}

/// How far an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ItemStatus {
    /// Being made.
    InProgress,
    /// Complete.
    Completed,
    /// Cut.
    Incomplete,
    /// Failed.
    Failed,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct MessageItem {
    /// Names the item.
    pub(crate) id: String,
    /// How far it is.
    pub(crate) status: ItemStatus,
    /// `assistant`.
    pub(crate) role: &'static str,
    /// One part, or none at the beginning.
    pub(crate) content: Vec<OutputText>,
}

/// The answer's text.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct OutputText {
    /// `output_text`.
    #[serde(rename = "type")]
    pub(crate) kind: OutputTextKind,
    /// The text.
    pub(crate) text: String,
    /// Empty.
    #[schema(value_type = Vec<Object>)]
    pub(crate) annotations: [(); 0],
    /// Its tokens, where the request asks for them.
    pub(crate) logprobs: Vec<TokenLogprob>,
}

/// The thinking of one turn.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct ReasoningItem {
    /// Names the item.
    pub(crate) id: String,
    /// How far it is.
    pub(crate) status: ItemStatus,
    /// Empty: the thinking itself is told.
    #[schema(value_type = Vec<Object>)]
    pub(crate) summary: [(); 0],
    /// One part, or none at the beginning.
    pub(crate) content: Vec<ReasoningText>,
}

/// Thinking.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ReasoningText {
    /// `reasoning_text`.
    #[serde(rename = "type")]
    pub(crate) kind: ReasoningTextKind,
    /// The text.
    pub(crate) text: String,
}

/// A window that was watched.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct WindowItem {
    /// Names the item.
    pub(crate) id: String,
    /// How far it is.
    pub(crate) status: ItemStatus,
    /// `paravt`.
    pub(crate) server_label: &'static str,
    /// `crop_video`.
    pub(crate) name: &'static str,
    /// A JSON object as text: `video`, `start_time` and `end_time` in seconds, the last two where the call could be read.
    pub(crate) arguments: String,
    /// What its sub-agent saw.
    pub(crate) output: Option<String>,
    /// Why there is no output.
    pub(crate) error: Option<WindowError>,
    /// `null`.
    #[schema(value_type = Option<String>)]
    pub(crate) approval_request_id: Option<()>,
}

/// Why a window was not watched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct WindowError {
    /// `mcp_tool_execution_error`.
    #[serde(rename = "type")]
    pub(crate) kind: WindowErrorKind,
    /// In the words the main agent was told.
    pub(crate) content: String,
}

/// A call of the caller's tool.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct FunctionCallItem {
    /// Names the item.
    pub(crate) id: String,
    /// Names the call, for the item with its result.
    pub(crate) call_id: String,
    /// The function.
    pub(crate) name: String,
    /// A JSON object as text.
    pub(crate) arguments: String,
    /// How far it is.
    pub(crate) status: ItemStatus,
}

/// Its one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutputTextKind {
    /// Text.
    OutputText,
}

/// Its one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReasoningTextKind {
    /// Thinking.
    ReasoningText,
}

/// Its one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WindowErrorKind {
    /// OpenAI's name for a tool that failed.
    McpToolExecutionError,
}

impl OutputText {
    /// Text without tokens.
    pub(crate) const fn new(text: String) -> Self {
        Self { kind: OutputTextKind::OutputText, text, annotations: [], logprobs: Vec::new() }
    }
}

impl ReasoningText {
    /// Thinking.
    pub(crate) const fn new(text: String) -> Self {
        Self { kind: ReasoningTextKind::ReasoningText, text }
    }
}

impl WindowError {
    /// In the words the main agent was told.
    pub(crate) const fn new(content: String) -> Self {
        Self { kind: WindowErrorKind::McpToolExecutionError, content }
    }
}

impl OutputItem {
    /// What names it.
    pub(crate) fn id(&self) -> &str {
        match self {
            Self::Message(item) => &item.id,
            Self::Reasoning(item) => &item.id,
            Self::McpCall(item) => &item.id,
            Self::FunctionCall(item) => &item.id,
        }
    }
}
