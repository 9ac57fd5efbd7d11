//! The story of one episode as the terminal tells it: agent events in, what is known so far out.
//!
//! Pure: holds no terminal, no clock. `screen` draws it live, `plain` tells it line by line, `report` sums it up.

use crate::agent::{AgentEvent, Outcome, WindowRecord, WindowStatus};
use crate::types::{MediaTime, TimeSpan};

/// Characters of unfinished text that are kept for drawing. The whole text comes with the window's or the episode's end.
const KEPT_CHARS: usize = 2_000;

/// What is known of an episode.
#[derive(Debug, Default)]
pub(super) struct Story {
    /// What the video is called.
    pub(super) title: String,
    /// What is asked.
    pub(super) question: String,
    /// The video's length, once it is open.
    pub(super) duration: Option<MediaTime>,
    /// Frames of the overview.
    pub(super) overview_frames: usize,
    /// The main agent's turn, from 0, while it is at work.
    pub(super) turn: Option<u32>,
    /// What the main agent thinks in this turn.
    pub(super) thought: String,
    /// The answer so far.
    pub(super) answer: String,
    /// Windows in call order.
    pub(super) windows: Vec<Window>,
    /// The end of the story.
    pub(super) outcome: Option<Box<Outcome>>,
}

/// What is known of one window.
#[derive(Debug)]
pub(super) struct Window {
    /// Its number in the episode, from 0.
    pub(super) id: usize,
    /// Where it is. `None` for a call without a readable window.
    pub(super) span: Option<TimeSpan>,
    /// How far it is.
    pub(super) step: Step,
    /// Frames the sub-agent sees.
    pub(super) frames: usize,
    /// Its summary so far, or what went wrong.
    pub(super) text: String,
    /// When its call was complete.
    pub(super) started_ms: f64,
    /// When it was over.
    pub(super) finished_ms: Option<f64>,
}

/// How far a window is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Its frames are being decoded.
    Decoding,
    /// Its frames are there; the sub-agent has not said a word yet.
    Waiting,
    /// The sub-agent writes.
    Watching,
    /// It has a summary.
    Done,
    /// It has none.
    Failed,
}

impl Story {
    /// A story not begun.
    pub(super) fn new(title: impl Into<String>, question: impl Into<String>) -> Self {
        Self { title: title.into(), question: question.into(), ..Self::default() }
    }

    /// Takes one event in.
    pub(super) fn apply(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::Overview(record) => {
                self.duration = Some(self.duration.map_or(record.duration, |known| known.max(record.duration)));
                self.overview_frames += record.frame_times.len();
            }
            AgentEvent::TurnStarted { turn, .. } => {
                self.turn = Some(*turn);
                self.thought.clear();
                self.answer.clear();
            }
            AgentEvent::Reasoning(text) => keep(&mut self.thought, text),
            AgentEvent::Answer(text) => keep(&mut self.answer, text),
            AgentEvent::WindowStarted { id, window, at_ms, .. } => {
                let entry = self.window(*id, *at_ms);
                entry.span = Some(*window);
            }
            AgentEvent::WindowFrames { id, frame_times, at_ms, .. } => {
                let entry = self.window(*id, *at_ms);
                entry.frames = frame_times.len();
                entry.step = Step::Waiting;
            }
            AgentEvent::WindowDelta { id, text } => {
                let entry = self.window(*id, 0.0);
                entry.step = Step::Watching;
                keep(&mut entry.text, text);
            }
            AgentEvent::WindowFinished(record) => self.finish_window(record),
            AgentEvent::TurnFinished(_) => self.turn = None,
            // Nothing that the command line asks for.
            AgentEvent::AnswerTokens(_) | AgentEvent::ToolCall(_) => {}
            AgentEvent::Finished(outcome) => {
                self.turn = None;
                self.answer.clone_from(&outcome.answer);
                self.outcome = Some(outcome.clone());
            }
        }
    }

    /// Windows that are on their way.
    pub(super) fn running(&self) -> usize {
        self.windows.iter().filter(|window| window.finished_ms.is_none()).count()
    }

    /// The windows' places, for a timeline.
    pub(super) fn spans(&self) -> Vec<Option<TimeSpan>> {
        self.windows.iter().map(|window| window.span).collect()
    }

    /// The window with this number; a new one where it is not known yet (a refused call never starts).
    fn window(&mut self, id: usize, at_ms: f64) -> &mut Window {
        let place = self.windows.partition_point(|window| window.id < id);
        if self.windows.get(place).is_none_or(|window| window.id != id) {
            let fresh = Window {
                id,
                span: None,
                step: Step::Decoding,
                frames: 0,
                text: String::new(),
                started_ms: at_ms,
                finished_ms: None,
            };
            self.windows.insert(place, fresh);
        }
        &mut self.windows[place]
    }

    fn finish_window(&mut self, record: &WindowRecord) {
        let entry = self.window(record.id, record.started_ms);
        entry.span = entry.span.or_else(|| TimeSpan::new(record.start?, record.end?));
        entry.frames = record.frame_times.len();
        entry.step = match record.status {
            WindowStatus::Ok | WindowStatus::Shared => Step::Done,
            WindowStatus::Refused | WindowStatus::NotRun | WindowStatus::Failed | WindowStatus::Late => Step::Failed,
        };
        let told = record.summary.as_ref().or(record.error.as_ref());
        entry.text = told.cloned().unwrap_or_else(|| record.status.name().replace('_', " "));
        entry.started_ms = record.started_ms;
        entry.finished_ms = Some(record.finished_ms);
    }
}

