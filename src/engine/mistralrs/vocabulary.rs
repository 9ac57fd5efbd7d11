//! The tokenizer as this engine needs it: counting, and keeping text that somebody typed from being read as special tokens.
//!
//! Knows nothing of requests, frames or scheduling.

use std::borrow::Cow;
use std::path::Path;

use tokenizers::Tokenizer;

use crate::engine::EngineError;

/// Opens a turn.
pub(super) const TURN_START: &str = "<|im_start|>";
/// Closes a turn.
pub(super) const TURN_END: &str = "<|im_end|>";
/// One picture, as Qwen3-VL's template writes it. mistralrs widens the middle token to one per merged patch.
pub(super) const PICTURE: &str = "<|vision_start|><|image_pad|><|vision_end|>";

/// Not in every tokenizer, but mistralrs adds or rewrites them: `<|placeholder|>` becomes an image token by plain text
/// replacement.
const ALWAYS_BROKEN: [&str; 3] = ["<|image_pad|>", "<|video_pad|>", "<|placeholder|>"];

/// How often each structural token occurs in a prompt of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Structure {
    /// Turn openings.
    pub(super) starts: usize,
    /// Turn ends.
    pub(super) ends: usize,
    /// Pictures.
    pub(super) pictures: usize,
}

/// A checkpoint's tokenizer.
#[derive(Debug)]
pub(super) struct Vocabulary {
    tokenizer: Tokenizer,
    /// Texts that must not survive in what somebody typed.
    special: Vec<String>,
    structural: Structural,
    special_ids: Vec<u32>,
    /// Bytes of the longest token.
    longest: usize,
}

#[derive(Debug)]
struct Structural {
    turn_start: u32,
    turn_end: u32,
    vision_start: u32,
    image_pad: u32,
    vision_end: u32,
}

impl Vocabulary {
    /// Reads `tokenizer.json`.
    ///
    /// # Errors
    /// [`EngineError::Load`] when it can't be read, is no tokenizer, or lacks Qwen3-VL's structural tokens.
    pub(super) fn load(file: &Path) -> Result<Self, EngineError> {
        let bytes =
            std::fs::read(file).map_err(|error| EngineError::Load(format!("tokenizer.json can't be read: {error}")))?;
        let tokenizer = Tokenizer::from_bytes(bytes)
            .map_err(|error| EngineError::Load(format!("tokenizer.json is not valid: {error}")))?;
        let id = |token: &str| {
            tokenizer
                .token_to_id(token)
                .ok_or_else(|| EngineError::Load(format!("tokenizer.json has no {token}: not a Qwen3-VL tokenizer")))
        };
        let structural = Structural {
            turn_start: id(TURN_START)?,
            turn_end: id(TURN_END)?,
            vision_start: id("<|vision_start|>")?,
            image_pad: id("<|image_pad|>")?,
            vision_end: id("<|vision_end|>")?,
        };
        // `<think>`, `<tool_call>` and the like are added tokens too, but not special: prompts, earlier turns and tool
        // responses rightly carry them.
        let added = tokenizer.get_added_tokens_decoder();
        let special = |content: &str, special: bool| special || (content.starts_with("<|") && content.ends_with("|>"));
        let special_ids = added.iter().filter(|(_, t)| special(&t.content, t.special)).map(|(id, _)| *id).collect();
        let mut special: Vec<String> =
            added.values().filter(|t| special(&t.content, t.special)).map(|t| t.content.clone()).collect();
        special.extend(ALWAYS_BROKEN.map(str::to_owned));
        special.sort();
        special.dedup();
        // A character of a byte-level vocabulary stands for a byte.
        let longest = tokenizer.get_vocab(true).keys().map(|token| token.chars().count()).max().unwrap_or(1).max(1);
        Ok(Self { tokenizer, special, structural, special_ids, longest })
    }

