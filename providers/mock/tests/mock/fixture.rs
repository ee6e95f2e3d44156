//! The mock as the conformance suite's cloud.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use provider_conformance::{Fixture, FixtureError, ReadFailure};
use provider_mock::{
    Effect, Fault, INSTANCE_ANNOTATION, InstanceConfig, MockCloud, MockConfig, NODE_PREFIX, Operation, PREFIX, Pattern,
};
use providers::{
    CloudProvider, Deletion, InstanceRef, IpNet, LoadBalancerId, LoadBalancerSpec, Port, Protocol, SecretData,
    SecretName, Taint, TaintEffect, TargetPort, Targets, async_trait,
};

pub const CLUSTER: &str = "testers";

/// Another cluster in the same cloud.
const OTHER_CLUSTER: &str = "neighbours";

pub fn cloud(config: MockConfig) -> MockCloud {
    MockCloud::new(config).expect("the configuration's faults can happen")
}

pub fn spec(name: &str, uid: &str) -> LoadBalancerSpec {
    let id =
        LoadBalancerId { cluster: CLUSTER.into(), namespace: "default".into(), name: name.into(), uid: uid.into() };
    let port = Port {
        name: String::new(),
        protocol: Protocol::Tcp,
        app_protocol: None,
        port: 80,
        node_port: Some(30080),
        target_port: TargetPort::Number(8080),
    };
    LoadBalancerSpec::new(id, vec![port])
}

pub struct MockFixture(pub MockCloud);

impl MockFixture {
    fn arm(&self, fault: Fault) -> Result<(), FixtureError> {
        self.0.add_fault(fault).map(|_| ()).map_err(|error| FixtureError::Failed(error.to_string()))
    }
}

/// Returns the owner of the load balancer with the same name in another cluster.
fn foreign(id: &LoadBalancerId) -> LoadBalancerId {
    LoadBalancerId { cluster: OTHER_CLUSTER.into(), ..id.clone() }
}

fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| (format!("{PREFIX}{key}"), (*value).into())).collect()
}

/// Returns a mock whose load balancers take some time to be created and deleted, as in a real cloud.
pub async fn start_mock() -> (Arc<dyn CloudProvider>, MockFixture) {
    let secret = Some("kube-system/mock".to_owned());
    let cloud = cloud(MockConfig { provisioning_millis: 5, deletion_millis: 5, secret, ..MockConfig::default() });
    let provider = cloud.provider(CLUSTER);
    provider.initialize().await.expect("nothing to do");
    (provider, MockFixture(cloud))
}

#[async_trait]
impl Fixture for MockFixture {
    fn cluster(&self) -> String {
        CLUSTER.into()
    }

    async fn create_instance(&self, node: &str) -> Result<InstanceRef, FixtureError> {
        let id = self.0.add_instance(&InstanceConfig::named(node));
        Ok(InstanceRef::named(node).with_provider_id(id))
    }

    async fn stop_instance(&self, instance: &InstanceRef) -> Result<(), FixtureError> {
        self.0.stop_instance(&instance.node);
        Ok(())
    }

    async fn delete_instance(&self, instance: &InstanceRef) -> Result<(), FixtureError> {
        self.0.remove_instance(&instance.node);
        Ok(())
    }

    fn identifying_annotations(&self, instance: &InstanceRef) -> Option<BTreeMap<String, String>> {
        Some([(INSTANCE_ANNOTATION.to_owned(), instance.node.clone())].into())
    }

    async fn change_labels_and_taints(&self, instance: &InstanceRef, more: bool) -> Result<(), FixtureError> {
        let mut config = InstanceConfig::named(&instance.node);
        if more {
            let key = format!("{NODE_PREFIX}maintenance");
            config.labels = [(key.clone(), "planned".to_owned())].into();
            config.taints = vec![Taint { key, effect: TaintEffect::NoSchedule, value: String::new() }];
        }
        self.0.add_instance(&config);
        Ok(())
    }

    async fn replace_credentials(&self) -> Result<(SecretName, SecretData), FixtureError> {
        self.0.set_token(Some("new"));
        let name = SecretName { namespace: "kube-system".into(), name: "mock".into() };
        Ok((name, [("token", b"new".to_vec())].into_iter().collect()))
    }

