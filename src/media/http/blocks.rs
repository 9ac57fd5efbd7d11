//! Blocks of files on the web: which are at hand, which are on their way, and which must be asked for together.
//!
//! This file sends nothing and knows nothing of servers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::BLOCK_BYTES;
use crate::media::source::{Flight, WeakFlight};

/// Blocks asked for in one request at the most.
pub(super) const MAX_RUN: u64 = (4 << 20) / BLOCK_BYTES;
/// What a kept block takes beside its bytes, about.
const OVERHEAD: usize = 256;

/// Blocks of all sources, kept within a number of bytes.
#[derive(Debug)]
pub(super) struct Blocks {
    kept: moka::future::Cache<(Arc<str>, u64), Bytes>,
}

impl Blocks {
    /// Keeps up to so many bytes; with 0, nothing.
    pub(super) fn new(bytes: u64) -> Self {
        let kept = moka::future::Cache::builder()
            .max_capacity(bytes)
            .weigher(|_: &(Arc<str>, u64), block: &Bytes| u32::try_from(block.len() + OVERHEAD).unwrap_or(u32::MAX))
            .build();
        Self { kept }
    }

    /// A block of the content of that id.
    pub(super) async fn get(&self, id: &Arc<str>, block: u64) -> Option<Bytes> {
        self.kept.get(&(Arc::clone(id), block)).await
    }

    /// Keeps a block.
    pub(super) async fn put(&self, id: &Arc<str>, block: u64, bytes: Bytes) {
        self.kept.insert((Arc::clone(id), block), bytes).await;
    }
}

/// Neighbouring blocks, fetched together.
pub(super) type Run = Arc<[Bytes]>;

/// Runs under way, by their first block. None overlap.
#[derive(Debug, Default)]
pub(super) struct Runs {
    under_way: BTreeMap<u64, (Range<u64>, WeakFlight<Run>)>,
}

impl Runs {
    /// The run that a block comes with, or has come with while others still look at it.
    pub(super) fn with(&self, block: u64) -> Option<(Range<u64>, Flight<Run>)> {
        let (_, (blocks, weak)) = self.under_way.range(..=block).next_back()?;
        if blocks.contains(&block) { Some((blocks.clone(), alive(weak)?)) } else { None }
    }

    /// Remembers a run as long as somebody waits for it.
    pub(super) fn add(&mut self, blocks: Range<u64>, flight: &Flight<Run>) {
        self.under_way.retain(|_, (_, weak)| alive(weak).is_some());
        if let Some(weak) = flight.downgrade() {
            self.under_way.insert(blocks.start, (blocks, weak));
        }
    }
}

/// A run that has failed is nothing to wait for, whoever still holds it.
fn alive(weak: &WeakFlight<Run>) -> Option<Flight<Run>> {
    weak.upgrade().filter(|flight| !matches!(flight.peek(), Some(Err(_))))
}

/// Where some of the blocks of a read come from.
pub(super) enum Part {
    /// At hand.
    Kept(Bytes),
    /// On their way, these of the run.
    Coming(Flight<Run>, Range<usize>),
}

/// The blocks that hold a range.
pub(super) const fn blocks_of(range: &Range<u64>) -> Range<u64> {
    range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)
}

/// Bytes of blocks, of content of so many bytes.
pub(super) fn bytes_of(blocks: &Range<u64>, total: u64) -> Range<u64> {
    blocks.start.saturating_mul(BLOCK_BYTES).min(total)..blocks.end.saturating_mul(BLOCK_BYTES).min(total)
}

/// The bytes of a range out of the blocks that hold it, in order and without gaps.
pub(super) fn cut(blocks: &[Bytes], range: &Range<u64>) -> Bytes {
    let skip = usize::try_from(range.start % BLOCK_BYTES).unwrap_or(usize::MAX);
    let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    if let [block] = blocks {
        let start = skip.min(block.len());
        return block.slice(start..start.saturating_add(length).min(block.len()));
    }
    let mut bytes = Vec::with_capacity(length);
    for block in blocks {
        let from = if bytes.is_empty() { block.get(skip..).unwrap_or_default() } else { block.as_ref() };
        let wanted = length.saturating_sub(bytes.len()).min(from.len());
        bytes.extend_from_slice(from.get(..wanted).unwrap_or_default());
    }
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_out_of_their_blocks() {
        let content: Vec<u8> = (0..3 * BLOCK_BYTES + 100).map(|i| (i % 251) as u8).collect();
        for (start, end) in [(0, 1), (5, 70_000), (65_535, 65_537), (65_536, 196_708), (131_072, 131_073), (0, 196_708)]
        {
            let blocks = blocks_of(&(start..end));
            let parts: Vec<Bytes> = blocks
                .map(|block| bytes_of(&(block..block + 1), content.len() as u64))
                .map(|range| Bytes::copy_from_slice(&content[range.start as usize..range.end as usize]))
                .collect();
            assert_eq!(cut(&parts, &(start..end)), content[start as usize..end as usize], "{start}..{end}");
        }
    }

    #[tokio::test]
    async fn no_more_bytes_are_kept_than_allowed() {
        let (blocks, id) = (Blocks::new(10 * BLOCK_BYTES), Arc::from("id"));
        for block in 0..50 {
            blocks.put(&id, block, vec![0; BLOCK_BYTES as usize].into()).await;
        }
        blocks.kept.run_pending_tasks().await;
        assert!(blocks.kept.weighted_size() <= 10 * BLOCK_BYTES && blocks.kept.entry_count() >= 1);
    }
}
