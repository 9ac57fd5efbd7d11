//! The command line as people and scripts meet it: the real program, its exit status, its two streams.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::support::root;

/// The demonstration's answer, as a script has the main agent give it.
const RIGHT: &str = "<answer>purple square, orange circle, green circle</answer>";

/// The program with nothing of this process's environment but where programs are.
#[expect(clippy::disallowed_methods, reason = "the program under test needs the machine's programs and libraries")]
fn paravt(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paravt"));
    let kept = std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "LD_LIBRARY_PATH");
    command.args(arguments).env_clear().envs(kept).env("PARAVT_FFMPEG_INSTALL", "never").stdin(Stdio::null());
    command
}

pub(super) fn run(arguments: &[&str]) -> Output {
    paravt(arguments).output().expect("runs")
}

pub(super) fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

pub(super) fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

/// Failed with `status`, nothing on stdout, one line on stderr that holds `words`.
pub(super) fn assert_failed(output: &Output, status: i32, words: &str) {
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    assert_eq!(stdout(output), "");
    assert_eq!(stderr(output).lines().count(), 1, "{output:?}");
    assert!(stderr(output).starts_with("paravt: ") && stderr(output).contains(words), "{output:?}");
}

fn demo_video() -> String {
    let card = Path::new(env!("CARGO_MANIFEST_DIR")).join("model_cards/paravt-tiny");
    card.join("demo.mp4").to_string_lossy().into_owned()
}

fn call(start: f64, end: f64) -> String {
    let arguments = json!({"video_path": "video.mp4", "start_time": start, "end_time": end});
    format!("<tool_call>\n{}\n</tool_call>\n", json!({"name": "crop_video", "arguments": arguments}))
}

/// Milliseconds a sub-agent reads where windows must be watched at the same time: more than a busy machine takes to start
/// the last one's decoding after the first one's.
const LONG_MS: u32 = 3_000;

/// A script on disk.
struct Script {
    _folder: TempDir,
    path: PathBuf,
}

impl Script {
    fn new(windows: &[(f64, f64)], summary: &str, answer: &str, prefill_ms: u32) -> Self {
        let calls: String = windows.iter().map(|(start, end)| call(*start, *end)).collect();
        Self::write(&json!({
            "main": [
                {"text": format!("The border is lit.\n</think>\n{calls}")},
                {"text": format!("Now I know.\n</think>\n{answer}")},
            ],
            "sub": [{"text": summary, "prefill_ms": prefill_ms}],
        }))
    }

    fn write(script: &Value) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("script.json");
        std::fs::write(&path, script.to_string()).expect("writes");
        Self { _folder: folder, path }
    }

    fn flags(&self) -> [&str; 4] {
        ["--engine", "scripted", "--script", self.path.to_str().expect("UTF-8")]
    }
}

fn three_windows(prefill_ms: u32) -> Script {
    let windows = [(20.0, 60.0), (160.0, 180.0), (240.0, 280.0)];
    Script::new(&windows, "A \u{1b}[31mred\u{1b}[0m circle\nappears.", RIGHT, prefill_ms)
}

fn with<'a>(arguments: &[&'a str], script: &'a Script) -> Vec<&'a str> {
    arguments.iter().copied().chain(script.flags()).collect()
}

#[test]
fn help_names_every_command() {
    let output = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    for command in ["serve", "ask", "demo", "doctor", "openapi"] {
        assert!(stdout(&output).contains(command), "{command}");
    }
}

#[test]
fn wrong_usage_is_status_2() {
    for arguments in [&["ask", "only-a-video.mp4"][..], &["frobnicate"], &["serve", "--listen", "nowhere"], &[]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(stdout(&output), "");
    }
    for arguments in [&["ask", "v.mp4", " "][..], &["demo", "--question", ""]] {
        assert_failed(&run(arguments), 2, "the question is empty");
    }
    assert_failed(
        &run(&["ask", "v.mp4", "q", "--upstream", "http://x/v1", "--upstream-key-env", "NO_SUCH"]),
        2,
        "NO_SUCH",
    );
}

#[test]
fn failures_are_one_line_on_stderr() {
    assert_failed(&run(&["ask", "/no/such/video.mp4", "What?"]), 1, "no such file: /no/such/video.mp4");
    assert_failed(&run(&["ask", &demo_video(), "What?", "--card", "/no/such/card"]), 1, "/no/such/card");
    assert_failed(&run(&["doctor", "--config", "/no/such.toml"]), 1, "/no/such.toml");
    let script = ["--engine", "scripted"];
    assert_failed(&run(&[&["ask", &demo_video(), "What?"], &script[..]].concat()), 1, "--script");
}

