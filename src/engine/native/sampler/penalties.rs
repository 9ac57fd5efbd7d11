//! Makes tokens that were seen less likely, or more.

use std::collections::HashMap;

use crate::engine::{EngineError, Sampling};

/// The three penalties and the tokens they are for.
///
/// Repetition divides positive logits and multiplies negative ones, for tokens of the prompt and the output (CTRL, as in
/// transformers and vLLM). Frequency is subtracted for each occurrence in the output, presence once (OpenAI).
#[derive(Debug)]
pub(super) struct Penalties {
    repetition: f32,
    frequency: f32,
    presence: f32,
    /// Distinct tokens of the prompt, where they matter.
    prompt: Vec<u32>,
    /// How often each token is in the output, where it matters.
    output: HashMap<u32, u32>,
}

impl Penalties {
    /// # Errors
    /// [`EngineError::Invalid`] for a value out of its range.
    pub(super) fn new(sampling: &Sampling, prompt: &[u32]) -> Result<Self, EngineError> {
        let repetition = single(sampling.repetition_penalty, 1.0, "repetition_penalty")?;
        if repetition < f32::MIN_POSITIVE {
            return Err(EngineError::Invalid("repetition_penalty is out of range".to_owned()));
        }
        let mut seen = Vec::new();
        if repetition != 1.0 {
            seen.extend_from_slice(prompt);
            seen.sort_unstable();
            seen.dedup();
        }
        Ok(Self {
            repetition,
            frequency: single(sampling.frequency_penalty, 0.0, "frequency_penalty")?,
            presence: single(sampling.presence_penalty, 0.0, "presence_penalty")?,
            prompt: seen,
            output: HashMap::new(),
        })
    }

    /// Whether they change nothing.
    pub(super) fn are_neutral(&self) -> bool {
        self.repetition == 1.0 && self.frequency == 0.0 && self.presence == 0.0
    }

    /// One more token in the output.
    pub(super) fn count(&mut self, id: u32) {
        if !self.are_neutral() {
            *self.output.entry(id).or_insert(0) += 1;
        }
    }

    /// Changes the logits of tokens seen.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        if self.repetition != 1.0 {
            for id in self.prompt.iter().filter(|id| !self.output.contains_key(id)) {
                self.repeat(logits, *id);
            }
        }
        for (id, count) in &self.output {
            self.repeat(logits, *id);
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit -= self.frequency * *count as f32;
                *logit -= self.presence;
            }
        }
    }

    fn repeat(&self, logits: &mut [f32], id: u32) {
        let Some(logit) = logits.get_mut(id as usize) else { return };
        let changed = if *logit > 0.0 { *logit / self.repetition } else { *logit * self.repetition };
        // So that an overflow stays a number, and what was ruled out stays so.
        *logit = if *logit == f32::NEG_INFINITY { *logit } else { changed.clamp(f32::MIN, f32::MAX) };
    }
}

fn single(value: Option<f64>, neutral: f64, name: &str) -> Result<f32, EngineError> {
    let value = value.unwrap_or(neutral) as f32;
    // A count of tokens times this stays finite.
    if value.abs() <= 1e20 { Ok(value) } else { Err(EngineError::Invalid(format!("{name} is out of range"))) }
}
