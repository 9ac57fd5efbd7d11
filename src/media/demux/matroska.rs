//! Matroska and WebM (RFC 9559): from the elements of a file to the pictures of its video, or to its key frames alone.
//!
//! Where reading is cheap, every block's header is looked at; else the file's own list of cues has to do.

use std::io::{Read, Seek};
use std::ops::Range;

use mkv_element::prelude::{Info, TrackEntry};

use super::blocks::{CLUSTER, CUES, INFO, SEEK_HEAD, STEP_BYTES, Step, TRACKS, Walk, Wanted};
use super::ebml::{self, Element};
use super::nal::Codec;
use super::origin::Origin;
use super::samples::{Clock, Sample, Samples, Told};
use super::{Group, Limits, Unindexed};

/// Files up to this are walked block by block though they have cues: reading a few bytes of every block takes as long as
/// reading the whole file where it is not in memory yet.
const WALK_BYTES: u64 = 256 << 20;
/// Bytes of an element that is kept: what is said of the file, and of a track.
const KEPT_BYTES: u64 = 1 << 20;
/// Bytes of what is said of all tracks.
const TRACKS_BYTES: u64 = 16 << 20;
/// Bytes every picture begins with that blocks may leave out.
const PREFIX_BYTES: usize = 64;
const EBML: u32 = 0x1A45_DFA3;
const SEGMENT: u32 = 0x1853_8067;
const TRACK: u32 = 0xAE;
const CUE: u32 = 0xBB;
const CUE_TIME: u32 = 0xB3;
const CUE_PLACE: u32 = 0xB7;
const CUE_TRACK: u32 = 0xF7;
const CUE_CLUSTER: u32 = 0xF1;
const VIDEO: u64 = 1;
/// Types of tracks that ffmpeg counts as streams: video, audio, subtitles, metadata.
const STREAMS: [u64; 4] = [VIDEO, 2, 17, 33];

/// A Matroska file, as far as its video goes.
#[derive(Debug)]
pub(super) struct Segment {
    /// Number of the stream.
    pub(super) stream: u32,
    /// Its video.
    pub(super) wanted: Wanted,
    /// Its pictures, or its clock alone where only key frames are known.
    pub(super) samples: Result<Samples, Clock>,
    /// Where the segment, and with it the last cluster, ends.
    pub(super) end: u64,
    /// What a spliced file begins with.
    pub(super) head: Vec<u8>,
}

/// What an index tells of a file.
pub(super) struct Found {
    /// The file.
    pub(super) segment: Segment,
    /// As [`super::Index::groups`].
    pub(super) groups: Vec<Group>,
    /// As [`super::Index::times`].
    pub(super) times: Option<std::sync::Arc<[i64]>>,
    /// As [`super::Index::rate`].
    pub(super) rate: Option<f64>,
    /// As [`super::Index::length`].
    pub(super) length: Option<i64>,
}

