//! One episode from its first to its last event: opens the videos, generates the turns, watches the windows.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt, try_join_all};
use futures::stream::FuturesUnordered;

use super::agent::{Agent, Clock, Emitter};
use super::answer::AnswerGate;
use super::budget::{self, Rules};
use super::episode::{Action, Episode, Next, Watched};
use super::event::{AgentEvent, AgentUsage, Outcome, OverviewRecord, Story, TurnRecord, WindowRecord};
use super::form::Forced;
use super::generation::Generation;
use super::request::{AskPart, AskRequest, VideoPart};
use super::subagent::Watch;
use super::tool::SceneVideo;
use super::{AgentError, prompt};
use crate::card::{FrameBudget, ModelCard};
use crate::engine::{EngineError, Gang, GenerateRequest, Sampling, SessionKey, Speaker, TokenEvent};
use crate::media::{MediaError, Video};
use crate::types::{Clip, MediaTime, Role, TimeSpan, Turn};

/// Pieces of text that a turn may still produce after its answer is complete, so that it ends by itself and reports
/// its tokens. A model that goes on past them is cut.
const AFTER_ANSWER: u32 = 8;

/// One episode at work.
pub(super) struct Run {
    pub(super) agent: Agent,
    pub(super) request: AskRequest,
    pub(super) emit: Emitter,
    pub(super) clock: Clock,
}

/// The request's videos, opened.
pub(super) struct Scene {
    videos: Vec<Video>,
    described: Vec<SceneVideo>,
    pub(super) clips: Vec<Clip>,
    overviews: Vec<OverviewRecord>,
    open_ms: f64,
    overview_ms: f64,
}

/// When the first text came.
#[derive(Default)]
pub(super) struct FirstTimes {
    pub(super) token: Option<f64>,
    pub(super) answer: Option<f64>,
}

/// Windows being watched.
type Open = FuturesUnordered<BoxFuture<'static, (WindowRecord, Watched)>>;

impl Run {
    pub(super) const fn new(agent: Agent, request: AskRequest, emit: Emitter, clock: Clock) -> Self {
        Self { agent, request, emit, clock }
    }

    /// Runs within the episode's deadline.
    pub(super) async fn guarded(self) -> Result<(), AgentError> {
        let deadline = self.agent.config().episode_deadline_s;
        let run = tokio::time::timeout(Duration::from_secs(deadline), self.run());
        run.await.unwrap_or(Err(AgentError::Deadline(deadline)))
    }

    async fn run(self) -> Result<(), AgentError> {
        if self.request.turns.last().is_none_or(|turn| turn.role != Role::User) {
            return Err(AgentError::Invalid("the last message must be the user's".to_owned()));
        }
        self.check_form().await?;
        let scene = self.open().await?;
        let outcome = if self.request.options.agent.unwrap_or(!scene.videos.is_empty()) {
            self.episode(&scene).await?
        } else {
            self.plain(&scene).await?
        };
        self.emit.send(AgentEvent::Finished(Box::new(outcome)));
        Ok(())
    }

    /// A form that can't be had is refused before anything is decoded.
    async fn check_form(&self) -> Result<(), AgentError> {
        let engine = self.agent.engine();
        let Some(forced) = Forced::in_episode(&self.request.options) else { return Ok(()) };
        match forced.grammar().filter(|_| engine.info().supported.constraint) {
            Some(grammar) => engine.check(grammar).await.map_err(|error| match error {
                EngineError::Invalid(problem) => AgentError::Form { of_tools: forced.call, problem },
                error => error.into(),
            }),
            None => Ok(()),
        }
    }

    /// Opens all videos and decodes their overviews, all at the same time.
    async fn open(&self) -> Result<Scene, AgentError> {
        let parts = self.request.turns.iter().flat_map(|turn| &turn.parts);
        let parts: Vec<&VideoPart> =
            parts.filter_map(|part| if let AskPart::Video(video) = part { Some(video) } else { None }).collect();
        let (card, media) = (self.agent.card(), self.agent.media());
        let videos = try_join_all(parts.iter().map(|part| media.open(&part.source))).await?;
        let open_ms = self.clock.ms();
        let described = videos.iter().zip(&parts).enumerate();
        let described = described
            .map(|(n, (video, part))| describe(prompt::video_name(card, n, videos.len()), video, part))
            .collect::<Result<Vec<_>, _>>()?;
        let overviews = videos.iter().zip(&parts).zip(&described).enumerate();
        let overviews = overviews.map(|(n, ((video, part), scene))| async move {
            let limited = (part.start.is_some() || part.end.is_some()).then_some(scene.span);
            let clip = media.overview(video, &overview_budget(card, part), part.frames, limited, &card.pixels).await?;
            let record = OverviewRecord {
                video: n,
                duration: scene.duration,
                frame_times: clip.times(),
                keyframes: clip.keyframes,
                partial: clip.partial,
                treatment: video.info().treatment.clone(),
                at_ms: self.clock.ms(),
                frames: Vec::new(),
            };
            self.emit.send(AgentEvent::Overview(OverviewRecord { frames: clip.frames.clone(), ..record.clone() }));
            Ok::<_, AgentError>((clip, record))
        });
        let (clips, overviews) = try_join_all(overviews).await?.into_iter().unzip();
        Ok(Scene { videos, described, clips, overviews, open_ms, overview_ms: self.clock.ms() })
    }

