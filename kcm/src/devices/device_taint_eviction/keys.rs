//! Maps changes of objects to the keys of pods and rules.

use std::fmt;
use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::resource_claim::ResourceClaim;
use kinds::resource_slice::Device;
use kinds::{DeviceTaintRule, Pod, ResourceSlice, Str};
use runtime::queue::QueueKey;
use runtime::store::{Change, Index, Store, index_key};

/// A key of the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// Check whether a pod has to be evicted.
    Pod(ObjectKey),
    /// Update the status of a rule.
    Rule(Str),
}

impl QueueKey for Key {
    fn namespace(&self) -> &str {
        match self {
            Self::Pod(key) => &key.namespace,
            Self::Rule(_) => "",
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(key) => write!(f, "pod {key}"),
            Self::Rule(name) => write!(f, "DeviceTaintRule {name}"),
        }
    }
}

/// All allocated claims, under one key.
pub const ALLOCATED: Index<ResourceClaim> = Index {
    name: "allocated",
    keys: |claim, emit| {
        if claim.allocation.is_some() {
            emit(index_key(()));
        }
    },
};

/// Allocated claims by the pools that their devices are from. Look up by [`pool`].
pub const CLAIMS_OF_POOL: Index<ResourceClaim> = Index {
    name: "pool",
    keys: |claim, emit| {
        let devices = claim.allocation.iter().flat_map(|allocation| &allocation.devices);
        let mut pools: Vec<u64> = devices.map(|device| pool(&device.driver, &device.pool)).collect();
        pools.sort_unstable();
        pools.dedup();
        pools.into_iter().for_each(emit);
    },
};

/// All slices, under one key.
pub const SLICES: Index<ResourceSlice> = Index { name: "all", keys: |_, emit| emit(index_key(())) };

/// Slices by their pool. Look up by [`pool`].
pub const SLICES_OF_POOL: Index<ResourceSlice> =
    Index { name: "pool", keys: |slice, emit| emit(pool(&slice.driver, &slice.pool)) };

/// All rules, under one key: there are few.
pub const RULES: Index<DeviceTaintRule> = Index { name: "all", keys: |_, emit| emit(index_key(())) };

/// Pods with devices by their PodGroup. Look up by [`in_group`].
pub const MEMBERS: Index<Pod> = Index {
    name: "device-group",
    keys: |pod, emit| {
        if let Some(group) = pod.devices.as_ref().and_then(|devices| devices.group.as_ref()) {
            emit(in_group(&pod.meta.namespace, group));
        }
    },
};

/// Returns the key of a PodGroup.
pub fn in_group(namespace: &str, group: &str) -> u64 {
    index_key(("device-group", namespace, group))
}

/// Returns the key of a pool.
pub fn pool(driver: &str, pool: &str) -> u64 {
    index_key((driver, pool))
}

/// Returns true if a rule selects one of a claim's devices.
pub fn selects(rule: &DeviceTaintRule, claim: &ResourceClaim) -> bool {
    let mut devices = claim.allocation.iter().flat_map(|allocation| &allocation.devices);
    devices.any(|device| rule.selects(&device.driver, &device.pool, &device.name))
}

/// Returns the pods that a claim is reserved for.
fn pods_of(claim: &ResourceClaim) -> impl Iterator<Item = ObjectKey> {
    let pods = claim.allocation.iter().flat_map(|allocation| &allocation.pods);
    pods.map(|(name, _)| ObjectKey { namespace: claim.meta.namespace.clone(), name: name.clone() })
}

/// Finds the pods of PodGroups; none without the gate DRAWorkloadResourceClaims.
#[derive(Clone)]
pub struct Members(pub Option<Arc<Store<Pod>>>);

impl Members {
    /// Returns the pods that a claim is reserved for, directly or through their PodGroup.
    pub fn users_of(&self, claim: &ResourceClaim) -> Vec<ObjectKey> {
        let mut users: Vec<ObjectKey> = pods_of(claim).collect();
        let groups = claim.allocation.iter().flat_map(|allocation| &allocation.groups);
        for (pods, group) in self.0.iter().flat_map(|pods| groups.clone().map(move |group| (pods, group))) {
            let members = pods.by_index(&MEMBERS, in_group(&claim.meta.namespace, group));
            users.extend(members.iter().map(|pod| pod.meta.key()));
        }
        users
    }
}

/// Returns the pod, if it was created, deleted or bound, its deletion has begun, or it uses other claims now.
pub fn relevant_pod<'a>(change: &Change<'a, Pod>) -> Option<&'a Arc<Pod>> {
    let is_same = change.old.zip(change.new).is_some_and(|(old, new)| {
        (&old.meta.uid, &old.node, &old.devices, old.meta.is_deleting())
            == (&new.meta.uid, &new.node, &new.devices, new.meta.is_deleting())
    });
    change.new.or(change.old).filter(|_| !is_same)
}

/// Returns the pods that a change of a claim may affect: those that it was or is reserved for.
pub fn users(
    change: &Change<'_, ResourceClaim>,
    users_of: impl Fn(&ResourceClaim) -> Vec<ObjectKey>,
) -> Vec<ObjectKey> {
    let is_same = change.old.zip(change.new).is_some_and(|(old, new)| {
        old.meta.uid == new.meta.uid
            && old.meta.controller() == new.meta.controller()
            && old.allocation == new.allocation
    });
    if is_same {
        return Vec::new();
    }
    let mut keys: Vec<ObjectKey> =
        [change.old, change.new].into_iter().flatten().flat_map(|one| users_of(one)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Returns the pools whose taints a change of a slice may change. A slice without taints counts too, because its
/// generation may replace older slices.
pub fn changed_pools(change: &Change<'_, ResourceSlice>) -> Vec<u64> {
    fn effective(slice: &ResourceSlice) -> impl PartialEq + '_ {
        let tainted: Vec<&Device> = slice.devices.iter().filter(|device| !device.taints.is_empty()).collect();
        (&slice.driver, &slice.pool, slice.generation, tainted)
    }
    if change.old.zip(change.new).is_some_and(|(old, new)| effective(old) == effective(new)) {
        return Vec::new();
    }
    let mut pools: Vec<u64> =
        [change.old, change.new].into_iter().flatten().map(|slice| pool(&slice.driver, &slice.pool)).collect();
    pools.dedup();
    pools
}

/// Returns true if a rule was created or deleted, or its spec changed. A status write does not count.
pub fn spec_changed(change: &Change<'_, DeviceTaintRule>) -> bool {
    change.old.zip(change.new).is_none_or(|(old, new)| {
        (&old.meta.uid, &old.selector, &old.taint) != (&new.meta.uid, &new.selector, &new.taint)
    })
}
