//! Scenarios of single Services: calls, writes and events, and their times.

use kinds::service::ServiceType;
use provider_mock::{Effect, Fault, MockConfig, Operation, Pattern};
use providers::Phase;
use runtime::lock::lock;

use super::simulation::{Process, RESYNC, Simulation, WriteFault, annotated, endpoint, key, node, pass, port, service};
use crate::controllers::service::decide::{FINALIZER, has_finalizer};

/// Returns a simulation with one Service, `web`, whose load balancer exists.
async fn with_load_balancer() -> (std::sync::Arc<Simulation>, Process) {
    let sim = Simulation::new(MockConfig::default());
    sim.create(service("web"));
    let process = Process::start(&sim, 2);
    pass(1.0).await;
    assert_eq!(
        sim.take_events(),
        [
            "Normal EnsuringLoadBalancer web: Ensuring load balancer",
            "Normal EnsuredLoadBalancer web: Ensured load balancer"
        ]
    );
    (sim, process)
}

fn change(process: &Process, name: &str, change: impl FnOnce(&mut kinds::Service)) {
    process.sim.change(&key(name), change);
    process.deliver(&key(name));
}

pub(super) fn targets(sim: &Simulation) -> usize {
    sim.cloud.snapshot().balancers[0].targets.len()
}

