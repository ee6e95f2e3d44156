//! The life of a volume with a CSI driver and the usual sidecars, from the claim to the deletion in the driver.
//!
//! The tests act as the attach-detach controller.

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{is_ready, pod, with};
use cluster_tests::{Faults, Manager, QUIET, Space, during, eventually};
use control_plane::csi::Driver;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use serde_json::json;

use super::objects::{
    ClusterWide, claim, delete_with_force, start_driver, until_claim_deleted, until_done, until_unused, user_on_a_node,
    volumes,
};
use crate::robustness::invariants::only_declared;

const BINDER: &str = "persistentvolume-binder-controller";
const EPHEMERAL: &str = "ephemeral-volume-controller";
const EXPANDER: &str = "persistentvolume-expander-controller";
const VOLUME_PROTECTION: &str = "persistentvolume-protection-controller";
const CLAIM_PROTECTION: &str = "persistentvolumeclaim-protection-controller";

const CONTROLLERS: [&str; 5] = [BINDER, EPHEMERAL, EXPANDER, VOLUME_PROTECTION, CLAIM_PROTECTION];

/// A CSI driver with its StorageClass and nodes, all named for a test's namespace.
struct Setup {
    space: Space,
    driver: Driver,
}

impl Setup {
    async fn start(space: &Space, binding: &str) -> Result<Self> {
        Ok(Self { space: space.clone(), driver: start_driver(space, &[], binding).await? })
    }

    /// Starts the controllers of volumes for claims of the namespace.
    async fn start_manager(&self, faults: &Faults) -> Result<Manager> {
        let flags = format!("--controllers={}", CONTROLLERS.join(","));
        Manager::start_with(&self.space, faults, &[&flags]).await
    }

    /// Registers a node on which the driver runs. There is no Node object: csi-attacher reads the CSINode only.
    async fn add_node(&self, suffix: &str) -> Result<String> {
        let name = format!("{}-{suffix}", self.space.namespace);
        let drivers = json!([{"name": self.driver.name(), "nodeID": name}]);
        let node = json!({"metadata": {"name": name}, "spec": {"drivers": drivers}});
        ClusterWide::<CSINode>::of(&self.space).create(node).await?;
        Ok(name)
    }

    async fn until_done(&self, action: &str) -> Result<()> {
        until_done(&self.driver, action).await
    }

    /// Creates a claim and waits until it is bound to the volume that csi-provisioner created for it.
    async fn bound_claim(&self, name: &str) -> Result<PersistentVolume> {
        let (space, class) = (&self.space, &self.space.namespace);
        let of_class = json!({"spec": {"storageClassName": class}});
        let made: PersistentVolumeClaim = space.create(with(claim(name), of_class)).await?;
        let volume = format!("pvc-{}", made.metadata.uid.context("no uid")?);
        eventually(format!("{name} is bound"), || async {
            let status = space.get::<PersistentVolumeClaim>(name).await?.status.unwrap_or_default();
            ensure!(status.phase.as_deref() == Some("Bound"), "{status:?}");
            volumes(space).get(&volume).await
        })
        .await
    }

    /// Requests the attachment of a volume, as the attach-detach controller does.
    async fn attach(&self, volume: &PersistentVolume, node: &str) -> Result<String> {
        let name = format!("{node}-attachment");
        let source = json!({"persistentVolumeName": volume.metadata.name});
        let spec = json!({"attacher": self.driver.name(), "nodeName": node, "source": source});
        self.attachments().create(json!({"metadata": {"name": name}, "spec": spec})).await?;
        Ok(name)
    }

    fn attachments(&self) -> ClusterWide<VolumeAttachment> {
        ClusterWide::of(&self.space)
    }
}

fn handle(volume: &PersistentVolume) -> Result<String> {
    let source = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()).context("no CSI source")?;
    Ok(source.volume_handle.clone())
}

