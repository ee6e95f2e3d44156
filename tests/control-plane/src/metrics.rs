//! The metrics APIs, served like by a metrics adapter: an HTTPS server behind APIServices, with metrics that tests set.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep};
use tokio_rustls::TlsAcceptor;

use crate::{ControlPlane, Identity};

/// API groups with their version, resource and kind.
const GROUPS: [(&str, &str, &str, &str); 3] = [
    ("metrics.k8s.io", "v1beta1", "pods", "PodMetrics"),
    ("custom.metrics.k8s.io", "v1beta2", "fleets.example.com/length", "MetricValueList"),
    ("external.metrics.k8s.io", "v1beta1", "length", "ExternalMetricValueList"),
];

/// Maximum time until the API server forwards requests for the groups.
const DEADLINE: Duration = Duration::from_secs(60);

/// The metrics, by namespace and name, as quantities. `cpu` and `memory` are the usage of each pod.
#[derive(Default)]
pub struct Metrics(Mutex<HashMap<(String, String), String>>);

impl Metrics {
    /// Serves them to a control plane, until the caller's async runtime ends. Call it once per control plane.
    ///
    /// # Errors
    /// If the API server does not accept them.
    pub async fn serve(cluster: &ControlPlane) -> Result<Arc<Self>> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (acceptor, client) = (acceptor()?, cluster.client(Identity::Admin).await?);
        let metrics = Arc::new(Self::default());
        let (source, pod_client) = (metrics.clone(), client.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, source, pod_client) = (acceptor.clone(), source.clone(), pod_client.clone());
                // A client that disconnects will retry.
                tokio::spawn(async move { serve_connection(&acceptor, stream, &source, &pod_client).await.ok() });
            }
        });
        register(&client, port).await?;
        Ok(metrics)
    }

    /// Sets a metric of a namespace.
    pub fn set(&self, namespace: &str, metric: &str, quantity: &str) {
        let key = (namespace.to_owned(), metric.to_owned());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, quantity.to_owned());
    }

    fn get(&self, namespace: &str, metric: &str) -> Option<String> {
        let key = (namespace.to_owned(), metric.to_owned());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
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

pub(crate) fn acceptor() -> Result<TlsAcceptor> {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Responds to the requests of one connection until it ends.
async fn serve_connection(acceptor: &TlsAcceptor, stream: TcpStream, source: &Metrics, client: &Client) -> Result<()> {
    let mut stream = acceptor.accept(stream).await?;
    let mut read = Vec::new();
    loop {
        while !read.windows(4).any(|end| end == b"\r\n\r\n") {
            if stream.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
        }
        let head = String::from_utf8_lossy(&read).into_owned();
        read.clear();
        let target = head.split(' ').nth(1).context("no target")?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (code, body) = match source.response_for(client, path, query).await? {
            Some(response) => ("200 OK", response.to_string()),
            None => ("404 Not Found", "404 page not found".to_owned()),
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
        stream.flush().await?;
    }
}

/// Makes the API server forward requests for the groups to a local port, and waits until it does.
async fn register(client: &Client, port: u16) -> Result<()> {
    let (namespace, name) = ("default", "metrics");
    let service = json!({
        "metadata": {"name": name},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    });
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    services.create(&PostParams::default(), &serde_json::from_value(service)?).await.context("make the Service")?;
    let apis: Api<APIService> = Api::all(client.clone());
    for (group, version, ..) in GROUPS {
        let api = json!({
            "metadata": {"name": format!("{version}.{group}")},
            "spec": {"group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100,
                "insecureSkipTLSVerify": true, "service": {"namespace": namespace, "name": name, "port": port}},
        });
        apis.create(&PostParams::default(), &serde_json::from_value(api)?).await.with_context(|| group.to_owned())?;
    }
    let deadline = Instant::now() + DEADLINE;
    for (group, version, ..) in GROUPS {
        while !is_available(&apis.get(&format!("{version}.{group}")).await?) {
            ensure!(Instant::now() < deadline, "{group} was not available after {} s", DEADLINE.as_secs());
            sleep(Duration::from_millis(100)).await;
        }
    }
    Ok(())
}

pub(crate) fn is_available(api: &APIService) -> bool {
    let conditions = api.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Available" && condition.status == "True")
}
