//! The state of the controller.

use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::{ControllerRevision, PersistentVolumeClaim, Pod, StatefulSet};
use runtime::consistency::Consistency;
use runtime::debounce::StatusDebouncer;
use runtime::events::Recorder;
use runtime::handover::Handover;
use runtime::queue::Queue;
use runtime::store::Store;
use runtime::write::Writer;

use super::decide::Gates;
use super::metrics::Unavailable;
use crate::context::Clock;
use crate::pods::creation_gate::CreationGate;
use crate::pods::refusals::Refusals;
use crate::workloads::controller_revisions::Memory;

/// The controller's state.
pub struct StatefulSets {
    pub sets: Arc<Store<StatefulSet>>,
    pub pods: Arc<Store<Pod>>,
    pub claims: Arc<Store<PersistentVolumeClaim>>,
    pub revisions: Arc<Store<ControllerRevision>>,
    pub writer: Writer,
    pub recorder: Recorder,
    pub consistency: Arc<Consistency>,
    pub memory: Memory,
    pub queue: Arc<Queue<ObjectKey>>,
    pub clock: Clock,
    pub gates: Gates,
    pub debouncer: StatusDebouncer,
    pub unavailable: Arc<Unavailable>,
    pub gate: CreationGate,
    pub handover: Handover,
    pub refusals: Refusals,
    /// Refused creations of revisions.
    pub revision_refusals: Refusals,
}
