//! A model whose keys and values are data: each slot holds a hash of its token and of the slot before it, found through the
//! block table alone, and the next token is a hash of all slots. Whatever lies in a wrong place gives another text.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::{Batch, PictureSpan, SequenceId};

/// Ends a generation.
pub(super) const EOS: u32 = 0;
/// Few, so that texts often begin alike and guesses are often right.
const VOCABULARY: u64 = 5;

pub(super) struct FakeModel {
    pub(super) weights: u64,
    pub(super) block_tokens: usize,
    slots: Vec<u64>,
    /// The pictures of each sequence.
    pub(super) pictures: HashMap<SequenceId, Arc<[PictureSpan]>>,
    /// How often each prefix's last token was computed.
    pub(super) computed: HashMap<u64, usize>,
}

impl FakeModel {
    pub(super) fn new(blocks: u32, block_tokens: usize) -> Self {
        let slots = vec![u64::MAX; blocks as usize * block_tokens];
        Self { weights: 1, block_tokens, slots, pictures: HashMap::new(), computed: HashMap::new() }
    }

    /// For each row the tokens it chooses at the positions asked for. Rows are computed last to first, so that none can
    /// rest on an earlier row of the same batch.
    pub(super) fn run(&mut self, batch: &Batch) -> Vec<Vec<u32>> {
        let mut outputs: Vec<Vec<u32>> = batch.rows.iter().rev().map(|row| self.row(batch, row)).collect();
        outputs.reverse();
        outputs
    }

    fn row(&mut self, batch: &Batch, row: &super::super::Row) -> Vec<u32> {
        let table = &batch.blocks[row.blocks.clone()];
        let size = self.block_tokens;
        assert_eq!(table.len(), (row.first + row.tokens.len()).div_ceil(size), "the table covers the row and no more");
        let slot = |position: usize| table[position / size] as usize * size + position % size;
        let mut outputs = Vec::new();
        for (i, token) in row.tokens.clone().enumerate() {
            let position = row.first + i;
            let rows = batch.pictures[row.pictures.clone()].iter().find(|rows| rows.tokens.contains(&token));
            let identity = rows.map_or(u64::from(batch.tokens[token]), |rows| {
                let span = &self.pictures[&row.id][rows.picture];
                picture_row(span, rows.offset + token - rows.tokens.start)
            });
            let before = if position == 0 { self.weights } else { self.slots[slot(position - 1)] };
            let value = mix(before, identity);
            self.slots[slot(position)] = value;
            *self.computed.entry(value).or_default() += 1;
            if i + row.outputs >= row.tokens.len() {
                outputs.push(choose((0..=position).map(|position| self.slots[slot(position)])));
            }
        }
        outputs
    }
}

/// What the model says after these tokens when nothing else runs.
pub(super) fn alone(weights: u64, tokens: &[u32], pictures: &[PictureSpan]) -> u32 {
    choose(values(weights, tokens, pictures).into_iter())
}

/// The slots of a sequence that is computed alone.
pub(super) fn values(weights: u64, tokens: &[u32], pictures: &[PictureSpan]) -> Vec<u64> {
    let identity = |(position, token): (usize, &u32)| {
        let span = pictures.iter().find(|span| (span.first..span.first + span.tokens).contains(&position));
        span.map_or(u64::from(*token), |span| picture_row(span, position - span.first))
    };
    let mut values = Vec::with_capacity(tokens.len());
    let mut before = weights;
    for token in tokens.iter().enumerate() {
        before = mix(before, identity(token));
        values.push(before);
    }
    values
}

fn picture_row(span: &PictureSpan, row: usize) -> u64 {
    mix(u64::from(span.hash[0]) << 32 | 1 << 40, row as u64)
}

fn choose(values: impl Iterator<Item = u64>) -> u32 {
    (values.fold(7, mix) % VOCABULARY) as u32
}

/// The finalizer of splitmix64 over both.
fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(17) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
