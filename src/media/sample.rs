//! Which frames to look at, and how large: pure functions, the rules of qwen-vl-utils 0.0.14.
//!
//! [`range`], [`frame_count`], [`spread`] and [`smart_resize`] follow the reference to the last bit, because models are
//! trained on what it picks. [`pick`] and [`frame_size`] are what the room uses: the same rules, but where the reference
//! refuses (a stretch or a count under two frames, a side under a patch) a request that makes sense still gets a frame.

use crate::card::{FrameBudget, PixelBudget};
use crate::types::FrameSize;

/// Frames come in pairs: the model's temporal patch.
const FRAME_FACTOR: f64 = 2.0;
/// Pictures longer than this many times their width are refused by the reference.
const MAX_ASPECT: f64 = 200.0;

/// Frames `first..=last` of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameRange {
    /// First frame's number.
    pub(super) first: u64,
    /// Last frame's number.
    pub(super) last: u64,
}

impl FrameRange {
    /// How many frames.
    #[must_use]
    pub(super) const fn count(self) -> u64 {
        self.last - self.first + 1
    }
}

/// A side is 0, or one side is more than 200 times the other: the reference refuses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the picture is empty or more than 200 times as long as wide")]
pub struct BadAspect;

/// First frame at or after `start`, last frame at or before `end`, seconds, as `calculate_video_frame_range` finds them.
/// They cross when the stretch holds no frame. The total is at least 1.
fn range(total: u64, fps: f64, start: Option<f64>, end: Option<f64>) -> (u64, u64) {
    let length = total as f64 / fps;
    // Written as the reference writes it, not as `clamp`: the order of operations decides the last bit.
    let clamp = |seconds: f64| seconds.min(length).max(0.0);
    let first = start.map_or(0, |start| (clamp(start) * fps).ceil() as u64);
    let last = end.map_or(total - 1, |end| ((clamp(end) * fps).floor() as u64).min(total - 1));
    (first, last)
}

/// How many of `total` frames to take, as `smart_nframes` counts for a rate. `None` when that is under two, where the
/// reference refuses.
fn frame_count(total: u64, video_fps: f64, budget: &FrameBudget) -> Option<u64> {
    let total = total as f64;
    let fewest = (f64::from(budget.min_frames) / FRAME_FACTOR).ceil() * FRAME_FACTOR;
    let most = (f64::from(budget.max_frames) / FRAME_FACTOR).floor() * FRAME_FACTOR;
    let count = (total / video_fps * budget.fps).max(fewest).min(most).min(total);
    let count = (count / FRAME_FACTOR).floor() * FRAME_FACTOR;
    (FRAME_FACTOR..=total).contains(&count).then_some(count as u64)
}

/// `count` frame numbers from first to last, both included: `torch.linspace(first, last, count).round()`.
///
/// Single precision, filled from both ends as torch does, halves to even.
#[must_use]
pub(super) fn spread(range: FrameRange, count: u64) -> Vec<u64> {
    if count <= 1 {
        return vec![range.first];
    }
    let (first, last) = (range.first as f32, range.last as f32);
    let step = (last - first) / (count - 1) as f32;
    (0..count)
        .map(|i| {
            let exact = if i < count / 2 { first + step * i as f32 } else { last - step * (count - 1 - i) as f32 };
            // Beyond 2^24 frames single precision can step outside.
            (exact.round_ties_even() as u64).clamp(range.first, range.last)
        })
        .collect()
}

/// How densely [`pick`] takes frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Density {
    /// As the budget says.
    Budget,
    /// The budget's most frames where there are as many, else all in pairs.
    Dense,
    /// This many where there are as many, else all.
    Exactly(u32),
}

impl Density {
    /// Frames to take of `available` source frames. At least one where there is one.
    #[must_use]
    pub(super) fn count(self, available: u64, video_fps: f64, budget: &FrameBudget) -> u64 {
        let wanted = match self {
            Self::Exactly(frames) => u64::from(frames),
            Self::Dense if available >= u64::from(budget.max_frames) => u64::from(budget.max_frames),
            Self::Dense => (available / 2 * 2).max(1),
            Self::Budget => frame_count(available, video_fps, budget).unwrap_or(1),
        };
        wanted.clamp(1, available.max(1))
    }
}

/// Frame numbers of a stretch of a video with a constant rate, ascending, each once. Never empty for a video with frames.
///
/// As the reference, but a stretch that holds no frame gives the one shown at its start, and counts that the reference
/// refuses are brought within bounds.
#[must_use]
pub(super) fn pick(total: u64, fps: f64, span: Option<(f64, f64)>, density: Density, budget: &FrameBudget) -> Vec<u64> {
    if total == 0 || !fps.is_finite() || fps <= 0.0 {
        return Vec::new();
    }
    let (first, last) = match span {
        None => (0, total - 1),
        Some((start, end)) => match range(total, fps, Some(start), Some(end)) {
            (first, last) if first <= last => (first, last),
            _ => {
                let shown = ((start.max(0.0) * fps).floor() as u64).min(total - 1);
                (shown, shown)
            }
        },
    };
    let inside = FrameRange { first, last };
    let mut frames = spread(inside, density.count(inside.count(), fps, budget));
    frames.dedup();
    frames
}

