//! Frames of a file that ffmpeg opens itself: which runs get them, and where each begins.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::super::MediaError;
use super::super::content::Content;
use super::super::ffmpeg::{self, Ffmpeg};
use super::super::picture::Picture;
use super::super::plan::Target;
use super::super::probe::{self, Probed};
use super::run::{self, Run};
use super::{Job, RUN_FRAMES, Reached, Sink, all, covers};
use crate::types::{Frame, FrameSize};

/// A gap is decoded through where that costs less than a new run: about so many seconds back to a key frame …
const SEEK_SECONDS: f64 = 5.0;
/// … and so many pixels' worth of starting a process.
const SEEK_PIXELS: f64 = 20e6;
/// Stretches longer than this many pixels are shared out among processes.
const SHARE_PIXELS: f64 = 600e6;
/// Threads of a process, where how many run beside it is not known beforehand.
const THREADS: usize = 2;

/// See [`Job::decode`].
pub(super) async fn decode(
    job: Job<'_>,
    container_start: i64,
    indexed: bool,
    targets: &[Target],
    sink: Sink<'_>,
) -> Result<(), MediaError> {
    let seeker = Seeker { job, container_start, indexed };
    let stretches = runs(targets, job.probed, job.ffmpeg.workers()).into_iter();
    let found = Mutex::new(BTreeMap::new());
    let done = all(stretches.map(|targets| {
        Box::pin(async {
            let frames = seeker.stretch(targets).await?;
            found.lock().unwrap_or_else(PoisonError::into_inner).extend(frames);
            Ok(())
        })
    }))
    .await;
    let mut found: BTreeMap<Target, Frame> = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    if done.is_ok()
        && let Some(last) = targets.last()
        && !found.get(last).is_some_and(|frame| covers(frame, last, job.probed))
        && let Some(frame) = Box::pin(seeker.last_frame(last)).await?
    {
        found.insert(*last, frame);
    }
    for (target, frame) in found {
        sink(target, frame);
    }
    done
}

/// Presentation time of the first frame that decodes, in microseconds as the file counts.
pub(in super::super) async fn first_frame(
    ffmpeg: &Ffmpeg,
    content: &Content,
    stream: u32,
) -> Result<Option<i64>, MediaError> {
    ffmpeg::again(|| first_frame_once(ffmpeg, content, stream)).await
}

async fn first_frame_once(ffmpeg: &Ffmpeg, content: &Content, stream: u32) -> Result<Option<i64>, MediaError> {
    let size = FrameSize { width: 16, height: 16 };
    let options = run::decoding(ffmpeg.max_pixels(), THREADS, false);
    let run = Run {
        input: probe::guarded(&options),
        stream,
        select: String::new(),
        filters: Picture::default().filters(size),
        limit: Some(1),
        size,
    };
    let mut first = None;
    run.go(ffmpeg, probe::whole(content)?, async |_| Ok(()), |time, _| first = Some(time)).await?;
    Ok(first.filter(|time: &i64| time.unsigned_abs() < 1 << 53))
}

/// Splits targets where seeking is cheaper than decoding on, and long stretches among the processes there are.
fn runs<'a>(targets: &'a [Target], probed: &Probed, workers: usize) -> Vec<&'a [Target]> {
    let pixels_a_second = (probed.coded_pixels as f64 * probed.info.fps).max(1.0);
    let gap = SEEK_SECONDS + SEEK_PIXELS / pixels_a_second;
    let apart = |from: i64, to: i64| (to - from) as f64 / 1e6;
    targets
        .chunk_by(|before, after| apart(before.time, after.from) <= gap)
        .flat_map(|stretch| {
            let length = match stretch {
                [first, .., last] => apart(first.time, last.time),
                _ => 0.0,
            };
            let shares = (length * pixels_a_second / SHARE_PIXELS).ceil().clamp(1.0, workers as f64) as usize;
            stretch.chunks(stretch.len().div_ceil(shares).clamp(1, RUN_FRAMES))
        })
        .collect()
}

/// A file that ffmpeg seeks in.
#[derive(Clone, Copy)]
struct Seeker<'a> {
    job: Job<'a>,
    /// What seeking counts from, in microseconds as the file counts.
    container_start: i64,
    indexed: bool,
}

