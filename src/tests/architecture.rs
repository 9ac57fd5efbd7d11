//! The layers and the size of files, as `src/lib.rs` states them. A rule without a check is a wish.

use std::fs;
use std::path::{Path, PathBuf};

use super::support::root;

/// Longest file, its tests not counted.
const LINES_MAX: usize = 500;

/// What each room may name with `use crate::…` or `crate::…`. A room always sees itself.
const MAY_SEE: [(&str, &[&str]); 20] = [
    ("types", &[]),
    ("config", &[]),
    ("card", &["config"]),
    ("model", &["types"]),
    ("engine", &["types", "config", "model"]),
    ("media", &["types", "config", "card"]),
    ("agent", &["engine", "media", "types", "config", "card"]),
    ("synthetic", &["types"]),
    ("ledger", &[]),
    ("eval", &["agent", "engine", "media", "types", "config", "synthetic", "ledger"]),
    ("batch", &["agent", "engine", "media", "types", "config", "ledger"]),
    ("train", &["agent", "eval", "engine", "media", "model", "types", "config", "card", "synthetic", "ledger"]),
    ("protocol", &["types", "config"]),
    ("metrics", &[]),
    ("traces", &["types"]),
    ("telemetry", &["types", "config", "traces"]),
    ("shutdown", &[]),
    ("api", &["agent", "engine", "media", "types", "config", "card", "protocol", "metrics", "traces", "shutdown"]),
    ("app", &["api", "agent", "engine", "media", "config", "card", "metrics", "telemetry", "shutdown"]),
    (
        "cli",
        &[
            "app",
            "api",
            "eval",
            "batch",
            "train",
            "synthetic",
            "agent",
            "engine",
            "media",
            "types",
            "config",
            "card",
            "telemetry",
            "shutdown",
        ],
    ),
];

/// Heavy outside libraries and the only places that may import them: files, or folders with a `/` at their end.
const ONLY_IN: [(&str, &[&str]); 11] = [
    (
        "candle_core",
        &[
            "src/model.rs",
            "src/model/",
            "src/engine/native.rs",
            "src/engine/native/",
            "src/train/",
            "src/tests/model.rs",
            "src/tests/model/",
            "src/tests/train/",
        ],
    ),
    ("candle_flash_attn", &["src/engine/native/device_attention/"]),
    ("candle_nn", &["src/model.rs", "src/model/", "src/engine/native/"]),
    ("llguidance", &["src/engine/native/grammar.rs", "src/engine/native/grammar/"]),
    ("mistralrs::", &["src/engine/mistralrs.rs", "src/engine/mistralrs/", "src/tests/mistralrs.rs"]),
    ("ffmpeg_sidecar", &["src/media/ffmpeg.rs", "src/tests/architecture.rs"]),
    ("axum", &["src/api/", "src/tests/remote/upstream.rs", "src/tests/api/collector.rs"]),
    ("opentelemetry", &["src/telemetry/otlp.rs", "src/tests/api/collector.rs"]),
    (
        "reqwest",
        &[
            "src/engine/remote.rs",
            "src/telemetry/otlp.rs",
            "src/media/http.rs",
            "src/media/http/",
            "src/tests/api.rs",
            "src/tests/api/",
        ],
    ),
    ("hf_hub", &["src/card/checkpoint.rs"]),
    ("clap", &["src/cli.rs", "src/cli/", "src/main.rs", "src/config/agent.rs", "src/config/engine.rs"]),
];

fn sources() -> Vec<(String, String)> {
    fn walk(folder: &Path, out: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("readable") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                walk(&path, out);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                out.push(path);
            }
        }
    }
    let mut paths = Vec::new();
    walk(&root("src"), &mut paths);
    let read = |path: PathBuf| {
        let name = path.strip_prefix(root("")).expect("below").to_string_lossy().into_owned();
        (name, fs::read_to_string(&path).expect("readable"))
    };
    paths.into_iter().map(read).collect()
}

/// The file without its `#[cfg(test)] mod tests { … }`.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod ").next().unwrap_or(text)
}

fn is_test(name: &str) -> bool {
    name.starts_with("src/tests/") || name.ends_with("/tests.rs")
}

/// Lines of code: comments out.
fn code(text: &str) -> impl Iterator<Item = &str> {
    without_tests(text).lines().filter(|line| !line.trim_start().starts_with("//"))
}

#[test]
fn imports_follow_the_layers() {
    let mut wrong = Vec::new();
    for (name, text) in sources().iter().filter(|(name, _)| !is_test(name)) {
        let room = name.trim_start_matches("src/").split(['/', '.']).next().expect("a room");
        let Some((_, may_see)) = MAY_SEE.iter().find(|(known, _)| *known == room) else {
            assert!(["lib", "main"].contains(&room), "{name}: which room is this?");
            continue;
        };
        for line in code(text) {
            for (at, _) in line.match_indices("crate::") {
                let other = line[at + 7..].split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("");
                if !other.is_empty() && other != room && !may_see.contains(&other) {
                    wrong.push(format!("{name}: crate::{other}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "forbidden imports:\n{}", wrong.join("\n"));
}

#[test]
fn heavy_libraries_are_imported_in_one_place() {
    let mut wrong = Vec::new();
    for (name, text) in &sources() {
        for (library, places) in ONLY_IN {
            let names = code(text).any(|line| {
                let used = line.trim_start().trim_start_matches("pub ").starts_with(&format!("use {library}"));
                used || line.contains(&format!(" {library}::")) || line.contains(&format!("({library}::"))
            });
            let allowed = |place: &&str| name == *place || (place.ends_with('/') && name.starts_with(*place));
            if names && !places.iter().any(allowed) {
                wrong.push(format!("{name}: {library}"));
            }
        }
    }
    assert!(wrong.is_empty(), "heavy libraries outside their place:\n{}", wrong.join("\n"));
}

#[test]
fn files_fit_in_a_readers_head() {
    let long: Vec<String> = sources()
        .iter()
        .filter(|(name, _)| !is_test(name))
        .map(|(name, text)| (name, without_tests(text).lines().count()))
        .filter(|(_, lines)| *lines > LINES_MAX)
        .map(|(name, lines)| format!("{name}: {lines}"))
        .collect();
    assert!(long.is_empty(), "longer than {LINES_MAX} lines:\n{}", long.join("\n"));
}

#[test]
fn every_file_says_what_it_is_for() {
    let silent: Vec<String> =
        sources().into_iter().filter(|(_, text)| !text.starts_with("//!")).map(|(name, _)| name).collect();
    assert!(silent.is_empty(), "without a header: {silent:?}");
}
