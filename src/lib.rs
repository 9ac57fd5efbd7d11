//! paravt answers questions about long videos: a main agent looks at an overview, sends sub-agents to watch many
//! windows at the same time, and answers from what they report.
//!
//! Layers, each seeing only those to its right: `cli → app → api → agent → { engine, media } → types`. Beside `types` stand
//! plain values and interfaces: `card`, `config`, `ledger`, `metrics`, `traces`, `telemetry`, `shutdown`, and `protocol`, the wire's objects, which
//! `api` alone sees. `train` stands beside the server, behind the feature of its name: `cli` alone sees it. `src/tests/architecture.rs` checks all of it.

pub mod agent;
pub mod api;
pub mod app;
pub mod batch;
pub mod card;
pub mod cli;
pub mod config;
pub mod engine;
pub mod eval;
pub mod ledger;
pub mod media;
pub mod metrics;
#[cfg(feature = "native")]
pub mod model;
mod protocol;
pub mod shutdown;
pub mod synthetic;
pub mod telemetry;
pub mod traces;
// Its unit tests are run with the engine's: they need nothing else.
#[cfg(any(feature = "train", all(test, feature = "native")))]
pub mod train;
pub mod types;
