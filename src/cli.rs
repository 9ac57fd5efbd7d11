//! The command line: arguments in, one call into `app`, answers on stdout, everything else on stderr.
//!
//! Exit status: 0 done, 1 failed with one line on stderr, 2 wrong usage, 128 + signal when interrupted.
//! This room knows nothing of engines' and media's insides; `app` wires them.

mod ask;
mod batch;
mod bench;
mod demo;
mod doctor;
mod environment;
mod error;
mod eval;
mod ffmpeg;
mod health;
mod keys;
mod line;
mod load;
mod openapi;
mod options;
mod output;
mod plain;
mod report;
mod screen;
mod serve;
mod story;
mod text;
mod timeline;
#[cfg(feature = "train")]
mod train;
mod view;

use std::path::PathBuf;

use clap::{ArgAction, Parser, Subcommand};

pub use environment::Environment;
pub use error::CliError;

use crate::config::Config;
use crate::shutdown::Signals;
use crate::telemetry::LogConfig;
use options::EngineArgs;

/// Answers questions about long videos by watching many windows of them at the same time.
#[derive(Debug, Parser)]
#[command(name = "paravt", version, about, disable_help_subcommand = true)]
pub struct Cli {
    /// Configuration file (TOML); PARAVT_<SECTION>_<FIELD> and flags win over it
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// More logs on stderr; -vv and -vvv for more still
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve OpenAI's API over HTTP
    Serve(serve::ServeArgs),
    /// Ask one question about one video
    Ask(ask::AskArgs),
    /// Show the bundled model at work on the bundled video
    Demo(demo::DemoArgs),
    /// Say what is there, what is missing, and how to get it
    Doctor(doctor::DoctorArgs),
    /// Ask a running server whether it is alive, or ready: for health checks of containers
    Health(health::HealthArgs),
    /// Measure a part of the work on this machine
    Bench(bench::BenchArgs),
    /// Ask a benchmark's questions and count the right answers
    Eval(eval::EvalArgs),
    /// Tell the events of many videos: a file of tasks in, a line of JSON for each out
    Batch(batch::BatchArgs),
    /// Train the model that the server hosts
    #[cfg(feature = "train")]
    Train(train::TrainArgs),
    /// Make keys for callers of the server
    Keys(keys::KeysArgs),
    /// Print the OpenAPI document
    Openapi,
}

impl Cli {
    /// Starts logs as the flags and `PARAVT_LOG`, `PARAVT_LOG_FORMAT` ask.
    ///
    /// # Errors
    /// [`CliError`] when they ask for what is not there.
    pub fn start_logs(&self, environment: &Environment) -> Result<(), CliError> {
        let server = matches!(self.command, Command::Serve(_));
        let mut logs =
            LogConfig::new(environment.get("PARAVT_LOG"), environment.get("PARAVT_LOG_FORMAT"), self.verbose, server)?;
        logs.colour = !environment.is_set("NO_COLOR");
        Ok(logs.start()?)
    }

    /// Runs the command to its end, or until a signal. What the command was doing is dropped then, and with it every
    /// sub-agent and child process.
    ///
    /// # Errors
    /// [`CliError`], which knows its exit status.
    pub async fn run(self, environment: &Environment) -> Result<(), CliError> {
        // A variable that a flag names is no setting, however it is called.
        let load = |args: &EngineArgs| {
            let key = args.key_variable();
            let settings = environment.variables().filter(|(name, _)| Some(name.as_str()) != key);
            Config::load(self.config.as_deref(), settings)
        };
        match self.command {
            // A server stops by itself, after its running episodes.
            Command::Serve(args) => Box::pin(serve::run(&args, load(&args.engine)?, environment)).await,
            Command::Ask(args) => interruptible(ask::run(&args, load(&args.engine)?, environment)).await,
            Command::Demo(args) => interruptible(demo::run(&args, load(&args.engine)?, environment)).await,
            Command::Doctor(args) => interruptible(doctor::run(&args, load(&args.engine)?, environment)).await,
            Command::Health(args) => health::run(&args, &load(&EngineArgs::default())?).await,
            Command::Bench(args) => interruptible(bench::run(&args, load(&EngineArgs::default())?, environment)).await,
            Command::Eval(args) => {
                let config = load(&args.engine)?;
                interruptible(Box::pin(eval::run(&args, config, environment))).await
            }
            Command::Batch(args) => {
                let config = load(&args.engine)?;
                interruptible(Box::pin(batch::run(&args, config, environment))).await
            }
            #[cfg(feature = "train")]
            Command::Train(args) => {
                let config = load(&EngineArgs::default())?;
                interruptible(Box::pin(train::run(&args, config, environment))).await
            }
            Command::Keys(args) => keys::run(&args),
            Command::Openapi => openapi::run(),
        }
    }
}

async fn interruptible(command: impl Future<Output = Result<(), CliError>>) -> Result<(), CliError> {
    let mut signals = Signals::new()?;
    let command = Box::pin(command);
    tokio::select! {
        done = command => done,
        signal = signals.next() => Err(CliError::Interrupted(signal)),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
