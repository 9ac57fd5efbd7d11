//! The remote engine against upstreams on real sockets.

mod upstream;

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use paravt::config::{EngineConfig, Upstream as Configured};
use paravt::engine::remote::{RemoteEngine, RemoteLimits};
use paravt::engine::{
    Constraint, Engine, EngineError, EngineLoad, FinishReason, Gang, GenerateRequest, Generated, Grammar, Sampling,
    SessionKey, Speaker, TokenEvent, TokenStream,
};
use paravt::types::{Frame, FrameSize, Part, Role, TokenUsage, TraceContext, Turn};
use serde_json::json;
use upstream::{Answer, Upstream, text};

fn engine(upstreams: &[&Upstream]) -> RemoteEngine {
    of_urls(upstreams.iter().map(|upstream| upstream.url()), RemoteLimits::default())
}

fn of_urls(urls: impl Iterator<Item = String>, limits: RemoteLimits) -> RemoteEngine {
    let upstreams = urls.map(|url| Configured { url, api_key: Some("sk-secret".to_owned()) }).collect();
    let config = EngineConfig { upstreams, max_queued: 8, ..EngineConfig::default() };
    RemoteEngine::with_limits(&config, "qwen".to_owned(), limits).expect("valid")
}

fn request(speaker: Speaker) -> GenerateRequest {
    GenerateRequest {
        turns: vec![Turn::text(Role::User, "What?")],
        prefix: String::new(),
        sampling: Sampling { max_tokens: 64, ..Sampling::default() },
        session: SessionKey("episode".into()),
        speaker,
        seat: None,
        deadline: None,
        trace: None,
    }
}

/// The text, and how it ended. Checks the order of the events on the way.
async fn read(mut stream: TokenStream) -> (String, Result<Generated, EngineError>) {
    let mut text = String::new();
    let mut started = false;
    while let Some(event) = stream.next().await {
        match event {
            Ok(TokenEvent::Started { .. }) => assert!(!std::mem::replace(&mut started, true), "started twice"),
            Ok(TokenEvent::Text(more)) => {
                assert!(started && !more.is_empty());
                text.push_str(&more);
            }
            Ok(TokenEvent::Tokens(_)) => {}
            Ok(TokenEvent::Finished(generated)) => {
                assert!(stream.next().await.is_none(), "nothing after the end");
                return (text, Ok(generated));
            }
            Err(error) => {
                assert!(stream.next().await.is_none(), "nothing after an error");
                return (text, Err(error));
            }
        }
    }
    panic!("the stream has no end");
}

async fn ask(engine: &RemoteEngine, speaker: Speaker) -> (String, Result<Generated, EngineError>) {
    match engine.generate(request(speaker)).await {
        Ok(stream) => read(stream).await,
        Err(error) => (String::new(), Err(error)),
    }
}

/// A port that nobody listens at, and nobody else gets while this lives.
struct Nobody(tokio::net::TcpSocket);

impl Nobody {
    fn new() -> Self {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).expect("binds");
        Self(socket)
    }

    fn url(&self) -> String {
        format!("http://{}/v1", self.0.local_addr().expect("bound"))
    }
}

/// Short enough to be waited out, long enough for a connection and a first byte on a busy machine.
const BRIEF: RemoteLimits = RemoteLimits { connect: Duration::from_secs(5), silence: Duration::from_secs(1) };