#[test]
fn a_configuration_that_is_not_valid_is_told_in_one_line() {
    let mut command = paravt(&["doctor"]);
    command.env("PARAVT_MEDIA_MAX_BITES", "7");
    assert_failed(&command.output().expect("runs"), 1, "max_bites");
    let mut command = paravt(&["doctor"]);
    command.env("PARAVT_SERVR_LISTEN", "0.0.0.0:80");
    assert_failed(&command.output().expect("runs"), 1, "PARAVT_SERVR_LISTEN");
}

#[test]
fn a_key_may_be_kept_in_a_variable_of_any_name() {
    let script = three_windows(0);
    let key = ["--upstream", "http://127.0.0.1:9/v1", "--upstream-key-env", "PARAVT_KEY"];
    let arguments = with(&[&["ask", "/no/such.mp4", "Which?"], &key[..]].concat(), &script);
    let mut command = paravt(&arguments);
    command.env("PARAVT_KEY", "secret");
    assert_failed(&command.output().expect("runs"), 1, "no such file");
}

#[test]
fn bench_media_measures_a_video() {
    let output = run(&["bench", "media", &demo_video(), "--json"]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&report["frames"], &report["window_frames"]), (&json!(64), &json!([16, 16, 16, 16, 16])));
    for field in ["cold_ms", "warm_ms", "windows_ms", "bytes_read", "peak_rss_bytes"] {
        let known = report[field].as_f64().is_some_and(|number| number > 0.0);
        assert!(known || (field == "peak_rss_bytes" && !cfg!(target_os = "linux")), "{field} of {report}");
    }
    let told = run(&["bench", "media", &demo_video()]);
    assert!(stdout(&told).starts_with("overview  64 "), "{told:?}");
    assert_failed(&run(&["bench", "media", "nowhere.mp4"]), 1, "no such file");
}

#[test]
fn bench_engine_runs_without_ffmpeg_and_has_the_keys_of_the_script_for_other_engines() {
    let script = three_windows(1);
    let flags = ["--runs", "1", "--episodes", "2", "--overview-frames", "5", "--frame-side", "70", "--json"];
    let arguments = [&["bench", "engine"][..], &flags, &script.flags()].concat();
    let output = paravt(&arguments).env("PATH", "").output().expect("runs");
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let proportions = ["overview_frames", "window_frames", "frame_side"].map(|key| report[key].as_u64());
    assert_eq!(proportions, [Some(5), Some(16), Some(64)]);
    assert_eq!(report["decode_tokens_per_s_plain"], report["decode_tokens_per_s"], "a script makes no drafts");
    let others = std::fs::read_to_string(root("load_tests/engine/engines.py")).expect("readable");
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(report["burst"].as_array().map(Vec::len), Some(4));
    for key in keys(&report).into_iter().chain(keys(&report["burst"][0])) {
        assert!(others.contains(&format!("\"{key}\"")), "{key}");
    }
    // Whereas an episode over a video does need it.
    let video = demo_video();
    let asked = with(&["ask", &video, "What?"], &script);
    assert_failed(&paravt(&asked).env("PATH", "").output().expect("runs"), 1, "ffmpeg");
    let arguments = [&["bench", "engine"][..], &["--overview-frames", "512", "--frame-side", "2048"]].concat();
    assert_failed(&run(&arguments), 2, "episodes take");
}

#[test]
fn bench_soak_tells_each_step_and_a_verdict() {
    let script = three_windows(20);
    let flags = ["--minutes", "0.03", "--episodes", "4", "--json"];
    let output = run(&[&["bench", "soak"][..], &flags, &script.flags()].concat());
    assert!(output.status.success(), "{output:?}");
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [step, verdict] = &lines[..] else { panic!("{output:?}") };
    assert_eq!((&verdict["passed"], &verdict["problems"]), (&json!(true), &json!([])));
    assert_eq!((&verdict["asked"], &verdict["finished"]), (&step["asked"], &step["finished"]));
    assert_eq!((&verdict["running_after"], &verdict["queued_after"]), (&json!(0), &json!(0)));
    let known = ["resident_bytes", "threads", "descriptors"].iter().all(|key| step[*key].as_u64() > Some(0));
    assert!(known || !cfg!(target_os = "linux"), "{step}");
    assert_failed(&run(&["bench", "soak", "--minutes", "0"]), 2, "--minutes");
}

