//! `paravt train sft`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc as channel};
use std::time::Duration;

use clap::Args;

use super::{LOG, base, claim, log, read};
use crate::app::App;
use crate::cli::error::failed;
use crate::cli::output::{Pace, Target, json};
use crate::cli::{CliError, Environment};
use crate::config::Config;
use crate::train::TrainError;
use crate::train::sft::{Plan, Progress, Report, Sft, SourceReport};

/// Arguments of `train sft`.
#[derive(Debug, Args)]
pub(super) struct SftArgs {
    /// A plan that comes with paravt: tiny (the bundled model, from nothing)
    #[arg(long, value_name = "NAME", conflicts_with = "plan", required_unless_present = "plan")]
    preset: Option<String>,
    /// A plan of your own, TOML
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Folder of the run: states, progress, and at its end the checkpoint; a run that was broken off goes on from there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Seed in place of the plan's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Runs the command.
pub(super) async fn run(args: &SftArgs, mut config: Config, _: &Environment) -> Result<(), CliError> {
    let mut plan = match (&args.preset, &args.plan) {
        (Some(preset), _) => Plan::preset(preset),
        (None, Some(file)) => Plan::parse(&read(file)?),
        (None, None) => return Err(CliError::Usage("--preset or --plan is needed".to_owned())),
    }
    .map_err(|error| CliError::Usage(error.to_string()))?;
    plan.seed = args.seed.unwrap_or(plan.seed);
    config.engine.card = Some(plan.card.clone());
    let app = App::new(config)?;
    let base = base(&app).await?;
    let (card, out) = (app.card().clone(), args.out.clone());
    // Dropped with the command, also by a signal: the thread then ends its step, and keeps the state.
    let (working, over) = channel::channel::<()>();
    let stop = Stop { stop: Arc::default(), over };
    let stopped = Arc::clone(&stop.stop);
    let work = tokio::task::spawn_blocking(move || {
        let _working = working;
        train(plan, card, base, &out, &stopped)
    });
    let done = work.await.map_err(|_| failed("training broke off"))?;
    drop(stop);
    done
}

/// Asks the training thread to end, and waits until it has kept its state.
struct Stop {
    stop: Arc<AtomicBool>,
    /// Closed when the thread is over.
    over: channel::Receiver<()>,
}

impl Drop for Stop {
    fn drop(&mut self) {
        /// Longest step that is waited for.
        const PATIENCE: Duration = Duration::from_secs(60);
        self.stop.store(true, Ordering::Relaxed);
        // Nothing is ever sent: it ends when the thread does.
        let _ = self.over.recv_timeout(PATIENCE);
    }
}

fn train(
    plan: Plan,
    card: crate::card::ModelCard,
    base: PathBuf,
    out: &Path,
    stop: &AtomicBool,
) -> Result<(), CliError> {
    let _claim = claim(out)?;
    let steps = plan.steps();
    let mut sft = Sft::open(plan, card, base, out.to_owned())?;
    let done = sft.done();
    let mut log = log(&out.join(LOG), |line| match serde_json::from_str::<Progress>(line) {
        Ok(Progress::Step(report)) => report.step <= done,
        Ok(Progress::Evaluation { step, .. }) => step <= done,
        Err(_) => false,
    })?;
    let mut pace = Pace::new();
    let mut told = |progress: &Progress| -> Result<(), TrainError> {
        let mut write = || -> Result<(), CliError> {
            writeln!(log, "{}", json(progress)?)?;
            let due = matches!(progress, Progress::Evaluation { .. });
            if pace.is_due(due) {
                Target::Stderr.line(&line(progress, steps))?;
            }
            Ok(())
        };
        write().map_err(|error| TrainError::Options(error.to_string()))
    };
    sft.run(stop, &mut told)?;
    if sft.done() == steps {
        sft.export(&out.join("checkpoint"))?;
    }
    Ok(())
}

/// For people.
fn line(progress: &Progress, steps: u64) -> String {
    match progress {
        Progress::Step(Report {
            step,
            stage,
            loss,
            rate,
            gradient_norm,
            tokens,
            computed_tokens,
            seconds,
            sources,
        }) => {
            let exact = sources.iter().map(SourceReport::to_string).collect::<Vec<_>>().join("  ");
            format!(
                "{step}/{steps} {stage}  loss {loss:.4}  rate {rate:.1e}  norm {gradient_norm:.2}  {:.0} tokens/s ({:.0} computed)  {exact}",
                *tokens as f64 / seconds,
                *computed_tokens as f64 / seconds,
            )
        }
        Progress::Evaluation { step, sources } => {
            let exact = sources.iter().map(SourceReport::to_string).collect::<Vec<_>>().join("  ");
            format!("{step}/{steps} held out  {exact}")
        }
    }
}
