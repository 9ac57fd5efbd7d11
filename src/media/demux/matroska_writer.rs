//! A spliced Matroska file: the source's track, its blocks as they are in clusters of the same times.
//!
//! Where only key frames are known, the blocks of a stretch are looked for first.

use std::borrow::Cow;

use bytes::Bytes;

use super::blocks::{STEP_BYTES, Step, Walk, picture_in};
use super::matroska::{self, Segment};
use super::samples::{Clock, Fed, Sample, Wished, run};
use super::splice::{Container, Picture};
use super::{Cut, Group};
use crate::media::MediaError;
use crate::media::content::Content;

/// Bytes first looked at for blocks, doubled as long as there are more.
const LOOK_BYTES: u64 = 64 << 10;
/// Bytes looked at at once.
const LOOK_BYTES_MAX: u64 = 1 << 20;
/// Bytes looked at in all for a cut: more than the pictures from one key frame to the next take.
const LOOK_BYTES_ALL: u64 = 256 << 20;

/// Writes one.
pub(super) struct MatroskaWriter<'a> {
    /// The source.
    pub(super) segment: &'a Segment,
    /// Its pictures.
    pub(super) samples: &'a [Sample],
}

impl Container for MatroskaWriter<'_> {
    fn head(&self) -> Bytes {
        self.segment.head.clone().into()
    }

    fn is_disposable(&self, picture: &Picture) -> bool {
        self.segment.is(&picture.bytes, super::nal::Codec::is_disposable)
    }

    fn is_key(&self, picture: &Picture) -> bool {
        self.segment.is(&picture.bytes, super::nal::Codec::is_key)
    }

    fn pack(&mut self, pictures: &[Picture]) -> Result<Vec<Bytes>, MediaError> {
        let odd = || MediaError::NotVideo("the video's blocks are not where it says".to_owned());
        let mut out = Vec::with_capacity(pictures.len() * 2);
        let time = |picture: &Picture| self.samples.get(picture.fed.place).map(|sample| sample.decode);
        for cluster in pictures.chunk_by(|one, next| time(one) == time(next)) {
            let time = cluster.first().and_then(time).and_then(|time| u64::try_from(time).ok()).ok_or_else(odd)?;
            let size = cluster.iter().map(|picture| picture.bytes.len() as u64).sum();
            out.push(matroska::cluster(time, size).into());
            for picture in cluster {
                let place = picture_in(&picture.bytes).ok_or_else(odd)?;
                let whole = picture.bytes.clone();
                if !picture.first {
                    out.push(whole);
                    continue;
                }
                out.push(whole.slice(..place.start));
                out.push(self.segment.wanted.codec.opening(whole.slice(place.clone())));
                out.push(whole.slice(place.end..));
            }
        }
        Ok(out)
    }
}

impl Segment {
    /// What the codec says of a block's picture; false where there is none.
    pub(super) fn is(&self, block: &[u8], says: impl Fn(super::nal::Codec, &[u8]) -> bool) -> bool {
        let Some(picture) = picture_in(block).and_then(|place| block.get(place)) else { return false };
        let prefix = self.wanted.prefix.as_slice();
        let picture = if prefix.is_empty() { Cow::Borrowed(picture) } else { [prefix, picture].concat().into() };
        says(self.wanted.codec, &picture)
    }

    /// The pictures of a cut that begins with this group, and which of them to feed, where only key frames are known. Where
    /// the times asked for are not those of frames, all up to them are fed. Nothing where no key frame of the group's time is,
    /// and no more than what is before damage.
    ///
    /// # Errors
    /// As [`Content::read`].
    pub(super) async fn look(
        &self,
        content: &Content,
        clock: Clock,
        group: &Group,
        cut: &Cut,
    ) -> Result<(Vec<Sample>, Vec<Fed>), MediaError> {
        let mut walk = Walk::new(&self.wanted, group.bytes.start, self.end);
        let (mut looked, mut looked_at, mut size, mut left) = (Bytes::new(), 0, LOOK_BYTES, LOOK_BYTES_ALL);
        let (mut found, mut samples, mut behind) = (Wished::new(&cut.frames), Vec::<Sample>::new(), false);
        let last = cut.frames.last().copied().unwrap_or(group.time);
        while !found.all() && samples.len() <= super::FRAMES_LOOKED_FOR {
            if samples.is_empty() && walk.at() > group.bytes.end {
                break;
            }
            let from = walk.at().checked_sub(looked_at).and_then(|from| usize::try_from(from).ok());
            let mut here = from.and_then(|from| looked.get(from..)).unwrap_or_default();
            if here.len() < STEP_BYTES as usize && walk.at() < self.end {
                // What was asked for counts, not what came, so that this bounds the requests as well.
                let Some(rest) = left.checked_sub(size) else { break };
                left = rest;
                looked_at = walk.at();
                looked = content.read(looked_at..looked_at.saturating_add(size)).await?;
                size = (size * 2).min(LOOK_BYTES_MAX);
                here = &looked;
            }
            let sample = match walk.step(here) {
                Ok(Step::Picture(sample)) => sample,
                Ok(Step::End) | Err(_) => break,
                Ok(Step::On | Step::Cluster(_) | Step::Other(..)) => continue,
            };
            let time = clock.micros(sample.presentation());
            if samples.is_empty() && (!sample.key || time != group.time) {
                continue;
            }
            if sample.key && !samples.is_empty() {
                if behind {
                    break;
                }
                behind = time > last;
            }
            found.take(time);
            samples.push(sample);
        }
        let mut fed = run(&samples, clock, &cut.frames);
        if !found.all() {
            let start = samples.first().map_or(0, Sample::presentation);
            let second = samples.iter().skip(1).position(|sample| sample.key).map_or(samples.len(), |place| place + 1);
            let kept = |(place, sample): (usize, &Sample)| place >= second || sample.presentation() >= start;
            let kept = samples.iter().copied().enumerate().filter(|(place, sample)| kept((*place, sample)));
            fed = kept.map(|(place, _)| Fed { place, wanted: true }).collect();
        }
        fed.retain(|fed| samples.get(fed.place).is_some_and(|sample| sample.end() <= content.bytes()));
        Ok((samples, fed))
    }
}
