//! Rows of Parquet and JSON, by name of column.

use std::path::Path;

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::SuiteError;

/// Largest JSON file. That of the largest benchmark has a few megabytes.
const MOST: u64 = 512 << 20;

/// The rows of a table: Parquet, a JSON array, or a JSON object a line, by the file's name.
pub(super) fn rows(path: &Path) -> Result<Vec<Value>, SuiteError> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("parquet") => parquet(path),
        Some("jsonl" | "ndjson") => lines(path),
        _ => match serde_json::from_str(&text(path)?) {
            Ok(Value::Array(rows)) => Ok(rows),
            Ok(_) => Err(SuiteError::file(path, "is no JSON array")),
            Err(error) => Err(SuiteError::file(path, error)),
        },
    }
}

/// A row's fields, or what is wrong with them.
pub(super) fn read<T: DeserializeOwned>(path: &Path, row: usize, value: Value) -> Result<T, SuiteError> {
    serde_json::from_value(value).map_err(|error| SuiteError::row(path, row, error))
}

pub(super) fn text(path: &Path) -> Result<String, SuiteError> {
    let wrong = |error: std::io::Error| SuiteError::file(path, error);
    if path.metadata().map_err(wrong)?.len() > MOST {
        return Err(SuiteError::file(path, "is too large"));
    }
    std::fs::read_to_string(path).map_err(wrong)
}

fn lines(path: &Path) -> Result<Vec<Value>, SuiteError> {
    let text = text(path)?;
    let rows = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    rows.map(|(at, line)| serde_json::from_str(line).map_err(|error| SuiteError::row(path, at + 1, error))).collect()
}

fn parquet(path: &Path) -> Result<Vec<Value>, SuiteError> {
    let file = std::fs::File::open(path).map_err(|error| SuiteError::file(path, error))?;
    let wrong = |error: parquet::errors::ParquetError| SuiteError::file(path, error);
    let reader = SerializedFileReader::new(file).map_err(wrong)?;
    reader.get_row_iter(None).map_err(wrong)?.map(|row| row.map(|row| row.to_json_value()).map_err(wrong)).collect()
}
