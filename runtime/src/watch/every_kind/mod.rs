//! The metadata of every kind whose objects can be listed, watched and deleted, except events, with one watch per
//! kind.
//!
//! Kinds with a typed store are read from that; all others get a watch of metadata only. The set of kinds follows
//! discovery, which is read every half minute and soon after a CustomResourceDefinition or APIService has changed. A
//! kind whose watch fails has no fresh metadata; the others are not affected. If no controller needs all kinds, only
//! the kinds that are requested by name are watched.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::wire::find;
use kinds::{Decode, DecodeError, Form, Interner, Kind, Meta, Resource, Sections};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use tracing::{error, info, warn};

use super::reflector::{Reflector, panic_message};
use super::request::{Backoff, Scope};
use crate::client::Clients;
use crate::discovery::{Discovery, Served, Snapshot, Verbs};
use crate::lock::{lock, read, write};
use crate::store::{Index, Progress, Store};

/// Interval between reads of discovery without a sign of a change. Upstream: cmd/kube-controller-manager, garbage
/// collector.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(30);

/// Delays between the reads of discovery after a change of a definition, because discovery contains the change only a
/// moment later. The first read follows after the first delay, too.
const RETRIES_AFTER_CHANGE: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// Maximum number of kinds of one group that are watched as metadata. An aggregated API may list hundreds of
/// thousands, each of which would need a watch.
const MAX_KINDS_OF_GROUP: usize = 1000;

/// Kinds that many clients write constantly and that have no dependents. Upstream: pkg/controller/garbagecollector,
/// DefaultIgnoredResources.
const IGNORED: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];

/// The kinds whose objects define other kinds.
const DEFINITIONS: [(&str, &str); 2] =
    [("apiextensions.k8s.io", "customresourcedefinitions"), ("apiregistration.k8s.io", "apiservices")];

/// The metadata of an object of any kind, without labels.
#[derive(Debug)]
pub struct Metadata(pub Meta);

impl Kind for Metadata {
    const RESOURCE: Resource = Resource {
        group: "meta.k8s.io",
        version: "v1",
        kind: "PartialObjectMetadata",
        plural: "partialobjectmetadata",
        namespaced: true,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let mut meta = Meta::decode(&context.interner, find(object, 1), |_, _| {})?;
        meta.labels = context.interner.labels(Vec::new());
        Ok(Self(meta))
    }

    fn meta(&self) -> &Meta {
        &self.0
    }

    fn limited_bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// A change as subscribers receive it.
#[derive(Debug)]
pub enum MetaChange<'a> {
    /// An object was created, changed (both are given; the uids may differ) or deleted.
    Object {
        /// The kind.
        resource: &'a Resource,
        /// The old object.
        old: Option<&'a Meta>,
        /// The new object.
        new: Option<&'a Meta>,
    },
    /// The cache no longer contains an object, because its kind takes too much memory. Its state is unknown from now
    /// on.
    Forgotten {
        /// The kind.
        resource: &'a Resource,
        /// The object as it was in the cache.
        object: &'a Meta,
    },
    /// A kind is no longer watched, because it is no longer served or requested. Its state is unknown from now on.
    Unwatched {
        /// The kind.
        resource: &'a Resource,
    },
}

type Subscriber = Arc<dyn Fn(&MetaChange<'_>) + Send + Sync>;

/// The objects of one kind, as metadata.
pub trait Source: Send + Sync {
    /// Returns the kind.
    fn resource(&self) -> Resource;
    /// Returns the metadata of one object.
    fn meta(&self, key: &ObjectKey) -> Option<Meta>;
    /// Calls `visit` with the metadata of each object, in no particular order.
    ///
    /// Costs O(n). Use it for reports, never in a reconcile of one key.
    fn each(&self, visit: &mut dyn FnMut(&Meta));
    /// Returns true if the metadata of an object satisfies `matches`. Copies nothing, and stops at the first such
    /// object.
    fn any(&self, matches: &mut dyn FnMut(&Meta) -> bool) -> bool;
    /// Returns the progress of the watch.
    fn progress(&self) -> &Progress;
    /// Returns the number of objects in a namespace that could not be decoded.
    fn undecodable_in(&self, namespace: &str) -> usize;
    /// Returns true if the newest state of an object cannot be decoded ([`Store::is_undecodable`]).
    fn is_undecodable(&self, key: &ObjectKey) -> bool;
    /// Returns true if the metadata of an object is older than the object on the server, which cannot be decoded.
    fn is_stale(&self, key: &ObjectKey) -> bool;
    /// Returns true if the first list is complete.
    fn is_synced(&self) -> bool {
        self.progress().is_synced()
    }
    /// Waits until the first list is complete.
    fn synced(&self) -> BoxFuture<'_, ()> {
        self.progress().synced().boxed()
    }
    /// Calls `subscriber` for each later change; the rules are those of [`Store::subscribe`].
    fn subscribe_meta(&self, subscriber: Subscriber);
}

