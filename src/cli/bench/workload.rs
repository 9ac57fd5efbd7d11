//! Conversations of made-up frames, of the sizes that a card's episodes have. Pure: the same number, the same pixels.

use bytes::Bytes;
use clap::Args;

use crate::agent::frame_parts;
use crate::card::ModelCard;
use crate::cli::CliError;
use crate::engine::{GenerateRequest, Sampling, Seat, SessionKey, Speaker};
use crate::types::{Frame, FrameSize, MediaTime, Part, Role, TimeSpan, Turn};

/// Shares of the card's window frames that the windows of a burst have: no two neighbours alike.
const UNEQUAL: [f64; 8] = [1.0, 0.75, 0.5, 0.25, 0.875, 0.625, 0.375, 1.0];

/// Most frames of an overview or a window.
const FRAMES_MAX: i64 = 512;
/// Largest side of a frame in pixels.
const SIDE_MAX: i64 = 2048;

/// Most memory for the frames of the episodes that run at the same time.
const BYTES_MAX: u64 = 4 << 30;

/// Proportions of an episode that are not the card's.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Proportions")]
pub(super) struct Proportions {
    /// Frames of the overview [default: as the card says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=FRAMES_MAX))]
    overview_frames: Option<u32>,
    /// Frames of the largest window; the others have their shares of it [default: as the card says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=FRAMES_MAX))]
    window_frames: Option<u32>,
    /// Side of the square frames, brought down to a multiple of the card's factor [default: as large as the card allows]
    #[arg(long, value_name = "PX", value_parser = clap::value_parser!(u32).range(1..=SIDE_MAX))]
    frame_side: Option<u32>,
}

/// How long everything is.
#[derive(Debug, Clone)]
pub(super) struct Workload {
    pub(super) overview_frames: u32,
    pub(super) window_frames: u32,
    pub(super) size: FrameSize,
    pub(super) first_tokens: u32,
    pub(super) summary_tokens: u32,
    pub(super) answer_tokens: u32,
    pub(super) ignore_eos: bool,
}

impl Workload {
    /// Where nothing else is asked for, with as many frames as the card gives at most, square and as large as it allows.
    pub(super) fn of(card: &ModelCard, asked: &Proportions, ignore_eos: bool) -> Self {
        let factor = card.pixels.factor.max(1);
        let side = asked.frame_side.unwrap_or_else(|| card.pixels.max_pixels.isqrt());
        let side = (side / factor * factor).max(factor);
        Self {
            overview_frames: asked.overview_frames.unwrap_or(card.overview.max_frames),
            window_frames: asked.window_frames.unwrap_or(card.window.max_frames),
            size: FrameSize { width: side, height: side },
            first_tokens: 96,
            summary_tokens: 32,
            answer_tokens: 32,
            ignore_eos,
        }
    }

    /// Frames of the window at a place of a burst.
    pub(super) fn frames_of(&self, window: usize) -> u32 {
        let share = UNEQUAL[window % UNEQUAL.len()];
        ((f64::from(self.window_frames) * share).round() as u32).max(1)
    }

    /// Refuses what would take too much memory before the engine has taken any.
    pub(super) fn fits(&self, episodes: u32, windows: usize) -> Result<(), CliError> {
        let bytes = u64::from(episodes) * self.bytes(windows);
        if bytes <= BYTES_MAX {
            return Ok(());
        }
        let (frames, most) = (bytes / 1_000_000, BYTES_MAX / 1_000_000);
        let problem =
            format!("the frames of {episodes} episodes take {frames} MB, more than {most}: fewer, or smaller");
        Err(CliError::Usage(problem))
    }

    /// Bytes of the frames of an overview and of the first so many windows.
    fn bytes(&self, windows: usize) -> u64 {
        let frames: u32 = self.overview_frames + (0..windows).map(|window| self.frames_of(window)).sum::<u32>();
        3 * u64::from(self.size.width) * u64::from(self.size.height) * u64::from(frames)
    }

    /// A main agent's first turn over an overview that no other number has.
    pub(super) fn opening(&self, card: &ModelCard, number: u64) -> Vec<Turn> {
        let frame = |frame: u32| {
            let time = Some(MediaTime::from_micros(i64::from(frame) * 20_000_000));
            Frame { time, ..self.frame(number, u64::from(frame)) }
        };
        let frames: Vec<Frame> = (0..self.overview_frames).map(frame).collect();
        let mut parts: Vec<Part> = frame_parts(card, &frames, true).collect();
        parts.push(Part::Text("What happens, and when?".to_owned()));
        vec![Turn::text(Role::System, card.prompts.system.clone()), Turn { role: Role::User, parts }]
    }

