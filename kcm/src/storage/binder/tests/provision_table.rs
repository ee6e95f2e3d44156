//! Decisions on provisioning and recycling.

use std::sync::Arc;
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::persistent_volume::MIGRATED_TO;
use kinds::persistent_volume_claim::{BETA_STORAGE_PROVISIONER, SELECTED_NODE, STORAGE_PROVISIONER};
use kinds::pod::Phase;
use kinds::{Pod, Str};
use tokio::time::advance;

use super::builders::{ClaimSpec, claim, class};
use crate::storage::binder::provision::{
    Provisioning, data_source_problem, host_path_problem, node_problem, provisioning, request_edits,
};
use crate::storage::binder::reclaim::event_about_users;
use crate::storage::binder::reconciler::active_users;
use crate::storage::binder::recycling::Recycling;
use crate::storage::testing::pod_with;

#[test]
fn provisioner_of_a_class_is_external_unless_its_plugin_is_compiled_in() {
    let external = |name: &str| Provisioning::External(name.to_owned());
    let impossible = |why: &str| Provisioning::Impossible(why.to_owned());
    for (case, provisioner, expected) in [
        ("CSI", "csi.example.com", external("csi.example.com")),
        ("migrated plugin", "kubernetes.io/aws-ebs", external("ebs.csi.aws.com")),
        ("host path", "kubernetes.io/host-path", Provisioning::HostPath),
        ("plugin that cannot provision", "kubernetes.io/nfs", impossible("no provisionable volume plugin matched")),
        ("unknown plugin", "kubernetes.io/unknown", impossible("no volume plugin matched name: kubernetes.io/unknown")),
    ] {
        let class = class("gold", provisioner, "Immediate", false, 0);
        assert_eq!(provisioning("gold", Some(&class), true), expected, "{case}");
        assert_eq!(provisioning("gold", Some(&class), false), Provisioning::Disabled, "{case}, disabled");
    }
    let missing = impossible("storageclass.storage.k8s.io \"gold\" not found");
    assert_eq!(provisioning("gold", None, true), missing);
}

#[test]
fn request_names_the_provisioner_and_corrects_the_annotation_of_a_migration() {
    const DRIVER: &str = "ebs.csi.aws.com";
    for (case, provisioner, migrated_to, expected) in [
        ("CSI", DRIVER, None, None),
        ("CSI, migrated before", DRIVER, Some(DRIVER), Some((MIGRATED_TO, None))),
        ("CSI, empty annotation", DRIVER, Some(""), None),
        ("host path, migrated before", "kubernetes.io/host-path", Some("x"), Some((MIGRATED_TO, None))),
    ] {
        let mut claim = claim("data");
        if let Some(driver) = migrated_to {
            claim = claim.annotated(MIGRATED_TO, driver);
        }
        let mut edits = vec![(STORAGE_PROVISIONER, Some(provisioner)), (BETA_STORAGE_PROVISIONER, Some(provisioner))];
        edits.extend(expected);
        assert_eq!(request_edits(&claim.record(), provisioner), edits, "{case}");
    }
}

#[test]
fn host_path_volume_cannot_be_filled_from_a_data_source() {
    let mut with_source = (*claim("data").record()).clone();
    with_source.has_data_source = true;
    let why = "plugin \"kubernetes.io/host-path\" is not a CSI plugin. Only CSI plugin can provision a claim with a datasource";
    assert_eq!(data_source_problem(&with_source).as_deref(), Some(why));
    assert_eq!(data_source_problem(&claim("data").record()), None);
}

