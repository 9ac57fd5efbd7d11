//! The failure table of the design, row by row, without a model.

use super::*;
use crate::agent::request::ToolUse;
use crate::types::Part;

fn seconds(s: f64) -> MediaTime {
    MediaTime::from_seconds(s).expect("finite")
}

fn span(start: f64, end: f64) -> TimeSpan {
    TimeSpan::new(seconds(start), seconds(end)).expect("ordered")
}

fn rules() -> Rules {
    Rules {
        dispatch: Dispatch::Parallel,
        max_tool_turns: 3,
        max_calls: 5,
        must_look: false,
        think_prefix: "<think>\n".to_owned(),
        last_turn: "Answer now.".to_owned(),
        client_tools: vec!["note".to_owned()],
        single_call: false,
        forced: None,
    }
}

fn episode(rules: Rules) -> Episode {
    let video =
        |n: usize| SceneVideo { name: format!("video_{n}.mp4"), span: span(0.0, 140.2), duration: seconds(140.2) };
    Episode::new(rules, vec![video(1), video(2)], AnswerGate::new(&["STOP".to_owned()], 0))
}

fn call(start: f64, end: f64) -> String {
    format!(
        "<tool_call>\n{{\"name\": \"crop_video\", \"arguments\": {{\"video_path\": \"video_1.mp4\", \"start_time\": {start}, \
         \"end_time\": {end}}}}}\n</tool_call>\n"
    )
}

/// Runs a turn's text to its end.
fn turn(episode: &mut Episode, text: &str) -> Vec<Action> {
    let mut actions = episode.text(text, 1.0);
    actions.extend(episode.turn_ended(TurnRecord::begun(0, 0.0), 2.0));
    actions
}

fn watched(actions: &[Action]) -> Vec<(usize, f64, f64)> {
    let seen = actions.iter().filter_map(|action| match action {
        Action::Watch { id, window, .. } => Some((*id, window.start.seconds(), window.end.seconds())),
        _ => None,
    });
    seen.collect()
}

fn finish(episode: &mut Episode, id: usize, watched: Watched) -> Vec<usize> {
    let record = episode.window(id).clone();
    episode.window_done(record, watched, 3.0)
}

fn summarise(episode: &mut Episode, id: usize, text: &str) -> Vec<usize> {
    finish(episode, id, Watched::Summary(text.to_owned()))
}

/// The text of the tool response that the next turn is given.
fn response(episode: &mut Episode) -> String {
    let Next::Turn { add } = episode.next() else { panic!("a next turn") };
    match &add[1].parts[..] {
        [Part::Text(text)] => text.clone(),
        other => panic!("one text, not {other:?}"),
    }
}

fn answers(actions: &[Action]) -> String {
    actions
        .iter()
        .filter_map(|action| if let Action::Answer(text) = action { Some(text.as_str()) } else { None })
        .collect()
}

