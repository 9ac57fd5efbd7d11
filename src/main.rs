//! The front: parses, starts logs and the runtime, dispatches.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use paravt::cli::{Cli, Environment};

/// How long threads that can't be interrupted (a model being loaded) may keep the process after its work is done.
const PATIENCE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let cli = Cli::parse();
    let environment = Environment::of_process();
    if let Err(error) = cli.start_logs(&environment) {
        return error.report();
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return paravt::cli::CliError::from(error).report(),
    };
    let code = runtime.block_on(cli.run(&environment)).map_or_else(|error| error.report(), |()| ExitCode::SUCCESS);
    runtime.shutdown_timeout(PATIENCE);
    code
}
