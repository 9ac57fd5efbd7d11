//! Events of many videos: tasks in, a line of JSON for each out, for pipelines that run unattended.
//!
//! ```text
//! Task ──► segments ──► an episode each (through the agent) ──► Found, a line each in the journal ──► Done, merged
//! ```
//! A long video is cut into segments, each of which is asked about as a video of its own: an overview has the same few
//! frames however long a video is. What two segments saw of the same event in the time they share is told once.
//!
//! The journal is what counts; the file of results is made from it, so that it is the same however often a run was broken
//! off. This room knows no terminal and no HTTP.

mod event;
mod output;
mod run;
mod score;
mod segment;
mod task;

pub use event::{Event, EventSource, events_schema};
pub use output::{Batch, Done, Found, Journal, Missing, Tokens};
pub use run::{Asking, Told, run};
pub use score::{Score, Truth, score};
pub use segment::Cut;
pub use task::{Task, TaskError, read_tasks};
