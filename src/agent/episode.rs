//! The state machine of one episode. No I/O and no clock: what happened goes in, what to do comes out.
//!
//! `dispatch` feeds it the main agent's text and the windows' ends, and does what the [`Action`]s say. Every row of the
//! design's failure table is decided here and tested below without a model.

use super::answer::AnswerGate;
use super::budget::Rules;
use super::event::{Story, TurnRecord, WindowRecord, WindowStatus};
use super::form::Forced;
use super::parser::{Malformed, Parser, Segment, ToolCall};
use super::prompt;
use super::tokens::Trail;
use super::tool::{self, SceneVideo};
use crate::config::Dispatch;
use crate::engine::{Constraint, FinishReason, TokenInfo};
use crate::types::{MediaTime, Role, TimeSpan, Turn};

/// Something for `dispatch` to do.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Action {
    /// Pass on more thinking.
    Reasoning(String),
    /// Pass on more of the answer.
    Answer(String),
    /// Pass on the tokens of the answer's next piece.
    Tokens(Vec<TokenInfo>),
    /// Watch this window now.
    Watch { id: usize, video: usize, window: TimeSpan },
    /// This window waits for the summary of an equal one.
    Share { id: usize, video: usize, window: TimeSpan },
    /// This call is over without having run: tell.
    Settled(usize),
    /// Stop generating: the rest of the turn does not count.
    Stop,
}

/// What comes after a turn whose windows are all over.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Next {
    /// Windows are still open.
    Wait,
    /// Generate again, with these turns added to the conversation, opening the assistant's turn with [`Episode::prefix`].
    Turn { add: Vec<Turn> },
    /// The answer is complete.
    Done,
}

/// How a window's sub-agent ended.
#[derive(Debug, Clone)]
pub(super) enum Watched {
    /// Its text.
    Summary(String),
    /// Its failure, for this window only.
    Failed(String),
    /// Its deadline passed.
    Late(String),
}

/// One episode.
#[derive(Debug)]
pub(super) struct Episode {
    rules: Rules,
    scene: Vec<SceneVideo>,
    parser: Parser,
    /// Raw text of the turn, without the prefix.
    raw: String,
    prefix: String,
    turn: u32,
    tool_turns: u32,
    /// First window of this turn.
    first: usize,
    open: Vec<usize>,
    /// Whether this turn has told any thinking.
    thought: bool,
    /// Set when the turn's generation is over: whether it had calls.
    ended: Option<bool>,
    answered: bool,
    /// Set while the turn's last segments are read: an answer among them comes all at once.
    ending: bool,
    /// Set in the turn that is opened for an answer of a form.
    forced: bool,
    /// Calls of the caller's tools in this turn.
    client_calls: Vec<ToolCall>,
    /// Tokens of the turn, and where its answer begins in the text they make.
    trail: Trail,
    answer_at: Option<usize>,
    gate: AnswerGate,
    story: Story,
}

/// Windows whose ends differ by no more than this are one.
const SAME_WINDOW_MICROS: u64 = 500_000;

/// Opens a call by force when the caller requires a look: the model only fills in the window.
const FORCED_CALL: &str = "</think>\n<tool_call>\n{\"name\": \"crop_video\", \"arguments\": {";

impl Episode {
    pub(super) fn new(rules: Rules, scene: Vec<SceneVideo>, gate: AnswerGate) -> Self {
        let prefix = rules.think_prefix.clone();
        let mut episode = Self {
            parser: Parser::new(),
            raw: String::new(),
            prefix: String::new(),
            turn: 0,
            tool_turns: 0,
            first: 0,
            open: Vec::new(),
            thought: false,
            ended: None,
            answered: false,
            ending: false,
            forced: false,
            client_calls: Vec::new(),
            trail: Trail::default(),
            answer_at: None,
            gate,
            story: Story::default(),
            rules,
            scene,
        };
        episode.begin(prefix);
        episode
    }

    /// What the assistant's turn is opened with.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Number of the turn at work.
    pub(super) const fn turn(&self) -> u32 {
        self.turn
    }

    /// True once the turn's answer is complete.
    pub(super) const fn answered(&self) -> bool {
        self.answered
    }

    /// A window by its number.
    pub(super) fn window(&self, id: usize) -> &WindowRecord {
        &self.story.windows[id]
    }

    /// The turn that ended last.
    pub(super) fn last_record(&self) -> Option<&TurnRecord> {
        self.story.turns.last()
    }

    /// What the episode leaves.
    pub(super) fn into_story(self) -> Story {
        self.story
    }

