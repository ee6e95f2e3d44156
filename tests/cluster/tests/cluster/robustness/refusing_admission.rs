//! Creations that admission refuses, for every controller that creates objects in namespaces. Although the owners
//! change all the time, a controller repeats a creation only as often as its backoff allows.
//!
//! A policy, an unreachable webhook and a quota refuse creations by the accounts of controllers. Creations in
//! namespaces that are being deleted are in `robustness::terminating_namespace`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{pod, replica_set, template, with};
use cluster_tests::{Faults, Manager, Namespaced, Space, Verb, eventually};
use control_plane::behaviour::{BEHAVIOUR, FLAP};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Endpoints, Pod, ReplicationController, ResourceQuota, Service, ServiceAccount};
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::storage::objects::claim;
use crate::workloads::daemonset::{Fleet, daemon_set};

/// Time for which creations are counted after the first ones were refused.
const OBSERVED: Duration = Duration::from_secs(10);

/// Minimum number of changes of the owners in that time, which is longer on a busy host.
const MIN_CHANGES: usize = 5;

/// Maximum number of refused creations with delays that double from 5 ms: 11 attempts in ten seconds, 14 in a minute,
/// and some for pods that another owner adopts.
const MAX_WITH_SHORT_DELAYS: usize = 16;

/// Maximum number of refused creations with delays that double from one second: 4 attempts in ten seconds, 6 in a
/// minute.
const MAX_WITH_LONG_DELAYS: usize = 7;

/// Account and resource of each creation, and the greatest allowed number of refused ones.
pub(super) const CREATIONS: [(&str, &str, usize); 17] = [
    ("cronjob-controller", "jobs", MAX_WITH_SHORT_DELAYS),
    ("daemon-set-controller", "controllerrevisions", MAX_WITH_SHORT_DELAYS),
    ("daemon-set-controller", "pods", MAX_WITH_SHORT_DELAYS),
    ("deployment-controller", "replicasets", MAX_WITH_SHORT_DELAYS),
    ("endpoint-controller", "endpoints", MAX_WITH_SHORT_DELAYS),
    ("endpointslice-controller", "endpointslices", MAX_WITH_LONG_DELAYS),
    ("endpointslicemirroring-controller", "endpointslices", MAX_WITH_LONG_DELAYS),
    ("ephemeral-volume-controller", "persistentvolumeclaims", MAX_WITH_SHORT_DELAYS),
    ("job-controller", "pods", MAX_WITH_LONG_DELAYS),
    ("replicaset-controller", "pods", MAX_WITH_SHORT_DELAYS),
    ("replication-controller", "pods", MAX_WITH_SHORT_DELAYS),
    ("resource-claim-controller", "resourceclaims", MAX_WITH_SHORT_DELAYS),
    ("root-ca-cert-publisher", "configmaps", MAX_WITH_SHORT_DELAYS),
    ("service-account-controller", "serviceaccounts", MAX_WITH_SHORT_DELAYS),
    ("statefulset-controller", "controllerrevisions", MAX_WITH_SHORT_DELAYS),
    ("statefulset-controller", "persistentvolumeclaims", MAX_WITH_SHORT_DELAYS),
    ("statefulset-controller", "pods", MAX_WITH_SHORT_DELAYS),
];

/// A policy refuses all creations of controllers.
pub async fn creations_that_a_policy_refuses_are_repeated_with_backoff(space: Space) -> Result<()> {
    let node = create_owners(&space).await?;
    let name = format!("refuse-{}", space.namespace);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail", "matchConditions": conditions(),
            "matchConstraints": {"resourceRules": rules(), "namespaceSelector": only(&space)},
            "validations": [{"expression": "false", "message": "refused by the test"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]},
    });
    apply(&space, &json!({"apiVersion": "v1", "kind": "List", "items": [policy, binding]})).await?;
    until_refused(&space, "refused by the test").await?;
    let result = count_refusals(&space, |_| true, 1).await;
    node.delete_nodes().await?;
    space.kubectl(&["delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", &name]).await?;
    result
}

