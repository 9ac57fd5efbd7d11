//! Messages and their parts.

use serde::Serialize;
use utoipa::ToSchema;

use super::field::{Field, Fields, Invalid};
use super::tools::{MAX_ID, ToolCall, tool_calls};
use crate::types::MediaTime;

/// Most messages in a request.
pub(crate) const MAX_MESSAGES: usize = 256;
/// Most parts in a message.
pub(crate) const MAX_PARTS: usize = 2048;
/// Most videos in a request.
pub(crate) const MAX_VIDEOS: usize = 8;
/// Most pictures in a request. A list of frames as `image_url` parts is how the paper's driver asks, so there may be many.
pub(crate) const MAX_IMAGES: usize = 1024;
/// Most bytes of text in a request, all messages together. A context of a million tokens is about as much.
pub(crate) const MAX_TEXT_BYTES: usize = 4 << 20;
/// Longest URL in bytes, save those that carry their content themselves (`data:`).
pub(crate) const MAX_URL_BYTES: usize = 8 << 10;
/// Longest name of an uploaded file.
const MAX_ID_BYTES: usize = 256;
/// Most overview frames a caller may ask for (the most Qwen3-VL was evaluated with).
pub(crate) const MAX_FRAMES: u32 = 2048;
/// Most frames a second a caller may ask for.
pub(crate) const MAX_FPS: f64 = 60.0;

/// One message of the conversation.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Message {
    /// Who speaks.
    pub(crate) role: MessageRole,
    /// What is said. May be absent in a message of the assistant's that calls tools.
    #[schema(value_type = Option<Content>)]
    pub(crate) content: Content,
    /// Calls of the caller's tools that the assistant made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Option<Vec<ToolCall>>)]
    pub(crate) tool_calls: Vec<ToolCall>,
    /// In a tool's message: the call it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) tool_call_id: Option<String>,
    /// Its path in the body.
    #[serde(skip)]
    pub(crate) path: String,
}

impl Message {
    /// A message that was at this path.
    pub(super) const fn said(path: String, role: MessageRole, content: Content) -> Self {
        Self { role, content, tool_calls: Vec::new(), tool_call_id: None, path }
    }
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MessageRole {
    /// Instructions. They follow the model card's own.
    System,
    /// OpenAI's newer name for `system`.
    Developer,
    /// The caller.
    User,
    /// The model.
    Assistant,
    /// What a tool of the caller's gave. Text alone.
    Tool,
}

/// Text alone, or parts.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Content {
    /// Text alone.
    Text(String),
    /// Text, pictures and videos in order. Pictures and videos in user messages only.
    Parts(Vec<ContentPart>),
}

/// A piece of a message.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ContentPart {
    /// Text.
    Text(TextPart),
    /// A still picture.
    ImageUrl(ImageUrlPart),
    /// A video.
    VideoUrl(VideoUrlPart),
    /// An uploaded video or picture.
    File(FilePart),
}

/// Text.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TextPart {
    /// The text.
    pub(crate) text: String,
}

/// A still picture.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ImageUrlPart {
    /// The picture.
    pub(crate) image_url: ImageUrl,
    /// Path of its URL in the part.
    #[serde(skip)]
    pub(crate) url_field: &'static str,
}

/// Where a picture is.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ImageUrl {
    /// `http(s)://`, `data:image/…;base64,…`, or `file://` below an allowed folder.
    pub(crate) url: String,
    /// Accepted, and without effect: the model card sets the size.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) detail: Option<Detail>,
}

/// A video, and how to sample it for the overview.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct VideoUrlPart {
    /// The video.
    pub(crate) video_url: VideoUrl,
    /// Only from here.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<VideoTime>, nullable = false)]
    pub(crate) start: Option<MediaTime>,
    /// Only to here.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<VideoTime>, nullable = false)]
    pub(crate) end: Option<MediaTime>,
    /// Overview frames a second, in place of the model card's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0.0, maximum = 60.0, nullable = false)]
    pub(crate) fps: Option<f64>,
    /// Fewer overview frames than the model card's most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2048, nullable = false)]
    pub(crate) max_frames: Option<u32>,
    /// Accepted, and without effect: the model card sets the size of frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) detail: Option<Detail>,
    /// Path of its URL in the part.
    #[serde(skip)]
    pub(crate) url_field: &'static str,
}

