//! Counts requests, and writes one log line for each.
//!
//! A streamed answer has two ends: its head goes out, and much later its body is over. The count and the status belong to the
//! head, the line in the log to the end, where a client that went away in between is known.

use std::time::Instant;

use axum::body::{Body, HttpBody as _};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt as _;

use crate::api::error::RefusedFor;
use crate::api::router::pattern;
use crate::api::state::ApiState;
use crate::metrics::Metrics;

/// Counts requests by route and status, and those not taken on by the reason.
pub(super) async fn count(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    let mut counted = Counted {
        metrics: state.metrics().clone(),
        route: pattern(request.uri().path()),
        span: tracing::Span::current(),
        began: Instant::now(),
        status: None,
        headers_ms: None,
        cut: false,
    };
    let response = next.run(request).await;
    counted.answered(response.status().as_u16());
    if let Some(RefusedFor(reason)) = response.extensions().get() {
        state.metrics().refused(reason);
    }
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    counted.cut = true;
    response.map(|body| Body::from_stream(until_the_end(body, counted)))
}

/// The body's pieces. What is not read to its end was cut off.
fn until_the_end(body: Body, counted: Counted) -> impl futures::Stream<Item = Result<axum::body::Bytes, axum::Error>> {
    futures::stream::unfold((body.into_data_stream(), counted), |(mut pieces, mut counted)| async move {
        match pieces.next().await {
            Some(piece) => Some((piece, (pieces, counted))),
            None => {
                counted.complete();
                None
            }
        }
    })
}

/// Tells when dropped, so that a request whose client went away before the answer counts too: as nginx's 499.
struct Counted {
    metrics: Metrics,
    route: &'static str,
    /// Bodies are dropped outside of it.
    span: tracing::Span,
    began: Instant,
    status: Option<u16>,
    headers_ms: Option<f64>,
    /// Whether the body broke off.
    cut: bool,
}

impl Counted {
    fn ms(&self) -> f64 {
        self.began.elapsed().as_micros() as f64 / 1e3
    }

    /// The body was read to its end.
    const fn complete(&mut self) {
        self.cut = false;
    }

    fn answered(&mut self, status: u16) {
        let ms = self.ms();
        (self.status, self.headers_ms) = (Some(status), Some(ms));
        self.metrics.request(self.route, status);
        self.metrics.answer_began(self.route, ms / 1e3);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let ms = self.ms();
        let status = self.status.unwrap_or(499);
        if self.status.is_none() {
            self.metrics.request(self.route, status);
        }
        self.metrics.answer_ended(self.route, ms / 1e3);
        let (headers_ms, cut) = (self.headers_ms, self.cut);
        let _entered = self.span.enter();
        match status {
            // Probes and scrapes come every few seconds.
            200 if !self.route.starts_with("/v1/") => tracing::debug!(status, ms, "answered"),
            _ => tracing::info!(status, ms, headers_ms, cut, "answered"),
        }
    }
}
