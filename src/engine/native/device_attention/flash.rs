//! FlashAttention 2, as candle-flash-attn brings it: the only file that knows it.
//!
//! Of a sequence with more keys than queries the queries are the last ones, as a piece of a prompt or a next token needs it: the
//! causal mask is aligned to the end. In candle-flash-attn 0.10.2 that is `Mask::apply_mask` of `kernels/mask.h`, where a row sees
//! the columns below `row + 1 + seqlen_k - seqlen_q`, with the lengths of its own sequence (`flash_fwd_kernel.h` makes the mask
//! of `binfo.actual_seqlen_k` and `_q`), and `n_block_max` of `flash_fwd_kernel.h`. The kernels run on the calling thread's
//! default stream; candle's is the legacy default stream (`Device::new_cuda`), for which that one waits, and the other way round.
//!
//! A sequence is not split among blocks of threads along its keys (`num_splits` is 1): few sequences that decode behind long
//! pasts leave a large GPU partly idle.

use candle_core::{DType, Device, Result, Tensor};

use super::packed::Group;

/// True where the kernel can be used. It needs a GPU of the Ampere generation or later.
pub(super) fn applies(dtype: DType, head_dim: usize, device: &Device) -> bool {
    let numbers = matches!(dtype, DType::F16 | DType::BF16);
    device.is_cuda() && numbers && head_dim.is_multiple_of(8) && (8..=256).contains(&head_dim)
}

/// See [`super::packed::attend`].
pub(super) fn kernel(query: &Tensor, keys: &Tensor, values: &Tensor, group: &Group) -> Result<Tensor> {
    let scale = 1.0 / (query.dim(2)? as f32).sqrt();
    candle_flash_attn::flash_attn_varlen(
        query,
        keys,
        values,
        &group.row_ends,
        &group.token_ends,
        group.most_rows,
        group.most_tokens,
        scale,
        true,
    )
}
