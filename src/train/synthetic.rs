//! What the signal board teaches: traces of an agent that looks, sends watchers and answers, made from boards of which everything is
//! known (ParaVT, section 3.2.1: the cold start).
//!
//! Prompts are written by the agent's own hand, so that training and serving never differ. What an overview shows is listed in the
//! thinking before windows are called: windows that are copied from there are learned many times as fast as windows that are
//! not (design notes on learnability). Pictures are drawn, not filmed: coding noise is not in them.

mod pictures;

use serde::{Deserialize, Serialize};

use self::pictures::Pictures;
use super::TrainError;
use crate::agent::{AskPart, AskTurn, VideoPart, WindowRecord, opening, sub_agent, tool_response};
use crate::card::{FrameBudget, ModelCard};
use crate::media::{SourceRequest, frame_size, frame_times};
use crate::synthetic::{Asked, Board, Difficulty, Lit, Random, SIDE};
use crate::types::{Clip, Frame, FrameSize, MediaTime, Role, TimeSpan, Turn};

/// A conversation to learn from.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    /// All of it; the last turn is the model's.
    pub turns: Vec<Turn>,
    /// Whether only the model's last turn is learned: what it says before is not what it should say.
    pub last_only: bool,
}

/// What an example teaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Lesson {
    /// The main agent's whole episode.
    Episode {
        /// Frames of the overview: 16, or fewer for a part of the board, which are easier to read.
        #[serde(default = "overview_frames")]
        frames: usize,
        /// From 1, as [`Difficulty::LEVELS`].
        level: usize,
    },
    /// A sub-agent's look at one window.
    Watch {
        /// See [`Lesson::Episode::level`].
        level: usize,
        /// Frames of the window at most: fewer are easier.
        #[serde(default = "overview_frames")]
        frames: usize,
    },
    /// A look at a single picture, with a sub-agent's words.
    Glance,
    /// The last turn alone, from a response to windows that nobody sees: short, and all that the answer is made from.
    Recall {
        /// See [`Lesson::Episode::level`].
        level: usize,
    },
}

impl Lesson {
    /// In short.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Episode { frames, level } => format!("episode {frames}x{level}"),
            Self::Watch { level, frames } => format!("watch {frames}x{level}"),
            Self::Glance => "glance".to_owned(),
            Self::Recall { level } => format!("recall {level}"),
        }
    }
}

const fn overview_frames() -> usize {
    16
}

/// Makes examples for one card.
#[derive(Debug)]
pub struct World {
    card: ModelCard,
    size: FrameSize,
    pictures: Pictures,
}

impl World {
    /// For a card whose overview and windows have 16 frames.
    ///
    /// # Errors
    /// [`TrainError::Options`] for a card whose pixel bounds admit no picture.
    pub fn new(card: ModelCard) -> Result<Self, TrainError> {
        let side = u32::try_from(SIDE).unwrap_or_default();
        let size = frame_size(FrameSize { width: side, height: side }, &card.pixels)
            .map_err(|error| TrainError::Options(error.to_string()))?;
        Ok(Self { card, size, pictures: Pictures::new(size) })
    }

    /// The example at a place of a seed's series; the same whenever it is asked for.
    #[must_use]
    pub fn example(&self, lesson: Lesson, seed: u64, place: u64) -> Example {
        let mut random = Random::new(seed, place);
        // Places follow each other in steps that lessons and batches have: which question is asked must not hang on these.
        let turn = usize::try_from(random.number(0, 3)).unwrap_or_default();
        match lesson {
            Lesson::Episode { frames, level } => {
                let whole = Board::random(&difficulty(level), Board::FRAMES, &mut random);
                let times = self.overview_times(&whole);
                let (board, times) = part_of(whole, times, frames, &mut random);
                let asked = board.ask(turn, &mut random);
                self.episode(&board, &times, &asked)
            }
            Lesson::Watch { level, frames } => {
                let board = Board::random(&difficulty(level), Board::FRAMES, &mut random);
                let picked = random.number(0, i64::try_from(board.lit.len()).unwrap_or(1) - 1);
                let picked = usize::try_from(picked).unwrap_or_default();
                let window = board.windows().get(picked).copied().unwrap_or(WHOLE);
                self.watch(&board, window, frames)
            }
            Lesson::Glance => {
                let board = Board::random(&difficulty(4), Board::FRAMES, &mut random);
                let lit = random.one(&board.lit);
                let at = lit.map_or(0, |lit| {
                    let (from, until) =
                        lit.shown.map_or((lit.from_ms, lit.until_ms), |shown| (shown.from_ms, shown.until_ms));
                    random.number(from, until - 1)
                });
                self.glance(&board, at)
            }
            Lesson::Recall { level } => {
                let board = Board::random(&difficulty(level), Board::FRAMES, &mut random);
                let asked = board.ask(turn, &mut random);
                self.recall(&board, &asked)
            }
        }
    }

