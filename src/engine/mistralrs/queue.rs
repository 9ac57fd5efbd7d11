//! Who runs next. First come, first served, except that what runs together must have one shape.
//!
//! mistralrs runs sequences in one batch only while their lengths, frames and offsets are equal; others take turns, are
//! prefilled again, and may end without a token. So nothing is left to its scheduler: a group of equal shape is started
//! at once, and the next group when all of it is over. A burst waits until its [`Gang`] is complete, within limits. Where
//! groups are of one sequence, a burst still starts together (on copies of the model), and nothing is padded.
//!
//! Pure: no I/O, no clock, no tokenizer, no mistralrs.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::align::MAX_PADDING;
use crate::engine::Gang;
use crate::types::FrameSize;

/// What must be equal for two sequences to share a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shape {
    /// Length of the prompt, pictures widened to their tokens.
    pub(super) tokens: usize,
    /// Sizes of the frames, in order.
    pub(super) frames: Vec<FrameSize>,
}

/// One that waits.
#[derive(Debug)]
pub(super) struct Entry<T> {
    /// Its shape. Grows when it is padded.
    pub(super) shape: Shape,
    /// The burst it belongs to.
    pub(super) gang: Option<Gang>,
    /// Until when it waits for the rest of its burst. Set by the queue.
    pub(super) patience: Option<Instant>,
    /// Runs with nobody else (a retry).
    pub(super) alone: bool,
    /// The request itself.
    pub(super) item: T,
}

impl<T> Entry<T> {
    /// Whether it need not wait for the rest of its burst.
    fn ready(&self, now: Instant) -> bool {
        let out_of_patience = || self.patience.is_some_and(|until| until <= now);
        self.gang.as_ref().is_none_or(Gang::complete) || out_of_patience()
    }

    /// Whether it may share a batch at all. Text alone is never mixed: beside pictures it stalls paged attention.
    fn sociable(&self) -> bool {
        !self.alone && !self.shape.frames.is_empty()
    }

    fn gang_id(&self) -> Option<u64> {
        self.gang.as_ref().map(Gang::id)
    }
}

/// The waiting line.
#[derive(Debug)]
pub(super) struct Queue<T> {
    entries: VecDeque<Entry<T>>,
    capacity: usize,
    widest: usize,
    patience: Duration,
}

impl<T> Queue<T> {
    /// At most `capacity` wait, at most `widest` run in one group, and nobody waits longer than `patience` for the rest of
    /// its burst: one window that decodes slowly must not make the others late.
    pub(super) const fn new(capacity: usize, widest: usize, patience: Duration) -> Self {
        Self { entries: VecDeque::new(), capacity, widest, patience }
    }

    /// Takes a place at the end, or gives the entry back when there is none.
    pub(super) fn push(&mut self, mut entry: Entry<T>, now: Instant) -> Result<(), Entry<T>> {
        if self.entries.len() >= self.capacity {
            return Err(entry);
        }
        entry.patience = entry.gang.as_ref().map(|_| now + self.patience);
        self.entries.push_back(entry);
        Ok(())
    }

    /// Puts one that had already run back at the front; it had its place before.
    pub(super) fn push_front(&mut self, entry: Entry<T>) {
        self.entries.push_front(entry);
    }

    /// Drops those that nobody wants any more.
    pub(super) fn retain(&mut self, wanted: impl Fn(&T) -> bool) {
        self.entries.retain(|entry| wanted(&entry.item));
    }

    /// Those that wait.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|entry| &entry.item)
    }

    /// Bursts that are waited for, and until when. A burst that has become complete since [`Self::next`] found nothing is
    /// among them: who waits for it wakes up at once.
    pub(super) fn awaited(&self) -> (Vec<Gang>, Option<Instant>) {
        let mut gangs: Vec<Gang> = Vec::new();
        let until = self.entries.iter().filter_map(|entry| entry.patience).min();
        for gang in self.entries.iter().filter_map(|entry| entry.gang.as_ref()) {
            if gangs.iter().all(|known| known.id() != gang.id()) {
                gangs.push(gang.clone());
            }
        }
        (gangs, until)
    }

    /// The next group, out of the queue; empty when all wait for their bursts. `pad` makes an item so many tokens
    /// longer, or leaves it as it is and says no.
    pub(super) fn next(&mut self, now: Instant, mut pad: impl FnMut(&mut T, usize) -> bool) -> Vec<Entry<T>> {
        let Some(place) = self.entries.iter().position(|entry| entry.ready(now)) else { return Vec::new() };
        let target = self.length_for(place);
        let Some(mut leader) = self.entries.remove(place) else { return Vec::new() };
        if !leader.sociable() {
            return vec![leader];
        }
        lengthen(&mut leader, target, &mut pad);
        let mut group = vec![leader];
        let mut waiting = VecDeque::with_capacity(self.entries.len());
        for mut entry in std::mem::take(&mut self.entries) {
            let joins = group.len() < self.widest
                && entry.ready(now)
                && entry.sociable()
                && entry.shape.frames == group[0].shape.frames
                && lengthen(&mut entry, group[0].shape.tokens, &mut pad);
            if joins { group.push(entry) } else { waiting.push_back(entry) }
        }
        self.entries = waiting;
        group
    }

    /// How long the leader's group shall be: as its burst's longest that padding can reach.
    fn length_for(&self, place: usize) -> usize {
        let leader = &self.entries[place];
        let own = leader.shape.tokens;
        // Alone in its group it need not be as long as any other.
        let Some(gang) = leader.gang_id().filter(|_| self.widest > 1) else { return own };
        self.entries
            .iter()
            .filter(|entry| entry.gang_id() == Some(gang) && entry.sociable())
            .filter(|entry| entry.shape.frames == leader.shape.frames)
            .map(|entry| entry.shape.tokens)
            .filter(|tokens| *tokens <= own + MAX_PADDING)
            .max()
            .unwrap_or(own)
    }
}

