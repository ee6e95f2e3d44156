//! A control plane, an AWS account of moto, and instances whose Nodes wait for a cloud controller manager.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use control_plane::{ControlPlane, Identity, Options};
use k8s_openapi::api::core::v1::{Node, Service};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use moto::{Effect, Fault, Instance, Moto};
use serde_json::{Value, json};

/// The cluster's name in tags.
const CLUSTER: &str = "try";
/// The taint of a node that its cloud has not initialized yet.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// The addresses of all pods.
const PODS: &str = "10.244.0.0/16";
const USER: &str = "system:cloud-controller-manager";
const RIGHTS: &str = include_str!("../../../deploy/ccm-rbac.yaml");

/// The calls that managers also make when nothing changes, for nodes and routes.
const IDLE_CALLS: [&str; 3] = ["DescribeInstances", "DescribeRouteTables", "DescribeInstanceTopology"];

/// Interval at which states are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time to wait for a state.
const DEADLINE: Duration = Duration::from_secs(400);

/// Numbers of calls by AWS action.
pub type Calls = BTreeMap<String, u64>;

/// The cluster and its AWS account.
pub struct Bed {
    /// The control plane.
    pub cluster: ControlPlane,
    /// The AWS account.
    pub moto: Moto,
    /// The instances, in the order in which their Nodes were registered.
    pub instances: Vec<Instance>,
    /// A client with all permissions.
    pub client: Client,
    /// The file of `--cloud-config`.
    pub config: PathBuf,
    kubelets: bool,
}

/// A cloud controller manager to run on a bed.
#[derive(Debug, Clone)]
pub struct Manager {
    /// Its name in tables and logs.
    pub name: &'static str,
    /// Its program.
    pub program: PathBuf,
    /// The manager runs with the permissions of ccm's manifest; otherwise as an admin.
    pub own_rights: bool,
}

impl Bed {
    /// Starts a control plane and moto, without instances. With `kubelets`, fake kubelets make nodes Ready and run
    /// pods; otherwise, nodes are Ready immediately and no other program writes to them.
    ///
    /// # Errors
    /// If the control plane's programs or moto are not available or do not start.
    pub async fn start(kubelets: bool) -> Result<Self> {
        let options = Options { nodes: 0, kwok: kubelets, scheduler: kubelets, ..Options::default() };
        let (cluster, moto) = futures::future::try_join(ControlPlane::start(options), Moto::start(CLUSTER)).await?;
        moto.proxy.name_network_balancers();
        // Interfaces are deleted immediately. On AWS they remain for some time, in which the number of reads depends on
        // the interval at which a manager polls.
        moto.proxy.keep_interfaces(0);
        // The response of regions without this API. With moto's response, upstream's manager would wait.
        let unsupported =
            Effect::refused("UnsupportedOperation", "The functionality you requested is not supported in this region.");
        moto.proxy.arm(Fault::always("DescribeInstanceTopology", unsupported));
        cluster.kubectl_with_input(&["apply", "--filename=-"], RIGHTS)?;
        let config = cluster.folder().join("aws.conf");
        fs::write(&config, moto.cloud_config()).with_context(|| format!("write {}", config.display()))?;
        let client = cluster.client(Identity::Admin).await?;
        Ok(Self { cluster, moto, instances: Vec::new(), client, config, kubelets })
    }

    /// Returns the API of nodes.
    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Returns the API of Services in the default namespace.
    pub fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Starts instances and registers their Nodes, as kubelets with an external cloud provider do. Each Node has a pod
    /// network.
    ///
    /// # Errors
    /// If moto or the API server refuses.
    pub async fn join(&mut self, count: usize) -> Result<()> {
        let instances = self.moto.run(count).await?;
        let nodes = self.nodes();
        for (number, instance) in (self.instances.len()..).zip(&instances) {
            let node = serde_json::from_value(node(number, instance))?;
            nodes.create(&PostParams::default(), &node).await.with_context(|| format!("register {}", instance.name))?;
            if !self.kubelets {
                self.set_ready_condition(&instance.name, "True").await?;
            }
        }
        self.instances.extend(instances);
        Ok(())
    }

    /// Sets the Ready condition of a node, as its kubelet does.
    ///
    /// # Errors
    /// If the API server refuses.
    pub async fn set_ready_condition(&self, name: &str, status: &str) -> Result<()> {
        let patch = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        self.nodes().patch_status(name, &PatchParams::default(), &Patch::Strategic(&patch)).await?;
        Ok(())
    }

