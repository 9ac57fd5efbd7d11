//! `paravt train grpo`.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use clap::Args;
use serde_json::json;

use super::{LOG, base, claim, log, read};
use crate::app::App;
use crate::cli::output::{Pace, Target, json};
use crate::cli::{CliError, Environment};
use crate::config::Config;
use crate::train::grpo::{Grpo, GrpoPlan, StepReport, Variant};
use crate::train::{Scores, TrainError, rollout::Rollout};

/// Rollouts to read, a line of JSON each.
const SAMPLES: &str = "samples.jsonl";

/// Arguments of `train grpo`.
#[derive(Debug, Args)]
pub(super) struct GrpoArgs {
    /// What to do, TOML
    #[arg(long, value_name = "FILE")]
    plan: PathBuf,
    /// Folder of the run: videos, states, progress, samples, and at its end the checkpoint; a run that was broken off goes on
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Only this part of PARA-GRPO: vanilla, anchoring, gating, no-tool-reward, no-anchor, full
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Seed in place of the plan's
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Checkpoint to begin from, in place of the plan's
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
}

/// Runs the command.
pub(super) async fn run(args: &GrpoArgs, mut config: Config, _: &Environment) -> Result<(), CliError> {
    let usage = |error: TrainError| CliError::Usage(error.to_string());
    let mut plan = GrpoPlan::parse(&read(&args.plan)?).map_err(usage)?;
    plan.seed = args.seed.unwrap_or(plan.seed);
    plan.checkpoint = args.checkpoint.clone().or(plan.checkpoint);
    if let Some(variant) = &args.variant {
        plan = plan.only(variant.parse::<Variant>().map_err(usage)?);
    }
    config.engine.card = Some(plan.card.clone());
    let app = App::new(config)?;
    let base = match &plan.checkpoint {
        Some(folder) => folder.clone(),
        None => base(&app).await?,
    };
    let _claim = claim(&args.out)?;
    let (steps, boards) = (plan.steps, plan.boards);
    let mut pace = Pace::new();
    let filmed = |made: usize| {
        if pace.is_due(made == boards) {
            // Without stderr there is no one to tell.
            let _ = Target::Stderr.line(&format!("filmed {made}/{boards} boards"));
        }
    };
    let opened = Grpo::open(plan, app.card().clone(), base, args.out.clone(), app.media()?, filmed);
    let mut grpo = Box::pin(opened).await?;
    let done = grpo.done();
    let mut steps_log = log(&args.out.join(LOG), |line| {
        serde_json::from_str::<StepReport>(line).is_ok_and(|report| report.step <= done)
    })?;
    let mut samples = log(&args.out.join(SAMPLES), |line| {
        let line: Result<serde_json::Value, _> = serde_json::from_str(line);
        line.is_ok_and(|line| line["step"].as_u64().is_some_and(|step| step <= done))
    })?;
    let mut told = |report: &StepReport, groups: &[Vec<(Rollout, Scores)>]| -> Result<(), TrainError> {
        let mut write = || -> Result<(), CliError> {
            writeln!(steps_log, "{}", json(report)?)?;
            for (rollout, scores) in groups.iter().filter_map(|group| group.first()) {
                writeln!(samples, "{}", json(&sample(report.step, rollout, scores))?)?;
            }
            Ok(Target::Stderr.line(&line(report, steps))?)
        };
        write().map_err(|error| TrainError::Options(error.to_string()))
    };
    // Signals drop this future: the run goes on from its last state.
    Box::pin(grpo.run(&AtomicBool::new(false), &mut told)).await?;
    Ok(grpo.export(&args.out.join("checkpoint"))?)
}

/// A rollout for people to read.
fn sample(step: u64, rollout: &Rollout, scores: &Scores) -> serde_json::Value {
    match &rollout.outcome {
        Ok(outcome) => {
            let turns: Vec<&str> = outcome.turns.iter().map(|turn| turn.text.as_str()).collect();
            let windows: Vec<Option<&str>> =
                outcome.windows.iter().map(|window| window.summary.as_deref().or(window.error.as_deref())).collect();
            json!({"step": step, "turns": turns, "windows": windows, "scores": scores})
        }
        Err(error) => json!({"step": step, "error": error.to_string()}),
    }
}

/// For people.
fn line(report: &StepReport, steps: u64) -> String {
    let StepReport { step, reward, accuracy, format, tool, tool_rate, well_formed, kl, clipped, .. } = report;
    format!(
        "{step}/{steps}  reward {reward:.3} = {accuracy:.3} right + {format:.3} form + {tool:.3} tool  calls {:.0} %  \
         well-formed {:.0} %  {:.0} tokens  kl {kl:.4}  clipped {:.1} %  norm {:.2}  {:.1} s + {:.1} s",
        100.0 * tool_rate,
        100.0 * well_formed,
        report.tokens,
        100.0 * clipped,
        report.gradient_norm,
        report.rollout_s,
        report.learn_s,
    )
}
