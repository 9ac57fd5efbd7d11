//! Spans on their way to a collector: OTLP over HTTP, in batches, by one task.
//!
//! ```text
//! Tracer::send ──► queue of QUEUE spans ──► task: batches ──► collector
//!        └─ full: dropped, counted            └─ refused, unreachable: dropped, counted
//! ```
//! Who tells of spans never waits: a collector that is slow or dead costs spans and nothing else. [`Exporting`] owns the task.
//!
//! OpenTelemetry's crates do what others agreed upon: the ids, `traceparent`, sampling, the format, and when to send again.
//! Their span processor is not used, because it neither tells what it drops nor runs on our runtime. This file alone imports
//! them, and knows nothing of what the spans mean.
//!
//! The exporter looks at `OTEL_EXPORTER_OTLP_HEADERS`, `_TRACES_HEADERS` and `_COMPRESSION` by itself; it can't be told not to.
//! Where a header is both there and in the configuration, the variable's value is sent.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{self as otel, SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    IdGenerator as _, RandomIdGenerator, Sampler, SamplingDecision, ShouldSample as _, SpanData, SpanEvents,
    SpanExporter as _, SpanLinks,
};
use tokio::sync::mpsc;
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::config::TelemetryConfig;
use crate::traces::{Begun, Span, SpanCounts, SpanKind, Tracer, Value};
use crate::types::TraceContext;

/// Spans that may wait. An episode of three windows has about twenty, of a kilobyte at most.
const QUEUE: usize = 8192;
/// Spans of one request to the collector.
const BATCH: usize = 512;
/// How long a batch waits to get full.
const DELAY: Duration = Duration::from_secs(2);
/// How long the collector may take, further tries included.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(3);
/// What the last spans may take when the server stops.
const FLUSH: Duration = Duration::from_secs(5);

/// Traces that can't be set up.
#[derive(Debug, thiserror::Error)]
#[error("traces can't be set up: {0}")]
pub struct TraceError(&'static str);

/// Takes spans for the collector.
#[derive(Debug)]
struct Otlp {
    queue: mpsc::Sender<Span>,
    counts: Arc<Counts>,
    ids: RandomIdGenerator,
    sampler: Sampler,
}

#[derive(Debug, Default)]
struct Counts {
    exported: AtomicU64,
    dropped: AtomicU64,
}

/// The task that sends. Dropped, it stops at once; [`Exporting::finish`] lets it send what it has.
#[derive(Debug)]
pub struct Exporting {
    task: AbortOnDropHandle<()>,
    close: CancellationToken,
}

/// Whom to tell of spans, and who sends them.
pub type Started = (Arc<dyn Tracer>, Exporting);

/// Starts to export where an endpoint is configured. `model` is the model that the server serves. Must be called inside a Tokio
/// runtime.
///
/// # Errors
/// [`TraceError`] when the HTTP client can't be set up; that nobody listens at the endpoint is no error.
pub fn start(config: &TelemetryConfig, model: &str) -> Result<Option<Started>, TraceError> {
    let Some(url) = config.traces_url() else { return Ok(None) };
    let mut client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT)
        .timeout(PATIENCE)
        .user_agent(concat!("paravt/", env!("CARGO_PKG_VERSION")));
    if url.scheme() == "http" {
        // A machine without root certificates can still send where none are needed.
        client = client.tls_certs_only([]);
    }
    let client = client.build().map_err(|_| TraceError("the HTTP client could not be set up (root certificates?)"))?;
    let headers: HashMap<String, String> = config.otlp_headers.clone().into_iter().collect();
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(url.as_str())
        .with_protocol(Protocol::HttpBinary)
        .with_timeout(PATIENCE)
        .with_headers(headers)
        .build()
        .map_err(|_| TraceError("the exporter does not take the endpoint"))?;
    let resource = Resource::builder_empty().with_service_name(config.service_name.clone()).with_attributes([
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("paravt.model", model.to_owned()),
    ]);
    exporter.set_resource(&resource.build());

    let (queue, waiting) = mpsc::channel(QUEUE);
    let counts = Arc::new(Counts::default());
    let close = CancellationToken::new();
    let work = Work { waiting, exporter, counts: Arc::clone(&counts), close: close.clone(), failing: false };
    let task = AbortOnDropHandle::new(tokio::spawn(work.run()));
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sample_ratio)));
    let otlp = Otlp { queue, counts, ids: RandomIdGenerator::default(), sampler };
    Ok(Some((Arc::new(otlp), Exporting { task, close })))
}

