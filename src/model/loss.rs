//! What training reads from logits.

use candle_core::{D, Device, Result, Tensor};

use super::ops::graded;

/// For each row of `logits`, `[rows, vocab]`, the logarithm of the probability of the row's target: `[rows]`, nats. It has a
/// gradient.
///
/// # Errors
/// When there are not as many targets as rows, or one is not in the vocabulary.
pub fn log_probabilities(logits: &Tensor, targets: &[u32]) -> Result<Tensor> {
    if graded::applies(logits) {
        return graded::log_probabilities(logits, targets.to_vec());
    }
    let targets = Tensor::new(targets, &Device::Cpu)?.to_device(logits.device())?.unsqueeze(1)?;
    candle_nn::ops::log_softmax(logits, D::Minus1)?.gather(&targets, 1)?.squeeze(1)
}
