//! Pods of Services become unready and ready again, one after the other within a Service, as in a rolling update.
//! Measures the cost, and the time until the EndpointSlices show each change.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use control_plane::{ControlPlane, Identity, Options};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Endpoints;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::api::{self, POLL_INTERVAL, Progress};
use super::measure::{Measurement, Metric, Scenario};
use super::services;
use super::slices::SliceWatch;
use super::subject::{Binaries, ENDPOINTS, ManagerProcess, Mode, Subject};
use super::workload::App;

/// Changes of pods per second.
const RATE: u32 = 100;
/// The number of Services whose pods change at the same time.
const ROLLING: u32 = 10;
/// Maximum number of seconds in which pods become unready, and in which they become ready again.
const SECONDS: u32 = 20;

/// Maximum number of parallel changes.
const PARALLEL: usize = 24;

/// Maximum number of endpoints in a slice.
const SLICE: u32 = 100;

/// Maximum time until all slices exist, and until they show the last change.
const DEADLINE: Duration = Duration::from_secs(300);

/// Numbers of objects.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Services.
    pub services: u32,
    /// Pods of each Service.
    pub endpoints: u32,
    /// Namespaces of the Services.
    pub namespaces: u32,
}

impl Size {
    fn namespaces(self) -> impl Iterator<Item = String> {
        (0..self.namespaces.min(self.services)).map(namespace)
    }

    fn app(self, service: u32) -> App {
        App {
            namespace: namespace(service % self.namespaces),
            name: format!("app-{service}"),
            replicas: self.endpoints,
        }
    }

    /// Returns the number of EndpointSlices and Endpoints when all Services have theirs.
    fn objects(self) -> usize {
        (self.services * (1 + self.endpoints.div_ceil(SLICE))) as usize
    }
}

fn namespace(number: u32) -> String {
    format!("churn-{number}")
}

/// A control plane with Services and pods.
pub struct Churn {
    cluster: ControlPlane,
    client: Client,
    size: Size,
}

impl Churn {
    /// Starts a control plane and fills it.
    pub async fn create(size: Size) -> Result<Self> {
        let options = Options { kwok: false, scheduler: false, audit: true, ..Options::default() };
        let cluster = ControlPlane::start(options).await?;
        let client = cluster.client(Identity::Admin).await?;
        api::create_namespaces(&client, size.namespaces()).await?;
        let churn = Self { cluster, client, size };
        services::create_nodes(&churn.client).await?;
        let service = async |number| services::create_service(&churn.client, &size.app(number)).await;
        api::each("Services created", 0..size.services, service).await?;
        let pod = async |number| {
            let (app, index) = (size.app(number / size.endpoints), number % size.endpoints);
            services::create_pod(&churn.client, &app, index, number).await
        };
        api::each("pods created", 0..size.services * size.endpoints, pod).await?;
        Ok(churn)
    }

    /// Starts a manager, waits until it is quiet, measures the churn, and ends the manager; its log is copied to `log`.
    pub async fn measure(&self, binaries: &Binaries, about: (Subject, Mode), log: &Path) -> Result<Measurement> {
        self.delete_slices().await?;
        let manager = ManagerProcess::start(&self.cluster, binaries, about.0, about.1, &[ENDPOINTS])?;
        let measured = self.run_scenario(&manager, about).await;
        let kept = manager.keep_log(log);
        let ended = manager.end(&self.client).await;
        let measured = measured?;
        ended?;
        kept?;
        Ok(measured)
    }

