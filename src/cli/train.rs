//! `paravt train`: the companion training module.

mod bench;
mod sft;

use clap::{Args, Subcommand};

use super::error::failed;
use super::{CliError, Environment};
use crate::config::Config;
use crate::train::TrainError;

/// Arguments of `train`.
#[derive(Debug, Args)]
pub(super) struct TrainArgs {
    #[command(subcommand)]
    command: TrainCommand,
}

#[derive(Debug, Subcommand)]
enum TrainCommand {
    /// Supervised fine-tuning: learn to write what traces wrote
    Sft(sft::SftArgs),
    /// Measure how fast gradients are computed here
    Bench(bench::BenchArgs),
}

/// Runs the command.
pub(super) async fn run(args: &TrainArgs, config: Config, environment: &Environment) -> Result<(), CliError> {
    match &args.command {
        TrainCommand::Sft(args) => sft::run(args, config, environment).await,
        TrainCommand::Bench(args) => bench::run(args, config).await,
    }
}

impl From<TrainError> for CliError {
    fn from(error: TrainError) -> Self {
        failed(error)
    }
}
