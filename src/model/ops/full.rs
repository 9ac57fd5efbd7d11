//! Attention of everything to everything inside a layer of a picture, and to nothing beyond.
//!
//! On the CPU each head of a layer is a task of its own that keeps its scores in its core's cache; elsewhere, and where
//! gradients are wanted, products of whole batches.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{D, Device, Result, Tensor};
use rayon::prelude::*;

use super::Mode;
use super::fused::{Rows, applies, rows_of};
use super::graded::{self, Piece};
use crate::model::cpu::math;
use crate::model::cpu::product::Packed;

/// Attention scores are computed for at most this many pairs at a time: 64 MiB of f32.
const SCORES_MAX: usize = 1 << 24;
/// The same for each task on the CPU, 256 KiB, but for at least so many queries: keys and values are read again for each part.
const TASK_SCORES_MAX: usize = 1 << 16;
const TASK_QUERIES_MIN: usize = 48;
/// Multiplications for which a task is handed to another thread.
const SHARED_FROM: usize = 1 << 18;

/// Layers of equal size that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model) struct Run {
    /// Rows of a layer.
    pub(in crate::model) patches: usize,
    pub(in crate::model) layers: usize,
}

impl Mode {
    /// Queries, keys and values, `[patches, heads * width]` each, to the same size. Their rows may lie apart. `runs` cover all
    /// rows.
    pub(in crate::model) fn full_attention(
        self,
        (query, key, value): (&Tensor, &Tensor, &Tensor),
        heads: usize,
        runs: &[Run],
    ) -> Result<Tensor> {
        let (patches, width) = query.dims2()?;
        let covered: usize = runs.iter().map(|run| run.patches * run.layers).sum();
        let alike = key.dims() == query.dims() && value.dims() == query.dims();
        let fits = covered == patches && runs.iter().all(|run| run.patches > 0);
        if !alike || !fits || heads == 0 || !width.is_multiple_of(heads) {
            candle_core::bail!("{heads} heads of {:?}, {:?} and {:?}", query.dims(), key.dims(), value.dims());
        }
        let scale = 1.0 / ((width / heads) as f64).sqrt();
        if self == Self::Inference && applies(query) {
            return rows_of(query, |query| {
                rows_of(key, |key| rows_of(value, |value| by_heads([query, key, value], heads, scale as f32, runs)))
            });
        }
        let split = |x: &Tensor| x.contiguous()?.reshape((patches, heads, width / heads));
        if self == Self::Training && graded::applies(query) {
            let pieces = pieces(runs);
            return graded::attention(&split(query)?, &split(key)?, &split(value)?, &pieces);
        }
        self.by_layers(&(split(query)? * scale)?, &split(key)?, &split(value)?, runs)
    }

    /// `[patches, heads, width]` each, the query scaled.
    fn by_layers(self, query: &Tensor, key: &Tensor, value: &Tensor, runs: &[Run]) -> Result<Tensor> {
        let (_, heads, width) = query.dims3()?;
        let mut parts = Vec::new();
        let mut start = 0;
        for run in runs {
            let at_once = (SCORES_MAX / (heads * run.patches * run.patches)).max(1);
            let mut left = run.layers;
            while left > 0 {
                let layers = left.min(at_once);
                let cut = |x: &Tensor| {
                    let x = x.narrow(0, start, layers * run.patches)?;
                    x.reshape((layers, run.patches, heads, width))?.transpose(1, 2)?.contiguous()
                };
                let read = self.products(&cut(query)?, &cut(key)?, &cut(value)?)?;
                parts.push(read.transpose(1, 2)?.contiguous()?.reshape((layers * run.patches, heads * width))?);
                start += layers * run.patches;
                left -= layers;
            }
        }
        Tensor::cat(&parts, 0)
    }

    /// `[layers, heads, patches, width]` each; a part of the queries at a time if they are many.
    fn products(self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let (layers, heads, patches, _) = query.dims4()?;
        let key = key.transpose(D::Minus2, D::Minus1)?;
        let at_once = (SCORES_MAX / (layers * heads * patches)).max(1);
        let part = |start: usize| {
            let count = at_once.min(patches - start);
            let query = if count == patches { query.clone() } else { query.narrow(2, start, count)?.contiguous()? };
            self.softmax(&query.matmul(&key)?)?.matmul(value)
        };
        if at_once >= patches {
            return part(0);
        }
        Tensor::cat(&(0..patches).step_by(at_once).map(part).collect::<Result<Vec<_>>>()?, 2)
    }
}

/// Each layer by itself.
fn pieces(runs: &[Run]) -> Arc<[Piece]> {
    let layers = runs.iter().flat_map(|run| std::iter::repeat_n(run.patches, run.layers));
    let piece = |start: &mut usize, patches: usize| {
        let rows = *start..*start + patches;
        *start = rows.end;
        Some(Piece { rows, past: Vec::new(), causal: false })
    };
    layers.scan(0, piece).collect()
}

