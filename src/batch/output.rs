//! What is kept of a run: the journal, a line a segment, and the file of results, a line a task, which is made from it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::event::Event;
use super::segment::{Cut, merged};
use super::task::{FileState, Task};
use crate::ledger::{Entry, Ledger, LedgerError};
use crate::types::{MediaTime, TimeSpan};

/// What a run is. Tasks may be added and changed, and videos cut otherwise: segments have names of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// The model card's name.
    pub batch_of: String,
    /// SHA-256 of what else events depend on: the card, the checkpoint, the engine, the agent's settings, where events are
    /// taken from.
    pub settings: String,
}

impl std::fmt::Display for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "batch of {}, settings {}", self.batch_of, self.settings.get(..8).unwrap_or(&self.settings))
    }
}

/// Tokens of all agents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Read, whether they were in a cache or not.
    pub prompt: u64,
    /// Written.
    pub completion: u64,
}

/// What came of one segment, or of opening a video.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The task's key and the segment's number.
    pub id: String,
    /// The task, for people.
    pub task: String,
    /// Segments of the video. 0: it could not be opened.
    pub of: usize,
    /// The segment's number, from 0.
    pub number: usize,
    /// The video's file when it was opened. `None` of what is on the web.
    pub file: Option<FileState>,
    /// The whole video's length.
    pub duration: MediaTime,
    /// Where the segment begins.
    pub start: MediaTime,
    /// Where it ends.
    pub end: MediaTime,
    /// In the whole video's times.
    pub events: Vec<Event>,
    /// Events that were told and are none: of other labels, or outside of the segment.
    pub dropped: usize,
    /// Windows that were watched well.
    pub windows: u64,
    /// Its tokens.
    pub tokens: Tokens,
    /// Why there are no events of it, or not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A segment's number, of how many, where, and the whole video's length.
pub(super) type Place = (usize, usize, TimeSpan, MediaTime);

impl Found {
    fn place(&self) -> Place {
        (self.number, self.of, TimeSpan { start: self.start, end: self.end }, self.duration)
    }
}

impl Entry for Found {
    fn id(&self) -> &str {
        &self.id
    }
}

/// A stretch that nothing is known of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Missing {
    /// From here on, in seconds.
    pub start: MediaTime,
    /// Until here.
    pub end: MediaTime,
    /// Why.
    pub error: String,
}

/// The result of a task: a line of the results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// The task's.
    pub id: String,
    /// The task's.
    pub video: String,
    /// The video's length in seconds. `None` where it could not be opened.
    pub duration: Option<MediaTime>,
    /// In the order of time.
    pub events: Vec<Event>,
    /// Stretches that failed. Empty: all of it was looked at.
    pub failed: Vec<Missing>,
    /// Events that the model told and that are none: of other labels, or outside of what it was shown.
    pub dropped: usize,
    /// Segments that the video was cut into.
    pub segments: usize,
    /// Windows that were watched well.
    pub windows: u64,
    /// Of all segments.
    pub tokens: Tokens,
    /// The task's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<serde_json::Value>,
}

/// What is known of a task's video.
#[derive(Debug, Default)]
struct Known {
    of: usize,
    segments: BTreeMap<usize, Found>,
    /// The file is another one by now.
    stale: bool,
    /// Why it could not be opened, the last time.
    closed: Option<Found>,
}

/// All that was found, on disk and at hand, and the file of results.
#[derive(Debug)]
pub struct Journal {
    ledger: Ledger<Batch, Found>,
    known: HashMap<String, Known>,
    /// Of each task of this run.
    keys: HashMap<String, String>,
    cut: Cut,
    results: PathBuf,
    open: Option<File>,
}

