//! MP4 and MOV: from the boxes of a file to the pictures of its video.
//!
//! Container boxes are walked here, and only the tables of the video's track are decoded, so that an odd box elsewhere does
//! not matter. Fragments are in [`super::fragments`].

use std::io::{Read, Seek};

use mp4_atom::{Elst, Mdhd, Mvhd, Tkhd};

use super::boxes::{Child, Header, be32, children, find};
use super::edits::Edit;
use super::fragments::Fragments;
use super::nal::Codec;
use super::origin::Origin;
use super::samples::{Clock, Sample, Samples, Told};
use super::track::{TRACKS, Track, decode};
use super::{Limits, Unindexed};

/// Boxes of a file's top level that are looked at.
const BOXES: usize = 1 << 20;
/// Fragments that are walked where each costs a request.
const FRAGMENTS: usize = 600;
/// Bytes kept of the first box, which says what kind of file it is.
const KIND_BYTES: u64 = 4 << 10;
/// Bytes of a box that is kept.
const KEPT_BYTES: usize = 1 << 20;
/// Stretches of an edit list that are looked at; more than one is refused anyway.
const EDITS: usize = 1000;

/// A movie, as far as its video goes.
#[derive(Debug)]
pub(super) struct Movie {
    /// Number of the stream.
    pub(super) stream: u32,
    /// Its codec.
    pub(super) codec: Codec,
    /// Its pictures.
    pub(super) samples: Samples,
    /// Boxes that go into a spliced file as they are.
    pub(super) boxes: Boxes,
}

/// Boxes of the source, whole.
#[derive(Debug)]
pub(super) struct Boxes {
    /// `ftyp`, or nothing where there is none.
    pub(super) kind: Vec<u8>,
    /// `mvhd`.
    pub(super) movie: Vec<u8>,
    /// `tkhd`.
    pub(super) track: Vec<u8>,
    /// `mdhd`.
    pub(super) media: Vec<u8>,
    /// `hdlr`.
    pub(super) handler: Vec<u8>,
    /// `stsd`.
    pub(super) description: Vec<u8>,
    /// The track's number in the boxes.
    pub(super) id: u32,
}

impl Boxes {
    /// Memory taken.
    pub(super) fn bytes(&self) -> usize {
        [&self.kind, &self.movie, &self.track, &self.media, &self.handler, &self.description]
            .iter()
            .map(|bytes| bytes.len())
            .sum()
    }
}

/// Reads the index of an MP4 or MOV file. Also the video's rate, and its length in microseconds.
///
/// # Errors
/// [`Unindexed`].
pub(super) fn read(
    origin: &mut Origin<'_, impl Read + Seek>,
    limits: &Limits,
) -> Result<(Movie, Told, Option<i64>), Unindexed> {
    let (mut at, mut kind, mut reading, mut fragments) = (0, Vec::new(), None::<Reading>, 0);
    for number in 0.. {
        if number >= BOXES {
            return Err(Unindexed::Because("too many boxes".to_owned()));
        }
        let Some(header) = Header::read(&origin.read(at, 16)?) else {
            // ffmpeg may find more behind garbage; a file that is cut off ends in the middle of a header.
            if origin.bytes().saturating_sub(at) < 16 {
                break;
            }
            return Err(Unindexed::Because("what is no box".to_owned()));
        };
        let end = header.size.map_or(origin.bytes(), |size| at.saturating_add(size));
        let inside = || {
            let fits = end <= origin.bytes();
            fits.then_some(end - at).ok_or_else(|| Unindexed::Because("it is cut off".to_owned()))
        };
        match &header.kind {
            b"ftyp" if end - at <= KIND_BYTES => kind = origin.read(at, inside()?)?,
            b"moov" if reading.is_none() => {
                let whole = origin.read(at, inside()?)?;
                let moov = whole.get(header.header as usize..).unwrap_or_default();
                let movie = Reading::new(moov, limits)?;
                let last = movie.fragments.is_none();
                reading = Some(movie);
                if last {
                    break;
                }
            }
            b"sidx" if !limits.scan && header.size.is_some_and(|size| size / 12 > FRAGMENTS as u64) => {
                return Err(Unindexed::Because("too many fragments to walk".to_owned()));
            }
            b"moof" => {
                fragments += 1;
                if !limits.scan && fragments > FRAGMENTS {
                    return Err(Unindexed::Because("too many fragments to walk".to_owned()));
                }
                let early = || Unindexed::Because("a fragment before its movie".to_owned());
                let movie = reading.as_mut().ok_or_else(early)?;
                // The last fragment of a file that is cut off.
                let Ok(size) = inside() else { break };
                let whole = origin.read(at, size)?;
                let moof = whole.get(header.header as usize..).unwrap_or_default();
                if let Some(fragments) = &mut movie.fragments {
                    fragments.read(moof, at, &mut movie.samples, limits)?;
                    movie.begun = if movie.begun == 0 { movie.samples.len() } else { movie.begun };
                }
            }
            _ => {}
        }
        at = end;
        if at >= origin.bytes() {
            break;
        }
    }
    let reading = reading.ok_or_else(|| Unindexed::Because("no movie box".to_owned()))?;
    reading.finish(kind, limits)
}

