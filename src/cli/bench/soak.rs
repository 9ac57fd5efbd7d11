//! `paravt bench soak`: random episodes against an engine for a long time, and whether anything was lost or left behind.
//!
//! `draw` says by chance what is asked for, `clients` ask it, `counts` keeps the books, `verdict` judges. What is remembered
//! of the past is bounded: one number each time memory is looked at, as many of them in a week as in a minute.

mod clients;
mod counts;
mod draw;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, interval_at, sleep, sleep_until, timeout};

use self::clients::Clients;
use self::counts::{Count, Counts};
use self::draw::Draw;
use self::verdict::{Growth, Verdict};
use super::memory::Footprint;
use super::tell;
use super::workload::{Proportions, Workload};
use crate::app::App;
use crate::cli::options::EngineArgs;
use crate::cli::output::Target;
use crate::cli::view::View;
use crate::cli::{CliError, Environment, load, text};
use crate::config::Config;
use crate::engine::{Engine, EngineLoad};

/// How often memory is looked at, over the whole time.
const LOOKS: u32 = 960;
/// But not more often than this.
const LOOK: Duration = Duration::from_millis(50);
/// Time between two lines.
const STEP: Duration = Duration::from_secs(60);
/// How long the last requests are waited for.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the engine may take to see that nobody waits any more.
const IDLE: Duration = Duration::from_secs(30);
/// Time between two looks at it meanwhile.
const LOAD_LOOK: Duration = Duration::from_millis(10);
/// Longest pause between two bursts.
const PAUSE: Duration = Duration::from_secs(1);
/// Numbers of bursts, which must not be those of episodes.
const BURSTS: u64 = 1 << 48;
/// A week.
const LONGEST_MINUTES: f64 = 7.0 * 24.0 * 60.0;

/// Arguments of `bench soak`.
#[derive(Debug, Args)]
pub(super) struct SoakArgs {
    /// For how long; a part of a minute will do. Memory is to stay as it is from the second quarter on, by when the caches
    /// must be full: PARAVT_ENGINE_VISION_CACHE_BYTES makes the native engine's smaller
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Episodes at the same time, at most. New ones come in bursts of random size, up to this. For refusals set
    /// PARAVT_ENGINE_MAX_QUEUED to less than three times as many
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    episodes: u32,
    /// Which episodes: the same seed asks for the same ones, in the same order
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON objects, one a line: a step each minute, and at last the verdict
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    proportions: Proportions,
    #[command(flatten)]
    engine: EngineArgs,
}

/// How fast, and how long.
#[derive(Debug, Clone, Copy)]
struct Pace {
    total: Duration,
    step: Duration,
    look: Duration,
    /// Episodes at the same time.
    at_once: usize,
    patience: Duration,
}

/// What happened since the last step, and what is there at its end.
#[derive(Debug, Serialize)]
struct Step {
    /// Seconds since the beginning.
    at_s: f64,
    /// In this step alone.
    #[serde(flatten)]
    count: Count,
    /// Generations being computed.
    running: usize,
    /// Generations waiting.
    queued: usize,
    #[serde(flatten)]
    footprint: Footprint,
}

/// The last line.
#[derive(Debug, Serialize)]
struct Report {
    engine: String,
    seed: u64,
    minutes: f64,
    #[serde(flatten)]
    verdict: Verdict,
}

/// Runs the command.
pub(super) async fn run(args: &SoakArgs, mut config: Config, environment: &Environment) -> Result<(), CliError> {
    if !(args.minutes > 0.0 && args.minutes <= LONGEST_MINUTES) {
        return Err(CliError::Usage(format!("--minutes takes a number above 0 and up to {LONGEST_MINUTES}")));
    }
    args.engine.lay_over(&mut config.engine, environment)?;
    let view = View::told(Target::Stderr, environment);
    let app = App::new(config)?;
    let workload = Workload::of(app.card(), &args.proportions, false);
    workload.fits(args.episodes, clients::WINDOWS_MAX)?;
    let engine = load::engine(&app, &view).await?;
    let info = engine.info();
    let clients = Clients::new(engine, app.card().clone(), workload, args.seed);
    let total = Duration::from_secs_f64(60.0 * args.minutes);
    let pace =
        Pace { total, step: STEP, look: LOOK.max(total / LOOKS), at_once: args.episodes as usize, patience: PATIENCE };
    let verdict = soak(&Arc::new(clients), &pace, |step| tell(step, args.json, || step.told())).await?;
    let problems = verdict.problems.join("; ");
    let engine = text::line(&format!("{} ({})", info.name, info.detail));
    let report = Report { engine, seed: args.seed, minutes: args.minutes, verdict };
    tell(&report, args.json, || report.told())?;
    if problems.is_empty() { Ok(()) } else { Err(CliError::Failed(problems)) }
}

