//! Services whose load balancers send traffic to other Services too: changes that requeue them, their events, and the
//! load balancer while another Service is missing.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use kinds::service::ServiceType;
use provider_mock::{Effect, Fault, MockConfig, Operation, Pattern};
use providers::{
    CloudError, Deletion, EndpointTarget, Ensured, Features, LoadBalancerId, LoadBalancerSpec, LoadBalancers, Observed,
    Owned, Targeting, Targets, async_trait,
};
use runtime::lock::lock;

use super::simulation::{CLUSTER, Process, Simulation, annotated, endpoint, key, node, pass, port, service};

/// Annotation with the names of the other Services, comma-separated.
const OTHERS: &str = "example.com/others";

/// The last request, and the number of calls.
#[derive(Default)]
struct LastRequest {
    spec: Option<LoadBalancerSpec>,
    targets: Targets,
    ensured: usize,
    targets_set: usize,
}

/// The mock cloud with load balancers that send traffic to other Services too.
struct Forwarding {
    cloud: Arc<dyn LoadBalancers>,
    last_request: Mutex<LastRequest>,
}

impl Forwarding {
    fn over(sim: &Arc<Simulation>) -> Arc<Self> {
        let cloud = sim.cloud.provider(CLUSTER).load_balancers().expect("the mock has load balancers");
        Arc::new(Self { cloud, last_request: Mutex::default() })
    }

    fn last_request<T>(&self, read: impl FnOnce(&mut LastRequest) -> T) -> T {
        read(&mut lock(&self.last_request))
    }

    /// Returns the number of calls of `ensure` and of `set_targets` since the last call of this function.
    fn calls(&self) -> (usize, usize) {
        self.last_request(|last_request| {
            (std::mem::take(&mut last_request.ensured), std::mem::take(&mut last_request.targets_set))
        })
    }

    /// Returns the node ports of another Service in the last request.
    fn node_ports(&self, name: &str) -> Vec<Option<u16>> {
        let of = |spec: &LoadBalancerSpec| spec.others.get(name).map(|other| other.ports.clone()).unwrap_or_default();
        let ports = self.last_request(|last_request| last_request.spec.as_ref().map(of)).unwrap_or_default();
        ports.iter().map(|port| port.node_port).collect()
    }
}

