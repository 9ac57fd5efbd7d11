//! Conversation turns as engines take them: text and frames interleaved.

use super::Frame;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions.
    System,
    /// The caller, and tool responses, which ParaVT sends as user turns.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The name chat templates and OpenAI's API use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// A piece of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Plain text. It may hold anything a user typed: an engine must keep it from being read as special tokens.
    Text(String),
    /// One picture.
    Frame(Frame),
    /// Two neighbouring frames of a video that the model reads as one picture, in the tokens of one. Of equal size.
    FramePair([Frame; 2]),
}

impl Part {
    /// Its frames: none, one, or both of a pair.
    #[must_use]
    pub const fn frames(&self) -> &[Frame] {
        match self {
            Self::Text(_) => &[],
            Self::Frame(frame) => std::slice::from_ref(frame),
            Self::FramePair(pair) => pair,
        }
    }
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// Who speaks.
    pub role: Role,
    /// What is said, in order.
    pub parts: Vec<Part>,
}

impl Turn {
    /// A turn of text alone.
    #[must_use]
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self { role, parts: vec![Part::Text(text.into())] }
    }

    /// The frames of this turn, in order.
    pub fn frames(&self) -> impl Iterator<Item = &Frame> {
        self.parts.iter().flat_map(Part::frames)
    }
}