impl Journal {
    /// Opens the journal that belongs to a file of results, the same name with `.journal` behind it, for these tasks. A local
    /// video that is not there any more keeps its results; one that was changed is looked at anew.
    ///
    /// # Errors
    /// [`LedgerError`]; also when the file of results is there and the journal is not: it is then somebody else's.
    pub fn open(results: &Path, batch: &Batch, cut: Cut, tasks: &[Task]) -> Result<Self, LedgerError> {
        let mut name = results.as_os_str().to_owned();
        name.push(".journal");
        let path = PathBuf::from(name);
        if results.exists() && !path.exists() {
            let cause = io::Error::other("is there without its journal: choose another --out");
            return Err(LedgerError::File { path: results.to_owned(), cause });
        }
        let (ledger, found) = Ledger::open(&path, batch)?;
        let key = |task: &Task| task.digest(&format!("{:?} {:?}", cut.segment, cut.overlap));
        let keys = tasks.iter().map(|task| (task.id.clone(), key(task))).collect();
        let (known, results) = (HashMap::new(), results.to_owned());
        let mut journal = Self { ledger, known, keys, cut, results, open: None };
        for found in found {
            journal.take(found);
        }
        for task in tasks {
            let known = journal.known.get_mut(journal.keys.get(&task.id).map_or("", String::as_str));
            if let (Some(known), Some(now)) = (known, task.file()) {
                known.stale = known.segments.values().any(|found| found.file != Some(now));
            }
        }
        Ok(journal)
    }

    /// Names a task's segments: by all they depend on but the video itself. Empty for tasks of other runs.
    pub(super) fn key(&self, task: &Task) -> &str {
        self.keys.get(&task.id).map_or("", String::as_str)
    }

    fn of(&self, task: &Task) -> Option<&Known> {
        self.known.get(self.key(task))
    }

    /// Videos of which something is known and which no task asks about: of tasks that are gone, or were changed.
    #[must_use]
    pub fn strangers(&self) -> usize {
        let asked: HashSet<&String> = self.keys.values().collect();
        self.known.keys().filter(|key| !asked.contains(key)).count()
    }

    /// How videos are cut.
    #[must_use]
    pub(super) const fn cut(&self) -> Cut {
        self.cut
    }

    /// Whether all of a task is known, without a failure.
    #[must_use]
    pub fn is_done(&self, task: &Task) -> bool {
        self.of(task).is_some_and(Known::is_done)
    }

    /// What is known of a task's segments, without a failure.
    pub(super) fn known(&self, task: &Task) -> Vec<Place> {
        let known = self.of(task).filter(|known| !known.stale).into_iter().flat_map(|known| known.segments.values());
        known.filter(|found| found.error.is_none()).map(Found::place).collect()
    }

    /// Keeps what was found.
    ///
    /// # Errors
    /// [`LedgerError::File`].
    pub(super) fn add(&mut self, found: Found) -> Result<(), LedgerError> {
        self.ledger.add(&found)?;
        self.take(found);
        Ok(())
    }

    fn take(&mut self, found: Found) {
        let key = found.id.split('/').next().unwrap_or_default().to_owned();
        let known = self.known.entry(key).or_default();
        if found.of == 0 {
            known.closed = Some(found);
            return;
        }
        // Of another video, or one that was cut otherwise.
        let other = |known: &Found| (known.of, known.file, known.duration) != (found.of, found.file, found.duration);
        if known.segments.values().any(other) {
            known.segments.clear();
        }
        (known.of, known.stale, known.closed) = (found.of, false, None);
        known.segments.insert(found.number, found);
    }

    /// A task's result, once every segment of it was tried, or its video could not be opened.
    #[must_use]
    pub fn result(&self, task: &Task) -> Option<Done> {
        let known = self.of(task)?;
        let whole = known.of > 0 && known.segments.len() == known.of;
        let closed = known.closed.as_ref().filter(|_| known.of == 0);
        if !whole && closed.is_none() {
            return None;
        }
        let found = || known.segments.values().chain(closed);
        let span = |found: &Found| TimeSpan { start: found.start, end: found.end };
        let failed = found()
            .filter_map(|found| Some(Missing { start: found.start, end: found.end, error: found.error.clone()? }));
        Some(Done {
            id: task.id.clone(),
            video: task.video.clone(),
            duration: known.segments.values().next().map(|found| found.duration),
            events: merged(found().map(|found| (span(found), found.events.clone())).collect()),
            failed: failed.collect(),
            dropped: found().map(|found| found.dropped).sum(),
            segments: known.of,
            windows: found().map(|found| found.windows).sum(),
            tokens: Tokens {
                prompt: found().map(|found| found.tokens.prompt).sum(),
                completion: found().map(|found| found.tokens.completion).sum(),
            },
            metadata: task.metadata.clone(),
        })
    }

