//! Attention without a cache, for whole sequences: what parity, training and references use. A serving engine has its own.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, bail};

use super::ops::graded::{self, Piece};
use super::{Attend, Mode};

/// Causal attention over sequences that are whole: each token sees those of its own sequence up to itself.
///
/// Without [`Mode::Training`] on the CPU, memory grows with the square of the longest sequence. In that mode it has a gradient.
#[derive(Debug, Clone)]
pub struct Causal {
    pieces: Arc<[Piece]>,
    mode: Mode,
}

/// A run of tokens that goes on where another ends. Runs after the same one are different continuations of it: the tokens of
/// what sequences have in common, at their beginning, are there once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Branch {
    /// Its tokens.
    pub tokens: usize,
    /// The number of the run that it goes on from: an earlier one. `None`: it begins a sequence.
    pub after: Option<usize>,
}

impl Causal {
    /// For a batch of sequences of these lengths, in tokens, one after another.
    #[must_use]
    pub fn new(lengths: &[usize], mode: Mode) -> Self {
        let branches: Vec<Branch> = lengths.iter().map(|tokens| Branch { tokens: *tokens, after: None }).collect();
        Self::tree(&branches, mode)
    }

    /// For a batch of runs of tokens, one after another. What goes on from a run that is not there yet begins a sequence.
    #[must_use]
    pub fn tree(branches: &[Branch], mode: Mode) -> Self {
        let (mut start, mut pieces) = (0, Vec::<Piece>::with_capacity(branches.len()));
        for branch in branches {
            let rows = start..start + branch.tokens;
            start = rows.end;
            let past = branch.after.and_then(|run| pieces.get(run)).map_or_else(Vec::new, |before| {
                let own = before.rows.clone();
                before.past.iter().cloned().chain([own]).collect()
            });
            pieces.push(Piece { rows, past, causal: true });
        }
        Self { pieces: pieces.into(), mode }
    }

    /// Of one run: its queries, and the keys and values of all that it sees, its own last.
    fn one(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let (tokens, heads, width) = query.dims3()?;
        let (seen, kv_heads, _) = key.dims3()?;
        let group = heads / kv_heads;
        // The query heads of one key head become rows of one product.
        let query = query.reshape((tokens, kv_heads, group, width))?.permute((1, 2, 0, 3))?.contiguous()?;
        let query = query.reshape((kv_heads, group * tokens, width))?;
        let key = key.permute((1, 2, 0))?.contiguous()?;
        let value = value.permute((1, 0, 2))?.contiguous()?;
        let scores = (query.matmul(&key)? * (1.0 / (width as f64).sqrt()))?;
        let scores = scores.reshape((kv_heads, group, tokens, seen))?;
        let scores = scores.broadcast_add(&mask(tokens, seen, scores.dtype(), scores.device())?)?;
        let shares = self.mode.softmax(&scores)?.reshape((kv_heads, group * tokens, seen))?;
        let read = shares.matmul(&value)?.reshape((kv_heads, group, tokens, width))?;
        read.permute((2, 0, 1, 3))?.contiguous()?.reshape((tokens, heads * width))
    }
}

/// `[tokens, seen]`: 0 for what a row may see, else minus infinity. The last of the seen is the last row itself.
fn mask(tokens: usize, seen: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let past = seen - tokens;
    let row = |row: usize| (0..seen).map(move |column| if column > past + row { f32::NEG_INFINITY } else { 0.0 });
    Tensor::from_iter((0..tokens).flat_map(row), device)?.reshape((tokens, seen))?.to_dtype(dtype)
}

impl Attend for Causal {
    fn attend(&mut self, _layer: usize, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let tokens = self.pieces.last().map_or(0, |last| last.rows.end);
        if query.dim(0)? != tokens {
            bail!("{} tokens where sequences of {tokens} in all were announced", query.dim(0)?);
        }
        if self.mode == Mode::Training && graded::applies(query) {
            return graded::attention(query, key, value, &self.pieces);
        }
        let mut parts = Vec::with_capacity(self.pieces.len());
        for piece in self.pieces.iter().filter(|piece| !piece.rows.is_empty()) {
            let part = |x: &Tensor, rows: &Range<usize>| x.narrow(0, rows.start, rows.len());
            let seen = |x: &Tensor| {
                let rows = piece.past.iter().filter(|rows| !rows.is_empty()).chain([&piece.rows]);
                Tensor::cat(&rows.map(|rows| part(x, rows)).collect::<Result<Vec<_>>>()?, 0)
            };
            parts.push(self.one(&part(query, &piece.rows)?, &seen(key)?, &seen(value)?)?);
        }
        Tensor::cat(&parts, 0)
    }
}
