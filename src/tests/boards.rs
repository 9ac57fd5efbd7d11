//! The whole path on real weights: thirty signal boards through the agent, media and the embedded engine, against what
//! transformers gave (greedy; `fixtures/boards/boards.json`). And the measurements for `load_tests/RESULTS.md`.

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use paravt::agent::{AskOptions, Outcome, WindowStatus};
use paravt::config::{AgentConfig, Dispatch};
#[cfg(feature = "mistralrs")]
use paravt::engine::mistralrs::{MistralRs, MistralRsOptions};
use paravt::engine::native::{Native, NativeOptions};
use paravt::engine::scripted::{Reply, ScriptedEngine};
use paravt::engine::{Engine, EngineError, EngineInfo, EngineLoad, GenerateRequest, Speaker, TokenStream};
use paravt::media::SourceRequest;
use serde::Deserialize;

use super::support::{agent_with, ask, ask_about, idle, root, story};

#[derive(Deserialize)]
struct Board {
    video: String,
    question: String,
    answer: String,
    reference: Reference,
}

#[derive(Deserialize)]
struct Reference {
    windows: Vec<(f64, f64)>,
    summaries: Vec<String>,
    correct: bool,
}

fn boards() -> Vec<Board> {
    serde_json::from_str(include_str!("fixtures/boards/boards.json")).expect("fixture")
}

async fn native() -> Arc<dyn Engine> {
    let checkpoint = root("model_cards/paravt-tiny");
    Arc::new(Native::load(&checkpoint, NativeOptions::default()).await.expect("the bundled checkpoint loads"))
}

#[cfg(feature = "mistralrs")]
async fn mistralrs(options: MistralRsOptions) -> Arc<dyn Engine> {
    Arc::new(MistralRs::load(&root("model_cards/paravt-tiny"), options).await.expect("the bundled checkpoint loads"))
}