impl<K: Kind> Source for Store<K> {
    fn resource(&self) -> Resource {
        K::RESOURCE
    }

    fn meta(&self, key: &ObjectKey) -> Option<Meta> {
        self.get(key).map(|record| record.meta().clone())
    }

    fn each(&self, visit: &mut dyn FnMut(&Meta)) {
        self.all().iter().for_each(|record| visit(record.meta()));
    }

    fn any(&self, matches: &mut dyn FnMut(&Meta) -> bool) -> bool {
        Store::any(self, |record| matches(record.meta()))
    }

    fn progress(&self) -> &Progress {
        Store::progress(self)
    }

    fn undecodable_in(&self, namespace: &str) -> usize {
        Store::undecodable_in(self, namespace)
    }

    fn is_undecodable(&self, key: &ObjectKey) -> bool {
        Store::is_undecodable(self, key)
    }

    fn is_stale(&self, key: &ObjectKey) -> bool {
        Store::is_stale(self, key)
    }

    fn subscribe_meta(&self, subscriber: Subscriber) {
        subscribe(self, K::RESOURCE, subscriber);
    }
}

fn subscribe<K: Kind>(store: &Store<K>, resource: Resource, subscriber: Subscriber) {
    let is_discarding = store.discards();
    store.subscribe(move |change| {
        let meta = |record: Option<&Arc<K>>| record.map(|record| record.meta().clone());
        let (old, new) = (meta(change.old), meta(change.new));
        subscriber(&match (&old, &new) {
            (Some(object), None) if is_discarding.load(Ordering::Acquire) => {
                MetaChange::Forgotten { resource: &resource, object }
            }
            (old, new) => MetaChange::Object { resource: &resource, old: old.as_ref(), new: new.as_ref() },
        });
    });
}

/// A kind without a typed store.
struct Untyped {
    resource: Resource,
    store: Arc<Store<Metadata>>,
}

impl Source for Untyped {
    fn resource(&self) -> Resource {
        self.resource
    }

    fn meta(&self, key: &ObjectKey) -> Option<Meta> {
        Source::meta(&*self.store, key)
    }

    fn each(&self, visit: &mut dyn FnMut(&Meta)) {
        Source::each(&*self.store, visit);
    }

    fn any(&self, matches: &mut dyn FnMut(&Meta) -> bool) -> bool {
        Source::any(&*self.store, matches)
    }

    fn progress(&self) -> &Progress {
        self.store.progress()
    }

    fn undecodable_in(&self, namespace: &str) -> usize {
        self.store.undecodable_in(namespace)
    }

    fn is_undecodable(&self, key: &ObjectKey) -> bool {
        self.store.is_undecodable(key)
    }

    fn is_stale(&self, key: &ObjectKey) -> bool {
        self.store.is_stale(key)
    }

    fn subscribe_meta(&self, subscriber: Subscriber) {
        subscribe(&self.store, self.resource, subscriber);
    }
}

/// A resource, regardless of its version: group and plural name.
type Name = (&'static str, &'static str);

fn name(resource: &Resource) -> Name {
    (resource.group, resource.plural)
}

/// The kinds without a typed store that controllers have requested.
#[derive(Debug, Default)]
pub(crate) struct RequestedKinds {
    /// All kinds are requested.
    all: bool,
    /// Number of requests for a resource, by its group and plural.
    by_name: Mutex<HashMap<(String, String), usize>>,
    /// Notified when a kind is requested, or no longer requested.
    changed: Notify,
}

impl RequestedKinds {
    /// Selects all kinds.
    pub(crate) fn all() -> Self {
        Self { all: true, ..Self::default() }
    }