impl Exporting {
    /// Sends what waits and stops; whatever a collector does not take within a few seconds is lost.
    pub async fn finish(self) {
        self.close.cancel();
        if timeout(FLUSH, self.task).await.is_err() {
            tracing::warn!("the last spans were not exported in time");
        }
    }
}

impl Tracer for Otlp {
    fn begin(&self, traceparent: Option<&str>) -> Begun {
        let carrier: HashMap<String, String> =
            traceparent.map(|header| ("traceparent".to_owned(), header.to_owned())).into_iter().collect();
        let caller = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
        let span = caller.span();
        let parent = Some(span.span_context()).filter(|parent| parent.is_valid());
        let trace_id = parent.map_or_else(|| self.ids.new_trace_id(), SpanContext::trace_id);
        let kind = otel::SpanKind::Server;
        let sampled = self.sampler.should_sample(Some(&caller), trace_id, "episode", &kind, &[], &[]).decision;
        let context = TraceContext {
            trace_id: u128::from_be_bytes(trace_id.to_bytes()),
            span_id: u64::from_be_bytes(self.ids.new_span_id().to_bytes()),
            sampled: sampled == SamplingDecision::RecordAndSample,
        };
        Begun { context, parent: parent.map(|parent| u64::from_be_bytes(parent.span_id().to_bytes())) }
    }

    fn send(&self, spans: Vec<Span>) {
        let count = spans.len();
        match self.queue.try_reserve_many(count) {
            Ok(places) => places.zip(spans).for_each(|(place, span)| place.send(span)),
            Err(_) => self.counts.lose(count),
        }
    }

    fn counts(&self) -> SpanCounts {
        SpanCounts {
            exported: self.counts.exported.load(Ordering::Relaxed),
            dropped: self.counts.dropped.load(Ordering::Relaxed),
        }
    }
}

impl Counts {
    fn lose(&self, spans: usize) {
        self.dropped.fetch_add(spans as u64, Ordering::Relaxed);
    }
}

/// The task.
struct Work {
    waiting: mpsc::Receiver<Span>,
    exporter: SpanExporter,
    counts: Arc<Counts>,
    close: CancellationToken,
    failing: bool,
}

impl Work {
    async fn run(mut self) {
        while let Some(batch) = self.batch().await {
            let count = batch.len();
            // The exporter bounds when it begins another try; this bounds all of them.
            let sent = timeout(PATIENCE * 2, self.exporter.export(batch)).await;
            match sent {
                Ok(Ok(())) => {
                    self.counts.exported.fetch_add(count as u64, Ordering::Relaxed);
                    if std::mem::take(&mut self.failing) {
                        tracing::info!("spans are exported again");
                    }
                }
                failed => {
                    self.counts.lose(count);
                    // Once, not every few seconds. The messages hold a status and no address, body or key.
                    if !std::mem::replace(&mut self.failing, true) {
                        let error = failed.map_or_else(|_| "no answer in time".to_owned(), |error| told(&error));
                        tracing::warn!(error, "spans can't be exported; they are dropped until they can");
                    }
                }
            }
        }
    }

