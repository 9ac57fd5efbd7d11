//! Attention for training on the CPU: shares are never kept, but computed again on the way back, a block of queries at a time.
//!
//! What a token sees is said by pieces: runs of rows that see themselves and, whole, some rows before them. So rows that
//! several sequences begin with are there once.

use std::ops::Range;
use std::sync::Arc;

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, CustomOp3, Device, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use crate::model::cpu::{floats, gradient, math, slice};

/// Queries in a block. The last one of a causal block sees as many keys as the first, and so many more.
const BLOCK: usize = 64;

/// A run of rows and what it sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::model) struct Piece {
    /// The rows, which see each other.
    pub(in crate::model) rows: Range<usize>,
    /// Rows that each of them sees besides.
    pub(in crate::model) past: Vec<Range<usize>>,
    /// A row sees of its own run only those up to itself.
    pub(in crate::model) causal: bool,
}

/// Attention over pieces.
struct Pieces {
    pieces: Arc<[Piece]>,
}

/// `query` is `[rows, heads, width]`, `key` and `value` are `[rows, kv_heads, width]`; the pieces cover all rows, each once.
/// Query heads share key heads in runs. Scores are scaled by `1 / sqrt(width)`. The result is `[rows, heads * width]`.
pub(in crate::model) fn attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    pieces: &Arc<[Piece]>,
) -> Result<Tensor> {
    let ((rows, heads, width), (kv_rows, kv_heads, _)) = (query.dims3()?, key.dims3()?);
    let fits = kv_rows == rows && value.dims() == key.dims() && key.dim(2)? == width;
    if !fits || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
        bail!("attention of {:?}, {:?} and {:?}", query.dims(), key.dims(), value.dims());
    }
    let covered: usize = pieces.iter().map(|piece| piece.rows.len()).sum();
    let inside = |range: &Range<usize>| range.start <= range.end && range.end <= rows;
    if covered != rows || !pieces.iter().all(|piece| inside(&piece.rows) && piece.past.iter().all(inside)) {
        bail!("pieces of {covered} rows for {rows}");
    }
    query.contiguous()?.apply_op3(&key.contiguous()?, &value.contiguous()?, Pieces { pieces: Arc::clone(pieces) })
}

/// One key head of one piece.
#[derive(Clone, Copy)]
struct Task<'a> {
    piece: &'a Piece,
    head: usize,
    sizes: Sizes,
}

#[derive(Clone, Copy)]
struct Sizes {
    /// Query heads for each key head.
    group: usize,
    kv_heads: usize,
    width: usize,
}

/// Gradients of one task: of its queries in the order of [`Task::queries`], of its keys and values in that of [`Task::keys`].
struct Back {
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
}

