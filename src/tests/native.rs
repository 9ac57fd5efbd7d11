//! Our own engine on the bundled checkpoint, on real weights: the reference's texts, in any company, with nothing computed
//! twice and nothing left behind.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::{Either, join_all, select};
use futures::{FutureExt, StreamExt};
use paravt::engine::native::policy::Policy;
use paravt::engine::native::{Native, NativeOptions, Quantization};
use paravt::engine::{
    Batching, Constraint, Engine, EngineError, FinishReason, Gang, GenerateRequest, Grammar, Sampling, SessionKey,
    Speaker, TokenEvent, TokenInfo,
};

use paravt::types::{Frame, FrameSize, MediaTime, Part, Role, Turn};
use serde_json::Value;

use super::support::board::{self, TURN, WINDOWS, ask, board, checkpoint, overview, read, request, text, user, window};
use super::support::idle;

async fn engine() -> Native {
    with(NativeOptions::default()).await
}

async fn with(options: NativeOptions) -> Native {
    Native::load(&checkpoint(), options).await.expect("the bundled checkpoint loads")
}

/// The main agent's request in a session.
fn main_turn(session: &str, turns: Vec<Turn>) -> GenerateRequest {
    GenerateRequest { session: SessionKey(session.into()), speaker: Speaker::Main, ..request(turns, 512) }
}

