//! The only place where watches are started: one a kind, whoever needs it.

use std::any::{Any, TypeId};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use kinds::{Decode, Interner, Kind, Sections};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::absence::Watched;
use super::every_kind::{EveryKind, Metadata, Source, Wanted};
use super::reflector::Reflector;
use super::request::{Scope, serves};
use crate::client::Clients;
use crate::discovery::Discovery;
use crate::store::{Index, Store};

/// Lists that are read at the same time, of kinds with a typed store and again of those without; more would only make
/// the API server's peak higher.
const LISTS_AT_ONCE: usize = 8;

/// How often to look for a kind that is not served, and that nobody needs to be served.
const MAY_COME: Duration = Duration::from_secs(30);

/// What all users of a kind together need of it.
struct Need<K: Kind> {
    sections: Sections,
    /// Somebody cannot do without it.
    is_required: bool,
    indexes: Vec<Index<K>>,
    /// How far the store may lag behind its watch; `None` until somebody has said.
    lag: Option<Duration>,
}

/// Builds a store from a need, and says how to run its watch.
trait Planned: Any + Send {
    fn build(self: Box<Self>, interner: &Arc<Interner>) -> Built;
    fn as_any(&mut self) -> &mut dyn Any;
}

type Runner = Box<dyn FnOnce(Arc<Clients>, Option<String>, Arc<Semaphore>) -> BoxFuture<'static, ()> + Send>;
/// A store and its watch as health and metrics see them.
pub trait WatchStats: Send + Sync {
    /// The resource, with its group behind a dot as kubectl spells it.
    fn resource(&self) -> String;
    /// The kind's group, version and plural name.
    fn group_version_resource(&self) -> [&'static str; 3];
    /// The version that the store has reached.
    fn version(&self) -> u64;
    /// Whether the first list is complete.
    fn is_synced(&self) -> bool;
    /// How many records there are.
    fn objects(&self) -> usize;
    /// How many objects could not be decoded.
    fn undecodable(&self) -> usize;
    /// How often the watch broke or had to list anew.
    fn restarts(&self) -> u64;
    /// Panics of the watch and of subscribers.
    fn panics(&self) -> u64;
    /// Panics of the watch since it last worked.
    fn panics_in_a_row(&self) -> u64;
}

impl<K: Kind> WatchStats for Store<K> {
    fn resource(&self) -> String {
        match K::RESOURCE.group {
            "" => K::RESOURCE.plural.to_owned(),
            group => format!("{}.{group}", K::RESOURCE.plural),
        }
    }

    fn group_version_resource(&self) -> [&'static str; 3] {
        [K::RESOURCE.group, K::RESOURCE.version, K::RESOURCE.plural]
    }

