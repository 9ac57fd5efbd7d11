//! The one shape of errors.

use serde::Serialize;
use utoipa::ToSchema;

/// An error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ErrorResponse {
    /// The error.
    pub(crate) error: ErrorDetail,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ErrorDetail {
    /// For people.
    pub(crate) message: String,
    /// `invalid_request_error`, `permission_error`, `not_found_error`, `rate_limit_error`, `service_unavailable_error`,
    /// `timeout_error`, `server_error`.
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    /// The field that is wrong, as a path from the root of the body.
    pub(crate) param: Option<String>,
    /// For programs.
    pub(crate) code: Option<&'static str>,
}