#[tokio::test]
async fn log_probabilities_come_with_the_text_they_are_of() {
    let token = |text: &str, logprob: f64| json!({"token": text, "logprob": logprob, "bytes": text.as_bytes()});
    let mut red = token(" red", -0.5);
    red["top_logprobs"] = json!([{"token": " blue", "logprob": -1.5, "bytes": null}]);
    let piece = |delta: serde_json::Value, tokens: Vec<serde_json::Value>, reason: Option<&str>| json!({"choices": [{"index": 0, "delta": delta, "logprobs": {"content": tokens}, "finish_reason": reason}]});
    // As vLLM with a parser of thinking: the tag is among the tokens, not in the text.
    let upstream = Upstream::always(Answer::Stream(vec![
        piece(json!({"reasoning_content": "hm"}), vec![token("hm", -0.1)], None),
        piece(json!({"content": "A"}), vec![token("</think>", -0.2), token("A", -0.3)], None),
        piece(json!({"content": " red"}), vec![red, token("<|im_end|>", -0.4)], Some("stop")),
    ]))
    .await;
    let engine = engine(&[&upstream]);
    assert!(engine.info().supported.logprobs);
    let mut asked = request(Speaker::Main);
    asked.sampling.logprobs = Some(1);
    let mut stream = engine.generate(asked).await.expect("accepted");
    let mut told = Vec::new();
    while let Some(event) = stream.next().await {
        match event.expect("no error") {
            TokenEvent::Text(text) => told.push(format!("text {text}")),
            TokenEvent::Tokens(tokens) => told.extend(tokens.iter().map(|token| {
                let others: Vec<_> = token.top.iter().map(|other| String::from_utf8_lossy(&other.bytes)).collect();
                format!("{} {} {others:?}", String::from_utf8_lossy(&token.bytes), token.logprob)
            })),
            _ => {}
        }
    }
    let expected = [
        "text <think>",
        "hm -0.1 []",
        "text hm",
        "</think> -0.2 []",
        "A -0.3 []",
        "text </think>A",
        " red -0.5 [\" blue\"]",
        "text  red",
    ];
    assert_eq!(told, expected);
    let body = &upstream.seen()[0].body;
    assert_eq!((&body["logprobs"], &body["top_logprobs"]), (&json!(true), &json!(1)));
}

#[tokio::test]
async fn streams_text_and_counts_as_the_upstream_does() {
    let usage = json!({"prompt_tokens": 90, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 80}});
    let upstream = Upstream::always(Answer::Stream(vec![
        json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
        text("<answer>"),
        text("blue"),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}),
        json!({"choices": [], "usage": usage}),
    ]))
    .await;
    let engine = engine(&[&upstream]);
    let frame = Frame { time: None, size: FrameSize { width: 2, height: 1 }, rgb: Bytes::from_static(&[7; 6]) };
    let mut asked = request(Speaker::Main);
    asked.turns[0].parts.insert(0, Part::Frame(frame));
    asked.prefix = "<think>\n".to_owned();
    let gang = Gang::new();
    asked.seat = Some(gang.seat());
    let stream = engine.generate(asked).await.expect("accepted");
    assert!(gang.complete(), "seats are given back");
    let (said, generated) = read(stream).await;
    assert_eq!(said, "<answer>blue");
    let usage = TokenUsage { prompt_tokens: 90, cached_tokens: 80, completion_tokens: 2 };
    assert_eq!(generated.expect("finishes"), Generated { reason: FinishReason::Length, usage });
    assert_eq!(engine.load(), EngineLoad::default());

    let seen = upstream.seen().remove(0);
    assert_eq!((seen.path.as_str(), seen.authorization.as_str()), ("/v1/chat/completions", "Bearer sk-secret"));
    let url = seen.body["messages"][0]["content"][0]["image_url"]["url"].as_str().expect("a frame").to_owned();
    assert!(url.starts_with("data:image/jpeg;base64,/9j/"), "{url}");
    assert_eq!(seen.body["messages"][1], json!({"role": "assistant", "content": "<think>\n"}));
    assert_eq!((&seen.body["continue_final_message"], &seen.body["model"]), (&json!(true), &json!("qwen")));
}

