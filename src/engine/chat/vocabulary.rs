//! The tokenizer as this engine needs it: counting, and keeping text that somebody typed from being read as special tokens.
//!
//! Knows nothing of requests, frames or scheduling.

use std::borrow::Cow;
use std::path::Path;

use tokenizers::Tokenizer;

#[cfg(feature = "native")]
use super::bytes::TokenBytes;
use crate::engine::EngineError;

/// Opens a turn.
pub(in crate::engine) const TURN_START: &str = "<|im_start|>";
/// Closes a turn.
pub(in crate::engine) const TURN_END: &str = "<|im_end|>";
/// One picture, as Qwen3-VL's template writes it. mistralrs widens the middle token to one per merged patch.
pub(in crate::engine) const PICTURE: &str = "<|vision_start|><|image_pad|><|vision_end|>";
/// The same for two frames of a video.
pub(in crate::engine) const FRAME_PAIR: &str = "<|vision_start|><|video_pad|><|vision_end|>";

/// Not in every tokenizer, but mistralrs adds or rewrites them: `<|placeholder|>` becomes an image token by plain text
/// replacement.
const ALWAYS_BROKEN: [&str; 3] = ["<|image_pad|>", "<|video_pad|>", "<|placeholder|>"];

/// How often each structural token occurs in a prompt of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Structure {
    /// Turn openings.
    pub(in crate::engine) starts: usize,
    /// Turn ends.
    pub(in crate::engine) ends: usize,
    /// Pictures.
    pub(in crate::engine) pictures: usize,
}

/// A checkpoint's tokenizer.
#[derive(Debug)]
pub(in crate::engine) struct Vocabulary {
    tokenizer: Tokenizer,
    /// Texts that must not survive in what somebody typed.
    special: Vec<String>,
    structural: Structural,
    special_ids: Vec<u32>,
    /// Bytes of the longest token.
    longest: usize,
}

/// Numbers of the tokens that a conversation is built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Structural {
    pub(in crate::engine) turn_start: u32,
    pub(in crate::engine) turn_end: u32,
    pub(in crate::engine) vision_start: u32,
    /// One for each merged patch of a picture.
    pub(in crate::engine) image_pad: u32,
    /// The same for a pair of frames, where the tokenizer has it.
    pub(in crate::engine) video_pad: Option<u32>,
    pub(in crate::engine) vision_end: u32,
}

impl Vocabulary {
    /// Reads `tokenizer.json`.
    ///
    /// # Errors
    /// [`EngineError::Load`] when it can't be read, is no tokenizer, or lacks Qwen3-VL's structural tokens.
    pub(in crate::engine) fn load(file: &Path) -> Result<Self, EngineError> {
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
            video_pad: tokenizer.token_to_id("<|video_pad|>"),
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
    pub(in crate::engine) const fn fewest_tokens(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.longest)
    }

    /// True when this id is a token.
    #[cfg(feature = "mistralrs")]
    pub(in crate::engine) fn knows(&self, id: u32) -> bool {
        self.tokenizer.id_to_token(id).is_some()
    }

    /// The id that ends a turn.
    pub(in crate::engine) const fn turn_end(&self) -> u32 {
        self.structural.turn_end
    }

    /// The same text with a space inside every special token, so that it reads the same and means nothing.
    pub(in crate::engine) fn clean<'a>(&self, text: &'a str) -> Cow<'a, str> {
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
    #[cfg(feature = "mistralrs")]
    pub(in crate::engine) fn count(&self, text: &str) -> Result<usize, EngineError> {
        self.encode(text, false).map(|ids| ids.len())
    }

    /// Tokens of a whole prompt, in which each picture still counts as three. Checks that the special tokens in it are
    /// ours and no other: the last line of defence behind [`Self::clean`].
    ///
    /// # Errors
    /// [`EngineError::Invalid`] when there are others.
    #[cfg(any(feature = "mistralrs", test))]
    pub(in crate::engine) fn count_prompt(&self, prompt: &str, expected: Structure) -> Result<usize, EngineError> {
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

    /// The tokens that a conversation is built with.
    #[cfg(feature = "native")]
    pub(in crate::engine) const fn structural(&self) -> Structural {
        self.structural
    }

    /// True for tokens that must not come from text.
    #[cfg(feature = "native")]
    pub(in crate::engine) fn is_special(&self, id: u32) -> bool {
        self.special_ids.contains(&id)
    }

    /// What each token adds to a text.
    ///
    /// # Errors
    /// [`EngineError::Load`] when the vocabulary is not a byte-level one.
    #[cfg(feature = "native")]
    pub(in crate::engine) fn token_bytes(&self) -> Result<TokenBytes, EngineError> {
        TokenBytes::new(&self.tokenizer)
    }

    /// Tokens of a text between two structural tokens. Structural tokens are cut out of a prompt before anything else
    /// happens to it, so what is between them has the same tokens alone as in the whole.
    ///
    /// # Errors
    /// [`EngineError::Invalid`] when there is a special token in it: the last line of defence behind [`Self::clean`].
    #[cfg(feature = "native")]
    pub(in crate::engine) fn encode_text(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        let ids = self.encode(text, false)?;
        if ids.iter().any(|id| self.is_special(*id)) {
            return Err(EngineError::Invalid("the text holds special tokens of the model".to_owned()));
        }
        Ok(ids)
    }

    fn encode(&self, text: &str, whole: bool) -> Result<Vec<u32>, EngineError> {
        self.tokenizer
            .encode_fast(text, whole)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|_| EngineError::Failed("the tokenizer failed".to_owned()))
    }
}

#[cfg(test)]
pub(in crate::engine) mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Vocabulary {
        /// The text of these tokens by the tokenizer's own rules, special ones left out.
        #[cfg(feature = "native")]
        pub(in crate::engine) fn decode(&self, ids: &[u32]) -> String {
            self.tokenizer.decode(ids, true).expect("decodes")
        }

        /// The tokens of a whole prompt by the tokenizer's own rules.
        #[cfg(feature = "native")]
        pub(in crate::engine) fn encode_whole(&self, prompt: &str) -> Vec<u32> {
            self.encode(prompt, true).expect("encodes")
        }
    }

    pub(in crate::engine) fn tiny() -> Vocabulary {
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
