//! The oracle, each difference between the paper and the released code, and that no text breaks the reward.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde::Deserialize;

use super::*;

/// What the reference gave for a completion. It wrote nine digits.
#[derive(Debug, Deserialize)]
struct Case {
    name: String,
    completion: String,
    answer: String,
    question_type: QuestionType,
    extracted: String,
    acc: f64,
    fmt: f64,
    tool: f64,
    total: f64,
}

const PREFIX: &str = "<think>\n";
const CALL: &str =
    "<tool_call>{\"name\": \"crop_video\", \"arguments\": {\"start_time\": 1, \"end_time\": 5}}</tool_call>";
const THOUGHT: &str = "The evidence is near the start.\n</think>\n";

fn oracle() -> Vec<Case> {
    serde_json::from_str(include_str!("../../tests/fixtures/rewards.json")).expect("fixture")
}

fn reward(compat: Compat) -> RuleReward {
    RuleReward::new(RewardConfig { compat, ..RewardConfig::default() }).expect("good weights")
}

/// Scores of turns that the prompt opened with `prefix`, by the paper and by the released code.
fn both(prefix: &str, turns: &[&str], tools_run: usize, answer: &str, question: &str) -> (Scores, Scores) {
    let texts: Vec<String> = turns.iter().map(|turn| format!("{prefix}{turn}")).collect();
    let turns: Vec<WrittenTurn<'_>> = texts.iter().map(|text| WrittenTurn { text, prefix: prefix.len() }).collect();
    let written = Written { turns: &turns, tools_run };
    let truth = Truth { answer, question: question.into() };
    (reward(Compat::Paper).score(&written, &truth), reward(Compat::Upstream).score(&written, &truth))
}

fn near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-9
}

#[test]
fn the_released_rules_give_what_the_reference_gave() {
    let cases = oracle();
    assert_eq!(cases.len(), 40);
    for case in cases {
        let (_, found) = both("", &[&case.completion], 0, &case.answer, case.question_type.into());
        assert_eq!(found.extracted, case.extracted, "{}", case.name);
        let pairs =
            [(found.accuracy, case.acc), (found.format, case.fmt), (found.tool, case.tool), (found.total, case.total)];
        assert!(pairs.iter().all(|(one, other)| near(*one, *other)), "{}: {found:?}", case.name);
    }
}

#[test]
fn both_rules_agree_where_nothing_is_in_dispute() {
    for case in oracle() {
        let disputed = ["tool_response", "json_list", "without_arguments", "normalisation"];
        if disputed.iter().any(|word| case.name.contains(word) || case.completion.contains(word)) {
            continue;
        }
        let (paper, upstream) = both("", &[&case.completion], 0, &case.answer, case.question_type.into());
        assert_eq!(paper, upstream, "{}", case.name);
    }
}

#[test]
fn thinking_that_the_prompt_opened_earns_its_part_in_the_paper_alone() {
    let look = format!("{THOUGHT}{CALL}");
    let tell = "It shows a red ball.\n</think>\n<answer>red ball</answer>";
    let (paper, upstream) = both(PREFIX, &[&look, tell], 1, "red ball", "oe");
    assert!(near(paper.format, 1.0) && near(upstream.format, 0.5), "{paper:?} {upstream:?}");
    assert_eq!((paper.tags.balanced(), paper.tags.think.opened, paper.tags.think.closed), (true, 2, 2));
    assert_eq!(paper.tags, upstream.tags, "rates can be compared");
    // Thinking that never ends is not noticed either.
    let (paper, upstream) = both(PREFIX, &["I keep thinking about it"], 0, "red ball", "oe");
    assert!(near(paper.format, 0.05) && near(upstream.format, 0.0), "{paper:?} {upstream:?}");
    // The prefix is no answer.
    let (paper, upstream) = both(PREFIX, &[""], 0, "think", "oe");
    assert_eq!((paper.extracted.as_str(), upstream.extracted.as_str()), ("", ""));
    assert!(near(paper.total, -0.15) && near(upstream.total, 0.0), "{paper:?} {upstream:?}");
}

