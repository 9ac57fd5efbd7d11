//! Movie fragments (ISO/IEC 14496-12 8.8): the pictures of one track in a `moof`, and writing one.

use mp4_atom::{Tfdt, Tfhd, Trex, Trun};

use super::boxes::{self, be32, children, find};
use super::samples::Sample;
use super::track::{decode, signed};
use super::{Limits, Unindexed};

/// Not a key frame, or predicted from others.
const NOT_KEY: u32 = 0x0101_0000;
/// A run with flags of its first picture, and of each picture, which the standard forbids and readers read differently.
const OWN_FLAGS: u32 = 0x404;

/// What fragments of a track have in common, and how far they have come.
pub(super) struct Fragments {
    track: u32,
    defaults: Trex,
    /// When the next picture is decoded, where no fragment says otherwise.
    next: i64,
    last_step: Option<u32>,
}

impl Fragments {
    /// From the body of `mvex`.
    ///
    /// # Errors
    /// [`Unindexed`] when its defaults can't be read.
    pub(super) fn new(extends: &[u8], track: u32) -> Result<Self, Unindexed> {
        let mut defaults = Trex { track_id: track, default_sample_description_index: 1, ..Trex::default() };
        for child in children(extends).filter(|child| child.kind == *b"trex") {
            let found: Trex = decode(&child)?;
            if found.track_id == track {
                defaults = found;
            }
        }
        Ok(Self { track, defaults, next: 0, last_step: None })
    }

    /// Duration of the last picture, else what is given.
    pub(super) fn last_step(&self, otherwise: u32) -> u32 {
        self.last_step.unwrap_or(otherwise)
    }

    /// Appends the pictures of a fragment that begins at `at`.
    ///
    /// # Errors
    /// [`Unindexed`].
    pub(super) fn read(
        &mut self,
        moof: &[u8],
        at: u64,
        samples: &mut Vec<Sample>,
        limits: &Limits,
    ) -> Result<(), Unindexed> {
        // Where data of a track begins that says neither: behind the data of the track before it.
        let mut implied = at;
        for traf in children(moof).filter(|child| child.kind == *b"traf") {
            let header = find(traf.body, b"tfhd").ok_or_else(|| Unindexed::Because("no tfhd box".to_owned()))?;
            let header: Tfhd = decode(&header)?;
            let base = match header.base_data_offset {
                Some(base) => base,
                None if header.default_base_is_moof => at,
                None => implied,
            };
            let own = header.track_id == self.track;
            if own {
                if header.sample_description_index.unwrap_or(self.defaults.default_sample_description_index) > 1 {
                    return Err(Unindexed::Because("more than one sample description".to_owned()));
                }
                if let Some(time) = find(traf.body, b"tfdt") {
                    let time = decode::<Tfdt>(&time)?.base_media_decode_time;
                    self.next = i64::try_from(time).map_err(|_| Unindexed::Because("tfdt does not fit".to_owned()))?;
                }
            }
            implied = base;
            for run in children(traf.body).filter(|child| child.kind == *b"trun") {
                let (flags, count) = (be32(run.body, 0), be32(run.body, 4));
                if flags.is_some_and(|flags| flags & OWN_FLAGS == OWN_FLAGS) {
                    return Err(Unindexed::Because("flags of a run's first picture and of each".to_owned()));
                }
                // Before it is decoded, which takes ten times its bytes.
                let before = if own { u32::try_from(samples.len()).unwrap_or(u32::MAX) } else { 0 };
                limits.allow(count.map(|count| count.saturating_add(before)))?;
                let run: Trun = decode(&run)?;
                let start = match run.data_offset {
                    Some(offset) => base.saturating_add_signed(offset.into()),
                    None => implied,
                };
                implied = if own { self.run(&header, &run, start, samples)? } else { behind(&header, &run, start) };
            }
        }
        Ok(())
    }

    /// Appends a run's pictures. Gives where their data ends.
    fn run(&mut self, header: &Tfhd, run: &Trun, start: u64, samples: &mut Vec<Sample>) -> Result<u64, Unindexed> {
        let odd = || Unindexed::Because("trun does not fit".to_owned());
        let duration = header.default_sample_duration.unwrap_or(self.defaults.default_sample_duration);
        let size = header.default_sample_size.unwrap_or(self.defaults.default_sample_size);
        let flags = header.default_sample_flags.unwrap_or(self.defaults.default_sample_flags);
        let mut at = start;
        for entry in run.samples.iter() {
            let (size, step) = (entry.size.unwrap_or(size), entry.duration.unwrap_or(duration));
            samples.push(Sample {
                at,
                decode: self.next,
                offset: signed(entry.cts.unwrap_or(0)),
                size,
                key: entry.flags.unwrap_or(flags) & NOT_KEY == 0,
                shown: true,
            });
            at = at.checked_add(size.into()).ok_or_else(odd)?;
            self.next = self.next.checked_add(step.into()).ok_or_else(odd)?;
            self.last_step = Some(step);
        }
        Ok(at)
    }
}

