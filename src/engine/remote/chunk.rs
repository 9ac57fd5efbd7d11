//! What upstreams send, as much of it as we use. Lenient: servers differ in what they leave out or add.

use serde::Deserialize;
use serde_json::Value;

use crate::engine::{EngineError, FinishReason, TokenAlternative, TokenInfo};
use crate::types::TokenUsage;

/// One event of a streamed completion.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Chunk {
    choices: Option<Vec<Choice>>,
    usage: Option<Usage>,
    /// vLLM and SGLang report a failure while streaming this way.
    pub(super) error: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Choice {
    delta: Option<Delta>,
    logprobs: Option<Logprobs>,
    finish_reason: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Logprobs {
    content: Option<Vec<Token>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Token {
    token: String,
    logprob: Option<f64>,
    bytes: Option<Vec<u8>>,
    top_logprobs: Option<Vec<Token>>,
}

impl Token {
    /// Its bytes and its logarithm; what is missing there is as unlikely as can be.
    fn parts(self) -> (Vec<u8>, f64) {
        (self.bytes.unwrap_or_else(|| self.token.into_bytes()), self.logprob.unwrap_or(f64::NEG_INFINITY))
    }

    fn info(mut self) -> TokenInfo {
        let others = self.top_logprobs.take().unwrap_or_default().into_iter().map(Self::parts);
        let top = others.map(|(bytes, logprob)| TokenAlternative { id: None, bytes, logprob }).collect();
        let (bytes, logprob) = self.parts();
        TokenInfo { id: None, bytes, logprob, top }
    }
}

/// What one event adds.
pub(super) struct Piece {
    pub(super) delta: Delta,
    /// Tokens written since the last event, those of special tokens included, where they were asked for.
    pub(super) tokens: Vec<TokenInfo>,
    /// Why it ended, if it did.
    pub(super) reason: Option<String>,
}

/// What was added.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Delta {
    pub(super) content: Option<String>,
    pub(super) reasoning_content: Option<String>,
    pub(super) reasoning: Option<String>,
    pub(super) tool_calls: Option<Vec<ToolDelta>>,
}

/// A piece of a call.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ToolDelta {
    pub(super) index: Option<u32>,
    pub(super) function: Option<FunctionDelta>,
}

/// A piece of a call's function.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FunctionDelta {
    pub(super) name: Option<String>,
    /// A piece of a string of JSON; some servers send the object itself.
    pub(super) arguments: Option<Value>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

impl Chunk {
    /// What is added to the only choice: we ask for one.
    pub(super) fn piece(&mut self) -> Option<Piece> {
        let choice = self.choices.take()?.into_iter().next()?;
        let tokens = choice.logprobs.and_then(|logprobs| logprobs.content).unwrap_or_default();
        Some(Piece {
            delta: choice.delta.unwrap_or_default(),
            tokens: tokens.into_iter().map(Token::info).collect(),
            reason: choice.finish_reason,
        })
    }

    /// The counts, where this event has them.
    pub(super) fn usage(&self) -> Option<TokenUsage> {
        let usage = self.usage?;
        let cached = usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
        Some(TokenUsage {
            prompt_tokens: usage.prompt_tokens.unwrap_or(0),
            cached_tokens: cached.unwrap_or(0),
            completion_tokens: usage.completion_tokens.unwrap_or(0),
        })
    }
}

/// Reads an upstream's reason for ending.
///
/// # Errors
/// [`EngineError::Failed`] when the upstream gave up.
pub(super) fn finish_reason(reason: &str) -> Result<FinishReason, EngineError> {
    match reason {
        "length" => Ok(FinishReason::Length),
        "abort" | "error" => Err(EngineError::Failed("the upstream gave up".to_owned())),
        // `stop`, `tool_calls`, `eos_token`, `content_filter`: the turn is over.
        _ => Ok(FinishReason::Stop),
    }
}
