//! Sharing of equal parts between records: strings, label sets, owner lists, raw templates.
//!
//! A pool holds one `Arc` of each distinct value. A value that no record uses is dropped at the next sweep, which
//! happens whenever the pool has doubled since the last sweep. So the cost per insertion stays constant, and a pool
//! holds at most twice the values that were in use at the last sweep, or a small number if that is larger.

use std::any::{Any, TypeId};
use std::fmt::Debug;
use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hashbrown::{DefaultHashBuilder, HashTable};

/// A shared immutable string.
pub type Str = Arc<str>;

/// A shared label set, sorted by key.
pub type Labels = Arc<[(Str, Str)]>;

/// A pool below this size is never swept.
const SWEEP_FLOOR: usize = 256;

#[derive(Debug)]
struct Pool<T: ?Sized> {
    inner: Mutex<Inner<T>>,
    hasher: DefaultHashBuilder,
}

#[derive(Debug)]
struct Inner<T: ?Sized> {
    values: HashTable<Arc<T>>,
    sweep_at: usize,
}

impl<T: ?Sized + Hash + Eq> Default for Pool<T> {
    fn default() -> Self {
        Self {
            inner: Mutex::new(Inner { values: HashTable::new(), sweep_at: SWEEP_FLOOR }),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl<T: ?Sized + Hash + Eq> Pool<T> {
    fn get(&self, value: &T) -> Arc<T>
    where
        Arc<T>: for<'a> From<&'a T>,
    {
        self.get_or(value, || Arc::from(value))
    }

    /// Returns the shared copy of a value, which `make` allocates if there is none.
    fn get_or(&self, value: &T, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        let hash = self.hasher.hash_one(value);
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = inner.values.find(hash, |kept| **kept == *value) {
            return found.clone();
        }
        if inner.values.len() >= inner.sweep_at {
            inner.values.retain(|kept| Arc::strong_count(kept) > 1);
            inner.sweep_at = SWEEP_FLOOR.max(inner.values.len() * 2);
            inner.values.shrink_to_fit(|kept| self.hasher.hash_one(&**kept));
        }
        let new = make();
        inner.values.insert_unique(hash, new.clone(), |kept| self.hasher.hash_one(&**kept));
        new
    }

    fn len(&self) -> usize {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).values.len()
    }
}

/// A pool of values, or of lists of values, whose type this module cannot import, because a higher module defines it.
trait RecordPool: Any + Debug + Send + Sync {
    fn len(&self) -> usize;
}

impl<T: ?Sized + Hash + Eq + Debug + Send + Sync + 'static> RecordPool for Pool<T> {
    fn len(&self) -> usize {
        Pool::len(self)
    }
}

/// The pools, one per type. Shared by all stores of a process.
#[derive(Debug, Default)]
pub struct Interner {
    strings: Pool<str>,
    labels: Pool<[(Str, Str)]>,
    lists: Pool<[Str]>,
    blobs: Pool<[u8]>,
    /// Pools of other types; so few that a scan is as fast as a map.
    records: RwLock<Vec<(TypeId, Box<dyn RecordPool>)>>,
}

impl Interner {
    /// Returns the shared copy of a string.
    pub fn str(&self, text: &str) -> Str {
        self.strings.get(text)
    }

    /// Returns the shared copy of a label set; sorts it first.
    pub fn labels(&self, mut labels: Vec<(Str, Str)>) -> Labels {
        labels.sort_unstable();
        self.labels.get(&labels[..])
    }

    /// Returns the shared copy of a list of strings.
    pub fn list(&self, list: &[Str]) -> Arc<[Str]> {
        self.lists.get(list)
    }

    /// Returns the shared copy of raw bytes.
    pub fn blob(&self, bytes: &[u8]) -> Arc<[u8]> {
        self.blobs.get(bytes)
    }

    /// Returns the shared copy of a list of any other type.
    pub fn records<T: Clone + Hash + Eq + Debug + Send + Sync + 'static>(&self, records: &[T]) -> Arc<[T]> {
        self.with_pool(|pool: &Pool<[T]>| pool.get(records))
    }

