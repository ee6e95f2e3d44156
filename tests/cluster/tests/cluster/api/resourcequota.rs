//! Observable behaviour of ResourceQuotas: enforced limits, and usage that follows deletions quickly.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{pod, with};
use cluster_tests::{Call, Effect, Faults, Manager, QUIET, Rule, Space, during, eventually};
use control_plane::CustomKind;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, ResourceQuota, Secret, Service};
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::robustness::invariants::{only_declared, until_quiet};
use crate::robustness::scenario::Scenario;

const ALONE: &str = "--controllers=resourcequota-controller";

fn quota(hard: Value) -> Value {
    json!({"metadata": {"name": "quota"}, "spec": {"hard": hard}})
}

/// Waits until the quota's limits are enforced and its usage is exactly this.
async fn until_used(space: &Space, expected: &[(&str, &str)]) -> Result<()> {
    let expected: BTreeMap<&str, &str> = expected.iter().copied().collect();
    eventually(format!("the usage is {expected:?}"), || async {
        let quota: ResourceQuota = space.get("quota").await?;
        let (spec, status) = (quota.spec.context("no spec")?, quota.status.context("no status")?);
        ensure!(status.hard == spec.hard, "enforced {:?}", status.hard);
        let used = status.used.unwrap_or_default();
        let used: BTreeMap<&str, &str> = used.iter().map(|(name, text)| (&**name, &*text.0)).collect();
        ensure!(used == expected, "used {used:?}");
        Ok(())
    })
    .await
}

