//! Walks the clusters of a Matroska file from block to block (RFC 9559 10), without the pictures in them. Pure: whoever holds
//! it reads a few bytes where it stands.

use super::Unindexed;
use super::ebml::{self, Element};
use super::nal::Codec;
use super::samples::{SAMPLE_BYTES, Sample};

/// Bytes a step looks at: the headers of an element and of a block, and a picture's first byte.
pub(super) const STEP_BYTES: u64 = 32;

pub(super) const SEEK_HEAD: u32 = 0x114D_9B74;
pub(super) const INFO: u32 = 0x1549_A966;
pub(super) const TRACKS: u32 = 0x1654_AE6B;
pub(super) const CUES: u32 = 0x1C53_BB6B;
pub(super) const CLUSTER: u32 = 0x1F43_B675;
pub(super) const TIMESTAMP: u32 = 0xE7;
const CHAPTERS: u32 = 0x1043_A770;
const TAGS: u32 = 0x1254_C367;
const ATTACHMENTS: u32 = 0x1941_A469;
const SIMPLE_BLOCK: u32 = 0xA3;
const BLOCK_GROUP: u32 = 0xA0;
const BLOCK: u32 = 0xA1;
const REFERENCE: u32 = 0xFB;
/// Elements that may be anywhere, or beside the blocks of a cluster: filling, a checksum, silent tracks, a place, the size of
/// the cluster before, a block that is encrypted.
const BESIDE: [u32; 6] = [0xEC, 0xBF, 0x5854, 0xA7, 0xAB, 0xAF];
/// Bytes of the longest header of an element.
const HEADER_BYTES: u64 = 12;

/// The video whose blocks are looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Its track's number; 0 for none.
    pub(super) track: u64,
    /// Its codec.
    pub(super) codec: Codec,
    /// What every picture begins with that blocks leave out.
    pub(super) prefix: Vec<u8>,
}

/// Where a walk is.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    wanted: &'a Wanted,
    at: u64,
    end: u64,
    /// Its time, and its end where it says so.
    cluster: Option<(i64, Option<u64>)>,
    group: Option<Group>,
}

#[derive(Debug)]
struct Group {
    at: u64,
    end: u64,
    picture: Option<Sample>,
    refers: bool,
}

/// What a step found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing of interest.
    On,
    /// A picture of the video.
    Picture(Sample),
    /// A cluster that begins here.
    Cluster(u64),
    /// Another element beside the clusters: its number, where its body is, and its size.
    Other(u32, u64, u64),
    /// The end, or where the file is cut off.
    End,
}

impl<'a> Walk<'a> {
    /// From an element beside the clusters, or from a cluster, up to the segment's end.
    pub(super) const fn new(wanted: &'a Wanted, at: u64, end: u64) -> Self {
        Self { wanted, at, end, cluster: None, group: None }
    }

    /// Where the next step looks.
    pub(super) const fn at(&self) -> u64 {
        self.at
    }

