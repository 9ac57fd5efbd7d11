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

use crate::model::cpu::{floats, math};
use crate::model::{Attend, AttendByRows};

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
        self.write(layer, key, value)?;
        self.read(layer, query, 0..key.dim(0)?)
    }

    fn by_rows(&mut self) -> Option<&mut dyn AttendByRows> {
        Some(self)
    }
}

impl AttendByRows for CpuPass<'_> {
    fn write(&mut self, layer: usize, key: &Tensor, value: &Tensor) -> Result<()> {
        let shape = self.cache.shape;
        let tokens = key.dim(0)?;
        if key.dims() != [tokens, shape.kv_heads, shape.head_dim] || value.dims() != key.dims() {
            candle_core::bail!("keys and values are not of the cache's shape");
        }
        let Some(layer) = self.cache.layers.get_mut(layer) else { candle_core::bail!("the cache has fewer layers") };
        for segment in self.segments {
            layer.check(shape, segment)?;
            if segment.rows.end > tokens {
                candle_core::bail!("a sequence's rows are not in the batch");
            }
        }
        floats(key, |key| {
            floats(value, |value| {
                self.segments.iter().for_each(|segment| layer.write(shape, segment, key, value));
                Ok(())
            })
        })
    }

    fn read(&self, layer: usize, query: &Tensor, rows: Range<usize>) -> Result<Tensor> {
        let (tokens, heads, head_dim) = query.dims3()?;
        let shape = self.cache.shape;
        if tokens != rows.len() || head_dim != shape.head_dim || !heads.is_multiple_of(shape.kv_heads) {
            candle_core::bail!("queries do not go with the cache's keys");
        }
        let Some(layer) = self.cache.layers.get(layer) else { candle_core::bail!("the cache has fewer layers") };
        self.segments.iter().try_for_each(|segment| layer.check(shape, segment))?;
        let output =
            floats(&query.contiguous()?, |query| Ok(layer.read(shape, self.segments, query, rows.clone(), heads)))?;
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

    /// That its blocks are there and hold its tokens.
    fn check(&self, shape: Shape, segment: &Segment<'_>) -> Result<()> {
        let enough = segment.past + segment.rows.len() <= segment.blocks.len() * BLOCK;
        let there = segment.blocks.iter().all(|block| (*block as usize + 1) * shape.block() <= self.keys.len());
        if !enough || !there {
            candle_core::bail!("a sequence's blocks do not hold its tokens");
        }
        Ok(())
    }

    /// What some rows of the batch read: `[rows, heads, head_dim]`, as `query`.
    fn read(
        &self,
        shape: Shape,
        segments: &[Segment<'_>],
        query: &[f32],
        rows: Range<usize>,
        heads: usize,
    ) -> Vec<f32> {
        let Shape { kv_heads, head_dim } = shape;
        let group = heads / kv_heads;
        let mut output = vec![0.0; rows.len() * heads * head_dim];
        // Each segment with those of its rows that are asked for.
        let parts: Vec<(&Segment<'_>, Range<usize>)> = segments
            .iter()
            .map(|segment| {
                let numbers = |row: usize| row.clamp(segment.rows.start, segment.rows.end) - segment.rows.start;
                (segment, numbers(rows.start)..numbers(rows.end))
            })
            .collect();
        let keys = parts.iter().map(|(segment, numbers)| numbers.len() * (segment.past + numbers.end));
        let work = keys.sum::<usize>() * heads * head_dim;
        let threads = rayon::current_num_threads();
        // Shares of some rows and one key head: its queries stand side by side in a row.
        let rows_a_share = if threads == 1 || work < SHARED_FROM { usize::MAX } else { ROWS * 4 };
        let mut shares = Vec::new();
        for (segment, all) in parts {
            for head in 0..kv_heads {
                let mut numbers = all.start..all.start;
                while numbers.end < all.end {
                    numbers = numbers.end..all.end.min(numbers.end.saturating_add(rows_a_share));
                    let (first, numbers) = (rows.start, numbers.clone());
                    shares.push(Share { layer: self, shape, segment, numbers, head, group, query, first });
                }
            }
        }
        let mut put = |share: &Share<'_>, part: &[f32]| {
            let width = group * head_dim;
            for (number, from) in share.numbers.clone().zip(part.chunks_exact(width)) {
                let at = ((share.segment.rows.start + number - rows.start) * kv_heads + share.head) * width;
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
    /// Which row of the batch its first is.
    first: usize,
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
                let token = self.segment.rows.start + number - self.first;
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
        // Vectors of a block, and of a piece of a value that stays in registers with one or two rows, and with more.
        match S::F32_LANES {
            16 => self.rows::<S, 1, 4, 4>(simd),
            8 => self.rows::<S, 2, 4, 2>(simd),
            4 => self.rows::<S, 4, 4, 2>(simd),
            _ => self.rows::<S, BLOCK, 4, 2>(simd),
        }
    }
}

impl Tile<'_> {
    #[inline(always)]
    fn rows<S: Simd, const V: usize, const FEW: usize, const MANY: usize>(self, simd: S) {
        match self.seen.len() {
            1 => self.all::<S, 1, V, FEW>(simd),
            2 => self.all::<S, 2, V, FEW>(simd),
            3 => self.all::<S, 3, V, MANY>(simd),
            _ => self.all::<S, ROWS, V, MANY>(simd),
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
        // Scores. One or two rows alone would wait for each sum: they meet two blocks at a time.
        let queries: [&[f32]; R] = std::array::from_fn(|row| &query[row * head_dim..][..head_dim]);
        let block = |block: &u32| {
            let at = share.shape.at(*block, share.head);
            let (vectors, _) = S::as_simd_f32s(&share.layer.keys[at..at + head_dim * BLOCK]);
            vectors.as_chunks::<V>().0
        };
        let (pairs, single) = if R <= 2 { blocks.as_chunks::<2>() } else { (&[][..], blocks) };
        for (number, pair) in pairs.iter().enumerate() {
            let scores = scores::<S, R, V, 2>(simd, queries, [block(&pair[0]), block(&pair[1])]);
            put(&scores, weights, keys, 2 * number);
        }
        for (number, single) in single.iter().enumerate() {
            put(&scores::<S, R, V, 1>(simd, queries, [block(single)]), weights, keys, 2 * pairs.len() + number);
        }
        // Softmax, not yet divided by its sum. What a row does not see weighs nothing.
        let mut total = [0.0; R];
        for ((row, seen), total) in weights.chunks_exact_mut(keys).zip(seen).zip(&mut total) {
            let (row, unseen) = row.split_at_mut(*seen);
            unseen.fill(0.0);
            *total = math::softmax(row);
        }
        // Values, a piece of the head at a time.
        let lanes = PIECE * S::F32_LANES;
        let whole = head_dim.is_multiple_of(lanes);
        let rows: [&[f32]; R] = std::array::from_fn(|row| &weights[row * keys..][..keys]);
        let mut first = 0;
        while first < head_dim {
            let mut sums = [[simd.splat_f32s(0.0); PIECE]; R];
            let piece = lanes.min(head_dim - first);
            for (number, block) in blocks.iter().enumerate() {
                let at = share.shape.at(*block, share.head);
                let values = &share.layer.values[at..at + head_dim * BLOCK];
                let from = number * BLOCK;
                let held = from..most.min(from + BLOCK);
                let weights: [&[f32]; R] = std::array::from_fn(|row| &rows[row][held.clone()]);
                if whole {
                    let (values, _) = S::as_simd_f32s(values);
                    let (values, _) = values.as_chunks::<PIECE>();
                    let values = values.iter().skip(first / lanes).step_by(head_dim / lanes);
                    add(simd, values, weights, &mut sums);
                } else {
                    let values = values.chunks_exact(head_dim);
                    let values = values.map(|value| vectors_of::<S, PIECE>(simd, &value[first..first + piece]));
                    add(simd, values, weights, &mut sums);
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

/// Products of each query with the keys of some blocks.
#[inline(always)]
fn scores<S: Simd, const R: usize, const V: usize, const B: usize>(
    simd: S,
    queries: [&[f32]; R],
    blocks: [&[[S::f32s; V]]; B],
) -> [[[S::f32s; V]; B]; R] {
    let mut sums = [[[simd.splat_f32s(0.0); V]; B]; R];
    let depth = blocks.iter().map(|keys| keys.len()).chain(queries.iter().map(|query| query.len())).min().unwrap_or(0);
    let (queries, blocks) = (queries.map(|query| &query[..depth]), blocks.map(|keys| &keys[..depth]));
    for at in 0..depth {
        for (sums, query) in sums.iter_mut().zip(&queries) {
            let query = simd.splat_f32s(query[at]);
            for (sums, keys) in sums.iter_mut().zip(&blocks) {
                for (sum, key) in sums.iter_mut().zip(&keys[at]) {
                    *sum = simd.mul_add_e_f32s(query, *key, *sum);
                }
            }
        }
    }
    sums
}

/// Puts scores where the blocks' keys stand in each row's weights.
#[inline(always)]
fn put<F: bytemuck::NoUninit, const R: usize, const V: usize, const B: usize>(
    scores: &[[[F; V]; B]; R],
    weights: &mut [f32],
    keys: usize,
    block: usize,
) {
    for (row, scores) in scores.iter().enumerate() {
        let scores: &[f32] = bytemuck::cast_slice(scores.as_flattened());
        weights[row * keys + block * BLOCK..][..scores.len()].copy_from_slice(scores);
    }
}

/// Adds to each row's sums a piece of some values, weighed.
#[inline(always)]
fn add<S: Simd, V: std::borrow::Borrow<[S::f32s; PIECE]>, const R: usize, const PIECE: usize>(
    simd: S,
    values: impl Iterator<Item = V>,
    weights: [&[f32]; R],
    sums: &mut [[S::f32s; PIECE]; R],
) {
    let held = weights.iter().map(|weights| weights.len()).min().unwrap_or(0);
    for (slot, value) in values.take(held).enumerate() {
        for (weights, sums) in weights.iter().zip(sums.iter_mut()) {
            let weight = simd.splat_f32s(weights[slot]);
            for (sum, value) in sums.iter_mut().zip(value.borrow()) {
                *sum = simd.mul_add_e_f32s(weight, *value, *sum);
            }
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
