//! The next step for a claim.
//!
//! Upstream: pkg/controller/volume/persistentvolume, syncUnboundClaim and syncBoundClaim.

use std::sync::Arc;

use kinds::persistent_volume::{BOUND_BY_CONTROLLER, PRE_RESIZE_CAPACITY, Phase as VolumePhase};
use kinds::persistent_volume_claim::{BIND_COMPLETED, Phase, SELECTED_NODE, StatusEdit};
use kinds::resource_list::Amount;
use kinds::selector::Selector;
use kinds::storage_class::BindingMode;
use kinds::{PersistentVolume, PersistentVolumeClaim, StorageClass, Str};

use super::volume_index::requested;

/// The objects of the cluster that a decision about a claim reads.
pub trait Cluster {
    /// Returns the volume with this name.
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>>;
    /// Returns the storage class with this name.
    fn class(&self, name: &str) -> Option<Arc<StorageClass>>;
    /// Returns true if the storage class with this name cannot be decoded: it may exist even if a later call of
    /// [`Cluster::class`] returns `None`.
    fn is_class_undecodable(&self, name: &str) -> bool;
    /// Returns true if a volume whose newest state cannot be decoded may be reserved for a claim: a later call of
    /// [`Cluster::find`] does not find it.
    fn may_have_undecodable_volume(&self, claim: &PersistentVolumeClaim) -> bool;
    /// Searches for the best volume for a claim; only among those that are reserved for it if `is_limited`.
    fn find(&self, claim: &PersistentVolumeClaim, is_limited: bool) -> Search;
    /// Returns the name of the default class; `None` if there is none, or if it is unknown because a class is
    /// undecodable.
    fn default_class(&self) -> Option<Str>;
    /// Returns the names of active pods without a node that use the claim.
    fn unscheduled_pods(&self, claim: &PersistentVolumeClaim) -> Vec<Str>;
}

/// Result of the search for a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Search {
    /// The best volume.
    Found(Arc<PersistentVolume>),
    /// No volume fits.
    Nothing,
    /// The claim, or the volume that is reserved for it, is being bound: the result is not known yet.
    Busy,
}

/// An event about a claim or volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Notice {
    /// True for a warning.
    pub is_warning: bool,
    /// Reason of the event.
    pub reason: &'static str,
    /// Message of the event.
    pub message: String,
}

impl Notice {
    /// Returns an event of type Normal.
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self { is_warning: false, reason, message: message.into() }
    }

    /// Returns an event of type Warning.
    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self { is_warning: true, reason, message: message.into() }
    }
}

/// The next step for a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimStep {
    /// Bind the claim to this volume.
    Bind {
        /// The volume.
        volume: Arc<PersistentVolume>,
        /// The volume was found by the search, not named by the claim. The search already holds it for the claim. If a
        /// provisioner created the volume, the binding ends the provisioning operation in the metrics.
        is_found: bool,
    },
    /// The claim waits: phase Pending, and this event.
    Pend(Option<Notice>),
    /// The claim's volume is lost: phase Lost. The event is only recorded when the phase changes.
    Lose(Notice),
    /// A binding in progress has to end first.
    DecideAgain,
    /// Set the claim's class to this default class.
    AssignClass(Str),
    /// Request a volume from the provisioner of this class.
    Provision(Str),
    /// The volume belongs to another claim, which may release it: record the event and retry.
    Retry(Notice, String),
}

/// Decides the next step for a claim.
///
/// # Errors
/// When the storage class has no binding mode or is undecodable, or the claim's selector is invalid; the claim is
/// retried.
pub fn next_step(claim: &PersistentVolumeClaim, cluster: &impl Cluster) -> Result<ClaimStep, String> {
    if claim.annotation(BIND_COMPLETED).is_some() {
        Ok(bound(claim, cluster))
    } else if may_have_any_volume(claim) {
        unbound(claim, cluster)
    } else {
        Ok(prebound(claim, cluster))
    }
}

/// Returns true if a claim was never bound and names no volume: it gets the best one, or waits for one.
pub fn may_have_any_volume(claim: &PersistentVolumeClaim) -> bool {
    claim.annotation(BIND_COMPLETED).is_none() && claim.volume_name.is_empty()
}

/// Returns true if the binding of a claim waits for a pod.
///
/// # Errors
/// When the class has no binding mode or is undecodable.
pub fn is_delayed(claim: &PersistentVolumeClaim, cluster: &impl Cluster) -> Result<bool, String> {
    match claim.class() {
        "" => Ok(false),
        // A binding cannot be undone. If the class delays bindings, an immediate one could choose a volume in a zone in
        // which the pod cannot run.
        name if cluster.is_class_undecodable(name) => Err(format!("StorageClass {name:?} cannot be decoded")),
        name => cluster.class(name).map_or(Ok(false), |class| match class.binding_mode {
            Some(mode) => Ok(mode == BindingMode::WaitForFirstConsumer),
            None => Err(format!("VolumeBindingMode not set for StorageClass {name:?}")),
        }),
    }
}

