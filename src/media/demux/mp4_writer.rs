//! A spliced MP4: the source's track, its pictures in fragments of ours.
//!
//! Fragments have times from zero on and offsets that are not negative, which every reader understands alike; an edit list
//! sets the clock back to the source's.

use bytes::Bytes;

use super::boxes;
use super::fragments::{self, Written};
use super::mp4::{Boxes, Movie};
use super::samples::Sample;
use super::splice::{Container, Picture};
use crate::media::MediaError;

/// Ticks from one picture of a fragment to the next: what readers that count with signs understand.
const MAX_STEP: i32 = i32::MAX;

/// Writes one.
pub(super) struct Mp4Writer<'a> {
    movie: &'a Movie,
    /// Pictures are decoded so much earlier than in the source.
    early: i64,
    /// The fragments' clock is so much ahead.
    ahead: i64,
    number: u32,
}

impl<'a> Mp4Writer<'a> {
    /// Of pictures of this movie.
    pub(super) fn new(movie: &'a Movie) -> Self {
        let samples = &movie.samples.all;
        let least = samples.iter().map(|sample| i64::from(sample.offset)).min().unwrap_or(0);
        let early = least.min(0).saturating_neg();
        let first = samples.first().map_or(0, |sample| sample.decode.saturating_sub(early));
        Self { movie, early, ahead: first.min(0).saturating_neg(), number: 0 }
    }
}

impl Container for Mp4Writer<'_> {
    fn head(&self) -> Bytes {
        head(&self.movie.boxes, self.ahead).into()
    }

    fn is_disposable(&self, picture: &Picture) -> bool {
        self.movie.codec.is_disposable(&picture.bytes)
    }

    fn is_key(&self, picture: &Picture) -> bool {
        self.movie.codec.is_key(&picture.bytes)
    }

    fn pack(&mut self, pictures: &[Picture]) -> Result<Vec<Bytes>, MediaError> {
        let samples = &self.movie.samples.all;
        let sample = |picture: &Picture| samples.get(picture.fed.place);
        // A fragment says when it begins, but from picture to picture only small steps can be told.
        let goes_on =
            |one: &Picture, next: &Picture| !next.first && step(sample(one), sample(next)) <= i64::from(MAX_STEP);
        let mut out = Vec::with_capacity(pictures.len() * 2);
        for pictures in pictures.chunk_by(goes_on) {
            self.fragment(pictures, &mut out)?;
        }
        Ok(out)
    }
}

/// Ticks from one picture to another.
fn step(one: Option<&Sample>, next: Option<&Sample>) -> i64 {
    one.zip(next).map_or(1, |(one, next)| next.decode.saturating_sub(one.decode))
}

impl Mp4Writer<'_> {
    /// Appends a fragment.
    fn fragment(&mut self, pictures: &[Picture], out: &mut Vec<Bytes>) -> Result<(), MediaError> {
        let odd = || MediaError::NotVideo("the video's times do not fit".to_owned());
        let samples = &self.movie.samples.all;
        let mut written = Vec::with_capacity(pictures.len());
        let (head, mut first) = (out.len(), None);
        out.push(Bytes::new());
        for (number, picture) in pictures.iter().enumerate() {
            let place = picture.fed.place;
            let sample = samples.get(place).ok_or_else(odd)?;
            let next = pictures.get(number + 1).map_or(place + 1, |next| next.fed.place);
            let duration = step(Some(sample), samples.get(next)).clamp(0, i64::from(MAX_STEP));
            let bytes = picture.bytes.clone();
            let bytes = if picture.first { self.movie.codec.opening(bytes) } else { bytes };
            written.push(Written {
                duration: u32::try_from(duration).map_err(|_| odd())?,
                size: u32::try_from(bytes.len()).map_err(|_| odd())?,
                key: sample.key,
                offset: u32::try_from(i64::from(sample.offset) + self.early).map_err(|_| odd())?,
            });
            let decode = sample.decode.saturating_sub(self.early).saturating_add(self.ahead);
            first = first.or(Some(decode));
            out.push(bytes);
        }
        let decode = first.and_then(|decode| u64::try_from(decode).ok()).ok_or_else(odd)?;
        self.number = self.number.wrapping_add(1);
        if let Some(place) = out.get_mut(head) {
            *place = fragments::write(self.movie.boxes.id, self.number, decode, &written).into();
        }
        Ok(())
    }
}

/// What a spliced file begins with: `ftyp` and a `moov` without pictures, whose clock is `shift` ticks behind the fragments'.
fn head(boxes: &Boxes, shift: i64) -> Vec<u8> {
    let mut out = Vec::new();
    if boxes.kind.is_empty() {
        boxes::write(&mut out, b"ftyp", |out| out.extend(b"qt  \0\0\0\0qt  "));
    }
    out.extend(&boxes.kind);
    let empty = |out: &mut Vec<u8>, kind, zeros: usize| boxes::write(out, kind, |out| out.resize(out.len() + zeros, 0));
    boxes::write(&mut out, b"moov", |out| {
        out.extend(&boxes.movie);
        boxes::write(out, b"trak", |out| {
            out.extend(&boxes.track);
            if shift > 0 {
                boxes::write(out, b"edts", |out| {
                    boxes::write(out, b"elst", |out| {
                        out.extend([1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
                        out.extend(shift.to_be_bytes());
                        out.extend([0, 1, 0, 0]);
                    });
                });
            }
            boxes::write(out, b"mdia", |out| {
                out.extend(&boxes.media);
                out.extend(&boxes.handler);
                boxes::write(out, b"minf", |out| {
                    boxes::write(out, b"vmhd", |out| out.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]));
                    boxes::write(out, b"stbl", |out| {
                        out.extend(&boxes.description);
                        empty(out, b"stts", 8);
                        empty(out, b"stsc", 8);
                        empty(out, b"stsz", 12);
                        empty(out, b"stco", 8);
                    });
                });
            });
        });
        boxes::write(out, b"mvex", |out| {
            boxes::write(out, b"trex", |out| {
                out.extend([0; 4]);
                out.extend(boxes.id.to_be_bytes());
                out.extend([0, 0, 0, 1]);
                out.extend([0; 12]);
            });
        });
    });
    out
}
