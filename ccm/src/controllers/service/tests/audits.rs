//! Audits: which resources count as leaked, when they are reported, and when they are deleted.

use std::sync::Arc;
use std::time::Duration;

use kinds::Uid;
use kinds::service::ServiceType;
use provider_mock::MockConfig;
use providers::{
    CloudError, Deletion, ErrorKind, LoadBalancerId, LoadBalancerSpec, MockLoadBalancers, Owned, Phase, Port, Protocol,
    TargetPort, Targets,
};

use super::simulation::{CLUSTER, Process, Simulation, key, pass, service};
use crate::controllers::service::audit::unwanted;
use crate::controllers::service::decide;

fn id(name: &str, uid: &str) -> LoadBalancerId {
    LoadBalancerId { cluster: CLUSTER.into(), namespace: "shop".into(), name: name.into(), uid: uid.into() }
}

/// Creates the load balancer of a Service that does not exist.
async fn create_leak(sim: &Simulation, id: LoadBalancerId) {
    let port = Port {
        name: "80".into(),
        protocol: Protocol::Tcp,
        app_protocol: None,
        port: 80,
        node_port: Some(30_080),
        target_port: TargetPort::Number(80),
    };
    let cloud = sim.cloud.provider(CLUSTER).load_balancers().expect("the mock has load balancers");
    let made = cloud.ensure(&LoadBalancerSpec::new(id, vec![port]), &Targets::default()).await;
    made.expect("ensure failed");
}

fn balancers(sim: &Simulation) -> Vec<String> {
    sim.cloud.snapshot().balancers.into_iter().map(|balancer| balancer.id.name).collect()
}

/// Returns a simulation with the Service `web` and a load balancer of the deleted Service `gone`.
async fn sim(collects: bool, every: u64) -> (Arc<Simulation>, Process) {
    let sim = Simulation::new(MockConfig::default());
    *sim.audit.lock().expect("no panic") = (collects, Duration::from_secs(every));
    sim.create(service("web"));
    create_leak(&sim, id("gone", "uid-gone")).await;
    let process = Process::start(&sim, 1);
    pass(1.0).await;
    sim.take_events();
    (sim, process)
}

async fn audit(process: &Process) -> usize {
    process.audit().await.leaks
}

#[tokio::test(start_paused = true)]
async fn leak_is_reported_by_the_second_audit_and_kept() {
    let (sim, process) = sim(false, 0).await;
    assert_eq!((audit(&process).await, sim.take_events()), (0, vec![]));
    assert_eq!(audit(&process).await, 1);
    let [event] = &sim.take_events()[..] else { panic!("not exactly one event") };
    assert!(
        event.starts_with(
            "Warning LeakedLoadBalancer gone: the Service no longer exists, but the cloud still has its resources"
        ),
        "{event}"
    );
    assert!(event.contains("balancer auidgone") && event.contains("--collect-leaked-load-balancers"), "{event}");
    assert_eq!(balancers(&sim), ["gone", "web"]);
}

#[tokio::test(start_paused = true)]
async fn leak_is_deleted_if_that_is_allowed() {
    let (sim, process) = sim(true, 0).await;
    audit(&process).await;
    assert_eq!(balancers(&sim), ["gone", "web"], "one audit proves nothing");
    assert_eq!(audit(&process).await, 0);
    assert_eq!(balancers(&sim), ["web"]);
    let [event] = &sim.take_events()[..] else { panic!("not exactly one event") };
    assert!(event.starts_with("Normal LeakedLoadBalancerDeleted gone: "), "{event}");
}

#[tokio::test(start_paused = true)]
async fn leak_is_deleted_only_after_a_whole_period() {
    let (sim, process) = sim(true, 3600).await;
    for _ in 0..3 {
        audit(&process).await;
        pass(1000.0).await;
    }
    assert_eq!(balancers(&sim), ["gone", "web"], "the audits so far were within one period");
    pass(600.0).await;
    audit(&process).await;
    assert_eq!(balancers(&sim), ["web"]);
}

#[tokio::test(start_paused = true)]
async fn uncached_read_decides_whether_a_service_exists() {
    let (sim, process) = sim(true, 0).await;
    // A Service with the ID of the leak, which the cache does not contain yet.
    sim.create(service("gone"));
    sim.change(&key("gone"), |service| service.meta.uid = Uid::parse("uid-gone"));
    assert_eq!((audit(&process).await, audit(&process).await), (0, 0));
    assert_eq!((balancers(&sim), sim.take_events()), (vec!["gone".to_owned(), "web".to_owned()], vec![]));
    // Once the cache contains the Service, it no longer requests a load balancer: the leak is reported, and a user has
    // to fix it.
    sim.change(&key("gone"), |service| service.kind = ServiceType::ClusterIp);
    process.deliver(&key("gone"));
    pass(1.0).await;
    assert_eq!(audit(&process).await, 1);
    let [event] = &sim.take_events()[..] else { panic!("not exactly one event") };
    assert!(event.contains("the Service is not of type LoadBalancer"), "{event}");
    assert_eq!(balancers(&sim), ["gone", "web"]);
}

