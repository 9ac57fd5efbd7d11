//! Results on disk: a line a question, written as soon as it is answered, so that a run that is broken off goes on where it was.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::item::Gold;

/// Longest line that is read back.
const MOST: u64 = 16 << 20;

/// What a run is. Results of different ones are never mixed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The benchmark.
    pub suite: String,
    /// The model card's name.
    pub model: String,
    /// `parallel`, `sequential` or `none`.
    pub dispatch: String,
    /// Questions of the whole run, and a digest of what they ask.
    pub questions: usize,
    /// SHA-256 of all ids, prompts and right answers.
    pub digest: String,
    /// SHA-256 of what else the answers depend on: the card, the checkpoint, the engine, the agent's settings, the temperature.
    pub settings: String,
}

/// What came of one question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The question's.
    pub id: String,
    /// The right answer.
    pub gold: Gold,
    /// What was understood of the reply.
    pub prediction: String,
    /// 0 to 1. 0 where there was no reply.
    pub score: f64,
    /// The answer as callers get it.
    pub answer: String,
    /// All that the model wrote in its last turn.
    #[serde(default)]
    pub reply: String,
    /// The video, by which questions belong together.
    #[serde(default)]
    pub video: String,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Windows that were asked for, and those of them that were watched well.
    pub calls: u32,
    /// Windows that were watched well.
    pub watched: u32,
    /// Main turns.
    pub turns: u32,
    /// Tokens that the main agent read (whether they were in its cache or not) and wrote.
    pub main_tokens: (u64, u64),
    /// Tokens that all sub-agents read and wrote.
    pub sub_tokens: (u64, u64),
    /// Of the tokens read, those that were in a cache.
    pub cached_tokens: u64,
    /// From asking to the end of the answer.
    pub total_ms: f64,
    /// To the first text of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_answer_ms: Option<f64>,
    /// By what results are broken down.
    pub groups: Vec<(String, String)>,
}

/// A file of results that is being written.
#[derive(Debug)]
pub struct Store {
    file: File,
    path: PathBuf,
}

/// What can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file.
    #[error("{path}: {cause}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The file holds another run.
    #[error("{path} holds results of another run ({found}); this one is {wanted}: choose another --out")]
    OtherRun {
        /// Which.
        path: PathBuf,
        /// What it holds.
        found: String,
        /// What was to be written.
        wanted: String,
    },
    /// The file is none of ours.
    #[error("{0} holds no results")]
    NoResults(PathBuf),
    /// A line of it is none of ours. Nothing is changed.
    #[error("{path}, line {line}: no result of this version")]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
    },
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { suite, model, dispatch, questions, digest, settings } = self;
        let short = |digest: &str| digest.get(..8).unwrap_or(digest).to_owned();
        write!(f, "{suite}, {model}, {dispatch}, {questions} questions {}, settings {}", short(digest), short(settings))
    }
}

impl Store {
    /// Opens a file of results for more of them, and gives those it has. What was being written when a run was broken off is cut
    /// away. Only one process may have it open.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn open(path: &Path, run: &Run) -> Result<(Self, Vec<Record>), RecordError> {
        let wrong = |cause| RecordError::File { path: path.to_owned(), cause };
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(wrong)?;
        file.try_lock().map_err(|_| wrong(io::Error::other("another process is writing to it")))?;
        let (found, records, whole) = read(&mut file, path)?;
        match found {
            Some(found) if found != *run => {
                let (found, wanted) = (found.to_string(), run.to_string());
                return Err(RecordError::OtherRun { path: path.to_owned(), found, wanted });
            }
            Some(_) => {
                file.set_len(whole).map_err(wrong)?;
                file.seek(io::SeekFrom::End(0)).map_err(wrong)?;
            }
            None => {
                file.set_len(0).map_err(wrong)?;
                file.seek(io::SeekFrom::Start(0)).map_err(wrong)?;
                line(&mut file, run).map_err(wrong)?;
            }
        }
        Ok((Self { file, path: path.to_owned() }, records))
    }

    /// Adds a result. It is on the disk, as far as the system is concerned, when this returns.
    ///
    /// # Errors
    /// [`RecordError::File`].
    pub fn add(&mut self, record: &Record) -> Result<(), RecordError> {
        line(&mut self.file, record).map_err(|cause| RecordError::File { path: self.path.clone(), cause })
    }
}

/// Reads results: the last of each question, in the order of their ids.
///
/// # Errors
/// [`RecordError`].
pub fn load(path: &Path) -> Result<(Run, Vec<Record>), RecordError> {
    let mut file = File::open(path).map_err(|cause| RecordError::File { path: path.to_owned(), cause })?;
    let (run, records, _) = read(&mut file, path)?;
    Ok((run.ok_or_else(|| RecordError::NoResults(path.to_owned()))?, records))
}

fn line<T: Serialize>(file: &mut File, value: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    file.write_all(&line)
}