    /// Goes one element on, given the bytes there.
    ///
    /// # Errors
    /// [`Unindexed`] for pictures that are not taken out by us, and for what is no element that can be here: behind damage
    /// ffmpeg finds the next cluster, and we don't.
    pub(super) fn step(&mut self, bytes: &[u8]) -> Result<Step, Unindexed> {
        if let Some(group) = self.group.take_if(|group| self.at >= group.end) {
            let picture = group.picture.map(|picture| Sample { key: !group.refers, ..picture });
            return Ok(picture.map_or(Step::On, Step::Picture));
        }
        self.cluster.take_if(|(_, end)| end.is_some_and(|end| self.at >= end));
        if self.at >= self.end {
            return Ok(Step::End);
        }
        let damaged = || Unindexed::Because("what is no element".to_owned());
        let Some(element) = Element::read(bytes) else {
            return if self.end - self.at < HEADER_BYTES { Ok(Step::End) } else { Err(damaged()) };
        };
        let body = self.at.saturating_add(element.header);
        let inside = bytes.get(element.header as usize..).unwrap_or_default();
        let start = std::mem::replace(&mut self.at, body);
        if element.id == CLUSTER && self.group.is_none() {
            self.cluster = Some((0, element.size.map(|size| body.saturating_add(size))));
            return Ok(Step::Cluster(start));
        }
        let size = element.size.ok_or_else(damaged)?;
        self.at = body.saturating_add(size);
        let inside_of = self.group.as_ref().map(|group| group.end).or(self.cluster.and_then(|(_, end)| end));
        if inside_of.is_some_and(|end| self.at > end) {
            return Err(damaged());
        }
        if let Some(group) = &mut self.group {
            match element.id {
                BLOCK => {
                    let (time, _) = self.cluster.unwrap_or_default();
                    let whole = (group.at, group.end.saturating_sub(group.at));
                    let picture = self.wanted.picture(inside, whole, time)?;
                    group.picture = group.picture.or(picture);
                }
                REFERENCE => group.refers = true,
                _ => {}
            }
            return Ok(Step::On);
        }
        let beside = BESIDE.contains(&element.id);
        let part = matches!(element.id, SEEK_HEAD | INFO | TRACKS | CUES | CHAPTERS | TAGS | ATTACHMENTS);
        let Some((time, ends)) = &mut self.cluster else {
            return if part || beside { Ok(Step::Other(element.id, body, size)) } else { Err(damaged()) };
        };
        match element.id {
            TIMESTAMP => {
                let odd = || Unindexed::Because("a cluster's time does not fit".to_owned());
                let number = usize::try_from(size).ok().and_then(|size| inside.get(..size)).and_then(ebml::unsigned);
                *time = number.and_then(|time| i64::try_from(time).ok()).ok_or_else(odd)?;
                Ok(Step::On)
            }
            SIMPLE_BLOCK => {
                let whole = (start, element.header.saturating_add(size));
                Ok(self.wanted.picture(inside, whole, *time)?.map_or(Step::On, Step::Picture))
            }
            BLOCK_GROUP => {
                self.group = Some(Group { at: start, end: self.at, picture: None, refers: false });
                self.at = body;
                Ok(Step::On)
            }
            _ if part && ends.is_none() => {
                self.cluster = None;
                Ok(Step::Other(element.id, body, size))
            }
            _ if beside => Ok(Step::On),
            _ => Err(damaged()),
        }
    }
}

impl Wanted {
    /// The picture of a block whose body begins like this, if it is the video's. `whole` is the element to copy: where it
    /// begins and its size.
    fn picture(&self, body: &[u8], whole: (u64, u64), time: i64) -> Result<Option<Sample>, Unindexed> {
        let Some((track, length)) = ebml::number(body) else { return Ok(None) };
        let Some([high, low, flags, picture @ ..]) = body.get(length..) else { return Ok(None) };
        if track != self.track {
            return Ok(None);
        }
        if flags & 6 != 0 {
            return Err(Unindexed::Because("several frames in a block".to_owned()));
        }
        let size = u32::try_from(whole.1).ok().filter(|size| *size <= SAMPLE_BYTES);
        let first = self.prefix.first().or(picture.first());
        Ok(Some(Sample {
            at: whole.0,
            decode: time,
            offset: i16::from_be_bytes([*high, *low]).into(),
            size: size.ok_or_else(|| Unindexed::Because("a frame of too many bytes".to_owned()))?,
            key: flags & 0x80 != 0,
            shown: first.is_none_or(|first| self.codec.is_shown(*first)),
        }))
    }
}

