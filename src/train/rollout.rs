//! Rollouts: episodes of the agent itself, of which every token is kept.
//!
//! The agent is the server's, and knows nothing of training: between it and its engine stands a [`Recorder`], which passes on what
//! both say and remembers it.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use async_trait::async_trait;
use futures::{Stream, StreamExt as _};

use super::reward::{Reward, Scores, Truth, Written, WrittenTurn};
use crate::agent::{Agent, AgentError, AskRequest, Outcome, WindowStatus, finished};
use crate::engine::{
    Engine, EngineError, EngineInfo, EngineLoad, FinishReason, GenerateRequest, Grammar, SessionKey, Speaker,
    TokenEvent, TokenStream,
};
use crate::types::{Part, Turn};

/// What an engine was asked and what it wrote.
#[derive(Debug, Clone, PartialEq)]
pub struct Utterance {
    /// Which agent spoke.
    pub speaker: Speaker,
    /// The conversation before it.
    pub turns: Vec<Turn>,
    /// What its turn was opened with.
    pub prefix: String,
    /// The tokens it wrote, each with the logarithm of the probability that the model gave it, nats.
    pub tokens: Vec<(u32, f32)>,
    /// Why it ended. `None`: it was broken off.
    pub reason: Option<FinishReason>,
}

impl Utterance {
    /// The text of the conversation before it, and what it wrote.
    fn asked(&self) -> (String, Vec<u32>) {
        let parts = self.turns.iter().flat_map(|turn| &turn.parts);
        let text = parts.filter_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None });
        (text.collect(), self.tokens.iter().map(|(id, _)| *id).collect())
    }
}

type Heard = Arc<Mutex<HashMap<SessionKey, Vec<Utterance>>>>;

/// An engine that remembers what it is asked and what it writes.
#[derive(Debug, Clone)]
pub struct Recorder {
    engine: Arc<dyn Engine>,
    heard: Heard,
}

impl Recorder {
    /// Before an engine that tells tokens with their log-probabilities.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] for one that doesn't.
    pub fn new(engine: Arc<dyn Engine>) -> Result<Self, EngineError> {
        if !engine.info().supported.logprobs {
            return Err(EngineError::Unsupported("log-probabilities"));
        }
        Ok(Self { engine, heard: Heard::default() })
    }

    /// What was said in an episode, in the order in which it was over, and forgets it.
    #[must_use]
    pub fn take(&self, session: &SessionKey) -> Vec<Utterance> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).remove(session).unwrap_or_default()
    }
}

#[async_trait]
impl Engine for Recorder {
    async fn generate(&self, mut request: GenerateRequest) -> Result<TokenStream, EngineError> {
        let asked = request.sampling.logprobs;
        request.sampling.logprobs = Some(asked.unwrap_or(0));
        let utterance = Utterance {
            speaker: request.speaker,
            turns: request.turns.clone(),
            prefix: request.prefix.clone(),
            tokens: Vec::new(),
            reason: None,
        };
        let (session, heard) = (request.session.clone(), Arc::clone(&self.heard));
        let stream = self.engine.generate(request).await?;
        Ok(Listening { stream, utterance: Some(utterance), session, heard, wanted: asked.is_some() }.boxed())
    }

    async fn check(&self, grammar: &Grammar) -> Result<(), EngineError> {
        self.engine.check(grammar).await
    }

    fn info(&self) -> EngineInfo {
        self.engine.info()
    }

    fn load(&self) -> EngineLoad {
        self.engine.load()
    }
}

/// Keeps what passes.
struct Listening {
    stream: TokenStream,
    /// `None` once it is kept.
    utterance: Option<Utterance>,
    session: SessionKey,
    heard: Heard,
    /// Whether who asked wants to hear of tokens.
    wanted: bool,
}

impl Listening {
    fn keep(&mut self) {
        if let Some(utterance) = self.utterance.take() {
            let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
            heard.entry(self.session.clone()).or_default().push(utterance);
        }
    }
}

impl Stream for Listening {
    type Item = Result<TokenEvent, EngineError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let event = std::task::ready!(self.stream.poll_next_unpin(cx));
            match &event {
                Some(Ok(TokenEvent::Tokens(tokens))) => {
                    if let Some(utterance) = self.utterance.as_mut() {
                        let known = tokens.iter().filter_map(|token| Some((token.id?, token.logprob as f32)));
                        utterance.tokens.extend(known);
                    }
                    if !self.wanted {
                        continue;
                    }
                }
                Some(Ok(TokenEvent::Finished(end))) => {
                    if let Some(utterance) = self.utterance.as_mut() {
                        utterance.reason = Some(end.reason);
                    }
                    self.keep();
                }
                Some(Err(_)) | None => self.keep(),
                Some(Ok(_)) => {}
            }
            return Poll::Ready(event);
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Broken off, and still what was written.
        self.keep();
    }
}

/// An episode that is over.
#[derive(Debug)]
pub struct Rollout {
    /// What the agent says of it.
    pub outcome: Result<Outcome, AgentError>,
    /// What the main agent wrote, a turn after the other.
    pub main: Vec<Utterance>,
    /// What sub-agents wrote, in the order of their prompts: that of their windows' times, and not of who was done first.
    pub subs: Vec<Utterance>,
}

impl Rollout {
    /// Rolls one episode out. `agent` stands on `recorder`; the request's id names no other episode.
    pub async fn of(agent: &Agent, recorder: &Recorder, request: AskRequest) -> Self {
        let session = SessionKey(request.id.as_str().into());
        let outcome = finished(agent.ask(request)).await;
        let (main, mut subs): (Vec<_>, Vec<_>) =
            recorder.take(&session).into_iter().partition(|said| said.speaker == Speaker::Main);
        subs.sort_by_cached_key(Utterance::asked);
        Self { outcome, main, subs }
    }

    /// What it earns. An episode that failed earns nothing.
    #[must_use]
    pub fn score(&self, reward: &dyn Reward, truth: &Truth<'_>) -> Scores {
        let Ok(outcome) = &self.outcome else { return Scores::default() };
        let turns: Vec<WrittenTurn<'_>> = outcome.turns.iter().map(WrittenTurn::from).collect();
        let watched = |status| status == WindowStatus::Ok;
        let tools_run = outcome.windows.iter().filter(|window| watched(window.status)).count();
        reward.score(&Written { turns: &turns, tools_run }, truth)
    }
}