/// Returns a pod that no scheduler binds.
fn unscheduled_pod(name: &str, cpu: &str) -> Value {
    let mut pod = with(pod(name, "web"), json!({"spec": {"schedulerName": "none"}}));
    pod["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}, "limits": {"cpu": cpu}});
    pod
}

/// The used amounts of the quota of [`usage_follows_existing_objects`]: with one pod only, with all objects, after
/// the Service has lost its node ports, and after the deletions.
const USAGE: [(&str, [&str; 4]); 9] = [
    ("pods", ["1", "3", "3", "1"]),
    ("requests.cpu", ["250m", "1250m", "1250m", "250m"]),
    ("limits.cpu", ["250m", "1250m", "1250m", "250m"]),
    ("count/pods", ["1", "3", "3", "2"]),
    ("services", ["0", "1", "1", "0"]),
    ("services.nodeports", ["0", "2", "0", "0"]),
    ("requests.storage", ["0", "3Gi", "3Gi", "0"]),
    ("count/deployments.apps", ["0", "0", "0", "0"]),
    ("gold.storageclass.storage.k8s.io/persistentvolumeclaims", ["0", "1", "1", "0"]),
];

/// Waits for the usage in a column of [`USAGE`], and for this many ConfigMaps.
async fn until_column_used(space: &Space, column: usize, config_maps: usize) -> Result<()> {
    let config_maps = config_maps.to_string();
    let mut expected: Vec<(&str, &str)> = USAGE.iter().map(|(name, amounts)| (*name, amounts[column])).collect();
    expected.push(("count/configmaps", &config_maps));
    until_used(space, &expected).await
}

/// Creates two pods, a ConfigMap, a Service with two node ports, and a claim.
async fn create_counted_objects(space: &Space) -> Result<()> {
    for name in ["one", "two"] {
        space.create::<Pod>(unscheduled_pod(name, "500m")).await?;
    }
    space.create::<ConfigMap>(json!({"metadata": {"name": "map"}})).await?;
    let ports = json!([{"name": "a", "port": 80}, {"name": "b", "port": 81}]);
    space.create::<Service>(json!({"metadata": {"name": "web"}, "spec": {"type": "NodePort", "ports": ports}})).await?;
    space
        .create::<PersistentVolumeClaim>(json!({"metadata": {"name": "disk"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "gold", "resources": {"requests": {"storage": "3Gi"}},
        }}))
        .await?;
    Ok(())
}

pub async fn usage_follows_existing_objects(space: Space) -> Result<()> {
    let faults = Faults::default();
    let manager = Manager::start_with(&space, &faults, &[ALONE]).await?;
    space.create::<Pod>(unscheduled_pod("before", "250m")).await?;
    let hard = json!({
        "pods": "5", "requests.cpu": "2", "limits.cpu": "4", "count/pods": "9", "count/configmaps": "9",
        "services": "3", "services.nodeports": "5", "requests.storage": "10Gi",
        "gold.storageclass.storage.k8s.io/persistentvolumeclaims": "2", "count/deployments.apps": "3",
    });
    space.create::<ResourceQuota>(quota(hard)).await?;
    let existing_maps = space.list::<ConfigMap>("").await?.len();
    until_column_used(&space, 0, existing_maps).await?;

    create_counted_objects(&space).await?;
    until_column_used(&space, 1, existing_maps + 1).await?;

    space.patch::<Service>("web", json!({"spec": {"type": "ClusterIP"}})).await?;
    until_column_used(&space, 2, existing_maps + 1).await?;

    // A pod is deleted, another one finishes, the other objects are deleted: their usage is freed.
    space.delete::<Pod>("one").await?;
    space.patch_status::<Pod>("two", json!({"status": {"phase": "Succeeded"}})).await?;
    space.delete::<ConfigMap>("map").await?;
    space.delete::<Service>("web").await?;
    space.patch::<PersistentVolumeClaim>("disk", json!({"metadata": {"finalizers": null}})).await?;
    space.delete::<PersistentVolumeClaim>("disk").await?;
    until_column_used(&space, 3, existing_maps).await?;
    until_quiet(&faults).await?;
    ensure!(faults.max_watches().values().all(|open| *open == 1), "concurrent watches: {:?}", faults.max_watches());
    manager.stop().await?;
    only_declared(&faults, &["resourcequota-controller"])
}

pub async fn scoped_quota_counts_only_its_pods(space: Space) -> Result<()> {
    let _manager = Manager::start_with(&space, &Faults::default(), &[ALONE]).await?;
    space.create::<Pod>(unscheduled_pod("with-request", "100m")).await?;
    space.create::<Pod>(with(pod("no-request", "web"), json!({"spec": {"schedulerName": "none"}}))).await?;
    let ending = with(pod("ends", "web"), json!({"spec": {"schedulerName": "none", "activeDeadlineSeconds": 900}}));
    space.create::<Pod>(ending).await?;
    let scoped = with(quota(json!({"pods": "9"})), json!({"spec": {"scopes": ["BestEffort", "NotTerminating"]}}));
    space.create::<ResourceQuota>(scoped).await?;
    until_used(&space, &[("pods", "1")]).await
}

pub async fn usage_of_deleted_objects_is_free_within_a_second(space: Space) -> Result<()> {
    let _manager = Manager::start_with(&space, &Faults::default(), &[ALONE]).await?;
    let secrets = space.list::<Secret>("").await?.len();
    space.create::<ResourceQuota>(quota(json!({"pods": "9", "count/secrets": "99"}))).await?;
    let (mut times, mut round_trips) = (Vec::new(), Vec::new());
    for round in 0..5 {
        let (pod, secret) = (format!("pod-{round}"), format!("secret-{round}"));
        space.create::<Pod>(unscheduled_pod(&pod, "1m")).await?;
        space.create::<Secret>(json!({"metadata": {"name": secret}})).await?;
        until_used(&space, &[("pods", "1"), ("count/secrets", &(secrets + 1).to_string())]).await?;
        space.api::<Pod>().delete(&pod, &DeleteParams::default().grace_period(0)).await?;
        space.delete::<Secret>(&secret).await?;
        let deleted = Instant::now();
        until_used(&space, &[("pods", "0"), ("count/secrets", &secrets.to_string())]).await?;
        times.push(deleted.elapsed());
        // Measured at about the same time, because the load of the machine may change.
        let begun = Instant::now();
        space.patch::<ResourceQuota>("quota", json!({"metadata": {"labels": {"round": round.to_string()}}})).await?;
        until_used(&space, &[("pods", "0"), ("count/secrets", &secrets.to_string())]).await?;
        round_trips.push(begun.elapsed());
    }
    times.sort_unstable();
    round_trips.sort_unstable();
    ensure!(times[2] < Duration::from_secs(1) + round_trips[2] * 20, "{times:?}, round trips take {round_trips:?}");
    Ok(())
}

/// If no controller needs all kinds, only the kinds that a quota counts are watched.
pub async fn only_kinds_that_are_counted_are_watched(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, &[ALONE]).await?;
    space.create::<ResourceQuota>(quota(json!({"pods": "9"}))).await?;
    until_used(&space, &[("pods", "0")]).await?;
    let watched = |resource: &str| faults.max_watches().contains_key(resource);
    ensure!(watched("pods") && !watched("secrets") && !watched("configmaps"), "{:?}", faults.max_watches());
    space.patch::<ResourceQuota>("quota", json!({"spec": {"hard": {"count/secrets": "99"}}})).await?;
    let secrets = space.list::<Secret>("").await?.len().to_string();
    until_used(&space, &[("pods", "0"), ("count/secrets", &secrets)]).await?;
    ensure!(watched("secrets") && !watched("configmaps"), "{:?}", faults.max_watches());
    Ok(())
}