    fn begin(&mut self, prefix: String) {
        let mut parser = Parser::new();
        // The prefix is part of what the model said; its segments (none, or thinking already told) are not news.
        parser.push(&prefix);
        self.parser = if self.rules.dispatch == Dispatch::Sequential { parser.one_call() } else { parser };
        self.prefix = prefix;
        self.raw.clear();
        self.thought = false;
        self.answered = false;
        self.ending = false;
        self.forced = false;
        self.client_calls.clear();
        self.trail = Trail::default();
        self.answer_at = None;
        self.ended = None;
        self.first = self.story.windows.len();
    }

    /// True when calls of this turn can't be run any more.
    const fn last_turn(&self) -> bool {
        self.tool_turns >= self.rules.max_tool_turns
    }

    /// True when an answer now would come before the look that the caller requires. A call that was refused is no look.
    fn must_look_first(&self) -> bool {
        let looked = |window: &WindowRecord| !matches!(window.status, WindowStatus::Refused | WindowStatus::NotRun);
        self.rules.must_look && !self.last_turn() && !self.story.windows.iter().any(looked)
    }

    /// What this turn's output must be.
    pub(super) fn constraint(&self) -> Option<Constraint> {
        self.rules.forced.as_ref().filter(|_| self.forced).and_then(|forced| forced.constraint(&self.prefix))
    }

    /// True while an answer would not count, since the turn for an answer of its form is still to come.
    const fn form_comes_first(&self) -> bool {
        self.rules.forced.is_some() && !self.forced
    }

    /// True while a call of the caller's tools would not count, since the turn for it is still to come.
    fn call_comes_later(&self) -> bool {
        self.form_comes_first() && self.rules.forced.as_ref().is_some_and(|forced| forced.call)
    }

    /// True in the turn whose whole output is the answer.
    fn is_all_answer(&self) -> bool {
        self.forced && self.rules.forced.as_ref().is_some_and(|forced| !forced.call)
    }

    fn is_client_tool(&self, name: &str) -> bool {
        self.rules.client_tools.iter().any(|tool| tool == name)
    }

    /// Tokens of the text that comes next, for their log-probabilities.
    pub(super) fn tokens(&mut self, tokens: Vec<TokenInfo>) {
        self.trail.push(tokens);
    }

    /// More text of the main agent.
    pub(super) fn text(&mut self, text: &str, now_ms: f64) -> Vec<Action> {
        self.raw.push_str(text);
        self.trail.text(text.len());
        if self.is_all_answer() {
            // JSON may hold what looks like a tag.
            self.answer_at = Some(self.prefix.len());
            self.gate.piece();
            let shown = self.gate.push(text);
            return self.tell(shown);
        }
        let segments = self.parser.push(text);
        self.answer_at = self.parser.answer_at();
        if segments.iter().any(|segment| matches!(segment, Segment::Answer(_))) {
            self.gate.piece();
        }
        self.act(segments, now_ms)
    }

    /// The turn's generation is over (by itself or because [`Action::Stop`] was obeyed).
    ///
    /// `record` has its times and tokens; text, draft and windows are filled in here.
    pub(super) fn turn_ended(&mut self, mut record: TurnRecord, now_ms: f64) -> Vec<Action> {
        let cut = record.finish_reason == FinishReason::Length;
        let mut actions = Vec::new();
        // What was cut is not whole, and nothing makes it so.
        if let Some(close) = self.rules.forced.as_ref().filter(|_| self.forced && !cut).map(Forced::close)
            && !close.is_empty()
        {
            actions = self.text(close, now_ms);
        }
        if let Some(at) = self.parser.stopped_at() {
            self.cut_raw(at);
        }
        let (segments, parsed) = std::mem::take(&mut self.parser).finish(cut);
        self.ending = true;
        // An answer without tags is known only now: where it stands in the text, if it stands there in one piece.
        let untagged = parsed.answer.as_ref().or(parsed.fallback.as_ref());
        self.answer_at = self
            .answer_at
            .or_else(|| untagged.and_then(|answer| self.raw.rfind(answer.as_str())).map(|at| at + self.prefix.len()));
        actions.extend(self.act(segments, now_ms));
        let calls = parsed.calls > 0;
        // Calls of the caller's tools are the answer already; one of a form is still to come.
        let free = self.client_calls.is_empty() && !self.form_comes_first();
        if calls && free && self.last_turn() {
            if let Some(answer) = &parsed.fallback {
                let shown = self.gate.push_whole(answer);
                actions.extend(self.tell(shown));
            }
        } else if !calls && self.must_look_first() {
            record.draft.clone_from(&parsed.answer);
        }
        let rest = self.gate.finish();
        actions.extend(self.tell(rest));
        self.story.finish_reason = self.gate.closed().unwrap_or(record.finish_reason);
        record.turn = self.turn;
        (record.text, record.prefix) = (format!("{}{}", self.prefix, self.raw), self.prefix.len());
        record.draft = record.draft.or(parsed.draft);
        record.windows = (self.first..self.story.windows.len()).collect();
        self.story.turns.push(record);
        self.ended = Some(calls);
        actions
    }

