//! Policy: the time at which a pod is evicted because of its devices' taints, and the rules that cause it.

use std::collections::BTreeSet;
use std::sync::Arc;

use kinds::device_allocation::AllocatedDevice;
use kinds::meta::OwnerRef;
use kinds::pod::UsedClaim;
use kinds::resource_claim::ResourceClaim;
use kinds::taint::{NO_EXECUTE, Taint};
use kinds::{DeviceTaintRule, Pod, ResourceSlice, Time, Uid};

/// A taint of a device that evicts pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictingTaint<'a> {
    /// The taint.
    pub taint: &'a Taint,
    /// The rule that adds it; `None`: the driver published it.
    pub rule: Option<&'a Uid>,
}

/// The eviction of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eviction {
    /// Time at which the pod is deleted.
    pub at: Time,
    /// The rules that cause it.
    pub rules: BTreeSet<Uid>,
}

impl Eviction {
    /// Combines two evictions: the earlier time, and the rules of both.
    fn and(mut self, other: Self) -> Self {
        self.at = self.at.min(other.at);
        self.rules.extend(other.rules);
        self
    }
}

/// Returns the taints of a device that evict pods: taints in the slices of its pool's newest generation, and taints of
/// rules. `slices` may contain slices of other pools. Upstream: pkg/controller/devicetainteviction,
/// allEvictingDeviceTaints.
pub fn evicting_taints<'a>(
    device: &AllocatedDevice,
    slices: impl Iterator<Item = &'a ResourceSlice> + Clone,
    rules: impl Iterator<Item = &'a DeviceTaintRule>,
) -> Vec<EvictingTaint<'a>> {
    let of_pool = slices.filter(|slice| slice.driver == device.driver && slice.pool == device.pool);
    let newest = of_pool.clone().map(|slice| slice.generation).max();
    let mut published = of_pool.filter(|slice| Some(slice.generation) == newest).flat_map(|slice| &slice.devices);
    let published = published.find(|known| known.name == device.name);
    let taints = published.into_iter().flat_map(|known| &known.taints);
    let taints = taints.map(|taint| EvictingTaint { taint, rule: None });
    let selecting = rules.filter(|rule| rule.selects(&device.driver, &device.pool, &device.name));
    let from_rules = selecting.map(|rule| EvictingTaint { taint: &rule.taint, rule: Some(&rule.meta.uid) });
    taints.chain(from_rules).filter(|active| &*active.taint.effect == NO_EXECUTE).collect()
}

/// Returns the time at which a taint evicts the users of a device: the tolerated time after the taint was added; `None`
/// if it is tolerated forever. A taint without the time when it was added evicts no pod. Upstream:
/// pkg/controller/devicetainteviction, claimEvictionTime.
fn eviction_time(device: &AllocatedDevice, taint: &Taint) -> Option<Time> {
    let mut shortest: Option<i64> = None;
    for toleration in device.tolerations() {
        if toleration.effect == NO_EXECUTE && toleration.tolerates(taint, false) {
            let seconds = toleration.seconds?.max(0);
            shortest = Some(shortest.map_or(seconds, |shortest| shortest.min(seconds)));
        }
    }
    (!taint.added.is_zero()).then(|| Time(taint.added.0.saturating_add(shortest.unwrap_or(0))))
}

/// Returns the eviction of a claim's users, if any.
pub fn of_claim<'a>(
    claim: &ResourceClaim,
    taints: impl Fn(&AllocatedDevice) -> Vec<EvictingTaint<'a>>,
) -> Option<Eviction> {
    let devices = claim.allocation.iter().flat_map(|allocation| &allocation.devices);
    let evictions = devices.flat_map(|device| {
        let evictions =
            taints(device).into_iter().filter_map(|found| Some((eviction_time(device, found.taint)?, found.rule)));
        evictions.map(|(at, rule)| Eviction { at, rules: rule.cloned().into_iter().collect() }).collect::<Vec<_>>()
    });
    evictions.reduce(Eviction::and)
}

/// Returns true if a pod uses a claim. The claim must be reserved for the pod or its PodGroup; and the pod must name
/// the claim, or the claim must have been created for the pod or its PodGroup. PodGroups count only with `with_groups`
/// (gate DRAWorkloadResourceClaims), and are compared by name, because a pod does not contain the uid of its group.
/// Upstream: k8s.io/dynamic-resource-allocation/resourceclaim, IsForPod and IsReservedForPod.
pub fn uses(pod: &Pod, used: UsedClaim<'_>, claim: &ResourceClaim, with_groups: bool) -> bool {
    let group = pod.devices.as_ref().and_then(|devices| devices.group.as_ref()).filter(|_| with_groups);
    let is_of_group = |owner: &OwnerRef| {
        let is_group = &*owner.kind == "PodGroup" && owner.api_version.starts_with("scheduling.k8s.io/");
        is_group && group == Some(&owner.name)
    };
    let is_its_own = || claim.meta.controller().is_some_and(|owner| owner.uid == pod.meta.uid || is_of_group(owner));
    let is_reserved = claim.allocation.as_ref().is_some_and(|allocation| {
        allocation.pods.iter().any(|(_, uid)| *uid == pod.meta.uid)
            || group.is_some_and(|group| allocation.groups.contains(group))
    });
    (!used.is_generated || is_its_own()) && is_reserved
}

/// Returns the eviction of a pod, if any: the earliest time at which a claim of the pod requires it, and the rules that
/// affect any of its claims. A pod that is on no node is not evicted. Upstream: pkg/controller/devicetainteviction,
/// podEvictionTime.
pub fn of_pod(
    pod: &Pod,
    with_groups: bool,
    claim: impl Fn(UsedClaim<'_>) -> Option<Arc<ResourceClaim>>,
    of_claim: impl Fn(&ResourceClaim) -> Option<Eviction>,
) -> Option<Eviction> {
    let used = pod.devices.iter().filter(|_| !pod.node.is_empty()).flat_map(|devices| devices.claims());
    let evictions = used.filter_map(|used| {
        let claim = claim(used).filter(|claim| uses(pod, used, claim, with_groups))?;
        of_claim(&claim)
    });
    evictions.reduce(Eviction::and)
}
