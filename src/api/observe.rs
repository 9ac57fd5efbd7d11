//! One episode as the API runs it, or one for each choice: the agent's events, counted on the way, with the permit they run
//! under.
//!
//! The agent needs no metrics, traces or logs of its own: all of them are told here from what it tells anyway.

mod spans;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::stream::{self, BoxStream, SelectAll};
use futures::{StreamExt, TryStreamExt as _};

use self::spans::Spans;
use super::admission::{Permit, Waited, Weight};
use super::convert::{Plan, VideoPath};
use super::error::ApiError;
use super::origin::Origin;
use super::state::ApiState;
use super::thumbnails;
use crate::agent::{Agent, AgentError, AgentEvent, AskRequest, EventStream, Outcome, StageTiming, WindowStatus};
use crate::engine::Speaker;
use crate::metrics::{EpisodeOutcome, Metrics};
use crate::shutdown::Shutdown;
use crate::types::{TokenUsage, TraceContext};

/// What happens until every choice has its [`AgentEvent::Finished`], or exactly one error. Dropping it stops all of it and
/// gives the place back.
pub(super) type Episode = BoxStream<'static, Result<Told, ApiError>>;

/// One thing that happened.
#[derive(Debug, Clone)]
pub(super) struct Told {
    /// In the episode of which choice.
    pub(super) choice: usize,
    /// What.
    pub(super) event: AgentEvent,
    /// Its frames as `data:` URLs, where they are wanted.
    pub(super) thumbnails: Vec<String>,
}

/// An episode from its beginning, or one for each choice: waits for a place, fetches the pictures, asks. Nothing of it happens
/// before its first event is asked for.
pub(super) fn start(
    state: ApiState,
    agent: Agent,
    plan: Plan,
    id: String,
    origin: &Origin,
    waited: Waited,
    body: Weight,
) -> Episode {
    let begin = |choice| Story::begin(&state, &episode_id(&id, choice), origin);
    let mut stories: Vec<Story> = (0..plan.shape.choices).map(begin).collect();
    stream::once(async move {
        let (only_video, shape, pictures) = (plan.only_video.clone(), plan.shape, plan.has_pictures());
        let shutdown = state.shutdown().clone();
        let (request, permit) = match prepare(&state, &agent, plan, &id, &waited, body, &mut stories).await {
            Ok(prepared) => prepared,
            Err(error) => {
                state.metrics().error(error.code());
                stories.iter_mut().for_each(|story| story.failed(error.code()));
                return Err(error);
            }
        };
        let ask = |(choice, story): (usize, &mut Story)| {
            story.asked(pictures);
            let mut request = AskRequest { id: story.id.clone(), trace: story.trace, ..request.clone() };
            // Each with the next seed.
            request.sampling.seed = request.sampling.seed.map(|seed| seed.wrapping_add(choice as u64));
            agent.ask(request)
        };
        let choices = stories.iter_mut().enumerate().map(ask).collect();
        let episode = episode(choices, permit, stories, shutdown, only_video);
        Ok(if shape.thumbnails { thumbnails::added(episode) } else { thumbnails::left_out(episode) })
    })
    .try_flatten()
    .boxed()
}

/// The first choice's is the answer's own.
fn episode_id(id: &str, choice: usize) -> String {
    if choice == 0 { id.to_owned() } else { format!("{id}-{choice}") }
}

/// Waits for a place and fetches the pictures.
async fn prepare(
    state: &ApiState,
    agent: &Agent,
    plan: Plan,
    id: &str,
    waited: &Waited,
    body: Weight,
    stories: &mut [Story],
) -> Result<(AskRequest, Permit), ApiError> {
    let cost = plan.cost(state.card(), plan.shape.choices);
    let permit = state.admission().enter(body, cost).await?;
    waited.set(permit.waited_ms);
    state.metrics().waited(permit.waited_ms / 1e3);
    stories.iter_mut().for_each(|story| story.admitted(permit.waited_ms));
    // A place is held already, and the episode's own deadline starts only when it does.
    let deadline = agent.config().episode_deadline_s;
    let load = plan.load(agent.media(), &state.card().pixels, id.to_owned());
    let request = tokio::select! {
        biased;
        () = state.shutdown().cutting() => return Err(ApiError::Draining),
        loaded = tokio::time::timeout(Duration::from_secs(deadline), load) => {
            loaded.map_err(|_| ApiError::Deadline(deadline))??
        }
    };
    Ok((request, permit))
}

/// Runs all `choices` under `permit` until they end or the server cuts what still runs.
fn episode(
    choices: Vec<EventStream>,
    permit: Permit,
    stories: Vec<Story>,
    shutdown: Shutdown,
    only_video: Option<VideoPath>,
) -> Episode {
    let left = choices.len();
    let numbered = choices.into_iter().enumerate();
    let numbered = numbered.map(|(choice, events)| events.map(move |event| (choice, event)).boxed());
    let running =
        Running { events: stream::select_all(numbered), left, stories, shutdown, only_video, _permit: permit };
    // The state goes with the last item, and with it the permit and all that is left of the episodes.
    stream::unfold(Some(running), |running| async move {
        let mut running = running?;
        match running.next().await {
            Ok(told) => Some((Ok(told), (running.left > 0).then_some(running))),
            Err(error) => Some((Err(error), None)),
        }
    })
    .boxed()
}

struct Running {
    events: SelectAll<BoxStream<'static, (usize, Result<AgentEvent, AgentError>)>>,
    /// Choices that are not finished.
    left: usize,
    stories: Vec<Story>,
    shutdown: Shutdown,
    only_video: Option<VideoPath>,
    _permit: Permit,
}