pub async fn objects_of_a_kind_that_is_served_later_are_counted(space: Space) -> Result<()> {
    let _manager = Manager::start_with(&space, &Faults::default(), &[ALONE]).await?;
    let kind = CustomKind::new(space.api_group(), "Yacht");
    let name = format!("count/{}", kind.name());
    space.create::<ResourceQuota>(quota(json!({&name: "5"}))).await?;
    until_used(&space, &[]).await?;
    let yachts = space.define(kind).await?;
    for name in ["a", "b"] {
        yachts.create(json!({"metadata": {"name": name}})).await?;
    }
    until_used(&space, &[(&name, "2")]).await?;
    yachts.api.delete("a", &Default::default()).await?;
    until_used(&space, &[(&name, "1")]).await
}

pub async fn wrong_usage_is_corrected_even_after_a_crash(space: Space) -> Result<()> {
    space.create::<Pod>(unscheduled_pod("one", "1")).await?;
    let faults = Faults::script([Rule::new(Call::is_object_write, Effect::CrashAfter)]);
    let flags = [ALONE, "--resource-quota-sync-period=2s"];
    let manager = Manager::start_with(&space, &faults, &flags).await?;
    space.create::<ResourceQuota>(quota(json!({"pods": "9", "cpu": "9"}))).await?;
    faults.crashes().await;
    manager.crash().await;
    until_used(&space, &[("pods", "1"), ("cpu", "1")]).await?;
    space.patch_status::<ResourceQuota>("quota", json!({"status": {"used": {"pods": "7"}}})).await?;
    let after = Faults::default();
    let _manager = Manager::start_with(&space, &after, &flags).await?;
    until_used(&space, &[("pods", "1"), ("cpu", "1")]).await?;
    space.patch_status::<ResourceQuota>("quota", json!({"status": {"used": {"cpu": "5"}}})).await?;
    until_used(&space, &[("pods", "1"), ("cpu", "1")]).await?;
    during(QUIET, "correct usage is not written", || async {
        ensure!(after.accepted(Call::is_object_write) == 2, "{:?}", after.requests());
        Ok(())
    })
    .await
}

