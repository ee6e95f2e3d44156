//! storageversion-garbage-collector-controller: removes the entries of API servers that no longer exist from
//! StorageVersions.
//!
//! Each API server holds an identity Lease in `kube-system`. An entry is stale if its API server has no such Lease. A
//! StorageVersion that has only stale entries is deleted. Upstream: pkg/controller/storageversiongc.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::{ObjectKey, Time};
use kinds::{Kind, Lease, Sections, StorageVersion, Str};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Change, Index, Store, index_key};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::{WriteError, Writer};
use tracing::info;

use crate::context::{Clock, Context, Descriptor, QueueKeys, Verb, Write};

/// The namespace of the identity Leases.
const NAMESPACE: &str = "kube-system";
/// The label of identity Leases, and its value for kube-apiserver.
const IDENTITY: (&str, &str) = ("apiserver.kubernetes.io/identity", "kube-apiserver");
/// Maximum lag of cached Leases. Kubelets renew theirs continuously: applying those changes in batches costs less.
const LEASE_LAG: Duration = Duration::from_millis(250);

const LEASE_QUEUE: &str = "storage_version_garbage_collector_leases";
const VERSION_QUEUE: &str = "storage_version_garbage_collector_storageversions";

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "storageversion-garbage-collector-controller",
    service_account: "storage-version-garbage-collector",
    requires: &[StorageVersion::RESOURCE],
    watches,
    writes: &[
        Write { verb: Verb::Delete, group: "internal.apiserver.k8s.io", resource: "storageversions" },
        Write { verb: Verb::Update, group: "internal.apiserver.k8s.io", resource: "storageversions/status" },
    ],
    queues: &[QueueKeys::of(LEASE_QUEUE, "Lease"), QueueKeys::of(VERSION_QUEUE, "StorageVersion")],
    start,
    ..Descriptor::NONE
};

/// StorageVersions by the API servers that have an entry in them.
const BY_SERVER: Index<StorageVersion> = Index {
    name: "API server",
    keys: |version, emit| version.servers.iter().for_each(|server| emit(index_key(&**server))),
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need_lagging::<Lease>(Sections::default(), &[], LEASE_LAG);
    builder.need::<StorageVersion>(Sections::default(), &[BY_SERVER]);
}

fn start(manager: &mut Manager, context: &Context) {
    let leases = manager.registry().store::<Lease>();
    let versions = manager.registry().store::<StorageVersion>();
    let lease_queue = Queue::new(QueueOptions::named(LEASE_QUEUE));
    let version_queue = Queue::new(QueueOptions::named(VERSION_QUEUE));
    let deleted = lease_queue.clone();
    leases.subscribe(move |change| {
        if let Some(key) = deleted_identity(change) {
            deleted.add(key);
        }
    });
    let identities = leases;
    let changed = version_queue.clone();
    versions.subscribe(move |change| {
        let is_identity = |server: &str| identities.get(&lease_key(server)).is_some_and(|lease| is_identity(&lease));
        if let Some(version) = change.new
            && version.servers.iter().any(|server| !is_identity(server))
        {
            changed.add(version.meta.key());
        }
    });
    let writer = manager.writer(DESCRIPTOR.service_account);
    let collector = Arc::new(Collector { versions, writer, clock: context.clock.clone() });
    let work = WorkOptions { name: DESCRIPTOR.name, workers: 1 };
    let lease_reconciler = LeaseReconciler { collector: collector.clone(), versions: version_queue.clone() };
    manager.add(work, lease_queue, Arc::new(lease_reconciler));
    manager.add(work, version_queue, collector);
}

// Keys

/// Returns the key of an identity Lease that was deleted.
fn deleted_identity(change: &Change<'_, Lease>) -> Option<ObjectKey> {
    let old = change.old.filter(|_| change.new.is_none())?;
    is_identity(old).then(|| old.meta.key())
}

fn is_identity(lease: &Lease) -> bool {
    let (label, value) = IDENTITY;
    &*lease.meta.namespace == NAMESPACE
        && lease.meta.labels.iter().any(|(name, text)| (&**name, &**text) == (label, value))
}

fn lease_key(server: &str) -> ObjectKey {
    ObjectKey::new(NAMESPACE, server)
}

// Decisions

/// The write that removes stale entries.
#[derive(Debug, PartialEq, Eq)]
enum Removal {
    /// No entry is stale.
    None,
    /// Some entries stay.
    Some,
    /// No entry is left: the StorageVersion is deleted.
    All,
}

fn decide(servers: &[Str], stale: &BTreeSet<Str>) -> Removal {
    match servers.iter().filter(|server| stale.contains(*server)).count() {
        0 => Removal::None,
        count if count == servers.len() => Removal::All,
        _ => Removal::Some,
    }
}

// Sync

/// Requeues the StorageVersions that name the API server of a deleted Lease.
struct LeaseReconciler {
    collector: Arc<Collector>,
    versions: Arc<Queue<ObjectKey>>,
}

