//! Crashes of the process after each write, each call that changes a load balancer, and each change of the cloud: the
//! next process reaches the same state.

use std::sync::Arc;

use kinds::service::ServiceType;
use provider_mock::{Effect, Fault, MockConfig, Pattern};

use super::simulation::{Process, Simulation, key, node, pass, port, service};
use crate::controllers::service::decide::has_finalizer;

/// The place of a crash.
#[derive(Debug, Clone, Copy)]
enum Crash {
    /// After the n-th write or call that changes a load balancer.
    Act(u64),
    /// In a call, right after the n-th change of the cloud: its response is lost.
    Change(u64),
    Never,
}

/// Runs until `done`. Starts a new process after each crash.
async fn run_until(sim: &Arc<Simulation>, process: &mut Option<Process>, done: impl Fn(&Simulation) -> bool) {
    for _ in 0..400 {
        if sim.is_dead() {
            process.take().expect("a process").crash().await;
            *process = Some(Process::start(sim, 2));
        }
        if done(sim) {
            return;
        }
        process.as_ref().expect("a process").deliver_all();
        pass(2.0).await;
    }
    panic!("not done in time: {:?} {:?}", sim.get(&key("web")), sim.cloud.snapshot().balancers);
}

fn balanced(sim: &Simulation, ports: usize, targets: usize) -> bool {
    let snapshot = sim.cloud.snapshot();
    let [balancer] = &snapshot.balancers[..] else { return false };
    let ingress = sim.get(&key("web")).and_then(|web| Some(web.balancing?.ingress));
    let published =
        ingress.is_some_and(|ingress| ingress.len() == 1 && *ingress[0].ip == balancer.addresses[0].to_string());
    balancer.listeners.len() == ports && balancer.targets.len() == targets && published
}

/// Runs one scenario: creates a Service, changes ports and nodes, removes the load balancer, requests it again, and
/// deletes the Service. Returns the number of writes and calls that change a load balancer, and of changes of the
/// cloud.
async fn run_scenario(crash_at: Crash) -> (u64, u64) {
    let sim =
        Simulation::new(MockConfig { deletion_millis: 3_000, provisioning_millis: 1_000, ..MockConfig::default() });
    sim.create(service("web"));
    let mut process = Some(Process::start(&sim, 2));
    match crash_at {
        Crash::Act(n) => sim.die_after(n),
        Crash::Change(n) => {
            sim.cloud.add_fault(Fault::at(Pattern::Changes, n, Effect::ResponseLost)).expect("a fault");
            sim.die_on_error();
        }
        Crash::Never => sim.die_after(u64::MAX),
    }
    run_until(&sim, &mut process, |sim| balanced(sim, 1, 2)).await;
    sim.change(&key("web"), |service| service.ports.push(port(81)));
    run_until(&sim, &mut process, |sim| balanced(sim, 2, 2)).await;
    sim.set_nodes(vec![node("node-1"), node("node-2"), node("node-3")]);
    process.as_ref().expect("a process").nodes_changed();
    run_until(&sim, &mut process, |sim| balanced(sim, 2, 3)).await;
    sim.change(&key("web"), |service| service.kind = ServiceType::ClusterIp);
    let cleaned_up = |sim: &Simulation| {
        sim.cloud.snapshot().balancers.is_empty() && sim.get(&key("web")).is_none_or(|web| !has_finalizer(&web.meta))
    };
    run_until(&sim, &mut process, cleaned_up).await;
    sim.change(&key("web"), |service| service.kind = ServiceType::LoadBalancer);
    run_until(&sim, &mut process, |sim| balanced(sim, 2, 3)).await;
    sim.delete(&key("web"));
    run_until(&sim, &mut process, |sim| cleaned_up(sim) && sim.get(&key("web")).is_none()).await;
    let process = process.expect("a process");
    pass(60.0).await;
    assert!(cleaned_up(&sim), "a load balancer or its finalizer exists again");
    assert_eq!(process.leaks().await, 0);
    let crashed = matches!(crash_at, Crash::Never) || sim.died();
    assert!(crashed, "{crash_at:?} did not occur, so the run tests nothing");
    (sim.acts(), sim.cloud.changing_calls())
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_write_or_call_does_not_change_the_final_state() {
    let (acts, changes) = run_scenario(Crash::Never).await;
    assert!(acts > 12 && changes > 12, "{acts} writes and calls, {changes} changes: the scenario is too short");
    for n in 1..=acts {
        run_scenario(Crash::Act(n)).await;
    }
    for n in 1..=changes {
        run_scenario(Crash::Change(n)).await;
    }
}
