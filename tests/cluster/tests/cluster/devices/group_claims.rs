//! ResourceClaims that the pods of a PodGroup share. The gates are off by default, so each test has a separate control
//! plane.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{is_ready, owner, pod, with};
use cluster_tests::{Bed, Faults, Manager, QUIET, Space, during, eventually};
use control_plane::Options;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};

use super::resource_claims::{ALONE, CONTROLLER, devices, state, template, until_state};
use super::taint_eviction::{no_execute, publish};
use crate::gates::NO_GROUPS;
use crate::robustness::invariants::only_declared;

const GATES: &str = "--feature-gates=GenericWorkload=true,DRAWorkloadResourceClaims=true";

/// Creates a namespace on an API server with the gates. Unless `nodes` is 0, it also has a scheduler and this number of
/// fake nodes.
async fn space_with_groups(nodes: u32) -> Result<Space> {
    let apis = "--runtime-config=scheduling.k8s.io/v1beta1=true";
    let options = Options {
        nodes,
        scheduler: nodes > 0,
        kwok: nodes > 0,
        extra_apiserver_flags: vec![GATES.to_owned(), apis.to_owned()],
        extra_scheduler_flags: vec![GATES.to_owned()],
        ..Options::default()
    };
    let bed = Arc::new(Bed::without_accounts(options).await?);
    let space = bed.space("groups").await?;
    space.create::<ServiceAccount>(json!({"metadata": {"name": "default"}})).await?;
    Ok(space)
}

fn of_kind(space: &Space, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(space.bed.client.clone(), &space.namespace, &kind)
}

fn groups(space: &Space) -> Api<DynamicObject> {
    of_kind(space, "scheduling.k8s.io", "v1beta1", "PodGroup")
}

fn entry() -> Value {
    json!([{"name": "gpu", "resourceClaimTemplateName": "gpu"}])
}

async fn create_group(space: &Space, name: &str) -> Result<DynamicObject> {
    let group = json!({
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"basic": {}}, "resourceClaims": entry()},
    });
    groups(space).create(&PostParams::default(), &serde_json::from_value(group)?).await.context("create a PodGroup")
}

/// Creates a pod of the PodGroup on a node, with the PodGroup's claim and, if `own` is true, one of its own.
async fn create_member(space: &Space, name: &str, group: &str, own: bool) -> Result<()> {
    let mut entries = entry();
    if own {
        entries.as_array_mut().context("a list")?.push(json!({"name": "own", "resourceClaimTemplateName": "gpu"}));
    }
    create_pod(space, name, group, json!({"nodeName": "node", "resourceClaims": entries})).await
}

async fn create_pod(space: &Space, name: &str, group: &str, spec: Value) -> Result<()> {
    let of_group = json!({"serviceAccountName": "default", "schedulingGroup": {"podGroupName": group}});
    let spec = with(of_group, spec);
    let object = with(pod(name, "web"), json!({"apiVersion": "v1", "kind": "Pod", "spec": spec}));
    let pods = of_kind(space, "", "v1", "Pod");
    pods.create(&PostParams::default(), &serde_json::from_value(object)?).await.context("create a pod")?;
    Ok(())
}

