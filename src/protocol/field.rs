//! Reading JSON field by field, so that an error can name the field: `messages[0].content[1].video_url.url`.
//!
//! `null` is the same as absent everywhere. Strings are moved out of the value, never copied: a `data:` URL is a video.

use serde_json::{Map, Value};

use crate::types::MediaTime;

/// A field that is missing, of a wrong type, or of a wrong value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invalid {
    /// Path of the field from the root of the body.
    pub(crate) param: String,
    /// What is wrong, as a sentence that follows the field's name.
    pub(crate) problem: String,
    /// OpenAI's `code`.
    pub(crate) code: &'static str,
}

impl Invalid {
    /// A wrong type or value.
    pub(crate) fn new(param: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { param: param.into(), problem: problem.into(), code: "invalid_value" }
    }

    /// Something of OpenAI's API that paravt can't do yet. Refused, since to ignore it would change the answer.
    pub(crate) fn not_yet(param: impl Into<String>) -> Self {
        Self { param: param.into(), problem: "is not supported yet".to_owned(), code: "unsupported_parameter" }
    }
}

/// An object, read by taking its fields.
pub(crate) struct Fields {
    path: String,
    map: Map<String, Value>,
}

/// One value and where it was.
pub(crate) struct Field {
    /// Its path.
    pub(crate) path: String,
    value: Value,
}

impl Fields {
    /// The body itself.
    pub(crate) fn root(value: Value) -> Result<Self, Invalid> {
        Field { path: String::new(), value }.object()
    }

    /// Path of a field of this object.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// True when nothing is left to take.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// True when there is such a field.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// Takes some fields out, as an object of their own at the same path.
    pub(crate) fn split(&mut self, names: &[&str]) -> Self {
        let taken = names.iter().filter_map(|name| self.map.remove_entry(*name)).collect();
        Self { path: self.path.clone(), map: taken }
    }

    /// What is left, as it is.
    pub(crate) fn into_map(self) -> Map<String, Value> {
        self.map
    }

    /// Takes a field out. `None` when it is absent or `null`.
    pub(crate) fn take(&mut self, name: &str) -> Option<Field> {
        let value = self.map.remove(name).filter(|value| !value.is_null())?;
        Some(Field { path: self.path(name), value })
    }

    /// Takes a field out and reads it.
    pub(crate) fn read<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(Field) -> Result<T, Invalid>,
    ) -> Result<Option<T>, Invalid> {
        self.take(name).map(read).transpose()
    }

    /// Takes out and reads a field that must be there.
    pub(crate) fn need<T>(&mut self, name: &str, read: impl FnOnce(Field) -> Result<T, Invalid>) -> Result<T, Invalid> {
        match self.take(name) {
            Some(field) => read(field),
            None => Err(Invalid {
                param: self.path(name),
                problem: "is required".to_owned(),
                code: "missing_required_parameter",
            }),
        }
    }
}

impl Field {
    fn wrong<T>(path: String, expected: &str) -> Result<T, Invalid> {
        Err(Invalid::new(path, format!("must be {expected}")))
    }

    /// True when the value is one of these, which ask for nothing.
    pub(crate) fn asks_nothing(&self) -> bool {
        match &self.value {
            Value::Bool(flag) => !flag,
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        }
    }

    /// True when it is a string.
    pub(crate) const fn is_string(&self) -> bool {
        matches!(self.value, Value::String(_))
    }

    /// A string.
    pub(crate) fn string(self) -> Result<String, Invalid> {
        match self.value {
            Value::String(text) => Ok(text),
            _ => Self::wrong(self.path, "a string"),
        }
    }

    /// A string of so many bytes at most.
    pub(crate) fn bounded_string(self, most: usize) -> Result<String, Invalid> {
        let path = self.path.clone();
        let text = self.string()?;
        if text.len() > most { Self::wrong(path, &format!("at most {most} bytes long")) } else { Ok(text) }
    }