impl Task<'_> {
    fn scale(&self) -> f32 {
        1.0 / (self.sizes.width as f32).sqrt()
    }

    fn past(&self) -> usize {
        self.piece.past.iter().map(Range::len).sum()
    }

    /// Where each row that is seen begins in keys or values, past first.
    fn key_rows(&self) -> impl Iterator<Item = Range<usize>> {
        let Sizes { kv_heads, width, .. } = self.sizes;
        let rows = self.piece.past.iter().cloned().chain([self.piece.rows.clone()]).flatten();
        rows.map(move |row| {
            let start = (row * kv_heads + self.head) * width;
            start..start + width
        })
    }

    /// Keys or values, `[seen, width]`.
    fn keys(&self, from: &[f32]) -> Vec<f32> {
        let mut keys = Vec::with_capacity((self.past() + self.piece.rows.len()) * self.sizes.width);
        self.key_rows().for_each(|row| keys.extend_from_slice(&from[row]));
        keys
    }

    /// Where the group of query heads of each of some rows stands.
    fn query_rows(&self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let Sizes { group, kv_heads, width } = self.sizes;
        rows.map(move |row| {
            let start = (row * kv_heads + self.head) * group * width;
            start..start + group * width
        })
    }

    /// Queries of some rows, or what is shaped like them: `[rows * group, width]`.
    fn queries(&self, from: &[f32], rows: Range<usize>, scale: f32) -> Vec<f32> {
        let mut queries = Vec::with_capacity(rows.len() * self.sizes.group * self.sizes.width);
        self.query_rows(rows).for_each(|row| queries.extend(from[row].iter().map(|query| query * scale)));
        queries
    }

    /// Blocks of rows, each with how many keys its last row sees.
    fn blocks(&self) -> impl Iterator<Item = (Range<usize>, usize)> {
        let (rows, past) = (self.piece.rows.clone(), self.past());
        rows.clone().step_by(BLOCK).map(move |first| {
            let block = first..(first + BLOCK).min(rows.end);
            let until = if self.piece.causal { block.end } else { rows.end };
            (block, past + until - rows.start)
        })
    }

    /// The shares of a block's queries in the first `seen` keys: `[rows * group, seen]`.
    fn shares(&self, query: &CpuStorage, key: &CpuStorage, block: &Range<usize>, seen: usize) -> Result<Vec<f32>> {
        let Sizes { group, width, .. } = self.sizes;
        let mut shares = product(query, (block.len() * group, width), key, (seen, width), By::Rows)?;
        if !self.piece.causal {
            math::softmax_rows(&mut shares, seen);
            return Ok(shares);
        }
        let first = self.past() + block.start - self.piece.rows.start;
        for (row, shares) in shares.chunks_exact_mut(seen).enumerate() {
            let (visible, hidden) = shares.split_at_mut(first + row / group + 1);
            math::softmax_rows(visible, visible.len());
            hidden.fill(0.0);
        }
        Ok(shares)
    }

    /// What its queries read: `[rows * group, width]`.
    fn forward(&self, query: &[f32], key: &[f32], value: &[f32]) -> Result<Vec<f32>> {
        let Sizes { group, width, .. } = self.sizes;
        let (key, value) = (CpuStorage::F32(self.keys(key)), CpuStorage::F32(self.keys(value)));
        let mut read = Vec::with_capacity(self.piece.rows.len() * group * width);
        for (block, seen) in self.blocks() {
            let query = CpuStorage::F32(self.queries(query, block.clone(), self.scale()));
            let shares = CpuStorage::F32(self.shares(&query, &key, &block, seen)?);
            read.extend(product(&shares, (block.len() * group, seen), &value, (seen, width), By::Columns)?);
        }
        Ok(read)
    }

    fn back(&self, query: &[f32], key: &[f32], value: &[f32], dy: &[f32]) -> Result<Back> {
        let Sizes { group, width, .. } = self.sizes;
        let (key, value) = (CpuStorage::F32(self.keys(key)), CpuStorage::F32(self.keys(value)));
        let length = (self.past() + self.piece.rows.len()) * width;
        let mut back = Back { query: Vec::new(), key: vec![0.0; length], value: vec![0.0; length] };
        for (block, seen) in self.blocks() {
            let rows = block.len() * group;
            let query = CpuStorage::F32(self.queries(query, block.clone(), self.scale()));
            let dy = CpuStorage::F32(self.queries(dy, block.clone(), 1.0));
            let shares = self.shares(&query, &key, &block, seen)?;
            let mut scores = product(&dy, (rows, width), &value, (seen, width), By::Rows)?;
            gradient::softmax_rows(&shares, &mut scores, seen);
            let (shares, scores) = (CpuStorage::F32(shares), CpuStorage::F32(scores));
            add(&mut back.value, &product_of_columns(&shares, (rows, seen), &dy, width)?);
            add(&mut back.key, &product_of_columns(&scores, (rows, seen), &query, width)?);
            let dquery = product(&scores, (rows, seen), &key, (seen, width), By::Columns)?;
            back.query.extend(dquery.iter().map(|dquery| dquery * self.scale()));
        }
        Ok(back)
    }
}

fn add(to: &mut [f32], what: &[f32]) {
    to.iter_mut().zip(what).for_each(|(to, what)| *to += what);
}

/// What a product sums along in its right side.
#[derive(Clone, Copy)]
enum By {
    /// Along rows: `L Rᵀ`.
    Rows,
    /// Along columns: `L R`.
    Columns,
}

