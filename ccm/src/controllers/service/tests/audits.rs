//! Audits: what counts as left over, when it is told, and when it is deleted.

use std::sync::Arc;
use std::time::Duration;

use kinds::Uid;
use kinds::service::ServiceType;
use provider_mock::MockConfig;
use providers::{
    CloudError, Deletion, ErrorKind, LoadBalancerId, LoadBalancerSpec, MockLoadBalancers, Owned, Phase, Port, Protocol,
    TargetPort, Targets,
};

use super::world::{CLUSTER, Process, World, key, pass, service};
use crate::controllers::service::audit::unwanted;
use crate::controllers::service::decide;

fn id(name: &str, uid: &str) -> LoadBalancerId {
    LoadBalancerId { cluster: CLUSTER.into(), namespace: "shop".into(), name: name.into(), uid: uid.into() }
}

/// A balancer that a Service has left behind.
async fn leave(world: &World, id: LoadBalancerId) {
    let port = Port {
        name: "80".into(),
        protocol: Protocol::Tcp,
        app_protocol: None,
        port: 80,
        node_port: Some(30_080),
        target_port: TargetPort::Number(80),
    };
    let cloud = world.cloud.provider(CLUSTER).load_balancers().expect("the mock balances");
    let made = cloud.ensure(&LoadBalancerSpec::new(id, vec![port]), &Targets::default()).await;
    made.expect("no faults");
}

fn balancers(world: &World) -> Vec<String> {
    world.cloud.snapshot().balancers.into_iter().map(|balancer| balancer.id.name).collect()
}

/// A world with the Service `web` and something left of `gone`.
async fn world(collects: bool, every: u64) -> (Arc<World>, Process) {
    let world = World::new(MockConfig::default());
    *world.audit.lock().expect("nobody panicked") = (collects, Duration::from_secs(every));
    world.create(service("web"));
    leave(&world, id("gone", "uid-gone")).await;
    let process = Process::start(&world, 1);
    pass(1.0).await;
    world.take_events();
    (world, process)
}

async fn audit(process: &Process) -> usize {
    process.audit().await.leaks
}

#[tokio::test(start_paused = true)]
async fn a_leak_is_told_when_a_second_audit_finds_it_and_stays() {
    let (world, process) = world(false, 0).await;
    assert_eq!((audit(&process).await, world.take_events()), (0, vec![]));
    assert_eq!(audit(&process).await, 1);
    let [event] = &world.take_events()[..] else { panic!("one event") };
    assert!(event.starts_with("Warning LeakedLoadBalancer gone: the Service is gone, and the cloud holds"), "{event}");
    assert!(event.contains("balancer auidgone") && event.contains("--collect-leaked-load-balancers"), "{event}");
    assert_eq!(balancers(&world), ["gone", "web"]);
}

#[tokio::test(start_paused = true)]
async fn it_is_deleted_where_that_is_allowed_and_nothing_else_is() {
    let (world, process) = world(true, 0).await;
    audit(&process).await;
    assert_eq!(balancers(&world), ["gone", "web"], "one audit proves nothing");
    assert_eq!(audit(&process).await, 0);
    assert_eq!(balancers(&world), ["web"]);
    let [event] = &world.take_events()[..] else { panic!("one event") };
    assert!(event.starts_with("Normal LeakedLoadBalancerDeleted gone: "), "{event}");
}

#[tokio::test(start_paused = true)]
async fn two_audits_are_a_period_apart() {
    let (world, process) = world(true, 3600).await;
    for _ in 0..3 {
        audit(&process).await;
        pass(1000.0).await;
    }
    assert_eq!(balancers(&world), ["gone", "web"], "all of it was within the hour");
    pass(600.0).await;
    audit(&process).await;
    assert_eq!(balancers(&world), ["web"]);
}

#[tokio::test(start_paused = true)]
async fn the_server_has_the_last_word() {
    let (world, process) = world(true, 0).await;
    // A Service that the process has not heard of, of the id that seems to be gone.
    world.create(service("gone"));
    world.change(&key("gone"), |service| service.meta.uid = Uid::parse("uid-gone"));
    assert_eq!((audit(&process).await, audit(&process).await), (0, 0));
    assert_eq!((balancers(&world), world.take_events()), (vec!["gone".to_owned(), "web".to_owned()], vec![]));
    // Known by now, it wants no balancer: that is told, and its owner's to mend.
    world.change(&key("gone"), |service| service.kind = ServiceType::ClusterIp);
    process.deliver(&key("gone"));
    pass(1.0).await;
    assert_eq!(audit(&process).await, 1);
    let [event] = &world.take_events()[..] else { panic!("one event") };
    assert!(event.contains("the Service wants no load balancer here"), "{event}");
    assert_eq!(balancers(&world), ["gone", "web"]);
}