/// Reads the index of a Matroska or WebM file.
///
/// # Errors
/// [`Unindexed`].
pub(super) fn read(origin: &mut Origin<'_, impl Read + Seek>, limits: &Limits) -> Result<Found, Unindexed> {
    let (head, start, end) = open(origin)?;
    let parts = Parts::find(origin, start, end)?;
    let missing = |what: &str| Unindexed::Because(format!("no {what} element"));
    let info = parts.info.ok_or_else(|| missing("Info"))?;
    let tracks = parts.tracks.ok_or_else(|| missing("Tracks"))?;
    let first = parts.first.ok_or_else(|| missing("Cluster"))?;
    let about = decode::<Info>(&info)?;
    let scale = Some(*about.timestamp_scale).filter(|scale| *scale > 0).ok_or_else(|| missing("clock's"))?;
    let clock = Clock { num: scale, den: 1000 };
    let track = Track::choose(&tracks)?;
    let head = head_of(head, &info, track.entry);
    let cues = parts.cues.map(|cues| cued(&cues, track.wanted.track, start..end, limits)).transpose()?;
    let cues = cues.unwrap_or_default();
    let begin = cues.first().map_or(0, |(ticks, _)| clock.micros(*ticks));
    let ticks =
        about.duration.map(|duration| *duration).filter(|ticks| ticks.is_finite() && (0.0..9e15).contains(ticks));
    let length = ticks.map(|ticks| ((ticks * scale as f64 / 1000.0).round() as i64).saturating_sub(begin));
    let length = length.filter(|length| *length > 0);
    let rate = track.step.map(rate);
    // Cues say nothing of rate and length: where the headers don't either, the blocks have to.
    let known = cues.first().is_some_and(|(_, at)| *at == first) && rate.is_some() && length.is_some();
    if limits.scan && (!known || origin.bytes() <= WALK_BYTES) {
        let all = walk(origin, &track.wanted, first, end, limits)?;
        let (samples, told) = Samples::new(all, clock, limits)?;
        let (rate, length) = measured(&told, track.step);
        let segment = Segment { stream: track.stream, wanted: track.wanted, samples: Ok(samples), end, head };
        return Ok(Found { segment, groups: told.groups, times: Some(told.times), rate, length });
    }
    if !known {
        return Err(Unindexed::Because("no cues, or no rate or length beside them".to_owned()));
    }
    let groups = cued_groups(&cues, clock, end);
    let segment = Segment { stream: track.stream, wanted: track.wanted, samples: Err(clock), end, head };
    Ok(Found { segment, groups, times: None, rate, length })
}

/// The header of the file, whole, and where the segment's body begins and ends.
fn open(origin: &mut Origin<'_, impl Read + Seek>) -> Result<(Vec<u8>, u64, u64), Unindexed> {
    let odd = || Unindexed::Because("no Matroska file".to_owned());
    let header = Element::read(&origin.read(0, 12)?).filter(|header| header.id == EBML).ok_or_else(odd)?;
    let size =
        header.size.and_then(|size| size.checked_add(header.header)).filter(|size| *size <= 4096).ok_or_else(odd)?;
    let head = origin.read(0, size)?;
    let segment = Element::read(&origin.read(size, 12)?).filter(|segment| segment.id == SEGMENT).ok_or_else(odd)?;
    let start = size + segment.header;
    let end = segment.size.map_or(origin.bytes(), |size| start.saturating_add(size).min(origin.bytes()));
    Ok((head, start, end))
}

/// The parts of a segment that say what is in it.
#[derive(Default)]
struct Parts {
    info: Option<Vec<u8>>,
    tracks: Option<Vec<u8>>,
    cues: Option<Vec<u8>>,
    /// The first cluster.
    first: Option<u64>,
}

impl Parts {
    /// From what is before the clusters, and from where that says the rest is.
    fn find(origin: &mut Origin<'_, impl Read + Seek>, start: u64, end: u64) -> Result<Self, Unindexed> {
        let nothing = Wanted { track: 0, codec: Codec::Other, prefix: Vec::new() };
        let (mut parts, mut walk, mut listed) = (Self::default(), Walk::new(&nothing, start, end), Vec::new());
        loop {
            let bytes = origin.read(walk.at(), STEP_BYTES)?;
            match walk.step(&bytes)? {
                Step::Cluster(at) => parts.first = Some(at),
                Step::Other(SEEK_HEAD, body, size) if listed.is_empty() => {
                    listed = seeks(&origin.read(body, size)?);
                    continue;
                }
                Step::Other(id, body, size) => {
                    parts.take(origin, id, body, size)?;
                    continue;
                }
                Step::End | Step::On | Step::Picture(_) => {}
            }
            break;
        }
        for (id, position) in listed {
            let at = start.saturating_add(position);
            if parts.has(id) || at >= end {
                continue;
            }
            if let Some(Element { id: found, header, size: Some(size) }) = Element::read(&origin.read(at, 12)?)
                && found == id
            {
                parts.take(origin, id, at.saturating_add(header), size)?;
            }
        }
        Ok(parts)
    }

