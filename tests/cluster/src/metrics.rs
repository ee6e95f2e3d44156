//! The metrics APIs, served as an adapter does: an HTTPS server behind APIServices, whose metrics tests set.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OnceCell;
use tokio_rustls::TlsAcceptor;

use crate::Space;

/// Groups, their versions, and what they say that they have.
const GROUPS: [(&str, &str, &str, &str); 3] = [
    ("metrics.k8s.io", "v1beta1", "pods", "PodMetrics"),
    ("custom.metrics.k8s.io", "v1beta2", "fleets.example.com/length", "MetricValueList"),
    ("external.metrics.k8s.io", "v1beta1", "length", "ExternalMetricValueList"),
];

static SERVED: OnceCell<Arc<Metrics>> = OnceCell::const_new();

/// What is measured: by namespace and metric, as quantities. Resources are of each pod.
#[derive(Default)]
pub struct Metrics(Mutex<HashMap<(String, String), String>>);

impl Metrics {
    /// The metrics of the shared control plane, served from the first call on.
    pub async fn serve(space: &Space) -> Result<Arc<Self>> {
        SERVED.get_or_try_init(|| start(space)).await.cloned()
    }

    /// Sets a metric of a namespace.
    pub fn set(&self, space: &Space, metric: &str, quantity: &str) {
        let key = (space.namespace.clone(), metric.to_owned());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key, quantity.to_owned());
    }

    fn get(&self, namespace: &str, metric: &str) -> Option<String> {
        let key = (namespace.to_owned(), metric.to_owned());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    /// What stands at a path; `None` where nothing does.
    async fn answer(&self, client: &Client, path: &str, query: &str) -> Result<Option<Value>> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let now = jiff::Timestamp::now().to_string();
        Ok(match parts[..] {
            ["apis", group, version] => {
                let group = GROUPS.iter().find(|(name, known, ..)| (*name, *known) == (group, version));
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
                let pods = pods.list(&ListParams::default().labels(&decoded(selector))).await?;
                let Some(cpu) = self.get(namespace, "cpu") else { return Ok(None) };
                let item = |pod: Pod| {
                    json!({"metadata": {"name": pod.metadata.name, "namespace": namespace}, "timestamp": now,
                        "window": "10s", "containers": [{"name": "main", "usage": {"cpu": cpu, "memory": "64Mi"}}]})
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
                self.get(namespace, metric).map(|value| {
                    json!({"kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1",
                        "items": [{"metricName": metric, "metricLabels": {}, "timestamp": now, "value": value}]})
                })
            }
            _ => None,
        })
    }
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match (first, hex) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            // The API server sends queries on as forms do.
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

async fn start(space: &Space) -> Result<Arc<Metrics>> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let metrics = Arc::new(Metrics::default());
    let (served, client) = (metrics.clone(), space.bed.client.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, served, client) = (acceptor.clone(), served.clone(), client.clone());
            // Whoever breaks off asks again.
            tokio::spawn(async move { converse(&acceptor, stream, &served, &client).await.ok() });
        }
    });
    register(space, port).await?;
    Ok(metrics)
}

/// Answers requests of one connection until it ends.
async fn converse(acceptor: &TlsAcceptor, stream: TcpStream, served: &Metrics, client: &Client) -> Result<()> {
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
        let (code, body) = match served.answer(client, path, query).await? {
            Some(answer) => ("200 OK", answer.to_string()),
            None => ("404 Not Found", "404 page not found".to_owned()),
        };
        let length = body.len();
        let head = format!("HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(format!("{head}{body}").as_bytes()).await?;
        stream.flush().await?;
    }
}

/// Registers the groups in a namespace of their own: they outlast the test that came first.
async fn register(space: &Space, port: u16) -> Result<()> {
    let namespace = "default";
    let mut objects = vec![json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "metrics", "namespace": namespace},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    })];
    objects.extend(GROUPS.iter().map(|(group, version, ..)| {
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.{group}")},
            "spec": {"group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100,
                "insecureSkipTLSVerify": true,
                "service": {"namespace": namespace, "name": "metrics", "port": port}},
        })
    }));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let bed = space.bed.clone();
    tokio::task::spawn_blocking(move || bed.cluster.kubectl_with_input(&["apply", "-f", "-"], &list)).await??;
    for (group, version, ..) in GROUPS {
        let name = format!("apiservice/{version}.{group}");
        space.kubectl(&["wait", "--for=condition=Available", "--timeout=60s", &name]).await?;
    }
    Ok(())
}
