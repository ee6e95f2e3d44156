//! podgroup-protection-controller: blocks the deletion of a PodGroup while one of its pods has not finished.
//!
//! The API server's admission adds the finalizer to each new PodGroup; this controller only removes it.
//! Upstream: pkg/controller/scheduling/podgroupprotection.

use std::collections::HashSet;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::{Kind, Meta, Pod, PodGroup, Sections, Str};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Change, Index, Store, index_key};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::{WriteError, Writer};
use tracing::debug;

use crate::context::{Context, Descriptor, Finalizer, QueueKeys, Verb, Write};
use crate::protection::{Guard, Need, RECHECK_INTERVAL, decode_once, need};
use crate::shared_read::SharedReads;

const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";
const QUEUE: &str = "podgroupprotection";

/// Number of workers. Groups of one namespace that are reconciled at the same time share one list of its pods.
/// Upstream, which does not list, has one worker.
const WORKERS: usize = 64;

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
    let members = uncached_members(writer.clone());
    let reconciler = Arc::new(Protection { groups, pods, members, writer, consistency, queue: queue.clone() });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: WORKERS }, queue, reconciler);
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

/// Returns the groups of a pod that has finished, or was deleted, or was replaced by another one with its name.
fn released_groups(change: &Change<'_, Pod>) -> Vec<ObjectKey> {
    let finished = change.new.filter(|pod| pod.is_terminal());
    let is_deleted = |old: &&Arc<Pod>| change.new.is_none_or(|new| new.meta.uid != old.meta.uid);
    let mut groups: Vec<ObjectKey> =
        finished.into_iter().chain(change.old.filter(is_deleted)).filter_map(|pod| group_of(pod)).collect();
    groups.dedup();
    groups
}

// Sync

/// The names of a namespace's groups that have unfinished pods.
type UsedGroups = HashSet<Str>;

/// Reads the groups with unfinished pods from the API server. Differs from upstream: a pod that the cache does not
/// contain yet keeps its group, too.
fn uncached_members(writer: Writer) -> SharedReads<UsedGroups> {
    SharedReads::new(move |namespace| {
        let writer = writer.clone();
        async move { list_used_groups(&writer, &namespace).await.map_err(|error| error.to_string()) }.boxed()
    })
}

async fn list_used_groups(writer: &Writer, namespace: &str) -> Result<UsedGroups, WriteError> {
    let decode = decode_once(Pod::DEVICES);
    let mut used = UsedGroups::new();
    let mut unreadable = None;
    let visit = |object: &[u8]| match Pod::decode(&decode, object) {
        Ok(pod) if pod.is_terminal() => {}
        Ok(pod) => used.extend(group_of(&pod).map(|group| group.name)),
        Err(error) => unreadable = Some(error),
    };
    writer.list_each(&Pod::RESOURCE, namespace, visit).await?;
    // A pod that cannot be decoded may be a member of any group.
    unreadable.map_or(Ok(used), |error| Err(error.into()))
}

