//! `POST /v1/chat/completions`.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use serde::Serialize;

use crate::agent::{AgentEvent, Outcome};
use crate::api::admission::Waited;
use crate::api::caller::Caller;
use crate::api::convert::{Files, Plan};
use crate::api::error::ApiError;
use crate::api::extract::{JsonBody, Ready};
use crate::api::observe::{Episode, Told, start};
use crate::api::origin::Origin;
use crate::api::sse;
use crate::api::state::{ApiState, now};
use crate::api::wire::{ChunkWriter, Envelope};
use crate::protocol::chat::ChatCompletionRequest;
use crate::protocol::chunk::ChatCompletionChunk;
use crate::protocol::completion::{ChatCompletionResponse, Timing};
use crate::protocol::error::ErrorResponse;

/// Asks a question, most likely about a video.
///
/// With `stream`, server-sent events: chunks of the answer, then `data: [DONE]`. Comments keep
/// a silent stream open, also while the request waits for its place or its video is fetched. An error after the first
/// chunk is an event `{"error": …}` that ends the stream without `[DONE]`.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    tag = "chat",
    request_body = ChatCompletionRequest,
    responses(
        (status = 200, description = "The answer.", content(
            (ChatCompletionResponse = "application/json"),
            (ChatCompletionChunk = "text/event-stream"),
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
pub(in crate::api) async fn create_chat_completion(
    State(state): State<ApiState>,
    Ready(agent): Ready,
    caller: Caller,
    origin: Origin,
    JsonBody(body, weight): JsonBody,
) -> Result<Response, ApiError> {
    let request = ChatCompletionRequest::read(body)?;
    let files = Files::look(&request.messages, state.uploads(), caller.name()).await?;
    let plan = Plan::new(request, &files, state.card(), agent.engine().info().supported)?;
    let (shape, waited) = (plan.shape, Waited::default());
    let envelope = Envelope {
        id: format!("chatcmpl-{}", uuid::Uuid::now_v7().simple()),
        created: now(),
        model: state.card().name.clone(),
        shape,
        waited: waited.clone(),
    };
    let episode = start(state.clone(), agent, plan, envelope.id.clone(), &origin, waited, weight);
    if shape.stream {
        return sse::respond(episode, ChunkWriter::new(envelope), state.config()).await;
    }
    let answer = envelope.response(&outcomes(episode).await?);
    Ok(timed(&answer.paravt.timing, &answer))
}

/// All choices when they are complete, in order.
pub(super) async fn outcomes(mut episode: Episode) -> Result<Vec<Outcome>, ApiError> {
    let mut outcomes = BTreeMap::new();
    while let Some(told) = episode.next().await {
        let Told { choice, event, .. } = told?;
        if let AgentEvent::Finished(outcome) = event {
            outcomes.insert(choice, *outcome);
        }
    }
    if outcomes.is_empty() { Err(ApiError::Internal) } else { Ok(outcomes.into_values().collect()) }
}

/// An answer in one object, with where its time went in a header.
pub(super) fn timed<T: Serialize>(timing: &Timing, answer: &T) -> Response {
    let mut response = Json(answer).into_response();
    if let Ok(timing) = HeaderValue::from_str(&timing.header()) {
        response.headers_mut().insert("server-timing", timing);
    }
    response
}