/// Decides on a claim that names no volume.
fn unbound(claim: &PersistentVolumeClaim, cluster: &impl Cluster) -> Result<ClaimStep, String> {
    let is_delayed = is_delayed(claim, cluster)?;
    if let Some(Selector::Invalid(problem)) = claim.selector.as_deref() {
        return Err(format!("finding PV for claim {:?}: {problem}", claim.meta.key().to_string()));
    }
    // The data of the claim may be on a volume that is reserved for it. Another volume would be empty.
    let may_be_reserved = cluster.may_have_undecodable_volume(claim);
    match cluster.find(claim, is_delayed || may_be_reserved) {
        Search::Found(volume) => return Ok(ClaimStep::Bind { volume, is_found: true }),
        Search::Busy => return Ok(ClaimStep::DecideAgain),
        Search::Nothing if may_be_reserved => {
            let message = "a persistent volume that may be reserved for this claim cannot be decoded";
            return Ok(ClaimStep::Pend(Some(Notice::warning("FailedBinding", message))));
        }
        Search::Nothing => {}
    }
    if !claim.names_class()
        && let Some(class) = cluster.default_class()
    {
        return Ok(ClaimStep::AssignClass(class));
    }
    if is_delayed && claim.annotation(SELECTED_NODE).is_none() {
        return Ok(ClaimStep::Pend(Some(waiting_notice(&cluster.unscheduled_pods(claim)))));
    }
    if !claim.class().is_empty() {
        return Ok(ClaimStep::Provision(claim.class().into()));
    }
    let message = "no persistent volumes available for this claim and no storage class is set";
    Ok(ClaimStep::Pend(Some(Notice::normal("FailedBinding", message))))
}

fn waiting_notice(pods: &[Str]) -> Notice {
    match pods {
        [] => Notice::normal("WaitForFirstConsumer", "waiting for first consumer to be created before binding"),
        [pod] => Notice::normal("WaitForPodScheduled", format!("waiting for pod {pod} to be scheduled")),
        pods => {
            let names = pods.join(",");
            Notice::normal("WaitForPodScheduled", format!("waiting for pods {names} to be scheduled"))
        }
    }
}

/// Decides on a claim that names a volume and was not bound before.
fn prebound(claim: &PersistentVolumeClaim, cluster: &impl Cluster) -> ClaimStep {
    let Some(volume) = cluster.volume(&claim.volume_name) else { return ClaimStep::Pend(None) };
    let Some(reference) = &volume.claim else {
        return match mismatch(claim, &volume) {
            None => ClaimStep::Bind { volume, is_found: false },
            Some(why) => {
                let message = format!("Cannot bind to requested volume {:?}: {why}", &*claim.volume_name);
                ClaimStep::Pend(Some(Notice::warning("VolumeMismatch", message)))
            }
        };
    };
    if volume.refers_to(&claim.meta) {
        return ClaimStep::Bind { volume, is_found: false };
    }
    let name = &*claim.volume_name;
    let notice = Notice::warning("FailedBinding", format!("volume {name:?} already bound to a different claim."));
    if claim.annotation(BOUND_BY_CONTROLLER).is_none() {
        return ClaimStep::Pend(Some(notice));
    }
    let key = claim.meta.key().to_string();
    let other = format!("{}/{}", reference.namespace, reference.name);
    let problem = format!("invalid binding of claim {key:?} to volume {name:?}: volume already claimed by {other:?}");
    ClaimStep::Retry(notice, problem)
}

