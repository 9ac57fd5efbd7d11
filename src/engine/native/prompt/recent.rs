//! Values that are kept until there are too many bytes of them; the longest unused go first.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// What an entry takes beside its own bytes, roughly.
const OVERHEAD: usize = 128;

#[derive(Debug)]
pub(super) struct Recent<K, V> {
    entries: HashMap<K, Entry<V>>,
    bytes: usize,
    most_bytes: usize,
    /// Counts uses.
    now: u64,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    bytes: usize,
    used: u64,
}

impl<K: Hash + Eq + Clone, V> Recent<K, V> {
    pub(super) fn new(most_bytes: usize) -> Self {
        Self { entries: HashMap::new(), bytes: 0, most_bytes, now: 0 }
    }

    pub(super) fn get<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.now += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.now;
        Some(&entry.value)
    }

    /// Keeps a value of so many bytes, key included. One that is larger than a quarter of all that may be kept is not.
    pub(super) fn insert(&mut self, key: K, value: V, bytes: usize) {
        let bytes = bytes.saturating_add(OVERHEAD);
        if let Some(old) = self.entries.remove(&key) {
            self.bytes -= old.bytes;
        }
        if bytes > self.most_bytes / 4 {
            return;
        }
        if self.bytes + bytes > self.most_bytes {
            self.shrink();
        }
        self.now += 1;
        self.bytes += bytes;
        self.entries.insert(key, Entry { value, bytes, used: self.now });
    }

    /// Down to a half, so that this is rare.
    fn shrink(&mut self) {
        let mut oldest: Vec<(u64, K)> = self.entries.iter().map(|(key, entry)| (entry.used, key.clone())).collect();
        oldest.sort_unstable_by_key(|(used, _)| *used);
        for (_, key) in oldest {
            if self.bytes <= self.most_bytes / 2 {
                break;
            }
            if let Some(entry) = self.entries.remove(&key) {
                self.bytes -= entry.bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_go_first_and_the_bound_holds() {
        let mut recent = Recent::new(8 * (OVERHEAD + 100));
        for key in 0..8u32 {
            recent.insert(key, key, 100);
        }
        let get = |recent: &mut Recent<u32, u32>, key: u32| recent.get(&key).copied();
        assert_eq!(get(&mut recent, 0), Some(0));
        recent.insert(8, 8, 100);
        assert!(recent.bytes <= recent.most_bytes);
        let kept = [0, 1, 8].map(|key| get(&mut recent, key));
        assert_eq!(kept, [Some(0), None, Some(8)]);
        recent.insert(9, 9, 1 << 20);
        assert_eq!(get(&mut recent, 9), None);
        for key in 0..1000u32 {
            recent.insert(key % 7, key, key as usize);
            assert!(recent.bytes <= recent.most_bytes);
            assert_eq!(recent.bytes, recent.entries.values().map(|entry| entry.bytes).sum::<usize>());
        }
    }
}
