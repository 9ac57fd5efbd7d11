//! Benchmarks in the layouts their authors publish, read from local folders.
//!
//! Prompts are those of the ParaVT paper's own evaluation (`paravt/eval/utils.py` of `EvolvingLMMs-Lab/ParaVT`, commit
//! `cf55249e`), so that numbers can be held against the paper's.

mod charades;
mod jsonl;
mod longvideobench;
mod lvbench;
mod mlvu;
mod mmvu;
mod signal_board;
mod subtitles;
mod table;
mod videomme;

use std::path::{Path, PathBuf};

pub use signal_board::{Boards, SIGNAL_BOARD, film as film_board, make as film_boards, questions as signal_board};

use super::item::Item;

/// A benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// Video-MME without subtitles.
    VideoMme,
    /// Video-MME with all of a video's subtitles before the question.
    VideoMmeSubtitles,
    /// LongVideoBench, validation.
    LongVideoBench,
    /// LVBench.
    LvBench,
    /// MLVU, the multiple-choice tasks of its development set.
    Mlvu,
    /// MMVU, validation, the multiple-choice questions: most likely what the paper's column holds.
    Mmvu,
    /// MMVU with its open questions, which are judged by their words.
    MmvuAll,
    /// Charades-STA, test: when does something happen.
    CharadesSta,
    /// Any questions: lines of `{"video", "question", "options"?, "answer", "type"?}`.
    Jsonl,
}

/// What can't be read.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// A file or folder is missing, or unreadable.
    #[error("{path}: {problem}")]
    File {
        /// Where.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A row does not say what it should.
    #[error("{path}, question {row}: {problem}")]
    Row {
        /// Where.
        path: PathBuf,
        /// Which, from 1.
        row: usize,
        /// What is wrong.
        problem: String,
    },
}

impl SuiteError {
    pub(super) fn file(path: &Path, problem: impl std::fmt::Display) -> Self {
        Self::File { path: path.to_owned(), problem: problem.to_string() }
    }

    pub(super) fn row(path: &Path, row: usize, problem: impl std::fmt::Display) -> Self {
        Self::Row { path: path.to_owned(), row, problem: problem.to_string() }
    }
}

impl Suite {
    /// All, with their names.
    pub const ALL: [(&'static str, Self); 9] = [
        ("videomme", Self::VideoMme),
        ("videomme-subtitles", Self::VideoMmeSubtitles),
        ("longvideobench", Self::LongVideoBench),
        ("lvbench", Self::LvBench),
        ("mlvu", Self::Mlvu),
        ("mmvu", Self::Mmvu),
        ("mmvu-all", Self::MmvuAll),
        ("charades-sta", Self::CharadesSta),
        ("jsonl", Self::Jsonl),
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, suite)| *suite == self).map_or("", |(name, _)| name)
    }

    /// Its Hub dataset, where it has one.
    #[must_use]
    pub const fn dataset(self) -> Option<&'static str> {
        match self {
            Self::VideoMme | Self::VideoMmeSubtitles => Some("lmms-lab/Video-MME"),
            Self::LongVideoBench => Some("longvideobench/LongVideoBench"),
            Self::LvBench => Some("lmms-lab/LVBench"),
            Self::Mlvu => Some("MLVU/MVLU"),
            Self::Mmvu | Self::MmvuAll => Some("yale-nlp/MMVU"),
            Self::CharadesSta => Some("lmms-lab/charades_sta"),
            Self::Jsonl => None,
        }
    }

    /// Its files of questions, by the ends of their paths in the data set. What else it needs (videos, subtitles) is published in
    /// archives, to be unpacked beside them.
    #[must_use]
    pub const fn tables(self) -> &'static [&'static str] {
        match self {
            Self::VideoMme | Self::VideoMmeSubtitles => videomme::TABLES,
            Self::LongVideoBench => longvideobench::TABLES,
            Self::LvBench => lvbench::TABLES,
            Self::Mlvu => mlvu::TABLES,
            Self::Mmvu | Self::MmvuAll => mmvu::TABLES,
            Self::CharadesSta => charades::TABLES,
            Self::Jsonl => &[],
        }
    }

    /// Reads all questions below a folder, or from a file. Blocks.
    ///
    /// # Errors
    /// [`SuiteError`]: the first thing that is not as it should be.
    pub fn load(self, path: &Path) -> Result<Vec<Item>, SuiteError> {
        let items = match self {
            Self::VideoMme => videomme::load(path, false),
            Self::VideoMmeSubtitles => videomme::load(path, true),
            Self::LongVideoBench => longvideobench::load(path),
            Self::LvBench => lvbench::load(path),
            Self::Mlvu => mlvu::load(path),
            Self::Mmvu => mmvu::load(path, false),
            Self::MmvuAll => mmvu::load(path, true),
            Self::CharadesSta => charades::load(path),
            Self::Jsonl => jsonl::load(path),
        }?;
        if items.is_empty() {
            return Err(SuiteError::file(path, "holds no questions"));
        }
        let mut ids: Vec<&str> = items.iter().map(|item| item.id.as_str()).collect();
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(SuiteError::file(path, format!("two questions are called {}", pair[0])));
        }
        Ok(items)
    }
}