    /// The next spans to send together. `None` when all are sent and no more come.
    async fn batch(&mut self) -> Option<Vec<SpanData>> {
        let mut spans = Vec::new();
        let mut until = None;
        while spans.len() < BATCH {
            let room = BATCH - spans.len();
            let late = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = self.close.cancelled(), if !self.waiting.is_closed() => self.waiting.close(),
                more = self.waiting.recv_many(&mut spans, room) => {
                    if more == 0 {
                        break;
                    }
                    until.get_or_insert_with(|| tokio::time::Instant::now() + DELAY);
                }
                () = late => break,
            }
        }
        (!spans.is_empty()).then(|| spans.into_iter().map(data).collect())
    }
}

fn told(result: &Result<(), opentelemetry_sdk::error::OTelSdkError>) -> String {
    result.as_ref().err().map(ToString::to_string).unwrap_or_default()
}

fn data(span: Span) -> SpanData {
    let TraceContext { trace_id, span_id, .. } = span.context;
    let trace_id = TraceId::from_bytes(trace_id.to_be_bytes());
    let id = |id: u64| SpanId::from_bytes(id.to_be_bytes());
    let state = TraceState::default();
    SpanData {
        span_context: SpanContext::new(trace_id, id(span_id), TraceFlags::SAMPLED, false, state),
        parent_span_id: span.parent.map_or(SpanId::INVALID, id),
        parent_span_is_remote: span.kind == SpanKind::Server && span.parent.is_some(),
        span_kind: match span.kind {
            SpanKind::Server => otel::SpanKind::Server,
            SpanKind::Internal => otel::SpanKind::Internal,
        },
        name: span.name.into(),
        start_time: span.start,
        end_time: span.end,
        attributes: span.attributes.into_iter().map(|(key, value)| KeyValue::new(key, value)).collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: span.error.map_or(otel::Status::Unset, otel::Status::error),
        instrumentation_scope: InstrumentationScope::builder("paravt").with_version(env!("CARGO_PKG_VERSION")).build(),
    }
}

impl From<Value> for opentelemetry::Value {
    fn from(value: Value) -> Self {
        match value {
            Value::Text(text) => text.into(),
            Value::Count(count) => i64::try_from(count).unwrap_or(i64::MAX).into(),
            Value::Number(number) => number.into(),
            Value::Flag(flag) => flag.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn spans(count: usize) -> Vec<Span> {
        let span = Span {
            context: TraceContext { trace_id: 1, span_id: 2, sampled: true },
            parent: None,
            name: "turn",
            kind: SpanKind::Internal,
            start: SystemTime::UNIX_EPOCH,
            end: SystemTime::UNIX_EPOCH,
            attributes: Vec::new(),
            error: None,
        };
        vec![span; count]
    }

    #[test]
    fn what_does_not_fit_the_queue_is_dropped_whole_and_counted() {
        let (queue, mut waiting) = mpsc::channel(10);
        let (counts, ids) = (Arc::default(), RandomIdGenerator::default());
        let otlp = Otlp { queue, counts, ids, sampler: Sampler::AlwaysOn };
        otlp.send(spans(6));
        otlp.send(spans(6));
        otlp.send(spans(4));
        assert_eq!(otlp.counts(), SpanCounts { exported: 0, dropped: 6 });
        let mut kept = 0;
        while waiting.try_recv().is_ok() {
            kept += 1;
        }
        assert_eq!(kept, 10);
        drop(waiting);
        otlp.send(spans(3));
        assert_eq!(otlp.counts().dropped, 9, "nobody exports any more");
    }

    #[test]
    fn places_differ_and_are_valid() {
        let (queue, _waiting) = mpsc::channel(1);
        let otlp =
            Otlp { queue, counts: Arc::default(), ids: RandomIdGenerator::default(), sampler: Sampler::AlwaysOn };
        let (one, other) = (otlp.begin(None).context, otlp.begin(None).context);
        assert!(one.trace_id != other.trace_id && one.span_id != other.span_id && one.sampled);
        let below = otlp.begin(Some(&one.to_string()));
        assert_eq!((below.context.trace_id, below.parent), (one.trace_id, Some(one.span_id)));
    }
}
