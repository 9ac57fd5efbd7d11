//! Who may ask: keys over real sockets.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use paravt::config::{KeyDigest, ServerConfig};
use paravt::engine::scripted::{Reply, ScriptedEngine};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::server::{Server, error_of, text_question};

/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const ALICE: &str = "paravt-alice-0123456789";
const BOB: &str = "paravt-bob-0123456789";

pub(super) fn hello() -> Arc<ScriptedEngine> {
    Arc::new(ScriptedEngine::new(|_, _| Reply::text("Hello.")))
}

/// An entry of a file of keys.
pub(super) fn entry(name: &str, key: &str, rest: &str) -> String {
    format!("[[keys]]\nname = \"{name}\"\nsha256 = \"{}\"\n{rest}\n", KeyDigest::of(key).hex())
}

/// A configuration with this file of keys.
pub(super) fn with_file(file: &Path, config: ServerConfig) -> ServerConfig {
    ServerConfig { keys_file: Some(file.to_owned()), ..config }
}

/// Status of a request for `path` that shows `key`.
async fn status(server: &Server, path: &str, key: Option<&str>) -> u16 {
    let request = server.client.get(server.url(path));
    let request = key.into_iter().fold(request, |request, key| request.bearer_auth(key));
    request.send().await.expect("an answer").status().as_u16()
}

async fn ask(server: &Server, key: &str) -> reqwest::Response {
    server.request(&text_question()).bearer_auth(key).send().await.expect("an answer")
}

#[tokio::test]
async fn everything_but_probes_and_the_description_wants_a_key() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), entry("alice", ALICE, "")).expect("written");
    let engine = hello();
    let server = Server::with(Arc::clone(&engine), with_file(file.path(), ServerConfig::default())).await;
    for path in ["/health", "/ready", "/openapi.json", "/", "/docs"] {
        assert_eq!(status(&server, path, None).await, 200, "{path}");
    }
    for path in ["/v1/models", "/v1/models/paravt-tiny", "/metrics", "/v1/nothing", "/health/", "//health", "/%72eady"]
    {
        assert_eq!(status(&server, path, None).await, 401, "{path}");
        assert_eq!(status(&server, path, Some(BOB)).await, 401, "{path}");
    }
    for path in ["/v1/models", "/metrics"] {
        assert_eq!(status(&server, path, Some(ALICE)).await, 200, "{path}");
    }
    let refused = server.ask(&text_question()).await;
    assert_eq!(refused.status(), 401);
    assert_eq!(refused.headers()["www-authenticate"], "Bearer");
    assert!(refused.headers().contains_key("x-request-id"));
    let error = error_of(refused).await;
    assert_eq!((&error["code"], &error["type"]), (&json!("invalid_api_key"), &json!("invalid_request_error")));
    assert_eq!(error_of(ask(&server, BOB).await).await["code"], "invalid_api_key");
    assert!(engine.requests().is_empty());
    assert_eq!(ask(&server, ALICE).await.status(), 200);
}

#[tokio::test]
async fn a_wrong_key_is_refused_before_the_body_comes() {
    let keys = toml::Value::from(ALICE).try_into().expect("a key");
    let server = Server::with(hello(), ServerConfig { keys, ..ServerConfig::default() }).await;
    let mut socket = TcpStream::connect(server.address).await.expect("connects");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        content-length: 100\r\nauthorization: Bearer {BOB}\r\nconnection: close\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.expect("written");
    let mut answer = String::new();
    let read = tokio::time::timeout(PATIENCE, socket.read_to_string(&mut answer)).await;
    read.expect("does not wait for the body").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 401 ") && !answer.contains(BOB), "{answer}");
    assert_eq!(ask(&server, ALICE).await.status(), 200);
}

#[tokio::test]
async fn a_key_for_another_model_sees_none_and_may_not_ask() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let text = entry("alice", ALICE, "models = [\"paravt-tiny\"]") + &entry("bob", BOB, "models = [\"paravt-8b\"]");
    std::fs::write(file.path(), text).expect("written");
    let engine = hello();
    let server = Server::with(Arc::clone(&engine), with_file(file.path(), ServerConfig::default())).await;
    let models = async |key: &str| -> Value {
        let request = server.client.get(server.url("/v1/models")).bearer_auth(key);
        request.send().await.expect("an answer").json().await.expect("JSON")
    };
    assert_eq!(models(ALICE).await["data"][0]["id"], "paravt-tiny");
    assert_eq!(models(BOB).await["data"], json!([]));
    assert_eq!(status(&server, "/v1/models/paravt-tiny", Some(BOB)).await, 403);
    let refused = ask(&server, BOB).await;
    assert_eq!(refused.status(), 403);
    let error = error_of(refused).await;
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_allowed"), &json!("model")));
    assert!(engine.requests().is_empty());
    assert_eq!(ask(&server, ALICE).await.status(), 200);
}

#[tokio::test]
async fn a_changed_file_is_read_again_and_a_broken_one_changes_nothing() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), entry("alice", ALICE, "")).expect("written");
    let server = Server::with(hello(), with_file(file.path(), ServerConfig::default())).await;
    let until = async |key: &str, expected: u16| {
        let reached = async {
            while status(&server, "/v1/models", Some(key)).await != expected {
                tokio::task::yield_now().await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, reached).await.is_ok(), "never {expected}");
    };
    assert_eq!(status(&server, "/v1/models", Some(BOB)).await, 401);
    std::fs::write(file.path(), entry("alice", ALICE, "") + &entry("bob", BOB, "")).expect("written");
    until(BOB, 200).await;
    // Broken, it has no effect; the next good one does, so that it was looked at in between or never will be.
    std::fs::write(file.path(), "[[keys]]\nname = ").expect("written");
    assert_eq!(status(&server, "/v1/models", Some(ALICE)).await, 200);
    let other = tempfile::NamedTempFile::new_in(file.path().parent().expect("a folder")).expect("a file");
    std::fs::write(other.path(), entry("bob", BOB, "expires = 2020-01-01")).expect("written");
    std::fs::rename(other.path(), file.path()).expect("renamed");
    until(ALICE, 401).await;
    let expired = ask(&server, BOB).await;
    assert_eq!(expired.status(), 401);
    assert_eq!(error_of(expired).await["message"], "the key has expired");
}