    fn names(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), usize>> {
        lock(&self.by_name)
    }

    /// Returns true if a kind is requested. Definitions count as requested as soon as any kind is, because that kind
    /// may not be served yet.
    fn contains(&self, (group, plural): Name) -> bool {
        let names = self.names();
        let is_definition = DEFINITIONS.contains(&(group, plural)) && !names.is_empty();
        self.all || is_definition || names.contains_key(&(group.to_owned(), plural.to_owned()))
    }

    fn is_empty(&self) -> bool {
        !self.all && self.names().is_empty()
    }
}

/// Sources of metadata of all kinds.
pub struct EveryKind {
    interner: Arc<Interner>,
    /// The indexes of kinds without a typed store.
    indexes: Vec<Index<Metadata>>,
    typed: HashMap<Name, Arc<dyn Source>>,
    untyped: RwLock<HashMap<Name, Arc<Untyped>>>,
    subscribers: Mutex<Vec<Subscriber>>,
    /// Notified when a CustomResourceDefinition or APIService has changed.
    definitions_changed: Arc<Notify>,
    /// Failed reads of discovery, and panics.
    failures: AtomicU64,
    requested: RequestedKinds,
    /// Lists are read by pages, not streamed.
    is_paged: bool,
    /// The served resources, once they are known.
    served: watch::Sender<Option<HashSet<Name>>>,
}

impl EveryKind {
    /// Creates the sources. Until [`EveryKind::run`] is called, there are only the sources with typed stores.
    pub(crate) fn new(
        interner: Arc<Interner>,
        indexes: Vec<Index<Metadata>>,
        requested: RequestedKinds,
        typed: impl IntoIterator<Item = Arc<dyn Source>>,
    ) -> Self {
        Self {
            interner,
            indexes,
            typed: typed.into_iter().map(|source| (name(&source.resource()), source)).collect(),
            untyped: RwLock::default(),
            subscribers: Mutex::default(),
            definitions_changed: Arc::default(),
            failures: AtomicU64::new(0),
            requested,
            is_paged: false,
            served: watch::Sender::new(None),
        }
    }

    /// Sets whether kinds are listed by pages instead of by the first events of a watch.
    pub(crate) fn paged(self, is_paged: bool) -> Self {
        Self { is_paged, ..self }
    }

    /// Returns the number of failed reads of discovery, and of panics while the watches were adapted to it.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Calls `subscriber` for each change of any object, also of kinds that are added later. It must not block. Call
    /// this before the watches start: earlier changes are missed.
    pub fn subscribe(&self, subscriber: impl Fn(&MetaChange<'_>) + Send + Sync + 'static) {
        let subscriber: Subscriber = Arc::new(subscriber);
        self.typed.values().for_each(|source| source.subscribe_meta(subscriber.clone()));
        self.subscribers().push(subscriber);
    }

    /// Requests a kind, which need not be served yet. The kind is watched until [`EveryKind::release_kind`] was called
    /// the same number of times. Has no effect if all kinds are watched.
    pub fn request_kind(&self, group: &str, plural: &str) {
        if self.requested.all {
            return;
        }
        *self.requested.names().entry((group.to_owned(), plural.to_owned())).or_default() += 1;
        self.requested.changed.notify_one();
    }

    /// Reverts one [`EveryKind::request_kind`].
    pub fn release_kind(&self, group: &str, plural: &str) {
        if self.requested.all {
            return;
        }
        let name = (group.to_owned(), plural.to_owned());
        let mut names = self.requested.names();
        let left = names.get(&name).map_or(0, |count| count.saturating_sub(1));
        if left > 0 {
            names.insert(name, left);
        } else {
            names.remove(&name);
            self.requested.changed.notify_one();
        }
    }

    fn subscribers(&self) -> std::sync::MutexGuard<'_, Vec<Subscriber>> {
        lock(&self.subscribers)
    }

    /// Returns the source of a resource, if it is watched.
    pub fn source(&self, group: &str, plural: &str) -> Option<Arc<dyn Source>> {
        if let Some(typed) = self.typed.iter().find(|(name, _)| **name == (group, plural)) {
            return Some(typed.1.clone());
        }
        let untyped = read(&self.untyped);
        untyped.get(&(group, plural)).map(|source| source.clone() as Arc<dyn Source>)
    }

