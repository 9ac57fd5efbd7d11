//! A container's index: when each frame is shown and where its bytes are, without touching the pictures; and short
//! containers made of nothing but the frames that are wanted, for ffmpeg to decode from a pipe.
//!
//! MP4/MOV (whole and fragmented) and Matroska/WebM. This file knows nothing of ffmpeg's arguments, budgets or sizes. What it
//! does not fully understand it refuses to index ([`Unindexed`]); such a file is then read by ffmpeg itself.
//!
//! Times are microseconds as the file counts (after its edit list), rounded half away from zero as ffmpeg rounds, so that a
//! frame decoded from a spliced container tells the same time as the index.

mod blocks;
mod boxes;
mod ebml;
mod edits;
mod fragments;
mod matroska;
mod matroska_writer;
mod mp4;
mod mp4_writer;
mod nal;
mod origin;
mod samples;
mod splice;
mod track;

use std::io::{Read, Seek};
use std::ops::Range;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::io::AsyncWrite;

use super::MediaError;
use super::content::Content;
use matroska::Segment;
use matroska_writer::MatroskaWriter;
use mp4::Movie;
use mp4_writer::Mp4Writer;
use nal::Codec;
use origin::Origin;
use samples::{Fed, Sample, Samples};

/// Why there is no index of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unindexed {
    /// Another container, or one with something in it that is left to ffmpeg. For logs.
    #[error("no index: {0}")]
    Because(String),
    /// It declares more frames than [`Limits::frames`], or so many entries of a table.
    #[error("too many frames")]
    TooManyFrames,
}

/// How much an index may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Frames of the video.
    pub(super) frames: usize,
    /// Bytes of headers and tables read in all.
    pub(super) bytes: u64,
    /// Whether small reads all over the file are cheap, as on a disk: else only what an index of the file's own names is
    /// read.
    pub(super) scan: bool,
}

impl Limits {
    /// Holds a count that the file declares against the frames there may be, before memory is taken for them.
    fn allow(&self, count: Option<u32>) -> Result<(), Unindexed> {
        if count.is_some_and(|count| count as usize > self.frames) { Err(Unindexed::TooManyFrames) } else { Ok(()) }
    }
}

/// The index of a file's video: the stream a player would show.
#[derive(Debug)]
pub(super) struct Index {
    /// Number of the stream in the file, as ffmpeg counts.
    pub(super) stream: u32,
    /// Groups of pictures by the time of their key frame, ascending, none twice, at least one.
    pub(super) groups: Vec<Group>,
    /// When each frame is shown, ascending, none twice. `None` where the file's index names only key frames. Frames that
    /// are never shown (before an edit list's start, leading pictures of the very first group) are not in it.
    pub(super) times: Option<Arc<[i64]>>,
    /// Frames a second, as the header or most frames' durations say.
    pub(super) rate: Option<f64>,
    /// From the first frame to the end of the last one, in microseconds, as the header says.
    pub(super) length: Option<i64>,
    container: Container,
}

/// What is kept of a file to take frames out of it.
#[derive(Debug)]
enum Container {
    Mp4(Movie),
    Matroska(Segment),
}

/// Bytes of a key frame that are looked at to see of what kind it is.
const GLANCE_BYTES: u64 = 64 << 10;
/// Pictures that are looked for from a key frame on, where only key frames are known.
const FRAMES_LOOKED_FOR: usize = 1 << 16;

/// A key frame and all up to the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    /// When the key frame is shown. Where an edit list hides it but not frames after it, before the first of the times.
    pub(super) time: i64,
    /// From the key frame's first byte to the last byte before the next group, other streams' bytes included. Where only key
    /// frames are known, from the first byte of the cluster it is in.
    pub(super) bytes: Range<u64>,
}

/// What is wanted of the groups from one on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cut {
    /// First group, a number in [`Index::groups`].
    pub(super) group: usize,
    /// Times of the frames wanted, ascending, at least one. When it is the group's own time alone, only the key frame is fed.
    /// They may reach into later groups, which are then fed as well.
    pub(super) frames: Vec<i64>,
}

/// The rate of a single frame, by its length.
fn single(length: Option<i64>) -> Option<f64> {
    length.filter(|length| *length > 0).map(|length| 1e6 / length as f64)
}

impl Index {
    /// Reads the index of a container of so many bytes.
    ///
    /// # Errors
    /// [`Unindexed`]; never a panic. Takes at most about 200 bytes of memory a frame allowed, and those [`Limits::bytes`] that
    /// are read at once: the tables, and a fragment.
    pub(super) fn read(source: &mut (impl Read + Seek), bytes: u64, limits: &Limits) -> Result<Self, Unindexed> {
        let own = Limits { frames: limits.frames.min(usize::try_from(bytes).unwrap_or(usize::MAX)), ..*limits };
        Self::read_within(source, bytes, &own).map_err(|error| match error {
            Unindexed::TooManyFrames if own.frames < limits.frames => {
                Unindexed::Because("more frames than bytes".to_owned())
            }
            error => error,
        })
    }

