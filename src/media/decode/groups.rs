//! Frames of a video with an index: the groups of pictures that hold them are fed to a few ffmpeg processes, spliced
//! together, and nothing else of the file is read.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};

use super::super::MediaError;
use super::super::demux::{Cut, Index};
use super::super::ffmpeg::Input;
use super::super::plan::Target;
use super::super::probe;
use super::run::{self, Run};
use super::{Job, RUN_FRAMES, Reached, Sink, all, covers};
use crate::types::Frame;

/// Key frames looked at at the same time.
const GLANCES: usize = 8;
/// Starting a process costs about as much as decoding so many frames.
const START_FRAMES: u64 = 10;

/// What has come.
#[derive(Debug, Default)]
struct Found {
    there: HashSet<Target>,
    /// Frames that came in the place of a target that has not.
    instead: HashMap<Target, Frame>,
}

/// Targets with the cut they lie in.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece<'a> {
    targets: &'a [Target],
    cut: Cut,
    /// Whether a decoder can go on with it after something else.
    closed: bool,
}

/// See [`Job::decode`].
pub(super) async fn decode(job: Job<'_>, index: &Index, targets: &[Target], sink: Sink<'_>) -> Result<(), MediaError> {
    let mut pieces = pieces(index, job.probed.first, targets);
    let closed = pieces.iter().map(|piece| index.is_closed(job.content, piece.cut.group).boxed());
    let closed: Vec<bool> = stream::iter(closed.collect::<Vec<_>>()).buffered(GLANCES).try_collect().await?;
    for (piece, closed) in pieces.iter_mut().zip(closed) {
        piece.closed = closed;
    }
    let found = Mutex::new(Found::default());
    let noted = |target: Target, frame: Frame| {
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        if !covers(&frame, &target, job.probed) {
            found.instead.insert(target, frame);
        } else if found.there.insert(target) {
            sink(target, frame);
        }
    };
    let workers = job.ffmpeg.workers();
    let shares = shares(&pieces, |cut| index.frames_of(cut), workers);
    let threads = workers.div_ceil(shares.len().max(1));
    let first = all(shares.into_iter().map(|share| one(job, index, share, threads, &noted))).await;
    if matches!(first, Err(MediaError::Killed)) {
        // What is missing may yet come.
        return first;
    }

    // An open group may need the one before it: its first pictures do, and decoders that start there may skip more.
    let there = found.lock().unwrap_or_else(PoisonError::into_inner).there.clone();
    let missing = |target: &Target| !there.contains(target);
    let again = pieces.iter().filter(|piece| !piece.closed && piece.targets.iter().any(missing));
    let again = again.filter_map(|piece| {
        let cut = Cut { group: piece.cut.group.checked_sub(1)?, frames: piece.cut.frames.clone() };
        Some(Piece { cut, ..piece.clone() })
    });
    let again: Vec<Piece<'_>> = again.collect();
    let second = all(again.chunks(1).map(|share| one(job, index, share, threads, &noted))).await;
    let Found { there, instead } = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (target, frame) in instead.into_iter().filter(|(target, _)| !there.contains(target)) {
        sink(target, frame);
    }
    first.and(second)
}

/// Cuts targets where a new group begins. Where the index does not know every frame, near groups stay together: what is fed
/// for one may then reach into the next.
fn pieces<'a>(index: &Index, first: i64, targets: &'a [Target]) -> Vec<Piece<'a>> {
    // A microsecond for times that were rounded on another way.
    let group = |target: &Target| {
        let time = first.saturating_add(target.time).saturating_add(1);
        index.groups.partition_point(|group| group.time <= time).saturating_sub(1)
    };
    let is_key = |target: &Target| {
        let time = index.groups.get(group(target)).map(|group| group.time);
        time == Some(first.saturating_add(target.time))
    };
    let near = |before: &Target, after: &Target| {
        index.times.is_none() && !is_key(after) && group(after).saturating_sub(group(before)) <= 2
    };
    let runs = targets.chunk_by(|before, after| group(before) == group(after) || near(before, after));
    let pieces = runs.flat_map(|run| run.chunks(RUN_FRAMES)).filter_map(|targets| {
        let frames = targets.iter().map(|target| first.saturating_add(target.time)).collect();
        Some(Piece { targets, cut: Cut { group: group(targets.first()?), frames }, closed: true })
    });
    pieces.collect()
}

