//! `paravt train`: the companion training module.

mod bench;
mod data;
mod grpo;
mod sft;

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::error::failed;
use super::{CliError, Environment};
use crate::app::App;
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
    /// PARA-GRPO: what did better than its group is made likelier
    Grpo(grpo::GrpoArgs),
    /// Look after data sets: conversations and prompts, as Parquet or as lines of JSON
    Data(data::DataArgs),
    /// Measure how fast gradients are computed here
    Bench(bench::BenchArgs),
}

/// Runs the command.
pub(super) async fn run(args: &TrainArgs, config: Config, environment: &Environment) -> Result<(), CliError> {
    match &args.command {
        TrainCommand::Sft(args) => sft::run(args, config, environment).await,
        TrainCommand::Grpo(args) => Box::pin(grpo::run(args, config, environment)).await,
        TrainCommand::Data(args) => data::run(args),
        TrainCommand::Bench(args) => bench::run(args, config).await,
    }
}

impl From<TrainError> for CliError {
    fn from(error: TrainError) -> Self {
        failed(error)
    }
}

/// A line of JSON for each step of a run, in its folder.
const LOG: &str = "progress.jsonl";

/// The folder of the card's checkpoint, which must be here.
async fn base(app: &App) -> Result<PathBuf, CliError> {
    app.checkpoint(false).await?.ok_or_else(|| failed("the card's model is not a local one"))
}

/// A plan's text.
fn read(plan: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(plan).map_err(|error| failed(format!("{}: {error}", plan.display())))
}

/// Makes the folder of a run and claims it for as long as what is given is held: two never train in one folder.
fn claim(folder: &Path) -> Result<File, CliError> {
    let wrong = |problem: &dyn std::fmt::Display| failed(format!("{}: {problem}", folder.display()));
    std::fs::create_dir_all(folder).map_err(|error| wrong(&error))?;
    let lock = File::create(folder.join("lock")).map_err(|error| wrong(&error))?;
    lock.try_lock().map_err(|_| wrong(&"another process trains in this folder"))?;
    Ok(lock)
}

/// A file of lines to go on with: those that are kept are there already.
fn log(path: &Path, keep: impl Fn(&str) -> bool) -> Result<File, CliError> {
    let kept: Vec<String> = match File::open(path) {
        Err(_) => Vec::new(),
        Ok(file) => {
            let lines = BufReader::new(file).lines();
            lines.filter(|line| line.as_ref().is_ok_and(|line| keep(line))).collect::<Result<_, _>>()?
        }
    };
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(path)?;
    for line in kept {
        writeln!(file, "{line}")?;
    }
    Ok(file)
}
