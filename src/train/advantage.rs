//! From rewards to advantages: shaped, compared within the group, then within the batch (ParaVT, section 3.2; the numbers are
//! those of the reference's recipe). Pure: no tensors.
//!
//! The penalty for straying from the reference policy belongs between the two comparisons: it is taken off token by token, so
//! the learner calls [`Shaping::in_group`] first, spreads the result over the tokens, takes the penalty off, and calls
//! [`Shaping::over_batch`] last.

use serde::{Deserialize, Serialize};

use super::TrainError;

/// How rewards become advantages.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shaping {
    /// Added to the reward: -0.2.
    pub bias: f64,
    /// Times this: 10.
    pub scale: f64,
    /// Clipped to this on both sides: 20.
    pub limit: f64,
    /// Added to every deviation before dividing by it: 1e-5.
    pub epsilon: f64,
}

impl Default for Shaping {
    fn default() -> Self {
        Self { bias: -0.2, scale: 10.0, limit: 20.0, epsilon: 1e-5 }
    }
}

impl Shaping {
    /// Checks the numbers.
    ///
    /// # Errors
    /// A number that is none, or a limit or an epsilon that is not above 0.
    pub fn check(&self) -> Result<(), TrainError> {
        let finite = [self.bias, self.scale, self.limit, self.epsilon].iter().all(|number| number.is_finite());
        if finite && self.limit > 0.0 && self.epsilon > 0.0 {
            return Ok(());
        }
        Err(TrainError::Options("shaping takes finite numbers, with limit and epsilon above 0".to_owned()))
    }

    /// One reward, shaped: r = clip((R + bias) * scale, -limit, limit).
    #[must_use]
    pub fn shape(&self, reward: f64) -> f64 {
        ((reward + self.bias) * self.scale).max(-self.limit).min(self.limit)
    }

    /// What each rollout of one prompt is worth beside the others: its shaped reward, less the group's mean, by the group's
    /// deviation. A group that agrees, or has one rollout, teaches nothing: all 0.
    #[must_use]
    pub fn in_group(&self, rewards: &[f64]) -> Vec<f64> {
        let shaped: Vec<f64> = rewards.iter().map(|reward| self.shape(*reward)).collect();
        self.normal(&shaped, &vec![1.0; shaped.len()])
    }

    /// Advantages of a batch with mean 0 and deviation 1, each counting by its weight: 1 for a token that is trained and 0 for
    /// one that is not, or a rollout's number of trained tokens. What has no weight gets 0. Weights beyond the advantages, and
    /// the other way round, do not count.
    #[must_use]
    pub fn over_batch(&self, advantages: &[f64], weights: &[f64]) -> Vec<f64> {
        self.normal(advantages, weights)
    }

    /// The deviation is that of a sample (by n - 1), as the reference's trainer has it.
    fn normal(&self, values: &[f64], weights: &[f64]) -> Vec<f64> {
        let weight = |place: usize| weights.get(place).copied().unwrap_or_default();
        let counted =
            || values.iter().enumerate().map(|(place, value)| (*value, weight(place))).filter(|(_, w)| *w > 0.0);
        let total: f64 = counted().map(|(_, weight)| weight).sum();
        let agree = counted().map(|(value, _)| value).is_sorted_by(|one, other| one == other);
        if total <= 1.0 || agree {
            return vec![0.0; values.len()];
        }
        let mean = counted().map(|(value, weight)| value * weight).sum::<f64>() / total;
        let squares: f64 = counted().map(|(value, weight)| weight * (value - mean).powi(2)).sum();
        let deviation = (squares / (total - 1.0)).sqrt();
        let of = |(place, value): (usize, &f64)| {
            if weight(place) > 0.0 { (value - mean) / (deviation + self.epsilon) } else { 0.0 }
        };
        values.iter().enumerate().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn near(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len(), "{found:?}");
        assert!(found.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-4), "{found:?} {expected:?}");
    }

    #[test]
    fn rewards_are_shaped_and_clipped() {
        let shaping = Shaping::default();
        let shaped = [0.2, 2.8, 0.0, -0.15, 1e9, -1e9].map(|reward| shaping.shape(reward));
        near(&shaped, &[0.0, 20.0, -2.0, -3.5, 20.0, -20.0]);
        near(&[shaping.shape(2.2), shaping.shape(2.1)], &[20.0, 19.0]);
    }

    #[test]
    fn a_rollout_is_compared_with_its_group() {
        let shaping = Shaping::default();
        // Shaped: 8, 18, 8, -2. Mean 8, deviation of the sample sqrt(200 / 3).
        near(&shaping.in_group(&[1.0, 2.0, 1.0, 0.0]), &[0.0, 1.224_744, 0.0, -1.224_744]);
        for group in [&[][..], &[1.7], &[0.3, 0.3, 0.3], &[2.5, 2.9]] {
            assert_eq!(shaping.in_group(group), vec![0.0; group.len()], "{group:?}");
        }
    }

    #[test]
    fn a_batch_is_normalised_by_tokens() {
        let shaping = Shaping::default();
        // Three tokens of -1, one of 1, and one that is not trained.
        let found = shaping.over_batch(&[-1.0, 1.0, 7.0], &[3.0, 1.0, 0.0]);
        near(&found, &[-0.5, 1.5, 0.0]);
        let tokens = shaping.over_batch(&[-1.0, -1.0, -1.0, 1.0, 7.0], &[1.0, 1.0, 1.0, 1.0, 0.0]);
        near(&tokens, &[found[0], found[0], found[0], found[1], 0.0]);
        assert_eq!(shaping.over_batch(&[1.0, 2.0], &[0.0, 0.0]), [0.0, 0.0]);
        assert_eq!(shaping.over_batch(&[1.0, 2.0], &[5.0]), [0.0, 0.0]);
    }

    #[test]
    fn numbers_that_can_not_be_are_refused() {
        assert!(Shaping::default().check().is_ok());
        for shaping in [
            Shaping { bias: f64::NAN, ..Shaping::default() },
            Shaping { limit: 0.0, ..Shaping::default() },
            Shaping { epsilon: -1.0, ..Shaping::default() },
        ] {
            assert!(shaping.check().is_err(), "{shaping:?}");
        }
    }

    proptest! {
        #[test]
        fn advantages_are_finite_and_cancel_out(rewards in prop::collection::vec(-1.0..4.0_f64, 0..16)) {
            let found = Shaping::default().in_group(&rewards);
            prop_assert_eq!(found.len(), rewards.len());
            prop_assert!(found.iter().all(|advantage| advantage.abs() <= 4.0));
            prop_assert!(found.iter().sum::<f64>().abs() < 1e-6);
        }
    }
}
