//! A track's boxes, and the sample tables of a file that is not fragmented (ISO/IEC 14496-12 8.6 and 8.7).
//!
//! This file knows nothing of edits, fragments or which track is shown. Counts are held against the limits before a table is
//! decoded.

use mp4_atom::{Atom, Co64, Ctts, Stco, Stsc, Stss, Stsz, StszSamples, Stts, Tkhd};

use super::boxes::{Child, be32, find};
use super::samples::Sample;
use super::{Limits, Unindexed};

/// Tracks and chapter numbers that are looked at.
pub(super) const TRACKS: usize = 1000;

/// A box's content, as the crate reads it.
///
/// # Errors
/// [`Unindexed`].
pub(super) fn decode<T: Atom>(child: &Child<'_>) -> Result<T, Unindexed> {
    let name = child.kind.escape_ascii();
    T::decode_body(&mut &*child.body).map_err(|error| Unindexed::Because(format!("{name}: {error}")))
}

/// The boxes of a track.
pub(super) struct Track<'a> {
    pub(super) trak: &'a [u8],
    pub(super) header: Child<'a>,
    pub(super) media: Child<'a>,
    pub(super) handler: Child<'a>,
    pub(super) description: Child<'a>,
    pub(super) edits: Option<Child<'a>>,
    pub(super) tables: &'a [u8],
}

impl<'a> Track<'a> {
    /// Those of a `trak` box; `None` where some that are needed are missing.
    pub(super) fn find(trak: &Child<'a>) -> Option<Self> {
        let mdia = find(trak.body, b"mdia")?.body;
        let tables = find(find(mdia, b"minf")?.body, b"stbl")?.body;
        Some(Self {
            trak: trak.body,
            header: find(trak.body, b"tkhd")?,
            media: find(mdia, b"mdhd")?,
            handler: find(mdia, b"hdlr")?,
            description: find(tables, b"stsd")?,
            edits: find(trak.body, b"edts").and_then(|edts| find(edts.body, b"elst")),
            tables,
        })
    }

    /// Whether it is a video's.
    pub(super) fn is_video(&self) -> bool {
        self.handler.body.get(8..12) == Some(b"vide")
    }

    /// Whether it is enabled, its pixels, and its number in the boxes.
    pub(super) fn rank(&self) -> (bool, u64, u32) {
        let (enabled, id) = decode::<Tkhd>(&self.header).map_or((false, 0), |header| (header.enabled, header.track_id));
        let side = |at| self.description.body.get(at..).and_then(|side| side.first_chunk().copied());
        let pixels = |at| side(at).map_or(0, |side| u64::from(u16::from_be_bytes(side)));
        // 8 bytes of the list's header, then 32 of the entry's.
        (enabled, pixels(40) * pixels(42), id)
    }

    /// Numbers of tracks this one is given as chapters.
    pub(super) fn chapters(&self) -> Vec<u32> {
        let chapters = find(self.trak, b"tref").and_then(|tref| find(tref.body, b"chap"));
        chapters.map_or_else(Vec::new, |chap| {
            let numbers = chap.body.chunks_exact(4).filter_map(|four| Some(u32::from_be_bytes(*four.first_chunk()?)));
            numbers.take(TRACKS + 1).collect()
        })
    }

