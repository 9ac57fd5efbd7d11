//! The HTTP surface over real sockets, with the real agent and a scripted model.

mod admission;
mod answers;
mod collector;
mod files;
mod guard;
mod keys;
mod logs;
mod playground;
mod server;
mod traces;
mod upstream;

use std::sync::Arc;
use std::time::Duration;

use paravt::config::ServerConfig;
use paravt::engine::scripted::{Gate, Reply, ScriptedEngine};
use paravt::engine::{Engine, EngineError, EngineLoad, FinishReason, Speaker};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use server::{Server, data_lines, error_of, long_question, text_question, video_question, watching};

const BURST: &str = "Two stretches look lit.\n</think>\n\
    <tool_call>\n{\"name\": \"crop_video\", \"arguments\": {\"video_path\": \"video.mp4\", \"start_time\": 20.0, \
    \"end_time\": 40.0}}\n</tool_call>\n\
    <tool_call>\n{\"name\": \"crop_video\", \"arguments\": {\"video_path\": \"video.mp4\", \"start_time\": 100.0, \
    \"end_time\": 120.0}}\n</tool_call>";
const ANSWER: &str = "The crops show it.\n</think>\n<answer>red circle</answer>";

/// A main agent that sends two windows and then answers, again and again; sub-agents reply as `sub` says.
fn looking(sub: impl Fn() -> Reply + Send + Sync + 'static) -> Arc<ScriptedEngine> {
    Arc::new(ScriptedEngine::new(move |request, call| match request.speaker {
        Speaker::Main if call % 2 == 0 => Reply::text(BURST),
        Speaker::Main => Reply::text(ANSWER),
        Speaker::Sub => sub(),
    }))
}

/// A main agent that says this.
fn saying(reply: impl Fn() -> Reply + Send + Sync + 'static) -> Arc<ScriptedEngine> {
    Arc::new(ScriptedEngine::new(move |_, _| reply()))
}

fn one_at_a_time(max_queued: usize) -> ServerConfig {
    ServerConfig { max_running: 1, max_queued, ..ServerConfig::default() }
}

#[tokio::test]
async fn a_stream_and_a_plain_answer_hold_the_same_text() {
    let server = Server::start(looking(|| Reply::text("A red circle."))).await;
    let mut question = video_question();
    let plain = server.ask(&question).await;
    assert_eq!(plain.status(), 200);
    let timing = plain.headers()["server-timing"].to_str().expect("text").to_owned();
    assert!(timing.contains("first_token;dur=") && timing.contains("total;dur="), "{timing}");
    let plain: Value = plain.json().await.expect("JSON");
    let message = &plain["choices"][0]["message"];
    assert_eq!(message["content"], "red circle");
    assert_eq!(message["reasoning"], "Two stretches look lit.\n\nThe crops show it.");
    assert_eq!(message["reasoning"], message["reasoning_content"]);
    assert_eq!(plain["choices"][0]["finish_reason"], "stop");
    let usage = &plain["usage"];
    let sum = |kind: &str| -> u64 {
        usage["paravt"]["main"][kind].as_u64().expect("a number") + usage["paravt"]["sub"][kind].as_u64().expect("one")
    };
    assert_eq!(usage["prompt_tokens"], sum("prompt_tokens"));
    assert_eq!(usage["completion_tokens"], sum("completion_tokens"));
    assert!(plain["paravt"].get("trace").is_none());

    question["stream"] = json!(true);
    question["stream_options"] = json!({"include_usage": true});
    let stream = server.ask(&question).await;
    assert_eq!(stream.status(), 200);
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let lines = data_lines(&stream.text().await.expect("a body"));
    assert_eq!(lines.last().map(String::as_str), Some("[DONE]"));
    let chunks: Vec<Value> =
        lines[..lines.len() - 1].iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let joined = |name: &str| -> String {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][name].as_str()).collect()
    };
    assert_eq!(joined("content"), "red circle");
    assert_eq!(joined("reasoning_content"), "Two stretches look lit.\n\nThe crops show it.");
    let place = |name: &str| chunks.iter().position(|chunk| chunk["choices"][0]["delta"][name].is_string());
    let first_content = chunks
        .iter()
        .position(|chunk| chunk["choices"][0]["delta"]["content"].as_str().is_some_and(|text| !text.is_empty()));
    assert!(place("reasoning_content") < first_content);
    let last = &chunks[chunks.len() - 1];
    assert_eq!(chunks[chunks.len() - 2]["choices"][0]["finish_reason"], "stop");
    assert_eq!((&last["choices"], &last["usage"]["prompt_tokens"]), (&json!([]), &usage["prompt_tokens"]));
    assert!(last["paravt"]["timing"]["total_ms"].as_f64().is_some_and(|ms| ms > 0.0));
    assert!(chunks.iter().all(|chunk| chunk["id"] == last["id"] && chunk["paravt"].get("event").is_none()));
}