#[test]
fn a_soak_that_does_not_hold_fails() {
    // An upstream that nobody listens at: every request fails.
    let output = run(&["bench", "soak", "--minutes", "0.01", "--upstream", "http://127.0.0.1:9/v1"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stdout(&output).contains("verdict   no request came to its end; "), "{output:?}");
    assert!(stderr(&output).contains("requests failed"), "{output:?}");
}

#[test]
fn openapi_prints_the_document() {
    let output = run(&["openapi"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let document: Value = serde_json::from_str(stdout(&output)).expect("JSON");
    assert!(document["paths"]["/v1/chat/completions"]["post"].is_object());
    assert_eq!(stderr(&output), "");
}

#[test]
fn doctor_says_what_is_missing_and_how_to_get_it() {
    let empty = tempfile::tempdir().expect("folder");
    let mut command = paravt(&["doctor", "--json"]);
    command.env("PARAVT_MEDIA_FFMPEG_DIRECTORY", empty.path());
    let output = command.output().expect("runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let report: Value = serde_json::from_str(stdout(&output)).expect("JSON");
    assert_eq!(report["ok"], false);
    let ffmpeg = &report["checks"][0];
    assert_eq!((&ffmpeg["name"], &ffmpeg["state"]), (&json!("ffmpeg"), &json!("missing")));
    assert!(ffmpeg["fix"].as_str().is_some_and(|fix| fix.contains("apt-get install ffmpeg")), "{ffmpeg}");
}

#[test]
fn doctor_is_content_when_everything_needed_is_there() {
    let script = three_windows(0);
    let output = run(&with(&["doctor"], &script));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stdout(&output).ends_with("everything needed is there\n") && !stdout(&output).contains('\u{1b}'));
    for name in ["ffmpeg", "engine", "model card", "checkpoint", "hub cache", "machine", "gpu"] {
        assert!(stdout(&output).contains(name), "{name}");
    }
}

#[test]
fn ask_prints_the_answer_and_nothing_else() {
    let script = three_windows(0);
    let output = run(&with(&["ask", &demo_video(), "Which shapes?"], &script));
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""), "{output:?}");
    assert_eq!(stdout(&output), "purple square, orange circle, green circle\n");
}

#[test]
fn ask_json_tells_the_windows_and_they_overlap() {
    let script = three_windows(LONG_MS);
    let output = run(&with(&["ask", &demo_video(), "Which shapes?", "--json"], &script));
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""), "{output:?}");
    let report: Value = serde_json::from_str(stdout(&output)).expect("one JSON object");
    assert_eq!(report["answer"], "purple square, orange circle, green circle");
    let mut keys: Vec<&String> = report.as_object().expect("object").keys().collect();
    keys.sort();
    assert_eq!(keys, ["answer", "timing", "usage", "windows"]);
    let windows = report["windows"].as_array().expect("windows");
    let spans: Vec<_> = windows.iter().map(|window| (window["start"].as_f64(), window["end"].as_f64())).collect();
    assert_eq!(spans, [(Some(20.0), Some(60.0)), (Some(160.0), Some(180.0)), (Some(240.0), Some(280.0))]);
    for window in windows {
        assert!(window["summary"].as_str().is_some_and(|summary| summary.contains("circle")), "{window}");
        let times: Vec<f64> =
            window["frame_times"].as_array().expect("times").iter().filter_map(Value::as_f64).collect();
        let (start, end) = (window["start"].as_f64().expect("start"), window["end"].as_f64().expect("end"));
        assert!(!times.is_empty() && times.iter().all(|time| (start - 0.5..=end + 0.5).contains(time)), "{window}");
    }
    let last_start = windows.iter().filter_map(|window| window["started_ms"].as_f64()).fold(0.0, f64::max);
    let first_end = windows.iter().filter_map(|window| window["finished_ms"].as_f64()).fold(f64::MAX, f64::min);
    assert!(last_start < first_end, "{report}");
    assert_eq!(report["timing"]["windows_at_once"], 3);
}

#[test]
fn demo_tells_the_story_without_control_codes_and_checks_the_answer() {
    let script = three_windows(LONG_MS);
    let output = run(&with(&["demo"], &script));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let told = stdout(&output);
    for words in [
        "demo.mp4",
        "overview",
        "window 3",
        "A red circle appears.",
        "[160.0s - 180.0s]",
        "##",
        "saved",
        "answer    purple square,",
        "right answer, 3 windows",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert!(!told.contains(|c: char| c.is_control() && c != '\n'), "{told:?}");
}

#[test]
fn demo_fails_on_a_wrong_answer() {
    let script = Script::new(&[(20.0, 60.0), (160.0, 180.0)], "Nothing.", "<answer>a cat</answer>", 0);
    let output = run(&with(&["demo"], &script));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("a cat") && stderr(&output).contains("purple square"), "{output:?}");
}

