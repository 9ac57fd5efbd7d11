//! Conversations in tokens, packed for one pass: what several begin with alike is there once, and so is a picture, wherever it
//! stands.
//!
//! Sharing changes no gradient: a token that many continuations see gets the sum of what they pass back. Pure but for the
//! processor's arithmetic on pixels.

use std::collections::HashMap;

use super::TrainError;
use crate::engine::native::transcript::{Picture, Transcript};
use crate::model::{Branch, Grid, Patches, Qwen3Vl, Span, positions};

/// Tokens from which on it is worth sharing them: each shared run is an attention of its own.
const LEAST_SHARED: usize = 24;

/// A conversation to learn from, in tokens.
#[derive(Debug, Clone)]
pub struct Row {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Time, height and width of each.
    pub positions: Vec<[u32; 3]>,
    /// Its pictures, in order.
    pub pictures: Vec<Picture>,
    /// What is learned: ascending places of tokens, never the first, each with its weight.
    pub targets: Vec<(usize, f32)>,
}

impl Row {
    /// Of a transcript; all that the model wrote is learned, or only its last turn.
    ///
    /// # Errors
    /// [`TrainError::Model`] for pictures that are not this model's.
    pub fn new(transcript: Transcript, model: &Qwen3Vl, last_only: bool) -> Result<Self, TrainError> {
        let Transcript { ids, pictures, spoken } = transcript;
        let merge = model.config().vision.merge_size;
        let (mut spans, mut done) = (Vec::new(), 0);
        for picture in &pictures {
            spans.push(Span::Text(picture.start - done));
            spans.push(Span::Vision(Grid { t: 1, h: picture.rows * merge, w: picture.columns * merge }));
            done = picture.start + picture.tokens();
        }
        spans.push(Span::Text(ids.len() - done));
        let positions = positions(&spans, merge, 0)?.tokens;
        let skipped = if last_only { spoken.len().saturating_sub(1) } else { 0 };
        let targets = spoken.into_iter().skip(skipped).flatten().filter(|at| *at > 0).map(|at| (at, 1.0)).collect();
        Ok(Self { ids, positions, pictures, targets })
    }

    /// What makes two tokens the same: the id, and for a picture's token the picture.
    fn unit(&self, at: usize) -> (u32, [u32; 3], Option<&[u8; 32]>) {
        let picture = self.pictures.partition_point(|picture| picture.start <= at).checked_sub(1);
        let picture = picture.map(|picture| &self.pictures[picture]);
        let picture = picture.filter(|picture| at < picture.start + picture.tokens());
        (self.ids[at], self.positions[at], picture.map(|picture| &picture.hash))
    }

    /// How many tokens both begin with alike, from a place on. Pictures are never cut.
    fn common(&self, other: &Self, from: usize) -> usize {
        let most = self.ids.len().min(other.ids.len());
        let mut end = (from..most).find(|at| self.unit(*at) != other.unit(*at)).unwrap_or(most);
        // Equal tokens may end inside of two pictures only where these are of different sizes.
        for row in [self, other] {
            let cut = row.pictures.iter().find(|picture| picture.start < end && end < picture.start + picture.tokens());
            end = cut.map_or(end, |picture| picture.start);
        }
        end.saturating_sub(from)
    }
}

/// Rows, packed.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// Token ids of all runs, one after another.
    pub tokens: Vec<u32>,
    /// Time, height and width of each.
    pub positions: Vec<[u32; 3]>,
    /// The runs.
    pub branches: Vec<Branch>,
    /// Pictures, each once.
    pub pictures: Vec<Patches>,
    /// Where they stand: first token and picture, ascending.
    pub places: Vec<(u32, usize)>,
    /// Tokens whose logits are wanted: what comes before each target.
    pub outputs: Vec<u32>,
    /// For each output, the token to predict.
    pub targets: Vec<u32>,
    /// For each output, its weight.
    pub weights: Vec<f32>,
    /// For each row its outputs, in the order of the rows: one past the last.
    pub ends: Vec<usize>,
    /// Tokens of the rows, as if each stood alone.
    pub unshared_tokens: usize,
}