/// Where in a copied block, simple or with its group, the picture is.
pub(super) fn picture_in(block: &[u8]) -> Option<std::ops::Range<usize>> {
    let outer = Element::read(block)?;
    let body = usize::try_from(outer.header).ok()?;
    let (start, bytes) = match outer.id {
        SIMPLE_BLOCK => (body, block.get(body..)?),
        BLOCK_GROUP => {
            let (_, inner) = ebml::children(block.get(body..)?).find(|(id, _)| *id == BLOCK)?;
            // Both slices are of the same bytes.
            let start = inner.as_ptr().addr().checked_sub(block.as_ptr().addr())?;
            (start, inner)
        }
        _ => return None,
    };
    let (_, length) = ebml::number(bytes)?;
    let header = length + 3;
    (bytes.len() >= header).then(|| start + header..start + bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Wanted {
        Wanted { track: 1, codec: Codec::Other, prefix: Vec::new() }
    }

    fn walk(bytes: &[u8]) -> Vec<Step> {
        let wanted = wanted();
        let mut walk = Walk::new(&wanted, 0, bytes.len() as u64);
        let mut steps = Vec::new();
        loop {
            let at = (walk.at() as usize).min(bytes.len());
            let step = walk.step(&bytes[at..bytes.len().min(at + STEP_BYTES as usize)]).expect("steps");
            if step == Step::End {
                return steps;
            }
            steps.extend((step != Step::On).then_some(step));
        }
    }

    fn element(id: u32, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        ebml::write_header(&mut out, id, Some(body.len() as u64));
        out.extend(body);
        out
    }

    #[test]
    fn blocks_of_either_kind_are_found_with_their_times() {
        let simple = |track: u8, time: i16, flags| {
            let body = [&[0x80 | track][..], &time.to_be_bytes(), &[flags, 7, 7]].concat();
            element(SIMPLE_BLOCK, &body)
        };
        let grouped = |refers: bool| {
            let reference = if refers { element(REFERENCE, &[0xFF]) } else { Vec::new() };
            element(BLOCK_GROUP, &[element(BLOCK, &[0x81, 0, 9, 0, 1]), element(0x9B, &[4]), reference].concat())
        };
        let inside =
            [element(TIMESTAMP, &[1, 0]), simple(1, -2, 0x80), simple(2, 0, 0x80), grouped(true), grouped(false)];
        let mut bytes = element(CLUSTER, &inside.concat());
        bytes.extend(element(TAGS, &[1, 2, 3]));
        let found = walk(&bytes);
        let pictures: Vec<(i64, bool)> = found
            .iter()
            .filter_map(|step| match step {
                Step::Picture(sample) => Some((sample.presentation(), sample.key)),
                _ => None,
            })
            .collect();
        assert_eq!(pictures, [(254, true), (265, false), (265, true)]);
        assert!(matches!(found.last(), Some(Step::Other(TAGS, _, 3))));
        for step in &found {
            if let Step::Picture(sample) = step {
                let block = &bytes[sample.at as usize..sample.end() as usize];
                assert!([&[7, 7][..], &[1]].contains(&&block[picture_in(block).expect("a picture")]));
            }
        }
    }

    #[test]
    fn clusters_of_unknown_size_end_where_something_else_begins() {
        let mut bytes = Vec::new();
        for _ in 0..2 {
            ebml::write_header(&mut bytes, CLUSTER, None);
            bytes.extend(element(SIMPLE_BLOCK, &[0x81, 0, 1, 0x80, 7]));
        }
        bytes.extend(element(CUES, &[]));
        let kinds: Vec<_> = walk(&bytes).iter().map(std::mem::discriminant).collect();
        let picture = Step::Picture(Sample { at: 0, decode: 0, offset: 0, size: 0, key: true, shown: true });
        let expected = [&Step::Cluster(0), &picture, &Step::Cluster(0), &picture, &Step::Other(0, 0, 0)];
        assert_eq!(kinds, expected.map(std::mem::discriminant));
    }

    #[test]
    fn what_is_cut_off_ends_the_walk_and_what_makes_no_sense_breaks_it_off() {
        let whole = element(CLUSTER, &element(SIMPLE_BLOCK, &[0x81, 0, 0, 0x80, 1, 2, 3]));
        let steps = |bytes: &[u8]| {
            let wanted = wanted();
            let (mut walk, mut step) = (Walk::new(&wanted, 0, bytes.len() as u64), Ok(Step::On));
            while !matches!(step, Ok(Step::End) | Err(_)) {
                step = walk.step(bytes.get(walk.at() as usize..).unwrap_or_default());
            }
            step
        };
        for end in 0..=whole.len() {
            assert_eq!(steps(&whole[..end]), Ok(Step::End), "{end}");
        }
        let garbage = |bytes: &[u8]| [&whole[..], bytes, &whole].concat();
        let unknown = element(0x4321, &[]);
        let long = element(CLUSTER, &[0xA3, 0x8F, 0x81, 0, 0, 0x80, 1]);
        for bytes in [
            &[0_u8; 40][..],
            &[0x1F, 0x43, 0xB6, 0x75, 0xFF, 0xA3, 0xFF, 0x81],
            b"text that is no element",
            &unknown,
            &long,
        ] {
            assert!(steps(&garbage(bytes)).is_err(), "{bytes:?}");
        }
        let laced = element(CLUSTER, &element(SIMPLE_BLOCK, &[0x81, 0, 0, 0x82, 1]));
        let wanted = wanted();
        let mut walk = Walk::new(&wanted, 0, laced.len() as u64);
        assert_eq!(walk.step(&laced), Ok(Step::Cluster(0)));
        assert!(walk.step(&laced[walk.at() as usize..]).is_err());
    }
}