/// While admission's cache does not contain a quota yet, it admits objects without counting them. The next added object
/// leads to a recount, long before the end of the resync period.
pub async fn object_that_admission_missed_is_counted_within_seconds(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, &[ALONE]).await?;
    let secrets = space.list::<Secret>("").await?.len();
    let counted = |more: usize| (secrets + more).to_string();
    space.create::<ResourceQuota>(quota(json!({"pods": "9", "count/secrets": "99"}))).await?;
    until_used(&space, &[("pods", "0"), ("count/secrets", &counted(0))]).await?;
    space.create::<Pod>(unscheduled_pod("missed", "1m")).await?;
    space.create::<Secret>(json!({"metadata": {"name": "missed"}})).await?;
    until_used(&space, &[("pods", "1"), ("count/secrets", &counted(1))]).await?;
    let missed = json!({"status": {"used": {"pods": "0", "count/secrets": counted(0)}}});
    space.patch_status::<ResourceQuota>("quota", missed).await?;
    space.create::<Pod>(unscheduled_pod("seen", "1m")).await?;
    until_used(&space, &[("pods", "2"), ("count/secrets", &counted(1))]).await?;
    // Correct numbers are not written. If the cache of pods is newer than that of quotas, a write is attempted, and
    // refused.
    faults.settled().await;
    let before = faults.accepted(Call::is_object_write);
    space.create::<Pod>(unscheduled_pod("right", "1m")).await?;
    until_used(&space, &[("pods", "3"), ("count/secrets", &counted(1))]).await?;
    during(QUIET, "correct usage is not written", || async {
        ensure!(faults.accepted(Call::is_object_write) == before, "{:?}", faults.requests());
        Ok(())
    })
    .await
}

/// Admission counts an object. That usage reaches the controller's cache only after the object was deleted.
pub async fn usage_that_arrives_after_the_deletion_of_its_object_is_lowered(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, &[ALONE]).await?;
    let secrets = space.list::<Secret>("").await?.len();
    space.create::<ResourceQuota>(quota(json!({"count/secrets": "99"}))).await?;
    until_used(&space, &[("count/secrets", &secrets.to_string())]).await?;
    faults.freeze("resourcequotas");
    space.create::<Secret>(json!({"metadata": {"name": "short-lived"}})).await?;
    until_used(&space, &[("count/secrets", &(secrets + 1).to_string())]).await?;
    space.delete::<Secret>("short-lived").await?;
    // A count that was made before the deletion is higher than the usage in the stale cache: its write is refused.
    faults.settled().await;
    let before = faults.accepted(Call::is_object_write);
    during(QUIET, "the usage in the stale cache is correct", || async {
        ensure!(faults.accepted(Call::is_object_write) == before, "{:?}", faults.requests());
        Ok(())
    })
    .await?;
    faults.thaw("resourcequotas");
    until_used(&space, &[("count/secrets", &secrets.to_string())]).await
}

/// Creates a quota, then a pod and a Secret, and deletes both again.
async fn scenario(space: Space) -> Result<()> {
    let secrets = space.list::<Secret>("").await?.len();
    let (before, with_one) = (secrets.to_string(), (secrets + 1).to_string());
    space.create::<ResourceQuota>(quota(json!({"pods": "9", "count/secrets": "99"}))).await?;
    until_used(&space, &[("pods", "0"), ("count/secrets", &before)]).await?;
    space.create::<Pod>(unscheduled_pod("one", "1m")).await?;
    space.create::<Secret>(json!({"metadata": {"name": "secret"}})).await?;
    until_used(&space, &[("pods", "1"), ("count/secrets", &with_one)]).await?;
    space.delete::<Secret>("secret").await?;
    until_used(&space, &[("pods", "1"), ("count/secrets", &before)]).await?;
    space.api::<Pod>().delete("one", &DeleteParams::default().grace_period(0)).await?;
    until_used(&space, &[("pods", "0"), ("count/secrets", &before)]).await
}

pub const SCENARIO: Scenario = Scenario {
    name: "resourcequota",
    flags: &[ALONE],
    kind: "resourcequotas",
    run: |space| Box::pin(scenario(space)),
    pods: 1,
    writes: 3,
    fails: &[("update resourcequotas/status ", 1), ("update resourcequotas/status ", 2)],
    ..Scenario::EMPTY
};
