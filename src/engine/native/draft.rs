//! Guesses what comes next by looking it up: where the last tokens stood before, the same tokens may follow again. Tool
//! calls copy times, answers copy summaries. A guess costs a few rows of a batch and is checked by the model, so it never
//! changes an output.
//!
//! Pure. Knows nothing of models, requests or batches.

use std::collections::HashMap;

/// Stands for whatever is not text: pictures are neither looked up nor drafted.
const GAP: u32 = u32::MAX;

/// The first guess of an output.
const FIRST_LENGTH: usize = 4;

/// Wrong guesses in a row before a pause.
const PATIENCE: u32 = 2;

/// Tokens of the first pause; each wrong guess after it doubles the next, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: u32 = 8;

/// The longest pause in tokens.
const LONGEST_PAUSE: u32 = 64;

/// A sequence's tokens so far, indexed by what they follow.
#[derive(Debug)]
pub(super) struct Lookup {
    tokens: Vec<u32>,
    /// Where the token stands that followed these two, or three, the last time.
    pairs: HashMap<[u32; 2], usize>,
    triples: HashMap<[u32; 3], usize>,
    /// The most tokens remembered.
    most: usize,
    /// How long the next guess may be.
    length: usize,
    /// How long any guess may be.
    longest: usize,
    /// Wrong guesses in a row.
    misses: u32,
    /// Tokens until guessing goes on.
    pause: u32,
}

impl Lookup {
    /// Remembers up to `most` tokens (about 100 bytes each) and guesses at most `longest` at a time. `longest` of 0 never
    /// guesses, and remembers nothing.
    pub(super) fn new(most: usize, longest: usize) -> Self {
        Self {
            tokens: Vec::new(),
            pairs: HashMap::new(),
            triples: HashMap::new(),
            most: most.max(8),
            length: FIRST_LENGTH.min(longest),
            longest,
            misses: 0,
            pause: 0,
        }
    }

    /// The sequence goes on with tokens of text.
    pub(super) fn extend(&mut self, tokens: &[u32]) {
        tokens.iter().for_each(|token| self.push(*token));
    }

    /// The sequence goes on with a picture.
    pub(super) fn gap(&mut self) {
        if self.tokens.last().is_some_and(|last| *last != GAP) {
            self.push(GAP);
        }
    }

    /// The sequence goes on with a token.
    pub(super) fn push(&mut self, token: u32) {
        if self.longest == 0 {
            return;
        }
        if self.tokens.len() == self.most {
            self.forget();
        }
        self.index(token);
        self.tokens.push(token);
        self.pause = self.pause.saturating_sub(1);
    }

    /// What may follow: at most `most` tokens, none when there is no guess worth checking.
    pub(super) fn guess(&self, most: usize) -> &[u32] {
        if self.pause > 0 {
            return &[];
        }
        let found = self.tokens.last_chunk().and_then(|last| self.triples.get(last));
        let found = found.or_else(|| self.tokens.last_chunk().and_then(|last| self.pairs.get(last)));
        let following = found.and_then(|at| self.tokens.get(*at..)).unwrap_or_default();
        let length = following.iter().take(self.length.min(most)).take_while(|token| **token != GAP).count();
        &following[..length]
    }

    /// How a guess turned out: the first `right` of its `guessed` tokens were what the model chose.
    pub(super) fn learn(&mut self, guessed: usize, right: usize) {
        if guessed == 0 {
            return;
        }
        if right == 0 {
            self.misses += 1;
            self.length = (self.length / 2).max(1);
            if let Some(doublings) = self.misses.checked_sub(PATIENCE) {
                self.pause = FIRST_PAUSE.checked_shl(doublings).map_or(LONGEST_PAUSE, |pause| pause.min(LONGEST_PAUSE));
            }
            return;
        }
        self.misses = 0;
        // A guess that was cut short by its caller says nothing against a longer one.
        let length = if right >= guessed { self.length.max(2 * guessed) } else { right + 1 };
        self.length = length.min(self.longest);
    }

    /// Notes where `token` stands, under what it follows. Done when it is known, so that the last tokens are always looked
    /// up before they are noted themselves.
    fn index(&mut self, token: u32) {
        if token == GAP {
            return;
        }
        let at = self.tokens.len();
        if let Some(last) = self.tokens.last_chunk::<2>().filter(|last| !last.contains(&GAP)) {
            self.pairs.insert(*last, at);
        }
        if let Some(last) = self.tokens.last_chunk::<3>().filter(|last| !last.contains(&GAP)) {
            self.triples.insert(*last, at);
        }
    }

