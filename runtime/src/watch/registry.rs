//! The registry of stores, which starts all watches: one per kind, shared by all controllers.

use std::any::{Any, TypeId};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use kinds::{Decode, Interner, Kind, Resource, Sections};
use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::absence::Watched;
use super::every_kind::{EveryKind, Metadata, RequestedKinds, Source};
use super::reflector::Reflector;
use super::request::{Scope, serves};
use crate::client::Clients;
use crate::discovery::Discovery;
use crate::lock::lock;
use crate::store::{Index, Progress, Store};

/// Maximum number of concurrent lists, separately for kinds with and without a typed store; more would only increase
/// the API server's peak load.
const MAX_CONCURRENT_LISTS: usize = 8;

/// Interval between checks for an optional kind that is not served.
const SERVED_CHECK_INTERVAL: Duration = Duration::from_secs(30);

/// The combined needs of all controllers that read a kind.
struct Need<K: Kind> {
    sections: Sections,
    /// Some controller requires the kind.
    is_required: bool,
    indexes: Vec<Index<K>>,
    /// The allowed lag of the store behind its watch; `None` until a controller has declared it.
    lag: Option<Duration>,
}

/// A need of any kind, from which its store is built.
trait AnyNeed: Any + Send {
    /// Builds the store, with the future that runs its watch.
    fn build(self: Box<Self>, interner: &Arc<Interner>, options: WatchOptions) -> Built;
    /// Returns the need as `Any`, for a downcast to the need of its kind.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// Runs the watch of a kind, in one namespace or all, with permits for lists.
type Runner = Box<dyn FnOnce(Arc<Clients>, Option<String>, Arc<Semaphore>) -> BoxFuture<'static, ()> + Send>;

/// A store and its watch, as health and metrics read them.
pub trait WatchStats: Send + Sync {
    /// Returns the resource, with its group after a dot, as kubectl formats it.
    fn resource(&self) -> String;
    /// Returns the kind's group, version and plural name.
    fn group_version_resource(&self) -> [&'static str; 3];
    /// Returns the version that the store has reached.
    fn version(&self) -> u64;
    /// Returns true if the first list is complete.
    fn is_synced(&self) -> bool;
    /// Returns the number of records.
    fn objects(&self) -> usize;
    /// Returns the number of undecodable objects.
    fn undecodable(&self) -> usize;
    /// Returns the number of stale records: those of undecodable objects that could be decoded before.
    fn stale(&self) -> usize;
    /// Returns the number of failures and relists of the watch.
    fn restarts(&self) -> u64;
    /// Returns the number of panics of the watch and of its subscribers.
    fn panics(&self) -> u64;
    /// Returns the number of panics of the watch since its last step that ended without a panic.
    fn panics_in_a_row(&self) -> u64;
    /// Returns the times to apply events.
    fn latency(&self) -> Histogram;
}

impl<K: Kind> WatchStats for Store<K> {
    fn resource(&self) -> String {
        K::RESOURCE.qualified()
    }

    fn group_version_resource(&self) -> [&'static str; 3] {
        [K::RESOURCE.group, K::RESOURCE.version, K::RESOURCE.plural]
    }

    fn version(&self) -> u64 {
        self.progress().version()
    }

    fn latency(&self) -> Histogram {
        self.progress().latency()
    }

    fn is_synced(&self) -> bool {
        self.progress().is_synced()
    }

    fn objects(&self) -> usize {
        self.len()
    }

    fn undecodable(&self) -> usize {
        Store::undecodable(self)
    }

    fn stale(&self) -> usize {
        Store::stale(self)
    }

    fn restarts(&self) -> u64 {
        self.progress().restarts()
    }

    fn panics(&self) -> u64 {
        self.progress().panics()
    }

