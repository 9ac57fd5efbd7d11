//! A collector of traces on a real socket, which reads what others' collectors read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as Outcome;
use prost::Message;
use tokio_util::task::AbortOnDropHandle;

/// What it does with spans.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// Takes them.
    Takes,
    /// Says that it can't.
    Refuses,
    /// Never answers.
    Hangs,
}

/// A span as it came.
#[derive(Debug, Clone)]
pub(super) struct Told {
    pub(super) trace: String,
    pub(super) id: String,
    /// Empty for a root.
    pub(super) parent: String,
    pub(super) name: String,
    pub(super) server: bool,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) attributes: BTreeMap<String, String>,
    /// What went wrong, if anything did.
    pub(super) error: Option<String>,
    /// Attributes of whoever sent it.
    pub(super) resource: BTreeMap<String, String>,
}

impl Told {
    /// An attribute; empty when it is not there.
    pub(super) fn get(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

/// A running collector, gone when it is dropped.
pub(super) struct Collector {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
    _server: AbortOnDropHandle<()>,
}

struct Shared {
    manner: Manner,
    spans: Mutex<Vec<Told>>,
    headers: Mutex<Vec<HeaderMap>>,
}

impl Collector {
    pub(super) async fn start(manner: Manner) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared { manner, spans: Mutex::default(), headers: Mutex::default() });
        let router = axum::Router::new().fallback(take).with_state(Arc::clone(&shared));
        let server = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Self { address, shared, _server: AbortOnDropHandle::new(server) }
    }

    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All spans so far.
    pub(super) fn spans(&self) -> Vec<Told> {
        self.shared.spans.lock().expect("not poisoned").clone()
    }

    /// A header of the first request.
    pub(super) fn header(&self, name: &str) -> Option<String> {
        let headers = self.shared.headers.lock().expect("not poisoned");
        Some(headers.first()?.get(name)?.to_str().expect("text").to_owned())
    }
}

async fn take(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    assert_eq!((uri.path(), headers["content-type"].as_bytes()), ("/v1/traces", &b"application/x-protobuf"[..]));
    shared.headers.lock().expect("not poisoned").push(headers);
    match shared.manner {
        Manner::Takes => {}
        Manner::Refuses => return StatusCode::FORBIDDEN.into_response(),
        Manner::Hangs => std::future::pending().await,
    }
    let request = ExportTraceServiceRequest::decode(body).expect("OTLP");
    let mut spans = shared.spans.lock().expect("not poisoned");
    for of_resource in request.resource_spans {
        let resource = plain(of_resource.resource.expect("a resource").attributes);
        for span in of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            let status = span.status.unwrap_or_default();
            spans.push(Told {
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                name: span.name,
                server: span.kind == SpanKind::Server as i32,
                start: span.start_time_unix_nano,
                end: span.end_time_unix_nano,
                attributes: plain(span.attributes),
                error: (status.code == Outcome::Error as i32).then_some(status.message),
                resource: resource.clone(),
            });
        }
    }
    StatusCode::OK.into_response()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn plain(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let value = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        Some(any_value::Value::DoubleValue(number)) => number.to_string(),
        Some(any_value::Value::BoolValue(flag)) => flag.to_string(),
        other => panic!("no plain value: {other:?}"),
    };
    attributes.into_iter().map(|attribute| (attribute.key, value(attribute.value))).collect()
}
