//! Observable behaviour of claims and volumes: static and delayed binding, provisioning, reclaiming, and lost volumes.
//!
//! Volumes have no namespace. Each test has its own class, so that its claims get no volume of another test. The
//! managers of other tests may write the phases of its volumes, with the same values.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{is_ready, pod, with};
use cluster_tests::{Call, Effect, Faults, Manager, QUIET, RecordedRequest, Rule, Space, Verb, during, eventually};
use control_plane::behaviour::{BEHAVIOUR, FAIL, SUCCEED};
use control_plane::csi::Driver;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::objects::alone;
use crate::robustness::invariants::only_declared;
use crate::workloads::statefulset::{settled, stateful_set};

pub const BINDER: &str = "persistentvolume-binder-controller";
pub const FLAGS: [&str; 2] = ["--controllers=persistentvolume-binder-controller", "--pvclaimbinder-sync-period=1s"];
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const FAKE_PROVISIONER: &str = "fake.example.com";

/// The volumes and claims of a test.
pub struct Storage {
    space: Space,
    pub volumes: Api<PersistentVolume>,
    pub class: String,
}

impl Storage {
    pub fn new(space: &Space) -> Self {
        let volumes = Api::all(space.bed.client.clone());
        Self { space: space.clone(), volumes, class: space.namespace.clone() }
    }

    /// Returns the name of a volume, unique among all tests.
    pub fn name(&self, volume: &str) -> String {
        format!("{}-{volume}", self.space.namespace)
    }

