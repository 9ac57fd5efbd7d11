//! The seam: what every engine takes and gives.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use futures::stream::BoxStream;
use serde::Serialize;

use super::{EngineError, Seat};
use crate::types::{TokenUsage, TraceContext, Turn};

/// Something that generates text from turns of text and frames.
#[async_trait]
pub trait Engine: Send + Sync + std::fmt::Debug {
    /// Starts one generation.
    ///
    /// Returns once the request is accepted (it may still wait in the engine's queue). Dropping the stream, or the
    /// future before it resolves, cancels the work: no token is computed for it after the one in progress.
    ///
    /// # Errors
    /// [`EngineError`] when the request can't be served at all; what fails later is an item of the stream.
    async fn generate(&self, request: GenerateRequest) -> Result<TokenStream, EngineError>;

    /// Whether it can hold outputs to this grammar, found out before anything is done for the request.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] when the grammar is malformed or too large. Engines that leave that to others say nothing here,
    /// and fail when they generate.
    async fn check(&self, _grammar: &Grammar) -> Result<(), EngineError> {
        Ok(())
    }

    /// What this engine is and can do.
    fn info(&self) -> EngineInfo;

    /// What it is doing now. Both zero: idle.
    fn load(&self) -> EngineLoad;

    /// The servers it asks, in the order they were configured. None for engines that ask nobody.
    fn upstreams(&self) -> Vec<UpstreamLoad> {
        Vec::new()
    }
}

/// Text as it comes, ended by exactly one [`TokenEvent::Finished`] or by one error.
pub type TokenStream = BoxStream<'static, Result<TokenEvent, EngineError>>;

/// One generation to run.
#[derive(Debug)]
pub struct GenerateRequest {
    /// The conversation. The assistant's next turn is generated.
    pub turns: Vec<Turn>,
    /// Text the assistant's turn already starts with (`<think>\n`). Not repeated in the output.
    pub prefix: String,
    /// How to choose tokens.
    pub sampling: Sampling,
    /// Which keys and values to reuse, and which requests belong to one episode.
    pub session: SessionKey,
    /// Who speaks.
    pub speaker: Speaker,
    /// A seat in a burst, for engines that batch only what starts together. Others drop it.
    pub seat: Option<Seat>,
    /// When its result is of no use any more: engines that schedule give up then, with
    /// [`EngineError::DeadlineExceeded`]. Others leave it to the caller, who drops the stream.
    pub deadline: Option<Instant>,
    /// Its place in a trace, for engines that ask other servers. Others drop it.
    pub trace: Option<TraceContext>,
}

/// Names an episode: its main turns share a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionKey(pub Arc<str>);

/// Which agent a generation is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Speaker {
    /// The one that answers: long prefix, continued over turns.
    Main,
    /// One window's watcher: a fresh conversation, gone after one turn.
    Sub,
}

impl Speaker {
    /// Name in metrics and traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Sub => "sub",
        }
    }
}

/// How to choose tokens. `None` leaves the engine's neutral value; temperature 0 is greedy.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Sampling {
    /// Softmax temperature, 0 to 2.
    pub temperature: Option<f64>,
    /// Nucleus mass, above 0 up to 1.
    pub top_p: Option<f64>,
    /// Number of candidates, at least 1.
    pub top_k: Option<u32>,
    /// Candidates below this share of the best one are dropped, 0 to 1.
    pub min_p: Option<f64>,
    /// -2 to 2.
    pub frequency_penalty: Option<f64>,
    /// -2 to 2.
    pub presence_penalty: Option<f64>,
    /// Above 0; 1 is none.
    pub repetition_penalty: Option<f64>,
    /// Same seed, same text.
    pub seed: Option<u64>,
    /// Texts that end the generation; they are not part of the output.
    pub stop: Vec<String>,
    /// Longest output in tokens, the prefix not counted.
    pub max_tokens: u32,
    /// Keep going at the end-of-text token (benchmark clients ask for this).
    pub ignore_eos: bool,
    /// Report each token's log-probability, and of so many alternatives at its place. `Some(0)`: the chosen token's alone.
    pub logprobs: Option<u32>,
    /// What the output, or a part of it, must look like.
    pub constraint: Option<Constraint>,
}

