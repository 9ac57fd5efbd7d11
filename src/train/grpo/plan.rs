//! What a run does, as its file says it.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::train::optimizer::OptimizerConfig;
use crate::train::policy::PolicyConfig;
use crate::train::{FrameGating, RewardConfig, Shaping, TrainError};

/// A run. The defaults of its parts are those of ParaVT's recipe (`paravt/rl/configs` of its repository), but for the sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrpoPlan {
    /// The card to learn for: its prompts and budgets, and where its checkpoint is. A bundled card's name, or a folder.
    pub card: PathBuf,
    /// The checkpoint to begin from, in place of the card's. It is the reference as well.
    #[serde(default)]
    pub checkpoint: Option<PathBuf>,
    /// What prompts, their order and all that is drawn follow from.
    #[serde(default)]
    pub seed: u64,
    /// Steps.
    pub steps: u64,
    /// Prompts of a step.
    pub prompts: usize,
    /// Rollouts of a prompt, the paper's G.
    #[serde(default = "group")]
    pub group: usize,
    /// Signal boards to ask about, which are filmed when the run begins.
    pub boards: usize,
    /// Temperature of the main agent's tokens; sub-agents are sampled as the card says.
    #[serde(default = "temperature")]
    pub temperature: f64,
    /// Opens each turn of the main agent with the card's think prefix: anchoring's first half. Off: nothing opens it.
    #[serde(default = "on")]
    pub think_prefix: bool,
    /// Draws the frames of each prompt's overview. Not there: as the card has it.
    #[serde(default)]
    pub gating: Option<FrameGating>,
    /// What rollouts earn.
    #[serde(default)]
    pub reward: RewardConfig,
    /// Takes what tools earn out of the reward.
    #[serde(default)]
    pub without_tool_reward: bool,
    /// How rewards become advantages.
    #[serde(default)]
    pub shaping: Shaping,
    /// How the policy moves.
    #[serde(default)]
    pub policy: PolicyConfig,
    /// What sub-agents wrote is learned from as well, with their episode's advantage.
    #[serde(default)]
    pub train_subs: bool,
    /// How many steps the weights that write a rollout may be behind those that learn from it. 0: rollouts and learning take turns.
    #[serde(default)]
    pub staleness: usize,
    /// How weights follow gradients.
    #[serde(default = "optimizer")]
    pub optimizer: OptimizerConfig,
    /// Rows of a batch: what is computed in one pass.
    #[serde(default = "rows")]
    pub batch_rows: usize,
    /// Steps between two saved states.
    #[serde(default = "every")]
    pub save_every: u64,
}

const fn group() -> usize {
    8
}

const fn temperature() -> f64 {
    0.7
}

const fn on() -> bool {
    true
}

const fn rows() -> usize {
    16
}

const fn every() -> u64 {
    5
}

fn optimizer() -> OptimizerConfig {
    OptimizerConfig {
        learning_rate: 2e-6,
        final_share: 1.0,
        betas: [0.9, 0.999],
        weight_decay: 0.01,
        ..OptimizerConfig::default()
    }
}

/// What of PARA-GRPO is on: the rows of the paper's ablations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// GRPO: neither anchoring nor gating.
    Vanilla,
    /// Think prefix, answer suffix and anchor, no gating.
    Anchoring,
    /// Gating alone.
    Gating,
    /// All but the reward for tools.
    NoToolReward,
    /// All but the anchor's weight.
    NoAnchor,
    /// All of it.
    Full,
}

impl Variant {
    /// All of them with their names.
    pub const ALL: [(&'static str, Self); 6] = [
        ("vanilla", Self::Vanilla),
        ("anchoring", Self::Anchoring),
        ("gating", Self::Gating),
        ("no-tool-reward", Self::NoToolReward),
        ("no-anchor", Self::NoAnchor),
        ("full", Self::Full),
    ];
}

impl FromStr for Variant {
    type Err = TrainError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, variant)| *variant);
        let names = || Self::ALL.map(|(name, _)| name).join(", ");
        found.ok_or_else(|| TrainError::Options(format!("there is no variant {text:?}: {}", names())))
    }
}

