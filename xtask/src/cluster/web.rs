//! A Deployment of real HTTP servers behind a Service of type LoadBalancer.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use control_plane::{ControlPlane, Identity};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use real_cluster::{http, images};
use serde_json::json;
use tokio::time::{Instant, sleep};

/// The name of the Deployment and of the Service.
const NAME: &str = "web";

/// The path at which a server responds with its pod's name.
pub const PATH: &str = "/hostname";

/// Interval at which objects are read.
const PERIOD: Duration = Duration::from_millis(50);

/// Maximum time until a deletion is complete.
const DELETION_DEADLINE: Duration = Duration::from_secs(180);

/// Seconds that a server stays on a node after the node became unresponsive.
const TOLERATION_SECONDS: u32 = 5;

/// Seconds that a server continues after its pod is deleted: longer than it takes until requests go to other servers.
const DRAIN_SECONDS: u32 = 5;

/// The servers.
pub struct Web {
    deployments: Api<Deployment>,
    pods: Api<Pod>,
    services: Api<Service>,
}

impl Web {
    /// Creates the Deployment and the Service.
    pub async fn create(cluster: &ControlPlane, replicas: u32) -> Result<Self> {
        let client = cluster.client(Identity::Admin).await?;
        let web = Self {
            deployments: Api::default_namespaced(client.clone()),
            pods: Api::default_namespaced(client.clone()),
            services: Api::default_namespaced(client),
        };
        let tolerations = ["not-ready", "unreachable"].map(|taint| {
            json!({
                "key": format!("node.kubernetes.io/{taint}"),
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": TOLERATION_SECONDS,
            })
        });
        let deployment: Deployment = serde_json::from_value(json!({
            "metadata": { "name": NAME },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": NAME } },
                "template": {
                    "metadata": { "labels": { "app": NAME } },
                    "spec": {
                        "terminationGracePeriodSeconds": 2 * DRAIN_SECONDS,
                        "tolerations": tolerations,
                        "containers": [{
                            "name": NAME,
                            "image": images::AGNHOST_OLD,
                            "imagePullPolicy": "IfNotPresent",
                            "command": ["/agnhost", "netexec", "--http-port=8080"],
                            "readinessProbe": { "httpGet": { "path": "/healthz", "port": 8080 }, "periodSeconds": 1 },
                            "lifecycle": { "preStop": { "sleep": { "seconds": DRAIN_SECONDS } } },
                        }],
                    },
                },
            },
        }))?;
        let service: Service = serde_json::from_value(json!({
            "metadata": { "name": NAME },
            "spec": {
                "type": "LoadBalancer",
                "selector": { "app": NAME },
                "ports": [{ "port": 80, "targetPort": 8080 }],
            },
        }))?;
        let parameters = PostParams::default();
        web.deployments.create(&parameters, &deployment).await.context("create the Deployment")?;
        web.services.create(&parameters, &service).await.context("create the Service")?;
        Ok(web)
    }

    /// Waits until the load balancer has an address and a server responds at it; returns the address.
    pub async fn wait_for_response(&self, deadline: Duration) -> Result<SocketAddr> {
        let end = Instant::now() + deadline;
        let mut last = "the load balancer has no address".to_owned();
        while Instant::now() < end {
            let service = self.services.get(NAME).await.context("get the Service")?;
            let status = service.status.and_then(|status| status.load_balancer);
            let ingress = status.and_then(|balancer| balancer.ingress).unwrap_or_default();
            let address = ingress.into_iter().find_map(|one| one.ip?.parse::<IpAddr>().ok());
            if let Some(address) = address {
                let server = SocketAddr::new(address, 80);
                match http::get(server, PATH, Duration::from_secs(1)).await {
                    Ok(_) => return Ok(server),
                    Err(error) => last = format!("{error:#}"),
                }
            }
            sleep(PERIOD).await;
        }
        bail!("the Service did not respond in {} s: {last}", deadline.as_secs())
    }

    /// Changes the image of all servers.
    pub async fn update(&self, image: &str) -> Result<()> {
        let patch = json!({ "spec": { "template": { "spec": { "containers": [{ "name": NAME, "image": image }] } } } });
        self.patch(&patch).await
    }

    /// Changes the number of servers.
    pub async fn scale(&self, replicas: u32) -> Result<()> {
        self.patch(&json!({ "spec": { "replicas": replicas } })).await
    }

    async fn patch(&self, patch: &serde_json::Value) -> Result<()> {
        let parameters = PatchParams::default();
        self.deployments
            .patch(NAME, &parameters, &Patch::Strategic(patch))
            .await
            .context("patch the Deployment")
            .map(drop)
    }

    /// Waits until all servers have the current template and are available, and the others are deleted or terminating.
    /// Returns the duration.
    pub async fn wait_for_rollout(&self, deadline: Duration) -> Result<Duration> {
        let start = Instant::now();
        loop {
            let deployment = self.deployments.get(NAME).await.context("get the Deployment")?;
            if is_complete(&deployment) {
                return Ok(start.elapsed());
            }
            if start.elapsed() > deadline {
                let status = serde_json::to_string(&deployment.status)?;
                bail!("the rollout was not complete after {} s: {status}", deadline.as_secs());
            }
            sleep(PERIOD).await;
        }
    }

    /// Waits until there are exactly `number` pods, terminating ones included.
    pub async fn wait_for_pods(&self, number: u32, deadline: Duration) -> Result<()> {
        self.wait_for(deadline, |pods| u32::try_from(pods.len()) == Ok(number)).await
    }

    /// Waits until all servers are ready on other nodes than this one.
    pub async fn wait_for_evacuation(&self, node: &str, servers: u32, deadline: Duration) -> Result<()> {
        self.wait_for(deadline, |pods| is_evacuated(pods, node, servers)).await
    }

    async fn wait_for(&self, deadline: Duration, is_reached: impl Fn(&[Pod]) -> bool) -> Result<()> {
        let end = Instant::now() + deadline;
        let selector = ListParams::default().labels(&format!("app={NAME}"));
        while Instant::now() < end {
            if is_reached(&self.pods.list(&selector).await.context("list the pods")?.items) {
                return Ok(());
            }
            sleep(PERIOD).await;
        }
        bail!("the pods were not as desired after {} s", deadline.as_secs())
    }

    /// Deletes the Deployment and the Service, and waits until they no longer exist.
    ///
    /// # Errors
    /// When a request fails, or one of them still exists after [`DELETION_DEADLINE`].
    pub async fn delete(&self) -> Result<()> {
        let parameters = kube::api::DeleteParams::foreground();
        self.deployments.delete(NAME, &parameters).await.context("delete the Deployment")?;
        self.services.delete(NAME, &parameters).await.context("delete the Service")?;
        let deadline = Instant::now() + DELETION_DEADLINE;
        loop {
            let deployment = self.deployments.get_opt(NAME).await?.map(|deployment| deployment.metadata);
            let service = self.services.get_opt(NAME).await?.map(|service| service.metadata);
            let left: Vec<_> = [("Deployment", deployment), ("Service", service)]
                .into_iter()
                .filter_map(|(kind, metadata)| Some((kind, metadata?.finalizers)))
                .collect();
            if left.is_empty() {
                return Ok(());
            }
            let limit = DELETION_DEADLINE.as_secs();
            ensure!(Instant::now() < deadline, "still there {limit} s after the deletion, with finalizers: {left:?}");
            sleep(PERIOD).await;
        }
    }
}

