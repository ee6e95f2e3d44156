//! An infrastructure cluster for tests: a control plane with KubeVirt's kinds, and a ccm with the mock cloud, which
//! gives Services their addresses.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use control_plane::{CustomKind, Identity};
use k8s_openapi::api::core::v1::{Namespace, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use provider_conformance::{Fixture, FixtureError, ReadFailure};
use provider_kubevirt::{Config, LoadBalancerConfig, Targets};
use provider_mock::{Effect as CloudEffect, Fault, Operation, Pattern};
use providers::{ClassFilter, CloudProvider, InstanceRef, LoadBalancerId, async_trait};
use runtime::client::ConnectOptions;
use serde_json::{Value, json};

use crate::call::Call;
use crate::cloud::CloudBed;
use crate::faults::{Effect, Faults, Rule};
use crate::manager::Manager;
use crate::wait::eventually;

/// The user of tenants, as in the manifest.
const USER: &str = "kubevirt-tenant-ccm";
const RIGHTS: &str = include_str!("../../../deploy/kubevirt-infra-rbac.yaml");

/// Locked while the manifest of a tenant is applied.
static APPLYING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The node that all virtual machines run on.
const INFRA_NODE: &str = "infra-1";

/// The zone of that node.
pub const ZONE: &str = "zone-a";

/// The region of that node.
pub const REGION: &str = "region-1";

/// Label of the objects that a provider creates for a tenant's Service: its value is the Service's uid.
const UID_LABEL: &str = "kubewright/tenant-service-uid";

/// A running infrastructure cluster.
pub struct Infrastructure {
    /// Its control plane and cloud.
    pub cloud: CloudBed,
    _manager: Manager,
    addresses: AtomicU32,
}

/// A tenant's part of the infrastructure cluster.
#[derive(Clone)]
pub struct Tenant {
    /// The infrastructure cluster.
    pub infrastructure: Arc<Infrastructure>,
    /// The namespace of its virtual machines.
    pub namespace: String,
    /// `--cluster-name`.
    pub cluster: String,
    /// Faults in the requests of its providers.
    pub faults: Faults,
}

impl Infrastructure {
    /// Starts an infrastructure cluster without virtual machines.
    pub async fn start() -> Result<Arc<Self>> {
        let cloud = CloudBed::start().await?;
        let client = cloud.bed.client.clone();
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        for kind in ["VirtualMachineInstance", "VirtualMachine"].map(kind) {
            definitions.create(&PostParams::default(), &serde_json::from_value(kind.definition())?).await?;
            let objects = kind.api(client.clone(), "default");
            eventually(format!("{} is served", kind.name()), || async {
                Ok(objects.list(&ListParams::default()).await?)
            })
            .await?;
        }
        let labels = json!({"topology.kubernetes.io/zone": ZONE, "topology.kubernetes.io/region": REGION});
        let node = serde_json::from_value(json!({"metadata": {"name": INFRA_NODE, "labels": labels}}))?;
        Api::<Node>::all(client).create(&PostParams::default(), &node).await?;
        let manager = cloud.start_ccm(&Faults::default(), &["--controllers=service"]).await?;
        Ok(Arc::new(Self { cloud, _manager: manager, addresses: AtomicU32::new(1) }))
    }

    /// Returns the admin's client.
    pub fn client(&self) -> Client {
        self.cloud.bed.client.clone()
    }

    /// Creates a namespace for a tenant, with the permissions of the manifest.
    pub async fn tenant(self: &Arc<Self>, name: &str) -> Result<Tenant> {
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        Api::all(self.client()).create(&PostParams::default(), &namespace).await?;
        let (infrastructure, flag) = (self.clone(), format!("--namespace={name}"));
        // The manifest has cluster-wide objects: of two concurrent commands that create them, one would fail.
        let applying = APPLYING.lock().await;
        tokio::task::spawn_blocking(move || {
            let cluster = &infrastructure.cloud.bed.cluster;
            cluster.kubectl_with_input(&["apply", &flag, "--filename=-"], RIGHTS)
        })
        .await??;
        drop(applying);
        let (namespace, cluster) = (name.to_owned(), format!("cluster-of-{name}"));
        Ok(Tenant { infrastructure: self.clone(), namespace, cluster, faults: Faults::default() })
    }
}

fn kind(name: &str) -> CustomKind {
    CustomKind::new("kubevirt.io", name)
}

impl Tenant {
    /// Returns the kubeconfig of the tenant's user.
    pub fn kubeconfig(&self) -> Result<PathBuf> {
        let user = Identity::User { name: USER.into(), groups: Vec::new() };
        self.infrastructure.cloud.bed.cluster.kubeconfig(user)
    }

    /// Returns a new provider for the tenant, as after a restart of the process.
    pub fn provider(&self, targets: Targets) -> Result<Arc<dyn CloudProvider>> {
        self.provider_in(&self.namespace, targets, self.kubeconfig()?)
    }

    /// Returns a provider for a namespace, with the user of a kubeconfig.
    pub fn provider_in(
        &self,
        namespace: &str,
        targets: Targets,
        kubeconfig: PathBuf,
    ) -> Result<Arc<dyn CloudProvider>> {
        let config = Config {
            namespace: Some(namespace.to_owned()),
            load_balancer: Some(LoadBalancerConfig {
                poll_interval: Duration::from_millis(50),
                targets,
                ..LoadBalancerConfig::default()
            }),
            ..Config::default()
        };
        let connection = ConnectOptions {
            kubeconfig: Some(kubeconfig),
            user_agent: "cloud-controller-manager/test".into(),
            layer: Some(self.faults.layer(Arc::new(AtomicBool::new(false)))),
            ..ConnectOptions::default()
        };
        Ok(provider_kubevirt::build(&config, &self.cluster, ClassFilter::default(), connection))
    }

    /// Returns the admin's client of VirtualMachineInstances.
    pub fn instances(&self) -> Api<DynamicObject> {
        kind("VirtualMachineInstance").api(self.infrastructure.client(), &self.namespace)
    }

    /// Returns the admin's client of VirtualMachines.
    pub fn machines(&self) -> Api<DynamicObject> {
        kind("VirtualMachine").api(self.infrastructure.client(), &self.namespace)
    }

    /// Returns the admin's client of the tenant's Services.
    pub fn services(&self) -> Api<Service> {
        Api::namespaced(self.infrastructure.client(), &self.namespace)
    }

    /// Returns the admin's client of the tenant's EndpointSlices.
    pub fn slices(&self) -> Api<EndpointSlice> {
        Api::namespaced(self.infrastructure.client(), &self.namespace)
    }

    /// Creates a running VirtualMachineInstance; returns its address.
    pub async fn start_machine(&self, name: &str) -> Result<String> {
        let number = self.infrastructure.addresses.fetch_add(1, Ordering::Relaxed);
        let address = format!("10.128.{}.{}", number / 250, number % 250 + 1);
        let instance = json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachineInstance",
            "metadata": {"name": name, "annotations": {"kubevirt.io/cluster-instancetype-name": "u1.medium"}},
            "spec": {},
            "status": {
                "phase": "Running",
                "nodeName": INFRA_NODE,
                "interfaces": [{"name": "default", "ipAddress": address, "ipAddresses": [address]}],
            },
        });
        self.instances().create(&PostParams::default(), &serde_json::from_value(instance)?).await?;
        Ok(address)
    }

    /// Changes a VirtualMachineInstance.
    pub async fn edit_instance(&self, name: &str, patch: Value) -> Result<()> {
        self.instances().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    /// Returns the names of the Services and EndpointSlices that a provider has created for the tenant's Service with
    /// this uid; for all Services if `uid` is empty.
    pub async fn created(&self, uid: &str) -> Result<Vec<String>> {
        let selector = if uid.is_empty() { UID_LABEL.to_owned() } else { format!("{UID_LABEL}={uid}") };
        let created = ListParams::default().labels(&selector);
        let services = self.services().list(&created).await?.items.into_iter().map(|service| service.metadata);
        let slices = self.slices().list(&created).await?.items.into_iter().map(|slice| slice.metadata);
        Ok(services.chain(slices).filter_map(|meta| meta.name).collect())
    }
}

