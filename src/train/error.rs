//! What can go wrong in training.

use std::path::PathBuf;

use thiserror::Error;

use super::dataset::DatasetError;
use crate::engine::EngineError;
use crate::media::MediaError;
use crate::model::ModelError;

/// Why training stopped, or did not begin.
#[derive(Debug, Error)]
pub enum TrainError {
    /// Options that contradict each other or the data.
    #[error("{0}")]
    Options(String),
    /// A file that can't be read or written.
    #[error("{path}: {problem}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// A data set.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A video.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The tensor library gave up.
    #[error("tensor: {0}")]
    Tensor(#[from] candle_core::Error),
}

impl TrainError {
    pub(crate) fn file(path: &std::path::Path, problem: impl std::fmt::Display) -> Self {
        Self::File { path: path.to_owned(), problem: problem.to_string() }
    }
}
