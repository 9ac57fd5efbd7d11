//! What ends an episode without an answer.

use crate::engine::EngineError;
use crate::media::MediaError;

/// An episode's failure. A window's own failure is none: the main agent is told and goes on.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AgentError {
    /// A video or picture of the request can't be used.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The request makes no sense to the agent.
    #[error("{0}")]
    Invalid(String),
    /// The form asked of the answer can't be had.
    #[error("{problem}")]
    Form {
        /// Whether it is that of the caller's tools; else the answer's own.
        of_tools: bool,
        /// What is wrong with it.
        problem: String,
    },
    /// The episode's deadline passed.
    #[error("the request took longer than {0} s")]
    Deadline(u64),
}
