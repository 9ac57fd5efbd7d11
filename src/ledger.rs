//! Results on disk, a line each, written as soon as they are there, so that a run that is broken off goes on where it was.
//!
//! The first line says what was run; results of different runs are never mixed. This file knows nothing of what runs or
//! results are.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest line that is read back.
const MOST: u64 = 16 << 20;

/// A result.
pub trait Entry: Serialize + DeserializeOwned {
    /// What it is the result of. Of several with one id the last counts.
    fn id(&self) -> &str;
}

/// What was run. As JSON an object.
pub trait Header: Serialize + DeserializeOwned + PartialEq + Display {}

impl<T: Serialize + DeserializeOwned + PartialEq + Display> Header for T {}

/// A file of results that is being written.
#[derive(Debug)]
pub struct Ledger<H, E> {
    file: File,
    path: PathBuf,
    of: PhantomData<fn(H, E)>,
}

/// What can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
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

impl<H: Header, E: Entry> Ledger<H, E> {
    /// Opens a file of results for more of them, and gives those it has, in the order of their ids. What was being written when a
    /// run was broken off is cut away. Only one process may have it open.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn open(path: &Path, run: &H) -> Result<(Self, Vec<E>), LedgerError> {
        let wrong = |cause| LedgerError::File { path: path.to_owned(), cause };
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(wrong)?;
        file.try_lock().map_err(|_| wrong(io::Error::other("another process is writing to it")))?;
        let begins = serde_json::to_vec(run).map_err(|error| wrong(error.into()))?;
        let (found, entries, whole) = read::<H, E>(&mut file, path, &begins)?;
        match found {
            Some(found) if found != *run => {
                let (found, wanted) = (found.to_string(), run.to_string());
                return Err(LedgerError::OtherRun { path: path.to_owned(), found, wanted });
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
        Ok((Self { file, path: path.to_owned(), of: PhantomData }, entries))
    }

    /// Adds a result. The system has it when this returns: it outlives this process.
    ///
    /// # Errors
    /// [`LedgerError::File`].
    pub fn add(&mut self, entry: &E) -> Result<(), LedgerError> {
        line(&mut self.file, entry).map_err(|cause| LedgerError::File { path: self.path.clone(), cause })
    }

    /// Reads results: the last of each id, in the order of their ids.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn load(path: &Path) -> Result<(H, Vec<E>), LedgerError> {
        let mut file = File::open(path).map_err(|cause| LedgerError::File { path: path.to_owned(), cause })?;
        let (run, entries, _) = read(&mut file, path, b"")?;
        Ok((run.ok_or_else(|| LedgerError::NoResults(path.to_owned()))?, entries))
    }
}

fn line<T: Serialize>(file: &mut File, value: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    file.write_all(&line)
}

/// What a file holds.
type Held<H, E> = (Option<H>, Vec<E>, u64);

/// What a file holds, and how many bytes of it are whole lines. Only a last line that was cut off is left out.
fn read<H: Header, E: Entry>(file: &mut File, path: &Path, begins: &[u8]) -> Result<Held<H, E>, LedgerError> {
    let wrong = |cause| LedgerError::File { path: path.to_owned(), cause };
    let mut reader = BufReader::new(file);
    let (mut run, mut entries, mut whole): (Option<H>, _, _) = (None, BTreeMap::new(), 0);
    for line in 1.. {
        let mut text = Vec::new();
        let length = reader.by_ref().take(MOST).read_until(b'\n', &mut text).map_err(wrong)?;
        let Some(text) = text.strip_suffix(b"\n") else { break };
        whole += length as u64;
        let Some(known) = &run else {
            run = Some(serde_json::from_slice(text).map_err(|_| LedgerError::NoResults(path.to_owned()))?);
            continue;
        };
        match serde_json::from_slice::<E>(text) {
            Ok(entry) => drop(entries.insert(entry.id().to_owned(), entry)),
            // Files of shards, one behind the other.
            Err(_) if serde_json::from_slice::<H>(text).is_ok_and(|run| run == *known) => {}
            Err(_) => return Err(LedgerError::Line { path: path.to_owned(), line }),
        }
    }
    let length = reader.get_ref().metadata().map_err(wrong)?.len();
    if length.saturating_sub(whole) >= MOST || (run.is_none() && !begins_like(reader.get_mut(), length, begins)) {
        return Err(LedgerError::NoResults(path.to_owned()));
    }
    Ok((run, entries.into_values().collect(), whole))
}

