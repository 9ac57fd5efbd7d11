//! All Prometheus metrics, in one struct. Their names and labels are an interface: dashboards depend on them.
//!
//! Names are `paravt_<layer>_<noun>_<seconds|bytes|total>`; what counts things of now has no last part. On Linux, `process_*` of
//! the prometheus crate (memory, CPU, open files) is there too. A plain value beside `types`: it knows no layer, those that know
//! what happened call it.

use std::sync::Arc;

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder, core::Collector,
};

/// Names, in one place.
pub mod name {
    /// 1, with the `version` of paravt and the `model` it serves.
    pub const BUILD: &str = "paravt_build_info";
    /// Requests answered, by `route` and `status`; 499: the client went away before the answer began.
    pub const REQUESTS: &str = "paravt_api_requests_total";
    /// From a request's head to the head of its answer, by `route`.
    pub const HEADERS_SECONDS: &str = "paravt_api_headers_seconds";
    /// From a request's head to the end of its answer, by `route`; streamed answers are as long as they are written.
    pub const REQUEST_SECONDS: &str = "paravt_api_request_seconds";
    /// Questions that ended with an error, by its `code`; also those that never got a place. What is refused as it is read (a
    /// wrong field) is among the requests' statuses alone.
    pub const ERRORS: &str = "paravt_api_errors_total";
    /// Episodes at work.
    pub const RUNNING: &str = "paravt_api_running";
    /// Episodes waiting for a place.
    pub const QUEUED: &str = "paravt_api_queued";
    /// What the episodes at work take, in places: 1 is a typical episode, `server.max_running` the most.
    pub const RUNNING_COST: &str = "paravt_api_running_cost";
    /// What the waiting episodes will take, likewise.
    pub const QUEUED_COST: &str = "paravt_api_queued_cost";
    /// Requests not taken on, by `reason`: `queue` (full), `wait` (longer than `server.max_wait_s`), `rate` and `key_queue` (the
    /// key's limits), `bodies`, `engine` (full), `key` (none or a wrong one), `model` (not for this key).
    pub const REFUSED: &str = "paravt_api_refused_total";
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
    /// Whether an `upstream` (numbered from 1, as configured) is asked, 1 or 0.
    pub const UPSTREAM_UP: &str = "paravt_engine_upstream_up";
    /// Requests that an `upstream` has not finished.
    pub const UPSTREAM_OUTSTANDING: &str = "paravt_engine_upstream_outstanding";
    /// ffmpeg and ffprobe processes alive.
    pub const PROCESSES: &str = "paravt_media_processes";
    /// ffmpeg and ffprobe processes that ended with an error, or took too long: damaged or hostile files, most often.
    pub const PROCESS_FAILURES: &str = "paravt_media_process_failures_total";
    /// Bytes of videos and pictures that came from the web.
    pub const FETCHED_BYTES: &str = "paravt_media_fetched_bytes_total";
    /// Clips asked of the cache of decoded frames, by `outcome` (`hit`, `miss`).
    pub const CACHE_REQUESTS: &str = "paravt_media_cache_requests_total";
    /// Decoded frames kept.
    pub const CACHE_BYTES: &str = "paravt_media_cache_bytes";
    /// Uploads over, by `outcome`: `ok`, `refused`, `aborted` (broken off, too slow), `error`.
    pub const UPLOADS: &str = "paravt_media_uploads_total";
    /// Bytes of uploaded files, as they were last counted.
    pub const UPLOADS_BYTES: &str = "paravt_media_uploads_bytes";
    /// Spans of traces, by `outcome` (`exported`, `dropped`).
    pub const SPANS: &str = "paravt_telemetry_spans_total";
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
    build: IntGaugeVec,
    requests: IntCounterVec,
    headers_seconds: HistogramVec,
    request_seconds: HistogramVec,
    errors: IntCounterVec,
    running: IntGauge,
    queued: IntGauge,
    running_cost: Gauge,
    queued_cost: Gauge,
    refused: IntCounterVec,
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
    upstream_up: IntGaugeVec,
    upstream_outstanding: IntGaugeVec,
    processes: IntGauge,
    process_failures: IntCounter,
    fetched_bytes: IntCounter,
    cache: IntCounterVec,
    cache_bytes: IntGauge,
    uploads: IntCounterVec,
    uploads_bytes: IntGauge,
    spans: IntCounterVec,
}

