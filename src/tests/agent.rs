//! Episodes through the real agent and real media, with a scripted model.

use std::sync::Arc;

use futures::StreamExt;
use paravt::agent::{AgentError, AgentEvent, AskOptions, ToolUse, WindowStatus};
use paravt::config::{AgentConfig, Dispatch};
use paravt::engine::scripted::{Gate, Reply, ScriptedEngine, Step};
use paravt::engine::{Engine, EngineError, EngineLoad, Speaker};
use paravt::media::SourceRequest;

use tokio::sync::Notify;

use super::support::{agent_with, ask, ask_about, story};

/// A burst with one call for each pair of seconds.
fn burst(windows: &[(f64, f64)]) -> String {
    let calls = windows.iter().map(|(start, end)| {
        format!(
            "<tool_call>\n{{\"name\": \"crop_video\", \"arguments\": {{\"video_path\": \"video.mp4\", \
             \"start_time\": {start:?}, \"end_time\": {end:?}}}}}\n</tool_call>"
        )
    });
    format!("The border is lit there.\n</think>\n{}", calls.collect::<Vec<_>>().join("\n"))
}

const ANSWER: &str = "The crops show it.\n</think>\n<answer>red circle</answer>";

/// A main agent that sends one burst and then answers; sub-agents reply as `sub` says.
fn engine(windows: &'static [(f64, f64)], sub: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Arc<ScriptedEngine> {
    Arc::new(ScriptedEngine::new(move |request, call| match request.speaker {
        Speaker::Main if call == 0 => Reply::text(burst(windows)),
        Speaker::Main => Reply::text(ANSWER),
        Speaker::Sub => sub(call),
    }))
}

#[tokio::test]
async fn a_question_is_answered_from_what_the_sub_agents_saw() {
    let engine = engine(&[(20.0, 60.0), (160.0, 180.0)], |call| Reply::text(format!("Summary {call}.")));
    let agent = agent_with(engine.clone(), AgentConfig::default());
    let (events, outcome) = story(&agent, ask("Which shapes appear?")).await;
    let outcome = outcome.expect("an answer");
    assert_eq!(outcome.answer, "red circle");
    assert_eq!(outcome.reasoning, "The border is lit there.\n\nThe crops show it.");
    let streamed: String = events
        .iter()
        .filter_map(|event| if let AgentEvent::Answer(text) = event { Some(text.as_str()) } else { None })
        .collect();
    assert_eq!(streamed, "red circle");

    let seen = engine.requests();
    let main: Vec<_> = seen.iter().filter(|request| request.speaker == Speaker::Main).collect();
    let times: Vec<f64> = main[0].turns[1].frames.iter().flatten().map(|time| time.seconds()).collect();
    assert_eq!(times, (0..16).map(|n| f64::from(n) * 20.0).collect::<Vec<_>>(), "the overview's own times");
    assert!(main[0].turns[1].text.starts_with("<0.0 seconds>"));
    assert!(main[0].turns[1].text.ends_with("Which shapes appear? The video path for this video is: video.mp4"));
    assert_eq!(main[0].prefix, "<think>\n");
    // The second turn continues the first one's conversation and holds one response, in call order.
    assert_eq!(main[1].turns[..2], main[0].turns[..2]);
    assert_eq!(main[1].turns.len(), 4);
    let response = &main[1].turns[3].text;
    assert!(response.starts_with("<tool_response>\n[20.0s - 60.0s] Summary "), "{response}");
    assert!(response.contains("\n[160.0s - 180.0s] Summary "), "{response}");

    let sub: Vec<_> = seen.iter().filter(|request| request.speaker == Speaker::Sub).collect();
    assert!(sub.iter().any(|request| request.turns[0].text.starts_with("This clip covers 00:20 to 01:00")));
    for window in &outcome.windows {
        assert_eq!(window.frame_times.len(), 16, "frames of the source video, not of the overview");
        let span = window.span().expect("a window");
        assert!(window.frame_times.iter().all(|time| (span.start..=span.end).contains(time)), "{window:?}");
    }
    assert!(outcome.usage.main.prompt_tokens > 0 && outcome.usage.sub.completion_tokens > 0);
}

#[tokio::test]
async fn all_windows_of_a_burst_are_watched_at_the_same_time() {
    // Each sub-agent waits until all four have started: one after another they would wait for ever.
    let gate = Gate::meeting(4);
    let windows = &[(0.0, 20.0), (40.0, 60.0), (80.0, 100.0), (200.0, 220.0)];
    let engine = engine(windows, move |_| Reply::text("Nothing.").gate(gate.clone()));
    let agent = agent_with(engine.clone(), AgentConfig::default());
    let outcome = story(&agent, ask("What?")).await.1.expect("an answer");
    assert_eq!(engine.most_running(), 4);
    let latest_start = outcome.windows.iter().map(|window| window.started_ms).fold(0.0, f64::max);
    let first_end = outcome.windows.iter().map(|window| window.finished_ms).fold(f64::MAX, f64::min);
    assert!(latest_start < first_end, "the spans overlap in the trace: {:?}", outcome.windows);
}

