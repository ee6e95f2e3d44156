//! podgroup-protection-controller: blocks the deletion of a PodGroup while one of its pods has not finished.
//!
//! The API server's admission adds the finalizer to each new PodGroup; this controller only removes it.
//! Upstream: pkg/controller/scheduling/podgroupprotection.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::{Kind, Meta, Pod, PodGroup, Sections};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Change, Index, Store, index_key};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::{WriteError, Writer};
use tracing::debug;

use crate::context::{Context, Descriptor, Finalizer, QueueKeys, Verb, Write};
use crate::protection::{Guard, Need, decode_once, need};

const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";
const QUEUE: &str = "podgroupprotection";

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "podgroup-protection-controller",
    service_account: "podgroup-protection-controller",
    requires: &[PodGroup::RESOURCE],
    watches,
    writes: &[Write { verb: Verb::Update, group: "scheduling.k8s.io", resource: "podgroups" }],
    queues: &[QueueKeys::of(QUEUE, "PodGroup")],
    finalizers: &[Finalizer { name: FINALIZER, removed: "once all pods of the group have finished or are deleted" }],
    start,
    ..Descriptor::NONE
};

/// Unfinished pods by their PodGroup. Look up by [`member_of`].
const MEMBERS: Index<Pod> = Index {
    name: "pod-group",
    keys: |pod, emit| {
        if let Some(group) = group_of(pod).filter(|_| !pod.is_terminal()) {
            emit(member_of(&group));
        }
    },
};

fn member_of(group: &ObjectKey) -> u64 {
    index_key(("pod-group", &*group.namespace, &*group.name))
}

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<PodGroup>(Sections::default(), &[]);
    builder.need::<Pod>(Pod::DEVICES, &[MEMBERS]);
}

fn start(manager: &mut Manager, _: &Context) {
    let queue = Queue::new(QueueOptions::named(QUEUE));
    let (groups, pods) = (manager.registry().store::<PodGroup>(), manager.registry().store::<Pod>());
    let changed = queue.clone();
    groups.subscribe(move |change| {
        if let Some(key) = changed_group(change) {
            changed.add(key);
        }
    });
    let changed = queue.clone();
    pods.subscribe(move |change| released_groups(change).into_iter().for_each(|key| changed.add(key)));
    let writer = manager.writer(DESCRIPTOR.service_account);
    let consistency = Consistency::default();
    let reconciler = Arc::new(Protection { groups, pods, writer, consistency, queue: queue.clone() });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: 1, max_retries: None }, queue, reconciler);
}

// Keys

fn group_of(pod: &Pod) -> Option<ObjectKey> {
    let group = pod.devices.as_ref()?.group.clone()?;
    Some(ObjectKey { namespace: pod.meta.namespace.clone(), name: group })
}

/// Returns true if the finalizer of a group may be removed as soon as it has no members.
fn is_candidate(meta: &Meta) -> bool {
    need(meta, FINALIZER) == Need::Removal
}

fn changed_group(change: &Change<'_, PodGroup>) -> Option<ObjectKey> {
    change.new.filter(|group| is_candidate(&group.meta)).map(|group| group.meta.key())
}

/// Returns the groups of a pod that has finished, or was deleted, or was replaced by another one of its name.
fn released_groups(change: &Change<'_, Pod>) -> Vec<ObjectKey> {
    let finished = change.new.filter(|pod| pod.is_terminal());
    let is_deleted = |old: &&Arc<Pod>| change.new.is_none_or(|new| new.meta.uid != old.meta.uid);
    let mut groups: Vec<ObjectKey> =
        finished.into_iter().chain(change.old.filter(is_deleted)).filter_map(|pod| group_of(pod)).collect();
    groups.dedup();
    groups
}

// Sync

struct Protection {
    groups: Arc<Store<PodGroup>>,
    pods: Arc<Store<Pod>>,
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
        let (queue, again) = (self.queue.clone(), key.clone());
        if !self.consistency.caught_up(key, &self.groups, move || queue.add(again)) {
            return Ok(Outcome::WaitingForCache);
        }
        let Some(group) = self.groups.get(key) else {
            self.consistency.forget(key);
            return Ok(Outcome::Done);
        };
        if !is_candidate(&group.meta) {
            return Ok(Outcome::Done);
        }
        if !self.pods.by_index(&MEMBERS, member_of(key)).is_empty() || self.has_members(key).await? {
            debug!(group = %key, "keeping the finalizer: pods of the group have not finished");
            return Ok(Outcome::Done);
        }
        let (writer, store, consistency) = (&self.writer, &*self.groups, &self.consistency);
        let guard = Guard { finalizer: FINALIZER, writer, store, consistency };
        guard.write(&group.meta, Need::Removal, |_| true).await?;
        Ok(Outcome::Done)
    }

    /// Reads the pods of the namespace from the API server. Differs from upstream: a pod that the cache does not
    /// contain yet keeps its group, too.
    async fn has_members(&self, group: &ObjectKey) -> Result<bool, WriteError> {
        let decode = decode_once(Pod::DEVICES);
        let mut found = Ok(false);
        let visit = |object: &[u8]| match (&found, Pod::decode(&decode, object)) {
            (Ok(false), Ok(pod)) => found = Ok(!pod.is_terminal() && group_of(&pod).as_ref() == Some(group)),
            // A pod that cannot be decoded may be a member.
            (Ok(_), Err(error)) => found = Err(error),
            _ => {}
        };
        self.writer.list_each(&Pod::RESOURCE, &group.namespace, visit).await?;
        Ok(found?)
    }
}

