//! `paravt bench`: how fast this machine does a part of the work, measured from inside.

#[cfg(feature = "native")]
mod capacity;
mod engine;
mod media;
mod memory;
#[cfg(feature = "native")]
mod scheduler;
mod soak;
mod workload;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::output::{self, Target};
use super::{CliError, Environment};
use crate::config::Config;

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Fetch and decode a video's overview, again from the cache, and five windows at the same time
    Media(media::MediaArgs),
    /// Run episodes and bursts of windows of made-up frames through an engine
    Engine(engine::EngineBenchArgs),
    /// Ask an engine for random episodes for a long time, and judge whether anything was lost or left behind
    Soak(soak::SoakArgs),
    /// Simulate episodes with the native engine's scheduler and a modelled step time, first come first served and by episodes
    #[cfg(feature = "native")]
    Scheduler(scheduler::SchedulerArgs),
    /// From traffic to GPUs, decode cores, network and cost, on paper; and fleets of many GPUs in modelled time
    #[cfg(feature = "native")]
    Capacity(Box<capacity::CapacityArgs>),
}

/// Runs the command.
pub(super) async fn run(args: &BenchArgs, config: Config, environment: &Environment) -> Result<(), CliError> {
    match &args.part {
        Part::Media(args) => media::run(args, config).await,
        Part::Engine(args) => Box::pin(engine::run(args, config, environment)).await,
        Part::Soak(args) => Box::pin(soak::run(args, config, environment)).await,
        #[cfg(feature = "native")]
        Part::Scheduler(args) => scheduler::run(args),
        #[cfg(feature = "native")]
        Part::Capacity(args) => capacity::run(args),
    }
}

/// A report as it was asked for: one JSON object, or what people read.
fn tell(report: &impl Serialize, json: bool, told: impl FnOnce() -> String) -> Result<(), CliError> {
    let told = if json { output::json(report)? } else { told() };
    Ok(Target::Stdout.line(&told)?)
}

/// The middle one; of an even number, the lower. 0 of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.0);
        assert_eq!(median(Vec::new()), 0.0);
    }
}