#[tokio::test]
async fn what_an_upstream_parsed_becomes_raw_text_again() {
    let delta = |delta: serde_json::Value| json!({"choices": [{"index": 0, "delta": delta}]});
    let call = |index: u32, more: &str| json!({"index": index, "function": {"name": "crop_video", "arguments": format!("{{\"start_time\": {more}")}});
    let upstream = Upstream::always(Answer::Stream(vec![
        delta(json!({"reasoning_content": "Look twice."})),
        delta(json!({"tool_calls": [call(0, "1}")]})),
        delta(json!({"tool_calls": [call(1, "5")]})),
        delta(json!({"tool_calls": [{"index": 1, "function": {"arguments": "0}"}}]})),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
    ]))
    .await;
    let (said, generated) = ask(&engine(&[&upstream]), Speaker::Main).await;
    insta::assert_snapshot!(said, @r#"
    <think>Look twice.</think><tool_call>
    {"name": "crop_video", "arguments": {"start_time": 1}}
    </tool_call>
    <tool_call>
    {"name": "crop_video", "arguments": {"start_time": 50}}
    </tool_call>
    "#);
    // The upstream counted nothing, so the pieces of text are counted.
    let usage = TokenUsage { completion_tokens: 3, ..TokenUsage::default() };
    assert_eq!(generated.expect("finishes"), Generated { reason: FinishReason::Stop, usage });
}

#[tokio::test]
async fn a_replica_that_dies_before_its_first_token_is_replaced() {
    for start in [vec![], vec![json!({"choices": [{"delta": {"role": "assistant", "content": ""}}]})]] {
        let (dying, well) = (Upstream::always(Answer::Dies(start)).await, Upstream::saying("fine").await);
        let (said, generated) = ask(&engine(&[&dying, &well]), Speaker::Sub).await;
        assert_eq!((said.as_str(), generated.is_ok()), ("fine", true));
        assert_eq!((dying.seen().len(), well.seen().len()), (1, 1));
    }
}

#[tokio::test]
async fn a_replica_that_dies_after_its_first_token_fails_the_generation() {
    for answer in [Answer::Dies(vec![text("half")]), Answer::Ends(vec![text("half")])] {
        let (dying, well) = (Upstream::always(answer).await, Upstream::saying("fine").await);
        let (said, generated) = ask(&engine(&[&dying, &well]), Speaker::Sub).await;
        assert_eq!(said, "half");
        assert!(matches!(generated, Err(EngineError::Failed(_))), "{generated:?}");
        assert_eq!(well.seen().len(), 0, "a text without a prefix is not gone on with");
    }
}

#[tokio::test]
async fn where_a_replica_broke_off_another_goes_on() {
    let dying = Upstream::always(Answer::Dies(vec![text("The goal "), text("falls ")])).await;
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 102, "completion_tokens": 4}});
    let end = json!({"choices": [{"delta": {"content": "in minute 12."}, "finish_reason": "stop"}]});
    let well = Upstream::always(Answer::Stream(vec![end, usage])).await;
    let opened = || GenerateRequest { prefix: "<think>\n".to_owned(), ..request(Speaker::Sub) };
    let stream = engine(&[&dying, &well]).generate(opened()).await.expect("accepted");
    let (said, generated) = read(stream).await;
    assert_eq!(said, "The goal falls in minute 12.");
    let usage = generated.expect("ends well").usage;
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (100, 6));
    let body = &well.seen()[0].body;
    assert_eq!(body["messages"][1]["content"], "<think>\nThe goal falls ");
    assert_eq!((&body["continue_final_message"], &body["max_tokens"]), (&json!(true), &json!(62)));

    // Each replica once; what was said stays said.
    let dying =
        [Upstream::always(Answer::Dies(vec![text("a")])).await, Upstream::always(Answer::Dies(vec![text("b")])).await];
    let stream = engine(&[&dying[0], &dying[1]]).generate(opened()).await.expect("accepted");
    let (said, generated) = read(stream).await;
    assert_eq!(said, "ab");
    assert!(matches!(generated, Err(EngineError::Failed(_))), "{generated:?}");

    // A form can't be held from its middle.
    let constraint = Constraint { grammar: Grammar::JsonObject, after: Some("<think>\n".to_owned()), then: None };
    let held = GenerateRequest {
        sampling: Sampling { constraint: Some(constraint), ..request(Speaker::Sub).sampling },
        ..opened()
    };
    let (dying, well) = (Upstream::always(Answer::Dies(vec![text("{")])).await, Upstream::saying("}").await);
    let (said, generated) = read(engine(&[&dying, &well]).generate(held).await.expect("accepted")).await;
    assert_eq!((said.as_str(), generated.is_err(), well.seen().len()), ("{", true, 0));
}

