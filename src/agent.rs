//! The agent: what happens between a question and its answer (`agent.md` of the design; ParaVT, section 3.1.1).
//!
//! An [`Agent`] turns a question about videos into a stream of [`AgentEvent`]s. The rules live in pure pieces (`parser`,
//! `prompt`, `budget`, `episode`); `dispatch` and `subagent` do the I/O around them. This room knows engines and media
//! by their seams, and nothing of HTTP.

#[expect(clippy::module_inception, reason = "the agent's file carries the agent's name")]
mod agent;
mod answer;
mod budget;
pub mod cost;
mod dispatch;
mod episode;
mod error;
mod event;
mod form;
mod generation;
pub mod parser;
mod plain;
mod prompt;
mod request;
mod subagent;
mod tokens;
mod tool;

pub use agent::{Agent, EventStream, finished};
pub use error::AgentError;
pub use event::{AgentEvent, AgentUsage, Outcome, OverviewRecord, StageTiming, TurnRecord, WindowRecord, WindowStatus};
pub use parser::ToolCall;
pub(crate) use prompt::frame_parts;
#[cfg(any(feature = "train", all(test, feature = "native")))]
pub(crate) use prompt::{inside_response, opening, sub_agent, tool_response};
pub use request::{AnswerForm, AskOptions, AskPart, AskRequest, AskTurn, ClientTool, ToolUse, VideoPart};
#[cfg(any(feature = "train", all(test, feature = "native")))]
pub(crate) use tool::{CROP_VIDEO, window_arguments};
