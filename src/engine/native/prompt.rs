//! From a conversation to the tokens the model reads: ids, and where its pictures are.
//!
//! A prompt is text between structural tokens, and these cut it into segments that are tokenized apart. So a segment that
//! was seen before needs no tokenizing again, and a turn that the model wrote itself keeps the very tokens it was written
//! with: their keys and values are still there, while the same text may have other tokens. Knows nothing of scheduling, of
//! how keys and values are kept, or of the network.

mod recent;
mod segments;
mod spoken;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};

use recent::Recent;
use segments::{Segment, segments};
use spoken::Spoken;

use crate::engine::chat::bytes::TokenBytes;
use crate::engine::chat::geometry::{Geometry, Limits};
use crate::engine::chat::prompt::{Rendered, render};
use crate::engine::chat::vocabulary::{Structure, Vocabulary};
use crate::engine::{EngineError, SessionKey};
use crate::types::{Frame, Part, Turn};

/// Segments below this many bytes are tokenized faster than looked up.
const SHORTEST_REMEMBERED: usize = 48;

/// Writes prompts for one model.
#[derive(Debug)]
pub(super) struct Prompts {
    vocabulary: Arc<Vocabulary>,
    tokens: Arc<TokenBytes>,
    geometry: Geometry,
    limits: Limits,
    /// Tokens of segments.
    tokenized: Mutex<Recent<Box<str>, Arc<[u32]>>>,
    /// What the model wrote in each session, in order.
    sessions: Mutex<Recent<SessionKey, Vec<Arc<Spoken>>>>,
}

/// A prompt, ready to be read.
#[derive(Debug)]
pub(super) struct TokenizedPrompt {
    /// All of it, a token for each merged patch of a picture.
    pub(super) ids: Vec<u32>,
    /// Its pictures, in order.
    pub(super) pictures: Vec<Picture>,
    /// The most tokens that may be written after it.
    pub(super) room: u32,
    /// To be given back with what was written.
    pub(super) opening: Opening,
}

/// A picture's place in a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// Index of its first token.
    pub start: usize,
    /// Its tokens, one for each merged patch: this many rows of so many.
    pub rows: usize,
    /// See [`Self::rows`].
    pub columns: usize,
    /// SHA-256 over its size and pixels.
    pub hash: [u8; 32],
    /// Its pixels: one frame, or the two of a pair.
    pub frames: Vec<Frame>,
}

impl Picture {
    /// How many tokens it has.
    #[must_use]
    pub const fn tokens(&self) -> usize {
        self.rows * self.columns
    }
}

/// The turn that a prompt opens, and those that the model wrote before it.
#[derive(Debug)]
pub(super) struct Opening {
    earlier: Vec<Arc<Spoken>>,
    /// Which segment of the prompt the turn is.
    segment: usize,
    text: String,
    ids: Vec<u32>,
}

impl Prompts {
    /// For a model. What is remembered takes at most `most_bytes`.
    pub(super) fn new(
        vocabulary: Arc<Vocabulary>,
        tokens: Arc<TokenBytes>,
        geometry: Geometry,
        limits: Limits,
        most_bytes: usize,
    ) -> Self {
        let half = || most_bytes / 2;
        Self {
            vocabulary,
            tokens,
            geometry,
            limits,
            tokenized: Mutex::new(Recent::new(half())),
            sessions: Mutex::new(Recent::new(half())),
        }
    }

