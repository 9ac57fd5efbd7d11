//! Episodes against the real scheduler in modelled time: what a policy does to latency, without a model.
//!
//! Requests arrive at random, a step takes as long as [`StepCost`] says for what is in it, and nothing else takes time. An
//! episode is a first turn over an overview, windows that are asked for while that turn is being written, and a second turn
//! that goes on from the first with the windows' summaries. Same arguments, same report.

mod dispatcher;
mod episode;
pub mod fleet;
mod node;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde::Serialize;

use self::episode::{Call, Episode};
use self::node::Node;
use super::batch::Batch;
use super::scheduler::{SchedulerConfig, SchedulerStats};

/// Episodes to serve. Ranges are inclusive and drawn from evenly.
#[derive(Debug, Clone, Serialize)]
pub struct Workload {
    /// How many.
    pub episodes: usize,
    /// Arrivals a second, on average: a Poisson process.
    pub episodes_per_s: f64,
    /// Tokens that every main prompt begins with.
    pub system_tokens: usize,
    /// Tokens of the overview and the question.
    pub overview_tokens: (usize, usize),
    /// Tokens of the first turn before its first call.
    pub think_tokens: (usize, usize),
    /// Tokens of a call.
    pub call_tokens: usize,
    /// Windows of a burst.
    pub windows: (usize, usize),
    /// Seconds from a call's last token to its window's request: frames are decoded.
    pub crop_s: f64,
    /// Tokens that every window's prompt begins with.
    pub instruction_tokens: usize,
    /// Tokens of a window's frames.
    pub window_tokens: (usize, usize),
    /// Tokens of a window's summary.
    pub summary_tokens: (usize, usize),
    /// Tokens of the second turn's prompt around the summaries.
    pub response_tokens: usize,
    /// The same for each summary.
    pub line_tokens: usize,
    /// Tokens of the last turn.
    pub answer_tokens: (usize, usize),
}

impl Default for Workload {
    /// An overview of 64 small frames, up to eight windows of 16 larger ones.
    fn default() -> Self {
        Self {
            episodes: 400,
            episodes_per_s: 1.0,
            system_tokens: 400,
            overview_tokens: (3000, 5000),
            think_tokens: (40, 160),
            call_tokens: 30,
            windows: (1, 8),
            crop_s: 0.15,
            instruction_tokens: 120,
            window_tokens: (600, 2000),
            summary_tokens: (30, 200),
            response_tokens: 1,
            line_tokens: 0,
            answer_tokens: (20, 120),
        }
    }
}

/// What a step costs, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StepCost {
    /// For each step.
    pub step_s: f64,
    /// For each token of a prompt.
    pub prefill_token_s: f64,
    /// For each token of a decoding sequence.
    pub decode_token_s: f64,
    /// For each key that a token attends to.
    pub attention_s: f64,
}

impl Default for StepCost {
    /// About a model of eight billion parameters on one large accelerator.
    fn default() -> Self {
        Self { step_s: 8e-3, prefill_token_s: 4e-5, decode_token_s: 5e-5, attention_s: 2e-9 }
    }
}

impl StepCost {
    /// Seconds that a batch takes. Rows of one token decode, longer ones read a prompt.
    #[must_use]
    pub fn seconds(&self, batch: &Batch) -> f64 {
        let rows = batch.rows.iter().map(|row| {
            let count = row.tokens.len();
            if count == 1 { self.writing_s(row.first, count) } else { self.reading_s(row.first, count) }
        });
        self.step_s + rows.sum::<f64>()
    }

    /// Seconds for so many tokens of a prompt that come after `first` others, in however many pieces; steps not counted.
    #[must_use]
    pub fn reading_s(&self, first: usize, count: usize) -> f64 {
        self.tokens_s(first, count, self.prefill_token_s)
    }

    /// Seconds for so many tokens that are decoded one after another, the first of them after `first` others; steps not
    /// counted.
    #[must_use]
    pub fn writing_s(&self, first: usize, count: usize) -> f64 {
        self.tokens_s(first, count, self.decode_token_s)
    }

