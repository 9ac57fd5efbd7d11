//! What stands between the products with weights, in two forms: fused, for inference, and as formulas that gradients pass.
//!
//! candle's fused kernels (`softmax_last_dim`, `rms_norm`, `layer_norm`, `rope_thd`) silently have no gradient; its formulas
//! have one and take several passes over memory. The network calls only what stands here, so there is one definition of it.
//! For the CPU, `fused` has its own for inference, and `graded` has some with gradients. But for `full`, the attention of pictures, each row of a
//! result depends on that row of the input alone.

mod full;
mod fused;
pub(super) mod graded;

use candle_core::{D, DType, Result, Tensor};

pub(super) use self::full::Run;

/// What a model was loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Fused operations, several projections in one product. Nothing has a gradient.
    Inference,
    /// Weights are variables, and every operation has a gradient.
    Training,
}

impl Mode {
    /// `x / sqrt(mean(x²) + eps) * weight` over the last dimension.
    pub(super) fn rms_norm(self, x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
        match self {
            Self::Inference if fused::applies(x) => fused::rms_norm(x, weight, eps as f32),
            Self::Inference => candle_nn::ops::rms_norm(&x.contiguous()?, weight, eps as f32),
            Self::Training if graded::applies(x) => graded::rms_norm(x, weight, eps as f32),
            Self::Training => candle_nn::ops::rms_norm_slow(x, weight, eps as f32),
        }
    }

    /// `(x - mean) / sqrt(variance + eps) * weight + bias` over the last dimension.
    pub(super) fn layer_norm(self, x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
        match self {
            Self::Inference if fused::applies(x) => fused::layer_norm(x, weight, bias, eps as f32),
            Self::Inference => candle_nn::ops::layer_norm(&x.contiguous()?, weight, bias, eps as f32),
            Self::Training if graded::applies(x) => graded::layer_norm(x, weight, bias, eps as f32),
            Self::Training => candle_nn::ops::layer_norm_slow(x, weight, bias, eps as f32),
        }
    }

    /// Softmax over the last dimension, computed in f32 where numbers have 16 bits.
    pub(super) fn softmax(self, x: &Tensor) -> Result<Tensor> {
        wide(x, |x| match self {
            Self::Inference => candle_nn::ops::softmax_last_dim(&x.contiguous()?),
            Self::Training => candle_nn::ops::softmax(x, D::Minus1),
        })
    }

    /// Cuts rows into heads and turns the two halves of each against each other. `x` is `[tokens, heads * width]`, and its
    /// rows may lie apart; `cos` and `sin` are `[tokens, width / 2]`. With a norm (its weight `[width]` and epsilon), each head
    /// is normed as in [`Self::rms_norm`] before. The result is `[tokens, heads, width]`.
    pub(super) fn rotary(
        self,
        x: &Tensor,
        norm: Option<(&Tensor, f64)>,
        (cos, sin): (&Tensor, &Tensor),
    ) -> Result<Tensor> {
        let half = cos.dim(D::Minus1)?;
        if self == Self::Inference && fused::applies(x) {
            let norm = norm.map(|(weight, eps)| (weight, eps as f32));
            return fused::rotary(x, norm, cos, sin)?.reshape((x.dim(0)?, (), 2 * half));
        }
        if self == Self::Training && graded::applies(x) {
            let norm = norm.map(|(weight, eps)| (weight, eps as f32));
            return graded::rotary(x, norm, cos, sin)?.reshape((x.dim(0)?, (), 2 * half));
        }
        let heads = x.contiguous()?.reshape((x.dim(0)?, (), 2 * half))?;
        let heads = match norm {
            Some((weight, eps)) => self.rms_norm(&heads, weight, eps)?,
            None => heads,
        };
        let (cos, sin) = (cos.unsqueeze(1)?, sin.unsqueeze(1)?);
        match self {
            // A token is a batch entry of one position: that is what candle's kernel splits over threads.
            Self::Inference => candle_nn::rotary_emb::rope_thd(&heads.unsqueeze(1)?, &cos, &sin)?.squeeze(1),
            Self::Training => {
                let (first, second) = (heads.narrow(D::Minus1, 0, half)?, heads.narrow(D::Minus1, half, half)?);
                let turned_first = (first.broadcast_mul(&cos)? - second.broadcast_mul(&sin)?)?;
                let turned_second = (second.broadcast_mul(&cos)? + first.broadcast_mul(&sin)?)?;
                Tensor::cat(&[turned_first, turned_second], D::Minus1)
            }
        }
    }

    /// `silu(gate) * up`.
    pub(super) fn swiglu(self, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
        if self == Self::Inference && fused::applies(gate) {
            return fused::swiglu(gate, up);
        }
        if self == Self::Training && graded::applies(gate) {
            return graded::swiglu(gate, up);
        }
        wide(gate, Tensor::silu)? * up
    }

    /// The approximation of GELU by tanh.
    pub(super) fn gelu_tanh(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Inference if fused::applies(x) => fused::gelu_tanh(x),
            Self::Training if graded::applies(x) => graded::gelu_tanh(x),
            _ => wide(x, Tensor::gelu),
        }
    }

    /// Exact GELU.
    pub(super) fn gelu(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Inference if fused::applies(x) => fused::gelu(x),
            Self::Training if graded::applies(x) => graded::gelu(x),
            _ => x.gelu_erf(),
        }
    }
}

/// candle's own activations round after each of their steps where numbers have 16 bits.
fn wide(x: &Tensor, activation: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    match x.dtype() {
        DType::BF16 | DType::F16 => activation(&x.to_dtype(DType::F32)?)?.to_dtype(x.dtype()),
        _ => activation(x),
    }
}

#[cfg(test)]
mod tests;
