//! Finalizers that block the deletion of an object while something uses it.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::{Decode, DecodeError, Kind, Meta, metadata_edit};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::Queue;
use runtime::store::{Cached, Store};
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::{WriteError, Writer};
use tracing::debug;

/// Delay of the next reconcile of an object whose user is on the API server but not in the cache yet.
///
/// Usually the user reaches the cache soon, and its deletion requeues the object. But a user that is created and
/// deleted while the watch is interrupted never reaches the cache.
pub const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The change that an object's protecting finalizer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// No change: the finalizer is set, or the object is being deleted without it.
    Nothing,
    /// The finalizer is missing and has to be added.
    Addition,
    /// The object is being deleted: the finalizer has to be removed once nothing uses the object.
    Removal,
}

/// Returns the change that a finalizer of an object needs.
pub fn need(meta: &Meta, finalizer: &str) -> Need {
    let is_set = meta.finalizers.iter().any(|name| &**name == finalizer);
    match (meta.is_deleting(), is_set) {
        (false, false) => Need::Addition,
        (true, true) => Need::Removal,
        _ => Need::Nothing,
    }
}

/// Returns the change that a controller makes to a finalizer of an object. Without `adds_finalizer`, it only removes
/// finalizers.
fn own_need(meta: &Meta, finalizer: &str, adds_finalizer: bool) -> Need {
    match need(meta, finalizer) {
        Need::Addition if !adds_finalizer => Need::Nothing,
        need => need,
    }
}

/// The users of objects of kind `K`. The finalizer of an object stays while the object has a user.
pub trait Users<K>: Send + Sync + 'static {
    /// Returns true if an object has a user according to the object itself or to the caches.
    fn are_cached(&self, object: &K) -> bool;

    /// Returns true if an object has a user on the API server. The default, false, is for kinds whose objects show
    /// their use themselves: an uncached read of the object precedes the removal of the finalizer.
    fn are_on_server<'a>(&'a self, _: &'a K) -> BoxFuture<'a, Result<bool, ReconcileError>> {
        async { Ok(false) }.boxed()
    }
}

/// Adds a finalizer to all objects of a kind, and removes it from an object that is being deleted once it has no users.
pub struct Protection<K: Kind, U> {
    /// The finalizer.
    pub finalizer: &'static str,
    /// False if the API server's admission adds the finalizer to each new object, so that it is only removed here.
    pub adds_finalizer: bool,
    /// The objects.
    pub objects: Arc<Store<K>>,
    /// The users of the objects. When the last use of an object may have ended, its key has to be enqueued.
    pub users: U,
    /// Writes the finalizer.
    pub writer: Writer,
    /// The controller's own writes that the cache may not contain yet.
    pub consistency: Consistency,
    /// The queue of objects.
    pub queue: Arc<Queue<ObjectKey>>,
}

impl<K: Kind, U: Users<K>> Protection<K, U> {
    /// Adds workers to the manager. From now on, each observed object whose finalizer has to be changed is enqueued.
    pub fn start(self, manager: &mut Manager, work: WorkOptions) {
        let (queue, changed) = (self.queue.clone(), self.queue.clone());
        let (finalizer, adds_finalizer) = (self.finalizer, self.adds_finalizer);
        self.objects.subscribe(move |change| {
            let is_due = |object: &&Arc<K>| own_need(object.meta(), finalizer, adds_finalizer) != Need::Nothing;
            if let Some(object) = change.new.filter(is_due) {
                changed.add(object.meta().key());
            }
        });
        manager.add(work, queue, Arc::new(self));
    }