/// Asks for as long as the pace says, waits for the last ones, and judges.
async fn soak(
    clients: &Arc<Clients>,
    pace: &Pace,
    mut told: impl FnMut(&Step) -> Result<(), CliError>,
) -> Result<Verdict, CliError> {
    let (began, counts) = (Instant::now(), Arc::clone(clients.counts()));
    let mut look = interval(pace.look);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut step = interval_at(began + pace.step, pace.step);
    let (mut resident, mut before) = (Vec::new(), Count::default());
    let mut episodes = JoinSet::new();
    let (mut number, mut bursts, mut next_burst) = (0, 0, began);
    loop {
        tokio::select! {
            () = sleep_until(began + pace.total) => break,
            _ = look.tick() => resident.extend(Footprint::now().resident_bytes),
            _ = step.tick() => {
                let count = counts.now();
                told(&Step::new(began, count.since(&before), clients.engine()))?;
                before = count;
            }
            () = sleep_until(next_burst), if episodes.len() < pace.at_once => {
                let mut draw = Draw::new(clients.seed(), BURSTS + bursts);
                let free = pace.at_once - episodes.len();
                for _ in 0..draw.spread(pace.at_once as u64).min(free as u64) {
                    episodes.spawn(Arc::clone(clients).episode(number));
                    number += 1;
                }
                bursts += 1;
                next_burst = Instant::now() + draw.moment(PAUSE);
            }
            Some(done) = episodes.join_next() => gone(&done, &counts),
        }
    }
    let last = async {
        while let Some(done) = episodes.join_next().await {
            gone(&done, &counts);
        }
    };
    if timeout(pace.patience, last).await.is_err() {
        counts.close();
        episodes.shutdown().await;
    }
    let after = idle(clients.engine()).await;
    let count = counts.now();
    told(&Step::new(began, count.since(&before), clients.engine()))?;
    Ok(Verdict::of(count, Growth::of(&resident), after))
}

/// An episode is over. One that broke off is a failure, of ours or of the engine's.
fn gone(done: &Result<(), tokio::task::JoinError>, counts: &Counts) {
    if done.is_err() {
        counts.broke();
    }
}

/// What the engine is doing when it had time to see that nobody waits any more.
async fn idle(engine: &dyn Engine) -> EngineLoad {
    let until = Instant::now() + IDLE;
    while engine.load() != EngineLoad::default() && Instant::now() < until {
        sleep(LOAD_LOOK).await;
    }
    engine.load()
}

