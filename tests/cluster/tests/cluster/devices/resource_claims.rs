//! The lifecycle of ResourceClaims: created from templates, allocated by the real scheduler from published devices,
//! released and deleted once their pods have finished.

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{is_ready, owner, phase, pod, with};
use cluster_tests::{
    Bed, Call, Effect, Faults, Manager, QUIET, RecordedRequest, Rule, Space, Verb, during, eventually,
};
use control_plane::behaviour::{BEHAVIOUR, SUCCEED};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::gates::NO_GROUPS;
use crate::robustness::invariants::only_declared;
use crate::robustness::scenario::Scenario;
use crate::upstream::manager::{UPSTREAM, start_upstream};

pub const CONTROLLER: &str = "resourceclaim-controller";
pub const ALONE: &str = "--controllers=resourceclaim-controller";
const PROTECTION: &str = "resource.kubernetes.io/delete-protection";

/// Returns the name of the test's driver, which is also that of its DeviceClass.
fn driver(space: &Space) -> String {
    format!("{}.example.com", space.namespace)
}

/// Returns the name of the extended resource that the devices implement.
fn extended_resource(space: &Space) -> String {
    format!("{}.example.com/gpu", space.namespace)
}

/// Publishes devices that every node can use, and their class.
pub async fn devices(space: &Space, names: &[&str]) -> Result<()> {
    let slices: Api<ResourceSlice> = Api::all(space.bed.client.clone());
    let devices: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    let slice = json!({
        "metadata": {"name": space.namespace},
        "spec": {
            "driver": driver(space), "allNodes": true, "devices": devices,
            "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
        },
    });
    slices.create(&PostParams::default(), &serde_json::from_value(slice)?).await.context("create a slice")?;
    let classes: Api<DeviceClass> = Api::all(space.bed.client.clone());
    let selector = format!("device.driver == {:?}", driver(space));
    let class = json!({
        "metadata": {"name": driver(space)},
        "spec": {"selectors": [{"cel": {"expression": selector}}], "extendedResourceName": extended_resource(space)},
    });
    classes.create(&PostParams::default(), &serde_json::from_value(class)?).await.context("create a class")?;
    Ok(())
}

/// Deletes the cluster-scoped objects.
pub async fn remove_devices(space: &Space) -> Result<()> {
    let slices: Api<ResourceSlice> = Api::all(space.bed.client.clone());
    slices.delete(&space.namespace, &DeleteParams::default()).await.context("delete the slice")?;
    let classes: Api<DeviceClass> = Api::all(space.bed.client.clone());
    classes.delete(&driver(space), &DeleteParams::default()).await.context("delete the class")?;
    Ok(())
}

/// Returns the spec of a claim of one device.
pub fn claim_spec(space: &Space) -> Value {
    json!({"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": driver(space)}}]}})
}

pub async fn template(space: &Space, name: &str) -> Result<()> {
    let spec = json!({"metadata": {"labels": {"app": "web"}, "annotations": {"kept": "1"}}, "spec": claim_spec(space)});
    space.create::<ResourceClaimTemplate>(json!({"metadata": {"name": name}, "spec": spec})).await?;
    Ok(())
}

async fn shared_claim(space: &Space, name: &str) -> Result<()> {
    space.create::<ResourceClaim>(json!({"metadata": {"name": name}, "spec": claim_spec(space)})).await?;
    Ok(())
}

/// Returns a pod with these entries in `resourceClaims`: name, field, and the value of the field.
fn pod_with_claims(name: &str, entries: &[(&str, &str, &str)]) -> Value {
    let entries: Vec<Value> = entries.iter().map(|(entry, field, of)| json!({"name": entry, *field: of})).collect();
    with(pod(name, "web"), json!({"spec": {"resourceClaims": entries}}))
}

const TEMPLATE: &str = "resourceClaimTemplateName";
const SHARED: &str = "resourceClaimName";

async fn until_running(space: &Space, name: &str) -> Result<Pod> {
    eventually(format!("{name} runs"), || async {
        let pod: Pod = space.get(name).await?;
        ensure!(is_ready(&pod), "{:?}", pod.status);
        Ok(pod)
    })
    .await
}

async fn finish(space: &Space, name: &str) -> Result<()> {
    space.patch::<Pod>(name, json!({"metadata": {"annotations": {BEHAVIOUR: SUCCEED}}})).await?;
    eventually(format!("{name} finishes"), || async {
        ensure!(phase(&space.get::<Pod>(name).await?) == "Succeeded");
        Ok(())
    })
    .await
}