    fn need(&self, meta: &Meta) -> Need {
        own_need(meta, self.finalizer, self.adds_finalizer)
    }

    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let object = match self.consistency.read(key, &self.objects, self.queue.waker(key)) {
            Cached::Current(object) => object,
            Cached::Absent => return Ok(Outcome::Done),
            Cached::Lagging => return Ok(Outcome::WaitingForCache),
        };
        self.protect(&object).await
    }

    /// Makes the change that the finalizer of a cached object needs, if nothing prevents it.
    ///
    /// # Errors
    /// When the users of the object cannot be read, or the object cannot be written.
    pub async fn protect(&self, object: &K) -> Result<Outcome, ReconcileError> {
        let need = self.need(object.meta());
        if need == Need::Nothing {
            return Ok(Outcome::Done);
        }
        if need == Need::Removal {
            let key = object.meta().key();
            if self.users.are_cached(object) {
                debug!(object = %key, finalizer = self.finalizer, "keeping the finalizer: the object is in use");
                return Ok(Outcome::Done);
            }
            if self.users.are_on_server(object).await? {
                debug!(object = %key, finalizer = self.finalizer, "keeping the finalizer: the cache lacks a user of the object");
                return Ok(Outcome::RequeueAfter(RECHECK_INTERVAL));
            }
        }
        self.write(object.meta(), need).await?;
        Ok(Outcome::Done)
    }

    /// Adds or removes the finalizer, if an uncached read returns an object with the UID of `cached` and the same need.
    /// A removal also requires that neither the object that was read nor the caches show a user: one may have been
    /// created in the meantime.
    ///
    /// The PUT is made from the object that the API server returned, so that unknown fields are kept.
    async fn write(&self, cached: &Meta, need: Need) -> Result<(), WriteError> {
        let key = cached.key();
        let response = match self.writer.get(&K::RESOURCE, &key).await {
            Err(error) if error.is_not_found() => return Ok(()),
            response => response?,
        };
        let fresh: K = response.decode(self.objects.decoding())?;
        let is_current = fresh.meta().uid == cached.uid && self.need(fresh.meta()) == need;
        if !is_current || need == Need::Removal && self.users.are_cached(&fresh) {
            return Ok(());
        }
        let object = response.object()?;
        let edited = match need {
            Need::Nothing => return Ok(()),
            Need::Addition => metadata_edit::with_finalizer(object, self.finalizer),
            Need::Removal => metadata_edit::without_finalizers(object, &[self.finalizer]),
        };
        let response = self.writer.replace(&K::RESOURCE, &key, None, &edited.map_err(DecodeError::from)?).await;
        match response {
            Ok(response) => {
                self.consistency.wrote(&key, &self.objects, response.meta()?.version);
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl<K: Kind, U: Users<K>> Reconcile for Protection<K, U> {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

/// Returns the decoding of objects that are read once and not stored.
pub fn decode_once(sections: kinds::Sections) -> Decode {
    Decode { interner: std::sync::Arc::default(), sections }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use http::Method;
    use kinds::schema::object_meta;
    use kinds::wire::Put;
    use kinds::{Sections, Time, VolumeAttributesClass, envelope};
    use runtime::lock::lock;
    use runtime::queue::QueueOptions;
    use runtime::testing::{clients, deliver, filled_store, meta, writer_of};

    use super::*;

    const FINALIZER: &str = "example.com/in-use";
    const RESOURCE: &kinds::Resource = &VolumeAttributesClass::RESOURCE;

    fn object(version: u64, is_deleting: bool, finalizers: &[&str]) -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(1, |meta| {
            meta.put_str(object_meta::NAME, "gold");
            meta.put_str(object_meta::UID, "gold-uid");
            meta.put_str(object_meta::RESOURCE_VERSION, &version.to_string());
            if is_deleting {
                Time(1).put(meta, object_meta::DELETION_TIMESTAMP);
            }
            finalizers.iter().for_each(|name| meta.put_str(object_meta::FINALIZERS, name));
        });
        object
    }

    fn read(object: &[u8]) -> VolumeAttributesClass {
        VolumeAttributesClass::decode(&decode_once(Sections::default()), object).expect("well-formed")
    }

    /// An API server with one object, and the finalizers that were written.
    struct Server {
        object: Vec<u8>,
        refuses_writes: bool,
        reads: usize,
        written: Vec<Vec<String>>,
    }

    impl Server {
        fn respond(&mut self, method: &Method, body: &[u8]) -> (u16, Vec<u8>) {
            if method == Method::PUT {
                if self.refuses_writes {
                    return (403, br#"{"kind": "Status", "code": 403, "reason": "Forbidden"}"#.to_vec());
                }
                let sent = read(envelope::unwrap(body).expect("an envelope"));
                let names: Vec<&str> = sent.meta.finalizers.iter().map(|name| &**name).collect();
                self.object = object(sent.meta.version + 1, sent.meta.is_deleting(), &names);
                self.written.push(names.into_iter().map(str::to_owned).collect());
            } else {
                self.reads += 1;
            }
            (200, envelope::wrap(RESOURCE, &self.object))
        }
    }

    #[derive(Default)]
    struct Use {
        is_cached: AtomicBool,
        is_on_server: AtomicBool,
    }

    impl Users<VolumeAttributesClass> for Arc<Use> {
        fn are_cached(&self, _: &VolumeAttributesClass) -> bool {
            self.is_cached.load(Ordering::Relaxed)
        }

        fn are_on_server<'a>(&'a self, _: &'a VolumeAttributesClass) -> BoxFuture<'a, Result<bool, ReconcileError>> {
            // Only the first read finds the user: it was deleted before the second one.
            let is_used = self.is_on_server.swap(false, Ordering::Relaxed);
            async move { Ok(is_used) }.boxed()
        }
    }

    /// Upstream's cases of TestPVProtectionController and TestVACProtectionController.
    #[tokio::test]
    async fn finalizer_is_added_and_removed_once_nothing_uses_the_object() {
        let server = Arc::new(Mutex::new(Server {
            object: object(1, false, &["other"]),
            refuses_writes: true,
            reads: 0,
            written: vec![],
        }));
        let responding = server.clone();
        let writer = writer_of(clients(move |method, _, body| lock(&responding).respond(method, body)).await);
        let users = Arc::<Use>::default();
        let protection = Protection {
            finalizer: FINALIZER,
            adds_finalizer: true,
            objects: Arc::new(filled_store(decode_once(Sections::default()), Vec::new(), [])),
            users: users.clone(),
            writer,
            consistency: Consistency::default(),
            queue: Queue::new(QueueOptions::named("test")),
        };
        let key = ObjectKey::new("", "gold");
        let reconcile = || {
            deliver(&protection.objects, read(&lock(&server).object));
            protection.reconcile(&key)
        };
        let written = || std::mem::take(&mut lock(&server).written);
        let reads = || std::mem::take(&mut lock(&server).reads);
        reconcile().await.expect_err("the write is refused");
        lock(&server).refuses_writes = false;
        assert_eq!((reconcile().await, written()), (Ok(Outcome::Done), vec![vec!["other".into(), FINALIZER.into()]]));
        assert_eq!((reconcile().await, written()), (Ok(Outcome::Done), vec![]), "it is set");
        let deleted = object(7, true, &["other", FINALIZER]);
        lock(&server).object = deleted;
        users.is_cached.store(true, Ordering::Relaxed);
        reads();
        assert_eq!((reconcile().await, reads(), written()), (Ok(Outcome::Done), 0, vec![]), "it is in use");
        users.is_cached.store(false, Ordering::Relaxed);
        users.is_on_server.store(true, Ordering::Relaxed);
        let later = Ok(Outcome::RequeueAfter(RECHECK_INTERVAL));
        assert_eq!((reconcile().await, written()), (later, vec![]), "the cache lacks a user");
        lock(&server).refuses_writes = true;
        reconcile().await.expect_err("the write is refused");
        lock(&server).refuses_writes = false;
        assert_eq!((reconcile().await, written()), (Ok(Outcome::Done), vec![vec!["other".into()]]));
        assert_eq!((reconcile().await, written()), (Ok(Outcome::Done), vec![]), "it is removed");
    }

    #[test]
    fn finalizer_is_removed_only_from_objects_that_are_being_deleted() {
        for (deleting, finalizers, expected) in [
            (false, &[][..], Need::Addition),
            (false, &["other"], Need::Addition),
            (false, &["other", "ours"], Need::Nothing),
            (true, &["ours", "other"], Need::Removal),
            (true, &["other"], Need::Nothing),
        ] {
            let mut object = meta("", "a", 1);
            object.deletion = Time(i64::from(deleting));
            object.finalizers = finalizers.iter().map(|name| (*name).into()).collect();
            assert_eq!(need(&object, "ours"), expected, "{deleting} {finalizers:?}");
        }
    }
}
