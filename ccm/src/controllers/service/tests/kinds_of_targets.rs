//! Changes of the kind of targets that the cloud refuses or delays.

use std::sync::Arc;

use provider_mock::{Effect, Fault, MockConfig, Operation, Pattern};

use super::scenarios::targets;
use super::simulation::{Process, Simulation, annotated, endpoint, key, node, pass, service};

/// Returns a simulation of a Service whose load balancer has two endpoints as targets.
async fn with_endpoints() -> (Arc<Simulation>, Process) {
    let sim = Simulation::new(MockConfig::default());
    let mut web = service("web");
    annotated(&mut web, &[("mock.cloud/targets", "endpoints")]);
    sim.create(web);
    sim.set_endpoints(vec![endpoint(1), endpoint(2)]);
    let process = Process::start(&sim, 1);
    pass(1.0).await;
    assert_eq!(targets(&sim), 2);
    (sim, process)
}

fn set(sim: &Simulation, process: &Process, annotations: &[(&str, &str)]) {
    sim.change(&key("web"), |service| annotated(service, annotations));
    process.deliver(&key("web"));
}

fn refuse(sim: &Simulation, operation: Operation) {
    sim.cloud.add_fault(Fault::always(Pattern::One(operation), Effect::Quota)).expect("a fault");
}

#[tokio::test(start_paused = true)]
async fn nodes_and_endpoints_cause_updates_while_a_change_of_the_kind_is_refused() {
    for changes_nodes in [false, true] {
        let (sim, process) = with_endpoints().await;
        refuse(&sim, Operation::SetFirewall);
        set(
            &sim,
            &process,
            &[
                ("mock.cloud/targets", "nodes"),
                ("service.beta.kubernetes.io/load-balancer-source-ranges", "10.0.0.0/8"),
            ],
        );
        pass(1.0).await;
        let before = sim.acts();
        if changes_nodes {
            sim.set_nodes(vec![node("node-8"), node("node-9")]);
            process.nodes_changed();
        } else {
            sim.set_endpoints(vec![endpoint(3)]);
            process.endpoints_changed(&key("web"));
        }
        pass(1.0).await;
        assert_eq!(sim.acts(), before + 1, "updated once; nodes: {changes_nodes}");
        sim.cloud.clear_faults();
        pass(600.0).await;
        let after = sim.acts();
        sim.set_endpoints(vec![endpoint(4)]);
        process.endpoints_changed(&key("web"));
        pass(1.0).await;
        assert_eq!(sim.acts(), after, "endpoints do not matter after the change");
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_service_keeps_the_targets_of_its_last_request() {
    let (sim, process) = with_endpoints().await;
    // The change to nodes waits for the end of the throttling, and is replaced by an invalid request before.
    sim.cloud
        .add_fault(Fault::always(Pattern::One(Operation::SetTargets), Effect::Throttle { after_millis: Some(20_000) }))
        .expect("a fault");
    sim.set_endpoints(vec![endpoint(1), endpoint(2), endpoint(3)]);
    process.endpoints_changed(&key("web"));
    pass(1.0).await;
    set(&sim, &process, &[("mock.cloud/targets", "nodes")]);
    pass(1.0).await;
    set(&sim, &process, &[("mock.cloud/targets", "pods")]);
    pass(1.0).await;
    sim.cloud.clear_faults();
    pass(60.0).await;
    assert_eq!(targets(&sim), 3);
    for count in [4, 1] {
        sim.set_endpoints((1..=count).map(endpoint).collect());
        process.endpoints_changed(&key("web"));
        pass(5.0).await;
        assert_eq!(targets(&sim), usize::from(count), "targets follow the endpoints");
        sim.set_nodes(vec![node(&format!("node-{count}"))]);
        process.nodes_changed();
        pass(7200.0).await;
        assert_eq!(targets(&sim), usize::from(count), "neither nodes nor a check for drift remove the endpoints");
    }
}
