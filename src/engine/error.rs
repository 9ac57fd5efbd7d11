//! What can go wrong in an engine, by cause.

/// An engine's failure.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// Prompt, or prompt and output together, exceed the context or what the engine takes of it.
    #[error("the request needs {needed} tokens and the model takes {limit}")]
    TooLong {
        /// Tokens needed.
        needed: u64,
        /// Tokens there are.
        limit: u64,
    },
    /// The request asks for something this engine can't do.
    #[error("the engine does not support {0}")]
    Unsupported(&'static str),
    /// The request is malformed for this model (a frame too small, an empty conversation).
    #[error("the request does not fit the model: {0}")]
    Invalid(String),
    /// Not loaded yet, shutting down, or no upstream alive.
    #[error("the engine is not available: {0}")]
    Unavailable(String),
    /// The queue is full.
    #[error("the engine's queue is full")]
    Overloaded,
    /// [`super::GenerateRequest::deadline`] passed.
    #[error("the generation did not end in time")]
    DeadlineExceeded,
    /// The model or the upstream failed while working on this request.
    #[error("generation failed: {0}")]
    Failed(String),
    /// The model could not be loaded.
    #[error("the model could not be loaded: {0}")]
    Load(String),
}

/// What a library says, without what follows the first line: a stack trace stays inside the engine.
#[cfg(any(feature = "native", feature = "mistralrs", test))]
pub(super) fn first_line(error: &dyn std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_line_of_an_error_leaves() {
        assert_eq!(first_line(&"shape mismatch\n   0: candle_core::error"), "shape mismatch");
    }
}
