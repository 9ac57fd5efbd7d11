//! Supervised fine-tuning: the model learns to write what traces wrote (ParaVT, section 3.2.1).
//!
//! A run is a plan of stages, each with its sources and their shares; what a step learns from follows from the seed and the step's
//! number alone. So a run that was broken off and goes on gives the same losses as one that was not.

mod plan;
mod run;

pub use plan::{Fresh, Plan, PlanError, Source, Stage};
pub use run::{Progress, Report, Sft, SourceReport};
