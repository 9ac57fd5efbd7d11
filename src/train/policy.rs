//! The loss of a policy step: decoupled PPO, as AReaL has it (arXiv 2505.24298, section 5.2), with advantages from groups.
//!
//! For a token with advantage A: `-w min(r A, clip(r, 1 - e, 1 + e) A)`. r is the policy's probability over that of the policy just
//! before the step (the *proximal* one); w is the proximal one's over that of the policy that wrote the token, and a token whose w is
//! above the cap is left out. Without `decoupled`, r is taken against who wrote it, and w is 1. Pure but for tensors.

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

/// How a policy is moved. The defaults are those of ParaVT's recipe.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicyConfig {
    /// How far a token's probability may move in a step and still count, as a share.
    pub clip: f64,
    /// Whether what moved between writing and learning is told from what the step moves.
    pub decoupled: bool,
    /// See the module's header.
    pub behaviour_cap: f64,
    /// Taken off each token's advantage for each nat that the policy is above the reference.
    pub kl: f64,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self { clip: 0.2, decoupled: true, behaviour_cap: 5.0, kl: 0.01 }
    }
}

/// What the loss of one batch reads, an entry for each of its outputs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolicyTargets {
    /// Advantages.
    pub advantages: Vec<f32>,
    /// Log-probabilities by the policy that wrote the tokens, nats.
    pub behaviour: Vec<f32>,
    /// Log-probabilities by the policy just before the step.
    pub proximal: Vec<f32>,
}

/// What happened to the tokens of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyStatistics {
    /// Tokens.
    pub tokens: usize,
    /// Tokens whose probability had moved too far for the loss to move it further.
    pub clipped: usize,
    /// Tokens left out because the policy had moved too far since they were written.
    pub left_out: usize,
}

impl PolicyConfig {
    /// What a token's log-probability is measured against.
    fn base<'a>(&self, targets: &'a PolicyTargets) -> &'a [f32] {
        if self.decoupled { &targets.proximal } else { &targets.behaviour }
    }

    /// The weight of each token, 0 for those that are left out.
    fn weights(&self, targets: &PolicyTargets) -> Vec<f32> {
        let weight = |(proximal, behaviour): (&f32, &f32)| {
            let weight = (proximal - behaviour).exp();
            if !self.decoupled {
                1.0
            } else if f64::from(weight) <= self.behaviour_cap {
                weight
            } else {
                0.0
            }
        };
        targets.proximal.iter().zip(&targets.behaviour).map(weight).collect()
    }

    /// The loss, summed over the tokens and divided by `total`. `probabilities` are logarithms, `[outputs]`, with a gradient.
    ///
    /// # Errors
    /// Those of the tensor library.
    pub fn loss(&self, probabilities: &Tensor, targets: &PolicyTargets, total: f64) -> candle_core::Result<Tensor> {
        let row = |values: &[f32]| Tensor::new(values, probabilities.device());
        let ratio = (probabilities - row(self.base(targets))?)?.exp()?;
        let advantages = row(&targets.advantages)?;
        let plain = (&ratio * &advantages)?;
        let clipped = (ratio.clamp(1.0 - self.clip, 1.0 + self.clip)? * &advantages)?;
        (plain.minimum(&clipped)? * row(&self.weights(targets))?)?.sum_all()? * (-1.0 / total.max(1.0))
    }

    /// What the loss does to each token, of which `probabilities` are the logarithms.
    #[must_use]
    pub fn statistics(&self, probabilities: &[f32], targets: &PolicyTargets) -> PolicyStatistics {
        let mut statistics = PolicyStatistics { tokens: probabilities.len(), ..PolicyStatistics::default() };
        for ((probability, base), advantage) in probabilities.iter().zip(self.base(targets)).zip(&targets.advantages) {
            let ratio = f64::from((probability - base).exp());
            let far = if *advantage > 0.0 { ratio > 1.0 + self.clip } else { ratio < 1.0 - self.clip };
            statistics.clipped += usize::from(far && *advantage != 0.0);
        }
        statistics.left_out = self.weights(targets).iter().filter(|weight| **weight == 0.0).count();
        statistics
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;

    fn run(config: &PolicyConfig, now: &[f32], targets: &PolicyTargets) -> (f32, Vec<f32>) {
        let now = Var::new(now, &Device::Cpu).expect("a variable");
        let loss = config.loss(&now, targets, targets.advantages.len() as f64).expect("a loss");
        let store = loss.backward().expect("back");
        let gradient = store.get(&now).and_then(|gradient| gradient.to_vec1().ok()).expect("a gradient");
        (loss.to_scalar().expect("a number"), gradient)
    }

    fn near(given: &[f32], expected: &[f32]) {
        assert!(given.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{given:?} for {expected:?}");
    }

    #[test]
    fn a_step_on_policy_moves_each_token_by_its_advantage() {
        let behaviour = vec![-1.0, -2.0, -0.5];
        let targets = PolicyTargets { advantages: vec![2.0, -1.0, 0.0], proximal: behaviour.clone(), behaviour };
        let (loss, gradient) = run(&PolicyConfig::default(), &targets.proximal.clone(), &targets);
        near(&[loss], &[-(2.0 - 1.0) / 3.0]);
        near(&gradient, &[-2.0 / 3.0, 1.0 / 3.0, 0.0]);
    }

    #[test]
    fn what_moved_far_moves_no_further() {
        let log = |ratio: f32| ratio.ln();
        let targets =
            PolicyTargets { advantages: vec![1.0, 1.0, -1.0, -1.0], behaviour: vec![0.0; 4], proximal: vec![0.0; 4] };
        let now = [log(1.5), log(0.5), log(0.5), log(1.5)];
        let config = PolicyConfig::default();
        let (loss, gradient) = run(&config, &now, &targets);
        near(&[loss], &[-(1.2 + 0.5 - 0.8 - 1.5) / 4.0]);
        near(&gradient, &[0.0, -0.5 / 4.0, 0.0, 1.5 / 4.0]);
        assert_eq!(config.statistics(&now, &targets), PolicyStatistics { tokens: 4, clipped: 2, left_out: 0 });
    }

    #[test]
    fn old_tokens_count_by_how_likely_they_still_are() {
        let targets = PolicyTargets {
            advantages: vec![1.0, 1.0],
            behaviour: vec![-1.0, -3.0],
            proximal: vec![-1.0 + 2.0_f32.ln(), -1.0],
        };
        let config = PolicyConfig::default();
        // The second is e² times as likely now, which is beyond the cap.
        let (_, gradient) = run(&config, &targets.proximal.clone(), &targets);
        near(&gradient, &[-2.0 / 2.0, 0.0]);
        assert_eq!(config.statistics(&targets.proximal, &targets).left_out, 1);
        let coupled = PolicyConfig { decoupled: false, ..config };
        let (_, gradient) = run(&coupled, &targets.proximal.clone(), &targets);
        // Against who wrote them both have moved far up.
        near(&gradient, &[0.0, 0.0]);
    }
}
