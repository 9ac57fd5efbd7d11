//! Kernels for the CPU that candle does not have: products of a few rows with a large matrix, and activations.
//!
//! They work on slices, which [`floats`] finds in a tensor, and know nothing else of tensors. What they give for one row does not depend on the other rows: the same
//! sequence gets the same logits, to the last bit, alone and in any batch.

pub mod gradient;
pub mod math;
pub mod product;

use candle_core::{CpuStorage, Result, Storage, Tensor};

/// A tensor's numbers as they lie in memory.
///
/// # Errors
/// When it is not f32, not contiguous, or not on the CPU; those of `then`.
pub fn floats<R>(tensor: &Tensor, then: impl FnOnce(&[f32]) -> Result<R>) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::F32(numbers)), Some((from, to))) => then(&numbers[from..to]),
        _ => candle_core::bail!("kernels of the CPU take contiguous f32 tensors of the CPU"),
    }
}
