//! The oracle, and that chunks do not matter.

use proptest::prelude::*;
use serde_json::Value;

use super::{Malformed, Parsed, Parser, Segment, ToolCall};

/// Text, answer and calls of a turn, put together from segments.
#[derive(Debug, PartialEq, Default)]
struct Read {
    think: String,
    answer: String,
    calls: Vec<Result<ToolCall, Malformed>>,
    parsed: Parsed,
}

fn read<'a>(thinking: bool, chunks: impl IntoIterator<Item = &'a str>) -> Read {
    let mut parser = Parser::new();
    let mut segments = if thinking { parser.push("<think>\n") } else { Vec::new() };
    for chunk in chunks {
        segments.extend(parser.push(chunk));
    }
    let (rest, parsed) = parser.finish(false);
    segments.extend(rest);
    let mut read = Read { parsed, ..Read::default() };
    for segment in segments {
        match segment {
            Segment::Think(text) => read.think.push_str(&text),
            Segment::Answer(text) => read.answer.push_str(&text),
            Segment::Call(call) => read.calls.push(call),
            Segment::Answered | Segment::Stop => {}
        }
    }
    read
}

fn oracle() -> Vec<Value> {
    serde_json::from_str(include_str!("../../tests/fixtures/tool_bursts.json")).expect("fixture")
}

fn thinking(case: &Value) -> bool {
    case["note"].as_str().is_some_and(|note| note.contains("already open"))
}

#[test]
fn every_case_of_the_oracle() {
    let cases = oracle();
    assert_eq!(cases.len(), 44);
    for case in cases {
        let name = case["name"].as_str().expect("name");
        let read = read(thinking(&case), [case["text"].as_str().expect("text")]);
        let good: Vec<&ToolCall> = read.calls.iter().flatten().collect();
        let expected = case["calls"].as_array().expect("calls");
        assert_eq!(good.len(), expected.len(), "{name}: {read:?}");
        for (call, expected) in good.into_iter().zip(expected) {
            assert_eq!(call.name, expected["name"], "{name}");
            let mut arguments = call.arguments.clone();
            if call.name == crate::agent::tool::CROP_VIDEO {
                let (start, end) = crate::agent::tool::window_arguments(&call.arguments).expect("times");
                arguments.clear();
                arguments.insert("start_time".to_owned(), start.seconds().into());
                arguments.insert("end_time".to_owned(), end.seconds().into());
            }
            for (key, value) in expected["arguments"].as_object().expect("arguments") {
                let same = match (value.as_f64(), arguments[key].as_f64()) {
                    (Some(a), Some(b)) => a == b,
                    _ => *value == arguments[key],
                };
                assert!(same, "{name}: {key} is {:?}", arguments[key]);
            }
        }
        assert_eq!(read.calls.iter().filter(|call| call.is_err()).count() as u64, case["malformed"], "{name}");
        assert_eq!(read.parsed.answer.as_deref(), case["answer"].as_str(), "{name}");
        assert_eq!(read.parsed.think.as_deref(), case["think"].as_str(), "{name}");
        // What streamed is what the turn came to.
        assert_eq!(read.answer, read.parsed.answer.clone().unwrap_or_default(), "{name}");
        assert_eq!(read.think, read.parsed.think.clone().unwrap_or_default(), "{name}");
    }
}

#[test]
fn character_by_character_gives_the_same() {
    for case in oracle() {
        let text = case["text"].as_str().expect("text");
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(read(thinking(&case), [text]), read(thinking(&case), pieces.iter().map(String::as_str)), "{text}");
    }
}

#[test]
fn a_call_is_out_as_soon_as_its_block_is_closed() {
    let mut parser = Parser::new();
    let call = "{\"name\": \"crop_video\", \"arguments\": {\"start_time\": 1, \"end_time\": 2}}";
    assert_eq!(parser.push("<think>Look.</think><tool_call>").len(), 1);
    assert!(parser.push(call).is_empty());
    assert!(matches!(parser.push("</tool_call>").as_slice(), [Segment::Call(Ok(_))]));
}

#[test]
fn an_answer_streams_and_ends_the_turn() {
    let mut parser = Parser::new();
    parser.push("<think>Look.</think><answer>");
    assert_eq!(parser.push("red ci"), [Segment::Answer("red ci".to_owned())]);
    assert_eq!(parser.push("rcle</answer> and <tool_call>"), [Segment::Answer("rcle".to_owned()), Segment::Answered]);
    assert!(parser.push("{}</tool_call>").is_empty());
}

