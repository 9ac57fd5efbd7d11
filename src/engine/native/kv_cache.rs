//! Who owns which block of keys and values, and which prefix lies in it. Accounting only: the memory is another's.
//!
//! A block holds a fixed number of tokens. One that is full and computed is registered under a hash of everything up to its
//! end, so that equal prefixes share it by reference; without references it stays, cached, until its room is needed. What
//! was released for good goes first, the newest before the others; then what was released longest ago. Unless it was for
//! good, the last, partly filled block of a released sequence is cached under its parent's hash and given to one sequence
//! alone, which goes on writing where the other stopped. Room that admitted sequences will need is promised to them, so that
//! taking a block never fails for them.
//!
//! Knows nothing of requests, order or steps.

use std::collections::HashMap;

use sha2::{Digest, Sha256};

/// Partly filled blocks kept below one parent; more of them would make claiming slow.
const PARTIALS_MAX: usize = 8;

/// What a token is, as far as its keys and values depend on itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenIdentity {
    /// A token of text.
    Text(u32),
    /// A row of a picture's embeddings.
    Picture {
        /// Hash of all the picture's rows and positions depend on: pixels, size, image or video.
        hash: [u8; 32],
        /// Which row.
        row: u32,
    },
}

/// Names a prefix of whole blocks: SHA-256 over the parent's name and the identities of the last block's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrefixHash([u8; 32]);

impl PrefixHash {
    /// The empty prefix.
    pub const ROOT: Self = Self([0; 32]);

    /// This prefix and one more block.
    #[must_use]
    pub fn extend(self, block: impl Iterator<Item = TokenIdentity>) -> Self {
        let mut hasher = Sha256::new_with_prefix(self.0);
        for token in block {
            // Tagged and of fixed length by tag: no two lists of tokens give the same bytes.
            match token {
                TokenIdentity::Text(id) => {
                    hasher.update([0]);
                    hasher.update(id.to_le_bytes());
                }
                TokenIdentity::Picture { hash, row } => {
                    hasher.update([1]);
                    hasher.update(hash);
                    hasher.update(row.to_le_bytes());
                }
            }
        }
        Self(hasher.finalize().into())
    }
}

/// A fixed number of blocks and what lies in them.
#[derive(Debug)]
pub struct BlockPool {
    /// One for each block, and one that closes the ring of cached blocks.
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Blocks without references that hold a prefix: the length of the ring.
    cached: usize,
    full: HashMap<PrefixHash, u32>,
    partial: HashMap<PrefixHash, Vec<u32>>,
    promised: usize,
    peak_used: usize,
}

#[derive(Debug, Default)]
struct Slot {
    references: u32,
    /// Whether somebody found what is in it, and took it.
    shared: bool,
    content: Content,
    /// Neighbours in the ring of cached blocks, of which the one after the closing slot goes first.
    previous: u32,
    next: u32,
}

/// What the rest of the world may find a block by.
#[derive(Debug, Default)]
enum Content {
    #[default]
    Unregistered,
    Full(PrefixHash),
    Partial {
        parent: PrefixHash,
        tokens: Vec<TokenIdentity>,
    },
}

