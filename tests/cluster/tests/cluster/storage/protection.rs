//! Deletion of claims, volumes and VolumeAttributesClasses is completed only when nothing uses them.

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::with;
use cluster_tests::{
    Call, Effect, Faults, Manager, QUIET, Rule, Space, Verb, during, eventually, restart_after_crashes, variants,
    write_failures,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use serde_json::{Value, json};

use super::objects::{
    ClusterScoped, ClusterWide, alone, bind, claim, delete_with_force, until_claim_deleted, until_unused, unused, user,
    user_on_a_node, volume, volumes,
};
use crate::robustness::invariants::{only_declared, until_quiet};

const CLAIMS: &str = "persistentvolumeclaim-protection-controller";
const VOLUMES: &str = "persistentvolume-protection-controller";
const CLASSES: &str = "volumeattributesclass-protection-controller";
const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";

async fn start(space: &Space, faults: &Faults) -> Result<Manager> {
    Manager::start_with(space, faults, &[&format!("--controllers={CLAIMS}")]).await
}

/// Checks for a while that a claim that is being deleted still exists.
async fn stays(space: &Space, name: &str) -> Result<()> {
    during(QUIET, format!("claim {name} stays"), || async {
        let claim: PersistentVolumeClaim = space.get(name).await?;
        ensure!(claim.metadata.deletion_timestamp.is_some(), "it is not being deleted");
        ensure!(claim.metadata.finalizers.iter().flatten().any(|name| name == CLAIM_FINALIZER));
        Ok(())
    })
    .await
}

pub async fn claim_stays_while_a_pod_on_a_node_uses_it(space: Space) -> Result<()> {
    let faults = Faults::default();
    let manager = start(&space, &faults).await?;
    for name in ["used", "waited-for", "unused"] {
        space.create::<PersistentVolumeClaim>(claim(name)).await?;
    }
    space.create::<Pod>(user_on_a_node("user", "used")).await?;
    space.create::<Pod>(user("unscheduled", "waited-for")).await?;
    for name in ["used", "waited-for", "unused"] {
        space.delete::<PersistentVolumeClaim>(name).await?;
    }
    until_claim_deleted(&space, "waited-for").await?;
    until_claim_deleted(&space, "unused").await?;
    stays(&space, "used").await?;
    // A finished pod also protects its claim.
    space.patch_status::<Pod>("user", json!({"status": {"phase": "Succeeded"}})).await?;
    stays(&space, "used").await?;
    delete_with_force(&space, "user").await?;
    until_claim_deleted(&space, "used").await?;
    manager.stop().await?;
    only_declared(&faults, &[CLAIMS])
}

/// The cache of pods is frozen before the pod is created: only an uncached read can find it.
pub async fn pod_missing_in_the_cache_keeps_its_claim(space: Space) -> Result<()> {
    let faults = Faults::default();
    space.create::<PersistentVolumeClaim>(claim("data")).await?;
    let _manager = start(&space, &faults).await?;
    // The finalizer that the controller adds again shows that its caches are complete: a watch that is frozen earlier is
    // replaced by lists.
    space.patch::<PersistentVolumeClaim>("data", json!({"metadata": {"finalizers": null}})).await?;
    eventually("the finalizer is added again", || async {
        let claim: PersistentVolumeClaim = space.get("data").await?;
        ensure!(claim.metadata.finalizers.iter().flatten().any(|name| name == CLAIM_FINALIZER), "there is none");
        Ok(())
    })
    .await?;
    faults.freeze("pods");
    space.create::<Pod>(user_on_a_node("user", "data")).await?;
    space.delete::<PersistentVolumeClaim>("data").await?;
    eventually("the pods are read", || async {
        ensure!(faults.count(|call| call.verb == Verb::List && call.resource == "pods" && is_own(call)) > 0);
        Ok(())
    })
    .await?;
    stays(&space, "data").await?;
    faults.thaw("pods");
    delete_with_force(&space, "user").await?;
    until_claim_deleted(&space, "data").await
}

/// Returns true if this controller itself sent a request, as opposed to a watch that all controllers share.
fn is_own(call: &Call) -> bool {
    call.account == "pvc-protection-controller"
}

/// After a failure of any write, the finalizer is added to a claim that lacks it and removed from one that nothing
/// uses.
pub async fn finalizers_are_added_and_removed_when_writes_fail(space: Space) -> Result<()> {
    let all = write_failures().map(|(name, effect)| (name.to_owned(), effect)).to_vec();
    variants(&space, all, |space, effect: Effect| async move {
        space.create::<PersistentVolumeClaim>(claim("data")).await?;
        space.patch::<PersistentVolumeClaim>("data", json!({"metadata": {"finalizers": ["example.com/kept"]}})).await?;
        let update = |call: &Call| call.verb == Verb::Update && call.resource == "persistentvolumeclaims";
        let faults = Faults::script([Rule::new(update, effect.clone())]);
        let _manager = start(&space, &faults).await?;
        eventually("the finalizer is added", || async {
            let claim: PersistentVolumeClaim = space.get("data").await?;
            let finalizers = claim.metadata.finalizers.unwrap_or_default();
            ensure!(finalizers == ["example.com/kept", CLAIM_FINALIZER], "{finalizers:?}");
            Ok(())
        })
        .await?;
        faults.add(Rule::new(update, effect));
        space.delete::<PersistentVolumeClaim>("data").await?;
        eventually("the finalizer is removed", || async {
            let claim: PersistentVolumeClaim = space.get("data").await?;
            let finalizers = claim.metadata.finalizers.unwrap_or_default();
            ensure!(finalizers == ["example.com/kept"], "{finalizers:?}");
            Ok(())
        })
        .await?;
        ensure!(faults.unmet() == 0, "a fault did not occur");
        space.patch::<PersistentVolumeClaim>("data", json!({"metadata": {"finalizers": null}})).await?;
        Ok(())
    })
    .await
}

/// Without the gate, a bound claim gets no condition. The finalizer, which the controller adds again, proves that it
/// has processed the claim.
pub async fn bound_claim_has_no_unused_condition_without_the_gate(space: Space) -> Result<()> {
    let flags = [&format!("--controllers={CLAIMS}"), "--feature-gates=PersistentVolumeClaimUnusedSinceTime=false"];
    let _manager = Manager::start_with(&space, &Faults::default(), &flags).await?;
    space.create::<PersistentVolumeClaim>(claim("data")).await?;
    bind(&space, "data", "1Gi").await?;
    space.patch::<PersistentVolumeClaim>("data", json!({"metadata": {"finalizers": null}})).await?;
    eventually("the finalizer is added again", || async {
        let claim: PersistentVolumeClaim = space.get("data").await?;
        ensure!(claim.metadata.finalizers.iter().flatten().any(|name| name == CLAIM_FINALIZER));
        Ok(())
    })
    .await?;
    during(QUIET, "there is no condition", || async {
        ensure!(unused(&space, "data").await.is_err(), "the claim has a condition");
        Ok(())
    })
    .await
}

pub async fn unused_condition_follows_the_pods_of_a_bound_claim(space: Space) -> Result<()> {
    let faults = Faults::default();
    let manager = start(&space, &faults).await?;
    space.create::<PersistentVolumeClaim>(claim("data")).await?;
    space.create::<PersistentVolumeClaim>(claim("pending")).await?;
    // Unknown fields, and fields of other owners, are kept by the controller's PUT.
    let resizing = json!([{"type": "Resizing", "status": "True", "reason": "kept"}]);
    let status = json!({"conditions": resizing, "allocatedResourceStatuses": {"storage": "NodeResizePending"}});
    space.patch_status::<PersistentVolumeClaim>("data", json!({"status": status})).await?;
    bind(&space, "data", "1Gi").await?;
    until_unused(&space, "data", "True", "NoPodsUsingPVC").await?;
    space.create::<Pod>(user("user", "data")).await?;
    until_unused(&space, "data", "False", "PodUsingPVC").await?;
    space.patch_status::<Pod>("user", json!({"status": {"phase": "Succeeded"}})).await?;
    until_unused(&space, "data", "True", "NoPodsUsingPVC").await?;
    ensure!(unused(&space, "pending").await.is_err(), "a claim that is not bound has a condition");
    let status = space.get::<PersistentVolumeClaim>("data").await?.status.context("no status")?;
    let kept = status.conditions.iter().flatten().any(|condition| condition.reason.as_deref() == Some("kept"));
    ensure!(kept && status.allocated_resource_statuses.is_some(), "{status:?}");
    until_quiet(&faults).await?;
    let writes = faults.count(|call| call.resource == "persistentvolumeclaims/status");
    ensure!(writes == 3, "{writes} status writes instead of 3: {:?}", faults.requests());
    let reads = faults.count(|call| call.verb == Verb::Get && call.resource == "persistentvolumeclaims");
    ensure!(reads == 2, "{reads} reads instead of 2: the last write needs none: {:?}", faults.requests());
    manager.stop().await?;
    only_declared(&faults, &[CLAIMS])
}

/// Volumes have no namespace: managers of other tests may write to the same ones.
pub async fn volume_stays_while_it_is_bound(space: Space) -> Result<()> {
    let (faults, name) = (Faults::default(), space.namespace.clone());
    let manager = Manager::start_with(&space, &faults, &[&format!("--controllers={VOLUMES}")]).await?;
    let volumes = volumes(&space);
    let named = json!({"spec": {"volumeName": name}});
    let created: PersistentVolumeClaim = space.create(with(claim("data"), named)).await?;
    let reference = json!({"namespace": space.namespace, "name": "data", "uid": created.metadata.uid});
    let source = json!({"hostPath": {"path": "/tmp/never-created"}, "claimRef": reference});
    volumes.create(volume(&name, source)).await?;
    bind(&space, "data", "1Gi").await?;
    volumes.patch_status(&name, json!({"status": {"phase": "Bound"}})).await?;
    volumes.patch(&name, json!({"metadata": {"finalizers": null}})).await?;
    eventually("the finalizer is added again", || async {
        let finalizers = volumes.get(&name).await?.metadata.finalizers.unwrap_or_default();
        ensure!(finalizers == ["kubernetes.io/pv-protection"], "{finalizers:?}");
        Ok(())
    })
    .await?;
    volumes.delete(&name).await?;
    during(QUIET, "the volume exists while it is bound", || async {
        ensure!(volumes.get(&name).await?.metadata.deletion_timestamp.is_some());
        Ok(())
    })
    .await?;
    space.delete::<PersistentVolumeClaim>("data").await?;
    space.patch::<PersistentVolumeClaim>("data", json!({"metadata": {"finalizers": null}})).await?;
    volumes.patch_status(&name, json!({"status": {"phase": "Released"}})).await?;
    volumes.until_deleted(&name).await?;
    manager.stop().await?;
    only_declared(&faults, &[])
}

pub async fn attributes_class_stays_while_a_claim_or_volume_refers_to_it(space: Space) -> Result<()> {
    let (faults, name) = (Faults::default(), space.namespace.clone());
    let flags = [format!("--controllers={CLASSES}")];
    let manager = Manager::start_cluster_wide(&space, &faults, &[&flags[0]]).await?;
    let (classes, volumes) = (ClusterWide::<VolumeAttributesClass>::of(&space), volumes(&space));
    classes
        .create(json!({"metadata": {"name": name}, "driverName": "disk.example.com", "parameters": {"iops": "1"}}))
        .await?;
    let reference = json!({"spec": {"volumeAttributesClassName": name}});
    space.create::<PersistentVolumeClaim>(with(claim("data"), reference.clone())).await?;
    let source = json!({"csi": {"driver": "disk.example.com", "volumeHandle": "vol-1"}});
    volumes.create(with(volume(&name, source), reference)).await?;
    classes.delete(&name).await?;
    let stays = || {
        during(QUIET, "the class exists while something refers to it", || async {
            ensure!(classes.get(&name).await?.metadata.deletion_timestamp.is_some());
            Ok(())
        })
    };
    stays().await?;
    space.delete::<PersistentVolumeClaim>("data").await?;
    space.patch::<PersistentVolumeClaim>("data", json!({"metadata": {"finalizers": null}})).await?;
    until_claim_deleted(&space, "data").await?;
    stays().await?;
    volumes.delete(&name).await?;
    volumes.patch(&name, json!({"metadata": {"finalizers": null}})).await?;
    classes.until_deleted(&name).await?;
    manager.stop().await?;
    only_declared(&faults, &[CLASSES])
}

/// Objects of a kind, one for each effect on the writes of the controller that protects them. `finalizer` is that of the
/// controller.
struct Protected<'a, K> {
    objects: ClusterWide<K>,
    resource: &'static str,
    finalizer: &'static str,
    effects: &'a [(String, Effect)],
    faults: &'a Faults,
}

