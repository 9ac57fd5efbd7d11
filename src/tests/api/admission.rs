//! Who is taken on, who waits, and who is told to come back: over real sockets.

use std::sync::Arc;
use std::time::Duration;

use paravt::config::ServerConfig;
use paravt::engine::Engine as _;
use paravt::engine::scripted::{Gate, Reply, ScriptedEngine, SeenRequest};
use reqwest::Response;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::keys::{entry, hello, with_file};
use super::server::{Server, error_of, long_question, text_question, video_question};

/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
const ALICE: &str = "paravt-alice-0123456789";
const BOB: &str = "paravt-bob-0123456789";

/// An engine that says nothing before the gate opens.
fn gated(gate: &Gate) -> Arc<ScriptedEngine> {
    let gate = gate.clone();
    Arc::new(ScriptedEngine::new(move |_, _| Reply::text("Hello.").gate(gate.clone())))
}

/// A file with the keys of two callers, and what is said of the first one's.
fn keys(of_alice: &str) -> NamedTempFile {
    let file = NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), entry("alice", ALICE, of_alice) + &entry("bob", BOB, "")).expect("written");
    file
}

fn asking(server: &Server, key: &str, question: &Value) -> JoinHandle<Result<Response, reqwest::Error>> {
    tokio::spawn(server.request(question).bearer_auth(key).send())
}

/// The head of a question whose body never comes, and what is answered to it.
async fn answer_to_head(server: &Server, key: &str) -> String {
    let mut socket = TcpStream::connect(server.address).await.expect("connects");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        content-length: 100\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).await.expect("written");
    let mut answer = String::new();
    let read = tokio::time::timeout(PATIENCE, socket.read_to_string(&mut answer)).await;
    read.expect("does not wait for the body").expect("an answer");
    answer
}

/// Seconds of a `Retry-After` header.
fn retry_after(answer: &str) -> u64 {
    let line = answer.lines().find_map(|line| line.strip_prefix("retry-after: ")).expect("a header");
    line.parse().expect("a number")
}

