//! Reads that concurrent callers share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use kinds::Str;
use runtime::lock::lock;

type Read<V> = Shared<BoxFuture<'static, Result<Arc<V>, Arc<str>>>>;
type Slots<V> = Mutex<HashMap<Str, Slot<V>>>;

struct Slot<V> {
    has_begun: Arc<AtomicBool>,
    read: Read<V>,
}

/// Reads of a value by key, for example of a namespace's pods. A read always begins after the call that receives its
/// result. Calls during a read of their key wait for its end, and then share one further read.
pub struct SharedReads<V> {
    read: Arc<dyn Fn(Str) -> BoxFuture<'static, Result<V, String>> + Send + Sync>,
    slots: Arc<Slots<V>>,
}

impl<V: Send + Sync + 'static> SharedReads<V> {
    /// Creates shared reads; `read` reads the value of a key, or returns the text of an error.
    pub fn new(read: impl Fn(Str) -> BoxFuture<'static, Result<V, String>> + Send + Sync + 'static) -> Self {
        Self { read: Arc::new(read), slots: Arc::default() }
    }

    /// Returns the result of a read for the key that begins after this call. A failure is shared like a success;
    /// the next call reads again.
    pub async fn get(&self, key: &Str) -> Result<Arc<V>, Arc<str>> {
        let read = {
            let mut slots = lock(&self.slots);
            let current = slots.get(key);
            match current.filter(|slot| !slot.has_begun.load(Ordering::SeqCst)) {
                Some(waiting) => waiting.read.clone(),
                None => {
                    let slot = self.next(key, current.map(|slot| slot.read.clone()));
                    let read = slot.read.clone();
                    slots.insert(key.clone(), slot);
                    read
                }
            }
        };
        read.await
    }

    fn next(&self, key: &Str, previous: Option<Read<V>>) -> Slot<V> {
        let has_begun = Arc::new(AtomicBool::new(false));
        let (begun, key) = (has_begun.clone(), key.clone());
        let (function, slots) = (self.read.clone(), self.slots.clone());
        let read = async move {
            if let Some(previous) = previous {
                let _ = previous.await;
            }
            begun.store(true, Ordering::SeqCst);
            let result = function(key.clone()).await;
            let mut slots = lock(&slots);
            if slots.get(&key).is_some_and(|slot| Arc::ptr_eq(&slot.has_begun, &begun)) {
                slots.remove(&key);
            }
            result.map(Arc::new).map_err(Arc::from)
        };
        Slot { has_begun, read: read.boxed().shared() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;

    /// Returns reads that wait for a permit each, with the semaphore of the permits and the number of reads that have
    /// started.
    fn counted() -> (Arc<SharedReads<usize>>, Arc<Semaphore>, Arc<AtomicUsize>) {
        let (permits, count) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let (gate, counter) = (permits.clone(), count.clone());
        let reads = SharedReads::new(move |key: Str| {
            let (gate, counter) = (gate.clone(), counter.clone());
            async move {
                let number = counter.fetch_add(1, Ordering::SeqCst) + 1;
                gate.acquire().await.expect("it stays open").forget();
                if &*key == "broken" { Err("no response".to_owned()) } else { Ok(number) }
            }
            .boxed()
        });
        (Arc::new(reads), permits, count)
    }

    #[tokio::test]
    async fn calls_during_a_read_share_the_next_one() {
        let (reads, permits, count) = counted();
        let get = |reads: Arc<SharedReads<usize>>| {
            tokio::spawn(async move { *reads.get(&"shop".into()).await.expect("it succeeds") })
        };
        let first = get(reads.clone());
        while count.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let later: Vec<_> = (0..10).map(|_| get(reads.clone())).collect();
        tokio::task::yield_now().await;
        permits.add_permits(2);
        assert_eq!(first.await.expect("it ends"), 1);
        for number in join_all(later).await {
            assert_eq!(number.expect("it ends"), 2);
        }
        assert!(reads.slots.lock().expect("not poisoned").is_empty(), "nothing is kept");
    }

    #[tokio::test]
    async fn failed_read_is_not_kept() {
        let (reads, permits, count) = counted();
        permits.add_permits(2);
        for _ in 0..2 {
            assert_eq!(&*reads.get(&"broken".into()).await.expect_err("it fails"), "no response");
        }
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn namespaces_do_not_wait_for_each_other() {
        let (reads, permits, count) = counted();
        let other = reads.clone();
        let first = tokio::spawn(async move { other.get(&"shop".into()).await });
        let second = tokio::spawn(async move { reads.get(&"bank".into()).await });
        while count.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
        permits.add_permits(2);
        assert!(first.await.expect("it ends").is_ok() && second.await.expect("it ends").is_ok());
    }
}