/// A movie that is being read.
struct Reading {
    stream: u32,
    codec: Codec,
    boxes: Boxes,
    timescale: u32,
    edit: Edit,
    samples: Vec<Sample>,
    /// Pictures the movie box itself lists; the rest are fragments'.
    listed: usize,
    /// Pictures up to the end of the first fragment that has any.
    begun: usize,
    last_step: u32,
    fragments: Option<Fragments>,
}

impl Reading {
    fn new(moov: &[u8], limits: &Limits) -> Result<Self, Unindexed> {
        let missing = |what: &str| Unindexed::Because(format!("no {what} box"));
        let movie = find(moov, b"mvhd").ok_or_else(|| missing("mvhd"))?;
        let traks = children(moov).filter(|child| child.kind == *b"trak").take(TRACKS + 1);
        let traks: Vec<Child<'_>> = traks.collect();
        let tracks: Vec<Track<'_>> = traks.iter().filter_map(Track::find).collect();
        let chapters: Vec<u32> = tracks.iter().flat_map(Track::chapters).take(TRACKS + 1).collect();
        if traks.len() > TRACKS || chapters.len() > TRACKS {
            return Err(Unindexed::Because("too many tracks".to_owned()));
        }
        let extends = find(moov, b"mvex");
        let mut best: Option<(bool, u64, usize)> = None;
        for (number, track) in tracks.iter().enumerate() {
            let (enabled, pixels, id) = track.rank();
            if !track.is_video() || chapters.contains(&id) || (extends.is_none() && track.count() == 0) {
                continue;
            }
            if best.is_none_or(|(best_enabled, best_pixels, _)| (enabled, pixels) > (best_enabled, best_pixels)) {
                best = Some((enabled, pixels, number));
            }
        }
        let track = best.and_then(|(_, _, number)| tracks.get(number)).ok_or_else(|| missing("video's"))?;
        // ffmpeg counts a cover as a stream where it meets it.
        let place = traks.iter().position(|trak| std::ptr::eq(trak.body, track.trak)).unwrap_or(0);
        let before = moov.get(..track.trak.as_ptr() as usize - moov.as_ptr() as usize).unwrap_or_default();
        if before.windows(4).any(|four| four == b"covr") {
            return Err(Unindexed::Because("a cover before the video".to_owned()));
        }
        let kept = [&movie, &track.header, &track.media, &track.handler, &track.description];
        if kept.iter().any(|child| child.whole.len() > KEPT_BYTES) {
            return Err(Unindexed::Because("a header of too many bytes".to_owned()));
        }
        let movie_scale = decode::<Mvhd>(&movie)?.timescale;
        let header = decode::<Tkhd>(&track.header)?;
        let timescale = decode::<Mdhd>(&track.media)?.timescale;
        if timescale == 0 {
            return Err(Unindexed::Because("a clock that stands".to_owned()));
        }
        if track.edits.and_then(|edits| be32(edits.body, 4)).is_some_and(|count| count as usize > EDITS) {
            return Err(Unindexed::Because("an edit list with more than one stretch".to_owned()));
        }
        let edits = track.edits.as_ref().map(decode::<Elst>).transpose()?.unwrap_or_default();
        let codec = codec(&track.description)?;
        let (samples, last_step) = track.samples(limits)?;
        let listed = samples.len();
        let fragments = match extends {
            Some(extends) => Some(Fragments::new(extends.body, header.track_id)?),
            None => None,
        };
        let boxes = Boxes {
            kind: Vec::new(),
            movie: movie.whole.to_vec(),
            track: track.header.whole.to_vec(),
            media: track.media.whole.to_vec(),
            handler: track.handler.whole.to_vec(),
            description: track.description.whole.to_vec(),
            id: header.track_id,
        };
        let edit = Edit::read(&edits, movie_scale, timescale)?;
        let stream = u32::try_from(place).unwrap_or(u32::MAX);
        Ok(Self { stream, codec, boxes, timescale, edit, samples, listed, begun: 0, last_step, fragments })
    }

