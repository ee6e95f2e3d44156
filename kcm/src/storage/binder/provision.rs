//! Provisioning: requests to external provisioners, and directories of the host.
//!
//! Upstream: pkg/controller/volume/persistentvolume, provisionClaim.

use std::sync::Arc;
use std::time::Duration;

use kinds::access_modes::VolumeMode;
use kinds::meta::ObjectKey;
use kinds::metadata_edit::annotated;
use kinds::persistent_volume::{BOUND_BY_CONTROLLER, MIGRATED_TO, PROVISIONED_BY, ReclaimPolicy};
use kinds::persistent_volume_claim::{BETA_STORAGE_PROVISIONER, SELECTED_NODE, STORAGE_PROVISIONER};
use kinds::{Kind, PersistentVolume, PersistentVolumeClaim, StorageClass};
use runtime::worker::Outcome;
use runtime::write::WriteError;
use serde_json::{Value, json};
use tracing::info;

use super::decide_claim::{Cluster, Notice};
use super::draft::{Draft, Stop};
use super::host_path;
use super::migration_edits::annotation_edit;
use super::names::{CONTROLLER_FINALIZER, CREATED_BY, HOST_PATH, IN_TREE, NFS, YES};
use super::reconciler::Binder;
use crate::storage::migration::of_plugin;

/// Time after which an event reports that a requested volume does not exist yet.
///
/// Differs from upstream, which records the event with the request; see docs/differences.md.
const FIRST_EVENT_AFTER: Duration = Duration::from_secs(5);

/// Method by which a class provisions volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provisioning {
    /// By a provisioner with this name outside this process.
    External(String),
    /// Directories of the host.
    HostPath,
    /// No volume is provisioned: the command line disables provisioning.
    Disabled,
    /// Provisioning is impossible: the message of the event.
    Impossible(String),
}

/// Decides how the class with this name provisions volumes; `class` is `None` if there is none. `is_dynamic` is false
/// if provisioning is disabled.
pub fn provisioning(name: &str, class: Option<&StorageClass>, is_dynamic: bool) -> Provisioning {
    if !is_dynamic {
        return Provisioning::Disabled;
    }
    let Some(class) = class else {
        return Provisioning::Impossible(format!("storageclass.storage.k8s.io {name:?} not found"));
    };
    let name = &*class.provisioner;
    match name {
        HOST_PATH => Provisioning::HostPath,
        NFS => Provisioning::Impossible("no provisionable volume plugin matched".to_owned()),
        _ => match of_plugin(name) {
            Some(migrated) => Provisioning::External(migrated.driver.to_owned()),
            None if name.starts_with(IN_TREE) => {
                Provisioning::Impossible(format!("no volume plugin matched name: {name}"))
            }
            None => Provisioning::External(name.to_owned()),
        },
    }
}

/// Returns the changes of annotations that request a volume from a provisioner.
pub fn request_edits<'a>(claim: &PersistentVolumeClaim, provisioner: &'a str) -> Vec<(&'static str, Option<&'a str>)> {
    let mut edits = vec![(STORAGE_PROVISIONER, Some(provisioner)), (BETA_STORAGE_PROVISIONER, Some(provisioner))];
    let migration = annotation_edit(Some(provisioner), claim.annotation(MIGRATED_TO));
    edits.extend(migration.map(|edit| (MIGRATED_TO, edit.value())));
    edits
}

/// Returns the name of the volume that is provisioned for a claim.
fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.meta.uid)
}

/// Returns the reason why the host-path provisioner cannot fill the volume of a claim; `None` if the claim has no data
/// source.
pub fn data_source_problem(claim: &PersistentVolumeClaim) -> Option<String> {
    let why = "is not a CSI plugin. Only CSI plugin can provision a claim with a datasource";
    claim.has_data_source.then(|| format!("plugin {HOST_PATH:?} {why}"))
}

/// Reason why no directory is provisioned.
#[derive(Debug, PartialEq, Eq)]
pub struct Problem {
    /// The message of the event.
    pub message: String,
    /// The scheduler must choose a node again.
    pub releases_node: bool,
}

/// Returns the first reason why the host-path provisioner cannot provision this class and claim; `None` if it can.
pub fn host_path_problem(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    is_enabled: bool,
    has_node: impl Fn(&str) -> bool,
) -> Option<Problem> {
    let before_provisioning = class_problem(class, is_enabled).or_else(|| node_problem(claim, has_node));
    if let Some(message) = before_provisioning {
        return Some(Problem { message, releases_node: false });
    }
    let why = format!("{HOST_PATH} does not support block volume provisioning");
    let message = provisioning_failed(class, &why);
    (claim.volume_mode == VolumeMode::Block).then_some(Problem { message, releases_node: true })
}

