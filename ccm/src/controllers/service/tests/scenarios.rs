//! BalancerStates of single Services: what is called, written and said, and when.

use kinds::service::ServiceType;
use provider_mock::{Effect, Fault, MockConfig, Operation, Pattern};
use providers::{EndpointTarget, Phase};

use super::world::{Process, RESYNC, World, annotated, key, node, pass, port, service};
use crate::controllers::service::decide::is_held;

/// A world with one Service, `web`, whose balancer is there.
async fn settled() -> (std::sync::Arc<World>, Process) {
    let world = World::new(MockConfig::default());
    world.create(service("web"));
    let process = Process::start(&world, 2);
    pass(1.0).await;
    assert_eq!(
        world.take_events(),
        [
            "Normal EnsuringLoadBalancer web: Ensuring load balancer",
            "Normal EnsuredLoadBalancer web: Ensured load balancer"
        ]
    );
    (world, process)
}

fn change(process: &Process, name: &str, change: impl FnOnce(&mut kinds::Service)) {
    process.world.change(&key(name), change);
    process.deliver(&key(name));
}

fn targets(world: &World) -> usize {
    world.cloud.snapshot().balancers[0].targets.len()
}

#[tokio::test(start_paused = true)]
async fn a_balancer_comes_is_told_of_and_left_alone() {
    let (world, process) = settled().await;
    let web = world.get(&key("web")).expect("it is there");
    assert!(is_held(&web.meta));
    assert_eq!(web.balancing.expect("status").ingress.len(), 1);
    assert_eq!(world.writes(), 2, "the finalizer and the status");
    let calls = world.cloud.changing_calls();
    // The watch brings its own writes back, and other changes that mean nothing to it.
    process.deliver(&key("web"));
    change(&process, "web", |service| service.selector = [("app".into(), "web".into())].into());
    pass(60.0).await;
    assert_eq!((world.cloud.changing_calls(), world.writes()), (calls, 2));
    assert_eq!(world.take_events(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_service_goes_after_its_balancer() {
    let (world, process) = settled().await;
    world
        .cloud
        .add_fault(Fault::at(Pattern::One(Operation::DeleteBalancer), 1, Effect::Pending { millis: 60_000 }))
        .expect("a fault");
    world.delete(&key("web"));
    process.deliver(&key("web"));
    pass(59.0).await;
    assert!(world.get(&key("web")).is_some_and(|web| is_held(&web.meta)), "it waits for its balancer");
    assert_eq!(world.take_events(), ["Normal DeletingLoadBalancer web: Deleting load balancer"]);
    let looks = world.cloud.calls(Operation::DescribeBalancer).calls;
    pass(3.0).await;
    process.deliver_all();
    pass(1.0).await;
    assert_eq!(world.get(&key("web")), None);
    assert!(world.cloud.snapshot().balancers.is_empty());
    assert!(looks < 5, "{looks} looks in a minute: it waits for the time that the cloud said");
    assert_eq!(world.take_events(), ["Normal DeletedLoadBalancer web: Deleted load balancer"]);
    assert_eq!(process.balancers.states.len(), 0, "nothing is remembered");
}

#[tokio::test(start_paused = true)]
async fn a_changed_type_takes_balancer_status_and_finalizer() {
    let (world, process) = settled().await;
    change(&process, "web", |service| service.kind = ServiceType::ClusterIp);
    pass(1.0).await;
    let web = world.get(&key("web")).expect("it is there");
    assert!(!is_held(&web.meta) && web.balancing.expect("status").ingress.is_empty());
    assert!(world.cloud.snapshot().balancers.is_empty());
    assert_eq!(world.writes(), 3, "one write for both");
    process.deliver_all();
    change(&process, "web", |service| service.kind = ServiceType::LoadBalancer);
    pass(1.0).await;
    assert_eq!(world.cloud.snapshot().balancers.len(), 1, "and back");
}

#[tokio::test(start_paused = true)]
async fn what_changes_while_it_is_made_is_cleaned_up() {
    for vanishes in [false, true] {
        let world = World::new(MockConfig::default());
        world.create(service("web"));
        world.cloud.add_fault(Fault::always(Pattern::Changes, Effect::Latency { millis: 2_000 })).expect("a fault");
        let process = Process::start(&world, 2);
        pass(3.0).await;
        assert_eq!(world.cloud.calls(Operation::CreateBalancer).calls, 1, "it is being made");
        change(&process, "web", |service| {
            if vanishes {
                service.meta.deletion = kinds::meta::Time(1);
                service.meta.finalizers = [].into();
            } else {
                service.kind = ServiceType::ClusterIp;
            }
        });
        pass(60.0).await;
        process.deliver_all();
        pass(60.0).await;
        assert!(world.cloud.snapshot().balancers.is_empty(), "vanishes: {vanishes}");
        assert!(world.get(&key("web")).is_none_or(|web| !is_held(&web.meta)));
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_the_same_name_gets_a_balancer_of_its_own() {
    let (world, process) = settled().await;
    let first = world.cloud.snapshot().balancers[0].id.clone();
    world.change(&key("web"), |service| {
        (service.meta.deletion, service.meta.finalizers) = (kinds::meta::Time(1), [].into());
    });
    world.create(service("web"));
    process.deliver(&key("web"));
    pass(10.0).await;
    let snapshot = world.cloud.snapshot();
    assert_eq!(snapshot.balancers.len(), 1);
    assert_ne!(snapshot.balancers[0].id, first);
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_that_a_person_took_comes_back() {
    let (world, process) = settled().await;
    change(&process, "web", |service| service.meta.finalizers = [].into());
    pass(1.0).await;
    assert!(world.get(&key("web")).is_some_and(|web| is_held(&web.meta)));
    assert_eq!(world.cloud.snapshot().balancers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_status_that_a_person_changed_comes_back() {
    let (world, process) = settled().await;
    change(&process, "web", |service| service.balancing.as_mut().expect("status").ingress.clear());
    pass(1.0).await;
    assert_eq!(world.get(&key("web")).and_then(|web| Some(web.balancing?.ingress.len())), Some(1));
}

#[tokio::test(start_paused = true)]
async fn drift_is_repaired_by_and_by() {
    let (world, process) = settled().await;
    let id = world.cloud.snapshot().balancers[0].id.clone();
    // Somebody deletes the balancer behind our back.
    world.cloud.provider("cluster").load_balancers().expect("balancers").delete(&id).await.expect("it goes");
    pass(RESYNC.as_secs_f64() * 1.3).await;
    assert_eq!(world.cloud.snapshot().balancers.len(), 1);
    process.deliver_all();
    pass(1.0).await;
    let address = world.cloud.snapshot().balancers[0].addresses[0].to_string();
    let ingress = world.get(&key("web")).and_then(|web| Some(web.balancing?.ingress)).expect("status");
    assert_eq!(&*ingress[0].ip, address);
}

#[tokio::test(start_paused = true)]
async fn nodes_change_targets_and_nothing_else() {
    let (world, process) = settled().await;
    let before = world.cloud.changing_calls();
    world.set_nodes(vec![node("node-1"), node("node-2"), node("node-3")]);
    process.nodes_changed();
    pass(1.0).await;
    assert_eq!((targets(&world), world.cloud.changing_calls() - before), (3, 1), "one call");
    assert_eq!(world.take_events(), ["Normal UpdatedLoadBalancer web: Updated load balancer with new hosts"]);
    world.set_nodes(Vec::new());
    process.nodes_changed();
    pass(1.0).await;
    assert_eq!(targets(&world), 0);
    assert_eq!(
        world.take_events(),
        ["Warning UnAvailableLoadBalancer web: There are no available nodes for LoadBalancer"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_balancer_that_is_gone_when_targets_change_is_made_anew() {
    let (world, process) = settled().await;
    let id = world.cloud.snapshot().balancers[0].id.clone();
    world.cloud.provider("cluster").load_balancers().expect("balancers").delete(&id).await.expect("it goes");
    world.set_nodes(vec![node("node-5")]);
    process.nodes_changed();
    pass(1.0).await;
    assert_eq!((world.cloud.snapshot().balancers.len(), targets(&world)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn endpoints_are_targets_where_the_provider_wants_them() {
    let world = World::new(MockConfig::default());
    let mut web = service("web");
    annotated(&mut web, &[("mock.cloud/targets", "endpoints")]);
    world.create(web);
    let process = Process::start(&world, 1);
    pass(1.0).await;
    world.take_events();
    assert_eq!(targets(&world), 0);
    let endpoint = EndpointTarget {
        port_name: "80".into(),
        address: [10, 1, 0, 1].into(),
        port: 8080,
        node: None,
        zone: None,
        ready: true,
        serving: true,
        terminating: false,
        pod: None,
    };
    world.set_endpoints(vec![endpoint]);
    process.deliver(&key("web"));
    pass(1.0).await;
    assert_eq!(targets(&world), 1);
    let calls = world.cloud.snapshot().calls;
    world.set_nodes(vec![node("node-9")]);
    process.nodes_changed();
    process.deliver(&key("web"));
    pass(1.0).await;
    assert_eq!(world.cloud.snapshot().calls, calls, "nodes are nothing to it");
    assert_eq!(world.take_events(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_can_never_work_is_said_once() {
    let (world, process) = settled().await;
    let calls = world.cloud.snapshot().calls;
    change(&process, "web", |service| annotated(service, &[("mock.cloud/scheme", "inside")]));
    for _ in 0..10 {
        pass(600.0).await;
        process.deliver(&key("web"));
    }
    assert_eq!(world.cloud.snapshot().calls, calls);
    let events = world.take_events();
    assert_eq!(
        events[0],
        "Warning SyncLoadBalancerFailed web: Error syncing load balancer: ReadAnnotations: annotation \
         mock.cloud/scheme is \"inside\": use internal or internet-facing"
    );
    assert!(events.len() <= 10, "not more often than it is looked at");
    change(&process, "web", |service| annotated(service, &[("mock.cloud/scheme", "internal")]));
    pass(1.0).await;
    assert!(world.cloud.snapshot().balancers[0].internal, "the fix is taken at once");
}

#[tokio::test(start_paused = true)]
async fn a_balancer_of_somebody_else_is_left_to_them() {
    let world = World::new(MockConfig::default());
    let mut theirs = service("theirs");
    annotated(&mut theirs, &[("mock.cloud/targets", "elsewhere")]);
    world.create(theirs);
    let process = Process::start(&world, 1);
    pass(1.0).await;
    assert_eq!((world.writes(), world.cloud.snapshot().calls.len()), (0, 0));
    world.create(service("web"));
    process.deliver(&key("web"));
    pass(1.0).await;
    assert_eq!(world.cloud.snapshot().balancers.len(), 1);
    // Given away later: what was made here goes.
    process.deliver(&key("web"));
    change(&process, "web", |service| annotated(service, &[("mock.cloud/targets", "elsewhere")]));
    pass(1.0).await;
    assert!(world.cloud.snapshot().balancers.is_empty());
    assert!(world.get(&key("web")).is_some_and(|web| !is_held(&web.meta)));
}

#[tokio::test(start_paused = true)]
async fn errors_are_told_once_and_waited_for() {
    let throttle = Effect::Throttle { after_millis: Some(70_000) };
    for (effect, seconds, calls) in [
        (throttle, 60.0, 1..=1),
        (Effect::Quota, 100.0, 3..=3),
        (Effect::Denied, 100.0, 3..=3),
        (Effect::Transient, 100.0, 4..=5),
    ] {
        let world = World::new(MockConfig::default());
        let operation = Operation::CreateBalancer;
        world.cloud.add_fault(Fault::always(Pattern::One(operation), effect)).expect("a fault");
        world.create(service("web"));
        let process = Process::start(&world, 1);
        for _ in 0..10 {
            // It is looked at all the time, which must not lead to calls.
            pass(seconds / 10.0).await;
            process.deliver(&key("web"));
        }
        let made = world.cloud.calls(operation).calls;
        assert!(calls.contains(&made), "{effect:?}: {made} calls");
        let failures = world.take_events().into_iter().filter(|event| event.contains("Failed")).count();
        assert_eq!(failures, 1, "{effect:?}");
        world.clear_faults();
        pass(400.0).await;
        assert_eq!(world.cloud.snapshot().balancers[0].phase, Phase::Active, "{effect:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_does_not_wait_for_what_failed_before() {
    let world = World::new(MockConfig::default());
    world.cloud.add_fault(Fault::at(Pattern::One(Operation::CreateBalancer), 1, Effect::Quota)).expect("a fault");
    world.create(service("web"));
    let process = Process::start(&world, 1);
    pass(1.0).await;
    change(&process, "web", |service| service.ports.push(port(81)));
    pass(1.0).await;
    assert_eq!(world.cloud.snapshot().balancers[0].listeners.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_held_in_an_old_view_only_is_not_made() {
    let (world, process) = settled().await;
    process.crash().await;
    // A new leader whose watch has not told it that the Service was released meanwhile.
    let process = Process::start(&world, 1);
    world.change(&key("web"), |service| {
        (service.kind, service.meta.finalizers) = (ServiceType::ClusterIp, [].into());
    });
    let before = world.cloud.snapshot().calls;
    pass(1.0).await;
    assert_eq!(world.cloud.snapshot().calls, before);
    process.deliver(&key("web"));
    pass(10.0).await;
    assert_eq!(process.leaks().await, 1, "a person took the hold from a balancer that is there");
}

#[tokio::test(start_paused = true)]
async fn two_hundred_services_and_five_hundred_nodes() {
    let names: Vec<_> = (0..500).map(|n| format!("node-{n:03}")).collect();
    let world = World::new(MockConfig::default());
    world.set_nodes(names.iter().map(|name| node(name)).collect());
    for n in 0..200 {
        world.create(service(&format!("web-{n}")));
    }
    let process = Process::start(&world, 5);
    pass(10.0).await;
    let calls = |operation| world.cloud.calls(operation).calls;
    assert_eq!(calls(Operation::CreateBalancer), 200);
    assert_eq!(calls(Operation::SetTargets), 200);
    assert_eq!(world.writes(), 400, "a finalizer and a status each");
    let looks = calls(Operation::DescribeBalancer);
    // Fifty nodes go and fifty come: one update of each balancer.
    world.set_nodes(
        names.iter().skip(50).map(|name| node(name)).chain((500..550).map(|n| node(&format!("node-{n}")))).collect(),
    );
    process.nodes_changed();
    process.nodes_changed();
    pass(10.0).await;
    assert_eq!(calls(Operation::SetTargets), 400);
    assert!(calls(Operation::DescribeBalancer) - looks <= 200, "one look each at most");
    let (before, writes) = (world.cloud.snapshot().calls, world.writes());
    // A node that changes in nothing that matters, and one Service that changes.
    process.nodes_changed();
    change(&process, "web-7", |service| service.ports.push(port(81)));
    pass(10.0).await;
    let after = world.cloud.snapshot().calls;
    let more: u64 =
        after.iter().map(|(operation, count)| count.calls - before.get(operation).map_or(0, |count| count.calls)).sum();
    assert!(more <= 3, "{more} calls for one Service");
    assert_eq!(world.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn a_restart_looks_and_says_nothing() {
    let (world, process) = settled().await;
    process.crash().await;
    let (before, writes) = (world.cloud.changing_calls(), world.writes());
    let _process = Process::start(&world, 1);
    pass(60.0).await;
    assert_eq!((world.cloud.changing_calls(), world.writes()), (before, writes));
    assert_eq!(world.take_events(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn failed_service_follows_its_nodes_while_its_retry_waits() {
    let (world, process) = settled().await;
    // AWS, and others, refuse one change for as long as nobody mends it.
    world.cloud.add_fault(Fault::always(Pattern::One(Operation::SetFirewall), Effect::Denied)).expect("a fault");
    change(&process, "web", |service| {
        service.balancing.as_mut().expect("it is balanced").source_ranges = ["192.0.2.0/24".into()].into();
    });
    pass(1.0).await;
    assert!(world.take_events().iter().any(|event| event.contains("SyncLoadBalancerFailed")));
    // Long before the next try.
    for count in [3, 1] {
        world.set_nodes((0..count).map(|number| node(&format!("node-{number}"))).collect());
        process.nodes_changed();
        pass(0.1).await;
        assert_eq!(targets(&world), count, "targets follow the nodes");
    }
}

#[tokio::test(start_paused = true)]
async fn targets_stay_while_objects_cannot_be_decoded() {
    let (world, process) = settled().await;
    world.set_nodes(vec![node("node-1"), node("node-2")]);
    process.nodes_changed();
    pass(1.0).await;
    assert_eq!(targets(&world), 2);
    world.undecodable.store(true, std::sync::atomic::Ordering::Relaxed);
    world.set_nodes(vec![node("node-2"), node("node-3")]);
    process.nodes_changed();
    pass(1.0).await;
    assert_eq!(targets(&world), 3, "the node that is not listed may be the one that cannot be decoded");
    world.undecodable.store(false, std::sync::atomic::Ordering::Relaxed);
    process.nodes_changed();
    pass(1.0).await;
    assert_eq!(targets(&world), 2);
}

#[tokio::test(start_paused = true)]
async fn label_of_a_node_is_no_news_to_users() {
    let (world, process) = settled().await;
    world.set_nodes(vec![node("node-1")]);
    process.nodes_changed();
    pass(1.0).await;
    world.take_events();
    let mut labelled = node("node-1");
    labelled.labels.insert("a".into(), "b".into());
    world.set_nodes(vec![labelled]);
    process.nodes_changed();
    pass(1.0).await;
    assert_eq!(world.take_events(), [""; 0]);
}
