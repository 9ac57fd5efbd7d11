//! PARA-GRPO: the policy rolls episodes out through the agent, each prompt several times; what did better than its group is made
//! likelier (ParaVT, section 3.2; GRPO of arXiv 2402.03300).
//!
//! ```text
//! prompts ─► rollouts: agent on the native engine ─► rewards ─► advantages ─► trajectories ─► step ─┐
//!               ▲                                                                                   │
//!               └──────────────────────────── new weights, between two steps of the engine ◄────────┘
//! ```

mod measure;
mod plan;
mod run;

pub use measure::StepReport;
pub use plan::{GrpoPlan, Variant};
pub use run::Grpo;