    fn panics_in_a_row(&self) -> u64 {
        self.progress().panics_in_a_row()
    }
}

/// Waits for the first complete list of a kind.
type Waiter = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// A store with its watch.
struct Built {
    store: Arc<dyn Any + Send + Sync>,
    stats: Arc<dyn WatchStats>,
    source: Arc<dyn Source>,
    run: Runner,
    synced: Waiter,
}

impl<K: Kind> AnyNeed for Need<K> {
    fn build(self: Box<Self>, interner: &Arc<Interner>, options: WatchOptions) -> Built {
        let decode = Decode { interner: interner.clone(), sections: self.sections };
        let store = Arc::new(Store::<K>::new(decode, self.indexes));
        let (watched, waited, is_required) = (store.clone(), store.clone(), self.is_required);
        let lag = self.lag.unwrap_or_default();
        Built {
            stats: store.clone(),
            source: store.clone(),
            store,
            run: Box::new(move |clients, namespace, lists| {
                let scope = Scope { resource: K::RESOURCE, namespace, form: K::FORM };
                let reflector = Reflector::new(clients, scope, watched, lists)
                    .lagging(lag)
                    .resyncing(options.resync)
                    .paged(options.is_paged);
                Box::pin(run(reflector, is_required))
            }),
            synced: Box::new(move || {
                let store = waited.clone();
                Box::pin(async move { store.progress().synced().await })
            }),
        }
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// Runs the watch of a kind. An optional kind is watched once it is served.
async fn run(reflector: Reflector, is_required: bool) {
    if !is_required {
        until_served(&reflector.clients, &reflector.scope.resource, reflector.progress()).await;
    }
    reflector.run().await;
}

/// Waits until a kind is served. Until then the kind has no objects, and its store counts as complete.
async fn until_served(clients: &Clients, kind: &Resource, progress: &Progress) {
    loop {
        match serves(clients, kind).await {
            Ok(true) => return,
            Ok(false) if !progress.is_synced() => {
                info!(resource = kind.qualified(), "API resource not served; treating it as empty");
                progress.set_synced();
            }
            Ok(false) => {}
            Err(error) => {
                warn!(resource = kind.qualified(), %error, "could not determine whether the API resource is served")
            }
        }
        tokio::time::sleep(SERVED_CHECK_INTERVAL).await;
    }
}

/// The kinds that a controller reads from typed stores.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reads(HashSet<TypeId>);

impl Reads {
    /// Returns the kinds of `self` and of `other`.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

/// Collects the needs of controllers before anything is watched.
#[derive(Default)]
pub struct Builder {
    needs: HashMap<TypeId, Box<dyn AnyNeed>>,
    every: Option<MetadataNeed>,
    options: WatchOptions,
}

/// Options of all watches of a process.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WatchOptions {
    resync: Duration,
    /// Lists are read by pages, not streamed.
    pub is_paged: bool,
}

/// The needs for kinds without a typed store.
#[derive(Default)]
struct MetadataNeed {
    indexes: Vec<Index<Metadata>>,
    /// All kinds are needed, not only those that are requested by name.
    all: bool,
}

impl Builder {
    /// Declares that a kind is needed, with these sections and indexes. Needs of several controllers are combined.
    pub fn need<K: Kind>(&mut self, sections: Sections, indexes: &[Index<K>]) -> &mut Self {
        self.entry::<K>().is_required = true;
        self.need_if_served(sections, indexes)
    }

    /// Like [`Builder::need`], for an optional kind: if the server does not serve it, its store is empty.
    pub fn need_if_served<K: Kind>(&mut self, sections: Sections, indexes: &[Index<K>]) -> &mut Self {
        self.add_need(sections, indexes, Duration::ZERO)
    }

    /// Like [`Builder::need`], for a controller that reads the store only occasionally: the store may lag behind the
    /// server by up to `lag`, or by the smallest lag that a controller has declared for the kind. Frequent changes of a
    /// kind are then applied in batches, which costs a fraction of a wake-up for each change.
    pub fn need_lagging<K: Kind>(&mut self, sections: Sections, indexes: &[Index<K>], lag: Duration) -> &mut Self {
        self.entry::<K>().is_required = true;
        self.add_need(sections, indexes, lag)
    }

    fn add_need<K: Kind>(&mut self, sections: Sections, indexes: &[Index<K>], lag: Duration) -> &mut Self {
        let need = self.entry::<K>();
        need.lag = Some(need.lag.map_or(lag, |known| known.min(lag)));
        need.sections = need.sections | sections;
        for index in indexes {
            if need.indexes.iter().all(|known| known.name != index.name) {
                need.indexes.push(*index);
            }
        }
        self
    }

    /// Declares that the metadata of every kind is needed, with these indexes for kinds without a typed store.
    pub fn need_every_kind(&mut self, indexes: &[Index<Metadata>]) -> &mut Self {
        let known = self.every.get_or_insert_default();
        known.all = true;
        for index in indexes {
            if known.indexes.iter().all(|known| known.name != index.name) {
                known.indexes.push(*index);
            }
        }
        self
    }

    /// Declares that the metadata of kinds whose names are not known yet will be needed ([`EveryKind::request_kind`]).
    pub fn need_named_kinds(&mut self) -> &mut Self {
        self.every.get_or_insert_default();
        self
    }

    /// Passes all records of typed stores to their subscribers again: at random times, one to two periods apart; never
    /// if the period is zero.
    #[must_use]
    pub fn resyncing(mut self, period: Duration) -> Self {
        self.options.resync = period;
        self
    }

    /// Sets whether kinds are listed by pages instead of by the initial events of a watch. Kinds with many objects are
    /// read in one response either way.
    #[must_use]
    pub fn paged(mut self, is_paged: bool) -> Self {
        self.options.is_paged = is_paged;
        self
    }

    /// Returns the kinds that were declared so far.
    pub fn reads(&self) -> Reads {
        Reads(self.needs.keys().copied().collect())
    }

    fn entry<K: Kind>(&mut self) -> &mut Need<K> {
        self.needs
            .entry(TypeId::of::<K>())
            .or_insert_with(|| {
                Box::new(Need::<K> {
                    sections: Sections::default(),
                    is_required: false,
                    indexes: Vec::new(),
                    lag: None,
                })
            })
            .as_any()
            .downcast_mut()
            .expect("a need is stored under the type of another kind")
    }

    /// Creates the stores, all still empty.
    pub fn build(self) -> Registry {
        let interner = Arc::new(Interner::default());
        let (mut stores, mut runners, mut synced) = (HashMap::new(), Vec::new(), Vec::new());
        let (mut stats, mut sources) = (Vec::new(), Vec::new());
        for (kind, need) in self.needs {
            let built = need.build(&interner, self.options);
            stores.insert(kind, built.store);
            runners.push(built.run);
            synced.push((kind, built.synced, built.stats.clone()));
            stats.push(built.stats);
            sources.push(built.source);
        }
        let every = self.every.map(|MetadataNeed { indexes, all }| {
            let requested = if all { RequestedKinds::all() } else { RequestedKinds::default() };
            Arc::new(EveryKind::new(interner, indexes, requested, sources.clone()).paged(self.options.is_paged))
        });
        let permits = || Arc::new(Semaphore::new(MAX_CONCURRENT_LISTS));
        let (lists, metadata_lists) = (permits(), permits());
        let (runners, used) = (Mutex::new(runners), Mutex::default());
        Registry { stores, runners, synced, stats, sources, used, every, lists, metadata_lists }
    }
}

/// All stores of a process, and their watches.
pub struct Registry {
    stores: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
    /// The watches that were not started yet.
    runners: Mutex<Vec<Runner>>,
    synced: Vec<(TypeId, Waiter, Arc<dyn WatchStats>)>,
    stats: Vec<Arc<dyn WatchStats>>,
    sources: Vec<Arc<dyn Source>>,
    /// The kinds whose stores were handed out.
    used: Mutex<Reads>,
    every: Option<Arc<EveryKind>>,
    /// Permits for lists of typed kinds.
    lists: Arc<Semaphore>,
    /// Permits for lists of the other kinds. Separate, so that aggregated APIs do not delay typed kinds.
    metadata_lists: Arc<Semaphore>,
}

impl Registry {
    /// Returns all stores and their watches, for health and metrics.
    pub fn stats(&self) -> Vec<Arc<dyn WatchStats>> {
        self.stats.clone()
    }

    /// Returns the metadata in all typed stores.
    pub(crate) fn sources(&self) -> Vec<Arc<dyn Source>> {
        self.sources.clone()
    }

    /// Returns the metadata of every kind, if a controller needs it.
    pub(crate) fn every_kind_if_any(&self) -> Option<Arc<EveryKind>> {
        self.every.clone()
    }

    /// Returns the store of a kind.
    ///
    /// # Panics
    /// If no need for the kind was declared: a defect of a controller's descriptor.
    pub fn store<K: Kind>(&self) -> Arc<Store<K>> {
        lock(&self.used).0.insert(TypeId::of::<K>());
        self.stores
            .get(&TypeId::of::<K>())
            .and_then(|store| store.clone().downcast().ok())
            .unwrap_or_else(|| panic!("no need was declared for {}", K::RESOURCE.plural))
    }

    /// Returns the kinds whose stores were handed out since the last call.
    pub(crate) fn take_used(&self) -> Reads {
        std::mem::take(&mut *lock(&self.used))
    }

    /// Returns the metadata of every kind.
    ///
    /// # Panics
    /// If no need for it was declared: a defect of a controller's descriptor.
    pub fn every_kind(&self) -> Arc<EveryKind> {
        self.every.clone().expect("no controller declared that it needs every kind")
    }

    /// Returns all watched kinds, by the names of resources.
    pub fn watched(&self) -> Watched {
        Watched::new(self.sources.clone(), self.every.clone())
    }

    /// Starts to watch the kinds without a typed store, if they are needed.
    pub(crate) fn start_every_kind(
        &self,
        clients: &Arc<Clients>,
        discovery: &Arc<Discovery>,
        namespace: Option<&str>,
        tasks: &mut JoinSet<()>,
    ) {
        if let Some(every) = self.every.clone() {
            let namespace = namespace.map(ToOwned::to_owned);
            tasks.spawn(every.run(clients.clone(), discovery.clone(), namespace, self.metadata_lists.clone()));
        }
    }

    /// Starts the watches of the kinds with a typed store, in one namespace or in all; they end when `tasks` is
    /// dropped. Further calls do nothing.
    pub fn start(&self, clients: &Arc<Clients>, namespace: Option<&str>, tasks: &mut JoinSet<()>) {
        let lists = &self.lists;
        let runners = std::mem::take(&mut *lock(&self.runners));
        for run in runners {
            tasks.spawn(run(clients.clone(), namespace.map(ToOwned::to_owned), lists.clone()));
        }
    }

    /// Waits until the stores of these kinds, or all, have their first complete lists.
    pub async fn synced(&self, reads: Option<&Reads>) {
        for (_, synced, _) in self.synced.iter().filter(|(kind, ..)| is_read(reads, kind)) {
            synced().await;
        }
    }

    /// Returns the resources among these kinds, or all, without a complete list.
    pub fn not_synced(&self, reads: Option<&Reads>) -> Vec<String> {
        let stats = self.synced.iter().filter(|(kind, ..)| is_read(reads, kind)).map(|(.., stats)| stats);
        stats.filter(|stats| !stats.is_synced()).map(|stats| stats.resource()).collect()
    }
}

fn is_read(reads: Option<&Reads>, kind: &TypeId) -> bool {
    reads.is_none_or(|reads| reads.0.contains(kind))
}
