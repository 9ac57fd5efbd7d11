//! Keys and values on the CPU, in blocks, and attention of a ragged batch over them.
//!
//! Knows what the scheduler decided (which rows belong to whom, and where the past of each lies), and nothing of why.
//!
//! A block's keys stand transposed, `[head_dim, BLOCK]`, so that a query meets a whole block at once. For each query the
//! order of all sums follows from its own past alone: neither the other sequences of a batch, nor how a prompt was cut into
//! chunks, nor the number of threads changes a bit of the result.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use pulp::{Arch, Simd, WithSimd, bytemuck};
use rayon::prelude::*;

use crate::model::Attend;
use crate::model::cpu::{floats, math};

/// Tokens of a block.
pub const BLOCK: usize = 16;
/// Query rows that read a key at the same time.
const ROWS: usize = 4;
/// Multiplications below which a second thread costs more than it brings.
const SHARED_FROM: usize = 1 << 16;

/// Keys and values of all sequences: for each layer `blocks` blocks of [`BLOCK`] tokens.
#[derive(Debug)]
pub struct CpuCache {
    layers: Vec<Layer>,
    shape: Shape,
}

#[derive(Debug)]
struct Layer {
    /// `[blocks, kv_heads, head_dim, BLOCK]`
    keys: Vec<f32>,
    /// `[blocks, kv_heads, BLOCK, head_dim]`
    values: Vec<f32>,
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    kv_heads: usize,
    head_dim: usize,
}

impl Shape {
    /// Numbers of one block, all heads.
    const fn block(self) -> usize {
        self.kv_heads * self.head_dim * BLOCK
    }

    /// Where a head of a block begins.
    const fn at(self, block: u32, head: usize) -> usize {
        (block as usize * self.kv_heads + head) * self.head_dim * BLOCK
    }
}

/// The rows of one sequence in a batch.
#[derive(Debug, Clone)]
pub struct Segment<'a> {
    /// Its rows in the batch.
    pub rows: Range<usize>,
    /// Tokens of it that are in the cache already: the position of its first row.
    pub past: usize,
    /// Its blocks in order: as many as `past` and the rows fill.
    pub blocks: &'a [u32],
}

impl CpuCache {
    /// Room for `blocks` blocks in each of `layers` layers. The system gives memory for a block when it is first written.
    #[must_use]
    pub fn new(layers: usize, blocks: usize, kv_heads: usize, head_dim: usize) -> Self {
        let shape = Shape { kv_heads, head_dim };
        let room = || vec![0.0; blocks * shape.block()];
        Self { layers: (0..layers).map(|_| Layer { keys: room(), values: room() }).collect(), shape }
    }

    /// Attention for one pass of the model over these segments.
    #[must_use]
    pub const fn pass<'a>(&'a mut self, segments: &'a [Segment<'a>]) -> CpuPass<'a> {
        CpuPass { cache: self, segments }
    }
}

/// One pass of the model: writes the new keys and values, reads all.
#[derive(Debug)]
pub struct CpuPass<'a> {
    cache: &'a mut CpuCache,
    segments: &'a [Segment<'a>],
}

impl Attend for CpuPass<'_> {
    fn attend(&mut self, layer: usize, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let (tokens, heads, head_dim) = query.dims3()?;
        let shape = self.cache.shape;
        if key.dims() != [tokens, shape.kv_heads, shape.head_dim] || value.dims() != key.dims() {
            candle_core::bail!("keys and values are not of the cache's shape");
        }
        if head_dim != shape.head_dim || !heads.is_multiple_of(shape.kv_heads) {
            candle_core::bail!("queries do not go with the cache's keys");
        }
        let Some(layer) = self.cache.layers.get_mut(layer) else { candle_core::bail!("the cache has fewer layers") };
        for segment in self.segments {
            let enough = segment.past + segment.rows.len() <= segment.blocks.len() * BLOCK;
            let there = segment.blocks.iter().all(|block| (*block as usize + 1) * shape.block() <= layer.keys.len());
            if !enough || !there || segment.rows.end > tokens {
                candle_core::bail!("a sequence's blocks do not hold its tokens");
            }
        }
        let output = floats(query, |query| {
            floats(key, |key| {
                floats(value, |value| {
                    for segment in self.segments {
                        layer.write(shape, segment, key, value);
                    }
                    Ok(layer.read(shape, self.segments, query, tokens, heads))
                })
            })
        })?;
        Tensor::from_vec(output, (tokens, heads * head_dim), &Device::Cpu)
    }
}

/// Where a row's token lies: its block, and its place there.
const fn place(segment: &Segment<'_>, number: usize) -> (u32, usize) {
    let position = segment.past + number;
    (segment.blocks[position / BLOCK], position % BLOCK)
}

