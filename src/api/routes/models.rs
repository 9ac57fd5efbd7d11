//! `GET /v1/models`.

use axum::Json;
use axum::extract::State;

use crate::api::caller::Caller;
use crate::api::convert::check_model;
use crate::api::error::ApiError;
use crate::api::extract::ModelName;
use crate::api::state::ApiState;
use crate::protocol::error::ErrorResponse;
use crate::protocol::models::{Model, ModelList};

/// Lists the model this server answers with, where the caller's key may use it.
#[utoipa::path(get, path = "/v1/models", tag = "models", responses(
    (status = 200, body = ModelList),
    (status = 401, description = "No key, or a wrong one, where keys are wanted.", body = ErrorResponse),
))]
pub(in crate::api) async fn list_models(State(state): State<ApiState>, caller: Caller) -> Json<ModelList> {
    let data = if caller.may_use(&state.card().name) { vec![served(&state)] } else { Vec::new() };
    Json(ModelList { object: "list", data })
}

/// Tells of one model.
#[utoipa::path(get, path = "/v1/models/{model}", tag = "models",
    params(("model" = String, Path, description = "The model card's name, or `paravt`.")),
    responses(
        (status = 200, body = Model),
        (status = 401, description = "No key, or a wrong one, where keys are wanted.", body = ErrorResponse),
        (status = 403, description = "The key may not use this model.", body = ErrorResponse),
        (status = 404, body = ErrorResponse),
    ))]
pub(in crate::api) async fn retrieve_model(
    State(state): State<ApiState>,
    caller: Caller,
    ModelName(name): ModelName,
) -> Result<Json<Model>, ApiError> {
    check_model(&name, state.card())?;
    if !caller.may_use(&state.card().name) {
        return Err(ApiError::ModelNotAllowed);
    }
    Ok(Json(served(&state)))
}

fn served(state: &ApiState) -> Model {
    Model { id: state.card().name.clone(), object: "model", created: state.created(), owned_by: "paravt" }
}
