//! Kernels for the CPU that candle does not have: products of a few rows with a large matrix, and activations.
//!
//! They work on slices, which [`floats`] finds in a tensor, and know nothing else of tensors. What they give for one row does not depend on the other rows: the same
//! sequence gets the same logits, to the last bit, alone and in any batch.

pub mod gradient;
pub mod math;
pub mod product;

use candle_core::{CpuStorage, Layout, Result, Storage, Tensor};

/// What is said where a tensor is no such.
const WANTED: &str = "kernels of the CPU take contiguous f32 tensors of the CPU";

/// A tensor's numbers as they lie in memory.
///
/// # Errors
/// When it is not f32, not contiguous, or not on the CPU; those of `then`.
pub fn floats<R>(tensor: &Tensor, then: impl FnOnce(&[f32]) -> Result<R>) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => then(slice(storage, layout)?),
        _ => candle_core::bail!("{WANTED}"),
    }
}

/// The numbers of a tensor's part of a memory of the CPU.
///
/// # Errors
/// When they are not f32, or not contiguous.
pub fn slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(numbers), Some((from, to))) => Ok(&numbers[from..to]),
        _ => candle_core::bail!("{WANTED}"),
    }
}