/// Where the data of another track's run ends. Its own defaults are not known, which only matters to files that say
/// neither sizes nor where data begins.
fn behind(header: &Tfhd, run: &Trun, start: u64) -> u64 {
    let size = header.default_sample_size.unwrap_or(0);
    match &run.samples {
        mp4_atom::TrunSamples::Inherited { count, .. } => start.saturating_add(u64::from(*count) * u64::from(size)),
        mp4_atom::TrunSamples::Explicit(entries) => {
            entries.iter().fold(start, |at, entry| at.saturating_add(entry.size.unwrap_or(size).into()))
        }
    }
}

/// One picture of a fragment that is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    /// Ticks to the next.
    pub(super) duration: u32,
    /// Bytes.
    pub(super) size: u32,
    /// Whether decoding can begin with it.
    pub(super) key: bool,
    /// Ticks from decoding to showing it.
    pub(super) offset: u32,
}

/// A `moof` and the header of its `mdat`; the pictures' bytes follow. `decode` is the first one's time.
pub(super) fn write(track: u32, number: u32, decode: u64, pictures: &[Written]) -> Vec<u8> {
    let payload = pictures.iter().fold(0_u32, |sum, picture| sum.saturating_add(picture.size));
    // moof 8, mfhd 16, traf 8, tfhd 16, tfdt 20, trun 20 and 16 a picture, and mdat's header 8.
    let count = u32::try_from(pictures.len()).unwrap_or(u32::MAX);
    let behind = count.saturating_mul(16).saturating_add(96);
    let mut out = Vec::with_capacity(behind as usize);
    boxes::write(&mut out, b"moof", |out| {
        boxes::write(out, b"mfhd", |out| {
            out.extend([0; 4]);
            out.extend(number.to_be_bytes());
        });
        boxes::write(out, b"traf", |out| {
            boxes::write(out, b"tfhd", |out| {
                out.extend([0, 2, 0, 0]);
                out.extend(track.to_be_bytes());
            });
            boxes::write(out, b"tfdt", |out| {
                out.extend([1, 0, 0, 0]);
                out.extend(decode.to_be_bytes());
            });
            boxes::write(out, b"trun", |out| {
                out.extend([0, 0, 0x0F, 0x01]);
                out.extend(count.to_be_bytes());
                out.extend(behind.to_be_bytes());
                for picture in pictures {
                    let flags = if picture.key { 0x0200_0000 } else { NOT_KEY };
                    for value in [picture.duration, picture.size, flags, picture.offset] {
                        out.extend(value.to_be_bytes());
                    }
                }
            });
        });
    });
    out.extend(payload.saturating_add(8).to_be_bytes());
    out.extend(b"mdat");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(moof: &[u8], frames: usize) -> Result<Vec<Sample>, Unindexed> {
        let (mut fragments, mut samples) = (Fragments::new(&[], 1)?, Vec::new());
        let body = find(moof, b"moof").ok_or(Unindexed::TooManyFrames)?.body;
        fragments.read(body, 0, &mut samples, &Limits { frames, bytes: 0, scan: true })?;
        Ok(samples)
    }

    #[test]
    fn fragments_are_read_as_they_are_written() {
        let written = [(10, true), (20, false)].map(|(size, key)| Written { duration: 2, size, key, offset: 1 });
        let moof = write(1, 1, 70, &written);
        let samples = read(&moof, 2).expect("samples");
        let told: Vec<_> =
            samples.iter().map(|sample| (sample.decode, sample.offset, sample.size, sample.key)).collect();
        assert_eq!(told, [(70, 1, 10, true), (72, 1, 20, false)]);
        assert_eq!((samples[0].at, samples[1].at), (moof.len() as u64, moof.len() as u64 + 10));
        assert_eq!(read(&moof, 1), Err(Unindexed::TooManyFrames));
    }

    #[test]
    fn counts_are_held_against_the_limit_before_memory_is_taken() {
        let mut moof = write(2, 1, 0, &[Written { duration: 2, size: 3, key: true, offset: 1 }; 4]);
        assert_eq!(read(&moof, 3), Err(Unindexed::TooManyFrames), "another track's as well");
        assert_eq!(read(&moof, 4), Ok(Vec::new()));
        let place = moof.windows(4).position(|four| four == b"trun").expect("a run") + 4;
        moof[place + 3] = 4;
        assert!(
            matches!(read(&moof, 4), Err(Unindexed::Because(_))),
            "flags of the first picture beside those of each"
        );
    }
}
