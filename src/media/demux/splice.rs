//! From the pictures to feed to a container in a pipe: reads their bytes, a few pieces at a time and in order, leaves out what
//! no one needs and stretches that begin with no picture decoding can begin with, and writes the rest.

use std::collections::VecDeque;
use std::io::ErrorKind;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, StreamExt as _};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use super::samples::{Fed, Sample};
use crate::media::MediaError;
use crate::media::content::Content;

/// Bytes of one read.
const PIECE_BYTES: u64 = 512 << 10;
/// Reads under way on the web, where each waits …
const PIECES: usize = 8;
/// … and on a disk, which is faster than any decoder.
const PIECES_LOCAL: usize = 2;
/// Bytes between two pictures that are read rather than asked around.
const GAP_BYTES: u64 = 64 << 10;
/// Bytes of pictures that are written at once, but for a single larger one.
const BATCH_BYTES: usize = 1 << 20;
/// Pictures of a batch, and parts of a piece: files may claim pictures of no bytes.
const BATCH_PICTURES: usize = 4096;

/// A picture with its bytes.
#[derive(Debug, Clone)]
pub(super) struct Picture {
    /// Which it is.
    pub(super) fed: Fed,
    /// Its bytes in the file.
    pub(super) bytes: Bytes,
    /// Whether a stretch begins with it.
    pub(super) first: bool,
}

/// How a container is written.
pub(super) trait Container {
    /// What comes before all pictures.
    fn head(&self) -> Bytes;

    /// Whether a picture may be left out.
    fn is_disposable(&self, picture: &Picture) -> bool;

    /// Whether decoding can begin with a picture.
    fn is_key(&self, picture: &Picture) -> bool;

    /// A few pictures in decode order, at least one, as pieces to write.
    ///
    /// # Errors
    /// [`MediaError::NotVideo`] when the bytes are not what the index says.
    fn pack(&mut self, pictures: &[Picture]) -> Result<Vec<Bytes>, MediaError>;
}

/// Part of a piece that belongs to a picture.
#[derive(Debug)]
struct Part {
    step: Step,
    from: u64,
    to: u64,
    ends: bool,
}

/// A picture and its place in its run.
#[derive(Debug, Clone, Copy)]
struct Step {
    fed: Fed,
    first: bool,
    last: bool,
}

/// The pictures of runs, one after the other.
struct Steps<'a> {
    runs: &'a [Vec<Fed>],
    number: usize,
}

impl Iterator for Steps<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        loop {
            let (run, rest) = self.runs.split_first()?;
            if let Some(fed) = run.get(self.number) {
                self.number += 1;
                return Some(Step { fed: *fed, first: self.number == 1, last: self.number == run.len() });
            }
            (self.runs, self.number) = (rest, 0);
        }
    }
}

/// Bytes read at once.
#[derive(Debug)]
struct Piece {
    from: u64,
    to: u64,
    parts: Vec<Part>,
}

/// Pictures put into pieces, one piece after the other.
struct Pieces<'a, I> {
    pictures: I,
    samples: &'a [Sample],
    open: Option<Piece>,
    ready: VecDeque<Piece>,
}

impl<I: Iterator<Item = Step>> Iterator for Pieces<'_, I> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        while self.ready.is_empty() {
            let Some(step) = self.pictures.next() else { return self.open.take() };
            let Some(sample) = self.samples.get(step.fed.place) else { continue };
            let mut from = sample.at;
            loop {
                let fits = |piece: &Piece| {
                    let gap = from.checked_sub(piece.to);
                    let near = gap.is_some_and(|gap| gap <= GAP_BYTES) && sample.end() - piece.from <= PIECE_BYTES;
                    near && piece.parts.len() < BATCH_PICTURES
                };
                if !self.open.as_ref().is_some_and(fits) {
                    self.ready.extend(self.open.replace(Piece { from, to: from, parts: Vec::new() }));
                }
                let Some(piece) = &mut self.open else { break };
                let to = sample.end().min(piece.from.saturating_add(PIECE_BYTES)).max(from);
                piece.parts.push(Part { step, from, to, ends: to == sample.end() });
                piece.to = to;
                if to == sample.end() {
                    break;
                }
                from = to;
            }
        }
        self.ready.pop_front()
    }
}

