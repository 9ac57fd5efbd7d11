//! The embedded engine on the bundled checkpoint: every trap of mistralrs that we step around, on real weights.

use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use paravt::engine::mistralrs::{MistralRs, MistralRsOptions};
use paravt::engine::{
    Batching, Engine, EngineError, EngineLoad, FinishReason, Gang, GenerateRequest, Seat, TokenEvent,
};
use paravt::types::{Frame, FrameSize, MediaTime, Part, Role, Turn};

use super::support::board::{self, TURN, WINDOWS, ask, board, checkpoint, overview, read, request, text, user, window};
use super::support::idle;

async fn engine() -> MistralRs {
    MistralRs::load(&checkpoint(), MistralRsOptions::default()).await.expect("the bundled checkpoint loads")
}

/// One copy that batches, as on a GPU.
async fn batching() -> MistralRs {
    let options = MistralRsOptions { max_batch: 8, copies: Some(1), ..MistralRsOptions::default() };
    MistralRs::load(&checkpoint(), options).await.expect("the bundled checkpoint loads")
}

fn seated(turns: Vec<Turn>, seat: Seat) -> GenerateRequest {
    GenerateRequest { seat: Some(seat), ..request(turns, 60) }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_turn_is_that_of_transformers_with_its_raw_tags() {
    board::writes_the_first_turn_of_transformers_with_its_raw_tags(&engine().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_think_prefix_is_continued_and_not_repeated() {
    board::continues_a_think_prefix_and_does_not_repeat_it(&engine().await).await;
}

/// Runs the windows as one burst; the text of each, and the most sequences seen running at a time.
async fn burst(engine: &MistralRs, windows: Vec<Vec<Turn>>) -> (Vec<String>, usize) {
    let gang = Gang::new();
    let dispatcher = gang.seat();
    let mut streams = Vec::new();
    for turns in windows {
        streams.push(engine.generate(seated(turns, gang.seat())).await.expect("accepted"));
    }
    if engine.info().batching == Batching::EqualShapes {
        assert_eq!(engine.load(), EngineLoad { running: 0, queued: streams.len() });
    }
    drop(dispatcher);
    let most = std::sync::atomic::AtomicUsize::new(0);
    let look = || most.fetch_max(engine.load().running, std::sync::atomic::Ordering::Relaxed);
    let texts = join_all(streams.into_iter().map(async |mut stream| {
        let mut text = String::new();
        while let Some(event) = stream.next().await {
            look();
            if let TokenEvent::Text(more) = event.expect("generates") {
                text.push_str(&more);
            }
        }
        text
    }))
    .await;
    (texts, most.into_inner())
}

fn four_windows(board: &[Frame]) -> Vec<Vec<Turn>> {
    let mut windows: Vec<_> = WINDOWS.iter().map(|(start, end, _)| window(board, *start, *end, 16)).collect();
    windows.push(window(board, 160, 180, 16));
    windows
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_runs_at_the_same_time_and_each_says_what_it_says_alone() {
    let (engine, board) = (engine().await, board());
    let (texts, together) = burst(&engine, four_windows(&board)).await;
    let expected: Vec<&str> = WINDOWS.iter().map(|(_, _, text)| *text).chain([WINDOWS[1].2]).collect();
    assert_eq!(texts, expected);
    assert!(together > 1, "{together} at a time");
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_equal_shapes_runs_in_one_batch() {
    let (engine, board) = (batching().await, board());
    let (texts, together) = burst(&engine, four_windows(&board)).await;
    assert_eq!(together, 4);
    assert!(texts.iter().all(|text| text.ends_with("appears.")), "{texts:?}");
    idle(&engine).await;
}

/// Why the CPU's default is a batch of one. When this fails, mistralrs has mended its attention: batch there too.
#[cfg(not(feature = "cuda"))]
#[tokio::test(flavor = "multi_thread")]
async fn mistralrs_still_mixes_up_the_sequences_of_a_batch_on_the_cpu() {
    let (engine, board) = (batching().await, board());
    let (texts, _) = burst(&engine, four_windows(&board)).await;
    assert_eq!(texts, [WINDOWS[1].2; 4], "all of them say what the last one sees");
    assert_eq!(MistralRsOptions::default().max_batch, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_whose_prompts_differ_in_length_is_padded_and_runs_in_one_batch() {
    let (engine, board) = (batching().await, board());
    let mut windows: Vec<_> = WINDOWS.iter().map(|(start, end, _)| window(&board, *start, *end, 16)).collect();
    let Some(Part::Text(prompt)) = windows[0][0].parts.last_mut() else { panic!("a prompt") };
    prompt.push_str(" Be brief.");
    let (texts, together) = burst(&engine, windows).await;
    assert_eq!(together, 3);
    assert!(texts.iter().all(|text| !text.is_empty()), "{texts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn unequal_shapes_run_one_after_another_where_there_is_one_copy_and_all_say_something() {
    let (engine, board) = (batching().await, board());
    let windows = [16, 14, 12, 10].map(|count| window(&board, 20, 60, count)).to_vec();
    let (texts, together) = burst(&engine, windows).await;
    assert_eq!(together, 1);
    assert!(texts.iter().all(|text| text.ends_with("appears.")), "{texts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_come_one_by_one_do_not_disturb_each_other() {
    let (engine, board) = (engine().await, board());
    let requests = [request(overview(&board, "What shape is red?"), 512)]
        .into_iter()
        .chain(WINDOWS.iter().map(|(start, end, _)| request(window(&board, *start, *end, 16), 60)));
    let texts = join_all(requests.map(|request| text(&engine, request))).await;
    let expected: Vec<&str> = [TURN].into_iter().chain(WINDOWS.iter().map(|(_, _, text)| *text)).collect();
    assert_eq!(texts, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_a_stream_lets_the_engine_go_idle_and_serve_on() {
    let (engine, board) = (engine().await, board());
    // Its own end is far away: twenty thousand tokens.
    let mut long = request(overview(&board, "What shape is red?"), 20_000);
    long.sampling.temperature = Some(2.0);
    let mut running = engine.generate(long).await.expect("accepted");
    let waiting = engine.generate(request(window(&board, 20, 60, 16), 60)).await.expect("accepted");
    assert!(matches!(running.next().await, Some(Ok(TokenEvent::Started { .. }))));
    assert!(matches!(running.next().await, Some(Ok(TokenEvent::Text(_)))));
    drop((running, waiting));
    idle(&engine).await;
    assert_eq!(text(&engine, request(window(&board, 20, 60, 16), 60)).await, WINDOWS[0].2);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_a_batch_can_be_cancelled() {
    let (engine, board) = (engine().await, board());
    let gang = Gang::new();
    let mut streams = Vec::new();
    let dispatcher = gang.seat();
    for (start, end, _) in WINDOWS {
        let turns = window(&board, start, end, 16);
        streams.push(engine.generate(seated(turns, gang.seat())).await.expect("accepted"));
    }
    drop(dispatcher);
    let mut cancelled = streams.remove(1);
    assert!(matches!(cancelled.next().await, Some(Ok(TokenEvent::Started { .. }))));
    drop(cancelled);
    let texts = join_all(streams.into_iter().map(read)).await;
    let texts: Vec<String> = texts.into_iter().map(|read| read.expect("generates").0).collect();
    assert_eq!(texts, [WINDOWS[0].2, WINDOWS[2].2]);
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn special_tokens_in_the_question_are_only_text() {
    let (engine, board) = (engine().await, board());
    board::takes_special_tokens_in_a_question_for_text(&engine, &board).await;
    // The thread is alive and well.
    assert_eq!(text(&engine, request(window(&board, 20, 60, 16), 60)).await, WINDOWS[0].2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_count_of_the_prompt_is_that_of_the_model() {
    let (engine, board) = (engine().await, board());
    let turns = overview(&board, "Où est le carré rouge? 12345 \u{1F7E5}");
    let (_, exact) = ask(&engine, request(turns.clone(), 5)).await.expect("generates");
    // With a stop text that never comes mistralrs' own count is used; when one is met, ours.
    let mut stopped = request(turns, 200);
    stopped.sampling.stop = vec!["e".to_owned()];
    let (_, ours) = ask(&engine, stopped).await.expect("generates");
    assert_eq!(exact.usage.prompt_tokens, ours.usage.prompt_tokens);
    assert_eq!((exact.reason, exact.usage.completion_tokens), (FinishReason::Length, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_does_not_fit_is_too_long_and_an_output_is_clamped() {
    let own = if cfg!(feature = "cuda") { 32768 } else { 8192 };
    for (options, most) in [
        (MistralRsOptions::default(), own),
        (MistralRsOptions { max_prompt_tokens: None, ..MistralRsOptions::default() }, 32768),
        (MistralRsOptions { max_prompt_tokens: Some(500), ..MistralRsOptions::default() }, 500),
    ] {
        let engine = MistralRs::load(&checkpoint(), options).await.expect("the bundled checkpoint loads");
        let long = vec![Turn::text(Role::User, "red square ".repeat(40_000))];
        let error = ask(&engine, request(long, 5)).await.expect_err("too long");
        assert!(matches!(error, EngineError::TooLong { limit, needed } if limit == most && needed > most), "{error}");
        assert!(engine.generate(request(window(&board(), 20, 60, 16), u32::MAX)).await.is_ok());
    }
}

/// On one copy, one after another, so that a prefix cache would have something to go on with.
#[tokio::test(flavor = "multi_thread")]
async fn what_earlier_requests_left_behind_changes_nothing() {
    let options = MistralRsOptions { copies: Some(1), ..MistralRsOptions::default() };
    let engine = MistralRs::load(&checkpoint(), options).await.expect("the bundled checkpoint loads");
    let board = board();
    let turn = || request(overview(&board, "What shape is red?"), 512);
    assert_eq!(text(&engine, turn()).await, TURN);
    // Another question about the same frames.
    assert!(ask(&engine, request(overview(&board, "What is green?"), 8)).await.is_ok());
    assert_eq!(text(&engine, turn()).await, TURN);
    for (start, end, expected) in WINDOWS.iter().chain(&WINDOWS) {
        assert_eq!(text(&engine, request(window(&board, *start, *end, 16), 60)).await, *expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn text_alone_is_answered_beside_pictures() {
    let (engine, board) = (engine().await, board());
    let alone = || request(vec![Turn::text(Role::User, "What shape is red?")], 8);
    let (first, second, third) = tokio::join!(
        ask(&engine, alone()),
        ask(&engine, request(window(&board, 20, 60, 16), 60)),
        ask(&engine, alone())
    );
    assert_eq!(second.expect("generates").0, WINDOWS[0].2);
    let (first, third) = (first.expect("generates"), third.expect("generates"));
    assert!(first.1.usage.completion_tokens > 0);
    assert_eq!(first.0, third.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_text_cuts_the_answer_before_it() {
    board::cuts_the_answer_before_a_stop_text(&engine().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_would_break_the_model_are_refused() {
    let engine = engine().await;
    for (width, height) in [(16, 64), (65, 64)] {
        let rgb = Bytes::from(vec![0; (3 * width * height) as usize]);
        let frame = Frame { time: Some(MediaTime::default()), size: FrameSize { width, height }, rgb };
        let error = ask(&engine, request(vec![user(vec![Part::Frame(frame)])], 5)).await.expect_err("refused");
        assert!(matches!(error, EngineError::Invalid(_)), "{error}");
    }
    let size = FrameSize { width: 64, height: 64 };
    let frame = || Frame { time: None, size, rgb: Bytes::from(vec![0; 3 * 64 * 64]) };
    let pair = vec![user(vec![Part::FramePair([frame(), frame()])])];
    let error = ask(&engine, request(pair, 5)).await.expect_err("refused");
    assert!(matches!(error, EngineError::Unsupported(_)), "{error}");
    let error = ask(&engine, request(Vec::new(), 5)).await.expect_err("refused");
    assert!(matches!(error, EngineError::Invalid(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seat_is_given_back_also_when_the_request_is_refused() {
    let engine = engine().await;
    let gang = Gang::new();
    assert!(engine.generate(seated(Vec::new(), gang.seat())).await.is_err());
    assert!(gang.complete());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_written_by_transformers_5_loads() {
    let folder = tempfile::tempdir().expect("tempdir");
    for entry in std::fs::read_dir(checkpoint()).expect("the bundled checkpoint") {
        let name = entry.expect("entry").file_name();
        std::fs::copy(checkpoint().join(&name), folder.path().join(&name)).expect("copies");
    }
    let read = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(folder.path().join(name)).expect("is there")).expect("JSON")
    };
    let write = |name: &str, value: &serde_json::Value| {
        std::fs::write(folder.path().join(name), value.to_string()).expect("writes");
    };
    let mut config = read("config.json");
    let text = config["text_config"].as_object_mut().expect("object");
    let (theta, mut rope) = (text.remove("rope_theta").expect("theta"), text.remove("rope_scaling").expect("scaling"));
    rope["rope_theta"] = theta;
    text.insert("rope_parameters".to_owned(), rope);
    config.as_object_mut().expect("object").remove("torch_dtype");
    config["dtype"] = "float32".into();
    write("config.json", &config);
    write("processor_config.json", &serde_json::json!({"image_processor": read("preprocessor_config.json")}));
    std::fs::remove_file(folder.path().join("preprocessor_config.json")).expect("removes");
    let engine = MistralRs::load(folder.path(), MistralRsOptions::default()).await.expect("loads");
    assert_eq!(text_of_window(&engine).await, WINDOWS[0].2);
}

async fn text_of_window(engine: &MistralRs) -> String {
    text(engine, request(window(&board(), 20, 60, 16), 60)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_no_checkpoint_says_which_file_is_missing() {
    let folder = tempfile::tempdir().expect("tempdir");
    let error = MistralRs::load(folder.path(), MistralRsOptions::default()).await.expect_err("nothing there");
    assert!(matches!(&error, EngineError::Load(problem) if problem.contains("config.json")), "{error}");
}