impl Step {
    fn new(began: Instant, count: Count, engine: &dyn Engine) -> Self {
        let EngineLoad { running, queued } = engine.load();
        let at_s = (began.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        Self { at_s, count, running, queued, footprint: Footprint::now() }
    }

    fn told(&self) -> String {
        let known = |value: Option<u64>| value.map_or_else(|| "?".to_owned(), |value| value.to_string());
        let Footprint { resident_bytes, threads, descriptors } = self.footprint;
        format!(
            "{:>7.0} s  {}; {} run, {} wait; {} MB, {} threads, {} descriptors",
            self.at_s,
            self.count.told(),
            self.running,
            self.queued,
            known(resident_bytes.map(|bytes| bytes / 1_000_000)),
            known(threads),
            known(descriptors)
        )
    }
}

impl Report {
    fn told(&self) -> String {
        let memory = self.verdict.memory.map_or_else(
            || "not told by this system".to_owned(),
            |growth| {
                format!(
                    "{} MB in the second quarter, {} MB in the last (up to {} MB would do)",
                    growth.second_quarter_bytes / 1_000_000,
                    growth.last_quarter_bytes / 1_000_000,
                    growth.allowed_bytes / 1_000_000
                )
            },
        );
        let verdict = if self.verdict.passed { "held".to_owned() } else { self.verdict.problems.join("; ") };
        [
            format!("engine    {}, seed {}", self.engine, self.seed),
            format!("requests  {}", self.verdict.count.told()),
            format!("memory    {memory}"),
            format!("verdict   {verdict}"),
        ]
        .join("\n")
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::card::{self, ModelCard};
    use crate::engine::scripted::{Reply, ScriptedEngine};
    use crate::engine::{EngineError, GenerateRequest, Speaker};

    fn clients(reply: impl Fn(&GenerateRequest, usize) -> Reply + Send + Sync + 'static) -> Arc<Clients> {
        let card = ModelCard::load(Path::new(card::DEFAULT)).expect("the bundled card");
        let workload = Workload::of(&card, &Proportions::default(), false);
        Arc::new(Clients::new(Arc::new(ScriptedEngine::new(reply)), card, workload, 3))
    }

    fn pace() -> Pace {
        Pace {
            total: Duration::from_secs(2),
            step: Duration::from_millis(500),
            look: Duration::from_millis(20),
            at_once: 8,
            patience: Duration::from_secs(60),
        }
    }

    /// Problems but for memory: other tests have theirs in this process.
    fn problems(verdict: &Verdict) -> Vec<&String> {
        verdict.problems.iter().filter(|problem| !problem.starts_with("memory")).collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_request_is_in_the_books_once() {
        let asked: [Arc<AtomicU64>; 4] = Default::default();
        let seen = asked.clone();
        let clients = clients(move |_, call| {
            seen[call % 4].fetch_add(1, Ordering::Relaxed);
            match call % 4 {
                0 => Reply::refuse(EngineError::Overloaded),
                1 => Reply::text("It burns.").delay(Duration::from_millis(300)),
                2 => Reply::text("It rains."),
                _ => Reply::text("").fail(EngineError::DeadlineExceeded),
            }
        });
        let (mut steps, pace) = (Vec::new(), pace());
        let verdict = soak(&clients, &pace, |step| {
            steps.push(step.count);
            Ok(())
        });
        let verdict = verdict.await.expect("soaks");
        assert!(problems(&verdict).is_empty(), "{verdict:?}");
        let count = verdict.count;
        let [refused, slow, quick, late] = asked.map(|asked| asked.load(Ordering::Relaxed));
        assert!(refused > 0 && slow > 0 && quick > 0 && late > 0, "{count:?}");
        // What takes no time is never left; of what does, each one is either left or finished.
        assert_eq!((count.refused, count.late), (refused, late));
        assert_eq!((count.asked, count.open()), (refused + slow + quick + late, 0));
        assert_eq!(count.finished + count.cancelled, slow + quick);
        assert!(count.cancelled > 0 && count.cancelled <= slow, "{count:?}");
        assert!(count.completion_tokens > 0 && count.prompt_tokens > count.completion_tokens, "{count:?}");
        // Steps are parts of the whole.
        assert!(steps.len() >= 2, "{steps:?}");
        assert_eq!(steps.iter().map(|step| step.asked).sum::<u64>(), count.asked);
        assert_eq!(steps.iter().map(|step| step.finished).sum::<u64>(), count.finished);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn requests_without_an_end_and_failures_are_problems() {
        // From some time on first turns hang; until then there are windows, and the first of them fails.
        let clients = clients(|request, call| match (request.speaker, call) {
            (Speaker::Main, 20..) => Reply::text("It burns.").hang(),
            (Speaker::Sub, 0) => Reply::text("").fail(EngineError::Failed("broken".to_owned())),
            _ => Reply::text("It rains."),
        });
        let pace = Pace { patience: Duration::from_millis(100), at_once: 4, ..pace() };
        let verdict = soak(&clients, &pace, |_| Ok(())).await.expect("soaks");
        assert!(!verdict.passed && verdict.count.unended > 0, "{verdict:?}");
        assert_eq!((verdict.count.failed, verdict.count.open(), verdict.running_after), (1, 0, 0));
        let expected = format!("{} requests had no end", verdict.count.unended);
        assert_eq!(problems(&verdict), ["1 requests failed", expected.as_str()]);
    }
}
