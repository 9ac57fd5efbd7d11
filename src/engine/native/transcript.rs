//! Conversations that are over, in the very tokens that this engine would have read and written: what training learns from.
//!
//! Knows nothing of training. A turn that was written here is tokenized as text; a model may have written the same text in other
//! tokens, and where those are known they are to be preferred.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use super::prompt::Picture;
use super::prompt::Prompts;
use crate::engine::chat::geometry::{Geometry, Limits};
use crate::engine::chat::vocabulary::Vocabulary;
use crate::engine::{EngineError, SessionKey};
use crate::model::ModelConfig;
use crate::types::{Part, Role, Turn};

/// Bytes of text whose tokens are remembered.
const REMEMBERED_BYTES: usize = 8 << 20;

/// Writes conversations in a model's tokens.
#[derive(Debug)]
pub struct Transcriber {
    vocabulary: Arc<Vocabulary>,
    prompts: Prompts,
    /// What an assistant's turn begins with, after the token that opens it.
    header: Vec<u32>,
    /// Conversations written in the tokens in which they were said.
    sessions: AtomicU64,
}

/// A conversation in tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcript {
    /// All of it, a token for each merged patch of a picture.
    pub ids: Vec<u32>,
    /// Its pictures, in order.
    pub pictures: Vec<Picture>,
    /// For each of the model's turns, the tokens that it had to write, up to the one that ends the turn.
    pub spoken: Vec<Range<usize>>,
}

/// A turn of the model's.
#[derive(Debug, Clone, Copy)]
pub struct Said<'a> {
    /// The conversation before it.
    pub turns: &'a [Turn],
    /// What it was opened with: read, not written.
    pub prefix: &'a str,
    /// What was written, with the token that ends the turn where there was one.
    pub tokens: &'a [u32],
}

impl Transcriber {
    /// For the checkpoint in `folder`, of which the configuration and the tokenizer are read. `factor` is the side in pixels of what
    /// becomes a token.
    ///
    /// # Errors
    /// [`EngineError::Load`].
    pub fn load(folder: &Path, factor: usize) -> Result<Self, EngineError> {
        let vocabulary = Arc::new(Vocabulary::load(&folder.join("tokenizer.json"))?);
        let config = ModelConfig::load(folder).map_err(|error| EngineError::Load(error.to_string()))?;
        let geometry = u32::try_from(factor).ok().and_then(Geometry::new);
        let geometry = geometry.ok_or_else(|| EngineError::Load(format!("a token of {factor} pixels")))?;
        let limits = Limits::new(u32::try_from(config.text.context_tokens).unwrap_or(u32::MAX), None);
        let tokens = Arc::new(vocabulary.token_bytes()?);
        let header = vocabulary.encode_text(&format!("{}\n", Role::Assistant.name()))?;
        let prompts = Prompts::new(Arc::clone(&vocabulary), tokens, geometry, limits, REMEMBERED_BYTES);
        Ok(Self { vocabulary, prompts, header, sessions: AtomicU64::new(0) })
    }

