//! `POST /v1/chat/completions`.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;

use crate::agent::AgentEvent;
use crate::api::admission::Waited;
use crate::api::convert::Plan;
use crate::api::error::ApiError;
use crate::api::extract::{JsonBody, Ready};
use crate::api::observe::{Episode, start};
use crate::api::sse;
use crate::api::state::{ApiState, now};
use crate::api::wire::{ChunkWriter, Envelope};
use crate::protocol::chat::ChatCompletionRequest;
use crate::protocol::chunk::ChatCompletionChunk;
use crate::protocol::completion::ChatCompletionResponse;
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
        (status = 403, description = "The video's host or folder is not allowed.", body = ErrorResponse),
        (status = 404, description = "No such model.", body = ErrorResponse),
        (status = 408, description = "The request did not arrive in time.", body = ErrorResponse),
        (status = 413, description = "The body or the video is too large.", body = ErrorResponse),
        (status = 415, description = "The body is not JSON by its Content-Type.", body = ErrorResponse),
        (status = 429, description = "The queue is full; see Retry-After.", body = ErrorResponse),
        (status = 500, description = "A fault of the server.", body = ErrorResponse),
        (status = 503, description = "Loading, draining, or without an engine; see Retry-After.", body = ErrorResponse),
        (status = 504, description = "It took too long.", body = ErrorResponse),
    )
)]
pub(in crate::api) async fn create_chat_completion(
    State(state): State<ApiState>,
    Ready(agent): Ready,
    JsonBody(body, weight): JsonBody,
) -> Result<Response, ApiError> {
    let request = ChatCompletionRequest::read(body)?;
    let plan = Plan::new(request, state.card(), agent.engine().info().supported)?;
    let (shape, waited) = (plan.shape, Waited::default());
    let envelope = Envelope {
        id: format!("chatcmpl-{}", uuid::Uuid::now_v7().simple()),
        created: now(),
        model: state.card().name.clone(),
        shape,
        waited: waited.clone(),
    };
    let episode = start(state.clone(), agent, plan, envelope.id.clone(), waited, weight);
    if shape.stream {
        sse::respond(episode, ChunkWriter::new(envelope), state.config()).await
    } else {
        whole(episode, &envelope).await
    }
}

/// The answer when it is complete.
async fn whole(mut episode: Episode, envelope: &Envelope) -> Result<Response, ApiError> {
    while let Some(event) = episode.next().await {
        if let AgentEvent::Finished(outcome) = event? {
            let answer = envelope.response(&outcome);
            let timing = HeaderValue::from_str(&answer.paravt.timing.header());
            let mut response = Json(answer).into_response();
            if let Ok(timing) = timing {
                response.headers_mut().insert("server-timing", timing);
            }
            return Ok(response);
        }
    }
    Err(ApiError::Internal)
}
