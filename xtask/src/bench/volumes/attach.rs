//! Pods with a volume each: started, moved to other nodes, deleted; all together, or a few at a time.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use control_plane::{ControlPlane, Identity, Options};
use kube::Client;
use serde_json::{Value, json};

use super::attacher::Attacher;
use super::kubelets::{Kubelets, pods};
use super::{NAMESPACE, VOLUMES, objects, until};
use crate::bench::measure::{Measurement, Metric, Scenario};
use crate::bench::subject::{Binaries, Checkpoint, ManagerProcess, Mode, Subject};
use crate::bench::{api, kubelets};

/// Numbers of objects.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Pods, each with a volume.
    pub pods: u32,
    /// The nodes that the pods are spread over.
    pub nodes: u32,
}

/// The node of a pod.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Its first node.
    First,
    /// The next node.
    Moved,
}

/// Measures on a separate control plane; the manager's log is copied to `log`.
pub async fn measure(
    binaries: &Binaries,
    (subject, mode): (Subject, Mode),
    (scenario, size): (Scenario, Size),
    log: &Path,
) -> Result<Measurement> {
    let options = Options { kwok: false, scheduler: false, audit: true, ..Options::default() };
    let cluster = ControlPlane::start(options).await?;
    let client = cluster.client(Identity::Admin).await?;
    api::create_namespaces(&client, [NAMESPACE.to_owned()]).await?;
    objects::create_class(&client).await?;
    let _leases = kubelets::Kubelets::start(&client, size.nodes).await?;
    let nodes: Vec<String> = (0..size.nodes).map(node).collect();
    api::each("drivers registered", nodes.iter(), async |node| objects::create_csi_node(&client, node).await).await?;
    api::each("bound claims created", 0..size.pods, async |number| {
        objects::create_bound(&client, NAMESPACE, &objects::claim_name(number)).await
    })
    .await?;
    let attacher = Attacher::start(&client).await?;
    let kubelets = Kubelets::start(&client, &nodes).await?;
    let manager = ManagerProcess::start(&cluster, binaries, subject, mode, &[VOLUMES])?;
    let manager_run = ManagerRun { client: &client, manager: &manager, attacher: &attacher, kubelets: &kubelets, size };
    let measured = manager_run.run(scenario).await;
    manager.keep_log(log)?;
    let (wall, from) = measured?;
    let (to, requests) = (manager.mark()?, manager.requests_since(&from)?);
    let node_writes = requests.of("nodes/status");
    let about = (subject, mode, scenario);
    let mut measurement = Measurement::new(about, Some(wall), (&from, &to), requests);
    measurement.values.insert(Metric::NodeStatusWrites, node_writes as f64);
    Ok(measurement)
}

/// A running manager.
pub struct ManagerRun<'a> {
    client: &'a Client,
    pub manager: &'a ManagerProcess<'a>,
    pub attacher: &'a Attacher,
    pub kubelets: &'a Kubelets,
    pub size: Size,
}

impl ManagerRun<'_> {
    /// Returns the seconds from the first pod to the last detached volume, and the checkpoint before the first pod.
    async fn run(&self, scenario: Scenario) -> Result<(f64, Checkpoint)> {
        self.manager.until_leader(self.client).await?;
        self.manager.until_quiet().await?;
        eprintln!("  {}: {:?}", scenario.name(), self.size);
        let from = self.manager.mark()?;
        let start = Instant::now();
        match scenario {
            Scenario::VolumesMove => self.run_lanes().await?,
            _ => self.run_together(start).await?,
        }
        self.until(|| self.kubelets.pods().0 + self.attacher.attachments() + self.kubelets.attached() == 0).await?;
        let wall = start.elapsed().as_secs_f64();
        let violations = self.attacher.violations();
        ensure!(violations.is_empty(), "volumes were attached to two nodes: {violations:?}");
        self.manager.until_quiet().await?;
        Ok((wall, from))
    }

    /// Starts all pods, then moves all of them, and then deletes all of them.
    async fn run_together(&self, start: Instant) -> Result<()> {
        let numbers = || 0..self.size.pods;
        api::each("pods created", numbers(), async |number| self.create(number, Place::First).await).await?;
        self.until_running("started", start).await?;
        api::each("pods moved", numbers(), async |number| {
            self.end(number, Place::First).await?;
            self.create(number, Place::Moved).await
        })
        .await?;
        self.until_running("moved", start).await?;
        api::each("pods deleted", numbers(), async |number| self.end(number, Place::Moved).await).await.map(drop)
    }

    async fn until_running(&self, what: &str, start: Instant) -> Result<()> {
        let total = self.size.pods as usize;
        self.until(|| self.kubelets.pods() == (total, total)).await?;
        eprintln!("    all pods are {what} after {:.1} s", start.elapsed().as_secs_f64());
        Ok(())
    }

    async fn until(&self, reached: impl Fn() -> bool) -> Result<()> {
        let describe = || {
            let (pods, running) = self.kubelets.pods();
            let (attachments, attached) = (self.attacher.attachments(), self.kubelets.attached());
            format!("{pods} pods, {running} of them running; {attachments} attachments, {attached} in nodes' statuses")
        };
        until(self.manager, describe, reached).await
    }

    /// Creates a pod.
    pub async fn create(&self, number: u32, place: Place) -> Result<()> {
        let on = match place {
            Place::First => number,
            Place::Moved => number + 1,
        };
        let pod = pod(number, place, &node(on % self.size.nodes));
        api::create(self.client, &pods(), "bench", &pod).await.map(drop)
    }

    /// Deletes a pod; its kubelet removes it.
    pub async fn end(&self, number: u32, place: Place) -> Result<()> {
        api::delete_gracefully(self.client, &format!("{}/{}", pods(), name(number, place))).await
    }
}

fn node(number: u32) -> String {
    format!("node-{number}")
}

/// Returns the name of a pod.
pub fn name(number: u32, place: Place) -> String {
    match place {
        Place::First => format!("database-{number}"),
        Place::Moved => format!("database-{number}-moved"),
    }
}

fn pod(number: u32, place: Place, node: &str) -> Value {
    let container = json!({ "name": "main", "image": "registry.example.com/database:1", "volumeMounts": [] });
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name(number, place), "labels": { "app.kubernetes.io/name": "database" } },
        "spec": { "nodeName": node, "containers": [container], "volumes": [] },
    });
    objects::mount(&mut pod, &objects::claim_name(number));
    pod
}