    /// Writes the results of these tasks anew, those that there are, in the tasks' order. A reader sees the old file or the new
    /// one, never half of one.
    ///
    /// # Errors
    /// [`LedgerError::File`].
    pub fn write(&mut self, tasks: &[Task]) -> Result<(), LedgerError> {
        let mut name = self.results.as_os_str().to_owned();
        name.push(".new");
        let path = PathBuf::from(name);
        let write = || -> io::Result<File> {
            let mut file = BufWriter::new(File::create(&path)?);
            for done in tasks.iter().filter_map(|task| self.result(task)) {
                serde_json::to_writer(&mut file, &done)?;
                file.write_all(b"\n")?;
            }
            file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
            std::fs::rename(&path, &self.results)?;
            OpenOptions::new().append(true).open(&self.results)
        };
        self.open = Some(write().map_err(|cause| LedgerError::File { path: self.results.clone(), cause })?);
        Ok(())
    }

    /// Adds a task's result to those that were written, as soon as there is one.
    ///
    /// # Errors
    /// [`LedgerError::File`].
    pub(super) fn tell(&mut self, task: &Task) -> Result<bool, LedgerError> {
        let Some(done) = self.result(task) else { return Ok(false) };
        let Some(file) = &mut self.open else { return Ok(true) };
        let write = serde_json::to_vec(&done).map_err(io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            file.write_all(&line)
        });
        write.map_err(|cause| LedgerError::File { path: self.results.clone(), cause })?;
        Ok(true)
    }
}

