//! Plain values that every layer may name: time, frames, conversation turns, token counts.
//!
//! This room knows nothing of HTTP, ffmpeg, engines or prompts, and does no I/O.

mod clip;
mod message;
mod time;
mod usage;

pub use clip::{Clip, Frame, FrameSize};
pub use message::{Part, Role, Turn};
pub use time::{MediaTime, ParseTimeError, TimeSpan};
pub use usage::TokenUsage;
