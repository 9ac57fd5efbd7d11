//! What keeps one client from taking the server from the others, and web pages from taking it at all.

use std::sync::Arc;
use std::time::Duration;

use paravt::agent::Agent;
use paravt::config::{AgentConfig, MediaConfig, ServerConfig};
use paravt::engine::scripted::{Gate, Reply, ScriptedEngine};
use paravt::media::Media;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::server::{Server, error_of, text_question};
use crate::support::tiny_card;

/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn hello() -> Arc<ScriptedEngine> {
    Arc::new(ScriptedEngine::new(|_, _| Reply::text("Hello.")))
}

#[tokio::test]
async fn a_body_of_very_many_values_is_refused() {
    let engine = hello();
    let server = Server::start(Arc::clone(&engine)).await;
    let mut question = text_question();
    question["x"] = Value::from(vec![0; 200_000]);
    let response = server.ask(&question).await;
    assert_eq!(response.status(), 400);
    assert_eq!(error_of(response).await["code"], "too_many_values");
    question["x"] = Value::from(vec![0; 50_000]);
    assert_eq!(server.ask(&question).await.status(), 200);
    assert_eq!(engine.requests().len(), 1);
}

#[tokio::test]
async fn long_texts_and_long_urls_name_their_field() {
    let engine = hello();
    let server = Server::start(Arc::clone(&engine)).await;
    let video = json!({"type": "video_url", "video_url": {"url": format!("http://a/{}", "x".repeat(9000))}});
    let long = "x".repeat((4 << 20) + 1);
    for (content, param) in [(json!(long), "messages"), (json!([video]), "messages[0].content[0].video_url.url")] {
        let response = server.ask(&json!({"messages": [{"role": "user", "content": content}]})).await;
        assert_eq!(response.status(), 400);
        let error = error_of(response).await;
        assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!("invalid_value")));
    }
    assert!(engine.requests().is_empty());
}

#[tokio::test]
async fn bodies_are_bounded_together_until_their_episodes_are_over() {
    let gate = Gate::closed();
    let engine = Arc::new(ScriptedEngine::new({
        let gate = gate.clone();
        move |_, _| Reply::text("Hello.").gate(gate.clone())
    }));
    let config = ServerConfig { max_bodies_bytes: 128 << 10, max_running: 1, ..ServerConfig::default() };
    let server = Server::with(Arc::clone(&engine), config).await;
    let mut large = text_question();
    large["messages"][0]["content"] = json!("x".repeat(70_000));
    let first = tokio::spawn(server.request(&large).send());
    engine.running(1).await;
    // There is room in the queue, but not for its body.
    let response = tokio::time::timeout(PATIENCE, server.ask(&large)).await.expect("does not wait");
    assert_eq!(response.status(), 429);
    assert!(response.headers().contains_key("retry-after"));
    assert_eq!(error_of(response).await["code"], "bodies_full");
    gate.open();
    let first = first.await.expect("no panic").expect("an answer");
    assert_eq!(first.status(), 200);
    assert_eq!(server.ask(&large).await.status(), 200);
}

#[tokio::test]
async fn a_body_that_stops_coming_is_408_long_before_its_time_is_up() {
    let config = ServerConfig { body_idle_s: 1, read_timeout_s: 3600, ..ServerConfig::default() };
    let server = Server::with(hello(), config).await;
    let mut socket = TcpStream::connect(server.address).await.expect("connects");
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        content-length: 100\r\nconnection: close\r\n\r\n{";
    socket.write_all(head.as_bytes()).await.expect("written");
    let mut answer = String::new();
    let read = tokio::time::timeout(PATIENCE, socket.read_to_string(&mut answer)).await;
    read.expect("does not hang").expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("request_timeout"), "{answer}");
}