impl Layer {
    fn write(&mut self, shape: Shape, segment: &Segment<'_>, key: &[f32], value: &[f32]) {
        let Shape { kv_heads, head_dim } = shape;
        for (number, row) in segment.rows.clone().enumerate() {
            let (block, slot) = place(segment, number);
            for head in 0..kv_heads {
                let from = (row * kv_heads + head) * head_dim;
                let at = shape.at(block, head);
                let keys = &mut self.keys[at..at + head_dim * BLOCK];
                for (to, key) in keys.iter_mut().skip(slot).step_by(BLOCK).zip(&key[from..from + head_dim]) {
                    *to = *key;
                }
                let at = at + slot * head_dim;
                self.values[at..at + head_dim].copy_from_slice(&value[from..from + head_dim]);
            }
        }
    }

    /// `[tokens, heads, head_dim]`
    fn read(&self, shape: Shape, segments: &[Segment<'_>], query: &[f32], tokens: usize, heads: usize) -> Vec<f32> {
        let Shape { kv_heads, head_dim } = shape;
        let group = heads / kv_heads;
        let mut output = vec![0.0; tokens * heads * head_dim];
        let work: usize =
            segments.iter().map(|s| s.rows.len() * (s.past + s.rows.len())).sum::<usize>() * heads * head_dim;
        let threads = rayon::current_num_threads();
        // Shares of some rows and one key head: its queries stand side by side in a row.
        let rows_a_share = if threads == 1 || work < SHARED_FROM { usize::MAX } else { ROWS * 4 };
        let mut shares = Vec::new();
        for segment in segments {
            for head in 0..kv_heads {
                let mut numbers = 0..0;
                while numbers.end < segment.rows.len() {
                    numbers = numbers.end..segment.rows.len().min(numbers.end.saturating_add(rows_a_share));
                    shares.push(Share { layer: self, shape, segment, numbers: numbers.clone(), head, group, query });
                }
            }
        }
        let mut put = |share: &Share<'_>, part: &[f32]| {
            let width = group * head_dim;
            for (number, from) in share.numbers.clone().zip(part.chunks_exact(width)) {
                let at = ((share.segment.rows.start + number) * kv_heads + share.head) * width;
                output[at..at + width].copy_from_slice(from);
            }
        };
        if rows_a_share == usize::MAX {
            let mut room = Room::default();
            for share in &shares {
                share.run(&mut room);
                put(share, &room.output);
            }
        } else {
            let one = |share: &Share<'_>| {
                let mut room = Room::default();
                share.run(&mut room);
                room.output
            };
            let parts: Vec<Vec<f32>> = shares.par_iter().map(one).collect();
            for (share, part) in shares.iter().zip(&parts) {
                put(share, part);
            }
        }
        output
    }
}

/// What one thread does at a time: some rows of a sequence, all query heads of one key head.
struct Share<'a> {
    layer: &'a Layer,
    shape: Shape,
    segment: &'a Segment<'a>,
    /// Which of the segment's rows.
    numbers: Range<usize>,
    head: usize,
    /// Query heads of a key head.
    group: usize,
    query: &'a [f32],
}

/// Buffers that are used again.
#[derive(Default)]
struct Room {
    /// `[ROWS, head_dim]`, scaled.
    query: Vec<f32>,
    /// `[ROWS, keys]`
    weights: Vec<f32>,
    /// `[rows, group, head_dim]`
    output: Vec<f32>,
}

impl Share<'_> {
    fn run(&self, room: &mut Room) {
        let head_dim = self.shape.head_dim;
        let width = self.group * head_dim;
        room.output.clear();
        room.output.resize(self.numbers.len() * width, 0.0);
        let mut output = std::mem::take(&mut room.output);
        let scale = 1.0 / (head_dim as f32).sqrt();
        // Query rows: every query head of every token, in order.
        let count = self.numbers.len() * self.group;
        for (tile, output) in output.chunks_mut(ROWS * head_dim).enumerate() {
            let rows = tile * ROWS..((tile + 1) * ROWS).min(count);
            room.query.clear();
            let mut seen = [0; ROWS];
            for (row, seen) in rows.clone().zip(&mut seen) {
                let number = self.numbers.start + row / self.group;
                let token = self.segment.rows.start + number;
                let at = (token * self.shape.kv_heads + self.head) * width + row % self.group * head_dim;
                room.query.extend(self.query[at..at + head_dim].iter().map(|query| query * scale));
                *seen = self.segment.past + number + 1;
            }
            let tile =
                Tile { share: self, query: &room.query, seen: &seen[..rows.len()], weights: &mut room.weights, output };
            Arch::new().dispatch(tile);
        }
        room.output = output;
    }
}

/// Up to [`ROWS`] query rows against all keys that they see.
struct Tile<'a> {
    share: &'a Share<'a>,
    query: &'a [f32],
    /// How many keys each row sees.
    seen: &'a [usize],
    weights: &'a mut Vec<f32>,
    output: &'a mut [f32],
}

impl WithSimd for Tile<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Vectors of a block, and of a piece of a value that stays in registers.
        match S::F32_LANES {
            16 => self.rows::<S, 1, 4>(simd),
            8 => self.rows::<S, 2, 2>(simd),
            4 => self.rows::<S, 4, 2>(simd),
            _ => self.rows::<S, BLOCK, 2>(simd),
        }
    }
}

