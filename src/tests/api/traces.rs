//! Traces of episodes, as a collector gets them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use paravt::config::TelemetryConfig;
use paravt::engine::scripted::{Reply, ScriptedEngine};
use paravt::engine::{EngineError, Speaker};
use paravt::telemetry::otlp::{self, Exporting};
use serde_json::json;

use super::collector::{Collector, Manner, Told};
use super::server::{Server, text_question, video_question, video_url, watching};
use super::{looking, one_at_a_time, saying};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{CALLER}-{flags}")
}

/// A server that exports there.
async fn traced(engine: Arc<ScriptedEngine>, config: TelemetryConfig) -> (Server, Exporting) {
    let server = Server::with(engine, one_at_a_time(0)).await;
    let (tracer, exporting) = otlp::start(&config, "paravt-tiny").expect("starts").expect("has an endpoint");
    server.state.set_tracer(tracer);
    (server, exporting)
}

fn to(endpoint: String) -> TelemetryConfig {
    TelemetryConfig { otlp_endpoint: Some(endpoint), ..TelemetryConfig::default() }
}

/// The spans below `parent`, by name.
fn below<'a>(spans: &'a [Told], parent: &str) -> BTreeMap<&'a str, Vec<&'a Told>> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for span in spans.iter().filter(|span| span.parent == parent) {
        found.entry(span.name.as_str()).or_default().push(span);
    }
    found
}

fn names<'a>(below: &BTreeMap<&'a str, Vec<&Told>>) -> Vec<(&'a str, usize)> {
    below.iter().map(|(name, spans)| (*name, spans.len())).collect()
}

fn root(spans: &[Told]) -> &Told {
    let roots: Vec<_> = spans.iter().filter(|span| span.name == "episode").collect();
    assert_eq!(roots.len(), 1, "{spans:?}");
    roots[0]
}

