//! Which replica gets a request. Pure: time comes in as an argument.
//!
//! - An episode's main turns stay on one replica, whose prefix cache holds their overview. The first turn, like every
//!   sub-agent, goes where the fewest requests are outstanding.
//! - A replica that can't be reached is out for a while, twice as long after each failed probe; then one request at a
//!   time may try it. A single failed answer does not take a replica out, three in a row do: else one request that
//!   upsets every server would stop the house.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::engine::{SessionKey, Speaker, UpstreamLoad};

/// First time out.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
/// Longest time out.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);
/// Failed answers in a row that take a replica out.
const FAILURES: u32 = 3;
/// Episodes whose replica is remembered; beyond it the oldest may move.
const SESSIONS: usize = 4096;

/// All replicas.
#[derive(Debug)]
pub(super) struct Replicas {
    all: Vec<Replica>,
    homes: Homes,
    /// Where the search for the least busy one begins, so that equals take turns.
    next: usize,
}

#[derive(Debug, Clone, Default)]
struct Replica {
    outstanding: usize,
    failures: u32,
    down: Option<Down>,
}

#[derive(Debug, Clone, Copy)]
struct Down {
    until: Instant,
    backoff: Duration,
    probed: bool,
}

/// A request's place on a replica. Give it back with [`Replicas::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) index: usize,
    probe: bool,
}

/// What became of a request, as far as the replica's health goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It works (it may have refused the request).
    Answered,
    /// It can't be reached, or says that it can't serve.
    Gone,
    /// It failed on this request.
    Broken,
}

impl Replicas {
    pub(super) fn new(count: usize) -> Self {
        Self { all: vec![Replica::default(); count], homes: Homes::default(), next: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.all.len()
    }

    /// How each does.
    pub(super) fn loads(&self) -> Vec<UpstreamLoad> {
        let load = |replica: &Replica| UpstreamLoad { up: replica.down.is_none(), outstanding: replica.outstanding };
        self.all.iter().map(load).collect()
    }

    /// Chooses a replica that was not tried yet. `None` when none of those is alive.
    pub(super) fn take(
        &mut self,
        speaker: Speaker,
        session: &SessionKey,
        tried: &[usize],
        now: Instant,
    ) -> Option<Place> {
        let usable = |index: usize| !tried.contains(&index) && self.all[index].usable(now);
        let home = match speaker {
            Speaker::Main => self.homes.get(session).filter(|home| usable(*home)),
            Speaker::Sub => None,
        };
        let order = (0..self.all.len()).map(|step| (self.next + step) % self.all.len());
        let least = || order.filter(|index| usable(*index)).min_by_key(|index| self.all[*index].outstanding);
        let index = home.or_else(least)?;
        if home.is_none() {
            self.next = index + 1;
        }
        if speaker == Speaker::Main {
            self.homes.set(session, index);
        }
        let replica = &mut self.all[index];
        replica.outstanding += 1;
        if let Some(down) = &mut replica.down {
            down.probed = true;
        }
        Some(Place { index, probe: replica.down.is_some() })
    }

    /// Takes note of how a replica does. True when that changed whether it is in.
    pub(super) fn report(&mut self, place: Place, outcome: Outcome, now: Instant) -> bool {
        let replica = &mut self.all[place.index];
        let was_down = replica.down.is_some();
        match outcome {
            Outcome::Answered => {
                replica.failures = 0;
                replica.down = None;
            }
            Outcome::Gone => replica.take_out(now),
            Outcome::Broken => {
                replica.failures += 1;
                if was_down || replica.failures >= FAILURES {
                    replica.take_out(now);
                }
            }
        }
        was_down != replica.down.is_some()
    }

    /// Gives a place back, whatever became of it.
    pub(super) fn release(&mut self, place: Place) {
        let replica = &mut self.all[place.index];
        replica.outstanding -= 1;
        if let Some(down) = replica.down.as_mut().filter(|_| place.probe) {
            down.probed = false;
        }
    }
}

impl Replica {
    fn usable(&self, now: Instant) -> bool {
        self.down.is_none_or(|down| down.until <= now && !down.probed)
    }

    fn take_out(&mut self, now: Instant) {
        let backoff = match self.down {
            None => FIRST_BACKOFF,
            // Others that were under way when it went down say nothing new.
            Some(down) if down.until > now => return,
            Some(down) => (down.backoff * 2).min(LONGEST_BACKOFF),
        };
        self.down = Some(Down { until: now + backoff, backoff, probed: false });
    }
}

/// The replica of each episode, for the last [`SESSIONS`] episodes.
#[derive(Debug, Default)]
struct Homes {
    of: HashMap<SessionKey, usize>,
    order: VecDeque<SessionKey>,
}

impl Homes {
    fn get(&self, session: &SessionKey) -> Option<usize> {
        self.of.get(session).copied()
    }

