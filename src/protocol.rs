//! The wire: OpenAI's shapes and ours beside them, as plain structs.
//!
//! Requests are read by hand from JSON ([`field`]), because serde's derive can't say which field was wrong and a 400 must
//! name it. Only `api` sees this room; it knows `types` and `config`, and nothing of agents, engines or axum.

pub(crate) mod chat;
pub(crate) mod chunk;
pub(crate) mod completion;
pub(crate) mod content;
pub(crate) mod error;
mod field;
pub(crate) mod files;
pub(crate) mod logprobs;
pub(crate) mod models;
pub(crate) mod responses;
pub(crate) mod tools;

pub(crate) use field::Invalid;