fn class_problem(class: &StorageClass, is_enabled: bool) -> Option<String> {
    if !class.mount_options.is_empty() {
        let options: Vec<&str> = class.mount_options.iter().map(|option| &**option).collect();
        let name = &*class.meta.name;
        let options = options.join(" ");
        return Some(format!(
            "Mount options are not supported by the provisioner but StorageClass {name:?} has mount options [{options}]"
        ));
    }
    let why = format!("provisioning in volume plugin {HOST_PATH:?} is disabled");
    (!is_enabled).then(|| format!("Failed to create provisioner: {why}"))
}

/// Returns the reason why a volume cannot be provisioned for the node that the scheduler chose; `None` if it can, or if
/// the scheduler has not chosen a node. An empty annotation names a node that does not exist.
pub fn node_problem(claim: &PersistentVolumeClaim, has_node: impl Fn(&str) -> bool) -> Option<String> {
    let node = claim.annotation(SELECTED_NODE).filter(|node| !has_node(node))?;
    Some(format!("Failed to get target node: node {node:?} not found"))
}

fn provisioning_failed(class: &StorageClass, why: &str) -> String {
    format!("Failed to provision volume with StorageClass {:?}: {why}", &*class.meta.name)
}

/// Returns the volume of a directory, already bound to its claim.
fn host_path_volume(claim: &PersistentVolumeClaim, class: &StorageClass, path: &str) -> Value {
    let is_deleted = class.reclaim_policy == ReclaimPolicy::Delete;
    let finalizers: &[&str] = if is_deleted { &[CONTROLLER_FINALIZER] } else { &[] };
    let modes: Vec<&str> = match &*claim.access_modes {
        [] => vec!["ReadWriteOnce"],
        modes => modes.iter().map(|mode| &**mode).collect(),
    };
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": volume_name(claim),
            "annotations": {
                BOUND_BY_CONTROLLER: YES, PROVISIONED_BY: HOST_PATH, CREATED_BY: "hostpath-dynamic-provisioner",
            },
            "finalizers": finalizers,
        },
        "spec": {
            "capacity": {"storage": &*claim.request},
            "accessModes": modes,
            "persistentVolumeReclaimPolicy": if is_deleted { "Delete" } else { "Retain" },
            "storageClassName": claim.class(),
            "hostPath": {"path": path},
            "claimRef": {
                "kind": "PersistentVolumeClaim", "apiVersion": "v1",
                "namespace": &*claim.meta.namespace, "name": &*claim.meta.name,
                "uid": claim.meta.uid.to_string(), "resourceVersion": claim.meta.version.to_string(),
            },
        },
    })
}

impl Binder {
    /// Requests a volume for a claim from an external provisioner, or creates a host-path volume. Records an event if
    /// the class cannot provision volumes.
    pub async fn provision(&self, claim: &Arc<PersistentVolumeClaim>, class: &str) -> Result<Outcome, Stop> {
        let later = Outcome::RequeueAfter(self.settings.sync_period);
        let found = self.class(class);
        match provisioning(class, found.as_deref(), self.settings.is_dynamic) {
            Provisioning::Disabled => Ok(later),
            Provisioning::Impossible(why) => Ok(self.wait_for_class(claim, why)),
            Provisioning::External(provisioner) => {
                let elapsed = self.operations.provision_started(claim, &provisioner);
                self.request_volume(claim, &provisioner).await?;
                if elapsed < FIRST_EVENT_AFTER {
                    return Ok(Outcome::RequeueAfter(FIRST_EVENT_AFTER - elapsed));
                }
                let message = format!(
                    "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually \
                     by the system administrator. If volume creation is delayed, please verify that the provisioner is \
                     running and correctly registered."
                );
                self.notices.record_waiting(&**claim, &Notice::normal("ExternalProvisioning", message));
                Ok(later)
            }
            Provisioning::HostPath => {
                self.operations.provision_started(claim, HOST_PATH);
                if let Some(class) = found {
                    self.provision_directory(claim, &class).await?;
                }
                Ok(later)
            }
        }
    }

