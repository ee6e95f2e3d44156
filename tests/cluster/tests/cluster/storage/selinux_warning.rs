//! Pods that mount a volume with different SELinux labels get events, and nothing else is written.

use anyhow::{Result, ensure};
use cluster_tests::objects::with;
use cluster_tests::{Call, Faults, Manager, QUIET, Space, during, eventually};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::CSIDriver;
use serde_json::{Value, json};

use super::objects::{ClusterWide, bind, claim, user, volume, volumes};

const NAME: &str = "selinux-warning-controller";
const END: &str = "If both pods land on the same node, only one of them may access the volume.";

/// Returns a pod that is never scheduled and mounts the volume of this claim with a label of this level.
fn mounting(name: &str, claim: &str, level: &str) -> Value {
    let options = json!({"spec": {"securityContext": {"seLinuxOptions": {"level": level}}}});
    let mount = json!([{"name": "data", "mountPath": "/data"}]);
    let mut pod = with(user(name, claim), options);
    pod["spec"]["containers"][0]["volumeMounts"] = mount;
    pod
}

async fn until_warned(space: &Space, pod: &str, wanted: &str) -> Result<()> {
    eventually(format!("{pod} is warned"), || async {
        let events = space.events(pod).await?;
        ensure!(events.contains_key(wanted), "{events:?}");
        Ok(())
    })
    .await
}

pub async fn pods_with_different_labels_on_one_volume_are_reported(space: Space) -> Result<()> {
    let (faults, name) = (Faults::default(), space.namespace.clone());
    let driver = json!({"metadata": {"name": name}, "spec": {"seLinuxMount": false}});
    let drivers = ClusterWide::<CSIDriver>::of(&space);
    drivers.create(driver).await?;
    let made: PersistentVolumeClaim = space.create(with(claim("data"), json!({"spec": {"volumeName": name}}))).await?;
    let reference = json!({"namespace": name, "name": "data", "uid": made.metadata.uid});
    let source = json!({"csi": {"driver": name, "volumeHandle": "vol-1"}, "claimRef": reference});
    volumes(&space).create(volume(&name, source)).await?;
    bind(&space, "data", "1Gi").await?;

    let manager = Manager::start_with(&space, &faults, &[&format!("--controllers={NAME}")]).await?;
    space.create::<Pod>(mounting("first", "data", "s0:c1")).await?;
    space.create::<Pod>(mounting("second", "data", "s0:c2")).await?;
    space.create::<Pod>(mounting("alike", "data", "s0:c1")).await?;
    during(QUIET, "the driver cannot mount with a label: no labels conflict", || async {
        for pod in ["first", "second", "alike"] {
            ensure!(space.events(pod).await?.is_empty(), "{pod}");
        }
        Ok(())
    })
    .await?;

    drivers.patch(&name, json!({"spec": {"seLinuxMount": true}})).await?;
    for (pod, own, other, others) in
        [("first", "c1", "second", "c2"), ("second", "c2", "first", "c1"), ("alike", "c1", "second", "c2")]
    {
        let wanted = format!(
            "Normal SELinuxLabelConflict SELinuxLabel \":::s0:{own}\" conflicts with pod {other} that uses the same \
             volume as this pod with SELinuxLabel \":::s0:{others}\". {END}"
        );
        until_warned(&space, pod, &wanted).await?;
    }
    let events_of_first = space.events("first").await?;
    ensure!(events_of_first.keys().all(|event| !event.contains("pod alike")), "{events_of_first:?}");

    let mut twice = mounting("twice", "data", "s0:c1");
    let mut container = twice["spec"]["containers"][0].clone();
    container["name"] = json!("another");
    container["securityContext"] = json!({"seLinuxOptions": {"level": "s0:c2"}});
    if let Some(all) = twice["spec"]["containers"].as_array_mut() {
        all.push(container.clone());
    }
    space.create::<Pod>(twice).await?;
    let wanted = "Warning MultipleSELinuxLabels Volume \"data\" is mounted twice with different SELinux labels inside \
                  this pod";
    until_warned(&space, "twice", wanted).await?;
    ensure!(faults.count(Call::is_object_write) == 0, "{:?}", faults.requests());
    manager.stop().await?;
    Ok(())
}
