//! An upstream server that does what a test tells it to.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures::{FutureExt, StreamExt, stream};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How a request is answered.
#[derive(Clone)]
pub(super) enum Answer {
    /// These events, then `[DONE]`.
    Stream(Vec<Value>),
    /// These events, then a clean end without `[DONE]`.
    Ends(Vec<Value>),
    /// These events, then the connection breaks.
    Dies(Vec<Value>),
    /// These events, then nothing.
    Hangs(Vec<Value>),
    /// Not even a status.
    Never,
    /// A status and a JSON body.
    Status(u16, Value),
}

/// A request as it came.
#[derive(Clone)]
pub(super) struct Seen {
    pub(super) path: String,
    pub(super) authorization: String,
    pub(super) traceparent: Option<String>,
    pub(super) body: Value,
}

/// A server on a free port of this machine, gone when it is dropped.
pub(super) struct Upstream {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

struct Shared {
    answer: Answer,
    seen: Mutex<Vec<Seen>>,
    open: watch::Sender<usize>,
}

/// A request being answered. Dropped when the answer is complete or the client went away.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open -= 1);
    }
}

/// An event with a piece of text.
pub(super) fn text(text: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {"content": text}}]})
}

impl Upstream {
    /// Answers everything this way.
    pub(super) async fn always(answer: Answer) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared { answer, seen: Mutex::default(), open: watch::Sender::default() });
        let router = axum::Router::new().fallback(serve).with_state(Arc::clone(&shared));
        let server = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Self { address, shared, server }
    }

    /// Says this and stops.
    pub(super) async fn saying(said: &str) -> Self {
        let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
        Self::always(Answer::Stream(vec![text(said), end])).await
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/v1/", self.address)
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().expect("not poisoned").clone()
    }

    /// Returns when so many requests are being answered.
    pub(super) async fn open(&self, count: usize) {
        self.shared.open.subscribe().wait_for(|open| *open == count).await.expect("the sender lives");
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(State(shared): State<Arc<Shared>>, uri: Uri, headers: HeaderMap, Json(body): Json<Value>) -> Response {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
    let authorization = header(header::AUTHORIZATION).unwrap_or_default();
    let traceparent = header(header::HeaderName::from_static("traceparent"));
    let seen = Seen { path: uri.path().to_owned(), authorization, traceparent, body };
    shared.seen.lock().expect("not poisoned").push(seen);
    shared.open.send_modify(|open| *open += 1);
    let open = Open(Arc::clone(&shared));
    let (events, end) = match shared.answer.clone() {
        Answer::Stream(events) => (events, stream::iter([Ok(Bytes::from_static(b"data: [DONE]\n\n"))]).boxed()),
        Answer::Ends(events) => (events, stream::empty().boxed()),
        Answer::Dies(events) => {
            // Waiting once lets the server write out what it has.
            let death = tokio::task::yield_now().then(|()| std::future::ready(Err(std::io::Error::other("dies"))));
            (events, stream::once(death).boxed())
        }
        Answer::Hangs(events) => (events, stream::pending().boxed()),
        Answer::Never => std::future::pending().await,
        Answer::Status(status, body) => {
            return (StatusCode::from_u16(status).expect("a status"), Json(body)).into_response();
        }
    };
    let events = events.into_iter().map(|event| Ok::<_, Infallible>(Bytes::from(format!("data: {event}\n\n"))));
    let events = stream::iter(events).map(|event| event.map_err(std::io::Error::other));
    let body = events.chain(end).map(move |bytes| {
        let _held = &open;
        bytes
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(body)).into_response()
}