pub async fn volume_is_provisioned_for_its_claim_and_deleted_in_the_driver(space: Space) -> Result<()> {
    let (setup, faults) = (Setup::start(&space, "Immediate").await?, Faults::default());
    let manager = setup.start_manager(&faults).await?;
    let volume = setup.bound_claim("data").await?;
    let (name, handle) = (volume.metadata.name.clone().context("no name")?, handle(&volume)?);
    setup.until_done(&format!("create {handle} {}", 1 << 30)).await?;
    until_unused(&space, "data", "True", "NoPodsUsingPVC").await?;

    // A pod uses the claim on a node.
    let node = setup.add_node("a").await?;
    space.create::<Pod>(user_on_a_node("user", "data")).await?;
    let attachment = setup.attach(&volume, &node).await?;
    setup.until_done(&format!("attach {handle} {node}")).await?;
    until_unused(&space, "data", "False", "PodUsingPVC").await?;

    // The volume is expanded while it is in use.
    let more = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    space.patch::<PersistentVolumeClaim>("data", more).await?;
    eventually("the claim has its new capacity", || async {
        let status = space.get::<PersistentVolumeClaim>("data").await?.status.unwrap_or_default();
        let capacity = status.capacity.unwrap_or_default();
        ensure!(capacity.get("storage").is_some_and(|capacity| capacity.0 == "2Gi"), "{capacity:?}");
        Ok(())
    })
    .await?;
    setup.until_done(&format!("expand {handle} {}", 2_u64 << 30)).await?;
    eventually("an event reports that an external controller has to expand it", || async {
        let events = space.events("data").await?;
        let wanted = "Normal ExternalExpanding waiting for an external controller to expand this PVC";
        ensure!(events.contains_key(wanted), "{events:?}");
        Ok(())
    })
    .await?;

    // Claim and volume stay as long as the pod exists, and are deleted with it.
    space.delete::<PersistentVolumeClaim>("data").await?;
    during(QUIET, "the claim stays while the pod uses it", || async {
        ensure!(space.get::<PersistentVolumeClaim>("data").await?.metadata.deletion_timestamp.is_some());
        Ok(())
    })
    .await?;
    delete_with_force(&space, "user").await?;
    setup.attachments().delete(&attachment).await?;
    setup.until_done(&format!("detach {handle} {node}")).await?;
    until_claim_deleted(&space, "data").await?;
    setup.until_done(&format!("delete {handle}")).await?;
    volumes(&space).until_deleted(&name).await?;
    let history = setup.driver.history()?;
    let at = |action: &str| history.iter().position(|done| done.starts_with(action));
    ensure!(at("detach ") < at("delete "), "{history:?}");
    ensure!(setup.driver.violations()?.is_empty(), "{:?}", setup.driver.violations()?);
    manager.stop().await?;
    only_declared(&faults, &[BINDER, CLAIM_PROTECTION])?;
    setup.driver.stop()
}

/// Proves that the mock driver detects forbidden attachments.
pub async fn second_attachment_of_a_single_node_volume_is_detected(space: Space) -> Result<()> {
    let setup = Setup::start(&space, "Immediate").await?;
    let _manager = setup.start_manager(&Faults::default()).await?;
    let volume = setup.bound_claim("data").await?;
    let handle = handle(&volume)?;
    let (first, second) = (setup.add_node("a").await?, setup.add_node("b").await?);
    let attachment = setup.attach(&volume, &first).await?;
    setup.until_done(&format!("attach {handle} {first}")).await?;
    let refused = setup.attach(&volume, &second).await?;
    eventually("the driver reports a violation", || async {
        let found = setup.driver.violations()?;
        let wanted = format!("VIOLATION attach {handle} {second}: it is attached to {first}");
        ensure!(found.contains(&wanted), "{found:?}");
        Ok(())
    })
    .await?;
    // Once the volume is detached from the first node, it is attached to the second one.
    setup.attachments().delete(&attachment).await?;
    eventually("the volume is attached to the second node", || async {
        let status = setup.attachments().get(&refused).await?.status.unwrap_or_default();
        ensure!(status.attached, "{status:?}");
        Ok(())
    })
    .await?;
    setup.driver.stop()
}

/// The claim of a generic ephemeral volume waits for the scheduler, which chooses a node for the pod.
pub async fn first_consumer_gets_its_ephemeral_volume_and_runs(space: Space) -> Result<()> {
    let (setup, faults) = (Setup::start(&space, "WaitForFirstConsumer").await?, Faults::default());
    let manager = setup.start_manager(&faults).await?;
    let class = json!({"metadata": {"name": null}, "spec": {"storageClassName": space.namespace}});
    let template = with(claim(""), class.clone());
    space.create::<PersistentVolumeClaim>(with(claim("waiting"), json!({"spec": class["spec"]}))).await?;
    let volumes_of_pod = json!([{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]);
    space.create::<Pod>(with(pod("web", "web"), json!({"spec": {"volumes": volumes_of_pod}}))).await?;
    eventually("the pod runs", || async {
        let pod: Pod = space.get("web").await?;
        ensure!(is_ready(&pod), "{:?}", pod.status);
        Ok(())
    })
    .await?;
    let bound: PersistentVolumeClaim = space.get("web-scratch").await?;
    let volume = bound.spec.and_then(|spec| spec.volume_name).context("no volume name")?;
    let handle = handle(&volumes(&space).get(&volume).await?)?;
    setup.until_done(&format!("create {handle} {}", 1 << 30)).await?;
    eventually("the wait is reported", || async {
        let events = space.events("waiting").await?;
        let wanted = "Normal WaitForFirstConsumer waiting for first consumer to be created before binding";
        ensure!(events.contains_key(wanted), "{events:?}");
        Ok(())
    })
    .await?;

    // The garbage collector, which does not run here, would delete the claim with its pod.
    space.delete::<Pod>("web").await?;
    space.delete::<PersistentVolumeClaim>("web-scratch").await?;
    until_claim_deleted(&space, "web-scratch").await?;
    volumes(&space).until_deleted(&volume).await?;
    setup.until_done(&format!("delete {handle}")).await?;
    manager.stop().await?;
    only_declared(&faults, &[BINDER, EPHEMERAL, CLAIM_PROTECTION])?;
    setup.driver.stop()
}
