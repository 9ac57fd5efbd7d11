//! Tests across rooms: real sockets, real files, the scripted engine, and the tiny checkpoint.
//!
//! What they need lies in `fixtures/` and `model_cards/paravt-tiny/`, or is made with ffmpeg.

#![expect(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod agent;
#[cfg(feature = "native")]
mod answers;
mod api;
mod architecture;
mod batch;
#[cfg(feature = "native")]
mod boards;
mod cli;
mod dashboard;
#[cfg(feature = "native")]
mod eval;
mod media;
#[cfg(feature = "mistralrs")]
mod mistralrs;
#[cfg(feature = "native")]
mod model;
#[cfg(feature = "native")]
mod native;
mod openapi;
mod remote;
mod support;
#[cfg(feature = "native")]
mod tokens;
#[cfg(feature = "train")]
mod train;
