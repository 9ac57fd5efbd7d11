//! Where a pass writes its tokens and where it reads its pasts, as lists of slots on the device.
//!
//! A slot is a token's row in a layer's pool: `block * BLOCK` and its place in the block. What is wrong with a batch is found
//! here, on the host: an index out of range would stop a GPU for good.

use std::ops::Range;

use candle_core::{Device, Result, Tensor, bail};

use super::{BLOCK, Segment};

/// Neighbouring tokens in neighbouring slots from which one copy for all is worth more than a place in the list.
const RUN_MIN: usize = BLOCK;

/// See the module's header.
#[derive(Debug)]
pub(super) struct Places {
    parts: Vec<Part>,
    rows: usize,
    /// `[tokens]`: the slots of all parts' tokens, pasts included, a part after the other.
    slots: Tensor,
    runs: Vec<Run>,
    scattered: Option<Scattered>,
}

/// A sequence in the pass.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// Its rows in the batch, at least one.
    pub(super) rows: Range<usize>,
    /// Tokens before these.
    pub(super) past: usize,
    /// The places of its tokens' slots in the list of all.
    pub(super) slots: Range<usize>,
}

/// New tokens that are copied together.
#[derive(Debug)]
struct Run {
    row: usize,
    slot: usize,
    length: usize,
}

/// New tokens that are copied one by one, all in one operation.
#[derive(Debug)]
struct Scattered {
    /// `[tokens]`, or none where they are all rows of the batch.
    rows: Option<Tensor>,
    /// `[tokens, width]`: a row's slot in each of its columns, as candle's scatter wants it.
    slots: Tensor,
}

impl Places {
    /// For segments that follow each other from the first row, over a pool of so many slots of `width` numbers.
    pub(super) fn new(segments: &[Segment<'_>], pool: usize, width: usize, device: &Device) -> Result<Self> {
        let (mut parts, mut slots, mut new, mut rows) = (Vec::with_capacity(segments.len()), Vec::new(), Vec::new(), 0);
        for segment in segments {
            if segment.rows.start != rows || segment.rows.end < rows {
                bail!("the segments are not the batch");
            }
            rows = segment.rows.end;
            if segment.rows.is_empty() {
                continue;
            }
            let total = segment.past + segment.rows.len();
            let blocks = segment.blocks.get(..total.div_ceil(BLOCK));
            let there = |blocks: &&[u32]| blocks.iter().all(|block| (*block as usize + 1) * BLOCK <= pool);
            let Some(blocks) = blocks.filter(there) else { bail!("a sequence's blocks do not hold its tokens") };
            let first = slots.len();
            let of_block = |&block: &u32| (0..BLOCK as u32).map(move |place| block * BLOCK as u32 + place);
            slots.extend(blocks.iter().flat_map(of_block).take(total));
            new.extend_from_slice(&slots[first + segment.past..]);
            parts.push(Part { rows: segment.rows.clone(), past: segment.past, slots: first..slots.len() });
        }
        if parts.is_empty() {
            bail!("a batch without rows");
        }
        let count = slots.len();
        let (runs, scattered) = split(&new);
        let scattered = Scattered::new(scattered, rows, width, device)?;
        Ok(Self { parts, rows, slots: Tensor::from_vec(slots, count, device)?, runs, scattered })
    }

    /// The sequences. Their rows follow each other, and so do their slots.
    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Rows of the batch.
    pub(super) const fn rows(&self) -> usize {
        self.rows
    }

    /// Puts the batch's keys or values, `[rows, kv_heads, head_dim]`, into a pool.
    pub(super) fn write(&self, pool: &Tensor, new: &Tensor) -> Result<()> {
        let new = new.flatten_from(1)?.to_dtype(pool.dtype())?.contiguous()?;
        for run in &self.runs {
            pool.slice_set(&new.narrow(0, run.row, run.length)?, 0, run.slot)?;
        }
        if let Some(Scattered { rows, slots }) = &self.scattered {
            let picked = rows.as_ref().map(|rows| new.index_select(rows, 0)).transpose()?;
            pool.scatter_set(slots, picked.as_ref().unwrap_or(&new), 0)?;
        }
        Ok(())
    }

    /// Keys or values from a pool: `[tokens, width]`, for a part's slots or for those of several neighbours.
    pub(super) fn read(&self, pool: &Tensor, slots: &Range<usize>) -> Result<Tensor> {
        pool.index_select(&self.slots.narrow(0, slots.start, slots.len())?, 0)
    }
}

impl Scattered {
    /// For tokens as rows with their slots, of a batch of so many rows.
    fn new(tokens: Vec<(u32, u32)>, all: usize, width: usize, device: &Device) -> Result<Option<Self>> {
        if tokens.is_empty() {
            return Ok(None);
        }
        let count = tokens.len();
        let (rows, slots): (Vec<u32>, Vec<u32>) = tokens.into_iter().unzip();
        let slots = Tensor::from_vec(slots, (count, 1), device)?.broadcast_as((count, width))?.contiguous()?;
        let rows = if count == all { None } else { Some(Tensor::from_vec(rows, count, device)?) };
        Ok(Some(Self { rows, slots }))
    }
}

/// The slots of a batch's rows as runs of neighbours and, with their rows, those in no run worth its copy.
fn split(slots: &[u32]) -> (Vec<Run>, Vec<(u32, u32)>) {
    let (mut runs, mut scattered, mut row) = (Vec::new(), Vec::new(), 0);
    for run in slots.chunk_by(|one, next| one.checked_add(1) == Some(*next)) {
        if run.len() < RUN_MIN {
            scattered.extend((row as u32..).zip(run.iter().copied()));
        } else {
            runs.push(Run { row, slot: run[0] as usize, length: run.len() });
        }
        row += run.len();
    }
    (runs, scattered)
}
