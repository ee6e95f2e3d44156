//! The metrics APIs, as a metrics adapter serves them: an HTTPS server behind APIServices, with metrics that tests set.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use crate::aggregation::{self, Connection, Responder, write_response};
use crate::cluster::ControlPlane;
use crate::identity::Identity;
use crate::lock::lock;

/// API groups with their version, resource and kind.
const GROUPS: [(&str, &str, &str, &str); 3] = [
    ("metrics.k8s.io", "v1beta1", "pods", "PodMetrics"),
    ("custom.metrics.k8s.io", "v1beta2", "fleets.example.com/length", "MetricValueList"),
    ("external.metrics.k8s.io", "v1beta1", "length", "ExternalMetricValueList"),
];

/// The metrics, by namespace and name, as quantities. `cpu` and `memory` are the usage of each pod.
#[derive(Default)]
pub struct Metrics(Mutex<HashMap<(String, String), String>>);

impl Metrics {
    /// Serves the metrics APIs to a control plane, until the caller's async runtime ends. Call it once per control
    /// plane.
    ///
    /// # Errors
    /// If the API server does not accept them.
    pub async fn serve(cluster: &ControlPlane) -> Result<Arc<Self>> {
        let metrics = Arc::new(Self::default());
        let adapter = Adapter { metrics: metrics.clone(), client: cluster.client(Identity::Admin).await? };
        let groups = GROUPS.map(|(group, version, ..)| (group.to_owned(), version));
        aggregation::serve(cluster, "metrics", &groups, Arc::new(adapter)).await?;
        Ok(metrics)
    }

    /// Sets a metric of a namespace.
    pub fn set(&self, namespace: &str, metric: &str, quantity: &str) {
        let key = (namespace.to_owned(), metric.to_owned());
        lock(&self.0).insert(key, quantity.to_owned());
    }

    fn get(&self, namespace: &str, metric: &str) -> Option<String> {
        let key = (namespace.to_owned(), metric.to_owned());
        lock(&self.0).get(&key).cloned()
    }

    /// Returns the response for a path; `None` if there is none.
    async fn response_for(&self, client: &Client, path: &str, query: &str) -> Result<Option<Value>> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let now = jiff::Timestamp::now().to_string();
        Ok(match parts[..] {
            ["apis", group, version] => {
                let group =
                    GROUPS.iter().find(|(name, served_version, ..)| (*name, *served_version) == (group, version));
                group.map(|(group, version, resource, kind)| {
                    json!({
                        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/{version}"),
                        "resources": [{"name": resource, "singularName": "", "namespaced": true, "kind": kind,
                            "verbs": ["get", "list"]}],
                    })
                })
            }
            ["apis", "metrics.k8s.io", "v1beta1", "namespaces", namespace, "pods"] => {
                let selector =
                    query.split('&').find_map(|pair| pair.strip_prefix("labelSelector=")).unwrap_or_default();
                let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
                let pods = pods.list(&ListParams::default().labels(&decode_form(selector)).match_any()).await?;
                let [cpu, memory] = ["cpu", "memory"].map(|resource| self.get(namespace, resource));
                if cpu.is_none() && memory.is_none() {
                    return Ok(None);
                }
                let usage =
                    json!({"cpu": cpu.as_deref().unwrap_or("0"), "memory": memory.as_deref().unwrap_or("64Mi")});
                let item = |pod: Pod| {
                    json!({"metadata": {"name": pod.metadata.name, "namespace": namespace}, "timestamp": now,
                        "window": "10s", "containers": [{"name": "main", "usage": usage}]})
                };
                let items: Vec<Value> = pods.items.into_iter().map(item).collect();
                Some(json!({"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "items": items}))
            }
            ["apis", "custom.metrics.k8s.io", "v1beta2", "namespaces", namespace, _, name, metric] => {
                self.get(namespace, metric).map(|value| {
                    json!({"kind": "MetricValueList", "apiVersion": "custom.metrics.k8s.io/v1beta2", "items": [{
                        "describedObject": {"name": name}, "metric": {"name": metric}, "timestamp": now, "value": value,
                    }]})
                })
            }
            ["apis", "external.metrics.k8s.io", "v1beta1", "namespaces", namespace, metric] => {
                self.get(namespace, metric).filter(|_| has_only_equalities(query)).map(|value| {
                    json!({"kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1",
                        "items": [{"metricName": metric, "metricLabels": {}, "timestamp": now, "value": value}]})
                })
            }
            _ => None,
        })
    }
}

/// Responds to requests for metrics.
struct Adapter {
    metrics: Arc<Metrics>,
    client: Client,
}

impl Responder for Adapter {
    async fn respond(&self, connection: &mut Connection, path: &str, query: &str) -> Result<()> {
        match self.metrics.response_for(&self.client, path, query).await? {
            Some(response) => write_response(connection, "200 OK", &response.to_string()).await,
            None => write_response(connection, "404 Not Found", "404 page not found").await,
        }
    }
}

/// Returns true if a query's label selector is a list of `key=value`: KEDA's adapter reads it with apimachinery's
/// `ConvertSelectorToLabelsMap`, which accepts nothing else.
fn has_only_equalities(query: &str) -> bool {
    let selector = query.split('&').find_map(|pair| pair.strip_prefix("labelSelector=")).unwrap_or_default();
    let selector = decode_form(selector);
    selector.is_empty() || selector.split(',').all(|one| one.split('=').count() == 2 && !one.contains(' '))
}

fn decode_form(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            // The API server forwards queries in the encoding of forms.
            (b'+', _) => {
                bytes.push(b' ');
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