    pub async fn create_volume(&self, volume: &str, fields: Value) -> Result<PersistentVolume> {
        let object = json!({
            "metadata": {"name": self.name(volume)},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": self.class,
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/tmp/never-created"},
            },
        });
        let volume = serde_json::from_value(with(object, fields))?;
        Ok(self.volumes.create(&PostParams::default(), &volume).await?)
    }

    pub async fn create_claim(&self, claim: &str, fields: Value) -> Result<PersistentVolumeClaim> {
        let object = json!({
            "metadata": {"name": claim},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": self.class,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        self.space.create(with(object, fields)).await
    }

    pub async fn create_class(&self, provisioner: &str, mode: &str, policy: &str) -> Result<()> {
        let class: StorageClass = serde_json::from_value(json!({
            "metadata": {"name": self.class}, "provisioner": provisioner, "volumeBindingMode": mode,
            "reclaimPolicy": policy,
        }))?;
        Api::all(self.space.bed.client.clone()).create(&PostParams::default(), &class).await?;
        Ok(())
    }

    pub async fn volume(&self, volume: &str) -> Result<PersistentVolume> {
        Ok(self.volumes.get(&self.name(volume)).await?)
    }

    pub async fn claim(&self, claim: &str) -> Result<PersistentVolumeClaim> {
        self.space.get(claim).await
    }

    async fn patch_volume(&self, volume: &str, patch: Value) -> Result<()> {
        self.volumes.patch(&self.name(volume), &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Deletes a volume, and removes its finalizers: the protection controller does not run here.
    pub async fn delete_volume(&self, volume: &str) -> Result<()> {
        self.patch_volume(volume, json!({"metadata": {"finalizers": null}})).await?;
        self.volumes.delete(&self.name(volume), &DeleteParams::default()).await?;
        Ok(())
    }

    /// Same as [`Storage::delete_volume`], for a claim.
    pub async fn delete_claim(&self, claim: &str) -> Result<()> {
        self.space.patch::<PersistentVolumeClaim>(claim, json!({"metadata": {"finalizers": null}})).await?;
        self.space.delete::<PersistentVolumeClaim>(claim).await
    }

    pub async fn until_volume_phase(&self, volume: &str, phase: &str) -> Result<PersistentVolume> {
        eventually(format!("volume {volume} is {phase}"), || async {
            let found = self.volume(volume).await?;
            ensure!(volume_phase(&found) == phase, "{:?}", found.status);
            Ok(found)
        })
        .await
    }

    pub async fn until_claim_phase(&self, claim: &str, phase: &str) -> Result<PersistentVolumeClaim> {
        eventually(format!("claim {claim} is {phase}"), || async {
            let found = self.claim(claim).await?;
            ensure!(claim_phase(&found) == phase, "{:?}", found.status);
            Ok(found)
        })
        .await
    }

    /// Waits until a claim and a volume are bound to each other, and to nothing else.
    pub async fn until_bound(&self, claim: &str, volume: &str) -> Result<(PersistentVolumeClaim, PersistentVolume)> {
        let claim = self.until_claim_phase(claim, "Bound").await?;
        let volume = self.until_volume_phase(volume, "Bound").await?;
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone()).context("no reference")?;
        ensure!(reference.uid == claim.metadata.uid && reference.name == claim.metadata.name, "{reference:?}");
        let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
        ensure!(named == volume.metadata.name, "{named:?}");
        let status = claim.status.clone().unwrap_or_default();
        let size = status.capacity.unwrap_or_default().get("storage").map(|amount| amount.0.clone());
        ensure!(size.is_some() && status.access_modes.is_some(), "{:?}", claim.status);
        ensure!(has(&claim.metadata.annotations, BIND_COMPLETED), "{:?}", claim.metadata.annotations);
        Ok((claim, volume))
    }
}

pub fn volume_phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn has(annotations: &Option<BTreeMap<String, String>>, key: &str) -> bool {
    annotations.as_ref().is_some_and(|annotations| annotations.contains_key(key))
}

fn using(pod: Value, claim: &str) -> Value {
    with(pod, json!({"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]}}))
}

fn reference(space: &Space, claim: &str) -> Value {
    json!({"spec": {"claimRef": {"namespace": space.namespace, "name": claim}}})
}

pub async fn static_volume_is_bound_with_four_writes(space: Space) -> Result<()> {
    let storage = Storage::new(&space);
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, &FLAGS).await?;
    // The small volume is first, so that a cache in which the large one is available contains the small one, too.
    storage.create_volume("small", json!({})).await?;
    storage.until_volume_phase("small", "Available").await?;
    storage.create_volume("large", json!({"spec": {"capacity": {"storage": "5Gi"}}})).await?;
    storage.until_volume_phase("large", "Available").await?;
    storage.create_claim("data", json!({})).await?;
    let (claim, volume) = storage.until_bound("data", "small").await?;
    ensure!(
        has(&claim.metadata.annotations, BOUND_BY_CONTROLLER) && has(&volume.metadata.annotations, BOUND_BY_CONTROLLER)
    );
    ensure!(volume_phase(&storage.volume("large").await?) == "Available");
    during(QUIET, "the claim stays bound", || async {
        ensure!(claim_phase(&storage.claim("data").await?) == "Bound");
        Ok(())
    })
    .await?;
    let small = storage.name("small");
    let is_binding = |call: &Call| call.name == small || call.name == "data";
    let writes: Vec<String> = faults
        .requests()
        .into_iter()
        .filter(|request| request.call.is_object_write() && is_binding(&request.call) && request.status == Some(200))
        .map(|request| request.call.resource)
        .collect();
    // The first phase, Available, may have been written by the manager of another test.
    let binding =
        ["persistentvolumes", "persistentvolumes/status", "persistentvolumeclaims", "persistentvolumeclaims/status"];
    ensure!(writes.ends_with(&binding.map(str::to_owned)) && writes.len() <= 5, "{writes:?}");
    only_declared(&faults, &[BINDER])
}

pub async fn reservations_from_either_side_are_kept(space: Space) -> Result<()> {
    let storage = Storage::new(&space);
    let _manager = Manager::start_with(&space, &Faults::default(), &FLAGS).await?;
    storage
        .create_volume("reserved", with(reference(&space, "first"), json!({"spec": {"capacity": {"storage": "9Gi"}}})))
        .await?;
    storage.create_volume("free", json!({})).await?;
    storage.create_volume("named", json!({"spec": {"capacity": {"storage": "9Gi"}}})).await?;
    storage.create_claim("first", json!({})).await?;
    let (claim, volume) = storage.until_bound("first", "reserved").await?;
    ensure!(
        has(&claim.metadata.annotations, BOUND_BY_CONTROLLER)
            && !has(&volume.metadata.annotations, BOUND_BY_CONTROLLER)
    );

    storage.create_claim("second", json!({"spec": {"volumeName": storage.name("named")}})).await?;
    let (claim, volume) = storage.until_bound("second", "named").await?;
    ensure!(
        !has(&claim.metadata.annotations, BOUND_BY_CONTROLLER)
            && has(&volume.metadata.annotations, BOUND_BY_CONTROLLER)
    );

    let mismatched =
        json!({"spec": {"volumeName": storage.name("free"), "resources": {"requests": {"storage": "2Gi"}}}});
    storage.create_claim("third", mismatched).await?;
    eventually("the mismatch is reported", || async {
        let events = space.events("third").await?;
        let message = "Cannot bind to requested volume";
        ensure!(
            events.keys().any(|event| event.contains("Warning VolumeMismatch") && event.contains(message)),
            "{events:?}"
        );
        Ok(())
    })
    .await?;
    ensure!(volume_phase(&storage.volume("free").await?) == "Available");
    // The reservation by name outlives its claim.
    storage.delete_claim("first").await?;
    storage.until_volume_phase("reserved", "Released").await?;
    Ok(())
}

pub async fn claim_waits_for_its_pod_and_gets_a_volume_of_the_node(space: Space) -> Result<()> {
    let storage = Storage::new(&space);
    let _manager = Manager::start_with(&space, &Faults::default(), &FLAGS).await?;
    storage.create_class("kubernetes.io/no-provisioner", "WaitForFirstConsumer", "Retain").await?;
    storage.create_claim("data", json!({})).await?;
    eventually("the claim waits", || async {
        let events = space.events("data").await?;
        let waits = "Normal WaitForFirstConsumer waiting for first consumer to be created before binding";
        ensure!(events.contains_key(waits), "{events:?}");
        Ok(())
    })
    .await?;
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(space.bed.client.clone());
    let node = nodes.list(&Default::default()).await?.items.into_iter().find_map(|node| node.metadata.name);
    let node = node.context("no node")?;
    let terms = json!([{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]);
    let affinity = json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}});
    storage.create_volume("local", affinity).await?;
    storage.until_volume_phase("local", "Available").await?;
    during(QUIET, "the claim still waits", || async {
        ensure!(claim_phase(&storage.claim("data").await?) == "Pending");
        Ok(())
    })
    .await?;
    space.create::<Pod>(using(pod("user", "user"), "data")).await?;
    storage.until_bound("data", "local").await?;
    eventually("the pod runs on the node of its volume", || async {
        let pod: Pod = space.get("user").await?;
        ensure!(is_ready(&pod), "{:?}", pod.status);
        ensure!(pod.spec.and_then(|spec| spec.node_name).as_ref() == Some(&node));
        Ok(())
    })
    .await
}

pub async fn binding_is_completed_after_a_crash_at_each_write(space: Space) -> Result<()> {
    let writes =
        ["persistentvolumes", "persistentvolumes/status", "persistentvolumeclaims", "persistentvolumeclaims/status"];
    for (at, resource) in writes.into_iter().enumerate() {
        for (how, effect) in [("before", Effect::CrashBeforeResponse), ("lost", Effect::LostAfter)] {
            let storage = Storage::new(&space);
            let (volume, claim) = (format!("pv-{at}-{how}"), format!("data-{at}-{how}"));
            let name = storage.name(&volume);
            let first = Manager::start_with(&space, &Faults::default(), &FLAGS).await?;
            // The smaller volume is first, so that a cache in which the other one is available contains the smaller
            // one, too.
            storage.create_volume(&volume, json!({})).await?;
            storage.until_volume_phase(&volume, "Available").await?;
            let other = format!("other-{at}-{how}");
            storage.create_volume(&other, json!({"spec": {"capacity": {"storage": "5Gi"}}})).await?;
            storage.until_volume_phase(&other, "Available").await?;
            first.stop().await?;
            let (volume_name, claim_name) = (name.clone(), claim.clone());
            let concerns = move |call: &Call| {
                call.verb == Verb::Update
                    && call.resource == resource
                    && (call.name == volume_name || call.name == claim_name)
            };
            let faults = Faults::script([Rule::new(concerns, effect)]);
            let manager = Manager::start_with(&space, &faults, &FLAGS).await?;
            storage.create_claim(&claim, json!({})).await?;
            if how == "before" {
                faults.crashes().await;
                manager.crash().await;
                let _successor = Manager::start_with(&space, &Faults::default(), &FLAGS).await?;
                storage.until_bound(&claim, &volume).await?;
            } else {
                storage.until_bound(&claim, &volume).await?;
                ensure!(faults.unmet() == 0, "no response was lost: this proves nothing");
            }
            ensure!(volume_phase(&storage.volume(&other).await?) == "Available", "{resource} {how}");
            storage.delete_volume(&other).await?;
        }
    }
    Ok(())
}

pub async fn retained_volume_is_released_and_can_be_made_available_again(space: Space) -> Result<()> {
    let storage = Storage::new(&space);
    let _manager = Manager::start_with(&space, &Faults::default(), &FLAGS).await?;
    storage.create_volume("kept", json!({})).await?;
    storage.create_claim("data", json!({})).await?;
    storage.until_bound("data", "kept").await?;
    storage.delete_claim("data").await?;
    storage.until_volume_phase("kept", "Released").await?;
    // A new claim of the same name does not get the data of the old one.
    storage.create_claim("data", json!({})).await?;
    during(QUIET, "the volume stays released", || async {
        ensure!(volume_phase(&storage.volume("kept").await?) == "Released");
        ensure!(claim_phase(&storage.claim("data").await?) == "Pending");
        Ok(())
    })
    .await?;
    storage.patch_volume("kept", json!({"spec": {"claimRef": null}})).await?;
    storage.until_bound("data", "kept").await?;
    Ok(())
}

pub async fn host_path_volume_is_deleted_with_its_directory(space: Space) -> Result<()> {
    let storage = Storage::new(&space);
    let _manager = Manager::start_with(&space, &Faults::default(), &FLAGS).await?;
    let root = format!("/tmp/{}", space.namespace);
    std::fs::create_dir_all(format!("{root}/kept"))?;
    std::fs::create_dir_all(format!("{root}/deleted/inner"))?;
    for (name, policy) in [("kept", "Retain"), ("deleted", "Delete")] {
        let path = format!("{root}/{name}");
        let fields = json!({"spec": {"persistentVolumeReclaimPolicy": policy, "hostPath": {"path": path}, "storageClassName": format!("{}-{name}", storage.class)}});
        storage.create_volume(name, fields).await?;
        storage.create_claim(name, json!({"spec": {"storageClassName": format!("{}-{name}", storage.class)}})).await?;
        storage.until_bound(name, name).await?;
    }
    // A volume that cannot be deleted: its path is not below /tmp.
    let fields = json!({"spec": {"persistentVolumeReclaimPolicy": "Delete", "hostPath": {"path": "/nowhere"}}});
    storage.create_volume("outside", fields).await?;
    storage.create_claim("outside", json!({})).await?;
    storage.until_bound("outside", "outside").await?;
    for name in ["kept", "deleted", "outside"] {
        storage.delete_claim(name).await?;
    }
    eventually("the directory is deleted", || async {
        ensure!(!Path::new(&format!("{root}/deleted")).exists());
        Ok(())
    })
    .await?;
    eventually("the volume is deleted, except for its protection", || async {
        let found = storage.volumes.get_opt(&storage.name("deleted")).await?;
        ensure!(found.is_none_or(|volume| volume.metadata.deletion_timestamp.is_some()));
        Ok(())
    })
    .await?;
    storage.until_volume_phase("kept", "Released").await?;
    ensure!(Path::new(&format!("{root}/kept")).exists(), "retained data was deleted");
    let failed = storage.until_volume_phase("outside", "Failed").await?;
    let message = failed.status.and_then(|status| status.message).unwrap_or_default();
    ensure!(message == "host_path deleter only supports /tmp/.+ but received provided /nowhere", "{message}");
    std::fs::remove_dir_all(root)?;
    Ok(())
}

pub async fn claim_is_lost_with_its_volume_and_recovers(space: Space) -> Result<()> {
    let storage = Storage::new(&space);
    let _manager = Manager::start_with(&space, &Faults::default(), &FLAGS).await?;
    storage.create_volume("data", json!({})).await?;
    storage.create_claim("data", json!({})).await?;
    storage.until_bound("data", "data").await?;
    storage.delete_volume("data").await?;
    let lost = storage.until_claim_phase("data", "Lost").await?;
    let status = lost.status.unwrap_or_default();
    ensure!(status.capacity.is_none() && status.access_modes.is_none(), "{status:?}");
    eventually("the loss is reported once", || async {
        let events = space.events("data").await?;
        let loss = "Warning ClaimLost Bound claim has lost its PersistentVolume. Data on the volume is lost!";
        ensure!(events.get(loss) == Some(&1), "{events:?}");
        Ok(())
    })
    .await?;
    storage.create_volume("data", json!({})).await?;
    storage.until_bound("data", "data").await?;
    Ok(())
}

/// Creates the volume that the binder has requested for a claim, as an external provisioner does.
async fn provision(storage: &Storage, claim: &str) -> Result<()> {
    let requested = eventually(format!("a volume is requested for {claim}"), || async {
        let found = storage.claim(claim).await?;
        let annotations = found.metadata.annotations.clone().unwrap_or_default();
        ensure!(annotations.get(PROVISIONER).map(String::as_str) == Some(FAKE_PROVISIONER), "{annotations:?}");
        Ok(found)
    })
    .await?;
    let uid = requested.metadata.uid.context("no uid")?;
    let claim_ref = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": storage.space.namespace, "name": claim,
        "uid": uid,
    });
    let volume = serde_json::from_value(json!({
        "metadata": {
            "name": format!("pvc-{uid}"), "annotations": {"pv.kubernetes.io/provisioned-by": FAKE_PROVISIONER},
        },
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": storage.class,
            "persistentVolumeReclaimPolicy": "Delete", "claimRef": claim_ref,
            "csi": {"driver": FAKE_PROVISIONER, "volumeHandle": uid},
        },
    }))?;
    storage.volumes.create(&PostParams::default(), &volume).await?;
    Ok(())
}

