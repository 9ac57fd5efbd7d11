//! A server on a real socket, and a client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use paravt::agent::Agent;
use paravt::api::{ApiState, serve};
use paravt::config::{AgentConfig, FilesConfig, MediaConfig, ServerConfig};
use paravt::engine::Speaker;
use paravt::engine::scripted::ScriptedEngine;
use paravt::media::{Media, Uploads};
use paravt::metrics::Metrics;
use paravt::shutdown::Shutdown;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::support::{root, tiny_card};

/// A test that waits longer for an event fails.
const PATIENCE: Duration = Duration::from_secs(60);
const FOLDER: &str = "model_cards/paravt-tiny";

/// A running server. Dropping it stops it.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) state: ApiState,
    pub(super) client: reqwest::Client,
    task: AbortOnDropHandle<std::io::Result<()>>,
}

impl Server {
    pub(super) async fn start(engine: Arc<ScriptedEngine>) -> Self {
        Self::with(engine, ServerConfig::default()).await
    }

    pub(super) async fn with(engine: Arc<ScriptedEngine>, config: ServerConfig) -> Self {
        let server = Self::loading(config).await;
        server.load(engine);
        server
    }

    pub(super) async fn loading(config: ServerConfig) -> Self {
        Self::keeping(config, FilesConfig::default()).await
    }

    /// A server that is still loading its model, and how it keeps uploaded files.
    pub(super) async fn keeping(config: ServerConfig, files: FilesConfig) -> Self {
        let uploads = Uploads::new(files).expect("a folder");
        let metrics = Metrics::new().expect("valid names");
        let state = ApiState::new(Arc::new(tiny_card()), config, uploads, metrics, Shutdown::new());
        state.load_keys().expect("keys that can be read");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let task = AbortOnDropHandle::new(tokio::spawn(serve(listener, state.clone())));
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self { address, state, client, task }
    }

    pub(super) fn load(&self, engine: Arc<ScriptedEngine>) {
        let media = MediaConfig { allowed_directories: vec![root(FOLDER)], ..MediaConfig::default() };
        let media = Media::new(media).expect("ffmpeg is installed");
        self.state.set_agent(Agent::new(Arc::new(tiny_card()), engine, media, AgentConfig::default()));
    }

    /// From here on requests show this key.
    pub(super) fn show(&mut self, key: &str) {
        let value = format!("Bearer {key}").parse().expect("a header");
        let headers = reqwest::header::HeaderMap::from_iter([(reqwest::header::AUTHORIZATION, value)]);
        let client = reqwest::Client::builder().no_proxy().default_headers(headers);
        self.client = client.build().expect("a client");
    }

    /// Returns when the server has stopped by itself.
    pub(super) async fn stopped(&mut self) {
        (&mut self.task).await.expect("no panic").expect("no error");
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) async fn get(&self, path: &str) -> reqwest::Response {
        self.client.get(self.url(path)).send().await.expect("an answer")
    }

    pub(super) fn request(&self, question: &Value) -> reqwest::RequestBuilder {
        self.client.post(self.url("/v1/chat/completions")).json(question)
    }

    pub(super) async fn ask(&self, question: &Value) -> reqwest::Response {
        self.request(question).send().await.expect("an answer")
    }

    /// Returns when `/metrics` holds this line.
    pub(super) async fn until_metric(&self, line: &str) {
        let reached = async {
            while !self.get("/metrics").await.text().await.expect("text").lines().any(|found| found == line) {
                tokio::task::yield_now().await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, reached).await.is_ok(), "never: {line}");
    }
}

/// Returns when so many sub-agents were asked.
pub(super) async fn watching(engine: &ScriptedEngine, count: usize) {
    let reached = async {
        while engine.requests().iter().filter(|request| request.speaker == Speaker::Sub).count() < count {
            tokio::task::yield_now().await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, reached).await.is_ok(), "fewer than {count} sub-agents");
}

/// The `data:` lines of a stream.
pub(super) fn data_lines(body: &str) -> Vec<String> {
    body.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect()
}

/// The error of an answer.
pub(super) async fn error_of(response: reqwest::Response) -> Value {
    let body: Value = response.json().await.expect("JSON");
    body["error"].clone()
}

/// A question without a video.
pub(super) fn text_question() -> Value {
    json!({"messages": [{"role": "user", "content": "Say hello."}]})
}

/// A question without a video that takes a whole place, and begins with this.
pub(super) fn long_question(name: &str) -> Value {
    json!({"messages": [{"role": "user", "content": format!("{name}: {}", "x".repeat(8000))}]})
}

/// A question about the demonstration video.
pub(super) fn video_question() -> Value {
    json!({"model": "paravt-tiny", "messages": [{"role": "user", "content": [
        {"type": "video_url", "video_url": {"url": video_url("demo.mp4")}},
        {"type": "text", "text": "Which shapes appear?"}]}]})
}

/// Where a file of the allowed folder is.
pub(super) fn video_url(name: &str) -> String {
    url::Url::from_file_path(root(FOLDER).join(name)).expect("absolute").to_string()
}
