//! What is taken from a request before a handler runs.

mod json;

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use futures::StreamExt as _;
use serde_json::Value;

use super::admission::{Reading, Weight};
use super::caller::Caller;
use super::error::ApiError;
use super::state::ApiState;
use crate::agent::Agent;
use crate::media::{FileId, UploadError};

/// The agent. Refuses with 503 before the model is loaded and while the server drains, and with 403 the holder of a key for
/// other models, without reading the body: there is one model here, whatever the request calls it.
pub(super) struct Ready(pub(super) Agent);

impl FromRequestParts<ApiState> for Ready {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        let Ok(caller) = Caller::from_request_parts(parts, state).await;
        if !caller.may_use(&state.card().name) {
            return Err(ApiError::ModelNotAllowed);
        }
        state.ready().cloned().map(Self)
    }
}

/// The model named in the path.
pub(super) struct ModelName(pub(super) String);

impl FromRequestParts<ApiState> for ModelName {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        // What is not UTF-8 is no name of a model.
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => Ok(Self(name)),
            Err(_) => Err(ApiError::ModelNotFound(String::new())),
        }
    }
}

/// The file named in the path.
pub(super) struct FileName(pub(super) FileId);

impl FromRequestParts<ApiState> for FileName {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        let name = Path::<String>::from_request_parts(parts, state).await;
        let id = name.ok().and_then(|Path(name)| FileId::parse(&name));
        id.map(Self).ok_or(ApiError::Upload(UploadError::NotFound))
    }
}

/// A JSON body, read within the limits of size, time and number of values, with what it weighs among all bodies.
///
/// The limits live here and not in a layer because only here a body is read, and because a layer can't answer in our shape.
pub(super) struct JsonBody(pub(super) Value, pub(super) Weight);

impl FromRequest<ApiState> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, ApiError> {
        // Not for tidiness: a page in a browser may post `text/plain` to a server on localhost without asking, but not JSON.
        if !is_json(request.headers()) {
            return Err(ApiError::MediaType);
        }
        let most = state.config().max_body_bytes;
        let told = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if told.is_some_and(|bytes| bytes > most as u64) {
            return Err(ApiError::BodyTooLarge(most));
        }
        let caller = request.extensions().get::<Caller>().cloned().unwrap_or_default();
        let mut reading = state.admission().read_body(&caller, told)?;
        let within = Duration::from_secs(state.config().read_timeout_s);
        let idle = Duration::from_secs(state.config().body_idle_s);
        let bytes = tokio::time::timeout(within, read(request.into_body(), most, idle, &mut reading))
            .await
            .map_err(|_| ApiError::ReadTimeout)??;
        parse(bytes, reading).await
    }
}

/// A body of so many bytes is parsed at once: in less time than another thread takes to wake up.
const SHORT: usize = 32 << 10;

/// Parses, what is long where it may take its time. The permit goes along: what a client that went away has left behind still counts, so
/// that coming and going can't pile work up.
async fn parse(bytes: Vec<u8>, reading: Reading) -> Result<JsonBody, ApiError> {
    if bytes.len() <= SHORT {
        return json::read(&bytes).map(|value| JsonBody(value, reading.done()));
    }
    let work = move || json::read(&bytes).map(|value| JsonBody(value, reading.done()));
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(ApiError::Internal))
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return false };
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

async fn read(body: Body, most: usize, idle: Duration, reading: &mut Reading) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    let mut pieces = body.into_data_stream();
    while let Some(piece) = tokio::time::timeout(idle, pieces.next()).await.map_err(|_| ApiError::ReadTimeout)? {
        let piece = piece.map_err(|_| ApiError::ReadTimeout)?;
        if bytes.len() + piece.len() > most {
            return Err(ApiError::BodyTooLarge(most));
        }
        reading.grow(piece.len())?;
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use futures::poll;

    use super::*;
    use crate::api::admission::{Admission, Reason};
    use crate::config::ServerConfig;
    use crate::shutdown::Shutdown;

    /// The only thread for blocking work is taken, so that the parse waits for as long as we want.
    #[test]
    fn a_parse_that_nobody_waits_for_still_holds_its_permit() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().expect("a runtime");
        runtime.block_on(async {
            let config = ServerConfig { max_running: 1, max_queued: 0, ..ServerConfig::default() };
            let admission = Admission::new(&config, Shutdown::new());
            let (gate, closed) = std::sync::mpsc::channel::<()>();
            let long = format!("{}{{}}", " ".repeat(SHORT)).into_bytes();
            let blocker = tokio::task::spawn_blocking(move || closed.recv());
            let read = || admission.read_body(&Caller::default(), None);
            let mut parsing = Box::pin(parse(long, read().expect("its turn")));
            assert!(poll!(&mut parsing).is_pending());
            drop(parsing);
            assert!(read().is_err_and(|refusal| refusal.reason == Reason::Queue));
            drop(gate);
            assert!(blocker.await.expect("no panic").is_err());
            while read().is_err() {
                tokio::task::yield_now().await;
            }
        });
    }

    #[test]
    fn only_json_is_json() {
        for (kind, expected) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/vnd.x+json", true),
            ("text/plain", false),
            ("application/x-www-form-urlencoded", false),
            ("text/json", false),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, kind.parse().expect("header"))]);
            assert_eq!(is_json(&headers), expected, "{kind}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}