#[tokio::test]
async fn events_and_trace_tell_the_story_when_asked() {
    let server = Server::start(looking(|| Reply::text("A red circle."))).await;
    let mut question = video_question();
    question["stream"] = json!(true);
    question["paravt"] = json!({"events": true, "trace": true});
    let body = server.ask(&question).await.text().await.expect("a body");
    let mut names = Vec::new();
    let mut trace = Value::Null;
    for line in data_lines(&body).iter().filter(|line| *line != "[DONE]") {
        let chunk: Value = serde_json::from_str(line).expect("JSON");
        if let Some(name) = chunk["paravt"]["event"].as_str() {
            assert_eq!(chunk["choices"][0]["delta"], json!({}));
            names.push(name.to_owned());
        }
        trace = chunk["paravt"]["trace"].clone();
    }
    assert_eq!(names[..2], ["overview", "turn.started"]);
    assert_eq!(names.last().map(String::as_str), Some("turn.finished"));
    let count = |name: &str| names.iter().filter(|found| *found == name).count();
    for (name, times) in [("window.started", 2), ("window.frames", 2), ("window.finished", 2), ("window.failed", 0)] {
        assert_eq!(count(name), times, "{name} in {names:?}");
    }
    assert!(count("window.delta") >= 2);
    assert_eq!(trace["windows"].as_array().map(Vec::len), Some(2));
    assert_eq!(trace["windows"][0]["start"], 20.0);
    assert_eq!(trace["windows"][0]["frame_times"].as_array().map(Vec::len), Some(16));
    assert_eq!(trace["turns"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn a_client_that_goes_away_stops_every_agent() {
    for stream in [true, false] {
        let engine = looking(|| Reply::text("A red").hang());
        let server = Server::start(Arc::clone(&engine)).await;
        let mut question = video_question();
        question["stream"] = json!(stream);
        let asking = tokio::spawn({
            let request = server.request(&question);
            async move {
                let answer = request.send().await.expect("an answer");
                answer.text().await
            }
        });
        watching(&engine, 2).await;
        engine.running(2).await;
        asking.abort();
        engine.idle().await;
        assert_eq!(engine.load(), EngineLoad::default());
        // The place is free again, and the metrics tell of it.
        server.until_metric("paravt_api_running 0").await;
        server.until_metric(r#"paravt_agent_episodes_total{outcome="cancelled"} 1"#).await;
    }
}

#[tokio::test]
async fn over_the_queue_is_429_before_any_work() {
    let gate = Gate::closed();
    let engine = saying({
        let gate = gate.clone();
        move || Reply::text("Hello.").gate(gate.clone())
    });
    let server = Server::with(Arc::clone(&engine), one_at_a_time(1)).await;
    let first = tokio::spawn(server.request(&long_question("1")).send());
    engine.running(1).await;
    let second = tokio::spawn(server.request(&long_question("2")).send());
    server.until_metric("paravt_api_queued 1").await;
    let third = server.ask(&text_question()).await;
    assert_eq!(third.status(), 429);
    assert!(third.headers().contains_key("retry-after"));
    assert_eq!(error_of(third).await["code"], "queue_full");
    assert_eq!(engine.requests().len(), 1);
    gate.open();
    for waiting in [first, second] {
        assert_eq!(waiting.await.expect("no panic").expect("an answer").status(), 200);
    }
    assert_eq!(engine.most_running(), 1);
}

#[tokio::test]
async fn loading_is_503_and_health_does_not_mind() {
    let server = Server::loading(ServerConfig::default()).await;
    for response in [server.get("/ready").await, server.ask(&text_question()).await] {
        assert_eq!(response.status(), 503);
        assert!(response.headers().contains_key("retry-after"));
        assert_eq!(error_of(response).await["code"], "model_loading");
    }
    assert_eq!(server.get("/health").await.status(), 200);
    server.load(saying(|| Reply::text("Hello.")));
    assert_eq!(server.get("/ready").await.status(), 200);
    assert_eq!(server.ask(&text_question()).await.status(), 200);
}

#[tokio::test]
async fn a_bad_request_names_the_field() {
    let engine = saying(|| Reply::text("Hello."));
    let server = Server::start(Arc::clone(&engine)).await;
    let with = |name: &str, value: Value| {
        let mut question = text_question();
        question[name] = value;
        question
    };
    let mut no_url = video_question();
    no_url["messages"][0]["content"][0]["video_url"] = json!({"url": 5});
    for (question, status, param, code) in [
        (with("temperature", json!(3)), 400, "temperature", "invalid_value"),
        (with("messages", json!([])), 400, "messages", "invalid_value"),
        (no_url, 400, "messages[0].content[0].video_url.url", "invalid_value"),
        (with("logit_bias", json!({"1": 2})), 400, "logit_bias", "unsupported_parameter"),
        (with("logprobs", json!(true)), 400, "logprobs", "unsupported_parameter"),
        (with("response_format", json!({"type": "json_object"})), 400, "response_format", "unsupported_parameter"),
        (with("n", json!(0)), 400, "n", "invalid_value"),
        (with("continue_final_message", json!(true)), 400, "messages[0].role", "invalid_value"),
        (json!({"messages": [{"role": "user", "content": " "}]}), 400, "messages[0].content", "invalid_value"),
        (with("tool_choice", json!("required")), 400, "tool_choice", "invalid_value"),
        (with("model", json!("gpt-4o")), 404, "model", "model_not_found"),
    ] {
        let response = server.ask(&question).await;
        assert_eq!(response.status(), status, "{question}");
        let error = error_of(response).await;
        assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!(code)));
    }
    assert!(engine.requests().is_empty());
}

#[tokio::test]
async fn every_error_has_one_shape() {
    let config = ServerConfig { max_body_bytes: 1000, ..ServerConfig::default() };
    let server = Server::with(saying(|| Reply::text("Hello.")), config).await;
    let url = server.url("/v1/chat/completions");
    let post = |body: String| server.client.post(&url).header("content-type", "application/json").body(body);
    for (request, status, code) in [
        (post("{".to_owned()), 400, "invalid_json"),
        (post("\u{0}".to_owned()), 400, "invalid_json"),
        (post(format!("\"{}\"", "x".repeat(1000))), 413, "body_too_large"),
        (server.client.post(&url).body("{}"), 415, "unsupported_media_type"),
        (server.client.get(&url), 405, "method_not_allowed"),
        (server.client.get(server.url("/v1/nothing")), 404, "not_found"),
        (server.client.get(server.url("/v1/models/other")), 404, "model_not_found"),
        (server.client.get(server.url("/v1/models/%ff")), 404, "model_not_found"),
    ] {
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), status, "{code}");
        let error = error_of(response).await;
        assert_eq!(error["code"], code);
        assert!(error["message"].is_string() && error["type"].is_string());
    }
}