    /// Returns the shared copy of a value of any other type.
    pub fn record<T: Clone + Hash + Eq + Debug + Send + Sync + 'static>(&self, record: &T) -> Arc<T> {
        self.with_pool(|pool: &Pool<T>| pool.get_or(record, || Arc::new(record.clone())))
    }

    /// Passes the pool of a type to `get`; creates the pool first if there is none.
    fn with_pool<T: ?Sized + Hash + Eq + Debug + Send + Sync + 'static>(
        &self,
        get: impl FnOnce(&Pool<T>) -> Arc<T>,
    ) -> Arc<T> {
        let pools = self.records.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pool_of(&pools) {
            return get(pool);
        }
        drop(pools);
        let mut pools = self.records.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have added the pool between the two locks.
        if let Some(pool) = pool_of(&pools) {
            return get(pool);
        }
        let pool = Pool::<T>::default();
        let shared = get(&pool);
        pools.push((TypeId::of::<T>(), Box::new(pool)));
        shared
    }

    /// Returns the number of distinct values, of all types.
    pub fn len(&self) -> usize {
        let texts = self.strings.len() + self.labels.len() + self.lists.len() + self.blobs.len();
        let pools = self.records.read().unwrap_or_else(PoisonError::into_inner);
        texts + pools.iter().map(|(_, pool)| pool.len()).sum::<usize>()
    }

    /// Returns true if the pools contain no value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Returns the pool of `T`, if one exists.
fn pool_of<T: ?Sized + 'static>(pools: &[(TypeId, Box<dyn RecordPool>)]) -> Option<&Pool<T>> {
    let (_, pool) = pools.iter().find(|(value, _)| *value == TypeId::of::<T>())?;
    let pool: &dyn Any = &**pool;
    pool.downcast_ref()
}

/// Returns the value of a label, if the set contains it. The set must be sorted by key, as [`Labels`] are.
///
/// Costs O(log n): an object may have 20,000 labels, and a selector as many requirements.
pub fn label<'a>(labels: &'a [(Str, Str)], key: &str) -> Option<&'a str> {
    let at = labels.binary_search_by(|(name, _)| (**name).cmp(key)).ok()?;
    Some(&*labels[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_share_one_allocation() {
        let interner = Interner::default();
        assert!(Arc::ptr_eq(&interner.str("app"), &interner.str("app")));
        let set = |value: &str| {
            interner.labels(vec![(interner.str("b"), interner.str(value)), (interner.str("a"), interner.str("1"))])
        };
        assert!(Arc::ptr_eq(&set("x"), &set("x")));
        assert!(!Arc::ptr_eq(&set("x"), &set("y")));
        assert_eq!(&*set("x")[0].0, "a", "sorted by key");
        assert_eq!(label(&set("x"), "b"), Some("x"));
    }

    #[test]
    fn lists_of_each_record_type_have_their_own_pool() {
        let interner = Interner::default();
        assert!(interner.is_empty());
        let numbers = interner.records(&[1u32, 2]);
        assert!(Arc::ptr_eq(&numbers, &interner.records(&[1u32, 2])));
        assert!(!Arc::ptr_eq(&numbers, &interner.records(&[2u32, 1])));
        let others = interner.records(&[1u64, 2]);
        assert!(Arc::ptr_eq(&others, &interner.records(&[1u64, 2])));
        assert_eq!(interner.len(), 3);
        let single = interner.record(&1u32);
        assert!(Arc::ptr_eq(&single, &interner.record(&1u32)));
        assert_eq!(interner.len(), 4, "values and lists of a type do not share a pool");
    }

    #[test]
    fn equal_lists_from_concurrent_threads_share_one_allocation() {
        let interner = Interner::default();
        let lists: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| interner.records(&[7u16]))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(lists.iter().all(|list| Arc::ptr_eq(list, &lists[0])));
        assert_eq!(interner.len(), 1);
    }

    #[test]
    fn unused_values_are_dropped() {
        let interner = Interner::default();
        let kept = interner.str("kept");
        for i in 0..10 * SWEEP_FLOOR {
            interner.str(&format!("gone-{i}"));
        }
        assert!(interner.len() <= SWEEP_FLOOR, "{} values held, one in use", interner.len());
        assert!(Arc::ptr_eq(&kept, &interner.str("kept")));
    }
}