#[tokio::test(start_paused = true)]
async fn new_load_balancer_is_created_and_published_and_then_not_changed() {
    let (sim, process) = with_load_balancer().await;
    let web = sim.get(&key("web")).expect("it exists");
    assert!(has_finalizer(&web.meta));
    assert_eq!(web.balancing.expect("status").ingress.len(), 1);
    assert_eq!(sim.writes(), 2, "the finalizer and the status");
    let calls = sim.cloud.changing_calls();
    // The watch delivers the process's writes, and changes of fields that do not matter.
    process.deliver(&key("web"));
    change(&process, "web", |service| service.selector = [("app".into(), "web".into())].into());
    pass(60.0).await;
    assert_eq!((sim.cloud.changing_calls(), sim.writes()), (calls, 2));
    assert_eq!(sim.take_events(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn provider_is_informed_that_nothing_was_created_unless_a_previous_leader_added_the_finalizer() {
    let (sim, _process) = with_load_balancer().await;
    assert_eq!(lock(&sim.reports).started_empty, ["web"]);

    // The cache does not contain the finalizer yet.
    let sim = Simulation::new(MockConfig::default());
    sim.create(service("web"));
    let process = Process::start(&sim, 2);
    sim.change(&key("web"), |service| service.meta.finalizers = [FINALIZER.into()].into());
    pass(1.0).await;
    assert_eq!((sim.cloud.changing_calls(), sim.take_events().len()), (0, 1), "only the first attempt is announced");
    process.deliver(&key("web"));
    pass(10.0).await;
    assert_eq!(sim.cloud.snapshot().balancers.len(), 1);
    assert_eq!(lock(&sim.reports).started_empty, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn deleted_service_keeps_its_finalizer_until_its_load_balancer_is_deleted() {
    let (sim, process) = with_load_balancer().await;
    sim.cloud
        .add_fault(Fault::at(Pattern::One(Operation::DeleteBalancer), 1, Effect::Pending { millis: 60_000 }))
        .expect("a fault");
    sim.delete(&key("web"));
    process.deliver(&key("web"));
    pass(59.0).await;
    assert!(sim.get(&key("web")).is_some_and(|web| has_finalizer(&web.meta)), "it waits for its load balancer");
    assert_eq!(sim.take_events(), ["Normal DeletingLoadBalancer web: Deleting load balancer"]);
    let reads = sim.cloud.calls(Operation::DescribeBalancer).calls;
    pass(3.0).await;
    process.deliver_all();
    pass(1.0).await;
    assert_eq!(sim.get(&key("web")), None);
    assert!(sim.cloud.snapshot().balancers.is_empty());
    assert!(reads < 5, "{reads} reads in a minute: the delay is the one that the cloud requested");
    assert_eq!(sim.take_events(), ["Normal DeletedLoadBalancer web: Deleted load balancer"]);
    assert_eq!(process.balancers.states.len(), 0, "no state is kept");
}

#[tokio::test(start_paused = true)]
async fn deleted_service_that_another_finalizer_keeps_loses_its_status() {
    let (sim, process) = with_load_balancer().await;
    change(&process, "web", |service| {
        service.meta.finalizers = [FINALIZER.into(), "example.com/backup".into()].into();
        service.meta.deletion = kinds::meta::Time(1);
    });
    pass(1.0).await;
    let web = sim.get(&key("web")).expect("the other finalizer keeps it");
    assert!(!has_finalizer(&web.meta) && web.balancing.expect("status").ingress.is_empty());
    assert!(sim.cloud.snapshot().balancers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn type_change_removes_load_balancer_status_and_finalizer() {
    let (sim, process) = with_load_balancer().await;
    change(&process, "web", |service| service.kind = ServiceType::ClusterIp);
    pass(1.0).await;
    let web = sim.get(&key("web")).expect("it exists");
    assert!(!has_finalizer(&web.meta) && web.balancing.expect("status").ingress.is_empty());
    assert!(sim.cloud.snapshot().balancers.is_empty());
    assert_eq!(sim.writes(), 3, "one write for both");
    process.deliver_all();
    change(&process, "web", |service| service.kind = ServiceType::LoadBalancer);
    pass(1.0).await;
    assert_eq!(sim.cloud.snapshot().balancers.len(), 1, "created again");
}

#[tokio::test(start_paused = true)]
async fn service_that_changes_during_creation_is_cleaned_up() {
    for is_deleted in [false, true] {
        let sim = Simulation::new(MockConfig::default());
        sim.create(service("web"));
        sim.cloud.add_fault(Fault::always(Pattern::Changes, Effect::Latency { millis: 2_000 })).expect("a fault");
        let process = Process::start(&sim, 2);
        pass(3.0).await;
        assert_eq!(sim.cloud.calls(Operation::CreateBalancer).calls, 1, "it is being created");
        change(&process, "web", |service| {
            if is_deleted {
                service.meta.deletion = kinds::meta::Time(1);
                service.meta.finalizers = [].into();
            } else {
                service.kind = ServiceType::ClusterIp;
            }
        });
        pass(60.0).await;
        process.deliver_all();
        pass(60.0).await;
        assert!(sim.cloud.snapshot().balancers.is_empty(), "deleted: {is_deleted}");
        assert!(sim.get(&key("web")).is_none_or(|web| !has_finalizer(&web.meta)));
    }
}

#[tokio::test(start_paused = true)]
async fn recreated_service_gets_a_new_load_balancer() {
    let (sim, process) = with_load_balancer().await;
    let first = sim.cloud.snapshot().balancers[0].id.clone();
    sim.change(&key("web"), |service| {
        service.meta.deletion = kinds::meta::Time(1);
        service.meta.finalizers = [].into();
    });
    sim.create(service("web"));
    process.deliver(&key("web"));
    pass(10.0).await;
    let snapshot = sim.cloud.snapshot();
    assert_eq!(snapshot.balancers.len(), 1);
    assert_ne!(snapshot.balancers[0].id, first);
}

#[tokio::test(start_paused = true)]
async fn finalizer_that_a_user_removed_is_added_again() {
    let (sim, process) = with_load_balancer().await;
    change(&process, "web", |service| service.meta.finalizers = [].into());
    pass(1.0).await;
    assert!(sim.get(&key("web")).is_some_and(|web| has_finalizer(&web.meta)));
    assert_eq!(sim.cloud.snapshot().balancers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn status_that_a_user_changed_is_restored() {
    let (sim, process) = with_load_balancer().await;
    change(&process, "web", |service| service.balancing.as_mut().expect("status").ingress.clear());
    pass(1.0).await;
    assert_eq!(sim.get(&key("web")).and_then(|web| Some(web.balancing?.ingress.len())), Some(1));
}

#[tokio::test(start_paused = true)]
async fn failed_status_write_is_reported_and_retried() {
    let (sim, process) = with_load_balancer().await;
    sim.add_fault(WriteFault::Refused);
    change(&process, "web", |service| service.balancing.as_mut().expect("status").ingress.clear());
    pass(1.0).await;
    let expected = "Warning SyncLoadBalancerFailed web: Error syncing load balancer: failed to update load balancer \
                    status: as scripted: refused";
    assert_eq!(sim.take_events(), [expected]);
    pass(10.0).await;
    assert_eq!(sim.get(&key("web")).and_then(|web| Some(web.balancing?.ingress.len())), Some(1));
}

#[tokio::test(start_paused = true)]
async fn drift_is_repaired_at_the_next_check() {
    let (sim, process) = with_load_balancer().await;
    let id = sim.cloud.snapshot().balancers[0].id.clone();
    // Another client deletes the load balancer in the cloud.
    sim.cloud.provider("cluster").load_balancers().expect("load balancers").delete(&id).await.expect("deleted");
    pass(RESYNC.as_secs_f64() * 1.3).await;
    assert_eq!(sim.cloud.snapshot().balancers.len(), 1);
    process.deliver_all();
    pass(1.0).await;
    let address = sim.cloud.snapshot().balancers[0].addresses[0].to_string();
    let ingress = sim.get(&key("web")).and_then(|web| Some(web.balancing?.ingress)).expect("status");
    assert_eq!(&*ingress[0].ip, address);
}

#[tokio::test(start_paused = true)]
async fn node_change_updates_targets_in_one_call() {
    let (sim, process) = with_load_balancer().await;
    let before = sim.cloud.changing_calls();
    sim.set_nodes(vec![node("node-1"), node("node-2"), node("node-3")]);
    process.nodes_changed();
    pass(1.0).await;
    assert_eq!((targets(&sim), sim.cloud.changing_calls() - before), (3, 1), "one call");
    assert_eq!(sim.take_events(), ["Normal UpdatedLoadBalancer web: Updated load balancer with new hosts"]);
    sim.set_nodes(Vec::new());
    process.nodes_changed();
    pass(1.0).await;
    assert_eq!(targets(&sim), 0);
    assert_eq!(
        sim.take_events(),
        ["Warning UnAvailableLoadBalancer web: There are no available nodes for LoadBalancer"]
    );
}

#[tokio::test(start_paused = true)]
async fn load_balancer_missing_at_an_update_of_targets_is_created_again() {
    let (sim, process) = with_load_balancer().await;
    let id = sim.cloud.snapshot().balancers[0].id.clone();
    sim.cloud.provider("cluster").load_balancers().expect("load balancers").delete(&id).await.expect("deleted");
    sim.set_nodes(vec![node("node-5")]);
    process.nodes_changed();
    pass(1.0).await;
    assert_eq!((sim.cloud.snapshot().balancers.len(), targets(&sim)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn endpoints_are_targets_if_the_provider_requests_them() {
    let sim = Simulation::new(MockConfig::default());
    let mut web = service("web");
    annotated(&mut web, &[("mock.cloud/targets", "endpoints")]);
    sim.create(web);
    let process = Process::start(&sim, 1);
    pass(1.0).await;
    sim.take_events();
    assert_eq!(targets(&sim), 0);
    sim.set_endpoints(vec![endpoint(1)]);
    process.deliver(&key("web"));
    pass(1.0).await;
    assert_eq!(targets(&sim), 1);
    let calls = sim.cloud.snapshot().calls;
    sim.set_nodes(vec![node("node-9")]);
    process.nodes_changed();
    process.deliver(&key("web"));
    pass(1.0).await;
    assert_eq!(sim.cloud.snapshot().calls, calls, "nodes do not matter");
    assert_eq!(sim.take_events(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn invalid_request_is_reported_and_not_sent_to_the_cloud() {
    let (sim, process) = with_load_balancer().await;
    let calls = sim.cloud.changing_calls();
    change(&process, "web", |service| annotated(service, &[("mock.cloud/scheme", "inside")]));
    for _ in 0..10 {
        pass(600.0).await;
        process.deliver(&key("web"));
    }
    assert_eq!(sim.cloud.changing_calls(), calls, "checks for drift compare with the last request");
    let events = sim.take_events();
    assert_eq!(
        events[0],
        "Warning SyncLoadBalancerFailed web: Error syncing load balancer: ReadAnnotations: annotation \
         mock.cloud/scheme is \"inside\": use internal or internet-facing"
    );
    assert!(events.len() <= 20, "more than one in five minutes: {events:?}");
    change(&process, "web", |service| annotated(service, &[("mock.cloud/scheme", "internal")]));
    pass(1.0).await;
    assert!(sim.cloud.snapshot().balancers[0].internal, "the fix is applied immediately");
}

#[tokio::test(start_paused = true)]
async fn service_of_another_controller_is_ignored_and_released() {
    let sim = Simulation::new(MockConfig::default());
    let mut foreign = service("foreign");
    annotated(&mut foreign, &[("mock.cloud/targets", "elsewhere")]);
    sim.create(foreign);
    let process = Process::start(&sim, 1);
    pass(1.0).await;
    assert_eq!((sim.writes(), sim.cloud.snapshot().calls.len()), (0, 0));
    sim.create(service("web"));
    process.deliver(&key("web"));
    pass(1.0).await;
    assert_eq!(sim.cloud.snapshot().balancers.len(), 1);
    // The Service is moved to another controller: the load balancer of this one is deleted.
    process.deliver(&key("web"));
    change(&process, "web", |service| annotated(service, &[("mock.cloud/targets", "elsewhere")]));
    pass(1.0).await;
    assert!(sim.cloud.snapshot().balancers.is_empty());
    assert!(sim.get(&key("web")).is_some_and(|web| !has_finalizer(&web.meta)));
}

#[tokio::test(start_paused = true)]
async fn events_of_a_released_service_are_only_about_a_load_balancer_of_this_controller() {
    let (sim, process) = with_load_balancer().await;
    process.crash().await;
    sim.change(&key("web"), |web| annotated(web, &[("mock.cloud/targets", "elsewhere")]));
    // Upstream's service controller has added the finalizer before it read the annotations.
    let mut foreign = service("foreign");
    annotated(&mut foreign, &[("mock.cloud/targets", "elsewhere")]);
    foreign.meta.finalizers = [FINALIZER.into()].into();
    sim.create(foreign);
    sim.take_events();
    let _process = Process::start(&sim, 1);
    pass(100.0).await;
    for name in ["web", "foreign"] {
        assert!(sim.get(&key(name)).is_some_and(|service| !has_finalizer(&service.meta)), "{name} has the finalizer");
    }
    let expected = [
        "Normal DeletingLoadBalancer web: Deleting load balancer",
        "Normal DeletedLoadBalancer web: Deleted load balancer",
    ];
    assert_eq!(sim.take_events(), expected);
}

#[tokio::test(start_paused = true)]
async fn failed_call_is_reported_once_and_retried_after_a_delay() {
    let throttle = Effect::Throttle { after_millis: Some(70_000) };
    for (effect, seconds, calls) in [
        (throttle, 60.0, 1..=1),
        (Effect::Quota, 100.0, 3..=3),
        (Effect::Denied, 100.0, 3..=3),
        (Effect::Transient, 100.0, 4..=5),
    ] {
        let sim = Simulation::new(MockConfig::default());
        let operation = Operation::CreateBalancer;
        sim.cloud.add_fault(Fault::always(Pattern::One(operation), effect)).expect("a fault");
        sim.create(service("web"));
        let process = Process::start(&sim, 1);
        for _ in 0..10 {
            // More reconciles during the delay must not lead to calls.
            pass(seconds / 10.0).await;
            process.deliver(&key("web"));
        }
        let actual = sim.cloud.calls(operation).calls;
        assert!(calls.contains(&actual), "{effect:?}: {actual} calls");
        let failures = sim.take_events().into_iter().filter(|event| event.contains("Failed")).count();
        assert_eq!(failures, 1, "{effect:?}");
        sim.clear_faults();
        pass(400.0).await;
        assert_eq!(sim.cloud.snapshot().balancers[0].phase, Phase::Active, "{effect:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn changed_request_does_not_wait_for_the_retry_of_the_old_one() {
    let sim = Simulation::new(MockConfig::default());
    sim.cloud.add_fault(Fault::at(Pattern::One(Operation::CreateBalancer), 1, Effect::Quota)).expect("a fault");
    sim.create(service("web"));
    let process = Process::start(&sim, 1);
    pass(1.0).await;
    change(&process, "web", |service| service.ports.push(port(81)));
    pass(1.0).await;
    assert_eq!(sim.cloud.snapshot().balancers[0].listeners.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn finalizer_in_a_stale_cache_does_not_create_a_load_balancer() {
    let (sim, process) = with_load_balancer().await;
    process.crash().await;
    // The cache of the new leader does not contain the removal of the finalizer yet.
    let process = Process::start(&sim, 1);
    sim.change(&key("web"), |service| {
        service.kind = ServiceType::ClusterIp;
        service.meta.finalizers = [].into();
    });
    let before = sim.cloud.snapshot().calls;
    pass(1.0).await;
    assert_eq!(sim.cloud.snapshot().calls, before);
    process.deliver(&key("web"));
    pass(10.0).await;
    assert_eq!(process.leaks().await, 1, "a user removed the finalizer although the load balancer exists");
}

#[tokio::test(start_paused = true)]
async fn number_of_calls_is_bounded_with_200_services_and_500_nodes() {
    let names: Vec<_> = (0..500).map(|n| format!("node-{n:03}")).collect();
    let sim = Simulation::new(MockConfig::default());
    sim.set_nodes(names.iter().map(|name| node(name)).collect());
    for n in 0..200 {
        sim.create(service(&format!("web-{n}")));
    }
    let process = Process::start(&sim, 5);
    pass(10.0).await;
    let calls = |operation| sim.cloud.calls(operation).calls;
    assert_eq!(calls(Operation::CreateBalancer), 200);
    assert_eq!(calls(Operation::SetTargets), 200);
    assert_eq!(sim.writes(), 400, "a finalizer and a status each");
    let reads = calls(Operation::DescribeBalancer);
    // Fifty nodes are replaced: one update of each load balancer.
    sim.set_nodes(
        names.iter().skip(50).map(|name| node(name)).chain((500..550).map(|n| node(&format!("node-{n}")))).collect(),
    );
    process.nodes_changed();
    process.nodes_changed();
    pass(10.0).await;
    assert_eq!(calls(Operation::SetTargets), 400);
    assert!(calls(Operation::DescribeBalancer) - reads <= 200, "one read each at most");
    let (before, writes) = (sim.cloud.snapshot().calls, sim.writes());
    // A node changes in a field that does not matter, and one Service changes.
    process.nodes_changed();
    change(&process, "web-7", |service| service.ports.push(port(81)));
    pass(10.0).await;
    let after = sim.cloud.snapshot().calls;
    let more: u64 =
        after.iter().map(|(operation, count)| count.calls - before.get(operation).map_or(0, |count| count.calls)).sum();
    assert!(more <= 3, "{more} calls for one Service");
    assert_eq!(sim.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn restart_changes_nothing_and_records_no_event() {
    let (sim, process) = with_load_balancer().await;
    process.crash().await;
    let (before, writes) = (sim.cloud.changing_calls(), sim.writes());
    let _process = Process::start(&sim, 1);
    pass(60.0).await;
    assert_eq!((sim.cloud.changing_calls(), sim.writes()), (before, writes));
    assert_eq!(sim.take_events(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn settled_load_balancer_is_checked_again_when_the_provider_requests_it() {
    let sim = Simulation::new(MockConfig::default());
    lock(&sim.answers).check_after = Some(std::time::Duration::from_secs(60));
    sim.create(service("web"));
    let process = Process::start(&sim, 1);
    pass(1.0).await;
    let acts = || sim.acts();
    let before = acts();
    pass(50.0).await;
    assert_eq!(acts(), before);
    // Before the next check of the whole load balancer, changes of nodes only update its targets.
    sim.set_nodes(vec![node("node-0")]);
    process.nodes_changed();
    pass(1.0).await;
    assert_eq!((acts(), targets(&sim)), (before + 1, 1));
    lock(&sim.answers).check_after = None;
    pass(10.0).await;
    assert_eq!(acts(), before + 2, "it is checked after a minute");
    pass(600.0).await;
    assert_eq!(acts(), before + 2, "once");
}

#[tokio::test(start_paused = true)]
async fn creation_is_announced_as_completed_when_the_first_status_write_fails() {
    let sim = Simulation::new(MockConfig::default());
    sim.create(service("web"));
    // Faults are taken from the end: the finalizer is written first.
    sim.add_fault(WriteFault::Refused);
    sim.add_fault(WriteFault::Lost);
    let process = Process::start(&sim, 1);
    pass(1.0).await;
    process.deliver(&key("web"));
    pass(60.0).await;
    assert_eq!(sim.writes(), 3, "the finalizer, and the status twice");
    let ensured = sim.take_events().into_iter().filter(|event| event.contains("EnsuredLoadBalancer")).count();
    assert_eq!(ensured, 1);
}

#[tokio::test(start_paused = true)]
async fn targets_follow_the_nodes_while_a_failed_service_waits_for_its_retry() {
    let (sim, process) = with_load_balancer().await;
    // Clouds such as AWS can refuse one change until an operator fixes the cause.
    sim.cloud.add_fault(Fault::always(Pattern::One(Operation::SetFirewall), Effect::Denied)).expect("a fault");
    change(&process, "web", |service| {
        service.balancing.as_mut().expect("it is balanced").source_ranges = ["192.0.2.0/24".into()].into();
    });
    pass(1.0).await;
    assert!(sim.take_events().iter().any(|event| event.contains("SyncLoadBalancerFailed")));
    // Long before the next retry.
    for count in [3, 1] {
        sim.set_nodes((0..count).map(|number| node(&format!("node-{number}"))).collect());
        process.nodes_changed();
        pass(0.1).await;
        assert_eq!(targets(&sim), count, "targets follow the nodes");
    }
}

#[tokio::test(start_paused = true)]
async fn targets_follow_the_nodes_when_the_request_is_invalid_after_a_restart() {
    let (sim, process) = with_load_balancer().await;
    process.crash().await;
    sim.change(&key("web"), |service| annotated(service, &[("mock.cloud/scheme", "inside")]));
    let process = Process::start(&sim, 1);
    pass(1.0).await;
    assert!(sim.take_events()[0].contains("mock.cloud/scheme is \"inside\""));
    for count in [3, 1] {
        sim.set_nodes((0..count).map(|number| node(&format!("node-{number}"))).collect());
        process.nodes_changed();
        pass(1.0).await;
        assert_eq!(targets(&sim), count, "targets follow the nodes");
    }
    let calls = sim.acts();
    process.deliver(&key("web"));
    pass(600.0).await;
    assert_eq!(sim.acts(), calls, "each set of targets is sent once");
    change(&process, "web", |service| annotated(service, &[("mock.cloud/scheme", "internal")]));
    pass(1.0).await;
    assert!(sim.cloud.snapshot().balancers[0].internal, "the fix is applied immediately");
}

#[tokio::test(start_paused = true)]
async fn endpoints_follow_although_the_kind_of_targets_is_invalid_after_a_restart() {
    let sim = Simulation::new(MockConfig::default());
    sim.set_endpoints(vec![endpoint(1)]);
    let mut web = service("web");
    annotated(&mut web, &[("mock.cloud/targets", "endpoints")]);
    sim.create(web);
    let process = Process::start(&sim, 1);
    pass(1.0).await;
    process.crash().await;
    sim.change(&key("web"), |service| annotated(service, &[("mock.cloud/targets", "pods")]));
    let process = Process::start(&sim, 1);
    pass(1.0).await;
    for count in [3, 1] {
        sim.set_endpoints((1..=count).map(endpoint).collect());
        process.endpoints_changed(&key("web"));
        pass(5.0).await;
        assert_eq!(targets(&sim), usize::from(count), "targets follow the endpoints");
    }
}

#[tokio::test(start_paused = true)]
async fn targets_of_an_invalid_service_are_retried_with_backoff_after_a_restart() {
    let (sim, process) = with_load_balancer().await;
    process.crash().await;
    sim.change(&key("web"), |service| annotated(service, &[("mock.cloud/scheme", "inside")]));
    sim.set_nodes(vec![node("node-9")]);
    sim.cloud
        .add_fault(Fault::always(Pattern::One(Operation::SetTargets), Effect::Throttle { after_millis: None }))
        .expect("a fault");
    let process = Process::start(&sim, 1);
    pass(1.0).await;
    let calls = || sim.cloud.snapshot().calls[&Operation::SetTargets].calls;
    let before = calls();
    // Changes of nodes cause no calls while the cloud throttles.
    for number in 0..20 {
        sim.set_nodes(vec![node(&format!("node-{number}"))]);
        process.nodes_changed();
        pass(30.0).await;
    }
    assert!((3..=8).contains(&(calls() - before)), "{} calls in ten minutes", calls() - before);
    sim.cloud.clear_faults();
    pass(600.0).await;
    assert_eq!(targets(&sim), 1);
    let found = &sim.cloud.snapshot().balancers[0].targets[0].target;
    assert!(format!("{found:?}").contains("node-19"), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn targets_stay_while_objects_cannot_be_decoded() {
    let (sim, process) = with_load_balancer().await;
    sim.set_nodes(vec![node("node-1"), node("node-2")]);
    process.nodes_changed();
    pass(1.0).await;
    assert_eq!(targets(&sim), 2);
    sim.undecodable.store(true, std::sync::atomic::Ordering::Relaxed);
    sim.set_nodes(vec![node("node-2"), node("node-3")]);
    process.nodes_changed();
    pass(1.0).await;
    assert_eq!(targets(&sim), 3, "the node that is not listed may be the one that cannot be decoded");
    sim.undecodable.store(false, std::sync::atomic::Ordering::Relaxed);
    process.nodes_changed();
    pass(1.0).await;
    assert_eq!(targets(&sim), 2);
}

#[tokio::test(start_paused = true)]
async fn label_change_of_a_node_records_no_event() {
    let (sim, process) = with_load_balancer().await;
    sim.set_nodes(vec![node("node-1")]);
    process.nodes_changed();
    pass(1.0).await;
    sim.take_events();
    let mut labelled = node("node-1");
    labelled.labels.insert("a".into(), "b".into());
    sim.set_nodes(vec![labelled]);
    process.nodes_changed();
    pass(1.0).await;
    assert_eq!(sim.take_events(), [""; 0]);
}
