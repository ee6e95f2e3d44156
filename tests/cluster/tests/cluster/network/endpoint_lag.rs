//! The lag of EndpointSlices behind the readiness of pods.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster_tests::{Call, DEADLINE, Effect, Faults, Manager, Rule, Space, Verb, eventually};
use control_plane::behaviour::{BEHAVIOUR, PENDING};
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use serde_json::json;
use tokio::time::timeout;

/// Number of pods of the Service. The lag must not grow with it.
const PODS: usize = 60;

/// Changes that arrive one by one.
const CHANGES: usize = 20;

/// Maximum lag of a change, in round trips of a write and its watch event. Two are needed: for the pod's event, and for
/// the slice's write with its event. The others are a reserve for a busy machine.
const LAG_IN_ROUND_TRIPS: u32 = 8;

/// The events of a kind since the start of a watch.
struct Changes<K>(BoxStream<'static, Result<WatchEvent<K>, kube::Error>>);

impl<K: cluster_tests::Namespaced + 'static> Changes<K> {
    async fn follow(space: &Space) -> Result<Self> {
        let api = space.api::<K>();
        let version = api.list_metadata(&ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
        Ok(Self(api.watch(&WatchParams::default(), &version).await?.boxed()))
    }

    /// Waits until an object satisfies `is_wanted`.
    async fn until(&mut self, what: &str, mut is_wanted: impl FnMut(&K) -> bool) -> Result<()> {
        let found = async {
            while let Some(event) = self.0.try_next().await? {
                if let WatchEvent::Added(object) | WatchEvent::Modified(object) = &event
                    && is_wanted(object)
                {
                    return Ok(());
                }
            }
            anyhow::bail!("the watch has ended")
        };
        timeout(DEADLINE, found).await.with_context(|| format!("not observed: {what}"))?
    }
}

fn pod_name(number: usize) -> String {
    format!("web-{number}")
}

async fn set_ready(space: &Space, number: usize, ready: bool) -> Result<()> {
    let status = if ready { "True" } else { "False" };
    let address = format!("10.9.0.{}", number + 1);
    let conditions = json!([{"type": "Ready", "status": status, "lastTransitionTime": "2026-01-05T08:30:00Z"}]);
    let status = json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions});
    space.patch_status::<Pod>(&pod_name(number), json!({"status": status})).await?;
    Ok(())
}

/// Returns true if a slice contains the pod with this readiness.
fn contains(slice: &EndpointSlice, number: usize, ready: bool) -> bool {
    let name = pod_name(number);
    slice.endpoints.iter().flatten().any(|endpoint| {
        let is_pod = endpoint.target_ref.as_ref().is_some_and(|target| target.name.as_ref() == Some(&name));
        is_pod && endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) == Some(ready)
    })
}

/// Creates a Service with ready pods that only this test changes, and waits for its slice.
async fn create_service(space: &Space, pods: usize) -> Result<()> {
    let port = json!([{"name": "web", "port": 80}]);
    let service = json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": port}});
    space.create::<Service>(service).await?;
    let nodes: Api<Node> = Api::all(space.bed.client.clone());
    let node = nodes.list_metadata(&ListParams::default().limit(1)).await?.items.pop().context("no node")?;
    for number in 0..pods {
        let metadata = json!({"name": pod_name(number), "labels": {"app": "web"}, "annotations": {BEHAVIOUR: PENDING}});
        let containers = json!([{"name": "main", "image": "example.com/image:1"}]);
        let spec = json!({"nodeName": node.metadata.name, "containers": containers});
        space.create::<Pod>(json!({"metadata": metadata, "spec": spec})).await?;
        set_ready(space, number, true).await?;
    }
    eventually("all pods are ready in the slice", || async {
        let slices = space.list::<EndpointSlice>("").await?;
        ensure!((0..pods).all(|number| slices.iter().any(|slice| contains(slice, number, true))), "{slices:?}");
        Ok(())
    })
    .await
}

/// Creates a Service with one ready pod, and waits for its slice.
async fn create_other_service(space: &Space) -> Result<()> {
    let spec = json!({"selector": {"app": "other"}, "ports": [{"name": "web", "port": 80}]});
    space.create::<Service>(json!({"metadata": {"name": "other"}, "spec": spec})).await?;
    let containers = json!([{"name": "main", "image": "example.com/image:1"}]);
    let metadata = json!({"name": "other", "labels": {"app": "other"}});
    space.create::<Pod>(json!({"metadata": metadata, "spec": {"containers": containers}})).await?;
    eventually("the other Service has its endpoint", || async {
        let slices = space.list::<EndpointSlice>("").await?;
        let targets = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten());
        let mut targets = targets.filter_map(|endpoint| endpoint.target_ref.as_ref()?.name.as_deref());
        ensure!(targets.any(|name| name == "other"), "{slices:?}");
        Ok(())
    })
    .await
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

pub async fn changes_that_arrive_one_by_one_are_not_delayed(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    create_service(&space, PODS).await?;
    space.create::<ConfigMap>(json!({"metadata": {"name": "probe"}})).await?;
    let (mut slices, mut probes) = (Changes::<EndpointSlice>::follow(&space).await?, Changes::follow(&space).await?);
    let (mut lags, mut round_trips) = (Vec::new(), Vec::new());
    for number in 0..CHANGES {
        // A round trip is measured together with each lag, because the load of the machine may change at any time.
        let started = Instant::now();
        let value = number.to_string();
        space.patch::<ConfigMap>("probe", json!({"data": {"round": value}})).await?;
        let is_new = |probe: &ConfigMap| probe.data.as_ref().is_some_and(|data| data.get("round") == Some(&value));
        probes.until("the probe", is_new).await?;
        round_trips.push(started.elapsed());

        set_ready(&space, number, false).await?;
        let started = Instant::now();
        slices.until("the unready pod in a slice", |slice| contains(slice, number, false)).await?;
        lags.push(started.elapsed());
    }
    let (lag, round_trip) = (median(lags), median(round_trips));
    ensure!(lag < LAG_IN_ROUND_TRIPS * round_trip, "slices lag by {lag:?}, a round trip takes {round_trip:?}");
    Ok(())
}

pub async fn changes_during_a_write_share_the_next_one(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    create_service(&space, 10).await?;
    let is_update =
        |call: &Call| call.verb == Verb::Update && call.resource == "endpointslices" && call.name.starts_with("web-");
    let updates = || faults.count(is_update);
    faults.add(Rule::new(is_update, Effect::Hold));
    let before = updates();
    set_ready(&space, 0, false).await?;
    eventually("a write is in flight", || async {
        ensure!(updates() == before + 1);
        Ok(())
    })
    .await?;
    for number in 1..10 {
        set_ready(&space, number, false).await?;
    }
    // Once another Service's slice has a pod that became ready after these changes, the changes are in the cache, too.
    create_other_service(&space).await?;
    faults.release();
    eventually("no pod is ready", || async {
        let slices = space.list::<EndpointSlice>("").await?;
        ensure!((0..10).all(|number| slices.iter().any(|slice| contains(slice, number, false))), "{slices:?}");
        Ok(())
    })
    .await?;
    ensure!(updates() == before + 2, "{} writes for one batch", updates() - before - 1);
    Ok(())
}
