//! A control plane, an AWS account, and a ccm that connects them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::{CloudBed, Faults, Manager, eventually};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use moto::{Instance, Moto, Policy};
use provider_aws::Credentials;
use providers::{BuildContext, CloudProvider};
use serde_json::{Value, json};

/// The cluster's name in tags.
pub const CLUSTER: &str = "conformance";
/// The taint that keeps pods away from a node that is not initialized.
pub const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// The environment of one test.
pub struct AwsBed {
    pub cloud: CloudBed,
    pub moto: Moto,
}

/// The published IAM policy.
pub const POLICY: &str = include_str!("../../../../deploy/aws-iam-policy.json");

/// Returns the provider for an account in moto, not initialized, with the rights of the published policy only.
pub fn provider(moto: &Moto) -> Result<Arc<dyn CloudProvider>> {
    provider_of(moto, moto.cloud_config())
}

/// Like [`provider`]; the last resources of an earlier process are listed after this time instead of a minute.
pub fn provider_with_visibility(moto: &Moto, visible: Duration) -> Result<Arc<dyn CloudProvider>> {
    moto.proxy.enforce(Policy::parse(&[POLICY], &[("CLUSTER", CLUSTER)])?);
    let context =
        BuildContext { cluster_name: CLUSTER.into(), config: moto.cloud_config().into(), ..BuildContext::default() };
    let credentials = Credentials::new("test", "test", None, None, "test");
    Ok(provider_aws::build_with_visibility(&context, credentials, visible)?)
}

/// Like [`provider`], with this configuration.
pub fn provider_of(moto: &Moto, config: String) -> Result<Arc<dyn CloudProvider>> {
    moto.proxy.enforce(Policy::parse(&[POLICY], &[("CLUSTER", CLUSTER)])?);
    let config = config.into();
    provider_in(&BuildContext { cluster_name: CLUSTER.into(), config, ..BuildContext::default() })
}

/// Returns the provider for the inputs that ccm gives it.
pub fn provider_in(context: &BuildContext) -> Result<Arc<dyn CloudProvider>> {
    Ok(provider_aws::build_with(context, Credentials::new("test", "test", None, None, "test"))?)
}

impl AwsBed {
    pub async fn start() -> Result<Self> {
        let (cloud, moto) = futures::future::try_join(CloudBed::start(), Moto::start(CLUSTER)).await?;
        Ok(Self { cloud, moto })
    }

    /// Starts ccm with a clock that makes nodes an hour older.
    pub async fn ccm(&self, flags: &[&str]) -> Result<Manager> {
        self.ccm_at(&Faults::default(), flags, SignedDuration::from_hours(1)).await
    }

    /// Starts ccm with a clock that makes nodes older by `later`.
    pub async fn ccm_at(&self, faults: &Faults, flags: &[&str], later: SignedDuration) -> Result<Manager> {
        self.cloud.start_ccm_with_provider(|_| provider(&self.moto), faults, flags, later).await
    }

    /// Registers the Node of an instance, like a kubelet without a provider ID.
    pub async fn register(&self, instance: &Instance, more: Value) -> Result<Node> {
        self.cloud.register(&instance.name, more).await
    }

    /// Starts instances and registers their Nodes.
    pub async fn nodes(&self, count: usize) -> Result<Vec<Instance>> {
        let instances = self.moto.run(count).await?;
        for some in instances.chunks(50) {
            let registered = some.iter().map(|instance| self.register(instance, json!({})));
            futures::future::try_join_all(registered).await?;
        }
        Ok(instances)
    }

    /// Waits until a Node is initialized, with all data of its instance.
    pub async fn until_initialized(&self, instance: &Instance) -> Result<Node> {
        eventually(format!("{} is initialized", instance.name), || async {
            let node = self.cloud.nodes().get(&instance.name).await?;
            ensure!(!taints(&node).contains(&UNINITIALIZED), "it has the taint {UNINITIALIZED}");
            let id = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
            ensure!(id == Some(&instance.provider_id()), "its id is {id:?}, not {}", instance.provider_id());
            let has = labels(&node);
            for (key, value) in [
                ("topology.kubernetes.io/zone", &*instance.zone),
                ("topology.kubernetes.io/region", moto::REGION),
                ("node.kubernetes.io/instance-type", "m5.large"),
                ("failure-domain.beta.kubernetes.io/zone", &instance.zone),
            ] {
                ensure!(has.get(key).is_some_and(|has| has == value), "{key} is not {value} in {has:?}");
            }
            let addresses = addresses(&node);
            for expected in [("InternalIP", &instance.address), ("InternalDNS", &instance.name)] {
                let has = addresses.iter().any(|(kind, address)| (&**kind, address) == expected);
                ensure!(has, "no {expected:?} in {addresses:?}");
            }
            Ok(node)
        })
        .await
    }
}

/// Returns a node's labels.
pub fn labels(node: &Node) -> BTreeMap<String, String> {
    node.metadata.labels.clone().unwrap_or_default()
}

/// Returns the keys of a node's taints.
pub fn taints(node: &Node) -> Vec<&str> {
    node.spec.iter().flat_map(|spec| &spec.taints).flatten().map(|taint| taint.key.as_str()).collect()
}

/// Returns a node's addresses, as kind and text.
pub fn addresses(node: &Node) -> Vec<(String, String)> {
    let addresses = node.status.iter().flat_map(|status| &status.addresses).flatten();
    addresses.map(|own| (own.type_.clone(), own.address.clone())).collect()
}

/// Returns status and reason of a node's condition about its routes.
pub fn network(node: &Node) -> Result<(String, String)> {
    let conditions = node.status.iter().flat_map(|status| &status.conditions).flatten();
    let mut about = conditions.filter(|condition| condition.type_ == "NetworkUnavailable");
    let condition = about.next().context("the node has no condition NetworkUnavailable")?;
    Ok((condition.status.clone(), condition.reason.clone().unwrap_or_default()))
}
