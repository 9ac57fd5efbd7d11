//! Anybody's questions: a JSON object a line.
//!
//! `{"video": "match.mp4", "question": "Who scores?", "options": ["…", "…"], "answer": "B", "type": "goals", "id": "7"}`:
//! `options`, `type` and `id` may be left out. With options the answer is a letter, or an option's text; `[start, end]` in
//! seconds is a stretch of time; anything else is words. Videos are files, relative to the file of questions, or
//! `http(s)` addresses.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::{SuiteError, found, lettered, plain, table, with_options};
use crate::eval::item::{Gold, Item, letter_at};
use crate::types::MediaTime;

#[derive(Debug, Deserialize)]
struct Row {
    video: String,
    question: String,
    #[serde(default)]
    options: Vec<String>,
    answer: Value,
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    id: Option<Value>,
}

pub(super) fn load(path: &Path) -> Result<Vec<Item>, SuiteError> {
    let (file, folder) = found(path, &["questions.jsonl"])?;
    let rows = table::rows(&file)?.into_iter().enumerate();
    rows.map(|(at, value)| {
        let row: Row = table::read(&file, at + 1, value)?;
        if row.options.len() > 10 {
            return Err(SuiteError::row(&file, at + 1, "has more than ten options"));
        }
        let gold = gold(&row).map_err(|problem| SuiteError::row(&file, at + 1, problem))?;
        let prompt =
            if row.options.is_empty() { row.question } else { with_options(&row.question, lettered(&row.options)) };
        let id = row.id.as_ref().map(plain);
        Ok(Item {
            id: id.unwrap_or_else(|| (at + 1).to_string()),
            // An address stays one.
            video: if row.video.contains("://") { row.video.into() } else { folder.join(row.video) },
            prompt,
            gold,
            groups: row.kind.map(|kind| ("type", kind)).into_iter().collect(),
        })
    })
    .collect()
}

fn gold(row: &Row) -> Result<Gold, &'static str> {
    let number = |value: &Value| value.as_f64().and_then(MediaTime::from_seconds);
    match &row.answer {
        Value::Array(span) => {
            let [start, end] = &span[..] else { return Err("a stretch of time is [start, end]") };
            let (start, end) = number(start).zip(number(end)).ok_or("a stretch of time is two numbers of seconds")?;
            if start < end { Ok(Gold::Span { start, end }) } else { Err("the stretch of time ends before it starts") }
        }
        Value::String(text) if row.options.is_empty() => match text.trim() {
            "" => Err("the answer is empty"),
            text => Ok(Gold::Words { text: text.to_owned() }),
        },
        Value::String(text) => {
            let text = text.trim();
            let by_text = row.options.iter().position(|option| option.trim() == text);
            let by_letter =
                (0..row.options.len()).find(|place| letter_at(*place).is_some_and(|letter| text == letter.to_string()));
            let place = by_text.or(by_letter).ok_or("the answer is none of the options")?;
            Ok(Gold::Letter { letter: letter_at(place) })
        }
        Value::Number(number) if row.options.is_empty() => Ok(Gold::Words { text: number.to_string() }),
        _ => Err("the answer must be text, a number, or [start, end]"),
    }
}