    /// The times of an overview.
    fn overview_times(&self, board: &Board) -> Vec<MediaTime> {
        picked(board, None, &self.card.overview)
    }

    fn clip(&self, board: &Board, times: &[MediaTime], span: TimeSpan) -> Clip {
        let frame = |time: &MediaTime| Frame {
            time: Some(*time),
            size: self.size,
            rgb: self.pictures.of(board, time.micros() / 1000),
        };
        Clip { span, frames: times.iter().map(frame).collect(), partial: false, keyframes: false }
    }

    /// The prompt of the main agent.
    fn opened(&self, question: &str, clip: Option<&Clip>) -> Vec<Turn> {
        let video = clip.iter().map(|_| AskPart::Video(VideoPart::whole(SourceRequest::Path("board.mp4".into()))));
        let parts = video.chain([AskPart::Text(question.to_owned())]).collect();
        let turns = [AskTurn { role: Role::User, parts }];
        opening(&self.card, &turns, clip.map_or(&[], std::slice::from_ref), true, &[])
    }

    /// A whole episode, whose overview has frames at `times`.
    #[must_use]
    pub fn episode(&self, board: &Board, times: &[MediaTime], asked: &Asked) -> Example {
        let mut turns = self.opened(&asked.text, Some(&self.clip(board, times, WHOLE)));
        turns.push(Turn::text(Role::Assistant, self.calls(board, times)));
        turns.push(responses(board));
        turns.push(Turn::text(Role::Assistant, conclusion(board, asked)));
        Example { turns, last_only: false }
    }

    fn recall(&self, board: &Board, asked: &Asked) -> Example {
        let mut turns = self.opened(&asked.text, None);
        turns.push(Turn::text(Role::Assistant, self.calls(board, &self.overview_times(board))));
        turns.push(responses(board));
        turns.push(Turn::text(Role::Assistant, conclusion(board, asked)));
        Example { turns, last_only: true }
    }

    /// The first turn: the lit frames of the overview, a stretch after the other, then a call for each stretch.
    fn calls(&self, board: &Board, times: &[MediaTime]) -> String {
        let name = &self.card.prompts.video_name;
        let (mut seen, mut calls) = (Vec::new(), String::new());
        for (lit, window) in board.lit.iter().zip(board.windows()) {
            let inside = |time: &&MediaTime| (lit.from_ms..lit.until_ms).contains(&(time.micros() / 1000));
            let listed: Vec<String> = times.iter().filter(inside).map(ToString::to_string).collect();
            seen.push(listed.join(", "));
            let (start, end) = (window.start, window.end);
            calls.push_str(&format!(
                "\n<tool_call>\n{{\"name\": \"crop_video\", \"arguments\": {{\"video_path\": \"{name}\", \
                 \"start_time\": {start}, \"end_time\": {end}}}}}\n</tool_call>"
            ));
        }
        format!("<think>\nThe border is lit at {}.\n</think>{calls}", seen.join(" and at "))
    }

    /// A sub-agent's conversation about a window, of which it sees at most so many frames.
    #[must_use]
    pub fn watch(&self, board: &Board, window: TimeSpan, frames: usize) -> Example {
        let mut budget = self.card.window;
        budget.max_frames = budget.max_frames.min(u32::try_from(frames).unwrap_or(u32::MAX)).max(budget.min_frames);
        let span = Some((window.start.seconds(), window.end.seconds()));
        let mut times = picked(board, span, &budget);
        let shown = board.shown().find(|shown| {
            let (from, until) = shown.times();
            window.start <= from && until <= window.end
        });
        // A few frames may all miss it.
        if let Some(shown) = shown {
            let (from, until) = shown.times();
            let sees = |time: &MediaTime| from <= *time && *time < until;
            if !times.iter().any(sees) {
                let middle = MediaTime::from_micros(from.micros().midpoint(until.micros()));
                if let Some(place) = times.iter().rposition(|time| *time <= middle) {
                    times[place] = middle;
                }
            }
        }
        let clip = self.clip(board, &times, window);
        let mut turns = sub_agent(&self.card, window, &clip, "");
        turns.push(Turn::text(Role::Assistant, summary(shown.map(|shown| shown.name()))));
        Example { turns, last_only: false }
    }

