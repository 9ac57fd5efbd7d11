//! The remote engine: any server that speaks OpenAI's chat completions with streaming (vLLM, SGLang,
//! `transformers serve`, another paravt), one or several replicas of it.
//!
//! Layers here: [`RemoteEngine`] prepares a request, `tries` sends it to the replica that `replicas` chooses,
//! `generation` reads its events, `raw` turns them back into the model's own text. This file alone sees the HTTP client.
//!
//! Tokens are the upstream's own count, which comes with its last event: of a generation that is dropped before that
//! nobody here knows what its prompt took.
//!
//! Chat templates that loop over content parts (Qwen3-VL's) are needed for frames and times to stay in order.
//! It knows nothing of tools, windows or answers, and of the requests to us.

mod chunk;
mod events;
mod frames;
mod generation;
mod load;
mod prefix;
mod raw;
mod refusal;
pub(in crate::engine) mod replicas;
mod request;
mod tokens;
mod tries;
mod upstream;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use tokio::time::timeout;

use super::{
    Batching, Engine, EngineError, EngineInfo, EngineLoad, GenerateRequest, Supported, TokenStream, UpstreamLoad,
};
use crate::config::EngineConfig;
use crate::types::{Part, TraceContext};
use events::{Body, Lost};
use frames::Frames;
use generation::Generation;
use load::Counter;
use refusal::Trouble;
use replicas::Replicas;
use tries::Tries;
use upstream::Target;

/// Requests waiting before more are refused, where the configuration names no number.
const DEFAULT_QUEUED: usize = 1024;
/// Bytes read of an error's body.
const ERROR_BYTES: usize = 16 << 10;

/// Silence after which a connection is asked whether it is alive.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);
/// And how often.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(2);
/// Without an answer to so many it is dead.
const KEEPALIVE_TRIES: u32 = 3;

/// How long the engine waits for an upstream.
#[derive(Debug, Clone, Copy)]
pub struct RemoteLimits {
    /// For a connection, TLS included.
    pub connect: Duration,
    /// For the next byte. An upstream's queue and the prefill count, so this is long; callers have deadlines of their
    /// own.
    pub silence: Duration,
}

impl Default for RemoteLimits {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), silence: Duration::from_secs(300) }
    }
}

/// An engine that asks upstream servers.
#[derive(Debug)]
pub struct RemoteEngine {
    http: Arc<Http>,
    frames: Frames,
    load: Counter,
    model: Arc<str>,
    max_queued: usize,
}

/// The way to the upstreams.
#[derive(Debug)]
struct Http {
    client: reqwest::Client,
    targets: Vec<Target>,
    replicas: Mutex<Replicas>,
    limits: RemoteLimits,
}

impl RemoteEngine {
    /// An engine for `config.upstreams`, asking them for `config.upstream_model`, or for `model` where that is not set.
    /// Nothing is sent yet.
    ///
    /// # Errors
    /// [`EngineError::Load`] when there is no upstream, or a URL or key can't be one.
    pub fn new(config: &EngineConfig, model: String) -> Result<Self, EngineError> {
        let first = RandomState::new().build_hasher().finish() as usize;
        Self::beginning_at(config, model, RemoteLimits::default(), first)
    }

    /// Likewise, with other waiting times; of idle upstreams the first is asked first.
    ///
    /// # Errors
    /// As [`RemoteEngine::new`].
    pub fn with_limits(config: &EngineConfig, model: String, limits: RemoteLimits) -> Result<Self, EngineError> {
        Self::beginning_at(config, model, limits, 0)
    }

    fn beginning_at(
        config: &EngineConfig,
        model: String,
        limits: RemoteLimits,
        first: usize,
    ) -> Result<Self, EngineError> {
        let numbered = config.upstreams.iter().zip(1..);
        let targets: Vec<_> = numbered.map(|(upstream, n)| Target::new(upstream, n)).collect::<Result<_, _>>()?;
        if targets.is_empty() {
            return Err(EngineError::Load("the remote engine needs at least one upstream".to_owned()));
        }
        let client = client(&targets, limits)?;
        let replicas = Mutex::new(Replicas::new(targets.iter().map(Target::name), first));
        Ok(Self {
            http: Arc::new(Http { client, targets, replicas, limits }),
            frames: Frames::new(),
            load: Counter::default(),
            model: config.upstream_model.clone().unwrap_or(model).into(),
            max_queued: if config.max_queued > 0 { config.max_queued } else { DEFAULT_QUEUED },
        })
    }
}

#[async_trait]
impl Engine for RemoteEngine {
    /// Returns when an upstream has accepted the request (its queue may be before us: servers differ).
    async fn generate(&self, mut request: GenerateRequest) -> Result<TokenStream, EngineError> {
        // Upstreams batch what they like, whenever it comes.
        request.seat = None;
        if request.turns.is_empty() {
            return Err(EngineError::Invalid("the conversation is empty".to_owned()));
        }
        if request
            .sampling
            .constraint
            .as_ref()
            .is_some_and(|constraint| !request::can_hold(constraint, &request.prefix))
        {
            return Err(EngineError::Unsupported("response_format"));
        }
        if request.turns.iter().flat_map(|turn| &turn.parts).any(|part| matches!(part, Part::FramePair(_))) {
            return Err(EngineError::Unsupported("pairs of frames"));
        }
        let counted = self.load.queue(self.max_queued)?;
        let frames = request.turns.iter().flat_map(|turn| turn.frames().cloned()).collect();
        let (digests, urls): (Vec<_>, Vec<_>) = self.frames.encode(frames).await?.into_iter().unzip();
        let prefix = prefix::digest(&request.turns, &digests);
        let mut tries = Tries::new(Arc::clone(&self.http), Arc::clone(&self.model), request, urls, prefix).await?;
        let opened = tries.open(None).await?;
        let silence = self.http.limits.silence;
        let generation = Generation::new(opened, tries, counted, silence);
        let events = stream::unfold(generation, |mut generation| async move {
            generation.next().await.map(|event| (event, generation))
        });
        Ok(events.boxed())
    }

