//! What a request's head says of where it comes from: its id, and the trace it is part of.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::HeaderName;
use axum::http::request::Parts;

/// The header that names a request. The middleware sees to it that there is one and that it is harmless.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Longest `traceparent` that is looked at. Today's has 55 bytes; a later version's may have more.
const LONGEST: usize = 256;

/// Where a request comes from.
#[derive(Debug, Clone, Default)]
pub(super) struct Origin {
    /// The request's id.
    pub(super) request_id: String,
    /// W3C's header of that name, as it came.
    pub(super) traceparent: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Origin {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let header = |name| parts.headers.get(name).and_then(|value| value.to_str().ok());
        Ok(Self {
            request_id: header(REQUEST_ID).unwrap_or_default().to_owned(),
            traceparent: header(TRACEPARENT).filter(|value| value.len() <= LONGEST).map(str::to_owned),
        })
    }
}
