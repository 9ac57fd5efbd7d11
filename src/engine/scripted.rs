//! The scripted engine: replays replies with gates, delays and failures. No weights, no network, no randomness.
//!
//! Tests use it through closures and [`Gate`]s; load tests through a [`Script`] file. It spawns nothing: a generation
//! advances only while its stream is polled, so what overlaps in a test really was driven at the same time.
//!
//! Counting: a token is four characters of text, begun ones counted, and a frame is one token for every 32x32 pixels.
//!
//! This room knows nothing of tools, windows or answers: a script is text.

mod gate;
mod output;
mod reply;
mod run;
mod script;
mod seen;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use futures::{StreamExt, stream};
use tokio::sync::watch;

use super::{
    Batching, Engine, EngineError, EngineInfo, EngineLoad, GenerateRequest, Speaker, Supported, TokenEvent, TokenStream,
};
use crate::types::{Part, TokenUsage, Turn};

pub use gate::Gate;
pub use reply::{Reply, Step};
pub use script::{ReplySpec, Script};
pub use seen::{SeenRequest, SeenTurn};

use run::{Activity, Run};

/// Requests remembered for [`ScriptedEngine::requests`]; beyond it the oldest are forgotten.
const REMEMBERED: usize = 1024;

type Answer = dyn Fn(&GenerateRequest, usize) -> Reply + Send + Sync;

/// An engine that says what it was told to say.
pub struct ScriptedEngine {
    answer: Box<Answer>,
    info: EngineInfo,
    state: Mutex<State>,
    load: Arc<watch::Sender<Load>>,
}

#[derive(Debug, Default)]
struct State {
    seen: VecDeque<SeenRequest>,
    main_calls: usize,
    sub_calls: usize,
}

/// What runs now, and the most that ever did.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    now: EngineLoad,
    most_running: usize,
}

impl std::fmt::Debug for ScriptedEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptedEngine").field("info", &self.info).finish_non_exhaustive()
    }
}

impl ScriptedEngine {
    /// An engine that asks `reply` what to say. The number counts the calls of that speaker over the engine's whole
    /// life, from 0.
    #[must_use]
    pub fn new(reply: impl Fn(&GenerateRequest, usize) -> Reply + Send + Sync + 'static) -> Self {
        let info = EngineInfo {
            name: "scripted",
            detail: "a script".to_owned(),
            batching: Batching::Ragged,
            supported: Supported { logprobs: false, constraint: false, ..Supported::ALL },
        };
        Self { answer: Box::new(reply), info, state: Mutex::default(), load: Arc::new(watch::Sender::default()) }
    }

    /// An engine that replays a script. See [`Script`] for which reply is whose.
    #[must_use]
    pub fn from_script(script: Script) -> Self {
        Self::new(move |request, call| script.reply(request, call))
    }

    /// Plays another kind of engine: with [`Batching::EqualShapes`] a seated request waits for its whole gang.
    #[must_use]
    pub fn with_info(mut self, info: EngineInfo) -> Self {
        self.info = info;
        self
    }

    /// What was asked, in order (the last 1024).
    #[must_use]
    pub fn requests(&self) -> Vec<SeenRequest> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).seen.iter().cloned().collect()
    }

    /// The most generations that ran at the same time.
    #[must_use]
    pub fn most_running(&self) -> usize {
        self.load.borrow().most_running
    }

    /// Returns when nothing runs or waits. At once when nothing was asked yet.
    pub async fn idle(&self) {
        self.until(|load| load == EngineLoad::default()).await;
    }

    /// Returns when at least so many generations run at the same time.
    pub async fn running(&self, count: usize) {
        self.until(|load| load.running >= count).await;
    }

    async fn until(&self, mut reached: impl FnMut(EngineLoad) -> bool) {
        // The sender lives in `self`, so this can't fail.
        let _ = self.load.subscribe().wait_for(|load| reached(load.now)).await;
    }

    /// Writes the request down and gives it its number.
    fn record(&self, request: &GenerateRequest) -> usize {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.seen.len() == REMEMBERED {
            state.seen.pop_front();
        }
        state.seen.push_back(SeenRequest::of(request));
        let calls = match request.speaker {
            Speaker::Main => &mut state.main_calls,
            Speaker::Sub => &mut state.sub_calls,
        };
        *calls += 1;
        *calls - 1
    }
}

#[async_trait]
impl Engine for ScriptedEngine {
    async fn generate(&self, request: GenerateRequest) -> Result<TokenStream, EngineError> {
        let call = self.record(&request);
        let reply = (self.answer)(&request, call);
        if let Some(refusal) = reply.refusal {
            return Err(refusal);
        }
        let prompt = TokenUsage { prompt_tokens: prompt_tokens(&request), ..TokenUsage::default() };
        let activity = Activity::queued(Arc::clone(&self.load));
        // The request is in the queue now: its seat goes back, and an engine of equal shapes waits for the others.
        let gang = request.seat.map(|seat| seat.gang().clone()).filter(|_| self.info.batching == Batching::EqualShapes);
        let run = Run::new(reply, gang, &request.sampling, prompt, activity);
        Ok(stream::unfold(run, |mut run| async move { run.next().await.map(|event| (event, run)) }).boxed())
    }

    fn info(&self) -> EngineInfo {
        self.info.clone()
    }

    fn load(&self) -> EngineLoad {
        self.load.borrow().now
    }
}

fn prompt_tokens(request: &GenerateRequest) -> u64 {
    let part = |part: &Part| match part {
        Part::Text(text) => output::tokens(text),
        Part::Frame(frame) | Part::FramePair([frame, _]) => {
            (u64::from(frame.size.width) * u64::from(frame.size.height)).div_ceil(32 * 32)
        }
    };
    let turn = |turn: &Turn| turn.parts.iter().map(part).sum::<u64>();
    request.turns.iter().map(turn).sum::<u64>() + output::tokens(&request.prefix)
}

/// True for the event that ends a stream.
const fn ends(event: &Result<TokenEvent, EngineError>) -> bool {
    matches!(event, Err(_) | Ok(TokenEvent::Finished(_)))
}

#[cfg(test)]
mod tests;
