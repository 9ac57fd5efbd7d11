//! All routes: each is declared once, for axum and for the OpenAPI document.

use std::sync::LazyLock;

use axum::Router;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::ApiError;
use super::openapi::Document;
use super::routes::{chat, files, health, metrics, models, playground, responses};
use super::state::ApiState;
use super::{middleware, openapi};

/// The whole HTTP surface.
pub fn router(state: ApiState) -> Router {
    let (router, _) = described().split_for_parts();
    let router = router
        .fallback(|| async { ApiError::NotFound })
        .method_not_allowed_fallback(|| async { ApiError::MethodNotAllowed });
    middleware::apply(router, &state).with_state(state)
}

/// Routes with their descriptions.
pub(super) fn described() -> OpenApiRouter<ApiState> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(chat::create_chat_completion))
        .routes(routes!(responses::create_response))
        .routes(routes!(models::list_models))
        .routes(routes!(models::retrieve_model))
        .routes(routes!(files::create_file, files::list_files))
        .routes(routes!(files::retrieve_file, files::delete_file))
        .routes(routes!(files::retrieve_file_content))
        .routes(routes!(health::health))
        .routes(routes!(health::ready))
        .routes(routes!(metrics::metrics))
        .routes(routes!(openapi::document))
        .routes(routes!(playground::playground))
        .routes(routes!(playground::docs))
}

/// A route's pattern for a path, to label metrics with. What is no route has one label in common: paths come from anyone.
pub(super) fn pattern(path: &str) -> &'static str {
    static PATTERNS: LazyLock<Vec<String>> =
        LazyLock::new(|| described().split_for_parts().1.paths.paths.into_keys().collect());
    PATTERNS.iter().find(|pattern| matches(pattern, path)).map_or("other", String::as_str)
}

fn matches(pattern: &str, path: &str) -> bool {
    let (mut wanted, mut given) = (pattern.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some(wanted), Some(given)) if wanted.starts_with('{') && !given.is_empty() || wanted == given => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_has_a_pattern() {
        let document = described().split_for_parts().1;
        for path in document.paths.paths.keys() {
            assert_eq!(pattern(&path.replace("{model}", "tiny")), path);
        }
        assert_eq!(pattern("/v1/models/tiny"), "/v1/models/{model}");
        assert_eq!(pattern("/v1/models/"), "other");
        assert_eq!(pattern("/v1/files/file-1/content"), "/v1/files/{file_id}/content");
        assert_eq!(pattern("/v1/nothing"), "other");
        assert_eq!(pattern("/v1/models/a/b"), "other");
    }
}
