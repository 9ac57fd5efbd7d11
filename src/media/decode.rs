//! Frames by presentation time: the ways to get at them, and what counts as having them.
//!
//! Every frame carries the time that the decoder gave it, never the one that was asked for. [`super::plan`] decides which
//! frames; [`groups`] feeds ffmpeg the groups of pictures they are in, [`seek`] lets it open the file.

mod groups;
mod run;
mod seek;

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::MediaError;
use super::content::Content;
use super::ffmpeg::{self, Ffmpeg};
use super::plan::Target;
use super::probe::{Access, Probed};
use crate::types::{Frame, FrameSize, MediaTime};

pub(super) use seek::first_frame;

/// Frames of one run, so that the filter stays short and stretches decode side by side.
const RUN_FRAMES: usize = 64;

/// Takes a frame for its target as soon as it is decoded, each at most once.
pub(super) type Sink<'a> = &'a (dyn Fn(Target, Frame) + Send + Sync);

/// What to decode from, and how.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job<'a> {
    /// The decoder.
    pub(super) ffmpeg: &'a Ffmpeg,
    /// The bytes.
    pub(super) content: &'a Content,
    /// What they are.
    pub(super) probed: &'a Probed,
    /// Scaled to this.
    pub(super) size: FrameSize,
}

impl<'a> Job<'a> {
    /// Decodes the frames of `targets` (ascending, none twice). What does not decode does not come. A decoder that somebody
    /// else ended is started once more, for what is missing.
    ///
    /// # Errors
    /// [`MediaError::Timeout`] when it takes too long, [`MediaError::Killed`], and what reading fails with.
    pub(super) async fn decode(self, targets: &[Target], sink: Sink<'_>) -> Result<(), MediaError> {
        let taken = Mutex::new(Vec::new());
        let noted = |target: Target, frame: Frame| {
            taken.lock().unwrap_or_else(PoisonError::into_inner).push(target);
            sink(target, frame);
        };
        ffmpeg::again(async || {
            let missing = {
                let taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
                targets.iter().filter(|target| !taken.contains(target)).copied().collect::<Vec<Target>>()
            };
            Job::decode_once(self, &missing, &noted).await
        })
        .await
    }

    fn decode_once<'b>(self, targets: &'b [Target], sink: Sink<'b>) -> BoxFuture<'b, Result<(), MediaError>>
    where
        'a: 'b,
    {
        match &self.probed.access {
            Access::Index(index) => groups::decode(self, index, targets, sink).boxed(),
            Access::Seek { container_start, indexed } => {
                seek::decode(self, *container_start, *indexed, targets, sink).boxed()
            }
        }
    }

    fn frame(self, time: i64, rgb: Bytes) -> Frame {
        let time = time.saturating_sub(self.probed.first).max(0);
        Frame { time: Some(MediaTime::from_micros(time)), size: self.size, rgb }
    }

    /// How near a frame must be to count as the one planned: two frames, for time stamps that jitter.
    fn near(self) -> i64 {
        near(self.probed)
    }
}

fn near(probed: &Probed) -> i64 {
    (2e6 / probed.info.fps) as i64
}

/// Whether one of the frames is the target, or next to it.
pub(super) fn covers(frame: &Frame, target: &Target, probed: &Probed) -> bool {
    frame.time.is_some_and(|time| (time.micros() - target.time).abs() <= near(probed))
}

/// The first failure, when all are done: what fails in one must not take from the others.
async fn all(runs: impl IntoIterator<Item = impl Future<Output = Result<(), MediaError>>>) -> Result<(), MediaError> {
    futures::future::join_all(runs).await.into_iter().collect()
}

/// Frames let through by [`run::select`], in order, and the targets they stand for.
struct Reached {
    targets: Vec<Target>,
    before: usize,
}

impl Reached {
    const fn new(targets: Vec<Target>) -> Self {
        Self { targets, before: 0 }
    }

    /// The targets for which this frame is the first at or after their threshold: the last one reached, and those before it
    /// that it is as good for.
    fn by(&mut self, frame: &Frame, probed: &Probed) -> Vec<Target> {
        let time = frame.time.map_or(0, MediaTime::micros);
        let count = self.targets.partition_point(|target| target.from <= time);
        let reached = self.targets.get(self.before..count).unwrap_or_default();
        self.before = self.before.max(count);
        let (Some(last), others) = (reached.last(), reached.get(..reached.len().saturating_sub(1))) else {
            return Vec::new();
        };
        let others = others.unwrap_or_default().iter().filter(|target| covers(frame, target, probed));
        others.chain([last]).copied().collect()
    }
}
