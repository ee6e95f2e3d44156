//! The group of a Job's pods while its objects are deleted and changed by other clients.

use std::collections::BTreeMap;

use http::Method;
use kinds::schema::{list_meta, object_meta, typed_local_object_reference, workload, workload_spec};
use kinds::wire::Put;
use kinds::{Decode, Sections, envelope};
use runtime::testing::{NoEvents, deliver, deliver_deletion, deliver_restore, filled_store, meta, writer};
use serde_json::json;

use super::*;

/// The objects of an API server in JSON, by their resources.
type Objects = Arc<Mutex<BTreeMap<String, Value>>>;

/// Methods and paths.
type Requests = Arc<Mutex<Vec<(Method, String)>>>;

/// The scheduling of the Job `ns/j`, whose pods are grouped, with the server's objects and the requests so far.
struct Bench {
    scheduling: Scheduling,
    groups: Arc<Store<PodGroup>>,
    objects: Objects,
    requests: Requests,
    /// The response to creations, if they are refused.
    refusal: Arc<Mutex<Option<Value>>>,
    job: Job,
}

const WORKLOAD: &str = "workloads";
const GROUP: &str = "podgroups";
const JOB: &str = "jobs";

fn key() -> ObjectKey {
    ObjectKey::new("ns", "j")
}

/// Returns the Job, its Workload and its PodGroup as the API server has them.
fn objects() -> [(String, Value); 3] {
    let job = json!({
        "metadata": {"name": "j", "namespace": "ns", "uid": "u", "resourceVersion": "5"},
        "spec": {"parallelism": 2}, "status": {"startTime": "2026-01-01T00:00:00Z"},
    });
    let mut workload = compile::workload(&job, &compile::workload_name("j", "u"));
    workload["metadata"]["uid"] = "w".into();
    workload["metadata"]["resourceVersion"] = "6".into();
    let mut group = compile::group(&job, &workload, &workload["spec"]["podGroupTemplates"][0], true);
    group["metadata"]["resourceVersion"] = "7".into();
    [(JOB.to_owned(), job), (WORKLOAD.to_owned(), workload), (GROUP.to_owned(), group)]
}

fn job() -> Job {
    let mut object = Vec::new();
    object.put_message(1, |meta| {
        meta.put_str(object_meta::NAMESPACE, "ns");
        meta.put_str(object_meta::NAME, "j");
        meta.put_str(object_meta::UID, "u");
        meta.put_str(object_meta::RESOURCE_VERSION, "5");
        meta.put_int(object_meta::GENERATION, 1);
    });
    Job::decode(&Decode { interner: Arc::default(), sections: Job::TEMPLATE }, &object).expect("well-formed")
}

/// Returns a page of the list of Workloads: the first page contains a Workload of another owner, the second one `last`.
fn workloads(last: Option<&Value>, is_second: bool) -> Vec<u8> {
    let mut list = Vec::new();
    list.put_message(1, |meta| {
        meta.put_str(list_meta::RESOURCE_VERSION, "9");
        meta.put_str(list_meta::CONTINUE, if is_second { "" } else { "next" });
    });
    let reference =
        |object: &Value, field: &str| object["spec"]["controllerRef"][field].as_str().unwrap_or("x").to_owned();
    let other = json!({});
    if let Some(object) = if is_second { last } else { Some(&other) } {
        list.put_message(2, |item| {
            item.put_message(workload::METADATA, |meta| {
                meta.put_str(object_meta::NAME, "w");
                meta.put_str(object_meta::RESOURCE_VERSION, "6");
            });
            item.put_message(workload::SPEC, |spec| {
                spec.put_message(workload_spec::CONTROLLER_REF, |message| {
                    message.put_str(typed_local_object_reference::API_GROUP, &reference(object, "apiGroup"));
                    message.put_str(typed_local_object_reference::KIND, &reference(object, "kind"));
                    message.put_str(typed_local_object_reference::NAME, &reference(object, "name"));
                });
            });
        });
    }
    envelope::wrap(&WORKLOADS, &list)
}

fn cached_group(name: &str, version: u64) -> PodGroup {
    PodGroup { meta: meta("ns", name, version), claims: Box::default() }
}

