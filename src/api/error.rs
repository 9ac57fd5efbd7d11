//! The one error of this room and the one place that chooses a status: by cause, never by text.
//!
//! Messages help the caller; causes that may hold paths, addresses or an upstream's words go to the log instead.

use axum::Json;
use axum::http::header::{CONTENT_RANGE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::admission::{Reason, Refusal};
use super::convert::VideoPath;
use crate::agent::AgentError;
use crate::engine::EngineError;
use crate::media::{MediaError, UploadError};
use crate::protocol::Invalid;
use crate::protocol::error::{ErrorDetail, ErrorResponse};

/// What a request can end with instead of an answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ApiError {
    /// A field is missing, wrong, or not supported.
    #[error("{}", sentence(.0))]
    Invalid(Invalid),
    /// The body is not JSON.
    #[error("the body is not valid JSON: {0}")]
    NotJson(String),
    /// The body's JSON has too many values.
    #[error("the body holds more than {0} JSON values")]
    TooManyValues(usize),
    /// Not `application/json`.
    #[error("the Content-Type must be application/json")]
    MediaType,
    /// Not `multipart/form-data`.
    #[error("the Content-Type must be multipart/form-data, with a boundary")]
    NoForm,
    /// The body is no form, or a form that is not taken.
    #[error("the multipart body {0}")]
    BadForm(&'static str),
    /// A page of another site sent it.
    #[error("a page of another site can't upload files here")]
    OriginNotAllowed,
    /// An uploaded file.
    #[error("{}", upload_message(.0))]
    Upload(UploadError),
    /// None of a file's bytes are among those asked for.
    #[error("the file has {0} bytes, and none of those asked for")]
    RangeBeyond(u64),
    /// The body is over the limit.
    #[error("the body is larger than {0} bytes")]
    BodyTooLarge(usize),
    /// The client was too slow to send its request, or broke off.
    #[error("the body did not arrive in time")]
    ReadTimeout,
    /// The model is not the one we have.
    #[error("the model {0:?} does not exist here; GET /v1/models lists what does")]
    ModelNotFound(String),
    /// No key where one is wanted.
    #[error("this server wants a key: Authorization: Bearer KEY")]
    KeyMissing,
    /// A key that is none of ours.
    #[error("the key is not valid here")]
    KeyWrong,
    /// A key that was one of ours.
    #[error("the key has expired")]
    KeyExpired,
    /// The key is for other models.
    #[error("the key may not use this model; GET /v1/models lists those it may")]
    ModelNotAllowed,
    /// No such route.
    #[error("there is nothing at this path")]
    NotFound,
    /// The route has other methods.
    #[error("this path does not take this method")]
    MethodNotAllowed,
    /// Not taken on: the server is full, or the caller asks for more than is its share.
    #[error("{}", refusal_message(.0.reason))]
    Refused(Refusal),
    /// The request was sent to a name that is not ours.
    #[error("this server does not answer to this host name (server.allowed_hosts)")]
    HostNotAllowed,
    /// The model isn't loaded yet.
    #[error("the model is still loading")]
    Loading,
    /// The server is stopping.
    #[error("the server is stopping")]
    Draining,
    /// The client stopped reading; it will hardly read this.
    #[error("the client did not read the answer in time")]
    ClientStalled,
    /// A video, with the field that names it.
    #[error("{}", media_message(.error))]
    Media {
        /// What is wrong with it.
        error: MediaError,
        /// Path of the field.
        param: Option<String>,
    },
    /// A picture, with the field that names it.
    #[error("{}", media_message(.error))]
    Picture {
        /// What is wrong with it.
        error: MediaError,
        /// Path of the field.
        param: String,
    },
    /// The engine.
    #[error("{}", engine_message(.0))]
    Engine(EngineError),
    /// The agent makes no sense of the request.
    #[error("{0}")]
    Senseless(String),
    /// The form asked of the answer can't be had.
    #[error("{problem}")]
    Form {
        /// Path of the field.
        param: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The episode's deadline passed.
    #[error("the request took longer than {0} s")]
    Deadline(u64),
    /// A fault of ours.
    #[error("an internal error occurred")]
    Internal,
}

impl ApiError {
    /// An agent's error, with the place of the request's only video, if it has just one.
    pub(super) fn from_agent(error: AgentError, video: Option<&VideoPath>) -> Self {
        match error {
            AgentError::Media(error) => {
                let param = video.map(|video| video.param(&error));
                Self::Media { error, param }
            }
            AgentError::Engine(error) => Self::Engine(error),
            AgentError::Invalid(message) => Self::Senseless(message),
            AgentError::Form { of_tools, problem } => {
                Self::Form { param: if of_tools { "tools" } else { "response_format" }, problem }
            }
            AgentError::Deadline(seconds) => Self::Deadline(seconds),
        }
    }

    /// Writes to the log what the caller isn't told.
    fn log(&self) {
        match self {
            Self::Media { error, .. } | Self::Picture { error, .. }
                if matches!(error, MediaError::Internal(_) | MediaError::NoFfmpeg) =>
            {
                tracing::error!(%error, "media failed");
            }
            Self::Engine(error @ (EngineError::Failed(_) | EngineError::Load(_) | EngineError::Unavailable(_))) => {
                tracing::error!(%error, "the engine failed");
            }
            Self::Upload(error @ UploadError::Storage(_)) => tracing::error!(%error, "an uploaded file failed"),
            _ => {}
        }
    }

    /// Status, OpenAI's `type` and `code`.
    const fn class(&self) -> (StatusCode, &'static str, Option<&'static str>) {
        use StatusCode as S;
        const BAD: &str = "invalid_request_error";
        const SERVER: &str = "server_error";
        match self {
            Self::Invalid(invalid) => (S::BAD_REQUEST, BAD, Some(invalid.code)),
            Self::NotJson(_) => (S::BAD_REQUEST, BAD, Some("invalid_json")),
            Self::TooManyValues(_) => (S::BAD_REQUEST, BAD, Some("too_many_values")),
            Self::MediaType => (S::UNSUPPORTED_MEDIA_TYPE, BAD, Some("unsupported_media_type")),
            Self::NoForm => (S::UNSUPPORTED_MEDIA_TYPE, BAD, Some("unsupported_media_type")),
            Self::BadForm(_) => (S::BAD_REQUEST, BAD, Some("invalid_multipart")),
            Self::OriginNotAllowed => (S::FORBIDDEN, "permission_error", Some("origin_not_allowed")),
            Self::Upload(error) => match error {
                UploadError::TooLarge(_) => (S::PAYLOAD_TOO_LARGE, BAD, Some("file_too_large")),
                // Not 429 or 507: OpenAI's clients would send the whole file again at once, twice, and space gets free when
                // somebody deletes something or hours later.
                UploadError::Full | UploadError::ShareFull => (S::PAYLOAD_TOO_LARGE, BAD, Some("file_quota_exceeded")),
                UploadError::Busy => (S::TOO_MANY_REQUESTS, "rate_limit_error", Some("uploads_full")),
                UploadError::NotFound => (S::NOT_FOUND, "not_found_error", Some("file_not_found")),
                UploadError::Storage(_) => (S::INTERNAL_SERVER_ERROR, SERVER, Some("file_storage_failed")),
            },
            Self::RangeBeyond(_) => (S::RANGE_NOT_SATISFIABLE, BAD, Some("range_not_satisfiable")),
            Self::BodyTooLarge(_) => (S::PAYLOAD_TOO_LARGE, BAD, Some("body_too_large")),
            Self::ReadTimeout => (S::REQUEST_TIMEOUT, "timeout_error", Some("request_timeout")),
            Self::ModelNotFound(_) => (S::NOT_FOUND, "not_found_error", Some("model_not_found")),
            // OpenAI's own, down to the type.
            Self::KeyMissing | Self::KeyWrong | Self::KeyExpired => (S::UNAUTHORIZED, BAD, Some("invalid_api_key")),
            Self::ModelNotAllowed => (S::FORBIDDEN, "permission_error", Some("model_not_allowed")),
            Self::NotFound => (S::NOT_FOUND, "not_found_error", Some("not_found")),
            Self::MethodNotAllowed => (S::METHOD_NOT_ALLOWED, BAD, Some("method_not_allowed")),
            Self::Refused(refusal) => {
                let code = match refusal.reason {
                    Reason::Queue | Reason::Wait => "queue_full",
                    Reason::KeyQueue | Reason::Rate | Reason::KeyBodies => "rate_limit_exceeded",
                    Reason::Bodies => "bodies_full",
                };
                (S::TOO_MANY_REQUESTS, "rate_limit_error", Some(code))
            }
            Self::HostNotAllowed => (S::FORBIDDEN, "permission_error", Some("host_not_allowed")),
            Self::Loading => (S::SERVICE_UNAVAILABLE, "service_unavailable_error", Some("model_loading")),
            Self::Draining => (S::SERVICE_UNAVAILABLE, "service_unavailable_error", Some("shutting_down")),
            Self::ClientStalled => (S::REQUEST_TIMEOUT, "timeout_error", Some("client_stalled")),
            Self::Picture { error: MediaError::NotVideo(_), .. } => (S::BAD_REQUEST, BAD, Some("not_an_image")),
            Self::Media { error, .. } | Self::Picture { error, .. } => match error {
                MediaError::BadSource(_) => (S::BAD_REQUEST, BAD, Some("bad_video_source")),
                MediaError::NotVideo(_) => (S::BAD_REQUEST, BAD, Some("not_a_video")),
                MediaError::NoFrames(_) => (S::BAD_REQUEST, BAD, Some("no_frames")),
                MediaError::Forbidden(_) => (S::FORBIDDEN, "permission_error", Some("source_not_allowed")),
                // Not 404: that says the route or the model isn't there, and clients treat it so.
                MediaError::NotFound(_) => (S::BAD_REQUEST, BAD, Some("video_not_found")),
                MediaError::TooLarge(_) => (S::PAYLOAD_TOO_LARGE, BAD, Some("video_too_large")),
                // Not 502: the caller chose the URL, and clients that retry 5xx would fetch it again and again.
                MediaError::Fetch(_) => (S::BAD_REQUEST, BAD, Some("video_fetch_failed")),
                MediaError::Busy => (S::SERVICE_UNAVAILABLE, "service_unavailable_error", Some("video_storage_full")),
                MediaError::Killed => (S::SERVICE_UNAVAILABLE, "service_unavailable_error", Some("decoder_killed")),
                MediaError::Timeout(_) => (S::GATEWAY_TIMEOUT, "timeout_error", Some("video_timeout")),
                MediaError::NoFfmpeg => (S::INTERNAL_SERVER_ERROR, SERVER, Some("no_ffmpeg")),
                MediaError::Internal(_) => (S::INTERNAL_SERVER_ERROR, SERVER, Some("decoding_failed")),
            },
            Self::Engine(error) => match error {
                EngineError::TooLong { .. } => (S::BAD_REQUEST, BAD, Some("context_length_exceeded")),
                EngineError::Unsupported(_) => (S::BAD_REQUEST, BAD, Some("unsupported_parameter")),
                EngineError::Invalid(_) => (S::BAD_REQUEST, BAD, Some("invalid_value")),
                EngineError::Unavailable(_) => {
                    (S::SERVICE_UNAVAILABLE, "service_unavailable_error", Some("engine_unavailable"))
                }
                EngineError::Overloaded => (S::TOO_MANY_REQUESTS, "rate_limit_error", Some("engine_overloaded")),
                EngineError::DeadlineExceeded => (S::GATEWAY_TIMEOUT, "timeout_error", Some("deadline_exceeded")),
                EngineError::Failed(_) | EngineError::Load(_) => {
                    (S::INTERNAL_SERVER_ERROR, SERVER, Some("engine_failed"))
                }
            },
            Self::Senseless(_) | Self::Form { .. } => (S::BAD_REQUEST, BAD, Some("invalid_value")),
            Self::Deadline(_) => (S::GATEWAY_TIMEOUT, "timeout_error", Some("deadline_exceeded")),
            Self::Internal => (S::INTERNAL_SERVER_ERROR, SERVER, Some("internal_error")),
        }
    }

    /// Its code, for metrics, traces and the log.
    pub(super) fn code(&self) -> &'static str {
        self.class().2.unwrap_or("error")
    }

    /// Seconds after which to try again.
    const fn retry_after(&self) -> Option<u16> {
        match self {
            Self::Refused(refusal) => Some(refusal.retry_after_s),
            Self::Engine(EngineError::Overloaded) => Some(2),
            Self::Media { error: MediaError::Busy | MediaError::Killed, .. }
            | Self::Picture { error: MediaError::Busy | MediaError::Killed, .. }
            | Self::Upload(UploadError::Busy) => Some(5),
            Self::Loading | Self::Draining | Self::Engine(EngineError::Unavailable(_)) => Some(5),
            _ => None,
        }
    }

    /// Why a request was not taken on, as metrics call it. `None` for what is wrong with it, and for what fails later.
    const fn refused(&self) -> Option<&'static str> {
        match self {
            Self::KeyMissing | Self::KeyWrong | Self::KeyExpired => Some("key"),
            Self::ModelNotAllowed => Some("model"),
            Self::Refused(refusal) => Some(match refusal.reason {
                Reason::Queue => "queue",
                Reason::Wait => "wait",
                Reason::KeyQueue => "key_queue",
                Reason::Rate => "rate",
                Reason::Bodies => "bodies",
                Reason::KeyBodies => "key_bodies",
            }),
            Self::Engine(EngineError::Overloaded) => Some("engine"),
            _ => None,
        }
    }

    fn param(&self) -> Option<String> {
        match self {
            Self::Invalid(invalid) => Some(invalid.param.clone()).filter(|param| !param.is_empty()),
            Self::Media { param, .. } => param.clone(),
            Self::Picture { param, .. } => Some(param.clone()),
            Self::Form { param, .. } => Some((*param).to_owned()),
            Self::ModelNotFound(_) | Self::ModelNotAllowed => Some("model".to_owned()),
            Self::Engine(EngineError::Unsupported(field)) => Some((*field).to_owned()),
            Self::Engine(EngineError::TooLong { .. }) => Some("messages".to_owned()),
            _ => None,
        }
    }

    /// The wire's shape: the body of a response, or an event of a stream that can't change its status any more.
    pub(super) fn body(&self) -> ErrorResponse {
        self.log();
        let (_, kind, code) = self.class();
        ErrorResponse { error: ErrorDetail { message: self.to_string(), kind, param: self.param(), code } }
    }
}

