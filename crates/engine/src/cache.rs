//! Runs and definitions that were used lately, so that a step does not read again what the step before it wrote.

use std::collections::HashMap;
use std::hash::Hash;
use std::mem;

/// A map for names that every command looks up. Its order is another in every process, so nothing may depend on it.
pub type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// A bounded map that forgets what was not used for a while: two generations, the older one is dropped when the younger
/// one is full.
#[derive(Debug)]
pub struct Cache<K, V> {
    young: Map<K, (V, usize)>,
    old: Map<K, (V, usize)>,
    weight: usize,
    /// What one generation may weigh.
    most: usize,
}

impl<K: Eq + Hash, V> Cache<K, V> {
    pub fn new(most: usize) -> Cache<K, V> {
        Cache { young: Map::default(), old: Map::default(), weight: 0, most }
    }

    /// Something that stays, and is young again.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        if let Some((key, (value, weight))) = self.old.remove_entry(key) {
            self.put(key, value, weight);
        }
        self.young.get(key).map(|(value, _)| value)
    }

    pub fn take(&mut self, key: &K) -> Option<V> {
        if let Some((value, weight)) = self.young.remove(key) {
            self.weight -= weight;
            return Some(value);
        }
        self.old.remove(key).map(|(value, _)| value)
    }

    pub fn put(&mut self, key: K, value: V, weight: usize) {
        if self.weight + weight > self.most {
            self.old = mem::take(&mut self.young);
            self.weight = 0;
        }
        self.old.remove(&key);
        self.weight += weight;
        if let Some((_, before)) = self.young.insert(key, (value, weight)) {
            self.weight -= before;
        }
    }

    pub fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
        self.weight = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_the_rest_is_forgotten() {
        let mut cache = Cache::new(10);
        for n in 0..1_000 {
            cache.put(n, n, 1);
            let kept = cache.take(&0).expect("0 is used all the time");
            cache.put(0, kept, 1);
        }
        assert_eq!(cache.take(&500), None);
        assert_eq!(cache.get(&999), Some(&999));
        assert_eq!(cache.get(&500), None);
        for n in 1_000..2_000 {
            cache.put(n, n, 1);
            assert_eq!(cache.get(&0), Some(&0), "also when it is only looked at");
        }
        assert!(cache.young.len() + cache.old.len() <= 20);
    }
}