#[tokio::test]
async fn a_replica_that_can_not_serve_is_taken_out() {
    let (down, well) = (Upstream::always(Answer::Status(503, json!("draining"))).await, Upstream::saying("fine").await);
    let engine = engine(&[&down, &well]);
    for _ in 0..3 {
        assert_eq!(ask(&engine, Speaker::Sub).await.0, "fine");
    }
    assert_eq!((down.seen().len(), well.seen().len()), (1, 3));
}

#[tokio::test]
async fn without_a_live_replica_the_engine_is_unavailable() {
    let nobody = [Nobody::new(), Nobody::new()];
    let engine = of_urls(nobody.iter().map(Nobody::url), RemoteLimits::default());
    for _ in 0..2 {
        let (_, generated) = ask(&engine, Speaker::Main).await;
        let Err(error @ EngineError::Unavailable(_)) = generated else { panic!("{generated:?}") };
        assert!(!error.to_string().contains("127.0.0.1"), "{error}");
    }
    assert_eq!(engine.load(), EngineLoad::default());
}

#[tokio::test]
async fn a_busy_replica_sends_the_request_on_and_two_make_it_overloaded() {
    let busy = || Upstream::always(Answer::Status(429, json!({"error": {"message": "slow down"}})));
    let (one, two, well) = (busy().await, busy().await, Upstream::saying("fine").await);
    assert_eq!(ask(&engine(&[&one, &well]), Speaker::Sub).await.0, "fine");
    let engine = engine(&[&one, &two]);
    for _ in 0..4 {
        assert!(matches!(ask(&engine, Speaker::Sub).await.1, Err(EngineError::Overloaded)), "and it stays in");
    }
    assert_eq!(two.seen().len(), 4);
    let nobody = Nobody::new();
    let engine = of_urls([one.url(), nobody.url()].into_iter(), RemoteLimits::default());
    assert!(matches!(ask(&engine, Speaker::Sub).await.1, Err(EngineError::Overloaded)), "come again");
}

#[tokio::test]
async fn a_refused_request_is_not_tried_elsewhere_and_says_why() {
    let refusal = json!({"error": {"message": "image 3 is broken (key sk-secret, 127.0.0.1)", "code": 400}});
    let (refusing, other) = (Upstream::always(Answer::Status(400, refusal)).await, Upstream::saying("fine").await);
    let engine = engine(&[&refusing, &other]);
    let (_, generated) = ask(&engine, Speaker::Sub).await;
    assert!(
        matches!(generated, Err(EngineError::Invalid(m)) if m == "the upstream says: image 3 is broken (key …, …)")
    );
    assert_eq!(other.seen().len(), 0);
    assert!(!format!("{engine:?}").contains("sk-secret"));

    let message = "This model's maximum context length is 100 tokens. However, you requested 164 tokens.";
    let full = Upstream::always(Answer::Stream(vec![json!({"error": {"message": message, "code": 400}})])).await;
    let (_, generated) = ask(&self::engine(&[&full, &other]), Speaker::Sub).await;
    assert!(matches!(generated, Err(EngineError::TooLong { needed: 164, limit: 100 })), "{generated:?}");
    assert_eq!(other.seen().len(), 0);
}

#[tokio::test]
async fn frames_in_pairs_are_refused_before_anything_is_sent() {
    let upstream = Upstream::saying("fine").await;
    let frame = || Frame { time: None, size: FrameSize { width: 1, height: 1 }, rgb: vec![0; 3].into() };
    let pair = Turn { role: Role::User, parts: vec![Part::FramePair([frame(), frame()])] };
    let request = GenerateRequest { turns: vec![pair], ..request(Speaker::Main) };
    let refused = engine(&[&upstream]).generate(request).await.err();
    assert!(matches!(refused, Some(EngineError::Unsupported(_))), "{refused:?}");
    assert_eq!(upstream.seen().len(), 0);
}

