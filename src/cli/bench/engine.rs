//! `paravt bench engine`: what an engine makes of episodes: made-up frames, forced lengths, no media and no agent in between.

use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use futures::StreamExt;
use futures::future::try_join_all;
use serde::Serialize;

use super::workload::Workload;
use super::{median, tell};
use crate::app::App;
use crate::card::ModelCard;
use crate::cli::options::EngineArgs;
use crate::cli::output::Target;
use crate::cli::view::View;
use crate::cli::{CliError, Environment, load, text};
use crate::config::Config;
use crate::engine::{Engine, EngineError, Gang, GenerateRequest, Seat, Speaker, TokenEvent};
use crate::types::{TokenUsage, Turn};

/// Windows of the bursts that are measured.
const BURSTS: [usize; 4] = [1, 2, 4, 8];
/// Windows of an episode.
const WINDOWS: usize = 3;
/// Tokens of the generation that shows how fast one is written.
const DECODED: u32 = 128;

/// Arguments of `bench engine`.
#[derive(Debug, Args)]
pub(super) struct EngineBenchArgs {
    /// How often each thing is measured; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Episodes at the same time
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    episodes: u32,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// What was measured. Times are medians in milliseconds.
#[derive(Debug, Serialize)]
struct Report {
    /// Which engine, and what it runs.
    engine: String,
    /// A first turn, its windows, and a second turn.
    episode_ms: f64,
    /// Bursts of unequal windows.
    burst: Vec<Burst>,
    /// From a first turn's request to its first text.
    ttft_first_ms: f64,
    /// From a second turn's request to its first text.
    ttft_second_ms: f64,
    /// Episodes a second, [`EngineBenchArgs::episodes`] of them at once.
    episodes_per_s: f64,
    /// Prompt tokens a second, one prompt alone.
    prefill_tokens_per_s: f64,
    /// Tokens a second, one text alone.
    decode_tokens_per_s: f64,
    /// Prompt tokens of a first turn, frames included.
    prompt_tokens: u64,
    /// Tokens that the summaries of the largest burst had: where an engine can't ignore the end of the text, they are fewer
    /// than was asked for, and its times shorter.
    summary_tokens: Vec<u64>,
}

/// A burst of unequal windows.
#[derive(Debug, Serialize)]
struct Burst {
    /// Windows.
    k: usize,
    /// All at the same time: from the first request to the last end.
    parallel_ms: f64,
    /// One after another.
    sequential_ms: f64,
    /// Writing alone: at the same time, from the last of the first texts to the end, to the sum of one after another.
    decode_ratio: f64,
}

/// One generation.
#[derive(Debug)]
struct Run {
    text: String,
    usage: TokenUsage,
    /// Milliseconds from the common beginning.
    began: f64,
    first: f64,
    end: f64,
}

/// Runs the command.
pub(super) async fn run(args: &EngineBenchArgs, mut config: Config, environment: &Environment) -> Result<(), CliError> {
    args.engine.lay_over(&mut config.engine, environment)?;
    // Everything at once is meant to wait, not to be refused.
    config.engine.max_queued = config.engine.max_queued.max(4 * args.episodes as usize);
    let view = View::told(Target::Stderr, environment);
    let app = App::new(config)?;
    let agent = load::agent(&app, &view).await?;
    let engine = Arc::clone(agent.engine());
    let info = engine.info();
    let workload = Workload::of(app.card(), info.supported.ignore_eos);
    let bench = Bench { engine, card: app.card(), workload, number: 0.into(), zero: Instant::now() };
    let name = text::line(&format!("{} ({})", info.name, info.detail));
    let report = bench.all(name, args).await.map_err(|error| CliError::Failed(text::line(&error.to_string())))?;
    tell(&report, args.json, || report.told())
}

struct Bench<'a> {
    engine: Arc<dyn Engine>,
    card: &'a ModelCard,
    workload: Workload,
    /// Every measurement has frames of its own: no cache knows them.
    number: std::sync::atomic::AtomicU64,
    zero: Instant,
}