#[tokio::test]
async fn a_picture_that_does_not_come_is_a_deadline_and_gives_its_place_back() {
    // It is connected to by the kernel, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/a.png", silent.local_addr().expect("bound"));
    let server = Server::loading(ServerConfig { max_running: 1, ..ServerConfig::default() }).await;
    let media = Media::new(MediaConfig { allow_private_addresses: true, ..MediaConfig::default() });
    let config = AgentConfig { episode_deadline_s: 1, ..AgentConfig::default() };
    server.state.set_agent(Agent::new(Arc::new(tiny_card()), hello(), media.expect("ffmpeg is installed"), config));
    let question = json!({"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]}]});
    let response = tokio::time::timeout(PATIENCE, server.ask(&question)).await.expect("does not hang");
    assert_eq!(response.status(), 504);
    assert_eq!(error_of(response).await["code"], "deadline_exceeded");
    assert_eq!(server.ask(&text_question()).await.status(), 200);
}

#[tokio::test]
async fn a_cut_ends_the_wait_for_a_picture() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/a.png", silent.local_addr().expect("bound"));
    let mut server = Server::loading(ServerConfig::default()).await;
    let media = Media::new(MediaConfig { allow_private_addresses: true, ..MediaConfig::default() });
    let media = media.expect("ffmpeg is installed");
    server.state.set_agent(Agent::new(Arc::new(tiny_card()), hello(), media, AgentConfig::default()));
    let question = json!({"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]}]});
    let asking = tokio::spawn(server.request(&question).send());
    let _connection = silent.accept().await.expect("it is asked for");
    server.state.shutdown().cut();
    let response = asking.await.expect("no panic").expect("an answer");
    assert_eq!(response.status(), 503);
    assert_eq!(error_of(response).await["code"], "shutting_down");
    server.stopped().await;
}

#[tokio::test]
async fn a_server_on_loopback_answers_to_its_own_names_only() {
    let config = ServerConfig { allowed_hosts: vec!["paravt.example".to_owned()], ..ServerConfig::default() };
    let plain = Server::start(hello()).await;
    let named = Server::with(hello(), config).await;
    let status = async |server: &Server, path: &str, host: &str| {
        let request = server.client.get(server.url(path)).header("host", host);
        request.send().await.expect("an answer").status().as_u16()
    };
    for host in ["localhost:8080", "LOCALHOST", "127.0.0.1", "[::1]:8080", "10.0.0.7:80"] {
        assert_eq!(status(&plain, "/v1/models", host).await, 200, "{host}");
    }
    for path in ["/v1/models", "/ready", "/metrics", "/openapi.json", "/nothing"] {
        assert_eq!(status(&plain, path, "evil.example:8080").await, 403, "{path}");
    }
    assert_eq!(status(&plain, "/health", "evil.example").await, 200);
    assert_eq!(status(&plain, "/v1/models", "paravt.example").await, 403);
    assert_eq!(status(&named, "/v1/models", "Paravt.Example:443").await, 200);
    assert_eq!(status(&named, "/v1/models", "evil.example").await, 403);

    let refused = plain.request(&text_question()).header("host", "evil.example").send().await.expect("an answer");
    assert_eq!(refused.status(), 403);
    assert!(refused.headers().contains_key("x-request-id"));
    let error = error_of(refused).await;
    assert_eq!((&error["code"], &error["type"]), (&json!("host_not_allowed"), &json!("permission_error")));
    plain.until_metric(r#"paravt_api_requests_total{route="/v1/chat/completions",status="403"} 1"#).await;
}

#[tokio::test]
async fn a_server_for_others_checks_names_only_where_they_are_given() {
    let listen = "0.0.0.0:8080".parse().expect("an address");
    for (names, expected) in [(vec![], 200), (vec!["paravt.example".to_owned()], 403)] {
        let config = ServerConfig { listen, allowed_hosts: names, ..ServerConfig::default() };
        let server = Server::with(hello(), config).await;
        let request = server.client.get(server.url("/v1/models")).header("host", "any.example");
        assert_eq!(request.send().await.expect("an answer").status(), expected);
    }
}

#[tokio::test]
async fn a_head_that_never_ends_ends_the_connection() {
    let config = ServerConfig { read_timeout_s: 1, ..ServerConfig::default() };
    let server = Server::with(Arc::new(ScriptedEngine::new(|_, _| Reply::text("x"))), config).await;
    let mut socket = TcpStream::connect(server.address).await.expect("connects");
    socket.write_all(b"GET /health HTTP/1.1\r\nHost: loc").await.expect("writes");
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, socket.read_to_string(&mut answer)).await.expect("ends").expect("reads");
    assert!(answer.is_empty() || answer.contains("408"), "{answer}");
}

#[tokio::test]
async fn over_the_limit_of_connections_one_waits_for_another_to_go() {
    let config = ServerConfig { max_connections: 1, ..ServerConfig::default() };
    let server = Server::with(Arc::new(ScriptedEngine::new(|_, _| Reply::text("x"))), config).await;
    let first = TcpStream::connect(server.address).await.expect("connects");
    let mut second = TcpStream::connect(server.address).await.expect("waits in the system's queue");
    second.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.expect("writes");
    let mut answer = String::new();
    {
        let mut reading = Box::pin(second.read_to_string(&mut answer));
        assert!(futures::poll!(&mut reading).is_pending());
        drop(first);
        tokio::time::timeout(PATIENCE, reading).await.expect("its turn").expect("reads");
    }
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
