//! What each token of a byte-level vocabulary adds to a text.
//!
//! Knows nothing of tokenizing, of prompts, or of any inference crate.

use tokenizers::{DecoderWrapper, Tokenizer};

use crate::engine::EngineError;

/// The bytes of every token, as the tokenizer's decoder writes them: a token may be a part of a character.
#[derive(Debug)]
pub(in crate::engine) struct TokenBytes {
    bytes: Vec<u8>,
    /// Where each token ends in `bytes`; it begins where the one before it ends.
    ends: Vec<u32>,
    special: Vec<bool>,
}

impl TokenBytes {
    /// Reads them from a tokenizer.
    ///
    /// # Errors
    /// [`EngineError::Load`] when its decoder is not a byte-level one, or its tokens are too many or too long.
    pub(in crate::engine) fn new(tokenizer: &Tokenizer) -> Result<Self, EngineError> {
        let load = |problem: &str| EngineError::Load(format!("tokenizer.json {problem}"));
        if !matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            return Err(load("has no byte-level decoder: not a Qwen3-VL tokenizer"));
        }
        let vocabulary = tokenizer.get_vocab(true);
        let added = tokenizer.get_added_tokens_decoder();
        let most = vocabulary.values().max().map_or(0, |id| *id as usize + 1);
        if most > MOST_TOKENS {
            return Err(load("numbers its tokens too high"));
        }
        let mut tokens = Self { bytes: Vec::new(), ends: Vec::with_capacity(most), special: vec![false; most] };
        for id in 0..most {
            let number = u32::try_from(id).map_err(|_| load("has too many tokens"))?;
            if let Some(token) = tokenizer.id_to_token(number) {
                append(&token, &mut tokens.bytes);
                tokens.special[id] = added.get(&number).is_some_and(|token| token.special);
            }
            let end = u32::try_from(tokens.bytes.len()).map_err(|_| load("has too long tokens"))?;
            tokens.ends.push(end);
        }
        Ok(tokens)
    }

    /// One more than the highest number of a token.
    pub(in crate::engine) const fn len(&self) -> usize {
        self.ends.len()
    }

    /// What the token is made of; nothing for a number that is no token.
    pub(in crate::engine) fn raw(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(end) = self.ends.get(id) else { return &[] };
        let start = id.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.bytes.get(start as usize..*end as usize).unwrap_or_default()
    }

    /// What the token adds to an output: nothing where it is a special one.
    pub(in crate::engine) fn text(&self, id: u32) -> &[u8] {
        if self.is_special(id) { &[] } else { self.raw(id) }
    }

    /// True for tokens that mark something and are no text: `<|im_end|>`, not `<think>`.
    pub(in crate::engine) fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }
}

/// A tokenizer with more says nonsense about one of them.
const MOST_TOKENS: usize = 1 << 21;

/// Appends a token's bytes: each character of a byte-level vocabulary stands for a byte. A token with another character
/// in it (an added one) stands for itself.
fn append(token: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for character in token.chars() {
        let Some(byte) = byte(character) else {
            bytes.truncate(start);
            bytes.extend_from_slice(token.as_bytes());
            return;
        };
        bytes.push(byte);
    }
}

/// The byte that a character stands for in GPT-2's alphabet: printable characters for themselves, the 68 other bytes in
/// order as the characters from U+0100.
fn byte(character: char) -> Option<u8> {
    let code = u32::from(character);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::vocabulary::tests::tiny;
    use super::*;

    #[test]
    fn every_byte_has_one_character() {
        let bytes: BTreeSet<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte).collect();
        assert_eq!(bytes.len(), 256);
        assert_eq!((0..0x200).filter_map(char::from_u32).filter(|c| byte(*c).is_some()).count(), 256);
        assert_eq!((byte('Ġ'), byte('Ċ'), byte('a'), byte('€')), (Some(b' '), Some(b'\n'), Some(b'a'), None));
    }

    #[test]
    fn a_token_with_a_character_beyond_the_alphabet_stands_for_itself() {
        let mut bytes = Vec::new();
        append("a b", &mut bytes);
        assert_eq!(bytes, b"a b");
    }

    #[test]
    fn tokens_are_what_the_tokenizer_decodes() {
        let (vocabulary, tokens) = (tiny(), tiny().token_bytes().expect("byte-level"));
        let id = |text: &str| vocabulary.encode_text(text).expect("encodes")[0];
        assert_eq!(tokens.text(id("<think>")), b"<think>");
        assert_eq!(tokens.text(id(" the")), &b" the"[..tokens.text(id(" the")).len()]);
        let end = vocabulary.turn_end();
        assert!(tokens.is_special(end) && tokens.text(end).is_empty() && tokens.raw(end) == b"<|im_end|>");
        assert!(tokens.raw(u32::MAX).is_empty() && !tokens.is_special(u32::MAX));
    }
}
