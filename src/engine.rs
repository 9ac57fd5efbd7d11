//! Engines turn a conversation of text and frames into text. The rest of paravt sees the narrow [`Engine`] trait.
//!
//! This room knows nothing of HTTP requests to us, of video files, of prompts, tools or episodes.

#[cfg(any(feature = "native", feature = "mistralrs"))]
mod chat;
#[expect(
    clippy::module_inception,
    reason = "the trait's file carries the trait's name, as the architecture lays it out"
)]
mod engine;
mod error;
mod gang;
#[cfg(feature = "mistralrs")]
pub mod mistralrs;
#[cfg(feature = "native")]
pub mod native;
pub mod remote;
pub mod scripted;
mod stop;

pub use engine::{
    Batching, Constraint, Engine, EngineInfo, EngineLoad, FinishReason, GenerateRequest, Generated, Grammar, Sampling,
    SessionKey, Speaker, Supported, TokenAlternative, TokenEvent, TokenInfo, TokenStream, UpstreamLoad,
};
pub use error::EngineError;
pub use gang::{Gang, Seat};
pub(crate) use stop::StopFilter;
