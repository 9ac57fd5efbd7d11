//! The trace of one episode, put together from what its records say.
//!
//! ```text
//! episode ─┬─ wait · pictures · open · overview
//!          ├─ turn 0 ── queue · prefill · generate
//!          └─ window 0 ── decode · queue · prefill · generate
//! ```
//! Turns and windows stand side by side: a window is called while a turn is written and goes on after it. Nothing is measured
//! here; every span is made when what it tells of is over. What is called after GenAI's semantic conventions is
//! (`gen_ai.*`), the rest has names of ours. Never what was asked or said.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::Numbers;
use crate::agent::{AgentEvent, Outcome, StageTiming, TurnRecord, WindowRecord, WindowStatus};
use crate::api::origin::Origin;
use crate::engine::FinishReason;
use crate::metrics::EpisodeOutcome;
use crate::traces::{Begun, Span, SpanKind, Tracer, Value};
use crate::types::{TimeSpan, TokenUsage, TraceContext};

/// Spans of one episode; what is beyond is left out.
const MOST: usize = 1000;

type Attributes = Vec<(&'static str, Value)>;

/// The spans of an episode so far. Exists for episodes that are sampled.
#[derive(Debug)]
pub(super) struct Spans {
    tracer: Arc<dyn Tracer>,
    begun: Begun,
    began: SystemTime,
    clock: Instant,
    /// When the agent was asked: its records count from there.
    asked: Duration,
    model: String,
    attributes: Attributes,
    done: Vec<Span>,
    /// Whether an overview is there.
    opened: bool,
    turns: BTreeMap<u32, f64>,
    windows: BTreeMap<usize, OpenWindow>,
}

#[derive(Debug)]
struct OpenWindow {
    turn: u32,
    window: TimeSpan,
    started_ms: f64,
    decoded_ms: Option<f64>,
}

impl Spans {
    /// A trace that begins now. Also says where in it the episode is, sampled or not.
    pub(super) fn begin(
        tracer: &Arc<dyn Tracer>,
        origin: &Origin,
        id: &str,
        model: &str,
    ) -> (TraceContext, Option<Self>) {
        let begun = tracer.begin(origin.traceparent.as_deref());
        let spans = begun.context.sampled.then(|| Self {
            tracer: Arc::clone(tracer),
            begun,
            began: SystemTime::now(),
            clock: Instant::now(),
            asked: Duration::ZERO,
            model: model.to_owned(),
            attributes: vec![
                ("episode.id", id.to_owned().into()),
                ("request.id", origin.request_id.clone().into()),
                ("gen_ai.operation.name", "invoke_agent".into()),
                ("gen_ai.provider.name", "paravt".into()),
                ("gen_ai.request.model", model.to_owned().into()),
                ("gen_ai.response.id", id.to_owned().into()),
            ],
            done: Vec::new(),
            opened: false,
            turns: BTreeMap::new(),
            windows: BTreeMap::new(),
        });
        (begun.context, spans)
    }

    /// It has its place.
    pub(super) fn admitted(&mut self, waited_ms: f64) {
        let context = self.begun.context;
        self.part(context, "wait", Duration::ZERO, duration(waited_ms), Attributes::new());
    }

    /// The agent is asked now; its pictures, where it has some, are there.
    pub(super) fn asked(&mut self, waited_ms: f64, pictures: bool) {
        self.asked = self.clock.elapsed();
        if pictures {
            self.part(self.begun.context, "pictures", duration(waited_ms), self.asked, Attributes::new());
        }
    }

    /// One thing more has happened.
    pub(super) fn see(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::Overview(_) => self.opened = true,
            AgentEvent::TurnStarted { turn, at_ms } => {
                self.turns.insert(*turn, *at_ms);
            }
            AgentEvent::TurnFinished(record) => self.turn(record),
            AgentEvent::WindowStarted { id, turn, window, at_ms, .. } => {
                let open = OpenWindow { turn: *turn, window: *window, started_ms: *at_ms, decoded_ms: None };
                self.windows.insert(*id, open);
            }
            AgentEvent::WindowFrames { id, at_ms, .. } => {
                if let Some(open) = self.windows.get_mut(id) {
                    open.decoded_ms = Some(*at_ms);
                }
            }
            AgentEvent::WindowFinished(record) => self.window(record),
            AgentEvent::Finished(outcome) => self.finished(outcome),
            AgentEvent::Reasoning(_)
            | AgentEvent::Answer(_)
            | AgentEvent::AnswerTokens(_)
            | AgentEvent::ToolCall(_)
            | AgentEvent::WindowDelta { .. } => {}
        }
    }

    /// It is over, well or not: sends all spans. What was at work then ends with it.
    pub(super) fn end(mut self, outcome: EpisodeOutcome, code: Option<&'static str>, numbers: &Numbers) {
        let now = self.clock.elapsed();
        let context = self.begun.context;
        let error = (outcome != EpisodeOutcome::Ok).then(|| code.unwrap_or_else(|| outcome.name()));
        if let (Some(why), true) = (error, self.asked > Duration::ZERO) {
            self.abandon(now, why);
        }
        let mut attributes = std::mem::take(&mut self.attributes);
        attributes.push(("episode.outcome", outcome.name().into()));
        attributes.push(("episode.turns", numbers.turns.into()));
        attributes.push(("episode.windows", numbers.windows.into()));
        attributes.push(("episode.windows_failed", numbers.windows_failed.into()));
        attributes.extend(tokens(numbers.usage));
        self.push(Span {
            context,
            parent: self.begun.parent,
            name: "episode",
            kind: SpanKind::Server,
            start: self.began,
            end: self.began + now,
            attributes: with_error(attributes, error),
            error: error.map(Cow::Borrowed),
        });
        self.tracer.send(self.done);
    }

    /// Tells of what was at work when the episode broke off.
    fn abandon(&mut self, now: Duration, why: &'static str) {
        let context = self.begun.context;
        if self.turns.is_empty() && self.windows.is_empty() && self.done.iter().all(|span| span.name != "turn") {
            // There is no event between the opening of the videos and the end of their overviews.
            let name = if self.opened { "overview" } else { "open" };
            self.failed_part(context, name, self.asked, now, why);
        }
        for (turn, started_ms) in std::mem::take(&mut self.turns) {
            let attributes = self.turn_attributes(turn);
            let from = self.at(started_ms);
            self.whole(context.turn(turn), "turn", from, now, attributes, Some(why));
        }
        for (id, open) in std::mem::take(&mut self.windows) {
            let place = context.window(id);
            let from = self.at(open.started_ms);
            match open.decoded_ms.map(|ms| self.at(ms)) {
                Some(decoded) => self.part(place, "decode", from, decoded, Attributes::new()),
                None => self.failed_part(place, "decode", from, now, why),
            }
            let attributes = window_attributes(id, open.turn, Some(open.window));
            self.whole(place, "window", from, now, attributes, Some(why));
        }
    }

    fn turn(&mut self, record: &TurnRecord) {
        self.turns.remove(&record.turn);
        let place = self.begun.context.turn(record.turn);
        let (from, to) = (self.at(record.started_ms), self.at(record.finished_ms));
        self.stages(place, (from, to), record.timing, None);
        let mut attributes = self.turn_attributes(record.turn);
        let finish = match record.finish_reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        };
        attributes.push(("gen_ai.response.finish_reason", finish.into()));
        attributes.push(("turn.windows", (record.windows.len() as u64).into()));
        attributes.extend(tokens(record.usage));
        self.whole(place, "turn", from, to, attributes, None);
    }

    fn window(&mut self, record: &WindowRecord) {
        let open = self.windows.remove(&record.id);
        let place = self.begun.context.window(record.id);
        let (from, to) = (self.at(record.started_ms), self.at(record.finished_ms));
        let error = match record.status {
            WindowStatus::Ok | WindowStatus::Shared | WindowStatus::NotRun => None,
            status @ (WindowStatus::Refused | WindowStatus::Failed | WindowStatus::Late) => Some(status.name()),
        };
        // One that shares another's fate did nothing itself.
        let idle = matches!(record.status, WindowStatus::Shared | WindowStatus::NotRun | WindowStatus::Refused);
        let watched = !idle && record.shared_with.is_none();
        match open.and_then(|open| open.decoded_ms) {
            Some(decoded_ms) if watched => {
                let decoded = self.at(decoded_ms);
                let began = decoded.saturating_sub(duration(record.timing.decode_ms));
                self.part(place, "decode", began, decoded, Attributes::new());
                self.stages(place, (decoded, to), record.timing, error);
            }
            None if watched => self.failed_part(place, "decode", from, to, error.unwrap_or("failed")),
            _ => {}
        }
        let mut attributes = window_attributes(record.id, record.turn, record.span());
        attributes.push(("window.status", record.status.name().into()));
        attributes.push(("window.frames", (record.frame_times.len() as u64).into()));
        if record.partial {
            attributes.push(("window.partial", true.into()));
        }
        if let Some(other) = record.shared_with {
            attributes.push(("window.shared_with", (other as u64).into()));
        }
        attributes.push(("gen_ai.request.model", self.model.clone().into()));
        attributes.extend(tokens(record.usage));
        self.whole(place, "window", from, to, attributes, error);
    }

    fn finished(&mut self, outcome: &Outcome) {
        let context = self.begun.context;
        let (open, overview) = (self.at(outcome.open_ms), self.at(outcome.overview_ms));
        let videos = outcome.overviews.len() as u64;
        let frames: usize = outcome.overviews.iter().map(|overview| overview.frame_times.len()).sum();
        if videos > 0 {
            self.part(context, "open", self.asked, open, vec![("overview.videos", videos.into())]);
            self.part(context, "overview", open, overview, vec![("overview.frames", (frames as u64).into())]);
        }
        for (name, ms) in
            [("episode.first_token_ms", outcome.first_token_ms), ("episode.first_answer_ms", outcome.first_answer_ms)]
        {
            self.attributes.extend(ms.map(|ms| (name, ms.into())));
        }
    }

    /// The engine's stages, one after the other from `from`. Where it failed, the last that took time is the one that did.
    fn stages(
        &mut self,
        place: TraceContext,
        (from, to): (Duration, Duration),
        timing: StageTiming,
        error: Option<&'static str>,
    ) {
        let StageTiming { queue_ms, prefill_ms, generate_ms, .. } = timing;
        let stages = [("queue", queue_ms), ("prefill", prefill_ms), ("generate", generate_ms)];
        let last = match error {
            None => stages.len() - 1,
            Some(_) => stages.iter().rposition(|(_, ms)| *ms > 0.0).unwrap_or(0),
        };
        let mut at = from;
        for (number, (name, ms)) in stages.into_iter().enumerate().take(last + 1) {
            let next = (at + duration(ms)).min(to);
            match error.filter(|_| number == last) {
                Some(why) => self.failed_part(place, name, at, to, why),
                None => self.part(place, name, at, next, Attributes::new()),
            }
            at = next;
        }
    }

    fn turn_attributes(&self, turn: u32) -> Attributes {
        vec![
            ("turn.number", u64::from(turn).into()),
            ("gen_ai.operation.name", "chat".into()),
            ("gen_ai.provider.name", "paravt".into()),
            ("gen_ai.request.model", self.model.clone().into()),
        ]
    }

    /// The time of a record, from the episode's begin here.
    fn at(&self, ms: f64) -> Duration {
        self.asked + duration(ms)
    }

    fn part(&mut self, of: TraceContext, name: &'static str, from: Duration, to: Duration, attributes: Attributes) {
        self.below(of, of.child(name, 0), name, (from, to), attributes, None);
    }

    fn failed_part(&mut self, of: TraceContext, name: &'static str, from: Duration, to: Duration, why: &'static str) {
        self.below(of, of.child(name, 0), name, (from, to), Attributes::new(), Some(why));
    }

    /// A turn or a window.
    fn whole(
        &mut self,
        place: TraceContext,
        name: &'static str,
        from: Duration,
        to: Duration,
        attributes: Attributes,
        error: Option<&'static str>,
    ) {
        self.below(self.begun.context, place, name, (from, to), attributes, error);
    }

    fn below(
        &mut self,
        parent: TraceContext,
        context: TraceContext,
        name: &'static str,
        (from, to): (Duration, Duration),
        attributes: Attributes,
        error: Option<&'static str>,
    ) {
        let (start, end) = (self.began + from, self.began + to.max(from));
        let attributes = with_error(attributes, error);
        let (parent, error) = (Some(parent.span_id), error.map(Cow::Borrowed));
        // Room for the episode's own span.
        if self.done.len() < MOST - 1 {
            self.push(Span { context, parent, name, kind: SpanKind::Internal, start, end, attributes, error });
        }
    }

    fn push(&mut self, span: Span) {
        self.done.push(span);
    }
}

fn window_attributes(id: usize, turn: u32, window: Option<TimeSpan>) -> Attributes {
    let mut attributes: Attributes = vec![
        ("window.id", (id as u64).into()),
        ("window.turn", u64::from(turn).into()),
        ("gen_ai.operation.name", "execute_tool".into()),
        ("gen_ai.provider.name", "paravt".into()),
        ("gen_ai.tool.name", "crop_video".into()),
    ];
    if let Some(window) = window {
        attributes.push(("window.start", window.start.seconds().into()));
        attributes.push(("window.end", window.end.seconds().into()));
    }
    attributes
}

/// Nothing, where no engine was asked.
fn tokens(usage: TokenUsage) -> Attributes {
    if usage == TokenUsage::default() {
        return Attributes::new();
    }
    vec![
        ("gen_ai.usage.input_tokens", usage.prompt_tokens.into()),
        ("gen_ai.usage.output_tokens", usage.completion_tokens.into()),
        ("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens.into()),
    ]
}

fn with_error(mut attributes: Attributes, error: Option<&'static str>) -> Attributes {
    attributes.extend(error.map(|error| ("error.type", error.into())));
    attributes
}

fn duration(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default()
}
