//! Traces before and after: examples of each rule, and what must hold of all.

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::json;

use super::super::check::{Check, Problem};
use super::super::row::{Content, ContentPart, Row};
use super::*;

fn call(start: u32, end: u32) -> String {
    let arguments = json!({"video_path": "a.mp4", "start_time": start, "end_time": end});
    format!("<tool_call>\n{}\n</tool_call>", json!({"name": "crop_video", "arguments": arguments}))
}

fn turn(think: &str, calls: &[(u32, u32)]) -> Message {
    let calls: Vec<String> = calls.iter().map(|(start, end)| call(*start, *end)).collect();
    Message::text("assistant", format!("<think>{think}</think>\n{}", calls.join("\n")))
}

fn frames() -> Message {
    let frame = json!({"type": "image", "image": "f.jpg"});
    let parts = vec![ContentPart::text("Here:"), serde_json::from_value(frame).expect("a part")];
    Message { content: Content::Parts(parts), ..Message::text("user", "") }
}

fn told(lines: &str) -> Message {
    Message::text("user", format!("<tool_response>\n{lines}\n</tool_response>"))
}

fn answer(think: &str) -> Message {
    Message::text("assistant", format!("<think>{think}</think>\n<answer>red circle, blue square</answer>"))
}

fn row(turns: Vec<Message>) -> SftRow {
    let opening = [Message::text("system", "You watch videos."), Message::text("user", "Which shapes?")];
    SftRow { messages: opening.into_iter().chain(turns).collect() }
}

fn words(row: &SftRow) -> Vec<String> {
    row.messages.iter().skip(2).map(Message::words).collect()
}

/// All windows in their order.
fn windows_of(row: &SftRow) -> Vec<(i64, i64)> {
    let turns = row.messages.iter().filter(|message| message.role == "assistant");
    let windows = turns.flat_map(|turn| said(&turn.words()).calls).flatten();
    windows.map(|window| (window.start.micros(), window.end.micros())).collect()
}

#[test]
fn frames_become_words_and_two_turns_one_burst() {
    let made = parallel(&row(vec![
        turn("The border is lit twice. I begin with the first.", &[(20, 60)]),
        frames(),
        turn("A red circle. Now I check 160 to 180.", &[(160, 180)]),
        frames(),
        answer("A blue square."),
    ]));
    assert_eq!((made.merged, made.told, made.frames_left), (1, 2, 0));
    let burst = format!(
        "<think>The border is lit twice. I begin with the first.\nNow I check 160 to 180.</think>\n{}\n{}",
        call(20, 60),
        call(160, 180)
    );
    let response = "<tool_response>\n[20.0s - 60.0s] A red circle.\n[160.0s - 180.0s] A blue square.\n</tool_response>";
    assert_eq!(words(&made.row), [&burst, response, &answer("A blue square.").words()]);
}

#[test]
fn what_was_seen_and_stands_in_no_response_is_thought_later() {
    let made = parallel(&row(vec![
        turn("Lit twice.", &[(20, 60)]),
        told("[20.0s - 60.0s] A red circle."),
        turn("That is one of two. Now I check 160 to 180.", &[(160, 180)]),
        told("[160.0s - 180.0s] A blue square."),
        answer("Both."),
    ]));
    assert_eq!((made.merged, made.told), (1, 0));
    assert_eq!(words(&made.row)[2], answer("That is one of two.\nBoth.").words());
}

#[test]
fn turns_that_stand_in_each_others_way_stay_apart() {
    let first = || turn("Lit twice.", &[(20, 60)]);
    let line = || told("[20.0s - 60.0s] A red circle near a door.");
    let second = "Now I check 160 to 180.";
    let last = || told("[160.0s - 180.0s] A blue square.");
    for (why, turns) in [
        (
            "the windows overlap",
            vec![first(), line(), turn("Now I check 50 to 180.", &[(50, 180)]), last(), answer("a")],
        ),
        ("refers", vec![first(), line(), turn("I check the door, 160 to 180.", &[(160, 180)]), last(), answer("a")]),
        (
            "an answer between",
            vec![
                first(),
                line(),
                turn(&format!("{second}</think><answer>a</answer><think>"), &[(160, 180)]),
                last(),
                answer("a"),
            ],
        ),
        ("a window that can't be", vec![first(), line(), turn(second, &[(180, 160)]), last(), answer("a")]),
        ("more than a response", {
            let noted = Message::text("user", format!("{}\nOne look is left.", line().words()));
            vec![first(), noted, turn(second, &[(160, 180)]), last(), answer("a")]
        }),
        (
            "no response",
            vec![first(), Message::text("user", "Go on."), turn(second, &[(160, 180)]), last(), answer("a")],
        ),
        ("a field would be lost", {
            let mut turn = turn(second, &[(160, 180)]);
            turn.fields.insert("weight".to_owned(), json!(0.5));
            vec![first(), line(), turn, last(), answer("a")]
        }),
        ("frames that nobody tells", vec![first(), frames(), turn("", &[(160, 180)]), last(), answer("a")]),
    ] {
        let row = row(turns);
        let made = parallel(&row);
        assert_eq!((made.merged, &made.row), (0, &row), "{why}");
    }
    // No conversation at all.
    let odd = SftRow { messages: vec![first(), line()] };
    assert_eq!(parallel(&odd).row, odd);
}

