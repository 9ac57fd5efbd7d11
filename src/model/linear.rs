//! Linear layers: plain, in 16 bits, or quantized; alone, or several that read the same input.
//!
//! On the CPU the input is always f32. For inference an f32 or bf16 weight is kept in panels there ([`Packed`]), and a row's
//! result does not depend on the rest of the batch. Else, with candle's product, it does by rounding (about 1e-6 of its
//! size): that may sum in another order for one row than for several. An f16 weight is widened a block of rows at a time.
//! Elsewhere input and weight share their type. Quantized weights use candle's own kernels, which take f32.

use std::sync::Arc;

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{CpuStorage, DType, Device, Module, Result, Storage, Tensor};
use rayon::prelude::*;

use super::cpu::floats;
use super::cpu::product::Packed;
use super::ops::graded;

/// How weights of the decoder's linear layers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// 8 bits, blocks of 32.
    Q8_0,
    /// 4 bits and a little, blocks of 256. Rows that are no multiple of 256 fall back to [`Quantization::Q8_0`].
    Q4K,
}

impl Quantization {
    /// What a row of this length is stored as. `None`: no multiple of 32, so it stays f32.
    fn for_width(self, width: usize) -> Option<GgmlDType> {
        match self {
            Self::Q4K if width.is_multiple_of(256) => Some(GgmlDType::Q4K),
            Self::Q4K | Self::Q8_0 if width.is_multiple_of(32) => Some(GgmlDType::Q8_0),
            Self::Q4K | Self::Q8_0 => None,
        }
    }
}

/// `x Wᵀ + b`.
#[derive(Debug, Clone)]
pub(super) struct Linear {
    weight: Weight,
    bias: Option<Tensor>,
}

#[derive(Debug, Clone)]
enum Weight {
    /// `[out, in]`, of the input's type, or 16 bits on the CPU.
    Plain(Tensor),
    /// A variable.
    Graded(Tensor),
    /// For inference on the CPU.
    Packed(Arc<Packed>),
    Quantized(QMatMul),
}

/// Rows of a 16-bit weight are widened in blocks of about this many numbers: 1 MiB of f32.
const BLOCK_NUMBERS: usize = 1 << 18;

impl Linear {
    /// `weight` is `[out, in]`, `bias` `[out]` of the input's type.
    #[cfg(test)]
    pub(super) const fn new(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight: Weight::Plain(weight), bias }
    }

    /// The same for training, where `weight` and `bias` are variables.
    pub(super) const fn for_training(weight: Tensor, bias: Option<Tensor>) -> Self {
        Self { weight: Weight::Graded(weight), bias }
    }

    /// The same for inference: on the CPU in panels, where the weight's type allows it.
    pub(super) fn for_inference(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        let packed = {
            let (rows, width) = weight.dims2()?;
            let (storage, layout) = weight.storage_and_layout();
            match (&*storage, layout.contiguous_offsets()) {
                (Storage::Cpu(CpuStorage::F32(numbers)), Some((from, to))) => {
                    Packed::f32(&numbers[from..to], rows, width)
                }
                (Storage::Cpu(CpuStorage::BF16(numbers)), Some((from, to))) => {
                    Packed::bf16(&numbers[from..to], rows, width)
                }
                _ => None,
            }
        };
        let weight = packed.map_or(Weight::Plain(weight), |packed| Weight::Packed(Arc::new(packed)));
        Ok(Self { weight, bias })
    }

    /// Quantizes `weight`, which is `[out, in]`, f32 and on the CPU, onto `device`. `None` when its rows don't divide into blocks.
    pub(super) fn quantized(
        weight: &Tensor,
        bias: Option<Tensor>,
        quantization: Quantization,
        device: &Device,
    ) -> Result<Option<Self>> {
        let Some(dtype) = quantization.for_width(weight.dim(1)?) else { return Ok(None) };
        let weight = QMatMul::from_qtensor(QTensor::quantize_onto(weight, dtype, device)?)?;
        Ok(Some(Self { weight: Weight::Quantized(weight), bias }))
    }

    /// Bytes the weight takes.
    pub(super) fn bytes(&self) -> usize {
        match &self.weight {
            Weight::Plain(weight)
            | Weight::Graded(weight)
            | Weight::Quantized(QMatMul::Tensor(weight) | QMatMul::TensorF16(weight)) => {
                weight.elem_count() * weight.dtype().size_in_bytes()
            }
            Weight::Packed(weight) => weight.bytes(),
            Weight::Quantized(QMatMul::QTensor(weight)) => weight.storage_size_in_bytes(),
        }
    }

    /// `[rows, in]` to `[rows, out]`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = match &self.weight {
            Weight::Graded(weight) if graded::applies(x) => {
                let y = graded::product(x, weight, false)?;
                return self.bias.as_ref().map_or(Ok(y.clone()), |bias| graded::bias(&y, bias));
            }
            Weight::Graded(weight) => x.matmul(&weight.t()?)?,
            Weight::Plain(weight) if weight.dtype() == x.dtype() => x.matmul(&weight.t()?)?,
            Weight::Plain(weight) => widened(x, weight)?,
            Weight::Packed(weight) => return packed(x, weight, self.bias.as_ref()),
            Weight::Quantized(weight) => weight.forward(&x.to_dtype(DType::F32)?.contiguous()?)?.to_dtype(x.dtype())?,
        };
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

/// The product with a weight in panels, and the bias.
fn packed(x: &Tensor, weight: &Packed, bias: Option<&Tensor>) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    if width != weight.inputs() {
        candle_core::bail!("a product of [{rows}, {width}] with panels of {}", weight.inputs());
    }
    let mut output = floats(&x.contiguous()?, |x| Ok(weight.product(x)))?;
    if let Some(bias) = bias {
        if bias.dims() != [weight.outputs()] {
            candle_core::bail!("a bias of {:?} with panels of {} outputs", bias.dims(), weight.outputs());
        }
        floats(bias, |bias| {
            for row in output.chunks_exact_mut(bias.len().max(1)) {
                row.iter_mut().zip(bias).for_each(|(output, bias)| *output += bias);
            }
            Ok(())
        })?;
    }
    Tensor::from_vec(output, (rows, weight.outputs()), &Device::Cpu)
}

/// The product with a weight of fewer bits than the input.
fn widened(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (rows, width) = weight.dims2()?;
    let block = (BLOCK_NUMBERS / width.max(1)).max(1);
    let product = |start: usize| {
        let part = weight.narrow(0, start, block.min(rows - start))?;
        x.matmul(&part.to_dtype(x.dtype())?.t()?)
    };
    if rows <= block {
        return product(0);
    }
    let starts: Vec<usize> = (0..rows).step_by(block).collect();
    let parts = starts.into_par_iter().map(product).collect::<Result<Vec<_>>>()?;
    Tensor::cat(&parts, 1)
}

/// Several linear layers that read the same input: one product for inference, one each where weights are variables.
#[derive(Debug, Clone)]
pub(super) enum Fused {
    /// The weights stand one below the other; the numbers are their rows.
    Together(Linear, Vec<usize>),
    Apart(Vec<Linear>),
}

impl Fused {
    /// `[rows, in]` to one `[rows, out]` for each layer. They may be views whose rows lie apart.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Vec<Tensor>> {
        match self {
            Self::Apart(layers) => layers.iter().map(|layer| layer.forward(x)).collect(),
            Self::Together(layer, parts) => {
                let joint = layer.forward(x)?;
                let mut start = 0;
                let cut = |rows: &usize| {
                    let part = joint.narrow(1, start, *rows);
                    start += rows;
                    part
                };
                parts.iter().map(cut).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests;
