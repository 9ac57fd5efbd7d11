//! The paper's fleets in modelled time, at several loads.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use super::CapacityArgs;
use super::paper::{BLOCK, Bounds, Inputs};
use crate::engine::native::scheduler::SchedulerConfig;
use crate::engine::native::simulation::Workload;
use crate::engine::native::simulation::fleet::{Fleet, FleetReport, simulate_fleet};

/// Share of the episodes after which a fleet counts as running.
const WARM_UP: f64 = 0.4;
/// Requests that a replica lets wait.
const QUEUE: usize = 1024;
/// For each episode at work, so many wait in a front end: as `server.max_queued` is to `server.max_running` by default.
const WAITING: usize = 4;

/// One fleet at one load.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Simulated {
    pub(super) gpus: usize,
    pub(super) front_ends: usize,
    /// Of what the fleet bears on paper, as far as it is simulated.
    pub(super) share: f64,
    /// Arrivals a second.
    pub(super) episodes_per_s: f64,
    /// Seconds of an episode on paper, on average.
    pub(super) paper_s: f64,
    pub(super) bounds: Bounds,
    pub(super) report: FleetReport,
}

/// How lengths are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lengths {
    /// Between half of the mean and one and a half times as much; windows from one on.
    Drawn,
    /// All the mean.
    #[cfg_attr(not(test), expect(dead_code, reason = "what the paper is compared with"))]
    Equal,
}

/// Runs every fleet at every load, as many at the same time as there are cores.
pub(super) fn simulate(inputs: &Inputs, nodes: &[usize], args: &CapacityArgs) -> Vec<Simulated> {
    let mut all: Vec<(usize, f64)> =
        nodes.iter().flat_map(|gpus| args.shares.iter().map(|share| (*gpus, *share))).collect();
    // What takes longest begins first.
    all.sort_by(|a, b| (b.0, b.1).partial_cmp(&(a.0, a.1)).unwrap_or(std::cmp::Ordering::Equal));
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(all.len());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((gpus, share)) = all.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
                    let each = args.episodes_per_gpu.unwrap_or((40_000 / gpus).clamp(40, 400));
                    let fleet = Fleet { same_order: args.same_order, ..fleet(inputs, gpus) };
                    let one = run(inputs, &fleet, share, each * gpus, Lengths::Drawn, args.seed);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push(one);
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by(|a, b| a.gpus.cmp(&b.gpus).then(a.share.total_cmp(&b.share)));
    done
}

/// One fleet at one load.
pub(super) fn run(
    inputs: &Inputs,
    fleet: &Fleet,
    share: f64,
    episodes: usize,
    lengths: Lengths,
    seed: u64,
) -> Simulated {
    let gpus = fleet.replicas;
    let bounds = inputs.bounds(gpus);
    let episodes_per_s = share * bounds.simulated();
    let workload = Workload { episodes, episodes_per_s, ..workload(inputs, lengths) };
    let report = simulate_fleet(fleet, &workload, WARM_UP, seed);
    let paper_s = inputs.episode().latency_s(inputs, episodes_per_s / gpus as f64);
    Simulated { gpus, front_ends: fleet.front_ends, share, episodes_per_s, paper_s, bounds, report }
}

/// So many GPUs, and what is bought with them.
pub(super) fn fleet(inputs: &Inputs, gpus: usize) -> Fleet {
    let front_ends = inputs.front_ends(gpus);
    let places = (gpus * inputs.places_per_gpu).div_ceil(front_ends);
    Fleet {
        replicas: gpus,
        scheduler: SchedulerConfig {
            block_tokens: BLOCK,
            blocks: u32::try_from(inputs.kv_tokens / BLOCK).unwrap_or(u32::MAX).max(1),
            chunk_tokens: inputs.chunk_tokens,
            running_max: inputs.running_max,
            queue_max: QUEUE,
            ..SchedulerConfig::default()
        },
        cost: inputs.step,
        front_ends,
        cores: inputs.cores(gpus),
        places,
        waiting: WAITING * places,
        same_order: false,
        overview_pieces: inputs.overview_pieces,
        overview_piece_s: inputs.overview_piece_s,
        window_s: inputs.window_s,
    }
}