/// Returns true if a rollout is complete, by the rule of `kubectl rollout status`.
fn is_complete(deployment: &Deployment) -> bool {
    let desired = deployment.spec.replicas.unwrap_or(1);
    let Some(status) = &deployment.status else { return false };
    let count = |number: Option<i32>| number.unwrap_or(0);
    status.observed_generation >= deployment.metadata.generation
        && count(status.updated_replicas) == desired
        && count(status.replicas) == desired
        && count(status.available_replicas) == desired
}

/// Returns true if a node has only terminating servers, and other nodes have the desired number of ready ones.
fn is_evacuated(pods: &[Pod], node: &str, servers: u32) -> bool {
    let not_terminating: Vec<&Pod> = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
    let is_elsewhere = |pod: &&Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() != Some(node));
    u32::try_from(not_terminating.len()) == Ok(servers)
        && not_terminating.iter().all(|pod| is_elsewhere(pod) && is_ready(pod))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollout_is_complete_when_only_updated_available_replicas_exist() {
        let deployment = |status| -> Deployment {
            serde_json::from_value(json!({
                "metadata": { "generation": 2 },
                "spec": { "replicas": 2, "selector": {}, "template": {} },
                "status": status,
            }))
            .unwrap()
        };
        let complete = json!({ "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2 });
        assert!(is_complete(&deployment(complete.clone())));
        for (field, value) in
            [("observedGeneration", 1), ("replicas", 3), ("updatedReplicas", 1), ("availableReplicas", 1)]
        {
            let mut status = complete.clone();
            status[field] = value.into();
            assert!(!is_complete(&deployment(status)), "{field}");
        }
    }

    #[test]
    fn node_is_evacuated_when_all_servers_are_ready_elsewhere() {
        let pod = |node: &str, ready: bool, deleted: bool| -> Pod {
            serde_json::from_value(json!({
                "metadata": { "deletionTimestamp": deleted.then_some("2026-01-01T00:00:00Z") },
                "spec": { "nodeName": node, "containers": [] },
                "status": { "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
            }))
            .unwrap()
        };
        let (kept, terminating) = (pod("a", true, false), pod("b", false, true));
        for (name, pods, evacuated) in [
            ("terminating pods on the node do not count", vec![kept.clone(), kept.clone(), terminating.clone()], true),
            ("too few servers", vec![kept.clone(), terminating.clone()], false),
            ("a server on the node", vec![kept.clone(), pod("b", true, false)], false),
            ("a server that is not ready", vec![kept, pod("a", false, false)], false),
        ] {
            assert_eq!(is_evacuated(&pods, "b", 2), evacuated, "{name}");
        }
    }
}