    fn set(&mut self, session: &SessionKey, index: usize) {
        if self.of.insert(session.clone(), index).is_none() {
            self.order.push_back(session.clone());
            if self.order.len() > SESSIONS
                && let Some(oldest) = self.order.pop_front()
            {
                self.of.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(name: &str) -> SessionKey {
        SessionKey(name.into())
    }

    fn main(replicas: &mut Replicas, name: &str, now: Instant) -> Option<usize> {
        let place = replicas.take(Speaker::Main, &session(name), &[], now)?;
        replicas.release(place);
        Some(place.index)
    }

    fn sub(replicas: &mut Replicas, tried: &[usize], now: Instant) -> Option<Place> {
        replicas.take(Speaker::Sub, &session("any"), tried, now)
    }

    #[test]
    fn an_episodes_main_turns_stay_where_they_began() {
        let (mut replicas, now) = (Replicas::new(3), Instant::now());
        let first: Vec<_> = ["a", "b", "c"].iter().map(|name| main(&mut replicas, name, now)).collect();
        assert_eq!(first, [Some(0), Some(1), Some(2)], "idle replicas take turns");
        for _ in 0..5 {
            assert_eq!(main(&mut replicas, "b", now), Some(1));
            sub(&mut replicas, &[], now).expect("alive");
        }
    }

    #[test]
    fn sub_agents_go_where_least_is_outstanding() {
        let (mut replicas, now) = (Replicas::new(3), Instant::now());
        let places: Vec<_> = (0..6).filter_map(|_| sub(&mut replicas, &[], now)).collect();
        let mut each = [0; 3];
        places.iter().for_each(|place| each[place.index] += 1);
        assert_eq!(each, [2, 2, 2]);
        places.iter().filter(|place| place.index == 1).for_each(|place| replicas.release(*place));
        assert_eq!(sub(&mut replicas, &[], now).map(|place| place.index), Some(1));
        assert_eq!(sub(&mut replicas, &[1], now).map(|place| place.index), Some(2), "not where it was tried");
    }

    #[test]
    fn a_gone_replica_is_out_and_its_episodes_move_for_good() {
        let (mut replicas, now) = (Replicas::new(2), Instant::now());
        assert_eq!(main(&mut replicas, "a", now), Some(0));
        let place = replicas.take(Speaker::Main, &session("a"), &[], now).expect("alive");
        assert!(replicas.report(place, Outcome::Gone, now));
        replicas.release(place);
        assert_eq!(main(&mut replicas, "a", now), Some(1));
        assert_eq!(main(&mut replicas, "a", now + FIRST_BACKOFF), Some(1), "its prefix is cached there now");
    }

    #[test]
    fn one_request_at_a_time_probes_a_replica_and_each_failure_doubles_the_wait() {
        let (mut replicas, mut now) = (Replicas::new(1), Instant::now());
        let first = sub(&mut replicas, &[], now).expect("alive");
        replicas.report(first, Outcome::Gone, now);
        replicas.release(first);
        let mut backoff = FIRST_BACKOFF;
        for _ in 0..10 {
            assert_eq!(sub(&mut replicas, &[], now + backoff - Duration::from_millis(1)), None);
            now += backoff;
            let probe = sub(&mut replicas, &[], now).expect("one may try");
            assert_eq!(sub(&mut replicas, &[], now), None, "one only");
            replicas.report(probe, Outcome::Broken, now);
            replicas.release(probe);
            backoff = (backoff * 2).min(LONGEST_BACKOFF);
        }
        now += backoff;
        let probe = sub(&mut replicas, &[], now).expect("one may try");
        assert!(replicas.report(probe, Outcome::Answered, now));
        assert!(sub(&mut replicas, &[], now).is_some());
    }

    #[test]
    fn a_probe_that_was_cancelled_lets_another_try() {
        let (mut replicas, now) = (Replicas::new(1), Instant::now());
        let (first, second) = (sub(&mut replicas, &[], now).expect("alive"), sub(&mut replicas, &[], now));
        replicas.report(first, Outcome::Gone, now);
        replicas.report(second.expect("alive"), Outcome::Gone, now);
        let later = now + FIRST_BACKOFF;
        let probe = sub(&mut replicas, &[], later).expect("the second failure added nothing");
        replicas.release(first);
        assert_eq!(sub(&mut replicas, &[], later), None, "the probe is still out");
        replicas.release(probe);
        assert!(sub(&mut replicas, &[], later).is_some());
    }

    #[test]
    fn failed_answers_take_a_replica_out_only_in_a_row() {
        let (mut replicas, now) = (Replicas::new(1), Instant::now());
        let place = sub(&mut replicas, &[], now).expect("alive");
        for outcome in [Outcome::Broken, Outcome::Broken, Outcome::Answered, Outcome::Broken, Outcome::Broken] {
            assert!(!replicas.report(place, outcome, now));
        }
        assert!(replicas.report(place, Outcome::Broken, now));
    }

    #[test]
    fn remembered_episodes_are_bounded() {
        let (mut replicas, now) = (Replicas::new(2), Instant::now());
        for number in 0..SESSIONS + 10 {
            main(&mut replicas, &number.to_string(), now);
        }
        assert_eq!((replicas.homes.of.len(), replicas.homes.order.len()), (SESSIONS, SESSIONS));
    }
}