    fn read_within(source: &mut (impl Read + Seek), bytes: u64, limits: &Limits) -> Result<Self, Unindexed> {
        let mut origin = Origin::new(source, bytes, limits);
        match origin.read(0, 8)?.as_slice() {
            [_, _, _, _, b'f', b't', b'y', b'p', ..]
            | [_, _, _, _, b'm', b'o', b'o', b'v', ..]
            | [_, _, _, _, b'm', b'd', b'a', b't', ..]
            | [_, _, _, _, b'w', b'i', b'd', b'e', ..]
            | [_, _, _, _, b'f', b'r', b'e', b'e', ..]
            | [_, _, _, _, b's', b'k', b'i', b'p', ..]
            | [_, _, _, _, b's', b't', b'y', b'p', ..] => {
                let (movie, told, length) = mp4::read(&mut origin, limits)?;
                Ok(Self {
                    stream: movie.stream,
                    groups: told.groups,
                    times: Some(told.times),
                    rate: movie.samples.rate().or_else(|| single(length)),
                    length,
                    container: Container::Mp4(movie),
                })
            }
            [0x1A, 0x45, 0xDF, 0xA3, ..] => {
                let found = matroska::read(&mut origin, limits)?;
                Ok(Self {
                    stream: found.segment.stream,
                    groups: found.groups,
                    times: found.times,
                    rate: found.rate,
                    length: found.length,
                    container: Container::Matroska(found.segment),
                })
            }
            _ => Err(Unindexed::Because("another container".to_owned())),
        }
    }

