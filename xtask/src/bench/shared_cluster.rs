//! Scenarios that share a control plane: deletion of a namespace, garbage collection, leases of nodes, and all
//! controllers without work.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use control_plane::{ControlPlane, Identity, Options};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::api::{self, POLL_INTERVAL, Progress};
use super::kubelets::Kubelets;
use super::measure::{Measurement, Scenario};
use super::subject::{Binaries, GARBAGE, ManagerProcess, Mode, NAMESPACES, NODES, Subject, all_controllers};

/// Maximum time to wait for a state.
const DEADLINE: Duration = Duration::from_secs(900);

/// Numbers of objects, and times.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Objects of each of the 20 kinds in a namespace that is deleted.
    pub of_each_kind: u32,
    /// Owners that are deleted.
    pub owners: u32,
    /// Dependents of each owner.
    pub dependents: u32,
    /// Nodes.
    pub nodes: u32,
    /// Duration of scenarios without work.
    pub idle: Duration,
}

/// A control plane on which managers run one after the other.
pub struct SharedCluster {
    cluster: ControlPlane,
    client: Client,
    kubelets: Option<Kubelets>,
    runs: u32,
}

impl SharedCluster {
    /// Starts an empty control plane.
    pub async fn start() -> Result<Self> {
        let options = Options { kwok: false, scheduler: false, audit: true, ..Options::default() };
        let cluster = ControlPlane::start(options).await?;
        let client = cluster.client(Identity::Admin).await?;
        Ok(Self { cluster, client, kubelets: None, runs: 0 })
    }

    /// Prepares a scenario, starts a manager, measures, and ends the manager; its log is copied to `log`.
    pub async fn measure(
        &mut self,
        binaries: &Binaries,
        (subject, mode): (Subject, Mode),
        scenario: Scenario,
        size: Size,
        log: &Path,
    ) -> Result<Measurement> {
        self.runs += 1;
        let namespace = format!("{}-{}", scenario.name(), self.runs);
        let chosen = match scenario {
            Scenario::NamespaceDelete => {
                fill(&self.client, &namespace, size.of_each_kind).await?;
                api::create_namespaces(&self.client, [warm_up_namespace(&namespace)]).await?;
                vec![NAMESPACES.to_owned()]
            }
            Scenario::GarbageCollection => {
                create_owners(&self.client, &namespace, size).await?;
                vec![GARBAGE.to_owned()]
            }
            Scenario::NodeLeases => {
                if self.kubelets.is_none() {
                    self.kubelets = Some(Kubelets::start(&self.client, size.nodes).await?);
                }
                vec![NODES.to_owned()]
            }
            _ => all_controllers(&self.cluster),
        };
        let manager = ManagerProcess::start(&self.cluster, binaries, subject, mode, &chosen)?;
        let run = ManagerRun { client: &self.client, manager: &manager, namespace: &namespace, size };
        let measured = run.run_scenario((subject, mode, scenario)).await;
        manager.keep_log(log)?;
        let ended = manager.end(&self.client).await;
        let measured = measured?;
        ended?;
        Ok(measured)
    }
}

/// One manager in one scenario.
struct ManagerRun<'a> {
    client: &'a Client,
    manager: &'a ManagerProcess<'a>,
    namespace: &'a str,
    size: Size,
}

impl ManagerRun<'_> {
    async fn run_scenario(&self, about: (Subject, Mode, Scenario)) -> Result<Measurement> {
        self.manager.until_leader(self.client).await?;
        if about.2 == Scenario::NamespaceDelete {
            // The deletion of an empty namespace causes one-time work, such as the request for the token of the
            // controller's service account.
            self.delete_namespace(&warm_up_namespace(self.namespace)).await?;
        }
        self.manager.until_quiet().await?;
        let from = self.manager.mark()?;
        let start = Instant::now();
        let wall = match about.2 {
            Scenario::NamespaceDelete => {
                self.delete_namespace(self.namespace).await?;
                Some(start.elapsed())
            }
            Scenario::GarbageCollection => {
                let owners = 0..self.size.owners;
                api::each("owners deleted", owners, async |number| {
                    let owner = format!("/api/v1/namespaces/{}/configmaps/owner-{number}", self.namespace);
                    api::delete(self.client, &owner).await
                })
                .await?;
                self.until("garbage exists", async || self.is_empty().await).await?;
                Some(start.elapsed())
            }
            _ => {
                eprintln!("  {}: idle period of {} s", about.2.name(), self.size.idle.as_secs());
                sleep(self.size.idle).await;
                None
            }
        };
        if wall.is_some() {
            self.manager.until_quiet().await?;
        }
        let to = self.manager.mark()?;
        let requests = self.manager.requests_since(&from)?;
        Ok(Measurement::new(about, wall.map(|wall| wall.as_secs_f64()), (&from, &to), requests))
    }

    async fn until(&self, waiting: &str, is_reached: impl AsyncFn() -> Result<bool>) -> Result<()> {
        let (start, mut progress) = (Instant::now(), Progress::new());
        while !is_reached().await? {
            self.manager.check()?;
            ensure!(
                start.elapsed() < DEADLINE,
                "{waiting} after {} s; the manager's last lines:\n{}",
                DEADLINE.as_secs(),
                self.manager.last_lines()
            );
            progress.report(|| format!("{:.0} s: {waiting}", start.elapsed().as_secs_f64()));
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    async fn delete_namespace(&self, name: &str) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        api::delete(self.client, &format!("/api/v1/namespaces/{name}")).await?;
        let is_deleted = async || Ok(namespaces.get_metadata_opt(name).await.context("read the namespace")?.is_none());
        self.until("the namespace still exists", is_deleted).await
    }

    async fn is_empty(&self) -> Result<bool> {
        let objects: Api<ConfigMap> = Api::namespaced(self.client.clone(), self.namespace);
        let one = ListParams::default().limit(1);
        Ok(objects.list_metadata(&one).await.context("list garbage")?.items.is_empty())
    }
}

