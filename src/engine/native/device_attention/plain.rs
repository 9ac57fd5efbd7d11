//! Attention by matrix products: for any device and number format, with a softmax in f32.
//!
//! Each sequence has products of its own: a step in which many decode is as many small products in each layer, one after
//! another. Their lengths differ, and padding them to one would copy every past once more. `flash` has no such cost.

use candle_core::{DType, Device, Result, Tensor};

use super::places::{Part, Places};

/// Most query rows that are computed at a time, however few keys they have.
const ROWS_MAX: usize = 256;

/// What is added to the scores of a square of rows and columns whose first ones are the same token: minus infinity where the
/// column comes after the row. Any smaller square is its corner.
pub(super) fn mask(device: &Device) -> Result<Tensor> {
    let row = |row: usize| (0..ROWS_MAX).map(move |column| if column > row { f32::NEG_INFINITY } else { 0.0 });
    Tensor::from_vec((0..ROWS_MAX).flat_map(row).collect(), (ROWS_MAX, ROWS_MAX), device)
}

/// What the batch's queries, `[rows, heads, head_dim]`, read from a pool of keys and one of values: `[rows, heads * head_dim]`.
/// Keeps `scores_bytes` of scores at a time, or those of one row.
pub(super) fn attend(
    query: &Tensor,
    (keys, values): &(Tensor, Tensor),
    places: &Places,
    kv_heads: usize,
    mask: &Tensor,
    scores_bytes: usize,
) -> Result<Tensor> {
    let (_, heads, head_dim) = query.dims3()?;
    let mut outputs = Vec::with_capacity(places.parts().len());
    for part in places.parts() {
        // [kv_heads, tokens, head_dim]
        let gather = |pool: &Tensor| {
            let tokens = places.read(pool, &part.slots)?;
            tokens.reshape(((), kv_heads, head_dim))?.transpose(0, 1)?.contiguous()
        };
        let (keys, values) = (gather(keys)?, gather(values)?);
        let row_bytes = heads * part.slots.len() * size_of::<f32>();
        let at_once = (scores_bytes / row_bytes.max(1)).clamp(1, ROWS_MAX);
        for first in (0..part.rows.len()).step_by(at_once) {
            let count = at_once.min(part.rows.len() - first);
            outputs.push(rows(query, &keys, &values, part, (first, count), mask)?);
        }
    }
    Tensor::cat(&outputs, 0)
}

/// The same for `count` of a part's rows from `first` on, with the keys and values of its tokens: `[kv_heads, tokens, head_dim]`.
fn rows(
    query: &Tensor,
    keys: &Tensor,
    values: &Tensor,
    part: &Part,
    (first, count): (usize, usize),
    mask: &Tensor,
) -> Result<Tensor> {
    let (_, heads, head_dim) = query.dims3()?;
    let kv_heads = keys.dim(0)?;
    let group = heads / kv_heads;
    // What comes after the last of the rows is seen by none of them.
    let before = part.past + first;
    let seen = before + count;
    let (keys, values) = (keys.narrow(1, 0, seen)?, values.narrow(1, 0, seen)?);
    // The query heads of one key head become rows of one product.
    let query = query
        .narrow(0, part.rows.start + first, count)?
        .reshape((count, kv_heads, group, head_dim))?
        .permute((1, 2, 0, 3))?
        .reshape((kv_heads, group * count, head_dim))?;
    let scores = (query.matmul(&keys.t()?)?.to_dtype(DType::F32)? * (1.0 / (head_dim as f64).sqrt()))?;
    let scores = scores.reshape((kv_heads, group, count, seen))?;
    if count > 1 {
        let corner = mask.narrow(0, 0, count)?.narrow(1, 0, count)?;
        scores.slice_set(&scores.narrow(3, before, count)?.broadcast_add(&corner)?, 3, before)?;
    }
    candle_nn::ops::softmax_last_dim(&scores)?
        .to_dtype(values.dtype())?
        .reshape((kv_heads, group * count, seen))?
        .matmul(&values)?
        .reshape((kv_heads, group, count, head_dim))?
        .permute((2, 0, 1, 3))?
        .reshape((count, heads * head_dim))
}
