//! Requests a minute, by caller. Pure: it is told the time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::api::caller::Caller;

/// Callers remembered before those are forgotten who asked for nothing of late.
const MANY: usize = 1024;

/// When each caller's next request would be due if all of its requests came evenly (the generic cell rate algorithm): one
/// number a caller, and no clock that ticks.
#[derive(Debug, Default)]
pub(super) struct Rates {
    due: HashMap<Caller, Instant>,
}

impl Rates {
    /// Counts a request of this caller now.
    ///
    /// # Errors
    /// How long to wait, when it is one too many; it does not count then.
    pub(super) fn count(&mut self, caller: &Caller, now: Instant) -> Result<(), Duration> {
        let Some(a_minute) = caller.limits().requests_per_minute.filter(|count| *count > 0) else { return Ok(()) };
        let apart = Duration::from_secs(60) / a_minute;
        if self.due.len() >= MANY {
            self.due.retain(|_, due| *due > now);
        }
        let due = self.due.get(caller).copied().unwrap_or(now).max(now);
        // A minute's worth may come at once.
        let ahead = due - now;
        let allowed = apart * (a_minute - 1);
        if ahead > allowed {
            return Err(ahead - allowed);
        }
        self.due.insert(caller.clone(), due + apart);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KeyLimits;

    fn caller(name: &str, a_minute: Option<u32>) -> Caller {
        Caller::new(name.into(), KeyLimits { requests_per_minute: a_minute, ..KeyLimits::default() }, None)
    }

    #[test]
    fn a_minutes_worth_at_once_and_then_evenly() {
        let (mut rates, now) = (Rates::default(), Instant::now());
        let (a, b) = (caller("a", Some(3)), caller("b", Some(3)));
        let at = |seconds: u64| now + Duration::from_secs(seconds);
        for _ in 0..3 {
            assert_eq!(rates.count(&a, now), Ok(()));
        }
        assert_eq!(rates.count(&a, now), Err(Duration::from_secs(20)));
        assert_eq!(rates.count(&a, at(15)), Err(Duration::from_secs(5)));
        assert_eq!(rates.count(&b, now), Ok(()), "another's requests do not count");
        assert_eq!(rates.count(&a, at(20)), Ok(()));
        assert_eq!(rates.count(&a, at(20)), Err(Duration::from_secs(20)));
        for _ in 0..3 {
            assert_eq!(rates.count(&a, at(500)), Ok(()));
        }
        assert!(rates.count(&a, at(500)).is_err(), "what was not asked is not saved up beyond a minute");
    }

    #[test]
    fn who_has_no_limit_is_not_remembered_and_who_is_silent_is_forgotten() {
        let (mut rates, now) = (Rates::default(), Instant::now());
        assert!((0..100).all(|_| rates.count(&caller("free", None), now).is_ok()));
        assert!(rates.due.is_empty());
        for place in 0..2 * MANY {
            let now = now + Duration::from_secs(60 * place as u64);
            rates.count(&caller(&place.to_string(), Some(60)), now).expect("the first");
        }
        assert!(rates.due.len() <= MANY);
    }
}