/// Where a video is.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct VideoUrl {
    /// `http(s)://`, `data:video/…;base64,…`, or `file://` below an allowed folder.
    pub(crate) url: String,
}

/// An uploaded video or picture. How to sample it is for videos; pictures are taken as they are.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct FilePart {
    /// The file.
    pub(crate) file: FileSource,
    /// Only from here.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<VideoTime>, nullable = false)]
    pub(crate) start: Option<MediaTime>,
    /// Only to here.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<VideoTime>, nullable = false)]
    pub(crate) end: Option<MediaTime>,
    /// Overview frames a second, in place of the model card's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(exclusive_minimum = 0.0, maximum = 60.0, nullable = false)]
    pub(crate) fps: Option<f64>,
    /// Fewer overview frames than the model card's most.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 2048, nullable = false)]
    pub(crate) max_frames: Option<u32>,
    /// Accepted, and without effect: the model card sets the size of frames.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) detail: Option<Detail>,
}

/// Which file: one of `file_id` and `file_data`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct FileSource {
    /// From `POST /v1/files`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) file_id: Option<String>,
    /// `data:video/…;base64,…` or `data:image/…;base64,…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) file_data: Option<String>,
    /// Accepted, and without effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) filename: Option<String>,
    /// Whether these fields are an object of their own in the part.
    #[serde(skip)]
    pub(crate) nested: bool,
}

impl FileSource {
    /// Path of the field that names it, in the part.
    pub(crate) const fn field(&self) -> &'static str {
        match (self.nested, self.file_id.is_some()) {
            (true, true) => "file.file_id",
            (true, false) => "file.file_data",
            (false, true) => "file_id",
            (false, false) => "file_data",
        }
    }

    /// Whether it carries a still picture. An animated GIF is a video.
    pub(crate) fn holds_picture(&self) -> bool {
        let begins =
            |data: &String, start: &str| data.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start));
        self.file_data.as_ref().is_some_and(|data| begins(data, "data:image/") && !begins(data, "data:image/gif"))
    }
}

/// OpenAI's wish for resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Detail {
    /// The server's choice.
    Auto,
    /// Few pixels.
    Low,
    /// Many pixels.
    High,
}

/// A time in a video: seconds, or `MM:SS`.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes in the OpenAPI document what `Field::time` reads")]
pub(crate) enum VideoTime {
    /// Seconds from the first frame.
    Seconds(f64),
    /// `MM:SS` or `HH:MM:SS`.
    Clock(String),
}

const DETAILS: [(&str, Detail); 3] = [("auto", Detail::Auto), ("low", Detail::Low), ("high", Detail::High)];

/// Reads `messages`. The last one is the user's; `continued`, it is text of the assistant's that follows the user's.
pub(super) fn messages(field: Field, continued: bool) -> Result<Vec<Message>, Invalid> {
    let path = field.path.clone();
    let messages: Vec<Message> = field.list(1, MAX_MESSAGES)?.into_iter().map(message).collect::<Result<_, _>>()?;
    check(&path, &messages)?;
    let (mut place, before) = (messages.len() - 1, if continued { "before the last" } else { "in the last" });
    if continued {
        if messages[place].role != MessageRole::Assistant {
            let problem = "must be \"assistant\" in the last message, with continue_final_message";
            return Err(Invalid::new(format!("{path}[{place}].role"), problem));
        }
        if place == 0 {
            return Err(Invalid::new(path, "must hold a message of the user's"));
        }
        place -= 1;
    }
    if matches!(messages[place].role, MessageRole::User | MessageRole::Tool) {
        Ok(messages)
    } else {
        Err(Invalid::new(format!("{path}[{place}].role"), format!("must be \"user\" or \"tool\" {before} message")))
    }
}