impl Running {
    async fn next(&mut self) -> Result<Told, ApiError> {
        let next = tokio::select! {
            biased;
            () = self.shutdown.cutting() => {
                let code = ApiError::Draining.code();
                self.stories.iter_mut().for_each(|story| story.cut(code));
                return Err(ApiError::Draining);
            },
            next = self.events.next() => next,
        };
        // Of the choices that are not over when one fails it is told that they were cancelled.
        let (choice, error) = match next {
            Some((choice, Ok(event))) => {
                self.stories[choice].see(&event);
                self.left -= usize::from(matches!(event, AgentEvent::Finished(_)));
                return Ok(Told { choice, event, thumbnails: Vec::new() });
            }
            Some((choice, Err(error))) => (choice, ApiError::from_agent(error, self.only_video.as_ref())),
            None => {
                tracing::error!("an episode ended without an outcome");
                (0, ApiError::Internal)
            }
        };
        let story = &mut self.stories[choice];
        story.metrics.error(error.code());
        story.failed(error.code());
        Err(error)
    }
}

/// What an episode came to so far, in numbers.
#[derive(Debug, Clone, Default)]
struct Numbers {
    turns: u64,
    windows: u64,
    windows_failed: u64,
    usage: TokenUsage,
    waited_ms: Option<f64>,
    first_token_ms: Option<f64>,
    first_answer_ms: Option<f64>,
}

/// What metrics, traces and the log are told of one episode. Dropped before an end, it tells of a cancelled one.
struct Story {
    metrics: Metrics,
    id: String,
    /// The request's, where log lines belong; what is dropped is dropped outside of it.
    span: tracing::Span,
    began: Instant,
    numbers: Numbers,
    trace: Option<TraceContext>,
    spans: Option<Spans>,
    /// Whether the agent was asked: what never came to that is no episode in the metrics.
    asked: bool,
    over: bool,
}

impl Story {
    fn begin(state: &ApiState, id: &str, origin: &Origin) -> Self {
        let (trace, spans) = match state.tracer() {
            Some(tracer) => {
                let (trace, spans) = Spans::begin(tracer, origin, id, &state.card().name);
                (Some(trace), spans)
            }
            None => (None, None),
        };
        Self {
            metrics: state.metrics().clone(),
            id: id.to_owned(),
            span: tracing::Span::current(),
            began: Instant::now(),
            numbers: Numbers::default(),
            trace,
            spans,
            asked: false,
            over: false,
        }
    }

    fn admitted(&mut self, waited_ms: f64) {
        self.numbers.waited_ms = Some(waited_ms);
        if let Some(spans) = &mut self.spans {
            spans.admitted(waited_ms);
        }
    }

    fn asked(&mut self, pictures: bool) {
        self.asked = true;
        if let Some(spans) = &mut self.spans {
            spans.asked(self.numbers.waited_ms.unwrap_or_default(), pictures);
        }
    }

    fn see(&mut self, event: &AgentEvent) {
        if let Some(spans) = &mut self.spans {
            spans.see(event);
        }
        match event {
            AgentEvent::WindowFinished(record) => {
                self.metrics.window(record.status.name());
                self.numbers.windows += 1;
                self.numbers.windows_failed +=
                    u64::from(!matches!(record.status, WindowStatus::Ok | WindowStatus::Shared));
                self.generation(Speaker::Sub, record.timing, record.usage);
            }
            AgentEvent::TurnFinished(record) => {
                self.numbers.turns += 1;
                self.generation(Speaker::Main, record.timing, record.usage);
            }
            AgentEvent::Finished(outcome) => self.finished(outcome),
            _ => {}
        }
    }

    fn generation(&mut self, speaker: Speaker, timing: StageTiming, usage: TokenUsage) {
        if usage == TokenUsage::default() {
            // It never reached the engine: a refused call, a shared window.
            return;
        }
        self.numbers.usage += usage;
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
        self.numbers.first_token_ms = outcome.first_token_ms;
        self.numbers.first_answer_ms = outcome.first_answer_ms;
        self.end(EpisodeOutcome::Ok, None);
    }

    fn failed(&mut self, code: &'static str) {
        self.end(EpisodeOutcome::Error, Some(code));
    }

    /// By a server that stops, which is no fault of the episode's.
    fn cut(&mut self, code: &'static str) {
        self.end(EpisodeOutcome::Cancelled, Some(code));
    }

    /// Only the first end counts.
    fn end(&mut self, outcome: EpisodeOutcome, code: Option<&'static str>) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        if self.asked {
            self.metrics.episode(outcome);
        }
        self.log(outcome, code);
        if let Some(spans) = self.spans.take() {
            spans.end(outcome, code, &self.numbers);
        }
    }

    /// One line an episode: numbers, and nothing that anybody said.
    fn log(&self, outcome: EpisodeOutcome, code: Option<&'static str>) {
        let Numbers { turns, windows, windows_failed, usage, waited_ms, first_token_ms, first_answer_ms } =
            &self.numbers;
        let _entered = self.span.enter();
        tracing::info!(
            episode.id = %self.id,
            trace.id = self.trace.map(|trace| format!("{:032x}", trace.trace_id)),
            outcome = outcome.name(),
            error.code = code,
            turns,
            windows,
            windows_failed,
            prompt_tokens = usage.prompt_tokens,
            cached_tokens = usage.cached_tokens,
            completion_tokens = usage.completion_tokens,
            waited_ms,
            first_token_ms,
            first_answer_ms,
            total_ms = self.began.elapsed().as_secs_f64() * 1e3,
            "episode"
        );
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        self.end(EpisodeOutcome::Cancelled, None);
    }
}