fn failed(error: impl std::fmt::Display) -> FixtureError {
    FixtureError::Failed(format!("{error:#}"))
}

#[async_trait]
impl Fixture for Tenant {
    fn cluster(&self) -> String {
        self.cluster.clone()
    }

    fn timeout(&self) -> Duration {
        crate::wait::DEADLINE
    }

    async fn create_instance(&self, node: &str) -> Result<InstanceRef, FixtureError> {
        self.start_machine(node).await.map_err(failed)?;
        Ok(InstanceRef::named(node).with_provider_id(format!("kubevirt://{node}")))
    }

    async fn stop_instance(&self, instance: &InstanceRef) -> Result<(), FixtureError> {
        self.edit_instance(&instance.node, json!({"status": {"phase": "Succeeded"}})).await.map_err(failed)
    }

    async fn delete_instance(&self, instance: &InstanceRef) -> Result<(), FixtureError> {
        match self.instances().delete(&instance.node, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            deleted => deleted.map(drop).map_err(failed),
        }
    }

    async fn leaked_resources(&self, id: &LoadBalancerId) -> Result<Vec<String>, FixtureError> {
        self.created(&id.uid).await.map_err(failed)
    }

    async fn fail_change(&self, nth: u64) -> Result<(), FixtureError> {
        self.faults.add(Rule::new(Call::is_object_write, Effect::Refuse(500, None)).nth(nth as usize));
        Ok(())
    }

