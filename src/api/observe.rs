//! One episode as the API runs it: the agent's events, counted on the way, with the permit they run under.
//!
//! The agent needs no metrics: all of them are told here from what it tells anyway.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};

use super::admission::{Permit, Waited, Weight};
use super::convert::{Plan, VideoPath};
use super::error::ApiError;
use super::state::ApiState;
use crate::agent::{Agent, AgentEvent, EventStream, Outcome, StageTiming};
use crate::engine::Speaker;
use crate::metrics::{EpisodeOutcome, Metrics};
use crate::shutdown::Shutdown;
use crate::types::TokenUsage;

/// Events until [`AgentEvent::Finished`] or exactly one error. Dropping it stops the episode and gives the place back.
pub(super) type Episode = BoxStream<'static, Result<AgentEvent, ApiError>>;

/// An episode from its beginning: waits for a place, fetches the pictures, asks. Nothing of it happens before its first
/// event is asked for.
pub(super) fn start(state: ApiState, agent: Agent, plan: Plan, id: String, waited: Waited, body: Weight) -> Episode {
    stream::once(async move {
        let permit = state.admission().enter().await?.holding(body);
        waited.set(permit.waited_ms);
        let only_video = plan.only_video.clone();
        let shutdown = state.shutdown().clone();
        // A place is held already, and the episode's own deadline starts only when it does.
        let deadline = agent.config().episode_deadline_s;
        let load = plan.load(agent.media(), &state.card().pixels, id);
        let request = tokio::select! {
            biased;
            () = shutdown.cutting() => return Err(ApiError::Draining),
            loaded = tokio::time::timeout(Duration::from_secs(deadline), load) => {
                loaded.map_err(|_| ApiError::Deadline(deadline))??
            }
        };
        Ok(episode(agent.ask(request), permit, state.metrics().clone(), shutdown, only_video))
    })
    .try_flatten()
    .boxed()
}

/// Runs `events` under `permit` until they end or the server cuts what still runs.
fn episode(
    events: EventStream,
    permit: Permit,
    metrics: Metrics,
    shutdown: Shutdown,
    only_video: Option<VideoPath>,
) -> Episode {
    metrics.waited(permit.waited_ms / 1e3);
    let running = Running { events, story: Story::new(metrics), shutdown, only_video, _permit: permit };
    // The state goes with the last item, and with it the permit and all that is left of the episode.
    stream::unfold(Some(running), |running| async move {
        let mut running = running?;
        let next = tokio::select! {
            biased;
            () = running.shutdown.cutting() => Err(ApiError::Draining),
            next = running.events.next() => match next {
                Some(Ok(event)) => Ok(event),
                Some(Err(error)) => {
                    running.story.failed();
                    Err(ApiError::from_agent(error, running.only_video.as_ref()))
                },
                None => {
                    tracing::error!("an episode ended without an outcome");
                    running.story.failed();
                    Err(ApiError::Internal)
                },
            },
        };
        match next {
            Ok(event) => {
                running.story.see(&event);
                let last = matches!(event, AgentEvent::Finished(_));
                Some((Ok(event), (!last).then_some(running)))
            }
            Err(error) => Some((Err(error), None)),
        }
    })
    .boxed()
}

struct Running {
    events: EventStream,
    story: Story,
    shutdown: Shutdown,
    only_video: Option<VideoPath>,
    _permit: Permit,
}

/// What metrics are told of one episode. Dropped before an end, it tells of a cancelled one.
struct Story {
    metrics: Metrics,
    over: bool,
}

impl Story {
    const fn new(metrics: Metrics) -> Self {
        Self { metrics, over: false }
    }

    fn see(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::WindowFinished(record) => {
                self.metrics.window(record.status.name());
                self.generation(Speaker::Sub, record.timing, record.usage);
            }
            AgentEvent::TurnFinished(record) => self.generation(Speaker::Main, record.timing, record.usage),
            AgentEvent::Finished(outcome) => self.finished(outcome),
            _ => {}
        }
    }

    fn generation(&self, speaker: Speaker, timing: StageTiming, usage: TokenUsage) {
        if usage == TokenUsage::default() {
            // It never reached the engine: a refused call, a shared window.
            return;
        }
        let agent = speaker.name();
        let StageTiming { decode_ms, queue_ms, prefill_ms, generate_ms } = timing;
        for (stage, ms) in [("queue", queue_ms), ("prefill", prefill_ms), ("generate", generate_ms)] {
            self.metrics.stage(agent, stage, ms / 1e3);
        }
        if speaker == Speaker::Sub {
            self.metrics.stage(agent, "decode", decode_ms / 1e3);
        }
        self.metrics.tokens(agent, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens);
    }

    fn finished(&mut self, outcome: &Outcome) {
        let mut bursts = BTreeMap::<u32, usize>::new();
        for window in &outcome.windows {
            *bursts.entry(window.turn).or_default() += 1;
        }
        for calls in bursts.into_values() {
            self.metrics.burst(calls);
        }
        let seconds = |ms: f64| ms / 1e3;
        let main = Speaker::Main.name();
        self.metrics.stage(main, "open", seconds(outcome.open_ms));
        self.metrics.stage(main, "overview", seconds((outcome.overview_ms - outcome.open_ms).max(0.0)));
        self.metrics.answered(
            seconds(outcome.total_ms),
            outcome.first_token_ms.map(seconds),
            outcome.first_answer_ms.map(seconds),
        );
        self.end(EpisodeOutcome::Ok);
    }

    fn failed(&mut self) {
        self.end(EpisodeOutcome::Error);
    }

    fn end(&mut self, outcome: EpisodeOutcome) {
        self.over = true;
        self.metrics.episode(outcome);
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        if !self.over {
            tracing::info!(status = 499, "the episode was cancelled");
            self.metrics.episode(EpisodeOutcome::Cancelled);
        }
    }
}