impl Seeker<'_> {
    /// Decodes the targets of one run. When a seek landed too late to decode the first of them, starts further back.
    async fn stretch(self, targets: &[Target]) -> Result<Vec<(Target, Frame)>, MediaError> {
        let Some(first) = targets.first() else { return Ok(Vec::new()) };
        let mut best: Vec<(Target, Frame)> = Vec::new();
        let mut tried = None;
        for back in self.seeks() {
            let seek = back.and_then(|back| self.seek(first.from, back));
            if tried == Some(seek) {
                continue;
            }
            tried = Some(seek);
            let frames = self.attempt(targets, seek).await?;
            // A start at the very beginning can't be bettered; nor can a run that has its first frame.
            let done = seek.is_none() || frames.first().is_some_and(|(_, frame)| covers(frame, first, self.job.probed));
            if frames.len() > best.len() {
                best = frames;
            }
            if done {
                break;
            }
        }
        Ok(best)
    }

    /// How far before the first frame to start, attempt by attempt, in seconds; `None`: at the beginning of the file.
    fn seeks(self) -> impl Iterator<Item = Option<f64>> {
        // Without an index ffmpeg may land in the middle of a group of pictures, and lose all up to the next key frame.
        let steps: &[Option<f64>] =
            if self.indexed { &[Some(0.0), Some(30.0)] } else { &[Some(5.0), Some(40.0), None] };
        steps.iter().copied()
    }

    /// Where to seek, in seconds from the container's start, or `None` when that is not worth it.
    fn seek(self, from: i64, back: f64) -> Option<f64> {
        // Half a frame more, so that the frame itself is not cut by a rounding.
        let slack = 0.5 / self.job.probed.info.fps;
        let start = self.since_start(from) - slack.min(1.0) - back;
        (start > 0.5).then_some(start)
    }

    /// Seconds from the container's start, for microseconds from the first frame.
    fn since_start(self, time: i64) -> f64 {
        (self.job.probed.first + time - self.container_start) as f64 / 1e6
    }

    async fn attempt(self, targets: &[Target], seek: Option<f64>) -> Result<Vec<(Target, Frame)>, MediaError> {
        let run = self.run(targets, seek, run::select(self.job.probed.first, targets), Some(targets.len()));
        let mut frames = Vec::new();
        let mut reached = Reached::new(targets.to_vec());
        let emit = |time: i64, rgb: Bytes| {
            let frame = self.job.frame(time, rgb);
            frames.extend(reached.by(&frame, self.job.probed).into_iter().map(|target| (target, frame.clone())));
        };
        run.go(self.job.ffmpeg, probe::whole(self.job.content)?, async |_| Ok(()), emit).await?;
        Ok(frames)
    }

    /// The very last frame, where a header promised one a little later. Nothing when the target is not near the end.
    async fn last_frame(self, target: &Target) -> Result<Option<Frame>, MediaError> {
        let probed = self.job.probed;
        let back = self.job.near().max(1_000_000);
        if target.time + back < probed.info.duration.micros() {
            return Ok(None);
        }
        let from = Target { time: target.time, from: (target.from - back).max(0) };
        let seek = self.seek(from.from, if self.indexed { 0.0 } else { 5.0 });
        let run = self.run(&[from], seek, run::select_from(probed.first, &from), None);
        let mut last = None;
        let emit = |time, rgb| last = Some(self.job.frame(time, rgb));
        run.go(self.job.ffmpeg, probe::whole(self.job.content)?, async |_| Ok(()), emit).await?;
        Ok(last)
    }

    fn run(self, targets: &[Target], seek: Option<f64>, select: String, limit: Option<usize>) -> Run {
        let probed = self.job.probed;
        let margin = (2.0 / probed.info.fps).max(1.0);
        let length = targets.last().map(|last| {
            let begin = seek.unwrap_or_else(|| self.since_start(0).min(0.0));
            self.since_start(last.time) - begin + margin
        });
        let mut options = run::decoding(self.job.ffmpeg.max_pixels(), THREADS, false);
        for (option, seconds) in [("-ss", seek), ("-t", length)] {
            options.extend(seconds.into_iter().flat_map(|seconds| [option.to_owned(), format!("{seconds:.6}")]));
        }
        Run {
            input: probe::guarded(&options),
            stream: probed.stream,
            select,
            filters: probed.picture.filters(self.job.size),
            limit,
            size: self.job.size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::VideoInfo;
    use crate::media::probe::{Access, Timing};
    use crate::types::MediaTime;

    fn video(fps: f64, pixels: u64) -> Probed {
        let duration = MediaTime::from_micros(3_600_000_000);
        Probed {
            info: VideoInfo {
                duration,
                size: FrameSize { width: 64, height: 64 },
                fps,
                frames: 1,
                treatment: Vec::new(),
            },
            stream: 0,
            first: 0,
            timing: Timing::Steady(None),
            access: Access::Seek { container_start: 0, indexed: true },
            keys: None,
            picture: Picture::default(),
            coded_pixels: pixels,
        }
    }

    fn targets(count: i64, apart: i64) -> Vec<Target> {
        (0..count).map(|i| Target { time: i * apart * 1_000_000, from: i * apart * 1_000_000 - 100 }).collect()
    }

    #[test]
    fn small_pictures_are_decoded_through_and_large_ones_sought() {
        // A board: 300 s of 256x256 at 5 a second, a frame every 20 s.
        assert_eq!(runs(&targets(16, 20), &video(5.0, 65_536), 4).len(), 1);
        assert_eq!(runs(&targets(16, 20), &video(25.0, 1920 * 1080), 4).len(), 16);
        assert_eq!(runs(&targets(64, 1), &video(5.0, 65_536), 4).len(), 1);
    }

    #[test]
    fn long_stretches_of_large_pictures_are_shared_out_in_order() {
        let all = targets(64, 4);
        let shared = runs(&all, &video(25.0, 1920 * 1080), 4);
        assert_eq!(shared.len(), 4);
        assert_eq!(shared.concat(), all);
        let many = targets(300, 1);
        assert!(runs(&many, &video(5.0, 64), 1).iter().all(|run| run.len() <= RUN_FRAMES));
    }
}