#[test]
fn a_tool_ran_in_the_paper_when_it_ran_and_upstream_when_its_response_was_invented() {
    let answer = "</think><answer>red ball</answer>";
    let honest = format!("{THOUGHT}{CALL}");
    let (paper, upstream) = both(PREFIX, &[&honest, answer], 1, "red ball", "oe");
    assert!(near(paper.tool, 0.8) && near(upstream.tool, 0.6), "{paper:?} {upstream:?}");
    let (paper, upstream) = both(PREFIX, &[&honest, answer], 0, "red ball", "oe");
    assert!(near(paper.tool, 0.6) && near(upstream.tool, 0.6), "refused: {paper:?} {upstream:?}");
    let invented = format!("{honest}<tool_response>ball</tool_response><answer>green cube</answer>");
    let (paper, upstream) = both(PREFIX, &[&invented], 0, "red ball", "oe");
    assert!(near(paper.tool, 0.1) && near(upstream.tool, 0.3), "{paper:?} {upstream:?}");
}

#[test]
fn a_call_counts_in_the_paper_when_the_agent_would_run_it() {
    let list = "<tool_call>[{\"name\": \"crop_video\", \"arguments\": {}}]</tool_call>";
    let turns = [format!("{THOUGHT}{list}"), "</think><answer>red ball</answer>".to_owned()];
    let (paper, upstream) = both(PREFIX, &[&turns[0], &turns[1]], 1, "red ball", "oe");
    assert!(near(paper.tool, 0.8) && near(upstream.tool, 0.0), "{paper:?} {upstream:?}");
    let thought = format!("Perhaps {CALL} helps.\n</think><answer>red ball</answer>");
    let (paper, upstream) = both(PREFIX, &[&thought], 0, "red ball", "oe");
    assert_eq!((paper.tags.calls, upstream.tags.calls), (0, 1));
    assert!(near(paper.tool, 0.0) && near(upstream.tool, 0.6), "{paper:?} {upstream:?}");
}

#[test]
fn the_letter_a_is_a_letter_in_the_paper_and_an_article_upstream() {
    let (paper, upstream) = both("", &["<answer>The</answer>"], 0, "A", "mcq");
    assert!(near(paper.accuracy, 0.0) && near(upstream.accuracy, 1.0), "{paper:?} {upstream:?}");
    let (paper, upstream) = both("", &["<answer>(a)</answer>"], 0, "A", "mcq");
    assert!(near(paper.accuracy, 1.0) && near(upstream.accuracy, 1.0), "{paper:?} {upstream:?}");
}

#[test]
fn a_second_question_about_a_video_has_its_own_prompt_in_the_paper_alone() {
    let shared = |compat: Compat| compat.prompt_key("v.mp4", "Which colour?") == compat.prompt_key("v.mp4", "When?");
    assert_eq!((shared(Compat::Paper), shared(Compat::Upstream)), (false, true));
    assert_ne!(Compat::Upstream.prompt_key("v.mp4", "When?"), Compat::Upstream.prompt_key("w.mp4", "When?"));
}