pub async fn external_provisioner_is_requested_and_its_volume_is_bound(space: Space) -> Result<()> {
    let storage = Storage::new(&space);
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, &FLAGS).await?;
    // The claim is created before its class.
    storage.create_claim("data", json!({})).await?;
    eventually("the missing class is reported", || async {
        let events = space.events("data").await?;
        let missing = format!("Warning ProvisioningFailed storageclass.storage.k8s.io \"{}\" not found", storage.class);
        ensure!(events.contains_key(&missing), "{events:?}");
        Ok(())
    })
    .await?;
    storage.create_class(FAKE_PROVISIONER, "Immediate", "Delete").await?;
    eventually("the wait is reported", || async {
        let events = space.events("data").await?;
        let waits = format!("either by the external provisioner '{FAKE_PROVISIONER}' or manually");
        ensure!(events.keys().any(|event| event.contains(&waits)), "{events:?}");
        Ok(())
    })
    .await?;
    provision(&storage, "data").await?;
    let bound = storage.until_claim_phase("data", "Bound").await?;
    let volume = bound.spec.and_then(|spec| spec.volume_name).context("no volume")?;
    storage.delete_claim("data").await?;
    eventually("the volume is released", || async {
        let found = storage.volumes.get(&volume).await?;
        ensure!(volume_phase(&found) == "Released", "{:?}", found.status);
        Ok(())
    })
    .await?;
    // The provisioner is responsible for the deletion of the volume.
    during(QUIET, "the volume is left to its provisioner", || async {
        ensure!(storage.volumes.get(&volume).await?.metadata.deletion_timestamp.is_none());
        Ok(())
    })
    .await?;
    only_declared(&faults, &[BINDER])
}

