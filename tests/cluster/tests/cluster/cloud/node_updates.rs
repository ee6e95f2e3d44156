//! Nodes after their initialization: labels and taints with the provider's prefixes follow the instance, and others
//! stay.

use anyhow::{Result, ensure};
use cluster_tests::{CloudBed, Faults, Space, eventually};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use provider_mock::{INSTANCE_ANNOTATION, InstanceConfig, NODE_PREFIX};
use providers::{Taint, TaintEffect};
use serde_json::json;

/// Returns the value of a label, and the keys of the taints except those of Kubernetes.
fn label_and_taints(node: &Node, label: &str) -> (Option<String>, Vec<String>) {
    let taints = node.spec.iter().flat_map(|spec| &spec.taints).flatten().map(|taint| taint.key.clone());
    let taints = taints.filter(|key| !key.contains("kubernetes.io/")).collect();
    (node.metadata.labels.as_ref().and_then(|labels| labels.get(label).cloned()), taints)
}

/// Waits until the Node has the id of its instance, this value of the label `rack`, and these taints, in any order.
async fn until_label_and_taints(cloud: &CloudBed, rack: Option<&str>, taints: &[&str]) -> Result<()> {
    eventually(format!("the label {rack:?} and the taints {taints:?}"), || async {
        let node = cloud.nodes().get("renamed").await?;
        let (label, mut keys) = label_and_taints(&node, &format!("{NODE_PREFIX}rack"));
        keys.sort();
        ensure!(label.as_deref() == rack && keys == taints, "{label:?} {keys:?}");
        let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
        ensure!(id == Some("mock://mock-1/marked"), "{id:?}");
        ensure!(label_and_taints(&node, "team").0.as_deref() == Some("a"), "a user's label was changed");
        Ok(())
    })
    .await
}

pub async fn labels_and_taints_follow_the_instance(_: Space) -> Result<()> {
    let cloud = CloudBed::start().await?;
    let _manager =
        cloud.start_ccm_later(&Faults::default(), &["--node-status-update-frequency=1s"], SignedDuration::ZERO).await?;
    let key = |name: &str| format!("{NODE_PREFIX}{name}");
    let set = |rack: Option<&str>, effect: Option<TaintEffect>| {
        let taint = |effect| Taint { key: key("maintenance"), effect, value: "planned".into() };
        cloud.cloud.add_instance(&InstanceConfig {
            labels: rack.map(|rack| (key("rack"), rack.to_owned())).into_iter().collect(),
            taints: effect.map(taint).into_iter().collect(),
            ..InstanceConfig::named("marked")
        });
    };
    let (maintenance, user) = (key("maintenance"), "user.example.com/taint");

    // The annotation names the instance. The Node gets the instance's taint before the taint `uninitialized` is
    // removed.
    set(Some("7"), Some(TaintEffect::NoSchedule));
    let waiting = json!({"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"});
    let own = json!({"key": user, "effect": "NoSchedule"});
    let metadata = json!({"annotations": {INSTANCE_ANNOTATION: "marked"}, "labels": {"team": "a"}});
    cloud.register("renamed", json!({"metadata": metadata, "spec": {"taints": [waiting, own]}})).await?;
    until_label_and_taints(&cloud, Some("7"), &[&maintenance, user]).await?;

    set(Some("8"), Some(TaintEffect::PreferNoSchedule));
    until_label_and_taints(&cloud, Some("8"), &[&maintenance, user]).await?;
    eventually("the taint has the new effect", || async {
        let node = cloud.nodes().get("renamed").await?;
        let effects: Vec<_> =
            node.spec.iter().flat_map(|spec| &spec.taints).flatten().map(|taint| &taint.effect).collect();
        ensure!(effects.iter().any(|effect| *effect == "PreferNoSchedule"), "{effects:?}");
        Ok(())
    })
    .await?;

    // A change by a user is reverted.
    cloud.edit("renamed", json!({"metadata": {"labels": {key("rack"): "9"}}})).await?;
    until_label_and_taints(&cloud, Some("8"), &[&maintenance, user]).await?;

    // A label that the API server would refuse is dropped; everything else is still written.
    set(Some("two words"), None);
    until_label_and_taints(&cloud, None, &[user]).await?;
    set(None, Some(TaintEffect::NoSchedule));
    until_label_and_taints(&cloud, None, &[&maintenance, user]).await?;
    set(None, None);
    until_label_and_taints(&cloud, None, &[user]).await
}
