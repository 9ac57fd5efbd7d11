//! Who runs, who waits, and whose turn it is. Pure and synchronous: it is told the time, and says who may start.
//!
//! Waiting callers take turns by deficit round robin (Shreedhar and Varghese, 1995): each turn is worth one place, what is
//! left of it counts for the caller's next one as long as it has somebody waiting. So callers share the server by what their
//! requests cost, not by how many they send. Within a caller it is first come, first served. Whoever's turn it is waits until
//! its request fits, and nobody passes it: a large request is not starved by small ones. Only callers who are at their own
//! key's limit are passed.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::cost::Cost;
use super::pace::Pace;
use super::rate::Rates;
use crate::api::caller::Caller;
use crate::config::KeyLimits;

/// What one turn is worth.
const QUANTUM: u64 = Cost::PLACE.get();
/// `Retry-After` where nothing was finished yet that could tell.
const UNKNOWN: Duration = Duration::from_secs(2);

/// Names one request from its asking to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

/// Why a request is refused at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api) enum Reason {
    /// As many wait as may.
    Queue,
    /// It would wait longer than `server.max_wait_s`.
    Wait,
    /// As many of this key's requests wait as may.
    KeyQueue,
    /// The key's requests of this minute are used up.
    Rate,
    /// All bodies together are as large, or as many are read, as may be.
    Bodies,
    /// Those of this key are.
    KeyBodies,
}

/// A refusal, and when to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api) struct Refusal {
    /// Why.
    pub(in crate::api) reason: Reason,
    /// In so many seconds, 1 to 60.
    pub(in crate::api) retry_after_s: u16,
}

impl Refusal {
    pub(super) fn new(reason: Reason, after: Option<Duration>) -> Self {
        let seconds = after.unwrap_or(UNKNOWN).as_secs_f64().ceil().clamp(1.0, 60.0);
        Self { reason, retry_after_s: seconds as u16 }
    }
}

/// The bounds of all together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Places, whole ones.
    pub(super) places: u64,
    /// Requests that may wait.
    pub(super) max_queued: usize,
    /// Longest wait that is expected of anybody.
    pub(super) max_wait: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Scheduler {
    capacity: u64,
    bounds: Bounds,
    /// Callers with something running or waiting, and no others.
    lanes: HashMap<Caller, Lane>,
    /// Callers with somebody waiting. The first has its turn.
    ring: VecDeque<Caller>,
    /// Whether the first was given what its turn is worth.
    granted: bool,
    requests: HashMap<Ticket, Request>,
    last: u64,
    running: Sum,
    queued: Sum,
    pace: Pace,
    rates: Rates,
}

/// Requests and their cost together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::api) struct Sum {
    pub(in crate::api) count: usize,
    pub(in crate::api) cost: u64,
}

impl Sum {
    const fn add(&mut self, cost: u64) {
        self.count += 1;
        self.cost += cost;
    }

    const fn take(&mut self, cost: u64) {
        self.count -= 1;
        self.cost -= cost;
    }
}

#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<Ticket>,
    queued_cost: u64,
    running: usize,
    deficit: u64,
    /// As its latest request's key had them.
    limits: KeyLimits,
}

impl Lane {
    /// Its own limit holds it back.
    fn is_barred(&self) -> bool {
        self.limits.max_running.is_some_and(|most| self.running >= most)
    }
}

#[derive(Debug)]
struct Request {
    caller: Caller,
    cost: u64,
    /// `None` as long as it waits.
    running_since: Option<Instant>,
}