/// Returns the pairs of entry and claim in a pod's status, in the status's order.
fn claim_statuses(pod: &Pod) -> Vec<(String, String)> {
    let statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    statuses.map(|status| (status.name.clone(), status.resource_claim_name.clone().unwrap_or_default())).collect()
}

/// Waits until a pod's status contains this number of claims.
async fn until_claims(space: &Space, name: &str, count: usize) -> Result<Vec<(String, String)>> {
    eventually(format!("{name} has {count} claims"), || async {
        let claim_statuses = claim_statuses(&space.get(name).await?);
        ensure!(claim_statuses.len() == count, "{claim_statuses:?}");
        Ok(claim_statuses)
    })
    .await
}

/// Returns the names of the consumers that a claim is reserved for, and whether it is allocated and protected.
pub fn state(claim: &ResourceClaim) -> (Vec<String>, bool, bool) {
    let status = claim.status.clone().unwrap_or_default();
    let consumers = status.reserved_for.unwrap_or_default().into_iter().map(|consumer| consumer.name).collect();
    (consumers, status.allocation.is_some(), claim.finalizers().iter().any(|name| name == PROTECTION))
}

pub async fn until_state(space: &Space, claim: &str, expected: (&[&str], bool, bool)) -> Result<()> {
    eventually(format!("{claim} is {expected:?}"), || async {
        let claim: ResourceClaim = space.get(claim).await?;
        let (consumers, is_allocated, is_protected) = state(&claim);
        let consumers: Vec<&str> = consumers.iter().map(String::as_str).collect();
        ensure!((&*consumers, is_allocated, is_protected) == expected, "{claim:?}");
        Ok(())
    })
    .await
}

async fn until_claim_deleted(space: &Space, claim: &str) -> Result<()> {
    eventually(format!("{claim} is deleted"), || async {
        ensure!(space.api::<ResourceClaim>().get_opt(claim).await?.is_none());
        Ok(())
    })
    .await
}

pub async fn claim_is_created_from_its_template_and_deleted_with_its_pod(space: Space) -> Result<()> {
    let faults = Faults::default();
    let manager = Manager::start_with(&space, &faults, &[ALONE]).await?;
    devices(&space, &["a"]).await?;
    template(&space, "gpu").await?;
    space.create::<Pod>(pod_with_claims("web", &[("gpu", TEMPLATE, "gpu")])).await?;
    let made = until_running(&space, "web").await?;
    let [(entry, name)] = &*claim_statuses(&made) else { panic!("{made:?}") };
    let claim: ResourceClaim = space.get(name).await?;
    ensure!(entry == "gpu" && name.starts_with("web-gpu-") && owner(&claim) == "web", "{claim:?}");
    ensure!(
        claim.annotations()["resource.kubernetes.io/pod-claim-name"] == "gpu" && claim.annotations()["kept"] == "1"
    );
    ensure!(claim.labels()["app"] == "web" && claim.owner_references()[0].block_owner_deletion.is_none());
    until_state(&space, name, (&["web"], true, true)).await?;
    // There is no device for the second pod before the first pod has finished.
    space.create::<Pod>(pod_with_claims("next", &[("gpu", TEMPLATE, "gpu")])).await?;
    let waiting = until_claims(&space, "next", 1).await?;
    until_state(&space, &waiting[0].1, (&[], false, false)).await?;
    finish(&space, "web").await?;
    until_claim_deleted(&space, name).await?;
    until_running(&space, "next").await?;
    until_state(&space, &waiting[0].1, (&["next"], true, true)).await?;
    during(QUIET, "the finished pod gets no other claim", || async {
        ensure!(space.list::<ResourceClaim>("").await?.len() == 1);
        Ok(())
    })
    .await?;
    manager.stop().await?;
    remove_devices(&space).await?;
    only_declared(&faults, &[CONTROLLER])
}

pub async fn shared_claim_is_deallocated_after_its_last_pod(space: Space) -> Result<()> {
    let _manager = Manager::start_with(&space, &Faults::default(), &[ALONE]).await?;
    devices(&space, &["a"]).await?;
    shared_claim(&space, "shared").await?;
    space.create::<Pod>(pod_with_claims("one", &[("gpu", SHARED, "shared")])).await?;
    let one = until_running(&space, "one").await?;
    let node = one.spec.and_then(|spec| spec.node_name).context("the pod has no node")?;
    // A pod that is bound without the scheduler: only the controller can reserve the claim.
    let bound = json!({"spec": {"nodeName": node}});
    space.create::<Pod>(with(pod_with_claims("two", &[("gpu", SHARED, "shared")]), bound)).await?;
    until_state(&space, "shared", (&["one", "two"], true, true)).await?;
    space.delete::<Pod>("one").await?;
    until_state(&space, "shared", (&["two"], true, true)).await?;
    finish(&space, "two").await?;
    until_state(&space, "shared", (&[], false, false)).await?;
    during(QUIET, "a finished pod with a node is not reserved again", || async {
        ensure!(state(&space.get::<ResourceClaim>("shared").await?).0.is_empty());
        Ok(())
    })
    .await?;
    remove_devices(&space).await
}

