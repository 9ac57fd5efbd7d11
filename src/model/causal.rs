//! Attention without a cache, for whole sequences: what parity, training and references use. A serving engine has its own.

use candle_core::{DType, Device, Result, Tensor, bail};

use super::{Attend, Mode};

/// Causal attention over sequences that are whole: each token sees those of its own sequence up to itself.
///
/// Memory grows with the square of the longest sequence. In [`Mode::Training`] it has a gradient.
#[derive(Debug, Clone)]
pub struct Causal {
    lengths: Vec<usize>,
    mode: Mode,
}

impl Causal {
    /// For a batch of sequences of these lengths, in tokens, one after another.
    #[must_use]
    pub fn new(lengths: &[usize], mode: Mode) -> Self {
        Self { lengths: lengths.to_vec(), mode }
    }

    fn one(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let (tokens, heads, width) = query.dims3()?;
        let kv_heads = key.dim(1)?;
        let group = heads / kv_heads;
        // The query heads of one key head become rows of one product.
        let query = query.reshape((tokens, kv_heads, group, width))?.permute((1, 2, 0, 3))?.contiguous()?;
        let query = query.reshape((kv_heads, group * tokens, width))?;
        let key = key.permute((1, 2, 0))?.contiguous()?;
        let value = value.permute((1, 0, 2))?.contiguous()?;
        let scores = (query.matmul(&key)? * (1.0 / (width as f64).sqrt()))?;
        let scores = scores.reshape((kv_heads, group, tokens, tokens))?;
        let scores = scores.broadcast_add(&mask(tokens, scores.dtype(), scores.device())?)?;
        let shares = self.mode.softmax(&scores)?.reshape((kv_heads, group * tokens, tokens))?;
        let read = shares.matmul(&value)?.reshape((kv_heads, group, tokens, width))?;
        read.permute((2, 0, 1, 3))?.contiguous()?.reshape((tokens, heads * width))
    }
}

/// `[tokens, tokens]`: 0 for what a row may see, else minus infinity.
fn mask(tokens: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let row = |row: usize| (0..tokens).map(move |column| if column > row { f32::NEG_INFINITY } else { 0.0 });
    Tensor::from_iter((0..tokens).flat_map(row), device)?.reshape((tokens, tokens))?.to_dtype(dtype)
}

impl Attend for Causal {
    fn attend(&mut self, _layer: usize, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let tokens = self.lengths.iter().sum::<usize>();
        if query.dim(0)? != tokens {
            bail!("{} tokens where sequences of {tokens} in all were announced", query.dim(0)?);
        }
        let mut start = 0;
        let mut parts = Vec::with_capacity(self.lengths.len());
        for &length in self.lengths.iter().filter(|length| **length > 0) {
            let part = |x: &Tensor| x.narrow(0, start, length);
            parts.push(self.one(&part(query)?, &part(key)?, &part(value)?)?);
            start += length;
        }
        Tensor::cat(&parts, 0)
    }
}