#[test]
fn demo_tells_when_no_two_windows_were_watched_at_the_same_time() {
    let script = Script::new(&[(20.0, 60.0)], "A circle.", RIGHT, 0);
    let output = run(&with(&["demo"], &script));
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""), "{output:?}");
    assert!(
        stdout(&output).ends_with("right answer, but no two windows were watched at the same time\n"),
        "{output:?}"
    );
}

#[test]
fn demo_tells_in_the_order_of_time() {
    let script = three_windows(0);
    let output = run(&with(&["demo"], &script));
    let times: Vec<f64> =
        stdout(&output).lines().filter_map(|line| line.trim_start().split_once("s  ")?.0.parse().ok()).collect();
    assert!(times.len() > 6 && times.is_sorted(), "{output:?}");
}

#[test]
fn demo_installs_nothing_where_it_must_not() {
    let empty = tempfile::tempdir().expect("folder");
    let script = three_windows(0);
    let mut command = paravt(&with(&["demo"], &script));
    command.env("PARAVT_MEDIA_FFMPEG_DIRECTORY", empty.path());
    let output = command.output().expect("runs");
    assert_failed(&output, 1, "apt-get install ffmpeg");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_an_episode_with_status_130() {
    use rustix::process::{Pid, Signal, kill_process};

    // Sub-agents that never come to a word: without the signal this would run into the window's deadline.
    let script = Script::write(&json!({
        "main": [{"text": format!("</think>\n{}{}", call(20.0, 60.0), call(160.0, 180.0))}],
        "sub": [{"text": "late", "prefill_ms": 100_000}],
    }));
    let mut command = paravt(&with(&["demo"], &script));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("watching")), "no window got as far as its sub-agent");
    kill_process(Pid::from_child(&child), Signal::INT).expect("signals");
    let output = child.wait_with_output().expect("ends");
    assert_eq!((output.status.code(), stderr(&output)), (Some(130), ""), "{output:?}");
}

#[test]
fn a_server_whose_model_does_not_load_ends() {
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--engine", "scripted", "--script", "/no/such.json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(stdout(&output), "");
    assert!(stderr(&output).contains("paravt: ") && stderr(&output).contains("no/such.json"), "{output:?}");
}

#[test]
fn a_server_for_others_does_not_start_without_keys() {
    let script = three_windows(0);
    let arguments = with(&["serve", "--listen", "0.0.0.0:0"], &script);
    let output = run(&arguments);
    assert_failed(&output, 1, "server.listen is not loopback, and there are no keys");
    for way_out in ["paravt keys new", "server.keys_file", "server.allow_anonymous = true"] {
        assert!(stderr(&output).contains(way_out), "{output:?}");
    }
    let output = paravt(&arguments).env("PARAVT_SERVER_KEYS_FILE", "/no/such/keys.toml").output().expect("runs");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("/no/such/keys.toml"), "{output:?}");
    let output = paravt(&arguments).env("PARAVT_SERVER_KEYS", "short").output().expect("runs");
    assert_failed(&output, 1, "PARAVT_SERVER_KEYS");
    assert!(!stderr(&output).contains("short"), "{output:?}");
}

#[test]
fn a_new_key_is_printed_once_and_its_hash_goes_into_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("keys.toml");
    let file = file.to_str().expect("UTF-8");
    let printed = run(&["keys", "new", "--name", "alice"]);
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    assert!(
        stdout(&printed).starts_with("paravt-") && stdout(&printed).contains("[[keys]]\nname = \"alice\"\nsha256 = ")
    );
    let appended = run(&["keys", "new", "--name", "alice", "--append", file]);
    let key = stdout(&appended).trim();
    assert_eq!(
        (appended.status.code(), stdout(&appended).lines().count(), key.len()),
        (Some(0), 1, 50),
        "{appended:?}"
    );
    let kept = std::fs::read_to_string(file).expect("there");
    assert!(kept.contains("name = \"alice\"") && !kept.contains(key), "{kept}");
    assert_failed(&run(&["keys", "new", "--name", "alice", "--append", file]), 1, "has a key called alice already");
    assert_failed(&run(&["keys", "new", "--name", "a b"]), 2, "--name");
}