impl BlockPool {
    /// A pool in which every block is free.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        let mut slots: Vec<Slot> = (0..=blocks).map(|_| Slot::default()).collect();
        if let Some(closing) = slots.last_mut() {
            (closing.previous, closing.next) = (blocks, blocks);
        }
        Self {
            slots,
            free: (0..blocks).rev().collect(),
            cached: 0,
            full: HashMap::new(),
            partial: HashMap::new(),
            promised: 0,
            peak_used: 0,
        }
    }

    /// All blocks.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.slots.len() - 1
    }

    /// Blocks that hold nothing.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Blocks nobody references that hold a prefix.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.cached
    }

    /// Blocks somebody references.
    #[must_use]
    pub fn used(&self) -> usize {
        self.blocks() - self.free.len() - self.cached
    }

    /// The most blocks that were referenced at a time.
    #[must_use]
    pub fn peak_used(&self) -> usize {
        self.peak_used
    }

    /// Blocks promised and not yet taken.
    #[must_use]
    pub fn promised(&self) -> usize {
        self.promised
    }

    /// Blocks that can still be promised.
    #[must_use]
    pub fn available(&self) -> usize {
        (self.free.len() + self.cached).saturating_sub(self.promised)
    }

    /// Sets blocks aside. The caller has seen to it that they are available, or takes referenced ones at once.
    pub fn promise(&mut self, blocks: usize) {
        self.promised += blocks;
    }

    /// Gives back a promise that wasn't needed.
    pub fn unpromise(&mut self, blocks: usize) {
        self.promised = self.promised.saturating_sub(blocks);
    }

    /// Takes an empty block against a promise, the longest cached one where none is free. `None` when all are referenced.
    pub fn allocate(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            let oldest = self.slots.last().map(|closing| closing.next).filter(|_| self.cached > 0)?;
            self.evict(oldest);
        }
        let block = self.free.pop()?;
        self.unpromise(1);
        (self.slots[block as usize].references, self.slots[block as usize].shared) = (1, false);
        self.note_peak();
        Some(block)
    }

    /// Whether a prefix is there.
    #[must_use]
    pub fn contains(&self, prefix: PrefixHash) -> bool {
        self.full.contains_key(&prefix)
    }

    /// Whether a prefix is there and somebody holds it, so that one more holder costs nothing.
    #[must_use]
    pub fn is_held(&self, prefix: PrefixHash) -> bool {
        self.full.get(&prefix).is_some_and(|block| self.slots[*block as usize].references > 0)
    }

    /// Takes the block that ends a prefix, against a promise.
    pub fn adopt(&mut self, prefix: PrefixHash) -> Option<u32> {
        let block = *self.full.get(&prefix)?;
        if self.slots[block as usize].references == 0 {
            self.unlink(block);
        }
        self.slots[block as usize].shared = true;
        self.slots[block as usize].references += 1;
        self.unpromise(1);
        self.note_peak();
        Some(block)
    }

    /// Whether partly filled blocks follow a prefix.
    #[must_use]
    pub fn has_partial(&self, parent: PrefixHash) -> bool {
        self.partial.contains_key(&parent)
    }

    /// Takes, for the caller alone and against a promise, the partly filled block after `parent` that begins most like
    /// `tokens`, and says how many of them it holds. What it holds beyond is for overwriting.
    pub fn claim(&mut self, parent: PrefixHash, tokens: &[TokenIdentity]) -> Option<(u32, usize)> {
        let common = |block: &u32| match &self.slots[*block as usize].content {
            Content::Partial { tokens: held, .. } => held.iter().zip(tokens).take_while(|(a, b)| a == b).count(),
            _ => 0,
        };
        let candidates = self.partial.get(&parent)?.iter();
        let (block, count) = candidates.map(|block| (*block, common(block))).max_by_key(|(_, count)| *count)?;
        if count == 0 {
            return None;
        }
        self.unlink(block);
        self.unregister(block);
        self.slots[block as usize].references = 1;
        self.unpromise(1);
        self.note_peak();
        Some((block, count))
    }

    /// A block its holder has filled. Where the prefix is there already, the block stays its holder's own.
    pub fn register(&mut self, block: u32, prefix: PrefixHash) {
        let content = &mut self.slots[block as usize].content;
        if matches!(content, Content::Unregistered) && !self.full.contains_key(&prefix) {
            *content = Content::Full(prefix);
            self.full.insert(prefix, block);
        }
    }

    /// One reference less. The last one leaves a registered block cached, any other free.
    pub fn release(&mut self, block: u32) {
        self.release_partial(block, PrefixHash::ROOT, Vec::new());
    }

    /// A sequence's blocks, in order, of which hardly anybody will ask for what nobody shared so far: that goes before all
    /// that is cached. Of each kind the tail goes first.
    pub fn release_for_good(&mut self, table: &[u32]) {
        let (shared, own): (Vec<u32>, Vec<u32>) = table.iter().partition(|block| self.slots[**block as usize].shared);
        for block in shared.into_iter().rev() {
            self.release(block);
        }
        for block in own {
            let slot = &mut self.slots[block as usize];
            slot.references = 0;
            match slot.content {
                Content::Unregistered => self.free.push(block),
                _ => self.link_after(self.blocks() as u32, block),
            }
        }
    }

    /// As [`Self::release`], but a block that isn't registered is cached as partly filled with `tokens` after `parent`.
    pub fn release_partial(&mut self, block: u32, parent: PrefixHash, tokens: Vec<TokenIdentity>) {
        let slot = &mut self.slots[block as usize];
        slot.references = slot.references.saturating_sub(1);
        if slot.references > 0 {
            return;
        }
        if matches!(slot.content, Content::Unregistered) {
            if tokens.is_empty() {
                self.free.push(block);
                return;
            }
            slot.content = Content::Partial { parent, tokens };
            let siblings = self.partial.entry(parent).or_default();
            siblings.push(block);
            if siblings.len() > PARTIALS_MAX {
                let oldest = siblings[0];
                self.link(block);
                self.evict(oldest);
                return;
            }
        }
        self.link(block);
    }

    /// Forgets every prefix: blocks without references become free, others can't be found any more.
    pub fn forget(&mut self) {
        self.full.clear();
        self.partial.clear();
        while let Some(block) = self.slots.last().map(|closing| closing.next).filter(|_| self.cached > 0) {
            self.evict(block);
        }
        for slot in &mut self.slots {
            slot.content = Content::Unregistered;
        }
    }

    fn evict(&mut self, block: u32) {
        self.unlink(block);
        self.unregister(block);
        self.free.push(block);
    }

    fn unregister(&mut self, block: u32) {
        match std::mem::take(&mut self.slots[block as usize].content) {
            Content::Unregistered => {}
            Content::Full(prefix) => {
                self.full.remove(&prefix);
            }
            Content::Partial { parent, .. } => {
                if let Some(siblings) = self.partial.get_mut(&parent) {
                    siblings.retain(|sibling| *sibling != block);
                    if siblings.is_empty() {
                        self.partial.remove(&parent);
                    }
                }
            }
        }
    }

    /// Puts a block at the end of the ring.
    fn link(&mut self, block: u32) {
        self.link_after(self.slots[self.blocks()].previous, block);
    }

    fn link_after(&mut self, previous: u32, block: u32) {
        let next = std::mem::replace(&mut self.slots[previous as usize].next, block);
        (self.slots[block as usize].previous, self.slots[block as usize].next) = (previous, next);
        self.slots[next as usize].previous = block;
        self.cached += 1;
    }

    fn unlink(&mut self, block: u32) {
        let (previous, next) = (self.slots[block as usize].previous, self.slots[block as usize].next);
        self.slots[previous as usize].next = next;
        self.slots[next as usize].previous = previous;
        self.cached -= 1;
    }

    fn note_peak(&mut self) {
        self.peak_used = self.peak_used.max(self.used());
    }

    /// Panics unless the books are right, given how often each block is in a table.
    #[cfg(test)]
    pub(super) fn check(&self, held: &HashMap<u32, u32>) {
        let mut states = vec![0; self.blocks()];
        self.free.iter().for_each(|block| states[*block as usize] += 1);
        let mut at = self.slots[self.blocks()].next;
        let mut ring = 0;
        while at as usize != self.blocks() {
            states[at as usize] += 1;
            assert!(
                !matches!(self.slots[at as usize].content, Content::Unregistered),
                "a cached block nobody can find"
            );
            at = self.slots[at as usize].next;
            ring += 1;
        }
        assert_eq!(ring, self.cached);
        for (block, state) in states.iter().enumerate() {
            let references = held.get(&(block as u32)).copied().unwrap_or(0);
            assert_eq!(self.slots[block].references, references, "references of block {block}");
            assert_eq!(*state, i32::from(references == 0), "block {block} is in one state");
        }
        for (prefix, block) in &self.full {
            assert!(matches!(self.slots[*block as usize].content, Content::Full(found) if found == *prefix));
        }
        let partials: usize = self.partial.values().map(Vec::len).sum();
        let contents = self.slots.iter().map(|slot| &slot.content);
        assert_eq!(contents.clone().filter(|content| matches!(content, Content::Partial { .. })).count(), partials);
        assert_eq!(contents.filter(|content| matches!(content, Content::Full(_))).count(), self.full.len());
        assert!(self.promised <= self.free.len() + self.cached, "more promised than there is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(ids: &[u32]) -> Vec<TokenIdentity> {
        ids.iter().map(|id| TokenIdentity::Text(*id)).collect()
    }

    fn prefix(ids: &[u32]) -> PrefixHash {
        PrefixHash::ROOT.extend(text(ids).into_iter())
    }

    fn take(pool: &mut BlockPool) -> u32 {
        pool.promise(1);
        pool.allocate().expect("a block is available")
    }

    /// A block that holds a prefix and that nobody references.
    fn cache(pool: &mut BlockPool, ids: &[u32]) -> u32 {
        let block = take(pool);
        pool.register(block, prefix(ids));
        pool.release(block);
        block
    }

    #[test]
    fn a_prefix_is_found_by_its_tokens_and_its_parent() {
        let picture = |byte, row| TokenIdentity::Picture { hash: [byte; 32], row };
        let names = [
            prefix(&[1, 2]),
            prefix(&[2, 1]),
            prefix(&[1, 2]).extend(text(&[1, 2]).into_iter()),
            PrefixHash::ROOT.extend([picture(1, 0), picture(1, 1)].into_iter()),
            PrefixHash::ROOT.extend([picture(1, 1), picture(1, 0)].into_iter()),
            PrefixHash::ROOT.extend([picture(2, 0), picture(2, 1)].into_iter()),
        ];
        for (i, name) in names.iter().enumerate() {
            assert!(names[..i].iter().all(|other| other != name), "{i}");
        }
        assert_eq!(prefix(&[1, 2]), prefix(&[1, 2]));
    }

    #[test]
    fn a_released_block_is_found_until_its_room_is_needed_and_the_oldest_goes_first() {
        let mut pool = BlockPool::new(3);
        let blocks = [1, 2, 3].map(|id| cache(&mut pool, &[id]));
        assert_eq!((pool.free(), pool.cached(), pool.used()), (0, 3, 0));
        pool.promise(1);
        assert_eq!(pool.adopt(prefix(&[1])), Some(blocks[0]));
        assert_eq!(take(&mut pool), blocks[1]);
        assert!(!pool.contains(prefix(&[2])) && pool.contains(prefix(&[3])));
        pool.check(&HashMap::from([(blocks[0], 1), (blocks[1], 1)]));
    }

    #[test]
    fn what_is_of_no_further_use_goes_first_unless_somebody_took_it_again() {
        let mut pool = BlockPool::new(4);
        let old = cache(&mut pool, &[1]);
        let [done, again] = [2, 3].map(|id| {
            let block = take(&mut pool);
            pool.register(block, prefix(&[id]));
            pool.release_for_good(&[block]);
            block
        });
        pool.promise(1);
        assert_eq!(pool.adopt(prefix(&[3])), Some(again));
        pool.release_for_good(&[again]);
        let unregistered = take(&mut pool);
        pool.release_for_good(&[unregistered]);
        assert_eq!(pool.free(), 1);
        assert_eq!([(); 4].map(|()| take(&mut pool)), [unregistered, done, old, again]);
        pool.check(&[unregistered, done, old, again].into_iter().map(|block| (block, 1)).collect());
    }

    #[test]
    fn the_tail_goes_first_of_what_is_shared_and_of_what_is_not() {
        let mut pool = BlockPool::new(4);
        let table = [1, 2, 3, 4].map(|id| {
            let block = take(&mut pool);
            pool.register(block, prefix(&[id]));
            block
        });
        pool.promise(2);
        for id in [1, 2] {
            assert!(pool.adopt(prefix(&[id])).is_some());
        }
        pool.release_for_good(&table);
        assert_eq!((pool.used(), pool.cached()), (2, 2));
        pool.release_for_good(&table[..2]);
        assert_eq!([(); 4].map(|()| take(&mut pool)), [table[3], table[2], table[1], table[0]]);
    }

    #[test]
    fn holders_share_a_block_and_the_last_one_caches_it() {
        let mut pool = BlockPool::new(2);
        let block = cache(&mut pool, &[1]);
        pool.promise(2);
        assert_eq!((pool.adopt(prefix(&[1])), pool.adopt(prefix(&[1]))), (Some(block), Some(block)));
        pool.release(block);
        assert!(pool.is_held(prefix(&[1])));
        pool.release(block);
        assert!(!pool.is_held(prefix(&[1])) && pool.contains(prefix(&[1])));
        pool.check(&HashMap::new());
    }

    #[test]
    fn a_prefix_that_is_there_already_leaves_the_second_block_private() {
        let mut pool = BlockPool::new(2);
        let (first, second) = (take(&mut pool), take(&mut pool));
        pool.register(first, prefix(&[1]));
        pool.register(second, prefix(&[1]));
        pool.release(second);
        assert_eq!((pool.free(), pool.used()), (1, 1));
        pool.check(&HashMap::from([(first, 1)]));
    }

    #[test]
    fn a_partly_filled_block_is_claimed_once_by_the_one_that_goes_on_most_like_it() {
        let mut pool = BlockPool::new(3);
        let parent = prefix(&[1]);
        let blocks = [&[5, 6][..], &[5, 7, 8]].map(|ids| {
            let block = take(&mut pool);
            pool.release_partial(block, parent, text(ids));
            block
        });
        pool.promise(3);
        assert_eq!(pool.claim(parent, &text(&[9])), None);
        assert_eq!(pool.claim(prefix(&[2]), &text(&[5])), None);
        assert_eq!(pool.claim(parent, &text(&[5, 7, 9])), Some((blocks[1], 2)));
        assert_eq!(pool.claim(parent, &text(&[5, 7, 9])), Some((blocks[0], 1)));
        assert_eq!(pool.claim(parent, &text(&[5])), None);
    }

    #[test]
    fn few_partly_filled_blocks_are_kept_below_one_parent() {
        let mut pool = BlockPool::new(20);
        let blocks: Vec<u32> = (0..20).map(|_| take(&mut pool)).collect();
        for block in blocks {
            pool.release_partial(block, PrefixHash::ROOT, text(&[block]));
        }
        assert_eq!((pool.cached(), pool.free()), (PARTIALS_MAX, 20 - PARTIALS_MAX));
        pool.check(&HashMap::new());
    }

    #[test]
    fn what_is_promised_is_not_available_and_nothing_is_taken_beyond_the_bound() {
        let mut pool = BlockPool::new(2);
        cache(&mut pool, &[1]);
        pool.promise(2);
        assert_eq!(pool.available(), 0);
        assert!(pool.allocate().is_some() && pool.allocate().is_some());
        assert_eq!(pool.allocate(), None);
        assert_eq!((pool.used(), pool.peak_used(), pool.promised()), (2, 2, 0));
    }

    #[test]
    fn forgetting_frees_what_nobody_holds_and_hides_the_rest() {
        let mut pool = BlockPool::new(3);
        cache(&mut pool, &[1]);
        let held = take(&mut pool);
        pool.register(held, prefix(&[2]));
        pool.forget();
        assert!(!pool.contains(prefix(&[1])) && !pool.contains(prefix(&[2])));
        pool.check(&HashMap::from([(held, 1)]));
        pool.release(held);
        assert_eq!(pool.free(), 3);
    }
}