    /// A string that is not blank.
    pub(crate) fn filled_string(self) -> Result<String, Invalid> {
        let path = self.path.clone();
        let text = self.string()?;
        if text.trim().is_empty() { Self::wrong(path, "a string that is not empty") } else { Ok(text) }
    }

    /// `true` or `false`.
    pub(crate) fn flag(self) -> Result<bool, Invalid> {
        match self.value {
            Value::Bool(flag) => Ok(flag),
            _ => Self::wrong(self.path, "true or false"),
        }
    }

    /// A number for which `ok` holds.
    pub(crate) fn number(self, expected: &str, ok: impl FnOnce(f64) -> bool) -> Result<f64, Invalid> {
        match self.value.as_f64() {
            Some(number) if ok(number) => Ok(number),
            _ => Self::wrong(self.path, expected),
        }
    }

    /// A whole number from `least` to `most`. `5.0` is one.
    pub(crate) fn integer(self, least: i64, most: i64) -> Result<i64, Invalid> {
        let whole = |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
        match self.value.as_i64().or_else(|| self.value.as_f64().and_then(whole)) {
            Some(number) if (least..=most).contains(&number) => Ok(number),
            _ => Self::wrong(self.path, &format!("a whole number from {least} to {most}")),
        }
    }

    /// A whole number from `least` to `most`.
    pub(crate) fn count(self, least: u32, most: u32) -> Result<u32, Invalid> {
        let path = self.path.clone();
        let number = self.integer(i64::from(least), i64::from(most))?;
        u32::try_from(number).or_else(|_| Self::wrong(path, "a whole number"))
    }

    /// Any 64-bit whole number, also a negative one. Its lower 53 bits count: so many survive in a number of JavaScript's, and
    /// all engines take them, so that the seed an answer tells can be sent again.
    pub(crate) fn seed(self) -> Result<u64, Invalid> {
        const BITS: u64 = (1 << 53) - 1;
        match (self.value.as_u64(), self.value.as_i64()) {
            (Some(seed), _) => Ok(seed & BITS),
            (None, Some(seed)) => Ok(seed.cast_unsigned() & BITS),
            (None, None) => Self::wrong(self.path, "a whole number of 64 bits"),
        }
    }

    /// A time in a video: seconds as a number, or `MM:SS` as a string. Not below 0.
    pub(crate) fn time(self) -> Result<MediaTime, Invalid> {
        let time = match &self.value {
            Value::Number(number) => number.as_f64().and_then(MediaTime::from_seconds),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        match time {
            Some(time) if time >= MediaTime::ZERO => Ok(time),
            _ => Self::wrong(self.path, "a time in seconds or as \"MM:SS\", not below 0"),
        }
    }

    /// One of these names.
    pub(crate) fn choice<T: Copy>(self, choices: &[(&str, T)]) -> Result<T, Invalid> {
        let chosen = self.value.as_str().and_then(|name| choices.iter().find(|choice| choice.0 == name));
        match chosen {
            Some((_, value)) => Ok(*value),
            None => {
                let names: Vec<String> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
                Self::wrong(self.path, &format!("one of {}", names.join(", ")))
            }
        }
    }

    /// An object.
    pub(crate) fn object(self) -> Result<Fields, Invalid> {
        match self.value {
            Value::Object(map) => Ok(Fields { path: self.path, map }),
            _ => Self::wrong(self.path, "an object"),
        }
    }

    /// A list of `least` to `most` items.
    pub(crate) fn list(self, least: usize, most: usize) -> Result<Vec<Self>, Invalid> {
        let Value::Array(items) = self.value else { return Self::wrong(self.path, "a list") };
        if !(least..=most).contains(&items.len()) {
            return Self::wrong(self.path, &format!("a list of {least} to {most} items"));
        }
        let path = self.path;
        Ok(items
            .into_iter()
            .enumerate()
            .map(|(place, value)| Self { path: format!("{path}[{place}]"), value })
            .collect())
    }
}
