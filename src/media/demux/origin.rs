//! The file an index is read from: pieces of it, within its length and a budget of bytes and, on the web, of requests.
//!
//! This file knows nothing of containers.

use std::io::{Read, Seek, SeekFrom};

use super::{Limits, Unindexed};

/// How far behind a place reading on costs nothing.
const NEAR_BYTES: u64 = 64 << 10;
/// Places that are gone to where each costs a request.
const JUMPS: usize = 1000;

/// Bytes a buffer grows by at most: a file that says it is long is not believed before its bytes are there.
const STEP: usize = 4 << 20;

/// A reader that never gives or allocates more than it was allowed to.
pub(super) struct Origin<'a, R> {
    reader: &'a mut R,
    bytes: u64,
    budget: u64,
    /// How many there may still be, where they are counted, and the last one.
    jumps: Option<usize>,
    here: u64,
}

impl<'a, R: Read + Seek> Origin<'a, R> {
    /// Over a file of so many bytes.
    pub(super) fn new(reader: &'a mut R, bytes: u64, limits: &Limits) -> Self {
        Self { reader, bytes, budget: limits.bytes, jumps: (!limits.scan).then_some(JUMPS), here: 0 }
    }

    /// The file's length.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Up to `count` bytes from a place: fewer only where the file ends.
    ///
    /// # Errors
    /// [`Unindexed`] when a budget is used up or the file can't be read.
    pub(super) fn read(&mut self, at: u64, count: u64) -> Result<Vec<u8>, Unindexed> {
        let count = count.min(self.bytes.saturating_sub(at));
        if let Some(jumps) = &mut self.jumps
            && !(self.here..self.here.saturating_add(NEAR_BYTES)).contains(&at)
        {
            *jumps = jumps.checked_sub(1).ok_or_else(|| Unindexed::Because("too many places to read".to_owned()))?;
            self.here = at;
        }
        self.budget =
            self.budget.checked_sub(count).ok_or_else(|| Unindexed::Because("too much to read".to_owned()))?;
        let failed = |error: std::io::Error| Unindexed::Because(format!("reading: {}", error.kind()));
        let mut bytes = Vec::new();
        if count > 0 {
            // As much as a reader over a network gives at once.
            let length = usize::try_from(count).map_err(|_| Unindexed::Because("too much to read".to_owned()))?;
            self.reader.seek(SeekFrom::Start(at)).map_err(failed)?;
            let mut filled = 0;
            while filled < length {
                if bytes.len() == filled {
                    bytes.resize(length.min(filled.saturating_add(STEP)), 0);
                }
                let rest = bytes.get_mut(filled..).unwrap_or_default();
                match self.reader.read(rest) {
                    Ok(0) => break,
                    Ok(read) => filled += read,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(failed(error)),
                }
            }
            bytes.truncate(filled);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that says it is long and breaks off.
    struct Liar {
        left: usize,
        asked: usize,
    }

    impl Read for Liar {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.asked = self.asked.max(buffer.len());
            if self.left == 0 {
                return Err(std::io::ErrorKind::ConnectionReset.into());
            }
            let count = buffer.len().min(self.left).min(64 << 10);
            self.left -= count;
            Ok(count)
        }
    }

    impl Seek for Liar {
        fn seek(&mut self, _: SeekFrom) -> std::io::Result<u64> {
            Ok(0)
        }
    }

    #[test]
    fn memory_is_taken_as_bytes_come() {
        const CLAIMED: u64 = 255 << 20;
        let limits = Limits { frames: 1, bytes: CLAIMED, scan: true };
        let mut liar = Liar { left: 64 << 10, asked: 0 };
        assert!(Origin::new(&mut liar, CLAIMED, &limits).read(0, CLAIMED).is_err());
        assert!(liar.asked <= STEP, "{} bytes for 64 KiB", liar.asked);
        let mut honest = Liar { left: usize::MAX, asked: 0 };
        let got = Origin::new(&mut honest, CLAIMED, &limits).read(0, 9 << 20).expect("reads");
        assert_eq!(got.len(), 9 << 20);
    }
}
