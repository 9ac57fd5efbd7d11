//! Rows of both layouts as plain values. Nothing that a row says is lost on the way to a file and back, but for what
//! [`super::Reader::left_out`] tells, and the last bit of numbers with more than fifteen digits.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::error::Wrong;

/// Which rows a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// [`SftRow`]s.
    Sft,
    /// [`RlRow`]s.
    Rl,
}

impl Layout {
    /// Its columns.
    #[must_use]
    pub const fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Sft => &["messages"],
            Self::Rl => &["prompt", "videos", "extra_info"],
        }
    }

    /// The layout whose columns are all there.
    #[must_use]
    pub fn of(columns: &[&str]) -> Option<Self> {
        let has = |column: &&str| columns.contains(column);
        [Self::Sft, Self::Rl].into_iter().find(|layout| layout.columns().iter().all(has))
    }
}

/// A row of either layout.
#[derive(Debug, Clone, PartialEq)]
pub enum Row {
    /// A conversation.
    Sft(SftRow),
    /// A prompt.
    Rl(RlRow),
}

/// A conversation to imitate: `[system, user (video and question), assistant, …]`, tool responses as turns of the user.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SftRow {
    /// Its messages, as OpenAI's API has them.
    pub messages: Vec<Message>,
}

/// One message. Fields that mean nothing here are kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or `tool`.
    pub role: String,
    /// What is said.
    pub content: Content,
    /// All other fields.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// `null`.
    Nothing,
    /// Text alone.
    Text(String),
    /// Text, videos and images, in order.
    Parts(Vec<ContentPart>),
}

/// A part of a message: `{"type": "text", "text": …}`, `{"type": "video_url", "video_url": {"url": …}}`, and so on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContentPart {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// All other fields.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

/// What a part shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// A video.
    Video,
    /// A picture, or a frame of a video.
    Image,
}

impl ContentPart {
    /// A part of text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self { kind: "text".to_owned(), fields: Map::from_iter([("text".to_owned(), Value::String(text.into()))]) }
    }

    /// Its text, if it is of text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        (self.kind == "text").then(|| self.fields.get("text")?.as_str()).flatten()
    }

    /// What it shows, if anything.
    #[must_use]
    pub fn medium(&self) -> Option<Medium> {
        match self.kind.as_str() {
            "video" | "video_url" => Some(Medium::Video),
            "image" | "image_url" => Some(Medium::Image),
            _ => None,
        }
    }

    /// Where what it shows lies, as it is written: a path, `file://…`, `https://…`, `data:…`. `None` of text, of a video that is
    /// a list of frames, and of a part that does not say.
    #[must_use]
    pub fn source(&self) -> Option<&str> {
        self.medium()?;
        let value = self.fields.get(&self.kind)?;
        value.as_str().or_else(|| value.get("url")?.as_str()).filter(|source| !source.is_empty())
    }
}

impl Message {
    /// A message of text.
    #[must_use]
    pub fn text(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self { role: role.into(), content: Content::Text(text.into()), fields: Map::new() }
    }

    /// All its text, a part a line.
    #[must_use]
    pub fn words(&self) -> String {
        match &self.content {
            Content::Nothing => String::new(),
            Content::Text(text) => text.clone(),
            Content::Parts(parts) => parts.iter().filter_map(ContentPart::as_text).collect::<Vec<_>>().join("\n"),
        }
    }

    /// Its parts that show something.
    pub fn media(&self) -> impl Iterator<Item = (Medium, &ContentPart)> {
        let parts: &[ContentPart] = if let Content::Parts(parts) = &self.content { parts } else { &[] };
        parts.iter().filter_map(|part| Some((part.medium()?, part)))
    }

    /// The same message with other text in place of all it holds, in the form it had.
    #[must_use]
    pub(super) fn saying(&self, text: String) -> Self {
        let content = match &self.content {
            Content::Parts(_) => Content::Parts(vec![ContentPart::text(text)]),
            _ => Content::Text(text),
        };
        Self { content, ..self.clone() }
    }
}