/// What others count, read when metrics are asked for: gauges, and counts that are kept where they arise.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Readings {
    /// Episodes at work.
    pub running: usize,
    /// Episodes waiting.
    pub queued: usize,
    /// What the episodes at work take, in thousandths of a place.
    pub running_cost: u64,
    /// What the waiting episodes will take, likewise.
    pub queued_cost: u64,
    /// Generations being computed.
    pub engine_running: usize,
    /// Generations waiting in the engine.
    pub engine_queued: usize,
    /// Of each upstream: whether it is asked, and requests it has not finished.
    pub upstreams: Vec<(bool, usize)>,
    /// ffmpeg processes.
    pub processes: usize,
    /// ffmpeg processes that failed since the start.
    pub process_failures: u64,
    /// Bytes fetched since the start.
    pub fetched_bytes: u64,
    /// Clips served from the cache since the start.
    pub cache_hits: u64,
    /// Clips decoded since the start.
    pub cache_misses: u64,
    /// Bytes in the cache.
    pub cache_bytes: usize,
    /// Bytes of uploaded files.
    pub uploads_bytes: usize,
    /// Spans exported since the start.
    pub spans_exported: u64,
    /// Spans dropped since the start.
    pub spans_dropped: u64,
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
    /// Name in metrics, logs and traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How an upload ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UploadOutcome {
    /// With a file.
    Ok,
    /// It was not taken: not within the limits, not a form.
    Refused,
    /// The client was too slow, broke off or went away, or the server stopped.
    Aborted,
    /// With a fault of ours.
    Error,
}

