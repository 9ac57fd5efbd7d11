//! A question, as the agent takes it. No wire structs.

use serde_json::{Map, Value};

use crate::config::Dispatch;
use crate::engine::{Grammar, Sampling};
use crate::media::SourceRequest;
use crate::types::{Frame, MediaTime, Role, TraceContext};

use super::parser::ToolCall;

/// A question with what it is about.
#[derive(Debug, Clone)]
pub struct AskRequest {
    /// The conversation. The last turn is the user's: a question, or what the caller's own tools gave.
    pub turns: Vec<AskTurn>,
    /// What the caller wants of the main agent's sampling. In an episode `max_tokens` (0: no bound but the card's) and
    /// `stop` are about the answer alone; in a plain completion about all of it.
    pub sampling: Sampling,
    /// Text the answer of a plain completion already starts with, as the caller wrote it. Not repeated in the answer; not
    /// for episodes, whose turns are opened by the card.
    pub prefix: String,
    /// How to run.
    pub options: AskOptions,
    /// Names the episode in logs, and its keys and values in the engine.
    pub id: String,
    /// The episode's place in a trace; those of its turns and windows follow from it.
    pub trace: Option<TraceContext>,
}

impl AskRequest {
    /// One question about one whole video, as the card has it.
    #[must_use]
    pub fn about(video: SourceRequest, question: String, id: String) -> Self {
        let parts = vec![AskPart::Video(VideoPart::whole(video)), AskPart::Text(question)];
        Self {
            turns: vec![AskTurn { role: Role::User, parts }],
            sampling: Sampling::default(),
            prefix: String::new(),
            options: AskOptions::default(),
            id,
            trace: None,
        }
    }
}

/// One turn of the caller's conversation.
#[derive(Debug, Clone)]
pub struct AskTurn {
    /// Who speaks. A caller's system turn follows the card's system prompt.
    pub role: Role,
    /// What is said.
    pub parts: Vec<AskPart>,
}

/// A piece of a turn.
#[derive(Debug, Clone)]
pub enum AskPart {
    /// Text.
    Text(String),
    /// A still picture, already decoded and scaled.
    Image(Frame),
    /// A video.
    Video(VideoPart),
    /// A call of the caller's own tool that the model made in an earlier answer.
    ToolCall(ToolCall),
    /// What a tool of the caller's gave.
    ToolResult(String),
}

/// A video and how the caller wants it sampled.
#[derive(Debug, Clone)]
pub struct VideoPart {
    /// Where it is.
    pub source: SourceRequest,
    /// Only from here.
    pub start: Option<MediaTime>,
    /// Only to here.
    pub end: Option<MediaTime>,
    /// Overview frames a second, in place of the card's.
    pub fps: Option<f64>,
    /// Most overview frames, in place of the card's.
    pub max_frames: Option<u32>,
    /// Exactly this many overview frames.
    pub frames: Option<u32>,
}

impl VideoPart {
    /// The whole video as the card samples it.
    #[must_use]
    pub const fn whole(source: SourceRequest) -> Self {
        Self { source, start: None, end: None, fps: None, max_frames: None, frames: None }
    }
}

/// How an episode runs. `None` leaves the card's or the configuration's value.
#[derive(Debug, Clone, Default)]
pub struct AskOptions {
    /// `false`: one plain completion over the frames, no tools. By default true when there is a video.
    pub agent: Option<bool>,
    /// All windows at once or one after another.
    pub dispatch: Option<Dispatch>,
    /// Fewer turns with tools than the card allows.
    pub max_turns: Option<u32>,
    /// Fewer calls a turn than the card allows.
    pub max_calls: Option<u32>,
    /// Whether windows may, may not, or must be watched.
    pub tools: ToolUse,
    /// Functions of the caller's own, which the model may call; the caller runs them.
    pub client_tools: Vec<ClientTool>,
    /// At most one call of these in an answer.
    pub single_call: bool,
    /// What the answer must be.
    pub form: AnswerForm,
    /// Plain completions alone: all of the model's text is the answer, thinking and tags too.
    pub raw: bool,
}

/// A function of the caller's own.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientTool {
    /// Its name: letters, digits, `_` and `-`.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON schema of its arguments.
    pub parameters: Map<String, Value>,
}

/// What the answer must be.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum AnswerForm {
    /// Text, or a call of a tool of the caller's if the model wants one.
    #[default]
    Free,
    /// A text of this grammar.
    Fits(Grammar),
    /// A call of one of [`AskOptions::client_tools`]; `Some`: of the one at this place.
    Call(Option<usize>),
}

/// `tool_choice`, for our own tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ToolUse {
    /// The model decides.
    #[default]
    Auto,
    /// No windows.
    None,
    /// At least one window before the answer.
    Required,
}
