//! One `<tool_call>` or `<tool_code>` block: where it ends, and which calls stand in it.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use super::json;

/// A call as the model wrote it. Whether the tool exists and the arguments make sense is for others to say.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolCall {
    /// Tool's name.
    pub name: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
}

/// A block that is no call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct Malformed {
    /// Why, in words the model can use.
    pub problem: String,
    /// All that stands in its block, perhaps with other calls.
    pub body: Arc<str>,
}

/// Which tag opened the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockKind {
    /// `<tool_call>` with JSON.
    Call,
    /// `<tool_code>` with a Python call: what the base model falls back to.
    Code,
}

impl BlockKind {
    pub(super) const fn open(self) -> &'static str {
        match self {
            Self::Call => "<tool_call>",
            Self::Code => "<tool_code>",
        }
    }

    const fn close(self) -> &'static str {
        match self {
            Self::Call => "</tool_call>",
            Self::Code => "</tool_code>",
        }
    }
}

/// The extent of a block in the unread text.
pub(super) struct Block {
    /// Bytes of its content.
    pub(super) body: usize,
    /// Bytes of content and closing tag.
    pub(super) length: usize,
    /// False when the text ended first.
    pub(super) closed: bool,
}

/// A block longer than this is no call.
const BLOCK_MAX: usize = 32 << 10;