#[tokio::test]
async fn dropping_what_waits_for_an_answer_closes_the_connection() {
    let upstream = Upstream::always(Answer::Never).await;
    let engine = engine(&[&upstream]);
    tokio::select! {
        _ = engine.generate(request(Speaker::Main)) => panic!("it never answers"),
        () = upstream.open(1) => {}
    }
    upstream.open(0).await;
    assert_eq!(engine.load(), EngineLoad::default());
}

#[tokio::test]
async fn dropping_a_stream_closes_the_connection() {
    let upstream = Upstream::always(Answer::Hangs(vec![text("one")])).await;
    let engine = engine(&[&upstream]);
    let mut stream = engine.generate(request(Speaker::Main)).await.expect("accepted");
    assert_eq!(engine.load(), EngineLoad { running: 0, queued: 1 });
    assert!(matches!(stream.next().await, Some(Ok(TokenEvent::Started { .. }))));
    assert!(matches!(stream.next().await, Some(Ok(TokenEvent::Text(text))) if text == "one"));
    assert_eq!(engine.load(), EngineLoad { running: 1, queued: 0 });
    upstream.open(1).await;
    drop(stream);
    upstream.open(0).await;
    assert_eq!(engine.load(), EngineLoad::default());
}

#[tokio::test]
async fn silence_is_not_waited_out() {
    let cases = [(Answer::Never, ""), (Answer::Hangs(vec![]), ""), (Answer::Hangs(vec![text("one")]), "one")];
    join_all(cases.map(async |(answer, said)| {
        let upstream = Upstream::always(answer).await;
        let (text, generated) = ask(&of_urls([upstream.url()].into_iter(), BRIEF), Speaker::Main).await;
        assert_eq!(text, said);
        assert!(matches!(generated, Err(EngineError::Failed(_))), "{generated:?}");
        upstream.open(0).await;
    }))
    .await;
}

#[tokio::test]
async fn what_follows_the_finish_reason_is_not_needed() {
    let end = json!({"choices": [{"delta": {}, "finish_reason": "stop"}]});
    for answer in [Answer::Dies(vec![text("one"), end.clone()]), Answer::Hangs(vec![text("one"), end])] {
        let upstream = Upstream::always(answer).await;
        let (said, generated) = ask(&of_urls([upstream.url()].into_iter(), BRIEF), Speaker::Main).await;
        assert_eq!((said.as_str(), generated.is_ok()), ("one", true));
    }
}

#[tokio::test]
async fn an_upstream_is_told_its_place_in_the_trace() {
    let upstream = Upstream::saying("fine").await;
    let engine = engine(&[&upstream]);
    let place = TraceContext { trace_id: 0xabc, span_id: 0x12, sampled: true };
    for trace in [Some(place), None] {
        let request = GenerateRequest { trace, ..request(Speaker::Main) };
        read(engine.generate(request).await.expect("accepted")).await.1.expect("ends well");
    }
    let told: Vec<_> = upstream.seen().into_iter().map(|seen| seen.traceparent).collect();
    assert_eq!(told, [Some(place.to_string()), None]);
}

#[tokio::test]
async fn it_says_which_upstreams_are_asked() {
    let (one, nobody) = (Upstream::always(Answer::Hangs(vec![text("…")])).await, Nobody::new());
    let engine = of_urls([one.url(), nobody.url()].into_iter(), RemoteLimits::default());
    let up =
        |engine: &RemoteEngine| engine.upstreams().iter().map(|load| (load.up, load.outstanding)).collect::<Vec<_>>();
    assert_eq!(up(&engine), [(true, 0), (true, 0)]);
    let first = engine.generate(request(Speaker::Sub)).await.expect("accepted");
    // The least busy one can't be reached.
    let second = engine.generate(request(Speaker::Sub)).await.expect("accepted");
    assert_eq!(up(&engine), [(true, 2), (false, 0)]);
    drop((first, second));
    assert_eq!(up(&engine), [(true, 0), (false, 0)]);
}