    /// Forgets the older half.
    fn forget(&mut self) {
        let rest = self.tokens.split_off(self.tokens.len() - self.most / 2);
        self.tokens.clear();
        self.pairs.clear();
        self.triples.clear();
        for token in rest {
            self.index(token);
            self.tokens.push(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lookup(tokens: &[u32]) -> Lookup {
        let mut lookup = Lookup::new(1000, 16);
        lookup.extend(tokens);
        lookup
    }

    #[test]
    fn what_followed_the_last_three_tokens_is_guessed() {
        assert_eq!(lookup(&[1, 2, 3, 4, 5, 6, 1, 2, 3]).guess(9), [4, 5, 6, 1]);
        assert_eq!(lookup(&[1, 2, 3, 4, 5, 6, 1, 2, 3]).guess(2), [4, 5]);
    }

    #[test]
    fn two_tokens_do_where_three_are_not_found() {
        assert_eq!(lookup(&[1, 2, 3, 9, 2, 3, 7, 2, 3]).guess(2), [7, 2]);
        assert!(lookup(&[1, 2, 3, 9, 3]).guess(9).is_empty());
    }

    #[test]
    fn three_tokens_go_before_a_later_place_of_two() {
        assert_eq!(lookup(&[1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3]).guess(1), [4]);
    }

    #[test]
    fn the_latest_place_counts_and_a_run_continues_itself() {
        assert_eq!(lookup(&[1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]).guess(1), [5]);
        assert_eq!(lookup(&[7, 7, 7, 7]).guess(4), [7]);
        assert!(lookup(&[]).guess(4).is_empty());
    }

    #[test]
    fn pictures_are_neither_looked_up_nor_guessed() {
        let mut lookup = lookup(&[1, 2]);
        lookup.gap();
        lookup.gap();
        lookup.extend(&[3, 4, 5, 1, 2]);
        assert!(lookup.guess(4).is_empty(), "the picture followed");
        lookup.extend(&[8, 3, 4]);
        assert_eq!(lookup.guess(4), [5, 1, 2, 8]);
        assert_eq!(lookup.tokens.iter().filter(|token| **token == GAP).count(), 1);
    }

    #[test]
    fn guesses_grow_while_they_are_right_and_shrink_when_they_are_not() {
        let mut lookup = lookup(&(0..40).chain(0..3).collect::<Vec<u32>>());
        assert_eq!(lookup.guess(99).len(), 4);
        lookup.learn(4, 4);
        assert_eq!(lookup.guess(99).len(), 8);
        lookup.learn(8, 8);
        lookup.learn(16, 16);
        assert_eq!(lookup.guess(99).len(), 16);
        lookup.learn(16, 2);
        assert_eq!(lookup.guess(99).len(), 3);
        lookup.learn(1, 1);
        assert_eq!(lookup.guess(99).len(), 3);
    }

    #[test]
    fn after_wrong_guesses_there_is_a_pause_that_ends() {
        let mut lookup = Lookup::new(10_000, 16);
        let mut guessed = 0;
        for _ in 0..1000 {
            lookup.extend(&[1, 2]);
            if !lookup.guess(16).is_empty() {
                guessed += 1;
                let length = lookup.guess(16).len();
                lookup.learn(length, 0);
            }
        }
        assert!((10..50).contains(&guessed), "{guessed} guesses over 2000 tokens");
        lookup.extend(&[3; LONGEST_PAUSE as usize]);
        lookup.extend(&[1, 2]);
        assert!(!lookup.guess(16).is_empty());
        lookup.learn(1, 1);
        assert_eq!((lookup.misses, lookup.length), (0, 2));
    }

    #[test]
    fn a_lookup_of_length_none_does_nothing() {
        let mut lookup = Lookup::new(100, 0);
        lookup.extend(&[1, 1, 1, 1]);
        assert!(lookup.guess(9).is_empty() && lookup.tokens.is_empty());
    }

    proptest! {
        #[test]
        fn a_guess_is_what_really_followed_and_memory_is_bounded(
            tokens in prop::collection::vec(prop_oneof![9 => 0..4u32, 1 => Just(GAP)], 0..300), most in 8..64usize,
        ) {
            let mut lookup = Lookup::new(most, 8);
            for token in &tokens {
                if *token == GAP { lookup.gap() } else { lookup.push(*token) }
                prop_assert!(lookup.tokens.len() <= lookup.most);
                prop_assert!(lookup.pairs.len() <= lookup.most && lookup.triples.len() <= lookup.most);
                let known = lookup.tokens.clone();
                let guess = lookup.guess(8);
                prop_assert!(!guess.contains(&GAP));
                if guess.is_empty() {
                    // Nothing was overlooked: the last two tokens, with text after them, are nowhere else.
                    let last = known.last_chunk::<2>().filter(|last| !last.contains(&GAP));
                    prop_assert!(last.is_none_or(|last| !known.windows(3).any(|w| w[..2] == last[..] && w[2] != GAP)));
                } else {
                    let last = known.last_chunk::<2>().expect("found by it");
                    let follows = |w: &[u32]| w[..2] == last[..] && w[2..] == *guess;
                    prop_assert!(known.windows(2 + guess.len()).any(follows), "{known:?} {guess:?}");
                }
            }
        }
    }
}