    async fn episode(&self, scene: &Scene) -> Result<Outcome, AgentError> {
        let card = self.agent.card();
        let mut rules = Rules::new(card, self.agent.config(), &self.request.options);
        if scene.videos.is_empty() {
            rules.max_tool_turns = 0;
        }
        if !self.agent.engine().info().supported.constraint {
            rules.forced = rules.forced.map(Forced::unconstrained);
        }
        let sampling = budget::main_sampling(card, &self.request.sampling);
        let told = budget::plain_sampling(card, &self.request.sampling);
        let AskRequest { turns, options, .. } = &self.request;
        let tools = rules.max_tool_turns > 0;
        let mut conversation = prompt::opening(card, turns, &scene.clips, tools, &options.client_tools);
        let gate = AnswerGate::new(&self.request.sampling.stop, self.request.sampling.max_tokens);
        let mut episode = Episode::new(rules, scene.described.clone(), gate);
        let mut times = FirstTimes::default();
        loop {
            let sampling = Sampling { constraint: episode.constraint(), ..sampling.clone() };
            let prefix = episode.prefix().to_owned();
            let request = self.main_request(episode.turn(), conversation.clone(), prefix, sampling);
            self.turn(scene, &mut episode, request, &mut times).await?;
            match episode.next() {
                Next::Turn { add } => conversation.extend(add),
                Next::Wait | Next::Done => break,
            }
        }
        let story = episode.into_story();
        for call in &story.tool_calls {
            self.emit.send(AgentEvent::ToolCall(call.clone()));
        }
        // Told as the caller means it: its stop texts and length are the answer's.
        Ok(self.outcome(scene, &times, story, told))
    }

    /// Generates one main turn and waits until its windows are over. Windows start while the turn is being written.
    async fn turn(
        &self,
        scene: &Scene,
        episode: &mut Episode,
        request: GenerateRequest,
        times: &mut FirstTimes,
    ) -> Result<(), AgentError> {
        let mut record = TurnRecord::begun(episode.turn(), self.clock.ms());
        self.emit.send(AgentEvent::TurnStarted { turn: record.turn, at_ms: record.started_ms });
        let mut generation = Some(Generation::start(self.agent.engine().as_ref(), request, self.clock).await?);
        let gang = Gang::new();
        // The burst is not complete while it is being written.
        let mut writing = Some(gang.seat());
        let mut open = Open::new();
        let mut grace = AFTER_ANSWER;
        while generation.is_some() || !open.is_empty() {
            tokio::select! {
                event = next_of(&mut generation) => {
                    let mut actions = Vec::new();
                    let mut over = false;
                    let event = event?;
                    if let Some(active) = &generation {
                        times.token = times.token.or(active.first_text_ms);
                        record.timing = active.timing_after(0.0);
                        record.usage = active.seen;
                    }
                    match event {
                        Some(TokenEvent::Started { .. }) => {}
                        Some(TokenEvent::Tokens(tokens)) => episode.tokens(tokens),
                        Some(TokenEvent::Text(text)) => {
                            actions = episode.text(&text, self.clock.ms());
                            if episode.answered() {
                                over = grace == 0;
                                grace = grace.saturating_sub(1);
                            }
                            over |= actions.contains(&Action::Stop);
                        }
                        Some(TokenEvent::Finished(end)) => {
                            record.usage = end.usage;
                            record.finish_reason = end.reason;
                            over = true;
                        }
                        None => over = true,
                    }
                    if over {
                        // Cancels what is left of it.
                        generation = None;
                        record.finished_ms = self.clock.ms();
                        actions.extend(episode.turn_ended(record.clone(), self.clock.ms()));
                    }
                    for action in actions {
                        self.act(action, scene, episode, &gang, &open, times);
                    }
                    if over {
                        writing.take();
                    }
                }
                Some((window, watched)) = open.next(), if !open.is_empty() => {
                    for id in episode.window_done(window, watched, self.clock.ms()) {
                        self.emit.send(AgentEvent::WindowFinished(episode.window(id).clone()));
                    }
                }
            }
        }
        if let Some(record) = episode.last_record() {
            self.emit.send(AgentEvent::TurnFinished(record.clone()));
        }
        Ok(())
    }