    const fn has(&self, id: u32) -> bool {
        match id {
            INFO => self.info.is_some(),
            TRACKS => self.tracks.is_some(),
            CUES => self.cues.is_some(),
            _ => true,
        }
    }

    fn take(
        &mut self,
        origin: &mut Origin<'_, impl Read + Seek>,
        id: u32,
        body: u64,
        size: u64,
    ) -> Result<(), Unindexed> {
        let (place, most) = match id {
            INFO => (&mut self.info, KEPT_BYTES),
            TRACKS => (&mut self.tracks, TRACKS_BYTES),
            CUES => (&mut self.cues, u64::MAX),
            _ => return Ok(()),
        };
        if size > most {
            return Err(Unindexed::Because("a header of too many bytes".to_owned()));
        }
        if place.is_none() {
            *place = Some(origin.read(body, size)?);
        }
        Ok(())
    }
}

/// What a list of places names: numbers of elements and their places in the segment. A few entries; more are not looked at.
fn seeks(body: &[u8]) -> Vec<(u32, u64)> {
    let seek = |(id, seek): (u32, &[u8])| {
        let field =
            |wanted| ebml::children(seek).find(|(id, _)| *id == wanted).and_then(|(_, body)| ebml::unsigned(body));
        (id == 0x4DBB).then_some((u32::try_from(field(0x53AB)?).ok()?, field(0x53AC)?))
    };
    ebml::children(body).filter_map(seek).take(64).collect()
}

fn decode<T: mkv_element::prelude::Element>(body: &[u8]) -> Result<T, Unindexed> {
    T::decode_body(&mut &*body).map_err(|error| Unindexed::Because(format!("{}: {error}", T::ID)))
}

/// The video's track.
struct Track<'a> {
    stream: u32,
    wanted: Wanted,
    /// Nanoseconds a frame.
    step: Option<u64>,
    entry: &'a [u8],
}

impl<'a> Track<'a> {
    fn choose(tracks: &'a [u8]) -> Result<Self, Unindexed> {
        let (mut number, mut best) = (0, None::<(bool, u64, Self)>);
        for (_, body) in ebml::children(tracks).filter(|(id, _)| *id == TRACK) {
            let field = |wanted| ebml::children(body).find(|(id, _)| *id == wanted).map(|(_, body)| body);
            let kind = field(0x83).and_then(ebml::unsigned).unwrap_or(0);
            if !STREAMS.contains(&kind) || field(0x86).is_none() {
                continue;
            }
            let stream = number;
            number += 1;
            if kind != VIDEO {
                continue;
            }
            if body.len() as u64 > KEPT_BYTES {
                return Err(Unindexed::Because("a header of too many bytes".to_owned()));
            }
            let entry: TrackEntry = decode(body)?;
            let pixels = entry.video.as_ref().map_or(0, |video| video.pixel_width.saturating_mul(*video.pixel_height));
            let default = *entry.flag_default != 0;
            if best.as_ref().is_none_or(|(best, most, _)| (default, pixels) > (*best, *most)) {
                let scaled = field(0x0023_314F).is_some_and(|scale| ![&[0x3F, 0x80, 0, 0][..], &[]].contains(&scale));
                let scaled = scaled && field(0x0023_314F) != Some(&1.0_f64.to_be_bytes()[..]);
                let wanted = if scaled {
                    Err(Unindexed::Because("a track with its own clock".to_owned()))
                } else {
                    wanted(&entry)
                };
                let step = entry.default_duration.map(|step| *step).filter(|step| *step > 0);
                match wanted {
                    Ok(wanted) => best = Some((default, pixels, Self { stream, wanted, step, entry: body })),
                    Err(error) => return Err(error),
                }
            }
        }
        best.map(|(_, _, track)| track).ok_or_else(|| Unindexed::Because("no video".to_owned()))
    }
}

