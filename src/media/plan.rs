//! From a stretch of a video to the frames to decode, by their times. Pure.
//!
//! Videos with a steady rate follow [`super::sample`] to the frame. Where the rate varies, frames are picked by time
//! stamp: evenly in time, the frame shown at each.

use super::MediaError;
use super::probe::{Probed, Timing};
use super::sample::{self, Density};
use crate::card::FrameBudget;
use crate::config::OverviewSampling;
use crate::types::{MediaTime, TimeSpan};

/// A frame to decode. Microseconds from the first frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Target {
    /// When it is expected.
    pub(super) time: i64,
    /// The first frame at or after this is the one.
    pub(super) from: i64,
}

/// What to decode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// What was asked for, within the video.
    pub(super) span: TimeSpan,
    /// Ascending, none twice, at least one.
    pub(super) targets: Vec<Target>,
    /// Whether they are key frames that stand for what the rules pick.
    pub(super) keyframes: bool,
}

/// Key frames there must be for each frame of an overview, so that the nearest may stand for it. It is then half of that part
/// of the overview's spacing away at most.
const KEYS: i64 = 4;

/// Picks the frames of `span`, or of the whole video.
///
/// # Errors
/// [`MediaError::NoFrames`] when the stretch is past the end.
pub(super) fn plan(
    probed: &Probed,
    span: Option<TimeSpan>,
    density: Density,
    budget: &FrameBudget,
) -> Result<Plan, MediaError> {
    let duration = probed.info.duration;
    let asked = span.unwrap_or(TimeSpan { start: MediaTime::ZERO, end: duration });
    if asked.start >= duration || asked.end < MediaTime::ZERO {
        return Err(MediaError::NoFrames(format!("the window is outside the video, which is {duration} s long")));
    }
    let span_in = TimeSpan { start: asked.start.max(MediaTime::ZERO), end: asked.end.clamp(MediaTime::ZERO, duration) };
    let targets: Vec<Target> = match &probed.timing {
        Timing::Steady(own) => {
            let (fps, seconds) = (probed.info.fps, (span_in.start.seconds(), span_in.end.seconds()));
            let frames = sample::pick(probed.info.frames, fps, span.map(|_| seconds), density, budget);
            frames
                .into_iter()
                .map(|frame| {
                    let own = own.as_ref().and_then(|times| listed(times, usize::try_from(frame).ok()?));
                    own.unwrap_or_else(|| steady(frame, fps))
                })
                .collect()
        }
        Timing::Varying(times) => {
            let span = span.map(|_| (span_in.start.micros(), span_in.end.micros()));
            let picked = pick_listed(times, span, probed.info.fps, density, budget);
            picked.into_iter().filter_map(|index| listed(times, index)).collect()
        }
    };
    if targets.is_empty() {
        return Err(MediaError::NoFrames("the video has no frames".to_owned()));
    }
    Ok(Plan { span: span_in, targets, keyframes: false })
}

impl Plan {
    /// Takes key frames in the place of an overview's frames, where the configuration and the distance allow. Only those
    /// within what was asked for.
    pub(super) fn sampled(self, probed: &Probed, sampling: OverviewSampling) -> Self {
        let Some(keys) = probed.keys.as_deref().filter(|_| sampling != OverviewSampling::Exact) else { return self };
        let (start, end) = (self.span.start.micros(), self.span.end.micros());
        let keys = keys.get(keys.partition_point(|key| *key < start)..keys.partition_point(|key| *key <= end));
        let Some(keys) = keys.filter(|keys| !keys.is_empty()) else { return self };
        let near: Vec<i64> = self.targets.iter().filter_map(|target| nearest(keys, target.time)).collect();
        if sampling == OverviewSampling::Auto {
            let spacing = match self.targets.as_slice() {
                [first, .., last] => (last.time - first.time) / (self.targets.len() as i64 - 1),
                _ => 0,
            };
            let interval = match keys {
                [first, .., last] => (last - first) / (keys.len() as i64 - 1),
                _ => i64::MAX,
            };
            let mut apart = near.iter().zip(&self.targets).map(|(key, target)| (key - target.time).abs());
            if interval > spacing / KEYS || apart.any(|apart| apart > spacing / (2 * KEYS)) {
                return self;
            }
        }
        let early = (250_000.0 / probed.info.fps).min(1000.0) as i64;
        let mut targets: Vec<Target> = near.into_iter().map(|time| Target { time, from: time - early }).collect();
        targets.dedup();
        Self { targets, keyframes: true, ..self }
    }
}

