//! Scenarios of controllers whose kinds or gates are off by default, on separate control planes. Each runs with a
//! crash, a lost request or a lost response at any of its writes.

use std::sync::Arc;

use anyhow::{Result, ensure};
use cluster_tests::{Bed, Effect, Space, eventually};
use control_plane::{CustomKind, Options};
use k8s_openapi::api::core::v1::ServiceAccount;
use serde_json::json;

use crate::api::storage_migrations::{ALONE, apply, bed, migrate, read, until_ended};
use crate::api::storage_versions::{identity, report};
use crate::devices::resource_claims::template;
use crate::robustness::cluster_crashes::Scenario;
use crate::workloads::podgroup_protection::{create_group, delete_group, until_group_deleted};

const GATES: &str = "--feature-gates=GenericWorkload=true,DRAWorkloadResourceClaims=true,DRAResourcePoolStatus=true,\
                     APIServerIdentity=true,StorageVersionAPI=true";
const KINDS: &str = "--runtime-config=scheduling.k8s.io/v1beta1=true,resource.k8s.io/v1alpha3=true,\
                     internal.apiserver.k8s.io/v1alpha1=true";

const FAULTS: [Effect; 4] = [Effect::CrashAfter, Effect::CrashBeforeResponse, Effect::LostBefore, Effect::LostAfter];

const SCENARIOS: [Scenario; 5] = [
    Scenario {
        name: "group",
        flags: |_| only("podgroup-protection-controller"),
        kind: "podgroups",
        run: |space, name| Box::pin(async move { group_ends(&space, &name).await }),
        end: |_| Box::pin(async { Ok(()) }),
        writes: 1,
    },
    Scenario {
        name: "claims",
        flags: |_| only("resourceclaim-controller"),
        kind: "podgroups",
        run: |space, name| Box::pin(async move { group_gets_its_claim(&space, &name).await }),
        end: |_| Box::pin(async { Ok(()) }),
        writes: 2,
    },
    Scenario {
        name: "pool",
        flags: |_| only("resourcepoolstatusrequest-controller"),
        kind: "resourcepoolstatusrequests",
        run: |space, name| Box::pin(async move { request_is_completed(&space, &name).await }),
        end: |_| Box::pin(async { Ok(()) }),
        writes: 1,
    },
    Scenario {
        name: "versions",
        flags: |_| only("storageversion-garbage-collector-controller"),
        kind: "storageversions",
        run: |space, name| Box::pin(async move { entries_are_removed(&space, &name).await }),
        end: |_| Box::pin(async { Ok(()) }),
        writes: 2,
    },
    Scenario {
        name: "policy",
        flags: |_| only("validatingadmissionpolicy-status-controller"),
        kind: "validatingadmissionpolicies",
        run: |space, name| Box::pin(async move { policy_is_checked(&space, &name).await }),
        end: |_| Box::pin(async { Ok(()) }),
        writes: 1,
    },
];

/// Writes: two of the definition (its condition and its stored versions), four of the migration (running, version,
/// success, no longer running), and one write of each of the two objects.
const MIGRATION: Scenario = Scenario {
    name: "migration",
    flags: |_| ALONE.map(str::to_owned).into(),
    kind: "storageversionmigrations",
    run: |space, name| Box::pin(async move { widgets_are_migrated(&space, &name).await }),
    end: |_| Box::pin(async { Ok(()) }),
    writes: 8,
};

fn only(controller: &str) -> Vec<String> {
    vec![GATES.to_owned(), format!("--controllers={controller}")]
}

/// Creates a PodGroup without pods, and deletes it.
async fn group_ends(space: &Space, name: &str) -> Result<()> {
    create_group(space, name).await?;
    delete_group(space, name).await?;
    until_group_deleted(space, name).await
}

/// Creates a PodGroup, and waits for its one claim, which its status names.
async fn group_gets_its_claim(space: &Space, name: &str) -> Result<()> {
    let group = json!({
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
        "metadata": {"name": name, "namespace": space.namespace},
        "spec": {
            "schedulingPolicy": {"basic": {}},
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
        },
    });
    apply(&space.bed, &group)?;
    let claim = eventually("the PodGroup has its claim", || async {
        let group = read(&space.bed, &["podgroup", "-n", &space.namespace, name])?;
        let claim = &group["status"]["resourceClaimStatuses"][0]["resourceClaimName"];
        ensure!(claim.is_string(), "{}", group["status"]);
        Ok(claim.clone())
    })
    .await?;
    let all = read(&space.bed, &["resourceclaims", "-n", &space.namespace])?;
    let of_group = |owned: &&serde_json::Value| owned["metadata"]["ownerReferences"][0]["name"] == name;
    let owned: Vec<_> = all["items"].as_array().into_iter().flatten().filter(of_group).collect();
    ensure!(owned.len() == 1 && owned[0]["metadata"]["name"] == claim, "{owned:?}");
    Ok(())
}