    /// Deletes all slices and Endpoints, so that each manager creates its own.
    async fn delete_slices(&self) -> Result<()> {
        let (deletion, all) = (DeleteParams::default(), ListParams::default());
        for namespace in self.size.namespaces() {
            let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &namespace);
            let endpoints: Api<Endpoints> = Api::namespaced(self.client.clone(), &namespace);
            slices.delete_collection(&deletion, &all).await.context("delete EndpointSlices")?;
            endpoints.delete_collection(&deletion, &all).await.context("delete Endpoints")?;
        }
        Ok(())
    }

    async fn run_scenario(
        &self,
        manager: &ManagerProcess<'_>,
        (subject, mode): (Subject, Mode),
    ) -> Result<Measurement> {
        manager.until_leader(&self.client).await?;
        self.until_made(manager).await?;
        manager.until_quiet().await?;
        eprintln!(
            "  {}: {} Services of {} pods in {} namespaces",
            Scenario::EndpointChurn.name(),
            self.size.services,
            self.size.endpoints,
            self.size.namespaces
        );
        let shown = SliceWatch::start(&self.client).await?;
        let from = manager.mark()?;
        let start = Instant::now();
        for ready in [false, true] {
            self.roll(&shown, ready).await?;
            until_none(manager, "changes are not in a slice", async || Ok(shown.pending())).await?;
        }
        let wall = start.elapsed().as_secs_f64();
        manager.until_quiet().await?;
        let to = manager.mark()?;
        let requests = manager.requests_since(&from)?;
        let mut measured =
            Measurement::new((subject, mode, Scenario::EndpointChurn), Some(wall), (&from, &to), requests);
        let (middle, tail) = shown.take_lags().context("no change appeared in an EndpointSlice")?;
        measured.values.extend([(Metric::LagMedian, middle), (Metric::LagTail, tail)]);
        Ok(measured)
    }

    /// Waits until all slices and Endpoints exist. It is not enough that the manager sends no requests: it may still be
    /// listing pods.
    async fn until_made(&self, manager: &ManagerProcess<'_>) -> Result<()> {
        let slices: Api<EndpointSlice> = Api::all(self.client.clone());
        let endpoints: Api<Endpoints> = Api::all(self.client.clone());
        let ours = ListParams::default().fields("metadata.namespace!=default");
        until_none(manager, "slices and Endpoints do not exist", async || {
            let slices = slices.list_metadata(&ours).await?.items.len();
            Ok(self.size.objects().saturating_sub(slices + endpoints.list_metadata(&ours).await?.items.len()))
        })
        .await
    }

    /// Changes the readiness of pods at a steady rate, of [`ROLLING`] Services at a time.
    async fn roll(&self, shown: &SliceWatch, ready: bool) -> Result<()> {
        let rolling = ROLLING.min(self.size.services);
        // Whole groups of Services, each of which has the same number of changes.
        let changes = (RATE * SECONDS).min(self.size.services / rolling * rolling * self.size.endpoints);
        let per_group = rolling * self.size.endpoints;
        let mut ticks = interval(Duration::from_secs(1) / RATE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let ticks = stream::unfold(ticks, async |mut ticks| {
            ticks.tick().await;
            Some(((), ticks))
        });
        stream::iter(0..changes)
            .zip(ticks)
            .map(|(number, ())| {
                let (group, within) = (number / per_group, number % per_group);
                let app = self.size.app(group * rolling + within % rolling);
                self.change(shown, app, within / rolling, ready)
            })
            .buffer_unordered(PARALLEL)
            .try_collect()
            .await
    }

    async fn change(&self, shown: &SliceWatch, app: App, index: u32, ready: bool) -> Result<()> {
        let pod = app.pod_name(index);
        shown.expect(pod.clone(), ready);
        services::set_ready(&self.client, &app.namespace, &pod, ready).await
    }
}

/// Waits until nothing is missing; `what` describes the missing things in the error.
pub async fn until_none(
    manager: &ManagerProcess<'_>,
    what: &str,
    missing: impl AsyncFn() -> Result<usize>,
) -> Result<()> {
    let (start, mut progress) = (Instant::now(), Progress::new());
    loop {
        let count = missing().await?;
        if count == 0 {
            return Ok(());
        }
        manager.check()?;
        ensure!(start.elapsed() < DEADLINE, "{count} {what}:\n{}", manager.last_lines());
        progress.report(|| format!("{count} {what} yet"));
        sleep(POLL_INTERVAL).await;
    }
}
