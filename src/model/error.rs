//! What can go wrong with a checkpoint, or with what the network is asked to read.

use thiserror::Error;

/// Why a model could not be loaded or run.
#[derive(Debug, Error)]
pub enum ModelError {
    /// A file of the checkpoint is missing, unreadable, or says what can't be.
    #[error("{file}: {problem}")]
    Checkpoint {
        /// Its name inside the checkpoint's folder.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The options contradict each other or the checkpoint.
    #[error("{0}")]
    Options(String),
    /// Tokens, positions or pictures that don't fit the model or each other: the caller's fault.
    #[error("{0}")]
    Input(String),
    /// The tensor library gave up.
    #[error("tensor: {0}")]
    Tensor(#[from] candle_core::Error),
}

impl ModelError {
    pub(super) fn checkpoint(file: &str, problem: impl std::fmt::Display) -> Self {
        Self::Checkpoint { file: file.to_owned(), problem: problem.to_string() }
    }

    pub(super) fn input(problem: impl Into<String>) -> Self {
        Self::Input(problem.into())
    }
}
