//! Seeded chance. Pure: same seed and number, same draws, however fast the machine is.

use std::time::Duration;

use crate::engine::{Constraint, Grammar, Sampling, Supported};

/// A row of random numbers (SplitMix64).
#[derive(Debug, Clone)]
pub(super) struct Draw(u64);

impl Draw {
    /// The row with a number.
    pub(super) const fn new(seed: u64, number: u64) -> Self {
        let mut mixed = Self(seed);
        let seed = mixed.next();
        Self(seed ^ number.wrapping_mul(0xD1B5_4A32_D192_ED03))
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 up to `end`, which is not in it.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// From 1 to `most`.
    pub(super) fn upto(&mut self, most: u32) -> u32 {
        1 + self.below(u64::from(most)) as u32
    }

    /// True once in `times`.
    pub(super) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// From 1 to `most`, small ones as often as large ones are: each power of two is as likely as the next.
    pub(super) fn spread(&mut self, most: u64) -> u64 {
        let doublings = u64::from(u64::BITS - most.max(1).leading_zeros());
        let least = 1 << self.below(doublings);
        (least + self.below(least)).min(most)
    }

    /// From one millisecond to `most`, see [`Self::spread`].
    pub(super) fn moment(&mut self, most: Duration) -> Duration {
        Duration::from_millis(self.spread(most.as_millis() as u64))
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        all.get(self.below(all.len() as u64) as usize).cloned()
    }

    /// How a request's tokens are chosen: in a third greedily, else in some way that the engine supports.
    pub(super) fn sampling(&mut self, most_tokens: u32, supported: &Supported) -> Sampling {
        let mut sampling = Sampling {
            temperature: Some(0.0),
            max_tokens: self.upto(most_tokens),
            ignore_eos: supported.ignore_eos && self.once_in(2),
            ..Sampling::default()
        };
        if !self.once_in(3) {
            sampling.temperature = self.one_of(&[0.3, 0.7, 1.0, 1.8]);
            sampling.top_p = self.one_of(&[None, Some(0.5), Some(0.95)]).flatten();
            sampling.top_k = self.one_of(&[None, Some(1), Some(40)]).flatten().filter(|_| supported.top_k);
            sampling.min_p = self.one_of(&[None, Some(0.05)]).flatten().filter(|_| supported.min_p);
            sampling.frequency_penalty = self.one_of(&[None, Some(0.5)]).flatten();
            sampling.presence_penalty = self.one_of(&[None, Some(-0.5)]).flatten();
            let penalty = self.one_of(&[None, Some(1.2)]).flatten();
            sampling.repetition_penalty = penalty.filter(|_| supported.repetition_penalty);
            sampling.seed = Some(self.next()).filter(|_| supported.seed);
        }
        if self.once_in(6) {
            sampling.stop = vec!["e".to_owned(), "</answer>".to_owned()];
        }
        sampling.logprobs = Some(self.below(6) as u32).filter(|_| supported.logprobs && self.once_in(6));
        if supported.constraint && self.once_in(4) {
            sampling.constraint = self.constraint();
        }
        sampling
    }

    fn constraint(&mut self) -> Option<Constraint> {
        let schema = r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#;
        let grammar = self.one_of(&[
            Grammar::JsonObject,
            Grammar::JsonSchema(schema.to_owned()),
            Grammar::Regex("[a-z ]{1,40}[.]".to_owned()),
            // No grammar at all: to be refused.
            Grammar::Regex("(".to_owned()),
        ])?;
        let after = Some("e".to_owned()).filter(|_| self.once_in(3));
        Some(Constraint { grammar, after, then: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_number_draws_the_same_and_another_does_not() {
        let row = |seed, number| {
            let mut draw = Draw::new(seed, number);
            (0..64).map(|_| draw.sampling(100, &Supported::ALL)).collect::<Vec<_>>()
        };
        assert_eq!(row(7, 3), row(7, 3));
        assert_ne!(row(7, 3), row(7, 4));
        assert_ne!(row(7, 3), row(8, 3));
    }

    #[test]
    fn draws_stay_in_their_bounds_and_reach_them() {
        let mut draw = Draw::new(1, 1);
        for most in [1, 2, 5, 16] {
            let spread: Vec<u64> = (0..1000).map(|_| draw.spread(most)).collect();
            assert_eq!((spread.iter().min(), spread.iter().max()), (Some(&1), Some(&most)));
            let even: Vec<u32> = (0..1000).map(|_| draw.upto(most as u32)).collect();
            assert_eq!((even.iter().min(), even.iter().max()), (Some(&1), Some(&(most as u32))));
        }
        assert_eq!(draw.below(0), 0);
    }

    #[test]
    fn nothing_is_asked_for_that_the_engine_lacks() {
        let mut draw = Draw::new(2, 0);
        for _ in 0..500 {
            let sampling = draw.sampling(10, &Supported::NONE);
            let Sampling { top_k, min_p, repetition_penalty, seed, logprobs, constraint, ignore_eos, .. } = sampling;
            assert_eq!((top_k, min_p, repetition_penalty, seed), (None, None, None, None));
            assert!(logprobs.is_none() && constraint.is_none() && !ignore_eos);
        }
    }
}
