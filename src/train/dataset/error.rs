//! What can be wrong with a data set's file.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// Longest description of a problem: some libraries print the whole cell.
const MOST_CHARS: usize = 300;

/// What can't be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DatasetError {
    /// The file: nothing more can be read from it, or written to it.
    #[error("{path}: {problem}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// A row does not say what it should. Those after it can be read.
    #[error("{path}, row {row}, {column}: {problem}")]
    Row {
        /// In which file.
        path: PathBuf,
        /// Which, from 1.
        row: u64,
        /// Its column, or field.
        column: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

impl DatasetError {
    pub(super) fn file(path: &Path, problem: impl Display) -> Self {
        Self::File { path: path.to_owned(), problem: short(problem) }
    }

    pub(super) fn row(path: &Path, row: u64, (column, problem): Wrong) -> Self {
        Self::Row { path: path.to_owned(), row, column, problem: short(problem) }
    }
}

/// What is wrong with a row: its column, and why.
pub(super) type Wrong = (&'static str, String);

fn short(problem: impl Display) -> String {
    let text = problem.to_string();
    match text.char_indices().nth(MOST_CHARS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
