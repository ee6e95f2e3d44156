//! A cache of results that are fresh for seconds; concurrent requests for the same key share one fetch.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::lock;

/// The slot of one key: locked during a fetch.
type Slot<V> = Arc<tokio::sync::Mutex<Option<Fetched<V>>>>;

/// The result of a fetch.
struct Fetched<V> {
    value: V,
    at: Instant,
    /// The end of its lifetime.
    until: Instant,
}

/// Values by key, each with its own lifetime; never more than `capacity` of them.
pub(super) struct Cache<K, V> {
    slots: Mutex<HashMap<K, Slot<V>>>,
    capacity: usize,
}

impl<K: Eq + Hash + Clone, V: Clone> Cache<K, V> {
    /// Creates an empty cache of at most `capacity` values.
    pub(super) fn new(capacity: usize) -> Self {
        Self { slots: Mutex::default(), capacity }
    }

    /// Returns the fresh value of `key`, or the value that `fetch` returns with its lifetime. A value with a lifetime
    /// of zero is not cached, but callers that waited for its fetch get it.
    pub(super) async fn get_or<A>(&self, key: &K, fetch: A) -> V
    where
        A: Future<Output = (V, Duration)>,
    {
        let called_at = Instant::now();
        let slot = self.slot(key);
        let mut cached = slot.lock().await;
        if let Some(fetched) = &*cached
            && (Instant::now() < fetched.until || called_at < fetched.at)
        {
            return fetched.value.clone();
        }
        let (value, ttl) = fetch.await;
        let at = Instant::now();
        *cached = Some(Fetched { value: value.clone(), at, until: at + ttl });
        drop(cached);
        if ttl.is_zero() {
            self.remove(key, &slot);
        }
        value
    }

    /// Removes a slot. Callers that wait for it keep it.
    fn remove(&self, key: &K, slot: &Slot<V>) {
        let mut slots = lock(&self.slots);
        if slots.get(key).is_some_and(|known| Arc::ptr_eq(known, slot)) {
            slots.remove(key);
        }
    }

    fn slot(&self, key: &K) -> Slot<V> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(key) {
            return slot.clone();
        }
        if slots.len() >= self.capacity {
            let now = Instant::now();
            slots.retain(|_, slot| {
                slot.try_lock().map_or(true, |cached| cached.as_ref().is_some_and(|fetched| now < fetched.until))
            });
        }
        if slots.len() >= self.capacity {
            // All values are fresh or being fetched: this is a flood of different keys. Clearing costs repeated
            // requests; growing could exhaust the memory.
            slots.clear();
        }
        slots.entry(key.clone()).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    struct Fetches(AtomicU32);

    impl Fetches {
        async fn fetch(&self, ttl: Duration) -> (u32, Duration) {
            tokio::time::sleep(Duration::from_secs(1)).await;
            (self.0.fetch_add(1, Ordering::Relaxed), ttl)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cached_value_expires_after_its_lifetime() {
        let (cache, fetches) = (Cache::new(9), Fetches(AtomicU32::new(0)));
        assert_eq!(cache.get_or(&"a", fetches.fetch(TTL)).await, 0);
        tokio::time::advance(TTL - Duration::from_millis(1)).await;
        assert_eq!(cache.get_or(&"a", fetches.fetch(TTL)).await, 0);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(cache.get_or(&"a", fetches.fetch(Duration::ZERO)).await, 1);
        assert_eq!(cache.get_or(&"a", fetches.fetch(TTL)).await, 2, "a lifetime of zero is not cached");
        assert_eq!(cache.get_or(&"b", fetches.fetch(TTL)).await, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_share_one_fetch() {
        let (cache, fetches) = (Cache::new(9), Fetches(AtomicU32::new(0)));
        let values = futures::future::join_all((0..50).map(|_| cache.get_or(&"a", fetches.fetch(TTL)))).await;
        assert_eq!(values, [0; 50]);
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_share_one_fetch_without_a_lifetime() {
        let (cache, fetches) = (Cache::new(9), Fetches(AtomicU32::new(0)));
        let fetch = || cache.get_or(&"a", fetches.fetch(Duration::ZERO));
        let values = futures::future::join_all((0..50).map(|_| fetch())).await;
        assert_eq!(values, [0; 50]);
        assert!(lock(&cache.slots).is_empty(), "a value without a lifetime needs no memory");
        assert_eq!(fetch().await, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_fetch_does_not_block_the_next_one() {
        let (cache, fetches) = (Cache::new(9), Fetches(AtomicU32::new(0)));
        let dropped = tokio::time::timeout(Duration::from_millis(1), cache.get_or(&"a", fetches.fetch(TTL))).await;
        assert!(dropped.is_err());
        assert_eq!(cache.get_or(&"a", fetches.fetch(TTL)).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn cache_is_bounded_under_a_flood_of_keys() {
        let (cache, fetches) = (Cache::new(9), Fetches(AtomicU32::new(0)));
        for key in 0..100 {
            cache.get_or(&key, fetches.fetch(TTL)).await;
            assert!(cache.slots.lock().unwrap().len() <= 9);
        }
    }
}