    fn version(&self) -> u64 {
        self.progress().version()
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

type Waiter = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

struct Built {
    store: Arc<dyn Any + Send + Sync>,
    stats: Arc<dyn WatchStats>,
    source: Arc<dyn Source>,
    run: Runner,
    synced: Waiter,
}

impl<K: Kind> Planned for Need<K> {
    fn build(self: Box<Self>, interner: &Arc<Interner>) -> Built {
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
                Box::pin(async move {
                    if !is_required {
                        until_served(&clients, &watched).await;
                    }
                    Reflector::new(clients, scope, watched, lists).lagging(lag).run().await;
                })
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

/// Waits until a kind is served. Meanwhile there is nothing of it, and its store counts as complete.
async fn until_served<K: Kind>(clients: &Clients, store: &Store<K>) {
    loop {
        match serves(clients, &K::RESOURCE).await {
            Ok(true) => return,
            Ok(false) if !store.progress().is_synced() => {
                info!(resource = WatchStats::resource(store), "is not served: there is none of it until it is");
                store.progress().set_synced();
            }
            Ok(false) => {}
            Err(error) => warn!(resource = WatchStats::resource(store), %error, "it is not known whether it is served"),
        }
        tokio::time::sleep(MAY_COME).await;
    }
}

/// The kinds that a controller reads from typed stores.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reads(HashSet<TypeId>);

impl Reads {
    /// The kinds of both.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }
}

/// Collects what controllers need before anything is watched.
#[derive(Default)]
pub struct Builder {
    needs: HashMap<TypeId, Box<dyn Planned>>,
    every: Option<Every>,
}

/// What is needed of kinds that have no typed store.
#[derive(Default)]
struct Every {
    indexes: Vec<Index<Metadata>>,
    all: bool,
}

impl Builder {
    /// Declares that a kind is needed, with these sections and indexes. Needs of several users add up.
    pub fn need<K: Kind>(&mut self, sections: Sections, indexes: &[Index<K>]) -> &mut Self {
        self.entry::<K>().is_required = true;
        self.need_if_served(sections, indexes)
    }

    /// As [`Builder::need`]; where the server does not serve the kind, there is none of it.
    pub fn need_if_served<K: Kind>(&mut self, sections: Sections, indexes: &[Index<K>]) -> &mut Self {
        self.add_need(sections, indexes, Duration::ZERO)
    }

    /// As [`Builder::need`], for who looks now and then: the store may lag behind the server by up to `lag`, unless
    /// somebody else needs the kind sooner. Of a kind that changes all the time many changes are taken in together then,
    /// which costs a fraction of waking up for each.
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

    /// Declares that the metadata of every kind is needed, with these indexes where a kind has no typed store.
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

    /// Declares that the metadata of kinds is needed that are only known later, by their names ([`EveryKind::want`]).
    pub fn need_named_kinds(&mut self) -> &mut Self {
        self.every.get_or_insert_default();
        self
    }

    /// The kinds that were declared so far.
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
            .expect("each need is kept under the type of its kind")
    }

    /// Makes the stores, all still empty.
    pub fn build(self) -> Registry {
        let interner = Arc::new(Interner::default());
        let (mut stores, mut runners, mut synced) = (HashMap::new(), Vec::new(), Vec::new());
        let (mut stats, mut sources) = (Vec::new(), Vec::new());
        for (kind, need) in self.needs {
            let built = need.build(&interner);
            stores.insert(kind, built.store);
            runners.push(built.run);
            synced.push((kind, built.synced, built.stats.clone()));
            stats.push(built.stats);
            sources.push(built.source);
        }
        let every = self.every.map(|Every { indexes, all }| {
            let wanted = if all { Wanted::all() } else { Wanted::default() };
            Arc::new(EveryKind::new(interner, indexes, wanted, sources.clone()))
        });
        let permits = || Arc::new(Semaphore::new(LISTS_AT_ONCE));
        let (lists, metadata_lists) = (permits(), permits());
        let (runners, used) = (Mutex::new(runners), Mutex::default());
        Registry { stores, runners, synced, stats, sources, used, every, lists, metadata_lists }
    }
}

/// All stores of a process, and their watches.
pub struct Registry {
    stores: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
    runners: Mutex<Vec<Runner>>,
    synced: Vec<(TypeId, Waiter, Arc<dyn WatchStats>)>,
    stats: Vec<Arc<dyn WatchStats>>,
    sources: Vec<Arc<dyn Source>>,
    /// The kinds whose stores were handed out.
    used: Mutex<Reads>,
    every: Option<Arc<EveryKind>>,
    lists: Arc<Semaphore>,
    /// Kinds without a typed store, aggregated APIs among them, do not delay the lists of the others.
    metadata_lists: Arc<Semaphore>,
}

impl Registry {
    /// All stores and their watches, for health and metrics.
    pub fn stats(&self) -> Vec<Arc<dyn WatchStats>> {
        self.stats.clone()
    }

    /// The metadata in all typed stores.
    pub(crate) fn sources(&self) -> Vec<Arc<dyn Source>> {
        self.sources.clone()
    }

    /// The metadata of every kind, if anybody needs it.
    pub(crate) fn every_kind_if_any(&self) -> Option<Arc<EveryKind>> {
        self.every.clone()
    }

    /// The store of a kind.
    ///
    /// # Panics
    /// When nobody declared a need for the kind: a mistake in a controller's descriptor.
    pub fn store<K: Kind>(&self) -> Arc<Store<K>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).0.insert(TypeId::of::<K>());
        self.stores
            .get(&TypeId::of::<K>())
            .and_then(|store| store.clone().downcast().ok())
            .unwrap_or_else(|| panic!("nobody declared a need for {}", K::RESOURCE.plural))
    }

    /// Returns the kinds whose stores were handed out since the last call.
    pub(crate) fn take_used(&self) -> Reads {
        std::mem::take(&mut *self.used.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The metadata of every kind.
    ///
    /// # Panics
    /// When nobody declared a need for it: a mistake in a controller's descriptor.
    pub fn every_kind(&self) -> Arc<EveryKind> {
        self.every.clone().expect("nobody declared a need for every kind")
    }

    /// Whatever is watched, under the names of resources.
    pub fn watched(&self) -> Watched {
        Watched::new(self.sources.clone(), self.every.clone())
    }

    /// Starts to watch the kinds that have no typed store, if anybody needs them.
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

    /// Starts the watches, of one namespace or of all; they end when `tasks` is dropped. Once only: more calls do
    /// nothing.
    pub fn start(&self, clients: &Arc<Clients>, namespace: Option<&str>, tasks: &mut JoinSet<()>) {
        let lists = &self.lists;
        let runners = std::mem::take(&mut *self.runners.lock().unwrap_or_else(PoisonError::into_inner));
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

    /// The resources among these kinds, or all, that have no complete list yet.
    pub fn not_synced(&self, reads: Option<&Reads>) -> Vec<String> {
        let stats = self.synced.iter().filter(|(kind, ..)| is_read(reads, kind)).map(|(.., stats)| stats);
        stats.filter(|stats| !stats.is_synced()).map(|stats| stats.resource()).collect()
    }
}

fn is_read(reads: Option<&Reads>, kind: &TypeId) -> bool {
    reads.is_none_or(|reads| reads.0.contains(kind))
}
