//! A process that dies anywhere: the next one gets to the same end.

use std::sync::Arc;

use kinds::service::ServiceType;
use provider_mock::{Effect, Fault, MockConfig, Pattern};

use super::world::{Process, World, key, node, pass, port, service};
use crate::controllers::service::decide::is_held;

/// Where a process dies.
#[derive(Debug, Clone, Copy)]
enum Death {
    /// After its n-th write or call.
    Act(u64),
    /// In a call, right after the n-th change of the cloud.
    Change(u64),
    Never,
}

/// Waits until what is wanted is there, with a new process for each that dies.
async fn live(world: &Arc<World>, process: &mut Option<Process>, done: impl Fn(&World) -> bool) {
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
    panic!("not done after long: {:?} {:?}", world.get(&key("web")), world.cloud.snapshot().balancers);
}

fn balanced(world: &World, ports: usize, targets: usize) -> bool {
    let snapshot = world.cloud.snapshot();
    let [balancer] = &snapshot.balancers[..] else { return false };
    let told = world.get(&key("web")).and_then(|web| Some(web.balancing?.ingress));
    let told = told.is_some_and(|ingress| ingress.len() == 1 && *ingress[0].ip == balancer.addresses[0].to_string());
    balancer.listeners.len() == ports && balancer.targets.len() == targets && told
}

/// Create, change ports, change nodes, take the balancer away, ask for it again, delete. Answers how many acts and
/// changes of the cloud there were.
async fn play(death: Death) -> (u64, u64) {
    let world = World::new(MockConfig { deletion_millis: 3_000, provisioning_millis: 1_000, ..MockConfig::default() });
    world.create(service("web"));
    let mut process = Some(Process::start(&world, 2));
    match death {
        Death::Act(n) => world.die_after(n),
        Death::Change(n) => {
            world.cloud.add_fault(Fault::at(Pattern::Changes, n, Effect::AnswerLost)).expect("a fault");
            world.die_on_error();
        }
        Death::Never => world.die_after(u64::MAX),
    }
    live(&world, &mut process, |world| balanced(world, 1, 2)).await;
    world.change(&key("web"), |service| service.ports.push(port(81)));
    live(&world, &mut process, |world| balanced(world, 2, 2)).await;
    world.set_nodes(vec![node("node-1"), node("node-2"), node("node-3")]);
    process.as_ref().expect("a process").nodes_changed();
    live(&world, &mut process, |world| balanced(world, 2, 3)).await;
    world.change(&key("web"), |service| service.kind = ServiceType::ClusterIp);
    let gone = |world: &World| {
        world.cloud.snapshot().balancers.is_empty() && world.get(&key("web")).is_none_or(|web| !is_held(&web.meta))
    };
    live(&world, &mut process, gone).await;
    world.change(&key("web"), |service| service.kind = ServiceType::LoadBalancer);
    live(&world, &mut process, |world| balanced(world, 2, 3)).await;
    world.delete(&key("web"));
    live(&world, &mut process, |world| gone(world) && world.get(&key("web")).is_none()).await;
    let process = process.expect("a process");
    pass(60.0).await;
    assert!(gone(&world), "it stays gone");
    assert_eq!(process.leaks().await, 0);
    let met = matches!(death, Death::Never) || world.died();
    assert!(met, "{death:?} did not come: this proves nothing");
    (world.acts(), world.cloud.changing_calls())
}

#[tokio::test(start_paused = true)]
async fn a_death_after_any_write_or_call_changes_nothing_in_the_end() {
    let (acts, changes) = play(Death::Never).await;
    assert!(acts > 12 && changes > 12, "{acts} acts and {changes} changes: not the play that it should be");
    for n in 1..=acts {
        play(Death::Act(n)).await;
    }
    for n in 1..=changes {
        play(Death::Change(n)).await;
    }
}