impl Block {
    /// Where the block that `text` begins inside ends; `None` while more text may decide it.
    ///
    /// A closing tag inside a JSON string does not close the block, unless the string can't be one: it runs into a
    /// line break, into a new opening tag, or into the end of the text.
    pub(super) fn close(kind: BlockKind, text: &str, last: bool) -> Option<Self> {
        // Too long to be a call: cut there, so that a runaway block can't grow without bound.
        let limit = (0..=BLOCK_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let last = last || text.len() > BLOCK_MAX;
        let text = &text[..limit];
        let tag = kind.close();
        let closed = |body: usize| Some(Self { body, length: body + tag.len(), closed: true });
        let mut quote: Option<char> = None;
        let mut inside: Option<usize> = None;
        let mut before = '{';
        let mut escaped = false;
        let mut skip_to = 0;
        for (at, c) in text.char_indices() {
            if at < skip_to {
                continue;
            }
            let rest = &text[at..];
            if c == '<' && rest.starts_with(tag) {
                if quote.is_none() {
                    return closed(at);
                }
                let after = &rest[tag.len()..];
                let next = after.trim_start();
                if next.starts_with(kind.open()) || after.starts_with(['\n', '\r']) {
                    return closed(at);
                }
                if !last && (next.is_empty() || kind.open().starts_with(next)) {
                    return None;
                }
                inside = inside.or(Some(at));
                skip_to = at + tag.len();
                continue;
            }
            if c == '<' && !last && tag.starts_with(rest) {
                return None;
            }
            match quote {
                Some(_) if escaped => escaped = false,
                Some(_) if c == '\\' => escaped = true,
                Some(open) if c == open => (quote, inside) = (None, None),
                Some(_) if c == '\n' => {
                    if let Some(at) = inside {
                        return closed(at);
                    }
                    quote = None;
                }
                None if kind == BlockKind::Call
                    && (c == '"' || (c == '\'' && matches!(before, '{' | ',' | ':' | '['))) =>
                {
                    quote = Some(c);
                }
                _ => {}
            }
            if !c.is_whitespace() {
                before = c;
            }
        }
        let end = Self { body: text.len(), length: text.len(), closed: false };
        last.then(|| inside.map_or(Some(end), closed)).flatten()
    }
}

/// The calls of a block's content. Never empty: a block without a call is one malformed call.
pub(super) fn read(kind: BlockKind, body: &str, closed: bool) -> Vec<Result<ToolCall, Malformed>> {
    let mut calls = match kind {
        BlockKind::Call => read_json(body, closed),
        BlockKind::Code => read_code(body),
    };
    if calls.is_empty() {
        calls.push(Err("the call is empty".to_owned()));
    }
    let body: Arc<str> = body.trim().into();
    let malformed = |problem| Malformed { problem, body: Arc::clone(&body) };
    calls.into_iter().map(|call| call.map_err(malformed)).collect()
}

fn read_json(body: &str, closed: bool) -> Vec<Result<ToolCall, String>> {
    let body = unfenced(body.trim());
    match json::values(body, closed) {
        Err(problem) => vec![Err(format!("the call is not valid JSON: {problem}"))],
        Ok(values) => values
            .into_iter()
            .flat_map(|value| match value {
                Value::Array(items) => items,
                other => vec![other],
            })
            .map(call)
            .collect(),
    }
}

/// Content of a ```` ```json ```` fence, where there is one.
fn unfenced(body: &str) -> &str {
    let Some(inner) = body.strip_prefix("```") else { return body };
    let inner = inner.trim_start_matches(|c: char| c.is_ascii_alphanumeric());
    inner.trim().strip_suffix("```").unwrap_or(inner).trim()
}

fn call(value: Value) -> Result<ToolCall, String> {
    let Value::Object(mut object) = value else { return Err("the call is not a JSON object".to_owned()) };
    let Some(Value::String(name)) = object.remove("name") else {
        return Err("the call has no tool name".to_owned());
    };
    let arguments = match object.remove("arguments").or_else(|| object.remove("parameters")) {
        None => Map::new(),
        Some(Value::Object(arguments)) => arguments,
        Some(Value::String(text)) => match json::values(&text, true).ok().and_then(|mut values| values.pop()) {
            Some(Value::Object(arguments)) => arguments,
            _ => return Err("the call's arguments are not a JSON object".to_owned()),
        },
        Some(_) => return Err("the call's arguments are not a JSON object".to_owned()),
    };
    Ok(ToolCall { name, arguments })
}

/// Names of positional arguments, in order.
const POSITIONAL: [&str; 3] = ["video_path", "start_time", "end_time"];

/// Reads lines like `print(crop_video("v.mp4", start_time=1, end_time=2))`.
fn read_code(body: &str) -> Vec<Result<ToolCall, String>> {
    unfenced(body.trim())
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(code_line)
        .collect()
}

fn code_line(line: &str) -> Result<ToolCall, String> {
    let malformed = || "the call is not of the form name(argument, …)".to_owned();
    let line = line.strip_prefix("print(").and_then(|inner| inner.strip_suffix(')')).unwrap_or(line);
    // `result = crop_video(…)`
    let line = match line.split_once('=') {
        Some((target, rest)) if !target.contains('(') => rest.trim(),
        _ => line,
    };
    let (name, rest) = line.split_once('(').ok_or_else(malformed)?;
    let inner = rest.trim_end().strip_suffix(')').ok_or_else(malformed)?;
    let name = name.trim();
    if name.is_empty() || !name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.')) {
        return Err(malformed());
    }
    let mut arguments = Map::new();
    for (place, field) in split_arguments(inner).into_iter().enumerate() {
        let (key, value) = match field.split_once('=') {
            Some((key, value)) if key.trim().chars().all(|c| c.is_alphanumeric() || c == '_') => (key.trim(), value),
            _ => (POSITIONAL.get(place).copied().ok_or_else(malformed)?, field),
        };
        let value = value.trim().trim_matches(['"', '\'']);
        let value = value
            .parse::<f64>()
            .ok()
            .and_then(serde_json::Number::from_f64)
            .map_or_else(|| Value::from(value), Value::Number);
        arguments.insert(key.to_owned(), value);
    }
    Ok(ToolCall { name: name.rsplit('.').next().unwrap_or(name).to_owned(), arguments })
}

/// Splits at commas outside quotes. A stray quote (an odd one) is no quote.
fn split_arguments(text: &str) -> Vec<&str> {
    let mut fields = Vec::new();
    let (mut start, mut quote) = (0, None);
    for (at, c) in text.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            None if (c == '"' || c == '\'') && text[at + 1..].contains(c) => quote = Some(c),
            None if c == ',' => {
                fields.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    fields.push(&text[start..]);
    fields.retain(|field| !field.trim().is_empty());
    fields
}
