//! `paravt bench engine`: what an engine makes of episodes: made-up frames, forced lengths, no media and no agent in between.
//!
//! Frames are made before a clock runs. `load_tests/engine/engines.py` measures other engines the same way, and its JSON has the
//! same keys.

use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use futures::StreamExt;
use futures::future::try_join_all;
use serde::Serialize;

use super::workload::{Proportions, Workload};
use super::{median, tell};
use crate::app::App;
use crate::card::ModelCard;
use crate::cli::options::EngineArgs;
use crate::cli::output::Target;
use crate::cli::view::View;
use crate::cli::{CliError, Environment, load, text};
use crate::config::Config;
use crate::engine::{Engine, EngineError, Gang, GenerateRequest, Speaker, TokenEvent};
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
    /// Episodes at the same time. All of their requests may wait: a smaller engine.max_queued is raised to their number
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    episodes: u32,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    proportions: Proportions,
    #[command(flatten)]
    engine: EngineArgs,
}

/// What was measured. Times are medians in milliseconds.
#[derive(Debug, Serialize)]
struct Report {
    /// Which engine, and what it runs.
    engine: String,
    /// Frames of the overview.
    overview_frames: u32,
    /// Frames of the largest window.
    window_frames: u32,
    /// Their sides in pixels.
    frame_side: u32,
    /// A first turn, its windows, and a second turn.
    episode_ms: f64,
    /// From a first turn's request to its first text.
    ttft_first_ms: f64,
    /// From a second turn's request to its first text.
    ttft_second_ms: f64,
    /// Tokens that a first turn had: main turns end by themselves, and shorter ones make shorter episodes.
    first_tokens: u64,
    /// Tokens that a second turn had.
    answer_tokens: u64,
    /// Prompt tokens a second, one prompt alone.
    prefill_tokens_per_s: f64,
    /// Prompt tokens of a first turn, frames included.
    prompt_tokens: u64,
    /// Tokens a second, one text alone.
    decode_tokens_per_s: f64,
    /// The same by the same engine without drafts. The same figure for an engine that makes none.
    decode_tokens_per_s_plain: f64,
    /// Bursts of unequal windows.
    burst: Vec<Burst>,
    /// Tokens that the summaries of the largest burst had: where an engine can't ignore the end of the text, they are fewer
    /// than was asked for, and its times shorter.
    summary_tokens: Vec<u64>,
    /// Episodes a second, [`EngineBenchArgs::episodes`] of them at once.
    episodes_per_s: f64,
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
    /// Writing alone: at the same time, from the last of the first texts to the end, to the sum of one after another. An
    /// engine that runs one after another whatever it is asked has about 1/K here.
    decode_ratio: f64,
    /// The same from the first of the first texts, with what is read meanwhile: about 1 for such an engine, or more.
    decode_ratio_from_first: f64,
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

/// An episode's frames, made.
struct Prepared {
    number: u64,
    opening: GenerateRequest,
    windows: Vec<GenerateRequest>,
}

/// Runs the command.
pub(super) async fn run(args: &EngineBenchArgs, mut config: Config, environment: &Environment) -> Result<(), CliError> {
    args.engine.lay_over(&mut config.engine, environment)?;
    // Everything at once is meant to wait, not to be refused.
    let most = BURSTS.into_iter().fold(WINDOWS * args.episodes as usize, usize::max);
    config.engine.max_queued = config.engine.max_queued.max(most);
    let view = View::told(Target::Stderr, environment);
    let app = App::new(config)?;
    let mut workload = Workload::of(app.card(), &args.proportions, false);
    workload.fits(args.episodes, WINDOWS)?;
    let engine = load::engine(&app, &view).await?;
    let info = engine.info();
    workload.ignore_eos = info.supported.ignore_eos;
    let bench = Bench { engine, card: app.card(), workload, number: 0.into(), zero: Instant::now() };
    let failed = |error: EngineError| CliError::Failed(text::line(&error.to_string()));
    let mut report = bench.all(text::line(&format!("{} ({})", info.name, info.detail)), args).await.map_err(failed)?;
    // A large checkpoint is not to be in memory twice.
    let Bench { engine, workload, number, .. } = bench;
    drop(engine);
    if let Some(engine) = load::plain_engine(&app, &view).await? {
        let bench = Bench { engine, card: app.card(), workload, number, zero: Instant::now() };
        report.decode_tokens_per_s_plain = bench.plain(args.runs).await.map_err(failed)?;
    }
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
        self.episode(self.prepared()).await?;
        let (mut episodes, mut first, mut second) = (Vec::new(), Vec::new(), Vec::new());
        let (mut first_tokens, mut answer_tokens) = (Vec::new(), Vec::new());
        let (mut prefill, mut decode, mut prompt_tokens) = (Vec::new(), Vec::new(), 0);
        for _ in 0..args.runs {
            let [turn, after] = self.episode(self.prepared()).await?;
            episodes.push(after.end - turn.began);
            first.push(turn.first - turn.began);
            second.push(after.first - after.began);
            first_tokens.push(turn.usage.completion_tokens as f64);
            answer_tokens.push(after.usage.completion_tokens as f64);
            let one = self.generate(self.opening(1).1).await?;
            let read = one.usage.prompt_tokens - one.usage.cached_tokens.min(one.usage.prompt_tokens);
            prefill.push(1e3 * read as f64 / (one.end - one.began));
            prompt_tokens = one.usage.prompt_tokens;
            decode.push(self.decode().await?);
        }
        let mut burst = Vec::new();
        let mut summary_tokens = Vec::new();
        for k in BURSTS {
            let (measured, tokens) = self.bursts(k, args.runs).await?;
            burst.push(measured);
            summary_tokens = tokens;
        }
        let prepared: Vec<_> = (0..args.episodes).map(|_| self.prepared()).collect();
        let began = Instant::now();
        try_join_all(prepared.into_iter().map(|prepared| self.episode(prepared))).await?;
        let episodes_per_s = f64::from(args.episodes) / began.elapsed().as_secs_f64();
        let decode_tokens_per_s = rounded(median(decode), 2);
        Ok(Report {
            engine,
            overview_frames: self.workload.overview_frames,
            window_frames: self.workload.window_frames,
            frame_side: self.workload.size.width,
            episode_ms: rounded(median(episodes), 2),
            ttft_first_ms: rounded(median(first), 2),
            ttft_second_ms: rounded(median(second), 2),
            first_tokens: median(first_tokens) as u64,
            answer_tokens: median(answer_tokens) as u64,
            prefill_tokens_per_s: rounded(median(prefill), 2),
            prompt_tokens,
            decode_tokens_per_s,
            decode_tokens_per_s_plain: decode_tokens_per_s,
            burst,
            summary_tokens,
            episodes_per_s: rounded(episodes_per_s, 4),
        })
    }