    async fn leaked_resources(&self, id: &LoadBalancerId) -> Result<Vec<String>, FixtureError> {
        let left = self.0.snapshot().balancers.into_iter().filter(|balancer| balancer.id == *id);
        Ok(left.map(|balancer| format!("{balancer:?}")).collect())
    }

    fn variants(&self) -> Vec<BTreeMap<String, String>> {
        vec![
            annotations(&[("scheme", "internal")]),
            annotations(&[("hostname", "true")]),
            annotations(&[("report", "true")]),
            BTreeMap::new(),
        ]
    }

    fn endpoint_annotations(&self) -> Option<BTreeMap<String, String>> {
        Some(annotations(&[("targets", "endpoints")]))
    }

    fn invalid_annotation(&self) -> Option<(String, String)> {
        Some((format!("{PREFIX}scheme"), "inside".into()))
    }

    async fn fail_change(&self, nth: u64) -> Result<(), FixtureError> {
        self.arm(Fault::at(Pattern::Changes, nth, Effect::Transient))
    }

    async fn lose_response(&self, nth: u64) -> Result<(), FixtureError> {
        self.arm(Fault::at(Pattern::Changes, nth, Effect::ResponseLost))
    }

    async fn fail_reads(&self, failure: ReadFailure) -> Result<(), FixtureError> {
        let effect = match failure {
            ReadFailure::Denied => Effect::Denied,
            ReadFailure::Throttled => Effect::Throttle { after_millis: Some(10) },
            ReadFailure::Outage => Effect::Transient,
        };
        self.arm(Fault::always(Pattern::Reads, effect))
    }

    async fn delay_visibility(&self, time: Duration) -> Result<(), FixtureError> {
        let effect = Effect::Invisible { millis: time.as_millis() as u64 };
        for operation in [Operation::AllocateAddress, Operation::CreateBalancer] {
            self.arm(Fault::always(Pattern::One(operation), effect))?;
        }
        Ok(())
    }

    async fn create_foreign_load_balancer(&self, id: &LoadBalancerId) -> Result<(), FixtureError> {
        let foreign = LoadBalancerSpec { id: foreign(id), ..spec(&id.name, &id.uid) };
        let balancers = self.0.provider(OTHER_CLUSTER).load_balancers().expect("the mock has load balancers");
        let ensured = balancers.ensure(&foreign, &Targets::default()).await;
        ensured.map(|_| ()).map_err(|error| FixtureError::Failed(error.to_string()))
    }

    async fn has_foreign_load_balancer(&self, id: &LoadBalancerId) -> Result<bool, FixtureError> {
        let balancers = self.0.snapshot().balancers;
        Ok(balancers.iter().any(|balancer| balancer.id == foreign(id) && balancer.listeners.len() == 1))
    }

    async fn delete_foreign_load_balancer(&self, id: &LoadBalancerId) -> Result<(), FixtureError> {
        let balancers = self.0.provider(OTHER_CLUSTER).load_balancers().expect("the mock has load balancers");
        while !matches!(balancers.delete(&foreign(id)).await, Ok(Deletion::Gone)) {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    async fn restore(&self) -> Result<(), FixtureError> {
        self.0.clear_faults();
        Ok(())
    }

    async fn hold_deletion(&self, time: Duration) -> Result<(), FixtureError> {
        let effect = Effect::Pending { millis: time.as_millis() as u64 };
        self.arm(Fault::at(Pattern::One(Operation::DeleteBalancer), 1, effect))
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn destinations(&self) -> Vec<IpNet> {
        ["10.244.1.0/24", "10.244.2.0/24", "10.244.3.0/24", "fd00:10:244:1::/64"]
            .map(|net| net.parse().expect("a network"))
            .to_vec()
    }

    async fn create_foreign_route(&self, destination: IpNet) -> Result<(), FixtureError> {
        self.0.add_foreign_route(destination);
        Ok(())
    }

    async fn delete_foreign_route(&self, destination: IpNet) -> Result<(), FixtureError> {
        self.0.remove_foreign_route(destination);
        Ok(())
    }

    async fn has_foreign_route(&self, destination: IpNet) -> Result<bool, FixtureError> {
        let routes = self.0.snapshot().routes;
        Ok(routes.iter().any(|route| route.destination == destination && route.target.is_none()))
    }
}