#[test]
fn scheduler_chooses_again_only_if_the_provisioner_itself_fails() {
    let class = class("local", "kubernetes.io/host-path", "Immediate", false, 0);
    let mut with_options = (*class).clone();
    with_options.mount_options = Arc::new(["ro".into(), "noatime".into()]);
    let of_node = |node: &'static str| claim("data").annotated(SELECTED_NODE, node);
    let block = |claim: ClaimSpec| claim.with(|claim| claim.is_block = true);
    let not_block = "Failed to provision volume with StorageClass \"local\": kubernetes.io/host-path does not support block \
                     volume provisioning";
    let no_options = "Mount options are not supported by the provisioner but StorageClass \"local\" has mount options [ro \
                      noatime]";
    let disabled =
        "Failed to create provisioner: provisioning in volume plugin \"kubernetes.io/host-path\" is disabled";
    let no_node = "Failed to get target node: node \"lost\" not found";
    for (case, claim, class, is_enabled, expected) in [
        ("directory", claim("data"), &*class, true, None),
        ("directory of a node", of_node("node"), &*class, true, None),
        ("block device", block(of_node("node")), &*class, true, Some((not_block, true))),
        ("block device of a missing node", block(of_node("lost")), &*class, true, Some((no_node, false))),
        ("disabled, block device of a missing node", block(of_node("lost")), &*class, false, Some((disabled, false))),
        ("mount options, disabled", claim("data"), &with_options, false, Some((no_options, false))),
    ] {
        let found = host_path_problem(&claim.record(), class, is_enabled, |node| node == "node");
        let found = found.as_ref().map(|problem| (problem.message.as_str(), problem.releases_node));
        assert_eq!(found, expected, "{case}");
    }
}

#[test]
fn directory_is_provisioned_only_for_a_node_that_exists() {
    let missing = |node: &str| Some(format!("Failed to get target node: node {node:?} not found"));
    for (case, claim, expected) in [
        ("no choice", claim("data"), None),
        ("existing node", claim("data").annotated(SELECTED_NODE, "a"), None),
        ("deleted node", claim("data").annotated(SELECTED_NODE, "b"), missing("b")),
        ("empty annotation", claim("data").annotated(SELECTED_NODE, ""), missing("")),
    ] {
        assert_eq!(node_problem(&claim.record(), |node| node == "a"), expected, "{case}");
    }
}

/// Upstream's cases 6-11 to 6-14.
#[test]
fn recycling_waits_for_pods_that_have_not_finished() {
    let key = ObjectKey::new("default", "data");
    let in_phase = |name: &str, phase| {
        let mut pod = pod_with(name, &["data"]);
        pod.phase = phase;
        if phase != Phase::Running {
            pod.volumes.as_mut().expect("it has volumes").is_running = false;
        }
        pod
    };
    let elsewhere = |change: fn(&mut Pod)| {
        let mut pod = in_phase("web", Phase::Running);
        change(&mut pod);
        pod
    };
    for (case, pods, expected) in [
        ("running", vec![in_phase("web", Phase::Running)], Some("default/web")),
        ("pending", vec![in_phase("web", Phase::Pending)], Some("default/web")),
        ("succeeded", vec![in_phase("web", Phase::Succeeded)], None),
        ("failed", vec![in_phase("web", Phase::Failed)], None),
        ("of another claim", vec![pod_with("web", &["logs"])], None),
        ("in another namespace", vec![elsewhere(|pod| pod.meta.namespace = "other".into())], None),
        ("several", vec![in_phase("b", Phase::Pending), in_phase("a", Phase::Running)], Some("default/a,default/b")),
    ] {
        let pods = active_users(pods.into_iter().map(Arc::new).collect(), &key);
        let notice = event_about_users(&pods);
        let message = expected.map(|users| format!("Volume is used by pods: {users}"));
        assert_eq!(notice.as_ref().map(|notice| notice.message.clone()), message, "{case}");
        assert!(notice.is_none_or(|notice| notice.reason == "VolumeFailedRecycle"), "{case}");
    }
}

/// Upstream's case 7-1.
#[tokio::test(start_paused = true)]
async fn recycling_is_tried_again_after_a_pause_when_it_failed() {
    const PAUSE: Duration = Duration::from_secs(15);
    let recycling = Recycling::default();
    let volume = Str::from("pv");
    assert_eq!(recycling.pause(&volume, PAUSE), None);
    recycling.set_failed(&volume);
    assert_eq!(recycling.pause(&volume, PAUSE), Some(PAUSE));
    advance(PAUSE).await;
    assert_eq!(recycling.pause(&volume, PAUSE), None);
    recycling.set_failed(&volume);
    recycling.forget(&volume);
    assert_eq!(recycling.pause(&volume, PAUSE), None, "it was wiped");
}
