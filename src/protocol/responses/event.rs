//! The events of a streamed response, under OpenAI's names.

use serde::Serialize;
use utoipa::ToSchema;

use super::object::{OutputItem, OutputText, ReasoningText, ResponseObject};
use crate::protocol::logprobs::TokenLogprob;

/// An event with its place in the stream.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Sequenced {
    /// The event.
    #[serde(flatten)]
    pub(crate) event: ResponseStreamEvent,
    /// Counts from 0.
    pub(crate) sequence_number: u64,
}

/// A part of an item.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum ItemPart {
    /// Of the answer.
    Text(OutputText),
    /// Of the thinking.
    Reasoning(ReasoningText),
}

/// Where in the output something is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ItemPlace {
    /// The item's name.
    pub(crate) item_id: String,
    /// The item's place.
    pub(crate) output_index: usize,
}

/// Where in an item something is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct PartPlace {
    /// The item's name.
    pub(crate) item_id: String,
    /// The item's place.
    pub(crate) output_index: usize,
    /// The part's place: 0.
    pub(crate) content_index: usize,
}

/// What happened.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(tag = "type")]
pub(crate) enum ResponseStreamEvent {
    /// The first event.
    #[serde(rename = "response.created")]
    Created {
        /// As it is.
        response: ResponseObject,
    },
    /// The second.
    #[serde(rename = "response.in_progress")]
    InProgress {
        /// As it is.
        response: ResponseObject,
    },
    /// The last, where all went well.
    #[serde(rename = "response.completed")]
    Completed {
        /// The whole answer.
        response: ResponseObject,
    },
    /// The last, where the answer was cut.
    #[serde(rename = "response.incomplete")]
    Incomplete {
        /// What there is.
        response: ResponseObject,
    },
    /// The last, where it failed.
    #[serde(rename = "response.failed")]
    Failed {
        /// What there is.
        response: ResponseObject,
    },
    /// An item begins.
    #[serde(rename = "response.output_item.added")]
    ItemAdded {
        /// Its place.
        output_index: usize,
        /// As it is.
        item: OutputItem,
    },
    /// An item is complete.
    #[serde(rename = "response.output_item.done")]
    ItemDone {
        /// Its place.
        output_index: usize,
        /// All of it.
        item: OutputItem,
    },
    /// A part begins.
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        /// Where.
        #[serde(flatten)]
        place: PartPlace,
        /// As it is.
        part: ItemPart,
    },
    /// A part is complete.
    #[serde(rename = "response.content_part.done")]
    PartDone {
        /// Where.
        #[serde(flatten)]
        place: PartPlace,
        /// All of it.
        part: ItemPart,
    },
    /// More of the answer.
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        /// Where.
        #[serde(flatten)]
        place: PartPlace,
        /// The new text.
        delta: String,
        /// Its tokens, where the request asks for them.
        logprobs: Vec<TokenLogprob>,
    },
    /// The answer is complete.
    #[serde(rename = "response.output_text.done")]
    TextDone {
        /// Where.
        #[serde(flatten)]
        place: PartPlace,
        /// All of it.
        text: String,
        /// Its tokens, where the request asks for them.
        logprobs: Vec<TokenLogprob>,
    },
    /// More of the thinking.
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta {
        /// Where.
        #[serde(flatten)]
        place: PartPlace,
        /// The new text.
        delta: String,
    },
    /// The thinking is complete.
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone {
        /// Where.
        #[serde(flatten)]
        place: PartPlace,
        /// All of it.
        text: String,
    },
    /// A window is on its way.
    #[serde(rename = "response.mcp_call.in_progress")]
    WindowInProgress {
        /// Which.
        #[serde(flatten)]
        place: ItemPlace,
    },
    /// The window's times.
    #[serde(rename = "response.mcp_call_arguments.done")]
    WindowArguments {
        /// Which.
        #[serde(flatten)]
        place: ItemPlace,
        /// A JSON object as text.
        arguments: String,
    },
    /// The window has a summary.
    #[serde(rename = "response.mcp_call.completed")]
    WindowCompleted {
        /// Which.
        #[serde(flatten)]
        place: ItemPlace,
    },
    /// The window has none.
    #[serde(rename = "response.mcp_call.failed")]
    WindowFailed {
        /// Which.
        #[serde(flatten)]
        place: ItemPlace,
    },
    /// The arguments of a call of the caller's tool: all of them at once.
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        /// Which.
        #[serde(flatten)]
        place: ItemPlace,
        /// The new text.
        delta: String,
    },
    /// They are complete.
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        /// Which.
        #[serde(flatten)]
        place: ItemPlace,
        /// The function.
        name: String,
        /// All of them.
        arguments: String,
    },
}

impl ResponseStreamEvent {
    /// The name it has in the stream.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Created { .. } => "response.created",
            Self::InProgress { .. } => "response.in_progress",
            Self::Completed { .. } => "response.completed",
            Self::Incomplete { .. } => "response.incomplete",
            Self::Failed { .. } => "response.failed",
            Self::ItemAdded { .. } => "response.output_item.added",
            Self::ItemDone { .. } => "response.output_item.done",
            Self::PartAdded { .. } => "response.content_part.added",
            Self::PartDone { .. } => "response.content_part.done",
            Self::TextDelta { .. } => "response.output_text.delta",
            Self::TextDone { .. } => "response.output_text.done",
            Self::ReasoningDelta { .. } => "response.reasoning_text.delta",
            Self::ReasoningDone { .. } => "response.reasoning_text.done",
            Self::WindowInProgress { .. } => "response.mcp_call.in_progress",
            Self::WindowArguments { .. } => "response.mcp_call_arguments.done",
            Self::WindowCompleted { .. } => "response.mcp_call.completed",
            Self::WindowFailed { .. } => "response.mcp_call.failed",
            Self::ArgumentsDelta { .. } => "response.function_call_arguments.delta",
            Self::ArgumentsDone { .. } => "response.function_call_arguments.done",
        }
    }
}
