//! All Prometheus metrics, in one struct. Their names and labels are an interface: dashboards depend on them.
//!
//! Names are `paravt_<layer>_<noun>_<seconds|bytes|total>`; what counts things of now has no last part. A plain value beside `types`: it knows no
//! layer, those that know what happened call it.

use std::sync::Arc;

use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
    core::Collector,
};

/// Names, in one place.
pub mod name {
    /// Requests answered, by `route` and `status`; 499: the client went away before the answer began.
    pub const REQUESTS: &str = "paravt_api_requests_total";
    /// Episodes at work.
    pub const RUNNING: &str = "paravt_api_running";
    /// Episodes waiting for a place.
    pub const QUEUED: &str = "paravt_api_queued";
    /// Time an episode waited for a place.
    pub const QUEUE_SECONDS: &str = "paravt_api_queue_seconds";
    /// Episodes over, by `outcome`: `ok`, `error`, `cancelled`.
    pub const EPISODES: &str = "paravt_agent_episodes_total";
    /// Length of an episode that gave an answer.
    pub const EPISODE_SECONDS: &str = "paravt_agent_episode_seconds";
    /// Calls in a turn that called at all.
    pub const BURST_CALLS: &str = "paravt_agent_burst_calls";
    /// Windows over, by `outcome`: `ok`, `shared`, `refused`, `not_run`, `failed`, `late`.
    pub const WINDOWS: &str = "paravt_agent_windows_total";
    /// From an episode's start to the main agent's first text.
    pub const FIRST_TOKEN: &str = "paravt_agent_first_token_seconds";
    /// From an episode's start to the first text of the answer.
    pub const FIRST_ANSWER: &str = "paravt_agent_first_answer_seconds";
    /// Time of one stage, by `agent` (`main`, `sub`) and `stage` (`open`, `overview`, `decode`, `queue`, `prefill`,
    /// `generate`).
    pub const STAGE: &str = "paravt_agent_stage_seconds";
    /// Tokens, by `agent` and `kind` (`prompt`, `cached`, `completion`). `cached` is part of `prompt`.
    pub const TOKENS: &str = "paravt_agent_tokens_total";
    /// Generations being computed.
    pub const ENGINE_RUNNING: &str = "paravt_engine_running";
    /// Generations waiting in the engine.
    pub const ENGINE_QUEUED: &str = "paravt_engine_queued";
    /// ffmpeg and ffprobe processes alive.
    pub const PROCESSES: &str = "paravt_media_processes";
    /// Clips asked of the cache of decoded frames, by `outcome` (`hit`, `miss`).
    pub const CACHE_REQUESTS: &str = "paravt_media_cache_requests_total";
    /// Decoded frames kept.
    pub const CACHE_BYTES: &str = "paravt_media_cache_bytes";
}

/// From a millisecond to ten minutes.
const SECONDS: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0];
const CALLS: [f64; 8] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 16.0];

/// Metrics that could not be set up or written.
#[derive(Debug, thiserror::Error)]
#[error("metrics: {0}")]
pub struct MetricsError(#[from] prometheus::Error);

/// All metrics. Cheap to clone; clones share the counts.
#[derive(Debug, Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    registry: Registry,
    requests: IntCounterVec,
    running: IntGauge,
    queued: IntGauge,
    queue_seconds: Histogram,
    episodes: IntCounterVec,
    episode_seconds: Histogram,
    burst_calls: Histogram,
    windows: IntCounterVec,
    first_token: Histogram,
    first_answer: Histogram,
    stage: HistogramVec,
    tokens: IntCounterVec,
    engine_running: IntGauge,
    engine_queued: IntGauge,
    processes: IntGauge,
    cache: IntCounterVec,
    cache_bytes: IntGauge,
}

/// What others count, read when metrics are asked for: gauges, and the frame cache's own counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Readings {
    /// Episodes at work.
    pub running: usize,
    /// Episodes waiting.
    pub queued: usize,
    /// Generations being computed.
    pub engine_running: usize,
    /// Generations waiting in the engine.
    pub engine_queued: usize,
    /// ffmpeg processes.
    pub processes: usize,
    /// Clips served from the cache since the start.
    pub cache_hits: u64,
    /// Clips decoded since the start.
    pub cache_misses: u64,
    /// Bytes in the cache.
    pub cache_bytes: usize,
}

/// How an episode ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EpisodeOutcome {
    /// With an answer.
    Ok,
    /// With an error.
    Error,
    /// The client went away, or the server stopped.
    Cancelled,
}

impl EpisodeOutcome {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
        }
    }
}