#[tokio::test(start_paused = true)]
async fn resource_of_an_uncertain_owner_is_reported_and_never_deleted() {
    let sim = Simulation::new(MockConfig::default());
    sim.audit.lock().expect("no panic").0 = true;
    let mut cloud = MockLoadBalancers::new();
    let of = |name: &str, certain| Owned {
        id: id(name, "uid"),
        phase: Phase::Incomplete,
        resources: vec![format!("rule of {name}")],
        certain,
    };
    let all = vec![of("ours", true), of("perhaps", false)];
    cloud.expect_list_owned().returning(move || Ok(all.clone()));
    cloud.expect_may_be_owned_by().return_const(false);
    let mut first = true;
    cloud.expect_collect().times(2).withf(|owned| owned.id.name == "ours").returning(move |_| {
        Ok(if std::mem::take(&mut first) { Deletion::InProgress(Duration::from_secs(7)) } else { Deletion::Gone })
    });
    let process = Process::over(&sim, 1, Arc::new(cloud));
    audit(&process).await;
    let second = process.audit().await;
    assert_eq!((second.leaks, second.retry_after), (2, Some(Duration::from_secs(7))));
    let third = process.audit().await;
    assert_eq!((third.leaks, third.retry_after), (1, None));
    let events = sim.take_events();
    assert!(
        events.iter().any(|event| event.contains("perhaps") && event.contains("by hand if they are not needed")),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn deletion_is_continued_although_a_listing_lacks_the_resource() {
    let sim = Simulation::new(MockConfig::default());
    sim.audit.lock().expect("no panic").0 = true;
    let mut cloud = MockLoadBalancers::new();
    let left = Owned { id: id("gone", "uid"), phase: Phase::Active, resources: vec!["b-1".into()], certain: true };
    let (mut listings, mut results) = (
        vec![vec![left.clone()], vec![left.clone()]].into_iter(),
        [
            Ok(Deletion::InProgress(Duration::from_secs(7))),
            Err(CloudError::new(ErrorKind::Transient, "Delete", "try again")),
            Ok(Deletion::Gone),
        ]
        .into_iter(),
    );
    cloud.expect_list_owned().returning(move || Ok(listings.next().unwrap_or_default()));
    cloud.expect_may_be_owned_by().return_const(false);
    cloud
        .expect_collect()
        .times(3)
        .withf(move |owned| *owned == left)
        .returning(move |_| results.next().expect("three"));
    let process = Process::over(&sim, 1, Arc::new(cloud));
    let mut leaks = Vec::new();
    for _ in 0..5 {
        leaks.push(audit(&process).await);
    }
    assert_eq!(leaks, [0, 1, 1, 0, 0]);
    let events = sim.take_events();
    assert!(events.iter().any(|event| event.starts_with("Normal LeakedLoadBalancerDeleted gone: ")), "{events:?}");
}

#[test]
fn resource_of_a_service_that_requests_it_is_not_a_leak() {
    let mut cloud = MockLoadBalancers::new();
    cloud.expect_may_be_owned_by().returning(|owned, service| owned.id == *service || owned.id.namespace.is_empty());
    let owned = |id: LoadBalancerId| Owned { id, phase: Phase::Active, resources: Vec::new(), certain: true };
    let left = |id: LoadBalancerId, change: &dyn Fn(&mut kinds::Service)| {
        let mut web = service("web");
        change(&mut web);
        !unwanted(vec![owned(id)], &[Arc::new(web)], CLUSTER, &cloud).is_empty()
    };
    let own = decide::id(&service("web").meta, CLUSTER);
    let plain = |service: &mut kinds::Service| service.kind = ServiceType::ClusterIp;
    let plain_with_finalizer = |service: &mut kinds::Service| {
        service.kind = ServiceType::ClusterIp;
        service.meta.finalizers = Arc::new([decide::FINALIZER.into()]);
    };
    assert!(!left(own.clone(), &|_| {}));
    assert!(
        left(LoadBalancerId { uid: "another".into(), ..own.clone() }, &|_| {}),
        "it belongs to a previous Service with this name"
    );
    assert!(left(own.clone(), &plain));
    assert!(!left(own.clone(), &plain_with_finalizer), "its finalizer waits for the deletion");
    let nameless = LoadBalancerId { namespace: String::new(), ..own };
    assert!(!left(nameless.clone(), &|_| {}), "it may belong to any Service");
    assert!(left(nameless, &plain));
}