    /// Drops what came after the turn stopped, an invented response included.
    fn cut_raw(&mut self, stopped_at: usize) {
        let keep = stopped_at.saturating_sub(self.prefix.len()).min(self.raw.len());
        if self.raw.is_char_boundary(keep) {
            self.raw.truncate(keep);
        }
        let kept = self.raw.trim_end();
        let kept = kept.strip_suffix("<tool_response>").unwrap_or(kept).trim_end().len();
        self.raw.truncate(kept);
    }

    fn act(&mut self, segments: Vec<Segment>, now_ms: f64) -> Vec<Action> {
        let mut actions = Vec::new();
        for segment in segments {
            match segment {
                Segment::Think(text) => {
                    // The thinking of all turns is told as one text.
                    let apart = !self.thought && !self.story.reasoning.is_empty();
                    let text = if apart { format!("\n\n{text}") } else { text };
                    self.thought = true;
                    self.story.reasoning.push_str(&text);
                    actions.push(Action::Reasoning(text));
                }
                Segment::Answer(_) if self.must_look_first() => {}
                Segment::Answer(_) if self.form_comes_first() => actions.push(Action::Stop),
                Segment::Answer(text) => {
                    let shown = if self.ending { self.gate.push_whole(&text) } else { self.gate.push(&text) };
                    actions.extend(self.tell(shown));
                }
                // The caller's tools are called in the turn for that: which one, and with what, is not the model's choice.
                Segment::Call(Ok(call)) if self.is_client_tool(&call.name) && self.call_comes_later() => {
                    actions.push(Action::Stop);
                }
                Segment::Call(Ok(call)) if self.is_client_tool(&call.name) => {
                    if self.client_calls.is_empty() || !self.rules.single_call {
                        self.client_calls.push(call);
                    }
                }
                Segment::Call(_) if self.last_turn() || self.forced => {}
                Segment::Call(call) => actions.push(self.call(call, now_ms)),
                Segment::Answered => self.answered = true,
                Segment::Stop => actions.push(Action::Stop),
            }
        }
        actions
    }

    /// Passes on what the caller gets of the answer, and stops when that was all.
    fn tell(&mut self, shown: String) -> Vec<Action> {
        let mut actions = Vec::new();
        if !shown.is_empty() {
            let from = self.answer_at.and_then(|at| at.checked_sub(self.prefix.len()));
            if let Some(from) = from.map(|from| from + self.story.answer.len()) {
                let tokens = self.trail.take(from..from + shown.len());
                if !tokens.is_empty() {
                    self.story.tokens.extend_from_slice(&tokens);
                    actions.push(Action::Tokens(tokens));
                }
            }
            self.story.answer.push_str(&shown);
            actions.push(Action::Answer(shown));
        }
        if self.gate.closed().is_some() {
            actions.push(Action::Stop);
        }
        actions
    }

    fn call(&mut self, call: Result<ToolCall, Malformed>, now_ms: f64) -> Action {
        let id = self.story.windows.len();
        let mut record =
            WindowRecord { started_ms: now_ms, finished_ms: now_ms, ..WindowRecord::called(id, self.turn) };
        let planned = if id - self.first >= self.rules.max_calls as usize {
            record.status = WindowStatus::NotRun;
            let (n, plural) = (self.rules.max_calls, if self.rules.max_calls == 1 { "" } else { "s" });
            Err(format!("not run: at most {n} window{plural} a turn"))
        } else {
            record.status = WindowStatus::Refused;
            self.plan(call).map_err(|reason| format!("failed: {reason}"))
        };
        let action = match planned {
            Err(error) => {
                record.error = Some(error);
                Action::Settled(id)
            }
            Ok((video, window)) => {
                (record.video, record.start, record.end) = (video, Some(window.start), Some(window.end));
                record.status = WindowStatus::Ok;
                match self.same_window(video, window) {
                    None => {
                        self.open.push(id);
                        Action::Watch { id, video, window }
                    }
                    Some(twin) => {
                        record.shared_with = Some(twin);
                        record.status = WindowStatus::Shared;
                        self.story.windows.push(record);
                        if self.open.contains(&twin) {
                            self.open.push(id);
                            return Action::Share { id, video, window };
                        }
                        self.share(twin, id, now_ms);
                        return Action::Settled(id);
                    }
                }
            }
        };
        self.story.windows.push(record);
        action
    }