    /// A sub-agent's conversation.
    pub(super) fn window(&self, card: &ModelCard, number: u64, window: usize) -> Vec<Turn> {
        let frames = 0..u64::from(self.frames_of(window));
        let first = 1000 * (window as u64 + 1);
        let frames: Vec<Frame> = frames.map(|frame| self.frame(number, first + frame)).collect();
        let mut parts: Vec<Part> = frame_parts(card, &frames, false).collect();
        let start = MediaTime::from_micros(20_000_000 * window as i64);
        let span = TimeSpan { start, end: MediaTime::from_micros(start.micros() + 16_000_000) };
        let told = card.prompts.sub_agent.replace("{start}", &span.start.clock()).replace("{end}", &span.end.clock());
        parts.push(Part::Text(told.replace("{question}", "What happens?")));
        vec![Turn { role: Role::User, parts }]
    }

    /// The first turn's conversation after it was written and the windows were watched.
    pub(super) fn continued(mut turns: Vec<Turn>, written: &str, summaries: &[String]) -> Vec<Turn> {
        turns.push(Turn::text(Role::Assistant, written));
        let line = |(at, said): (usize, &String)| format!("[{}.0s - {}.0s] {said}", 20 * at, 20 * at + 16);
        let lines: Vec<String> = summaries.iter().enumerate().map(line).collect();
        turns.push(Turn::text(Role::User, format!("<tool_response>\n{}\n</tool_response>", lines.join("\n"))));
        turns
    }

    /// A request, greedy, of at most so many tokens.
    pub(super) fn request(
        &self,
        turns: Vec<Turn>,
        session: &str,
        speaker: Speaker,
        max_tokens: u32,
        seat: Option<Seat>,
    ) -> GenerateRequest {
        // A main turn ends by itself: what comes after the end of a text is not what a second turn goes on from.
        let (ignore_eos, session) = (self.ignore_eos && speaker == Speaker::Sub, SessionKey(session.into()));
        let sampling = Sampling { temperature: Some(0.0), max_tokens, ignore_eos, ..Sampling::default() };
        let prefix = String::new();
        GenerateRequest { turns, prefix, sampling, session, speaker, seat, deadline: None, trace: None }
    }

    /// Noise: nothing is alike in two frames.
    fn frame(&self, number: u64, frame: u64) -> Frame {
        let mut state = (number << 20 | frame).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let bytes = 3 * self.size.width as usize * self.size.height as usize;
        let mut rgb = Vec::with_capacity(bytes + 8);
        while rgb.len() < bytes {
            // Xorshift.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            rgb.extend_from_slice(&state.to_le_bytes());
        }
        rgb.truncate(bytes);
        Frame { time: None, size: self.size, rgb: Bytes::from(rgb) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::card;

    #[test]
    fn frames_differ_and_fill_their_size_and_windows_are_unequal() {
        let card = ModelCard::load(Path::new(card::DEFAULT)).expect("the bundled card");
        let workload = Workload::of(&card, &Proportions::default(), true);
        assert_eq!((workload.size.width, workload.overview_frames), (64, 16));
        let (one, other) = (workload.frame(1, 2), workload.frame(2, 1));
        assert_eq!(one.rgb.len(), 3 * 64 * 64);
        assert_ne!(one, other);
        assert_eq!(one, workload.frame(1, 2));
        let frames: Vec<u32> = (0..4).map(|window| workload.frames_of(window)).collect();
        assert_eq!(frames, [16, 12, 8, 4]);
        assert_eq!(workload.window(&card, 1, 2)[0].frames().count(), 8);
        assert_eq!(workload.opening(&card, 1)[1].frames().count(), 16);
    }

    #[test]
    fn proportions_that_are_asked_for_win_over_the_cards() {
        let card = ModelCard::load(Path::new(card::DEFAULT)).expect("the bundled card");
        let side = |side| {
            let asked = Proportions { frame_side: Some(side), ..Proportions::default() };
            Workload::of(&card, &asked, true).size.width
        };
        assert_eq!([side(1), side(32), side(63), side(64), side(230)], [32, 32, 32, 64, 224]);
        let asked = Proportions { overview_frames: Some(64), window_frames: Some(6), frame_side: Some(32) };
        let workload = Workload::of(&card, &asked, true);
        assert_eq!(workload.opening(&card, 1)[1].frames().count(), 64);
        // Halves go up, as in load_tests/engine/engines.py.
        let frames: Vec<u32> = (0..8).map(|window| workload.frames_of(window)).collect();
        assert_eq!(frames, [6, 5, 3, 2, 5, 4, 2, 6]);
        assert_eq!(workload.bytes(3), 3 * 32 * 32 * (64 + 6 + 5 + 3));
        assert!(workload.fits(1024, 3).is_ok());
        let asked = Proportions { overview_frames: Some(512), window_frames: None, frame_side: Some(2048) };
        assert!(Workload::of(&card, &asked, true).fits(1, 3).is_err());
    }
}
