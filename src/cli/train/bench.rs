//! `paravt train bench`: how fast gradients are computed here, and the batch that it was measured on, for others to be measured on.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde_json::json;

use crate::app::App;
use crate::cli::output::Target;
use crate::cli::{CliError, error::failed};
use crate::config::Config;
use crate::train::bench::Bench;

/// Arguments of `train bench`.
#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// Rows of a step: whole episodes on signal boards
    #[arg(long, value_name = "N", default_value_t = 16)]
    rows: usize,
    /// Steps that are timed, after one that is not
    #[arg(long, value_name = "N", default_value_t = 5)]
    steps: usize,
    /// Write the batch to this file (safetensors), for load_tests/training/pytorch.py
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
}

/// Runs the command.
pub(super) async fn run(args: &BenchArgs, config: Config) -> Result<(), CliError> {
    let app = App::new(config)?;
    let base = super::base(&app).await?;
    let (card, rows, steps, dump) = (app.card().clone(), args.rows, args.steps, args.dump.clone());
    let work = tokio::task::spawn_blocking(move || measure(card, &base, rows, steps, dump.as_deref()));
    work.await.map_err(|_| failed("the measurement broke off"))?
}

fn measure(
    card: crate::card::ModelCard,
    base: &Path,
    rows: usize,
    steps: usize,
    dump: Option<&Path>,
) -> Result<(), CliError> {
    let mut bench = Bench::new(card, base, rows)?;
    if let Some(file) = dump {
        bench.dump(file)?;
    }
    for (name, shared) in [("apart", false), ("shared", true)] {
        let loss = bench.step(shared)?;
        let mut seconds = Vec::with_capacity(steps);
        for _ in 0..steps.max(1) {
            let began = Instant::now();
            bench.step(shared)?;
            seconds.push(began.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        let median = seconds[seconds.len() / 2];
        let tokens = bench.tokens();
        let report = json!({
            "rows": name, "tokens": tokens, "loss": loss, "median_s": median, "least_s": seconds[0],
            "most_s": seconds[seconds.len() - 1], "tokens_per_s": (tokens as f64 / median).round(),
        });
        Target::Stdout.line(&report.to_string())?;
    }
    Ok(())
}