/// Creates ConfigMaps that own others.
async fn create_owners(client: &Client, namespace: &str, size: Size) -> Result<()> {
    api::create_namespaces(client, [namespace.to_owned()]).await?;
    let collection = format!("/api/v1/namespaces/{namespace}/configmaps");
    let owners = api::each("owners created", 0..size.owners, async |number| {
        let owner =
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": format!("owner-{number}") } });
        api::create(client, &collection, "bench", &owner).await
    })
    .await?;
    let dependents = 0..size.owners * size.dependents;
    api::each("dependents created", dependents, async |number| {
        let owner = number % size.owners;
        let reference = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": format!("owner-{owner}"), "uid": owners[owner as usize],
        });
        let metadata = json!({ "name": format!("dependent-{number}"), "ownerReferences": [reference] });
        let dependent = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { "a": "b" } });
        api::create(client, &collection, "bench", &dependent).await.map(drop)
    })
    .await?;
    Ok(())
}

/// Returns the name of an empty namespace that is deleted first, so that one-time work of the manager is not measured.
fn warm_up_namespace(namespace: &str) -> String {
    format!("{namespace}-first")
}

/// Creates a namespace with objects of many kinds.
async fn fill(client: &Client, namespace: &str, of_each_kind: u32) -> Result<()> {
    api::create_namespaces(client, [namespace.to_owned()]).await?;
    let kinds = kinds();
    let count = kinds.len() as u32 * of_each_kind;
    api::each("objects created", 0..count, async |number| {
        let (api, resource, object) = &kinds[number as usize % kinds.len()];
        let mut object = object.clone();
        object["metadata"] = json!({ "name": format!("object-{}", number as usize / kinds.len()) });
        let collection = format!("/{api}/namespaces/{namespace}/{resource}");
        api::create(client, &collection, "bench", &object).await.map(drop)
    })
    .await?;
    Ok(())
}

/// Returns twenty kinds that need no other controller: group and version, resource, and an object without metadata. No
/// controller reconciles the Deployments and other workloads, because only the namespace controller and the garbage
/// collector run.
fn kinds() -> Vec<(&'static str, &'static str, Value)> {
    let labels = json!({ "app": "web" });
    let selector = json!({ "matchLabels": labels });
    let containers = json!([{ "name": "main", "image": "registry.example.com/web:1" }]);
    let template = json!({ "metadata": { "labels": labels }, "spec": { "containers": containers } });
    let task = json!({ "spec": { "containers": containers, "restartPolicy": "Never" } });
    let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "object-0" });
    let (core, apps, batch, rbac) = ("api/v1", "apis/apps/v1", "apis/batch/v1", "apis/rbac.authorization.k8s.io/v1");
    vec![
        (core, "configmaps", json!({ "data": { "a": "b" } })),
        (core, "secrets", json!({ "stringData": { "a": "b" } })),
        (core, "serviceaccounts", json!({})),
        (core, "services", json!({ "spec": { "clusterIP": "None", "selector": labels } })),
        (core, "endpoints", json!({})),
        (core, "pods", json!({ "spec": { "containers": containers } })),
        (core, "podtemplates", json!({ "template": template })),
        (core, "replicationcontrollers", json!({ "spec": { "selector": labels, "template": template } })),
        (apps, "deployments", json!({ "spec": { "selector": selector, "template": template } })),
        (apps, "replicasets", json!({ "spec": { "selector": selector, "template": template } })),
        (apps, "statefulsets", json!({ "spec": { "selector": selector, "template": template, "serviceName": "web" } })),
        (apps, "daemonsets", json!({ "spec": { "selector": selector, "template": template } })),
        (apps, "controllerrevisions", json!({ "revision": 1, "data": { "a": "b" } })),
        (batch, "jobs", json!({ "spec": { "template": task } })),
        (
            batch,
            "cronjobs",
            json!({ "spec": { "schedule": "0 0 1 1 *", "jobTemplate": { "spec": { "template": task } } } }),
        ),
        ("apis/coordination.k8s.io/v1", "leases", json!({ "spec": {} })),
        (rbac, "roles", json!({ "rules": [] })),
        (rbac, "rolebindings", json!({ "roleRef": role })),
        ("apis/networking.k8s.io/v1", "networkpolicies", json!({ "spec": { "podSelector": {} } })),
        ("apis/policy/v1", "poddisruptionbudgets", json!({ "spec": { "selector": selector, "minAvailable": 1 } })),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn kinds_are_twenty_distinct_ones() {
        let kinds: BTreeSet<&str> = kinds().into_iter().map(|(_, resource, _)| resource).collect();
        assert_eq!(kinds.len(), 20);
    }
}