    /// Returns the metadata records of a resource without a typed store, if it is watched.
    pub fn untyped(&self, group: &str, plural: &str) -> Option<Arc<Store<Metadata>>> {
        let untyped = read(&self.untyped);
        untyped.get(&(group, plural)).map(|source| source.store.clone())
    }

    /// Returns all current sources.
    pub fn sources(&self) -> Vec<Arc<dyn Source>> {
        let untyped = read(&self.untyped);
        let untyped = untyped.values().map(|source| source.clone() as Arc<dyn Source>);
        self.typed.values().cloned().chain(untyped).collect()
    }

    /// Waits until the kinds are known and the first list of each is complete.
    pub async fn synced(&self) {
        let mut known = self.served.subscribe();
        // The sender lives as long as `self`, so waiting cannot fail.
        let Ok(served) = known.wait_for(Option::is_some).await.map(|served| served.clone().unwrap_or_default()) else {
            return;
        };
        for source in self.sources() {
            if served.contains(&name(&source.resource())) {
                source.synced().await;
            }
        }
    }

    /// Keeps the watches equal to the served kinds, forever. Continues with the known kinds after a panic.
    pub(crate) async fn run(
        self: Arc<Self>,
        clients: Arc<Clients>,
        discovery: Arc<Discovery>,
        namespace: Option<String>,
        lists: Arc<Semaphore>,
    ) {
        let reflect = |resource, store: Arc<Store<Metadata>>| {
            let scope = Scope { resource, namespace: namespace.clone(), form: Form::Metadata };
            Reflector::new(clients.clone(), scope, store, lists.clone()).paged(self.is_paged).run().boxed()
        };
        let mut backoff = Backoff::default();
        loop {
            let Err(panic) = AssertUnwindSafe(self.follow_discovery(&discovery, reflect)).catch_unwind().await else {
                return;
            };
            self.failures.fetch_add(1, Ordering::Relaxed);
            error!(panic = panic_message(&*panic), "watching all kinds panicked; restarting");
            tokio::time::sleep(backoff.next()).await;
        }
    }

    /// Adds and removes watches according to discovery, in rounds.
    async fn follow_discovery(
        &self,
        discovery: &Discovery,
        reflect: impl Fn(Resource, Arc<Store<Metadata>>) -> BoxFuture<'static, ()>,
    ) {
        let mut watches = Watches::default();
        let mut retries_after_change = [].iter();
        loop {
            while self.requested.is_empty() && watches.running.is_empty() {
                self.served.send_replace(Some(HashSet::new()));
                self.requested.changed.notified().await;
            }
            match discovery.no_older_than(Duration::ZERO).await {
                Ok(snapshot) => {
                    for removed in self.kinds_to_remove(&snapshot) {
                        watches.running.remove(&name(&removed)).inspect(AbortHandle::abort);
                        self.remove_kind(&removed);
                    }
                    self.kinds_to_add(&snapshot).into_iter().for_each(|resource| self.add_kind(resource));
                    let served = snapshot.preferred().map(|served| name(&served.resource)).collect();
                    self.served.send_replace(Some(served));
                }
                Err(error) => {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                    warn!(%error, "discovery failed; keeping the known kinds");
                }
            }
            watches.remove_ended();
            for (resource, store) in self.stores() {
                watches.start(resource, || reflect(resource, store));
            }
            match retries_after_change.next() {
                Some(wait) => tokio::time::sleep(*wait).await,
                None => {
                    tokio::select! {
                        () = tokio::time::sleep(DISCOVERY_INTERVAL) => {}
                        () = self.requested.changed.notified() => {}
                        () = self.definitions_changed.notified() => {
                            retries_after_change = RETRIES_AFTER_CHANGE.iter();
                            tokio::time::sleep(RETRIES_AFTER_CHANGE[0]).await;
                        }
                    }
                }
            }
        }
    }

    /// Returns the stores of the kinds without a typed store.
    fn stores(&self) -> Vec<(Resource, Arc<Store<Metadata>>)> {
        let untyped = read(&self.untyped);
        untyped.values().map(|source| (source.resource, source.store.clone())).collect()
    }

