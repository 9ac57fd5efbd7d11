//! Messages and their parts.

use serde::Serialize;
use utoipa::ToSchema;

use super::field::{Field, Fields, Invalid};
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
/// Most overview frames a caller may ask for (the most Qwen3-VL was evaluated with).
pub(crate) const MAX_FRAMES: u32 = 2048;
/// Most frames a second a caller may ask for.
pub(crate) const MAX_FPS: f64 = 60.0;

/// One message of the conversation.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Message {
    /// Who speaks.
    pub(crate) role: MessageRole,
    /// What is said.
    pub(crate) content: Content,
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
}

/// Where a video is.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct VideoUrl {
    /// `http(s)://`, `data:video/…;base64,…`, or `file://` below an allowed folder.
    pub(crate) url: String,
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
    if count(|part| matches!(part, ContentPart::ImageUrl(_))) > MAX_IMAGES {
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
    if messages[place].role == MessageRole::User {
        Ok(messages)
    } else {
        Err(Invalid::new(format!("{path}[{place}].role"), format!("must be \"user\" {before} message")))
    }
}

fn message(field: Field) -> Result<Message, Invalid> {
    let mut fields = field.object()?;
    let role = fields.need("role", |role| {
        let path = role.path.clone();
        let known = [
            ("system", Some(MessageRole::System)),
            ("developer", Some(MessageRole::Developer)),
            ("user", Some(MessageRole::User)),
            ("assistant", Some(MessageRole::Assistant)),
            ("tool", None),
            ("function", None),
        ];
        role.choice(&known)?.ok_or_else(|| Invalid::not_yet(path))
    })?;
    for name in ["tool_calls", "function_call"] {
        if let Some(field) = fields.take(name).filter(|field| !field.asks_nothing()) {
            return Err(Invalid::not_yet(field.path));
        }
    }
    let content = fields.need("content", |content| {
        if content.is_string() {
            return content.string().map(Content::Text);
        }
        let parts = content.list(1, MAX_PARTS).map_err(|invalid| Invalid {
            problem: format!("must be a string or a list of 1 to {MAX_PARTS} parts"),
            ..invalid
        })?;
        parts.into_iter().map(|field| part(field, role)).collect::<Result<_, _>>().map(Content::Parts)
    })?;
    Ok(Message { role, content })
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Text,
    Image,
    Video,
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
            ("file", Kind::NotYet),
            ("input_audio", Kind::NotYet),
            ("refusal", Kind::NotYet),
        ])
    })?;
    if matches!(kind, Kind::Image | Kind::Video) && role != MessageRole::User {
        return Err(Invalid::new(type_path, "must be \"text\" outside user messages"));
    }
    match kind {
        Kind::Text => Ok(ContentPart::Text(TextPart { text: fields.need("text", Field::string)? })),
        Kind::Image => {
            let mut inner = fields.need("image_url", Field::object)?;
            let url = inner.need("url", url)?;
            let detail = inner.read("detail", |field| field.choice(&DETAILS))?;
            Ok(ContentPart::ImageUrl(ImageUrlPart { image_url: ImageUrl { url, detail } }))
        }
        Kind::Video => video(fields).map(ContentPart::VideoUrl),
        Kind::NotYet => Err(Invalid::not_yet(type_path)),
    }
}

fn video(mut fields: Fields) -> Result<VideoUrlPart, Invalid> {
    let url = fields.need("video_url", Field::object)?.need("url", url)?;
    let part = VideoUrlPart {
        video_url: VideoUrl { url },
        start: fields.read("start", Field::time)?,
        end: fields.read("end", Field::time)?,
        fps: fields.read("fps", fps)?,
        max_frames: fields.read("max_frames", |field| field.count(1, MAX_FRAMES))?,
        detail: fields.read("detail", |field| field.choice(&DETAILS))?,
    };
    match part.end {
        Some(end) if end <= part.start.unwrap_or_default() => {
            Err(Invalid::new(fields.path("end"), "must be after start"))
        }
        _ => Ok(part),
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