#[test]
fn windows_that_were_all_named_at_first_become_one_burst() {
    let made = parallel(&row(vec![
        turn("Lit at 20-60, 160-180 and 03:20-03:40.", &[(20, 60)]),
        frames(),
        turn("A red circle.", &[(160, 180)]),
        frames(),
        turn("A blue square.", &[(200, 220)]),
        frames(),
        answer("Nothing."),
    ]));
    assert_eq!((made.merged, made.told, made.row.messages.len()), (2, 3, 5));
    let response = "<tool_response>\n[20.0s - 60.0s] A red circle.\n[160.0s - 180.0s] A blue square.\n\
                    [200.0s - 220.0s] Nothing.\n</tool_response>";
    assert_eq!(words(&made.row)[1], response);
}

/// Conversations of up to six calling turns: windows that may overlap, responses of frames or of words, turns that plan, refer,
/// say nothing, or are broken.
fn conversations() -> impl Strategy<Value = SftRow> {
    let thought = prop_oneof![
        6 => Just("A red circle. Now I check {} to {}.".to_owned()),
        3 => Just("Lit at 20-60, 100-130, 160-180. Next.".to_owned()),
        3 => Just("A blue square near the door.\nCheck {}.".to_owned()),
        1 => Just("So I look at the door from {} on.".to_owned()),
        1 => Just("I check the other one.".to_owned()),
        1 => Just(String::new()),
        1 => Just("Broken</think><think>".to_owned()),
        1 => Just("Open <answer>".to_owned()),
    ];
    let spans = prop_oneof![
        20 => (0_u32..12).prop_map(|at| (at * 30, at * 30 + 30)),
        6 => (0_u32..12).prop_map(|at| (at * 25, at * 25 + 40)),
        1 => Just((9, 9)),
    ];
    let response = prop_oneof![
        6 => Just(frames()),
        6 => Just(told("[1.0s - 2.0s] A door opens.")),
        1 => Just(told("At 165 a sign.")),
        1 => Just(Message::text("user", "Go on.")),
    ];
    let spans = prop_oneof![4 => proptest::collection::vec(spans.clone(), 1), 1 => proptest::collection::vec(spans, 2)];
    let step = (thought, spans, response).prop_map(|(thought, spans, response)| {
        let (start, end) = spans[0];
        let thought = thought.replacen("{}", &start.to_string(), 1).replacen("{}", &end.to_string(), 1);
        [turn(&thought, &spans), response]
    });
    let last = prop_oneof![
        Just(Some(answer("A door."))),
        Just(Some(answer(""))),
        Just(Some(Message::text("assistant", "b"))),
        Just(None)
    ];
    (proptest::collection::vec(step, 0..6), last)
        .prop_map(|(steps, last)| row(steps.into_iter().flatten().chain(last).collect()))
}

proptest! {
    #[test]
    fn order_windows_and_answer_survive_and_twice_is_once(row in conversations()) {
        let made = parallel(&row);
        prop_assert_eq!(&made.row.messages[..2], &row.messages[..2]);
        prop_assert_eq!(windows_of(&made.row), windows_of(&row));
        prop_assert_eq!(made.row.messages.len() + 2 * made.merged, row.messages.len());
        prop_assert!(is_conversation(&made.row.messages));
        let answer = |row: &SftRow| row.messages.last().map(|last| said(&last.words()).answer);
        prop_assert_eq!(answer(&made.row), answer(&row));
        let again = parallel(&made.row);
        prop_assert_eq!((again.merged, again.told), (0, 0));
        prop_assert_eq!(again.row, made.row);
    }

    #[test]
    fn a_good_conversation_stays_good(row in conversations()) {
        if problems(&row).is_empty() {
            prop_assert_eq!(problems(&parallel(&row).row), []);
        }
    }
}

fn problems(row: &SftRow) -> Vec<Problem> {
    let mut check = Check::new(None, Check::MOST);
    check.add(1, &Row::Sft(row.clone()));
    check.finish().problems
}

/// So that the properties are of something.
#[test]
fn many_of_the_conversations_are_good_and_many_are_merged() {
    let mut runner = TestRunner::deterministic();
    let mut next = || conversations().new_tree(&mut runner).expect("a conversation").current();
    let rows: Vec<SftRow> = (0..300).map(|_| next()).collect();
    let merged = rows.iter().filter(|row| parallel(row).merged > 0).count();
    let good = rows.iter().filter(|row| parallel(row).merged > 0 && problems(row).is_empty()).count();
    assert!(merged > 30 && good > 5, "{merged}, {good}");
}