#[tokio::test(start_paused = true)]
async fn what_may_be_another_clusters_is_told_and_never_deleted() {
    let world = World::new(MockConfig::default());
    world.audit.lock().expect("nobody panicked").0 = true;
    let mut cloud = MockLoadBalancers::new();
    let of = |name: &str, certain| Owned {
        id: id(name, "uid"),
        phase: Phase::Incomplete,
        resources: vec![format!("rule of {name}")],
        certain,
    };
    let all = vec![of("ours", true), of("perhaps", false)];
    cloud.expect_list_owned().returning(move || Ok(all.clone()));
    cloud.expect_may_belong().return_const(false);
    let mut first = true;
    cloud.expect_collect().times(2).withf(|owned| owned.id.name == "ours").returning(move |_| {
        Ok(if std::mem::take(&mut first) { Deletion::InProgress(Duration::from_secs(7)) } else { Deletion::Gone })
    });
    let process = Process::over(&world, 1, Arc::new(cloud));
    audit(&process).await;
    let second = process.audit().await;
    assert_eq!((second.leaks, second.again), (2, Some(Duration::from_secs(7))));
    let third = process.audit().await;
    assert_eq!((third.leaks, third.again), (1, None));
    let events = world.take_events();
    assert!(events.iter().any(|event| event.contains("perhaps") && event.contains("by hand if nobody")), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_being_deleted_is_followed_to_its_end_though_a_look_does_not_show_it() {
    let world = World::new(MockConfig::default());
    world.audit.lock().expect("nobody panicked").0 = true;
    let mut cloud = MockLoadBalancers::new();
    let left = Owned { id: id("gone", "uid"), phase: Phase::Active, resources: vec!["b-1".into()], certain: true };
    let (mut looks, mut answers) = (
        vec![vec![left.clone()], vec![left.clone()]].into_iter(),
        [
            Ok(Deletion::InProgress(Duration::from_secs(7))),
            Err(CloudError::new(ErrorKind::Transient, "Delete", "try again")),
            Ok(Deletion::Gone),
        ]
        .into_iter(),
    );
    cloud.expect_list_owned().returning(move || Ok(looks.next().unwrap_or_default()));
    cloud.expect_may_belong().return_const(false);
    cloud
        .expect_collect()
        .times(3)
        .withf(move |owned| *owned == left)
        .returning(move |_| answers.next().expect("three"));
    let process = Process::over(&world, 1, Arc::new(cloud));
    let mut leaks = Vec::new();
    for _ in 0..5 {
        leaks.push(audit(&process).await);
    }
    assert_eq!(leaks, [0, 1, 1, 0, 0]);
    let events = world.take_events();
    assert!(events.iter().any(|event| event.starts_with("Normal LeakedLoadBalancerDeleted gone: ")), "{events:?}");
}

#[test]
fn a_service_stands_for_what_is_its_own() {
    let mut cloud = MockLoadBalancers::new();
    cloud.expect_may_belong().returning(|owned, service| owned.id == *service || owned.id.namespace.is_empty());
    let owned = |id: LoadBalancerId| Owned { id, phase: Phase::Active, resources: Vec::new(), certain: true };
    let left = |id: LoadBalancerId, change: &dyn Fn(&mut kinds::Service)| {
        let mut web = service("web");
        change(&mut web);
        !unwanted(vec![owned(id)], &[Arc::new(web)], CLUSTER, &cloud).is_empty()
    };
    let own = decide::id(&service("web").meta, CLUSTER);
    let plain = |service: &mut kinds::Service| service.kind = ServiceType::ClusterIp;
    let held = |service: &mut kinds::Service| {
        (service.kind, service.meta.finalizers) = (ServiceType::ClusterIp, Arc::new([decide::FINALIZER.into()]));
    };
    assert!(!left(own.clone(), &|_| {}));
    assert!(left(LoadBalancerId { uid: "another".into(), ..own.clone() }, &|_| {}), "one of its name was before it");
    assert!(left(own.clone(), &plain));
    assert!(!left(own.clone(), &held), "it is waited for");
    let nameless = LoadBalancerId { namespace: String::new(), ..own };
    assert!(!left(nameless.clone(), &|_| {}), "anybody's");
    assert!(left(nameless, &plain));
}