/// A webhook that cannot be reached fails all creations of controllers, with status 500.
pub async fn creations_that_a_webhook_fails_are_repeated_with_backoff(space: Space) -> Result<()> {
    let node = create_owners(&space).await?;
    let name = format!("refuse-{}", space.namespace);
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [{
            "name": "refused.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail", "timeoutSeconds": 1, "matchConditions": conditions(),
            // Nothing listens there.
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "namespaceSelector": only(&space), "rules": rules(),
        }],
    });
    apply(&space, &webhook).await?;
    until_refused(&space, "failed calling webhook").await?;
    let result = count_refusals(&space, |_| true, 1).await;
    node.delete_nodes().await?;
    space.kubectl(&["delete", "validatingwebhookconfiguration", &name]).await?;
    result
}

/// Quotas of zero refuse all creations but those of revisions.
pub async fn creations_that_a_quota_refuses_are_repeated_with_backoff(space: Space) -> Result<()> {
    let node = create_owners(&space).await?;
    let is_counted = |resource: &str| resource != "controllerrevisions";
    let group = |resource: &str| match resource {
        "endpointslices" => ".discovery.k8s.io",
        "jobs" => ".batch",
        "replicasets" => ".apps",
        "resourceclaims" => ".resource.k8s.io",
        _ => "",
    };
    let resources = CREATIONS.iter().map(|(_, resource, _)| *resource).filter(|resource| is_counted(resource));
    let none: BTreeMap<String, &str> =
        resources.map(|resource| (format!("count/{resource}{}", group(resource)), "0")).collect();
    space.create::<ResourceQuota>(json!({"metadata": {"name": "none"}, "spec": {"hard": none}})).await?;
    // The quota controller does not run: the test writes the status.
    space.patch_status::<ResourceQuota>("none", json!({"status": {"hard": none, "used": none}})).await?;
    until_refused(&space, "exceeded quota").await?;
    // Two owners: revisions are admitted, so pods of the second DaemonSet and StatefulSet are refused too.
    let result = count_refusals(&space, is_counted, 2).await;
    node.delete_nodes().await?;
    result
}

/// Matches creations by the accounts of controllers, except for the revisions of some workloads, whose pods are then
/// the next creation.
fn conditions() -> Value {
    let of_controllers = "request.userInfo.username.startsWith('system:serviceaccount:kube-system:')";
    let others = "request.resource.resource != 'controllerrevisions' || !object.metadata.name.startsWith('allowed')";
    json!([{"name": "of-controllers", "expression": of_controllers}, {"name": "others", "expression": others}])
}

fn rules() -> Value {
    json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["*"], "scope": "Namespaced"}])
}

fn only(space: &Space) -> Value {
    json!({"matchLabels": {"kubernetes.io/metadata.name": space.namespace}})
}

async fn apply(space: &Space, objects: &Value) -> Result<()> {
    let (bed, objects) = (space.bed.clone(), objects.to_string());
    tokio::task::spawn_blocking(move || bed.cluster.kubectl_with_input(&["apply", "-f", "-"], &objects)).await??;
    Ok(())
}

/// Waits until the API server refuses a creation of a controller for this reason.
pub(super) async fn until_refused(space: &Space, reason: &str) -> Result<()> {
    let account = "--as=system:serviceaccount:kube-system:probe";
    let probe = ["create", "configmap", "probe", "--dry-run=server", account, "--as-group=system:masters"];
    eventually(format!("a creation is refused: {reason}"), || async {
        let refused = space.kubectl(&probe).await.err().context("it is created")?;
        ensure!(format!("{refused:#}").contains(reason), "{refused:#}");
        Ok(())
    })
    .await
}

/// Returns a template of pods that do not need the default account, whose creation is refused too.
fn pods(app: &str) -> Value {
    with(template(app, "example.com/image:1", &json!({})), json!({"spec": {"serviceAccountName": "worker"}}))
}

/// Returns a constantly changing pod, which a workload adopts.
fn flapping(app: &str, number: usize) -> Value {
    let changes = json!({"metadata": {"annotations": {BEHAVIOUR: FLAP}}, "spec": {"serviceAccountName": "worker"}});
    with(pod(&format!("{app}-flapping-{number}"), app), changes)
}

