//! Data sets of training: conversations to imitate (supervised fine-tuning) and prompts with answers (reinforcement learning),
//! in the two Parquet layouts that ParaVT publishes and as lines of JSON.
//!
//! Reading, writing, checking, counting, filtering, and turning sequential traces into parallel ones. Knows nothing of tensors,
//! tokens or models. Rows are read one at a time; what is over a bound gets an error that names file, row and column.

mod check;
mod error;
mod file;
mod filter;
mod lines;
mod parallel;
mod pieces;
mod refers;
mod row;
mod statistics;
mod table;
mod trace;

pub use check::{Check, Problem, Report};
pub use error::DatasetError;
pub use file::{Format, Reader, Writer, read_rl, read_sft};
pub use filter::{Filter, MOST_OPEN_WORDS, Rollouts, Verdict};
pub use parallel::{Parallel, parallel};
pub use row::{Content, ContentPart, Layout, Medium, Message, PromptMessage, RlRow, Row, SftRow, VideoFile};
pub use statistics::Statistics;