/// Returns the reason why a claim cannot have the free volume that it names. Labels, phase, node affinity and binding
/// mode do not matter for a volume that a user chose.
fn mismatch(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<String> {
    let is_too_small = volume.storage().map_or(0, Amount::whole) < requested(claim).whole();
    let problem = if volume.meta.is_deleting() {
        return Some(format!("the volume is marked for deletion {:?}", &*volume.meta.name));
    } else if is_too_small {
        "requested PV is too small"
    } else if volume.class() != claim.class() {
        "storageClassName does not match"
    } else if volume.attributes_class != claim.attributes_class {
        "volumeAttributesClassName does not match"
    } else if volume.volume_mode != claim.volume_mode {
        "incompatible volumeMode"
    } else if !volume.modes().contains(claim.modes()) {
        "incompatible accessMode"
    } else {
        return None;
    };
    Some(problem.to_owned())
}

/// Decides on a claim whose binding was completed before.
fn bound(claim: &PersistentVolumeClaim, cluster: &impl Cluster) -> ClaimStep {
    if claim.volume_name.is_empty() {
        let message = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
        return ClaimStep::Lose(Notice::warning("ClaimLost", message));
    }
    let Some(volume) = cluster.volume(&claim.volume_name) else {
        let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
        return ClaimStep::Lose(Notice::warning("ClaimLost", message));
    };
    let is_own = match &volume.claim {
        None => true,
        Some(reference) => reference.uid.as_ref() == Some(&claim.meta.uid),
    };
    if is_own {
        return ClaimStep::Bind { volume, is_found: false };
    }
    let message = "Two claims are bound to the same volume, this one is bound incorrectly";
    ClaimStep::Lose(Notice::warning("ClaimMisbound", message))
}

/// The next of the four writes that bind a claim to a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindWrite {
    /// The volume has to refer to the claim.
    VolumeReference {
        /// True if the volume gets the annotation for volumes that a controller chose.
        by_controller: bool,
    },
    /// The volume's phase has to be Bound.
    VolumePhase,
    /// The claim has to name the volume, and to record that binding is complete.
    ClaimReference {
        /// True if the claim gets the annotation for claims whose volume a controller chose.
        by_controller: bool,
    },
    /// The claim's status may have to change.
    ClaimStatus,
}

/// Returns the first write that is still missing. The claim's status is compared by [`bound_status`].
///
/// The order makes a crash harmless: the volume refers to the claim before the claim names the volume, so that no other
/// claim can take the volume in between.
pub fn next_bind_write(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> BindWrite {
    let refers = volume.refers_to(&claim.meta) && volume.claim.as_ref().is_some_and(|at| at.uid.is_some());
    if !refers {
        return BindWrite::VolumeReference { by_controller: !volume.refers_to(&claim.meta) };
    }
    if volume.phase != VolumePhase::Bound {
        return BindWrite::VolumePhase;
    }
    if claim.volume_name != volume.meta.name {
        return BindWrite::ClaimReference { by_controller: true };
    }
    if claim.annotation(BIND_COMPLETED).is_none() {
        return BindWrite::ClaimReference { by_controller: false };
    }
    BindWrite::ClaimStatus
}

/// Returns the changes of the status of a claim that has lost its volume; `None` if its phase is Lost already. The
/// event is only recorded with a change.
pub fn lost_status(claim: &PersistentVolumeClaim) -> Option<StatusEdit<'static>> {
    unbound_status(claim, Phase::Lost).filter(|_| claim.phase != Phase::Lost)
}

/// Returns the changes of the status of a claim that is not bound; `None` if the status is up to date.
pub fn unbound_status(claim: &PersistentVolumeClaim, phase: Phase) -> Option<StatusEdit<'static>> {
    let edit = StatusEdit {
        phase: (claim.phase != phase).then_some(phase),
        access_modes: (!claim.status_modes.is_empty()).then_some(&[]),
        capacity: (!claim.capacity.is_empty()).then_some(""),
        attributes_class: (!claim.current_attributes_class.is_empty()).then_some(""),
    };
    (edit != StatusEdit::default()).then_some(edit)
}

/// Returns the changes of the status of a claim that is bound to a volume; `None` if the status is up to date.
///
/// The capacity is only set when the claim becomes bound: afterwards the file system may be smaller than the volume,
/// and the resizer owns the field. The VolumeAttributesClass is only set when a pending claim becomes bound.
///
/// # Errors
/// When the claim becomes bound and the volume has no capacity.
pub fn bound_status<'a>(
    claim: &'a PersistentVolumeClaim,
    volume: &'a PersistentVolume,
) -> Result<Option<StatusEdit<'a>>, String> {
    let mut edit = StatusEdit {
        access_modes: (claim.status_modes != volume.access_modes).then_some(&*volume.access_modes),
        ..StatusEdit::default()
    };
    if claim.phase != Phase::Bound {
        edit.phase = Some(Phase::Bound);
        let Some(capacity) = volume.storage() else {
            return Err(format!("PersistentVolume {:?} is without a storage capacity", &*volume.meta.name));
        };
        let before_resize = volume.annotation(PRE_RESIZE_CAPACITY);
        edit.capacity = match before_resize {
            Some(amount) if Amount::parse(amount).is_some() => Some(amount),
            Some(_) => Some(&volume.capacity),
            None => (claim.storage_capacity() != Some(capacity)).then_some(&volume.capacity),
        };
    }
    if claim.phase == Phase::Pending && claim.current_attributes_class != volume.attributes_class {
        edit.attributes_class = Some(&volume.attributes_class);
    }
    Ok((edit != StatusEdit::default()).then_some(edit))
}