/// Appends, up to a bound: what is drawn is far shorter, and the words come from a model.
fn keep(kept: &mut String, text: &str) {
    let room = KEPT_CHARS.saturating_sub(kept.chars().count());
    kept.extend(text.chars().take(room));
}

#[cfg(test)]
pub(super) mod fixture {
    //! A short episode: two windows at the same time, one refused call, an answer.

    use super::*;
    use crate::agent::{AgentUsage, OverviewRecord, StageTiming, TurnRecord};
    use crate::engine::FinishReason;
    use crate::types::TokenUsage;

    pub(in crate::cli) fn time(seconds: f64) -> MediaTime {
        MediaTime::from_seconds(seconds).expect("finite")
    }

    pub(in crate::cli) fn span(start: f64, end: f64) -> TimeSpan {
        TimeSpan::new(time(start), time(end)).expect("ordered")
    }

    pub(in crate::cli) fn record(id: usize, window: (f64, f64), summary: &str, ms: (f64, f64)) -> WindowRecord {
        WindowRecord {
            id,
            turn: 0,
            video: 0,
            start: Some(time(window.0)),
            end: Some(time(window.1)),
            status: WindowStatus::Ok,
            summary: Some(summary.to_owned()),
            error: None,
            shared_with: None,
            frame_times: vec![time(window.0), time(window.1)],
            partial: false,
            started_ms: ms.0,
            finished_ms: ms.1,
            timing: StageTiming {
                decode_ms: 100.0,
                queue_ms: 50.0,
                prefill_ms: 200.0,
                generate_ms: ms.1 - ms.0 - 350.0,
            },
            usage: TokenUsage { prompt_tokens: 100, cached_tokens: 0, completion_tokens: 8 },
        }
    }

    pub(in crate::cli) fn refused(id: usize) -> WindowRecord {
        WindowRecord {
            start: None,
            end: None,
            status: WindowStatus::Refused,
            summary: None,
            error: Some("failed: unknown tool \"x\"".to_owned()),
            frame_times: Vec::new(),
            timing: StageTiming::default(),
            usage: TokenUsage::default(),
            ..record(id, (0.0, 0.0), "", (700.0, 700.0))
        }
    }

    pub(in crate::cli) fn turn(turn: u32, ms: (f64, f64), windows: Vec<usize>) -> TurnRecord {
        TurnRecord {
            turn,
            text: "<think>\nlit\n</think>".to_owned(),
            prefix: 0,
            finish_reason: FinishReason::Stop,
            started_ms: ms.0,
            finished_ms: ms.1,
            timing: StageTiming::default(),
            usage: TokenUsage { prompt_tokens: 300, cached_tokens: 0, completion_tokens: 40 },
            draft: None,
            windows,
        }
    }