fn sampled(turns: Vec<Turn>, seed: u64) -> GenerateRequest {
    let mut request = request(turns, 40);
    request.sampling = Sampling {
        temperature: Some(1.5),
        top_p: Some(0.95),
        seed: Some(seed),
        max_tokens: 40,
        ignore_eos: true,
        ..Sampling::default()
    };
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_turn_is_that_of_transformers_with_its_raw_tags() {
    board::writes_the_first_turn_of_transformers_with_its_raw_tags(&engine().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_think_prefix_is_continued_and_not_repeated() {
    board::continues_a_think_prefix_and_does_not_repeat_it(&engine().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_unequal_windows_runs_at_the_same_time_and_each_says_what_it_says_alone() {
    let (engine, board) = (engine().await, board());
    assert_eq!(engine.info().batching, Batching::Ragged);
    let windows = [(20, 60, 16), (160, 180, 14), (260, 300, 12), (20, 60, 7)];
    let gang = Gang::new();
    let mut streams = Vec::new();
    for (start, end, count) in windows {
        let request = GenerateRequest { seat: Some(gang.seat()), ..request(window(&board, start, end, count), 60) };
        streams.push(engine.generate(request).await.expect("accepted"));
    }
    assert!(gang.complete(), "a seat is given back once the request has its place");
    let most = std::sync::atomic::AtomicUsize::new(0);
    let together = join_all(streams.into_iter().map(async |mut stream| {
        let mut text = String::new();
        while let Some(event) = stream.next().await {
            most.fetch_max(engine.load().running, std::sync::atomic::Ordering::Relaxed);
            if let TokenEvent::Text(more) = event.expect("generates") {
                text.push_str(&more);
            }
        }
        text
    }))
    .await;
    assert!(most.into_inner() > 1, "they ran one after another");
    assert_eq!([&together[0], &together[1]], [WINDOWS[0].2, WINDOWS[1].2]);
    idle(&engine).await;
    let fresh = self::engine().await;
    for ((start, end, count), together) in windows.into_iter().zip(together) {
        assert_eq!(text(&fresh, request(window(&board, start, end, count), 60)).await, together);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_turn_reads_only_the_tool_response() {
    let (engine, board) = (engine().await, board());
    let mut turns = overview(&board, "What shape is red?");
    let (first, generated) = ask(&engine, main_turn("a", turns.clone())).await.expect("generates");
    assert_eq!(first, TURN);
    turns.push(Turn::text(Role::Assistant, first));
    let lines = WINDOWS.map(|(start, end, said)| format!("[{start}.0s - {end}.0s] {said}"));
    turns.push(Turn::text(Role::User, format!("<tool_response>\n{}\n</tool_response>", lines.join("\n"))));
    let (second, usage) = ask(&engine, main_turn("a", turns.clone())).await.expect("generates");
    let known = generated.usage.prompt_tokens + generated.usage.completion_tokens;
    // The token that ended the turn was never read.
    assert!(usage.usage.cached_tokens + 2 >= known, "{:?} after {:?}", usage.usage, generated.usage);
    assert!(usage.usage.cached_tokens < usage.usage.prompt_tokens);
    // As without a past.
    let (fresh, usage) = ask(&self::engine().await, main_turn("a", turns)).await.expect("generates");
    assert_eq!((second, usage.usage.cached_tokens), (fresh, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_beginning_that_many_have_in_common_is_read_once() {
    let (engine, board) = (engine().await, board());
    let questions = ["What shape is red?", "What color is the circle?", "What shape is green?", "What shape is blue?"];
    let streams = join_all(questions.map(|question| ask(&engine, request(overview(&board, question), 8)))).await;
    let usages: Vec<_> = streams.into_iter().map(|end| end.expect("generates").1.usage).collect();
    let total: u64 = usages.iter().map(|usage| usage.prompt_tokens).sum();
    let read: u64 = usages.iter().map(|usage| usage.prompt_tokens - usage.cached_tokens).sum();
    // One of them the whole prompt, the others what follows the frames.
    assert!(read * 2 < total, "read {read} of {total}: {usages:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_gives_the_same_text_whatever_else_runs() {
    let (engine, board) = (engine().await, board());
    let alone = text(&engine, sampled(window(&board, 20, 60, 16), 7)).await;
    assert_ne!(alone, text(&engine, sampled(window(&board, 20, 60, 16), 8)).await);
    let others = (0..6).map(|n| sampled(window(&board, 20 * n, 20 * n + 40, 4 + n as usize), u64::from(n)));
    let all = others.chain([sampled(window(&board, 20, 60, 16), 7)]).map(|request| text(&engine, request));
    assert_eq!(join_all(all).await.last(), Some(&alone));
    let small =
        with(NativeOptions { chunk_tokens: 32, max_drafts: 0, threads: Some(1), ..NativeOptions::default() }).await;
    assert_eq!(text(&small, sampled(window(&board, 20, 60, 16), 7)).await, alone);
}

#[tokio::test(flavor = "multi_thread")]
async fn guesses_policies_and_chunks_never_change_a_text() {
    let board = board();
    let default = NativeOptions::default();
    for options in [
        NativeOptions { max_drafts: 0, ..default.clone() },
        NativeOptions { max_drafts: 16, policy: Policy::Fcfs, ..default.clone() },
        NativeOptions { chunk_tokens: 1, max_running: 1, ..default.clone() },
        NativeOptions { vision_cache_bytes: 0, chunk_tokens: 50, ..default },
    ] {
        let engine = with(options).await;
        assert_eq!(text(&engine, request(overview(&board, "What shape is red?"), 512)).await, TURN);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn arrivals_and_cancellations_in_any_order_leave_each_its_own_text() {
    let (engine, board) = (engine().await, board());
    let mut expected = Vec::new();
    for kind in 0..8 {
        expected.push(text(&engine, crowd(&board, kind)).await);
    }
    for round in 0..4_u64 {
        let all = (0..24_u64).map(|n| {
            let (engine, board, expected) = (&engine, &board, &expected);
            async move {
                // Any order: a small generator of its own.
                let dice = (round * 24 + n).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
                for _ in 0..dice % 50 {
                    tokio::task::yield_now().await;
                }
                let kind = (dice % 8) as usize;
                let mut stream = engine.generate(crowd(board, kind as u32)).await.expect("accepted");
                if dice % 3 == 0 {
                    for _ in 0..dice % 5 {
                        stream.next().await;
                    }
                    return;
                }
                assert_eq!(read(stream).await.expect("generates").0, expected[kind]);
            }
        });
        join_all(all).await;
        idle(&engine).await;
    }
}

fn crowd(board: &[Frame], kind: u32) -> GenerateRequest {
    match kind {
        0 => request(overview(board, "What shape is red?"), 200),
        1 => sampled(overview(board, "What shape is red?"), 3),
        2 => request(vec![Turn::text(Role::User, "What shape is red?")], 20),
        kind => request(window(board, 20 * kind, 20 * kind + 40, 3 + kind as usize), 60),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_for_one_at_a_time_serves_all_one_after_another() {
    let (options, board) = (NativeOptions::default(), board());
    // 512 tokens: a window and its summary.
    let engine = with(NativeOptions { kv_cache_bytes: Some(512 * 2048), ..options }).await;
    let windows = (0..4).map(|n| request(window(&board, 60 * n, 60 * n + 40, 16), 300));
    let ends = join_all(windows.map(|request| ask(&engine, request))).await;
    assert!(ends.iter().all(|end| end.as_ref().is_ok_and(|(text, _)| text.contains("appears."))), "{ends:?}");
    // As much as is asked for by default gets what there is.
    let (text, _) = ask(&engine, request(window(&board, 20, 60, 16), 32_768)).await.expect("it gets less room");
    assert_eq!(text, WINDOWS[0].2);
    let mut endless = request(window(&board, 20, 60, 16), 32_768);
    endless.sampling.ignore_eos = true;
    let (_, end) = ask(&engine, endless).await.expect("it gets less room");
    assert_eq!(end.reason, FinishReason::Length);
    assert_eq!(end.usage.prompt_tokens + end.usage.completion_tokens, 512);
    let long = vec![Turn::text(Role::User, "red square ".repeat(600))];
    let error = ask(&engine, request(long, 512)).await.expect_err("never fits");
    assert!(matches!(error, EngineError::TooLong { limit: 512, .. }), "{error}");
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses() {
    let (options, board) = (NativeOptions::default(), board());
    let engine = with(NativeOptions { max_queued: 1, max_running: 1, ..options }).await;
    let mut long = request(overview(&board, "What shape is red?"), 5000);
    long.sampling.ignore_eos = true;
    let mut running = engine.generate(long).await.expect("accepted");
    assert!(matches!(running.next().await, Some(Ok(TokenEvent::Started { .. }))));
    let waiting = engine.generate(request(window(&board, 20, 60, 4), 8)).await.expect("accepted");
    let refused = engine.generate(request(window(&board, 20, 60, 4), 8)).await.err();
    assert!(matches!(refused, Some(EngineError::Overloaded)), "{refused:?}");
    drop(running);
    assert!(read(waiting).await.is_ok());
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_there_is_no_place_for_is_refused_before_anything_is_done_for_it() {
    let (options, board) = (NativeOptions::default(), board());
    let small = || request(window(&board, 20, 60, 4), 8);
    let engine = with(NativeOptions { max_queued: 1, max_running: 1, ..options.clone() }).await;
    let mut asked: Vec<_> = (0..2).map(|_| engine.generate(small())).collect();
    for one in &mut asked {
        let _ = futures::poll!(one.as_mut());
    }
    let refused = engine.generate(small()).now_or_never();
    assert!(matches!(refused, Some(Err(EngineError::Overloaded))), "it is refused at once");
    drop(asked);
    idle(&engine).await;
    assert!(ask(&engine, small()).await.is_ok());
    // Pixels of one such request, and not of two.
    let engine = with(NativeOptions { max_pixel_bytes: 5 * 3 * 64 * 64, ..options }).await;
    let mut first = engine.generate(small());
    let _ = futures::poll!(first.as_mut());
    let refused = engine.generate(small()).now_or_never();
    assert!(matches!(refused, Some(Err(EngineError::Overloaded))), "it is refused at once");
    assert!(read(first.await.expect("accepted")).await.is_ok());
    let large = ask(&engine, request(window(&board, 20, 60, 6), 8)).await;
    assert!(matches!(large, Err(EngineError::Invalid(_))), "{large:?}");
    assert!(ask(&engine, small()).await.is_ok());
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_the_engine_waits_for_its_thread_and_ends_what_runs() {
    let (engine, board) = (engine().await, board());
    let mut long = request(overview(&board, "What shape is red?"), 20_000);
    long.sampling.ignore_eos = true;
    let mut running = engine.generate(long).await.expect("accepted");
    while !matches!(running.next().await, Some(Ok(TokenEvent::Text(_)))) {}
    drop(engine);
    // Whatever comes is there already.
    let end = loop {
        match running.next().now_or_never().expect("nobody is at work any more") {
            Some(Ok(TokenEvent::Text(_))) => {}
            other => break other,
        }
    };
    assert!(matches!(end, Some(Err(EngineError::Unavailable(_)))), "{end:?}");
    assert!(running.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_that_passes_in_the_queue_ends_what_waits_there_alone() {
    let (options, board) = (NativeOptions::default(), board());
    let engine = with(NativeOptions { max_running: 1, ..options }).await;
    let mut long = request(overview(&board, "What shape is red?"), 20_000);
    long.sampling.ignore_eos = true;
    let mut running = engine.generate(long).await.expect("accepted");
    assert!(matches!(running.next().await, Some(Ok(TokenEvent::Started { .. }))));
    let mut late = request(window(&board, 20, 60, 4), 8);
    late.deadline = Some(Instant::now() + Duration::from_secs(1));
    // On a slow machine it may pass already while the request is prepared.
    let first = match engine.generate(late).await {
        Ok(mut waiting) => waiting.next().await,
        Err(error) => Some(Err(error)),
    };
    assert!(matches!(first, Some(Err(EngineError::DeadlineExceeded))), "it never started: {first:?}");
    assert!(matches!(running.next().await, Some(Ok(TokenEvent::Text(_)))), "the other one goes on");
    drop(running);
    idle(&engine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_a_generation_that_runs() {
    let (engine, board) = (engine().await, board());
    let mut late = request(overview(&board, "What shape is red?"), 20_000);
    late.sampling.ignore_eos = true;
    late.deadline = Some(Instant::now() + Duration::from_millis(300));
    let error = ask(&engine, late).await.expect_err("too late");
    assert!(matches!(error, EngineError::DeadlineExceeded), "{error}");
    idle(&engine).await;
}

async fn tokens(engine: &Native, request: GenerateRequest) -> (Vec<TokenInfo>, String) {
    let (mut infos, mut text) = (Vec::new(), String::new());
    let mut stream = engine.generate(request).await.expect("accepted");
    while let Some(event) = stream.next().await {
        match event.expect("generates") {
            TokenEvent::Tokens(more) => infos.extend(more),
            TokenEvent::Text(more) => text.push_str(&more),
            _ => {}
        }
    }
    (infos, text)
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_are_natural_and_name_every_token() {
    let (engine, board) = (engine().await, board());
    let mut request = request(window(&board, 20, 60, 16), 60);
    request.sampling.logprobs = Some(3);
    let (infos, text) = tokens(&engine, request).await;
    let bytes: Vec<u8> = infos.iter().flat_map(|info| info.bytes.clone()).collect();
    assert_eq!((text.as_bytes(), text.as_str()), (bytes.as_slice(), WINDOWS[0].2));
    for info in &infos {
        assert!(info.logprob <= 0.0 && info.top.len() == 3);
        // Greedy: the chosen one is the likeliest, and no set of tokens is more than certain.
        assert_eq!((info.top[0].id, info.top[0].logprob), (info.id, info.logprob));
        assert!(info.top.iter().map(|other| other.logprob.exp()).sum::<f64>() <= 1.0 + 1e-9);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_can_be_held_to_a_schema() {
    let (engine, board) = (engine().await, board());
    let schema = r#"{"type":"object","properties":{"shape":{"enum":["circle","square"]},"count":{"type":"integer","minimum":0,"maximum":9}},"required":["shape","count"],"additionalProperties":false}"#;
    let constraint = |after: Option<&str>, then: Option<&str>| Constraint {
        grammar: Grammar::JsonSchema(schema.to_owned()),
        after: after.map(str::to_owned),
        then: then.map(str::to_owned),
    };
    let mut whole = request(overview(&board, "What shape is red?"), 200);
    whole.sampling.constraint = Some(constraint(None, None));
    let (said, end) = ask(&engine, whole).await.expect("generates");
    let value: Value = serde_json::from_str(&said).expect("JSON");
    assert!(
        value["count"].is_u64() && ["circle", "square"].contains(&value["shape"].as_str().expect("text")),
        "{said}"
    );
    assert_eq!(end.reason, FinishReason::Stop);
    // Thinking is free, the answer is not.
    let mut after = request(overview(&board, "What shape is red?"), 300);
    after.sampling.constraint = Some(constraint(Some("<tool_call>"), Some("</tool_call>")));
    let said = text(&engine, after).await;
    let (thought, rest) = said.split_once("<tool_call>").expect("it calls a tool, as without a constraint");
    assert_eq!(Some(thought), TURN.split_once("<tool_call>").map(|(thought, _)| thought));
    let (value, _) = rest.split_once("</tool_call>").expect("closed");
    assert!(serde_json::from_str::<Value>(value).expect("JSON")["count"].is_u64(), "{said}");
    let mut bad = request(overview(&board, "What?"), 8);
    bad.sampling.constraint =
        Some(Constraint { grammar: Grammar::JsonSchema("{".to_owned()), after: None, then: None });
    assert!(matches!(ask(&engine, bad).await, Err(EngineError::Invalid(_))));
}

/// A copy of the bundled checkpoint.
fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(checkpoint()).expect("the bundled checkpoint") {
        let name = entry.expect("entry").file_name();
        std::fs::copy(checkpoint().join(&name), folder.path().join(&name)).expect("copies");
    }
    folder
}

/// A copy that sees, remembers and says something else: weights after the pictures, before the values that are kept, and
/// before the logits are turned round.
fn other_weights() -> tempfile::TempDir {
    let folder = copy();
    let file = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&file).expect("weights");
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    let table: Value = serde_json::from_slice(&bytes[8..header]).expect("a header");
    let changed = ["lm_head.weight", "layers.1.self_attn.v_proj.weight", "visual.merger.linear_fc2.weight"];
    for name in changed {
        let (_, tensor) =
            table.as_object().expect("an object").iter().find(|(key, _)| key.ends_with(name)).expect("it is there");
        let place = |end: usize| header + tensor["data_offsets"][end].as_u64().expect("a number") as usize;
        for number in bytes[place(0)..place(1)].chunks_exact_mut(4) {
            number[3] ^= 0x80;
        }
    }
    std::fs::write(&file, bytes).expect("writes");
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_are_swapped_between_two_steps_and_nothing_of_the_old_ones_is_read() {
    let (engine, board) = (engine().await, board());
    let folder = other_weights();
    let ask_window = || request(window(&board, 20, 60, 16), 12);
    assert!(WINDOWS[0].2.starts_with(&text(&engine, ask_window()).await));
    // One that runs all the while.
    let mut long = request(overview(&board, "What shape is red?"), 6000);
    long.sampling.ignore_eos = true;
    let mut running = engine.generate(long).await.expect("accepted");
    while !matches!(running.next().await, Some(Ok(TokenEvent::Text(_)))) {}
    engine.swap(folder.path()).await.expect("swaps");
    assert_eq!(engine.load().running, 1, "the swap came while it ran");
    let (more, end) = read(running).await.expect("it goes on to its end");
    assert!(!more.is_empty() && end.usage.cached_tokens <= end.usage.prompt_tokens, "{end:?}");
    assert_eq!((end.reason, end.usage.completion_tokens), (FinishReason::Length, 6000));
    let other = text(&engine, ask_window()).await;
    assert!(!WINDOWS[0].2.starts_with(&other), "{other}");
    let alone = Native::load(folder.path(), NativeOptions::default()).await.expect("loads");
    assert_eq!(text(&alone, ask_window()).await, other);
    engine.swap(&checkpoint()).await.expect("swaps back");
    assert!(WINDOWS[0].2.starts_with(&text(&engine, ask_window()).await));
    // What is no checkpoint leaves the running one alone.
    let empty = tempfile::tempdir().expect("a folder");
    assert!(matches!(engine.swap(empty.path()).await, Err(EngineError::Load(_))));
    assert!(WINDOWS[0].2.starts_with(&text(&engine, ask_window()).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_differs_in_more_than_its_weights_does_not_take_over() {
    let (engine, board) = (engine().await, board());
    let changed = |file: &str, from: &str, to: &str| {
        let folder = copy();
        let path = folder.path().join(file);
        let text = std::fs::read_to_string(&path).expect("reads");
        assert!(text.contains(from), "{file}");
        std::fs::write(path, text.replacen(from, to, 1)).expect("writes");
        folder
    };
    for (folder, told) in [
        (changed("tokenizer.json", "{", "{ "), "tokenizer.json"),
        (changed("config.json", "\"max_position_embeddings\": 32768", "\"max_position_embeddings\": 4096"), "context"),
        (changed("generation_config.json", "eos_token_id", "other"), "ends a text"),
    ] {
        let error = engine.swap(folder.path()).await.expect_err(told);
        assert!(matches!(&error, EngineError::Load(problem) if problem.contains(told)), "{error}");
    }
    assert_eq!(text(&engine, request(window(&board, 20, 60, 16), 60)).await, WINDOWS[0].2);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_swap_waits_for_another() {
    let engine = engine().await;
    let (folder, empty) = (other_weights(), tempfile::tempdir().expect("a folder"));
    let mut first = std::pin::pin!(engine.swap(folder.path()));
    let _ = futures::poll!(first.as_mut());
    // There is nothing to load: alone it would be over long before.
    let second = std::pin::pin!(engine.swap(empty.path()));
    let Either::Left((swapped, second)) = select(first, second).await else { panic!("the second was the first") };
    assert!(swapped.is_ok() && matches!(second.await, Err(EngineError::Load(_))));
    engine.swap(&checkpoint()).await.expect("and others after them");
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_bits_say_the_same_here() {
    let (options, board) = (NativeOptions::default(), board());
    let engine = with(NativeOptions { quantization: Some(Quantization::Q8_0), ..options }).await;
    assert_eq!(text(&engine, request(window(&board, 20, 60, 16), 60)).await, WINDOWS[0].2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_text_cuts_the_answer_before_it() {
    board::cuts_the_answer_before_a_stop_text(&engine().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn special_tokens_in_the_question_are_only_text() {
    board::takes_special_tokens_in_a_question_for_text(&engine().await, &board()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_and_frames_that_do_not_fit_are_refused() {
    let engine = with(NativeOptions { max_prompt_tokens: Some(500), ..NativeOptions::default() }).await;
    let long = vec![Turn::text(Role::User, "red square ".repeat(40_000))];
    let error = ask(&engine, request(long, 5)).await.expect_err("too long");
    assert!(matches!(error, EngineError::TooLong { limit: 500, needed } if needed > 500), "{error}");
    for (width, height) in [(16, 64), (65, 64)] {
        let rgb = Bytes::from(vec![0; (3 * width * height) as usize]);
        let frame = Frame { time: Some(MediaTime::default()), size: FrameSize { width, height }, rgb };
        let error = ask(&engine, request(vec![user(vec![Part::Frame(frame)])], 5)).await.expect_err("refused");
        assert!(matches!(error, EngineError::Invalid(_)), "{error}");
    }
    for request in [request(Vec::new(), 5), request(vec![Turn::text(Role::User, "x")], 0)] {
        assert!(matches!(ask(&engine, request).await, Err(EngineError::Invalid(_))));
    }
    let gang = Gang::new();
    let seated = GenerateRequest { seat: Some(gang.seat()), ..request(Vec::new(), 5) };
    assert!(engine.generate(seated).await.is_err() && gang.complete());
    idle(&engine).await;
}