/// Shares the pieces out among processes, in order, each about as long at work. An open one has a process of its own.
fn shares<'a, 'b>(pieces: &'a [Piece<'b>], frames_of: impl Fn(&Cut) -> u64, workers: usize) -> Vec<&'a [Piece<'b>]> {
    let costs: Vec<u64> = pieces.iter().map(|piece| frames_of(&piece.cut)).collect();
    let total: u64 = costs.iter().sum();
    let most = (workers as u64).min(total.div_ceil(START_FRAMES)).max(1);
    let enough = total.div_ceil(most);
    let (mut shares, mut rest, mut from) = (Vec::new(), pieces, 0);
    while !rest.is_empty() {
        let (mut count, mut cost, mut frames) = (0, 0, 0);
        for (piece, piece_cost) in rest.iter().zip(costs.iter().skip(from)) {
            let full = cost >= enough || frames + piece.targets.len() > RUN_FRAMES;
            if count > 0 && (full || !piece.closed) {
                break;
            }
            (count, cost, frames) = (count + 1, cost + piece_cost, frames + piece.targets.len());
            if !piece.closed {
                break;
            }
        }
        let (share, left) = rest.split_at(count);
        shares.push(share);
        (rest, from) = (left, from + count);
    }
    shares
}

/// One process.
fn one<'a>(
    job: Job<'a>,
    index: &'a Index,
    share: &'a [Piece<'a>],
    threads: usize,
    sink: Sink<'a>,
) -> BoxFuture<'a, Result<(), MediaError>> {
    let targets: Vec<Target> = share.iter().flat_map(|piece| piece.targets.iter().copied()).collect();
    let cuts: Vec<Cut> = share.iter().map(|piece| piece.cut.clone()).collect();
    let options = run::decoding(job.ffmpeg.max_pixels(), threads, share.iter().any(|piece| !piece.closed));
    let run = Run {
        input: probe::spliced(index.format(), &options),
        stream: 0,
        select: run::select(job.probed.first, &targets),
        filters: job.probed.picture.filters(job.size),
        limit: Some(targets.len()),
        size: job.size,
    };
    let feed = move |mut stdin| async move { index.splice(job.content, &cuts, &mut stdin).await };
    let mut seen = HashSet::new();
    let mut reached = Reached::new(targets);
    let emit = move |time: i64, rgb| {
        // A group that two cuts reach into may come twice.
        if !seen.insert(time) {
            return;
        }
        let frame = job.frame(time, rgb);
        for target in reached.by(&frame, job.probed) {
            sink(target, frame.clone());
        }
    };
    run.go(job.ffmpeg, Input::Pipe, feed, emit).boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: &[Target] = &[];

    fn piece(group: usize, targets: &[Target], closed: bool) -> Piece<'_> {
        Piece { targets, cut: Cut { group, frames: vec![0] }, closed }
    }

    fn groups(shares: &[&[Piece<'_>]]) -> Vec<Vec<usize>> {
        shares.iter().map(|share| share.iter().map(|piece| piece.cut.group).collect()).collect()
    }

    #[test]
    fn pieces_are_shared_out_by_the_frames_they_cost() {
        let pieces: Vec<Piece<'_>> = (0..6).map(|group| piece(group, NONE, true)).collect();
        let dear_first = |cut: &Cut| if cut.group == 0 { 500 } else { 100 };
        assert_eq!(groups(&shares(&pieces, dear_first, 2)), [vec![0], vec![1, 2, 3, 4, 5]]);
        assert_eq!(groups(&shares(&pieces, |_| 100, 2)), [vec![0, 1, 2], vec![3, 4, 5]]);
        // A process costs more than such few frames.
        assert_eq!(groups(&shares(&pieces, |_| 1, 4)), [vec![0, 1, 2, 3, 4, 5]]);
    }

    #[test]
    fn an_open_piece_has_its_own_process() {
        let pieces: Vec<Piece<'_>> = (0..5).map(|group| piece(group, NONE, group != 2)).collect();
        assert_eq!(groups(&shares(&pieces, |_| 100, 1)), [vec![0, 1], vec![2], vec![3, 4]]);
    }

    #[test]
    fn a_run_has_no_more_frames_than_its_filter_takes() {
        let targets: Vec<Target> = (0..40).map(|time| Target { time, from: time }).collect();
        let pieces: Vec<Piece<'_>> = (0..3).map(|group| piece(group, &targets, true)).collect();
        assert_eq!(shares(&pieces, |_| 1, 1).len(), 3);
    }
}
