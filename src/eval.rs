//! Benchmarks: questions with known answers, asked, judged and summed up.
//!
//! ```text
//! Suite::load ──► Item … ──► run (through the agent) ──► Store (a line each) ──► Report, Comparison
//! ```
//! This room knows no terminal and no HTTP. What a reply is worth is in [`extract`] and [`item`], which are pure.

mod extract;
mod item;
mod plot;
mod record;
mod report;
mod run;
mod suite;

pub use item::{Gold, Item, Judged};
pub use plot::plot;
pub use record::{Record, Run, Store};
pub use report::{Comparison, Estimate, Report, Scores};
pub use run::{Asking, Mode, digest, digest_of, run};
pub use suite::{Boards, SIGNAL_BOARD, Suite, SuiteError, film_board, film_boards, signal_board};