/// Requests the state of a driver's pool.
async fn request_is_completed(space: &Space, name: &str) -> Result<()> {
    let driver = format!("{name}.example.com");
    let pool = json!({"name": "pool", "generation": 1, "resourceSliceCount": 1});
    apply(
        &space.bed,
        &json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
            "spec": {"driver": driver, "nodeName": "node-a", "devices": [{"name": "a"}], "pool": pool},
        }),
    )?;
    apply(
        &space.bed,
        &json!({
            "apiVersion": "resource.k8s.io/v1alpha3", "kind": "ResourcePoolStatusRequest",
            "metadata": {"name": name}, "spec": {"driver": driver},
        }),
    )?;
    eventually("the request is completed", || async {
        let request = read(&space.bed, &["resourcepoolstatusrequest", name])?;
        ensure!(request["status"]["pools"][0]["totalDevices"] == 1, "{}", request["status"]);
        Ok(())
    })
    .await
}

/// The entries of a stopped API server are removed from one StorageVersion; another one, which has no other entries, is
/// deleted.
async fn entries_are_removed(space: &Space, name: &str) -> Result<()> {
    let cluster = &space.bed.cluster;
    let living = identity(cluster).await?;
    let (kept, deleted) = (format!("example.com.{name}-kept"), format!("example.com.{name}-deleted"));
    report(cluster, &kept, &[(&living, "v1"), ("apiserver-stopped", "v2")])?;
    eventually("the entry is removed", || async {
        let version = read(&space.bed, &["storageversion", &kept])?;
        let entries = version["status"]["storageVersions"].as_array().map_or(0, Vec::len);
        ensure!(entries == 1 && version["status"]["commonEncodingVersion"] == "v1", "{}", version["status"]);
        Ok(())
    })
    .await?;
    report(cluster, &deleted, &[("apiserver-stopped", "v1")])?;
    eventually("the StorageVersion is deleted", || async {
        let left = cluster.kubectl(&["get", "storageversion", &deleted, "--ignore-not-found", "-o", "name"])?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await
}

/// A policy with a wrong field gets its warning.
async fn policy_is_checked(space: &Space, name: &str) -> Result<()> {
    let rule = json!({
        "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"], "operations": ["CREATE"],
    });
    apply(
        &space.bed,
        &json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {"resourceRules": [rule]},
                "validations": [{"expression": "object.spec.replica == 1"}],
            },
        }),
    )?;
    eventually("the policy has its warning", || async {
        let policy = read(&space.bed, &["validatingadmissionpolicy", name])?;
        let warnings = policy["status"]["typeChecking"]["expressionWarnings"].as_array().map_or(0, Vec::len);
        ensure!(warnings == 1 && policy["status"]["observedGeneration"] == 1, "{}", policy["status"]);
        Ok(())
    })
    .await
}

/// The stored version of a custom resource changes, and its two objects are migrated.
async fn widgets_are_migrated(space: &Space, name: &str) -> Result<()> {
    let (bed, group) = (&space.bed, "example.com");
    let kind = CustomKind::new(group, format!("Widget{}", name.replace('-', "")));
    let definition =
        |stored: &str, served: &[&str]| kind.clone().with_versions(served.iter().copied(), stored).definition();
    let (resource, plural) = (kind.name(), kind.plural());
    apply(bed, &definition("v1", &["v1"]))?;
    eventually("the resource is served", || async {
        for number in 0..2 {
            let metadata = json!({"name": format!("widget-{number}"), "namespace": space.namespace});
            apply(bed, &json!({"apiVersion": "example.com/v1", "kind": kind.kind(), "metadata": metadata}))?;
        }
        Ok(())
    })
    .await?;
    apply(bed, &definition("v2", &["v1", "v2"]))?;
    eventually("both versions are listed as stored", || async {
        let definition = read(bed, &["crd", &resource])?;
        ensure!(definition["status"]["storedVersions"] == json!(["v1", "v2"]), "{}", definition["status"]);
        read(bed, &[&format!("{plural}.v2.{group}"), "-n", &space.namespace]).map(drop)
    })
    .await?;
    migrate(bed, name, group, plural)?;
    let migration = until_ended(bed, name, "Succeeded").await?;
    let from: u64 = migration["status"]["resourceVersion"].as_str().unwrap_or_default().parse()?;
    let widgets = read(bed, &[&resource, "-n", &space.namespace])?;
    for widget in widgets["items"].as_array().into_iter().flatten() {
        let version: u64 = widget["metadata"]["resourceVersion"].as_str().unwrap_or_default().parse()?;
        ensure!(version > from, "an object was not stored again: {widget}");
    }
    let definition = read(bed, &["crd", &resource])?;
    ensure!(definition["status"]["storedVersions"] == json!(["v2"]), "{}", definition["status"]);
    Ok(())
}

pub async fn controllers_with_gates_finish_after_a_fault_at_any_write(_: Space) -> Result<()> {
    let flags = [GATES, KINDS].map(str::to_owned).to_vec();
    let options = Options { kwok: false, scheduler: false, extra_apiserver_flags: flags, ..Options::default() };
    let bed = Arc::new(Bed::without_accounts(options).await?);
    let space = bed.space("gated").await?;
    space.create::<ServiceAccount>(json!({"metadata": {"name": "default"}})).await?;
    template(&space, "gpu").await?;
    for scenario in &SCENARIOS {
        scenario.check_all_faults(&space, &FAULTS).await?;
    }
    Ok(())
}

pub async fn migration_finishes_after_a_fault_at_any_write(_: Space) -> Result<()> {
    let bed = bed(Vec::new()).await?;
    let space = bed.space("migration").await?;
    MIGRATION.check_all_faults(&space, &FAULTS).await
}