/// Creates the owners of everything that controllers create. Returns the node of the DaemonSets' pods.
pub(super) async fn create_owners(space: &Space) -> Result<Fleet> {
    let node = Fleet::of(space, 1).await?;
    space.create::<ServiceAccount>(json!({"metadata": {"name": "worker"}})).await?;
    let workload = |name: &str| with(replica_set(name, 6), json!({"spec": {"template": pods(name)}}));
    space.create::<Deployment>(workload("deployment")).await?;
    space.create::<ReplicaSet>(workload("set")).await?;
    let controller = json!({"spec": {"selector": null, "template": pods("controller")}});
    let mut controller = with(replica_set("controller", 6), controller);
    controller["spec"]["selector"] = json!({"app": "controller"});
    space.create::<ReplicationController>(controller).await?;
    let account = json!({"spec": {"template": {"spec": {"serviceAccountName": "worker"}}}});
    for name in ["allowed-daemons", "denied-daemons"] {
        space.create::<DaemonSet>(with(daemon_set(space, name), account.clone())).await?;
    }
    for (name, claims) in
        [("allowed-claims", json!([claim("data")])), ("allowed-pods", json!([])), ("denied-set", json!([]))]
    {
        let fields = json!({"spec": {"serviceName": "", "volumeClaimTemplates": claims}});
        space.create::<StatefulSet>(with(workload(name), fields)).await?;
    }
    let mut job = pods("job");
    job["spec"]["restartPolicy"] = "Never".into();
    let spec = json!({"completions": 2, "parallelism": 2, "template": job});
    space.create::<Job>(json!({"metadata": {"name": "job"}, "spec": spec})).await?;
    let cron_job = json!({"schedule": "0 0 1 1 *", "jobTemplate": {"spec": spec}});
    space.create::<CronJob>(json!({"metadata": {"name": "cron-job"}, "spec": cron_job})).await?;
    let last = json!({"status": {"lastScheduleTime": "2020-06-01T00:00:00Z"}});
    space.patch_status::<CronJob>("cron-job", last).await?;

    let port = json!([{"port": 80}]);
    space
        .create::<Service>(json!({"metadata": {"name": "set"}, "spec": {"selector": {"app": "set"}, "ports": port}}))
        .await?;
    space.create::<Service>(json!({"metadata": {"name": "mirrored"}, "spec": {"ports": port}})).await?;
    let subsets = json!([{"addresses": [{"ip": "192.0.2.1"}], "ports": port}]);
    space.create::<Endpoints>(json!({"metadata": {"name": "mirrored"}, "subsets": subsets})).await?;

    let request = json!({"name": "one", "exactly": {"deviceClassName": "none.example.com"}});
    let spec = json!({"spec": {"devices": {"requests": [request]}}});
    space.create::<ResourceClaimTemplate>(json!({"metadata": {"name": "device"}, "spec": spec})).await?;
    let ephemeral = json!({"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": claim("")["spec"]}}});
    let fields = json!({"spec": {
        "serviceAccountName": "worker", "volumes": [ephemeral],
        "resourceClaims": [{"name": "device", "resourceClaimTemplateName": "device"}],
    }});
    space.create::<Pod>(with(pod("claims", "claims"), fields)).await?;
    for (app, number) in [("set", 0), ("set", 1), ("set", 2), ("set", 3), ("controller", 0)] {
        space.create::<Pod>(flapping(app, number)).await?;
    }
    Ok(node)
}