    /// Windows at the same time and one after another; and the tokens of the summaries.
    async fn bursts(&self, k: usize, runs: u32) -> Result<(Burst, Vec<u64>), EngineError> {
        let (mut parallel, mut sequential) = (Vec::new(), Vec::new());
        let (mut ratio, mut from_first, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..runs {
            let gang = Gang::new();
            let together = self.together(self.windows(self.next(), k, Some(&gang))).await?;
            let least = |at: fn(&Run) -> f64| together.iter().map(at).fold(f64::INFINITY, f64::min);
            let most = |at: fn(&Run) -> f64| together.iter().map(at).fold(0.0, f64::max);
            let (first, last_first, end) = (least(|run| run.first), most(|run| run.first), most(|run| run.end));
            parallel.push(end - least(|run| run.began));
            tokens = together.iter().map(|run| run.usage.completion_tokens).collect();
            let mut alone = Vec::new();
            for request in self.windows(self.next(), k, None) {
                alone.push(self.generate(request).await?);
            }
            sequential.push(alone.iter().map(|run| run.end - run.began).sum());
            let written = alone.iter().map(|run| run.end - run.first).sum::<f64>();
            ratio.push((end - last_first) / written);
            from_first.push((end - first) / written);
        }
        let burst = Burst {
            k,
            parallel_ms: rounded(median(parallel), 2),
            sequential_ms: rounded(median(sequential), 2),
            decode_ratio: rounded(median(ratio), 3),
            decode_ratio_from_first: rounded(median(from_first), 3),
        };
        Ok((burst, tokens))
    }

    /// Tokens a second of one text alone.
    async fn decode(&self) -> Result<f64, EngineError> {
        let mut long = self.opening(DECODED).1;
        long.sampling.ignore_eos = self.workload.ignore_eos;
        let long = self.generate(long).await?;
        Ok(1e3 * long.usage.completion_tokens.saturating_sub(1) as f64 / (long.end - long.first))
    }

    /// The same on an engine that was just loaded.
    async fn plain(&self, runs: u32) -> Result<f64, EngineError> {
        self.decode().await?;
        let mut rates = Vec::new();
        for _ in 0..runs {
            rates.push(self.decode().await?);
        }
        Ok(rounded(median(rates), 2))
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

    fn windows(&self, number: u64, k: usize, gang: Option<&Gang>) -> Vec<GenerateRequest> {
        let window = |window| {
            let turns = self.workload.window(self.card, number, window);
            let (session, tokens) = (format!("bench-{number}"), self.workload.summary_tokens);
            self.workload.request(turns, &session, Speaker::Sub, tokens, gang.map(Gang::seat))
        };
        (0..k).map(window).collect()
    }

    fn prepared(&self) -> Prepared {
        let (number, opening) = self.opening(self.workload.first_tokens);
        Prepared { number, opening, windows: self.windows(number, WINDOWS, Some(&Gang::new())) }
    }

    /// The first and the second turn.
    async fn episode(&self, prepared: Prepared) -> Result<[Run; 2], EngineError> {
        let Prepared { number, opening, windows } = prepared;
        let turns = opening.turns.clone();
        let first = self.generate(opening).await?;
        let summaries: Vec<String> = self.together(windows).await?.into_iter().map(|run| run.text).collect();
        let turns = Workload::continued(turns, &first.text, &summaries);
        let second = self.generate(self.main(number, turns, self.workload.answer_tokens)).await?;
        Ok([first, second])
    }

    async fn together(&self, requests: Vec<GenerateRequest>) -> Result<Vec<Run>, EngineError> {
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

/// To so many decimals.
fn rounded(value: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    (scale * value).round() / scale
}

impl Report {
    fn told(&self) -> String {
        let mut lines = vec![
            format!("engine    {}", self.engine),
            format!(
                "frames    {} of the overview, {} of the largest window, {} pixels a side",
                self.overview_frames, self.window_frames, self.frame_side
            ),
            format!(
                "episode   {:.1} ms ({} and {} tokens); {:.2} a second at once",
                self.episode_ms, self.first_tokens, self.answer_tokens, self.episodes_per_s
            ),
            format!(
                "ttft      {:.1} ms first turn ({} tokens), {:.1} ms second ({:.3})",
                self.ttft_first_ms,
                self.prompt_tokens,
                self.ttft_second_ms,
                self.ttft_second_ms / self.ttft_first_ms
            ),
            format!(
                "alone     {:.0} tokens a second read, {:.0} written, {:.0} without drafts",
                self.prefill_tokens_per_s, self.decode_tokens_per_s, self.decode_tokens_per_s_plain
            ),
        ];
        lines.extend(self.burst.iter().map(|burst| {
            format!(
                "burst {}   {:.1} ms parallel, {:.1} ms one after another, writing alone {:.3}, from the first text {:.3}",
                burst.k, burst.parallel_ms, burst.sequential_ms, burst.decode_ratio, burst.decode_ratio_from_first
            )
        }));
        lines.join("\n")
    }
}