#[test]
fn a_draft_beside_calls_is_kept() {
    let call = "<tool_call>{\"name\":\"x\",\"arguments\":{}}</tool_call>";
    let read = read(false, [format!("{call}<answer>B</answer>{call}").as_str()]);
    assert_eq!((read.calls.len(), read.parsed.draft.as_deref()), (2, Some("B")));
    assert_eq!(read.answer, "");
}

#[test]
fn a_stray_quote_does_not_swallow_the_next_call() {
    let broken = "<tool_call>{\"name\":\"crop_video\",\"arguments\":{\"start_time\":1,\"end_time\":2\"}}</tool_call>";
    let good = "<tool_call>{\"name\":\"crop_video\",\"arguments\":{\"start_time\":5,\"end_time\":6}}</tool_call>";
    for between in ["", "\n", " "] {
        let read = read(false, [format!("{broken}{between}{good}").as_str()]);
        assert_eq!(read.calls.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, true], "{between:?}");
    }
}

#[test]
fn a_runaway_block_is_cut() {
    let text = format!("<tool_call>{}", "x".repeat(200_000));
    let read = read(false, [text.as_str()]);
    assert!(read.calls.iter().all(Result::is_err));
    assert!(!read.calls.is_empty());
}

#[test]
fn unfinished_thinking_is_no_answer() {
    let mut parser = Parser::new();
    parser.push("<think>The border is lit at");
    assert_eq!(parser.finish(true).1.answer, None);
}

#[test]
fn a_call_that_is_never_closed_does_not_stop_the_turn() {
    let mut parser = Parser::new();
    parser.push("<tool_call>{\"name\":\"x\",\"arguments\":{}}");
    assert_eq!(parser.stopped_at(), None);
    parser.push("</tool_call><tool_response>more");
    assert_eq!(
        parser.stopped_at(),
        Some("<tool_call>{\"name\":\"x\",\"arguments\":{}}</tool_call><tool_response>".len())
    );
}

#[test]
fn a_plain_completion_keeps_every_tag_but_thinking() {
    let mut parser = Parser::plain();
    let mut segments = parser.push("<think>hm</think><tool_call>{}</tool_call> ok ");
    let (rest, parsed) = parser.finish(false);
    segments.extend(rest);
    assert_eq!(parsed.answer.as_deref(), Some("<tool_call>{}</tool_call> ok"));
    assert_eq!(parsed.think.as_deref(), Some("hm"));
}

/// Pieces of real turns, and what lies between them.
fn turn() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "<tool_call>",
        "</tool_call>",
        "<tool_code>",
        "</tool_code>",
        "<tool_response>",
        "<|im_end|>",
        "<|im_start|>assistant\n",
        "<|",
        "<",
        "</",
        " ",
        "\n",
        "é⚽",
        "B",
        "\"",
        "'",
        "\\",
        "{\"name\":\"crop_video\",\"arguments\":{\"start_time\":1,\"end_time\":2}}",
        "{'name': 'x'}",
        "```json\n",
        "crop_video(1, 2)",
        "text",
        "{",
        "}",
        ",",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chunks_do_not_matter(text in turn(), thinking: bool, cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).filter(|at| text.is_char_boundary(*at)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let chunks = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]);
        prop_assert_eq!(read(thinking, chunks), read(thinking, [text.as_str()]));
    }

    #[test]
    fn tags_never_leak_into_an_answer(text in turn()) {
        let answer = read(false, [text.as_str()]).answer;
        for tag in super::TAGS.into_iter().chain(["<|im_end|>"]) {
            prop_assert!(!answer.contains(tag), "{}", answer);
        }
    }
}

#[test]
fn a_plain_completion_with_tools_tells_calls_from_text() {
    let mut parser = Parser::with_tools();
    let text = "<think>a<b</think>See <answer>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
    let (mut think, mut answer, mut calls) = (String::new(), String::new(), 0);
    let mut segments: Vec<Segment> = text.split_inclusive(' ').flat_map(|piece| parser.push(piece)).collect();
    assert_eq!(parser.answer_at(), text.find("See"));
    segments.extend(parser.finish(false).0);
    for segment in segments {
        match segment {
            Segment::Think(text) => think.push_str(&text),
            Segment::Answer(text) => answer.push_str(&text),
            Segment::Call(call) => calls += usize::from(call.is_ok()),
            Segment::Answered | Segment::Stop => {}
        }
    }
    assert_eq!((think.as_str(), answer.as_str(), calls), ("a<b", "See <answer>", 1));
}

#[test]
fn what_a_caller_began_is_not_repeated_not_even_its_blanks() {
    let mut parser = Parser::plain();
    parser.open("The colour is ");
    assert_eq!(parser.push("red."), [Segment::Answer("red.".to_owned())]);
}
