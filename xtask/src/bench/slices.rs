//! A watch of EndpointSlices that measures the time from a change of a pod until a slice contains it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;
use control_plane::lock::lock;
use futures::StreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use tokio::task::JoinHandle;

/// Label with the name of a slice's Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Lags of changes, and numbers of writes, since the watch began.
pub struct SliceWatch {
    state: Arc<Mutex<State>>,
    watch: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    /// Pods whose change is in no slice yet: their new readiness, and the time of the request.
    pending: HashMap<String, (bool, Instant)>,
    lags: Vec<f64>,
    /// Writes of slices by the name of their Service.
    writes: HashMap<String, u64>,
}

impl SliceWatch {
    /// Starts a watch of the slices of all namespaces.
    pub async fn start(client: &Client) -> Result<Self> {
        let slices: Api<EndpointSlice> = Api::all(client.clone());
        let state = Arc::new(Mutex::new(State::default()));
        let applied = state.clone();
        let mut version = slices.list(&ListParams::default()).await?.metadata.resource_version.unwrap_or_default();
        let watch = tokio::spawn(async move {
            let with = |apply: &dyn Fn(&mut State)| apply(&mut lock(&applied));
            loop {
                if let Ok(events) = slices.watch(&WatchParams::default(), &version).await {
                    let mut events = events.boxed();
                    while let Some(Ok(event)) = events.next().await {
                        match event {
                            WatchEvent::Added(slice) | WatchEvent::Modified(slice) => with(&|state| {
                                state.count(&slice);
                                state.show(&slice);
                            }),
                            WatchEvent::Deleted(slice) => with(&|state| state.count(&slice)),
                            WatchEvent::Bookmark(_) | WatchEvent::Error(_) => {}
                        }
                    }
                }
                // The API server ends the watches of slow clients.
                match slices.list(&ListParams::default()).await {
                    Ok(list) => {
                        with(&|state| list.items.iter().for_each(|slice| state.show(slice)));
                        version = list.metadata.resource_version.unwrap_or_default();
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
                }
            }
        });
        Ok(Self { state, watch })
    }

    fn with<T>(&self, apply: impl FnOnce(&mut State) -> T) -> T {
        apply(&mut lock(&self.state))
    }

    /// Starts to measure the lag of a change that is requested next.
    pub fn expect(&self, pod: String, ready: bool) {
        self.with(|state| state.pending.insert(pod, (ready, Instant::now())));
    }

    /// Returns true if the last change of a pod is in no slice yet.
    pub fn is_pending(&self, pod: &str) -> bool {
        self.with(|state| state.pending.contains_key(pod))
    }

    /// Returns the number of changes that are in no slice yet.
    pub fn pending(&self) -> usize {
        self.with(|state| state.pending.len())
    }

    /// Returns the number of writes of a Service's slices.
    pub fn writes(&self, service: &str) -> u64 {
        self.with(|state| state.writes.get(service).copied().unwrap_or_default())
    }

    /// Removes all lags; returns their median and 99th percentile, in seconds, or `None` if there are no lags.
    pub fn take_lags(&self) -> Option<(f64, f64)> {
        let mut lags = self.with(|state| std::mem::take(&mut state.lags));
        lags.sort_by(f64::total_cmp);
        let percentile = |rank: usize| lags.get((lags.len() * rank / 100).min(lags.len().max(1) - 1)).copied();
        Some((percentile(50)?, percentile(99)?))
    }
}

impl Drop for SliceWatch {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl State {
    fn count(&mut self, slice: &EndpointSlice) {
        if let Some(service) = slice.labels().get(SERVICE_NAME) {
            *self.writes.entry(service.clone()).or_default() += 1;
        }
    }

    fn show(&mut self, slice: &EndpointSlice) {
        for endpoint in slice.endpoints.iter().flatten() {
            let Some(pod) = endpoint.target_ref.as_ref().and_then(|target| target.name.as_ref()) else { continue };
            let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready);
            if let Some((wanted, since)) = self.pending.get(pod)
                && Some(*wanted) == ready
            {
                self.lags.push(since.elapsed().as_secs_f64());
                self.pending.remove(pod);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn change_is_counted_once_and_only_with_its_readiness() {
        let slice = |ready: bool| -> EndpointSlice {
            let target = json!({ "kind": "Pod", "name": "a" });
            let endpoint = json!({ "addresses": ["10.0.0.1"], "targetRef": target, "conditions": { "ready": ready } });
            serde_json::from_value(json!({ "addressType": "IPv4", "endpoints": [endpoint] })).expect("a slice")
        };
        let mut state = State::default();
        state.pending.insert("a".into(), (false, Instant::now()));
        state.show(&slice(true));
        assert_eq!((state.pending.len(), state.lags.len()), (1, 0));
        state.show(&slice(false));
        state.show(&slice(false));
        assert_eq!((state.pending.len(), state.lags.len()), (0, 1));
    }
}
