//! JSON as models write it: trailing commas, single quotes, Python's constants, a missing last brace.
//!
//! Stricter readers refuse these; no crate at hand reads several values in a row and repairs a missing end, and a wrong
//! repair would watch a wrong window, so the few repairs are made here, each one tested.

use serde_json::{Map, Number, Value};

/// Deepest nesting read.
const DEPTH_MAX: usize = 16;

/// Reads the values in `text`, which may follow each other with blanks or commas between.
///
/// `repair` adds closing brackets that are missing at the very end. It is off for text that was cut: there a missing
/// end may have taken digits with it.
///
/// # Errors
/// What is wrong, in a few words.
pub(super) fn values(text: &str, repair: bool) -> Result<Vec<Value>, &'static str> {
    let mut reader = Reader { rest: text, repair };
    let mut values = Vec::new();
    loop {
        reader.blanks();
        reader.eat(',');
        reader.blanks();
        if reader.rest.is_empty() {
            return Ok(values);
        }
        values.push(reader.value(0)?);
    }
}

struct Reader<'a> {
    rest: &'a str,
    repair: bool,
}

impl Reader<'_> {
    fn blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, c: char) -> bool {
        self.rest.strip_prefix(c).inspect(|rest| self.rest = rest).is_some()
    }

    fn value(&mut self, depth: usize) -> Result<Value, &'static str> {
        if depth > DEPTH_MAX {
            return Err("nested too deeply");
        }
        self.blanks();
        match self.rest.chars().next() {
            None => Err("it ends too early"),
            Some('{') => self.object(depth),
            Some('[') => self.array(depth),
            Some('"' | '\'') => self.string().map(Value::String),
            Some(_) => self.word(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, &'static str> {
        self.eat('{');
        let mut object = Map::new();
        loop {
            self.blanks();
            if self.end('}')? {
                return Ok(Value::Object(object));
            }
            if !self.rest.starts_with(['"', '\'']) {
                return Err("a key is not in quotes");
            }
            let key = self.string()?;
            self.blanks();
            if !self.eat(':') {
                return Err("a key has no value");
            }
            let value = self.value(depth + 1)?;
            object.insert(key, value);
            self.separator('}')?;
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, &'static str> {
        self.eat('[');
        let mut array = Vec::new();
        loop {
            self.blanks();
            if self.end(']')? {
                return Ok(Value::Array(array));
            }
            array.push(self.value(depth + 1)?);
            self.separator(']')?;
        }
    }

    /// True at the closing bracket, or at the end of the text where that may be repaired.
    fn end(&mut self, close: char) -> Result<bool, &'static str> {
        if self.rest.is_empty() {
            return if self.repair { Ok(true) } else { Err("it ends too early") };
        }
        Ok(self.eat(close))
    }

    fn separator(&mut self, close: char) -> Result<(), &'static str> {
        self.blanks();
        if self.eat(',') || self.rest.starts_with(close) || self.rest.is_empty() {
            Ok(())
        } else {
            Err("a comma is missing")
        }
    }

    fn string(&mut self) -> Result<String, &'static str> {
        let mut chars = self.rest.char_indices();
        let Some((_, quote)) = chars.next() else { return Err("it ends too early") };
        let mut escaped = false;
        for (at, c) in chars {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                c if c == quote => {
                    let (raw, rest) = (&self.rest[1..at], &self.rest[at + 1..]);
                    self.rest = rest;
                    return Ok(unescaped(raw));
                }
                _ => {}
            }
        }
        Err("a string has no end")
    }

    fn word(&mut self) -> Result<Value, &'static str> {
        let end = self.rest.find(|c: char| c.is_whitespace() || ",:{}[]\"'".contains(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "true" | "True" => Ok(Value::Bool(true)),
            "false" | "False" => Ok(Value::Bool(false)),
            "null" | "None" => Ok(Value::Null),
            _ => {
                if let Ok(number) = word.parse::<i64>() {
                    return Ok(Value::from(number));
                }
                let numeric = word.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+' | b'e' | b'E'));
                let number = word.parse::<f64>().ok().filter(|_| numeric).and_then(Number::from_f64);
                number.map(Value::Number).ok_or("a value is neither a number nor in quotes")
            }
        }
    }
}

/// The escapes of JSON, and `\'`. An unknown one stands for itself.
fn unescaped(raw: &str) -> String {
    let json =
        format!("\"{}\"", raw.replace("\\'", "'").replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t"));
    serde_json::from_str(&json).unwrap_or_else(|_| raw.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::values;

    #[test]
    fn repairs_what_models_get_wrong() {
        for (text, expected) in [
            ("{'a': 'it\\'s', \"b\": [1, 2.5,],}", json!({"a": "it's", "b": [1, 2.5]})),
            ("{\"a\": {\"b\": True, \"c\": None}", json!({"a": {"b": true, "c": null}})),
            ("{\"a\": \"x\\u00e9\\n\"}", json!({"a": "xé\n"})),
        ] {
            assert_eq!(values(text, true), Ok(vec![expected]), "{text}");
        }
    }

    #[test]
    fn does_not_repair_cut_text() {
        assert!(values("{\"a\": 2", false).is_err());
        assert!(values("{\"a\": 2", true).is_ok());
    }

    #[test]
    fn refuses_nonsense_and_depth() {
        for text in ["{a, b}", "{\"a\" 1}", "{\"a\": b}", "\"open", &"[".repeat(100)] {
            assert!(values(text, true).is_err(), "{text}");
        }
    }
}