#[tokio::test]
async fn a_window_starts_while_the_burst_is_still_being_written() {
    let (started, gate) = (Arc::new(Notify::new()), Gate::closed());
    let (first, second) = (started.clone(), gate.clone());
    let engine = Arc::new(ScriptedEngine::new(move |request, call| match request.speaker {
        Speaker::Main if call == 0 => Reply::steps(vec![
            Step::Text(burst(&[(0.0, 20.0)])),
            Step::Gate(second.clone()),
            Step::Text(burst(&[(40.0, 60.0)]).split_once("</think>").expect("calls").1.to_owned()),
        ]),
        Speaker::Main => Reply::text(ANSWER),
        Speaker::Sub => {
            first.notify_one();
            Reply::text("Nothing.")
        }
    }));
    let agent = agent_with(engine, AgentConfig::default());
    // The burst goes on only once the first sub-agent was asked.
    let release = async {
        started.notified().await;
        gate.open();
    };
    let ((_, outcome), ()) = tokio::join!(story(&agent, ask("What?")), release);
    assert_eq!(outcome.expect("an answer").windows.len(), 2);
}

#[tokio::test]
async fn sequential_dispatch_watches_one_window_a_turn() {
    let engine = Arc::new(ScriptedEngine::new(|request, call| match (request.speaker, call) {
        (Speaker::Main, 0) => Reply::text(burst(&[(0.0, 20.0), (40.0, 60.0)])),
        (Speaker::Main, 1) => Reply::text(burst(&[(40.0, 60.0)])),
        (Speaker::Main, _) => Reply::text(ANSWER),
        (Speaker::Sub, _) => Reply::text("Nothing."),
    }));
    let agent = agent_with(engine.clone(), AgentConfig { dispatch: Dispatch::Sequential, ..AgentConfig::default() });
    let outcome = story(&agent, ask("What?")).await.1.expect("an answer");
    assert_eq!(engine.most_running(), 1);
    assert_eq!(outcome.windows.iter().map(|window| window.turn).collect::<Vec<_>>(), [0, 1]);
    assert!(outcome.windows[0].finished_ms <= outcome.windows[1].started_ms);
}

#[tokio::test]
async fn a_failing_sub_agent_fails_its_window_alone() {
    let engine = Arc::new(ScriptedEngine::new(|request, call| match request.speaker {
        Speaker::Main if call == 0 => Reply::text(burst(&[(20.0, 60.0), (160.0, 180.0)])),
        Speaker::Main => Reply::text(ANSWER),
        Speaker::Sub
            if request.turns[0]
                .frames()
                .next()
                .and_then(|frame| frame.time)
                .is_some_and(|time| time.seconds() < 100.0) =>
        {
            Reply::text("").fail(EngineError::Failed("secret detail".to_owned()))
        }
        Speaker::Sub => Reply::text("A red circle appears."),
    }));
    let agent = agent_with(engine.clone(), AgentConfig::default());
    let outcome = story(&agent, ask("What?")).await.1.expect("an answer");
    assert_eq!(outcome.windows[0].status, WindowStatus::Failed);
    assert_eq!(outcome.windows[1].summary.as_deref(), Some("A red circle appears."));
    let response = engine.requests().last().expect("requests").turns.last().expect("turns").text.clone();
    assert!(response.contains("[20.0s - 60.0s] failed: the window could not be watched"), "{response}");
    assert!(!response.contains("secret"), "{response}");
}

#[tokio::test]
async fn a_late_window_is_given_up_and_the_episode_goes_on() {
    let engine =
        engine(
            &[(20.0, 60.0), (160.0, 180.0)],
            |call| if call == 0 { Reply::text("").hang() } else { Reply::text("Seen.") },
        );
    let agent = agent_with(engine.clone(), AgentConfig { window_deadline_s: 2, ..AgentConfig::default() });
    let outcome = story(&agent, ask("What?")).await.1.expect("an answer");
    let mut statuses: Vec<_> = outcome.windows.iter().map(|window| window.status.name()).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, ["late", "ok"]);
    assert_eq!(outcome.answer, "red circle");
    engine.idle().await;
}

#[tokio::test]
async fn all_windows_failing_still_gives_an_answer() {
    let engine = engine(&[(20.0, 60.0), (160.0, 180.0)], |_| Reply::refuse(EngineError::Overloaded));
    let agent = agent_with(engine, AgentConfig::default());
    let outcome = story(&agent, ask("What?")).await.1.expect("an answer");
    assert!(outcome.windows.iter().all(|window| window.status == WindowStatus::Failed));
    assert_eq!(outcome.answer, "red circle");
}