/// Checks what all messages hold together.
pub(super) fn check(path: &str, messages: &[Message]) -> Result<(), Invalid> {
    let count = |wanted: fn(&ContentPart) -> bool| -> usize {
        messages
            .iter()
            .map(|message| match &message.content {
                Content::Text(_) => 0,
                Content::Parts(parts) => parts.iter().filter(|part| wanted(part)).count(),
            })
            .sum()
    };
    if count(|part| matches!(part, ContentPart::VideoUrl(_))) > MAX_VIDEOS {
        return Err(Invalid::new(path, format!("must hold at most {MAX_VIDEOS} videos")));
    }
    // What an uploaded file is, is known only when it is looked up: `api` counts those that are videos.
    if count(|part| matches!(part, ContentPart::ImageUrl(_) | ContentPart::File(_))) > MAX_IMAGES {
        return Err(Invalid::new(path, format!("must hold at most {MAX_IMAGES} pictures")));
    }
    let text = |part: &ContentPart| if let ContentPart::Text(part) = part { part.text.len() } else { 0 };
    let text_bytes = |message: &Message| match &message.content {
        Content::Text(text) => text.len(),
        Content::Parts(parts) => parts.iter().map(text).sum(),
    };
    if messages.iter().map(text_bytes).sum::<usize>() > MAX_TEXT_BYTES {
        return Err(Invalid::new(path, format!("must hold at most {MAX_TEXT_BYTES} bytes of text")));
    }
    Ok(())
}

fn message(field: Field) -> Result<Message, Invalid> {
    let path = field.path.clone();
    let mut fields = field.object()?;
    let role = fields.need("role", |role| {
        let path = role.path.clone();
        let known = [
            ("system", Some(MessageRole::System)),
            ("developer", Some(MessageRole::Developer)),
            ("user", Some(MessageRole::User)),
            ("assistant", Some(MessageRole::Assistant)),
            ("tool", Some(MessageRole::Tool)),
            ("function", None),
        ];
        role.choice(&known)?.ok_or_else(|| Invalid::not_yet(path))
    })?;
    if let Some(field) = fields.take("function_call").filter(|field| !field.asks_nothing()) {
        return Err(Invalid::not_yet(field.path));
    }
    let tool_calls = match role {
        MessageRole::Assistant => fields.read("tool_calls", tool_calls)?.unwrap_or_default(),
        _ => Vec::new(),
    };
    let tool_call_id = match role {
        MessageRole::Tool => Some(fields.need("tool_call_id", |field| field.bounded_string(MAX_ID))?),
        _ => None,
    };
    let read_content = |content: Field| {
        if content.is_string() {
            return content.string().map(Content::Text);
        }
        let parts = content.list(1, MAX_PARTS).map_err(|invalid| Invalid {
            problem: format!("must be a string or a list of 1 to {MAX_PARTS} parts"),
            ..invalid
        })?;
        parts.into_iter().map(|field| part(field, role)).collect::<Result<_, _>>().map(Content::Parts)
    };
    let content = if tool_calls.is_empty() {
        fields.need("content", read_content)?
    } else {
        fields.read("content", read_content)?.unwrap_or_else(|| Content::Text(String::new()))
    };
    Ok(Message { role, content, tool_calls, tool_call_id, path })
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Text,
    Image,
    Video,
    File,
    NotYet,
}

fn part(field: Field, role: MessageRole) -> Result<ContentPart, Invalid> {
    let mut fields = field.object()?;
    let type_path = fields.path("type");
    let kind = fields.need("type", |field| {
        field.choice(&[
            ("text", Kind::Text),
            ("image_url", Kind::Image),
            ("video_url", Kind::Video),
            ("file", Kind::File),
            ("input_audio", Kind::NotYet),
            ("refusal", Kind::NotYet),
        ])
    })?;
    if matches!(kind, Kind::Image | Kind::Video | Kind::File) && role != MessageRole::User {
        return Err(Invalid::new(type_path, "must be \"text\" outside user messages"));
    }
    match kind {
        Kind::Text => Ok(ContentPart::Text(TextPart { text: fields.need("text", Field::string)? })),
        Kind::Image => {
            let mut inner = fields.need("image_url", Field::object)?;
            let url = inner.need("url", url)?;
            let detail = inner.read("detail", |field| field.choice(&DETAILS))?;
            Ok(ContentPart::ImageUrl(ImageUrlPart { image_url: ImageUrl { url, detail }, url_field: "image_url.url" }))
        }
        Kind::Video => {
            let url = fields.need("video_url", Field::object)?.need("url", url)?;
            video(fields, url, "video_url.url").map(ContentPart::VideoUrl)
        }
        Kind::File => {
            let inner = fields.need("file", Field::object)?;
            file(fields, inner, true).map(ContentPart::File)
        }
        Kind::NotYet => Err(Invalid::not_yet(type_path)),
    }
}

