//! Volumes in zones: the first pod that uses a claim decides on the zone of its volume, and later pods follow the
//! volume.

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{pod, with};
use cluster_tests::{Faults, Space, eventually};
use control_plane::behaviour::{BEHAVIOUR, PENDING};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use serde_json::{Value, json};

use super::attach_detach::{CsiFixture, own_space};
use super::kubelet::ZONE;
use super::objects::{until_claim_deleted, volumes};

/// Annotation of a claim with the node that the scheduler chose for its first pod.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Returns a pod that the scheduler places on a node of the test, in this zone if given, with a volume of a claim.
fn scheduled(fixture: &CsiFixture, name: &str, claim: &str, zone: Option<&str>) -> Value {
    let mut selector = json!({"attach-detach-test": fixture.space.namespace});
    if let Some(zone) = zone {
        selector[ZONE] = zone.into();
    }
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
    with(
        pod(name, "web"),
        json!({"metadata": {"annotations": {BEHAVIOUR: PENDING}}, "spec": {
            "nodeSelector": selector, "tolerations": [{"operator": "Exists"}], "volumes": volumes,
        }}),
    )
}

/// Returns the zones to which a volume is restricted.
fn zones_of(volume: &PersistentVolume) -> Vec<String> {
    let required = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    let terms = required.iter().flat_map(|required| &required.node_selector_terms);
    let expressions = terms.flat_map(|term| term.match_expressions.iter().flatten());
    expressions.filter(|one| one.key == ZONE).flat_map(|one| one.values.clone().unwrap_or_default()).collect()
}

async fn node_of(fixture: &CsiFixture, pod: &str) -> Result<String> {
    let pod: Pod = fixture.space.get(pod).await?;
    pod.spec.and_then(|spec| spec.node_name).context("the pod has no node")
}

pub async fn first_consumer_decides_on_the_zone_of_its_volume(_: Space) -> Result<()> {
    let fixture = CsiFixture::start_in_zones(own_space("zones").await?, ["east", "west"]).await?;
    let manager = fixture.manager(&Faults::default(), &[]).await?;
    let pinned = [("east", &fixture.a.node), ("west", &fixture.b.node)];
    for (zone, _) in pinned {
        fixture.create_claim(zone).await?;
    }
    for (zone, node) in pinned {
        fixture.space.create::<Pod>(scheduled(&fixture, zone, zone, Some(zone))).await?;
        fixture.until_running(zone).await?;
        ensure!(node_of(&fixture, zone).await? == **node, "the scheduler ignored the node selector");
        let claim: PersistentVolumeClaim = fixture.space.get(zone).await?;
        let selected = claim.metadata.annotations.unwrap_or_default().remove(SELECTED_NODE);
        ensure!(selected.as_ref() == Some(node), "{selected:?} instead of {node}");
        let (volume, handle) = fixture.volume_of(zone).await?;
        ensure!(zones_of(&volume) == [zone], "{:?}", volume.spec);
        let suffix = if zone == "east" { "a" } else { "b" };
        ensure!(fixture.moves(&handle)? == [format!("attach {suffix}")], "{:?}", fixture.moves(&handle)?);
    }

    // Later pods may run anywhere, and follow their volume.
    for (zone, node) in pinned {
        fixture.space.delete::<Pod>(zone).await?;
        fixture.until_deleted(zone).await?;
        let later = format!("{zone}-later");
        fixture.space.create::<Pod>(scheduled(&fixture, &later, zone, None)).await?;
        fixture.until_running(&later).await?;
        ensure!(node_of(&fixture, &later).await? == **node, "a pod runs in another zone than its volume");
    }
    for (zone, _) in pinned {
        let (volume, _) = fixture.volume_of(zone).await?;
        fixture.space.delete::<Pod>(&format!("{zone}-later")).await?;
        fixture.space.delete::<PersistentVolumeClaim>(zone).await?;
        until_claim_deleted(&fixture.space, zone).await?;
        volumes(&fixture.space).until_deleted(&volume.metadata.name.context("no name")?).await?;
    }
    eventually("nothing is attached", || async {
        ensure!(fixture.attachments().await?.is_empty());
        Ok(())
    })
    .await?;
    manager.stop().await?;
    fixture.finish().await
}