impl Tile<'_> {
    #[inline(always)]
    fn rows<S: Simd, const V: usize, const PIECE: usize>(self, simd: S) {
        match self.seen.len() {
            1 => self.all::<S, 1, V, PIECE>(simd),
            2 => self.all::<S, 2, V, PIECE>(simd),
            3 => self.all::<S, 3, V, PIECE>(simd),
            _ => self.all::<S, ROWS, V, PIECE>(simd),
        }
    }

    #[inline(always)]
    fn all<S: Simd, const R: usize, const V: usize, const PIECE: usize>(self, simd: S) {
        let Self { share, query, seen, weights, output } = self;
        let Shape { head_dim, .. } = share.shape;
        let most = seen.iter().copied().max().unwrap_or(0);
        let blocks = &share.segment.blocks[..most.div_ceil(BLOCK)];
        let keys = blocks.len() * BLOCK;
        weights.clear();
        weights.resize(R * keys, 0.0);
        // Scores.
        let queries: [&[f32]; R] = std::array::from_fn(|row| &query[row * head_dim..][..head_dim]);
        for (number, block) in blocks.iter().enumerate() {
            let at = share.shape.at(*block, share.head);
            let (vectors, _) = S::as_simd_f32s(&share.layer.keys[at..at + head_dim * BLOCK]);
            let (vectors, _) = vectors.as_chunks::<V>();
            let mut sums = [[simd.splat_f32s(0.0); V]; R];
            for (at, keys) in vectors[..head_dim].iter().enumerate() {
                for (sums, query) in sums.iter_mut().zip(&queries) {
                    let query = simd.splat_f32s(query[at]);
                    for (sum, key) in sums.iter_mut().zip(keys) {
                        *sum = simd.mul_add_e_f32s(query, *key, *sum);
                    }
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                let at = row * keys + number * BLOCK;
                weights[at..at + BLOCK].copy_from_slice(bytemuck::cast_slice(sums));
            }
        }
        // Softmax, not yet divided by its sum. What a row does not see weighs nothing.
        let mut total = [0.0; R];
        for ((row, seen), total) in weights.chunks_exact_mut(keys).zip(seen).zip(&mut total) {
            let (row, unseen) = row.split_at_mut(*seen);
            unseen.fill(0.0);
            *total = softmax(row);
        }
        // Values, a piece of the head at a time.
        let lanes = PIECE * S::F32_LANES;
        let mut first = 0;
        while first < head_dim {
            let mut sums = [[simd.splat_f32s(0.0); PIECE]; R];
            let piece = lanes.min(head_dim - first);
            for (number, block) in blocks.iter().enumerate() {
                let at = share.shape.at(*block, share.head);
                let values = &share.layer.values[at..at + head_dim * BLOCK];
                let held = BLOCK.min(most - number * BLOCK);
                for (slot, value) in values.chunks_exact(head_dim).take(held).enumerate() {
                    let value = vectors_of::<S, PIECE>(simd, &value[first..first + piece]);
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let weight = simd.splat_f32s(weights[row * keys + number * BLOCK + slot]);
                        for (sum, value) in sums.iter_mut().zip(&value) {
                            *sum = simd.mul_add_e_f32s(weight, *value, *sum);
                        }
                    }
                }
            }
            for ((sums, total), output) in sums.iter().zip(&total).zip(output.chunks_exact_mut(head_dim)) {
                let sums: &[f32] = bytemuck::cast_slice(sums);
                for (to, sum) in output[first..first + piece].iter_mut().zip(sums) {
                    *to = sum / total;
                }
            }
            first += piece;
        }
    }
}

/// Up to `N` vectors of numbers; what is missing is 0.
#[inline(always)]
fn vectors_of<S: Simd, const N: usize>(simd: S, numbers: &[f32]) -> [S::f32s; N] {
    let (whole, rest) = S::as_simd_f32s(numbers);
    std::array::from_fn(|at| match whole.get(at) {
        Some(vector) => *vector,
        None if at == whole.len() && !rest.is_empty() => simd.partial_load_f32s(rest),
        None => simd.splat_f32s(0.0),
    })
}

/// Exponentials of the scores less the largest, in place, and their sum.
#[inline(always)]
fn softmax(scores: &mut [f32]) -> f32 {
    let mut most = [f32::NEG_INFINITY; BLOCK];
    let (whole, rest) = scores.as_chunks_mut::<BLOCK>();
    for block in whole.iter() {
        for (most, score) in most.iter_mut().zip(block) {
            *most = if *score > *most { *score } else { *most };
        }
    }
    let most = most.iter().chain(rest.iter()).copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0; BLOCK];
    for block in whole {
        for (sum, score) in sums.iter_mut().zip(block) {
            *score = math::exp(*score - most);
            *sum += *score;
        }
    }
    for (sum, score) in sums.iter_mut().zip(rest) {
        *score = math::exp(*score - most);
        *sum += *score;
    }
    sums.iter().sum()
}
