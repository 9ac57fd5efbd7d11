//! `paravt bench scheduler`: the native engine's scheduler in modelled time, with both of its policies.

use clap::Args;
use serde::Serialize;

use super::tell;
use crate::cli::CliError;
use crate::engine::native::NativeOptions;
use crate::engine::native::policy::Policy;
use crate::engine::native::scheduler::SchedulerConfig;
use crate::engine::native::simulation::{Report, StepCost, Workload, simulate};

/// Blocks of keys and values. How many an engine has depends on its model; with these, what is kept of the past matters and
/// no one waits for memory alone.
const BLOCKS: u32 = 16_000;

/// Arguments of `bench scheduler`.
#[derive(Debug, Args)]
pub(super) struct SchedulerArgs {
    /// Arrivals a second, on average; several are simulated one after another
    #[arg(long, value_delimiter = ',', default_values_t = [0.5, 1.0, 1.2, 1.5])]
    load: Vec<f64>,
    /// Episodes of each simulation
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    episodes: u32,
    /// Seed of arrivals and lengths
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// One of the simulations.
#[derive(Debug, Serialize)]
struct Simulated {
    /// Arrivals a second.
    episodes_per_s: f64,
    policy: Policy,
    report: Report,
}

/// Runs the command.
pub(super) fn run(args: &SchedulerArgs) -> Result<(), CliError> {
    if args.load.iter().any(|load| !(load.is_finite() && *load > 0.0)) {
        return Err(CliError::Usage("--load takes numbers above 0".to_owned()));
    }
    let mut all = Vec::new();
    for episodes_per_s in &args.load {
        for policy in [Policy::Fcfs, Policy::Episodes] {
            let config = config(policy);
            let workload =
                Workload { episodes: args.episodes as usize, episodes_per_s: *episodes_per_s, ..Workload::default() };
            let report = simulate(&config, &workload, &StepCost::default(), args.seed);
            all.push(Simulated { episodes_per_s: *episodes_per_s, policy, report });
        }
    }
    tell(&all, args.json, || table(&all))
}

/// As the engine has it: what is over a bound there waits or is refused here as well.
fn config(policy: Policy) -> SchedulerConfig {
    let NativeOptions { max_queued, max_running, chunk_tokens, .. } = NativeOptions::default();
    SchedulerConfig {
        blocks: BLOCKS,
        chunk_tokens,
        running_max: max_running,
        queue_max: max_queued,
        policy,
        ..SchedulerConfig::default()
    }
}

fn table(all: &[Simulated]) -> String {
    let head = "| episodes/s | policy | episode p50 s | p99 s | ttft p50 s | p99 s | second ttft p99 s | burst p99 s | refused |";
    let mut lines = vec![head.to_owned(), "| --- | --- | --- | --- | --- | --- | --- | --- | --- |".to_owned()];
    lines.extend(all.iter().map(|Simulated { episodes_per_s, policy, report }| {
        let (episode, ttft) = (&report.episode_s, &report.ttft_s);
        format!(
            "| {episodes_per_s} | {policy:?} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {} |",
            episode.p50, episode.p99, ttft.p50, ttft.p99, report.ttft_second_s.p99, report.burst_s.p99, report.refused
        )
    }));
    lines.join("\n")
}
