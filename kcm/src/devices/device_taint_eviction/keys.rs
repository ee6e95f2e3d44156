//! Maps changes to pods and rules.

use std::fmt;
use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::resource_claim::ResourceClaim;
use kinds::resource_slice::Device;
use kinds::{DeviceTaintRule, Pod, ResourceSlice, Str};
use runtime::queue::QueueKey;
use runtime::store::{Change, Index, Store, index_key};

use super::sync::Evictions;

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

/// The key of a PodGroup.
pub fn in_group(namespace: &str, group: &str) -> u64 {
    index_key(("device-group", namespace, group))
}

/// The key of a pool.
pub fn pool(driver: &str, pool: &str) -> u64 {
    index_key((driver, pool))
}

/// Enqueues the keys of changed objects. A cache contains a change before its subscribers are called, so that the last
/// one of a pod, its claim and the taint finds the others.
pub fn subscribe(all: &Arc<Evictions>) {
    let (queue, pending) = (all.queue.clone(), all.pending.clone());
    all.pods.subscribe(move |change| {
        if let Some(pod) = moved(change) {
            let key = pod.meta.key();
            if pending.contains(&key) || change.new.is_some() && pod.devices.is_some() && !pod.node.is_empty() {
                queue.add(Key::Pod(key));
            }
        }
    });
    let (queue, members) = (all.queue.clone(), all.members.clone());
    all.claims.subscribe(move |change| {
        let users = users(change, |claim| members.users_of(claim));
        users.into_iter().for_each(|key| queue.add(Key::Pod(key)));
    });
    let (queue, claims, members) = (all.queue.clone(), all.claims.clone(), all.members.clone());
    all.slices.subscribe(move |change| {
        for pool in tainted_anew(change) {
            for claim in claims.by_index(&CLAIMS_OF_POOL, pool) {
                members.users_of(&claim).into_iter().for_each(|key| queue.add(Key::Pod(key)));
            }
        }
    });
    let Some(rules) = &all.rules else { return };
    let (queue, claims, members) = (all.queue.clone(), all.claims.clone(), all.members.clone());
    rules.subscribe(move |change| {
        if !is_another(change) {
            return;
        }
        change.new.or(change.old).into_iter().for_each(|rule| queue.add(Key::Rule(rule.meta.name.clone())));
        let either = [change.old, change.new];
        for claim in claims.by_index(&ALLOCATED, index_key(())) {
            let is_affected = either.iter().flatten().any(|rule| is_about(rule, &claim));
            if is_affected {
                members.users_of(&claim).into_iter().for_each(|key| queue.add(Key::Pod(key)));
            }
        }
    });
}

/// Reports whether a rule is about one of a claim's devices.
pub fn is_about(rule: &DeviceTaintRule, claim: &ResourceClaim) -> bool {
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
    /// Returns the pods that a claim is reserved for, itself or through their PodGroup.
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

/// Returns the pod, if it was created, deleted or bound, or uses other claims now.
pub fn moved<'a>(change: &Change<'a, Pod>) -> Option<&'a Arc<Pod>> {
    let same = change.old.zip(change.new).is_some_and(|(old, new)| {
        (&old.meta.uid, &old.node, &old.devices, old.meta.is_deleting())
            == (&new.meta.uid, &new.node, &new.devices, new.meta.is_deleting())
    });
    change.new.or(change.old).filter(|_| !same)
}

/// Returns the pods that a change of a claim may concern: those that it was or is reserved for.
pub fn users(
    change: &Change<'_, ResourceClaim>,
    users_of: impl Fn(&ResourceClaim) -> Vec<ObjectKey>,
) -> Vec<ObjectKey> {
    let same = change.old.zip(change.new).is_some_and(|(old, new)| {
        old.meta.uid == new.meta.uid
            && old.meta.controller() == new.meta.controller()
            && old.allocation == new.allocation
    });
    if same {
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
pub fn tainted_anew(change: &Change<'_, ResourceSlice>) -> Vec<u64> {
    fn shown(slice: &ResourceSlice) -> impl PartialEq + '_ {
        let tainted: Vec<&Device> = slice.devices.iter().filter(|device| !device.taints.is_empty()).collect();
        (&slice.driver, &slice.pool, slice.generation, tainted)
    }
    if change.old.zip(change.new).is_some_and(|(old, new)| shown(old) == shown(new)) {
        return Vec::new();
    }
    let mut pools: Vec<u64> =
        [change.old, change.new].into_iter().flatten().map(|slice| pool(&slice.driver, &slice.pool)).collect();
    pools.dedup();
    pools
}

/// Reports whether a rule was created or deleted, or its spec changed. A status write does not count.
pub fn is_another(change: &Change<'_, DeviceTaintRule>) -> bool {
    change.old.zip(change.new).is_none_or(|(old, new)| {
        (&old.meta.uid, &old.selector, &old.taint) != (&new.meta.uid, &new.selector, &new.taint)
    })
}