/// The nearest of ascending times; of two as near, the earlier.
fn nearest(times: &[i64], time: i64) -> Option<i64> {
    let after = times.partition_point(|other| *other < time);
    let around = times.get(after.saturating_sub(1)..times.len().min(after + 1))?;
    around.iter().copied().min_by_key(|other| (other - time).abs())
}

/// Half a frame early: time stamps are rounded, and a frame that is missing is replaced by the next.
fn steady(frame: u64, fps: f64) -> Target {
    let micros = |frames: f64| (frames * 1e6 / fps).round() as i64;
    Target { time: micros(frame as f64), from: micros(frame as f64 - 0.5) }
}

fn listed(times: &[i64], index: usize) -> Option<Target> {
    let time = *times.get(index)?;
    let before = index.checked_sub(1).and_then(|index| times.get(index)).map_or(i64::MAX, |before| time - before);
    Some(Target { time, from: time - (before / 2).clamp(0, 1000) })
}

/// Places in the list of times, ascending, each once.
fn pick_listed(
    times: &[i64],
    span: Option<(i64, i64)>,
    fps: f64,
    density: Density,
    budget: &FrameBudget,
) -> Vec<usize> {
    let shown = |time: i64| times.partition_point(|frame| *frame <= time).saturating_sub(1);
    let (first, last) = match span {
        None => (0, times.len().saturating_sub(1)),
        Some((start, end)) => {
            let (first, after) =
                (times.partition_point(|time| *time < start), times.partition_point(|time| *time <= end));
            if first < after { (first, after - 1) } else { (shown(start), shown(start)) }
        }
    };
    let Some(inside) = times.get(first..=last).filter(|inside| !inside.is_empty()) else { return Vec::new() };
    let available = inside.len() as u64;
    let by_number = || -> Vec<usize> {
        let range = sample::FrameRange { first: first as u64, last: last as u64 };
        let count = density.count(available, fps, budget);
        sample::spread(range, count).into_iter().map(|index| index as usize).collect()
    };
    let (start, end) = match inside {
        [start, .., end] if density != Density::Dense => (*start, *end),
        _ => return by_number(),
    };
    // So much a second of what is shown, however few frames a second that is.
    let length = (end - start) as f64;
    let frames = ((length / 1e6 * fps).round() as u64 + 1).max(available);
    let count = density.count(frames, fps, budget).clamp(1, available);
    let mut picked: Vec<usize> =
        (0..count).map(|i| shown(start + (length * i as f64 / (count.max(2) - 1) as f64).round() as i64)).collect();
    picked.dedup();
    // A number asked for is kept to, though some are then from between those times.
    if matches!(density, Density::Exactly(_)) && picked.len() as u64 != count { by_number() } else { picked }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::media::VideoInfo;
    use crate::media::picture::Picture;
    use crate::media::probe::Access;
    use crate::types::FrameSize;

    const BUDGET: FrameBudget = FrameBudget { fps: 1.0, min_frames: 1, max_frames: 16, timestamps: false };

    fn seconds(seconds: f64) -> MediaTime {
        MediaTime::from_seconds(seconds).expect("finite")
    }

    fn span(start: f64, end: f64) -> Option<TimeSpan> {
        TimeSpan::new(seconds(start), seconds(end))
    }

    fn video(timing: Timing, fps: f64, frames: u64, duration: f64) -> Probed {
        let size = FrameSize { width: 64, height: 64 };
        Probed {
            info: VideoInfo { duration: seconds(duration), size, fps, frames, treatment: Vec::new() },
            stream: 0,
            first: 0,
            timing,
            access: Access::Seek { container_start: 0, indexed: true },
            keys: None,
            picture: Picture::default(),
            coded_pixels: 4096,
        }
    }

    /// 25 a second, with frames 10..=34 of every 50 missing.
    fn gaps() -> Probed {
        let times: Vec<i64> = (0..500).filter(|n| !(10..=34).contains(&(n % 50))).map(|n| n * 40_000).collect();
        video(Timing::Varying(times.into()), 12.5, 250, 20.0)
    }

    fn times(probed: &Probed, span: Option<TimeSpan>, density: Density) -> Vec<i64> {
        let plan = plan(probed, span, density, &BUDGET).expect("frames");
        plan.targets.iter().map(|target| target.time).collect()
    }

    #[test]
    fn a_window_past_the_end_has_no_frames() {
        let video = video(Timing::Steady(None), 25.0, 250, 10.0);
        assert!(matches!(plan(&video, span(10.0, 12.0), Density::Budget, &BUDGET), Err(MediaError::NoFrames(_))));
        let clamped = plan(&video, span(-5.0, 99.0), Density::Budget, &BUDGET).expect("frames");
        assert_eq!(clamped.span, span(0.0, 10.0).expect("a span"));
    }

    #[test]
    fn thresholds_are_half_a_frame_early() {
        let video = video(Timing::Steady(None), 25.0, 250, 10.0);
        let plan = plan(&video, span(2.0, 2.01), Density::Budget, &BUDGET).expect("frames");
        assert_eq!(plan.targets, [Target { time: 2_000_000, from: 1_980_000 }]);
    }

    /// Ninety minutes with a key frame every ten seconds.
    fn match_() -> Probed {
        let keys = (0..540).map(|key| key * 10_000_000).collect();
        Probed { keys: Some(keys), ..video(Timing::Steady(None), 25.0, 135_000, 5400.0) }
    }

    fn sampled(probed: &Probed, span: Option<TimeSpan>, frames: u32, sampling: OverviewSampling) -> Plan {
        let plan = plan(probed, span, Density::Exactly(frames), &BUDGET).expect("frames");
        plan.sampled(probed, sampling)
    }

    #[test]
    fn key_frames_stand_for_an_overview_where_they_are_near_enough() {
        let video = match_();
        let auto = sampled(&video, None, 64, OverviewSampling::Auto);
        assert!(auto.keyframes);
        assert_eq!(auto.targets.len(), 64);
        assert!(auto.targets.iter().all(|target| target.time % 10_000_000 == 0 && target.from < target.time));
        assert_eq!((auto.targets[1].time, auto.targets[63].time), (90_000_000, 5_390_000_000));
        let close = sampled(&video, span(600.0, 700.0), 10, OverviewSampling::Auto);
        assert!(!close.keyframes, "they are as far apart as the frames");
        let met = sampled(&video, span(600.0, 780.0), 10, OverviewSampling::Auto);
        assert!(!met.keyframes, "every second one is where a frame is, but they are few");
        assert!(!sampled(&video, None, 64, OverviewSampling::Exact).keyframes);
    }

    #[test]
    fn key_frames_by_force_come_each_once_and_from_inside_the_span() {
        let forced = sampled(&match_(), span(601.0, 629.0), 10, OverviewSampling::Keyframes);
        let times: Vec<i64> = forced.targets.iter().map(|target| target.time).collect();
        assert_eq!(times, [610_000_000, 620_000_000]);
        let none = sampled(&match_(), span(601.0, 609.0), 10, OverviewSampling::Keyframes);
        assert!(!none.keyframes && none.targets.len() == 10);
    }

    #[test]
    fn frames_with_gaps_are_those_shown() {
        assert_eq!(times(&gaps(), span(0.0, 2.0), Density::Budget), [0, 2_000_000]);
        // Evenly 0, 1.29, 2.59, 3.88: the two between fall into gaps, where the frame before the gap is shown.
        let picked = times(&gaps(), span(0.0, 3.9), Density::Budget);
        assert_eq!(picked, [0, 360_000, 2_360_000, 3_880_000]);
        assert_eq!(times(&gaps(), span(0.5, 1.0), Density::Budget), [360_000]);
    }

    #[test]
    fn dense_takes_as_many_as_the_budget_from_between_gaps() {
        assert_eq!(times(&gaps(), span(0.0, 2.0), Density::Dense).len(), 16);
        assert_eq!(times(&gaps(), span(0.0, 1.0), Density::Dense).len(), 10);
    }

    proptest! {
        #[test]
        fn targets_ascend_and_are_the_lists_own(
            mut gaps in prop::collection::vec(1_i64..5_000_000, 0..80), start in 0.0_f64..300.0, length in 0.0_f64..100.0,
            density in 0..3,
        ) {
            gaps.insert(0, 0);
            let times: Vec<i64> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
            let duration = (times[times.len() - 1] + 40_000) as f64 / 1e6;
            let video = video(Timing::Varying(times.clone().into()), times.len() as f64 / duration, times.len() as u64, duration);
            let density = [Density::Budget, Density::Dense, Density::Exactly(7)][density as usize];
            if let Ok(plan) = plan(&video, span(start, start + length), density, &BUDGET) {
                prop_assert!(!plan.targets.is_empty() && plan.targets.len() <= 16);
                prop_assert!(plan.targets.windows(2).all(|pair| pair[0].time < pair[1].from));
                prop_assert!(plan.targets.iter().all(|target| times.contains(&target.time) && target.from <= target.time));
            } else {
                prop_assert!(start >= duration);
            }
        }
    }
}