/// A picture as responses have it: its URL in the part itself, or an uploaded one.
pub(super) fn flat_image(mut fields: Fields) -> Result<ContentPart, Invalid> {
    if fields.has("file_id") {
        return flat_file(fields);
    }
    let url = fields.need("image_url", url)?;
    let detail = fields.read("detail", |field| field.choice(&DETAILS))?;
    Ok(ContentPart::ImageUrl(ImageUrlPart { image_url: ImageUrl { url, detail }, url_field: "image_url" }))
}

/// A video beside it, in the same way.
pub(super) fn flat_video(mut fields: Fields) -> Result<ContentPart, Invalid> {
    if fields.has("file_id") {
        return flat_file(fields);
    }
    let url = fields.need("video_url", url)?;
    video(fields, url, "video_url").map(ContentPart::VideoUrl)
}

/// A file as responses have it.
pub(super) fn flat_file(mut fields: Fields) -> Result<ContentPart, Invalid> {
    if let Some(url) = fields.read("file_url", url)? {
        return video(fields, url, "file_url").map(ContentPart::VideoUrl);
    }
    let inner = fields.split(&["file_id", "file_data", "filename"]);
    file(fields, inner, false).map(ContentPart::File)
}

fn video(mut fields: Fields, url: String, url_field: &'static str) -> Result<VideoUrlPart, Invalid> {
    let Sampled { start, end, fps, max_frames, detail } = sampled(&mut fields)?;
    Ok(VideoUrlPart { video_url: VideoUrl { url }, start, end, fps, max_frames, detail, url_field })
}

/// `inner` holds the file's own fields: an object in the part (`nested`), or the part itself.
fn file(mut fields: Fields, mut inner: Fields, nested: bool) -> Result<FilePart, Invalid> {
    let id = |field: Field| {
        let path = field.path.clone();
        let id = field.filled_string()?;
        if id.len() > MAX_ID_BYTES { Err(Invalid::new(path, "is too long")) } else { Ok(id) }
    };
    let data = |field: Field| {
        let path = field.path.clone();
        let data = field.string()?;
        let is_data = data.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
        if is_data { Ok(data) } else { Err(Invalid::new(path, "must be a data: URL of a video or picture")) }
    };
    let (file_id, file_data) = (inner.read("file_id", id)?, inner.read("file_data", data)?);
    let filename = inner.read("filename", Field::string)?.map(|name| name.chars().take(MAX_ID_BYTES).collect());
    if file_id.is_some() == file_data.is_some() {
        let path = fields.path(if nested { "file" } else { "file_id" });
        return Err(Invalid::new(path, "must hold file_id or file_data, and not both"));
    }
    let Sampled { start, end, fps, max_frames, detail } = sampled(&mut fields)?;
    Ok(FilePart { file: FileSource { file_id, file_data, filename, nested }, start, end, fps, max_frames, detail })
}

/// How to sample a video.
struct Sampled {
    start: Option<MediaTime>,
    end: Option<MediaTime>,
    fps: Option<f64>,
    max_frames: Option<u32>,
    detail: Option<Detail>,
}

fn sampled(fields: &mut Fields) -> Result<Sampled, Invalid> {
    let sampled = Sampled {
        start: fields.read("start", Field::time)?,
        end: fields.read("end", Field::time)?,
        fps: fields.read("fps", fps)?,
        max_frames: fields.read("max_frames", |field| field.count(1, MAX_FRAMES))?,
        detail: fields.read("detail", |field| field.choice(&DETAILS))?,
    };
    match sampled.end {
        Some(end) if end <= sampled.start.unwrap_or_default() => {
            Err(Invalid::new(fields.path("end"), "must be after start"))
        }
        _ => Ok(sampled),
    }
}