impl Batch {
    /// Packs rows.
    ///
    /// # Errors
    /// [`TrainError::Model`] for pictures that are not this model's.
    pub fn pack(rows: &[Row], model: &Qwen3Vl) -> Result<Self, TrainError> {
        Self::packed(rows, model, true)
    }

    /// The same without sharing anything: rows one after another, as other trainers compute them.
    ///
    /// # Errors
    /// As [`Self::pack`].
    pub fn pack_apart(rows: &[Row], model: &Qwen3Vl) -> Result<Self, TrainError> {
        Self::packed(rows, model, false)
    }

    fn packed(rows: &[Row], model: &Qwen3Vl, share: bool) -> Result<Self, TrainError> {
        let tree = Tree::of(rows, if share { LEAST_SHARED } else { usize::MAX });
        let mut batch = Self { unshared_tokens: rows.iter().map(|row| row.ids.len()).sum(), ..Self::default() };
        let mut known = HashMap::new();
        // First token of each node in the batch, and its number there.
        let mut placed = vec![(0, 0); tree.nodes.len()];
        for at in tree.order() {
            let node = &tree.nodes[at];
            let row = &rows[node.row];
            let (first, inside) = (batch.tokens.len(), node.from..node.until);
            placed[at] = (first, batch.branches.len());
            let after = node.parent.map(|parent| placed[parent].1);
            batch.branches.push(Branch { tokens: inside.len(), after });
            batch.tokens.extend_from_slice(&row.ids[inside.clone()]);
            batch.positions.extend_from_slice(&row.positions[inside.clone()]);
            for picture in row.pictures.iter().filter(|picture| inside.contains(&picture.start)) {
                let number = match known.get(&picture.hash).filter(|_| share) {
                    Some(number) => *number,
                    None => {
                        batch.pictures.push(model.video(&picture.frames)?);
                        known.insert(picture.hash, batch.pictures.len() - 1);
                        batch.pictures.len() - 1
                    }
                };
                batch.places.push((narrow(first + picture.start - node.from), number));
            }
        }
        for (row, leaf) in rows.iter().zip(&tree.leaves) {
            let path = tree.path(*leaf);
            for (at, weight) in &row.targets {
                // The token before it stands in the run that reaches beyond that.
                let before = at - 1;
                let node = path.iter().find(|node| tree.nodes[**node].until > before);
                let Some(node) = node else { continue };
                batch.outputs.push(narrow(placed[*node].0 + before - tree.nodes[*node].from));
                batch.targets.push(row.ids[*at]);
                batch.weights.push(*weight);
            }
            batch.ends.push(batch.outputs.len());
        }
        Ok(batch)
    }
}

/// A batch of 2^32 tokens would not fit any memory.
fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// What rows begin with alike.
struct Tree {
    nodes: Vec<Node>,
    /// The run that each row ends with.
    leaves: Vec<usize>,
}

/// A run of tokens of a row, and of all rows below it.
struct Node {
    row: usize,
    from: usize,
    until: usize,
    parent: Option<usize>,
}

impl Tree {
    /// Runs of fewer than `least` tokens are not shared.
    fn of(rows: &[Row], least: usize) -> Self {
        let (mut nodes, mut leaves) = (Vec::<Node>::new(), Vec::with_capacity(rows.len()));
        for (number, row) in rows.iter().enumerate() {
            let (mut from, mut parent) = (0, None);
            loop {
                let below = nodes.iter().enumerate().filter(|(_, node)| node.parent == parent);
                let found = below.filter_map(|(at, node)| {
                    let common = rows[node.row].common(row, from).min(node.until - from);
                    (common >= least).then_some((at, common))
                });
                let Some((at, common)) = found.max_by_key(|(_, common)| *common) else { break };
                let split = from + common;
                if split < nodes[at].until {
                    // The common part goes above it.
                    let above = Node { row: nodes[at].row, from, until: split, parent };
                    nodes.push(above);
                    let above = nodes.len() - 1;
                    (nodes[at].from, nodes[at].parent) = (split, Some(above));
                    parent = Some(above);
                } else {
                    parent = Some(at);
                }
                from = split;
            }
            if from < row.ids.len() || parent.is_none() {
                nodes.push(Node { row: number, from, until: row.ids.len(), parent });
                parent = Some(nodes.len() - 1);
            }
            leaves.extend(parent);
        }
        Self { nodes, leaves }
    }