#[tokio::test]
async fn a_video_that_is_not_there_or_not_allowed_is_the_callers_error_even_streamed() {
    let engine = looking(|| Reply::text("A red circle."));
    let server = Server::start(Arc::clone(&engine)).await;
    let missing = server::video_url("no_such.mp4");
    for (url, status, code) in [
        (missing.as_str(), 400, "video_not_found"),
        ("file:///etc/passwd", 403, "source_not_allowed"),
        ("gopher://x/y", 400, "bad_video_source"),
    ] {
        for stream in [false, true] {
            let mut question = video_question();
            question["stream"] = json!(stream);
            question["messages"][0]["content"][0]["video_url"]["url"] = json!(url);
            let response = server.ask(&question).await;
            assert_eq!(response.status(), status, "{url}");
            let error = error_of(response).await;
            assert_eq!(error["code"], code, "{error}");
            assert_eq!(error["param"], "messages[0].content[0].video_url.url");
            let message = error["message"].as_str().expect("text");
            assert!(!message.contains(env!("CARGO_MANIFEST_DIR")), "{message}");
        }
    }
    let mut late = video_question();
    late["messages"][0]["content"][0]["start"] = json!(400);
    let response = server.ask(&late).await;
    assert_eq!(response.status(), 400);
    let error = error_of(response).await;
    assert_eq!((&error["param"], &error["code"]), (&json!("messages[0].content[0].start"), &json!("no_frames")));
    assert!(engine.requests().is_empty());
}

