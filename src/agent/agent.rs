//! The room's front: an [`Agent`] and the stream of what one of its episodes does.
//!
//! One task per episode owns everything below it: the overview's decoding, the main agent's generation, and all windows
//! (futures of that same task, not tasks of their own). Dropping the [`EventStream`] aborts the task and with it the
//! whole tree.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::stream::BoxStream;
use futures::{FutureExt, Stream, StreamExt};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use super::dispatch::Run;
use super::{AgentError, AgentEvent, AskRequest, Outcome};
use crate::card::ModelCard;
use crate::config::AgentConfig;
use crate::engine::{Engine, EngineError, Sampling};
use crate::media::Media;

/// What happens, as it happens. Ends after [`AgentEvent::Finished`] or an error. Dropping it stops the whole tree.
pub type EventStream = BoxStream<'static, Result<AgentEvent, AgentError>>;

/// Answers questions. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Agent {
    card: Arc<ModelCard>,
    engine: Arc<dyn Engine>,
    media: Media,
    config: AgentConfig,
}

impl Agent {
    /// An agent of this card, on this engine.
    #[must_use]
    pub fn new(card: Arc<ModelCard>, engine: Arc<dyn Engine>, media: Media, config: AgentConfig) -> Self {
        Self { card, engine, media, config }
    }

    /// Starts an episode. It runs at once; dropping the stream cancels everything below it.
    ///
    /// Must be called inside a Tokio runtime.
    #[must_use]
    pub fn ask(&self, request: AskRequest) -> EventStream {
        // Not bounded by a number: an episode's events are bounded by its token budgets, and a slow reader must not hold
        // the engine.
        let (sender, receiver) = mpsc::unbounded_channel();
        // A child of the request's span, where there is one: log lines of windows carry the request's id.
        let span = tracing::info_span!("episode", episode.id = %request.id);
        let run = Run::new(self.clone(), request, Emitter(sender), Clock(Instant::now()));
        let task = AbortOnDropHandle::new(tokio::spawn(run.guarded().instrument(span)));
        Events { receiver, task, done: false }.boxed()
    }

    /// Sampling at this temperature in place of the card's, with a seed that `name` always has, where seeds matter and the engine
    /// takes them: so that a run of many questions can be repeated, however they are divided.
    #[must_use]
    pub fn sampling_of(&self, name: &str, temperature: Option<f64>) -> Sampling {
        let seed = Sha256::digest(name).iter().take(6).fold(0_u64, |seed, byte| (seed << 8) | u64::from(*byte));
        let seeded = temperature.is_some_and(|temperature| temperature > 0.0) && self.engine.info().supported.seed;
        Sampling { temperature, seed: seeded.then_some(seed), ..Sampling::default() }
    }

    /// The card.
    #[must_use]
    pub fn card(&self) -> &ModelCard {
        &self.card
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Videos and pictures.
    #[must_use]
    pub const fn media(&self) -> &Media {
        &self.media
    }

    /// Deadlines and modes.
    #[must_use]
    pub const fn config(&self) -> &AgentConfig {
        &self.config
    }
}

/// Waits for the end of an episode of which nothing else matters.
///
/// # Errors
/// The episode's.
pub async fn finished(mut events: EventStream) -> Result<Outcome, AgentError> {
    let mut outcome = Err(EngineError::Failed("the episode ended without an end".to_owned()).into());
    while let Some(event) = events.next().await {
        match event {
            Ok(AgentEvent::Finished(finished)) => outcome = Ok(*finished),
            Ok(_) => {}
            Err(error) => outcome = Err(error),
        }
    }
    outcome
}

/// Sends events to whoever listens; when nobody does, the episode is about to be aborted.
#[derive(Debug, Clone)]
pub(super) struct Emitter(mpsc::UnboundedSender<AgentEvent>);

impl Emitter {
    pub(super) fn send(&self, event: AgentEvent) {
        let _ = self.0.send(event);
    }
}

/// Milliseconds since the episode began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock(Instant);

impl Clock {
    pub(super) fn ms(self) -> f64 {
        self.0.elapsed().as_secs_f64() * 1e3
    }
}

/// The receiving end, which owns the task.
struct Events {
    receiver: mpsc::UnboundedReceiver<AgentEvent>,
    task: AbortOnDropHandle<Result<(), AgentError>>,
    done: bool,
}

impl Stream for Events {
    type Item = Result<AgentEvent, AgentError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        if let Some(event) = std::task::ready!(self.receiver.poll_recv(cx)) {
            return Poll::Ready(Some(Ok(event)));
        }
        let ended = std::task::ready!(self.task.poll_unpin(cx));
        self.done = true;
        match ended {
            Ok(Ok(())) => Poll::Ready(None),
            Ok(Err(error)) => Poll::Ready(Some(Err(error))),
            Err(fault) => {
                tracing::error!(%fault, "an episode's task failed");
                Poll::Ready(Some(Err(EngineError::Failed("the episode broke off".to_owned()).into())))
            }
        }
    }
}