    async fn lose_response(&self, nth: u64) -> Result<(), FixtureError> {
        self.faults.add(Rule::new(Call::is_object_write, Effect::LostAfter).nth(nth as usize));
        Ok(())
    }

    async fn fail_reads(&self, failure: ReadFailure) -> Result<(), FixtureError> {
        let effect = match failure {
            ReadFailure::Denied => Effect::Refuse(403, None),
            ReadFailure::Throttled => Effect::Refuse(429, Some(1)),
            ReadFailure::Outage => Effect::Refuse(500, None),
        };
        self.faults.add(Rule::new(|call| !call.is_write(), effect).times(usize::MAX));
        Ok(())
    }

    async fn limit_pages(&self, size: usize) -> Result<(), FixtureError> {
        self.faults.limit_pages(size);
        Ok(())
    }

    async fn create_foreign_load_balancer(&self, id: &LoadBalancerId) -> Result<(), FixtureError> {
        let service = json!({
            "metadata": {"name": id.default_name(), "labels": {"app": "foreign"}},
            "spec": {"selector": {"app": "foreign"}, "ports": [{"port": 7}]},
        });
        let service = serde_json::from_value(service).map_err(failed)?;
        self.services().create(&PostParams::default(), &service).await.map(drop).map_err(failed)
    }

    async fn has_foreign_load_balancer(&self, id: &LoadBalancerId) -> Result<bool, FixtureError> {
        let found = self.services().get_opt(&id.default_name()).await.map_err(failed)?;
        Ok(found.is_some_and(|service| {
            let ports = service.spec.and_then(|spec| spec.ports).unwrap_or_default();
            ports.iter().map(|port| port.port).eq([7])
                && service.metadata.labels.is_some_and(|labels| labels.len() == 1)
        }))
    }

    async fn delete_foreign_load_balancer(&self, id: &LoadBalancerId) -> Result<(), FixtureError> {
        self.services().delete(&id.default_name(), &DeleteParams::default()).await.map(drop).map_err(failed)
    }

    async fn restore(&self) -> Result<(), FixtureError> {
        self.faults.clear();
        Ok(())
    }

    async fn hold_deletion(&self, time: Duration) -> Result<(), FixtureError> {
        // The Service in the infrastructure cluster stays until its load balancer is deleted.
        let effect = CloudEffect::Pending { millis: time.as_millis() as u64 };
        let fault = Fault::always(Pattern::One(Operation::DeleteBalancer), effect);
        self.infrastructure.cloud.cloud.add_fault(fault).map(drop).map_err(failed)
    }
}

/// Returns the addresses in a Service's status.
pub fn addresses(service: &Service) -> Vec<String> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_ref());
    ingress.into_iter().flatten().filter_map(|ingress| ingress.ip.clone()).collect()
}

/// Checks that an infrastructure cluster's cloud has no load balancer.
pub fn cloud_is_empty(infrastructure: &Infrastructure) -> Result<()> {
    let balancers = infrastructure.cloud.cloud.snapshot().balancers;
    ensure!(balancers.is_empty(), "the infrastructure's cloud still has {balancers:?}");
    Ok(())
}