impl Bench<'_> {
    async fn all(&self, engine: String, args: &EngineBenchArgs) -> Result<Report, EngineError> {
        // Whatever is done once is done here.
        self.episode().await?;
        let (mut episodes, mut first, mut second) = (Vec::new(), Vec::new(), Vec::new());
        let (mut prefill, mut decode, mut prompt_tokens) = (Vec::new(), Vec::new(), 0);
        for _ in 0..args.runs {
            let [turn, after] = self.episode().await?;
            episodes.push(after.end - turn.began);
            first.push(turn.first - turn.began);
            second.push(after.first - after.began);
            let one = self.generate(self.opening(1).1).await?;
            let read = one.usage.prompt_tokens - one.usage.cached_tokens.min(one.usage.prompt_tokens);
            prefill.push(1e3 * read as f64 / (one.end - one.began));
            prompt_tokens = one.usage.prompt_tokens;
            let mut long = self.opening(DECODED).1;
            long.sampling.ignore_eos = self.workload.ignore_eos;
            let long = self.generate(long).await?;
            decode.push(1e3 * long.usage.completion_tokens.saturating_sub(1) as f64 / (long.end - long.first));
        }
        let (mut burst, mut summary_tokens) = (Vec::new(), Vec::new());
        for k in BURSTS {
            let (mut parallel, mut sequential, mut ratio) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..args.runs {
                let together = self.burst(k).await?;
                let last_first = together.iter().map(|run| run.first).fold(0.0, f64::max);
                let end = together.iter().map(|run| run.end).fold(0.0, f64::max);
                parallel.push(end - together[0].began);
                summary_tokens = together.iter().map(|run| run.usage.completion_tokens).collect();
                let number = self.next();
                let mut alone = Vec::new();
                for window in 0..k {
                    alone.push(self.generate(self.window(number, window, None)).await?);
                }
                sequential.push(alone.iter().map(|run| run.end - run.began).sum());
                ratio.push((end - last_first) / alone.iter().map(|run| run.end - run.first).sum::<f64>());
            }
            let rounded = |values| (100.0 * median(values)).round() / 100.0;
            burst.push(Burst {
                k,
                parallel_ms: rounded(parallel),
                sequential_ms: rounded(sequential),
                decode_ratio: (1e3 * median(ratio)).round() / 1e3,
            });
        }
        let began = Instant::now();
        try_join_all((0..args.episodes).map(|_| self.episode())).await?;
        let rounded = |value: f64| (100.0 * value).round() / 100.0;
        Ok(Report {
            engine,
            episode_ms: rounded(median(episodes)),
            burst,
            ttft_first_ms: rounded(median(first)),
            ttft_second_ms: rounded(median(second)),
            episodes_per_s: rounded(f64::from(args.episodes) / began.elapsed().as_secs_f64()),
            prefill_tokens_per_s: rounded(median(prefill)),
            decode_tokens_per_s: rounded(median(decode)),
            prompt_tokens,
            summary_tokens,
        })
    }

    fn next(&self) -> u64 {
        self.number.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    }

    fn ms(&self) -> f64 {
        self.zero.elapsed().as_secs_f64() * 1e3
    }

    fn opening(&self, max_tokens: u32) -> (u64, GenerateRequest) {
        let number = self.next();
        let turns = self.workload.opening(self.card, number);
        (number, self.main(number, turns, max_tokens))
    }

    fn main(&self, number: u64, turns: Vec<Turn>, max_tokens: u32) -> GenerateRequest {
        self.workload.request(turns, &format!("bench-{number}"), Speaker::Main, max_tokens, None)
    }

    fn window(&self, number: u64, window: usize, seat: Option<Seat>) -> GenerateRequest {
        let turns = self.workload.window(self.card, number, window);
        self.workload.request(turns, &format!("bench-{number}"), Speaker::Sub, self.workload.summary_tokens, seat)
    }

    /// The first and the second turn.
    async fn episode(&self) -> Result<[Run; 2], EngineError> {
        let (number, request) = self.opening(self.workload.first_tokens);
        let turns = request.turns.clone();
        let first = self.generate(request).await?;
        let watched = self.together(number, WINDOWS).await?;
        let summaries: Vec<String> = watched.into_iter().map(|run| run.text).collect();
        let turns = Workload::continued(turns, &first.text, &summaries);
        let second = self.generate(self.main(number, turns, self.workload.answer_tokens)).await?;
        Ok([first, second])
    }

    async fn burst(&self, k: usize) -> Result<Vec<Run>, EngineError> {
        self.together(self.next(), k).await
    }

    async fn together(&self, number: u64, k: usize) -> Result<Vec<Run>, EngineError> {
        let gang = Gang::new();
        let requests: Vec<_> = (0..k).map(|window| self.window(number, window, Some(gang.seat()))).collect();
        try_join_all(requests.into_iter().map(|request| self.generate(request))).await
    }

    async fn generate(&self, request: GenerateRequest) -> Result<Run, EngineError> {
        let began = self.ms();
        let mut stream = self.engine.generate(request).await?;
        let (mut text, mut first) = (String::new(), None);
        while let Some(event) = stream.next().await {
            match event? {
                TokenEvent::Started { .. } | TokenEvent::Tokens(_) => {}
                TokenEvent::Text(more) => {
                    first = first.or_else(|| Some(self.ms()));
                    text.push_str(&more);
                }
                TokenEvent::Finished(end) => {
                    let now = self.ms();
                    return Ok(Run { text, usage: end.usage, began, first: first.unwrap_or(now), end: now });
                }
            }
        }
        Err(EngineError::Failed("a generation ended without an end".to_owned()))
    }
}

impl Report {
    fn told(&self) -> String {
        let mut lines = vec![
            format!("engine    {}", self.engine),
            format!("episode   {:.1} ms; {:.2} a second at once", self.episode_ms, self.episodes_per_s),
            format!(
                "ttft      {:.1} ms first turn ({} tokens), {:.1} ms second ({:.3})",
                self.ttft_first_ms,
                self.prompt_tokens,
                self.ttft_second_ms,
                self.ttft_second_ms / self.ttft_first_ms
            ),
            format!(
                "alone     {:.0} tokens a second read, {:.0} written",
                self.prefill_tokens_per_s, self.decode_tokens_per_s
            ),
        ];
        lines.extend(self.burst.iter().map(|burst| {
            format!(
                "burst {}   {:.1} ms parallel, {:.1} ms one after another, writing alone {:.3}",
                burst.k, burst.parallel_ms, burst.sequential_ms, burst.decode_ratio
            )
        }));
        lines.join("\n")
    }
}
