//! Which replica gets a request. Pure: time comes in as an argument.
//!
//! - An episode's main turns stay on one replica, whose prefix cache holds their overview. The first turn goes to the overview's
//!   home: the replica that rendezvous hashing (Thaler and Ravishankar, 1998) names for its frames, which is the same in every
//!   front end that has the same upstreams. So a second question about a video finds the first one's prefix, whichever front
//!   end it comes through. A home that costs more than [`PATIENCE`] times the least is passed over.
//! - A sub-agent goes where the cost is least: outstanding requests, one more, times the time to a sub-agent's first text.
//!   That time is a moving average that takes peaks at once and forgets them slowly (Finagle's "peak EWMA"), and no less
//!   than the age of the oldest request that still waits (of main turns, what is beyond [`MAIN_WAIT`]). So slow replicas are
//!   avoided, and tried again. One that said it has too much to do comes after all others for a moment.
//! - A replica that can't be reached is out for a while, twice as long after each failed probe; then one request at a
//!   time may try it. A single failed answer does not take a replica out, three in a row do: else one request that
//!   upsets every server would stop the house.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::engine::{SessionKey, Speaker, UpstreamLoad};

/// Replicas a request is tried on at most.
pub(in crate::engine) const MOST_TRIES: usize = 3;
/// First time out.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
/// Longest time out.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);
/// Failed answers in a row that take a replica out.
const FAILURES: u32 = 3;
/// Episodes whose replica is remembered; beyond it the oldest may move.
const SESSIONS: usize = 4096;
/// How many times the least cost a prefix's home may have.
const PATIENCE: f64 = 4.0;
/// Time in which two thirds of a slow answer are forgotten.
const MEMORY: Duration = Duration::from_secs(10);
/// How long a replica that said it has too much to do is asked after all others.
const BUSY: Duration = Duration::from_secs(1);
/// How long a main turn, which reads a whole overview, may wait for its first text before that tells something.
const MAIN_WAIT: Duration = Duration::from_secs(10);
/// Seconds to a first text where nobody knows better. No matter how many: they are the same for all.
const UNKNOWN_S: f64 = 1.0;

/// All replicas.
#[derive(Debug)]
pub(in crate::engine) struct Replicas {
    all: Vec<Replica>,
    homes: Homes,
    /// Where the search for the least busy one begins, so that equals take turns.
    next: usize,
}

#[derive(Debug, Clone, Default)]
struct Replica {
    /// Names it in every front end alike.
    name: u64,
    outstanding: usize,
    failures: u32,
    down: Option<Down>,
    /// Seconds to a sub-agent's first text, and when that was measured.
    first_text: Option<(f64, Instant)>,
    /// Since when requests wait for theirs: of main turns, from when on that tells something.
    waiting: Vec<Instant>,
    /// Until when it has too much to do.
    busy: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Down {
    until: Instant,
    backoff: Duration,
    probed: bool,
}

/// A request's place on a replica. Give it back with [`Replicas::release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Place {
    pub(in crate::engine) index: usize,
    probe: bool,
    /// Since when it waits: see [`Replica::waiting`].
    waits: Option<Instant>,
    /// Whether its time to the first text is measured.
    is_measured: bool,
}

/// What a request is placed by.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Wish<'a> {
    pub(in crate::engine) speaker: Speaker,
    pub(in crate::engine) session: &'a SessionKey,
    /// Of main turns: what requests with a common beginning have in common.
    pub(in crate::engine) prefix: Option<u64>,
}

/// What became of a request, as far as the replica's health goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It works (it may have refused the request).
    Answered,
    /// It works, and has too much to do.
    Busy,
    /// It can't be reached, or says that it can't serve.
    Gone,
    /// It failed on this request.
    Broken,
}