    /// Returns the watched kinds that are no longer requested, or no longer served as they are watched: a definition
    /// may have been replaced by one of another scope or plural name. A kind whose group is unavailable is kept.
    fn kinds_to_remove(&self, snapshot: &Snapshot) -> Vec<Resource> {
        // Several resources may have the same kind; a lookup by kind finds one of them.
        let preferred: HashSet<Resource> =
            snapshot.preferred().filter(|served| is_watchable(served)).map(|served| served.resource).collect();
        let is_served = |resource: &Resource| {
            let of_kind = || snapshot.of_kind(&resource.api_version(), resource.kind);
            preferred.contains(resource)
                || of_kind().is_some_and(|served| served.resource == *resource && is_watchable(&served))
        };
        let untyped = read(&self.untyped);
        untyped
            .values()
            .map(|source| source.resource)
            .filter(|resource| {
                !is_served(resource) && !snapshot.has_failed(resource.group) || !self.requested.contains(name(resource))
            })
            .collect()
    }

    /// Returns the kinds that are served, requested, and not watched, within [`MAX_KINDS_OF_GROUP`].
    fn kinds_to_add(&self, snapshot: &Snapshot) -> Vec<Resource> {
        let untyped = read(&self.untyped);
        let known = |name: &Name| self.typed.contains_key(name) || untyped.contains_key(name);
        let watchable = snapshot.preferred().filter(|served| is_watchable(served)).map(|served| served.resource);
        let mut wanted: Vec<Resource> =
            watchable.filter(|resource| !known(&name(resource)) && self.requested.contains(name(resource))).collect();
        let mut of_groups: HashMap<&str, usize> = HashMap::new();
        untyped.keys().for_each(|(group, _)| *of_groups.entry(group).or_default() += 1);
        let all = wanted.len();
        wanted.retain(|resource| {
            let count = of_groups.entry(resource.group).or_default();
            *count += 1;
            *count <= MAX_KINDS_OF_GROUP
        });
        if wanted.len() < all {
            let kinds = all - wanted.len();
            warn!(kinds, max_of_group = MAX_KINDS_OF_GROUP, "kinds are not watched: their groups have too many");
        }
        wanted
    }

    /// Creates the store of a kind; its watch is started afterwards.
    fn add_kind(&self, resource: Resource) {
        let decode = Decode { interner: self.interner.clone(), sections: Sections::default() };
        let store = Arc::new(Store::new(decode, self.indexes.clone()));
        let source = Arc::new(Untyped { resource, store: store.clone() });
        if DEFINITIONS.contains(&name(&resource)) {
            let changed = self.definitions_changed.clone();
            store.subscribe(move |_| changed.notify_one());
        }
        self.subscribers().iter().for_each(|subscriber| source.subscribe_meta(subscriber.clone()));
        write(&self.untyped).insert(name(&resource), source);
    }

    /// Removes the store of a kind and informs the subscribers.
    fn remove_kind(&self, resource: &Resource) {
        info!(resource = resource.plural, group = resource.group, "stopped watching kind");
        write(&self.untyped).remove(&name(resource));
        self.subscribers().iter().for_each(|subscriber| subscriber(&MetaChange::Unwatched { resource }));
    }
}

/// The watches of kinds without a typed store. Dropping it ends them.
#[derive(Default)]
struct Watches {
    tasks: JoinSet<()>,
    running: HashMap<Name, AbortHandle>,
}

impl Watches {
    /// Watches a kind, unless it is watched already.
    fn start(&mut self, resource: Resource, reflect: impl FnOnce() -> BoxFuture<'static, ()>) {
        if let Entry::Vacant(vacant) = self.running.entry(name(&resource)) {
            vacant.insert(self.tasks.spawn(reflect()));
        }
    }

    /// Removes watches that have ended, so that the rest of this round restarts them. They end only after a panic.
    fn remove_ended(&mut self) {
        while let Some(ended) = self.tasks.try_join_next() {
            if ended.is_err_and(|error| error.is_panic()) {
                error!("watch task panicked; restarting it");
            }
        }
        self.running.retain(|_, task| !task.is_finished());
    }
}

/// Returns true if objects of the resource can be watched and deleted. Upstream: pkg/controller/garbagecollector,
/// GetDeletableResources.
fn is_watchable(served: &Served) -> bool {
    served.verbs.contains(Verbs::DELETE | Verbs::LIST | Verbs::WATCH) && !IGNORED.contains(&name(&served.resource))
}

#[cfg(test)]
mod tests;