/// Writes the runs' pictures as a container. Ends early, without error, when the reader closes the pipe. A run whose first
/// picture turns out to be no key frame is left out: its frames are then missing, which is noticed, and not wrong.
///
/// # Errors
/// As [`Content::read`], and [`MediaError::NotVideo`] when the content is shorter than the index says.
pub(super) async fn splice(
    content: &Content,
    samples: &[Sample],
    runs: &[Vec<Fed>],
    container: &mut (impl Container + Send),
    out: &mut (impl AsyncWrite + Send + Unpin),
) -> Result<(), MediaError> {
    let pieces = Pieces { pictures: Steps { runs, number: 0 }, samples, open: None, ready: VecDeque::new() };
    let read = |piece: Piece| async move { content.read(piece.from..piece.to).await.map(|bytes| (piece, bytes)) };
    let mut reads = stream::iter(pieces).map(read).buffered(if content.is_local() { PIECES_LOCAL } else { PIECES });
    if !write(out, vec![container.head()]).await? {
        return Ok(());
    }
    let (mut batch, mut batched, mut begun, mut skipping) = (Vec::new(), 0, BytesMut::new(), false);
    while let Some(read) = reads.next().await {
        let (piece, bytes) = read?;
        for part in piece.parts {
            let range = (part.from - piece.from) as usize..(part.to - piece.from) as usize;
            if bytes.len() < range.end {
                return Err(MediaError::NotVideo("the video is shorter than it says".to_owned()));
            }
            let mut bytes = bytes.slice(range);
            if !part.ends || !begun.is_empty() {
                begun.extend_from_slice(&bytes);
                if !part.ends {
                    continue;
                }
                bytes = begun.split().freeze();
            }
            let Step { fed, first, last } = part.step;
            let picture = Picture { fed, bytes, first };
            if first {
                skipping = !container.is_key(&picture);
            }
            if skipping || (!fed.wanted && !first && !last && container.is_disposable(&picture)) {
                continue;
            }
            let full = batched + picture.bytes.len() > BATCH_BYTES || batch.len() >= BATCH_PICTURES;
            if !batch.is_empty() && full {
                if !write(out, container.pack(&batch)?).await? {
                    return Ok(());
                }
                (batched, batch) = (0, Vec::new());
            }
            batched += picture.bytes.len();
            batch.push(picture);
        }
    }
    if !batch.is_empty() && !write(out, container.pack(&batch)?).await? {
        return Ok(());
    }
    match out.flush().await {
        Err(error) if !is_closed(&error) => Err(failed(&error)),
        _ => Ok(()),
    }
}

/// Whether the reader is still there.
async fn write(out: &mut (impl AsyncWrite + Unpin), pieces: Vec<Bytes>) -> Result<bool, MediaError> {
    for piece in pieces {
        match out.write_all(&piece).await {
            Ok(()) => {}
            Err(error) if is_closed(&error) => return Ok(false),
            Err(error) => return Err(failed(&error)),
        }
    }
    Ok(true)
}

fn is_closed(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

fn failed(error: &std::io::Error) -> MediaError {
    MediaError::Internal(format!("writing to the decoder: {}", error.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From and to, and the pictures with parts in it, with whether they end there.
    type Read = (u64, u64, Vec<(usize, bool)>);

    fn pieces(places: &[(u64, u32)]) -> Vec<Read> {
        let sample =
            |(at, size): &(u64, u32)| Sample { at: *at, decode: 0, offset: 0, size: *size, key: true, shown: true };
        let samples: Vec<Sample> = places.iter().map(sample).collect();
        let pictures =
            (0..samples.len()).map(|place| Step { fed: Fed { place, wanted: true }, first: false, last: false });
        let pieces = Pieces { pictures, samples: &samples, open: None, ready: VecDeque::new() };
        let parts = |piece: &Piece| piece.parts.iter().map(|part| (part.step.fed.place, part.ends)).collect();
        pieces.map(|piece| (piece.from, piece.to, parts(&piece))).collect()
    }

    #[test]
    fn neighbours_are_read_together_and_gaps_are_not() {
        assert_eq!(
            pieces(&[(0, 10), (20, 10), (100_000, 5)]),
            [(0, 30, vec![(0, true), (1, true)]), (100_000, 100_005, vec![(2, true)])]
        );
        assert_eq!(pieces(&[(50, 10), (20, 10)]), [(50, 60, vec![(0, true)]), (20, 30, vec![(1, true)])]);
        assert_eq!(pieces(&[(7, 0)]), [(7, 7, vec![(0, true)])]);
    }

    #[test]
    fn pictures_without_bytes_fill_a_piece_as_well() {
        let read: Vec<usize> = pieces(&[(7, 0); BATCH_PICTURES + 3]).iter().map(|(_, _, parts)| parts.len()).collect();
        assert_eq!(read, [BATCH_PICTURES, 3]);
    }

    #[test]
    fn large_pictures_are_read_in_pieces() {
        let mega = PIECE_BYTES;
        assert_eq!(
            pieces(&[(0, 100), (100, (2 * mega) as u32 + 7)]),
            [
                (0, 100, vec![(0, true)]),
                (100, 100 + mega, vec![(1, false)]),
                (100 + mega, 100 + 2 * mega, vec![(1, false)]),
                (100 + 2 * mega, 107 + 2 * mega, vec![(1, true)])
            ]
        );
    }
}