/// A prompt, and the answer that rollouts are held against.
#[derive(Debug, Clone, PartialEq)]
pub struct RlRow {
    /// Its messages, with `<video>` where a video stands.
    pub prompt: Vec<PromptMessage>,
    /// The videos, in the order of their marks.
    pub videos: Vec<VideoFile>,
    /// The right answer. Empty where the row has none.
    pub answer: String,
    /// `mcq`, `tvg`, `oe`, … A row that says nothing is open (`oe`), as upstream reads it.
    pub question_type: String,
    /// All other fields of `extra_info`.
    pub extra: Map<String, Value>,
}

/// A message of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptMessage {
    /// Who speaks.
    pub role: String,
    /// What is said.
    pub content: String,
}

/// A video of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VideoFile {
    /// Its path, with or without `file://`.
    pub video: String,
}

/// Names of what was in a file and is in no row.
pub(super) type LeftOut = BTreeSet<String>;

impl Row {
    /// Its layout.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        match self {
            Self::Sft(_) => Layout::Sft,
            Self::Rl(_) => Layout::Rl,
        }
    }

    /// From a JSON object of a row's columns.
    pub(super) fn read(layout: Layout, value: Value, left_out: &mut LeftOut) -> Result<Self, Wrong> {
        let Value::Object(mut columns) = value else { return Err(("row", "is no JSON object".to_owned())) };
        let mut take = |column: &'static str| columns.remove(column).ok_or_else(|| (column, "is missing".to_owned()));
        let row = match layout {
            Layout::Sft => Self::Sft(SftRow { messages: typed("messages", unpacked("messages", take("messages")?)?)? }),
            Layout::Rl => {
                let (prompt, videos) = (take("prompt")?, take("videos")?);
                strangers("prompt", &prompt, &["role", "content"], left_out);
                strangers("videos", &videos, &["video"], left_out);
                let Value::Object(mut extra) = unpacked("extra_info", take("extra_info")?)? else {
                    return Err(("extra_info", "is no JSON object".to_owned()));
                };
                let answer = plain("answer", extra.shift_remove("answer"))?.unwrap_or_default();
                let kind = plain("question_type", extra.shift_remove("question_type"))?;
                Self::Rl(RlRow {
                    prompt: typed("prompt", prompt)?,
                    videos: typed("videos", videos)?,
                    answer,
                    question_type: kind.unwrap_or_else(|| "oe".to_owned()),
                    extra,
                })
            }
        };
        left_out.extend(columns.into_iter().map(|(name, _)| name));
        Ok(row)
    }

    /// As a JSON object of its columns.
    #[must_use]
    pub fn to_value(&self) -> Value {
        match self {
            Self::Sft(row) => json!(row),
            Self::Rl(row) => json!({"prompt": row.prompt, "videos": row.videos, "extra_info": row.extra_info()}),
        }
    }
}

impl RlRow {
    /// What its column `extra_info` says.
    #[must_use]
    pub fn extra_info(&self) -> Map<String, Value> {
        let known = [("answer", &self.answer), ("question_type", &self.question_type)];
        let known = known.map(|(name, text)| (name.to_owned(), Value::String(text.clone())));
        known.into_iter().chain(self.extra.clone()).collect()
    }
}

/// What is JSON in a string.
fn unpacked(column: &'static str, value: Value) -> Result<Value, Wrong> {
    match value {
        Value::String(text) => serde_json::from_str(&text).map_err(|error| (column, format!("is no JSON: {error}"))),
        value => Ok(value),
    }
}

fn typed<T: DeserializeOwned>(column: &'static str, value: Value) -> Result<T, Wrong> {
    serde_json::from_value(value).map_err(|error| (column, error.to_string()))
}

/// Text, or a number as text.
fn plain(name: &'static str, value: Option<Value>) -> Result<Option<String>, Wrong> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(_) => Err(("extra_info", format!("{name} is neither text nor a number"))),
    }
}