    fn finish(mut self, kind: Vec<u8>, limits: &Limits) -> Result<(Movie, Told, Option<i64>), Unindexed> {
        self.boxes.kind = kind;
        let fragmented = self.samples.len() > self.listed;
        if !fragmented {
            self.edit.apply(&mut self.samples)?;
        } else if self.listed > 0 && self.edit != Edit::default() {
            return Err(Unindexed::Because("an edit list over fragments and whole parts".to_owned()));
        } else {
            // ffmpeg starts the clock of fragments later by the most a picture is shown before it is decoded.
            let least = |samples: &[Sample]| samples.iter().map(|sample| sample.offset.min(0)).min().unwrap_or(0);
            let early = least(&self.samples);
            if least(self.samples.get(..self.begun).unwrap_or_default()) != early {
                return Err(Unindexed::Because("offsets that grow".to_owned()));
            }
            let shift = self.edit.shift().saturating_add(early.into());
            for sample in &mut self.samples {
                sample.decode = sample.decode.saturating_sub(shift);
            }
        }
        if self.samples.windows(2).any(|pair| matches!(pair, [one, next] if next.decode < one.decode)) {
            return Err(Unindexed::Because("decoding times that go back".to_owned()));
        }
        let clock = Clock { num: 1_000_000, den: self.timescale.into() };
        let last_step = self.fragments.as_ref().map_or(self.last_step, |fragments| fragments.last_step(self.last_step));
        let (samples, told) = Samples::new(self.samples, clock, limits)?;
        let hidden_end = !fragmented && self.edit.any;
        let length = length(&samples, last_step, if hidden_end { self.edit.duration } else { None });
        Ok((Movie { stream: self.stream, codec: self.codec, samples, boxes: self.boxes }, told, length))
    }
}

/// From the first shown picture to the end of the last, in microseconds; no longer than the edit.
fn length(samples: &Samples, last_step: u32, edit: Option<i64>) -> Option<i64> {
    let (mut first, mut end) = (i64::MAX, i64::MIN);
    for (place, sample) in samples.all.iter().enumerate().filter(|(_, sample)| sample.shown) {
        let next = samples.all.get(place + 1);
        let step = next.map_or(i64::from(last_step), |next| next.decode.saturating_sub(sample.decode));
        first = first.min(sample.presentation());
        end = end.max(sample.presentation().saturating_add(step));
    }
    let length = end.checked_sub(first)?;
    Some(samples.clock.micros(edit.map_or(length, |edit| length.min(edit))))
}

/// The codec of a list of sample descriptions.
fn codec(description: &Child<'_>) -> Result<Codec, Unindexed> {
    let body = description.body;
    if be32(body, 4) != Some(1) {
        return Err(Unindexed::Because("not one sample description".to_owned()));
    }
    let entry = children(body.get(8..).unwrap_or_default()).next();
    let entry = entry.ok_or_else(|| Unindexed::Because("no sample description".to_owned()))?;
    let configuration = |kind| find(entry.body.get(78..)?, kind).map(|child| child.body);
    Ok(match &entry.kind {
        b"encv" => return Err(Unindexed::Because("encrypted".to_owned())),
        b"avc1" | b"avc2" | b"avc3" | b"avc4" | b"dvav" | b"dva1" => {
            let configuration =
                configuration(b"avcC").ok_or_else(|| Unindexed::Because("H.264 without avcC".to_owned()))?;
            Codec::avc(configuration)
        }
        b"hvc1" | b"hev1" | b"hvc2" | b"hev2" | b"dvhe" | b"dvh1" => {
            let configuration =
                configuration(b"hvcC").ok_or_else(|| Unindexed::Because("HEVC without hvcC".to_owned()))?;
            Codec::hevc(configuration)
        }
        _ => Codec::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::super::boxes;
    use super::*;

    #[test]
    fn a_thousand_tracks_are_enough() {
        let mut moov = Vec::new();
        boxes::write(&mut moov, b"mvhd", |_| {});
        for _ in 0..=TRACKS {
            boxes::write(&mut moov, b"trak", |_| {});
        }
        let limits = Limits { frames: 2, bytes: 0, scan: true };
        assert_eq!(Reading::new(&moov, &limits).err(), Some(Unindexed::Because("too many tracks".to_owned())));
    }
}