    /// Starts a manager with all of its default controllers; returns its process ID.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn run(&self, manager: &Manager) -> Result<u32> {
        let identity =
            if manager.own_rights { Identity::User { name: USER.into(), groups: Vec::new() } } else { Identity::Admin };
        let kubeconfig = self.cluster.kubeconfig(identity)?;
        self.cluster.run(manager.name, Path::new("env"), &arguments(manager, &self.config, &kubeconfig))
    }

    /// Waits until `done` reports no missing state; returns the elapsed time.
    ///
    /// # Errors
    /// If it takes too long, with the last missing state; or if a process of the bed ends.
    pub async fn until<F: Future<Output = Result<Option<String>>>>(
        &self,
        mut done: impl FnMut() -> F,
    ) -> Result<Duration> {
        let begun = Instant::now();
        while let Some(missing) = done().await? {
            self.cluster.check()?;
            ensure!(begun.elapsed() < DEADLINE, "not done after {} s: {missing}", DEADLINE.as_secs());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(begun.elapsed())
    }

    /// Waits until all nodes are initialized and have their routes.
    ///
    /// # Errors
    /// Same as [`Bed::until`].
    pub async fn until_initialized(&self) -> Result<Duration> {
        self.until(|| async {
            let nodes = self.nodes().list(&ListParams::default()).await.context("list the nodes")?.items;
            let tainted = nodes.iter().filter(|node| is_tainted(node)).count();
            let (routes, wanted) = (self.moto.routes(&self.moto.network.table).await?.len(), nodes.len());
            let missing = tainted > 0 || routes < wanted;
            Ok(missing
                .then(|| format!("{tainted} of {wanted} nodes are not initialized, and there are {routes} routes")))
        })
        .await
    }

    /// Waits until this number of Services has an ingress.
    ///
    /// # Errors
    /// Same as [`Bed::until`].
    pub async fn until_reachable(&self, wanted: usize) -> Result<Duration> {
        self.until(|| async {
            let services = self.services().list(&ListParams::default()).await.context("list the Services")?.items;
            let without: Vec<String> =
                services.iter().filter(|service| hostname(service).is_none()).map(|one| one.name_any()).collect();
            let with = services.len() - without.len();
            Ok((with < wanted).then(|| format!("{with} of {wanted} Services have a host name; missing: {without:?}")))
        })
        .await
    }

    /// Waits until AWS gets no calls for this time, except for idle calls. Returns the time of the last call, or the
    /// time at which the wait began if there was none.
    ///
    /// # Errors
    /// If it takes too long, or a process of the bed ends.
    pub async fn until_quiet(&self, rest: Duration) -> Result<Instant> {
        let begun = Instant::now();
        let (mut last, mut calls) = (begun, self.non_idle_calls());
        while last.elapsed() < rest {
            self.cluster.check()?;
            if begun.elapsed() > DEADLINE {
                bail!("AWS is still called at the deadline: {:?}", self.moto.proxy.calls());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
            let now = self.non_idle_calls();
            if now != calls {
                (last, calls) = (Instant::now(), now);
            }
        }
        Ok(last)
    }

    /// Returns the number of calls that idle managers do not make.
    fn non_idle_calls(&self) -> u64 {
        let calls = self.moto.proxy.calls();
        calls.iter().filter(|(action, _)| !IDLE_CALLS.contains(&action.as_str())).map(|(_, count)| count).sum()
    }
}

/// Returns the increase since `before`.
pub fn since(before: &Calls, now: Calls) -> Calls {
    let more =
        |(action, count): (String, u64)| (action.clone(), count - before.get(&action).copied().unwrap_or_default());
    now.into_iter().map(more).filter(|(_, count)| *count > 0).collect()
}

/// Returns true if a node waits for its cloud.
pub fn is_tainted(node: &Node) -> bool {
    node.spec.iter().flat_map(|spec| &spec.taints).flatten().any(|taint| taint.key == UNINITIALIZED)
}

/// Returns the host name of a Service.
pub fn hostname(service: &Service) -> Option<String> {
    let ingress = service.status.as_ref()?.load_balancer.as_ref()?.ingress.as_ref()?;
    ingress.first()?.hostname.clone()
}

fn node(number: usize, instance: &Instance) -> Value {
    let network = format!("10.244.{number}.0/24");
    json!({
        "metadata": {"name": instance.name, "labels": {"kubernetes.io/hostname": instance.name}},
        "spec": {
            "podCIDR": network,
            "podCIDRs": [network],
            "taints": [{"key": UNINITIALIZED, "value": "true", "effect": "NoSchedule"}],
        },
    })
}

/// Returns the manager's command line, after `env`.
fn arguments(manager: &Manager, config: &Path, kubeconfig: &Path) -> Vec<String> {
    let environment = ["AWS_ACCESS_KEY_ID=any", "AWS_SECRET_ACCESS_KEY=any", "AWS_EC2_METADATA_DISABLED=true"];
    let mut arguments: Vec<String> = environment.map(String::from).into();
    arguments.extend([
        manager.program.display().to_string(),
        "--cloud-provider=aws".to_owned(),
        format!("--cloud-config={}", config.display()),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--cluster-cidr={PODS}"),
        "--leader-elect=false".to_owned(),
        "--secure-port=0".to_owned(),
        // The API server is not under test here.
        "--kube-api-qps=200".to_owned(),
        "--kube-api-burst=400".to_owned(),
        format!("--use-service-account-credentials={}", manager.own_rights),
        "--v=2".to_owned(),
    ]);
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_from_a_mark() {
        let calls = |pairs: &[(&str, u64)]| pairs.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect::<Calls>();
        let more = since(&calls(&[("A", 1), ("B", 2)]), calls(&[("A", 1), ("B", 5), ("C", 1)]));
        assert_eq!(more, calls(&[("B", 3), ("C", 1)]));
    }

    #[test]
    fn only_ours_runs_with_its_own_permissions() {
        let manager = |own_rights| Manager { name: "ours", program: "/bin/ccm".into(), own_rights };
        let flags = |own_rights| arguments(&manager(own_rights), Path::new("a"), Path::new("b")).join(" ");
        assert!(flags(true).contains("/bin/ccm --cloud-provider=aws --cloud-config=a --kubeconfig=b"));
        assert!(flags(true).contains("--use-service-account-credentials=true"));
        assert!(flags(false).contains("--use-service-account-credentials=false"));
    }
}
