//! Claims that are created together, provisioned by a driver without delay, and bound.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::Result;
use control_plane::lock::lock;
use control_plane::{ControlPlane, Identity, Options};
use futures::StreamExt;
use futures::channel::mpsc::{self, UnboundedSender};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Api, Client, ResourceExt};

use super::follow::{Change, Task, follow};
use super::{NAMESPACE, PARALLEL, VOLUMES, objects, until};
use crate::bench::api;
use crate::bench::measure::{Measurement, Scenario};
use crate::bench::subject::{Binaries, ManagerProcess, Mode, Subject};

/// Annotation of a claim that a provisioner has to serve.
const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// Measures on a separate control plane; the manager's log is copied to `log`.
pub async fn measure(
    binaries: &Binaries,
    (subject, mode): (Subject, Mode),
    claims: u32,
    log: &Path,
) -> Result<Measurement> {
    let options = Options { kwok: false, scheduler: false, audit: true, ..Options::default() };
    let cluster = ControlPlane::start(options).await?;
    let client = cluster.client(Identity::Admin).await?;
    api::create_namespaces(&client, [NAMESPACE.to_owned()]).await?;
    objects::create_class(&client).await?;
    let provisioner = Provisioner::start(&client).await?;
    let manager = ManagerProcess::start(&cluster, binaries, subject, mode, &[VOLUMES])?;
    let measured = run(&client, &manager, &provisioner, claims).await;
    manager.keep_log(log)?;
    let (seconds, from) = measured?;
    let to = manager.mark()?;
    let about = (subject, mode, Scenario::VolumesProvision);
    Ok(Measurement::new(about, Some(seconds), (&from, &to), manager.requests_since(&from)?))
}

/// Returns the seconds from the first claim to the last binding, and the checkpoint before the first claim.
async fn run(
    client: &Client,
    manager: &ManagerProcess<'_>,
    provisioner: &Provisioner,
    count: u32,
) -> Result<(f64, crate::bench::subject::Checkpoint)> {
    manager.until_leader(client).await?;
    manager.until_quiet().await?;
    eprintln!("  {}: {count} claims", Scenario::VolumesProvision.name());
    let from = manager.mark()?;
    let start = Instant::now();
    let collection = objects::claims(NAMESPACE);
    api::each("claims created", 0..count, async |number| {
        let claim = objects::claim(&objects::claim_name(number));
        api::create(client, &collection, "bench", &claim).await.map(drop)
    })
    .await?;
    let total = count as usize;
    let describe = || format!("bound: {:?} of {count} (claims, volumes)", provisioner.bound());
    until(manager, describe, || provisioner.bound() == (total, total)).await?;
    let seconds = start.elapsed().as_secs_f64();
    manager.until_quiet().await?;
    Ok((seconds, from))
}

/// A provisioner that creates a volume for each claim that requests one, like csi-provisioner, and counts bound claims
/// and volumes.
struct Provisioner {
    bound: Arc<Mutex<BoundObjects>>,
    _tasks: [Task; 3],
}

#[derive(Default)]
struct BoundObjects {
    claims: HashSet<String>,
    volumes: HashSet<String>,
}

impl Provisioner {
    async fn start(client: &Client) -> Result<Self> {
        let bound = Arc::new(Mutex::new(BoundObjects::default()));
        let (requests, requested) = mpsc::unbounded();
        let claim_state = bound.clone();
        let mut started = HashSet::new();
        let claims = follow(Api::namespaced(client.clone(), NAMESPACE), move |change| {
            if let Change::Applied(claim) = change {
                lock(&claim_state).apply_claim(&claim);
                request(&claim, &mut started, &requests);
            }
        })
        .await?;
        let volume_state = bound.clone();
        let volumes = follow(Api::all(client.clone()), move |change| {
            if let Change::Applied(volume) = change {
                lock(&volume_state).apply_volume(&volume);
            }
        })
        .await?;
        let client = client.clone();
        let provisioning =
            Task::spawn(requested.for_each_concurrent(PARALLEL, move |(name, uid): (String, String)| {
                let client = client.clone();
                async move {
                    let volume = objects::volume(&format!("pvc-{uid}"), NAMESPACE, &name, &uid);
                    if let Err(error) = api::create(&client, objects::VOLUMES, "csi-provisioner", &volume).await {
                        eprintln!("  the claim {name} gets no volume: {error:#}");
                    }
                }
            }));
        Ok(Self { bound, _tasks: [claims, volumes, provisioning] })
    }

    /// Returns the numbers of bound claims and of bound volumes.
    fn bound(&self) -> (usize, usize) {
        let bound = lock(&self.bound);
        (bound.claims.len(), bound.volumes.len())
    }
}

/// Requests a volume for a claim, once.
fn request(claim: &PersistentVolumeClaim, started: &mut HashSet<String>, requests: &UnboundedSender<(String, String)>) {
    let is_ours = claim.annotations().get(STORAGE_PROVISIONER).is_some_and(|name| name == objects::DRIVER);
    let uid = claim.uid().unwrap_or_default();
    if is_ours && started.insert(uid.clone()) {
        // The receiver lives as long as the claims are followed.
        let _ = requests.unbounded_send((claim.name_any(), uid));
    }
}

impl BoundObjects {
    fn apply_claim(&mut self, claim: &PersistentVolumeClaim) {
        if claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound") {
            self.claims.insert(claim.name_any());
        }
    }

    fn apply_volume(&mut self, volume: &PersistentVolume) {
        if volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound") {
            self.volumes.insert(volume.name_any());
        }
    }
}