    /// The list of the pictures' sizes; where there are two, the first kind's.
    fn size_table(&self) -> Option<Child<'a>> {
        find(self.tables, b"stsz").or_else(|| find(self.tables, b"stz2"))
    }

    /// Pictures its tables list.
    pub(super) fn count(&self) -> u32 {
        self.size_table().and_then(|table| be32(table.body, 8)).unwrap_or(0)
    }

    /// A table; an empty one where there is none.
    fn table<T: Atom + Default>(&self, kind: &[u8; 4], limits: &Limits) -> Result<T, Unindexed> {
        let Some(table) = find(self.tables, kind) else { return Ok(T::default()) };
        limits.allow(be32(table.body, 4))?;
        decode(&table)
    }

    /// Bytes of each picture.
    fn sizes(&self, limits: &Limits) -> Result<Sizes, Unindexed> {
        limits.allow(Some(self.count()))?;
        let Some(table) = self.size_table() else { return Ok(Sizes { each: Vec::new(), one: 0, count: 0 }) };
        if table.kind == *b"stz2" {
            return compact_sizes(table.body).ok_or_else(|| Unindexed::Because("stz2".to_owned()));
        }
        Ok(match decode::<Stsz>(&table)?.samples {
            StszSamples::Identical { count, size } => Sizes { each: Vec::new(), one: size, count: count as usize },
            StszSamples::Different { sizes } => Sizes { one: 0, count: sizes.len(), each: sizes },
        })
    }

    /// Its pictures by its tables, and the last one's duration.
    pub(super) fn samples(&self, limits: &Limits) -> Result<(Vec<Sample>, u32), Unindexed> {
        let sizes = self.sizes(limits)?;
        let places = self.places(&sizes, limits)?;
        let odd = |what: &str| Unindexed::Because(format!("{what} does not fit"));
        let (steps, offsets) = (self.table::<Stts>(b"stts", limits)?, self.table::<Ctts>(b"ctts", limits)?);
        let key = find(self.tables, b"stss").map(|_| self.table::<Stss>(b"stss", limits)).transpose()?;
        let mut steps = steps.entries.iter().map(|entry| (entry.sample_count, entry.sample_delta));
        let mut offsets_left = offsets.entries.iter().map(|entry| (entry.sample_count, entry.sample_offset));
        let mut keys = key.as_ref().map(|key| key.entries.iter().copied().peekable());
        let (mut step, mut offset, mut decode) = ((0, 0), (0, 0), 0_i64);
        let mut samples = Vec::with_capacity(places.len());
        for (place, at) in places.into_iter().enumerate() {
            while step.0 == 0 {
                // The last duration goes on where the list ends early, as ffmpeg has it.
                step = steps.next().unwrap_or((u32::MAX, step.1));
            }
            while offset.0 == 0 && !offsets.entries.is_empty() {
                offset = offsets_left.next().ok_or_else(|| odd("ctts"))?;
            }
            if i32::try_from(step.1).is_err() {
                return Err(odd("stts"));
            }
            let number = u32::try_from(place + 1).map_err(|_| odd("stss"))?;
            let key = keys.as_mut().is_none_or(|keys| {
                while keys.next_if(|key| *key < number).is_some() {}
                keys.next_if_eq(&number).is_some()
            });
            samples.push(Sample { at, decode, offset: signed(offset.1), size: sizes.get(place), key, shown: true });
            decode = decode.checked_add(step.1.into()).ok_or_else(|| odd("stts"))?;
            step.0 -= 1;
            offset.0 = offset.0.saturating_sub(1);
        }
        Ok((samples, step.1))
    }

    /// Where each picture begins.
    fn places(&self, sizes: &Sizes, limits: &Limits) -> Result<Vec<u64>, Unindexed> {
        let chunks: Vec<u64> = match find(self.tables, b"co64") {
            Some(_) => self.table::<Co64>(b"co64", limits)?.entries,
            None => self.table::<Stco>(b"stco", limits)?.entries.into_iter().map(u64::from).collect(),
        };
        let runs = self.table::<Stsc>(b"stsc", limits)?.entries;
        if runs.iter().any(|run| run.sample_description_index > 1) {
            return Err(Unindexed::Because("more than one sample description".to_owned()));
        }
        let mut places = Vec::with_capacity(sizes.count);
        let (mut runs, mut each) = (runs.iter().peekable(), 0);
        for (chunk, at) in (1_u32..).zip(&chunks) {
            while let Some(run) = runs.next_if(|run| run.first_chunk <= chunk) {
                each = run.samples_per_chunk;
            }
            let mut at = *at;
            for _ in 0..each {
                if places.len() == sizes.count {
                    return Ok(places);
                }
                let size = sizes.get(places.len());
                places.push(at);
                at = at.checked_add(size.into()).ok_or_else(|| Unindexed::Because("stco does not fit".to_owned()))?;
            }
        }
        Ok(places)
    }
}

