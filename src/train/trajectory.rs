//! What a policy learns from: tokens that it wrote, each with how likely it was when it was written and what it is worth.

use super::TrainError;
use super::batch::Row;
use super::rollout::Utterance;
use crate::engine::native::transcript::{Said, Transcriber};
use crate::model::Qwen3Vl;

/// A conversation with the tokens that the policy wrote in it. What tools, the caller and the card wrote is read, not learned.
#[derive(Debug, Clone)]
pub struct Trajectory {
    /// The conversation; its targets are the policy's own tokens.
    pub row: Row,
    /// For each target, the logarithm of its probability under the policy that wrote it, nats.
    pub behaviour: Vec<f32>,
}

impl Trajectory {
    /// Of what was said in one conversation, a turn after the other: one trajectory, or more where a turn does not go on from the
    /// one before. Utterances without tokens are left out.
    ///
    /// # Errors
    /// [`TrainError`] for conversations that the model can't have had.
    pub fn of(said: &[Utterance], transcriber: &Transcriber, model: &Qwen3Vl) -> Result<Vec<Self>, TrainError> {
        let said: Vec<&Utterance> = said.iter().filter(|said| !said.tokens.is_empty()).collect();
        let tokens: Vec<Vec<u32>> = said.iter().map(|said| said.tokens.iter().map(|(id, _)| *id).collect()).collect();
        let turns: Vec<Said<'_>> = said
            .iter()
            .zip(&tokens)
            .map(|(said, tokens)| Said { turns: &said.turns, prefix: &said.prefix, tokens })
            .collect();
        let mut behaviour = said.iter().flat_map(|said| said.tokens.iter().map(|(_, probability)| *probability));
        let transcripts = transcriber.write_spoken(&turns)?;
        let trajectories = transcripts.into_iter().map(|transcript| {
            let row = Row::new(transcript, model, false)?;
            let behaviour = behaviour.by_ref().take(row.targets.len()).collect();
            Ok(Self { row, behaviour })
        });
        trajectories.collect()
    }
}