/// Fields of a list's objects that rows have no place for.
fn strangers(column: &str, list: &Value, known: &[&str], left_out: &mut LeftOut) {
    let objects = list.as_array().into_iter().flatten().filter_map(Value::as_object);
    for name in objects.flat_map(Map::keys).filter(|name| !known.contains(&name.as_str())) {
        left_out.insert(format!("{column}.{name}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(layout: Layout, value: Value) -> Result<(Row, Vec<String>), Wrong> {
        let mut left_out = LeftOut::new();
        let row = Row::read(layout, value, &mut left_out)?;
        Ok((row, left_out.into_iter().collect()))
    }

    #[test]
    fn a_conversation_keeps_all_it_says() {
        let value = json!({"messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [
                {"type": "video_url", "video_url": {"url": "a.mp4", "fps": 1.5}},
                {"type": "text", "text": "What?", "cache": null},
            ], "name": "ann"},
            {"role": "assistant", "content": null, "tool_calls": [{"id": 7}]},
        ]});
        let (row, left_out) = read(Layout::Sft, value.clone()).expect("reads");
        assert_eq!((row.to_value(), left_out.len()), (value.clone(), 0));
        let Row::Sft(row) = row else { panic!("a conversation") };
        let sources: Vec<_> = row.messages[1].media().map(|(medium, part)| (medium, part.source())).collect();
        assert_eq!(sources, [(Medium::Video, Some("a.mp4"))]);
        assert_eq!(row.messages[1].words(), "What?");
        // A string of JSON is the same.
        let text = json!({"messages": value["messages"].to_string(), "source": 1});
        assert_eq!(read(Layout::Sft, text).expect("reads"), (Row::Sft(row), vec!["source".to_owned()]));
    }

    #[test]
    fn a_prompt_keeps_all_of_its_extra_info() {
        let value = json!({
            "prompt": [{"role": "user", "content": "<video>When?"}],
            "videos": [{"video": "a.mp4", "fps": 2}],
            "extra_info": "{\"id\": 7, \"answer\": 12.5}",
            "ability": "x",
        });
        let (row, left_out) = read(Layout::Rl, value).expect("reads");
        assert_eq!(left_out, ["ability", "videos.fps"]);
        let Row::Rl(row) = row else { panic!("a prompt") };
        assert_eq!((row.answer.as_str(), row.question_type.as_str()), ("12.5", "oe"));
        let again = read(Layout::Rl, Row::Rl(row.clone()).to_value()).expect("reads").0;
        assert_eq!(again, Row::Rl(row));
    }

    #[test]
    fn what_is_no_row_is_told_with_its_column() {
        let prompt = json!([{"role": "user", "content": "a"}]);
        for (layout, value, column, problem) in [
            (Layout::Sft, json!([]), "row", "no JSON object"),
            (Layout::Sft, json!({"messages": "[{"}), "messages", "is no JSON"),
            (Layout::Sft, json!({"messages": [{"role": "user"}]}), "messages", "content"),
            (Layout::Sft, json!({"messages": [{"role": "user", "content": 5}]}), "messages", "did not match"),
            (Layout::Rl, json!({"prompt": [], "videos": []}), "extra_info", "is missing"),
            (Layout::Rl, json!({"prompt": prompt, "videos": ["a"], "extra_info": {}}), "videos", "expected struct"),
            (Layout::Rl, json!({"prompt": [], "videos": [], "extra_info": {"answer": []}}), "extra_info", "neither"),
        ] {
            let wrong = read(layout, value).expect_err(problem);
            assert!(wrong.0 == column && wrong.1.contains(problem), "{wrong:?} / {problem}");
        }
    }

    #[test]
    fn a_layout_is_known_by_its_columns() {
        assert_eq!(Layout::of(&["id", "messages"]), Some(Layout::Sft));
        assert_eq!(Layout::of(&["videos", "prompt", "extra_info"]), Some(Layout::Rl));
        assert_eq!(Layout::of(&["prompt", "videos"]), None);
    }
}