/// What to look for in blocks.
fn wanted(entry: &TrackEntry) -> Result<Wanted, Unindexed> {
    if *entry.codec_delay != 0 {
        return Err(Unindexed::Because("a codec delay".to_owned()));
    }
    let private = entry.codec_private.as_ref().map_or(&[][..], |private| private);
    let codec = match entry.codec_id.trim_end_matches('\0') {
        "V_MPEG4/ISO/AVC" => Codec::avc(private),
        "V_MPEGH/ISO/HEVC" => Codec::hevc(private),
        "V_VP8" => Codec::Vp8,
        // Their times are those of decoding.
        name if name.starts_with("V_MS/") || name.starts_with("V_QUICKTIME") || name.starts_with("V_REAL") => {
            return Err(Unindexed::Because(format!("codec {name}")));
        }
        _ => Codec::Other,
    };
    let mut prefix = Vec::new();
    if let Some(encodings) = &entry.content_encodings {
        let packed = || Unindexed::Because("packed or encrypted blocks".to_owned());
        for (number, encoding) in encodings.content_encoding.iter().enumerate() {
            let compression = encoding.content_compression.as_ref().ok_or_else(packed)?;
            let stripped = *encoding.content_encoding_type == 0 && *compression.content_comp_algo == 3;
            if number > 0 || !stripped || *encoding.content_encoding_scope != 1 || matches!(codec, Codec::Hevc { .. }) {
                return Err(packed());
            }
            prefix = compression.content_comp_settings.as_ref().map_or_else(Vec::new, |settings| settings.to_vec());
            if prefix.len() > PREFIX_BYTES {
                return Err(packed());
            }
        }
    }
    Ok(Wanted { track: *entry.track_number, codec, prefix })
}

/// All pictures of a file.
fn walk(
    origin: &mut Origin<'_, impl Read + Seek>,
    wanted: &Wanted,
    first: u64,
    end: u64,
    limits: &Limits,
) -> Result<Vec<Sample>, Unindexed> {
    let (mut walk, mut all) = (Walk::new(wanted, first, end), Vec::new());
    loop {
        let bytes = origin.read(walk.at(), STEP_BYTES)?;
        match walk.step(&bytes)? {
            Step::Picture(sample) => {
                if all.len() >= limits.frames {
                    return Err(Unindexed::TooManyFrames);
                }
                all.push(sample);
            }
            Step::End => return Ok(all),
            Step::On | Step::Cluster(_) | Step::Other(..) => {}
        }
    }
}

/// Cues of a track in a segment: times in ticks and places of clusters, by time, each time once.
// Read by hand: there are as many as a file has key frames, and of each two numbers are needed.
fn cued(cues: &[u8], track: u64, segment: Range<u64>, limits: &Limits) -> Result<Vec<(i64, u64)>, Unindexed> {
    fn field(body: &[u8], wanted: u32) -> Option<u64> {
        ebml::children(body).find(|(id, _)| *id == wanted).and_then(|(_, body)| ebml::unsigned(body))
    }
    let cue = |(_, body): (u32, &[u8])| {
        let mut places = ebml::children(body).filter(|(id, _)| *id == CUE_PLACE);
        let (_, place) = places.find(|(_, place)| field(place, CUE_TRACK) == Some(track))?;
        let at = segment.start.checked_add(field(place, CUE_CLUSTER)?).filter(|at| *at < segment.end)?;
        Some((i64::try_from(field(body, CUE_TIME)?).ok()?, at))
    };
    let found = ebml::children(cues).filter(|(id, _)| *id == CUE).filter_map(cue);
    let mut found: Vec<(i64, u64)> = found.take(limits.frames.saturating_add(1)).collect();
    if found.len() > limits.frames {
        return Err(Unindexed::TooManyFrames);
    }
    found.sort_unstable();
    found.dedup_by_key(|(time, _)| *time);
    Ok(found)
}