/// When the frames of a stretch, or of all, of a video are shown that has a constant rate: seconds, as [`pick`] picks them by the budget.
#[must_use]
pub fn frame_times(seconds: f64, fps: f64, span: Option<(f64, f64)>, budget: &FrameBudget) -> Vec<f64> {
    let total = (seconds * fps).round() as u64;
    pick(total, fps, span, Density::Budget, budget).into_iter().map(|frame| frame as f64 / fps).collect()
}

/// Height and width a picture is scaled to, as `smart_resize` finds them: multiples of the factor, within the pixel
/// bounds, the aspect kept as well as they allow. A side can come out 0 for bounds too tight; see [`frame_size`].
///
/// # Errors
/// [`BadAspect`].
pub(super) fn smart_resize(size: FrameSize, budget: &PixelBudget) -> Result<FrameSize, BadAspect> {
    let (height, width) = (f64::from(size.height), f64::from(size.width));
    if size.height == 0 || size.width == 0 || height.max(width) / height.min(width) > MAX_ASPECT {
        return Err(BadAspect);
    }
    let factor = f64::from(budget.factor);
    let (fewest, most) = (f64::from(budget.min_pixels), f64::from(budget.max_pixels));
    let near = |side: f64| ((side / factor).round_ties_even() * factor).max(factor);
    let (mut to_height, mut to_width) = (near(height), near(width));
    if to_height * to_width > most {
        let shrink = (height * width / most).sqrt();
        to_height = (height / shrink / factor).floor() * factor;
        to_width = (width / shrink / factor).floor() * factor;
    } else if to_height * to_width < fewest {
        let grow = (fewest / (height * width)).sqrt();
        to_height = (height * grow / factor).ceil() * factor;
        to_width = (width * grow / factor).ceil() * factor;
    }
    Ok(FrameSize { width: to_width as u32, height: to_height as u32 })
}