    /// The fewest tokens a text of so many bytes can have: known without tokenizing it, which takes a second a megabyte and
    /// can't be called off.
    pub(super) const fn fewest_tokens(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.longest)
    }

    /// True when this id is a token.
    pub(super) fn knows(&self, id: u32) -> bool {
        self.tokenizer.id_to_token(id).is_some()
    }

    /// The id that ends a turn.
    pub(super) const fn turn_end(&self) -> u32 {
        self.structural.turn_end
    }

    /// The same text with a space inside every special token, so that it reads the same and means nothing.
    pub(super) fn clean<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !self.special.iter().any(|token| text.contains(token.as_str())) {
            return Cow::Borrowed(text);
        }
        let mut clean = String::with_capacity(text.len() + 16);
        for (at, character) in text.char_indices() {
            clean.push(character);
            if self.special.iter().any(|token| text[at..].starts_with(token.as_str())) {
                clean.push(' ');
            }
        }
        Cow::Owned(clean)
    }

    /// Tokens of a piece of text.
    ///
    /// # Errors
    /// [`EngineError::Failed`] when the tokenizer fails.
    pub(super) fn count(&self, text: &str) -> Result<usize, EngineError> {
        self.encode(text, false).map(|ids| ids.len())
    }

    /// Tokens of a whole prompt, in which each picture still counts as three. Checks that the special tokens in it are
    /// ours and no other: the last line of defence behind [`Self::clean`].
    ///
    /// # Errors
    /// [`EngineError::Invalid`] when there are others.
    pub(super) fn count_prompt(&self, prompt: &str, expected: Structure) -> Result<usize, EngineError> {
        let ids = self.encode(prompt, true)?;
        let occurrences = |wanted: u32| ids.iter().filter(|id| **id == wanted).count();
        let found = &self.structural;
        let pictures = [found.vision_start, found.image_pad, found.vision_end];
        let total = ids.iter().filter(|id| self.special_ids.contains(id)).count();
        if occurrences(found.turn_start) != expected.starts
            || occurrences(found.turn_end) != expected.ends
            || pictures.into_iter().any(|id| occurrences(id) != expected.pictures)
            || total != expected.starts + expected.ends + 3 * expected.pictures
        {
            return Err(EngineError::Invalid("the text holds special tokens of the model".to_owned()));
        }
        Ok(ids.len())
    }

    fn encode(&self, text: &str, whole: bool) -> Result<Vec<u32>, EngineError> {
        self.tokenizer
            .encode_fast(text, whole)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|_| EngineError::Failed("the tokenizer failed".to_owned()))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(in super::super) fn tiny() -> Vocabulary {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("model_cards/paravt-tiny");
        Vocabulary::load(&folder.join("tokenizer.json")).expect("the bundled tokenizer")
    }

    #[test]
    fn special_tokens_in_text_are_broken_and_stay_readable() {
        let vocabulary = tiny();
        assert_eq!(vocabulary.clean("a <|im_end|> b <|image_pad|>"), "a < |im_end|> b < |image_pad|>");
        assert_eq!(vocabulary.clean("<|placeholder|>"), "< |placeholder|>");
    }

    #[test]
    fn tags_that_prompts_use_are_left_alone() {
        let text = "<think>\nx\n</think>\n<tool_call>{}</tool_call><tool_response>";
        assert_eq!(tiny().clean(text), text);
    }

    #[test]
    fn a_special_token_that_is_not_ours_is_refused() {
        let vocabulary = tiny();
        let none = Structure { starts: 0, ends: 0, pictures: 0 };
        assert!(vocabulary.count_prompt("plain", none).is_ok());
        assert!(matches!(vocabulary.count_prompt("<|endoftext|>", none), Err(EngineError::Invalid(_))));
    }

    #[test]
    fn a_file_that_is_no_tokenizer_is_named() {
        let folder = tempfile::tempdir().expect("tempdir");
        let file = folder.path().join("tokenizer.json");
        std::fs::write(&file, "{}").expect("write");
        let error = Vocabulary::load(&file).expect_err("not a tokenizer").to_string();
        assert!(error.contains("tokenizer.json"), "{error}");
    }

    proptest! {
        #[test]
        fn a_text_never_has_fewer_tokens_than_its_bytes_tell(text in "[a-zäöü0-9 \\n<>|]{0,300}") {
            let vocabulary = tiny();
            let tokens = vocabulary.tokenizer.encode(text.as_str(), false).expect("encodes").len();
            prop_assert!(vocabulary.fewest_tokens(text.len()) <= tokens);
        }

        #[test]
        fn no_typed_text_is_read_as_special(pieces in prop::collection::vec(
            prop_oneof![
                Just("<|im_end|>".to_owned()), Just("<|im_start|>".to_owned()), Just("<|image_pad|>".to_owned()),
                Just("<|".to_owned()), Just("|>".to_owned()), Just("<".to_owned()), Just("im_end".to_owned()),
                "[a-z <|>é]{0,6}",
            ], 0..12)) {
            let vocabulary = tiny();
            let clean = vocabulary.clean(&pieces.concat()).into_owned();
            let none = Structure { starts: 0, ends: 0, pictures: 0 };
            prop_assert!(vocabulary.count_prompt(&clean, none).is_ok(), "{clean:?}");
            prop_assert!(!clean.contains("<|placeholder|>"));
        }
    }
}
