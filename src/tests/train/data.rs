//! `paravt train data` as people and scripts meet it.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::{assert_failed, run, stderr, stdout};
use crate::support::root;

fn fixture(name: &str) -> String {
    root("src/tests/fixtures/train").join(name).to_string_lossy().into_owned()
}

fn below(folder: &Path, name: &str) -> String {
    folder.join(name).to_string_lossy().into_owned()
}

fn lines(path: impl Into<PathBuf>) -> Vec<Value> {
    let text = std::fs::read_to_string(path.into()).expect("reads");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_data_set_is_counted() {
    let output = run(&["train", "data", "stats", &fixture("sft.parquet")]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(
        stdout(&output),
        "rows            3\n\
         turns           4, 1.3 a row\n\
         calls a burst   2: 1\n\
         windows         2: 20.0 s to 40.0 s, median 20.0 s\n\
         answers         3: 1 words to 4 words, median 1 words\n\
         tags closed     think 4 of 4, tool_call 2 of 2, answer 3 of 3\n\
         videos          3, 2 of them different\n"
    );
    assert_eq!(stderr(&output), "left out, rows have no place for it: source\n");
    let output = run(&["train", "data", "stats", &fixture("rl.parquet")]);
    assert!(stdout(&output).contains("question types  mcq 1, oe 1\n") && stderr(&output).is_empty(), "{output:?}");
}

#[test]
fn a_good_data_set_has_no_problems_and_a_bad_one_fails_with_all_of_them() {
    for name in ["sft.parquet", "rl.parquet", "sequential.jsonl"] {
        let output = run(&["train", "data", "check", &fixture(name)]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(stdout(&output).ends_with("rows, no problems; videos were not looked for: --videos\n"), "{output:?}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = below(folder.path(), "bad.jsonl");
    let message = |role: &str, text: &str| json!({"role": role, "content": text});
    let bad = json!({"messages": [
        message("system", "s"), message("user", "q"), message("assistant", "<think>a\u{1b}[31m <answer> </answer>"),
    ]});
    std::fs::write(&file, format!("{bad}\nnonsense\n{}\n", json!({"messages": []}))).expect("written");
    let output = run(&["train", "data", "check", &file]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told: Vec<&str> = stdout(&output).lines().collect();
    assert_eq!(told[0], "row 1, message 3: <think> is not closed");
    assert!(told.iter().any(|line| line.starts_with("row 2: line: expected")), "{told:?}");
    assert_eq!(told.last(), Some(&"row 3: begins with [], not with [system, user]"));
    assert_eq!(stderr(&output), "paravt: 4 problems in 3 of 3 rows\n");
    let output = run(&["train", "data", "check", &file, "--most", "1"]);
    assert_eq!(stdout(&output).lines().nth(1), Some("and 3 more"), "{output:?}");
    let videos = folder.path().to_str().expect("UTF-8");
    let output = run(&["train", "data", "check", &fixture("rl.parquet"), "--videos", videos]);
    assert!(stdout(&output).contains("row 2: the video museg/b.mp4 is missing\n"), "{output:?}");
}

#[test]
fn a_data_set_goes_through_both_formats() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["sft", "rl"] {
        let [text, table, again] = ["a.jsonl", "b.parquet", "c.jsonl"].map(|file| below(folder.path(), file));
        for (from, to) in [(&fixture(&format!("{name}.parquet")), &text), (&text, &table), (&table, &again)] {
            let output = run(&["train", "data", "convert", from, to]);
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            assert!(stdout(&output).contains("rows in "), "{output:?}");
        }
        assert_eq!(lines(&text), lines(&again));
        assert!(lines(&text).len() >= 2);
    }
    assert_failed(
        &run(&["train", "data", "convert", &fixture("rl.parquet"), "x.csv"]),
        1,
        "neither .parquet nor .jsonl",
    );
}

#[test]
fn a_sequential_trace_is_made_parallel() {
    let folder = tempfile::tempdir().expect("a folder");
    let [once, twice] = ["once.jsonl", "twice.jsonl"].map(|file| below(folder.path(), file));
    let output = run(&["train", "data", "parallel", &fixture("sequential.jsonl"), &once]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(
        stderr(&output),
        "1 turns became part of the one before, 2 responses of frames became text, 0 were left\n"
    );
    let response = &lines(&once)[0]["messages"][3]["content"][0]["text"];
    let wanted = "<tool_response>\n[20.0s - 60.0s] A red circle.\n[160.0s - 180.0s] A blue square.\n</tool_response>";
    assert_eq!(response.as_str(), Some(wanted));
    let output = run(&["train", "data", "parallel", &once, &twice]);
    assert!(stderr(&output).starts_with("0 turns became part"), "{output:?}");
    assert_eq!(lines(&once), lines(&twice));
    let output = run(&["train", "data", "parallel", &fixture("rl.parquet"), &twice]);
    assert_failed(&output, 1, "holds prompts, not conversations");
}

#[test]
fn prompts_are_filtered_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let [kept, rollouts] = ["kept.jsonl", "rollouts.jsonl"].map(|file| below(folder.path(), file));
    std::fs::write(&rollouts, "{\"id\": \"q-1\", \"accuracies\": [0, 0]}\n").expect("written");
    let output = run(&["train", "data", "filter", &fixture("rl.parquet"), &kept, "--rollouts", &rollouts]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stderr(&output).starts_with("1 of 2 rows kept: 0 open answers over 15 words and 1 groups"), "{output:?}");
    assert_eq!(lines(&kept)[0]["extra_info"]["id"], "q-2");
    assert_failed(&run(&["train", "data", "filter", &fixture("sft.parquet"), &kept]), 1, "holds conversations");
}