struct Protection {
    groups: Arc<Store<PodGroup>>,
    pods: Arc<Store<Pod>>,
    members: SharedReads<UsedGroups>,
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
        if self.has_cached_members(key) {
            debug!(group = %key, "keeping the finalizer: pods of the group have not finished");
            return Ok(Outcome::Done);
        }
        if self.has_members(key).await? {
            debug!(group = %key, "keeping the finalizer: the group has a pod that the cache does not contain yet");
            return Ok(Outcome::RequeueAfter(RECHECK_INTERVAL));
        }
        let (writer, store, consistency) = (&self.writer, &*self.groups, &self.consistency);
        let guard = Guard { finalizer: FINALIZER, writer, store, consistency };
        // A pod that was created during the list may have reached the cache since.
        guard.write(&group.meta, Need::Removal, |_| !self.has_cached_members(key)).await?;
        Ok(Outcome::Done)
    }

    fn has_cached_members(&self, group: &ObjectKey) -> bool {
        !self.pods.by_index(&MEMBERS, member_of(group)).is_empty()
    }

    async fn has_members(&self, group: &ObjectKey) -> Result<bool, ReconcileError> {
        let used = self.members.get(&group.namespace).await;
        let used =
            used.map_err(|error| ReconcileError::new(format!("cannot list the pods of the namespace: {error}")))?;
        Ok(used.contains(&group.name))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use futures::future::join_all;
    use http::Method;
    use kinds::envelope;
    use kinds::pod::{Devices, Phase};
    use kinds::schema::{list_meta, object_meta, pod as f, pod_scheduling_group, pod_spec, pod_status};
    use kinds::wire::Put;
    use kinds::{Decode, Time, Uid};
    use runtime::testing::{deliver, filled_store, meta, writer};

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
        pod.meta.uid = Uid::parse(uid);
        pod.phase = phase;
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
    fn finished_pods_are_not_members() {
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

    /// A PodGroup that is being deleted, as the API server returns it.
    fn deleted_group(name: &str) -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(1, |meta| {
            meta.put_str(object_meta::NAMESPACE, "ns");
            meta.put_str(object_meta::NAME, name);
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
            meta.put_str(object_meta::FINALIZERS, FINALIZER);
            Time(1).put(meta, object_meta::DELETION_TIMESTAMP);
        });
        object
    }

    fn pod_list(members: &[(&str, &str)]) -> Vec<u8> {
        let mut list = Vec::new();
        list.put_message(1, |meta| meta.put_str(list_meta::RESOURCE_VERSION, "9"));
        for (group, phase) in members {
            list.put_message(2, |pod| {
                pod.put_message(f::METADATA, |meta| {
                    meta.put_str(object_meta::NAMESPACE, "ns");
                    meta.put_str(object_meta::NAME, "member");
                    meta.put_str(object_meta::RESOURCE_VERSION, "2");
                });
                pod.put_message(f::SPEC, |spec| {
                    spec.put_message(pod_spec::SCHEDULING_GROUP, |message| {
                        message.put_str(pod_scheduling_group::POD_GROUP_NAME, group);
                    });
                });
                pod.put_message(f::STATUS, |status| status.put_str(pod_status::PHASE, phase));
            });
        }
        envelope::wrap(&Pod::RESOURCE, &list)
    }

    type Requests = Arc<Mutex<Vec<String>>>;

    /// The controller with an empty cache of pods, and a server with these members of groups.
    async fn protection(groups: &[&str], members: Vec<u8>) -> (Protection, Requests) {
        let requests = Requests::default();
        let noted = requests.clone();
        let writer = writer(move |method, path| {
            noted.lock().expect("whole").push(format!("{method} {path}"));
            let name = path.rsplit('/').next().unwrap_or_default();
            if path.contains("/podgroups/") {
                (200, envelope::wrap(&PodGroup::RESOURCE, &deleted_group(name)))
            } else {
                (200, members.clone())
            }
        })
        .await;
        let decode = || decode_once(Sections::default());
        let cached = groups.iter().map(|name| PodGroup::decode(&decode(), &deleted_group(name)).expect("well-formed"));
        let protection = Protection {
            groups: Arc::new(filled_store(decode(), vec![], cached)),
            pods: Arc::new(filled_store(decode_once(Pod::DEVICES), vec![MEMBERS], [])),
            members: uncached_members(writer.clone()),
            writer,
            consistency: Consistency::default(),
            queue: Queue::new(QueueOptions::named(QUEUE)),
        };
        (protection, requests)
    }

    fn puts(requests: &Requests) -> usize {
        requests.lock().expect("whole").iter().filter(|request| request.starts_with(Method::PUT.as_str())).count()
    }

    #[tokio::test(start_paused = true)]
    async fn groups_of_a_namespace_that_are_deleted_together_share_a_list_of_its_pods() {
        let names: Vec<String> = (0..WORKERS).map(|at| format!("group-{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (mut protection, requests) = protection(&names, Vec::new()).await;
        let lists = Arc::new(AtomicUsize::new(0));
        let counter = lists.clone();
        protection.members = SharedReads::new(move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(1)).map(|()| Ok(UsedGroups::new())).boxed()
        });
        let keys: Vec<ObjectKey> = names.iter().map(|name| ObjectKey::new("ns", *name)).collect();
        for outcome in join_all(keys.iter().map(|key| protection.reconcile(key))).await {
            assert_eq!(outcome, Ok(Outcome::Done));
        }
        let lists = lists.load(Ordering::SeqCst);
        assert!(lists <= WORKERS / 8, "{lists} lists for {WORKERS} groups");
        assert_eq!(puts(&requests), WORKERS);
    }

    #[tokio::test]
    async fn group_with_a_pod_that_only_the_api_server_has_is_checked_again() {
        for (name, members, expected, writes) in [
            (
                "unfinished",
                &[("other", "Running"), ("group", "Pending")][..],
                Outcome::RequeueAfter(RECHECK_INTERVAL),
                0,
            ),
            ("finished", &[("other", "Running"), ("group", "Succeeded")], Outcome::Done, 1),
        ] {
            let (protection, requests) = protection(&["group"], pod_list(members)).await;
            assert_eq!(protection.reconcile(&ObjectKey::new("ns", "group")).await, Ok(expected), "{name}");
            assert_eq!(puts(&requests), writes, "{name}");
        }
    }

    #[tokio::test]
    async fn pod_that_arrives_during_the_list_keeps_its_group() {
        let (mut protection, requests) = protection(&["group"], Vec::new()).await;
        let pods = protection.pods.clone();
        protection.members = SharedReads::new(move |_| {
            deliver(&*pods, Arc::unwrap_or_clone(pod("a", Some("group"), Phase::Pending)));
            async { Ok(UsedGroups::new()) }.boxed()
        });
        assert_eq!(protection.reconcile(&ObjectKey::new("ns", "group")).await, Ok(Outcome::Done));
        assert_eq!(puts(&requests), 0);
    }
}
