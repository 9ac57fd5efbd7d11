//! The OpenAPI document, made from the same declarations as the routes.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

use super::error::ApiError;
use super::router::described;
use crate::protocol::files::ListOrder;

/// What is not said by routes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "paravt",
        description = "Answers questions about long videos by watching many windows of them at the same time. \
                       OpenAI's chat completions, with videos.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    tags(
        (name = "chat", description = "Questions and answers."),
        (name = "responses", description = "The same in OpenAI's newer shape."),
        (name = "files", description = "Videos and pictures to ask about."),
        (name = "models", description = "What answers."),
        (name = "operation", description = "For those who run the server."),
    ),
    // What only a query has.
    components(schemas(ListOrder)),
    modifiers(&Keys),
    security((), ("key" = []))
)]
pub(super) struct Document;

/// Keys, where the server wants any: the empty alternative beside it in `security` is the server that wants none.
struct Keys;

impl Modify for Keys {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let key = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
            "Where the server has keys, everything but /health, /ready, this document and the two pages wants one.",
        ));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("key", SecurityScheme::Http(key.build()));
    }
}

/// The document.
#[must_use]
pub fn openapi() -> utoipa::openapi::OpenApi {
    described().split_for_parts().1
}

/// The document as it is committed in `openapi/openapi.json`: indented, in a stable order, with a line break at its end.
///
/// # Errors
/// When it can't be written as JSON.
pub fn openapi_json() -> Result<String, serde_json::Error> {
    openapi().to_pretty_json().map(|text| text + "\n")
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "operation", responses(
    (status = 200, body = Object, content_type = "application/json"),
))]
pub(super) async fn document() -> Result<Response, ApiError> {
    match openapi_json() {
        Ok(text) => Ok(([(CONTENT_TYPE, "application/json")], text).into_response()),
        Err(error) => {
            tracing::error!(%error, "the OpenAPI document could not be written");
            Err(ApiError::Internal)
        }
    }
}
