//! How the scripted engine behaves, as other rooms' tests rely on it.

use std::path::Path;

use bytes::Bytes;
use futures::StreamExt;

use super::*;
use crate::engine::{FinishReason, Gang, Generated, Sampling, SessionKey};
use crate::types::{Frame, FrameSize, MediaTime, Role};

fn request(speaker: Speaker, text: &str) -> GenerateRequest {
    GenerateRequest {
        turns: vec![Turn::text(Role::User, text)],
        prefix: String::new(),
        sampling: Sampling { max_tokens: 100, ..Sampling::default() },
        session: SessionKey("episode".into()),
        speaker,
        seat: None,
        deadline: None,
        trace: None,
    }
}

async fn text(stream: TokenStream) -> String {
    let events: Vec<_> = stream.collect().await;
    let text = |event: Result<TokenEvent, EngineError>| match event.expect("no failure") {
        TokenEvent::Text(text) => text,
        TokenEvent::Started { .. } | TokenEvent::Tokens(_) | TokenEvent::Finished(_) => String::new(),
    };
    events.into_iter().map(text).collect()
}

#[tokio::test]
async fn says_its_text_in_chunks_between_start_and_end() {
    let engine = ScriptedEngine::new(|_, _| Reply::text("hello you"));
    let stream = engine.generate(request(Speaker::Main, "12345678")).await.expect("accepted");
    let events: Vec<_> = stream.map(|event| event.expect("no failure")).collect().await;
    let usage = TokenUsage { prompt_tokens: 2, cached_tokens: 0, completion_tokens: 3 };
    let text = |text: &str| TokenEvent::Text(text.to_owned());
    let finished = TokenEvent::Finished(Generated { reason: FinishReason::Stop, usage });
    assert_eq!(
        events,
        [TokenEvent::Started { prompt_tokens: Some(2) }, text("hell"), text("o yo"), text("u"), finished]
    );
}

#[tokio::test]
async fn counts_the_calls_of_each_speaker_and_remembers_what_was_asked() {
    let engine = ScriptedEngine::new(|request, call| Reply::text(format!("{}{call}", request.speaker.name())));
    let mut said = Vec::new();
    for speaker in [Speaker::Main, Speaker::Sub, Speaker::Sub, Speaker::Main] {
        said.push(text(engine.generate(request(speaker, "q")).await.expect("accepted")).await);
    }
    assert_eq!(said, ["main0", "sub0", "sub1", "main1"]);

    let time = MediaTime::from_seconds(1.5);
    let rgb = Bytes::from(vec![0; 64 * 32 * 3]);
    let frame = Frame { time, size: FrameSize { width: 64, height: 32 }, rgb };
    let mut asked = request(Speaker::Sub, "abcd");
    asked.turns[0].parts.extend([Part::Frame(frame), Part::Text("efgh".to_owned())]);
    let last = engine.generate(asked).await.expect("accepted").collect::<Vec<_>>().await.pop();
    let Some(Ok(TokenEvent::Finished(generated))) = last else { panic!("finishes") };
    assert_eq!(generated.usage.prompt_tokens, 4);
    let seen = engine.requests().pop().expect("remembered");
    assert_eq!((seen.text().as_str(), seen.frames()), ("abcdefgh", vec![time]));
}

#[tokio::test]
async fn a_meeting_opens_only_for_generations_driven_at_the_same_time() {
    let gate = Gate::meeting(3);
    let engine = ScriptedEngine::new(move |_, _| Reply::text("ok").gate(gate.clone()));
    let three = (0..3).map(|_| async { text(engine.generate(request(Speaker::Sub, "q")).await.expect("taken")).await });
    assert_eq!(futures::future::join_all(three).await, ["ok", "ok", "ok"]);
    assert_eq!(engine.most_running(), 3);
    engine.idle().await;
}

#[tokio::test]
async fn dropping_a_stream_takes_it_out_of_the_load() {
    let gate = Gate::closed();
    let standing = gate.clone();
    let engine = ScriptedEngine::new(move |_, _| Reply::text("ok").gate(standing.clone()).hang());
    let mut stream = engine.generate(request(Speaker::Main, "q")).await.expect("accepted");
    assert_eq!(engine.load(), EngineLoad { running: 0, queued: 1 });
    assert!(matches!(stream.next().await, Some(Ok(TokenEvent::Started { .. }))));
    tokio::join!(engine.running(1), async {
        tokio::select! {
            _ = stream.next() => panic!("the gate is closed"),
            () = gate.arrived(1) => {}
        }
    });
    assert_eq!(engine.load(), EngineLoad { running: 1, queued: 0 });
    gate.open();
    assert_eq!(stream.next().await.expect("goes on").expect("no failure"), TokenEvent::Text("ok".to_owned()));
    drop(stream);
    engine.idle().await;
    assert_eq!(engine.load(), EngineLoad::default());
}

