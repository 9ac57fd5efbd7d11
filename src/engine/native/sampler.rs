//! Chooses a token from one row of logits.
//!
//! In the order in which transformers documents and applies its processors: penalties, what a constraint allows,
//! temperature, top-k, top-p, min-p; then one draw. At temperature 0 the highest logit wins, the lowest number among
//! equals. Which random number is drawn depends on the seed and on the token's place in the output alone, so the same
//! seed gives the same text whatever else runs, and a drafted token is right exactly when it is the one drawn.
//!
//! Pure: knows nothing of tensors, tokenizers or grammars.

mod candidates;
mod draws;
mod logprobs;
mod penalties;

pub(super) use candidates::Scratch;
pub(super) use logprobs::TokenLogprobs;

use candidates::{Shape, Truncation};
use draws::Draws;
use penalties::Penalties;

use crate::engine::{EngineError, Sampling};

/// Below this temperature the choice is greedy: dividing by less overflows.
const COLDEST: f64 = 1e-5;

/// The most alternatives reported for a token, whatever was asked for. OpenAI's bound is 20.
const MOST_ALTERNATIVES: u32 = 64;

/// Chooses the tokens of one output.
#[derive(Debug)]
pub(super) struct Sampler {
    /// `None`: greedy.
    temperature: Option<f64>,
    truncation: Truncation,
    penalties: Penalties,
    alternatives: Option<usize>,
    draws: Draws,
    /// Tokens accepted so far.
    position: u64,
}

/// A token, and what was to be reported of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Choice {
    /// Its number.
    pub(super) id: u32,
    /// Where [`Sampling::logprobs`] asks for them.
    pub(super) logprobs: Option<TokenLogprobs>,
}

impl Sampler {
    /// A sampler at the beginning of an output that follows these prompt tokens. Without a seed, the operating system
    /// gives one.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for a value out of its range.
    pub(super) fn new(sampling: &Sampling, prompt: &[u32]) -> Result<Self, EngineError> {
        let temperature = within(sampling.temperature, 1.0, "temperature", |value| value >= 0.0)?;
        let top_p = within(sampling.top_p, 1.0, "top_p", |value| value > 0.0 && value <= 1.0)?;
        let min_p = within(sampling.min_p, 0.0, "min_p", |value| (0.0..=1.0).contains(&value))?;
        let top_k = sampling.top_k.filter(|count| *count > 0).map(|count| count as usize);
        Ok(Self {
            temperature: (temperature >= COLDEST).then_some(temperature),
            truncation: Truncation { top_k, top_p, min_p },
            penalties: Penalties::new(sampling, prompt)?,
            alternatives: sampling.logprobs.map(|count| count.min(MOST_ALTERNATIVES) as usize),
            draws: Draws::new(sampling.seed),
            position: 0,
        })
    }

    /// The token for the next place of the output. `allowed` has a bit for each token, the lowest first; a token without
    /// a bit is not allowed. The same arguments give the same token until [`Self::accept`] is called.
    ///
    /// # Errors
    /// [`EngineError::Failed`] when a logit is no number or infinite, or when no token is left.
    pub(super) fn choose(
        &mut self,
        row: &[f32],
        allowed: Option<&[u32]>,
        scratch: &mut Scratch,
    ) -> Result<Choice, EngineError> {
        if row.iter().any(|logit| logit.is_nan() || *logit == f32::INFINITY) {
            return Err(EngineError::Failed("the model's logits are not finite".to_owned()));
        }
        let plain = allowed.is_none() && self.penalties.are_neutral();
        let adjusted = if plain {
            row
        } else {
            scratch.adjust(row, |logits| {
                self.penalties.apply(logits);
                if let Some(allowed) = allowed {
                    forbid_others(logits, allowed);
                }
            })
        };
        let (best, highest) = highest(adjusted).ok_or_else(|| EngineError::Failed("no token is left".to_owned()))?;
        let id = match self.temperature {
            None => best,
            Some(temperature) => {
                let draw = self.draws.at(self.position);
                scratch.draw(plain.then_some(row), Shape { highest, temperature }, self.truncation, draw)
            }
        };
        let logprobs = self.alternatives.map(|most| TokenLogprobs::new(row, id, most));
        Ok(Choice { id, logprobs })
    }

    /// The output goes on with this token.
    pub(super) fn accept(&mut self, id: u32) {
        self.position += 1;
        self.penalties.count(id);
    }
}

fn within(value: Option<f64>, neutral: f64, name: &str, fits: impl Fn(f64) -> bool) -> Result<f64, EngineError> {
    let value = value.unwrap_or(neutral);
    if value.is_finite() && fits(value) {
        Ok(value)
    } else {
        Err(EngineError::Invalid(format!("{name} is out of range")))
    }
}

/// The highest logit and the lowest number that has it; `None` when every token is ruled out.
fn highest(logits: &[f32]) -> Option<(u32, f32)> {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let at = logits.iter().position(|logit| *logit == highest)?;
    let id = u32::try_from(at).ok()?;
    (highest > f32::NEG_INFINITY).then_some((id, highest))
}

/// Rules out each token that has no bit.
fn forbid_others(logits: &mut [f32], allowed: &[u32]) {
    let words = allowed.iter().copied().chain(std::iter::repeat(0));
    for (chunk, word) in logits.chunks_mut(32).zip(words) {
        match word {
            u32::MAX => {}
            0 => chunk.fill(f32::NEG_INFINITY),
            _ => {
                for (bit, logit) in chunk.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
