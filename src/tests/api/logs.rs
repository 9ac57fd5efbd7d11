//! What the real program writes while it serves: a line for each thing that happened, and nothing that anybody said.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::server::video_question;
use super::{ANSWER, BURST};
use crate::support::root;

/// What no line may hold: parts of questions, answers and thoughts, of a query and a key.
const SECRETS: [&str; 8] =
    ["Which shapes", "red circle", "Two stretches", "crops show", "QUERYSECRET", "sk-client", "URLSECRET", "PASSWORD"];

/// A program that serves and is killed when dropped.
struct Serving {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStderr>>,
    seen: Vec<Value>,
    _folder: tempfile::TempDir,
}

impl Serving {
    /// Starts it and waits until it is ready.
    #[expect(clippy::disallowed_methods, reason = "the program under test needs the machine's programs and libraries")]
    fn start(filter: &str, script: &Value) -> (Self, String) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("script.json");
        std::fs::write(&path, script.to_string()).expect("writes");
        let kept = std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "LD_LIBRARY_PATH");
        let mut child = Command::new(env!("CARGO_BIN_EXE_paravt"))
            .args(["serve", "--listen", "127.0.0.1:0", "--engine", "scripted", "--script"])
            .arg(&path)
            .arg("--allow-dir")
            .arg(root("model_cards/paravt-tiny"))
            .env_clear()
            .envs(kept)
            .envs([("PARAVT_LOG", filter), ("PARAVT_LOG_FORMAT", "json"), ("PARAVT_FFMPEG_INSTALL", "never")])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        let lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut serving = Self { child, lines, seen: Vec::new(), _folder: folder };
        serving.until(|line| line["fields"]["message"] == "ready");
        let address = serving.seen.iter().find_map(|line| line["fields"]["address"].as_str()).expect("an address");
        let base = format!("http://{address}");
        (serving, base)
    }

    /// Reads up to such a line.
    fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        for line in self.lines.by_ref() {
            let line: Value = serde_json::from_str(&line.expect("UTF-8")).expect("each line is a JSON object");
            self.seen.push(line.clone());
            if wanted(&line) {
                return line;
            }
        }
        panic!("it ended without: {:#?}", self.seen);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A span's field, of the spans that a line stands in.
fn of_span<'a>(line: &'a Value, field: &str) -> &'a str {
    let spans = line["spans"].as_array().map(Vec::as_slice).unwrap_or_default();
    spans.iter().find_map(|span| span[field].as_str()).unwrap_or_default()
}

fn is(line: &Value, message: &str, request: &str) -> bool {
    line["fields"]["message"] == message && of_span(line, "request.id") == request
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn each_request_episode_and_failed_window_is_a_line_without_a_word_of_what_was_said() {
    let fails = json!({"text": "A red circle", "fail": "out of memory"});
    let script = json!({
        "main": [{"text": BURST}, {"text": ANSWER}],
        "sub": [{"text": "A red circle."}, fails],
    });
    for filter in ["info", "debug,paravt=trace,hyper=info"] {
        let (mut serving, base) = tokio::task::block_in_place(|| Serving::start(filter, &script));
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60)).build().expect("a client");
        let ask = |id: &'static str, question: Value| {
            let url = format!("{base}/v1/chat/completions?key=QUERYSECRET");
            let request = client.post(url).header("x-request-id", id).bearer_auth("sk-client").json(&question);
            async move {
                let answer = request.send().await.expect("an answer");
                (answer.status().as_u16(), answer.text().await.expect("a body"))
            }
        };
        let (status, answer) = ask("whole", video_question()).await;
        assert_eq!(status, 200, "{answer}");
        let mut streamed = video_question();
        streamed["stream"] = json!(true);
        assert_eq!(ask("streamed", streamed).await.0, 200);
        for (id, url, status) in [
            ("password", "http://me:PASSWORD@example.org/URLSECRET.mp4", 400),
            ("refused", "http://127.0.0.1:9/URLSECRET.mp4?token=URLSECRET", 403),
        ] {
            let mut elsewhere = video_question();
            elsewhere["messages"][0]["content"][0]["video_url"]["url"] = json!(url);
            assert_eq!(ask(id, elsewhere).await.0, status, "{url}");
        }

        let over = tokio::task::block_in_place(|| serving.until(|line| is(line, "answered", "refused")));
        assert_eq!((&over["fields"]["status"], of_span(&over, "http.route")), (&json!(403), "/v1/chat/completions"));
        let one = |message: &str, request: &str| -> Value {
            let found: Vec<_> = serving.seen.iter().filter(|line| is(line, message, request)).collect();
            assert_eq!(found.len(), 1, "{message} of {request}: {:#?}", serving.seen);
            found[0].clone()
        };
        for request in ["whole", "streamed"] {
            let episode = one("episode", request)["fields"].clone();
            assert_eq!((&episode["outcome"], &episode["turns"]), (&json!("ok"), &json!(2)), "{episode}");
            assert_eq!((&episode["windows"], &episode["windows_failed"]), (&json!(2), &json!(1)));
            assert!(episode["episode.id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")), "{episode}");
            for number in ["prompt_tokens", "completion_tokens", "total_ms", "waited_ms", "first_token_ms"] {
                assert!(episode[number].as_f64().is_some(), "{number} in {episode}");
            }
            let window = one("window", request);
            assert_eq!((&window["level"], &window["fields"]["outcome"]), (&json!("WARN"), &json!("failed")));
            assert_eq!(of_span(&window, "episode.id"), episode["episode.id"]);
            assert!(window["fields"]["decode_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{window}");
            let answered = one("answered", request)["fields"].clone();
            assert_eq!((&answered["status"], &answered["cut"]), (&json!(200), &json!(false)));
        }
        let refused = one("episode", "refused")["fields"].clone();
        let (outcome, code) = (&refused["outcome"], &refused["error.code"]);
        assert_eq!((outcome, code), (&json!("error"), &json!("source_not_allowed")));
        for line in &serving.seen {
            let text = line.to_string();
            assert!(SECRETS.iter().all(|secret| !text.contains(secret)), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_error_in_a_stream_is_logged_with_the_requests_id() {
    let script = json!({"main": [{"text": "Hello you", "fail": "out of memory"}]});
    let (mut serving, base) = tokio::task::block_in_place(|| Serving::start("info", &script));
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(60)).build().expect("a client");
    let question = json!({"messages": [{"role": "user", "content": "Which shapes?"}], "stream": true});
    let request = client.post(format!("{base}/v1/chat/completions")).header("x-request-id", "broken").json(&question);
    let answer = request.send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    assert!(answer.text().await.expect("a body").contains("engine_failed"));
    tokio::task::block_in_place(|| serving.until(|line| is(line, "answered", "broken")));
    let failed = |message: &str| serving.seen.iter().find(|line| is(line, message, "broken")).expect("a line");
    assert_eq!(failed("the engine failed")["level"], "ERROR");
    let episode = &failed("episode")["fields"];
    assert_eq!((&episode["outcome"], &episode["error.code"]), (&json!("error"), &json!("engine_failed")));
}