    fn act(&self, action: Action, scene: &Scene, episode: &Episode, gang: &Gang, open: &Open, times: &mut FirstTimes) {
        match action {
            Action::Reasoning(text) => self.emit.send(AgentEvent::Reasoning(text)),
            Action::Answer(text) => {
                times.answer = times.answer.or_else(|| Some(self.clock.ms()));
                self.emit.send(AgentEvent::Answer(text));
            }
            Action::Tokens(tokens) => self.emit.send(AgentEvent::AnswerTokens(tokens)),
            Action::Settled(id) => self.emit.send(AgentEvent::WindowFinished(episode.window(id).clone())),
            Action::Share { id, video, window } => self.window_started(id, video, window, episode),
            Action::Watch { id, video, window } => {
                self.window_started(id, video, window, episode);
                let watch = Watch {
                    agent: self.agent.clone(),
                    emit: self.emit.clone(),
                    clock: self.clock,
                    video: scene.videos[video].clone(),
                    window,
                    question: prompt::question(&self.request.turns),
                    sampling: budget::sub_sampling(self.agent.card(), &self.request.sampling),
                    session: self.session(),
                    seat: gang.seat(),
                    trace: self.request.trace.map(|trace| trace.window(id)),
                };
                open.push(watch.run(episode.window(id).clone()).boxed());
            }
            Action::Stop => {}
        }
    }

    fn window_started(&self, id: usize, video: usize, window: TimeSpan, episode: &Episode) {
        let (turn, at_ms) = (episode.turn(), self.clock.ms());
        self.emit.send(AgentEvent::WindowStarted { id, turn, video, window, at_ms });
    }

    pub(super) fn main_request(
        &self,
        turn: u32,
        turns: Vec<Turn>,
        prefix: String,
        sampling: Sampling,
    ) -> GenerateRequest {
        GenerateRequest {
            turns,
            prefix,
            sampling,
            session: self.session(),
            speaker: Speaker::Main,
            seat: None,
            deadline: None,
            trace: self.request.trace.map(|trace| trace.turn(turn)),
        }
    }

    fn session(&self) -> SessionKey {
        SessionKey(Arc::from(self.request.id.as_str()))
    }

    pub(super) fn outcome(&self, scene: &Scene, times: &FirstTimes, story: Story, sampling: Sampling) -> Outcome {
        let watched = story.windows.iter().filter(|window| window.shared_with.is_none());
        let usage = AgentUsage {
            main: story.turns.iter().map(|turn| turn.usage).sum(),
            sub: watched.map(|window| window.usage).sum(),
            reasoning_tokens: 0,
        };
        let outcome = Outcome {
            answer: story.answer,
            reasoning: story.reasoning,
            tool_calls: story.tool_calls,
            tokens: story.tokens,
            finish_reason: story.finish_reason,
            sampling: Sampling { constraint: None, ..sampling },
            overviews: scene.overviews.clone(),
            windows: story.windows,
            turns: story.turns,
            usage,
            open_ms: scene.open_ms,
            overview_ms: scene.overview_ms,
            first_token_ms: times.token,
            first_answer_ms: times.answer,
            total_ms: self.clock.ms(),
        };
        outcome.with_reasoning_share()
    }
}

/// The next event of a generation that is still running; never, when it is not.
async fn next_of(generation: &mut Option<Generation>) -> Result<Option<TokenEvent>, EngineError> {
    match generation {
        Some(generation) => generation.next().await,
        None => std::future::pending().await,
    }
}

/// The card's overview budget with what the request asks for in its place; never more frames than the card allows.
fn overview_budget(card: &ModelCard, part: &VideoPart) -> FrameBudget {
    let budget = card.overview;
    let max_frames = part.max_frames.map_or(budget.max_frames, |frames| frames.clamp(1, budget.max_frames));
    FrameBudget {
        fps: part.fps.unwrap_or(budget.fps),
        max_frames,
        min_frames: budget.min_frames.min(max_frames),
        ..budget
    }
}

/// A video as calls can name it, limited to the part the caller asked about.
fn describe(name: String, video: &Video, part: &VideoPart) -> Result<SceneVideo, MediaError> {
    let duration = video.duration();
    let start = part.start.unwrap_or(MediaTime::ZERO).max(MediaTime::ZERO);
    let end = part.end.unwrap_or(duration).min(duration);
    let span = TimeSpan::new(start, end).filter(|span| span.start < span.end || duration == MediaTime::ZERO);
    let span = span.ok_or_else(|| {
        MediaError::NoFrames(format!("start and end leave nothing of the video, which is {duration} s long"))
    })?;
    Ok(SceneVideo { name, span, duration })
}