#[tokio::test]
async fn an_error_before_the_first_text_has_a_status_even_streamed() {
    let server = Server::start(saying(|| Reply::refuse(EngineError::TooLong { needed: 9, limit: 5 }))).await;
    let mut question = text_question();
    question["stream"] = json!(true);
    let response = server.ask(&question).await;
    assert_eq!(response.status(), 400);
    assert_eq!(error_of(response).await["code"], "context_length_exceeded");
}

#[tokio::test]
async fn an_error_mid_stream_is_the_last_event() {
    let engine = saying(|| Reply::text("Hello you").fail(EngineError::Failed("at /srv/models".to_owned())));
    let server = Server::start(Arc::clone(&engine)).await;
    let mut question = text_question();
    question["stream"] = json!(true);
    let response = server.ask(&question).await;
    assert_eq!(response.status(), 200);
    let lines = data_lines(&response.text().await.expect("a body that ends well"));
    assert!(lines.len() >= 3 && lines.iter().all(|line| line != "[DONE]"), "{lines:?}");
    let last: Value = serde_json::from_str(&lines[lines.len() - 1]).expect("JSON");
    assert_eq!(last["error"]["code"], "engine_failed");
    assert!(!last.to_string().contains("/srv"));
    engine.idle().await;
    server.until_metric(r#"paravt_agent_episodes_total{outcome="error"} 1"#).await;
}

#[tokio::test]
async fn sampling_reaches_the_engine_and_length_is_told() {
    let engine = saying(|| Reply::text("Hello.").finish(FinishReason::Length));
    let server = Server::start(Arc::clone(&engine)).await;
    let mut question = text_question();
    for (name, value) in
        [("temperature", json!(0.5)), ("seed", json!(7)), ("max_tokens", json!(5)), ("stop", json!("X"))]
    {
        question[name] = value;
    }
    let answer: Value = server.ask(&question).await.json().await.expect("JSON");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert!(answer["choices"][0]["message"].get("reasoning").is_none());
    let sampling = engine.requests()[0].sampling.clone();
    assert_eq!((sampling.temperature, sampling.seed, sampling.max_tokens), (Some(0.5), Some(7), 5));
    assert_eq!(sampling.stop, ["X"]);
}

#[tokio::test]
async fn pictures_are_served_as_they_are() {
    let engine = saying(|| Reply::text("A dot."));
    let server = Server::start(Arc::clone(&engine)).await;
    let mut png = std::io::Cursor::new(Vec::new());
    image::RgbImage::from_pixel(64, 64, image::Rgb([200, 0, 0]))
        .write_to(&mut png, image::ImageFormat::Png)
        .expect("a picture");
    let data = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, png.into_inner());
    let part = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let good = format!("data:image/png;base64,{data}");
    let ask = |urls: &[&str]| {
        let mut parts: Vec<Value> = urls.iter().map(|url| part(url)).collect();
        parts.push(json!({"type": "text", "text": "What is it?"}));
        json!({"messages": [{"role": "user", "content": parts}]})
    };
    assert_eq!(server.ask(&ask(&[&good, &good])).await.status(), 200);
    assert_eq!(engine.requests()[0].frames().len(), 2);
    let response = server.ask(&ask(&[&good, "data:image/png;base64,AAAA"])).await;
    assert_eq!(response.status(), 400);
    let error = error_of(response).await;
    let param = json!("messages[0].content[1].image_url.url");
    assert_eq!((&error["param"], &error["code"]), (&param, &json!("not_an_image")));
}