#[test]
fn settings_are_read_by_their_names_and_checked() {
    let config: RewardConfig =
        serde_json::from_str(r#"{"compat": "upstream", "mode": "exact", "anchor_weight": 0}"#).expect("reads");
    let expected = RewardConfig {
        compat: Compat::Upstream,
        mode: AnswerMode::Exact,
        anchor_weight: 0.0,
        ..RewardConfig::default()
    };
    assert_eq!(config, expected);
    assert_eq!("paper".parse::<Compat>().expect("known"), Compat::default());
    assert_eq!("upstream".parse::<Compat>().expect("known"), Compat::Upstream);
    let refused = "Paper".parse::<Compat>().expect_err("unknown").to_string();
    assert_eq!(refused, "compat is paper or upstream, not \"Paper\"");
    for weight in [f64::NAN, f64::INFINITY, -0.1, 100.5] {
        assert!(RuleReward::new(RewardConfig { format_weight: weight, ..RewardConfig::default() }).is_err());
        assert!(RuleReward::new(RewardConfig { anchor_weight: weight, ..RewardConfig::default() }).is_err());
    }
    let kinds = ["mcq", "tvg", "oe", "else"].map(QuestionType::from);
    let names = kinds.map(|kind| serde_json::to_value(kind).expect("writes"));
    assert_eq!(names, ["mcq", "tvg", "oe", "oe"]);
}

#[test]
fn a_prefix_beyond_the_text_leaves_nothing() {
    let turns = [WrittenTurn { text: "é", prefix: 1 }, WrittenTurn { text: "x", prefix: 9 }];
    let truth = Truth { answer: "x", question: QuestionType::Open };
    let found = reward(Compat::Upstream).score(&Written { turns: &turns, tools_run: 0 }, &truth);
    assert_eq!((found.extracted.as_str(), found.total), ("", 0.0));
}

#[test]
fn long_text_takes_no_longer_than_its_length_allows() {
    for piece in [
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "<tool_call>",
        "<tool_code>(",
        "<tool_call>{\"name\":",
        "<tool_call></tool_call>",
        "<tool_response>",
        "<",
        "1,",
        "1.",
        "a ",
        "option ",
        "\n",
        "<|im_end|>",
        "<|im_start|>",
    ] {
        let questions: &[&str] = if piece.starts_with('<') { &["oe"] } else { &["mcq", "tvg", "oe"] };
        for (end, question) in ["", "</answer>"].iter().flat_map(|end| questions.iter().map(move |of| (end, of))) {
            let text = format!("<answer>{}{end}", piece.repeat(100_000 / piece.len()));
            let from = Instant::now();
            both(PREFIX, &[&text], 0, "[1, 2]", question);
            // A tenth of a second each when unoptimized; minutes if it were quadratic.
            assert!(from.elapsed() < Duration::from_secs(10), "{piece} {end} {question}: {:?}", from.elapsed());
        }
    }
}

/// Text of tags, calls, answers and anything else.
fn anything() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            "<think>",
            "</think>",
            "<answer>",
            "</answer>",
            "<tool_call>",
            "</tool_call>",
            "<tool_code>",
            "</tool_code>",
            "<tool_response>",
            "</tool_response>",
            "<|im_start|>",
            "<|im_end|>",
            "{\"name\": \"crop_video\"}",
            "f(1)",
            "[10, 20]",
            "B",
            "The",
            "a long enough thought",
            "\n",
            " ",
            "\u{1f}",
            "9e999,1",
        ])
        .prop_map(str::to_owned),
        any::<String>(),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_text_has_a_finite_reward_within_its_bounds(
        turns in prop::collection::vec(anything(), 0..3),
        answer in prop_oneof![any::<String>(), Just("B".to_owned()), Just("[10, 20]".to_owned())],
        question in prop::sample::select(vec!["mcq", "tvg", "oe"]),
        prefix in prop::sample::select(vec!["", PREFIX]),
        tools_run in 0..3_usize,
    ) {
        let turns: Vec<&str> = turns.iter().map(String::as_str).collect();
        let (paper, upstream) = both(prefix, &turns, tools_run, &answer, question);
        for scores in [paper, upstream] {
            prop_assert!((0.0..=1.0).contains(&scores.accuracy), "{scores:?}");
            prop_assert!((-0.15 - 1e-9..=1.0).contains(&scores.format), "{scores:?}");
            prop_assert!((0.0..=0.8).contains(&scores.tool), "{scores:?}");
            prop_assert!((-0.15 - 1e-9..=2.8).contains(&scores.total), "{scores:?}");
        }
    }
}
