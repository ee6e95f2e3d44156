//! podgroup-protection-controller: blocks the deletion of a PodGroup while one of its pods has not finished.
//!
//! The API server's admission adds the finalizer to each new PodGroup; this controller only removes it.
//! Upstream: pkg/controller/scheduling/podgroupprotection.

use std::collections::HashSet;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::{Kind, Pod, PodGroup, Sections, Str};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Change, Index, Store, index_key};
use runtime::watch::Builder;
use runtime::worker::{ReconcileError, WorkOptions};
use runtime::write::{WriteError, Writer};

use crate::context::{Context, Descriptor, Finalizer, QueueKeys, Verb, Write};
use crate::protection::{Protection, Users, decode_once};
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
    pods.subscribe(move |change| released_groups(change).into_iter().for_each(|key| changed.add(key)));
    let writer = manager.writer(DESCRIPTOR.service_account);
    let members = Members { pods, lists: uncached_members(writer.clone()) };
    let work = WorkOptions { name: DESCRIPTOR.name, workers: WORKERS };
    protection(groups, members, writer, queue).start(manager, work);
}

fn protection(
    groups: Arc<Store<PodGroup>>,
    users: Members,
    writer: Writer,
    queue: Arc<Queue<ObjectKey>>,
) -> Protection<PodGroup, Members> {
    let consistency = Default::default();
    Protection { finalizer: FINALIZER, adds_finalizer: false, objects: groups, users, writer, consistency, queue }
}

// Keys

fn group_of(pod: &Pod) -> Option<ObjectKey> {
    let group = pod.devices.as_ref()?.group.clone()?;
    Some(ObjectKey { namespace: pod.meta.namespace.clone(), name: group })
}

/// Returns the group of a pod that has finished, was deleted, or was replaced by another pod with its name; two groups
/// if a finished pod replaced one of another group.
fn released_groups(change: &Change<'_, Pod>) -> Vec<ObjectKey> {
    let finished = change.new.filter(|pod| pod.is_terminal());
    let is_deleted = |old: &&Arc<Pod>| change.new.is_none_or(|new| new.meta.uid != old.meta.uid);
    let mut groups: Vec<ObjectKey> =
        finished.into_iter().chain(change.old.filter(is_deleted)).filter_map(|pod| group_of(pod)).collect();
    groups.dedup();
    groups
}

// Users

/// The names of a namespace's groups that have unfinished pods.
type UsedGroups = HashSet<Str>;

/// Returns uncached reads of the groups with unfinished pods, one list of pods per namespace. Differs from upstream: a
/// pod that the cache does not contain yet blocks the deletion of its group, too.
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

/// The unfinished pods of groups.
struct Members {
    pods: Arc<Store<Pod>>,
    lists: SharedReads<UsedGroups>,
}

impl Users<PodGroup> for Members {
    fn are_cached(&self, group: &PodGroup) -> bool {
        !self.pods.by_index(&MEMBERS, member_of(&group.meta.key())).is_empty()
    }

    fn are_on_server<'a>(&'a self, group: &'a PodGroup) -> BoxFuture<'a, Result<bool, ReconcileError>> {
        async {
            let used = self.lists.get(&group.meta.namespace).await;
            let used =
                used.map_err(|error| ReconcileError::new(format!("cannot list the pods of the namespace: {error}")))?;
            Ok(used.contains(&group.meta.name))
        }
        .boxed()
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
    use runtime::testing::{deliver, filled_store, writer};
    use runtime::worker::{Outcome, Reconcile};

    use super::*;
    use crate::protection::RECHECK_INTERVAL;

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

    #[tokio::test]
    async fn groups_are_reconciled_only_when_their_finalizer_may_be_removed() {
        for (name, is_deleting, finalizers, expected) in [
            ("live without finalizer", false, &[][..], 0),
            ("live", false, &[FINALIZER], 0),
            ("deleting without finalizer", true, &["other"], 0),
            ("deleting", true, &["other", FINALIZER], 1),
        ] {
            let (protection, requests) = bed(&["group"], pod_list(&[])).await;
            let mut group = Arc::unwrap_or_clone(protection.objects.all().remove(0));
            let key = group.meta.key();
            group.meta.deletion = Time(i64::from(is_deleting));
            group.meta.finalizers = finalizers.iter().map(|name| (*name).into()).collect();
            deliver(&*protection.objects, group);
            assert_eq!(protection.reconcile(&key).await, Ok(Outcome::Done), "{name}");
            assert_eq!(puts(&requests), expected, "{name}");
            assert_eq!(requests.lock().expect("whole").is_empty(), expected == 0, "{name}");
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
    async fn bed(groups: &[&str], members: Vec<u8>) -> (Protection<PodGroup, Members>, Requests) {
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
        let groups = Arc::new(filled_store(decode(), vec![], cached));
        let pods = Arc::new(filled_store(decode_once(Pod::DEVICES), vec![MEMBERS], []));
        let members = Members { pods, lists: uncached_members(writer.clone()) };
        let protection = protection(groups, members, writer, Queue::new(QueueOptions::named(QUEUE)));
        (protection, requests)
    }

    fn puts(requests: &Requests) -> usize {
        requests.lock().expect("whole").iter().filter(|request| request.starts_with(Method::PUT.as_str())).count()
    }

    #[tokio::test(start_paused = true)]
    async fn groups_of_a_namespace_that_are_deleted_together_share_a_list_of_its_pods() {
        let names: Vec<String> = (0..WORKERS).map(|at| format!("group-{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (mut protection, requests) = bed(&names, Vec::new()).await;
        let lists = Arc::new(AtomicUsize::new(0));
        let counter = lists.clone();
        protection.users.lists = SharedReads::new(move |_| {
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
            let (protection, requests) = bed(&["group"], pod_list(members)).await;
            assert_eq!(protection.reconcile(&ObjectKey::new("ns", "group")).await, Ok(expected), "{name}");
            assert_eq!(puts(&requests), writes, "{name}");
        }
    }

    #[tokio::test]
    async fn pod_that_arrives_during_the_list_keeps_its_group() {
        let (mut protection, requests) = bed(&["group"], Vec::new()).await;
        let pods = protection.users.pods.clone();
        protection.users.lists = SharedReads::new(move |_| {
            deliver(&*pods, Arc::unwrap_or_clone(pod("a", Some("group"), Phase::Pending)));
            async { Ok(UsedGroups::new()) }.boxed()
        });
        assert_eq!(protection.reconcile(&ObjectKey::new("ns", "group")).await, Ok(Outcome::Done));
        assert_eq!(puts(&requests), 0);
    }
}