impl Replicas {
    /// Replicas of these names, which are the same in every front end. Of equals the `first`th is taken first: each front end
    /// should begin elsewhere, or all walk their lists together and meet at the same replicas.
    pub(in crate::engine) fn new(names: impl IntoIterator<Item = u64>, first: usize) -> Self {
        let all: Vec<Replica> = names.into_iter().map(|name| Replica { name, ..Replica::default() }).collect();
        let next = first % all.len().max(1);
        Self { all, homes: Homes::default(), next }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// How each does.
    pub(super) fn loads(&self) -> Vec<UpstreamLoad> {
        let load = |replica: &Replica| UpstreamLoad { up: replica.down.is_none(), outstanding: replica.outstanding };
        self.all.iter().map(load).collect()
    }

    /// Chooses a replica that was not tried yet. `None` when none of those is alive.
    pub(in crate::engine) fn take(&mut self, wish: Wish<'_>, tried: &[usize], now: Instant) -> Option<Place> {
        let usable = |index: &usize| !tried.contains(index) && self.all[*index].usable(now);
        let least_s = self.all.iter().filter_map(|replica| replica.first_text).map(|(seconds, _)| seconds);
        let least_s = least_s.min_by(f64::total_cmp).unwrap_or(UNKNOWN_S);
        let order = (0..self.all.len()).map(|step| (self.next + step) % self.all.len());
        let ranked = order.filter(usable).map(|index| (index, self.all[index].rank(least_s, now)));
        let (least, (_, least_cost)) =
            ranked.min_by(|(_, one), (_, other)| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)))?;
        let home = || {
            let home = self.homes.get(wish.session).filter(usable).or_else(|| self.home(wish.prefix?, usable))?;
            let (is_busy, cost) = self.all[home].rank(least_s, now);
            (!is_busy && cost <= PATIENCE * least_cost).then_some(home)
        };
        let home = if wish.speaker == Speaker::Main { home() } else { None };
        let index = home.unwrap_or(least);
        if home.is_none() {
            self.next = index + 1;
        }
        if wish.speaker == Speaker::Main {
            self.homes.set(wish.session, index);
        }
        let replica = &mut self.all[index];
        replica.outstanding += 1;
        if let Some(down) = &mut replica.down {
            down.probed = true;
        }
        let is_measured = wish.speaker == Speaker::Sub;
        let waits = if is_measured { now } else { now + MAIN_WAIT };
        replica.waiting.push(waits);
        Some(Place { index, probe: replica.down.is_some(), waits: Some(waits), is_measured })
    }

    /// Where a prefix is at home: the replica with the highest rank for it.
    fn home(&self, prefix: u64, usable: impl Fn(&usize) -> bool) -> Option<usize> {
        let rank = |index: &usize| mixed(self.all[*index].name ^ mixed(prefix));
        (0..self.all.len()).filter(usable).max_by_key(rank)
    }

    /// The first text came. Gives the place as it is from then on.
    pub(in crate::engine) fn spoke(&mut self, place: Place, now: Instant) -> Place {
        let Some(since) = place.waits else { return place };
        if place.is_measured {
            self.all[place.index].measured(now.saturating_duration_since(since), now);
        }
        self.all[place.index].waits_no_more(since);
        Place { waits: None, ..place }
    }

    /// Takes note of how a replica does. True when that changed whether it is in.
    pub(super) fn report(&mut self, place: Place, outcome: Outcome, now: Instant) -> bool {
        let replica = &mut self.all[place.index];
        let was_down = replica.down.is_some();
        match outcome {
            Outcome::Answered | Outcome::Busy => {
                replica.failures = 0;
                replica.down = None;
                if outcome == Outcome::Busy {
                    replica.busy = Some(now + BUSY);
                }
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
    pub(in crate::engine) fn release(&mut self, place: Place) {
        let replica = &mut self.all[place.index];
        replica.outstanding -= 1;
        if let Some(since) = place.waits {
            replica.waits_no_more(since);
        }
        if let Some(down) = replica.down.as_mut().filter(|_| place.probe) {
            down.probed = false;
        }
    }
}

impl Replica {
    fn usable(&self, now: Instant) -> bool {
        self.down.is_none_or(|down| down.until <= now && !down.probed)
    }

    /// Whether it comes after all others, and what one more request costs here. `least_s` is the least time of all replicas, to
    /// which what is known of each tends.
    fn rank(&self, least_s: f64, now: Instant) -> (bool, f64) {
        let known_s = self
            .first_text
            .map_or(least_s, |(seconds, at)| least_s + (seconds - least_s).max(0.0) * remembered(at, now));
        let waited_s =
            self.waiting.iter().min().map_or(0.0, |since| now.saturating_duration_since(*since).as_secs_f64());
        (self.busy.is_some_and(|until| until > now), (self.outstanding + 1) as f64 * known_s.max(waited_s))
    }

    fn measured(&mut self, took: Duration, now: Instant) {
        let took_s = took.as_secs_f64().max(1e-3);
        let seconds = match self.first_text {
            Some((before_s, at)) if before_s > took_s => took_s + (before_s - took_s) * remembered(at, now),
            _ => took_s,
        };
        self.first_text = Some((seconds, now));
    }

    fn waits_no_more(&mut self, since: Instant) {
        if let Some(place) = self.waiting.iter().position(|other| *other == since) {
            self.waiting.swap_remove(place);
        }
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

/// The share of what was measured then that is still known.
fn remembered(at: Instant, now: Instant) -> f64 {
    (-now.saturating_duration_since(at).as_secs_f64() / MEMORY.as_secs_f64()).exp()
}

/// Spreads bits evenly: the last step of SplitMix64 (Steele, Lea and Flood, 2014).
const fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
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

    fn replicas(count: u64) -> Replicas {
        Replicas::new(0..count, 0)
    }

    fn place(replicas: &mut Replicas, name: &str, prefix: Option<u64>, now: Instant) -> Option<Place> {
        replicas.take(Wish { speaker: Speaker::Main, session: &session(name), prefix }, &[], now)
    }

    fn main(replicas: &mut Replicas, name: &str, now: Instant) -> Option<usize> {
        let place = place(replicas, name, None, now)?;
        replicas.release(place);
        Some(place.index)
    }

    fn sub(replicas: &mut Replicas, tried: &[usize], now: Instant) -> Option<Place> {
        replicas.take(Wish { speaker: Speaker::Sub, session: &session("any"), prefix: None }, tried, now)
    }

    /// A sub-agent that speaks after a time, and is done.
    fn speaks(replicas: &mut Replicas, index: usize, after: Duration, now: Instant) {
        let others: Vec<usize> = (0..replicas.len()).filter(|other| *other != index).collect();
        let place = sub(replicas, &others, now).expect("alive");
        let place = replicas.spoke(place, now + after);
        replicas.release(place);
    }

    #[test]
    fn an_episodes_main_turns_stay_where_they_began() {
        let (mut replicas, now) = (replicas(3), Instant::now());
        let first: Vec<_> = ["a", "b", "c"].iter().map(|name| main(&mut replicas, name, now)).collect();
        assert_eq!(first, [Some(0), Some(1), Some(2)], "idle replicas take turns");
        for _ in 0..5 {
            assert_eq!(main(&mut replicas, "b", now), Some(1));
            sub(&mut replicas, &[], now).expect("alive");
        }
    }

    #[test]
    fn sub_agents_go_where_least_is_outstanding() {
        let (mut replicas, now) = (replicas(3), Instant::now());
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
        let (mut replicas, now) = (replicas(2), Instant::now());
        assert_eq!(main(&mut replicas, "a", now), Some(0));
        let place = place(&mut replicas, "a", None, now).expect("alive");
        assert!(replicas.report(place, Outcome::Gone, now));
        replicas.release(place);
        assert_eq!(main(&mut replicas, "a", now), Some(1));
        assert_eq!(main(&mut replicas, "a", now + FIRST_BACKOFF), Some(1), "its prefix is cached there now");
    }

    #[test]
    fn one_request_at_a_time_probes_a_replica_and_each_failure_doubles_the_wait() {
        let (mut replicas, mut now) = (replicas(1), Instant::now());
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
        let (mut replicas, now) = (replicas(1), Instant::now());
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
        let (mut replicas, now) = (replicas(1), Instant::now());
        let place = sub(&mut replicas, &[], now).expect("alive");
        for outcome in [Outcome::Broken, Outcome::Broken, Outcome::Answered, Outcome::Broken, Outcome::Broken] {
            assert!(!replicas.report(place, outcome, now));
        }
        assert!(replicas.report(place, Outcome::Broken, now));
    }

    #[test]
    fn remembered_episodes_are_bounded() {
        let (mut replicas, now) = (replicas(2), Instant::now());
        for number in 0..SESSIONS + 10 {
            main(&mut replicas, &number.to_string(), now);
        }
        assert_eq!((replicas.homes.of.len(), replicas.homes.order.len()), (SESSIONS, SESSIONS));
    }

    #[test]
    fn a_prefix_has_the_same_home_in_every_front_end_and_homes_are_spread() {
        let now = Instant::now();
        let names = [7_u64, 1 << 40, 99, 12_345];
        let mut one = Replicas::new(names, 0);
        let mut other = Replicas::new(names.into_iter().rev(), 2);
        let mut each = [0; 4];
        for prefix in 0..400 {
            let session = prefix.to_string();
            let here = place(&mut one, &session, Some(prefix), now).expect("alive");
            let there = place(&mut other, &session, Some(prefix), now).expect("alive");
            assert_eq!(names[here.index], names[3 - there.index], "{prefix}");
            each[here.index] += 1;
            one.release(here);
            other.release(there);
        }
        assert!(each.iter().all(|count| (60..=140).contains(count)), "{each:?}");
        // Without a replica only its own prefixes move.
        let mut fewer = Replicas::new(names[..3].iter().copied(), 0);
        for prefix in 0..400 {
            let before = one.home(prefix, |_| true).expect("a home");
            let after = fewer.home(prefix, |_| true).expect("a home");
            assert!(before == 3 || before == after, "{prefix}");
        }
        assert!(place(&mut fewer, "x", Some(1), now).is_some());
    }

    #[test]
    fn a_busy_replica_comes_last_for_a_moment() {
        let (mut replicas, now) = (replicas(2), Instant::now());
        let place = sub(&mut replicas, &[], now).expect("alive");
        assert!(!replicas.report(place, Outcome::Busy, now));
        replicas.release(place);
        let chosen: Vec<usize> = (0..4).filter_map(|_| sub(&mut replicas, &[], now)).map(|place| place.index).collect();
        assert_eq!(chosen, [1; 4]);
        assert_eq!(sub(&mut replicas, &[1], now).map(|place| place.index), Some(0), "better than none");
        assert_eq!(sub(&mut replicas, &[], now + BUSY).map(|place| place.index), Some(0));
    }

    #[test]
    fn a_main_turn_that_waits_for_long_tells_against_its_replica() {
        let (mut replicas, now) = (replicas(2), Instant::now());
        let hangs = place(&mut replicas, "a", None, now).expect("alive");
        let other = |replicas: &mut Replicas, now| {
            let chosen = (0..2).filter_map(|_| sub(replicas, &[], now)).collect::<Vec<_>>();
            chosen.iter().for_each(|place| replicas.release(*place));
            chosen.iter().filter(|place| place.index == hangs.index).count()
        };
        assert_eq!(other(&mut replicas, now + Duration::from_secs(5)), 1);
        assert_eq!(other(&mut replicas, now + MAIN_WAIT + Duration::from_secs(5)), 0);
        // Its own next turn goes elsewhere as well.
        let later = now + MAIN_WAIT + Duration::from_secs(9);
        assert_ne!(place(&mut replicas, "a", None, later).expect("alive").index, hangs.index);
    }

    #[test]
    fn a_home_that_is_much_busier_is_passed_over() {
        let (mut replicas, now) = (replicas(3), Instant::now());
        let home = replicas.home(5, |_| true).expect("a home");
        let chosen: Vec<bool> = (0..6)
            .map(|number| place(&mut replicas, &number.to_string(), Some(5), now).expect("alive").index == home)
            .collect();
        assert_eq!(chosen, [true, true, true, true, false, false]);
    }

    #[test]
    fn a_slow_replica_is_avoided_and_tried_again_later() {
        let (mut replicas, now) = (self::replicas(3), Instant::now());
        let (fast, slow) = (Duration::from_millis(200), Duration::from_secs(2));
        for (index, after) in [(0, fast), (1, slow), (2, fast)] {
            speaks(&mut replicas, index, after, now);
        }
        let now = now + slow;
        let chosen: Vec<usize> =
            (0..12).filter_map(|_| sub(&mut replicas, &[], now)).map(|place| place.index).collect();
        assert_eq!(chosen.iter().filter(|index| **index == 1).count(), 0, "{chosen:?}");
        assert_eq!(chosen.iter().filter(|index| **index == 0).count(), 6, "{chosen:?}");
        // It is a prefix's home no more, until what is known of it is old.
        let mut replicas = self::replicas(3);
        for (index, after) in [(0, fast), (1, slow), (2, fast)] {
            speaks(&mut replicas, index, after, now);
        }
        let now = now + slow;
        let prefix = (0..).find(|prefix| replicas.home(*prefix, |_| true) == Some(1)).expect("one");
        let first = place(&mut replicas, "first", Some(prefix), now).expect("alive");
        assert_ne!(first.index, 1);
        replicas.release(first);
        let later = now + 6 * MEMORY;
        assert_eq!(place(&mut replicas, "later", Some(prefix), later).expect("alive").index, 1);
    }

    #[test]
    fn a_replica_that_says_nothing_is_avoided_while_it_is_silent() {
        let (mut replicas, mut now) = (replicas(2), Instant::now());
        for index in 0..2 {
            speaks(&mut replicas, index, Duration::from_millis(100), now);
        }
        let silent = sub(&mut replicas, &[1], now).expect("alive");
        now += Duration::from_secs(3);
        let chosen: Vec<usize> = (0..8).filter_map(|_| sub(&mut replicas, &[], now)).map(|place| place.index).collect();
        assert_eq!(chosen, [1; 8]);
        replicas.release(silent);
        assert!(replicas.all[0].waiting.is_empty());
        assert_eq!(sub(&mut replicas, &[], now).map(|place| place.index), Some(0));
    }
}
