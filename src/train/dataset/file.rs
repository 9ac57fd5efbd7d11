//! A data set's file: rows out of it one at a time, rows into it, in the form that its name says.

use std::fs::Permissions;
use std::io::{self, BufWriter};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::NamedTempFile;

use super::error::{DatasetError, Wrong};
use super::lines::Lines;
use super::row::{Layout, LeftOut, RlRow, Row, SftRow};
use super::table::{Table, TableWriter};

/// Most bytes of a cell of Parquet, and of a line of JSON. A conversation of the paper's has some ten thousand.
pub(super) const MOST_BYTES: usize = 16 << 20;

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `.parquet`
    Parquet,
    /// `.jsonl` or `.ndjson`: a JSON object a line.
    Lines,
}

impl Format {
    /// By the file's name.
    ///
    /// # Errors
    /// [`DatasetError::File`] when it is neither.
    pub fn of(path: &Path) -> Result<Self, DatasetError> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("parquet") => Ok(Self::Parquet),
            Some("jsonl" | "ndjson") => Ok(Self::Lines),
            _ => Err(DatasetError::file(path, "is neither .parquet nor .jsonl by its name")),
        }
    }
}

/// Why there is no row.
pub(super) enum Trouble {
    /// This one can't be read.
    Row(Wrong),
    /// Nor can any after it.
    File(String),
}

enum Source {
    Table(Box<Table>),
    Lines(Lines),
}

/// Rows of a file, one at a time. After a [`DatasetError::Row`] it goes on, after a [`DatasetError::File`] it has ended.
pub struct Reader {
    path: PathBuf,
    source: Source,
    layout: Layout,
    row: u64,
    left_out: LeftOut,
    ended: bool,
}

impl Reader {
    /// Opens a file and sees which rows it holds.
    ///
    /// # Errors
    /// [`DatasetError::File`].
    pub fn open(path: &Path) -> Result<Self, DatasetError> {
        let wrong = |problem: String| DatasetError::file(path, problem);
        let mut left_out = LeftOut::new();
        let (source, layout) = match Format::of(path)? {
            Format::Parquet => {
                let (table, layout) = Table::open(path, &mut left_out).map_err(wrong)?;
                (Source::Table(Box::new(table)), layout)
            }
            Format::Lines => {
                let (lines, layout) = Lines::open(path).map_err(wrong)?;
                (Source::Lines(lines), layout)
            }
        };
        Ok(Self { path: path.to_owned(), source, layout, row: 0, left_out, ended: false })
    }

    /// Which rows it holds.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// The number of the last row, from 1: of lines of JSON its line.
    #[must_use]
    pub const fn row(&self) -> u64 {
        self.row
    }

    /// Columns and fields that rows have no place for, as far as was read.
    pub fn left_out(&self) -> impl Iterator<Item = &str> {
        self.left_out.iter().map(String::as_str)
    }

    fn value(&mut self) -> Option<Result<Value, Trouble>> {
        match &mut self.source {
            Source::Table(table) => {
                self.row += 1;
                table.next()
            }
            Source::Lines(lines) => {
                let value = lines.next();
                self.row = lines.line();
                value
            }
        }
    }
}

impl Iterator for Reader {
    type Item = Result<Row, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let read = match self.value() {
            None => {
                self.ended = true;
                return None;
            }
            Some(Ok(value)) => Row::read(self.layout, value, &mut self.left_out),
            Some(Err(Trouble::Row(wrong))) => Err(wrong),
            Some(Err(Trouble::File(problem))) => {
                self.ended = true;
                return Some(Err(DatasetError::file(&self.path, format!("row {}: {problem}", self.row))));
            }
        };
        Some(read.map_err(|wrong| DatasetError::row(&self.path, self.row, wrong)))
    }
}

/// All conversations of a file.
///
/// # Errors
/// [`DatasetError`]: the first.
pub fn read_sft(path: &Path) -> Result<Vec<SftRow>, DatasetError> {
    let all = Reader::open(path)?.map(|row| match row? {
        Row::Sft(row) => Ok(row),
        Row::Rl(_) => Err(DatasetError::file(path, "holds prompts, not conversations")),
    });
    all.collect()
}

/// All prompts of a file.
///
/// # Errors
/// [`DatasetError`]: the first.
pub fn read_rl(path: &Path) -> Result<Vec<RlRow>, DatasetError> {
    let all = Reader::open(path)?.map(|row| match row? {
        Row::Rl(row) => Ok(row),
        Row::Sft(_) => Err(DatasetError::file(path, "holds conversations, not prompts")),
    });
    all.collect()
}

enum Sink {
    Table(Box<TableWriter<NamedTempFile>>),
    Lines(BufWriter<NamedTempFile>),
}

/// A file that is being written. Until [`Writer::finish`] what was there before stays; dropped before, nothing comes of it.
pub struct Writer {
    path: PathBuf,
    layout: Layout,
    sink: Sink,
    rows: u64,
}

impl Writer {
    /// Begins a file of rows of one layout, in the form that its name says.
    ///
    /// # Errors
    /// [`DatasetError::File`].
    pub fn create(path: &Path, layout: Layout) -> Result<Self, DatasetError> {
        let format = Format::of(path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // As a file that is made in the ordinary way: what the process' mask leaves of it.
        let file = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(|error| DatasetError::file(path, error))?;
        let sink = match format {
            Format::Parquet => {
                let table = TableWriter::begin(file, layout).map_err(|error| DatasetError::file(path, error))?;
                Sink::Table(Box::new(table))
            }
            Format::Lines => Sink::Lines(BufWriter::new(file)),
        };
        Ok(Self { path: path.to_owned(), layout, sink, rows: 0 })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// [`DatasetError`] for a row of the other layout, one that could not be read back, and a file that can't be written.
    pub fn add(&mut self, row: &Row) -> Result<(), DatasetError> {
        self.rows += 1;
        let added = if row.layout() != self.layout {
            Err(Trouble::Row(("row", "is of the other layout".to_owned())))
        } else {
            match &mut self.sink {
                Sink::Table(table) => table.add(row),
                Sink::Lines(file) => line(file, row),
            }
        };
        added.map_err(|trouble| match trouble {
            Trouble::Row(wrong) => DatasetError::row(&self.path, self.rows, wrong),
            Trouble::File(problem) => DatasetError::file(&self.path, problem),
        })
    }

    /// Puts the file in its place and gives the number of its rows.
    ///
    /// # Errors
    /// [`DatasetError::File`].
    pub fn finish(self) -> Result<u64, DatasetError> {
        let wrong = |problem: String| DatasetError::file(&self.path, problem);
        let file = match self.sink {
            Sink::Table(table) => table.end().map_err(|error| wrong(error.to_string()))?,
            Sink::Lines(file) => file.into_inner().map_err(|error| wrong(error.to_string()))?,
        };
        file.persist(&self.path).map_err(|error| wrong(error.error.to_string()))?;
        Ok(self.rows)
    }
}

fn line(file: &mut impl io::Write, row: &Row) -> Result<(), Trouble> {
    let text = row.to_value().to_string();
    if text.len() >= MOST_BYTES {
        return Err(Trouble::Row(("row", format!("is longer than {MOST_BYTES} bytes"))));
    }
    writeln!(file, "{text}").map_err(|error| Trouble::File(error.to_string()))
}

#[cfg(test)]
mod tests;
