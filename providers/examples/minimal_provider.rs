//! A complete provider for an imaginary cloud, Acme: instances and load balancers, no routes.
//!
//! `cargo run -p kubewright-provider-conformance --example minimal-provider` prints the suite's report about it, and
//! its tests are the suite. `docs/providers.md` explains it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use providers::*;

/// The cloud. A real provider has a client for its API instead.
#[derive(Default)]
struct AcmeCloud {
    instances: BTreeMap<String, bool>,
    balancers: BTreeMap<LoadBalancerId, ObservedLoadBalancer>,
    last_address: u8,
}

#[derive(Clone, Default)]
struct AcmeProvider(Arc<Mutex<AcmeCloud>>);

impl AcmeProvider {
    fn lock(&self) -> MutexGuard<'_, AcmeCloud> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl CloudProvider for AcmeProvider {
    fn name(&self) -> &'static str {
        "acme"
    }

    fn instances(&self) -> Option<Arc<dyn Instances>> {
        Some(Arc::new(self.clone()))
    }

    fn load_balancers(&self) -> Option<Arc<dyn LoadBalancers>> {
        Some(Arc::new(self.clone()))
    }
}

fn describe_one(cloud: &AcmeCloud, wanted: &InstanceRef) -> InstanceState {
    let name = match wanted.provider_id.as_deref() {
        None => wanted.node.as_str(),
        Some(id) => match id.strip_prefix("acme://") {
            Some(name) => name,
            None => {
                let message = format!("spec.providerID is {id:?}, which belongs to another cloud");
                return InstanceState::Unknown(CloudError::new(ErrorKind::Invalid, "ReadProviderId", message));
            }
        },
    };
    match cloud.instances.get(name) {
        None => InstanceState::Gone,
        Some(false) => InstanceState::Stopped,
        Some(true) => InstanceState::Running(Box::new(Instance {
            provider_id: format!("acme://{name}"),
            zone: "zone-1".into(),
            addresses: vec![Address { kind: AddressKind::Hostname, address: name.into() }],
            ..Instance::default()
        })),
    }
}

#[async_trait]
impl Instances for AcmeProvider {
    async fn describe(&self, instances: &[InstanceRef]) -> Vec<InstanceState> {
        let cloud = self.lock();
        instances.iter().map(|wanted| describe_one(&cloud, wanted)).collect()
    }
}

/// The only annotation: whether the load balancer writes an access log.
const LOGGING: &str = "acme.example/access-log";

fn targets_of(targets: &Targets) -> Vec<ObservedTarget> {
    let ids: BTreeSet<_> = targets.nodes.iter().filter_map(|node| node.provider_id.clone()).collect();
    ids.into_iter().map(|id| ObservedTarget { target: TargetId::Instance(id), health: Health::Unknown }).collect()
}

#[async_trait]
impl LoadBalancers for AcmeProvider {
    fn features(&self) -> Features {
        Features { protocols: vec![Protocol::Tcp], ..Features::default() }
    }

    fn targeting(&self, spec: &LoadBalancerSpec) -> Result<Targeting, CloudError> {
        self.features().check(spec)?;
        if let Some(value) = spec.annotations.get(LOGGING).filter(|value| !["yes", "no"].contains(&value.as_str())) {
            return Err(CloudError::invalid_annotation(LOGGING, value, "use yes or no, or leave it out"));
        }
        Ok(Targeting::Nodes)
    }

    async fn observe(&self, id: &LoadBalancerId) -> Result<Observed, CloudError> {
        let found = self.lock().balancers.get(id).cloned();
        Ok(found.map_or(Observed::Absent, |balancer| Observed::Present(Box::new(balancer))))
    }

    async fn ensure(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Ensured, CloudError> {
        self.targeting(spec)?;
        let mut cloud = self.lock();
        let status = match cloud.balancers.get(&spec.id) {
            Some(found) => found.status.clone(),
            None => {
                cloud.last_address += 1;
                let ip = IpAddr::V4(Ipv4Addr::new(192, 0, 2, cloud.last_address));
                LoadBalancerStatus { ingress: vec![Ingress { ip: Some(ip), ..Ingress::default() }] }
            }
        };
        let listeners: BTreeSet<_> =
            spec.ports.iter().map(|port| Listener { protocol: port.protocol, port: port.port }).collect();
        let balancer = ObservedLoadBalancer {
            phase: Phase::Active,
            status: status.clone(),
            listeners: listeners.into_iter().collect(),
            source_ranges: Vec::new(),
            targets: targets_of(targets),
        };
        cloud.balancers.insert(spec.id.clone(), balancer);
        Ok(Ensured::settled(status))
    }

    async fn set_targets(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<(), CloudError> {
        match self.lock().balancers.get_mut(&spec.id) {
            Some(balancer) => {
                balancer.targets = targets_of(targets);
                Ok(())
            }
            None => Err(CloudError::new(ErrorKind::NotFound, "SetTargets", format!("there is no {}", spec.id))),
        }
    }

    async fn delete(&self, id: &LoadBalancerId) -> Result<Deletion, CloudError> {
        self.lock().balancers.remove(id);
        Ok(Deletion::Gone)
    }

    async fn list_owned(&self) -> Result<Vec<Owned>, CloudError> {
        let owned = |(id, balancer): (&LoadBalancerId, &ObservedLoadBalancer)| Owned {
            id: id.clone(),
            phase: balancer.phase,
            resources: vec![format!("balancer {}", id.default_name())],
            certain: true,
        };
        Ok(self.lock().balancers.iter().map(owned).collect())
    }
}

/// Returns the factory for a binary's list: `ccm --cloud-provider=acme`.
fn factory() -> Factory {
    Factory { name: "acme", build: |_context| Ok(Arc::new(AcmeProvider::default())) }
}

/// The cloud, bypassing the provider, for the suite.
struct AcmeFixture(AcmeProvider);

#[async_trait]
impl provider_conformance::Fixture for AcmeFixture {
    fn cluster(&self) -> String {
        "example".into()
    }

    async fn create_instance(&self, node: &str) -> Result<InstanceRef, provider_conformance::FixtureError> {
        self.0.lock().instances.insert(node.into(), true);
        Ok(InstanceRef::named(node).with_provider_id(format!("acme://{node}")))
    }

    async fn stop_instance(&self, instance: &InstanceRef) -> Result<(), provider_conformance::FixtureError> {
        self.0.lock().instances.insert(instance.node.clone(), false);
        Ok(())
    }

    async fn delete_instance(&self, instance: &InstanceRef) -> Result<(), provider_conformance::FixtureError> {
        self.0.lock().instances.remove(&instance.node);
        Ok(())
    }

    fn invalid_annotation(&self) -> Option<(String, String)> {
        Some((LOGGING.into(), "maybe".into()))
    }
}

async fn make() -> (Arc<dyn CloudProvider>, AcmeFixture) {
    let provider = AcmeProvider::default();
    (Arc::new(provider.clone()), AcmeFixture(provider))
}

fn main() -> Result<(), ConfigError> {
    // Builds the provider as a binary's main does.
    let provider = build(&[factory()], "acme", &BuildContext::default())?;
    println!("built {}", provider.name());
    let report = provider_conformance::block_on(async {
        let (provider, fixture) = make().await;
        provider_conformance::run(&provider, &fixture).await
    });
    println!("{report}");
    std::process::exit(i32::from(!report.conforms()))
}

#[cfg(test)]
mod tests {
    use super::make;

    provider_conformance::conformance_tests!(make());
}
