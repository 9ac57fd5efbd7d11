//! A batch as a kernel for ragged batches wants it: the keys of all sequences one behind another, and where each ends.
//!
//! The keys and values are copies: a prefix that many sequences share is gathered for each of them. So the batch is cut into
//! groups of sequences whose copies have bounded size. A kernel that follows block tables itself would need none of this;
//! candle-flash-attn 0.10.2 passes none to its kernels.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};

use super::places::{Part, Places};

/// Neighbouring sequences that are computed together.
#[derive(Debug)]
pub(super) struct Group {
    rows: Range<usize>,
    slots: Range<usize>,
    /// `[sequences + 1]`, u32: 0, and where the rows of each sequence end.
    pub(super) row_ends: Tensor,
    /// `[sequences + 1]`, u32: 0, and where the tokens of each sequence end.
    pub(super) token_ends: Tensor,
    /// Most rows of a sequence.
    pub(super) most_rows: usize,
    /// Most tokens of a sequence.
    pub(super) most_tokens: usize,
}

/// Cuts a pass into groups of at most so many tokens, or of one sequence.
pub(super) fn groups(places: &Places, tokens_max: usize, device: &Device) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    let mut left = places.parts();
    while let Some(first) = left.first() {
        let fits = |part: &&Part| part.slots.end - first.slots.start <= tokens_max;
        let count = left.iter().take_while(fits).count().max(1);
        let (parts, rest) = left.split_at(count);
        groups.push(Group::new(parts, first, device)?);
        left = rest;
    }
    Ok(groups)
}

impl Group {
    fn new(parts: &[Part], first: &Part, device: &Device) -> Result<Self> {
        let last = parts.last().unwrap_or(first);
        let (rows, slots) = (first.rows.start..last.rows.end, first.slots.start..last.slots.end);
        let ends = |end: &dyn Fn(&Part) -> usize| {
            let ends: Vec<u32> = std::iter::once(0).chain(parts.iter().map(|part| end(part) as u32)).collect();
            Tensor::from_vec(ends, parts.len() + 1, device)
        };
        Ok(Self {
            row_ends: ends(&|part| part.rows.end - rows.start)?,
            token_ends: ends(&|part| part.slots.end - slots.start)?,
            most_rows: parts.iter().map(|part| part.rows.len()).max().unwrap_or(0),
            most_tokens: parts.iter().map(|part| part.slots.len()).max().unwrap_or(0),
            rows,
            slots,
        })
    }
}

/// What the batch's queries, `[rows, heads, head_dim]`, read from a pool of keys and one of values: `[rows, heads * head_dim]`.
///
/// `kernel` takes a group's queries, keys and values, `[rows or tokens, heads, head_dim]` each. Of a sequence with more tokens
/// than rows, the rows are its last tokens.
pub(super) fn attend(
    query: &Tensor,
    (keys, values): &(Tensor, Tensor),
    places: &Places,
    groups: &[Group],
    kv_heads: usize,
    kernel: impl Fn(&Tensor, &Tensor, &Tensor, &Group) -> Result<Tensor>,
) -> Result<Tensor> {
    let (_, _, head_dim) = query.dims3()?;
    let mut outputs = Vec::with_capacity(groups.len());
    for group in groups {
        let gather = |pool: &Tensor| places.read(pool, &group.slots)?.reshape(((), kv_heads, head_dim));
        let query = query.narrow(0, group.rows.start, group.rows.len())?;
        outputs.push(kernel(&query, &gather(keys)?, &gather(values)?, group)?.flatten_from(1)?);
    }
    Tensor::cat(&outputs, 0)
}
