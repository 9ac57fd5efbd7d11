//! What one step computes: a ragged batch of token rows, each with the place of its keys and values.
//!
//! Plain data between the scheduler, which plans it, and whoever owns the model and the device memory. Everything lies one
//! row after another in flat vectors, as the model takes it; nothing is padded.

use std::ops::Range;

/// Names a sequence. Given at submission, never given twice by one scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// One step's work. Valid until the next step is planned; one that isn't committed by then never happened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// Which step of the scheduler this is.
    pub(super) number: u64,
    /// Token ids of all rows, one row after another; pictures' placeholders included.
    pub tokens: Vec<u32>,
    /// Block numbers of all rows, one row after another.
    pub blocks: Vec<u32>,
    /// Which of the tokens are rows of pictures, in order.
    pub pictures: Vec<PictureRows>,
    /// The rows: decoding sequences first.
    pub rows: Vec<Row>,
    /// Sequences that left the queue in this step (after `restart_all`, once more).
    pub admitted: Vec<SequenceId>,
}

impl Batch {
    /// One of its rows as a batch of its own, of the same step.
    pub(super) fn alone(&self, row: &Row) -> Self {
        let moved = |place: &Range<usize>| place.start - row.tokens.start..place.end - row.tokens.start;
        let pictures = self.pictures[row.pictures.clone()].iter();
        let alone = Row {
            tokens: moved(&row.tokens),
            blocks: 0..row.blocks.len(),
            pictures: 0..row.pictures.len(),
            ..row.clone()
        };
        Self {
            number: self.number,
            tokens: self.tokens[row.tokens.clone()].to_vec(),
            blocks: self.blocks[row.blocks.clone()].to_vec(),
            pictures: pictures.map(|rows| PictureRows { tokens: moved(&rows.tokens), ..rows.clone() }).collect(),
            rows: vec![alone],
            admitted: Vec::new(),
        }
    }
}

/// New tokens of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Whose.
    pub id: SequenceId,
    /// Where its tokens lie in [`Batch::tokens`]. Never empty.
    pub tokens: Range<usize>,
    /// Where its block table lies in [`Batch::blocks`]: position `p`'s keys and values are in slot `p % block_tokens` of
    /// the table's entry `p / block_tokens`. Covers everything up to the last token.
    pub blocks: Range<usize>,
    /// Where its entries lie in [`Batch::pictures`].
    pub pictures: Range<usize>,
    /// Position of the first token in its sequence: as many keys and values are there already.
    pub first: usize,
    /// For how many of the last tokens logits are wanted: 0 for a piece of a prompt that isn't the last, else 1 and one
    /// for each draft.
    pub outputs: usize,
    /// How many of the last tokens are drafts.
    pub drafts: usize,
}

/// Rows of one picture's embeddings that stand for tokens of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PictureRows {
    /// Which picture of its sequence's request.
    pub picture: usize,
    /// First of the picture's rows.
    pub offset: usize,
    /// Where they go in [`Batch::tokens`]; its length is the number of rows.
    pub tokens: Range<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_alone_has_its_own_tokens_blocks_and_pictures() {
        let row = |id, tokens, blocks, pictures, first| Row {
            id: SequenceId(id),
            tokens,
            blocks,
            pictures,
            first,
            outputs: 2,
            drafts: 1,
        };
        let picture = |picture, offset, tokens| PictureRows { picture, offset, tokens };
        let batch = Batch {
            number: 5,
            tokens: vec![10, 11, 12, 13, 14],
            blocks: vec![1, 2, 3],
            pictures: vec![picture(0, 0, 0..1), picture(2, 4, 2..3), picture(3, 0, 4..5)],
            rows: vec![row(7, 0..2, 0..1, 0..1, 0), row(8, 2..5, 1..3, 1..3, 16)],
            admitted: vec![SequenceId(7)],
        };
        let expected = Batch {
            number: 5,
            tokens: vec![12, 13, 14],
            blocks: vec![2, 3],
            pictures: vec![picture(2, 4, 0..1), picture(3, 0, 2..3)],
            rows: vec![row(8, 0..3, 0..2, 0..2, 16)],
            admitted: Vec::new(),
        };
        assert_eq!(batch.alone(&batch.rows[1]), expected);
    }
}