    /// The `i`-th token attends to `first + i` keys, its own included.
    fn tokens_s(&self, first: usize, count: usize, token_s: f64) -> f64 {
        let count = count as f64;
        count * token_s + count * (first as f64 + (count + 1.0) / 2.0) * self.attention_s
    }
}

/// What came of it. Times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// From an episode's arrival to its last token.
    pub episode_s: Spread,
    /// From an episode's arrival to its first token.
    pub ttft_s: Spread,
    /// From the second turn's request to its first token.
    pub ttft_second_s: Spread,
    /// From the first window's request to the last token of the last window.
    pub burst_s: Spread,
    /// Episodes that were served to the end.
    pub finished: usize,
    /// Episodes one of whose requests was refused.
    pub refused: usize,
    /// Until everything was done.
    pub total_s: f64,
    /// Share of that in which a step was computed.
    pub busy: f64,
    /// Steps computed.
    pub steps: usize,
    /// The scheduler's own books.
    pub stats: SchedulerStats,
}

/// A distribution.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// All but a hundredth are below.
    pub p99: f64,
}

impl Spread {
    /// Of nothing: zeros. Percentiles are the nearest rank's.
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (share * values.len() as f64).ceil() as usize;
            values.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        Self { mean: values.iter().sum::<f64>() / values.len().max(1) as f64, p50: at(0.5), p99: at(0.99) }
    }
}

/// Serves a workload. Deterministic: the seed decides arrivals and lengths.
#[must_use]
pub fn simulate(config: &SchedulerConfig, workload: &Workload, cost: &StepCost, seed: u64) -> Report {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let episodes = episode::draw(workload, &mut random);
    let mut simulation = Simulation {
        node: Node::new(config.clone()),
        crop: duration(workload.crop_s),
        arrivals: BinaryHeap::new(),
        now: Duration::ZERO,
        episodes,
    };
    for (number, episode) in simulation.episodes.iter().enumerate() {
        simulation.arrivals.push(Reverse((episode.arrival, number, Call::First)));
    }
    let (mut busy, mut steps) = (Duration::ZERO, 0);
    loop {
        simulation.submit_arrived();
        if let Some(batch) = simulation.node.step() {
            let took = duration(cost.seconds(&batch));
            simulation.now += took;
            busy += took;
            steps += 1;
            simulation.take(&batch);
        } else if let Some(Reverse((at, ..))) = simulation.arrivals.peek() {
            simulation.now = simulation.now.max(*at);
        } else {
            break;
        }
    }
    simulation.report(busy, steps)
}

/// Whatever was asked for, a time that can be added up.
fn duration(seconds: f64) -> Duration {
    if seconds > 0.0 { Duration::from_secs_f64(seconds.min(1e9)) } else { Duration::ZERO }
}

struct Simulation {
    node: Node,
    crop: Duration,
    /// What will be requested: when, for which episode, which of its calls.
    arrivals: BinaryHeap<Reverse<(Duration, usize, Call)>>,
    now: Duration,
    episodes: Vec<Episode>,
}

impl Simulation {
    fn submit_arrived(&mut self) {
        while let Some(Reverse((at, number, call))) = self.arrivals.peek().copied()
            && at <= self.now
        {
            self.arrivals.pop();
            let episode = &mut self.episodes[number];
            if episode.refused {
                continue;
            }
            match self.node.submit(episode.request(number, call), number, call, at) {
                Ok(_) => episode.submitted(call, at),
                Err(_) => episode.refused = true,
            }
        }
    }

    fn take(&mut self, batch: &Batch) {
        let (now, crop) = (self.now, self.crop);
        let arrivals = &mut self.arrivals;
        self.node.take(batch, &mut self.episodes, now, |told| {
            for follower in told.followers {
                let delay = if matches!(follower, Call::Window(_)) { crop } else { Duration::ZERO };
                arrivals.push(Reverse((now + delay, told.number, follower)));
            }
        });
    }

