//! One request as the scheduler sees it: tokens known, tokens computed, blocks held.

use std::sync::Arc;

use crate::engine::native::kv_cache::{BlockPool, PrefixHash, TokenIdentity};
use crate::engine::native::policy::Rank;
use crate::engine::{SessionKey, Speaker};

/// Something to generate.
#[derive(Debug, Clone)]
pub struct SequenceRequest {
    /// Token ids, the placeholders of pictures included. At least one.
    pub prompt: Vec<u32>,
    /// Pictures in the prompt, in order, apart from each other.
    pub pictures: Arc<[PictureSpan]>,
    /// Longest output in tokens.
    pub max_new_tokens: usize,
    /// Which episode it belongs to.
    pub session: SessionKey,
    /// Who speaks.
    pub speaker: Speaker,
    /// The burst it belongs to.
    pub gang: Option<u64>,
}

/// The placeholders of one picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PictureSpan {
    /// Position of the first.
    pub first: usize,
    /// How many. At least one.
    pub tokens: usize,
    /// Hash of everything the picture's embeddings and positions depend on: pixels, size, image or video.
    pub hash: [u8; 32],
}

/// A request that was taken, until it is ended.
#[derive(Debug)]
pub struct Sequence {
    /// Prompt and generated tokens.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_tokens: usize,
    pub(super) pictures: Arc<[PictureSpan]>,
    pub(super) max_new_tokens: usize,
    pub(super) speaker: Speaker,
    pub(super) gang: Option<u64>,
    pub(super) rank: Rank,
    pub(super) admitted: bool,
    /// Waits once more, after it ran.
    pub(super) returned: bool,
    /// Leading tokens whose keys and values are in the table's blocks.
    pub(super) computed: usize,
    /// Of them, found and not computed.
    pub(super) hits: usize,
    /// Drafts computed after them, not yet accepted.
    pub(super) drafts: Vec<u32>,
    pub(super) table: Vec<u32>,
    /// Blocks promised and not yet in the table.
    pub(super) promised: usize,
    /// Names of the leading whole blocks, as far as they were needed.
    pub(super) prefixes: Vec<PrefixHash>,
    /// Of the table's blocks, those that were offered for sharing.
    pub(super) registered: usize,
}

impl Sequence {
    pub(super) fn new(request: SequenceRequest, rank: Rank, block_tokens: usize) -> Self {
        let mut sequence = Self {
            prompt_tokens: request.prompt.len(),
            tokens: request.prompt,
            pictures: request.pictures,
            max_new_tokens: request.max_new_tokens,
            speaker: request.speaker,
            gang: request.gang,
            rank,
            admitted: false,
            returned: false,
            computed: 0,
            hits: 0,
            drafts: Vec::new(),
            table: Vec::new(),
            promised: 0,
            prefixes: Vec::new(),
            registered: 0,
        };
        sequence.name_blocks(block_tokens);
        sequence
    }

    /// Prompt and generated tokens.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Length of the prompt.
    #[must_use]
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Generated tokens.
    #[must_use]
    pub fn generated(&self) -> &[u32] {
        &self.tokens[self.prompt_tokens..]
    }

    /// Tokens of the prompt whose keys and values were found instead of computed. After a weight swap what was generated is
    /// read again too, and some of that may be found; it is no part of this.
    #[must_use]
    pub fn cached_tokens(&self) -> usize {
        self.hits.min(self.prompt_tokens)
    }

