//! A start in a cluster with hundreds of custom kinds, as on platforms with many operators, and the cost of watching
//! them.
//!
//! Each kind has one object whose owner does not exist. Once all of these objects are deleted, the garbage collector
//! has listed every kind, and the idle period begins. The managers run one after the other on the same API server,
//! which has its default flags.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use control_plane::{ControlPlane, CustomKind, Identity, Options};
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::api::{self, POLL_INTERVAL, Progress};
use super::measure::{Measurement, Scenario};
use super::subject::{Binaries, ManagerProcess, Mode, Subject, all_controllers};
use super::workload::App;

/// The group of the custom kinds.
const GROUP: &str = "many.example.com";

/// The namespace of everything that is created.
const NAMESPACE: &str = "bench";

/// The name of the object of each kind.
const GARBAGE: &str = "garbage";

/// Maximum time to wait for a state.
const DEADLINE: Duration = Duration::from_secs(600);

/// A control plane with many custom kinds.
pub struct ManyKinds {
    cluster: ControlPlane,
    client: Client,
    kinds: u32,
    starts: u32,
}

impl ManyKinds {
    /// Starts a control plane and creates the kinds.
    pub async fn create(kinds: u32) -> Result<Self> {
        let options = Options { kwok: false, scheduler: false, audit: true, ..Options::default() };
        let cluster = ControlPlane::start(options).await?;
        let client = cluster.client(Identity::Admin).await?;
        api::create_namespaces(&client, [NAMESPACE.to_owned()]).await?;
        eprintln!("  creating {kinds} kinds");
        let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        api::each("kinds created", 0..kinds, async |number| {
            api::create(&client, definitions, "bench", &CustomKind::new(GROUP, format!("Kind{number}")).definition())
                .await
                .map(drop)
        })
        .await?;
        let bed = Self { cluster, client, kinds, starts: 0 };
        bed.until("kinds are not served", async || Ok(bed.served().await? == kinds as usize)).await?;
        Ok(bed)
    }

    /// Returns the number of the group's kinds in the API server's discovery document.
    async fn served(&self) -> Result<usize> {
        let request = Request::get(format!("/apis/{GROUP}/v1")).body(Vec::new())?;
        // The group does not exist before its first kind is served.
        let Ok(list) = self.client.request::<Value>(request).await else { return Ok(0) };
        Ok(list["resources"].as_array().map_or(0, Vec::len))
    }

    /// Starts a manager and measures it from its start until the end of an idle period; its log is copied to `log`.
    /// The wall time ends when the first pod exists.
    pub async fn measure(
        &mut self,
        binaries: &Binaries,
        (subject, mode): (Subject, Mode),
        idle: Duration,
        log: &Path,
    ) -> Result<Measurement> {
        self.starts += 1;
        api::each("objects created", 0..self.kinds, async |number| {
            api::create(&self.client, &collection(number), "bench", &garbage(number)).await.map(drop)
        })
        .await?;
        let app = App { namespace: NAMESPACE.into(), name: format!("waiting-{}", self.starts), replicas: 1 };
        let replica_sets = format!("/apis/apps/v1/namespaces/{NAMESPACE}/replicasets");
        api::create(&self.client, &replica_sets, "bench", &app.replica_set_alone()).await?;

        let flags = all_controllers(&self.cluster);
        let manager = ManagerProcess::start(&self.cluster, binaries, subject, mode, &flags)?;
        let measured = self.run_scenario(&manager, (subject, mode), idle).await;
        let kept = manager.keep_log(log);
        let ended = manager.end(&self.client).await;
        // The objects are deleted even after a failure: the next manager must find neither the ReplicaSet nor its pod.
        api::delete(&self.client, &format!("{replica_sets}/{}", app.replica_set())).await?;
        for pod in self.pods().list_metadata(&ListParams::default()).await?.items {
            let name = pod.metadata.name.unwrap_or_default();
            api::delete(&self.client, &format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}")).await?;
        }
        let measured = measured?;
        ended?;
        kept?;
        Ok(measured)
    }

    async fn run_scenario(
        &self,
        manager: &ManagerProcess<'_>,
        (subject, mode): (Subject, Mode),
        idle: Duration,
    ) -> Result<Measurement> {
        let has_pod = async || {
            manager.check()?;
            Ok(!self.pods().list_metadata(&ListParams::default().limit(1)).await?.items.is_empty())
        };
        self.until("no pod is created", has_pod).await.with_context(|| manager.last_lines())?;
        let wall = manager.started.elapsed().as_secs_f64();
        eprintln!("  first pod after {wall:.1} s");
        for number in 0..self.kinds {
            let is_deleted = async || {
                manager.check()?;
                self.is_garbage_deleted(number).await
            };
            self.until("garbage exists", is_deleted).await.with_context(|| manager.last_lines())?;
        }
        manager.until_at_rest().await?;
        eprintln!("  idle period of {} s, to measure memory", idle.as_secs());
        sleep(idle).await;
        let to = manager.mark()?;
        let requests = manager.requests_since(&manager.initial)?;
        Ok(Measurement::new((subject, mode, Scenario::ManyKinds), Some(wall), (&manager.initial, &to), requests))
    }

    async fn is_garbage_deleted(&self, number: u32) -> Result<bool> {
        let request = Request::get(format!("{}?limit=1", collection(number))).body(Vec::new())?;
        let list: Value = self.client.request(request).await.context("list garbage")?;
        Ok(list["items"].as_array().is_some_and(Vec::is_empty))
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn until(&self, waiting: &str, reached: impl AsyncFn() -> Result<bool>) -> Result<()> {
        let (start, mut progress) = (Instant::now(), Progress::new());
        while !reached().await? {
            ensure!(start.elapsed() < DEADLINE, "{waiting} after {} s", DEADLINE.as_secs());
            progress.report(|| format!("{:.0} s: {waiting}", start.elapsed().as_secs_f64()));
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

fn collection(number: u32) -> String {
    format!("/apis/{GROUP}/v1/namespaces/{NAMESPACE}/kind{number}s")
}

/// Returns an object whose owner does not exist.
fn garbage(number: u32) -> Value {
    let owner = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": "absent", "uid": "00000000-0000-4000-8000-000000000001",
    });
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": format!("Kind{number}"),
        "metadata": { "name": GARBAGE, "ownerReferences": [owner] },
    })
}
