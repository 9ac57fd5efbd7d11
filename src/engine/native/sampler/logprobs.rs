//! Log-probabilities of a row, before anything is done to it.

/// What is reported of a token, by number; see [`crate::engine::TokenInfo`].
#[derive(Debug, Clone, PartialEq)]
pub(in crate::engine::native) struct TokenLogprobs {
    /// Natural logarithm of the token's probability.
    pub(in crate::engine::native) logprob: f64,
    /// The likeliest tokens, best first, lower numbers first among equals.
    pub(in crate::engine::native) top: Vec<(u32, f64)>,
}

impl TokenLogprobs {
    /// Of a token, with at most so many alternatives. The logits are finite or negative infinity, and one is finite.
    pub(super) fn new(row: &[f32], id: u32, most: usize) -> Self {
        let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|logit| f64::from(logit - highest).exp()).sum();
        let normaliser = f64::from(highest) + sum.ln();
        let logprob = |logit: f32| f64::from(logit) - normaliser;
        let top = best(row, most).into_iter().map(|(id, logit)| (id, logprob(logit))).collect();
        Self { logprob: row.get(id as usize).map_or(f64::NEG_INFINITY, |logit| logprob(*logit)), top }
    }
}

fn best(row: &[f32], most: usize) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(most + 1);
    for (id, logit) in (0..).zip(row.iter().copied()) {
        // Nearly every token ends here.
        if best.len() == most && best.last().is_none_or(|(_, worst)| logit <= *worst) {
            continue;
        }
        let at = best.partition_point(|(_, other)| *other >= logit);
        best.insert(at, (id, logit));
        best.truncate(most);
    }
    best
}
