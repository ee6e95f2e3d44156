//! Crashes of the process after each step: the next process reaches the same state.

use std::sync::Arc;

use kinds::service::ServiceType;
use provider_mock::{Effect, Fault, MockConfig, Pattern};

use super::world::{Process, World, key, node, pass, port, service};
use crate::controllers::service::decide::is_held;

/// The place of a crash.
#[derive(Debug, Clone, Copy)]
enum Crash {
    /// After the n-th write or call.
    Act(u64),
    /// In a call, right after the n-th change of the cloud: its response is lost.
    Change(u64),
    Never,
}

/// Runs until `done`. Starts a new process after each crash.
async fn run_until(world: &Arc<World>, process: &mut Option<Process>, done: impl Fn(&World) -> bool) {
    for _ in 0..400 {
        if world.is_dead() {
            process.take().expect("a process").crash().await;
            *process = Some(Process::start(world, 2));
        }
        if done(world) {
            return;
        }
        process.as_ref().expect("a process").deliver_all();
        pass(2.0).await;
    }
    panic!("not done in time: {:?} {:?}", world.get(&key("web")), world.cloud.snapshot().balancers);
}

fn balanced(world: &World, ports: usize, targets: usize) -> bool {
    let snapshot = world.cloud.snapshot();
    let [balancer] = &snapshot.balancers[..] else { return false };
    let ingress = world.get(&key("web")).and_then(|web| Some(web.balancing?.ingress));
    let published =
        ingress.is_some_and(|ingress| ingress.len() == 1 && *ingress[0].ip == balancer.addresses[0].to_string());
    balancer.listeners.len() == ports && balancer.targets.len() == targets && published
}

/// Plays one scenario: creates a Service, changes ports and nodes, removes the load balancer, requests it again, and
/// deletes the Service. Returns the number of writes and calls, and of changes of the cloud.
async fn play(crash_at: Crash) -> (u64, u64) {
    let world = World::new(MockConfig { deletion_millis: 3_000, provisioning_millis: 1_000, ..MockConfig::default() });
    world.create(service("web"));
    let mut process = Some(Process::start(&world, 2));
    match crash_at {
        Crash::Act(n) => world.die_after(n),
        Crash::Change(n) => {
            world.cloud.add_fault(Fault::at(Pattern::Changes, n, Effect::ResponseLost)).expect("a fault");
            world.die_on_error();
        }
        Crash::Never => world.die_after(u64::MAX),
    }
    run_until(&world, &mut process, |world| balanced(world, 1, 2)).await;
    world.change(&key("web"), |service| service.ports.push(port(81)));
    run_until(&world, &mut process, |world| balanced(world, 2, 2)).await;
    world.set_nodes(vec![node("node-1"), node("node-2"), node("node-3")]);
    process.as_ref().expect("a process").nodes_changed();
    run_until(&world, &mut process, |world| balanced(world, 2, 3)).await;
    world.change(&key("web"), |service| service.kind = ServiceType::ClusterIp);
    let cleaned_up = |world: &World| {
        world.cloud.snapshot().balancers.is_empty() && world.get(&key("web")).is_none_or(|web| !is_held(&web.meta))
    };
    run_until(&world, &mut process, cleaned_up).await;
    world.change(&key("web"), |service| service.kind = ServiceType::LoadBalancer);
    run_until(&world, &mut process, |world| balanced(world, 2, 3)).await;
    world.delete(&key("web"));
    run_until(&world, &mut process, |world| cleaned_up(world) && world.get(&key("web")).is_none()).await;
    let process = process.expect("a process");
    pass(60.0).await;
    assert!(cleaned_up(&world), "it stays deleted");
    assert_eq!(process.leaks().await, 0);
    let crashed = matches!(crash_at, Crash::Never) || world.died();
    assert!(crashed, "{crash_at:?} did not happen: this proves nothing");
    (world.acts(), world.cloud.changing_calls())
}

#[tokio::test(start_paused = true)]
async fn crash_after_any_write_or_call_does_not_change_the_final_state() {
    let (acts, changes) = play(Crash::Never).await;
    assert!(acts > 12 && changes > 12, "{acts} acts and {changes} changes: the scenario is shorter than intended");
    for n in 1..=acts {
        play(Crash::Act(n)).await;
    }
    for n in 1..=changes {
        play(Crash::Change(n)).await;
    }
}
