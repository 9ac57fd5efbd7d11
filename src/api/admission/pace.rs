//! How fast places become free, from those that did. Pure.

use std::time::Duration;

/// Weight that each finished request leaves to those before it: about the last twenty count.
const KEEP: f64 = 0.95;

/// A moving average of how long a place is held.
///
/// Not of what was finished a second: that is low on an idle server, and says nothing of how fast a full one would be.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    cost: f64,
    cost_seconds: f64,
}

impl Pace {
    /// A request of this cost held it for so long.
    pub(super) fn finished(&mut self, cost: u64, held: Duration) {
        let cost = cost as f64;
        self.cost = self.cost * KEEP + cost;
        self.cost_seconds = self.cost_seconds * KEEP + cost * held.as_secs_f64();
    }

    /// How long a full server of this capacity takes to finish so much. `None` before anything was.
    pub(super) fn time_for(&self, cost: u64, capacity: u64) -> Option<Duration> {
        if self.cost <= 0.0 {
            return None;
        }
        let seconds = cost as f64 / capacity as f64 * (self.cost_seconds / self.cost);
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_server_finishes_its_capacity_in_the_time_a_place_is_held() {
        let mut pace = Pace::default();
        assert_eq!(pace.time_for(1000, 4000), None);
        pace.finished(1000, Duration::from_secs(8));
        assert_eq!(pace.time_for(4000, 4000), Some(Duration::from_secs(8)));
        assert_eq!(pace.time_for(1000, 4000), Some(Duration::from_secs(2)));
        // Cheap ones that are over at once say little of the others.
        pace.finished(1, Duration::ZERO);
        assert!(pace.time_for(4000, 4000).is_some_and(|time| time > Duration::from_secs(7)));
        for _ in 0..200 {
            pace.finished(1000, Duration::from_secs(2));
        }
        let time = pace.time_for(4000, 4000).expect("known").as_secs_f64();
        assert!((time - 2.0).abs() < 0.01, "{time}");
    }
}