#[cfg(test)]
mod tests {
    use kinds::pod::{Devices, Phase};
    use kinds::schema::{object_meta, pod as f};
    use kinds::wire::Put;
    use kinds::{Decode, Time, Uid};
    use runtime::testing::{filled_store, meta};

    use super::*;

    fn group(is_deleting: bool, finalizers: &[&str]) -> Arc<PodGroup> {
        let mut meta = meta("ns", "group", 1);
        meta.deletion = Time(i64::from(is_deleting));
        meta.finalizers = finalizers.iter().map(|name| (*name).into()).collect();
        Arc::new(PodGroup { meta, claims: Box::default() })
    }

    fn pod(uid: &str, group: Option<&str>, phase: Phase) -> Arc<Pod> {
        let mut object = Vec::new();
        object.put_message(f::METADATA, |meta| {
            meta.put_str(object_meta::NAMESPACE, "ns");
            meta.put_str(object_meta::NAME, "pod");
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
        });
        let mut pod = Pod::decode(&decode_once(Sections::default()), &object).expect("well-formed");
        (pod.meta.uid, pod.phase) = (Uid::parse(uid), phase);
        pod.devices =
            group.map(|group| Box::new(Devices { entries: Box::default(), extended: None, group: Some(group.into()) }));
        Arc::new(pod)
    }

    #[test]
    fn groups_are_reconciled_only_when_their_finalizer_may_be_removed() {
        for (name, group, expected) in [
            ("live without finalizer", group(false, &[]), false),
            ("live", group(false, &[FINALIZER]), false),
            ("deleting without finalizer", group(true, &["other"]), false),
            ("deleting", group(true, &["other", FINALIZER]), true),
        ] {
            assert_eq!(changed_group(&Change { old: None, new: Some(&group) }).is_some(), expected, "{name}");
            assert_eq!(changed_group(&Change { old: Some(&group), new: None }), None, "{name}, deleted");
        }
    }

    #[test]
    fn pods_that_finish_or_are_deleted_release_their_group() {
        use Phase::{Failed, Pending, Running, Succeeded};
        let (running, replaced) = (pod("a", Some("g"), Running), pod("b", Some("g"), Running));
        let (finished, failed) = (pod("a", Some("g"), Succeeded), pod("b", Some("h"), Failed));
        let (pending, alone) = (pod("a", Some("g"), Pending), pod("a", None, Succeeded));
        for (name, old, new, expected) in [
            ("unscheduled", None, Some(&pending), &[][..]),
            ("starts", Some(&pending), Some(&running), &[]),
            ("finishes", Some(&running), Some(&finished), &["ns/g"]),
            ("finished before the start", None, Some(&finished), &["ns/g"]),
            ("deleted", Some(&running), None, &["ns/g"]),
            ("replaced", Some(&running), Some(&replaced), &["ns/g"]),
            ("replaced in another group", Some(&running), Some(&failed), &["ns/h", "ns/g"]),
            ("without a group", Some(&alone), None, &[]),
        ] {
            let groups = released_groups(&Change { old, new });
            assert_eq!(groups.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{name}");
        }
    }

    #[test]
    fn finished_pods_are_no_members() {
        for (phase, expected) in
            [(Phase::Pending, 1), (Phase::Running, 1), (Phase::Unknown, 1), (Phase::Succeeded, 0), (Phase::Failed, 0)]
        {
            let pod = Arc::unwrap_or_clone(pod("a", Some("g"), phase));
            let decode = Decode { interner: Arc::default(), sections: Pod::DEVICES };
            let pods = filled_store(decode, vec![MEMBERS], [pod]);
            let members = |name: &str| pods.by_index(&MEMBERS, member_of(&ObjectKey::new("ns", name))).len();
            assert_eq!((members("g"), members("other")), (expected, 0), "{phase:?}");
        }
    }
}
