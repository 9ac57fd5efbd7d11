//! Plain values that every layer may name: time, frames, conversation turns, token counts, a place in a trace.
//!
//! This room knows nothing of HTTP, ffmpeg, engines or prompts, and does no I/O.

mod clip;
mod hex;
mod message;
mod time;
mod trace;
mod usage;

pub use clip::{Clip, Frame, FrameSize};
pub use hex::hex;
pub use message::{Part, Role, Turn};
pub use time::{MediaTime, ParseTimeError, TimeSpan};
pub use trace::TraceContext;
pub use usage::TokenUsage;