impl UploadOutcome {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::Aborted => "aborted",
            Self::Error => "error",
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
        #[cfg(target_os = "linux")]
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        let inner = Inner {
            build: add.gauges(name::BUILD, "Which paravt this is.", &["version", "model"])?,
            requests: add.counters(name::REQUESTS, "Requests answered.", &["route", "status"])?,
            headers_seconds: add.histograms(name::HEADERS_SECONDS, "Time to an answer's head.", &["route"])?,
            request_seconds: add.histograms(name::REQUEST_SECONDS, "Time to an answer's end.", &["route"])?,
            errors: add.counters(name::ERRORS, "Questions that ended with an error.", &["code"])?,
            running: add.gauge(name::RUNNING, "Episodes at work.")?,
            queued: add.gauge(name::QUEUED, "Episodes waiting for a place.")?,
            running_cost: add.own(Gauge::new(name::RUNNING_COST, "What the episodes at work take, in places.")?)?,
            queued_cost: add.own(Gauge::new(name::QUEUED_COST, "What the waiting episodes will take, in places.")?)?,
            refused: add.counters(name::REFUSED, "Requests not taken on.", &["reason"])?,
            queue_seconds: add.histogram(name::QUEUE_SECONDS, "Time an episode waited for a place.", &SECONDS)?,
            episodes: add.counters(name::EPISODES, "Episodes over.", &["outcome"])?,
            episode_seconds: add.histogram(name::EPISODE_SECONDS, "Length of an answered episode.", &SECONDS)?,
            burst_calls: add.histogram(name::BURST_CALLS, "Calls in a turn that called at all.", &CALLS)?,
            windows: add.counters(name::WINDOWS, "Windows over.", &["outcome"])?,
            first_token: add.histogram(name::FIRST_TOKEN, "Time to the main agent's first text.", &SECONDS)?,
            first_answer: add.histogram(name::FIRST_ANSWER, "Time to the answer's first text.", &SECONDS)?,
            stage: add.histograms(name::STAGE, "Time of one stage.", &["agent", "stage"])?,
            tokens: add.counters(name::TOKENS, "Tokens.", &["agent", "kind"])?,
            engine_running: add.gauge(name::ENGINE_RUNNING, "Generations being computed.")?,
            engine_queued: add.gauge(name::ENGINE_QUEUED, "Generations waiting in the engine.")?,
            upstream_up: add.gauges(name::UPSTREAM_UP, "Whether an upstream is asked.", &["upstream"])?,
            upstream_outstanding: add.gauges(
                name::UPSTREAM_OUTSTANDING,
                "Requests that an upstream has not finished.",
                &["upstream"],
            )?,
            processes: add.gauge(name::PROCESSES, "ffmpeg processes alive.")?,
            process_failures: add.counter(name::PROCESS_FAILURES, "ffmpeg processes that failed.")?,
            fetched_bytes: add.counter(name::FETCHED_BYTES, "Bytes that came from the web.")?,
            cache: add.counters(name::CACHE_REQUESTS, "Clips asked of the frame cache.", &["outcome"])?,
            cache_bytes: add.gauge(name::CACHE_BYTES, "Decoded frames kept.")?,
            uploads: add.counters(name::UPLOADS, "Uploads over.", &["outcome"])?,
            uploads_bytes: add.gauge(name::UPLOADS_BYTES, "Bytes of uploaded files.")?,
            spans: add.counters(name::SPANS, "Spans of traces.", &["outcome"])?,
            registry: registry.clone(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What runs here.
    pub fn build(&self, version: &str, model: &str) {
        self.inner.build.with_label_values(&[version, model]).set(1);
    }

    /// A request was answered. `route` is a route's pattern, never a path as the client wrote it.
    pub fn request(&self, route: &str, status: u16) {
        self.inner.requests.with_label_values(&[route, &status.to_string()]).inc();
    }

    /// The head of an answer went out after so many seconds.
    pub fn answer_began(&self, route: &str, seconds: f64) {
        self.inner.headers_seconds.with_label_values(&[route]).observe(seconds);
    }

    /// An answer was over after so many seconds.
    pub fn answer_ended(&self, route: &str, seconds: f64) {
        self.inner.request_seconds.with_label_values(&[route]).observe(seconds);
    }

    /// A question ended with an error of this code.
    pub fn error(&self, code: &str) {
        self.inner.errors.with_label_values(&[code]).inc();
    }

    /// A request was not taken on.
    pub fn refused(&self, reason: &str) {
        self.inner.refused.with_label_values(&[reason]).inc();
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

    /// An upload is over.
    pub fn upload(&self, outcome: UploadOutcome) {
        self.inner.uploads.with_label_values(&[outcome.name()]).inc();
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
    pub fn render(&self, readings: &Readings) -> Result<String, MetricsError> {
        let inner = &self.inner;
        for (gauge, value) in [
            (&inner.running, readings.running),
            (&inner.queued, readings.queued),
            (&inner.engine_running, readings.engine_running),
            (&inner.engine_queued, readings.engine_queued),
            (&inner.processes, readings.processes),
            (&inner.cache_bytes, readings.cache_bytes),
            (&inner.uploads_bytes, readings.uploads_bytes),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        for (gauge, thousandths) in
            [(&inner.running_cost, readings.running_cost), (&inner.queued_cost, readings.queued_cost)]
        {
            gauge.set(thousandths as f64 / 1e3);
        }
        for (number, (up, outstanding)) in readings.upstreams.iter().enumerate() {
            let number = (number + 1).to_string();
            inner.upstream_up.with_label_values(&[&number]).set((*up).into());
            let outstanding = i64::try_from(*outstanding).unwrap_or(i64::MAX);
            inner.upstream_outstanding.with_label_values(&[&number]).set(outstanding);
        }
        // Counted where they arise; counters here only follow.
        for (counter, count) in [
            (&inner.cache.with_label_values(&["hit"]), readings.cache_hits),
            (&inner.cache.with_label_values(&["miss"]), readings.cache_misses),
            (&inner.spans.with_label_values(&["exported"]), readings.spans_exported),
            (&inner.spans.with_label_values(&["dropped"]), readings.spans_dropped),
            (&inner.process_failures, readings.process_failures),
            (&inner.fetched_bytes, readings.fetched_bytes),
        ] {
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

    fn counter(&self, name: &str, help: &str) -> Result<IntCounter, prometheus::Error> {
        self.own(IntCounter::new(name, help)?)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> Result<IntGaugeVec, prometheus::Error> {
        self.own(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    fn histograms(&self, name: &str, help: &str, labels: &[&str]) -> Result<HistogramVec, prometheus::Error> {
        let options = HistogramOpts::new(name, help).buckets(SECONDS.to_vec());
        self.own(HistogramVec::new(options, labels)?)
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
        metrics.refused("rate");
        let readings = Readings {
            queued: 7,
            queued_cost: 1125,
            cache_hits: 3,
            upstreams: vec![(true, 2), (false, 0)],
            spans_dropped: 5,
            ..Readings::default()
        };
        let text = metrics.render(&readings).expect("renders");
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
            "paravt_api_queued_cost 1.125",
            r#"paravt_api_refused_total{reason="rate"} 1"#,
            r#"paravt_media_cache_requests_total{outcome="hit"} 3"#,
            r#"paravt_engine_upstream_up{upstream="2"} 0"#,
            r#"paravt_engine_upstream_outstanding{upstream="1"} 2"#,
            r#"paravt_telemetry_spans_total{outcome="dropped"} 5"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn two_sets_do_not_share_counts() {
        let (one, other) = (Metrics::new().expect("valid"), Metrics::new().expect("valid"));
        one.window("ok");
        assert!(!other.render(&Readings::default()).expect("renders").contains(r#"outcome="ok""#));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_process_itself_is_told_of() {
        let text = Metrics::new().expect("valid").render(&Readings::default()).expect("renders");
        for name in ["process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"] {
            assert!(text.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}");
        }
    }
}
