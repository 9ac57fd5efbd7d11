//! Pictures that the vision tower has seen, by what they show: the same frame is encoded once, whoever asks about it.
//!
//! A picture that a sequence is in the middle of is kept for it in any case: one for each sequence that runs. Knows nothing
//! of prompts or of how pictures are encoded.

use std::collections::{BTreeMap, HashMap};

use super::batch::SequenceId;
use crate::model::VisionFeatures;

/// The most recently used pictures, bounded in bytes, and those that are read in part.
#[derive(Debug)]
pub(super) struct VisionCache {
    most_bytes: usize,
    bytes: usize,
    held: HashMap<[u8; 32], Held>,
    /// When each was last used.
    uses: BTreeMap<u64, [u8; 32]>,
    clock: u64,
    partly: HashMap<SequenceId, ([u8; 32], VisionFeatures)>,
}

#[derive(Debug)]
struct Held {
    features: VisionFeatures,
    used: u64,
}

impl VisionCache {
    /// Holds at most so many bytes, those pictures not counted that are read in part.
    pub(super) fn new(most_bytes: usize) -> Self {
        let (held, uses, partly) = (HashMap::new(), BTreeMap::new(), HashMap::new());
        Self { most_bytes, bytes: 0, held, uses, clock: 0, partly }
    }

    /// A picture's features; cloning shares them.
    pub(super) fn get(&mut self, hash: &[u8; 32]) -> Option<VisionFeatures> {
        self.clock += 1;
        let Some(held) = self.held.get_mut(hash) else {
            // There are few, and they are looked at only where a picture would be encoded.
            return self.partly.values().find(|(partly, _)| partly == hash).map(|(_, features)| features.clone());
        };
        self.uses.remove(&held.used);
        held.used = self.clock;
        self.uses.insert(self.clock, *hash);
        Some(held.features.clone())
    }

    /// Keeps a picture's features, and drops the ones that were not used for the longest time. What is larger than all that
    /// may be kept is not kept, and drops nothing.
    pub(super) fn insert(&mut self, hash: [u8; 32], features: VisionFeatures) {
        if features.bytes() > self.most_bytes {
            return;
        }
        self.clock += 1;
        self.bytes += features.bytes();
        self.uses.insert(self.clock, hash);
        if let Some(before) = self.held.insert(hash, Held { features, used: self.clock }) {
            self.bytes -= before.features.bytes();
            self.uses.remove(&before.used);
        }
        while self.bytes > self.most_bytes
            && let Some((_, oldest)) = self.uses.pop_first()
        {
            if let Some(dropped) = self.held.remove(&oldest) {
                self.bytes -= dropped.features.bytes();
            }
        }
    }

    /// A sequence has read a part of this picture, and will go on with it.
    pub(super) fn keep_for(&mut self, id: SequenceId, hash: [u8; 32], features: VisionFeatures) {
        self.partly.insert(id, (hash, features));
    }

    /// A sequence is in the middle of no picture.
    pub(super) fn release(&mut self, id: SequenceId) {
        self.partly.remove(&id);
    }

    /// Forgets all of them: other weights see other things.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.most_bytes);
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;

    /// 400 bytes.
    fn features() -> VisionFeatures {
        let embeddings = Tensor::zeros((10, 10), DType::F32, &Device::Cpu).expect("fits");
        VisionFeatures { embeddings, deepstack: Vec::new() }
    }

    #[test]
    fn the_least_recently_used_goes_first_and_the_bound_holds() {
        let mut cache = VisionCache::new(1000);
        cache.insert([1; 32], features());
        cache.insert([2; 32], features());
        assert!(cache.get(&[1; 32]).is_some());
        cache.insert([3; 32], features());
        assert!(cache.get(&[2; 32]).is_none());
        assert!(cache.get(&[1; 32]).is_some() && cache.get(&[3; 32]).is_some());
        assert_eq!((cache.bytes, cache.held.len(), cache.uses.len()), (800, 2, 2));
    }

    #[test]
    fn what_is_kept_twice_counts_once_and_what_is_too_large_is_not_kept() {
        let mut cache = VisionCache::new(500);
        cache.insert([1; 32], features());
        cache.insert([1; 32], features());
        assert_eq!((cache.bytes, cache.held.len(), cache.uses.len()), (400, 1, 1));
        cache.clear();
        assert_eq!((cache.bytes, cache.held.len()), (0, 0));
        let mut small = VisionCache::new(100);
        small.insert([1; 32], features());
        assert_eq!((small.bytes, small.held.len(), small.uses.len()), (0, 0, 0));
    }

    #[test]
    fn what_is_too_large_leaves_the_others() {
        let mut cache = VisionCache::new(500);
        cache.insert([1; 32], features());
        let embeddings = Tensor::zeros((10, 100), DType::F32, &Device::Cpu).expect("fits");
        cache.insert([2; 32], VisionFeatures { embeddings, deepstack: Vec::new() });
        assert!(cache.get(&[1; 32]).is_some() && cache.get(&[2; 32]).is_none());
        assert_eq!(cache.bytes, 400);
    }

    #[test]
    fn a_picture_read_in_part_stays_until_it_is_read() {
        let mut cache = VisionCache::new(400);
        cache.insert([1; 32], features());
        cache.keep_for(SequenceId(7), [1; 32], features());
        cache.insert([2; 32], features());
        assert!(cache.get(&[1; 32]).is_some() && cache.get(&[2; 32]).is_some());
        cache.release(SequenceId(7));
        assert!(cache.get(&[1; 32]).is_none());
        cache.keep_for(SequenceId(7), [1; 32], features());
        cache.clear();
        assert!(cache.get(&[1; 32]).is_none(), "other weights see other things");
    }
}