    fn info(&self) -> EngineInfo {
        let (count, model) = (self.http.targets.len(), &self.model);
        EngineInfo {
            name: "remote",
            // Addresses are nobody's business.
            detail: format!("{model} at {count} upstream{}", if count == 1 { "" } else { "s" }),
            batching: Batching::Ragged,
            supported: Supported::ALL,
        }
    }

    /// Queued is what no upstream has sent a byte for yet.
    fn load(&self) -> EngineLoad {
        self.load.now()
    }

    fn upstreams(&self) -> Vec<UpstreamLoad> {
        tries::lock(&self.http.replicas).loads()
    }
}

/// No proxy and no redirect: frames and keys go to the servers that were configured, and nowhere else.
fn client(targets: &[Target], limits: RemoteLimits) -> Result<reqwest::Client, EngineError> {
    let mut builder = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(limits.connect)
        .tcp_nodelay(true)
        // A machine that is cut off sends nothing at all: found within 11 s, though a prefill may be silent for minutes.
        .tcp_keepalive(KEEPALIVE_IDLE)
        .tcp_keepalive_interval(KEEPALIVE_EVERY)
        .tcp_keepalive_retries(KEEPALIVE_TRIES)
        .user_agent(concat!("paravt/", env!("CARGO_PKG_VERSION")));
    #[cfg(target_os = "linux")]
    {
        // The same for what was sent and never acknowledged.
        builder = builder.tcp_user_timeout(KEEPALIVE_IDLE + KEEPALIVE_EVERY * KEEPALIVE_TRIES);
    }
    if targets.iter().all(|target| target.url.scheme() == "http") {
        // A machine without root certificates can still ask upstreams that need none.
        builder = builder.tls_certs_only([]);
    }
    builder
        .build()
        .map_err(|_| EngineError::Load("the HTTP client could not be set up (root certificates?)".to_owned()))
}

/// What a broken connection means. The system says when the other side has not answered for too long.
fn lost(error: &reqwest::Error) -> Lost {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        if matches!(kind, Some(ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable)) {
            return Lost::CutOff;
        }
        cause = error.source();
    }
    Lost::Closed
}

impl Http {
    fn secrets(&self, index: usize) -> &[String] {
        &self.targets[index].secrets
    }

    /// Sends a request to one replica; its body, once it has accepted. Errors of the client never reach a message:
    /// they hold the URL.
    async fn post(&self, index: usize, body: Bytes, trace: Option<TraceContext>) -> Result<Body, Trouble> {
        let target = &self.targets[index];
        let mut request = self.client.post(target.url.clone()).body(body);
        request = request.header(CONTENT_TYPE, "application/json").header(ACCEPT, "text/event-stream");
        if let Some(authorization) = &target.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if let Some(trace) = trace {
            request = request.header("traceparent", trace.to_string());
        }
        let response = match timeout(self.limits.silence, request.send()).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) if error.is_connect() => {
                return Err(Trouble::Gone("the upstream can't be reached".to_owned()));
            }
            Ok(Err(error)) if lost(&error) == Lost::CutOff => return Err(Trouble::Gone(Lost::CutOff.to_string())),
            Ok(Err(_)) => return Err(Trouble::Broken("the upstream closed the connection".to_owned())),
            Err(_) => return Err(Trouble::Broken("the upstream did not answer in time".to_owned())),
        };
        let status = response.status().as_u16();
        let mut body = response.bytes_stream().map_err(|error| lost(&error)).boxed();
        if status == 200 {
            return Ok(body);
        }
        let mut text = Vec::new();
        // A broken or endless error is as good as what came of it.
        while text.len() < ERROR_BYTES
            && let Ok(Some(Ok(bytes))) = timeout(self.limits.connect, body.next()).await
        {
            text.extend_from_slice(&bytes[..bytes.len().min(ERROR_BYTES - text.len())]);
        }
        Err(Trouble::from_status(status, &text, &target.secrets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Upstream;
    use crate::engine::{Sampling, SessionKey, Speaker};
    use crate::types::{Role, Turn};

    #[tokio::test]
    async fn a_queue_without_a_number_has_a_bound_too() {
        let upstreams = vec![Upstream { url: "http://127.0.0.1:9/v1".to_owned(), api_key: None }];
        let config = EngineConfig { upstreams, max_queued: 0, ..EngineConfig::default() };
        let engine = RemoteEngine::new(&config, "qwen".to_owned()).expect("valid");
        let waiting: Result<Vec<_>, _> = (0..DEFAULT_QUEUED).map(|_| engine.load.queue(engine.max_queued)).collect();
        let waiting = waiting.expect("there is room");
        let request = GenerateRequest {
            turns: vec![Turn::text(Role::User, "What?")],
            prefix: String::new(),
            sampling: Sampling { max_tokens: 1, ..Sampling::default() },
            session: SessionKey("episode".into()),
            speaker: Speaker::Sub,
            seat: None,
            deadline: None,
            trace: None,
        };
        assert!(matches!(engine.generate(request).await, Err(EngineError::Overloaded)));
        drop(waiting);
    }
}
