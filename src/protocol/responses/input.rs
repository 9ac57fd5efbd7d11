//! `input`: a question, or items. Items become the messages of a chat completion.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::protocol::content::{self, Content, ContentPart, MAX_MESSAGES, MAX_PARTS, Message, MessageRole, TextPart};
use crate::protocol::field::{Field, Fields, Invalid};
use crate::protocol::tools::{FunctionCall, FunctionKind, MAX_ID, ToolCall, arguments, name};

/// A question, or items.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes in the OpenAPI document what `messages` reads")]
pub(crate) enum Input {
    /// A question of the user's.
    Text(String),
    /// The conversation: `message`, `function_call`, `function_call_output`; `reasoning` and `mcp_call` items of earlier
    /// answers are accepted and left out. Parts of messages: `input_text`, `output_text`, `input_image`, `input_file`, and
    /// ours: `input_video` with `video_url` or `file_id`, and optional `start`, `end`, `fps`, `max_frames`.
    Items(Vec<Value>),
}

/// Reads `input`.
pub(super) fn messages(field: Field) -> Result<Vec<Message>, Invalid> {
    let path = field.path.clone();
    if field.is_string() {
        let content = Content::Text(field.filled_string()?);
        return Ok(vec![Message::said(path, MessageRole::User, content)]);
    }
    let items = field.list(1, MAX_MESSAGES).map_err(|invalid| Invalid {
        problem: format!("must be a string or a list of 1 to {MAX_MESSAGES} items"),
        ..invalid
    })?;
    let mut messages = Vec::new();
    for field in items {
        item(field, &mut messages)?;
    }
    content::check(&path, &messages)?;
    match messages.last() {
        Some(last) if matches!(last.role, MessageRole::User | MessageRole::Tool) => Ok(messages),
        Some(last) => {
            Err(Invalid::new(last.path.clone(), "must not be the last item: a question or a tool's result is"))
        }
        None => Err(Invalid::new(path, "must hold a message")),
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Message,
    Call,
    Result,
    LeftOut,
    NotYet,
}

fn item(field: Field, messages: &mut Vec<Message>) -> Result<(), Invalid> {
    let path = field.path.clone();
    let mut fields = field.object()?;
    let type_path = fields.path("type");
    let kinds = [
        ("message", Kind::Message),
        ("function_call", Kind::Call),
        ("function_call_output", Kind::Result),
        // Of earlier answers. What a window showed is in the answer that followed it.
        ("reasoning", Kind::LeftOut),
        ("mcp_call", Kind::LeftOut),
        ("item_reference", Kind::NotYet),
    ];
    match fields.read("type", |field| field.choice(&kinds))?.unwrap_or(Kind::Message) {
        Kind::Message => messages.push(message(path, &mut fields)?),
        Kind::Call => {
            let id = fields.need("call_id", |field| field.bounded_string(MAX_ID))?;
            let function =
                FunctionCall { name: fields.need("name", name)?, arguments: fields.need("arguments", arguments)? };
            let call = ToolCall { id, kind: FunctionKind::Function, function };
            // Calls of one answer, and its text, are one message.
            match messages.last_mut().filter(|last| last.role == MessageRole::Assistant) {
                Some(last) => last.tool_calls.push(call),
                None => {
                    let said = Message::said(path, MessageRole::Assistant, Content::Text(String::new()));
                    messages.push(Message { tool_calls: vec![call], ..said });
                }
            }
        }
        Kind::Result => {
            let id = fields.need("call_id", |field| field.bounded_string(MAX_ID))?;
            let content = fields.need("output", |field| content(field, MessageRole::Tool))?;
            messages.push(Message { tool_call_id: Some(id), ..Message::said(path, MessageRole::Tool, content) });
        }
        Kind::LeftOut => {}
        Kind::NotYet => return Err(Invalid::not_yet(type_path)),
    }
    Ok(())
}

fn message(path: String, fields: &mut Fields) -> Result<Message, Invalid> {
    let role = fields.need("role", |field| {
        field.choice(&[
            ("system", MessageRole::System),
            ("developer", MessageRole::Developer),
            ("user", MessageRole::User),
            ("assistant", MessageRole::Assistant),
        ])
    })?;
    let content = fields.need("content", |field| content(field, role))?;
    Ok(Message::said(path, role, content))
}

fn content(field: Field, role: MessageRole) -> Result<Content, Invalid> {
    if field.is_string() {
        return field.string().map(Content::Text);
    }
    let parts = field.list(1, MAX_PARTS).map_err(|invalid| Invalid {
        problem: format!("must be a string or a list of 1 to {MAX_PARTS} parts"),
        ..invalid
    })?;
    parts.into_iter().map(|field| part(field, role)).collect::<Result<_, _>>().map(Content::Parts)
}

#[derive(Clone, Copy, PartialEq)]
enum PartKind {
    Text,
    Refusal,
    Image,
    Video,
    File,
}

fn part(field: Field, role: MessageRole) -> Result<ContentPart, Invalid> {
    let mut fields = field.object()?;
    let type_path = fields.path("type");
    let kinds = [
        ("input_text", PartKind::Text),
        ("output_text", PartKind::Text),
        ("text", PartKind::Text),
        ("refusal", PartKind::Refusal),
        ("input_image", PartKind::Image),
        ("input_video", PartKind::Video),
        ("input_file", PartKind::File),
    ];
    let kind = fields.need("type", |field| field.choice(&kinds))?;
    if matches!(kind, PartKind::Image | PartKind::Video | PartKind::File) && role != MessageRole::User {
        return Err(Invalid::new(type_path, "must be text outside user messages"));
    }
    let text =
        |fields: &mut Fields, name: &str| Ok(ContentPart::Text(TextPart { text: fields.need(name, Field::string)? }));
    match kind {
        PartKind::Text => text(&mut fields, "text"),
        PartKind::Refusal => text(&mut fields, "refusal"),
        PartKind::Image => content::flat_image(fields),
        PartKind::Video => content::flat_video(fields),
        PartKind::File => content::flat_file(fields),
    }
}
