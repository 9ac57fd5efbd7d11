//! Training of the model that the server hosts: supervised fine-tuning on traces of the agent, then PARA-GRPO (ParaVT, section
//! 3.2 and on).
//!
//! This room may use the agent, engines, media and the model; nothing but the command line sees it. Everything that can be
//! without tensors is: rewards, data and traces are plain values.

mod advantage;
pub mod batch;
pub mod bench;
pub mod checkpoint;
pub mod dataset;
mod error;
mod gating;
pub mod grpo;
pub mod learner;
pub mod optimizer;
pub mod policy;
mod reward;
pub mod rollout;
pub mod sft;
pub mod synthetic;
pub mod trajectory;

pub use advantage::Shaping;
pub use error::TrainError;
pub use gating::FrameGating;
pub use reward::{
    AnswerMode, Compat, QuestionType, Reward, RewardConfig, RuleReward, Scores, TagCount, Tags, Truth, Written,
    WrittenTurn,
};

/// Numbers of a standard normal distribution (Box and Muller).
fn normal(random: &mut crate::synthetic::Random) -> impl Iterator<Item = f64> + '_ {
    const STEPS: i64 = 1 << 53;
    std::iter::from_fn(move || {
        let mut uniform = || (random.number(1, STEPS) as f64) / STEPS as f64;
        let (radius, angle) = ((-2.0 * uniform().ln()).sqrt(), std::f64::consts::TAU * uniform());
        Some([radius * angle.cos(), radius * angle.sin()])
    })
    .flatten()
}
