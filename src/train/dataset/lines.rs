//! Rows as lines of JSON: an object of a row's columns a line, empty lines none.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use serde_json::Value;

use super::file::{MOST_BYTES, Trouble};
use super::row::Layout;

/// A file of lines.
pub(super) struct Lines {
    file: BufReader<File>,
    line: u64,
    /// The first row, which was read to see the layout.
    first: Option<(u64, Result<Value, Trouble>)>,
}

impl Lines {
    /// Opens a file and sees the layout of its first row.
    pub(super) fn open(path: &Path) -> Result<(Self, Layout), String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        let mut lines = Self { file: BufReader::new(file), line: 0, first: None };
        let first = match lines.read() {
            None => return Err("holds no rows".to_owned()),
            Some(Err(Trouble::File(problem))) => return Err(problem),
            Some(Err(Trouble::Row((_, problem)))) => return Err(format!("row {}: {problem}", lines.line)),
            Some(Ok(first)) => first,
        };
        let names: Vec<&str> =
            first.as_object().into_iter().flat_map(|object| object.keys().map(String::as_str)).collect();
        let layout = Layout::of(&names).ok_or_else(|| {
            format!("row {} has neither messages nor all of prompt, videos and extra_info", lines.line)
        })?;
        lines.first = Some((lines.line, Ok(first)));
        lines.line = 0;
        Ok((lines, layout))
    }

    /// The number of the last row's line, from 1.
    pub(super) const fn line(&self) -> u64 {
        self.line
    }

    /// The next row.
    pub(super) fn next(&mut self) -> Option<Result<Value, Trouble>> {
        match self.first.take() {
            Some((line, first)) => {
                self.line = line;
                Some(first)
            }
            None => self.read(),
        }
    }

    fn read(&mut self) -> Option<Result<Value, Trouble>> {
        loop {
            self.line += 1;
            let mut text = Vec::new();
            match self.file.by_ref().take(MOST_BYTES as u64).read_until(b'\n', &mut text) {
                Ok(0) => return None,
                Ok(_) if text.len() == MOST_BYTES => {
                    return Some(Err(Trouble::File(format!("longer than {MOST_BYTES} bytes"))));
                }
                Ok(_) if text.trim_ascii().is_empty() => {}
                Ok(_) => {
                    let value = serde_json::from_slice(&text);
                    return Some(value.map_err(|error| Trouble::Row(("line", error.to_string()))));
                }
                Err(error) => return Some(Err(Trouble::File(error.to_string()))),
            }
        }
    }
}
