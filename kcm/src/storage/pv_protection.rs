//! persistentvolume-protection-controller: keeps a volume that is being deleted while it is bound to a claim.
//!
//! Upstream: pkg/controller/volume/pvprotection.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::persistent_volume::Phase;
use kinds::{PersistentVolume, Sections};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Cached, Change, Store};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::Writer;
use tracing::debug;

use crate::context::{Context, Descriptor, Finalizer, QueueKeys, Verb, Write};
use crate::protection::{Guard, Need, need};

const FINALIZER: &str = "kubernetes.io/pv-protection";
const QUEUE: &str = "pvprotection";

/// Requests per second and burst, as multiples of other controllers' limits: a read precedes each write, so that as many
/// volumes are released per second as in upstream, whose writes are based on the cache.
const QPS_FACTOR: u16 = 2;
const BURST_FACTOR: u32 = 2;

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolume-protection-controller",
    service_account: "pv-protection-controller",
    watches,
    writes: &[Write { verb: Verb::Update, group: "", resource: "persistentvolumes" }],
    queues: &[QueueKeys::of(QUEUE, "PersistentVolume")],
    finalizers: &[Finalizer { name: FINALIZER, removed: "once the volume is not bound to a claim" }],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<PersistentVolume>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, _: &Context) {
    let queue = Queue::new(QueueOptions::named(QUEUE));
    let volumes = manager.registry().store::<PersistentVolume>();
    let changed = queue.clone();
    volumes.subscribe(move |change| {
        if let Some(key) = key(change) {
            changed.add(key);
        }
    });
    let writer = manager.faster_writer(DESCRIPTOR.service_account, QPS_FACTOR, BURST_FACTOR);
    let reconciler =
        Arc::new(Protection { volumes, writer, consistency: Consistency::default(), queue: queue.clone() });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: 1 }, queue, reconciler);
}

/// Returns the key of a volume whose finalizer has to be added, or may be removed.
fn key(change: &Change<'_, PersistentVolume>) -> Option<ObjectKey> {
    let volume = change.new?;
    (need(&volume.meta, FINALIZER) != Need::Nothing).then(|| volume.meta.key())
}

fn is_unused(volume: &PersistentVolume) -> bool {
    volume.phase != Phase::Bound
}

struct Protection {
    volumes: Arc<Store<PersistentVolume>>,
    writer: Writer,
    consistency: Consistency,
    queue: Arc<Queue<ObjectKey>>,
}

impl Reconcile for Protection {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Protection {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let volume = match self.consistency.read(key, &self.volumes, self.queue.waker(key)) {
            Cached::Current(volume) => volume,
            Cached::Absent => return Ok(Outcome::Done),
            Cached::Lagging => return Ok(Outcome::WaitingForCache),
        };
        let need = need(&volume.meta, FINALIZER);
        if need == Need::Nothing {
            return Ok(Outcome::Done);
        }
        if need == Need::Removal && !is_unused(&volume) {
            debug!(volume = %key, "keeping the finalizer: the volume is bound");
            return Ok(Outcome::Done);
        }
        let (writer, store, consistency) = (&self.writer, &*self.volumes, &self.consistency);
        let guard = Guard { finalizer: FINALIZER, writer, store, consistency };
        guard.write(&volume.meta, need, is_unused).await?;
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::testing::{deleting, volume};

    #[test]
    fn volumes_are_reconciled_only_when_their_finalizer_has_to_change() {
        let missing = Arc::new(volume("a"));
        let mut kept = volume("a");
        kept.meta.finalizers = Arc::new([FINALIZER.into()]);
        let mut being_deleted = volume("a");
        deleting(&mut being_deleted.meta, &["other", FINALIZER]);
        let mut free = volume("a");
        deleting(&mut free.meta, &["other"]);
        for (name, volume, expected) in [
            ("without finalizer", missing, true),
            ("with finalizer", Arc::new(kept), false),
            ("deleted with finalizer", Arc::new(being_deleted), true),
            ("deleted without finalizer", Arc::new(free), false),
        ] {
            assert_eq!(key(&Change { old: None, new: Some(&volume) }).is_some(), expected, "{name}");
            assert_eq!(key(&Change { old: Some(&volume), new: None }), None, "{name}, deleted");
        }
    }

    #[test]
    fn volume_is_in_use_only_while_it_is_bound() {
        for phase in [Phase::Pending, Phase::Available, Phase::Bound, Phase::Released, Phase::Failed] {
            let mut volume = volume("a");
            volume.phase = phase;
            assert_eq!(is_unused(&volume), phase != Phase::Bound, "{phase:?}");
        }
    }
}