/// Why a request was not taken on. Goes with its response, to be counted where all are.
#[derive(Debug, Clone, Copy)]
pub(super) struct RefusedFor(pub(super) &'static str);

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Invalid> for ApiError {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

impl From<UploadError> for ApiError {
    fn from(error: UploadError) -> Self {
        Self::Upload(error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.class().0, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after() {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(reason) = self.refused() {
            response.extensions_mut().insert(RefusedFor(reason));
        }
        if response.status() == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Self::RangeBeyond(bytes) = self
            && let Ok(range) = HeaderValue::from_str(&format!("bytes */{bytes}"))
        {
            response.headers_mut().insert(CONTENT_RANGE, range);
        }
        response
    }
}

const fn refusal_message(reason: Reason) -> &'static str {
    match reason {
        Reason::Queue => "too many requests are waiting, try again in a moment",
        Reason::Wait => "requests wait too long at the moment, try again later",
        Reason::KeyQueue => "too many requests with this key are waiting, try again when some are answered",
        Reason::Rate => "this key's requests a minute are used up, try again later",
        Reason::Bodies => "the server holds as many request bodies as it can, try again in a moment",
        Reason::KeyBodies => {
            "the bodies of this key's requests take as much room as they may, try again when some are answered"
        }
    }
}

fn sentence(invalid: &Invalid) -> String {
    let name = if invalid.param.is_empty() { "the body" } else { &invalid.param };
    format!("{name} {}", invalid.problem)
}

fn media_message(error: &MediaError) -> String {
    match error {
        MediaError::Internal(_) => "the video could not be decoded because of a fault of the server".to_owned(),
        MediaError::NoFfmpeg => "the server can't decode videos at the moment".to_owned(),
        error => error.to_string(),
    }
}

fn upload_message(error: &UploadError) -> String {
    match error {
        UploadError::Storage(_) => "the file could not be stored or read because of a fault of the server".to_owned(),
        error => error.to_string(),
    }
}

fn engine_message(error: &EngineError) -> String {
    match error {
        EngineError::Unavailable(_) => "the engine is not available".to_owned(),
        EngineError::Failed(_) | EngineError::Load(_) => "generation failed".to_owned(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn media(error: MediaError) -> ApiError {
        ApiError::from_agent(error.into(), None)
    }

    fn refused(reason: Reason) -> ApiError {
        ApiError::Refused(Refusal { reason, retry_after_s: 7 })
    }

    #[test]
    fn each_cause_has_its_status_and_code() {
        let text = || "x".to_owned();
        for (error, status, code) in [
            (media(MediaError::BadSource(text())), 400, "bad_video_source"),
            (media(MediaError::NotVideo(text())), 400, "not_a_video"),
            (ApiError::Picture { error: MediaError::NotVideo(text()), param: text() }, 400, "not_an_image"),
            (ApiError::Picture { error: MediaError::TooLarge(text()), param: text() }, 413, "video_too_large"),
            (media(MediaError::NoFrames(text())), 400, "no_frames"),
            (media(MediaError::Forbidden(text())), 403, "source_not_allowed"),
            (media(MediaError::NotFound(text())), 400, "video_not_found"),
            (media(MediaError::TooLarge(text())), 413, "video_too_large"),
            (media(MediaError::Fetch(text())), 400, "video_fetch_failed"),
            (media(MediaError::Busy), 503, "video_storage_full"),
            (media(MediaError::Killed), 503, "decoder_killed"),
            (media(MediaError::Timeout("decoding")), 504, "video_timeout"),
            (media(MediaError::NoFfmpeg), 500, "no_ffmpeg"),
            (media(MediaError::Internal(text())), 500, "decoding_failed"),
            (ApiError::Engine(EngineError::TooLong { needed: 2, limit: 1 }), 400, "context_length_exceeded"),
            (ApiError::Engine(EngineError::Unsupported("seed")), 400, "unsupported_parameter"),
            (ApiError::Engine(EngineError::Invalid(text())), 400, "invalid_value"),
            (ApiError::Engine(EngineError::Unavailable(text())), 503, "engine_unavailable"),
            (ApiError::Engine(EngineError::Overloaded), 429, "engine_overloaded"),
            (ApiError::Engine(EngineError::DeadlineExceeded), 504, "deadline_exceeded"),
            (ApiError::Engine(EngineError::Failed(text())), 500, "engine_failed"),
            (ApiError::Deadline(1), 504, "deadline_exceeded"),
            (refused(Reason::Queue), 429, "queue_full"),
            (refused(Reason::Wait), 429, "queue_full"),
            (refused(Reason::KeyQueue), 429, "rate_limit_exceeded"),
            (refused(Reason::Rate), 429, "rate_limit_exceeded"),
            (refused(Reason::Bodies), 429, "bodies_full"),
            (refused(Reason::KeyBodies), 429, "rate_limit_exceeded"),
            (ApiError::TooManyValues(1), 400, "too_many_values"),
            (ApiError::KeyWrong, 401, "invalid_api_key"),
            (ApiError::ModelNotAllowed, 403, "model_not_allowed"),
            (ApiError::HostNotAllowed, 403, "host_not_allowed"),
            (ApiError::NoForm, 415, "unsupported_media_type"),
            (ApiError::BadForm("x"), 400, "invalid_multipart"),
            (ApiError::OriginNotAllowed, 403, "origin_not_allowed"),
            (UploadError::TooLarge(1).into(), 413, "file_too_large"),
            (UploadError::Full.into(), 413, "file_quota_exceeded"),
            (UploadError::ShareFull.into(), 413, "file_quota_exceeded"),
            (UploadError::Busy.into(), 429, "uploads_full"),
            (UploadError::NotFound.into(), 404, "file_not_found"),
            (UploadError::Storage(text()).into(), 500, "file_storage_failed"),
            (ApiError::RangeBeyond(1), 416, "range_not_satisfiable"),
            (ApiError::Loading, 503, "model_loading"),
            (ApiError::ReadTimeout, 408, "request_timeout"),
        ] {
            assert_eq!((error.class().0.as_u16(), error.class().2), (status, Some(code)), "{error:?}");
            let retry = error.clone().into_response().headers().contains_key(RETRY_AFTER);
            assert_eq!(retry, matches!(status, 429 | 503), "{error:?}");
        }
    }

    #[test]
    fn what_only_the_operator_may_know_is_not_told() {
        let secret = || "/srv/models at 10.0.0.7".to_owned();
        for error in [
            media(MediaError::Internal(secret())),
            UploadError::Storage(secret()).into(),
            ApiError::Engine(EngineError::Failed(secret())),
            ApiError::Engine(EngineError::Load(secret())),
            ApiError::Engine(EngineError::Unavailable(secret())),
        ] {
            let body = serde_json::to_string(&error.body()).expect("serialises");
            assert!(!body.contains("srv") && !body.contains("10.0"), "{body}");
        }
    }

    #[test]
    fn the_wire_shape_is_openais() {
        let error = ApiError::Invalid(Invalid::new("messages[0].role", "must be \"user\""));
        insta::assert_json_snapshot!(error.body(), @r##"
        {
          "error": {
            "message": "messages[0].role must be \"user\"",
            "type": "invalid_request_error",
            "param": "messages[0].role",
            "code": "invalid_value"
          }
        }
        "##);
    }
}
