//! Services whose pods become unready and ready again, many of one Service
//! after the other as in a rolling update: what that costs, and how soon the
//! EndpointSlices show it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use control_plane::{ControlPlane, Identity, Options};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Endpoints;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, WatchEvent, WatchParams};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::api::{self, LOOK_EVERY, Patch, Progress};
use super::measure::{Measurement, Metric, Scenario};
use super::subject::{Binaries, ENDPOINTS, Mode, Running, Subject};
use super::workload::App;

/// Nodes that the pods say they run on; nobody plays their kubelets.
const NODES: u32 = 10;

/// Changes of pods a second,
const RATE: u32 = 100;
/// of so many Services at once,
const ROLLING: u32 = 10;
/// for so many seconds.
const SECONDS: u32 = 20;

/// Changes under way at once.
const AT_ONCE: usize = 24;

/// Most endpoints in a slice.
const SLICE: u32 = 100;

/// How long slices may take to show the last change.
const DEADLINE: Duration = Duration::from_secs(300);

/// Services, each with so many pods.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// How many Services.
    pub services: u32,
    /// The pods of each.
    pub endpoints: u32,
    /// How many namespaces they are spread over.
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

    /// Slices and Endpoints that there are once there is something behind each Service.
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
    pub async fn gather(size: Size) -> Result<Self> {
        let options = Options { kwok: false, scheduler: false, audit: true, ..Options::default() };
        let cluster = ControlPlane::start(options).await?;
        let client = cluster.client(Identity::Admin).await?;
        api::create_namespaces(&client, size.namespaces()).await?;
        let churn = Self { cluster, client, size };
        api::each("nodes made", 0..NODES, async |number| churn.node(number).await).await?;
        api::each("Services made", 0..size.services, async |number| churn.service(number).await).await?;
        let pods = 0..size.services * size.endpoints;
        api::each("pods made", pods, async |number| churn.pod(number).await).await?;
        Ok(churn)
    }

    async fn node(&self, number: u32) -> Result<()> {
        let labels = json!({ "topology.kubernetes.io/zone": format!("zone-{}", number % 3) });
        let metadata = json!({ "name": format!("node-{number}"), "labels": labels });
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata });
        api::create(&self.client, "/api/v1/nodes", "bench", &node).await.map(drop)
    }

    async fn service(&self, number: u32) -> Result<()> {
        let App { namespace, name, .. } = self.size.app(number);
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": name, "namespace": namespace },
            "spec": {
                "selector": { "app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "Helm" },
                "ports": [{ "name": "http", "port": 80, "targetPort": "http" }],
            },
        });
        api::create(&self.client, &format!("/api/v1/namespaces/{namespace}/services"), "bench", &service)
            .await
            .map(drop)
    }

    async fn pod(&self, number: u32) -> Result<()> {
        let (app, index) = (self.size.app(number / self.size.endpoints), number % self.size.endpoints);
        let uid = "00000000-0000-4000-8000-000000000000";
        let pod = app.pod(index, &format!("node-{}", number % NODES), uid);
        let collection = format!("/api/v1/namespaces/{}/pods", app.namespace);
        api::create(&self.client, &collection, "bench", &pod).await?;
        let status = format!("{collection}/{}/status", app.pod_name(index));
        api::patch(&self.client, &status, "bench", Patch::Merge, &app.pod_status(number)).await
    }

    /// Starts a manager, lets it catch up, measures the churn, and ends it; the manager's log is kept at `log`.
    pub async fn measure(&self, binaries: &Binaries, about: (Subject, Mode), log: &Path) -> Result<Measurement> {
        self.forget_slices().await?;
        let manager = Running::start(&self.cluster, binaries, about.0, about.1, &[ENDPOINTS])?;
        let measured = self.course(&manager, about).await;
        manager.keep_log(log)?;
        let ended = manager.end(&self.client).await;
        let measured = measured?;
        ended?;
        Ok(measured)
    }

    /// Has each manager begin with slices of its own.
    async fn forget_slices(&self) -> Result<()> {
        let (deletion, all) = (DeleteParams::default(), ListParams::default());
        for namespace in self.size.namespaces() {
            let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &namespace);
            let endpoints: Api<Endpoints> = Api::namespaced(self.client.clone(), &namespace);
            slices.delete_collection(&deletion, &all).await.context("delete EndpointSlices")?;
            endpoints.delete_collection(&deletion, &all).await.context("delete Endpoints")?;
        }
        Ok(())
    }

    async fn course(&self, manager: &Running<'_>, (subject, mode): (Subject, Mode)) -> Result<Measurement> {
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
        let shown = Shown::follow(&self.client).await?;
        let from = manager.mark()?;
        let start = Instant::now();
        for ready in [false, true] {
            self.roll(&shown, ready).await?;
            until_none(manager, "changes are not shown", async || Ok(shown.awaited())).await?;
        }
        let wall = start.elapsed().as_secs_f64();
        manager.until_quiet().await?;
        let to = manager.mark()?;
        let asked = manager.asked_since(&from)?;
        let mut measured = Measurement::new((subject, mode, Scenario::EndpointChurn), Some(wall), (&from, &to), asked);
        let (middle, tail) = shown.lags().context("no change was shown")?;
        measured.values.extend([(Metric::LagMedian, middle), (Metric::LagTail, tail)]);
        Ok(measured)
    }

    /// Waits until there is something behind each Service: a manager that lists pods is quiet, too.
    async fn until_made(&self, manager: &Running<'_>) -> Result<()> {
        let slices: Api<EndpointSlice> = Api::all(self.client.clone());
        let endpoints: Api<Endpoints> = Api::all(self.client.clone());
        let ours = ListParams::default().fields("metadata.namespace!=default");
        until_none(manager, "slices and Endpoints are not made", async || {
            let slices = slices.list_metadata(&ours).await?.items.len();
            Ok(self.size.objects().saturating_sub(slices + endpoints.list_metadata(&ours).await?.items.len()))
        })
        .await
    }

    /// Changes the readiness of pods, at a steady rate, of some Services in turn.
    async fn roll(&self, shown: &Shown, ready: bool) -> Result<()> {
        let rolling = ROLLING.min(self.size.services);
        let changes = (RATE * SECONDS).min(self.size.services * self.size.endpoints);
        let in_one_go = rolling * self.size.endpoints;
        let mut ticks = interval(Duration::from_secs(1) / RATE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let ticks = stream::unfold(ticks, async |mut ticks| {
            ticks.tick().await;
            Some(((), ticks))
        });
        stream::iter(0..changes)
            .zip(ticks)
            .map(|(number, ())| {
                let (group, within) = (number / in_one_go, number % in_one_go);
                let app = self.size.app(group * rolling + within % rolling);
                self.turn(shown, app, within / rolling, ready)
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    async fn turn(&self, shown: &Shown, app: App, index: u32, ready: bool) -> Result<()> {
        let pod = app.pod_name(index);
        let status = if ready { "True" } else { "False" };
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let condition = json!({ "type": "Ready", "status": status, "lastTransitionTime": now });
        let patch = json!({ "status": { "conditions": [condition] } });
        let path = format!("/api/v1/namespaces/{}/pods/{pod}/status", app.namespace);
        shown.expect(pod, ready);
        api::patch(&self.client, &path, "bench", Patch::Strategic, &patch).await
    }
}

/// Waits until nothing is missing any more; `what` is said of how many things are.
async fn until_none(manager: &Running<'_>, what: &str, missing: impl AsyncFn() -> Result<usize>) -> Result<()> {
    let (start, mut progress) = (Instant::now(), Progress::new());
    loop {
        let count = missing().await?;
        if count == 0 {
            return Ok(());
        }
        manager.check()?;
        ensure!(start.elapsed() < DEADLINE, "{count} {what}:\n{}", manager.last_lines());
        progress.say(|| format!("{count} {what} yet"));
        sleep(LOOK_EVERY).await;
    }
}

/// What slices show, and how long after pods changed.
struct Shown {
    state: Arc<Mutex<State>>,
    watch: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    /// Pods whose change is awaited: their new readiness, and since when.
    awaited: HashMap<String, (bool, Instant)>,
    lags: Vec<f64>,
}

impl Shown {
    async fn follow(client: &Client) -> Result<Self> {
        let slices: Api<EndpointSlice> = Api::all(client.clone());
        let state = Arc::new(Mutex::new(State::default()));
        let seen = state.clone();
        let mut version = slices.list(&ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
        let watch = tokio::spawn(async move {
            let see = |slice: &EndpointSlice| seen.lock().unwrap_or_else(PoisonError::into_inner).see(slice);
            loop {
                if let Ok(events) = slices.watch(&WatchParams::default(), &version).await {
                    let mut events = events.boxed();
                    while let Some(Ok(event)) = events.next().await {
                        if let WatchEvent::Added(slice) | WatchEvent::Modified(slice) = event {
                            see(&slice);
                        }
                    }
                }
                // The server ends the watches of those who are slow.
                if let Ok(list) = slices.list(&ListParams::default()).await {
                    list.items.iter().for_each(see);
                    version = list.metadata.resource_version.unwrap_or_default();
                }
            }
        });
        Ok(Self { state, watch })
    }

    fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn expect(&self, pod: String, ready: bool) {
        self.with(|state| state.awaited.insert(pod, (ready, Instant::now())));
    }

    fn awaited(&self) -> usize {
        self.with(|state| state.awaited.len())
    }

    /// Median and 99th percentile of all lags, in seconds.
    fn lags(&self) -> Option<(f64, f64)> {
        self.with(|state| {
            state.lags.sort_by(f64::total_cmp);
            let at =
                |part: usize| state.lags.get((state.lags.len() * part / 100).min(state.lags.len().max(1) - 1)).copied();
            Some((at(50)?, at(99)?))
        })
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl State {
    fn see(&mut self, slice: &EndpointSlice) {
        for endpoint in slice.endpoints.iter().flatten() {
            let Some(pod) = endpoint.target_ref.as_ref().and_then(|target| target.name.as_ref()) else { continue };
            let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready);
            if let Some((wanted, since)) = self.awaited.get(pod)
                && Some(*wanted) == ready
            {
                self.lags.push(since.elapsed().as_secs_f64());
                self.awaited.remove(pod);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_shown_once_and_by_its_own_readiness() {
        let slice = |ready: bool| -> EndpointSlice {
            let target = json!({ "kind": "Pod", "name": "a" });
            let endpoint = json!({ "addresses": ["10.0.0.1"], "targetRef": target, "conditions": { "ready": ready } });
            serde_json::from_value(json!({ "addressType": "IPv4", "endpoints": [endpoint] })).expect("a slice")
        };
        let mut state = State::default();
        state.awaited.insert("a".into(), (false, Instant::now()));
        state.see(&slice(true));
        assert_eq!((state.awaited.len(), state.lags.len()), (1, 0));
        state.see(&slice(false));
        state.see(&slice(false));
        assert_eq!((state.awaited.len(), state.lags.len()), (0, 1));
    }
}
