//! Log-probabilities of an answer's tokens.

use serde::Serialize;
use utoipa::ToSchema;

/// Tokens of the answer, thinking not included.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct ChoiceLogprobs {
    /// In order.
    pub(crate) content: Vec<TokenLogprob>,
    /// `null`.
    #[schema(value_type = Option<Vec<TokenLogprob>>)]
    pub(crate) refusal: Option<()>,
}

/// A token that was chosen.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct TokenLogprob {
    /// Its text; a part of a character is shown as U+FFFD.
    pub(crate) token: String,
    /// Natural logarithm of its probability; -9999 stands for none at all, as OpenAI has it.
    pub(crate) logprob: f64,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
    /// The likeliest tokens at its place, as many as were asked for.
    pub(crate) top_logprobs: Vec<TopLogprob>,
}

/// A token that could have been chosen.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub(crate) struct TopLogprob {
    /// Its text.
    pub(crate) token: String,
    /// Natural logarithm of its probability.
    pub(crate) logprob: f64,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
}
