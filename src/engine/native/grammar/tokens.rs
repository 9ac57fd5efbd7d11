//! The vocabulary as llguidance sees it.

use std::sync::Arc;

use llguidance::toktrie::{TokRxInfo, TokTrie, TokenizerEnv};

use crate::engine::chat::bytes::TokenBytes;
use crate::engine::chat::vocabulary::Vocabulary;

/// A vocabulary and its trie. Special tokens are marked, so that no grammar takes one for text.
pub(super) struct Tokens {
    vocabulary: Arc<Vocabulary>,
    trie: TokTrie,
}

impl Tokens {
    /// With a place for each logit of a row; numbers that are no tokens are never allowed.
    pub(super) fn new(
        vocabulary: Arc<Vocabulary>,
        tokens: &TokenBytes,
        row: usize,
        ends: &[u32],
    ) -> Result<Self, std::num::TryFromIntError> {
        let size = u32::try_from(row)?;
        let word = |id: u32| {
            let mark = tokens.is_special(id).then_some(TokTrie::SPECIAL_TOKEN_MARKER);
            mark.into_iter().chain(tokens.raw(id).iter().copied()).collect()
        };
        let words: Vec<Vec<u8>> = (0..size).map(word).collect();
        let ends: Vec<u32> = ends.iter().copied().filter(|id| *id < size).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size, ends.first().copied().unwrap_or(vocabulary.turn_end())), &words);
        let trie = if ends.is_empty() { trie } else { trie.with_eos_tokens(&ends) };
        Ok(Self { vocabulary, trie })
    }
}

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            let tokens = self.vocabulary.encode_text(text).ok();
            // A tokenizer may rewrite text (to NFC) or find special tokens in it; neither is what the grammar says.
            let exact = tokens.filter(|tokens| self.trie.decode_raw(tokens) == text.as_bytes());
            exact.unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }
}