impl Known {
    fn is_done(&self) -> bool {
        !self.stale
            && self.of > 0
            && self.segments.len() == self.of
            && self.segments.values().all(|found| found.error.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> MediaTime {
        MediaTime::from_seconds(seconds).expect("a time")
    }

    fn batch(settings: &str) -> Batch {
        Batch { batch_of: "m".to_owned(), settings: settings.to_owned() }
    }

    const CUT: Cut = Cut { segment: Some(MediaTime::from_micros(300_000_000)), overlap: MediaTime::ZERO };

    fn task(id: &str) -> Task {
        let line = serde_json::json!({"id": id, "video": "v.mp4", "metadata": 7}).to_string();
        super::super::task::read_tasks(line.as_bytes()).expect("a task").remove(0)
    }

    fn found(key: &str, (number, of): (usize, usize), error: Option<&str>) -> Found {
        let start = 300.0 * number as f64;
        let event = Event {
            start: at(start + 1.0),
            end: at(start + 2.0),
            label: "goal".to_owned(),
            description: String::new(),
        };
        Found {
            id: if of == 0 { format!("{key}/open") } else { format!("{key}/{number}") },
            task: "t".to_owned(),
            of,
            number,
            file: None,
            duration: at(600.0),
            start: at(start),
            end: at(start + 300.0),
            events: if error.is_some() { Vec::new() } else { vec![event] },
            dropped: 1,
            windows: 2,
            tokens: Tokens { prompt: 10, completion: 3 },
            error: error.map(str::to_owned),
        }
    }

    #[test]
    fn results_are_the_same_however_often_a_run_was_broken_off() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("results.jsonl");
        let tasks = [task("b"), task("a")];
        let text = || std::fs::read_to_string(&path).expect("reads");
        let open = || Journal::open(&path, &batch("s"), CUT, &tasks).expect("opens");

        let mut journal = open();
        let (b, a) = (journal.key(&tasks[0]).to_owned(), journal.key(&tasks[1]).to_owned());
        journal.write(&tasks).expect("written");
        assert_eq!(text(), "");
        journal.add(found(&a, (1, 2), None)).expect("written");
        assert!(!journal.tell(&tasks[1]).expect("written"), "half of it");
        journal.add(found(&b, (0, 0), Some("no such file"))).expect("written");
        assert!(journal.tell(&tasks[0]).expect("written"));
        assert!(text().starts_with(
            "{\"id\":\"b\",\"video\":\"v.mp4\",\"duration\":null,\"events\":[],\"failed\":[{\"start\":0.0"
        ));
        drop(journal);

        // What is half known is not told; what failed is tried again.
        let mut journal = open();
        let numbers = |journal: &Journal| journal.known(&tasks[1]).iter().map(|place| place.0).collect::<Vec<_>>();
        assert_eq!((numbers(&journal), journal.is_done(&tasks[0])), (vec![1], false));
        journal.write(&tasks).expect("written");
        assert_eq!(text().lines().count(), 1);
        journal.add(found(&a, (0, 2), None)).expect("written");
        assert!(journal.tell(&tasks[1]).expect("written"));
        for number in 0..2 {
            journal.add(found(&b, (number, 2), None)).expect("written");
        }
        assert!(journal.is_done(&tasks[0]) && journal.is_done(&tasks[1]));
        journal.write(&tasks).expect("written");
        let whole = text();
        drop(journal);

        let mut journal = open();
        assert!(journal.is_done(&tasks[0]) && journal.is_done(&tasks[1]));
        journal.write(&tasks).expect("written");
        assert_eq!(text(), whole);
        let lines: Vec<Done> = whole.lines().map(|line| serde_json::from_str(line).expect("a result")).collect();
        assert_eq!(lines.iter().map(|done| done.id.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(
            (lines[0].events.len(), lines[0].windows, lines[0].tokens),
            (2, 4, Tokens { prompt: 20, completion: 6 })
        );
        assert!(lines[0].failed.is_empty() && lines[0].metadata.is_some() && lines[0].dropped == 2);

        drop(journal);
        // A task that changed has no result, and what is known of others is told.
        let changed = [Task { question: "Else?".to_owned(), ..tasks[0].clone() }];
        let journal = Journal::open(&path, &batch("s"), CUT, &changed).expect("opens");
        assert_eq!((journal.result(&changed[0]), journal.strangers()), (None, 2));
        drop(journal);
        let cut = Cut { segment: None, ..CUT };
        assert!(Journal::open(&path, &batch("s"), cut, &tasks).expect("opens").result(&tasks[0]).is_none());
        assert!(matches!(Journal::open(&path, &batch("t"), CUT, &tasks), Err(LedgerError::OtherRun { .. })));
    }

    #[test]
    fn segments_of_a_video_that_has_changed_are_not_mixed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("results.jsonl");
        let task = task("a");
        let mut journal = Journal::open(&path, &batch("s"), CUT, std::slice::from_ref(&task)).expect("opens");
        let key = journal.key(&task).to_owned();
        journal.add(found(&key, (0, 3), None)).expect("written");
        journal.add(found(&key, (2, 3), None)).expect("written");
        journal.add(found(&key, (1, 2), None)).expect("written");
        assert_eq!(journal.known(&task).iter().map(|place| (place.0, place.1)).collect::<Vec<_>>(), [(1, 2)]);
        journal.add(Found { duration: at(601.0), ..found(&key, (0, 2), None) }).expect("written");
        assert!(journal.result(&task).is_none());
    }

    #[test]
    fn a_segment_that_failed_is_told_and_no_file_of_others_is_written_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("results.jsonl");
        let task = task("a");
        let mut journal = Journal::open(&path, &batch("s"), CUT, std::slice::from_ref(&task)).expect("opens");
        let key = journal.key(&task).to_owned();
        journal.add(found(&key, (0, 2), Some("late"))).expect("written");
        journal.add(found(&key, (1, 2), None)).expect("written");
        // That it could not be opened later doesn't take away what is known.
        journal.add(found(&key, (0, 0), Some("gone"))).expect("written");
        let done = journal.result(&task).expect("tried");
        assert_eq!(done.failed, [Missing { start: at(0.0), end: at(300.0), error: "late".to_owned() }]);
        assert_eq!((done.events.len(), journal.is_done(&task), journal.known(&task).len()), (1, false, 1));

        let other = folder.path().join("tasks.jsonl");
        std::fs::write(&other, "{}\n").expect("written");
        let refused = Journal::open(&other, &batch("s"), CUT, &[]).map(|_| ()).map_err(|error| error.to_string());
        assert!(refused.is_err_and(|problem| problem.ends_with("is there without its journal: choose another --out")));
        assert_eq!(std::fs::read_to_string(&other).expect("reads"), "{}\n");
    }
}