pub async fn stateful_pods_with_claims_start(space: Space) -> Result<()> {
    let storage = Storage::new(&space);
    let controllers = format!("--controllers=statefulset-controller,{BINDER}");
    let flags = [controllers.as_str(), FLAGS[1]];
    let _manager = Manager::start_with(&space, &Faults::default(), &flags).await?;
    storage.create_class(FAKE_PROVISIONER, "WaitForFirstConsumer", "Delete").await?;
    let template = json!([{
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": storage.class,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }]);
    let set = with(stateful_set("web", 2), json!({"spec": {"volumeClaimTemplates": template}}));
    space.create::<StatefulSet>(set).await?;
    provision(&storage, "data-web-0").await?;
    provision(&storage, "data-web-1").await?;
    settled(&space, "web", 2, 1).await?;
    for claim in ["data-web-0", "data-web-1"] {
        storage.until_claim_phase(claim, "Bound").await?;
    }
    Ok(())
}

/// Writes the template of a pod that wipes host-path volumes, with this behaviour. Returns its path, and the flag.
pub fn recycler_template(space: &Space, behaviour: &str) -> Result<(String, String)> {
    let path = format!("/tmp/{}-{behaviour}-recycler.yaml", space.namespace);
    let template = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{namespace: {}, annotations: {{{BEHAVIOUR}: {behaviour}}}}}\nspec:\n  \
         restartPolicy: Never\n  volumes: [{{name: vol}}]\n  containers: [{{name: wipe, image: example.com/wipe}}]\n",
        space.namespace
    );
    std::fs::write(&path, template)?;
    let flag = format!("--pv-recycler-pod-template-filepath-hostpath={path}");
    Ok((path, flag))
}

pub async fn recycled_volume_is_wiped_by_a_pod_and_available_again(space: Space) -> Result<()> {
    let (space, _alone) = alone(&space).await?;
    let storage = Storage::new(&space);
    let (template, flag) = recycler_template(&space, SUCCEED)?;
    let faults = Faults::default();
    let controllers = format!("--controllers=serviceaccount-controller,{BINDER}");
    let _manager = Manager::start_with(&space, &faults, &[&controllers, FLAGS[1], &flag]).await?;
    eventually("pods can be created", || space.get::<ServiceAccount>("default")).await?;
    storage.create_volume("data", json!({"spec": {"persistentVolumeReclaimPolicy": "Recycle"}})).await?;
    storage.create_claim("data", json!({})).await?;
    storage.until_bound("data", "data").await?;
    storage.delete_claim("data").await?;
    let freed = storage.until_volume_phase("data", "Available").await?;
    ensure!(freed.spec.is_some_and(|spec| spec.claim_ref.is_none()), "the volume is still reserved");
    let pod = format!("recycler-for-{}", storage.name("data"));
    let wiped = |request: &&RecordedRequest| {
        request.call.verb == Verb::Delete && request.call.resource == "pods" && request.call.name == pod
    };
    ensure!(faults.requests().iter().filter(wiped).count() == 1, "the pod was not deleted once");
    std::fs::remove_file(template)?;
    only_declared(&faults, &[BINDER])
}

/// A volume whose recycler pod failed keeps its data and its reference to the claim until a later pod succeeds.
pub async fn volume_is_wiped_after_a_recycler_pod_has_failed(space: Space) -> Result<()> {
    let (space, _alone) = alone(&space).await?;
    let storage = Storage::new(&space);
    let controllers = format!("--controllers=serviceaccount-controller,{BINDER}");
    let (failing, flag) = recycler_template(&space, FAIL)?;
    let manager = Manager::start_with(&space, &Faults::default(), &[&controllers, FLAGS[1], &flag]).await?;
    eventually("pods can be created", || space.get::<ServiceAccount>("default")).await?;
    storage.create_volume("data", json!({"spec": {"persistentVolumeReclaimPolicy": "Recycle"}})).await?;
    storage.create_claim("data", json!({})).await?;
    storage.until_bound("data", "data").await?;
    storage.delete_claim("data").await?;
    let failed = storage.until_volume_phase("data", "Failed").await?;
    ensure!(failed.spec.is_some_and(|spec| spec.claim_ref.is_some()), "the volume is free with its data");
    manager.stop().await?;

    let (succeeding, flag) = recycler_template(&space, SUCCEED)?;
    let _manager = Manager::start_with(&space, &Faults::default(), &[&controllers, FLAGS[1], &flag]).await?;
    storage.until_volume_phase("data", "Available").await?;
    for template in [failing, succeeding] {
        std::fs::remove_file(template)?;
    }
    Ok(())
}

pub async fn csi_volumes_are_provisioned_and_deleted_across_a_crash(space: Space) -> Result<()> {
    const CLAIMS: usize = 20;
    let storage = Storage::new(&space);
    let driver = Driver::start(&space.bed.cluster, &space.namespace, &[]).await?;
    let protection = "persistentvolume-protection-controller,persistentvolumeclaim-protection-controller";
    let controllers = format!("--controllers={BINDER},{protection}");
    let flags = [controllers.as_str(), FLAGS[1]];
    let writes = |call: &Call| call.is_object_write() && call.account == "persistent-volume-binder";
    let faults = Faults::script([Rule::new(writes, Effect::CrashBeforeResponse).nth(CLAIMS + CLAIMS / 2)]);
    let manager = Manager::start_with(&space, &faults, &flags).await?;
    storage.create_class(driver.name(), "Immediate", "Delete").await?;
    let names: Vec<String> = (0..CLAIMS).map(|at| format!("data-{at}")).collect();
    for name in &names {
        storage.create_claim(name, json!({})).await?;
    }
    faults.crashes().await;
    manager.crash().await;
    let _successor = Manager::start_with(&space, &Faults::default(), &flags).await?;
    let mut volumes = BTreeSet::new();
    for name in &names {
        let bound = storage.until_claim_phase(name, "Bound").await?;
        volumes.insert(bound.spec.and_then(|spec| spec.volume_name).context("no volume")?);
    }
    ensure!(volumes.len() == CLAIMS, "a volume is bound twice: {volumes:?}");
    for name in &names {
        space.delete::<PersistentVolumeClaim>(name).await?;
    }
    eventually("all volumes are deleted, in the driver too", || async {
        let left: Vec<_> = storage.volumes.list(&Default::default()).await?.items.into_iter().collect();
        let left =
            left.iter().filter(|volume| volume.metadata.name.as_ref().is_some_and(|name| volumes.contains(name)));
        ensure!(left.count() == 0, "volumes are left");
        let history = driver.history()?;
        // A provisioner may repeat a call, which drivers accept. Another volume for a claim would be a leak.
        let of = |verb: &str| history.iter().filter(|line| line.starts_with(verb)).collect::<BTreeSet<_>>().len();
        ensure!(of("create ") == CLAIMS && of("delete ") == CLAIMS, "{history:?}");
        Ok(())
    })
    .await
}
