//! Fields of a JSON object, with errors that name the file and the field. `null` is the same as absent.

use std::path::Path;

use serde_json::{Map, Value};

use super::{ModelError, SIZE_MAX};

/// The parsed file, or `None` where there is none.
pub(super) fn read(folder: &Path, file: &str) -> Result<Option<Value>, ModelError> {
    match std::fs::read(folder.join(file)) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| ModelError::checkpoint(file, error)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ModelError::checkpoint(file, error)),
    }
}

/// One object of a file.
pub(super) struct Section<'a> {
    file: &'a str,
    /// `text_config.`, with its dot; empty at the root.
    path: String,
    fields: &'a Map<String, Value>,
}

impl<'a> Section<'a> {
    pub(super) fn root(file: &'a str, value: &'a Value) -> Result<Self, ModelError> {
        let fields = value.as_object().ok_or_else(|| ModelError::checkpoint(file, "is not an object"))?;
        Ok(Self { file, path: String::new(), fields })
    }

    pub(super) fn wrong(&self, field: &str, problem: &str) -> ModelError {
        ModelError::checkpoint(self.file, format!("{}{field} {problem}", self.path))
    }

    pub(super) fn get(&self, field: &str) -> Option<&'a Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    pub(super) fn section(&self, field: &str) -> Result<Self, ModelError> {
        self.optional_section(field)?.ok_or_else(|| self.wrong(field, "is missing"))
    }

    pub(super) fn optional_section(&self, field: &str) -> Result<Option<Self>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let fields = value.as_object().ok_or_else(|| self.wrong(field, "is not an object"))?;
        Ok(Some(Self { file: self.file, path: format!("{}{field}.", self.path), fields }))
    }

    pub(super) fn text(&self, field: &str) -> Result<Option<&'a str>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(field, "is not a text"))
    }

    pub(super) fn flag(&self, field: &str) -> Result<Option<bool>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(field, "is neither true nor false"))
    }

    pub(super) fn optional_number(&self, field: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        value.as_f64().filter(|number| number.is_finite()).map(Some).ok_or_else(|| self.wrong(field, "is not a number"))
    }

    pub(super) fn numbers(&self, field: &str) -> Result<Option<Vec<f64>>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        let numbers = value.as_array().map(|values| values.iter().map(Value::as_f64).collect::<Option<Vec<_>>>());
        numbers.flatten().map(Some).ok_or_else(|| self.wrong(field, "is not a list of numbers"))
    }

    /// A whole number from 1 to the bound.
    pub(super) fn size(&self, field: &str) -> Result<usize, ModelError> {
        self.optional_size(field)?.ok_or_else(|| self.wrong(field, "is missing"))
    }

    pub(super) fn optional_size(&self, field: &str) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match bounded(value) {
            Some(size) if size > 0 => Ok(Some(size)),
            _ => Err(self.wrong(field, &format!("is not a whole number from 1 to {SIZE_MAX}"))),
        }
    }

    /// A list of whole numbers, zero among them. Absent: empty.
    pub(super) fn sizes(&self, field: &str) -> Result<Vec<usize>, ModelError> {
        let Some(value) = self.get(field) else { return Ok(Vec::new()) };
        let sizes = value.as_array().map(|values| values.iter().map(bounded).collect::<Option<Vec<_>>>());
        sizes.flatten().ok_or_else(|| self.wrong(field, "is not a list of whole numbers"))
    }

    /// An id of the vocabulary.
    pub(super) fn id(&self, field: &str, vocab_size: usize) -> Result<u32, ModelError> {
        let value = self.get(field).ok_or_else(|| self.wrong(field, "is missing"))?;
        self.as_id(field, value, vocab_size)
    }

    /// One id or a list of ids. Absent: empty.
    pub(super) fn ids(&self, field: &str, vocab_size: usize) -> Result<Vec<u32>, ModelError> {
        match self.get(field) {
            None => Ok(Vec::new()),
            Some(Value::Array(ids)) => ids.iter().map(|id| self.as_id(field, id, vocab_size)).collect(),
            Some(id) => Ok(vec![self.as_id(field, id, vocab_size)?]),
        }
    }

    fn as_id(&self, field: &str, value: &Value, vocab_size: usize) -> Result<u32, ModelError> {
        bounded(value)
            .filter(|id| *id < vocab_size)
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| self.wrong(field, "is not an id of the vocabulary"))
    }
}

fn bounded(value: &Value) -> Option<usize> {
    value.as_u64().filter(|number| *number <= SIZE_MAX).and_then(|number| usize::try_from(number).ok())
}