fn url(field: Field) -> Result<String, Invalid> {
    let path = field.path.clone();
    let url = field.filled_string()?;
    let is_data = url.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("data:"));
    if is_data || url.len() <= MAX_URL_BYTES {
        Ok(url)
    } else {
        Err(Invalid::new(path, format!("must be at most {MAX_URL_BYTES} bytes long unless it is a data: URL")))
    }
}

/// Frames a second.
pub(super) fn fps(field: Field) -> Result<f64, Invalid> {
    field.number("a number above 0 and at most 60", |fps| fps > 0.0 && fps <= MAX_FPS)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(body: Value) -> Result<Vec<Message>, Invalid> {
        Fields::root(body)?.need("messages", |field| messages(field, false))
    }

    #[test]
    fn all_text_together_is_bounded() {
        let half = "x".repeat(MAX_TEXT_BYTES / 2);
        let body = |last: &str| {
            json!({"messages": [
                {"role": "system", "content": half},
                {"role": "user", "content": [{"type": "text", "text": half}, {"type": "text", "text": last}]}]})
        };
        assert!(read(body("")).is_ok());
        let invalid = read(body("x")).expect_err("a byte too many");
        assert_eq!(invalid.param, "messages");
    }

    #[test]
    fn a_file_is_an_id_or_its_data() {
        let body = |part: Value| json!({"messages": [{"role": "user", "content": [part]}]});
        let file = |file: Value| body(json!({"type": "file", "file": file, "start": 1, "end": "00:09", "fps": 2}));
        for (given, picture) in [
            (json!({"file_id": "file-1"}), false),
            (json!({"file_data": "data:video/mp4;base64,AA", "filename": "a.mp4"}), false),
            (json!({"file_data": "data:image/gif;base64,AA", "file_id": null}), false),
            (json!({"file_data": "DATA:Image/png;base64,AA"}), true),
        ] {
            let messages = read(file(given.clone())).expect("valid");
            let Content::Parts(parts) = &messages[0].content else { panic!("{given}") };
            let [ContentPart::File(part)] = &parts[..] else { panic!("{given}") };
            assert_eq!((part.fps, part.file.holds_picture()), (Some(2.0), picture), "{given}");
        }
        for (given, param) in [
            (json!({}), "file"),
            (json!({"file_id": "file-1", "file_data": "data:video/mp4;base64,AA"}), "file"),
            (json!({"file_id": "x".repeat(300)}), "file.file_id"),
            (json!({"file_id": " "}), "file.file_id"),
            (json!({"file_data": "AAAA"}), "file.file_data"),
            (json!({"file_data": "https://example.org/a.mp4"}), "file.file_data"),
        ] {
            let invalid = read(file(given.clone())).expect_err("refused");
            assert_eq!(invalid.param, format!("messages[0].content[0].{param}"), "{given}");
        }
        let early = json!({"type": "file", "file": {"file_id": "file-1"}, "start": 5, "end": 5});
        assert_eq!(read(body(early)).expect_err("refused").param, "messages[0].content[0].end");
    }

    #[test]
    fn only_data_urls_may_be_long() {
        let body = |kind: &str, url: &str| {
            let mut part = json!({"type": kind});
            part[kind] = json!({"url": url});
            json!({"messages": [{"role": "user", "content": [part]}]})
        };
        for kind in ["video_url", "image_url"] {
            let long = |start: &str, length: usize| format!("{start}{}", "x".repeat(length - start.len()));
            assert!(read(body(kind, &long("http://a/", MAX_URL_BYTES))).is_ok());
            assert!(read(body(kind, &long("DATA:video/mp4;base64,", MAX_URL_BYTES * 2))).is_ok());
            for start in ["http://a/", "file:///", "data"] {
                let invalid = read(body(kind, &long(start, MAX_URL_BYTES + 1))).expect_err("too long");
                assert_eq!(invalid.param, format!("messages[0].content[0].{kind}.url"));
            }
        }
    }
}