/// Bounds what the output may be, or a part of it.
///
/// From the moment the output's text holds `after`, each token continues a text of the grammar; once that is complete,
/// exactly `then` follows. After `then` the model is free again; without one, the generation ends there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Constraint {
    /// What is allowed.
    pub grammar: Grammar,
    /// Text that the constrained part follows (`<answer>`); what is before it is free. `None`: all of the output is
    /// constrained. A prefix that the request brings counts as output here.
    pub after: Option<String>,
    /// Text that follows the constrained part (`</answer>`).
    pub then: Option<String>,
}

/// A set of texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grammar {
    /// JSON that fits this schema, itself written as JSON.
    JsonSchema(String),
    /// Any JSON object.
    JsonObject,
    /// Texts that match this regular expression from beginning to end.
    Regex(String),
    /// Texts of this grammar, in llguidance's dialect of Lark.
    Lark(String),
}

/// What a stream yields.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenEvent {
    /// The request left the queue: prefill begins.
    Started {
        /// Tokens to read, frames included, where the engine knows them before the end.
        prompt_tokens: Option<u64>,
    },
    /// Generated text, in order. Raw: `<think>`, `<tool_call>` and the like are in it.
    Text(String),
    /// Tokens that were chosen, in order and none left out; only where [`Sampling::logprobs`] asks for them. They come
    /// before the text they add, which may be held back for a while, or for good where a stop text is cut.
    Tokens(Vec<TokenInfo>),
    /// The end.
    Finished(Generated),
}

/// A token that was chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenInfo {
    /// Its number in the vocabulary, where the engine knows it.
    pub id: Option<u32>,
    /// What it adds to the text: perhaps a part of a character; nothing for the token that ends the text.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability, as the model gives it: before penalties, temperature, truncation and
    /// constraints.
    pub logprob: f64,
    /// The likeliest tokens at its place, best first: as many as were asked for.
    pub top: Vec<TokenAlternative>,
}

/// A token that could have been chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenAlternative {
    /// Its number in the vocabulary, where the engine knows it.
    pub id: Option<u32>,
    /// What it would add to the text.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability, as in [`TokenInfo::logprob`].
    pub logprob: f64,
}

/// How a generation ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Generated {
    /// Why it ended.
    pub reason: FinishReason,
    /// What it cost.
    pub usage: TokenUsage,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// End-of-text token or a stop text.
    #[default]
    Stop,
    /// `max_tokens` or the model's context was reached.
    Length,
}

/// What an engine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineInfo {
    /// `native`, `mistralrs`, `remote`, `scripted`.
    pub name: &'static str,
    /// What it runs or whom it asks, for people (no secrets in it).
    pub detail: String,
    /// What may run at the same time.
    pub batching: Batching,
    /// Which sampling fields it can honour.
    pub supported: Supported,
}

/// Which requests an engine can run in one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batching {
    /// Any.
    Ragged,
    /// Only requests with equal prompt length and equal frames that start together.
    EqualShapes,
}

/// Which optional sampling fields an engine honours. For one it can't, the API answers 400.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Supported {
    /// [`Sampling::seed`].
    pub seed: bool,
    /// [`Sampling::min_p`].
    pub min_p: bool,
    /// [`Sampling::top_k`].
    pub top_k: bool,
    /// [`Sampling::repetition_penalty`].
    pub repetition_penalty: bool,
    /// [`Sampling::ignore_eos`].
    pub ignore_eos: bool,
    /// [`Sampling::logprobs`].
    pub logprobs: bool,
    /// [`Sampling::constraint`].
    pub constraint: bool,
}

impl Supported {
    /// All of them.
    pub const ALL: Self = Self::each(true);
    /// None of them.
    pub const NONE: Self = Self::each(false);

    const fn each(supported: bool) -> Self {
        Self {
            seed: supported,
            min_p: supported,
            top_k: supported,
            repetition_penalty: supported,
            ignore_eos: supported,
            logprobs: supported,
            constraint: supported,
        }
    }
}

/// What an engine is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineLoad {
    /// Generations being computed.
    pub running: usize,
    /// Generations waiting.
    pub queued: usize,
}

/// How one of the servers does that an engine asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamLoad {
    /// Whether requests are sent there.
    pub up: bool,
    /// Requests it has not finished.
    pub outstanding: usize,
}