/// Bytes of pictures.
struct Sizes {
    each: Vec<u32>,
    one: u32,
    count: usize,
}

impl Sizes {
    fn get(&self, place: usize) -> u32 {
        self.each.get(place).copied().unwrap_or(self.one)
    }
}

/// ISO/IEC 14496-12 8.7.3.3. `None` when the list is shorter than it says.
fn compact_sizes(body: &[u8]) -> Option<Sizes> {
    let (bits, count) = (*body.get(7)?, be32(body, 8)? as usize);
    let list = body.get(12..)?;
    let each: Vec<u32> = match bits {
        4 => list.iter().flat_map(|byte| [u32::from(byte >> 4), u32::from(byte & 15)]).take(count).collect(),
        8 => list.iter().map(|byte| u32::from(*byte)).take(count).collect(),
        16 => list
            .chunks_exact(2)
            .filter_map(|two| Some(u16::from_be_bytes(*two.first_chunk()?).into()))
            .take(count)
            .collect(),
        _ => return None,
    };
    (each.len() == count).then_some(Sizes { each, one: 0, count })
}

/// Some writers put negative offsets where only positive ones are allowed.
pub(super) const fn signed(offset: i64) -> i32 {
    offset as u32 as i32
}

#[cfg(test)]
mod tests {
    use super::super::boxes::{self, children};
    use super::*;

    /// A track with these lists of sizes.
    fn track(tables: &[(&[u8; 4], &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        boxes::write(&mut out, b"trak", |out| {
            boxes::write(out, b"tkhd", |_| {});
            boxes::write(out, b"mdia", |out| {
                boxes::write(out, b"mdhd", |_| {});
                boxes::write(out, b"hdlr", |out| out.extend(b"\0\0\0\0\0\0\0\0vide"));
                boxes::write(out, b"minf", |out| {
                    boxes::write(out, b"stbl", |out| {
                        boxes::write(out, b"stsd", |_| {});
                        for (kind, body) in tables {
                            boxes::write(out, kind, |out| out.extend(*body));
                        }
                    });
                });
            });
        });
        out
    }

    #[test]
    fn the_list_of_sizes_that_is_counted_is_the_one_that_is_read() {
        let limits = Limits { frames: 2, bytes: 0, scan: true };
        let compact: (&[u8; 4], &[u8]) = (b"stz2", &[0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 3, 7, 8, 9]);
        let plain: (&[u8; 4], &[u8]) = (b"stsz", &[0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2]);
        for (tables, count) in [(&[compact, plain][..], Ok((2, 5))), (&[compact], Err(Unindexed::TooManyFrames))] {
            let bytes = track(tables);
            let trak = children(&bytes).next().expect("a track");
            let sizes = Track::find(&trak).expect("its boxes").sizes(&limits);
            assert_eq!(sizes.map(|sizes| (sizes.count, sizes.get(0))), count);
        }
    }

    #[test]
    fn a_table_of_more_entries_than_frames_is_not_decoded() {
        let limits = Limits { frames: 2, bytes: 0, scan: true };
        let plain: (&[u8; 4], &[u8]) = (b"stsz", &[0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2]);
        for kind in [b"stts", b"ctts", b"stss", b"stsc", b"stco", b"co64"] {
            let bytes = track(&[plain, (kind, &[0, 0, 0, 0, 0, 0, 0, 3])]);
            let trak = children(&bytes).next().expect("a track");
            let read = Track::find(&trak).expect("its boxes").samples(&limits);
            assert_eq!(read.err(), Some(Unindexed::TooManyFrames), "{}", kind.escape_ascii());
        }
    }
}
