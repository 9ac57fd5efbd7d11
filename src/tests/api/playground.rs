//! The pages for people, as a browser gets them.

use std::sync::Arc;

use paravt::config::ServerConfig;
use paravt::engine::scripted::{Reply, ScriptedEngine};

use super::server::Server;

#[tokio::test]
async fn pages_come_with_a_policy_that_trusts_only_themselves() {
    // Also before the model is there: the page says that it is loading.
    let server = Server::loading(ServerConfig::default()).await;
    for (path, title) in [("/", "<title>paravt playground</title>"), ("/docs", "<title>paravt API reference</title>")] {
        let response = server.get(path).await;
        assert_eq!(response.status(), 200, "{path}");
        let header = |name: &str| response.headers()[name].to_str().expect("text").to_owned();
        assert_eq!(header("content-type"), "text/html; charset=utf-8");
        assert_eq!(header("x-content-type-options"), "nosniff");
        assert_eq!(header("referrer-policy"), "no-referrer");
        assert_eq!(header("cache-control"), "no-cache");
        let policy = header("content-security-policy");
        for directive in [
            "default-src 'none'",
            "connect-src 'self'",
            "img-src 'self' data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ] {
            assert!(policy.split("; ").any(|found| found == directive), "{path}: {directive} in {policy}");
        }
        for source in ["script-src", "style-src"] {
            let found = policy.split("; ").find(|found| found.starts_with(source)).expect("a directive");
            assert!(found.starts_with(&format!("{source} 'sha256-")) && found.matches(' ').count() == 1, "{found}");
        }
        let html = response.text().await.expect("a body");
        assert!(html.starts_with("<!doctype html>") && html.contains(title), "{path}");
    }
}

#[tokio::test]
async fn the_page_is_no_answer_to_a_question_and_has_no_neighbours() {
    let server = Server::start(Arc::new(ScriptedEngine::new(|_, _| Reply::text("Hello.")))).await;
    let posted = server.client.post(server.url("/")).body("x").send().await.expect("an answer");
    assert_eq!(posted.status(), 405);
    for path in ["/index.html", "/page.js", "/playground", "/docs/"] {
        assert_eq!(server.get(path).await.status(), 404, "{path}");
    }
    server.until_metric(r#"paravt_api_requests_total{route="/",status="405"} 1"#).await;
}