    fn report(self, busy: Duration, steps: usize) -> Report {
        let times = |pick: fn(&Episode) -> Option<Duration>| {
            Spread::of(self.episodes.iter().filter_map(pick).map(|time| time.as_secs_f64()).collect())
        };
        let total_s = self.now.as_secs_f64();
        Report {
            episode_s: times(Episode::latency),
            ttft_s: times(Episode::first_token),
            ttft_second_s: times(Episode::second_token),
            burst_s: times(Episode::burst),
            finished: self.episodes.iter().filter(|episode| episode.latency().is_some()).count(),
            refused: self.episodes.iter().filter(|episode| episode.refused).count(),
            total_s,
            busy: if total_s > 0.0 { busy.as_secs_f64() / total_s } else { 0.0 },
            steps,
            stats: self.node.stats(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::Policy;
    use super::*;

    fn loaded(episodes_per_s: f64) -> Workload {
        Workload { episodes: 120, episodes_per_s, ..Workload::default() }
    }

    fn run(policy: Policy, workload: &Workload, seed: u64) -> Report {
        let config = SchedulerConfig { blocks: 16_000, policy, ..SchedulerConfig::default() };
        simulate(&config, workload, &StepCost::default(), seed)
    }

    #[test]
    fn under_high_load_whole_episodes_are_faster_when_the_oldest_goes_first() {
        let workload = loaded(2.0);
        for seed in 0..3 {
            let (plain, episodes) = (run(Policy::Fcfs, &workload, seed), run(Policy::Episodes, &workload, seed));
            assert_eq!((plain.finished, episodes.finished), (120, 120));
            assert!(episodes.episode_s.p50 < 0.9 * plain.episode_s.p50, "{seed}: {plain:?} {episodes:?}");
            assert!(episodes.episode_s.p99 < plain.episode_s.p99, "{seed}: {plain:?} {episodes:?}");
        }
    }

    #[test]
    fn without_load_the_policy_makes_no_difference() {
        let workload = Workload { episodes: 20, ..loaded(0.01) };
        let (plain, episodes) = (run(Policy::Fcfs, &workload, 1), run(Policy::Episodes, &workload, 1));
        assert!((episodes.episode_s.p99 / plain.episode_s.p99 - 1.0).abs() < 0.02, "{plain:?} {episodes:?}");
    }

    #[test]
    fn the_same_seed_gives_the_same_report_and_another_one_another() {
        let workload = Workload { episodes: 20, ..loaded(0.5) };
        assert_eq!(run(Policy::Episodes, &workload, 1), run(Policy::Episodes, &workload, 1));
        assert_ne!(run(Policy::Episodes, &workload, 1), run(Policy::Episodes, &workload, 2));
    }

    #[test]
    fn the_second_turn_and_common_prefixes_are_found() {
        let workload = Workload { episodes: 10, windows: (4, 4), ..loaded(0.05) };
        let report = run(Policy::Episodes, &workload, 1);
        // Nine times the system prompt, 39 times the instructions (whole blocks), ten times the first turn.
        assert!(report.stats.hit_tokens > 9 * 400 + 39 * 112 + 10 * 3400, "{report:?}");
        assert!(report.ttft_second_s.p50 < 0.2 * report.ttft_s.p50, "{report:?}");
    }

    #[test]
    fn refused_requests_are_counted_and_the_rest_is_served() {
        let config = SchedulerConfig { queue_max: 4, running_max: 4, blocks: 16_000, ..SchedulerConfig::default() };
        let report = simulate(&config, &Workload { episodes: 40, ..loaded(4.0) }, &StepCost::default(), 1);
        assert!(report.refused > 0 && report.finished > 0);
        assert_eq!(report.refused + report.finished, 40);
    }

    #[test]
    fn nothing_to_do_takes_no_time() {
        let report = run(Policy::Episodes, &Workload { episodes: 0, ..loaded(1.0) }, 1);
        assert_eq!((report.total_s, report.steps, report.episode_s), (0.0, 0, Spread::default()));
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let spread = Spread::of((1..=200).rev().map(f64::from).collect());
        assert_eq!((spread.mean, spread.p50, spread.p99), (100.5, 100.0, 198.0));
    }
}
