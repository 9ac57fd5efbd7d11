//! `GET /metrics`.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use crate::api::error::ApiError;
use crate::api::state::ApiState;
use crate::protocol::error::ErrorResponse;

/// All metrics in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", tag = "operation", responses(
    (status = 200, body = String, content_type = "text/plain"),
    (status = 401, description = "No key, or a wrong one, where keys are wanted.", body = ErrorResponse),
))]
pub(in crate::api) async fn metrics(State(state): State<ApiState>) -> Result<Response, ApiError> {
    match state.metrics().render(&state.readings()) {
        Ok(text) => Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()),
        Err(error) => {
            tracing::error!(%error, "metrics could not be written");
            Err(ApiError::Internal)
        }
    }
}