/// As [`smart_resize`], but no side is under the factor.
///
/// # Errors
/// [`BadAspect`].
pub fn frame_size(size: FrameSize, budget: &PixelBudget) -> Result<FrameSize, BadAspect> {
    let factor = budget.factor.max(1);
    let budget = PixelBudget { factor, ..*budget };
    let size = smart_resize(size, &budget)?;
    // A side lifted to the factor must not push the other past the pixels.
    let longest = (budget.max_pixels / factor / factor).max(1) * factor;
    let lifted = FrameSize { width: size.width.max(factor), height: size.height.max(factor) };
    if lifted == size {
        return Ok(size);
    }
    Ok(FrameSize { width: lifted.width.min(longest), height: lifted.height.min(longest) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Oracle {
        window: Vec<Window>,
        resize: Vec<Resize>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Window {
        source_fps: f64,
        total: u64,
        start: Option<f64>,
        end: Option<f64>,
        fps: Option<f64>,
        min_frames: Option<u32>,
        max_frames: Option<u32>,
        nframes: Option<u32>,
        first: Option<u64>,
        last: Option<u64>,
        count: Option<u64>,
        indices: Option<Vec<u64>>,
        error: Option<String>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Resize {
        height: u32,
        width: u32,
        factor: u32,
        min_pixels: u32,
        max_pixels: u32,
        out_height: u32,
        out_width: u32,
    }

    impl Window {
        /// For cases that ask for a rate.
        fn budget(&self) -> Option<FrameBudget> {
            let min_frames = self.min_frames.unwrap_or(DEFAULT_MIN_FRAMES);
            Some(FrameBudget { fps: self.fps?, min_frames, max_frames: self.max_frames?, timestamps: false })
        }
    }

    fn oracle() -> Oracle {
        serde_json::from_str(include_str!("../tests/fixtures/frame_sampling.json")).expect("the fixture reads")
    }

    /// The reference's default for the fewest frames.
    const DEFAULT_MIN_FRAMES: u32 = 4;

    #[test]
    fn windows_match_the_reference() {
        let cases = oracle().window;
        assert_eq!(cases.len(), 168);
        let mut refused = 0;
        for case in cases {
            let (first, last) = range(case.total, case.source_fps, case.start, case.end);
            let (Some(indices), Some(available)) = (&case.indices, case.count) else {
                let empty = last <= first;
                let few = |budget| !empty && frame_count(last - first + 1, case.source_fps, &budget).is_none();
                let many = case.nframes.is_some_and(|frames| u64::from(frames) > case.total);
                assert!(case.error.is_some() && (empty || many || case.budget().is_some_and(few)), "{case:?}");
                refused += 1;
                continue;
            };
            assert_eq!((Some(first), Some(last)), (case.first, case.last), "{case:?}");
            let inside = FrameRange { first, last };
            assert_eq!(inside.count(), available, "{case:?}");
            // A number that was asked for by name is taken as it is here, and rounded to pairs there.
            let named = Some(indices.len() as u64);
            let count = case.budget().map_or(named, |budget| frame_count(available, case.source_fps, &budget));
            assert_eq!(count.map(|count| spread(inside, count)).as_ref(), Some(indices), "{inside:?}");
        }
        assert_eq!(refused, 5);
    }

    #[test]
    fn what_the_room_picks_is_what_the_reference_picks() {
        let mut compared = 0;
        for case in oracle().window {
            let (Some(budget), Some(indices)) = (case.budget(), &case.indices) else { continue };
            let span = case.start.zip(case.end);
            assert_eq!(pick(case.total, case.source_fps, span, Density::Budget, &budget), *indices);
            compared += 1;
        }
        assert!(compared > 100);
    }

    #[test]
    fn sizes_match_the_reference() {
        let cases = oracle().resize;
        assert_eq!(cases.len(), 150);
        for case in cases {
            let budget = PixelBudget { factor: case.factor, min_pixels: case.min_pixels, max_pixels: case.max_pixels };
            let size = FrameSize { width: case.width, height: case.height };
            let expected = FrameSize { width: case.out_width, height: case.out_height };
            assert_eq!(smart_resize(size, &budget), Ok(expected), "{case:?}");
            let served = frame_size(size, &budget).expect("sides within 200:1");
            if case.out_width >= case.factor && case.out_height >= case.factor {
                assert_eq!(served, expected, "{case:?}");
            } else {
                assert!(served.width >= case.factor && served.height >= case.factor, "{case:?}");
            }
        }
    }

    const WINDOW: FrameBudget = FrameBudget { fps: 1.0, min_frames: 1, max_frames: 16, timestamps: false };

    #[test]
    fn a_window_shorter_than_a_frame_holds_the_frame_shown() {
        assert_eq!(pick(2500, 25.0, Some((5.01, 5.02)), Density::Budget, &WINDOW), [125]);
        assert_eq!(pick(2500, 25.0, Some((5.0, 5.03)), Density::Budget, &WINDOW), [125]);
        assert_eq!(pick(2500, 25.0, Some((100.0, 110.0)), Density::Dense, &WINDOW), [2499]);
    }

    #[test]
    fn a_single_frame_is_taken_whatever_is_asked() {
        for density in [Density::Budget, Density::Dense, Density::Exactly(8)] {
            assert_eq!(pick(1, 25.0, None, density, &WINDOW), [0]);
        }
    }

    #[test]
    fn dense_takes_the_most_frames_or_all_pairs() {
        assert_eq!(pick(2500, 25.0, Some((5.0, 6.0)), Density::Dense, &WINDOW).len(), 16);
        assert_eq!(pick(2500, 25.0, Some((5.0, 5.4)), Density::Dense, &WINDOW).len(), 10);
    }

    #[test]
    fn a_slow_video_gives_each_frame_once() {
        let budget = FrameBudget { fps: 1.0, min_frames: 4, max_frames: 64, timestamps: true };
        assert_eq!(pick(6, 0.1, None, Density::Budget, &budget), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn the_overview_of_a_board_has_a_frame_every_twenty_seconds() {
        let budget = FrameBudget { fps: 1.0, min_frames: 4, max_frames: 16, timestamps: true };
        let frames = pick(1501, 5.0, None, Density::Budget, &budget);
        assert_eq!(frames, (0..16).map(|i| i * 100).collect::<Vec<u64>>());
    }

    proptest! {
        #[test]
        fn picks_ascend_within_the_video(
            total in 1_u64..400_000, fps in 0.05_f64..240.0, start in -10.0_f64..5000.0, length in 0.0_f64..5000.0,
            min in 1_u32..8, more in 0_u32..64, rate in 0.01_f64..60.0, density in 0..3, whole: bool,
        ) {
            let budget = FrameBudget { fps: rate, min_frames: min, max_frames: min + more, timestamps: false };
            let density = [Density::Budget, Density::Dense, Density::Exactly(min)][density as usize];
            let span = (!whole).then_some((start, start + length));
            let frames = pick(total, fps, span, density, &budget);
            prop_assert!(!frames.is_empty());
            prop_assert!(frames.windows(2).all(|pair| pair[0] < pair[1]));
            prop_assert!(frames.iter().all(|frame| *frame < total));
            prop_assert!(frames.len() as u32 <= budget.max_frames.max(2));
        }

        #[test]
        fn sizes_hold_a_patch_and_keep_to_the_pixels(
            width in 1_u32..9000, height in 1_u32..9000, factor in 1_u32..64, min in 0_u32..100_000, more in 0_u32..1_000_000,
        ) {
            let budget = PixelBudget { factor, min_pixels: min, max_pixels: (min + more).max(factor * factor) };
            if let Ok(size) = frame_size(FrameSize { width, height }, &budget) {
                prop_assert!(size.width >= factor && size.height >= factor);
                prop_assert_eq!((size.width % factor, size.height % factor), (0, 0));
                // Growing to the fewest pixels may overshoot by the rounding of both sides, as in the reference.
                let slack = u64::from(factor) * u64::from(size.width + size.height);
                prop_assert!(u64::from(size.width) * u64::from(size.height) <= u64::from(budget.max_pixels) + slack);
            }
        }
    }
}