#[tokio::test]
async fn draining_finishes_what_runs_and_takes_nothing_new_on() {
    let gate = Gate::closed();
    let engine = saying({
        let gate = gate.clone();
        move || Reply::text("Hello.").gate(gate.clone())
    });
    let mut server = Server::start(Arc::clone(&engine)).await;
    let running = tokio::spawn(server.request(&text_question()).send());
    engine.running(1).await;
    server.state.shutdown().drain();
    for response in [server.get("/ready").await, server.ask(&text_question()).await] {
        assert_eq!(response.status(), 503);
        assert_eq!(error_of(response).await["code"], "shutting_down");
    }
    assert_eq!(server.get("/health").await.status(), 200);
    gate.open();
    let answer = running.await.expect("no panic").expect("an answer");
    assert_eq!(answer.status(), 200);
    assert!(answer.text().await.expect("whole").contains("Hello."));
    server.stopped().await;
}

#[tokio::test]
async fn a_cut_ends_streams_with_an_error() {
    let engine = saying(|| Reply::text("Hello you").hang());
    let mut server = Server::start(Arc::clone(&engine)).await;
    let mut question = text_question();
    question["stream"] = json!(true);
    let response = server.ask(&question).await;
    assert_eq!(response.status(), 200);
    server.state.shutdown().cut();
    let lines = data_lines(&response.text().await.expect("a body that ends well"));
    let last: Value = serde_json::from_str(lines.last().expect("a line")).expect("JSON");
    assert_eq!(last["error"]["code"], "shutting_down");
    engine.idle().await;
    server.stopped().await;
}

#[tokio::test]
async fn metrics_tell_of_windows_tokens_and_times() {
    let server = Server::start(looking(|| Reply::text("A red circle."))).await;
    assert_eq!(server.ask(&video_question()).await.status(), 200);
    for line in [
        r#"paravt_api_requests_total{route="/v1/chat/completions",status="200"} 1"#,
        r#"paravt_agent_windows_total{outcome="ok"} 2"#,
        "paravt_agent_burst_calls_sum 2",
        r#"paravt_agent_episodes_total{outcome="ok"} 1"#,
        "paravt_agent_first_answer_seconds_count 1",
        r#"paravt_agent_stage_seconds_count{agent="sub",stage="decode"} 2"#,
        r#"paravt_agent_stage_seconds_count{agent="main",stage="prefill"} 2"#,
        "paravt_media_processes 0",
    ] {
        server.until_metric(line).await;
    }
}