impl Reconcile for LeaseReconciler {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        async move {
            for version in self.collector.versions.by_index(&BY_SERVER, index_key(&*key.name)) {
                self.versions.add(version.meta.key());
            }
            Ok(Outcome::Done)
        }
        .boxed()
    }
}

/// Removes stale entries from StorageVersions.
struct Collector {
    versions: Arc<Store<StorageVersion>>,
    writer: Writer,
    clock: Clock,
}

impl Reconcile for Collector {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Collector {
    /// Removes stale entries. Reads the StorageVersion and the Lease of each entry from the API server, since both
    /// caches may be stale.
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let version = match self.writer.get(&StorageVersion::RESOURCE, key).await {
            Err(error) if error.is_not_found() => return Ok(Outcome::Done),
            response => response?.decode::<StorageVersion>(self.versions.decoding()),
        };
        let version = version.map_err(|error| ReconcileError::new(error.to_string()))?;
        let mut stale = BTreeSet::new();
        for server in &version.servers {
            if !self.has_lease(server).await? {
                stale.insert(server.clone());
            }
        }
        let written = match decide(&version.servers, &stale) {
            Removal::None => Ok(()),
            Removal::All => {
                info!(storage_version = &*key.name, "deleting StorageVersion: no API server reports it");
                self.writer.delete_unchanged(&StorageVersion::RESOURCE, key, &version.meta).await
            }
            Removal::Some => {
                info!(storage_version = &*key.name, count = stale.len(), "removing entries of stopped API servers");
                self.write_without(key, &version, &stale).await?
            }
        };
        match written {
            // Another client has changed the StorageVersion, which is read again.
            Err(error) if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
            Err(error) if !error.is_object_deleted() => Err(error.into()),
            _ => Ok(Outcome::Done),
        }
    }

    /// Returns true if an API server's identity Lease exists. Differs from upstream: if the read fails, the reconcile
    /// fails, and the Lease does not count as missing.
    async fn has_lease(&self, server: &str) -> Result<bool, ReconcileError> {
        match self.writer.get(&Lease::RESOURCE, &lease_key(server)).await {
            Err(error) if error.is_not_found() => Ok(false),
            response => {
                let lease = response?.decode::<Lease>(self.versions.decoding());
                Ok(is_identity(&lease.map_err(|error| ReconcileError::new(error.to_string()))?))
            }
        }
    }

    /// Writes the StorageVersion without its stale entries. The outer error means that the object could not be edited,
    /// the inner one that the write failed.
    async fn write_without(
        &self,
        key: &ObjectKey,
        version: &StorageVersion,
        stale: &BTreeSet<Str>,
    ) -> Result<Result<(), WriteError>, ReconcileError> {
        let now = Time((self.clock)().as_second());
        let object = version.with_servers(|server| !stale.contains(server), now);
        let object = object.map_err(|error| ReconcileError::new(error.to_string()))?;
        Ok(self.writer.replace(&StorageVersion::RESOURCE, key, Some("status"), &object).await.map(drop))
    }
}

#[cfg(test)]
mod tests {
    use kinds::Decode;
    use kinds::schema::{lease as f, object_meta as m};
    use kinds::wire::Put;

    use super::*;

    fn lease(namespace: &str, label: Option<&str>) -> Arc<Lease> {
        let mut object = Vec::new();
        object.put_message(f::METADATA, |meta| {
            meta.put_str(m::NAME, "apiserver-1");
            meta.put_str(m::NAMESPACE, namespace);
            meta.put_str(m::RESOURCE_VERSION, "1");
            if let Some(label) = label {
                meta.put_entry(m::LABELS, IDENTITY.0, label);
            }
        });
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        Arc::new(Lease::decode(&context, &object).expect("well-formed"))
    }

    #[test]
    fn only_deleted_identity_leases_are_enqueued() {
        for (name, lease, expected) in [
            ("identity", lease("kube-system", Some("kube-apiserver")), true),
            ("other component", lease("kube-system", Some("my-apiserver")), false),
            ("no label", lease("kube-system", None), false),
            ("other namespace", lease("kube-node-lease", Some("kube-apiserver")), false),
        ] {
            let deleted = deleted_identity(&Change { old: Some(&lease), new: None });
            assert_eq!(deleted.is_some(), expected, "{name}");
            assert_eq!(deleted_identity(&Change { old: Some(&lease), new: Some(&lease) }), None, "{name}");
            assert_eq!(deleted_identity(&Change { old: None, new: Some(&lease) }), None, "{name}");
        }
    }

    #[test]
    fn version_is_deleted_with_its_last_entry_and_others_are_updated() {
        let servers = |names: &[&str]| names.iter().map(|name| Str::from(*name)).collect::<Vec<_>>();
        for (all, stale, expected) in [
            (&["a", "b"][..], &[][..], Removal::None),
            (&["a", "b"], &["b"], Removal::Some),
            (&["a", "a"], &["a"], Removal::All),
            (&["a"], &["a", "x"], Removal::All),
            (&[], &["a"], Removal::None),
        ] {
            let stale = servers(stale).into_iter().collect();
            assert_eq!(decide(&servers(all), &stale), expected, "{all:?} {stale:?}");
        }
    }
}
