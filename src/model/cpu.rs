//! Kernels for the CPU that candle does not have: products of a few rows with a large matrix, and activations.
//!
//! They work on slices and know nothing of tensors. What they give for one row does not depend on the other rows: the same
//! sequence gets the same logits, to the last bit, alone and in any batch.

pub mod math;
pub mod product;