/// Whether a file without a whole line is empty, or the beginning of our first line and nothing else.
fn begins_like(file: &mut File, length: u64, ours: &[u8]) -> bool {
    let mut text = Vec::new();
    let read = file.seek(io::SeekFrom::Start(0)).and_then(|_| file.take(MOST).read_to_end(&mut text));
    length == 0 || (read.is_ok() && text.len() as u64 == length && ours.starts_with(&text))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Run {
        suite: String,
    }

    impl Display for Run {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(&self.suite)
        }
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Found {
        id: String,
        text: String,
    }

    impl Entry for Found {
        fn id(&self) -> &str {
            &self.id
        }
    }

    type Store = Ledger<Run, Found>;

    fn run(suite: &str) -> Run {
        Run { suite: suite.to_owned() }
    }

    fn found(id: &str, text: &str) -> Found {
        Found { id: id.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn a_run_that_was_broken_off_goes_on_where_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.jsonl");
        let (mut store, known) = Store::open(&path, &run("a")).expect("opens");
        assert!(known.is_empty());
        store.add(&found("1", "A\n\"quoted\"")).expect("written");
        store.add(&found("2", "late")).expect("written");
        assert!(matches!(Store::open(&path, &run("a")), Err(LedgerError::File { .. })), "one at a time");
        drop(store);
        // Broken off in the middle of a line.
        let mut text = std::fs::read(&path).expect("reads");
        let half = text.len() + 15;
        text.extend(serde_json::to_vec(&found("3", "a long text")).expect("JSON"));
        text.truncate(half);
        std::fs::write(&path, &text).expect("written");
        let (mut store, known) = Store::open(&path, &run("a")).expect("opens");
        assert_eq!(known.iter().map(|entry| entry.id.as_str()).collect::<Vec<_>>(), ["1", "2"]);
        // What failed is asked again: its last result counts.
        store.add(&found("2", "well")).expect("written");
        store.add(&found("3", "well")).expect("written");
        drop(store);
        let (header, entries) = Store::load(&path).expect("reads");
        assert_eq!(header, run("a"));
        assert_eq!(entries, [found("1", "A\n\"quoted\""), found("2", "well"), found("3", "well")]);
    }

    #[test]
    fn results_of_another_run_and_strange_files_are_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run.jsonl");
        drop(Store::open(&path, &run("a")).expect("opens"));
        assert!(matches!(Store::open(&path, &run("b")), Err(LedgerError::OtherRun { .. })));
        for text in ["Dear diary,\n", "Dear diary", "{\"suite\":\"bc"] {
            std::fs::write(&path, text).expect("written");
            assert!(matches!(Store::open(&path, &run("b")), Err(LedgerError::NoResults(_))), "{text}");
            assert_eq!(std::fs::read_to_string(&path).expect("reads"), text);
        }
        // A first line that was cut off is ours.
        for text in ["", "{\"suite\":\"b"] {
            std::fs::write(&path, text).expect("written");
            assert!(Store::open(&path, &run("b")).is_ok(), "{text}");
        }
        // A line in the middle that can't be read takes none behind it away.
        let (mut store, _) = Store::open(&path, &run("b")).expect("opens");
        store.add(&found("1", "well")).expect("written");
        drop(store);
        let good = std::fs::read_to_string(&path).expect("reads");
        std::fs::write(&path, format!("{good}{{\"id\": 7}}\n{good}")).expect("written");
        assert!(matches!(Store::open(&path, &run("b")), Err(LedgerError::Line { line: 3, .. })));
        assert!(Store::load(&path).is_err());
        // Files of shards, one behind the other.
        std::fs::write(&path, good.repeat(2)).expect("written");
        assert_eq!(Store::load(&path).expect("reads").1, [found("1", "well")]);
    }
}
