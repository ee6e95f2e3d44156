//! A shared control plane, and a test's namespace in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use control_plane::metrics::Metrics;
use control_plane::{ControlPlane, Identity, Options};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod, ServiceAccount};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::all_gates;
use crate::manager::Manager;
use crate::wait::eventually;

/// Nodes for the pods of all tests.
const NODES: u32 = 4;

/// A control plane that tests share, with the admin's client.
pub struct Bed {
    /// The control plane.
    pub cluster: ControlPlane,
    /// The admin's client.
    pub client: Client,
    /// A manager that creates default service accounts, which pods need.
    accounts: Option<Manager>,
    /// The metrics APIs, once a test needs them.
    pub(crate) metrics: OnceCell<Arc<Metrics>>,
}

impl Bed {
    /// Starts a control plane in whose namespaces pods can be created.
    pub async fn start() -> Result<Arc<Self>> {
        let bed = Self::without_accounts(Options { nodes: NODES, ..Options::default() }).await?;
        let accounts = Some(Manager::start_accounts(&bed.cluster).await?);
        Ok(Arc::new(Self { accounts, ..bed }))
    }

    /// Starts a control plane without a controller of service accounts.
    pub async fn without_accounts(options: Options) -> Result<Self> {
        let cluster = all_gates::control_plane(options).await?;
        let client = cluster.client(Identity::Admin).await?;
        Ok(Self { cluster, client, accounts: None, metrics: OnceCell::new() })
    }

    /// Creates a namespace for a test; its name begins with the last segment of the path `name`. If the bed creates
    /// service accounts, the method waits for the default one.
    pub async fn space(self: &Arc<Self>, name: &str) -> Result<Space> {
        let prefix: String = name.rsplit("::").next().unwrap_or(name).replace('_', "-").chars().take(40).collect();
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"generateName": format!("{prefix}-")}}))?;
        let made = Api::all(self.client.clone()).create(&PostParams::default(), &namespace).await?;
        let space = Space { bed: self.clone(), namespace: made.metadata.name.context("a namespace without a name")? };
        if self.accounts.is_some() {
            eventually("the default service account", || space.get::<ServiceAccount>("default")).await?;
        }
        Ok(space)
    }
}

/// A namespace for a single test, whose methods act as the admin.
#[derive(Clone)]
pub struct Space {
    /// The control plane.
    pub bed: Arc<Bed>,
    /// The namespace's name.
    pub namespace: String,
}

/// The trait bounds of a kind that all methods need.
pub trait Namespaced:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned
{
}

impl<K> Namespaced for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned
{
}

impl Space {
    /// Returns the admin's client of a kind.
    pub fn api<K: Namespaced>(&self) -> Api<K> {
        Api::namespaced(self.bed.client.clone(), &self.namespace)
    }

    /// Creates an object from JSON without `apiVersion` and `kind`.
    pub async fn create<K: Namespaced>(&self, object: Value) -> Result<K> {
        let typed: K = serde_json::from_value(object.clone()).with_context(|| format!("read {object}"))?;
        self.api().create(&PostParams::default(), &typed).await.with_context(|| format!("create {object}"))
    }

    /// Reads an object.
    pub async fn get<K: Namespaced>(&self, name: &str) -> Result<K> {
        self.api().get(name).await.with_context(|| format!("get {} {name}", K::kind(&())))
    }

    /// Reads all objects with the label `app=<app>`, or all objects if `app` is empty.
    pub async fn list<K: Namespaced>(&self, app: &str) -> Result<Vec<K>> {
        let mut parameters = ListParams::default();
        if !app.is_empty() {
            parameters = parameters.labels(&format!("app={app}"));
        }
        Ok(self.api().list(&parameters).await?.items)
    }

    /// Changes an object by a merge patch.
    pub async fn patch<K: Namespaced>(&self, name: &str, patch: Value) -> Result<K> {
        self.api()
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .with_context(|| format!("patch {name}: {patch}"))
    }

    /// Changes an object's status by a merge patch.
    pub async fn patch_status<K: Namespaced>(&self, name: &str, patch: Value) -> Result<K> {
        let patched = self.api().patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.with_context(|| format!("patch the status of {name}: {patch}"))
    }

    /// Deletes an object with the default propagation policy of its kind.
    pub async fn delete<K: Namespaced>(&self, name: &str) -> Result<()> {
        self.api::<K>().delete(name, &DeleteParams::default()).await.with_context(|| format!("delete {name}"))?;
        Ok(())
    }

    /// Sets the number of replicas of a workload.
    pub async fn scale<K: Namespaced>(&self, name: &str, replicas: i32) -> Result<()> {
        self.patch::<K>(name, json!({"spec": {"replicas": replicas}})).await?;
        Ok(())
    }

    /// Returns the pods with the label `app=<app>` that are not being deleted and have not ended.
    pub async fn pods(&self, app: &str) -> Result<Vec<Pod>> {
        let mut pods = self.list::<Pod>(app).await?;
        pods.retain(crate::objects::is_active);
        Ok(pods)
    }

    /// Returns the number of events about an object by `<type> <reason> <message>`.
    pub async fn events(&self, about: &str) -> Result<BTreeMap<String, i32>> {
        let mut counts = BTreeMap::new();
        for event in self.list::<Event>("").await? {
            if event.involved_object.name.as_deref() == Some(about) {
                let text = |field: Option<String>| field.unwrap_or_default();
                let key = format!("{} {} {}", text(event.type_), text(event.reason), text(event.message));
                *counts.entry(key).or_default() += event.count.unwrap_or(1);
            }
        }
        Ok(counts)
    }

    /// Runs kubectl in the namespace as the admin, in a blocking thread; returns its output.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.run_kubectl(arguments, |cluster, arguments| cluster.kubectl(arguments)).await
    }

    /// Like [`Space::kubectl`], with a standard input.
    pub async fn kubectl_with_input(&self, arguments: &[&str], input: String) -> Result<String> {
        self.run_kubectl(arguments, move |cluster, arguments| cluster.kubectl_with_input(arguments, &input)).await
    }

    async fn run_kubectl(
        &self,
        arguments: &[&str],
        run: impl FnOnce(&ControlPlane, &[&str]) -> Result<String> + Send + 'static,
    ) -> Result<String> {
        let bed = self.bed.clone();
        let arguments: Vec<String> =
            ["--namespace", &self.namespace].iter().chain(arguments).map(|argument| (*argument).to_owned()).collect();
        tokio::task::spawn_blocking(move || {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            run(&bed.cluster, &arguments)
        })
        .await?
    }
}
