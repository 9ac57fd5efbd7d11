//! What is told of a step.

use serde::{Deserialize, Serialize};

use crate::train::Scores;
use crate::train::policy::PolicyStatistics;
use crate::train::rollout::Rollout;

/// A step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Its number, from 1.
    pub step: u64,
    /// Mean reward, and its terms.
    pub reward: f64,
    /// R_acc.
    pub accuracy: f64,
    /// R_fmt.
    pub format: f64,
    /// R_tool.
    pub tool: f64,
    /// The paper's kappa: the share of rollouts with a call.
    pub tool_rate: f64,
    /// Calls of a rollout that has any.
    pub calls: f64,
    /// The paper's f: the share of rollouts that think, all of whose tags are closed, with an answer.
    pub well_formed: f64,
    /// Of the tags that were opened, the share that was closed: `<think>`, `<tool_call>`, `<answer>`. 1 where none was opened.
    pub closed: [f64; 3],
    /// The share of rollouts in which any tag was opened: the same three.
    pub opened: [f64; 3],
    /// Rollouts that failed.
    pub failed: usize,
    /// Groups whose rollouts did not all earn the same.
    pub telling_groups: usize,
    /// Mean tokens that the main agent wrote.
    pub tokens: f64,
    /// Mean of the policy's log-probabilities over the reference's, nats a token.
    pub kl: f64,
    /// How far the policy has come from the one that wrote the rollouts: mean difference of a token's log-probability, nats, its sign
    /// left out. Without staleness it is rounding, or something is wrong.
    pub drift: f64,
    /// The share of tokens that had moved too far, and that was left out.
    pub clipped: f64,
    /// See [`PolicyStatistics::left_out`].
    pub left_out: f64,
    /// Of the gradient, before it was cut.
    pub gradient_norm: f64,
    /// The learning rate.
    pub rate: f64,
    /// How long the step waited for rollouts, seconds.
    pub rollout_s: f64,
    /// How long it learned.
    pub learn_s: f64,
}

impl StepReport {
    /// Of the step's rollouts.
    pub(super) fn of(rollouts: &[&(Rollout, Scores)]) -> Self {
        let count = rollouts.len().max(1) as f64;
        let mean = |of: &dyn Fn(&Scores) -> f64| rollouts.iter().map(|(_, scores)| of(scores)).sum::<f64>() / count;
        let called = rollouts.iter().filter(|(_, scores)| scores.tags.calls > 0).count();
        let calls: usize = rollouts.iter().map(|(_, scores)| scores.tags.calls).sum();
        let tags = |scores: &Scores| [scores.tags.think, scores.tags.tool_call, scores.tags.answer];
        let closed = [0, 1, 2].map(|tag: usize| {
            let opened: usize = rollouts.iter().map(|(_, scores)| tags(scores)[tag].opened).sum();
            let closed: usize = rollouts.iter().map(|(_, s)| tags(s)[tag].closed.min(tags(s)[tag].opened)).sum();
            if opened == 0 { 1.0 } else { closed as f64 / opened as f64 }
        });
        let opened = [0, 1, 2].map(|tag: usize| mean(&|scores| f64::from(u8::from(tags(scores)[tag].opened > 0))));
        let written = |rollout: &Rollout| rollout.main.iter().map(|said| said.tokens.len()).sum::<usize>() as f64;
        Self {
            reward: mean(&|scores| scores.total),
            accuracy: mean(&|scores| scores.accuracy),
            format: mean(&|scores| scores.format),
            tool: mean(&|scores| scores.tool),
            tool_rate: called as f64 / count,
            calls: calls as f64 / called.max(1) as f64,
            well_formed: mean(&|scores| f64::from(u8::from(well_formed(scores)))),
            closed,
            opened,
            failed: rollouts.iter().filter(|(rollout, _)| rollout.outcome.is_err()).count(),
            tokens: rollouts.iter().map(|(rollout, _)| written(rollout)).sum::<f64>() / count,
            ..Self::default()
        }
    }

    pub(super) fn moved(&mut self, statistics: &[PolicyStatistics]) {
        let sum = |of: fn(&PolicyStatistics) -> usize| statistics.iter().map(of).sum::<usize>() as f64;
        let tokens = sum(|one| one.tokens).max(1.0);
        self.clipped = sum(|one| one.clipped) / tokens;
        self.left_out = sum(|one| one.left_out) / tokens;
    }
}

fn well_formed(scores: &Scores) -> bool {
    let tags = &scores.tags;
    tags.think.opened > 0 && tags.answer.closed > 0 && tags.balanced()
}
