//! A control plane for a single test, with a mock cloud and a ccm.
//!
//! Nodes are cluster-scoped: if two tests with separate clouds shared a control plane, the ccm of each would delete the
//! other's nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ccm::flags::{Invocation, Options as Flags, parse};
use control_plane::{Identity, Options};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use provider_mock::{InstanceConfig, MockCloud, MockConfig};
use providers::CloudProvider;
use serde_json::{Value, json};

use crate::faults::Faults;
use crate::manager::Manager;
use crate::space::Bed;

/// The user of ccm, whose permissions are in its manifest.
const USER: &str = "system:cloud-controller-manager";
const RIGHTS: &str = include_str!("../../../deploy/ccm-rbac.yaml");

/// A control plane and a cloud for a single test.
pub struct CloudBed {
    /// The control plane.
    pub bed: Arc<Bed>,
    /// The cloud.
    pub cloud: MockCloud,
}

impl CloudBed {
    /// Starts the control plane and the mock cloud, without nodes and instances.
    pub async fn start() -> Result<Self> {
        let bed = Bed::without_accounts(Options { kwok: false, ..Options::default() }).await?;
        let bed = Arc::new(bed);
        let applying = bed.clone();
        tokio::task::spawn_blocking(move || applying.cluster.kubectl_with_input(&["apply", "--filename=-"], RIGHTS))
            .await??;
        Ok(Self { bed, cloud: MockCloud::new(MockConfig::default())? })
    }

    /// Starts ccm with the permissions of its manifest and a service account per controller. Its clock is an hour
    /// ahead, so that nodes are not young. Leader election is off, and only the node controllers run, unless `flags`
    /// change that.
    pub async fn start_ccm(&self, faults: &Faults, flags: &[&str]) -> Result<Manager> {
        self.start_ccm_later(faults, flags, SignedDuration::from_hours(1)).await
    }

    /// Like [`CloudBed::start_ccm`], with a clock that is ahead by `later`.
    pub async fn start_ccm_later(&self, faults: &Faults, flags: &[&str], later: SignedDuration) -> Result<Manager> {
        self.start_ccm_with_provider(|cluster| Ok(self.cloud.provider(cluster)), faults, flags, later).await
    }

    /// Like [`CloudBed::start_ccm_later`], with the cloud provider that `provider` creates from the cluster's name.
    pub async fn start_ccm_with_provider(
        &self,
        provider: impl FnOnce(&str) -> Result<Arc<dyn CloudProvider>>,
        faults: &Faults,
        flags: &[&str],
        later: SignedDuration,
    ) -> Result<Manager> {
        let mut arguments = vec![
            "--cloud-provider=mock".to_owned(),
            "--use-service-account-credentials".to_owned(),
            "--leader-elect=false".to_owned(),
            "--configure-cloud-routes=false".to_owned(),
            "--kube-api-qps=200".to_owned(),
            "--kube-api-burst=400".to_owned(),
            "--node-monitor-period=1s".to_owned(),
        ];
        if !flags.iter().any(|flag| flag.starts_with("--controllers")) {
            arguments.push("--controllers=cloud-node,cloud-node-lifecycle".to_owned());
        }
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let provider = |options: &Flags| provider(options.values.get_str("cluster-name"));
        self.start_ccm_as(USER, provider, faults, arguments, later).await
    }

    /// Starts ccm as `user`, with no other flags than `flags` and a kubeconfig. `provider` creates the cloud provider
    /// from the parsed flags.
    pub async fn start_ccm_as(
        &self,
        user: &str,
        provider: impl FnOnce(&Flags) -> Result<Arc<dyn CloudProvider>>,
        faults: &Faults,
        mut flags: Vec<String>,
        later: SignedDuration,
    ) -> Result<Manager> {
        let kubeconfig = self.bed.cluster.kubeconfig(Identity::User { name: user.into(), groups: Vec::new() })?;
        flags.push(format!("--kubeconfig={}", kubeconfig.display()));
        let options = match parse(flags)? {
            Invocation::Run(options) => *options,
            other => bail!("the flags do not run a manager: {other:?}"),
        };
        let provider = provider(&options)?;
        Manager::run(kubeconfig, "cloud-controller-manager/test", faults, async |connection| {
            let clock = Arc::new(move || Timestamp::now() + later);
            ccm::app::manager_with_clock(provider, options, &connection, clock).await
        })
        .await
    }

    /// Returns the admin's client of nodes.
    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.bed.client.clone())
    }

    /// Registers a node like a kubelet with an external cloud provider; `more` is merged into it.
    pub async fn register(&self, name: &str, more: Value) -> Result<Node> {
        let mut node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "spec": {"taints": [{
                "key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule",
            }]},
        });
        merge(&mut node, more);
        let node = serde_json::from_value(node)?;
        self.nodes().create(&PostParams::default(), &node).await.with_context(|| format!("register {name}"))
    }

    /// Registers a node with an instance.
    pub async fn register_instance(&self, name: &str) -> Result<Node> {
        self.cloud.add_instance(&InstanceConfig::named(name));
        self.register(name, json!({})).await
    }

    /// Sets the Ready condition of a node, as its kubelet does.
    pub async fn set_ready_condition(&self, name: &str, status: &str) -> Result<()> {
        let patch = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        self.nodes().patch_status(name, &PatchParams::default(), &Patch::Strategic(&patch)).await?;
        Ok(())
    }

    /// Changes a node as an admin does.
    pub async fn edit(&self, name: &str, patch: Value) -> Result<()> {
        self.nodes().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    /// Deletes all nodes.
    pub async fn clear(&self) -> Result<()> {
        self.nodes().delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        Ok(())
    }

    /// Returns the number of events about a node, by `<component> <type> <reason> <message>`.
    pub async fn events(&self, node: &str) -> Result<BTreeMap<String, i32>> {
        let mut counts = BTreeMap::new();
        let events: Api<Event> = Api::namespaced(self.bed.client.clone(), "default");
        for event in events.list(&ListParams::default()).await?.items {
            if event.involved_object.name.as_deref() == Some(node) {
                let text = |field: Option<String>| field.unwrap_or_default();
                let component = text(event.source.and_then(|source| source.component));
                let key = format!("{component} {} {} {}", text(event.type_), text(event.reason), text(event.message));
                *counts.entry(key).or_default() += event.count.unwrap_or(1);
            }
        }
        Ok(counts)
    }
}

/// Merges `more` into `base`: objects are merged, everything else is replaced.
fn merge(base: &mut Value, more: Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, more) => *base = more,
    }
}