#[tokio::test]
async fn a_request_id_comes_back_if_it_is_harmless() {
    let server = Server::start(saying(|| Reply::text("Hello."))).await;
    let id = |sent: &'static str| {
        let request = server.client.get(server.url("/health")).header("x-request-id", sent);
        async move {
            let response = request.send().await.expect("an answer");
            response.headers()["x-request-id"].to_str().expect("text").to_owned()
        }
    };
    assert_eq!(id("req-1").await, "req-1");
    assert_ne!(id("a b\"c").await, "a b\"c");
}

#[tokio::test]
async fn a_body_that_does_not_come_is_408() {
    let config = ServerConfig { read_timeout_s: 1, ..ServerConfig::default() };
    let server = Server::with(saying(|| Reply::text("Hello.")), config).await;
    let mut socket = tokio::net::TcpStream::connect(server.address).await.expect("connects");
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        content-length: 100\r\nconnection: close\r\n\r\n{";
    socket.write_all(head.as_bytes()).await.expect("written");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("request_timeout"), "{answer}");
}

/// Reads until a comment came.
async fn until_kept_open(response: &mut reqwest::Response) -> String {
    let mut body = String::new();
    while !body.contains(": keep-alive") {
        let piece = tokio::time::timeout(Duration::from_secs(30), response.chunk()).await.expect("in time");
        body.push_str(&String::from_utf8_lossy(&piece.expect("no error").expect("not over")));
    }
    body
}

#[tokio::test]
async fn a_stream_that_waits_for_its_place_is_kept_open_and_has_its_turn_while_there_is_time() {
    for (drained, cut) in [(false, false), (true, false), (true, true)] {
        let gate = Gate::closed();
        let engine = saying({
            let gate = gate.clone();
            move || Reply::text("Hello.").gate(gate.clone())
        });
        let config = ServerConfig { keep_alive_s: 1, ..one_at_a_time(1) };
        let server = Server::with(Arc::clone(&engine), config).await;
        let first = tokio::spawn(server.request(&long_question("1")).send());
        engine.running(1).await;
        let mut question = text_question();
        question["stream"] = json!(true);
        let mut response = server.ask(&question).await;
        assert_eq!(response.status(), 200);
        let mut body = until_kept_open(&mut response).await;
        assert_eq!(engine.requests().len(), 1, "it still waits");
        if drained {
            server.state.shutdown().drain();
        }
        if cut {
            server.state.shutdown().cut();
        } else {
            gate.open();
        }
        while let Some(piece) = response.chunk().await.expect("no error") {
            body.push_str(&String::from_utf8_lossy(&piece));
        }
        let lines = data_lines(&body);
        let last = lines.last().expect("a line");
        if cut {
            assert!(last.contains("shutting_down"), "{body}");
            gate.open();
        } else {
            assert_eq!(last, "[DONE]");
            let end: Value = serde_json::from_str(&lines[lines.len() - 2]).expect("JSON");
            assert!(end["paravt"]["timing"]["queue_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{end}");
        }
        assert_eq!(first.await.expect("no panic").expect("an answer").status(), if cut { 503 } else { 200 });
    }
}

#[tokio::test]
async fn an_idle_stream_is_kept_open_with_comments() {
    let gate = Gate::closed();
    let engine = saying({
        let gate = gate.clone();
        move || {
            Reply::steps(vec![
                paravt::engine::scripted::Step::Text("Hello ".to_owned()),
                paravt::engine::scripted::Step::Gate(gate.clone()),
                paravt::engine::scripted::Step::Text("you.".to_owned()),
            ])
        }
    });
    let server = Server::with(engine, ServerConfig { keep_alive_s: 1, ..ServerConfig::default() }).await;
    let mut question = text_question();
    question["stream"] = json!(true);
    let mut response = server.ask(&question).await;
    let mut body = until_kept_open(&mut response).await;
    gate.open();
    while let Some(piece) = response.chunk().await.expect("no error") {
        body.push_str(&String::from_utf8_lossy(&piece));
    }
    assert!(body.ends_with("data: [DONE]\n\n"), "{body}");
}
