//! persistentvolume-protection-controller: keeps a volume that is being deleted while it is bound to a claim.
//!
//! Upstream: pkg/controller/volume/pvprotection.

use kinds::persistent_volume::Phase;
use kinds::{PersistentVolume, Sections};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, Finalizer, QueueKeys, Verb, Write};
use crate::protection::{Protection, Users};

const FINALIZER: &str = "kubernetes.io/pv-protection";
const QUEUE: &str = "pvprotection";

/// Requests per second and burst, as multiples of other controllers' limits: a read precedes each write. With twice
/// the rate, as many volumes are released per second as in upstream, whose writes are based on the cache.
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
    let protection = Protection {
        finalizer: FINALIZER,
        adds_finalizer: true,
        objects: manager.registry().store::<PersistentVolume>(),
        users: BoundClaim,
        writer: manager.faster_writer(DESCRIPTOR.service_account, QPS_FACTOR, BURST_FACTOR),
        consistency: Default::default(),
        queue: Queue::new(QueueOptions::named(QUEUE)),
    };
    protection.start(manager, WorkOptions { name: DESCRIPTOR.name, workers: 1 });
}

/// The claim that a volume is bound to.
struct BoundClaim;

impl Users<PersistentVolume> for BoundClaim {
    fn are_cached(&self, volume: &PersistentVolume) -> bool {
        volume.phase == Phase::Bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::testing::volume;

    #[test]
    fn volume_is_in_use_only_while_it_is_bound() {
        for phase in [Phase::Pending, Phase::Available, Phase::Bound, Phase::Released, Phase::Failed] {
            let mut volume = volume("a");
            volume.phase = phase;
            assert_eq!(BoundClaim.are_cached(&volume), phase == Phase::Bound, "{phase:?}");
        }
    }
}