#[tokio::test]
async fn the_engine_failing_ends_the_request_and_leaves_nothing_running() {
    let engine = Arc::new(ScriptedEngine::new(|request, call| match request.speaker {
        Speaker::Main if call == 0 => {
            Reply::text(burst(&[(0.0, 20.0)])).fail(EngineError::Failed("the model broke".to_owned()))
        }
        Speaker::Main => Reply::text(ANSWER),
        Speaker::Sub => Reply::text("").hang(),
    }));
    let agent = agent_with(engine.clone(), AgentConfig::default());
    let outcome = story(&agent, ask("What?")).await.1;
    assert!(matches!(outcome, Err(AgentError::Engine(EngineError::Failed(_)))), "{outcome:?}");
    engine.idle().await;
    assert_eq!(engine.load(), EngineLoad::default());
}

#[tokio::test]
async fn dropping_the_stream_stops_every_sub_agent() {
    let engine = engine(&[(0.0, 20.0), (40.0, 60.0), (80.0, 100.0)], |_| Reply::text("never done").hang());
    let agent = agent_with(engine.clone(), AgentConfig::default());
    let mut stream = agent.ask(ask("What?"));
    let mut heard = 0;
    while heard < 3 {
        if let AgentEvent::WindowDelta { .. } = stream.next().await.expect("goes on").expect("no failure") {
            heard = engine.load().running;
        }
    }
    assert_eq!(engine.load().running, 3);
    drop(stream);
    engine.idle().await;
    assert_eq!(engine.load(), EngineLoad::default());
}

#[tokio::test]
async fn the_same_window_twice_asks_one_sub_agent() {
    let engine = engine(&[(20.0, 60.0), (20.1, 59.9)], |_| Reply::text("Twin."));
    let agent = agent_with(engine.clone(), AgentConfig::default());
    let outcome = story(&agent, ask("What?")).await.1.expect("an answer");
    assert_eq!(engine.requests().iter().filter(|request| request.speaker == Speaker::Sub).count(), 1);
    assert_eq!(outcome.windows[1].summary.as_deref(), Some("Twin."));
    assert_eq!(outcome.windows[1].shared_with, Some(0));
}

#[tokio::test]
async fn a_summary_cut_by_its_length_says_so() {
    let engine = engine(&[(20.0, 60.0)], |_| Reply::text("A long story.").finish(paravt::engine::FinishReason::Length));
    let agent = agent_with(engine, AgentConfig::default());
    let outcome = story(&agent, ask("What?")).await.1.expect("an answer");
    assert_eq!(outcome.windows[0].summary.as_deref(), Some("A long story. [truncated]"));
}

#[tokio::test]
async fn without_tools_the_model_is_told_so_and_answers_at_once() {
    let engine = engine(&[(20.0, 60.0)], |_| Reply::text("Nothing."));
    let agent = agent_with(engine.clone(), AgentConfig::default());
    let mut request = ask("What?");
    request.options.tools = ToolUse::None;
    let outcome = story(&agent, request).await.1.expect("an answer");
    assert!(outcome.windows.is_empty());
    assert_eq!(engine.requests().len(), 1);
    assert!(engine.requests()[0].turns[1].text.ends_with("without tools."));
}

#[tokio::test]
async fn a_plain_completion_has_no_prompt_of_ours() {
    let engine = Arc::new(ScriptedEngine::new(|_, _| Reply::text("<think>hm</think>It is <b>grey</b>.")));
    let agent = agent_with(engine.clone(), AgentConfig::default());
    let mut request = ask("What?");
    request.options = AskOptions { agent: Some(false), ..AskOptions::default() };
    let outcome = story(&agent, request).await.1.expect("an answer");
    assert_eq!((outcome.answer.as_str(), outcome.reasoning.as_str()), ("It is <b>grey</b>.", "hm"));
    let seen = engine.requests();
    assert_eq!((seen.len(), seen[0].turns.len(), seen[0].prefix.as_str()), (1, 1, ""));
    assert!(seen[0].turns[0].text.ends_with("What?"));
}

#[tokio::test]
async fn a_file_that_is_not_there_ends_the_request_before_the_engine_is_asked() {
    let engine = engine(&[(20.0, 60.0)], |_| Reply::text("Nothing."));
    let agent = agent_with(engine.clone(), AgentConfig::default());
    let outcome = story(&agent, ask_about(SourceRequest::Path("no/such/file.mp4".into()), "What?")).await.1;
    assert!(matches!(outcome, Err(AgentError::Media(_))), "{outcome:?}");
    assert!(engine.requests().is_empty());
}