impl Scheduler {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            capacity: bounds.places.max(1).saturating_mul(QUANTUM),
            bounds,
            lanes: HashMap::new(),
            ring: VecDeque::new(),
            granted: false,
            requests: HashMap::new(),
            last: 0,
            running: Sum::default(),
            queued: Sum::default(),
            pace: Pace::default(),
            rates: Rates::default(),
        }
    }

    /// What runs.
    pub(super) const fn running(&self) -> Sum {
        self.running
    }

    /// What waits.
    pub(super) const fn queued(&self) -> Sum {
        self.queued
    }

    /// Whether a request of this caller, of which nothing is known yet, could be taken on: if not even the cheapest could,
    /// there is no sense in reading it.
    ///
    /// # Errors
    /// [`Refusal`].
    pub(super) fn may_ask(&self, caller: &Caller) -> Result<(), Refusal> {
        let cost = Cost::LEAST.get();
        if self.must_wait(caller, cost) { self.may_wait(caller, cost) } else { Ok(()) }
    }

    /// Counts a request towards what its caller may ask a minute.
    ///
    /// # Errors
    /// [`Refusal`].
    pub(super) fn count(&mut self, caller: &Caller, now: Instant) -> Result<(), Refusal> {
        self.rates.count(caller, now).map_err(|after| Refusal::new(Reason::Rate, Some(after)))
    }

    /// Takes a request on. True: it runs. False: it waits until [`Self::leave`] says that it starts.
    ///
    /// # Errors
    /// [`Refusal`]; nothing of it is left then.
    pub(super) fn enter(&mut self, caller: &Caller, cost: Cost, now: Instant) -> Result<(Ticket, bool), Refusal> {
        // What is larger than the whole server gets the whole server.
        let cost = cost.get().min(self.capacity);
        let runs = !self.must_wait(caller, cost);
        if !runs {
            self.may_wait(caller, cost)?;
        }
        self.last += 1;
        let ticket = Ticket(self.last);
        let lane = self.lanes.entry(caller.clone()).or_default();
        lane.limits = caller.limits();
        if runs {
            lane.running += 1;
            self.running.add(cost);
        } else {
            if lane.waiting.is_empty() {
                self.ring.push_back(caller.clone());
            }
            lane.waiting.push_back(ticket);
            lane.queued_cost += cost;
            self.queued.add(cost);
        }
        self.requests.insert(ticket, Request { caller: caller.clone(), cost, running_since: runs.then_some(now) });
        Ok((ticket, runs))
    }

    /// A request is over, or gave up waiting. Gives those that start now. An unknown one is over already.
    pub(super) fn leave(&mut self, ticket: Ticket, now: Instant) -> Vec<Ticket> {
        let Some(Request { caller, cost, running_since }) = self.requests.remove(&ticket) else { return Vec::new() };
        let Some(lane) = self.lanes.get_mut(&caller) else { return Vec::new() };
        if let Some(since) = running_since {
            lane.running -= 1;
            self.running.take(cost);
            self.pace.finished(cost, now.saturating_duration_since(since));
        } else {
            lane.waiting.retain(|waiting| *waiting != ticket);
            lane.queued_cost -= cost;
            // What was saved for a large request is not for many small ones.
            lane.deficit = lane.deficit.min(QUANTUM);
            self.queued.take(cost);
            if lane.waiting.is_empty() {
                self.leaves_the_ring(&caller);
            }
        }
        self.forget(&caller);
        self.start(now)
    }

    /// Whether a request can't start at once.
    fn must_wait(&self, caller: &Caller, cost: u64) -> bool {
        let lane = self.lanes.get(caller);
        let barred = caller.limits().max_running.is_some_and(|most| lane.map_or(0, |lane| lane.running) >= most);
        let behind_its_own = lane.is_some_and(|lane| !lane.waiting.is_empty());
        let behind_others = || self.waiting_lanes().any(|(_, lane)| !lane.is_barred());
        barred || behind_its_own || self.running.cost + cost > self.capacity || behind_others()
    }

    /// Whether a request that can't start at once may wait.
    fn may_wait(&self, caller: &Caller, cost: u64) -> Result<(), Refusal> {
        let own = self.lanes.get(caller).map_or(0, |lane| lane.waiting.len());
        let most = self.bounds.max_queued;
        let wait = self.expected_wait(caller, cost);
        // Who has nobody waiting finds a place in the queue also where others have filled it: one for each key there is.
        let reason = if self.queued.count >= most && (own > 0 || most == 0) {
            Reason::Queue
        } else if caller.limits().max_queued.is_some_and(|most| own >= most) {
            Reason::KeyQueue
        } else if wait.zip(self.bounds.max_wait).is_some_and(|(wait, most)| wait > most) {
            Reason::Wait
        } else {
            return Ok(());
        };
        Err(Refusal::new(reason, wait))
    }

    /// How long a request would wait. `None` before any was finished.
    fn expected_wait(&self, caller: &Caller, cost: u64) -> Option<Duration> {
        let lane = self.lanes.get(caller);
        let own = lane.map_or(0, |lane| lane.queued_cost) + cost;
        // In as many turns as it takes to serve its own, each other caller has as many.
        let turns = own.div_ceil(QUANTUM);
        let others = self.waiting_lanes().filter(|(other, lane)| *other != caller && !lane.is_barred());
        let others: u64 = others.map(|(_, lane)| lane.queued_cost.min(turns.saturating_mul(QUANTUM))).sum();
        let ahead = (self.running.cost + others + own).saturating_sub(self.capacity);
        let wait = self.pace.time_for(ahead, self.capacity)?;
        let Some(most) = caller.limits().max_running.and_then(|most| u64::try_from(most).ok()) else {
            return Some(wait);
        };
        let held_back = lane.map_or(0, |lane| lane.running + lane.waiting.len()) as u64 + 1;
        let own_wait = self.pace.time_for(held_back.saturating_sub(most), most.max(1))?;
        Some(wait.max(own_wait))
    }

    fn waiting_lanes(&self) -> impl Iterator<Item = (&Caller, &Lane)> {
        self.ring.iter().filter_map(|caller| self.lanes.get_key_value(caller))
    }

    /// Starts all whose turn it is and who fit.
    fn start(&mut self, now: Instant) -> Vec<Ticket> {
        let mut started = Vec::new();
        // Callers in a row who are at their own limit. When it is all of them, nobody can start.
        let mut barred = 0;
        while barred < self.ring.len() {
            let Some(caller) = self.ring.front().cloned() else { break };
            let Some(lane) = self.lanes.get_mut(&caller) else { break };
            let Some(ticket) = lane.waiting.front().copied() else { break };
            let Some(request) = self.requests.get_mut(&ticket) else { break };
            if lane.is_barred() {
                barred += 1;
                self.next_turn();
            } else if lane.deficit < request.cost {
                barred = 0;
                if self.granted {
                    self.next_turn();
                } else {
                    lane.deficit += QUANTUM;
                    self.granted = true;
                }
            } else if self.running.cost + request.cost > self.capacity {
                break;
            } else {
                barred = 0;
                request.running_since = Some(now);
                lane.waiting.pop_front();
                lane.queued_cost -= request.cost;
                lane.deficit -= request.cost;
                lane.running += 1;
                self.queued.take(request.cost);
                self.running.add(request.cost);
                started.push(ticket);
                if lane.waiting.is_empty() {
                    self.leaves_the_ring(&caller);
                }
            }
        }
        started
    }

    fn next_turn(&mut self) {
        self.ring.rotate_left(1);
        self.granted = false;
    }

    /// Nobody of this caller waits any more. What was left of its turn is lost: an absent caller saves nothing up.
    fn leaves_the_ring(&mut self, caller: &Caller) {
        if self.ring.front() == Some(caller) {
            self.granted = false;
        }
        self.ring.retain(|other| other != caller);
        if let Some(lane) = self.lanes.get_mut(caller) {
            lane.deficit = 0;
        }
    }

    fn forget(&mut self, caller: &Caller) {
        if self.lanes.get(caller).is_some_and(|lane| lane.running == 0 && lane.waiting.is_empty()) {
            self.lanes.remove(caller);
        }
    }
}

#[cfg(test)]
mod tests;