    /// False while it waits in the queue.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.admitted
    }

    pub(super) fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    pub(super) fn may_generate(&self) -> usize {
        (self.prompt_tokens + self.max_new_tokens).saturating_sub(self.tokens.len())
    }

    /// Blocks it can need at most.
    pub(super) fn blocks_max(&self, block_tokens: usize) -> usize {
        (self.prompt_tokens + self.max_new_tokens).div_ceil(block_tokens)
    }

    /// Whether a block ends before the last token, whose logits are needed and which is therefore always computed.
    pub(super) fn is_shareable(&self, block: usize, block_tokens: usize) -> bool {
        (block + 1) * block_tokens < self.tokens.len()
    }

    /// The block that is next, when the computed tokens end where a block does and it may be taken from others.
    pub(super) fn next_shareable(&self, block_tokens: usize) -> Option<PrefixHash> {
        let block = self.computed / block_tokens;
        let next = self.computed.is_multiple_of(block_tokens) && self.is_shareable(block, block_tokens);
        if next { self.prefixes.get(block).copied() } else { None }
    }

    /// Takes the whole blocks that are cached of what comes next.
    pub(super) fn take_cached(&mut self, pool: &mut BlockPool, block_tokens: usize) {
        // What a step that never happened took: it would hide the same blocks, computed by others since.
        while self.table.len() > self.computed.div_ceil(block_tokens)
            && let Some(block) = self.table.pop()
        {
            pool.release(block);
            pool.promise(1);
            self.promised += 1;
        }
        while let Some(prefix) = self.next_shareable(block_tokens)
            && let Some(block) = pool.adopt(prefix)
        {
            self.take(block, block_tokens);
            self.registered = self.table.len();
        }
    }

    /// Goes on in a block that somebody left partly filled.
    pub(super) fn take_partial(&mut self, pool: &mut BlockPool, block_tokens: usize) {
        let parent = self.parent(self.table.len());
        if self.computed == self.table.len() * block_tokens && pool.has_partial(parent) {
            let last = (self.computed + block_tokens).min(self.tokens.len() - 1);
            let ahead = self.identities(self.computed, last);
            if let Some((block, tokens)) = pool.claim(parent, &ahead) {
                self.take(block, tokens);
            }
        }
    }

    fn take(&mut self, block: u32, tokens: usize) {
        self.table.push(block);
        self.promised -= 1;
        self.computed += tokens;
        self.hits += tokens;
    }

    /// Makes the table cover this many tokens. False when the pool is dry, which promises rule out.
    pub(super) fn cover(&mut self, tokens: usize, pool: &mut BlockPool, block_tokens: usize) -> bool {
        while self.table.len() * block_tokens < tokens {
            let Some(block) = pool.allocate() else { return false };
            self.table.push(block);
            self.promised = self.promised.saturating_sub(1);
        }
        true
    }

    /// Offers the blocks that became full for sharing.
    pub(super) fn register(&mut self, pool: &mut BlockPool, block_tokens: usize) {
        self.name_blocks(block_tokens);
        while self.registered < self.computed / block_tokens {
            pool.register(self.table[self.registered], self.prefixes[self.registered]);
            self.registered += 1;
        }
    }

    /// Gives all blocks back, so that the tail goes first. A sub-agent's conversation is over: what it alone read makes room
    /// before an episode's main turn does, which goes on when its windows are watched.
    pub(super) fn release(&mut self, pool: &mut BlockPool, block_tokens: usize) {
        pool.unpromise(std::mem::take(&mut self.promised));
        let table = std::mem::take(&mut self.table);
        match self.speaker {
            Speaker::Sub => pool.release_for_good(&table),
            Speaker::Main => {
                let full = self.computed / block_tokens;
                let partial = self.identities(full * block_tokens, self.computed);
                for (index, block) in table.into_iter().enumerate().rev() {
                    let tokens = if index == full { partial.clone() } else { Vec::new() };
                    pool.release_partial(block, self.parent(full), tokens);
                }
            }
        }
        self.computed = 0;
        self.hits = 0;
        self.registered = 0;
        self.drafts.clear();
    }

    fn parent(&self, block: usize) -> PrefixHash {
        block.checked_sub(1).and_then(|parent| self.prefixes.get(parent).copied()).unwrap_or(PrefixHash::ROOT)
    }

    fn name_blocks(&mut self, block_tokens: usize) {
        while (self.prefixes.len() + 1) * block_tokens <= self.tokens.len() {
            let first = self.prefixes.len() * block_tokens;
            let block = self.identities(first, first + block_tokens);
            self.prefixes.push(self.parent(self.prefixes.len()).extend(block.into_iter()));
        }
    }

    fn identities(&self, from: usize, to: usize) -> Vec<TokenIdentity> {
        let mut picture = self.pictures.partition_point(|span| span.first + span.tokens <= from);
        (from..to)
            .map(|position| {
                if self.pictures.get(picture).is_some_and(|span| span.first + span.tokens <= position) {
                    picture += 1;
                }
                match self.pictures.get(picture) {
                    Some(span) if span.first <= position => {
                        TokenIdentity::Picture { hash: span.hash, row: (position - span.first) as u32 }
                    }
                    _ => TokenIdentity::Text(self.tokens[position]),
                }
            })
            .collect()
    }
}
