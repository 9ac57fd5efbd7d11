//! What is asked: a line of JSON a task.

use std::collections::HashMap;
use std::io::{BufRead, Read as _};
use std::time::SystemTime;

use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest as _, Sha256};

use crate::types::{MediaTime, hex};

/// Longest line of tasks.
const MOST_BYTES: u64 = 1 << 20;
/// Most tasks of a run.
const MOST_TASKS: usize = 1_000_000;
/// Most labels of a task, and the longest.
const MOST_LABELS: (usize, usize) = (200, 100);

/// Events of one video, or of a part of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Unlike that of any other task. Made from the rest where the line has none.
    #[serde(default)]
    pub id: String,
    /// A file, or an http(s) URL.
    pub video: String,
    /// What to look for.
    #[serde(default = "any_event")]
    pub question: String,
    /// The kinds of event that are told. Empty: any, in the model's words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Only from here: seconds, or `MM:SS`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "time")]
    pub start: Option<MediaTime>,
    /// Only to here.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "time")]
    pub end: Option<MediaTime>,
    /// Anything, which comes back with the results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<serde_json::Value>,
}

/// By which a local file that was changed is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileState {
    /// Its size.
    pub bytes: u64,
    /// When it was changed, in milliseconds since 1970.
    pub modified_ms: u64,
}

/// Tasks that can't be read.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// Reading broke off.
    #[error("the tasks can't be read: {0}")]
    Read(#[from] std::io::Error),
    /// A line is no task.
    #[error("line {line} of the tasks: {problem}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
}

fn any_event() -> String {
    "Which events happen in this video?".to_owned()
}

/// `12.5`, `"12.5"` and `"1:02:03"`.
fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<MediaTime>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Time {
        Seconds(f64),
        Text(String),
    }
    let wrong = || serde::de::Error::custom("not a time in seconds, MM:SS or HH:MM:SS");
    let time = match Option::<Time>::deserialize(deserializer)? {
        None => return Ok(None),
        Some(Time::Seconds(seconds)) => MediaTime::from_seconds(seconds),
        Some(Time::Text(text)) => text.parse().ok(),
    };
    time.filter(|time| *time >= MediaTime::ZERO).map(Some).ok_or_else(wrong)
}

/// Reads tasks, a line each; empty lines are none.
///
/// # Errors
/// [`TaskError`], with the line.
pub fn read_tasks(mut from: impl BufRead) -> Result<Vec<Task>, TaskError> {
    let (mut tasks, mut lines): (Vec<Task>, HashMap<String, usize>) = (Vec::new(), HashMap::new());
    for line in 1.. {
        let mut text = Vec::new();
        if from.by_ref().take(MOST_BYTES).read_until(b'\n', &mut text)? == 0 {
            break;
        }
        let wrong = |problem: String| TaskError::Line { line, problem };
        if text.len() as u64 >= MOST_BYTES {
            return Err(wrong(format!("longer than {MOST_BYTES} bytes")));
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        let task: Task = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        let task = task.checked().map_err(wrong)?;
        if let Some(other) = lines.insert(task.id.clone(), line) {
            return Err(wrong(format!("the same id as in line {other}: {:?}", task.id)));
        }
        if tasks.len() == MOST_TASKS {
            return Err(wrong(format!("more than {MOST_TASKS} tasks")));
        }
        tasks.push(task);
    }
    Ok(tasks)
}

impl Task {
    fn checked(mut self) -> Result<Self, String> {
        if self.video.trim().is_empty() || self.question.trim().is_empty() {
            return Err("video and question must say something".to_owned());
        }
        if matches!((self.start, self.end), (Some(start), Some(end)) if start >= end) {
            return Err("start must be before end".to_owned());
        }
        let (most, longest) = MOST_LABELS;
        let odd = |label: &String| label.trim().is_empty() || label.len() > longest;
        if self.labels.len() > most || self.labels.iter().any(odd) {
            return Err(format!("at most {most} labels, each of 1 to {longest} bytes"));
        }
        if self.id.is_empty() {
            self.id = self.digest("").chars().take(16).collect();
        }
        Ok(self)
    }

    /// A digest of what it asks, and of how its video is looked at.
    pub(super) fn digest(&self, how: &str) -> String {
        let asked = (&self.id, &self.video, &self.question, &self.labels, self.start, self.end, how);
        let digest = Sha256::digest(serde_json::to_vec(&asked).unwrap_or_default());
        hex(&digest)
    }

    /// Its local file as it is now. `None` of what is on the web, and of what is not there.
    pub(super) fn file(&self) -> Option<FileState> {
        let file = std::fs::metadata(&self.video).ok()?;
        let since = file.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(FileState { bytes: file.len(), modified_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Task>, TaskError> {
        read_tasks(text.as_bytes())
    }

    #[test]
    fn a_line_is_a_task() {
        let text = "{\"video\": \"a.mp4\"}\n\n{\"id\": \"m1\", \"video\": \"b.mp4\", \"question\": \"Goals?\", \"labels\": [\"goal\"], \
                    \"start\": \"45:00\", \"end\": 5400, \"metadata\": {\"league\": 1}}";
        let tasks = read(text).expect("tasks");
        assert_eq!((tasks[0].question.as_str(), tasks[0].id.len()), ("Which events happen in this video?", 16));
        let seconds = |time: Option<MediaTime>| time.map(MediaTime::seconds);
        assert_eq!((seconds(tasks[1].start), seconds(tasks[1].end)), (Some(2700.0), Some(5400.0)));
        assert_eq!(tasks[1].metadata, Some(serde_json::json!({"league": 1})));
    }

    #[test]
    fn what_is_no_task_is_told_with_its_line() {
        for (text, wanted) in [
            ("{\"video\": \"a\"}\nx", "line 2 of the tasks: expected value"),
            ("{\"video\": \"a\", \"lables\": []}", "unknown field `lables`"),
            ("{\"question\": \"a\"}", "missing field `video`"),
            ("{\"video\": \" \"}", "must say something"),
            ("{\"video\": \"a\", \"start\": 5, \"end\": 5}", "start must be before end"),
            ("{\"video\": \"a\", \"start\": -5}", "not a time"),
            ("{\"video\": \"a\", \"start\": \"soon\"}", "not a time"),
            ("{\"video\": \"a\", \"labels\": [\"\"]}", "labels"),
            (
                "{\"id\": \"x\", \"video\": \"a\"}\n\n{\"id\": \"x\", \"video\": \"b\"}",
                "line 3 of the tasks: the same id as in line 1",
            ),
            ("{\"video\": \"a\"}\n{\"video\": \"a\"}", "the same id"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(wanted), "{error} / {wanted}");
        }
        let long = format!("{{\"video\": \"{}\"}}", "a".repeat(1 << 20));
        assert!(read(&long).is_err());
        assert!(read("").expect("nothing").is_empty());
    }

    #[test]
    fn a_task_without_an_id_has_always_the_same() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let line = serde_json::json!({"video": file.path()}).to_string();
        let before = read(&line).expect("a task").remove(0);
        let state = before.file().expect("is there");
        std::fs::write(file.path(), "longer").expect("written");
        let after = read(&line).expect("a task").remove(0);
        assert_eq!(after, before);
        assert_ne!(after.file(), Some(state));
        assert_eq!(read("{\"video\": \"https://example.org/a.mp4\"}").expect("a task")[0].file(), None);
    }
}