impl GrpoPlan {
    /// From TOML.
    ///
    /// # Errors
    /// [`TrainError::Options`].
    pub fn parse(text: &str) -> Result<Self, TrainError> {
        let plan: Self = toml::from_str(text).map_err(|error| TrainError::Options(error.message().to_owned()))?;
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), TrainError> {
        let sizes = [self.prompts, self.group, self.boards, self.batch_rows];
        if self.steps == 0 || self.save_every == 0 || sizes.contains(&0) {
            return Err(TrainError::Options(
                "a run needs steps, prompts, group, boards, batch_rows and save_every above 0".to_owned(),
            ));
        }
        if !(self.temperature > 0.0 && self.temperature <= 2.0) {
            return Err(TrainError::Options(format!("a temperature of {}: rollouts would be alike", self.temperature)));
        }
        self.reward.check()?;
        self.shaping.check()
    }

    /// The same with only what a variant has. What gating draws from stays the plan's.
    #[must_use]
    pub fn only(mut self, variant: Variant) -> Self {
        let anchored = !matches!(variant, Variant::Vanilla | Variant::Gating);
        self.think_prefix &= anchored;
        self.reward.answer_suffix &= anchored;
        if !anchored || variant == Variant::NoAnchor {
            self.reward.anchor_weight = 0.0;
        }
        if matches!(variant, Variant::Vanilla | Variant::Anchoring) {
            self.gating = None;
        }
        self.without_tool_reward |= variant == Variant::NoToolReward;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "card = \"paravt-tiny\"\nsteps = 3\nprompts = 2\nboards = 4\n[gating]\nchoices = [4, 8, 16]";

    #[test]
    fn the_defaults_are_the_papers() {
        let plan = GrpoPlan::parse(PLAN).expect("a plan");
        assert_eq!((plan.group, plan.policy.clip, plan.policy.kl, plan.policy.behaviour_cap), (8, 0.2, 0.01, 5.0));
        assert!(plan.think_prefix && plan.policy.decoupled && plan.staleness == 0 && !plan.train_subs);
        assert!((plan.optimizer.rate(1000, 1000) - 2e-6).abs() < 1e-12);
        assert_eq!(plan.reward.anchor_weight, 0.5);
        assert_eq!(GrpoPlan::parse(&toml::to_string(&plan).expect("TOML")).expect("a plan"), plan);
    }

    #[test]
    fn variants_take_parts_away() {
        let plan = GrpoPlan::parse(PLAN).expect("a plan");
        let parts = |variant| {
            let plan = plan.clone().only(variant);
            let anchor = plan.reward.anchor_weight > 0.0;
            (plan.think_prefix, plan.reward.answer_suffix, anchor, plan.gating.is_some(), !plan.without_tool_reward)
        };
        assert_eq!(parts(Variant::Vanilla), (false, false, false, false, true));
        assert_eq!(parts(Variant::Anchoring), (true, true, true, false, true));
        assert_eq!(parts(Variant::Gating), (false, false, false, true, true));
        assert_eq!(parts(Variant::NoToolReward), (true, true, true, true, false));
        assert_eq!(parts(Variant::NoAnchor), (true, true, false, true, true));
        assert_eq!(parts(Variant::Full), (true, true, true, true, true));
        assert!("fuller".parse::<Variant>().is_err());
    }

    #[test]
    fn plans_that_cannot_be_run_are_refused() {
        for wrong in ["group = 0", "temperature = 0.0", "stalenes = 1", "[shaping]\nlimit = 0.0"] {
            assert!(GrpoPlan::parse(&format!("{wrong}\n{PLAN}")).is_err() || wrong.starts_with('['), "{wrong}");
        }
    }
}
