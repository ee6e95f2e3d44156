//! Subscriptions to changes of pods, claims, slices and rules.

use std::sync::Arc;

use runtime::store::index_key;

use super::keys::{ALLOCATED, CLAIMS_OF_POOL, Key, changed_pools, relevant_pod, selects, spec_changed, users};
use super::sync::Evictions;

/// Enqueues the pods and rules that changes affect. A cache contains a change before its subscribers are called. So the
/// subscriber of the last of three changes (pod, claim, taint) finds the other two in the caches.
pub fn subscribe(all: &Arc<Evictions>) {
    let (queue, pending) = (all.queue.clone(), all.pending.clone());
    all.pods.subscribe(move |change| {
        if let Some(pod) = relevant_pod(change) {
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
        for pool in changed_pools(change) {
            for claim in claims.by_index(&CLAIMS_OF_POOL, pool) {
                members.users_of(&claim).into_iter().for_each(|key| queue.add(Key::Pod(key)));
            }
        }
    });
    let Some(rules) = &all.rules else { return };
    let (queue, claims, members) = (all.queue.clone(), all.claims.clone(), all.members.clone());
    rules.subscribe(move |change| {
        if !spec_changed(change) {
            return;
        }
        if let Some(rule) = change.new.or(change.old) {
            queue.add(Key::Rule(rule.meta.name.clone()));
        }
        let either = [change.old, change.new];
        for claim in claims.by_index(&ALLOCATED, index_key(())) {
            let is_affected = either.iter().flatten().any(|rule| selects(rule, &claim));
            if is_affected {
                members.users_of(&claim).into_iter().for_each(|key| queue.add(Key::Pod(key)));
            }
        }
    });
}