/// The paper's episodes. A sub-agent's prompt begins with its frames, so that windows have nothing in common.
fn workload(inputs: &Inputs, lengths: Lengths) -> Workload {
    let tokens = &inputs.tokens;
    let drawn = |mean: usize| match lengths {
        Lengths::Drawn => (mean - mean / 2, mean + mean / 2),
        Lengths::Equal => (mean, mean),
    };
    let opening = tokens.overview + tokens.question;
    let window = tokens.window + tokens.instruction;
    Workload {
        system_tokens: tokens.system,
        overview_tokens: (opening, opening),
        think_tokens: drawn(tokens.think),
        call_tokens: tokens.call,
        windows: match lengths {
            Lengths::Drawn => (1, 2 * inputs.windows - 1),
            Lengths::Equal => (inputs.windows, inputs.windows),
        },
        instruction_tokens: 0,
        window_tokens: (window, window),
        summary_tokens: drawn(tokens.summary),
        response_tokens: tokens.response,
        line_tokens: tokens.line,
        answer_tokens: drawn(tokens.answer),
        ..Workload::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::inputs;
    use super::*;

    /// How far the paper may be from the simulation.
    const TOLERANCE: f64 = 0.1;

    fn within(simulated: f64, paper: f64) -> bool {
        (simulated / paper - 1.0).abs() < TOLERANCE
    }

    #[test]
    fn at_low_load_an_episode_takes_as_long_as_on_paper() {
        let inputs = inputs();
        let one = run(&inputs, &fleet(&inputs, 2), 0.02, 60, Lengths::Equal, 1);
        assert!(within(one.report.episode_s.p50, one.paper_s), "{one:?}");
        assert!(within(one.report.ttft_s.p50, inputs.episode().first_s), "{one:?}");
    }

    #[test]
    fn at_half_load_the_longer_steps_are_those_of_the_paper() {
        let inputs = inputs();
        let one = run(&inputs, &fleet(&inputs, 2), 0.6, 400, Lengths::Equal, 1);
        assert!(within(one.report.episode_s.mean, one.paper_s), "{one:?}");
        assert!(within(one.report.episodes_per_s, one.episodes_per_s), "{one:?}");
    }

    #[test]
    fn what_is_found_and_what_cores_do_is_what_the_paper_says() {
        let inputs = inputs();
        let one = run(&inputs, &fleet(&inputs, 2), 0.5, 400, Lengths::Equal, 1);
        let tokens = inputs.tokens.tokens(crate::agent::cost::Way::Parallel, inputs.windows);
        let found = 1.0 - tokens.read_new as f64 / tokens.read as f64;
        assert!((one.report.found - found).abs() < 0.01, "{found} {one:?}");
        let cores = one.episodes_per_s * inputs.decode_s() / (inputs.front_ends(2) * inputs.cores(2)) as f64;
        assert!(within(one.report.core_busy, cores), "{cores} {one:?}");
    }

    #[test]
    fn saturated_replicas_serve_as_many_as_on_paper() {
        let inputs = inputs();
        let one = run(&inputs, &fleet(&inputs, 2), 1.3, 1000, Lengths::Equal, 1);
        assert_eq!(one.bounds.sorted()[0].0, "GPUs");
        assert!(within(one.report.episodes_per_s, one.bounds.simulated()), "{one:?}");
    }

    #[test]
    fn saturated_cores_serve_as_many_as_on_paper() {
        let inputs = Inputs { cores_per_gpu: 8, ..inputs() };
        let one = run(&inputs, &fleet(&inputs, 2), 1.3, 600, Lengths::Equal, 1);
        assert_eq!(one.bounds.sorted()[0].0, "decode cores");
        assert!(within(one.report.episodes_per_s, one.bounds.simulated()), "{one:?}");
    }
}