    pub(in crate::cli) fn outcome() -> Outcome {
        Outcome {
            answer: "red circle, blue square".to_owned(),
            reasoning: "The border is lit.".to_owned(),
            overviews: Vec::new(),
            windows: vec![
                record(0, (20.0, 60.0), "A red circle appears.", (600.0, 1800.0)),
                record(1, (160.0, 180.0), "A blue square appears.", (680.0, 1900.0)),
                refused(2),
            ],
            turns: vec![turn(0, (300.0, 720.0), vec![0, 1, 2]), turn(1, (1900.0, 2400.0), vec![])],
            usage: AgentUsage {
                main: TokenUsage { prompt_tokens: 600, cached_tokens: 0, completion_tokens: 80 },
                sub: TokenUsage { prompt_tokens: 200, cached_tokens: 0, completion_tokens: 16 },
                reasoning_tokens: 50,
            },
            open_ms: 120.0,
            overview_ms: 300.0,
            first_token_ms: Some(420.0),
            first_answer_ms: Some(2100.0),
            total_ms: 2400.0,
            ..Outcome::default()
        }
    }

    /// All events, in order.
    pub(in crate::cli) fn events() -> Vec<AgentEvent> {
        let told = outcome();
        let started = |id: usize, start, end, at_ms| AgentEvent::WindowStarted {
            id,
            turn: 0,
            video: 0,
            window: span(start, end),
            at_ms,
        };
        let frames = |id, at_ms| AgentEvent::WindowFrames {
            id,
            frame_times: vec![time(0.0), time(1.0)],
            frames: Vec::new(),
            at_ms,
        };
        vec![
            AgentEvent::Overview(OverviewRecord {
                video: 0,
                duration: time(300.2),
                frame_times: (0..16).map(|n| time(20.0 * f64::from(n))).collect(),
                keyframes: false,
                partial: false,
                treatment: Vec::new(),
                at_ms: 300.0,
                frames: Vec::new(),
            }),
            AgentEvent::TurnStarted { turn: 0, at_ms: 300.0 },
            AgentEvent::Reasoning("The border is lit at 20.0, 40.0, 60.0 ".to_owned()),
            AgentEvent::Reasoning("and at 160.0, 180.0.\n".to_owned()),
            started(0, 20.0, 60.0, 600.0),
            started(1, 160.0, 180.0, 680.0),
            AgentEvent::WindowFinished(refused(2)),
            AgentEvent::TurnFinished(told.turns[0].clone()),
            frames(0, 700.0),
            frames(1, 780.0),
            AgentEvent::WindowDelta { id: 0, text: "A red \u{1b}[31m".to_owned() },
            AgentEvent::WindowDelta { id: 0, text: "circle".to_owned() },
            AgentEvent::WindowFinished(told.windows[0].clone()),
            AgentEvent::WindowFinished(told.windows[1].clone()),
            AgentEvent::TurnStarted { turn: 1, at_ms: 1900.0 },
            AgentEvent::Answer("red circle, ".to_owned()),
            AgentEvent::Answer("blue square".to_owned()),
            AgentEvent::TurnFinished(told.turns[1].clone()),
            AgentEvent::Finished(Box::new(told)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_go_through_their_steps() {
        let mut story = Story::new("v.mp4", "q");
        let mut steps = Vec::new();
        for event in fixture::events() {
            story.apply(&event);
            let now: Vec<Step> = story.windows.iter().map(|window| window.step).collect();
            if steps.last() != Some(&now) {
                steps.push(now);
            }
        }
        use Step::{Decoding, Done, Failed, Waiting, Watching};
        assert_eq!(
            steps,
            [
                vec![],
                vec![Decoding],
                vec![Decoding, Decoding],
                vec![Decoding, Decoding, Failed],
                vec![Waiting, Decoding, Failed],
                vec![Waiting, Waiting, Failed],
                vec![Watching, Waiting, Failed],
                vec![Done, Waiting, Failed],
                vec![Done, Done, Failed],
            ]
        );
        assert_eq!(story.running(), 0);
        assert_eq!(story.answer, "red circle, blue square");
    }

    #[test]
    fn a_window_that_finishes_out_of_order_keeps_its_place() {
        let mut story = Story::new("v.mp4", "q");
        story.apply(&AgentEvent::WindowFinished(fixture::refused(3)));
        story.apply(&AgentEvent::WindowFinished(fixture::refused(1)));
        assert_eq!(story.windows.iter().map(|window| window.id).collect::<Vec<_>>(), [1, 3]);
    }

    #[test]
    fn unfinished_text_is_bounded() {
        let mut story = Story::new("v.mp4", "q");
        for _ in 0..1_000 {
            story.apply(&AgentEvent::WindowDelta { id: 0, text: "ten chars ".to_owned() });
        }
        assert_eq!(story.windows[0].text.chars().count(), KEPT_CHARS);
    }
}