    /// Sets the annotations that request a volume, unless they are set.
    async fn request_volume(&self, claim: &PersistentVolumeClaim, provisioner: &str) -> Result<(), Stop> {
        if claim.annotation(STORAGE_PROVISIONER) == Some(provisioner) {
            return Ok(());
        }
        let written = async {
            let mut draft = Draft::open(&self.claims, &self.writer, claim).await?;
            draft.put(None, |object| annotated(object, &request_edits(claim, provisioner))).await
        };
        let result = written.await;
        if let Err(Stop::Failed(error)) = &result {
            self.operations.provision_failed(&claim.meta.key());
            let message = format!("Error saving claim: {error}");
            self.notices.record_waiting(claim, &Notice::warning("ProvisioningFailed", message));
        }
        result
    }

    async fn provision_directory(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<(), Stop> {
        if let Some(problem) = data_source_problem(claim) {
            return Err(self.fail_provisioning(claim, problem));
        }
        if claim.annotation(STORAGE_PROVISIONER) != Some(HOST_PATH) {
            // The claim is requeued by the change of its annotations.
            return self.request_volume(claim, HOST_PATH).await;
        }
        let name = volume_name(claim);
        let key = ObjectKey::new("", name.as_str());
        match self.writer.get(&PersistentVolume::RESOURCE, &key).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(Stop::Failed(error)),
        }
        let is_enabled = self.settings.has_host_path;
        if let Some(problem) = host_path_problem(claim, class, is_enabled, |node| self.has_node(node)) {
            let failed = self.fail_provisioning(claim, problem.message);
            if problem.releases_node {
                self.release_node(claim).await?;
            }
            return Err(failed);
        }
        let path = host_path::directory(&claim.meta.uid.to_string());
        if let Err(error) = create_directory(path.clone()).await {
            let failed = self.fail_provisioning(claim, provisioning_failed(class, &error));
            self.release_node(claim).await?;
            return Err(failed);
        }
        let volume = host_path_volume(claim, class, &path);
        match self.writer.create_json(&PersistentVolume::RESOURCE, "", &volume).await {
            Ok(_) => {}
            Err(error) if error.is_already_exists() => return Ok(()),
            Err(error) => return Err(self.clean_up(claim, &path, error).await),
        }
        info!(claim = %claim.meta.key(), volume = name, path, "provisioned host-path volume");
        let message = format!("Successfully provisioned volume {name} using {HOST_PATH}");
        self.notices.record(claim, &Notice::normal("ProvisioningSucceeded", message));
        Ok(())
    }

    /// Deletes the directory of a volume that the API server refused. The volume may exist if the response was lost or is
    /// inconclusive, so the directory then stays for the next attempt.
    async fn clean_up(&self, claim: &PersistentVolumeClaim, path: &str, error: WriteError) -> Stop {
        if error.refused().is_none() {
            return Stop::Failed(error);
        }
        let key = claim.meta.key();
        let message = format!("Error creating provisioned PV object for claim {key}: {error}");
        if error.is_lost() {
            return self.fail_provisioning(claim, message);
        }
        let message = format!("{message}. Deleting the volume.");
        let stop = self.fail_provisioning(claim, message);
        let path = path.to_owned();
        let deleted = tokio::task::spawn_blocking(move || host_path::delete(&path)).await;
        if let Err(problem) = deleted.unwrap_or_else(|panicked| Err(panicked.to_string())) {
            let message =
                format!("Error cleaning provisioned volume for claim {key}: {problem}. Please delete manually.");
            self.notices.record(claim, &Notice::warning("ProvisioningCleanupFailed", message));
        }
        stop
    }

    /// Removes the annotation with the chosen node, so that the scheduler chooses again.
    async fn release_node(&self, claim: &PersistentVolumeClaim) -> Result<(), Stop> {
        if claim.annotation(SELECTED_NODE).is_none() {
            return Ok(());
        }
        let mut draft = Draft::open(&self.claims, &self.writer, claim).await?;
        draft.put(None, |object| annotated(object, &[(SELECTED_NODE, None)])).await
    }

    fn fail_provisioning(&self, claim: &PersistentVolumeClaim, message: String) -> Stop {
        self.operations.provision_failed(&claim.meta.key());
        self.notices.record_waiting(claim, &Notice::warning("ProvisioningFailed", message.as_str()));
        Stop::Error(message)
    }
}

async fn create_directory(path: String) -> Result<(), String> {
    let created = tokio::task::spawn_blocking(move || host_path::create(&path)).await;
    match created {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}