/// The last line of a multiple-choice question.
const LETTER_ONLY: &str = "Answer with the option letter only.";

/// A question and its options, as the paper's evaluation writes them.
fn with_options<'a>(question: &str, options: impl IntoIterator<Item = (char, &'a str)>) -> String {
    let options: Vec<String> = options.into_iter().map(|(letter, option)| format!("{letter}. {option}")).collect();
    format!("Question: {question}\nOptions:\n{}\n{LETTER_ONLY}", options.join("\n"))
}

/// Options with the letters of their places.
fn lettered(options: &[String]) -> impl Iterator<Item = (char, &str)> {
    ('A'..='J').zip(options.iter().map(String::as_str))
}

/// The first of some folders and names that is a file, or the first of all: what is missing is told when it is needed.
fn video(root: &Path, folders: &[&str], names: &[String]) -> PathBuf {
    let all = || folders.iter().flat_map(|folder| names.iter().map(move |name| root.join(folder).join(name)));
    all().find(|path| path.is_file()).or_else(|| all().next()).unwrap_or_else(|| root.to_owned())
}

/// The file of questions and the folder of the data set: the first of some files below a folder that exists, or the file that is
/// named, whose folder is the data set's but for the folders that its name in the data set has.
fn found(path: &Path, names: &[&str]) -> Result<(PathBuf, PathBuf), SuiteError> {
    if path.is_file() {
        let whole = std::path::absolute(path).map_err(|error| SuiteError::file(path, error))?;
        let longest = names.iter().filter(|name| whole.ends_with(name)).max_by_key(|name| name.len());
        let depth = longest.map_or(1, |name| Path::new(name).components().count());
        let root = whole.ancestors().nth(depth).unwrap_or(&whole).to_owned();
        return Ok((whole, root));
    }
    let found = names.iter().map(|name| path.join(name)).find(|file| file.is_file());
    let file = found.ok_or_else(|| SuiteError::file(path, format!("holds none of {}", names.join(", "))))?;
    Ok((file, path.to_owned()))
}

/// A name that may be text or a number.
fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// What may be one text, several, or none.
fn texts(value: &serde_json::Value) -> Vec<String> {
    match value {
        serde_json::Value::Null => Vec::new(),
        serde_json::Value::Array(values) => values.iter().map(plain).collect(),
        value => vec![plain(value)],
    }
}

/// The letter that an answer begins with, if it is one.
fn letter_of(answer: &str) -> Option<char> {
    answer.trim().chars().next().filter(|letter| ('A'..='J').contains(letter))
}

#[cfg(test)]
mod tests;