    /// Writes a conversation whose last turn is the model's, and is over. What the model's turns were opened with counts as
    /// written by it.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for a conversation that does not end with the model's turn, an unfit frame, or text that holds
    /// special tokens; [`EngineError::TooLong`] when it does not fit the model.
    pub fn write(&self, mut turns: Vec<Turn>) -> Result<Transcript, EngineError> {
        let invalid = |problem: &str| EngineError::Invalid(problem.to_owned());
        let last = turns.pop().filter(|turn| turn.role == Role::Assistant);
        let last = last.ok_or_else(|| invalid("the last turn is not the model's"))?;
        let mut text = String::new();
        for part in &last.parts {
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Frame(_) | Part::FramePair(_) => return Err(invalid("a picture in the model's turn")),
            }
        }
        let written = self.prompts.write(turns, &text, 1, None, || Ok(()))?;
        let (mut ids, structural) = (written.ids, self.vocabulary.structural());
        ids.push(structural.turn_end);
        let spoken = self.spoken(&ids);
        Ok(Transcript { ids, pictures: written.pictures, spoken })
    }

    /// Writes what was said in one conversation, in the tokens in which it was said: for each turn of the model's the conversation
    /// before it, what it was opened with, and the tokens that were written. Each conversation goes on from the one before.
    /// `spoken` of the result are exactly these tokens; where a conversation does not go on from the one before, a new
    /// transcript begins.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_spoken(&self, said: &[Said<'_>]) -> Result<Vec<Transcript>, EngineError> {
        // The prompts of an engine keep the tokens of a session's turns: so do these.
        let number = self.sessions.fetch_add(1, Ordering::Relaxed);
        let session = SessionKey(format!("transcript-{number}").into());
        let mut transcripts: Vec<Transcript> = Vec::new();
        for said in said {
            let written = self.prompts.write(said.turns.to_vec(), said.prefix, 1, Some(&session), || Ok(()))?;
            let mut ids = written.ids;
            let from = ids.len();
            ids.extend_from_slice(said.tokens);
            let spoken = from..ids.len();
            self.prompts.remember(&session, written.opening, said.tokens);
            let pictures = written.pictures;
            match transcripts.last_mut().filter(|before| ids.starts_with(&before.ids)) {
                Some(before) => {
                    (before.ids, before.pictures) = (ids, pictures);
                    before.spoken.push(spoken);
                }
                None => transcripts.push(Transcript { ids, pictures, spoken: vec![spoken] }),
            }
        }
        Ok(transcripts)
    }

    fn spoken(&self, ids: &[u32]) -> Vec<Range<usize>> {
        let (structural, header) = (self.vocabulary.structural(), self.header.as_slice());
        let starts = ids.iter().enumerate().filter(|(_, id)| **id == structural.turn_start).map(|(at, _)| at + 1);
        let assistant = starts.filter(|at| ids[*at..].starts_with(header)).map(|at| at + header.len());
        assistant
            .map(|from| {
                let length = ids[from..].iter().position(|id| *id == structural.turn_end);
                from..length.map_or(ids.len(), |length| from + length + 1)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::{DEFAULT, ModelCard};
    use crate::types::{Frame, FrameSize};

    #[test]
    fn what_the_model_wrote_is_told_from_what_it_read() {
        let card = ModelCard::load(Path::new(DEFAULT)).expect("the bundled card");
        let transcriber = Transcriber::load(&card.folder, 32).expect("loads");
        let size = FrameSize { width: 64, height: 32 };
        let frame = Frame { time: None, size, rgb: vec![7; 3 * 64 * 32].into() };
        let turns = vec![
            Turn::text(Role::System, "assistant\n"),
            Turn { role: Role::User, parts: vec![Part::Frame(frame.clone()), Part::Text("What?".to_owned())] },
            Turn::text(Role::Assistant, "<think>\nA box.\n</think>"),
            Turn::text(Role::User, "<tool_response>\n</tool_response>"),
            Turn::text(Role::Assistant, "Red."),
        ];
        let transcript = transcriber.write(turns.clone()).expect("writes");
        let text = |ids: &[u32]| -> String {
            let tokens = transcriber.vocabulary.token_bytes().expect("bytes");
            ids.iter().map(|id| String::from_utf8_lossy(tokens.text(*id)).into_owned()).collect()
        };
        let spoken: Vec<String> = transcript.spoken.iter().map(|range| text(&transcript.ids[range.clone()])).collect();
        assert_eq!(spoken.len(), 2);
        assert!(spoken[0].contains("A box.") && spoken[0].starts_with("<think>"), "{spoken:?}");
        assert!(spoken[1].starts_with("Red."), "{spoken:?}");
        let end = transcriber.vocabulary.structural().turn_end;
        assert!(transcript.spoken.iter().all(|range| transcript.ids[range.end - 1] == end));
        assert_eq!(transcript.spoken.last().map(|range| range.end), Some(transcript.ids.len()));
        let picture = &transcript.pictures[0];
        assert_eq!((picture.rows, picture.columns, picture.frames.as_slice()), (1, 2, &[frame][..]));
        // The same from what was said, in the tokens in which it was said: here one letter each.
        let letters = |text: &str| -> Vec<u32> {
            let each =
                text.chars().flat_map(|letter| transcriber.vocabulary.encode_text(&letter.to_string()).expect("ids"));
            each.chain([end]).collect()
        };
        let (first, second) = (letters("\nA box.\n</think>"), letters("Red."));
        let said = [
            Said { turns: &turns[..2], prefix: "<think>", tokens: &first },
            Said { turns: &turns[..4], prefix: "", tokens: &second },
        ];
        let written = transcriber.write_spoken(&said).expect("writes");
        assert_eq!(written.len(), 1);
        let spoken: Vec<&[u32]> = written[0].spoken.iter().map(|range| &written[0].ids[range.clone()]).collect();
        assert_eq!(spoken, [first.as_slice(), &second]);
        // Another conversation is another transcript.
        let other = Said { turns: &turns[..1], ..said[0] };
        assert_eq!(transcriber.write_spoken(&[said[0], other]).expect("writes").len(), 2);
        assert!(matches!(transcriber.write(turns[..2].to_vec()), Err(EngineError::Invalid(_))));
        assert!(matches!(transcriber.write(Vec::new()), Err(EngineError::Invalid(_))));
    }
}
