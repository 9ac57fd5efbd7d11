//! Gating of frames: how many frames the overview of a prompt has in training (ParaVT, section 3.2). Pure.
//!
//! With few frames the overview does not show enough, and a call earns its reward; with many the question can be answered at
//! once. The number is drawn for each prompt and is the same for all rollouts of its group: what is compared within a group
//! must not differ by luck. Nothing else of the method hangs on it: anchoring works without, and the other way round.

use serde::{Deserialize, Serialize};

use super::reward::Compat;
use crate::synthetic::Random;

/// Draws the frames of overviews.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FrameGating {
    /// Whose rules. In the released code the draw has no effect.
    pub compat: Compat,
    /// Where the numbers come from: the same seed gives the same frames to the same prompt, on every machine.
    pub seed: u64,
    /// What is drawn from, each as likely as the others: 4, 8, 16, 32 or 64 frames. Empty turns gating off.
    pub choices: Vec<u32>,
}

impl Default for FrameGating {
    fn default() -> Self {
        Self { compat: Compat::Paper, seed: 0, choices: vec![4, 8, 16, 32, 64] }
    }
}

impl FrameGating {
    /// Most frames of the overview of prompt number `prompt`, for every rollout of its group; `None` leaves the overview as it
    /// is otherwise. Count prompts on from epoch to epoch to draw anew in each.
    #[must_use]
    pub fn frames(&self, prompt: u64) -> Option<u32> {
        match self.compat {
            Compat::Paper => Random::new(self.seed, prompt).one(&self.choices),
            Compat::Upstream => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prompt_has_frames_of_its_own_and_its_group_the_same() {
        let gating = FrameGating { seed: 7, ..FrameGating::default() };
        let draws: Vec<u32> = (0..1000).filter_map(|prompt| gating.frames(prompt)).collect();
        assert_eq!(draws, (0..1000).filter_map(|prompt| gating.frames(prompt)).collect::<Vec<_>>());
        for choice in &gating.choices {
            let share = draws.iter().filter(|frames| *frames == choice).count();
            // Five deviations around 200.
            assert!((137..=263).contains(&share), "{choice}: {share}");
        }
        let other = FrameGating { seed: 8, ..gating.clone() };
        assert!((0..20).any(|prompt| other.frames(prompt) != gating.frames(prompt)));
    }

    #[test]
    fn the_released_code_draws_nothing() {
        let paper = FrameGating::default();
        let upstream = FrameGating { compat: Compat::Upstream, ..FrameGating::default() };
        assert!(paper.frames(3).is_some());
        assert_eq!(upstream.frames(3), None);
        assert_eq!(FrameGating { choices: Vec::new(), ..paper }.frames(3), None);
    }
}