    /// Writes a prompt after which at most `asked` tokens are wanted. With a session, turns that the model wrote in it keep
    /// their tokens. Takes a second a megabyte of new text, and reads every pixel: not for an async thread. Before each part
    /// of that work `wanted` says whether to go on.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] for an empty conversation, an unfit frame, or text that holds special tokens;
    /// [`EngineError::TooLong`] when it does not fit the model; what `wanted` says.
    pub(super) fn write(
        &self,
        turns: Vec<Turn>,
        prefix: &str,
        asked: u32,
        session: Option<&SessionKey>,
        wanted: impl Fn() -> Result<(), EngineError>,
    ) -> Result<TokenizedPrompt, EngineError> {
        let bytes = turns.iter().map(text_bytes).sum::<usize>() + prefix.len();
        self.limits.check_prompt(self.vocabulary.fewest_tokens(bytes))?;
        let Rendered { prompt, pictures, structure } = render(turns, prefix, &self.vocabulary)?;
        let grids = pictures.iter().map(|frames| self.grid(frames)).collect::<Result<Vec<_>, _>>()?;
        // Before anything is made of it: pictures may be many and large.
        let patches: usize = grids.iter().map(|(rows, columns)| rows * columns).sum();
        self.limits.check_prompt(patches)?;

        let spoken = session.and_then(|session| lock(&self.sessions).get(session).cloned()).unwrap_or_default();
        let mut written =
            Written { ids: Vec::new(), starts: Vec::new(), found: Structure { starts: 0, ends: 0, pictures: 0 } };
        let mut earlier = Vec::new();
        let (text, ids) = (prompt.text(), self.vocabulary.structural());
        let mut last = (0, "", 0);
        let pad = |frames: &Vec<Frame>| if frames.len() == 1 { Some(ids.image_pad) } else { ids.video_pad };
        let pads = pictures.iter().map(pad).collect::<Option<Vec<_>>>();
        let pads = pads.ok_or(EngineError::Unsupported("pairs of frames"))?;
        let mut sizes = grids.iter().map(|(rows, columns)| rows * columns).zip(pads);
        for (number, segment) in segments(&text).enumerate() {
            match segment {
                Segment::TurnStart => written.structural(ids.turn_start, |found| &mut found.starts),
                Segment::TurnEnd => written.structural(ids.turn_end, |found| &mut found.ends),
                Segment::Picture => {
                    written.ids.push(ids.vision_start);
                    written.starts.push(written.ids.len());
                    let (tokens, pad) = sizes.next().unwrap_or_default();
                    written.ids.extend(std::iter::repeat_n(pad, tokens));
                    written.structural(ids.vision_end, |found| &mut found.pictures);
                }
                Segment::Text(text) => {
                    wanted()?;
                    last = (number, text, written.ids.len());
                    let known = spoken.iter().find(|spoken| spoken.segment() == number);
                    let (kept, rest) = known.map_or((&[][..], text), |spoken| spoken.begin(text));
                    if !kept.is_empty() {
                        earlier.extend(known.map(Arc::clone));
                    }
                    written.ids.extend_from_slice(kept);
                    self.tokenize(rest, &mut written.ids)?;
                }
            }
        }
        if written.found != structure || written.starts.len() != pictures.len() {
            return Err(EngineError::Invalid("the text holds special tokens of the model".to_owned()));
        }
        let room = self.limits.output_room(written.ids.len(), 0, asked)?;

        let (segment, text, start) = last;
        earlier.retain(|spoken| spoken.segment() < segment);
        let opening = Opening { earlier, segment, text: text.to_owned(), ids: written.ids[start..].to_vec() };
        let mut placed = Vec::with_capacity(pictures.len());
        for ((frames, (rows, columns)), start) in pictures.into_iter().zip(grids).zip(written.starts) {
            // Hashing reads every pixel: the larger part of the work for a long video. On this thread alone: the engine's
            // own threads are not to be slowed down by requests that have not even been taken.
            wanted()?;
            placed.push(Picture { start, rows, columns, hash: content_hash(&frames), frames });
        }
        Ok(TokenizedPrompt { ids: written.ids, pictures: placed, room, opening })
    }

    /// Keeps what was written after a prompt, for the session's next one.
    pub(super) fn remember(&self, session: &SessionKey, opening: Opening, generated: &[u32]) {
        let Opening { mut earlier, segment, text, ids } = opening;
        let special = |id: &u32| self.vocabulary.is_special(*id) || self.tokens.is_special(*id);
        // A special token has no text to be found again by.
        let generated = generated.iter().take_while(|id| !special(id));
        earlier.push(Arc::new(Spoken::new(segment, text, ids, generated.map(|id| (*id, self.tokens.text(*id))))));
        let bytes = earlier.iter().map(|spoken| spoken.bytes()).sum::<usize>() + session.0.len();
        lock(&self.sessions).insert(session.clone(), earlier, bytes);
    }

    fn grid(&self, frames: &[Frame]) -> Result<(usize, usize), EngineError> {
        let invalid = |problem: &str| EngineError::Invalid(problem.to_owned());
        let Some((frame, others)) = frames.split_first() else { return Err(invalid("a picture without a frame")) };
        let tokens = self.geometry.tokens(frame)?;
        for other in others {
            self.geometry.tokens(other)?;
            if other.size != frame.size {
                return Err(invalid("the frames of a pair differ in size"));
            }
        }
        // The frame's pixels are there, so its sides are small numbers.
        let columns = (frame.size.width / self.geometry.factor()) as usize;
        Ok((tokens / columns, columns))
    }

    /// Appends a text's tokens.
    fn tokenize(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), EngineError> {
        if text.len() < SHORTEST_REMEMBERED {
            ids.extend(self.vocabulary.encode_text(text)?);
            return Ok(());
        }
        let known = lock(&self.tokenized).get(text).cloned();
        if let Some(known) = known {
            ids.extend_from_slice(&known);
            return Ok(());
        }
        let tokens: Arc<[u32]> = self.vocabulary.encode_text(text)?.into();
        ids.extend_from_slice(&tokens);
        lock(&self.tokenized).insert(text.into(), Arc::clone(&tokens), text.len() + 4 * tokens.len());
        Ok(())
    }
}

struct Written {
    ids: Vec<u32>,
    /// First tokens of pictures.
    starts: Vec<usize>,
    found: Structure,
}

impl Written {
    fn structural(&mut self, id: u32, counter: impl Fn(&mut Structure) -> &mut usize) {
        self.ids.push(id);
        *counter(&mut self.found) += 1;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text_bytes(turn: &Turn) -> usize {
    turn.parts.iter().map(|part| if let Part::Text(text) = part { text.len() } else { 0 }).sum()
}

fn content_hash(frames: &[Frame]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for frame in frames {
        hasher.update(frame.size.width.to_le_bytes());
        hasher.update(frame.size.height.to_le_bytes());
        hasher.update(&frame.rgb);
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests;
