//! The step with a volume: bound to its claim, protected while a pod uses it, released with its data.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::FutureExt;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::Api;
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use super::environment::DemoEnvironment;
use super::scenario::Step;

const VOLUME: &str = "disk";
const CLAIM: &str = "data";
const POD: &str = "database";

const MANIFEST: &str = "apiVersion: v1
kind: PersistentVolume
metadata: { name: disk }
spec:
  capacity: { storage: 1Gi }
  accessModes: [ReadWriteOnce]
  storageClassName: demo
  persistentVolumeReclaimPolicy: Retain
  hostPath: { path: /var/demo }
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: { name: data }
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: demo
  resources: { requests: { storage: 1Gi } }
---
apiVersion: v1
kind: Pod
metadata: { name: database }
spec:
  terminationGracePeriodSeconds: 0
  containers: [{ name: postgres, image: 'postgres:18' }]
  volumes: [{ name: data, persistentVolumeClaim: { claimName: data } }]
";

/// A pod gets its volume and keeps it.
pub const VOLUMES: Step = Step {
    title: "A pod gets its volume, and keeps it while the claim is being deleted",
    deadline: Duration::from_secs(60),
    run: |environment| keep(environment).boxed(),
};

fn phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|each| each.type_ == "Ready" && each.status == "True"))
}

/// Polls an object until `wanted` returns true; `None` is an absent object.
async fn until<K>(api: &Api<K>, name: &str, wanted: impl Fn(Option<&K>) -> bool) -> Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    loop {
        let object = api.get_opt(name).await.with_context(|| format!("get {name}"))?;
        if wanted(object.as_ref()) {
            return Ok(());
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn keep(environment: &DemoEnvironment) -> Result<String> {
    let volumes: Api<PersistentVolume> = Api::all(environment.client.clone());
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(environment.client.clone());
    let pods: Api<Pod> = Api::default_namespaced(environment.client.clone());
    for line in MANIFEST.lines() {
        environment.console.line(&format!("      {line}"));
    }
    environment.kubectl_with_input(&["apply", "--filename=-"], MANIFEST).await?;
    until(&claims, CLAIM, |claim| claim.is_some_and(is_bound)).await?;
    until(&pods, POD, |pod| pod.is_some_and(is_ready)).await?;
    environment.kubectl(&["get", "persistentvolumes,persistentvolumeclaims"]).await?;

    environment.kubectl(&["delete", "persistentvolumeclaim", CLAIM, "--wait=false"]).await?;
    environment.report_event("the claim is being deleted, and still exists: a pod uses it");
    let claim = claims.get(CLAIM).await.context("the claim was deleted while its pod used it")?;
    ensure!(claim.metadata.deletion_timestamp.is_some() && is_bound(&claim), "{:?}", claim.status);
    environment.kubectl(&["delete", "pod", POD]).await?;
    until(&claims, CLAIM, |claim| claim.is_none()).await?;
    until(&volumes, VOLUME, |volume| volume.is_some_and(|volume| phase(volume) == "Released")).await?;
    environment.kubectl(&["get", "persistentvolumes"]).await?;
    environment.kubectl(&["delete", "persistentvolume", VOLUME]).await?;
    Ok("the claim was deleted after its pod, and the volume was released with its data".to_owned())
}
