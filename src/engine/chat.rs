//! What the embedded engines share about Qwen3-VL's conversations: the template, the tokenizer, what a frame costs.
//!
//! Knows nothing of scheduling, of weights, or of any inference crate.

#[cfg(feature = "native")]
pub(in crate::engine) mod bytes;
pub(in crate::engine) mod geometry;
pub(in crate::engine) mod prompt;
pub(in crate::engine) mod vocabulary;
