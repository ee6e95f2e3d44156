//! Services that exist when a process starts. The provider is informed of them; for many invalid ones, the number of calls and
//! events is bounded, and does not grow with time.

use std::sync::Arc;

use kinds::service::ServiceType;
use provider_mock::{Effect, Fault, MockConfig, Pattern};
use runtime::lock::lock;

use super::simulation::{Process, Simulation, annotated, key, node, pass, service};
use crate::controllers::service::decide::FINALIZER;

const HOUR: f64 = 3600.0;

/// Returns a simulation of this number of Services with load balancers. The Services become invalid while no
/// process runs.
async fn with_invalid_services(count: usize) -> Arc<Simulation> {
    let sim = Simulation::new(MockConfig::default());
    let names: Vec<String> = (0..count).map(|number| format!("web-{number}")).collect();
    names.iter().for_each(|name| assert!(sim.create(service(name))));
    let process = Process::start(&sim, 1);
    pass(HOUR / 10.0).await;
    assert_eq!(sim.cloud.snapshot().balancers.len(), count);
    process.crash().await;
    for name in &names {
        sim.change(&key(name), |service| annotated(service, &[("mock.cloud/scheme", "inside")]));
    }
    sim.take_events();
    sim
}

#[tokio::test(start_paused = true)]
async fn thousand_invalid_services_cost_one_call_and_one_event_each_after_a_restart() {
    const SERVICES: usize = 1_000;
    let sim = with_invalid_services(SERVICES).await;
    let begun = sim.acts();
    let process = Process::start(&sim, 1);
    pass(HOUR).await;
    assert_eq!((sim.acts() - begun, sim.take_events().len()), (SERVICES as u64, SERVICES));
    pass(12.0 * HOUR).await;
    assert_eq!(
        (sim.acts() - begun, sim.take_events().len()),
        (SERVICES as u64, 0),
        "nothing is repeated without a change"
    );
    // The watch delivers the Services again after its connection was lost.
    process.deliver_all();
    pass(HOUR).await;
    assert_eq!(sim.acts() - begun, SERVICES as u64, "their targets are the same");
    assert_eq!(sim.take_events().len(), SERVICES, "the events of the restart have expired");
    sim.set_nodes(vec![node("node-9")]);
    process.nodes_changed();
    pass(HOUR).await;
    assert_eq!(sim.acts() - begun, 2 * SERVICES as u64, "a change of the nodes causes one call for each");
}

#[tokio::test(start_paused = true)]
async fn calls_for_invalid_services_are_rare_while_the_cloud_refuses_them() {
    const SERVICES: u64 = 100;
    let sim = with_invalid_services(SERVICES as usize).await;
    sim.cloud.add_fault(Fault::always(Pattern::Any, Effect::Denied)).expect("a fault");
    let begun = sim.acts();
    let process = Process::start(&sim, 1);
    for number in 0..60 {
        // Meanwhile nodes are added and removed.
        sim.set_nodes(vec![node(&format!("node-{number}"))]);
        process.nodes_changed();
        pass(HOUR / 60.0).await;
    }
    let (calls, events) = (sim.acts() - begun, sim.take_events().len() as u64);
    assert!(calls <= 16 * SERVICES, "{calls} calls in an hour");
    assert!(events <= 26 * SERVICES, "{events} events in an hour");
}

#[tokio::test(start_paused = true)]
async fn provider_is_informed_of_services_with_load_balancers_before_the_first_call() {
    let sim = Simulation::new(MockConfig::default());
    assert!(sim.create(service("web")));
    let mut invalid = service("invalid");
    annotated(&mut invalid, &[("mock.cloud/scheme", "inside")]);
    assert!(sim.create(invalid));
    // The load balancer of this one is about to be deleted.
    let mut internal = service("internal");
    internal.kind = ServiceType::ClusterIp;
    internal.meta.finalizers = [FINALIZER.into()].into();
    assert!(sim.create(internal));
    let process = Process::start(&sim, 1);
    pass(HOUR).await;
    assert_eq!(lock(&sim.reports).existed, ["invalid", "web"]);
    assert!(sim.create(service("new")));
    process.deliver(&key("new"));
    pass(HOUR).await;
    assert_eq!(lock(&sim.reports).existed, ["invalid", "web"], "no Service is reported later");
}