/// For the CPU. `rows` are queries, keys and values.
fn by_heads(rows: [&Rows<'_>; 3], heads: usize, scale: f32, runs: &[Run]) -> Result<Tensor> {
    let width = rows[0].width() / heads;
    let (mut tasks, mut start, mut work) = (Vec::new(), 0, 0);
    for run in runs {
        for _ in 0..run.layers {
            let layer = start..start + run.patches;
            tasks.extend((0..heads).map(|head| (layer.clone(), head * width..(head + 1) * width)));
            work = work.max(run.patches * run.patches * width);
            start += run.patches;
        }
    }
    let read = |(layer, columns): &(Range<usize>, Range<usize>)| head(rows, layer, columns, scale);
    let at_least = SHARED_FROM.div_ceil(work.max(1));
    let parts = tasks.par_iter().with_min_len(at_least).map(read).collect::<Result<Vec<_>>>()?;
    let mut output = vec![0.0; start * heads * width];
    for ((layer, columns), part) in tasks.iter().zip(&parts) {
        let output = output.chunks_exact_mut(heads * width).skip(layer.start);
        for (output, part) in output.zip(part.chunks_exact(width)) {
            output[columns.clone()].copy_from_slice(part);
        }
    }
    Tensor::from_vec(output, (start, heads * width), &Device::Cpu)
}

/// One head of one layer.
fn head(
    [query, key, value]: [&Rows<'_>; 3],
    layer: &Range<usize>,
    columns: &Range<usize>,
    scale: f32,
) -> Result<Vec<f32>> {
    let (patches, width) = (layer.len(), columns.len());
    let part = |rows: &Rows<'_>| {
        let mut part = Vec::with_capacity(patches * width);
        layer.clone().for_each(|row| part.extend_from_slice(&rows.row(row)[columns.clone()]));
        part
    };
    let mut queries = part(query);
    queries.iter_mut().for_each(|query| *query *= scale);
    let mut values = vec![0.0; width * patches];
    for (patch, row) in layer.clone().enumerate() {
        let column = values.iter_mut().skip(patch).step_by(patches);
        column.zip(&value.row(row)[columns.clone()]).for_each(|(to, value)| *to = *value);
    }
    let packed = Packed::f32(&part(key), patches, width).zip(Packed::f32(&values, width, patches));
    let Some((keys, values)) = packed else { candle_core::bail!("a head of {patches} patches by {width}") };
    let mut output = Vec::with_capacity(patches * width);
    let at_once = (TASK_SCORES_MAX / patches.max(1)).max(TASK_QUERIES_MIN);
    for queries in queries.chunks(at_once * width.max(1)) {
        let mut scores = keys.product_here(queries);
        math::softmax_rows(&mut scores, patches);
        output.extend_from_slice(&values.product_here(&scores));
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: usize, width: usize, seed: usize) -> Tensor {
        let value = |i: usize| ((i * 37 + seed * 101) % 199) as f32 / 100.0 - 1.0;
        let values: Vec<f32> = (0..rows * width).map(value).collect();
        Tensor::from_vec(values, (rows, width), &Device::Cpu).expect("a matrix")
    }

    #[test]
    fn heads_on_the_cpu_read_what_products_read() {
        // The last layer does not fit into a task's scores.
        let runs = [Run { patches: 4, layers: 3 }, Run { patches: 40, layers: 1 }, Run { patches: 300, layers: 1 }];
        let (rows, hidden, heads) = (352, 24, 3);
        // Rows lie apart, as in a joint product.
        let joint = matrix(rows, 3 * hidden, 1);
        let part = |at: usize| joint.narrow(1, at * hidden, hidden).expect("a part");
        let read = |mode: Mode| mode.full_attention((&part(0), &part(1), &part(2)), heads, &runs).expect("reads");
        let (fused, products) = (read(Mode::Inference), read(Mode::Training));
        assert_eq!(fused.dims(), [rows, hidden]);
        let distance = (fused - products).and_then(|d| d.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>());
        assert!(distance.expect("a number") < 2e-6);
    }

    #[test]
    fn a_layer_does_not_feel_the_others() {
        let (x, hidden) = (matrix(70, 16, 2), 16);
        let read = |from: usize, runs: &[Run]| {
            let rows: usize = runs.iter().map(|run| run.patches * run.layers).sum();
            let x = x.narrow(0, from, rows).expect("rows");
            Mode::Inference.full_attention((&x, &x, &x), 2, runs).and_then(|y| y.to_vec2::<f32>()).expect("reads")
        };
        let (few, many) = (Run { patches: 6, layers: 5 }, Run { patches: 40, layers: 1 });
        let together = read(0, &[few, many]);
        assert_eq!((together.len(), together[0].len()), (70, hidden));
        assert_eq!(together[12..18], read(12, &[Run { layers: 1, ..few }]));
        assert_eq!(together[30..], read(30, &[many]));
    }

    #[test]
    fn runs_that_do_not_cover_the_rows_are_refused() {
        let x = matrix(8, 6, 1);
        for (heads, patches) in [(2, 7), (4, 8), (0, 8)] {
            let runs = [Run { patches, layers: 1 }];
            assert!(Mode::Inference.full_attention((&x, &x, &x), heads, &runs).is_err());
        }
    }
}