#[tokio::test]
async fn an_episode_of_two_windows_is_a_tree_below_its_caller() {
    let collector = Collector::start(Manner::Takes).await;
    let engine = looking(|| Reply::text("A red circle."));
    let mut config = to(collector.endpoint());
    config.otlp_headers.insert("api-key".to_owned(), "k".to_owned());
    config.service_name = "videos".to_owned();
    let (server, exporting) = traced(Arc::clone(&engine), config).await;
    let request =
        server.request(&video_question()).header("traceparent", traceparent("01")).header("x-request-id", "r1");
    let answer = request.send().await.expect("an answer");
    let id = answer.json::<serde_json::Value>().await.expect("JSON")["id"].as_str().expect("an id").to_owned();
    exporting.finish().await;
    let spans = collector.spans();
    server.until_metric(&format!(r#"paravt_telemetry_spans_total{{outcome="exported"}} {}"#, spans.len())).await;
    assert_eq!(collector.header("api-key").as_deref(), Some("k"));

    let episode = root(&spans);
    assert_eq!((episode.trace.as_str(), episode.parent.as_str(), episode.server), (TRACE, CALLER, true));
    assert_eq!((episode.get("episode.id"), episode.get("request.id")), (id.as_str(), "r1"));
    assert_eq!((episode.get("episode.outcome"), episode.get("episode.windows")), ("ok", "2"));
    assert_eq!(
        (episode.get("gen_ai.operation.name"), episode.get("gen_ai.request.model")),
        ("invoke_agent", "paravt-tiny")
    );
    assert!(episode.error.is_none() && episode.attributes.contains_key("episode.first_answer_ms"));
    assert_eq!(episode.resource["service.name"], "videos");

    let parts = below(&spans, &episode.id);
    assert_eq!(names(&parts), [("open", 1), ("overview", 1), ("turn", 2), ("wait", 1), ("window", 2)]);
    let sum = |key: &str| -> u64 {
        let counts =
            parts["turn"].iter().chain(&parts["window"]).map(|span| span.get(key).parse::<u64>().expect("a count"));
        counts.sum()
    };
    for key in ["gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"] {
        assert!(sum(key) > 0 && episode.get(key) == sum(key).to_string(), "{key}");
    }
    for turn in &parts["turn"] {
        assert_eq!(names(&below(&spans, &turn.id)), [("generate", 1), ("prefill", 1), ("queue", 1)]);
        assert_eq!(turn.get("gen_ai.operation.name"), "chat");
    }
    let mut windows: Vec<_> =
        parts["window"].iter().map(|window| (window.get("window.start"), window.get("window.end"))).collect();
    // In the order in which they were over.
    windows.sort_unstable();
    assert_eq!(windows, [("100", "120"), ("20", "40")]);
    for window in &parts["window"] {
        let stages = below(&spans, &window.id);
        assert_eq!(names(&stages), [("decode", 1), ("generate", 1), ("prefill", 1), ("queue", 1)]);
        let order = ["decode", "queue", "prefill", "generate"].map(|stage| stages[stage][0]);
        assert!(order.windows(2).all(|pair| pair[0].end <= pair[1].start), "{order:?}");
        assert_eq!((window.get("window.status"), window.get("window.frames")), ("ok", "16"));
    }

    let places: BTreeMap<_, _> = spans.iter().map(|span| (span.id.as_str(), span)).collect();
    assert_eq!(places.len(), spans.len(), "no id twice");
    for span in &spans {
        assert_eq!(span.trace, TRACE);
        assert!(span.start <= span.end, "{span:?}");
        if let Some(parent) = places.get(span.parent.as_str()) {
            assert!(parent.start <= span.start && span.end <= parent.end, "{span:?} in {parent:?}");
        }
        let told = format!("{:?}", span.attributes).to_lowercase();
        assert!(!told.contains("circle") && !told.contains("shapes") && !told.contains("lit"), "{told}");
    }
    // What an upstream would have been told: the place of the turn or window that it works for.
    let asked: BTreeSet<_> =
        engine.requests().iter().map(|request| request.trace.expect("a place").to_string()).collect();
    let own: BTreeSet<_> =
        parts["turn"].iter().chain(&parts["window"]).map(|span| format!("00-{TRACE}-{}-01", span.id)).collect();
    assert_eq!(asked, own);
}

#[tokio::test]
async fn the_callers_flag_decides_and_without_a_caller_the_ratio() {
    let invalid = format!("00-{TRACE}-0000000000000000-01");
    for (ratio, header, recorded, root) in [
        (1.0, Some(traceparent("00")), false, false),
        (0.0, Some(traceparent("01")), true, false),
        (0.0, None, false, true),
        (1.0, None, true, true),
        (1.0, Some(invalid), true, true),
        (1.0, Some("nonsense".to_owned()), true, true),
    ] {
        let collector = Collector::start(Manner::Takes).await;
        let engine = saying(|| Reply::text("Hello."));
        let config = TelemetryConfig { sample_ratio: ratio, ..to(collector.endpoint()) };
        let (server, exporting) = traced(Arc::clone(&engine), config).await;
        let mut request = server.request(&text_question());
        if let Some(header) = &header {
            request = request.header("traceparent", header);
        }
        assert_eq!(request.send().await.expect("an answer").status(), 200);
        exporting.finish().await;
        let spans = collector.spans();
        assert_eq!(spans.is_empty(), !recorded, "{header:?} at {ratio}");
        if let Some(episode) = spans.iter().find(|span| span.name == "episode") {
            assert_eq!(episode.parent.is_empty(), root, "{header:?}");
            assert_eq!(episode.trace == TRACE, !root, "{header:?}");
        }
        // An upstream is told either way, so that it decides alike.
        let place = engine.requests()[0].trace.expect("a place");
        assert_eq!(place.sampled, recorded);
    }
}

#[tokio::test]
async fn a_failed_window_is_an_error_of_its_own() {
    let collector = Collector::start(Manner::Takes).await;
    let sub = |call: usize| match call {
        0 => Reply::text("A red").fail(EngineError::Failed("at /srv".to_owned())),
        _ => Reply::text("A red circle."),
    };
    let engine = Arc::new(ScriptedEngine::new(move |request, call| match request.speaker {
        Speaker::Main if call == 0 => Reply::text(super::BURST),
        Speaker::Main => Reply::text(super::ANSWER),
        Speaker::Sub => sub(call),
    }));
    let (server, exporting) = traced(engine, to(collector.endpoint())).await;
    assert_eq!(server.ask(&video_question()).await.status(), 200);
    exporting.finish().await;
    let spans = collector.spans();
    let episode = root(&spans);
    assert_eq!((episode.error.as_ref(), episode.get("episode.windows_failed")), (None, "1"));
    let windows = below(&spans, &episode.id).remove("window").expect("windows");
    let failed: Vec<_> = windows.iter().filter(|window| window.error.is_some()).collect();
    assert_eq!((windows.len(), failed.len()), (2, 1));
    assert_eq!((failed[0].error.as_deref(), failed[0].get("window.status")), (Some("failed"), "failed"));
    let stages = below(&spans, &failed[0].id);
    assert!(stages["decode"][0].error.is_none());
    assert_eq!(
        spans.iter().filter(|span| span.error.is_some()).count(),
        2,
        "the window, and its last stage: {stages:?}"
    );
}

#[tokio::test]
async fn a_cancelled_episode_tells_how_far_it_was() {
    let collector = Collector::start(Manner::Takes).await;
    let engine = looking(|| Reply::text("A red").hang());
    let (server, exporting) = traced(Arc::clone(&engine), to(collector.endpoint())).await;
    let asking = tokio::spawn(server.request(&video_question()).send());
    watching(&engine, 2).await;
    asking.abort();
    engine.idle().await;
    server.until_metric(r#"paravt_agent_episodes_total{outcome="cancelled"} 1"#).await;
    exporting.finish().await;
    let spans = collector.spans();
    let episode = root(&spans);
    assert_eq!((episode.error.as_deref(), episode.get("episode.outcome")), (Some("cancelled"), "cancelled"));
    let parts = below(&spans, &episode.id);
    assert_eq!(names(&parts), [("turn", 1), ("wait", 1), ("window", 2)]);
    for window in &parts["window"] {
        assert_eq!(window.error.as_deref(), Some("cancelled"));
        assert!(below(&spans, &window.id)["decode"][0].error.is_none());
        assert_eq!(window.end, episode.end);
    }
}

#[tokio::test]
async fn what_ends_before_the_first_turn_is_told_with_its_code() {
    let collector = Collector::start(Manner::Takes).await;
    let (server, exporting) = traced(looking(|| Reply::text("A red circle.")), to(collector.endpoint())).await;
    let mut missing = video_question();
    missing["messages"][0]["content"][0]["video_url"]["url"] = json!(video_url("no_such.mp4"));
    assert_eq!(server.ask(&missing).await.status(), 400);
    server.until_metric(r#"paravt_api_errors_total{code="video_not_found"} 1"#).await;
    exporting.finish().await;
    let spans = collector.spans();
    let episode = root(&spans);
    assert_eq!((episode.error.as_deref(), episode.get("error.type")), (Some("video_not_found"), "video_not_found"));
    let parts = below(&spans, &episode.id);
    assert_eq!(names(&parts), [("open", 1), ("wait", 1)]);
    assert_eq!(parts["open"][0].error.as_deref(), Some("video_not_found"));
}

#[tokio::test]
async fn a_collector_that_is_no_use_costs_spans_and_nothing_else() {
    let refuses = Collector::start(Manner::Refuses).await;
    let hangs = Collector::start(Manner::Hangs).await;
    let nobody = tokio::net::TcpSocket::new_v4().expect("a socket");
    nobody.bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).expect("binds");
    let gone = format!("http://{}", nobody.local_addr().expect("bound"));
    for (endpoint, counted) in [(refuses.endpoint(), true), (gone, true), (hangs.endpoint(), false)] {
        let (server, exporting) = traced(saying(|| Reply::text("Hello.")), to(endpoint)).await;
        for _ in 0..5 {
            assert_eq!(server.ask(&text_question()).await.status(), 200);
        }
        if counted {
            // An episode without windows: its own span, the wait, the turn and its three stages.
            server.until_metric(r#"paravt_telemetry_spans_total{outcome="dropped"} 30"#).await;
        }
        drop(exporting);
    }
}
