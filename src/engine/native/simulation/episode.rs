//! One modelled episode: what it will ask for, how far it is, and when things happened.

use std::sync::Arc;
use std::time::Duration;

use rand_chacha::rand_core::RngCore;

use super::{Workload, duration};
use crate::engine::native::scheduler::SequenceRequest;
use crate::engine::{SessionKey, Speaker};

/// A request of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Call {
    /// The main agent's first turn.
    First,
    /// A window's watcher.
    Window(usize),
    /// The main agent's second turn.
    Second,
}

#[derive(Debug)]
pub(super) struct Episode {
    pub(super) arrival: Duration,
    pub(super) refused: bool,
    system_tokens: usize,
    overview_tokens: usize,
    /// Tokens of the first turn after which each call is complete.
    call_ends: Vec<usize>,
    windows: Vec<Window>,
    instruction_tokens: usize,
    answer_tokens: usize,
    /// Tokens of the response beside summaries.
    response_tokens: usize,
    /// Calls that have to end before the second turn.
    awaited: usize,
    first_token: Option<Duration>,
    first_window: Option<Duration>,
    last_summary: Option<Duration>,
    second_turn: Option<Duration>,
    second_token: Option<Duration>,
    end: Option<Duration>,
}

#[derive(Debug)]
struct Window {
    frames_tokens: usize,
    summary_tokens: usize,
}

/// Draws the episodes of a workload in order of their arrival.
pub(super) fn draw(workload: &Workload, random: &mut impl RngCore) -> Vec<Episode> {
    let mut arrival = 0.0;
    (0..workload.episodes)
        .map(|_| {
            let windows: Vec<Window> = (0..between(random, workload.windows))
                .map(|_| Window {
                    frames_tokens: between(random, workload.window_tokens).max(1),
                    summary_tokens: between(random, workload.summary_tokens).max(1),
                })
                .collect();
            let think_tokens = between(random, workload.think_tokens).max(1);
            // Exponential gaps make a Poisson process. One minus: the logarithm of zero has no place here.
            arrival += -(1.0 - unit(random)).ln() / workload.episodes_per_s.max(1e-9);
            Episode {
                arrival: duration(arrival),
                refused: false,
                system_tokens: workload.system_tokens,
                overview_tokens: between(random, workload.overview_tokens).max(1),
                call_ends: (1..=windows.len()).map(|call| think_tokens + call * workload.call_tokens).collect(),
                response_tokens: workload.response_tokens + windows.len() * workload.line_tokens,
                awaited: windows.len() + 1,
                windows,
                instruction_tokens: workload.instruction_tokens,
                answer_tokens: between(random, workload.answer_tokens).max(1),
                first_token: None,
                first_window: None,
                last_summary: None,
                second_turn: None,
                second_token: None,
                end: None,
            }
        })
        .collect()
}

/// Evenly from `[0, 1)`, with all the bits that fit.
fn unit(random: &mut impl RngCore) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

fn between(random: &mut impl RngCore, (low, high): (usize, usize)) -> usize {
    low + (unit(random) * (high.saturating_sub(low) as f64 + 1.0)) as usize
}

impl Episode {
    /// What is asked for. Prompts have in common what the workload says, and the second turn goes on from the first.
    pub(super) fn request(&self, number: usize, call: Call) -> SequenceRequest {
        let mut prompt = Vec::new();
        match call {
            Call::First | Call::Second => {
                prompt.extend(own(0, 0, self.system_tokens));
                prompt.extend(own(number + 1, 1, self.overview_tokens));
            }
            Call::Window(window) => {
                prompt.extend(own(0, 1, self.instruction_tokens));
                prompt.extend(own(number + 1, 10 + window, self.windows[window].frames_tokens));
            }
        }
        if call == Call::Second {
            prompt.extend((0..self.wanted(Call::First)).map(|at| self.token(Call::First, at)));
            let summaries: usize = self.windows.iter().map(|window| window.summary_tokens).sum();
            prompt.extend(own(number + 1, 3, summaries + self.response_tokens));
        }
        let sub = matches!(call, Call::Window(_));
        SequenceRequest {
            prompt,
            pictures: Arc::new([]),
            max_new_tokens: self.wanted(call),
            session: SessionKey(number.to_string().into()),
            speaker: if sub { Speaker::Sub } else { Speaker::Main },
            gang: sub.then_some(number as u64),
        }
    }

    /// The `at`-th token of an output.
    pub(super) fn token(&self, call: Call, at: usize) -> u32 {
        let call = if let Call::Window(window) = call { 2 + window as u32 } else { u32::from(call == Call::Second) };
        0x8000_0000 | call << 16 | at as u32
    }

    /// Length of an output.
    pub(super) fn wanted(&self, call: Call) -> usize {
        match call {
            Call::First => self.call_ends.last().copied().unwrap_or(self.answer_tokens),
            Call::Window(window) => self.windows[window].summary_tokens,
            Call::Second => self.answer_tokens,
        }
    }

    pub(super) fn submitted(&mut self, call: Call, at: Duration) {
        match call {
            Call::First => {}
            Call::Window(_) => self.first_window = self.first_window.or(Some(at)),
            Call::Second => self.second_turn = Some(at),
        }
    }

    /// An output has so many tokens now. Says what is asked for next.
    pub(super) fn progress(&mut self, call: Call, generated: usize, now: Duration) -> Vec<Call> {
        let mut next = Vec::new();
        match call {
            Call::First => {
                self.first_token = self.first_token.or(Some(now));
                let done = |(call, end): (usize, &usize)| (*end == generated).then_some(Call::Window(call));
                next.extend(self.call_ends.iter().enumerate().filter_map(done));
            }
            Call::Window(_) => {}
            Call::Second => self.second_token = self.second_token.or(Some(now)),
        }
        if generated == self.wanted(call) {
            if matches!(call, Call::Window(_)) {
                self.last_summary = Some(now);
            }
            if call == Call::Second || self.windows.is_empty() {
                self.end = Some(now);
            } else {
                self.awaited -= 1;
                next.extend((self.awaited == 0).then_some(Call::Second));
            }
        }
        next
    }

    /// Whether it was served to its end.
    pub(super) const fn is_over(&self) -> bool {
        self.end.is_some()
    }

    pub(super) fn latency(&self) -> Option<Duration> {
        Some(self.end? - self.arrival)
    }

    pub(super) fn first_token(&self) -> Option<Duration> {
        Some(self.first_token? - self.arrival)
    }

    pub(super) fn second_token(&self) -> Option<Duration> {
        Some(self.second_token? - self.second_turn?)
    }

    pub(super) fn burst(&self) -> Option<Duration> {
        Some(self.last_summary.filter(|_| self.second_turn.is_some())? - self.first_window?)
    }
}

/// Token ids that nothing else has, as far as 32 bits go: the owner and part are spread over them.
fn own(owner: usize, part: usize, count: usize) -> impl Iterator<Item = u32> {
    let base = (owner as u32).wrapping_mul(0x9e37_79b1) ^ (part as u32).wrapping_mul(0x85eb_ca6b);
    (0..count as u32).map(move |at| base.wrapping_add(at) & 0x7fff_ffff)
}
