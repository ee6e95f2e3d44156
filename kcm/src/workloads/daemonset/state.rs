//! The state of the controller, and of one reconcile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use kinds::meta::{ObjectKey, Uid};
use kinds::placement::Placement;
use kinds::{ControllerRevision, DaemonSet, Node, Pod};
use runtime::debounce::StatusDebouncer;
use runtime::handover::Handover;
use runtime::queue::Queue;
use runtime::store::Store;

use super::decide::Backoff;
use super::decide_unknown::UnknownNodes;
use crate::context::Clock;
use crate::pods::control::PodControl;
use crate::pods::refusals::Refusals;
use crate::workloads::controller_revisions::Memory;

/// The controller's state.
pub struct DaemonSets {
    pub sets: Arc<Store<DaemonSet>>,
    pub nodes: Arc<Store<Node>>,
    pub revisions: Arc<Store<ControllerRevision>>,
    pub control: PodControl,
    pub queue: Arc<Queue<ObjectKey>>,
    pub clock: Clock,
    /// Tolerations may compare numbers (gate TaintTolerationComparisonOperators).
    pub compares_numbers: bool,
    /// The revision of each DaemonSet's template.
    pub memory: Memory,
    pub debouncer: StatusDebouncer,
    /// Backoffs of failed pods by DaemonSet. They restart when the DaemonSet's UID or observed generation changes.
    pub backoffs: Mutex<HashMap<ObjectKey, (Uid, i64, Backoff)>>,
    pub handover: Handover,
    pub refusals: Refusals,
    /// Refused creations of revisions.
    pub revision_refusals: Refusals,
}

/// The DaemonSet of one reconcile, with the state that the reconcile has read.
pub struct Work<'a> {
    pub key: &'a ObjectKey,
    pub set: &'a DaemonSet,
    pub placement: &'a Placement,
    /// Number of pods that the DaemonSet owns, in any state.
    pub owned: usize,
    /// The DaemonSet's pods after adoption and release.
    pub pods: Vec<Arc<Pod>>,
    /// Nodes whose newest states cannot be decoded. Set when the nodes are read, after the pods.
    pub unknown_nodes: UnknownNodes,
    /// The cache contained all known deletions when the pods were read from it (see [`Handover::observe`]).
    pub are_deletions_cached: bool,
}