#[async_trait]
impl LoadBalancers for Forwarding {
    fn features(&self) -> Features {
        self.cloud.features()
    }
    fn targeting(&self, spec: &LoadBalancerSpec) -> Result<Targeting, CloudError> {
        for name in self.others(spec) {
            if spec.others.get(&name).is_none_or(|other| other.ports.is_empty()) {
                return Err(CloudError::invalid_annotation(OTHERS, &name, "create this Service"));
            }
        }
        self.cloud.targeting(spec)
    }
    fn others(&self, spec: &LoadBalancerSpec) -> BTreeSet<String> {
        let names = spec.annotations.get(OTHERS).into_iter().flat_map(|names| names.split(','));
        names.map(str::to_owned).collect()
    }
    async fn observe(&self, id: &LoadBalancerId) -> Result<Observed, CloudError> {
        self.cloud.observe(id).await
    }
    async fn ensure(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<Ensured, CloudError> {
        self.last_request(|last_request| {
            last_request.spec = Some(spec.clone());
            last_request.targets = targets.clone();
            last_request.ensured += 1;
        });
        self.cloud.ensure(spec, targets).await
    }
    async fn set_targets(&self, spec: &LoadBalancerSpec, targets: &Targets) -> Result<(), CloudError> {
        self.last_request(|last_request| {
            last_request.spec = Some(spec.clone());
            last_request.targets = targets.clone();
            last_request.targets_set += 1;
        });
        self.cloud.set_targets(spec, targets).await
    }
    async fn delete(&self, id: &LoadBalancerId) -> Result<Deletion, CloudError> {
        self.cloud.delete(id).await
    }
    async fn delete_last(
        &self,
        id: &LoadBalancerId,
        last: Option<Arc<LoadBalancerSpec>>,
    ) -> Result<Deletion, CloudError> {
        self.last_request(|last_request| last_request.spec = last.map(Arc::unwrap_or_clone));
        self.delete(id).await
    }
    async fn list_owned(&self) -> Result<Vec<Owned>, CloudError> {
        self.cloud.list_owned().await
    }
}

/// Returns a simulation with the Service `blue`, whose load balancer sends traffic to `green` too; `green` exists if
/// `with_green`.
async fn sim(annotations: &[(&str, &str)], with_green: bool) -> (Arc<Simulation>, Arc<Forwarding>, Process) {
    sim_of(MockConfig::default(), annotations, with_green).await
}

async fn sim_of(
    config: MockConfig,
    annotations: &[(&str, &str)],
    with_green: bool,
) -> (Arc<Simulation>, Arc<Forwarding>, Process) {
    let sim = Simulation::new(config);
    let mut blue = service("blue");
    annotated(&mut blue, &[annotations, &[(OTHERS, "green")]].concat());
    sim.create(blue);
    if with_green {
        sim.create(green());
    }
    let cloud = Forwarding::over(&sim);
    let process = Process::over(&sim, 2, cloud.clone());
    pass(1.0).await;
    (sim, cloud, process)
}

fn green() -> kinds::Service {
    let mut green = service("green");
    green.kind = ServiceType::NodePort;
    green.balancing = None;
    green
}

fn failures(sim: &Simulation) -> Vec<String> {
    sim.take_events().into_iter().filter(|event| event.contains("Failed")).collect()
}

#[tokio::test(start_paused = true)]
async fn relevant_change_of_the_other_service_makes_one_call() {
    let (sim, cloud, process) = sim(&[], true).await;
    assert_eq!((cloud.node_ports("green"), cloud.calls()), (vec![Some(30_080)], (1, 0)));
    let change = |change: fn(&mut kinds::Service)| {
        sim.change(&key("green"), change);
        process.deliver(&key("green"));
    };
    change(|green| green.ports[0].node_port = 31_000);
    pass(1.0).await;
    assert_eq!((cloud.node_ports("green"), cloud.calls()), (vec![Some(31_000)], (1, 0)));
    change(|green| green.ports.push(port(81)));
    pass(1.0).await;
    assert_eq!((cloud.node_ports("green"), cloud.calls()), (vec![Some(31_000), Some(30_081)], (1, 0)));
    change(|green| annotated(green, &[("a", "b")]));
    change(|green| green.selector = [("app".into(), "green".into())].into());
    pass(1.0).await;
    assert_eq!(cloud.calls(), (0, 0));
    // `blue` no longer refers to `green`.
    sim.change(&key("blue"), |blue| annotated(blue, &[]));
    process.deliver(&key("blue"));
    pass(1.0).await;
    assert_eq!(cloud.calls(), (1, 0));
    assert_eq!(process.balancers.states.referring(&key("green")), []);
    change(|green| green.ports.truncate(1));
    pass(1.0).await;
    assert_eq!((cloud.node_ports("green"), cloud.calls()), (vec![], (0, 0)));
    assert_eq!(failures(&sim), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn missing_other_service_is_reported_once_and_used_when_created() {
    let (sim, cloud, process) = sim(&[], false).await;
    for _ in 0..5 {
        pass(10.0).await;
        process.deliver(&key("blue"));
    }
    let expected = "Warning SyncLoadBalancerFailed blue: Error syncing load balancer: ReadAnnotations: annotation \
                    example.com/others is \"green\": create this Service";
    assert_eq!((failures(&sim), cloud.calls()), (vec![expected.to_owned()], (0, 0)));
    sim.create(green());
    process.deliver(&key("green"));
    pass(1.0).await;
    assert_eq!((cloud.node_ports("green"), cloud.calls()), (vec![Some(30_080)], (1, 0)));

    // The other Service is deleted again: the load balancer stays as it is, and its targets still follow the nodes.
    sim.delete(&key("green"));
    process.deliver(&key("green"));
    pass(1.0).await;
    assert_eq!((failures(&sim), cloud.calls()), (vec![expected.to_owned()], (0, 0)));
    sim.set_nodes(vec![node("node-0"), node("node-1"), node("node-2")]);
    process.nodes_changed();
    pass(1.0).await;
    assert_eq!((cloud.node_ports("green"), cloud.calls()), (vec![Some(30_080)], (0, 1)));
    assert_eq!(sim.cloud.snapshot().balancers[0].targets.len(), 3);
    let fault = Fault::at(Pattern::One(Operation::SetTargets), 1, Effect::Transient);
    sim.cloud.add_fault(fault).expect("a fault");
    sim.set_nodes(vec![node("node-0")]);
    process.nodes_changed();
    pass(60.0).await;
    assert_eq!(
        (sim.cloud.snapshot().balancers[0].targets.len(), cloud.calls()),
        (1, (1, 1)),
        "the failed call is retried"
    );
    let failures_of_calls = failures(&sim);
    assert!(
        matches!(&failures_of_calls[..], [one] if one.contains("UpdateLoadBalancerFailed")),
        "{failures_of_calls:?}"
    );

    sim.delete(&key("blue"));
    process.deliver(&key("blue"));
    pass(10.0).await;
    process.deliver_all();
    pass(1.0).await;
    assert!(sim.cloud.snapshot().balancers.is_empty() && sim.get(&key("blue")).is_none());
    assert_eq!(process.balancers.states.len(), 0, "nothing is remembered");
    assert_eq!(process.balancers.states.referring(&key("green")), []);
}

/// The other Service is deleted while the cloud still works on the last change: targets still follow the nodes, and the
/// change is completed.
#[tokio::test(start_paused = true)]
async fn change_is_completed_when_the_request_becomes_invalid_before_it_is_settled() {
    let config = MockConfig { provisioning_millis: 600_000, ..MockConfig::default() };
    let (sim, cloud, process) = sim_of(config, &[], true).await;
    assert!(cloud.calls().0 > 0, "a load balancer is being created");
    sim.delete(&key("green"));
    process.deliver(&key("green"));
    pass(1.0).await;
    sim.set_nodes(vec![node("node-0"), node("node-1"), node("node-2")]);
    process.nodes_changed();
    pass(60.0).await;
    assert_eq!((cloud.node_ports("green"), cloud.calls().1), (vec![Some(30_080)], 0));
    assert_eq!(sim.cloud.snapshot().balancers[0].targets.len(), 3);
    assert_eq!(failures(&sim).len(), 1, "the missing Service is reported once");
    pass(600.0).await;
    let events = sim.take_events();
    assert!(events.iter().any(|event| event.contains("EnsuredLoadBalancer")), "the change is completed: {events:?}");
    cloud.calls();
    pass(600.0).await;
    assert_eq!(cloud.calls(), (0, 0), "nothing is repeated");
}

/// The cloud refuses a call, which is retried later. In the meantime the other Service is deleted.
#[tokio::test(start_paused = true)]
async fn targets_follow_nodes_when_the_request_becomes_invalid_while_a_retry_waits() {
    let (sim, _cloud, process) = sim(&[], true).await;
    let refused = Fault::always(Pattern::One(Operation::SetFirewall), Effect::Denied);
    sim.cloud.add_fault(refused).expect("a fault");
    sim.change(&key("blue"), |blue| {
        blue.balancing.as_mut().expect("it is balanced").source_ranges = ["192.0.2.0/24".into()].into();
    });
    process.deliver(&key("blue"));
    pass(1.0).await;
    sim.delete(&key("green"));
    process.deliver(&key("green"));
    pass(1.0).await;
    // The first update fails. It is repeated long before the retry of the refused call.
    sim.cloud.add_fault(Fault::at(Pattern::One(Operation::SetTargets), 1, Effect::Transient)).expect("a fault");
    sim.set_nodes(vec![node("node-0"), node("node-1"), node("node-2")]);
    process.nodes_changed();
    pass(0.1).await;
    assert_eq!(sim.cloud.snapshot().balancers[0].targets.len(), 2, "the update failed");
    pass(10.0).await;
    assert_eq!(sim.cloud.snapshot().balancers[0].targets.len(), 3);
}

/// An update of targets fails, and the other Service is deleted before the retry.
#[tokio::test(start_paused = true)]
async fn failed_update_is_retried_when_the_request_has_become_invalid() {
    let (sim, cloud, process) = sim(&[], true).await;
    cloud.calls();
    let fault = Fault::at(Pattern::One(Operation::SetTargets), 1, Effect::Transient);
    sim.cloud.add_fault(fault).expect("a fault");
    sim.set_nodes(vec![node("node-0"), node("node-1"), node("node-2")]);
    process.nodes_changed();
    pass(0.1).await;
    assert_eq!((sim.cloud.snapshot().balancers[0].targets.len(), cloud.calls()), (2, (0, 1)), "the update failed");
    sim.delete(&key("green"));
    process.deliver(&key("green"));
    pass(120.0).await;
    assert_eq!((sim.cloud.snapshot().balancers[0].targets.len(), cloud.calls()), (3, (1, 0)));
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_the_other_service_are_targets_too() {
    let (sim, cloud, process) = sim(&[("mock.cloud/targets", "endpoints")], true).await;
    cloud.calls();
    let set = |name: &str, last: &[u8]| {
        let endpoints = last.iter().map(|last| endpoint(*last)).collect();
        lock(&sim.endpoints_of).insert(name.to_owned(), endpoints);
        process.endpoints_changed(&key(name));
    };
    let addresses = || {
        let last =
            |endpoints: &[EndpointTarget]| endpoints.iter().map(|one| one.address.to_string()).collect::<Vec<_>>();
        cloud.last_request(|last_request| {
            (last(&last_request.targets.endpoints), last(&last_request.targets.others["green"]))
        })
    };
    set("blue", &[1]);
    set("green", &[2, 3]);
    pass(1.0).await;
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    assert_eq!(addresses(), (texts(&["10.1.0.1"]), texts(&["10.1.0.2", "10.1.0.3"])));
    cloud.calls();
    set("green", &[3]);
    pass(1.0).await;
    assert_eq!((addresses(), cloud.calls()), ((texts(&["10.1.0.1"]), texts(&["10.1.0.3"])), (0, 1)), "one call");
    set("another", &[9]);
    pass(1.0).await;
    assert_eq!(cloud.calls(), (0, 0));
    assert_eq!(failures(&sim), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn deletion_has_the_last_known_request() {
    let (sim, cloud, process) = sim(&[], true).await;
    for deleted in [false, true] {
        cloud.last_request(|last_request| last_request.spec = None);
        if deleted {
            sim.delete(&key("blue"));
        } else {
            sim.change(&key("blue"), |service| service.kind = ServiceType::ClusterIp);
        }
        process.deliver(&key("blue"));
        pass(1.0).await;
        let last = cloud.last_request(|last_request| last_request.spec.clone()).expect("the last request");
        assert_eq!(last.annotations[OTHERS], "green");
        if !deleted {
            sim.change(&key("blue"), |service| service.kind = ServiceType::LoadBalancer);
            process.deliver(&key("blue"));
            pass(1.0).await;
        }
    }
}