    /// Nodes, each after its parent and next to it.
    fn order(&self) -> Vec<usize> {
        let below =
            |parent: Option<usize>| (0..self.nodes.len()).rev().filter(move |at| self.nodes[*at].parent == parent);
        let (mut open, mut order): (Vec<usize>, _) = (below(None).collect(), Vec::with_capacity(self.nodes.len()));
        while let Some(at) = open.pop() {
            order.push(at);
            open.extend(below(Some(at)));
        }
        order
    }

    /// A row's runs, from its first to `leaf`.
    fn path(&self, leaf: usize) -> Vec<usize> {
        let mut path: Vec<usize> = std::iter::successors(Some(leaf), |at| self.nodes[*at].parent).collect();
        path.reverse();
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ids: &[u32]) -> Row {
        let positions = (0..ids.len() as u32).map(|at| [at; 3]).collect();
        Row { ids: ids.to_vec(), positions, pictures: Vec::new(), targets: vec![(ids.len() - 1, 1.0)] }
    }

    fn numbers(of: &[std::ops::Range<u32>]) -> Vec<u32> {
        of.iter().cloned().flatten().collect()
    }

    /// Each row's tokens as its path has them.
    fn read_back(rows: &[Row], tree: &Tree) -> Vec<Vec<u32>> {
        let tokens = |leaf: &usize| -> Vec<u32> {
            let of = |at: usize| {
                let node = &tree.nodes[at];
                rows[node.row].ids[node.from..node.until].to_vec()
            };
            tree.path(*leaf).into_iter().flat_map(of).collect()
        };
        tree.leaves.iter().map(tokens).collect()
    }

    #[test]
    fn what_rows_begin_with_alike_is_there_once() {
        let rows = [
            row(&numbers(&[0..100, 200..240])),
            row(&numbers(&[0..100, 300..340])),
            row(&numbers(&[0..60, 400..440])),
            row(&(500..550).collect::<Vec<u32>>()),
            row(&numbers(&[0..100, 200..240])),
            // Too little to be shared.
            row(&numbers(&[0..10, 600..640])),
        ];
        let tree = Tree::of(&rows, LEAST_SHARED);
        assert_eq!(read_back(&rows, &tree), rows.iter().map(|row| row.ids.clone()).collect::<Vec<_>>());
        let tokens: usize = tree.nodes.iter().map(|node| node.until - node.from).sum();
        assert_eq!(tokens, 60 + 40 + 40 + 40 + 40 + 50 + 50);
        let order = tree.order();
        assert_eq!(order.len(), tree.nodes.len());
        let place = |at: usize| order.iter().position(|other| *other == at);
        assert!((0..order.len()).all(|at| tree.nodes[at].parent.is_none_or(|parent| place(parent) < place(at))));
    }

    #[test]
    fn pictures_are_shared_whole_or_not() {
        let picture = |start, hash| Picture { start, rows: 4, columns: 10, hash: [hash; 32], frames: Vec::new() };
        let ids: Vec<u32> = (0..30).chain(std::iter::repeat_n(9, 40)).collect();
        let with = |hash| Row { pictures: vec![picture(30, hash)], ..row(&ids) };
        let (one, same, other) = (with(1), with(1), with(2));
        assert_eq!((one.common(&same, 0), one.common(&other, 0)), (70, 30));
    }
}