    fn glance(&self, board: &Board, at_ms: i64) -> Example {
        let time = MediaTime::from_micros(at_ms * 1000);
        let window = board.windows().into_iter().find(|window| window.start <= time && time <= window.end);
        let window = window.unwrap_or(WHOLE);
        let clip = self.clip(board, &[time], window);
        let shown = board.shown().find(|shown| (shown.from_ms..shown.until_ms).contains(&at_ms));
        let mut turns = sub_agent(&self.card, window, &clip, "");
        turns.push(Turn::text(Role::Assistant, summary(shown.map(|shown| shown.name()))));
        Example { turns, last_only: false }
    }
}

/// A span that says nothing.
const WHOLE: TimeSpan = TimeSpan { start: MediaTime::ZERO, end: MediaTime::ZERO };

/// The times of the frames that the server takes of a board, or of a span of it in seconds.
fn picked(board: &Board, span: Option<(f64, f64)>, budget: &FrameBudget) -> Vec<MediaTime> {
    let times = frame_times(board.length().seconds(), f64::from(Board::FPS), span, budget);
    times.into_iter().filter_map(MediaTime::from_seconds).collect()
}

fn difficulty(level: usize) -> Difficulty {
    let last = Difficulty::LEVELS.len() - 1;
    Difficulty::LEVELS[level.saturating_sub(1).min(last)]
}

/// So many consecutive frames of an overview, and the board with only what is lit in them. Stretches are whole or not there, and
/// at least one is there.
fn part_of(board: Board, times: Vec<MediaTime>, frames: usize, random: &mut Random) -> (Board, Vec<MediaTime>) {
    if frames >= times.len() || frames == 0 {
        return (board, times);
    }
    let windows = board.windows();
    let inside =
        |first: usize, window: &TimeSpan| times[first] <= window.start && window.end <= times[first + frames - 1];
    let apart = |first: usize, window: &TimeSpan| window.end < times[first] || times[first + frames - 1] < window.start;
    let firsts: Vec<usize> = (0..=times.len() - frames)
        .filter(|first| windows.iter().all(|window| inside(*first, window) || apart(*first, window)))
        .filter(|first| windows.iter().any(|window| inside(*first, window)))
        .collect();
    let Some(first) = random.one(&firsts) else { return (board, times) };
    let lit: Vec<Lit> =
        board.lit.iter().zip(&windows).filter(|(_, window)| inside(first, window)).map(|(lit, _)| *lit).collect();
    (Board { lit, ..board }, times[first..first + frames].to_vec())
}

/// What a watcher says.
fn summary(shown: Option<String>) -> String {
    shown.map_or_else(
        || "No shape appears.".to_owned(),
        |name| {
            let article = if name.starts_with(['a', 'e', 'i', 'o', 'u']) { "An" } else { "A" };
            format!("{article} {name} appears.")
        },
    )
}

/// What the windows gave.
fn responses(board: &Board) -> Turn {
    let record = |(lit, window): (&Lit, TimeSpan)| WindowRecord {
        start: Some(window.start),
        end: Some(window.end),
        summary: Some(summary(lit.shown.map(|shown| shown.name()))),
        ..WindowRecord::called(0, 0)
    };
    let records: Vec<WindowRecord> = board.lit.iter().zip(board.windows()).map(record).collect();
    tool_response(&records, &[], None)
}

/// The last turn.
fn conclusion(board: &Board, asked: &Asked) -> String {
    let shown: Vec<String> = board.shown().map(|shown| shown.name()).collect();
    let shown = if shown.is_empty() { "nothing".to_owned() } else { shown.join(" and ") };
    format!("<think>\nThe crops show {shown}.\n</think>\n<answer>{}</answer>", asked.answer)
}

#[cfg(test)]
mod tests;
