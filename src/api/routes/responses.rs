//! `POST /v1/responses`.

use axum::extract::State;
use axum::response::Response;
use futures::StreamExt as _;

use super::chat::timed;
use crate::api::admission::Waited;
use crate::api::caller::Caller;
use crate::api::convert::{Files, Plan};
use crate::api::error::ApiError;
use crate::api::extract::{JsonBody, Ready};
use crate::api::observe::start;
use crate::api::origin::Origin;
use crate::api::sse;
use crate::api::state::{ApiState, now};
use crate::api::wire::{Envelope, ResponseWriter};
use crate::protocol::error::ErrorResponse;
use crate::protocol::responses::{ResponseObject, ResponsesBody, ResponsesRequest, Sequenced};

/// Asks a question, in the shape of OpenAI's newer API.
///
/// With `stream`, server-sent events under OpenAI's names, the last of them `response.completed`, `response.incomplete` or
/// `response.failed`. Each window of the video that is watched is an output item of its own (`mcp_call`), several of them in
/// progress at a time.
#[utoipa::path(
    post,
    path = "/v1/responses",
    tag = "responses",
    request_body = ResponsesBody,
    responses(
        (status = 200, description = "The answer.", content(
            (ResponseObject = "application/json"),
            (Sequenced = "text/event-stream"),
        ), headers(("server-timing" = String, description = "Where the time went; not streamed answers only."))),
        (status = 400, description = "A field is wrong or not supported (`param` names it), or the video can't be used.", body = ErrorResponse),
        (status = 401, description = "No key, or a wrong one, where keys are wanted.", body = ErrorResponse),
        (status = 403, description = "The video's host or folder is not allowed, or the key may not use the model.", body = ErrorResponse),
        (status = 404, description = "No such model.", body = ErrorResponse),
        (status = 408, description = "The request did not arrive in time.", body = ErrorResponse),
        (status = 413, description = "The body or the video is too large.", body = ErrorResponse),
        (status = 415, description = "The body is not JSON by its Content-Type.", body = ErrorResponse),
        (status = 429, description = "The queue is full or too slow, or the key asks too often; see Retry-After.", body = ErrorResponse),
        (status = 500, description = "A fault of the server.", body = ErrorResponse),
        (status = 503, description = "Loading, draining, or without an engine; see Retry-After.", body = ErrorResponse),
        (status = 504, description = "It took too long.", body = ErrorResponse),
    )
)]
pub(in crate::api) async fn create_response(
    State(state): State<ApiState>,
    Ready(agent): Ready,
    caller: Caller,
    origin: Origin,
    JsonBody(body, weight): JsonBody,
) -> Result<Response, ApiError> {
    let ResponsesRequest { chat, echo } = ResponsesRequest::read(body)?;
    let files = Files::look(&chat.messages, state.uploads(), caller.name()).await?;
    let plan = Plan::new(chat, &files, state.card(), agent.engine().info().supported).map_err(in_its_words)?;
    let (shape, waited) = (plan.shape, Waited::default());
    let envelope = Envelope {
        id: format!("resp_{}", uuid::Uuid::now_v7().simple()),
        created: now(),
        model: state.card().name.clone(),
        shape,
        waited: waited.clone(),
    };
    let mut episode = start(state.clone(), agent, plan, envelope.id.clone(), &origin, waited, weight);
    let mut writer = ResponseWriter::new(envelope, echo);
    if shape.stream {
        return sse::respond(episode, writer, state.config()).await.map_err(in_its_words);
    }
    while let Some(told) = episode.next().await {
        writer.take(told.map_err(in_its_words)?);
    }
    let (response, timing) = writer.into_response().ok_or(ApiError::Internal)?;
    Ok(timed(&timing, &response))
}

/// An error about a field of a chat completion, under the name that the field has here.
fn in_its_words(error: ApiError) -> ApiError {
    let mut invalid = match error {
        ApiError::Invalid(invalid) => invalid,
        ApiError::Form { param: "response_format", problem } => {
            return ApiError::Form { param: "text.format", problem };
        }
        error => return error,
    };
    invalid.param = match invalid.param.as_str() {
        "response_format" => "text.format".to_owned(),
        "logprobs" => "include".to_owned(),
        param => param.replace(".function.name", ".name"),
    };
    ApiError::Invalid(invalid)
}
