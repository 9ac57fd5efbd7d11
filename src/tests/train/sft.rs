//! `paravt train sft`: a short run, broken off by its plan's end, and what it leaves.

use std::path::Path;

use paravt::model::{LoadOptions, Mode, Qwen3Vl};

use crate::cli::{assert_failed, run};

const PLAN: &str = r#"
card = "paravt-tiny"
batch_rows = 2
evaluate_every = 2
evaluate_rows = 2

[fresh]
deviation = 0.08
embeddings = 0.3
vision = 0.05

[[stage]]
name = "looks"
steps = 3
rows = 4
[[stage.source]]
kind = "glance"
share = 1.0
"#;

#[test]
fn a_run_leaves_a_checkpoint_and_a_line_for_each_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let (plan, out) = (folder.path().join("plan.toml"), folder.path().join("run"));
    std::fs::write(&plan, PLAN).expect("a plan");
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let arguments = ["train", "sft", "--plan", &path(&plan), "--out", &path(&out)];
    let done = run(&arguments);
    assert!(done.status.success(), "{done:?}");
    let lines = || std::fs::read_to_string(out.join("progress.jsonl")).expect("progress");
    let kinds: Vec<String> = lines()
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).expect("JSON")["of"].as_str().expect("a kind").to_owned()
        })
        .collect();
    assert_eq!(kinds, ["step", "step", "evaluation", "step", "evaluation"]);
    let model = Qwen3Vl::load(&out.join("checkpoint"), &LoadOptions::cpu(Mode::Inference)).expect("loads");
    assert_eq!(model.config().text.layers, 4);
    assert!(out.join("checkpoint/tokenizer.json").is_file());
    // Once more: there is nothing left to do, and nothing is lost.
    let before = lines();
    assert!(run(&arguments).status.success());
    assert_eq!(lines(), before);
    // Another plan needs another folder.
    std::fs::write(&plan, PLAN.replace("steps = 3", "steps = 4")).expect("a plan");
    assert_failed(&run(&arguments), 1, "another plan");
}

#[test]
fn plans_that_are_none_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("run").to_str().expect("UTF-8").to_owned();
    assert_failed(&run(&["train", "sft", "--preset", "huge", "--out", &out]), 2, "no preset huge");
    assert_failed(&run(&["train", "grpo", "--plan", "nowhere.toml", "--out", &out]), 1, "nowhere.toml");
}