pub async fn claim_being_deleted_is_released_with_its_last_pod(space: Space) -> Result<()> {
    let _manager = Manager::start_with(&space, &Faults::default(), &[ALONE]).await?;
    devices(&space, &["a"]).await?;
    shared_claim(&space, "shared").await?;
    space.create::<Pod>(pod_with_claims("web", &[("gpu", SHARED, "shared")])).await?;
    until_running(&space, "web").await?;
    space.delete::<ResourceClaim>("shared").await?;
    during(QUIET, "the claim stays while its pod runs", || async {
        ensure!(state(&space.get::<ResourceClaim>("shared").await?).0 == ["web"]);
        Ok(())
    })
    .await?;
    space.delete::<Pod>("web").await?;
    until_claim_deleted(&space, "shared").await?;
    remove_devices(&space).await
}

pub async fn claim_for_extended_resources_is_deleted_when_its_pod_finishes(space: Space) -> Result<()> {
    let _manager = Manager::start_with(&space, &Faults::default(), &[ALONE]).await?;
    devices(&space, &["a"]).await?;
    let limits = json!({extended_resource(&space): "1"});
    let mut asking = pod("web", "web");
    asking["spec"]["containers"][0]["resources"] = json!({"limits": limits, "requests": limits});
    space.create::<Pod>(asking).await?;
    until_running(&space, "web").await?;
    let claims = space.list::<ResourceClaim>("").await?;
    ensure!(claims.len() == 1 && owner(&claims[0]) == "web", "{claims:?}");
    let name = claims[0].name_any();
    until_state(&space, &name, (&["web"], true, true)).await?;
    finish(&space, "web").await?;
    until_claim_deleted(&space, &name).await?;
    remove_devices(&space).await
}

