//! The seam between the network and whoever keeps its keys and values.

use std::ops::Range;

use candle_core::{Result, Tensor};

/// Attention of a ragged batch: the tokens of all sequences stand one after another, and only the implementer knows where
/// each begins and which past it continues.
pub trait Attend {
    /// Takes the new tokens' keys and values of one layer, and gives what the new queries read from the past and from these.
    ///
    /// `query` is `[tokens, heads, head_dim]`; `key` and `value` are `[tokens, kv_heads, head_dim]`; all are contiguous, and
    /// rotary positions are already applied. The result is `[tokens, heads * head_dim]`. Query heads share key heads in
    /// runs of `heads / kv_heads`. Scores are scaled by `1 / sqrt(head_dim)`; a token sees itself and what came before it.
    ///
    /// # Errors
    /// Those of the tensor library.
    fn attend(&mut self, layer: usize, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor>;

    /// The same in two steps, for implementers whose queries can be split over threads.
    fn by_rows(&mut self) -> Option<&mut dyn AttendByRows> {
        None
    }
}

/// [`Attend`] in two steps: what is written is written before anything is read.
pub trait AttendByRows: Sync {
    /// Takes the new tokens' keys and values of one layer, as [`Attend::attend`] does.
    ///
    /// # Errors
    /// Those of [`Attend::attend`].
    fn write(&mut self, layer: usize, key: &Tensor, value: &Tensor) -> Result<()>;

    /// What the queries of some rows of the batch read in a layer that was written. `query` and the result have these rows alone.
    ///
    /// # Errors
    /// Those of [`Attend::attend`].
    fn read(&self, layer: usize, query: &Tensor, rows: Range<usize>) -> Result<Tensor>;
}