/// What a file holds, and how many bytes of it are whole lines. Only a last line that was cut off is left out.
fn read(file: &mut File, path: &Path) -> Result<(Option<Run>, Vec<Record>, u64), RecordError> {
    let wrong = |cause| RecordError::File { path: path.to_owned(), cause };
    let mut reader = BufReader::new(file);
    let (mut run, mut records, mut whole): (Option<Run>, _, _) = (None, BTreeMap::new(), 0);
    for line in 1.. {
        let mut text = Vec::new();
        let length = reader.by_ref().take(MOST).read_until(b'\n', &mut text).map_err(wrong)?;
        let Some(text) = text.strip_suffix(b"\n") else { break };
        whole += length as u64;
        let Some(known) = &run else {
            run = Some(serde_json::from_slice(text).map_err(|_| RecordError::NoResults(path.to_owned()))?);
            continue;
        };
        match serde_json::from_slice::<Record>(text) {
            Ok(record) => drop(records.insert(record.id.clone(), record)),
            // Files of shards, one behind the other.
            Err(_) if serde_json::from_slice::<Run>(text).is_ok_and(|run| run == *known) => {}
            Err(_) => return Err(RecordError::Line { path: path.to_owned(), line }),
        }
    }
    let length = reader.get_ref().metadata().map_err(wrong)?.len();
    if length.saturating_sub(whole) >= MOST || (run.is_none() && !begins_like_ours(reader.get_mut(), length)) {
        return Err(RecordError::NoResults(path.to_owned()));
    }
    Ok((run, records.into_values().collect(), whole))
}

/// Whether a file without a whole line is empty, or the beginning of a first line of ours.
fn begins_like_ours(file: &mut File, length: u64) -> bool {
    const OURS: &[u8] = b"{\"suite\":";
    let mut start = Vec::new();
    let read = file.seek(io::SeekFrom::Start(0)).and_then(|_| file.take(OURS.len() as u64).read_to_end(&mut start));
    length == 0 || (read.is_ok() && OURS.starts_with(&start))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::eval) fn run(dispatch: &str) -> Run {
        let text = str::to_owned;
        Run {
            suite: text("s"),
            model: text("m"),
            dispatch: text(dispatch),
            questions: 3,
            digest: text("d"),
            settings: text("s"),
        }
    }

    pub(in crate::eval) fn record(id: &str, score: f64) -> Record {
        Record {
            id: id.to_owned(),
            gold: Gold::Letter { letter: Some('A') },
            prediction: "A".to_owned(),
            score,
            answer: "A\n\"quoted\"".to_owned(),
            reply: "<answer>A</answer>".to_owned(),
            video: format!("{id}.mp4"),
            error: None,
            calls: 2,
            watched: 1,
            turns: 2,
            main_tokens: (100, 20),
            sub_tokens: (50, 10),
            cached_tokens: 60,
            total_ms: 1500.0,
            first_answer_ms: Some(900.0),
            groups: vec![("duration".to_owned(), "long".to_owned())],
        }
    }

    #[test]
    fn a_run_that_was_broken_off_goes_on_where_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.jsonl");
        let (mut store, known) = Store::open(&path, &run("parallel")).expect("opens");
        assert!(known.is_empty());
        store.add(&record("1", 1.0)).expect("written");
        store.add(&Record { error: Some("late".to_owned()), ..record("2", 0.0) }).expect("written");
        assert!(matches!(Store::open(&path, &run("parallel")), Err(RecordError::File { .. })), "one at a time");
        drop(store);
        // Broken off in the middle of a line.
        let mut text = std::fs::read(&path).expect("reads");
        let half = text.len() + 20;
        text.extend(serde_json::to_vec(&record("3", 1.0)).expect("JSON"));
        text.truncate(half);
        std::fs::write(&path, &text).expect("written");
        let (mut store, known) = Store::open(&path, &run("parallel")).expect("opens");
        assert_eq!(known.iter().map(|record| record.id.as_str()).collect::<Vec<_>>(), ["1", "2"]);
        // What failed is asked again: its last result counts.
        store.add(&record("2", 1.0)).expect("written");
        store.add(&record("3", 0.0)).expect("written");
        drop(store);
        let (found, records) = load(&path).expect("reads");
        assert_eq!(found, run("parallel"));
        assert_eq!(records, [record("1", 1.0), record("2", 1.0), record("3", 0.0)]);
    }

    #[test]
    fn results_of_another_run_and_strange_files_are_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.jsonl");
        drop(Store::open(&path, &run("parallel")).expect("opens"));
        assert!(matches!(Store::open(&path, &run("none")), Err(RecordError::OtherRun { .. })));
        for text in ["Dear diary,\n", "Dear diary"] {
            std::fs::write(&path, text).expect("written");
            assert!(matches!(Store::open(&path, &run("none")), Err(RecordError::NoResults(_))), "{text}");
            assert_eq!(std::fs::read_to_string(&path).expect("reads"), text);
        }
        // A first line that was cut off is ours.
        for text in ["", "{\"suite\":\"s\",\"mo"] {
            std::fs::write(&path, text).expect("written");
            assert!(Store::open(&path, &run("none")).is_ok(), "{text}");
        }
        // A line in the middle that can't be read takes none behind it away.
        let (mut store, _) = Store::open(&path, &run("none")).expect("opens");
        store.add(&record("1", 1.0)).expect("written");
        drop(store);
        let good = std::fs::read_to_string(&path).expect("reads");
        std::fs::write(&path, format!("{good}{{\"id\": 7}}\n{good}")).expect("written");
        assert!(matches!(Store::open(&path, &run("none")), Err(RecordError::Line { line: 3, .. })));
        assert!(load(&path).is_err());
        // Files of shards, one behind the other.
        std::fs::write(&path, good.repeat(2)).expect("written");
        assert_eq!(load(&path).expect("reads").1, [record("1", 1.0)]);
    }
}
