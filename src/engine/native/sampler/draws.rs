//! Random numbers that can be asked for by place.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};
use uuid::Uuid;

/// One number for each place of an output, from a seed. ChaCha's stream can be entered anywhere, so a number does not
/// depend on which were asked for before.
#[derive(Debug)]
pub(super) struct Draws {
    stream: ChaCha8Rng,
}

impl Draws {
    /// Numbers of a seed, or of one from the operating system.
    pub(super) fn new(seed: Option<u64>) -> Self {
        // The fixed bits of a random UUID's halves are at different places.
        let seed = seed.unwrap_or_else(|| {
            let (high, low) = Uuid::new_v4().as_u64_pair();
            high ^ low
        });
        Self { stream: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// The number for this place: at least 0, below 1, evenly distributed.
    pub(super) fn at(&mut self, position: u64) -> f64 {
        // A word has 32 bits, and a number is made of two.
        self.stream.set_word_pos(2 * u128::from(position));
        // As many bits as a double holds below 1.
        (self.stream.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_depends_on_seed_and_place_alone() {
        let (mut forwards, mut backwards) = (Draws::new(Some(7)), Draws::new(Some(7)));
        let first: Vec<f64> = (0..100).map(|place| forwards.at(place)).collect();
        let mut second: Vec<f64> = (0..100).rev().map(|place| backwards.at(place)).collect();
        second.reverse();
        assert_eq!(first, second);
        assert!(first.iter().all(|number| (0.0..1.0).contains(number)));
        let mean = first.iter().sum::<f64>() / 100.0;
        assert!((0.3..0.7).contains(&mean), "{mean}");
    }

    #[test]
    fn other_seeds_give_other_numbers() {
        let at_start = |seed| Draws::new(seed).at(0);
        assert_ne!(at_start(Some(1)), at_start(Some(2)));
        assert_ne!(at_start(None), at_start(None));
    }
}
