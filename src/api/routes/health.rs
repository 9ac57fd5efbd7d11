//! `GET /health` and `GET /ready`.

use axum::Json;
use axum::extract::State;

use crate::api::error::ApiError;
use crate::api::state::ApiState;
use crate::protocol::error::ErrorResponse;
use crate::protocol::models::Status;

/// Says that the process is alive. For liveness probes.
#[utoipa::path(get, path = "/health", tag = "operation", responses((status = 200, body = Status)))]
pub(in crate::api) async fn health() -> Json<Status> {
    Json(Status { status: "ok" })
}

/// Says whether questions are answered now. For readiness probes and load balancers.
#[utoipa::path(get, path = "/ready", tag = "operation", responses(
    (status = 200, description = "The model is loaded and the server is not stopping.", body = Status),
    (status = 503, description = "Loading or draining; see Retry-After.", body = ErrorResponse),
))]
pub(in crate::api) async fn ready(State(state): State<ApiState>) -> Result<Json<Status>, ApiError> {
    state.ready().map(|_| Json(Status { status: "ready" }))
}
