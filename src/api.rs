//! The HTTP surface: OpenAI's chat completions over videos, and what operators need beside it.
//!
//! This room turns requests into [`crate::agent::AskRequest`]s and events into bytes. It alone sees `protocol` and axum.
//! It knows nothing of prompts, parsers, decoding or engines' insides.

mod admission;
mod caller;
mod convert;
mod error;
mod extract;
mod keys;
mod linger;
mod middleware;
mod observe;
mod openapi;
mod origin;
mod ranges;
mod router;
mod routes;
mod serve;
mod sse;
mod state;
mod thumbnails;
mod upload;
mod wire;

pub use openapi::{openapi, openapi_json};
pub use router::router;
pub use serve::serve;
pub use state::ApiState;
