//! paravt as the upstream of another paravt: the remote engine against our own API.

use std::sync::Arc;

use futures::StreamExt;
use paravt::config::{EngineConfig, Upstream};
use paravt::engine::remote::RemoteEngine;
use paravt::engine::scripted::{Reply, ScriptedEngine};
use paravt::engine::{Engine, FinishReason, GenerateRequest, Sampling, SessionKey, Speaker, TokenEvent};
use paravt::types::{Frame, FrameSize, Part, Role, Turn};

use super::server::Server;

/// What the model of the upstream says after its prefix, as the remote engine hears it.
async fn heard(said: &'static str, prefix: &str) -> (String, FinishReason, Arc<ScriptedEngine>) {
    let engine = Arc::new(ScriptedEngine::new(move |_, _| Reply::text(said)));
    let server = Server::start(Arc::clone(&engine)).await;
    let upstreams = vec![Upstream { url: server.url("/v1"), api_key: None }];
    let remote = RemoteEngine::new(&EngineConfig { upstreams, ..EngineConfig::default() }, "paravt".to_owned());
    let pixels = vec![90; 64 * 64 * 3].into();
    let frame = Frame { time: None, size: FrameSize { width: 64, height: 64 }, rgb: pixels };
    let parts = vec![Part::Text("<0.0 seconds>".to_owned()), Part::Frame(frame), Part::Text("What?".to_owned())];
    let request = GenerateRequest {
        turns: vec![Turn::text(Role::System, "Look."), Turn { role: Role::User, parts }],
        prefix: prefix.to_owned(),
        sampling: Sampling { max_tokens: 128, ..Sampling::default() },
        session: SessionKey("episode".into()),
        speaker: Speaker::Main,
        seat: None,
        deadline: None,
        trace: None,
    };
    let mut stream = remote.expect("valid").generate(request).await.expect("accepted");
    let mut text = String::new();
    while let Some(event) = stream.next().await {
        match event.expect("no error") {
            TokenEvent::Started { .. } | TokenEvent::Tokens(_) => {}
            TokenEvent::Text(more) => text.push_str(&more),
            TokenEvent::Finished(end) => return (text, end.reason, engine),
        }
    }
    panic!("the stream has no end");
}

#[tokio::test]
async fn the_thinking_that_a_prefix_opened_is_closed_in_the_text() {
    let (text, reason, engine) = heard("I look.\n</think>\n<answer>red</answer>", "<think>\n").await;
    let (thought, answer) = text.split_once("</think>").expect("its end");
    assert_eq!((thought.trim(), answer.trim()), ("I look.", "<answer>red</answer>"));
    assert_eq!(reason, FinishReason::Stop);
    let request = engine.requests().remove(0);
    assert_eq!((request.prefix.as_str(), request.turns.len(), request.frames().len()), ("<think>\n", 2, 1));
}

#[tokio::test]
async fn calls_come_through_as_they_were_written() {
    const CALL: &str = "<tool_call>\n{\"name\": \"crop_video\", \"arguments\": {\"start_time\": 1}}\n</tool_call>";
    const SAID: &str = "<think>\nOnce.\n</think>\n<tool_call>\n{\"name\": \"crop_video\", \"arguments\": {\"start_time\": 1}}\n</tool_call>";
    let (text, _, engine) = heard(SAID, "").await;
    let (thought, call) = text.split_once("</think>").expect("its end");
    assert_eq!((thought.replace(char::is_whitespace, ""), call.trim()), ("<think>Once.".to_owned(), CALL));
    assert_eq!(engine.requests()[0].prefix, "");
}