    fn plan(&self, call: Result<ToolCall, Malformed>) -> Result<(usize, TimeSpan), String> {
        let call = call.map_err(|malformed| malformed.problem)?;
        if call.name != tool::CROP_VIDEO {
            let name: String = call.name.chars().filter(|c| !c.is_control()).take(60).collect();
            return Err(format!("unknown tool \"{name}\""));
        }
        tool::plan(&call.arguments, &self.scene)
    }

    /// An earlier window with the same ends, to half a second, that has or may yet have a summary.
    fn same_window(&self, video: usize, window: TimeSpan) -> Option<usize> {
        let near = |one: MediaTime, other: MediaTime| one.micros().abs_diff(other.micros()) <= SAME_WINDOW_MICROS;
        let same = |other: TimeSpan| near(other.start, window.start) && near(other.end, window.end);
        let twin = |other: &&WindowRecord| {
            other.status == WindowStatus::Ok && other.video == video && other.span().is_some_and(same)
        };
        self.story.windows.iter().find(twin).map(|other| other.id)
    }

    fn share(&mut self, from: usize, to: usize, now_ms: f64) {
        let twin = self.story.windows[from].clone();
        let record = &mut self.story.windows[to];
        record.summary = twin.summary;
        record.error = twin.error;
        record.frame_times = twin.frame_times;
        record.partial = twin.partial;
        record.finished_ms = now_ms;
        if twin.status != WindowStatus::Ok {
            record.status = twin.status;
        }
    }

    /// A window is over. `record` carries frames, times and tokens; gives every call that is over with it.
    pub(super) fn window_done(&mut self, mut record: WindowRecord, watched: Watched, now_ms: f64) -> Vec<usize> {
        let id = record.id;
        match watched {
            Watched::Summary(summary) => record.summary = Some(summary),
            Watched::Failed(reason) => {
                record.status = WindowStatus::Failed;
                record.error = Some(format!("failed: {reason}"));
            }
            Watched::Late(reason) => {
                record.status = WindowStatus::Late;
                record.error = Some(format!("failed: {reason}"));
            }
        }
        record.finished_ms = now_ms;
        self.story.windows[id] = record;
        let sharing =
            self.story.windows.iter().filter(|other| other.shared_with == Some(id) && self.open.contains(&other.id));
        let over: Vec<usize> = std::iter::once(id).chain(sharing.map(|other| other.id)).collect();
        for twin in &over[1..] {
            self.share(id, *twin, now_ms);
        }
        self.open.retain(|open| !over.contains(open));
        over
    }

    /// What to do once a turn is over.
    pub(super) fn next(&mut self) -> Next {
        let Some(calls) = self.ended else { return Next::Wait };
        if !self.open.is_empty() {
            return Next::Wait;
        }
        let said = Turn::text(Role::Assistant, format!("{}{}", self.prefix, self.raw));
        let windows = self.story.windows.len() > self.first;
        if !self.client_calls.is_empty() && (!windows || self.last_turn()) {
            self.story.tool_calls = std::mem::take(&mut self.client_calls);
            return Next::Done;
        }
        if calls && windows && !self.last_turn() {
            self.tool_turns += 1;
            let last = self.last_turn().then_some(self.rules.last_turn.as_str());
            let later: Vec<_> = self.client_calls.iter().map(|call| call.name.as_str()).collect();
            let response = prompt::tool_response(&self.story.windows[self.first..], &later, last);
            self.turn += 1;
            self.begin(self.rules.think_prefix.clone());
            return Next::Turn { add: vec![said, response] };
        }
        if !calls && self.must_look_first() && !self.prefix.ends_with(FORCED_CALL) {
            self.turn += 1;
            let thought = format!("{}{}", self.prefix, self.raw);
            let thought = thought.split("</think>").next().unwrap_or_default().trim_end().to_owned();
            let open = if thought.contains("<think>") { "" } else { "<think>\n" };
            self.begin(format!("{open}{thought}\n{FORCED_CALL}"));
            return Next::Turn { add: Vec::new() };
        }
        if let Some(forced) = self.rules.forced.as_ref().filter(|_| !self.forced) {
            let said = format!("{}{}", self.prefix, self.raw);
            let thought = said.split("</think>").next().unwrap_or_default().trim_end();
            // Without thinking, what was said was the answer, which is now given in its form.
            let opened = forced.opened_after(Some(thought).filter(|thought| thought.contains("<think>")));
            self.turn += 1;
            let all_answer = !forced.call;
            self.begin(opened);
            self.forced = true;
            if all_answer {
                self.parser = Parser::plain();
            }
            return Next::Turn { add: Vec::new() };
        }
        Next::Done
    }
}

#[cfg(test)]
mod tests;