impl<K: ClusterScoped> Protected<'_, K> {
    /// Lets the next write to an object fail.
    fn fail_next(&self, name: &str, effect: &Effect) {
        let (resource, name) = (self.resource, name.to_owned());
        let matches = move |call: &Call| call.verb == Verb::Update && call.resource == resource && call.name == name;
        self.faults.add(Rule::new(matches, effect.clone()));
    }

    async fn until_finalizers(&self, expected: &[&str]) -> Result<()> {
        for (name, _) in self.effects {
            eventually(format!("finalizers of {} {name}", self.resource), || async {
                let finalizers = self.objects.get(name).await?.meta().finalizers.clone().unwrap_or_default();
                ensure!(finalizers == expected, "{finalizers:?}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    /// Removes the controller's finalizer from new objects, and deletes them once they have it again.
    async fn add_and_remove(&self, create: impl Fn(&str) -> Value) -> Result<()> {
        const KEPT: &str = "example.com/kept";
        for (name, effect) in self.effects {
            self.fail_next(name, effect);
            self.objects.create(create(name)).await?;
            self.objects.patch(name, json!({"metadata": {"finalizers": [KEPT]}})).await?;
        }
        self.until_finalizers(&[KEPT, self.finalizer]).await?;
        for (name, effect) in self.effects {
            self.fail_next(name, effect);
            self.objects.delete(name).await?;
        }
        self.until_finalizers(&[KEPT]).await?;
        for (name, _) in self.effects {
            self.objects.patch(name, json!({"metadata": {"finalizers": null}})).await?;
        }
        Ok(())
    }
}

/// As [`finalizers_are_added_and_removed_when_writes_fail`], for volumes and VolumeAttributesClasses, also when the
/// manager crashes after the write.
pub async fn volumes_and_classes_are_protected_when_writes_fail(space: Space) -> Result<()> {
    let (space, _alone) = alone(&space).await?;
    let faults = Faults::default();
    let crash = [("crash", Effect::CrashBeforeResponse)];
    let name = |how: &str| format!("{}-{}", space.namespace, how.replace(' ', "-"));
    let effects: Vec<(String, Effect)> =
        write_failures().into_iter().chain(crash).map(|(how, effect)| (name(how), effect)).collect();
    let of_volumes = Protected {
        objects: volumes(&space),
        resource: "persistentvolumes",
        finalizer: "kubernetes.io/pv-protection",
        effects: &effects,
        faults: &faults,
    };
    let of_classes = Protected {
        objects: ClusterWide::<VolumeAttributesClass>::of(&space),
        resource: "volumeattributesclasses",
        finalizer: "kubernetes.io/vac-protection",
        effects: &effects,
        faults: &faults,
    };
    let source = json!({"csi": {"driver": "disk.example.com", "volumeHandle": "vol-1"}});
    let parameters = json!({"iops": "1"});
    let class =
        |name: &str| json!({"metadata": {"name": name}, "driverName": "disk.example.com", "parameters": parameters});
    let checks = async {
        of_volumes.add_and_remove(|name| volume(name, source.clone())).await?;
        of_classes.add_and_remove(class).await?;
        ensure!(faults.unmet() == 0, "{} faults did not occur", faults.unmet());
        anyhow::Ok(())
    };
    let controllers = format!("--controllers={VOLUMES},{CLASSES}");
    let flags = [controllers.as_str()];
    let start = || Manager::start_cluster_wide(&space, &faults, &flags);
    tokio::select! {
        done = checks => done,
        ended = restart_after_crashes(&faults, start) => ended,
    }
}