/// The product of a matrix with one of so many rows and columns, which stand first in what is given.
fn product(
    left: &CpuStorage,
    (rows, width): (usize, usize),
    right: &CpuStorage,
    (height, across): (usize, usize),
    by: By,
) -> Result<Vec<f32>> {
    let left_layout = Layout::contiguous((rows, width));
    let right_layout = Layout::contiguous((height, across));
    let (right_layout, outer) = match by {
        By::Rows => (right_layout.transpose(0, 1)?, height),
        By::Columns => (right_layout, across),
    };
    numbers(left.matmul(right, (1, rows, outer, width), &left_layout, &right_layout)?)
}

/// `Lᵀ R` of `[rows, seen]` and `[rows, width]`: `[seen, width]`.
fn product_of_columns(
    left: &CpuStorage,
    (rows, seen): (usize, usize),
    right: &CpuStorage,
    width: usize,
) -> Result<Vec<f32>> {
    let left_layout = Layout::contiguous((rows, seen)).transpose(0, 1)?;
    numbers(left.matmul(right, (1, seen, width, rows), &left_layout, &Layout::contiguous((rows, width)))?)
}

fn numbers(storage: CpuStorage) -> Result<Vec<f32>> {
    match storage {
        CpuStorage::F32(numbers) => Ok(numbers),
        _ => bail!("a product of another type"),
    }
}

impl Pieces {
    fn tasks(&self, sizes: Sizes) -> Vec<Task<'_>> {
        let heads = |piece| (0..sizes.kv_heads).map(move |head| Task { piece, head, sizes });
        self.pieces.iter().flat_map(heads).collect()
    }
}

fn sizes(query: &Shape, key: &Shape) -> Result<Sizes> {
    let ((_, heads, width), (_, kv_heads, _)) = (query.dims3()?, key.dims3()?);
    Ok(Sizes { group: heads / kv_heads, kv_heads, width })
}

impl CustomOp3 for Pieces {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        ql: &Layout,
        k: &CpuStorage,
        kl: &Layout,
        v: &CpuStorage,
        vl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (query, key, value) = (slice(q, ql)?, slice(k, kl)?, slice(v, vl)?);
        let tasks = self.tasks(sizes(ql.shape(), kl.shape())?);
        let read = tasks.par_iter().map(|task| task.forward(query, key, value)).collect::<Result<Vec<_>>>()?;
        let (rows, heads, width) = ql.shape().dims3()?;
        let mut output = vec![0.0; query.len()];
        for (task, read) in tasks.iter().zip(&read) {
            let runs = task.query_rows(task.piece.rows.clone());
            runs.zip(read.chunks_exact(task.sizes.group * width)).for_each(|(run, read)| {
                output[run].copy_from_slice(read);
            });
        }
        Ok((CpuStorage::F32(output), Shape::from((rows, heads * width))))
    }

    fn bwd(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        _: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let sizes = sizes(query.shape(), key.shape())?;
        let (tasks, dy) = (self.tasks(sizes), dy.contiguous()?);
        let back = floats(query, |query| {
            floats(key, |key| {
                floats(value, |value| {
                    floats(&dy, |dy| {
                        tasks.par_iter().map(|task| task.back(query, key, value, dy)).collect::<Result<Vec<_>>>()
                    })
                })
            })
        })?;
        let mut dquery = vec![0.0; query.elem_count()];
        let (mut dkey, mut dvalue) = (vec![0.0; key.elem_count()], vec![0.0; key.elem_count()]);
        for (task, back) in tasks.iter().zip(&back) {
            let runs = task.query_rows(task.piece.rows.clone());
            runs.zip(back.query.chunks_exact(sizes.group * sizes.width)).for_each(|(run, back)| {
                dquery[run].copy_from_slice(back);
            });
            for (row, (key, value)) in
                task.key_rows().zip(back.key.chunks_exact(sizes.width).zip(back.value.chunks_exact(sizes.width)))
            {
                add(&mut dkey[row.clone()], key);
                add(&mut dvalue[row], value);
            }
        }
        let like = |numbers, of: &Tensor| Tensor::from_vec(numbers, of.shape(), &Device::Cpu).map(Some);
        Ok((like(dquery, query)?, like(dkey, key)?, like(dvalue, value)?))
    }
}