    /// ffmpeg's name of the spliced container's format.
    pub(super) const fn format(&self) -> &'static str {
        match &self.container {
            Container::Mp4(_) => "mov",
            Container::Matroska(_) => "matroska",
        }
    }

    /// Memory taken.
    pub(super) fn bytes(&self) -> u64 {
        let times = self.times.as_ref().map_or(0, |times| size_of_val(times.as_ref()));
        let kept = match &self.container {
            Container::Mp4(movie) => movie.boxes.bytes(),
            Container::Matroska(segment) => segment.head.len(),
        };
        let samples = self.samples().map_or(0, Samples::bytes);
        (times + size_of_val(self.groups.as_slice()) + kept + samples) as u64
    }

    /// All pictures, where they are known.
    const fn samples(&self) -> Option<&Samples> {
        match &self.container {
            Container::Mp4(movie) => Some(&movie.samples),
            Container::Matroska(Segment { samples: Ok(samples), .. }) => Some(samples),
            Container::Matroska(_) => None,
        }
    }

    /// Whether what the file says of itself holds where it is looked at: a few groups, the first and last among them, begin
    /// where they should, with pictures that decoding can begin with. Containers are known to call pictures key frames that
    /// are none, with which frames would come out wrong without anyone noticing.
    ///
    /// # Errors
    /// As [`Content::read`].
    pub(super) async fn check(&self, content: &Content) -> Result<bool, MediaError> {
        // All that is known of pictures of another codec is what the container says.
        if self.codec() == Codec::Other && self.samples().is_some() {
            return Ok(true);
        }
        // Of a file that is cut off, those that are there.
        let last = self.groups.partition_point(|group| group.bytes.start < content.bytes()).saturating_sub(1);
        let mut groups = vec![0, 1.min(last), last / 2, last];
        groups.sort_unstable();
        groups.dedup();
        let looks = groups.into_iter().map(|group| self.is_key(content, group));
        Ok(futures::future::try_join_all(looks).await?.into_iter().all(|key| key))
    }

    /// Whether decoding can begin with a group, as far as that can be seen.
    async fn is_key(&self, content: &Content, group: usize) -> Result<bool, MediaError> {
        let Some(key) = self.key(content, group).await? else { return Ok(false) };
        if key.end() > content.bytes() {
            return Ok(true);
        }
        self.glance(content, key, Codec::is_key).await
    }

    /// What the codec says of a key frame by its first bytes.
    async fn glance(&self, content: &Content, key: Sample, says: fn(Codec, &[u8]) -> bool) -> Result<bool, MediaError> {
        let bytes = content.read(key.at..key.end().min(key.at.saturating_add(GLANCE_BYTES))).await?;
        Ok(match &self.container {
            Container::Mp4(movie) => says(movie.codec, &bytes),
            Container::Matroska(segment) => segment.is(&bytes, says),
        })
    }

    const fn codec(&self) -> Codec {
        match &self.container {
            Container::Mp4(movie) => movie.codec,
            Container::Matroska(segment) => segment.wanted.codec,
        }
    }

    /// Whether a decoder that has just decoded something else may go on with this group, and shows all of its frames: true
    /// for codecs whose key frames reset everything, for H.264 only where the group begins with an IDR picture. HEVC groups
    /// are closed by how [`Self::splice`] opens a stretch.
    ///
    /// # Errors
    /// As [`Content::read`].
    pub(super) async fn is_closed(&self, content: &Content, group: usize) -> Result<bool, MediaError> {
        if !matches!(self.codec(), Codec::Avc { .. }) {
            return Ok(self.codec() != Codec::Opaque);
        }
        let Some(key) = self.key(content, group).await? else { return Ok(false) };
        self.glance(content, key, Codec::is_idr).await
    }

    /// A group's key frame.
    async fn key(&self, content: &Content, group: usize) -> Result<Option<Sample>, MediaError> {
        if let Some(samples) = self.samples() {
            return Ok(samples.keys.get(group).and_then(|key| samples.all.get(*key as usize)).copied());
        }
        let (Container::Matroska(Segment { samples: Err(clock), .. }), Some(at)) =
            (&self.container, self.groups.get(group))
        else {
            return Ok(None);
        };
        let Container::Matroska(segment) = &self.container else { return Ok(None) };
        let cut = Cut { group, frames: vec![at.time] };
        let (samples, _) = segment.look(content, *clock, at, &cut).await?;
        Ok(samples.first().copied())
    }

    /// Frames that decoding a cut takes; by the rate where only key frames are known.
    pub(super) fn frames_of(&self, cut: &Cut) -> u64 {
        if let Some(samples) = self.samples() {
            let runs = samples.runs(std::slice::from_ref(cut), u64::MAX);
            return runs.iter().map(|run| run.len() as u64).sum();
        }
        let (Some(group), Some(last)) = (self.groups.get(cut.group), cut.frames.last()) else { return 0 };
        if *cut.frames == [group.time] {
            return 1;
        }
        let seconds = last.saturating_sub(group.time).max(0) as f64 / 1e6;
        ((seconds * self.rate.unwrap_or(30.0)).ceil() as u64).saturating_add(1).max(cut.frames.len() as u64)
    }

    /// Writes a container that holds the cuts' frames and those they are predicted from. Cuts ascend and do not overlap.
    /// Reads are bounded in size and a few are under way at a time. Ends early, without error, when the reader of `out`
    /// closes it. A cut whose group begins with no key frame, whatever the container says, is left out. ffmpeg must be told `-flags +output_corrupt` where a group is not closed: else it drops what still waits in
    /// the decoder at the end.
    ///
    /// # Errors
    /// As [`Content::read`]; [`MediaError::NotVideo`] when the bytes are not what the index says.
    // Boxed here, because the compiler can't see through the futures inside that it may be sent to another thread.
    pub(super) fn splice<'a>(
        &'a self,
        content: &'a Content,
        cuts: &'a [Cut],
        out: &'a mut (impl AsyncWrite + Send + Unpin),
    ) -> BoxFuture<'a, Result<(), MediaError>> {
        self.write(content, cuts, out).boxed()
    }

    async fn write(
        &self,
        content: &Content,
        cuts: &[Cut],
        out: &mut (impl AsyncWrite + Send + Unpin),
    ) -> Result<(), MediaError> {
        match &self.container {
            Container::Mp4(movie) => {
                let runs = movie.samples.runs(cuts, content.bytes());
                splice::splice(content, &movie.samples.all, &runs, &mut Mp4Writer::new(movie), out).await
            }
            Container::Matroska(segment) => {
                let (looked, runs);
                let samples = match &segment.samples {
                    Ok(samples) => {
                        runs = samples.runs(cuts, content.bytes());
                        samples.all.as_slice()
                    }
                    Err(clock) => {
                        (looked, runs) = self.look(segment, *clock, content, cuts).await?;
                        looked.as_slice()
                    }
                };
                splice::splice(content, samples, &runs, &mut MatroskaWriter { segment, samples }, out).await
            }
        }
    }

    /// The pictures of cuts where only key frames are known.
    async fn look(
        &self,
        segment: &Segment,
        clock: samples::Clock,
        content: &Content,
        cuts: &[Cut],
    ) -> Result<(Vec<Sample>, Vec<Vec<Fed>>), MediaError> {
        let (mut all, mut runs): (Vec<Sample>, Vec<Vec<Fed>>) = (Vec::new(), Vec::new());
        for cut in cuts {
            let Some(group) = self.groups.get(cut.group) else { continue };
            let (samples, fed) = segment.look(content, clock, group, cut).await?;
            let before = all.len();
            all.extend(samples);
            runs.push(fed.into_iter().map(|fed| Fed { place: fed.place + before, ..fed }).collect());
        }
        runs.retain(|run| !run.is_empty());
        Ok((all, runs))
    }
}

#[cfg(test)]
mod tests;