#[tokio::test]
async fn more_than_a_keys_requests_a_minute_are_429_before_the_body_is_read() {
    let file = keys("limits = { requests_per_minute = 1 }");
    let engine = hello();
    let mut server = Server::with(Arc::clone(&engine), with_file(file.path(), ServerConfig::default())).await;
    server.show(ALICE);
    assert_eq!(server.ask(&text_question()).await.status(), 200);
    // Reading costs nothing: what is counted are questions.
    assert_eq!(server.get("/v1/models").await.status(), 200);
    let answer = answer_to_head(&server, ALICE).await;
    assert!(answer.starts_with("HTTP/1.1 429 ") && answer.contains("\"rate_limit_exceeded\""), "{answer}");
    assert!((1..=60).contains(&retry_after(&answer)), "{answer}");
    server.until_metric(r#"paravt_api_refused_total{reason="rate"} 1"#).await;
    assert_eq!(engine.requests().len(), 1);
    server.show(BOB);
    assert_eq!(server.ask(&text_question()).await.status(), 200);
}

#[tokio::test]
async fn a_full_queue_is_429_before_the_body_is_read_and_says_when_to_come_back() {
    let file = keys("");
    let gate = Gate::closed();
    let engine = gated(&gate);
    let config = ServerConfig { max_running: 1, max_queued: 1, ..ServerConfig::default() };
    let mut server = Server::with(Arc::clone(&engine), with_file(file.path(), config)).await;
    server.show(BOB);
    let first = asking(&server, ALICE, &long_question("1"));
    engine.running(1).await;
    let second = asking(&server, ALICE, &long_question("2"));
    server.until_metric("paravt_api_queued 1").await;
    let answer = answer_to_head(&server, ALICE).await;
    assert!(answer.starts_with("HTTP/1.1 429 ") && answer.contains("\"queue_full\""), "{answer}");
    assert!((1..=60).contains(&retry_after(&answer)), "{answer}");
    server.until_metric(r#"paravt_api_refused_total{reason="queue"} 1"#).await;
    gate.open();
    for waiting in [first, second] {
        assert_eq!(waiting.await.expect("no panic").expect("an answer").status(), 200);
    }
    server.until_metric("paravt_api_running_cost 0").await;
    server.until_metric("paravt_api_queued_cost 0").await;
}

#[tokio::test]
async fn callers_take_turns_however_many_one_of_them_sends() {
    let file = keys("");
    let gate = Gate::closed();
    let engine = gated(&gate);
    let config = ServerConfig { max_running: 1, max_queued: 3, ..ServerConfig::default() };
    let mut server = Server::with(Arc::clone(&engine), with_file(file.path(), config)).await;
    server.show(BOB);
    let mut answers = vec![asking(&server, ALICE, &long_question("alice 1"))];
    engine.running(1).await;
    for place in 2..=4 {
        answers.push(asking(&server, ALICE, &long_question(&format!("alice {place}"))));
        server.until_metric(&format!("paravt_api_queued {}", place - 1)).await;
    }
    // She has filled the queue; he has nobody in it, and so there is a place for one.
    answers.push(asking(&server, BOB, &long_question("bob 1")));
    server.until_metric("paravt_api_queued 4").await;
    server.until_metric("paravt_api_queued_cost 4").await;
    let refused = server.ask(&text_question()).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(error_of(refused).await["code"], "queue_full");
    gate.open();
    for answer in answers {
        assert_eq!(answer.await.expect("no panic").expect("an answer").status(), 200);
    }
    let named = |request: &SeenRequest| request.turns.last()?.text.split_once(':').map(|(name, _)| name.to_owned());
    let asked: Vec<String> = engine.requests().iter().filter_map(named).collect();
    assert_eq!(asked, ["alice 1", "alice 2", "bob 1", "alice 3", "alice 4"]);
    assert_eq!(engine.most_running(), 1);
}

#[tokio::test]
async fn a_key_at_its_own_limit_waits_while_others_run() {
    let file = keys("limits = { max_running = 1, max_queued = 1 }");
    let gate = Gate::closed();
    let engine = gated(&gate);
    let mut server = Server::with(Arc::clone(&engine), with_file(file.path(), ServerConfig::default())).await;
    server.show(BOB);
    let first = asking(&server, ALICE, &text_question());
    engine.running(1).await;
    let second = asking(&server, ALICE, &text_question());
    server.until_metric("paravt_api_queued 1").await;
    let answer = answer_to_head(&server, ALICE).await;
    assert!(answer.starts_with("HTTP/1.1 429 ") && answer.contains("\"rate_limit_exceeded\""), "{answer}");
    server.until_metric(r#"paravt_api_refused_total{reason="key_queue"} 1"#).await;
    let other = asking(&server, BOB, &text_question());
    engine.running(2).await;
    server.until_metric("paravt_api_queued 1").await;
    gate.open();
    for waiting in [first, second, other] {
        assert_eq!(waiting.await.expect("no panic").expect("an answer").status(), 200);
    }
}

#[tokio::test]
async fn cheap_requests_share_a_place_and_who_gives_up_waiting_takes_none() {
    let gate = Gate::closed();
    let engine = gated(&gate);
    let config = ServerConfig { max_running: 1, ..ServerConfig::default() };
    let server = Server::with(Arc::clone(&engine), config).await;
    let cheap: Vec<_> = (0..8).map(|_| asking(&server, "none", &text_question())).collect();
    engine.running(8).await;
    server.until_metric("paravt_api_running_cost 1").await;
    let impatient = asking(&server, "none", &video_question());
    server.until_metric("paravt_api_queued_cost 1").await;
    let patient = asking(&server, "none", &text_question());
    server.until_metric("paravt_api_queued_cost 1.125").await;
    impatient.abort();
    server.until_metric("paravt_api_queued_cost 0.125").await;
    assert_eq!(engine.load().running, 8);
    gate.open();
    for answer in cheap.into_iter().chain([patient]) {
        assert_eq!(answer.await.expect("no panic").expect("an answer").status(), 200);
    }
    assert_eq!(engine.requests().len(), 9);
    server.until_metric("paravt_api_running_cost 0").await;
}

#[tokio::test]
async fn a_stream_that_is_refused_has_its_status() {
    let gate = Gate::closed();
    let engine = gated(&gate);
    let config = ServerConfig { max_running: 1, max_queued: 0, ..ServerConfig::default() };
    let server = Server::with(Arc::clone(&engine), config).await;
    let first = asking(&server, "none", &text_question());
    engine.running(1).await;
    // There is room for a cheap one, so its body is read; only then is it known to be a dear one.
    let mut question = video_question();
    question["stream"] = json!(true);
    let refused = server.ask(&question).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(error_of(refused).await["code"], "queue_full");
    gate.open();
    assert_eq!(first.await.expect("no panic").expect("an answer").status(), 200);
}

#[tokio::test]
async fn who_is_refused_while_it_sends_still_reads_why() {
    let file = keys("");
    let server = Server::with(hello(), with_file(file.path(), ServerConfig::default())).await;
    let mut socket = TcpStream::connect(server.address).await.expect("connects");
    // More than the buffers of both ends hold.
    let body = 16 << 20;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        content-length: {body}\r\nauthorization: Bearer wrong\r\n\r\n"
    );
    // As clients do that read no answer before all is sent.
    let all = async {
        socket.write_all(head.as_bytes()).await.expect("written");
        let piece = vec![b' '; 1 << 20];
        for _ in 0..body >> 20 {
            socket.write_all(&piece).await.expect("taken, and thrown away");
        }
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("an answer, no reset");
        answer
    };
    let answer = tokio::time::timeout(PATIENCE, all).await.expect("in time");
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("\"invalid_api_key\""), "{answer}");
}
