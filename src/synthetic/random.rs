//! Numbers from a seed, the same on every machine and in every version.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

/// A source of numbers: ChaCha with eight rounds, whose output is part of its definition.
#[derive(Debug, Clone)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// For one thing of a series: each place has numbers of its own, whatever the others use.
    #[must_use]
    pub fn new(seed: u64, place: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(place);
        Self(random)
    }

    /// From `least` to `most`, both included.
    pub fn number(&mut self, least: i64, most: i64) -> i64 {
        let count = most.abs_diff(least).saturating_add(1);
        // The bias is below 2^-40 for all that is asked here.
        least.saturating_add_unsigned(self.0.next_u64() % count.max(1))
    }

    /// One of these.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        let last = i64::try_from(of.len()).ok()?.checked_sub(1)?;
        usize::try_from(self.number(0, last)).ok().and_then(|place| of.get(place).copied())
    }

    /// True in so many of a hundred cases.
    pub fn chance(&mut self, percent: i64) -> bool {
        self.number(1, 100) <= percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_what_they_were() {
        let mut random = Random::new(7, 3);
        let numbers: Vec<i64> = (0..6).map(|_| random.number(1, 6)).collect();
        let mut again = Random::new(7, 3);
        assert_eq!(numbers, (0..6).map(|_| again.number(1, 6)).collect::<Vec<_>>());
        assert!(numbers.iter().all(|number| (1..=6).contains(number)));
        assert_ne!(numbers, (0..6).map(|_| Random::new(7, 4).number(1, 6)).collect::<Vec<_>>());
        assert_eq!((random.one::<u8>(&[]), random.one(&[5]), random.number(-2, -2)), (None, Some(5), -2));
    }
}