impl Metrics {
    /// A fresh set, all zero.
    ///
    /// # Errors
    /// [`MetricsError`] when a name or label is not valid, which a test rules out.
    pub fn new() -> Result<Self, MetricsError> {
        let registry = Registry::new();
        let add = Adder(&registry);
        let inner = Inner {
            requests: add.counters(name::REQUESTS, "Requests answered.", &["route", "status"])?,
            running: add.gauge(name::RUNNING, "Episodes at work.")?,
            queued: add.gauge(name::QUEUED, "Episodes waiting for a place.")?,
            queue_seconds: add.histogram(name::QUEUE_SECONDS, "Time an episode waited for a place.", &SECONDS)?,
            episodes: add.counters(name::EPISODES, "Episodes over.", &["outcome"])?,
            episode_seconds: add.histogram(name::EPISODE_SECONDS, "Length of an answered episode.", &SECONDS)?,
            burst_calls: add.histogram(name::BURST_CALLS, "Calls in a turn that called at all.", &CALLS)?,
            windows: add.counters(name::WINDOWS, "Windows over.", &["outcome"])?,
            first_token: add.histogram(name::FIRST_TOKEN, "Time to the main agent's first text.", &SECONDS)?,
            first_answer: add.histogram(name::FIRST_ANSWER, "Time to the answer's first text.", &SECONDS)?,
            stage: add.own(HistogramVec::new(
                HistogramOpts::new(name::STAGE, "Time of one stage.").buckets(SECONDS.to_vec()),
                &["agent", "stage"],
            )?)?,
            tokens: add.counters(name::TOKENS, "Tokens.", &["agent", "kind"])?,
            engine_running: add.gauge(name::ENGINE_RUNNING, "Generations being computed.")?,
            engine_queued: add.gauge(name::ENGINE_QUEUED, "Generations waiting in the engine.")?,
            processes: add.gauge(name::PROCESSES, "ffmpeg processes alive.")?,
            cache: add.counters(name::CACHE_REQUESTS, "Clips asked of the frame cache.", &["outcome"])?,
            cache_bytes: add.gauge(name::CACHE_BYTES, "Decoded frames kept.")?,
            registry: registry.clone(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A request was answered. `route` is a route's pattern, never a path as the client wrote it.
    pub fn request(&self, route: &str, status: u16) {
        self.inner.requests.with_label_values(&[route, &status.to_string()]).inc();
    }

    /// An episode got its place.
    pub fn waited(&self, seconds: f64) {
        self.inner.queue_seconds.observe(seconds);
    }

    /// An episode is over.
    pub fn episode(&self, outcome: EpisodeOutcome) {
        self.inner.episodes.with_label_values(&[outcome.name()]).inc();
    }

    /// An episode gave an answer after so many seconds.
    pub fn answered(&self, total: f64, first_token: Option<f64>, first_answer: Option<f64>) {
        self.inner.episode_seconds.observe(total);
        if let Some(seconds) = first_token {
            self.inner.first_token.observe(seconds);
        }
        if let Some(seconds) = first_answer {
            self.inner.first_answer.observe(seconds);
        }
    }

    /// A turn called so many windows.
    pub fn burst(&self, calls: usize) {
        self.inner.burst_calls.observe(calls as f64);
    }

    /// A window is over.
    pub fn window(&self, outcome: &str) {
        self.inner.windows.with_label_values(&[outcome]).inc();
    }

    /// A stage took so many seconds.
    pub fn stage(&self, agent: &str, stage: &str, seconds: f64) {
        self.inner.stage.with_label_values(&[agent, stage]).observe(seconds);
    }

    /// Tokens of one generation.
    pub fn tokens(&self, agent: &str, prompt: u64, cached: u64, completion: u64) {
        for (kind, count) in [("prompt", prompt), ("cached", cached), ("completion", completion)] {
            self.inner.tokens.with_label_values(&[agent, kind]).inc_by(count);
        }
    }

    /// All of it in Prometheus' text format.
    ///
    /// # Errors
    /// [`MetricsError`] when a metric can't be written.
    pub fn render(&self, readings: Readings) -> Result<String, MetricsError> {
        let inner = &self.inner;
        for (gauge, value) in [
            (&inner.running, readings.running),
            (&inner.queued, readings.queued),
            (&inner.engine_running, readings.engine_running),
            (&inner.engine_queued, readings.engine_queued),
            (&inner.processes, readings.processes),
            (&inner.cache_bytes, readings.cache_bytes),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        // Counted where the cache is; a counter here only follows.
        for (outcome, count) in [("hit", readings.cache_hits), ("miss", readings.cache_misses)] {
            let counter = inner.cache.with_label_values(&[outcome]);
            counter.inc_by(count.saturating_sub(counter.get()));
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&inner.registry.gather(), &mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

struct Adder<'a>(&'a Registry);

impl Adder<'_> {
    fn own<C: Collector + Clone + 'static>(&self, collector: C) -> Result<C, prometheus::Error> {
        self.0.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntCounterVec, prometheus::Error> {
        self.own(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    fn gauge(&self, name: &str, help: &str) -> Result<IntGauge, prometheus::Error> {
        self.own(IntGauge::new(name, help)?)
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram, prometheus::Error> {
        self.own(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_rendered() {
        let metrics = Metrics::new().expect("valid names");
        metrics.request("/ready", 200);
        metrics.window("ok");
        metrics.burst(3);
        metrics.tokens("sub", 10, 4, 2);
        metrics.stage("main", "prefill", 0.2);
        metrics.answered(2.0, Some(0.4), None);
        metrics.episode(EpisodeOutcome::Cancelled);
        let text = metrics.render(Readings { queued: 7, cache_hits: 3, ..Readings::default() }).expect("renders");
        for line in [
            r#"paravt_api_requests_total{route="/ready",status="200"} 1"#,
            r#"paravt_agent_windows_total{outcome="ok"} 1"#,
            r#"paravt_agent_burst_calls_bucket{le="2"} 0"#,
            r#"paravt_agent_burst_calls_bucket{le="3"} 1"#,
            r#"paravt_agent_tokens_total{agent="sub",kind="cached"} 4"#,
            r#"paravt_agent_stage_seconds_count{agent="main",stage="prefill"} 1"#,
            "paravt_agent_first_token_seconds_count 1",
            "paravt_agent_first_answer_seconds_count 0",
            r#"paravt_agent_episodes_total{outcome="cancelled"} 1"#,
            "paravt_api_queued 7",
            r#"paravt_media_cache_requests_total{outcome="hit"} 3"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn two_sets_do_not_share_counts() {
        let (one, other) = (Metrics::new().expect("valid"), Metrics::new().expect("valid"));
        one.window("ok");
        assert!(!other.render(Readings::default()).expect("renders").contains(r#"outcome="ok""#));
    }
}