/// Groups by their cues. A group that begins in the middle of a cluster has all of the cluster in its bytes.
fn cued_groups(cues: &[(i64, u64)], clock: Clock, end: u64) -> Vec<Group> {
    let (mut groups, mut until): (Vec<Group>, u64) = (Vec::with_capacity(cues.len()), end);
    let mut behind = None;
    for (ticks, at) in cues.iter().rev() {
        if behind.is_some_and(|behind| behind > *at) {
            until = behind.unwrap_or(end);
        }
        behind = Some(*at);
        let time = clock.micros(*ticks);
        if groups.last().is_none_or(|after| time < after.time) {
            groups.push(Group { time, bytes: *at..until.max(*at) });
        }
    }
    groups.reverse();
    groups
}

/// Frames a second at so many nanoseconds a frame. Writers round, which must not make a rate of its own.
fn rate(step: u64) -> f64 {
    let near = |rate: f64| (1e9 / rate - step as f64).abs() <= 1.0;
    let whole = (1e9 / step as f64).round();
    [whole, whole * 1000.0 / 1001.0].into_iter().find(|rate| *rate > 0.0 && near(*rate)).unwrap_or(1e9 / step as f64)
}

/// Rate and length by the frames' times.
fn measured(told: &Told, step: Option<u64>) -> (Option<f64>, Option<i64>) {
    let (Some(first), Some(last)) = (told.times.first(), told.times.last()) else { return (None, None) };
    let shown = last.saturating_sub(*first);
    let mean = (shown > 0).then(|| (told.times.len() - 1) as f64 * 1e6 / shown as f64);
    let rate = step.map(rate).or(mean);
    let one = rate.map_or(0, |rate| (1e6 / rate).round() as i64);
    (rate, Some(shown.saturating_add(one)))
}

/// The file's header, and a segment without end with the one track.
pub(super) fn head_of(mut head: Vec<u8>, info: &[u8], track: &[u8]) -> Vec<u8> {
    let mut inside = Vec::new();
    ebml::write_header(&mut inside, TRACK, Some(track.len() as u64));
    inside.extend(track);
    ebml::write_header(&mut head, SEGMENT, None);
    for (id, body) in [(INFO, info), (TRACKS, inside.as_slice())] {
        ebml::write_header(&mut head, id, Some(body.len() as u64));
        head.extend(body);
    }
    head
}

/// The header of a cluster with so many bytes of blocks.
pub(super) fn cluster(time: u64, blocks: u64) -> Vec<u8> {
    let mut inside = Vec::new();
    ebml::write_header(&mut inside, super::blocks::TIMESTAMP, Some(8));
    inside.extend(time.to_be_bytes());
    let mut out = Vec::new();
    ebml::write_header(&mut out, CLUSTER, Some(blocks.saturating_add(inside.len() as u64)));
    out.extend(inside);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_not_those_of_rounding() {
        assert_eq!(
            [40_000_000, 33_366_667, 41_708_333, 16_683_333].map(rate),
            [25.0, 30_000.0 / 1001.0, 24_000.0 / 1001.0, 60_000.0 / 1001.0]
        );
        assert_eq!((rate(10_000_000_000), rate(123_456_789)), (0.1, 1e9 / 123_456_789.0));
    }

    #[test]
    fn cues_of_one_cluster_share_its_bytes() {
        let clock = Clock { num: 1_000_000, den: 1000 };
        let groups = cued_groups(&[(0, 50), (10, 50), (20, 80), (20, 80)], clock, 100);
        let told: Vec<_> = groups.iter().map(|group| (group.time, group.bytes.clone())).collect();
        assert_eq!(told, [(0, 50..80), (10_000, 50..80), (20_000, 80..100)]);
    }
}