/// Brings an entry to a length. Only members of a burst are padded: a main turn's prompt is what it is.
fn lengthen<T>(entry: &mut Entry<T>, target: usize, pad: &mut impl FnMut(&mut T, usize) -> bool) -> bool {
    let Some(missing) = target.checked_sub(entry.shape.tokens) else { return false };
    if missing == 0 {
        return true;
    }
    let fits = entry.gang.is_some() && missing <= MAX_PADDING && pad(&mut entry.item, missing);
    if fits {
        entry.shape.tokens = target;
    }
    fits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATIENT: Duration = Duration::from_secs(3600);

    fn now() -> Instant {
        Instant::now()
    }

    fn entry(name: &'static str, tokens: usize, frames: usize, gang: Option<&Gang>) -> Entry<&'static str> {
        let size = FrameSize { width: 64, height: 64 };
        let shape = Shape { tokens, frames: vec![size; frames] };
        Entry { shape, gang: gang.cloned(), patience: None, alone: false, item: name }
    }

    fn queue(entries: Vec<Entry<&'static str>>) -> Queue<&'static str> {
        let mut queue = Queue::new(64, 8, PATIENT);
        for entry in entries {
            assert!(queue.push(entry, now()).is_ok());
        }
        queue
    }

    fn names(group: &[Entry<&'static str>]) -> Vec<&'static str> {
        group.iter().map(|entry| entry.item).collect()
    }

    /// Runs the queue to its end with padding that always works.
    fn groups(queue: &mut Queue<&'static str>) -> Vec<Vec<&'static str>> {
        std::iter::from_fn(|| Some(names(&queue.next(now(), |_, _| true))).filter(|group| !group.is_empty())).collect()
    }

    #[test]
    fn unequal_shapes_run_one_after_another() {
        let mut queue = queue(vec![entry("a", 10, 2, None), entry("b", 11, 2, None), entry("c", 10, 3, None)]);
        assert_eq!(groups(&mut queue), [["a"], ["b"], ["c"]]);
    }

    #[test]
    fn equal_shapes_run_together_and_others_keep_their_order() {
        let mut queue = queue(vec![entry("a", 10, 2, None), entry("b", 9, 2, None), entry("c", 10, 2, None)]);
        assert_eq!(groups(&mut queue), [vec!["a", "c"], vec!["b"]]);
    }

    #[test]
    fn a_burst_is_not_waited_for_longer_than_patience_lasts() {
        let gang = Gang::new();
        let _dispatcher = gang.seat();
        let mut queue = Queue::new(64, 8, Duration::ZERO);
        assert!(queue.push(entry("window", 10, 2, Some(&gang)), now()).is_ok());
        assert_eq!(names(&queue.next(now(), |_, _| true)), ["window"]);
    }

    #[test]
    fn without_batches_a_burst_still_starts_together_and_is_not_padded() {
        let gang = Gang::new();
        let dispatcher = gang.seat();
        let mut queue = Queue::new(64, 1, PATIENT);
        for (name, tokens) in [("a", 10), ("b", 12)] {
            assert!(queue.push(entry(name, tokens, 2, Some(&gang)), now()).is_ok());
        }
        assert!(queue.next(now(), |_, _| true).is_empty());
        drop(dispatcher);
        let first = queue.next(now(), |_, _| true);
        assert_eq!((names(&first), first[0].shape.tokens), (vec!["a"], 10));
        assert_eq!(names(&queue.next(now(), |_, _| true)), ["b"]);
    }

    #[test]
    fn a_burst_waits_until_it_is_complete_and_does_not_block_others() {
        let gang = Gang::new();
        let dispatcher = gang.seat();
        let mut queue = queue(vec![entry("window", 10, 2, Some(&gang)), entry("main", 50, 4, None)]);
        assert_eq!(names(&queue.next(now(), |_, _| true)), ["main"]);
        assert!(queue.next(now(), |_, _| true).is_empty());
        assert_eq!(queue.awaited().0.len(), 1);
        drop(dispatcher);
        assert_eq!(names(&queue.next(now(), |_, _| true)), ["window"]);
    }

    #[test]
    fn a_burst_is_padded_to_its_longest_and_runs_together() {
        let gang = Gang::new();
        let mut queue =
            queue(vec![entry("a", 10, 2, Some(&gang)), entry("b", 13, 2, Some(&gang)), entry("c", 12, 2, Some(&gang))]);
        let mut padded = Vec::new();
        let group = queue.next(now(), |name, missing| {
            padded.push((*name, missing));
            true
        });
        assert_eq!(names(&group), ["a", "b", "c"]);
        assert_eq!(padded, [("a", 3), ("c", 1)]);
        assert!(group.iter().all(|entry| entry.shape == group[0].shape));
    }

    #[test]
    fn a_burst_with_unequal_frames_becomes_groups() {
        let gang = Gang::new();
        let mut queue = queue(vec![
            entry("a", 10, 2, Some(&gang)),
            entry("b", 20, 4, Some(&gang)),
            entry("c", 10, 2, Some(&gang)),
            entry("d", 21, 4, Some(&gang)),
        ]);
        assert_eq!(groups(&mut queue), [["a", "c"], ["b", "d"]]);
    }

    #[test]
    fn what_can_not_be_padded_runs_later() {
        let gang = Gang::new();
        let mut queue = queue(vec![
            entry("a", 10, 2, Some(&gang)),
            entry("far", 10 + MAX_PADDING + 1, 2, Some(&gang)),
            entry("b", 12, 2, Some(&gang)),
        ]);
        assert_eq!(groups(&mut queue), [vec!["a", "b"], vec!["far"]]);
    }

    #[test]
    fn a_leader_that_can_not_be_padded_keeps_its_length() {
        let gang = Gang::new();
        let mut queue = queue(vec![entry("a", 10, 2, Some(&gang)), entry("b", 12, 2, Some(&gang))]);
        assert_eq!(names(&queue.next(now(), |_, _| false)), ["a"]);
        assert_eq!(names(&queue.next(now(), |_, _| false)), ["b"]);
    }

    #[test]
    fn a_main_turn_is_never_padded() {
        let mut queue = queue(vec![entry("a", 10, 2, None), entry("b", 9, 2, None)]);
        queue.next(now(), |_, _| panic!("nothing to pad"));
    }

    #[test]
    fn text_alone_and_retries_run_alone() {
        let mut retry = entry("retry", 10, 2, None);
        retry.alone = true;
        let mut queue =
            queue(vec![entry("text", 10, 0, None), entry("text too", 10, 0, None), retry, entry("b", 10, 2, None)]);
        assert_eq!(groups(&mut queue), [["text"], ["text too"], ["retry"], ["b"]]);
    }

    #[test]
    fn a_full_queue_gives_the_entry_back() {
        let mut queue = Queue::new(1, 8, PATIENT);
        assert!(queue.push(entry("a", 1, 1, None), now()).is_ok());
        assert!(queue.push(entry("b", 1, 1, None), now()).is_err());
        queue.push_front(entry("retry", 1, 1, None));
        assert_eq!(queue.iter().count(), 2);
    }

    #[test]
    fn the_abandoned_are_skipped() {
        let mut queue = queue(vec![entry("gone", 10, 2, None), entry("here", 10, 2, None)]);
        queue.retain(|name| *name == "here");
        assert_eq!(groups(&mut queue), [["here"]]);
    }

    proptest! {
        /// Whatever waits, every group is of one shape and not too wide, and everybody runs exactly once.
        #[test]
        fn groups_have_one_shape_and_nobody_is_lost(
            wanted in prop::collection::vec((1..40usize, 0..3usize, prop::option::of(0..3usize)), 0..24),
            widest in 1..5usize,
        ) {
            let gangs = [Gang::new(), Gang::new(), Gang::new()];
            let mut queue = Queue::new(64, widest, PATIENT);
            for (number, (tokens, frames, gang)) in wanted.iter().enumerate() {
                let size = FrameSize { width: 64, height: 64 };
                let shape = Shape { tokens: *tokens, frames: vec![size; *frames] };
                let entry = Entry { shape, gang: gang.map(|gang| gangs[gang].clone()), patience: None, alone: false, item: number };
                prop_assert!(queue.push(entry, now()).is_ok());
            }
            let mut seen = vec![0; wanted.len()];
            loop {
                let group = queue.next(now(), |number, missing| (*number + missing) % 3 > 0);
                if group.is_empty() { break }
                prop_assert!(group.len() <= widest);
                prop_assert!(group.iter().all(|entry| entry.shape == group[0].shape));
                for entry in &group { seen[entry.item] += 1 }
            }
            prop_assert!(seen.iter().all(|times| *times == 1));
        }
    }
}
