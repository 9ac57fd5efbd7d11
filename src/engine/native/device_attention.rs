//! Keys and values on any device, through candle's own operations: what runs on a GPU. Slower than
//! [`super::attention`] on a CPU, and there to check it.
//!
//! - `places` says where a pass writes its tokens and where its pasts lie. It is made, and goes to the device, once for a pass
//!   and not once for each layer;
//! - `plain` is attention by products, a sequence after the other and a bounded piece at a time: for every device and format;
//! - `packed` brings a whole batch into the form of a kernel for ragged batches, and `flash` is that kernel: FlashAttention 2,
//!   with the feature `flash-attn`, in 16 bits on a GPU.
//!
//! Never run on a GPU by us: the types of the CUDA code are checked, and all but the kernel is compared with
//! [`super::attention`] on the CPU.

#[cfg(feature = "flash-attn")]
mod flash;
#[cfg(any(test, feature = "flash-attn"))]
mod packed;
mod places;
mod plain;

use candle_core::{DType, Device, Result, Tensor, bail};

use self::places::Places;
use super::attention::{BLOCK, Segment};
use crate::model::Attend;

/// Scores that `plain` keeps at a time, in f32. Not counted: the same scores in the device's format and after the softmax.
const SCORES_BYTES: usize = 256 << 20;
/// Keys and values that `packed` gathers at a time, unless those of one sequence are more.
#[cfg(feature = "flash-attn")]
const PACKED_BYTES: usize = 256 << 20;

/// Keys and values of all sequences: for each layer two tensors of `[blocks * BLOCK, kv_heads * head_dim]`.
#[derive(Debug)]
pub struct DeviceCache {
    layers: Vec<(Tensor, Tensor)>,
    slots: usize,
    kv_heads: usize,
    head_dim: usize,
    /// See [`plain::mask`].
    mask: Tensor,
    scores_bytes: usize,
    #[cfg(feature = "flash-attn")]
    flash: bool,
}

impl DeviceCache {
    /// Room for `blocks` blocks in each of `layers` layers, taken at once.
    ///
    /// # Errors
    /// When the device has not so much memory, or places for tokens can't be numbered in 32 bits.
    pub fn new(
        layers: usize,
        blocks: usize,
        (kv_heads, head_dim): (usize, usize),
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let Some(slots) = blocks.checked_mul(BLOCK).filter(|slots| u32::try_from(*slots).is_ok()) else {
            bail!("{blocks} blocks of keys and values are more than can be numbered")
        };
        let room = || Tensor::zeros((slots, kv_heads * head_dim), dtype, device);
        let layers = (0..layers).map(|_| Ok((room()?, room()?))).collect::<Result<_>>()?;
        Ok(Self {
            layers,
            slots,
            kv_heads,
            head_dim,
            mask: plain::mask(device)?,
            scores_bytes: SCORES_BYTES,
            #[cfg(feature = "flash-attn")]
            flash: flash::applies(dtype, head_dim, device),
        })
    }

    /// Attention for one pass of the model over these segments, which are its batch from the first row to the last.
    ///
    /// # Errors
    /// When they are not, when a segment's blocks do not hold its tokens, and those of the tensor library.
    pub fn pass(&mut self, segments: &[Segment<'_>]) -> Result<DevicePass<'_>> {
        let width = self.kv_heads * self.head_dim;
        let places = Places::new(segments, self.slots, width, self.mask.device())?;
        #[cfg(feature = "flash-attn")]
        let groups = if self.flash {
            // Two numbers of two bytes.
            Some(packed::groups(&places, PACKED_BYTES / (4 * width).max(1), self.mask.device())?)
        } else {
            None
        };
        Ok(DevicePass {
            cache: self,
            places,
            #[cfg(feature = "flash-attn")]
            groups,
        })
    }
}

/// One pass of the model: writes the new keys and values, reads all.
#[derive(Debug)]
pub struct DevicePass<'a> {
    cache: &'a mut DeviceCache,
    places: Places,
    /// Where the kernel runs.
    #[cfg(feature = "flash-attn")]
    groups: Option<Vec<packed::Group>>,
}

impl Attend for DevicePass<'_> {
    fn attend(&mut self, layer: usize, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let (tokens, heads, head_dim) = query.dims3()?;
        let kv_heads = self.cache.kv_heads;
        if key.dims() != [tokens, kv_heads, self.cache.head_dim] || value.dims() != key.dims() {
            bail!("keys and values are not of the cache's shape");
        }
        if head_dim != self.cache.head_dim || !heads.is_multiple_of(kv_heads) {
            bail!("queries do not go with the cache's keys");
        }
        if tokens != self.places.rows() {
            bail!("the segments are not the batch");
        }
        let Some(pool) = self.cache.layers.get(layer) else { bail!("the cache has fewer layers") };
        self.places.write(&pool.0, key)?;
        self.places.write(&pool.1, value)?;
        #[cfg(feature = "flash-attn")]
        if let Some(groups) = &self.groups {
            return packed::attend(query, pool, &self.places, groups, kv_heads, flash::kernel);
        }
        plain::attend(query, pool, &self.places, kv_heads, &self.cache.mask, self.cache.scores_bytes)
    }
}

#[cfg(test)]
mod tests;
