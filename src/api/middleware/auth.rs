//! Who asks: checks the key a request shows, before anything of its body is read, and tells all below who its holder is.

use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;

use crate::api::error::ApiError;
use crate::api::keys::KeyProblem;
use crate::api::state::{ApiState, now};

/// What anybody may ask: probes have no keys, and pages that explain the server hold nothing of anyone's. Whole paths, as
/// they were sent: what is written another way is another path.
const OPEN: [&str; 5] = ["/", "/docs", "/health", "/ready", "/openapi.json"];

/// Refuses with 401 what shows no key, or a wrong one, where keys are wanted.
pub(super) async fn check(
    State(state): State<ApiState>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if state.keys().wanted() && !OPEN.contains(&request.uri().path()) {
        let shown = bearer(request.headers()).ok_or(ApiError::KeyMissing)?;
        let time = i64::try_from(now()).unwrap_or(i64::MAX);
        let caller = state.keys().find(shown, time).map_err(|problem| match problem {
            KeyProblem::Unknown => ApiError::KeyWrong,
            KeyProblem::Expired => ApiError::KeyExpired,
        })?;
        // All log lines of the request say whose it is.
        tracing::Span::current().record("caller", caller.name());
        request.extensions_mut().insert(caller);
    }
    Ok(next.run(request).await)
}

/// The key of `Authorization: Bearer …`. Two of these headers are none: proxies differ in which one counts.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (only, None) = (all.next()?, all.next()) else { return None };
    let (scheme, key) = only.to_str().ok()?.trim().split_once(' ')?;
    let key = key.trim_start();
    (scheme.eq_ignore_ascii_case("bearer") && !key.is_empty()).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_bearer_key_is_a_key() {
        for (values, expected) in [
            (&["Bearer key"][..], Some("key")),
            (&["bearer  key "], Some("key")),
            (&["BEARER k=/+.-_~"], Some("k=/+.-_~")),
            (&[], None),
            (&["Bearer"], None),
            (&["Bearer "], None),
            (&["Basic a2V5"], None),
            (&["key"], None),
            (&["Bearerkey"], None),
            (&["Bearer key", "Bearer key"], None),
        ] {
            let mut headers = HeaderMap::new();
            values.iter().for_each(|value| {
                headers.append(AUTHORIZATION, value.parse().expect("a header"));
            });
            assert_eq!(bearer(&headers), expected, "{values:?}");
        }
    }
}
