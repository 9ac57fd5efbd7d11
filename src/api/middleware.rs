//! What surrounds every handler, in this order from the outside in:
//!
//! 1. **request id**, first, so that all below can name the request, and every answer carries the id, errors too;
//! 2. **trace span**, next, so that all log lines below stand in it;
//! 3. **count**, outside of the panic catcher, so that a panic counts as the 500 it becomes;
//! 4. **catch panic**, around all that may panic, so that only the request at fault is lost;
//! 5. **host**, then **auth**, innermost, so that a refused request has an id, a log line and a count like any other, yet nothing
//!    of it but its head was looked at: bodies are read within handlers. A name that is not ours is refused before any key is
//!    looked at: what a page sends from there is not its user's doing.
//!
//! Limits of a body's size and time are not layers: the extractor that reads the body keeps them (see `extract`).
//!
//! There are deliberately no CORS headers: without keys, a server on localhost that allowed every origin would answer to
//! every page its user visits. Pages of another origin go through a reverse proxy that says whom it trusts.

mod auth;
mod count;
mod host;

use std::any::Any;

use axum::Router;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tower::ServiceBuilder;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::trace::TraceLayer;

use super::error::ApiError;
use super::origin::REQUEST_ID;
use super::router::pattern;
use super::state::ApiState;

const LONGEST_ID: usize = 128;

/// Lays the layers around the routes.
pub(super) fn apply(router: Router<ApiState>, state: &ApiState) -> Router<ApiState> {
    router.layer(
        ServiceBuilder::new()
            .layer(from_fn(request_id))
            // Only for its span: `count` logs the answer, a 503 of `/ready` is no failure.
            .layer(TraceLayer::new_for_http().make_span_with(span).on_failure(()))
            .layer(from_fn_with_state(state.clone(), count::count))
            .layer(CatchPanicLayer::custom(panicked))
            .layer(from_fn_with_state(state.clone(), host::check))
            .layer(from_fn_with_state(state.clone(), auth::check)),
    )
}

/// Takes the caller's id where it is harmless in logs and headers, else makes one, and gives it back.
async fn request_id(mut request: Request, next: Next) -> Response {
    let id = request
        .headers()
        .get(&REQUEST_ID)
        .filter(|id| harmless(id.as_bytes()))
        .cloned()
        .or_else(|| HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).ok());
    let Some(id) = id else { return next.run(request).await };
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let mut response = next.run(request).await;
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

fn harmless(id: &[u8]) -> bool {
    (1..=LONGEST_ID).contains(&id.len()) && id.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// The path is shown as a route's pattern: paths and queries come from anyone.
fn span(request: &Request) -> tracing::Span {
    let id = request.headers().get(&REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default();
    tracing::info_span!(
        "request",
        request.id = %id,
        http.method = %request.method(),
        http.route = pattern(request.uri().path()),
        caller = tracing::field::Empty
    )
}

#[expect(clippy::needless_pass_by_value, reason = "the catcher's signature")]
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let message = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    tracing::error!(panic = message, "a handler panicked");
    ApiError::Internal.into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use tower::ServiceExt as _;

    use super::*;

    #[test]
    fn only_harmless_ids_are_taken() {
        assert!(harmless(b"req_01.a-B"));
        for id in [&b""[..], b"a b", b"a\"b", b"a\xffb", &[b'a'; 129]] {
            assert!(!harmless(id));
        }
    }

    #[tokio::test]
    async fn a_panic_is_a_500_in_our_shape() {
        let router: Router = Router::new()
            .route(
                "/",
                axum::routing::get(|| async {
                    if true {
                        panic!("secret")
                    }
                }),
            )
            .layer(CatchPanicLayer::custom(panicked));
        let request = Request::get("/").body(Body::empty()).expect("request");
        let response = router.oneshot(request).await.expect("infallible");
        assert_eq!(response.status(), 500);
        let body = to_bytes(response.into_body(), 10_000).await.expect("body");
        let body = String::from_utf8_lossy(&body).into_owned();
        assert!(body.contains("internal_error") && !body.contains("secret"), "{body}");
    }
}