#[test]
fn a_burst_goes_out_call_by_call_and_comes_back_as_one_response_in_call_order() {
    let mut episode = episode(rules());
    let first = episode.text(&format!("Two places.\n</think>\n{}", call(12.0, 24.0)), 1.0);
    assert_eq!(watched(&first), [(0, 12.0, 24.0)], "a window starts before the burst is complete");
    let second = turn(&mut episode, &call(130.0, 138.0));
    assert_eq!(watched(&second), [(1, 130.0, 138.0)]);
    assert_eq!(episode.next(), Next::Wait);
    summarise(&mut episode, 1, "Nothing.");
    assert_eq!(episode.next(), Next::Wait);
    summarise(&mut episode, 0, "A red circle appears.");
    insta::assert_snapshot!(response(&mut episode), @"
    <tool_response>
    [12.0s - 24.0s] A red circle appears.
    [130.0s - 138.0s] Nothing.
    </tool_response>
    ");
    let last = turn(&mut episode, "Seen.</think><answer>red circle</answer>");
    assert_eq!(answers(&last), "red circle");
    assert_eq!(episode.next(), Next::Done);
    assert_eq!(episode.into_story().reasoning, "Two places.\n\nSeen.");
}

#[test]
fn a_malformed_call_fails_alone() {
    let mut episode = episode(rules());
    let actions = turn(&mut episode, &format!("x</think><tool_call>{{oops}}</tool_call>{}", call(1.0, 9.0)));
    assert_eq!(watched(&actions), [(1, 1.0, 9.0)]);
    assert!(actions.contains(&Action::Settled(0)));
    summarise(&mut episode, 1, "Fine.");
    let text = response(&mut episode);
    assert!(text.contains("\nfailed: the call is not valid JSON"), "{text}");
    assert!(text.contains("\n[1.0s - 9.0s] Fine.\n"), "{text}");
}

#[test]
fn windows_are_clamped_and_impossible_ones_are_told_with_the_length() {
    let mut episode = episode(rules());
    let text = format!("x</think>{}{}{}", call(-5.0, 10.0), call(150.0, 160.0), call(30.0, 20.0));
    let actions = turn(&mut episode, &text);
    assert_eq!(watched(&actions), [(0, 0.0, 10.0)]);
    summarise(&mut episode, 0, "Ok.");
    insta::assert_snapshot!(response(&mut episode), @"
    <tool_response>
    [0.0s - 10.0s] Ok.
    failed: the window is past the end of the video (140.2 s)
    failed: start_time must be before end_time (the video is 140.2 s long)
    </tool_response>
    ");
}

#[test]
fn the_same_window_twice_is_watched_once_and_told_twice() {
    let mut episode = episode(rules());
    let actions = turn(&mut episode, &format!("x</think>{}{}{}", call(10.0, 20.0), call(10.2, 19.8), call(11.0, 20.0)));
    assert_eq!(watched(&actions), [(0, 10.0, 20.0), (2, 11.0, 20.0)]);
    assert_eq!(summarise(&mut episode, 0, "Twin."), [0, 1]);
    summarise(&mut episode, 2, "Other.");
    let text = response(&mut episode);
    assert!(text.contains("[10.0s - 20.0s] Twin.\n[10.2s - 19.8s] Twin.\n[11.0s - 20.0s] Other."), "{text}");
    assert_eq!(episode.window(1).shared_with, Some(0));
    // In a later turn its summary is there at once.
    let again = turn(&mut episode, &format!("y</think>{}", call(10.0, 20.0)));
    assert_eq!(watched(&again), []);
    assert!(response(&mut episode).contains("[10.0s - 20.0s] Twin."));
}

#[test]
fn a_window_that_failed_is_watched_again_when_asked_again() {
    let mut episode = episode(rules());
    turn(&mut episode, &format!("x</think>{}", call(10.0, 20.0)));
    finish(&mut episode, 0, Watched::Failed("no".to_owned()));
    assert!(response(&mut episode).contains("[10.0s - 20.0s] failed: no"));
    assert_eq!(watched(&turn(&mut episode, &format!("y</think>{}", call(10.0, 20.0)))), [(1, 10.0, 20.0)]);
}

#[test]
fn calls_over_the_limit_are_not_run() {
    let mut episode = episode(rules());
    let text: String = (0..7).map(|n| call(f64::from(n) * 10.0, f64::from(n) * 10.0 + 5.0)).collect();
    let actions = turn(&mut episode, &format!("x</think>{text}"));
    assert_eq!(watched(&actions).len(), 5);
    for id in 0..5 {
        summarise(&mut episode, id, "Ok.");
    }
    let text = response(&mut episode);
    assert_eq!(text.matches("not run: at most 5 windows a turn").count(), 2, "{text}");
}

#[test]
fn an_unknown_tool_is_told_so() {
    let mut episode = episode(rules());
    turn(&mut episode, "x</think><tool_call>{\"name\": \"web_search\", \"arguments\": {}}</tool_call>");
    assert!(response(&mut episode).contains("failed: unknown tool \"web_search\""));
}

#[test]
fn a_wrong_video_path_means_the_first_video() {
    let mut episode = episode(rules());
    let named = |name: &str| call(1.0, 9.0).replace("video_1.mp4", name);
    let actions = turn(&mut episode, &format!("x</think>{}{}", named("nowhere.mkv"), named("video_2.mp4")));
    let videos: Vec<usize> =
        actions.iter().filter_map(|a| if let Action::Watch { video, .. } = a { Some(*video) } else { None }).collect();
    assert_eq!(videos, [0, 1]);
}

#[test]
fn failures_and_late_windows_are_theirs_alone_and_the_model_still_answers() {
    let mut episode = episode(rules());
    turn(&mut episode, &format!("x</think>{}{}", call(1.0, 9.0), call(20.0, 30.0)));
    finish(&mut episode, 0, Watched::Failed("broken".to_owned()));
    finish(&mut episode, 1, Watched::Late("not watched within 5 s".to_owned()));
    insta::assert_snapshot!(response(&mut episode), @"
    <tool_response>
    [1.0s - 9.0s] failed: broken
    [20.0s - 30.0s] failed: not watched within 5 s
    </tool_response>
    ");
    assert_eq!(episode.window(1).status, WindowStatus::Late);
    assert_eq!(answers(&turn(&mut episode, "From the overview.</think><answer>B</answer>")), "B");
}

#[test]
fn an_invented_response_stops_the_turn_and_is_not_kept() {
    let mut episode = episode(rules());
    let actions = episode.text(&format!("x</think>{}<tool_response>\nA goal.", call(1.0, 9.0)), 1.0);
    assert_eq!(watched(&actions), [(0, 1.0, 9.0)]);
    assert!(actions.contains(&Action::Stop));
    episode.turn_ended(TurnRecord::begun(0, 0.0), 2.0);
    summarise(&mut episode, 0, "Ok.");
    let Next::Turn { add } = episode.next() else { panic!("a next turn") };
    let Part::Text(said) = &add[0].parts[0] else { panic!("text") };
    assert!(said.starts_with("<think>\nx</think><tool_call>") && said.ends_with("</tool_call>"), "{said}");
}

#[test]
fn an_answer_beside_calls_is_a_draft() {
    let mut episode = episode(rules());
    let actions = turn(&mut episode, &format!("x</think>{}<answer>B</answer>", call(1.0, 9.0)));
    assert_eq!(answers(&actions), "");
    assert_eq!(episode.last_record().and_then(|turn| turn.draft.as_deref()), Some("B"));
}

#[test]
fn after_the_last_tool_turn_the_model_is_told_to_answer_and_its_calls_are_not_run() {
    let mut episode = episode(Rules { max_tool_turns: 1, ..rules() });
    turn(&mut episode, &format!("x</think>{}", call(1.0, 9.0)));
    summarise(&mut episode, 0, "Ok.");
    assert!(response(&mut episode).ends_with("</tool_response>\nAnswer now."));
    let actions = turn(&mut episode, &format!("I still think B.</think>{}", call(20.0, 30.0)));
    assert_eq!(watched(&actions), []);
    assert_eq!(answers(&actions), "I still think B.");
    assert_eq!(episode.next(), Next::Done);
}

#[test]
fn sequential_dispatch_takes_one_call_a_turn() {
    let mut episode = episode(Rules { dispatch: Dispatch::Sequential, max_calls: 1, ..rules() });
    let actions = episode.text(&format!("x</think>{}{}", call(1.0, 9.0), call(20.0, 30.0)), 1.0);
    assert_eq!(watched(&actions), [(0, 1.0, 9.0)]);
    assert!(actions.contains(&Action::Stop));
    episode.turn_ended(TurnRecord::begun(0, 0.0), 2.0);
    summarise(&mut episode, 0, "Ok.");
    let Next::Turn { add } = episode.next() else { panic!("a next turn") };
    let Part::Text(said) = &add[0].parts[0] else { panic!("text") };
    assert_eq!(said.matches("<tool_call>").count(), 1, "{said}");
}

#[test]
fn a_required_look_is_forced_once_and_then_counts() {
    let mut episode = episode(Rules { must_look: true, ..rules() });
    let actions = turn(&mut episode, "Easy.</think><answer>B</answer>");
    assert_eq!(answers(&actions), "", "the answer does not count yet");
    assert_eq!(episode.next(), Next::Turn { add: Vec::new() });
    assert_eq!(episode.prefix(), format!("<think>\nEasy.\n{FORCED_CALL}"));
    let actions = turn(&mut episode, "\"start_time\": 1, \"end_time\": 9}}\n</tool_call>");
    assert_eq!(watched(&actions), [(0, 1.0, 9.0)]);
    summarise(&mut episode, 0, "Ok.");
    assert!(response(&mut episode).contains("Ok."));
    assert_eq!(answers(&turn(&mut episode, "So.</think><answer>C</answer>")), "C");
    assert_eq!(episode.into_story().turns[0].draft.as_deref(), Some("B"));
}

#[test]
fn a_refused_call_is_no_look() {
    let mut episode = episode(Rules { must_look: true, ..rules() });
    turn(&mut episode, "x</think><tool_call>garbage</tool_call>");
    response(&mut episode);
    assert_eq!(answers(&turn(&mut episode, "y</think><answer>B</answer>")), "");
    assert_eq!(episode.next(), Next::Turn { add: Vec::new() });
    assert!(episode.prefix().ends_with(FORCED_CALL));
}

#[test]
fn a_stop_text_ends_the_answer_and_leaves_thinking_and_calls_alone() {
    let mut episode = episode(rules());
    let actions = turn(&mut episode, &format!("STOP and look.</think>{}", call(1.0, 9.0)));
    assert_eq!(watched(&actions), [(0, 1.0, 9.0)]);
    summarise(&mut episode, 0, "Ok.");
    response(&mut episode);
    let actions = episode.text("z</think><answer>red STOP circle</answer>", 4.0);
    assert_eq!(answers(&actions), "red ");
    assert!(actions.contains(&Action::Stop));
}

#[test]
fn a_call_that_is_never_closed_is_run_and_stays_in_the_conversation() {
    let mut episode = episode(rules());
    let open = call(1.0, 9.0).replace("\n</tool_call>\n", "");
    let actions = turn(&mut episode, &format!("x</think>{open}"));
    assert_eq!(watched(&actions), [(0, 1.0, 9.0)]);
    summarise(&mut episode, 0, "Ok.");
    let Next::Turn { add } = episode.next() else { panic!("a next turn") };
    assert_eq!(add[0], Turn::text(Role::Assistant, format!("<think>\nx</think>{open}")));
}

#[test]
fn thinking_that_was_cut_short_is_no_answer() {
    let mut episode = episode(rules());
    episode.text("The border is lit at", 1.0);
    let record = TurnRecord { finish_reason: FinishReason::Length, ..TurnRecord::begun(0, 0.0) };
    assert_eq!(answers(&episode.turn_ended(record, 2.0)), "");
    assert_eq!(episode.next(), Next::Done);
    assert_eq!(episode.into_story().finish_reason, FinishReason::Length);
}

#[test]
fn requests_lower_the_cards_bounds_and_never_raise_them() {
    let card = crate::card::ModelCard::load(std::path::Path::new("paravt-tiny")).expect("bundled card");
    let config = crate::config::AgentConfig::default();
    let rules = |max_turns, max_calls, tools| {
        let options = crate::agent::AskOptions { max_turns, max_calls, tools, ..Default::default() };
        let rules = Rules::new(&card, &config, &options);
        (rules.max_tool_turns, rules.max_calls)
    };
    assert_eq!(rules(None, None, ToolUse::Auto), (3, 5));
    assert_eq!(rules(Some(9), Some(9), ToolUse::Auto), (3, 5));
    assert_eq!(rules(Some(1), Some(2), ToolUse::Auto), (1, 2));
    assert_eq!(rules(None, None, ToolUse::None), (0, 0));
}

fn note(at: u32) -> String {
    format!("<tool_call>\n{{\"name\": \"note\", \"arguments\": {{\"at\": {at}}}}}\n</tool_call>\n")
}

#[test]
fn a_call_of_the_callers_tool_is_the_answer() {
    let mut episode = episode(rules());
    let actions = turn(&mut episode, &format!("hm</think>\n{}{}", note(5), note(6)));
    assert!(!actions.iter().any(|action| matches!(action, Action::Watch { .. } | Action::Settled(_))));
    assert_eq!(episode.next(), Next::Done);
    let story = episode.into_story();
    assert_eq!(story.tool_calls.iter().map(|call| call.arguments["at"].clone()).collect::<Vec<_>>(), [5, 6]);
    assert_eq!((story.answer.as_str(), story.windows.len()), ("", 0));
}

#[test]
fn one_call_of_the_callers_tool_where_it_wants_one() {
    let mut episode = episode(Rules { single_call: true, ..rules() });
    turn(&mut episode, &format!("hm</think>\n{}{}", note(5), note(6)));
    assert_eq!(episode.next(), Next::Done);
    assert_eq!(episode.into_story().tool_calls.len(), 1);
}

#[test]
fn windows_come_before_a_call_of_the_callers_tool_beside_them() {
    let mut episode = episode(rules());
    turn(&mut episode, &format!("hm</think>\n{}{}", call(1.0, 2.0), note(5)));
    assert_eq!(episode.next(), Next::Wait);
    let window = episode.window(0).clone();
    episode.window_done(window, Watched::Summary("A circle.".to_owned()), 3.0);
    let Next::Turn { add } = episode.next() else { panic!("another turn") };
    let Part::Text(text) = &add[1].parts[0] else { panic!("text") };
    assert!(text.contains("A circle.") && text.contains("note not run: call it again"), "{text}");
    turn(&mut episode, &format!("so</think>\n{}", note(5)));
    assert_eq!(episode.next(), Next::Done);
    assert_eq!(episode.into_story().tool_calls.len(), 1);
}

#[test]
fn an_answer_of_a_form_gets_a_turn_of_its_own() {
    use crate::agent::request::{AnswerForm, AskOptions};
    use crate::engine::Grammar;
    let options = AskOptions { form: AnswerForm::Fits(Grammar::JsonObject), ..AskOptions::default() };
    for first in ["hm</think>\n<answer>red", "hm</think>\nred", "hm, red"] {
        let mut episode = episode(Rules { forced: Forced::in_episode(&options), ..rules() });
        assert_eq!(episode.constraint(), None);
        let actions = turn(&mut episode, first);
        assert!(!actions.iter().any(|action| matches!(action, Action::Answer(_))), "{actions:?}");
        assert_eq!(episode.next(), Next::Turn { add: Vec::new() });
        let thought = first.split("</think>").next().expect("some");
        assert_eq!(episode.prefix(), format!("<think>\n{thought}\n</think>\n<answer>"));
        assert_eq!(episode.constraint().map(|constraint| constraint.grammar), Some(Grammar::JsonObject));
        turn(&mut episode, "{\"colour\": \"red\"}");
        assert_eq!(episode.next(), Next::Done);
        assert_eq!(episode.into_story().answer, "{\"colour\": \"red\"}");
    }
}

#[test]
fn a_forced_call_is_opened_and_closed_for_the_model() {
    use crate::agent::request::{AnswerForm, AskOptions, ClientTool};
    let tool = ClientTool { name: "note".to_owned(), description: None, parameters: serde_json::Map::new() };
    let options = AskOptions { client_tools: vec![tool], form: AnswerForm::Call(Some(0)), ..AskOptions::default() };
    let mut episode = episode(Rules { forced: Forced::in_episode(&options), ..rules() });
    turn(&mut episode, "hm</think>\n<answer>red</answer>");
    assert_eq!(episode.next(), Next::Turn { add: Vec::new() });
    assert!(episode.prefix().ends_with("{\"name\": \"note\", \"arguments\": "), "{}", episode.prefix());
    turn(&mut episode, "{\"at\": 5}");
    assert_eq!(episode.next(), Next::Done);
    let story = episode.into_story();
    assert_eq!((story.tool_calls[0].arguments["at"].clone(), story.answer.as_str()), (serde_json::json!(5), ""));
}

#[test]
fn tokens_are_those_of_the_answer_alone() {
    use crate::engine::TokenInfo;
    let token = |text: &str| TokenInfo { id: None, bytes: text.as_bytes().to_vec(), logprob: 0.0, top: Vec::new() };
    let mut episode = episode(rules());
    let mut told = Vec::new();
    for piece in ["hm", "</think>\n", "<answer>", " red", " circle", "</answer>"] {
        episode.tokens(vec![token(piece)]);
        for action in episode.text(piece, 1.0) {
            if let Action::Tokens(tokens) = action {
                told.extend(tokens);
            }
        }
    }
    let text: Vec<u8> = told.iter().flat_map(|token| token.bytes.clone()).collect();
    assert_eq!(String::from_utf8(text).expect("text"), "red circle");
    assert_eq!(episode.into_story().tokens.len(), 2);
}

#[test]
fn an_answer_of_a_form_may_hold_what_looks_like_tags() {
    use crate::agent::request::{AnswerForm, AskOptions};
    use crate::engine::Grammar;
    let options = AskOptions { form: AnswerForm::Fits(Grammar::JsonObject), ..AskOptions::default() };
    let mut episode = episode(Rules { forced: Forced::in_episode(&options), ..rules() });
    turn(&mut episode, "hm</think>\n<answer>red</answer>");
    assert_eq!(episode.next(), Next::Turn { add: Vec::new() });
    let json = "{\"text\": \"</answer><tool_call><think>\"}";
    turn(&mut episode, json);
    assert_eq!(episode.next(), Next::Done);
    assert_eq!(episode.into_story().answer, json);
}

#[test]
fn a_call_of_another_tool_or_a_cut_one_is_not_the_call_that_was_asked_for() {
    use crate::agent::request::{AnswerForm, AskOptions, ClientTool};
    let tool = |name: &str| ClientTool { name: name.to_owned(), description: None, parameters: serde_json::Map::new() };
    let options = AskOptions {
        client_tools: vec![tool("note"), tool("other")],
        form: AnswerForm::Call(Some(1)),
        ..AskOptions::default()
    };
    let client_tools = vec!["note".to_owned(), "other".to_owned()];
    let mut episode = episode(Rules { client_tools, forced: Forced::in_episode(&options), ..rules() });
    let actions = turn(&mut episode, &format!("hm</think>\n{}", note(5)));
    assert!(actions.contains(&Action::Stop));
    assert_eq!(episode.next(), Next::Turn { add: Vec::new() });
    assert!(episode.prefix().contains("\"other\""));
    episode.text("{\"at\": ", 1.0);
    let cut = TurnRecord { finish_reason: FinishReason::Length, ..TurnRecord::begun(1, 0.0) };
    episode.turn_ended(cut, 2.0);
    assert_eq!(episode.next(), Next::Done);
    let story = episode.into_story();
    assert_eq!((story.tool_calls.len(), story.windows.len()), (0, 0));
}