pub async fn claim_of_another_owner_is_never_used(space: Space) -> Result<()> {
    let faults = Faults::default();
    shared_claim(&space, "foreign").await?;
    template(&space, "gpu").await?;
    space
        .create::<Pod>(with(
            pod_with_claims("web", &[("gpu", TEMPLATE, "gpu")]),
            json!({"spec": {"schedulerName": "none"}}),
        ))
        .await?;
    let status = json!({"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "foreign"}]}});
    space.patch_status::<Pod>("web", status).await?;
    let manager = Manager::start_with(&space, &faults, &[ALONE]).await?;
    during(QUIET, "the claim of another owner is not changed", || async {
        let foreign: ResourceClaim = space.get("foreign").await?;
        ensure!(owner(&foreign).is_empty() && state(&foreign).0.is_empty(), "{foreign:?}");
        Ok(())
    })
    .await?;
    // Once the name is free, the pod gets a claim of its own.
    space.delete::<ResourceClaim>("foreign").await?;
    let name = eventually("the pod has a claim of its own", || async {
        let claim_statuses = claim_statuses(&space.get("web").await?);
        ensure!(claim_statuses.len() == 1 && claim_statuses[0].1 != "foreign", "{claim_statuses:?}");
        Ok(claim_statuses[0].1.clone())
    })
    .await?;
    ensure!(owner(&space.get::<ResourceClaim>(&name).await?) == "web");
    manager.stop().await?;
    only_declared(&faults, &[CONTROLLER])
}

pub async fn absent_pods_are_dropped_and_other_consumers_are_kept(space: Space) -> Result<()> {
    devices(&space, &["a"]).await?;
    shared_claim(&space, "shared").await?;
    space.create::<Pod>(pod_with_claims("web", &[("gpu", SHARED, "shared")])).await?;
    let web = until_running(&space, "web").await?;
    let consumer = |group: &str, resource: &str, name: &str, uid: &str| json!({"apiGroup": group, "resource": resource, "name": name, "uid": uid});
    let consumers = [
        consumer("", "pods", "../pods", "a"),
        consumer("", "pods", "web", "of-an-earlier-pod"),
        consumer("", "pods", "web", &web.uid().context("no uid")?),
        consumer("", "pods", "web?dryRun=All", "b"),
        consumer("example.com", "things", "../..", "c"),
        // Without the gate, other kinds of consumers are unknown.
        consumer("scheduling.k8s.io", "podgroups", "gang", "d"),
    ];
    space.patch_status::<ResourceClaim>("shared", json!({"status": {"reservedFor": consumers}})).await?;
    let _manager = Manager::start_with(&space, &Faults::default(), &[ALONE, NO_GROUPS]).await?;
    until_state(&space, "shared", (&["web", "../..", "gang"], true, true)).await?;
    remove_devices(&space).await
}

/// The first manager crashes after some writes. Half of the pods exist before the second one starts.
pub async fn each_of_many_pods_gets_one_claim_from_two_managers(space: Space) -> Result<()> {
    const PODS: usize = 60;
    template(&space, "gpu").await?;
    let create = async |range: std::ops::Range<usize>| {
        for n in range {
            let unscheduled = json!({"spec": {"schedulerName": "none"}});
            space
                .create::<Pod>(with(pod_with_claims(&format!("web-{n}"), &[("gpu", TEMPLATE, "gpu")]), unscheduled))
                .await?;
        }
        anyhow::Ok(())
    };
    create(0..PODS / 2).await?;
    let crash = Rule::new(Call::is_object_write, Effect::CrashBeforeResponse).nth(PODS / 2);
    let faults = Faults::script([crash]);
    let first = Manager::start_with(&space, &faults, &[ALONE]).await?;
    faults.crashes().await;
    first.crash().await;
    let _second = Manager::start_with(&space, &Faults::default(), &[ALONE]).await?;
    create(PODS / 2..PODS).await?;
    eventually("each pod has its claim", || async {
        let pods = space.list::<Pod>("").await?;
        let with_claim = pods.iter().filter(|pod| claim_statuses(pod).len() == 1).count();
        ensure!(with_claim == PODS, "{with_claim}");
        Ok(())
    })
    .await?;
    let claims = space.list::<ResourceClaim>("").await?;
    ensure!(claims.len() == PODS, "{} claims", claims.len());
    Ok(())
}

pub async fn administrative_access_needs_a_labelled_namespace(space: Space) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(space.bed.client.clone());
    let label = |value: Option<&str>| {
        Patch::Merge(json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": value}}}))
    };
    namespaces.patch(&space.namespace, &PatchParams::default(), &label(Some("true"))).await?;
    let mut spec = claim_spec(&space);
    spec["devices"]["requests"][0]["exactly"]["adminAccess"] = true.into();
    let template = json!({"metadata": {"name": "monitor"}, "spec": {"spec": spec}});
    space.create::<ResourceClaimTemplate>(template).await?;
    let _manager = Manager::start_with(&space, &Faults::default(), &[ALONE]).await?;
    let monitor =
        |name| with(pod_with_claims(name, &[("all", TEMPLATE, "monitor")]), json!({"spec": {"schedulerName": "none"}}));
    space.create::<Pod>(monitor("allowed")).await?;
    until_claims(&space, "allowed", 1).await?;
    namespaces.patch(&space.namespace, &PatchParams::default(), &label(None)).await?;
    space.create::<Pod>(monitor("refused")).await?;
    eventually("an event reports the failure", || async {
        let events = space.events("refused").await?;
        let begins = "Warning FailedResourceClaimCreation PodResourceClaim all: create ResourceClaim : ";
        ensure!(events.keys().any(|event| event.starts_with(begins)), "{events:?}");
        Ok(())
    })
    .await
}

pub async fn missing_template_is_reported_until_it_exists(space: Space) -> Result<()> {
    let _manager = Manager::start_with(&space, &Faults::default(), &[ALONE]).await?;
    let entries = [("b", TEMPLATE, "gpu"), ("a", TEMPLATE, "late")];
    space.create::<Pod>(with(pod_with_claims("web", &entries), json!({"spec": {"schedulerName": "none"}}))).await?;
    template(&space, "gpu").await?;
    let wanted = "Warning FailedResourceClaimCreation PodResourceClaim a: resource claim template \"late\": \
                  resourceclaimtemplate.resource.k8s.io \"late\" not found";
    eventually("an event reports the failure", || async {
        let events = space.events("web").await?;
        ensure!(events.contains_key(wanted), "{events:?}");
        Ok(())
    })
    .await?;
    template(&space, "late").await?;
    let claim_statuses = until_claims(&space, "web", 2).await?;
    ensure!(claim_statuses[0].0 == "a" && claim_statuses[1].0 == "b", "sorted: {claim_statuses:?}");
    during(QUIET, "each entry has one claim", || async {
        ensure!(space.list::<ResourceClaim>("").await?.len() == 2);
        Ok(())
    })
    .await
}

/// The claim is created but the response is lost, and the cache is stale.
pub async fn lost_response_leads_to_no_second_claim(space: Space) -> Result<()> {
    let faults = Faults::script([Rule::on(Verb::Create, "resourceclaims", Effect::LostAfter)]);
    let _manager = Manager::start_with(&space, &faults, &[ALONE]).await?;
    faults.until_watching(&["resourceclaims"]).await?;
    faults.freeze("resourceclaims");
    template(&space, "gpu").await?;
    space
        .create::<Pod>(with(
            pod_with_claims("web", &[("gpu", TEMPLATE, "gpu")]),
            json!({"spec": {"schedulerName": "none"}}),
        ))
        .await?;
    // Claims are also listed before the first creation in a namespace.
    eventually("claims are listed after the creation", || async {
        let requests = faults.requests();
        let is = |verb| {
            move |request: &RecordedRequest| request.call.verb == verb && request.call.resource == "resourceclaims"
        };
        let created = requests.iter().position(is(Verb::Create)).context("no creation")?;
        ensure!(requests[created..].iter().any(is(Verb::List)), "{requests:?}");
        Ok(())
    })
    .await?;
    faults.thaw("resourceclaims");
    until_claims(&space, "web", 1).await?;
    during(QUIET, "there is one claim", || async {
        ensure!(space.list::<ResourceClaim>("").await?.len() == 1);
        Ok(())
    })
    .await
}

/// Two pods use the same device one after the other.
async fn two_pods_in_turn(space: Space) -> Result<()> {
    devices(&space, &["a"]).await?;
    template(&space, "gpu").await?;
    for name in ["one", "two"] {
        space.create::<Pod>(pod_with_claims(name, &[("gpu", TEMPLATE, "gpu")])).await?;
        until_running(&space, name).await?;
        let claims = until_claims(&space, name, 1).await?;
        finish(&space, name).await?;
        until_claim_deleted(&space, &claims[0].1).await?;
    }
    ensure!(space.list::<ResourceClaim>("").await?.is_empty());
    Ok(())
}

/// Writes for each pod: the claim, the status that names it, the claim's release, finalizer and deletion.
pub const SCENARIO: Scenario = Scenario {
    name: "resource_claims",
    flags: &[ALONE],
    kind: "resourceclaims",
    run: |space| Box::pin(two_pods_in_turn(space)),
    clear: |space| Box::pin(async move { remove_devices(&space).await }),
    pods: 2,
    writes: 10,
    fails: &[
        ("create resourceclaims ", 1),
        ("patch pods/status ", 1),
        ("update resourceclaims/status ", 1),
        ("update resourceclaims ", 1),
        ("delete resourceclaims ", 1),
    ],
    ..Scenario::EMPTY
};

/// Each manager continues the other one's work on claims, in both directions.
pub async fn claims_are_kept_by_the_other_manager(_: Space) -> Result<()> {
    let space = Bed::start().await?.space("takeover").await?;
    devices(&space, &["a", "b"]).await?;
    template(&space, "gpu").await?;
    start_upstream(&space.bed.cluster, CONTROLLER, &[])?;
    space.create::<Pod>(pod_with_claims("one", &[("gpu", TEMPLATE, "gpu")])).await?;
    until_running(&space, "one").await?;
    let one = until_claims(&space, "one", 1).await?;
    space.bed.cluster.kill(UPSTREAM)?;
    // The pod's status no longer names the claim: the claim is found by its owner.
    space.patch_status::<Pod>("one", json!({"status": {"resourceClaimStatuses": null}})).await?;
    let manager = Manager::start_cluster_wide(&space, &Faults::default(), &[ALONE]).await?;
    ensure!(until_claims(&space, "one", 1).await? == one, "another claim was created");
    finish(&space, "one").await?;
    until_claim_deleted(&space, &one[0].1).await.context("from upstream to ours")?;
    space.create::<Pod>(pod_with_claims("two", &[("gpu", TEMPLATE, "gpu")])).await?;
    until_running(&space, "two").await?;
    let two = until_claims(&space, "two", 1).await?;
    manager.crash().await;
    finish(&space, "two").await?;
    start_upstream(&space.bed.cluster, CONTROLLER, &[])?;
    until_claim_deleted(&space, &two[0].1).await.context("from ours to upstream")
}
