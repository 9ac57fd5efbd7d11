//! `GET /` and `GET /docs`: the playground, and a page to read the API's document.
//!
//! Each page is one file, joined once from the pieces in `playground/`: it needs no build step, no file beside the binary and
//! no other host. Its policy allows that very style and that very script, by hash, and nothing else that runs. So also text
//! that a model or a file was made to say can't run, and with trusted types the scripts can't even be mistaken about it.

use std::sync::LazyLock;

use axum::http::HeaderName;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

const STYLE: &str = include_str!("playground/style.css");
/// In the order in which they use each other while they are read.
const SCRIPT: &str = concat!(
    include_str!("playground/base.js"),
    include_str!("playground/server.js"),
    include_str!("playground/code.js"),
    include_str!("playground/video.js"),
    include_str!("playground/timeline.js"),
    include_str!("playground/windows.js"),
    include_str!("playground/steps.js"),
    include_str!("playground/exchange.js"),
    include_str!("playground/page.js"),
);
const DOCS_SCRIPT: &str = concat!(include_str!("playground/base.js"), include_str!("playground/docs.js"));

static PLAYGROUND: LazyLock<Page> = LazyLock::new(|| {
    // Videos are the user's own files (`blob:`) or wherever they say: the browser plays them beside the server.
    Page::new(include_str!("playground/page.html"), SCRIPT, "media-src 'self' blob: http: https: data:")
});
static DOCS: LazyLock<Page> =
    LazyLock::new(|| Page::new(include_str!("playground/docs.html"), DOCS_SCRIPT, "media-src 'none'"));

/// The playground: ask about a video in the browser and watch how it is answered.
#[utoipa::path(get, path = "/", tag = "operation", responses(
    (status = 200, description = "A page.", body = String, content_type = "text/html"),
))]
pub(in crate::api) async fn playground() -> Response {
    PLAYGROUND.response()
}

/// This document as a page to read.
#[utoipa::path(get, path = "/docs", tag = "operation", responses(
    (status = 200, description = "A page.", body = String, content_type = "text/html"),
))]
pub(in crate::api) async fn docs() -> Response {
    DOCS.response()
}

struct Page {
    html: String,
    policy: String,
}

impl Page {
    fn new(frame: &str, script: &str, media: &str) -> Self {
        let policy = format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; connect-src 'self'; img-src 'self' data: blob:; {media}; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
             trusted-types 'none'",
            hash(script),
            hash(STYLE)
        );
        Self { html: frame.replace("{{style}}", STYLE).replace("{{script}}", script), policy }
    }

    fn response(&self) -> Response {
        let headers = [
            (CONTENT_TYPE, "text/html; charset=utf-8"),
            (CONTENT_SECURITY_POLICY, &self.policy),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
            // A page of an older server would talk to this one wrongly.
            (CACHE_CONTROL, "no-cache"),
        ];
        (headers, self.html.clone()).into_response()
    }
}

/// A hash as policies write it (CSP level 3, section 2.3.1).
fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_allows_what_stands_between_the_tags_and_nothing_else() {
        for page in [&*PLAYGROUND, &*DOCS] {
            for (open, close) in [("<style>", "</style>"), ("<script type=\"module\">", "</script>")] {
                assert_eq!(page.html.matches(open).count(), 1, "{open}");
                assert_eq!(page.html.matches(close).count(), 1, "{close}");
                let inside = page.html.split(open).nth(1).and_then(|rest| rest.split(close).next()).expect("both tags");
                assert!(page.policy.contains(&hash(inside)), "{open}");
            }
            // What a parser of HTML would read differently within a script, or normalise before it is hashed.
            assert!(!page.html.contains("{{") && !page.html.contains('\r') && !page.html[4..].contains("<!"));
            assert!(!page.policy.contains("unsafe"), "{}", page.policy);
        }
    }

    #[test]
    fn pages_load_nothing_from_elsewhere_and_carry_no_inline_handlers() {
        for page in [&*PLAYGROUND, &*DOCS] {
            let frame = page.html.split("<style>").next().expect("a head").to_owned()
                + page.html.split("</style>").nth(1).and_then(|rest| rest.split("<script").next()).expect("a body");
            for forbidden in [" src=", " style=", " onclick=", "javascript:", "@import", "//cdn"] {
                assert!(!frame.contains(forbidden), "{forbidden}");
            }
            for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
                assert!(!page.html.contains(forbidden), "{forbidden}");
            }
            assert!(!STYLE.contains("url("));
        }
    }
}
