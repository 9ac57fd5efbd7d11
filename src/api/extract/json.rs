//! JSON with a bound on the number of values: `[0,0,…]` takes two bytes a value on the wire and tens in memory.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::api::error::ApiError;

/// Most values in a body, containers counted. 2,048 parts, the most a message takes, are about 10,000; what is far more is
/// mostly fields without effect.
const MAX_VALUES: usize = 100_000;

/// Reads a body. Blocks for as long as parsing takes.
///
/// # Errors
/// [`ApiError::TooManyValues`] as soon as there are, [`ApiError::NotJson`].
pub(super) fn read(bytes: &[u8]) -> Result<Value, ApiError> {
    let left = Cell::new(MAX_VALUES);
    let over = Cell::new(false);
    // The reader's own limit of depth stays on.
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = Counted { left: &left, over: &over }.deserialize(&mut reader);
    match value.and_then(|value| reader.end().map(|()| value)) {
        Ok(value) => Ok(value),
        Err(_) if over.get() => Err(ApiError::TooManyValues(MAX_VALUES)),
        Err(error) => Err(ApiError::NotJson(error.to_string())),
    }
}

/// Reads one value and all below it, as `Value` itself would.
#[derive(Clone, Copy)]
struct Counted<'a> {
    left: &'a Cell<usize>,
    over: &'a Cell<bool>,
}

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        match self.left.get().checked_sub(1) {
            Some(left) => self.left.set(left),
            None => {
                self.over.set(true);
                return Err(D::Error::custom("too many values"));
            }
        }
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::from(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::from(number))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            map.insert(name, fields.next_value_seed(self)?);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_what_serde_json_reads_in_the_same_order() {
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        for text in [
            r#"{"z": 1, "a": [null, true, -5, 18446744073709551615, 0.5, 1e300], "m": {"\u00e9": "\n"}, "z": "last"}"#,
            r#""text""#,
            "1e400",
            "",
            "{",
            "[1,]",
            "{} {}",
            "nul",
            "\"\u{0}\"",
            &deep(100),
            &deep(1000),
        ] {
            let expected: Result<Value, _> = serde_json::from_str(text);
            match (read(text.as_bytes()), expected) {
                (Ok(read), Ok(expected)) => assert_eq!(read.to_string(), expected.to_string()),
                (Err(ApiError::NotJson(read)), Err(expected)) => assert_eq!(read, expected.to_string()),
                (read, expected) => panic!("{text}: {read:?}, {expected:?}"),
            }
        }
        assert!(matches!(read(b"\"\xff\""), Err(ApiError::NotJson(_))));
    }

    #[test]
    fn values_are_counted_wherever_they_are() {
        let list = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        assert!(read(list(MAX_VALUES - 1).as_bytes()).is_ok());
        let fields: String = (0..MAX_VALUES).map(|n| format!("\"{n}\":0,")).collect();
        for over in [list(MAX_VALUES), format!("{{{fields}\"x\":0}}"), format!("[{}[]]", "[],".repeat(MAX_VALUES))] {
            assert!(matches!(read(over.as_bytes()), Err(ApiError::TooManyValues(MAX_VALUES))));
        }
    }
}