impl Bench {
    async fn new() -> Self {
        let objects: Objects = Arc::new(Mutex::new(objects().into_iter().collect()));
        let served = objects.clone();
        let requests = Requests::default();
        let refusal = Arc::<Mutex<Option<Value>>>::default();
        let (sent, refused) = (requests.clone(), refusal.clone());
        let writer = writer(move |method, path| {
            lock(&sent).push((method.clone(), path.to_owned()));
            if let Some(refusal) = lock(&refused).clone().filter(|_| *method == Method::POST) {
                return (403, refusal.to_string().into_bytes());
            }
            if let Some((_, page)) = path.split_once("/workloads?") {
                return (200, workloads(lock(&served).get(WORKLOAD), page.contains("continue=next")));
            }
            let kind = path.split('/').rev().nth(1).unwrap_or_default();
            match lock(&served).get(kind) {
                Some(object) => (200, object.to_string().into_bytes()),
                None => (404, br#"{"kind": "Status", "code": 404, "reason": "NotFound"}"#.to_vec()),
            }
        })
        .await;
        let decode = || Decode { interner: Arc::default(), sections: Sections::default() };
        let groups = Arc::new(filled_store(decode(), vec![], []));
        let (recorder, _) = Recorder::new("job-controller", Arc::new(NoEvents));
        let namespaces = filled_store(decode(), vec![], []);
        let scheduling = Scheduling::new(groups.clone(), writer, recorder, CreationGate::new(Arc::new(namespaces)));
        let bench = Self { scheduling, groups, objects, requests, refusal, job: job() };
        let name = bench.group(true).await.expect("it is grouped");
        deliver(&bench.groups, cached_group(&name, 7));
        assert_eq!((bench.group(true).await, bench.requests()), (Some(name), 3), "it is not read again");
        bench
    }

    async fn group(&self, creates_pods: bool) -> Option<Str> {
        self.scheduling.ensure_group(&key(), &self.job, true, creates_pods).await.expect("a group or none")
    }

    fn requests(&self) -> usize {
        lock(&self.requests).len()
    }

    fn edit(&self, kind: &str, edit: impl FnOnce(&mut Value)) {
        edit(lock(&self.objects).get_mut(kind).expect("an object"));
    }

    /// Gives the Job a parent, to which its Workload belongs.
    fn delegate(&self) {
        self.edit(JOB, |job| {
            job["metadata"]["ownerReferences"] = json!([
                {"apiVersion": "example.com/v1", "kind": "Set", "name": "s", "uid": "p", "controller": true},
            ]);
            job["metadata"]["annotations"] = json!({"scheduling.k8s.io/group-template-name": ""});
        });
        self.edit(WORKLOAD, |workload| {
            workload["spec"]["controllerRef"] = json!({"apiGroup": "example.com", "kind": "Set", "name": "s"});
        });
    }

    /// Returns the number of requests for lists since the last call.
    fn lists(&self) -> usize {
        let requests = std::mem::take(&mut *lock(&self.requests));
        requests.iter().filter(|(_, path)| path.contains("/workloads?")).count()
    }
}

#[tokio::test(start_paused = true)]
async fn pods_are_not_grouped_when_their_group_was_deleted() {
    let bench = Bench::new().await;
    let name = bench.group(true).await.expect("it is grouped");
    lock(&bench.objects).remove(GROUP);
    deliver_deletion(&bench.groups, &ObjectKey { namespace: "ns".into(), name });
    assert_eq!(bench.group(true).await, None);
}

/// The versions of the restored server are lower than that of the group.
#[tokio::test(start_paused = true)]
async fn pods_are_not_grouped_when_a_restored_server_lacks_their_group() {
    let bench = Bench::new().await;
    let name = bench.group(true).await.expect("it is grouped");
    lock(&bench.objects).remove(GROUP);
    deliver_deletion(&bench.groups, &ObjectKey { namespace: "ns".into(), name });
    deliver_restore(&bench.groups, 5);
    assert_eq!(bench.group(true).await, None);
}

#[tokio::test(start_paused = true)]
async fn group_that_another_client_resized_gets_its_size_back() {
    let bench = Bench::new().await;
    let name = bench.group(true).await.expect("it is grouped");
    bench.edit(JOB, |job| job["spec"]["scheduling"] = json!({"schedulingPolicy": {"gang": {}}}));
    if let Some(group) = lock(&bench.objects).get_mut(GROUP) {
        group["spec"]["schedulingPolicy"] = json!({"gang": {"minCount": 1}});
        group["metadata"]["resourceVersion"] = "8".into();
    }
    deliver(&bench.groups, cached_group(&name, 8));
    assert_eq!(bench.group(false).await, Some(name));
    assert!(matches!(lock(&bench.requests).last(), Some((Method::PATCH, path)) if path.contains("/podgroups/")));
}

#[tokio::test(start_paused = true)]
async fn workload_is_resized_while_its_group_is_missing() {
    let bench = Bench::new().await;
    let name = bench.group(true).await.expect("it is grouped");
    bench.edit(JOB, |job| job["spec"]["scheduling"] = json!({"schedulingPolicy": {"gang": {}}}));
    bench.edit(WORKLOAD, |workload| {
        workload["spec"]["podGroupTemplates"][0]["schedulingPolicy"] = json!({"gang": {"minCount": 1}});
    });
    lock(&bench.objects).remove(GROUP);
    deliver_deletion(&bench.groups, &ObjectKey { namespace: "ns".into(), name });
    assert_eq!(bench.group(true).await, None);
    assert!(matches!(lock(&bench.requests).last(), Some((Method::PATCH, path)) if path.contains("/workloads/")));
}

#[tokio::test(start_paused = true)]
async fn workload_of_the_parent_is_searched_in_pages_unless_its_name_is_known() {
    let bench = Bench::new().await;
    bench.delegate();
    let check = async || {
        tokio::time::advance(MAX_AGE * 2).await;
        (bench.group(true).await.is_some(), bench.lists())
    };
    assert_eq!(check().await, (true, 2));
    assert_eq!(check().await, (true, 0));
    bench.edit(WORKLOAD, |workload| workload["spec"]["controllerRef"]["name"] = "t".into());
    assert_eq!(check().await, (false, 2), "it belongs to another parent");
    bench.delegate();
    assert_eq!(check().await, (true, 2));
    lock(&bench.objects).remove(WORKLOAD);
    assert_eq!(check().await, (false, 2), "it was deleted");
}

#[tokio::test(start_paused = true)]
async fn changes_without_a_watch_are_read_within_half_a_minute_while_pods_are_created() {
    let parent = json!({"apiVersion": "example.com/v1", "kind": "Set", "name": "s", "uid": "p", "controller": true});
    type Change<'a> = &'a dyn Fn(&mut BTreeMap<String, Value>);
    let changes: [(&str, Change<'_>); 2] = [
        ("the Workload is deleted", &|objects| drop(objects.remove(WORKLOAD))),
        ("a controller adopts the Job", &|objects| {
            objects.get_mut(JOB).expect("the Job")["metadata"]["ownerReferences"] = json!([parent]);
        }),
    ];
    for (name, change) in changes {
        let bench = Bench::new().await;
        change(&mut lock(&bench.objects));
        tokio::time::advance(MAX_AGE / 2).await;
        assert!(bench.group(true).await.is_some(), "{name}: reads are bounded");
        tokio::time::advance(MAX_AGE).await;
        assert!(bench.group(false).await.is_some(), "{name}: no pods are created");
        assert_eq!(bench.group(true).await, None, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_group_is_chosen_for_a_job_that_was_deleted_or_replaced() {
    type Change<'a> = &'a dyn Fn(&mut BTreeMap<String, Value>);
    let changes: [(&str, Change<'_>); 2] = [
        ("deleted", &|objects| drop(objects.remove(JOB))),
        ("replaced", &|objects| objects.get_mut(JOB).expect("the Job")["metadata"]["uid"] = "v".into()),
    ];
    for (name, change) in changes {
        let bench = Bench::new().await;
        change(&mut lock(&bench.objects));
        tokio::time::advance(MAX_AGE * 2).await;
        let chosen = bench.scheduling.ensure_group(&key(), &bench.job, true, true).await;
        let error = chosen.expect_err(name);
        assert!(error.to_string().ends_with("the Job was deleted or replaced"), "{name}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn lagging_cache_causes_no_reads() {
    let bench = Bench::new().await;
    let before = bench.requests();
    let name = bench.group(true).await.expect("it is grouped");
    deliver(&bench.groups, cached_group(&name, 3));
    assert_eq!((bench.group(true).await, bench.requests()), (Some(name), before));
}

#[tokio::test(start_paused = true)]
async fn refused_group_is_reported_and_closes_the_gate_of_a_terminating_namespace() {
    let causes = json!({"causes": [{"reason": "NamespaceTerminating"}]});
    for (name, details, is_open) in [("quota", Value::Null, true), ("terminating namespace", causes, false)] {
        let bench = Bench::new().await;
        let refusal = json!({"kind": "Status", "code": 403, "reason": "Forbidden", "details": details});
        *lock(&bench.refusal) = Some(refusal);
        lock(&bench.objects).remove(GROUP);
        // Groups are created only for Jobs that have not started.
        lock(&bench.objects).get_mut(JOB).expect("the Job")["status"] = json!({});
        bench.scheduling.forget(&key());
        let error = bench.scheduling.ensure_group(&key(), &bench.job, false, true).await.expect_err(name);
        assert!(matches!(error, GroupError::Refused(_)), "{name}: {error:?}");
        assert_eq!(bench.scheduling.gate.is_open("ns"), is_open, "{name}");
    }
}