#[tokio::test]
async fn main_turns_stay_on_a_replica_and_sub_agents_spread() {
    let (one, two) = (Upstream::saying("fine").await, Upstream::saying("fine").await);
    let engine_of_both = engine(&[&one, &two]);
    for _ in 0..4 {
        assert_eq!(ask(&engine_of_both, Speaker::Main).await.0, "fine");
    }
    let seen = [one.seen().len(), two.seen().len()];
    assert!(seen.contains(&4) && seen.contains(&0), "{seen:?}");

    let hanging = || Upstream::always(Answer::Hangs(vec![text("…")]));
    let (one, two) = (hanging().await, hanging().await);
    let engine = engine(&[&one, &two]);
    let mut streams = Vec::new();
    for _ in 0..6 {
        streams.push(engine.generate(request(Speaker::Sub)).await.expect("accepted"));
    }
    assert_eq!((one.seen().len(), two.seen().len()), (3, 3));
}

#[tokio::test]
async fn every_front_end_sends_questions_about_the_same_frames_to_the_same_replica() {
    let (one, two, three) = (Upstream::saying("1").await, Upstream::saying("2").await, Upstream::saying("3").await);
    let front_ends = [engine(&[&one, &two, &three]), engine(&[&three, &one, &two])];
    let mut homes = std::collections::BTreeSet::new();
    for shade in 0..12 {
        let frame = Frame { time: None, size: FrameSize { width: 32, height: 32 }, rgb: vec![20 * shade; 3072].into() };
        let mut said = Vec::new();
        for (number, question) in ["Who?", "Where?", "When?"].into_iter().enumerate() {
            let parts = vec![Part::Frame(frame.clone()), Part::Text(question.to_owned())];
            let turns = vec![Turn { role: Role::User, parts }];
            let session = SessionKey(format!("{shade} {question}").into());
            let asked = GenerateRequest { turns, session, ..request(Speaker::Main) };
            said.push(read(front_ends[number % 2].generate(asked).await.expect("accepted")).await.0);
        }
        assert!(said.iter().all(|home| *home == said[0]), "{said:?}");
        homes.insert(said.remove(0));
    }
    // All on one is one of 3^11.
    assert!(homes.len() > 1, "{homes:?}");
}

#[tokio::test]
async fn the_queue_is_bounded_and_an_endless_upstream_is_stopped() {
    let upstream = Upstream::always(Answer::Hangs(vec![])).await;
    let engine_of_one = engine(&[&upstream]);
    let mut waiting = Vec::new();
    for _ in 0..8 {
        waiting.push(engine_of_one.generate(request(Speaker::Sub)).await.expect("accepted"));
    }
    assert!(matches!(ask(&engine_of_one, Speaker::Sub).await.1, Err(EngineError::Overloaded)));
    waiting.pop();
    assert!(engine_of_one.generate(request(Speaker::Sub)).await.is_ok());

    let endless = Upstream::always(Answer::Hangs(vec![text(&"x".repeat(100)); 1000])).await;
    let (_, generated) = ask(&engine(&[&endless]), Speaker::Sub).await;
    assert!(matches!(generated, Err(EngineError::Failed(m)) if m.contains("more than")));
}

#[tokio::test]
async fn a_configuration_that_can_not_work_is_refused_at_start() {
    let new = |urls: &[&str]| {
        let upstreams = urls.iter().map(|url| Configured { url: (*url).to_owned(), api_key: None }).collect();
        RemoteEngine::new(&EngineConfig { upstreams, ..EngineConfig::default() }, "qwen".to_owned())
    };
    assert!(matches!(new(&[]), Err(EngineError::Load(_))));
    assert!(matches!(new(&["http://fine/v1", "file:///etc"]), Err(EngineError::Load(m)) if m.contains("upstream 2")));
    assert_eq!(new(&["http://fine/v1"]).expect("valid").info().detail, "qwen at 1 upstream");
}
