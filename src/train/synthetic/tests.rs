//! Examples say what the agent would say, and are right.

use std::path::Path;

use super::*;
use crate::card::DEFAULT;
use crate::types::Part;

fn world() -> World {
    World::new(ModelCard::load(Path::new(DEFAULT)).expect("the bundled card")).expect("a world")
}

fn words(turn: &Turn) -> String {
    turn.parts.iter().filter_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None }).collect()
}

#[test]
fn an_episode_lists_what_is_lit_and_calls_each_stretch_once() {
    let world = world();
    for place in 0..200 {
        for (frames, level) in [(16, 3), (16, 5), (8, 2), (4, 1)] {
            let example = world.example(Lesson::Episode { frames, level }, 1, place);
            assert_eq!(example.turns.len(), 5);
            assert_eq!(example.turns[1].frames().count(), frames);
            let first = words(&example.turns[2]);
            let (thought, calls) = first.split_once("\n</think>").expect("a thought");
            let listed: Vec<Vec<&str>> = thought
                .strip_prefix("<think>\nThe border is lit at ")
                .and_then(|rest| rest.strip_suffix('.'))
                .expect("a list")
                .split(" and at ")
                .map(|stretch| stretch.split(", ").collect())
                .collect();
            // What is listed is what the frames show.
            let bright: Vec<String> = example.turns[1]
                .frames()
                .filter(|frame| frame.rgb[0] > 200)
                .map(|frame| frame.time.expect("a time").to_string())
                .collect();
            assert_eq!(listed.concat(), bright, "{first}");
            let windows: Vec<String> = listed
                .iter()
                .map(|stretch| format!("\"start_time\": {}, \"end_time\": {}", stretch[0], stretch[stretch.len() - 1]))
                .collect();
            assert_eq!(calls.matches("<tool_call>").count(), windows.len());
            assert!(windows.iter().all(|window| calls.contains(window)), "{first}");
            assert_eq!(words(&example.turns[3]).lines().count(), windows.len() + 2);
        }
    }
}

#[test]
fn examples_are_of_all_questions_and_stay_what_they_are() {
    let world = world();
    let lesson = Lesson::Episode { frames: 16, level: 3 };
    let mut kinds = std::collections::BTreeSet::new();
    for place in 0..40 {
        let example = world.example(lesson, 5, 4 * place);
        assert_eq!(example, world.example(lesson, 5, 4 * place));
        let question = words(&example.turns[1]);
        kinds.insert(
            ["Which shapes", "How many", "What color", "What shape"].iter().position(|kind| question.contains(kind)),
        );
    }
    assert_eq!(kinds.len(), 4);
    assert_ne!(world.example(lesson, 5, 0), world.example(lesson, 6, 0));
}

#[test]
fn a_watcher_says_what_its_frames_show() {
    let world = world();
    let grey = |frame: &Frame| {
        // The middle of a ring is grey: look all over.
        frame
            .rgb
            .chunks_exact(3)
            .any(|pixel| pixel.iter().max().zip(pixel.iter().min()).is_some_and(|(a, b)| a - b > 60))
    };
    for place in 0..100 {
        for lesson in [Lesson::Watch { level: 4, frames: 16 }, Lesson::Watch { level: 4, frames: 4 }, Lesson::Glance] {
            let example = world.example(lesson, 3, place);
            let said = words(&example.turns[1]);
            assert_eq!(example.turns[0].frames().any(grey), said != "No shape appears.", "{said}");
        }
    }
}

#[test]
fn a_recalled_turn_is_the_only_one_that_is_learned() {
    let example = world().example(Lesson::Recall { level: 3 }, 1, 1);
    assert!(example.last_only && example.turns.iter().all(|turn| turn.frames().next().is_none()));
    assert!(words(&example.turns[4]).contains("<answer>"));
}
