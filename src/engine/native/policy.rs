//! In which order requests leave the queue and are read.
//!
//! [`Policy::Episodes`] is one rule: the oldest episode first, an episode being as old as its first request. A continued
//! turn or a window is therefore before every episode that came later, begun or not. Within an episode the main agent is
//! before sub-agents: it speaks when the windows it asked for are there, so what it says is what somebody waits for. A
//! gang's windows are as old as its first, so that no other gang comes between them. Order is strict: what doesn't fit holds up what comes after it.
//!
//! Nobody starves: a name counts as the same episode for a limited time after its first request. Whoever waits is then
//! preceded by finitely many requests only, whatever names are used again.
//!
//! Knows nothing of tokens or memory; time comes as an argument.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::engine::{SessionKey, Speaker};

/// How requests are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// First come, first served, each request by itself.
    Fcfs,
    /// Oldest episode first, gangs together.
    #[default]
    Episodes,
}

/// A place in the order: less is earlier. No two requests of one scheduler have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Arrival of the episode's first request.
    episode: u64,
    /// Main agent 0, sub-agent 1.
    speaker: u8,
    /// Arrival of the gang's first request.
    gang: u64,
    /// Arrival of this request.
    arrival: u64,
}

/// Gives ranks, and remembers the episodes and gangs it needs for them.
#[derive(Debug)]
pub struct Ranks {
    policy: Policy,
    memory: Duration,
    episodes_max: usize,
    episodes: HashMap<Arc<str>, u64>,
    /// The same in order of their first request: when, and who.
    order: VecDeque<(Duration, Arc<str>)>,
    gangs: HashMap<u64, Members>,
}

#[derive(Debug)]
struct Members {
    first: u64,
    count: usize,
}

impl Ranks {
    /// Remembers an episode for `memory` after its first request, and at most `episodes_max` of them.
    #[must_use]
    pub fn new(policy: Policy, memory: Duration, episodes_max: usize) -> Self {
        let (episodes, order, gangs) = (HashMap::new(), VecDeque::new(), HashMap::new());
        Self { policy, memory, episodes_max, episodes, order, gangs }
    }

    /// Ranks the `arrival`-th request, which came at `now`. Its gang is remembered until [`Self::leave`].
    pub fn join(
        &mut self,
        arrival: u64,
        session: &SessionKey,
        speaker: Speaker,
        gang: Option<u64>,
        now: Duration,
    ) -> Rank {
        if self.policy == Policy::Fcfs {
            return Rank { episode: arrival, speaker: 0, gang: arrival, arrival };
        }
        self.forget(now);
        let episode = *self.episodes.entry(Arc::clone(&session.0)).or_insert_with(|| {
            self.order.push_back((now, Arc::clone(&session.0)));
            arrival
        });
        let gang = gang.map_or(arrival, |gang| {
            let members = self.gangs.entry(gang).or_insert(Members { first: arrival, count: 0 });
            members.count += 1;
            members.first
        });
        Rank { episode, speaker: u8::from(speaker == Speaker::Sub), gang, arrival }
    }

    /// A request that was ranked is over.
    pub fn leave(&mut self, gang: Option<u64>) {
        let Some(gang) = gang else { return };
        if let Some(members) = self.gangs.get_mut(&gang) {
            members.count -= 1;
            if members.count == 0 {
                self.gangs.remove(&gang);
            }
        }
    }

    /// Episodes remembered.
    #[must_use]
    pub fn episodes(&self) -> usize {
        self.episodes.len()
    }

    /// Gangs with requests that aren't over.
    #[must_use]
    pub fn gangs(&self) -> usize {
        self.gangs.len()
    }

    fn forget(&mut self, now: Duration) {
        while let Some((first, key)) = self.order.front()
            && (now.saturating_sub(*first) >= self.memory || self.order.len() >= self.episodes_max.max(1))
        {
            self.episodes.remove(key);
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Duration = Duration::from_secs(60);

    fn key(name: &str) -> SessionKey {
        SessionKey(name.into())
    }

    fn sorted(policy: Policy, requests: &[(&'static str, Speaker, Option<u64>)]) -> Vec<usize> {
        let mut ranks = Ranks::new(policy, MEMORY, 100);
        let mut order: Vec<(Rank, usize)> = requests
            .iter()
            .enumerate()
            .map(|(i, (name, speaker, gang))| (ranks.join(i as u64, &key(name), *speaker, *gang, Duration::ZERO), i))
            .collect();
        order.sort();
        order.into_iter().map(|(_, i)| i).collect()
    }

    #[test]
    fn windows_and_continued_turns_go_before_younger_episodes_and_main_before_sub() {
        let requests = [
            ("a", Speaker::Main, None),
            ("b", Speaker::Main, None),
            ("a", Speaker::Sub, Some(7)),
            ("a", Speaker::Sub, Some(8)),
            ("a", Speaker::Sub, Some(7)),
            ("a", Speaker::Main, None),
        ];
        assert_eq!(sorted(Policy::Episodes, &requests), [0, 5, 2, 4, 3, 1]);
        assert_eq!(sorted(Policy::Fcfs, &requests), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_name_used_for_long_is_a_new_episode() {
        let mut ranks = Ranks::new(Policy::Episodes, MEMORY, 100);
        let at = |ranks: &mut Ranks, arrival, name, secs| {
            ranks.join(arrival, &key(name), Speaker::Main, None, Duration::from_secs(secs))
        };
        at(&mut ranks, 0, "a", 0);
        let waiting = at(&mut ranks, 1, "b", 10);
        assert!(at(&mut ranks, 2, "a", 59) < waiting);
        assert!(at(&mut ranks, 3, "a", 60) > waiting);
        assert_eq!(ranks.episodes(), 2);
    }

    #[test]
    fn memory_is_bounded() {
        let mut ranks = Ranks::new(Policy::Episodes, MEMORY, 10);
        for arrival in 0..100 {
            ranks.join(arrival, &key(&arrival.to_string()), Speaker::Sub, Some(arrival), Duration::ZERO);
            ranks.leave(Some(arrival));
        }
        assert!(ranks.episodes() <= 10 && ranks.order.len() <= 10 && ranks.gangs.is_empty());
    }
}
