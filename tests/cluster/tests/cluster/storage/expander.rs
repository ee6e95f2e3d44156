//! The expansion of volumes is left to external resizers. If a resizer replaces an in-tree plugin, an annotation names
//! it.

use anyhow::{Result, ensure};
use cluster_tests::objects::with;
use cluster_tests::{
    Call, Effect, Faults, Manager, QUIET, Rule, Space, Verb, during, eventually, restart_after_crashes, write_failures,
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};

use super::objects::{ClusterWide, bind, claim, volume, volumes};
use crate::robustness::invariants::only_declared;

const NAME: &str = "persistentvolume-expander-controller";
const RESIZER: &str = "volume.kubernetes.io/storage-resizer";

/// Creates a claim that is bound to a volume with this source, and requests more than the volume's capacity.
async fn bound_and_too_small(space: &Space, name: &str, source: Value) -> Result<()> {
    let class = &space.namespace;
    let of_class = json!({"spec": {"storageClassName": class}});
    let volume_name = format!("{class}-{name}");
    let named = json!({"spec": {"volumeName": volume_name}});
    let made: PersistentVolumeClaim = space.create(with(with(claim(name), of_class.clone()), named)).await?;
    let reference = json!({"namespace": class, "name": name, "uid": made.metadata.uid});
    let volume = with(volume(&volume_name, source), with(of_class, json!({"spec": {"claimRef": reference}})));
    volumes(space).create(volume).await?;
    bind(space, name, "1Gi").await?;
    let more = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    space.patch::<PersistentVolumeClaim>(name, more).await?;
    Ok(())
}

async fn until_event(space: &Space, claim: &str, wanted: &str) -> Result<()> {
    eventually(format!("event {wanted:?}"), || async {
        let events = space.events(claim).await?;
        ensure!(events.contains_key(wanted), "{events:?}");
        Ok(())
    })
    .await
}

async fn create_class(space: &Space) -> Result<()> {
    let class = json!({
        "metadata": {"name": space.namespace}, "provisioner": "disk.example.com", "allowVolumeExpansion": true,
    });
    ClusterWide::<StorageClass>::of(space).create(class).await?;
    Ok(())
}

fn ebs() -> Value {
    json!({"awsElasticBlockStore": {"volumeID": "vol-1"}})
}

async fn until_resizer_is_named(space: &Space, claim: &str) -> Result<()> {
    eventually(format!("the resizer of {claim} is named"), || async {
        let claim: PersistentVolumeClaim = space.get(claim).await?;
        let annotations = claim.metadata.annotations.unwrap_or_default();
        ensure!(annotations.get(RESIZER).is_some_and(|name| name == "ebs.csi.aws.com"), "{annotations:?}");
        Ok(())
    })
    .await
}

pub async fn expansion_is_left_to_external_resizers(space: Space) -> Result<()> {
    let faults = Faults::default();
    create_class(&space).await?;
    let manager = Manager::start_with(&space, &faults, &[&format!("--controllers={NAME}")]).await?;
    bound_and_too_small(&space, "ebs", ebs()).await?;
    let csi = json!({"csi": {"driver": "disk.example.com", "volumeHandle": "vol-2"}});
    bound_and_too_small(&space, "csi", csi).await?;
    let migrated = "Normal ExternalExpanding CSI migration enabled for kubernetes.io/aws-ebs; waiting for external resizer \
                    to expand the pvc";
    until_event(&space, "ebs", migrated).await?;
    until_event(&space, "csi", "Normal ExternalExpanding waiting for an external controller to expand this PVC")
        .await?;
    until_resizer_is_named(&space, "ebs").await?;
    during(QUIET, "the annotation is the only write", || async {
        ensure!(faults.count(Call::is_object_write) == 1, "{:?}", faults.requests());
        Ok(())
    })
    .await?;
    manager.stop().await?;
    only_declared(&faults, &[NAME])
}

/// The write for each claim fails in another way, or the manager crashes after it. Each claim is written once.
pub async fn resizer_is_named_once_when_any_write_fails(space: Space) -> Result<()> {
    create_class(&space).await?;
    let faults = Faults::default();
    let crash = [("crash", Effect::CrashBeforeResponse)];
    let effects: Vec<(String, Effect)> =
        write_failures().into_iter().chain(crash).map(|(how, effect)| (how.replace(' ', "-"), effect)).collect();
    let is_write = |call: &Call| call.verb == Verb::Patch && call.resource == "persistentvolumeclaims/status";
    let checks = async {
        for (name, effect) in &effects {
            let of_claim = name.clone();
            faults.add(Rule::new(move |call| is_write(call) && call.name == of_claim, effect.clone()));
            bound_and_too_small(&space, name, ebs()).await?;
        }
        for (name, _) in &effects {
            until_resizer_is_named(&space, name).await?;
        }
        ensure!(faults.unmet() == 0, "{} faults did not occur", faults.unmet());
        during(QUIET, "each claim is written once", || async {
            ensure!(faults.accepted(is_write) == effects.len(), "{:?}", faults.requests());
            Ok(())
        })
        .await
    };
    let controllers = format!("--controllers={NAME}");
    let flags = [controllers.as_str()];
    tokio::select! {
        done = checks => done,
        ended = restart_after_crashes(&faults, || Manager::start_with(&space, &faults, &flags)) => ended,
    }
}