/// Changes the owners in ways that give controllers no reason to repeat a creation. A change of a Service would be such
/// a reason, and so would a Deployment's annotations, which raise its generation: a new ReplicaSet gets them.
pub(super) async fn touch(space: &Space, number: usize) -> Result<()> {
    let number = json!({"number": number.to_string()});
    let (label, change) = (json!({"metadata": {"labels": number}}), json!({"metadata": {"annotations": number}}));
    tokio::try_join!(
        touch_each::<Deployment>(space, &["deployment"], &label),
        touch_each::<ReplicaSet>(space, &["set"], &change),
        touch_each::<ReplicationController>(space, &["controller"], &change),
        touch_each::<DaemonSet>(space, &["allowed-daemons", "denied-daemons"], &change),
        touch_each::<StatefulSet>(space, &["allowed-claims", "allowed-pods", "denied-set"], &change),
        touch_each::<Job>(space, &["job"], &change),
        touch_each::<CronJob>(space, &["cron-job"], &change),
        touch_each::<Endpoints>(space, &["mirrored"], &change),
        touch_each::<Pod>(space, &["claims"], &change),
    )?;
    Ok(())
}

async fn touch_each<K: Namespaced>(space: &Space, names: &[&str], change: &Value) -> Result<()> {
    for name in names {
        space.patch::<K>(name, change.clone()).await?;
    }
    Ok(())
}

/// Starts a manager, and compares the number of refused creations of each controller with what the backoff of this
/// number of owners allows.
async fn count_refusals(space: &Space, is_refused: impl Fn(&str) -> bool, owners: usize) -> Result<()> {
    // The account is deleted only now that its creation is refused: before, another manager would have created it
    // again.
    space.delete::<ServiceAccount>("default").await?;
    let faults = Faults::default();
    let _manager = Manager::start(space, &faults).await?;
    let expected: Vec<_> = CREATIONS.iter().filter(|(_, resource, _)| is_refused(resource)).collect();
    eventually("each creation is refused once", || async {
        let refused = refusals(space, &faults);
        let is_missing = |(account, resource, _): &(&str, &str, usize)| count(&refused, account, resource) == 0;
        let missing: Vec<_> = expected.iter().filter(|creation| is_missing(creation)).collect();
        ensure!(missing.is_empty(), "not refused: {missing:?}");
        Ok(())
    })
    .await?;
    let (since, changes) = (Instant::now(), AtomicUsize::new(0));
    eventually("the owners are changed repeatedly", || async {
        touch(space, changes.fetch_add(1, Ordering::Relaxed)).await?;
        ensure!(since.elapsed() >= OBSERVED && changes.load(Ordering::Relaxed) >= MIN_CHANGES);
        Ok(())
    })
    .await?;
    let changes = changes.into_inner();
    let refused = refusals(space, &faults);
    let mut all = 0;
    for (account, resource, allowed) in expected {
        let (found, allowed) = (count(&refused, account, resource), allowed * owners);
        ensure!(
            found <= allowed,
            "{account} sent {found} creations of {resource}, {allowed} are allowed: {refused:#?}"
        );
        all += found;
    }
    // Each refusal causes at most one event, whose creation is refused too.
    let events: usize = refused.iter().filter(|((_, resource), _)| resource == "events").map(|(_, count)| count).sum();
    ensure!(events <= all + CREATIONS.len(), "{events} refused events: {refused:#?}");
    eprintln!("{changes} changes, {all} refusals, {events} of events: {refused:?}");
    Ok(())
}

/// Returns the number of refused creations. With all gates on, a Job waits for its Workload, which is refused instead
/// of its pods.
pub(super) fn count(refused: &BTreeMap<(String, String), usize>, account: &str, resource: &str) -> usize {
    let of = |resource: &str| refused.get(&(account.to_owned(), resource.to_owned())).copied().unwrap_or(0);
    match (account, resource) {
        ("job-controller", "pods") => of("pods") + of("workloads"),
        _ => of(resource),
    }
}

/// Returns the numbers of refused creations in the namespace, by account and resource.
pub(super) fn refusals(space: &Space, faults: &Faults) -> BTreeMap<(String, String), usize> {
    let mut refused = BTreeMap::new();
    for request in faults.requests() {
        let is_refused = request.status.is_some_and(|status| status >= 400);
        if is_refused && request.call.verb == Verb::Create && request.call.namespace == space.namespace {
            *refused.entry((request.call.account, request.call.resource)).or_default() += 1;
        }
    }
    refused
}
