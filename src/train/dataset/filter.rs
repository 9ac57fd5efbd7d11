//! The filter of DAPO as ParaVT applies it, once before training: prompts from which nothing can be learned go.
//!
//! Open answers of more than [`MOST_OPEN_WORDS`] words are too long to be scored by their words; a group whose rollouts all fail
//! has no advantage to learn from.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::error::DatasetError;
use super::row::RlRow;

/// Longest open answer that is kept.
pub const MOST_OPEN_WORDS: usize = 15;
/// Longest line of rollouts.
const MOST_BYTES: u64 = 1 << 20;

/// Which row a line of rollouts is of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// The row's place in its file, from 0.
    Index(u64),
    /// The `id` in the row's `extra_info`.
    Id(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    index: Option<u64>,
    id: Option<Value>,
    accuracies: Vec<f64>,
}

/// How well the rollouts of each prompt did: lines of `{"index": 0, "accuracies": [0, 1, …]}`, or with `"id"` in place of `"index"`.
#[derive(Debug, Clone, Default)]
pub struct Rollouts(HashMap<Key, Vec<f64>>);

impl Rollouts {
    /// Reads a file of lines; empty ones are none.
    ///
    /// # Errors
    /// [`DatasetError`]: the first line that is none, is of no row, has no accuracies, or is of the row of another.
    pub fn read(path: &Path) -> Result<Self, DatasetError> {
        let mut file = BufReader::new(File::open(path).map_err(|error| DatasetError::file(path, error))?);
        let mut all = HashMap::new();
        for row in 1.. {
            let mut text = Vec::new();
            let read = file.by_ref().take(MOST_BYTES).read_until(b'\n', &mut text);
            if read.map_err(|error| DatasetError::file(path, error))? == 0 {
                break;
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            let wrong = |problem: String| DatasetError::row(path, row, ("line", problem));
            if text.len() as u64 >= MOST_BYTES {
                return Err(wrong(format!("longer than {MOST_BYTES} bytes")));
            }
            let line: Line = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
            let key = match (line.index, line.id.as_ref().and_then(id)) {
                (Some(index), None) => Key::Index(index),
                (None, Some(id)) => Key::Id(id),
                _ => return Err(wrong("has neither index nor id, or both".to_owned())),
            };
            if line.accuracies.is_empty() {
                return Err(wrong("has no accuracies".to_owned()));
            }
            if all.insert(key, line.accuracies).is_some() {
                return Err(wrong("is of the row of an earlier line".to_owned()));
            }
        }
        Ok(Self(all))
    }

    /// How many prompts it tells of.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it tells of none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn id(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// What becomes of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It stays.
    Kept,
    /// Its open answer is too long.
    LongAnswer,
    /// None of its rollouts was right in the least.
    AllFailed,
}

/// The filter at work: rows in, verdicts out, and counts of them.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    rollouts: Rollouts,
    used: HashSet<Key>,
    rows: u64,
    long: u64,
    failed: u64,
    without_rollouts: u64,
}

impl Filter {
    /// A filter by rollouts. Rows of which they do not tell stay, if their answers are short.
    #[must_use]
    pub fn new(rollouts: Rollouts) -> Self {
        Self { rollouts, ..Self::default() }
    }

    /// Judges the next row.
    pub fn judge(&mut self, row: &RlRow) -> Verdict {
        let keys = [Some(Key::Index(self.rows)), row.extra.get("id").and_then(id).map(Key::Id)];
        self.rows += 1;
        let known = keys.into_iter().flatten().find_map(|key| self.rollouts.0.get_key_value(&key));
        let verdict = match known {
            _ if is_open(&row.question_type) && row.answer.split_whitespace().count() > MOST_OPEN_WORDS => {
                Verdict::LongAnswer
            }
            Some((_, accuracies)) if accuracies.iter().all(|accuracy| *accuracy <= 0.0) => Verdict::AllFailed,
            _ => Verdict::Kept,
        };
        match known {
            Some((key, _)) => drop(self.used.insert(key.clone())),
            None => self.without_rollouts += 1,
        }
        match verdict {
            Verdict::Kept => {}
            Verdict::LongAnswer => self.long += 1,
            Verdict::AllFailed => self.failed += 1,
        }
        verdict
    }
}

/// Answers that are chosen (`mcq`) or are a window (`tvg`) are not open.
fn is_open(question_type: &str) -> bool {
    !matches!(question_type, "mcq" | "tvg")
}

/// What became of all rows, in one line.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.rows - self.long - self.failed;
        write!(f, "{kept} of {} rows kept: ", self.rows)?;
        write!(f, "{} open answers over {MOST_OPEN_WORDS} words and {} groups", self.long, self.failed)?;
        write!(f, " whose rollouts all fail dropped")?;
        if !self.rollouts.is_empty() && self.without_rollouts > 0 {
            write!(f, "; {} rows have no rollouts", self.without_rollouts)?;
        }
        let strangers = self.rollouts.len() - self.used.len();
        if strangers > 0 {
            write!(f, "; {strangers} lines of rollouts are of no row")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    fn row(kind: &str, answer: &str, id: Value) -> RlRow {
        RlRow {
            prompt: Vec::new(),
            videos: Vec::new(),
            answer: answer.to_owned(),
            question_type: kind.to_owned(),
            extra: Map::from_iter([("id".to_owned(), id)]),
        }
    }

    fn rollouts(text: &str) -> Result<Rollouts, DatasetError> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        Rollouts::read(file.path())
    }

    #[test]
    fn long_open_answers_and_hopeless_groups_go() {
        let lines = "{\"index\": 0, \"accuracies\": [0, 0.0]}\n\n{\"id\": \"b\", \"accuracies\": [0, 0.25]}\n\
                     {\"id\": 7, \"accuracies\": [0]}\n{\"id\": \"gone\", \"accuracies\": [1]}\n";
        let mut filter = Filter::new(rollouts(lines).expect("reads"));
        let (short, long) = ("a ".repeat(15), "a ".repeat(16));
        let rows = [
            (row("oe", &short, json!("a")), Verdict::AllFailed),
            (row("oe", &short, json!("b")), Verdict::Kept),
            (row("mcq", "B", json!(7)), Verdict::AllFailed),
            (row("oe", &long, json!("d")), Verdict::LongAnswer),
            (row("mcq", &long, json!("e")), Verdict::Kept),
        ];
        for (row, verdict) in rows {
            assert_eq!(filter.judge(&row), verdict, "{row:?}");
        }
        assert_eq!(
            filter.to_string(),
            "2 of 5 rows kept: 1 open answers over 15 words and 2 groups whose rollouts all fail dropped; \
             2 rows have no rollouts; 1 lines of rollouts are of no row"
        );
    }

    #[test]
    fn rollouts_that_make_no_sense_are_told_with_their_line() {
        for (text, wanted) in [
            ("\n{", "row 2, line: EOF"),
            ("{\"accuracies\": [1]}", "neither index nor id"),
            ("{\"index\": 1, \"id\": 1, \"accuracies\": [1]}", "or both"),
            ("{\"index\": 1, \"accuracies\": []}", "no accuracies"),
            ("{\"index\": 1, \"accuracies\": [1]}\n{\"index\": 1, \"accuracies\": [0]}", "row 2, line: is of the row"),
            ("{\"index\": 1, \"scores\": [1]}", "unknown field"),
        ] {
            let error = rollouts(text).expect_err(text).to_string();
            assert!(error.contains(wanted), "{error} / {wanted}");
        }
    }
}