fn windows(outcome: &Outcome) -> Vec<(f64, f64)> {
    let spans = outcome.windows.iter().filter_map(|window| window.span());
    spans.map(|span| (span.start.seconds(), span.end.seconds())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_boards_are_answered_as_well_as_by_the_reference() {
    thirty_boards(native().await).await;
}

#[cfg(feature = "mistralrs")]
#[tokio::test(flavor = "multi_thread")]
async fn mistralrs_answers_thirty_boards_as_well_as_the_reference() {
    thirty_boards(mistralrs(MistralRsOptions::default()).await).await;
}

#[expect(clippy::print_stdout, reason = "the tally, for who compares engines")]
async fn thirty_boards(engine: Arc<dyn Engine>) {
    let agent = agent_with(engine, AgentConfig::default());
    let answered = futures::stream::iter(boards()).map(|board| {
        let agent = agent.clone();
        async move {
            let video = SourceRequest::Path(root("src/tests/fixtures/boards").join(&board.video));
            let mut request = ask_about(video, &board.question);
            request.id.clone_from(&board.video);
            let outcome = story(&agent, request).await.1.expect("an answer");
            (board, outcome)
        }
    });
    let answered: Vec<(Board, Outcome)> = answered.buffer_unordered(2).collect().await;
    assert_eq!(answered.len(), 30);
    let (mut right, mut reference, mut same_summaries, mut summaries) = (0, 0, 0, 0);
    for (board, outcome) in &answered {
        assert_eq!(windows(outcome), board.reference.windows, "{}: the first turn's windows", board.video);
        assert!(outcome.windows.iter().all(|window| window.status == WindowStatus::Ok), "{}", board.video);
        right += usize::from(outcome.answer.eq_ignore_ascii_case(&board.answer));
        reference += usize::from(board.reference.correct);
        let said = outcome.windows.iter().zip(&board.reference.summaries);
        same_summaries += said.filter(|(window, summary)| window.summary.as_deref() == Some(summary)).count();
        summaries += board.reference.summaries.len();
    }
    println!(
        "boards: {right}/30 right (reference {reference}/30), {same_summaries}/{summaries} summaries as the reference's"
    );
    assert!(right >= reference, "{right} right, the reference has {reference}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demonstration_is_answered_and_its_windows_overlap_in_the_trace() {
    let agent = agent_with(native().await, AgentConfig::default());
    let question = "Which shapes appear while the border is lit? List them in order.";
    let outcome = story(&agent, ask(question)).await.1.expect("an answer");
    assert_eq!(outcome.answer, "purple square, orange circle, green circle");
    let overlap = outcome.windows.windows(2).any(|pair| pair[1].started_ms < pair[0].finished_ms);
    assert!(overlap, "{:?}", outcome.windows);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_an_episode_on_real_weights_leaves_the_engine_idle() {
    let engine = native().await;
    let agent = agent_with(engine.clone(), AgentConfig::default());
    let mut stream = agent.ask(ask("Which shapes appear while the border is lit? List them in order."));
    while engine.load().running == 0 {
        stream.next().await.expect("goes on").expect("no failure");
    }
    drop(stream);
    idle(engine.as_ref()).await;
    assert_eq!(engine.load(), EngineLoad::default());
}

/// A scripted main agent over real sub-agents: the same windows whatever the dispatch.
#[derive(Debug)]
struct Split {
    main: ScriptedEngine,
    sub: Arc<dyn Engine>,
}

#[async_trait]
impl Engine for Split {
    async fn generate(&self, request: GenerateRequest) -> Result<TokenStream, EngineError> {
        if request.speaker == Speaker::Main {
            self.main.generate(request).await
        } else {
            self.sub.generate(request).await
        }
    }

    fn info(&self) -> EngineInfo {
        self.sub.info()
    }

    fn load(&self) -> EngineLoad {
        self.sub.load()
    }
}

/// Calls what is left of `windows` in every turn, then answers.
fn caller(windows: Vec<(u32, u32)>) -> ScriptedEngine {
    ScriptedEngine::new(move |request, _| {
        let done: usize = request.turns.iter().map(count_calls).sum();
        let calls = windows.iter().skip(done).map(|(start, end)| {
            format!("<tool_call>{{\"name\": \"crop_video\", \"arguments\": {{\"start_time\": {start}, \"end_time\": {end}}}}}</tool_call>")
        });
        let calls: String = calls.collect();
        if calls.is_empty() {
            Reply::text("</think><answer>done</answer>")
        } else {
            Reply::text(format!("</think>{calls}"))
        }
    })
}

fn count_calls(turn: &paravt::types::Turn) -> usize {
    let assistant = turn.role == paravt::types::Role::Assistant;
    let texts = turn.parts.iter().filter_map(|part| match part {
        paravt::types::Part::Text(text) if assistant => Some(text.matches("<tool_call>").count()),
        _ => None,
    });
    texts.sum()
}

/// Median wall time in milliseconds of these windows, from the first call to the last summary, their frames already decoded.
/// Each window has its length in seconds and the frames it must have.
async fn median_ms(engine: &Arc<dyn Engine>, windows: &[(u32, u32, usize)], dispatch: Dispatch) -> f64 {
    let calls = windows.iter().map(|(start, end, _)| (*start, *end)).collect();
    let split = Split { main: caller(calls), sub: engine.clone() };
    let agent = agent_with(Arc::new(split), AgentConfig { align_bursts: false, ..AgentConfig::default() });
    let mut times = Vec::new();
    for run in 0..8 {
        let mut request = ask("What?");
        request.options = AskOptions { dispatch: Some(dispatch), ..AskOptions::default() };
        let (_, outcome) = story(&agent, request).await;
        let outcome = outcome.expect("an answer");
        assert_eq!(outcome.windows.len(), windows.len());
        assert!(outcome.windows.iter().all(|window| window.status == WindowStatus::Ok), "{:?}", outcome.windows);
        let frames: Vec<usize> = outcome.windows.iter().map(|window| window.frame_times.len()).collect();
        assert_eq!(frames, windows.iter().map(|(_, _, frames)| *frames).collect::<Vec<_>>());
        // The first run decodes the frames.
        if run > 0 {
            let last = outcome.windows.iter().map(|window| window.finished_ms).fold(0.0, f64::max);
            times.push(last - outcome.windows[0].started_ms);
        }
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// `cargo test --release dispatch_timing -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement, for load_tests/RESULTS.md"]
async fn dispatch_timing() {
    // As a burst comes out of alignment, and as it would be without: one frame a second.
    let equal = [(20, 60, 16), (80, 120, 16), (160, 200, 16), (240, 280, 16)];
    let unequal = [(20, 60, 16), (80, 92, 12), (160, 168, 8), (240, 244, 4)];
    #[cfg(feature = "mistralrs")]
    let one = MistralRsOptions { copies: Some(1), ..MistralRsOptions::default() };
    let engines: Vec<(&str, Arc<dyn Engine>)> = vec![("native", native().await)];
    #[cfg(feature = "mistralrs")]
    let mut engines = engines;
    #[cfg(feature = "mistralrs")]
    let configurations = [
        ("4 copies (default on the CPU)", MistralRsOptions { copies: Some(4), ..one }),
        ("2 copies", MistralRsOptions { copies: Some(2), ..one }),
        ("1 copy, one sequence at a time", one),
        ("1 copy, batches of 8 (as on a GPU; WRONG TEXT on the CPU)", MistralRsOptions { max_batch: 8, ..one }),
    ];
    println!(
        "| engine | windows | K | parallel ms | sequential ms | sequential / parallel |\n| --- | --- | --- | --- | --- | --- |"
    );
    #[cfg(feature = "mistralrs")]
    for (name, options) in configurations {
        engines.push((name, mistralrs(options).await));
    }
    for (name, engine) in engines {
        for (kind, windows) in [("equal", equal), ("unequal", unequal)] {
            for k in [1, 2, 4] {
                let parallel = median_ms(&engine, &windows[..k], Dispatch::Parallel).await;
                let sequential = median_ms(&engine, &windows[..k], Dispatch::Sequential).await;
                println!("| {name} | {kind} | {k} | {parallel:.0} | {sequential:.0} | {:.2} |", sequential / parallel);
            }
        }
    }
}