#[tokio::test]
async fn fails_where_it_is_told_to() {
    let engine = ScriptedEngine::new(|_, call| match call {
        0 => Reply::refuse(EngineError::Overloaded),
        _ => Reply::text("half").fail(EngineError::Failed("lost".to_owned())),
    });
    assert!(matches!(engine.generate(request(Speaker::Main, "q")).await, Err(EngineError::Overloaded)));
    let events: Vec<_> = engine.generate(request(Speaker::Main, "q")).await.expect("accepted").collect().await;
    assert_eq!(events.len(), 3);
    assert!(matches!(&events[2], Err(EngineError::Failed(message)) if message == "lost"));
    assert_eq!(engine.load(), EngineLoad::default());
}

#[tokio::test]
async fn an_engine_of_equal_shapes_waits_for_the_gang() {
    let engine = ScriptedEngine::new(|_, _| Reply::text("ok"));
    let info = EngineInfo { batching: Batching::EqualShapes, ..engine.info() };
    let engine = engine.with_info(info);
    let gang = Gang::new();
    let dispatcher = gang.seat();
    let seated = GenerateRequest { seat: Some(gang.seat()), ..request(Speaker::Sub, "q") };
    let mut stream = engine.generate(seated).await.expect("accepted");
    assert!(futures::poll!(stream.next()).is_pending());
    drop(dispatcher);
    assert_eq!(text(stream).await, "ok");
    assert_eq!(engine.requests()[0].gang, Some(gang.id()));
}

#[test]
fn a_script_takes_its_time_before_the_first_token_and_each_token() {
    let script = r#"{"main": [{"text": "answer", "prefill_ms": 5, "token_ms": 1, "cut": true, "fail": "x"}]}"#;
    let script: Script = serde_json::from_str(script).expect("a script");
    let reply = script.reply(&request(Speaker::Main, "q"), 7);
    assert_eq!(reply.finish, FinishReason::Length);
    let steps: Vec<_> = reply.into_steps().map(|step| format!("{step:?}")).collect();
    let expected = ["Delay(5ms)", "Delay(1ms)", "Text(\"answ\")", "Delay(1ms)", "Text(\"er\")", "Fail(Failed(\"x\"))"];
    assert_eq!(steps, expected);
}

#[tokio::test]
async fn a_script_follows_each_conversation() {
    let script = r#"{"main": [{"text": "call"}, {"text": "answer"}],
                     "sub": [{"text": "a"}, {"text": "b"}]}"#;
    let engine = ScriptedEngine::from_script(serde_json::from_str(script).expect("a script"));
    let second = |mut asked: GenerateRequest| {
        asked.turns.extend([Turn::text(Role::Assistant, "call"), Turn::text(Role::User, "response")]);
        asked
    };
    for (asked, expected) in [
        (request(Speaker::Main, "first episode"), "call"),
        (request(Speaker::Main, "second episode"), "call"),
        (request(Speaker::Sub, "q"), "a"),
        (second(request(Speaker::Main, "q")), "answer"),
        (request(Speaker::Sub, "q"), "b"),
        (request(Speaker::Sub, "q"), "a"),
    ] {
        assert_eq!(text(engine.generate(asked).await.expect("accepted")).await, expected);
    }
}

#[tokio::test]
async fn the_load_tests_script_is_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("load_tests/scripts/burst.json");
    let script = Script::read(&path).expect("a script");
    assert_eq!(script.main[0].text.matches("<tool_call>").count(), script.sub.len());
    let engine = ScriptedEngine::from_script(Script { repeat: false, sub: Vec::new(), ..script });
    let said = engine.generate(request(Speaker::Sub, "q")).await.expect("accepted").collect::<Vec<_>>().await;
    assert!(matches!(said.last(), Some(Err(EngineError::Failed(_)))));
}

#[test]
fn a_file_that_is_no_script_is_refused() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("script.json");
    for text in ["", "{}", r#"{"main": []}"#, r#"{"main": [{"test": "x"}]}"#] {
        std::fs::write(&path, text).expect("write");
        assert!(matches!(Script::read(&path), Err(EngineError::Load(_))), "{text}");
    }
    assert!(matches!(Script::read(Path::new("/nonexistent.json")), Err(EngineError::Load(_))));
}