/// Returns the claims in a status, by entry.
fn named(object: &DynamicObject) -> Vec<(String, String)> {
    let statuses = object.data["status"]["resourceClaimStatuses"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    statuses.iter().map(|status| (text(&status["name"]), text(&status["resourceClaimName"]))).collect()
}

async fn claims_of(api: Api<DynamicObject>, name: &str, count: usize) -> Result<Vec<(String, String)>> {
    eventually(format!("{name} has {count} claims"), || async {
        let named = named(&api.get(name).await?);
        ensure!(named.len() == count, "{named:?}");
        Ok(named)
    })
    .await
}

/// Allocates a claim as the scheduler does.
async fn allocate(space: &Space, claim: &str) -> Result<()> {
    let protection = json!({"metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]}});
    space.patch::<ResourceClaim>(claim, protection).await?;
    let result = json!({"request": "one", "driver": "d.example.com", "pool": "pool", "device": "a"});
    let status = json!({"status": {"allocation": {"devices": {"results": [result]}}}});
    space.patch_status::<ResourceClaim>(claim, status).await?;
    Ok(())
}

pub async fn claim_of_a_pod_group_is_shared_by_its_pods(_: Space) -> Result<()> {
    let space = space_with_groups(0).await?;
    devices(&space, &["a"]).await?;
    template(&space, "gpu").await?;
    let faults = Faults::default();
    let manager = Manager::start_cluster_wide(&space, &faults, &[ALONE, GATES]).await?;
    // The pod is created first and waits for its PodGroup.
    create_member(&space, "one", "gang", true).await?;
    let group = create_group(&space, "gang").await?;
    let of_group = claims_of(groups(&space), "gang", 1).await?;
    let shared = &of_group[0].1;
    let claim: ResourceClaim = space.get(shared).await?;
    ensure!(shared.starts_with("gang-gpu-") && owner(&claim) == "gang", "{claim:?}");
    let reference = &claim.owner_references()[0];
    ensure!((&*reference.api_version, &*reference.kind) == ("scheduling.k8s.io/v1beta1", "PodGroup"));
    let pods = || of_kind(&space, "", "v1", "Pod");
    let one = claims_of(pods(), "one", 2).await?;
    ensure!(one[0] == of_group[0] && one[1].0 == "own", "{one:?}");
    ensure!(owner(&space.get::<ResourceClaim>(&one[1].1).await?) == "one");
    create_member(&space, "two", "gang", false).await?;
    ensure!(claims_of(pods(), "two", 1).await? == of_group);
    // The shared claim is reserved once, for the PodGroup, not for the pod that is scheduled first.
    allocate(&space, shared).await?;
    until_state(&space, shared, (&["gang"], true, true)).await?;
    during(QUIET, "two claims and one reservation exist", || async {
        let claim: ResourceClaim = space.get(shared).await?;
        ensure!(state(&claim).0 == ["gang"], "{claim:?}");
        ensure!(space.list::<ResourceClaim>("").await?.len() == 2);
        Ok(())
    })
    .await?;
    let reserved = space.get::<ResourceClaim>(shared).await?.status.and_then(|status| status.reserved_for);
    let consumer = reserved.and_then(|consumers| consumers.into_iter().next()).context("the claim is not reserved")?;
    ensure!(consumer.api_group.as_deref() == Some("scheduling.k8s.io") && consumer.resource == "podgroups");
    ensure!(Some(consumer.uid) == group.uid());
    // The deletion of the pods does not release the claim; the deletion of the PodGroup does.
    for name in ["one", "two"] {
        space.api::<Pod>().delete(name, &kube::api::DeleteParams::default().grace_period(0)).await?;
    }
    during(QUIET, "the PodGroup keeps its claim", || async {
        ensure!(state(&space.get::<ResourceClaim>(shared).await?).0 == ["gang"]);
        Ok(())
    })
    .await?;
    groups(&space).patch("gang", &kube::api::PatchParams::default(), &without_finalizers()).await?;
    groups(&space).delete("gang", &kube::api::DeleteParams::default()).await?;
    until_state(&space, shared, (&[], false, false)).await?;
    manager.stop().await?;
    only_declared(&faults, &[CONTROLLER])
}

pub async fn scheduler_allocates_the_claim_of_a_pod_group_whose_pods_are_evicted_together(_: Space) -> Result<()> {
    const PODS: [&str; 2] = ["one", "two"];
    let space = space_with_groups(2).await?;
    devices(&space, &["a"]).await?;
    template(&space, "gpu").await?;
    let controllers = format!("--controllers={CONTROLLER},device-taint-eviction-controller");
    let manager = Manager::start_cluster_wide(&space, &Faults::default(), &[&controllers, GATES]).await?;
    create_group(&space, "gang").await?;
    for name in PODS {
        create_pod(&space, name, "gang", json!({"resourceClaims": entry()})).await?;
    }
    let shared = &claims_of(groups(&space), "gang", 1).await?[0].1;
    eventually("the pods run with the only device", || async {
        for name in PODS {
            let pod: Pod = space.get(name).await?;
            ensure!(is_ready(&pod), "{name}: {:?}", pod.status);
        }
        let claim: ResourceClaim = space.get(shared).await?;
        let allocated = claim.status.clone().and_then(|status| status.allocation).and_then(|it| it.devices);
        let results = allocated.and_then(|devices| devices.results).unwrap_or_default();
        let devices: Vec<&str> = results.iter().map(|result| &*result.device).collect();
        ensure!(devices == ["a"] && state(&claim).0 == ["gang"], "{:?}", claim.status);
        Ok(())
    })
    .await?;
    publish(&space, &[("a", no_execute())]).await?;
    eventually("both pods are evicted", || async {
        for name in PODS {
            let pod = space.api::<Pod>().get_opt(name).await?;
            ensure!(pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()), "{name} stays");
        }
        Ok(())
    })
    .await?;
    manager.stop().await?;
    Ok(())
}

/// Returns a patch that removes all finalizers. A PodGroup may have one of the controller that protects PodGroups,
/// which does not run here.
fn without_finalizers() -> kube::api::Patch<Value> {
    kube::api::Patch::Merge(json!({"metadata": {"finalizers": null}}))
}

pub async fn pods_of_groups_get_claims_only_with_the_gates(_: Space) -> Result<()> {
    let space = space_with_groups(0).await?;
    template(&space, "gpu").await?;
    create_group(&space, "gang").await?;
    create_member(&space, "member", "gang", true).await?;
    let off = Manager::start_cluster_wide(&space, &Faults::default(), &[ALONE, NO_GROUPS]).await?;
    during(QUIET, "nothing is created without GenericWorkload", || async {
        ensure!(space.list::<ResourceClaim>("").await?.is_empty());
        Ok(())
    })
    .await?;
    off.stop().await?;
    let generic = "--feature-gates=GenericWorkload=true,DRAWorkloadResourceClaims=false";
    let half = Manager::start_cluster_wide(&space, &Faults::default(), &[ALONE, generic]).await?;
    let wanted = "Warning FailedResourceClaimCreation PodResourceClaim gpu: claim gpu is a PodGroup claim but the \
                  DRAWorkloadResourceClaims feature is disabled";
    eventually("an event reports that the gate is off", || async {
        let events = space.events("member").await?;
        ensure!(events.contains_key(wanted), "{events:?}");
        Ok(())
    })
    .await?;
    ensure!(space.list::<ResourceClaim>("").await?.is_empty());
    half.stop().await?;
    let _on = Manager::start_cluster_wide(&space, &Faults::default(), &[ALONE, GATES]).await?;
    claims_of(of_kind(&space, "", "v1", "Pod"), "member", 2).await?;
    Ok(())
}
