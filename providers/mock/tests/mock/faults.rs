//! Faults in paused time, from the perspective of the provider's caller.

use std::time::Duration;

use provider_mock::{Effect, Fault, InstanceConfig, MockConfig, Operation, Pattern, Quotas};
use providers::{
    BuildContext, Deletion, ErrorKind, Health, InstanceRef, InstanceState, NodeTarget, Observed, Phase, Progress,
    RouteChange, RouteSpec, TargetId, Targets, build,
};
use tokio::time::Instant;

use crate::fixture::{CLUSTER, cloud, spec};

fn one(operation: Operation) -> Pattern {
    Pattern::One(operation)
}

#[tokio::test(start_paused = true)]
async fn refusals_have_their_kind_and_change_nothing() {
    let after = Some(Duration::from_secs(7));
    for (effect, kind) in [
        (Effect::Throttle { after_millis: Some(7_000) }, ErrorKind::Throttled { after }),
        (Effect::Quota, ErrorKind::Quota),
        (Effect::Denied, ErrorKind::Denied),
        (Effect::Conflict, ErrorKind::Conflict),
        (Effect::Transient, ErrorKind::Transient),
    ] {
        let cloud = cloud(MockConfig::default());
        cloud.add_fault(Fault::at(one(Operation::AllocateAddress), 1, effect)).unwrap();
        let balancers = cloud.provider(CLUSTER).load_balancers().unwrap();
        let error = balancers.ensure(&spec("web", "1"), &Targets::default()).await.unwrap_err();
        assert_eq!((error.kind, error.operation.as_str()), (kind, "AllocateAddress"));
        assert!(error.request_id.is_some(), "{error:?}");
        assert!(cloud.snapshot().balancers.is_empty());
        let count = cloud.calls(Operation::AllocateAddress);
        assert_eq!((count.calls, count.failed), (1, 1));
        balancers.ensure(&spec("web", "1"), &Targets::default()).await.expect("the fault occurs once");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_response_leaves_the_created_resource() {
    let cloud = cloud(MockConfig::default());
    cloud.add_fault(Fault::at(one(Operation::CreateBalancer), 1, Effect::ResponseLost).about("default/web")).unwrap();
    let balancers = cloud.provider(CLUSTER).load_balancers().unwrap();
    balancers.ensure(&spec("other", "0"), &Targets::default()).await.expect("the fault is for another load balancer");
    let error = balancers.ensure(&spec("web", "1"), &Targets::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Transient);
    let created = cloud.snapshot().balancers.into_iter().find(|balancer| balancer.id.name == "web").unwrap();
    assert!(created.exists && created.listeners.is_empty() && created.phase == Phase::Incomplete, "{created:?}");
}

#[tokio::test(start_paused = true)]
async fn latency_delays_without_other_effects() {
    let cloud = cloud(MockConfig::default());
    cloud.add_fault(Fault::always(Pattern::Reads, Effect::Latency { millis: 250 })).unwrap();
    let routes = cloud.provider(CLUSTER).routes().unwrap();
    let start = Instant::now();
    assert!(routes.list().await.unwrap().is_empty());
    assert_eq!(start.elapsed(), Duration::from_millis(250));
}

#[tokio::test(start_paused = true)]
async fn invisible_resource_is_absent_and_not_created_twice() {
    let cloud = cloud(MockConfig::default());
    let invisible = Effect::Invisible { millis: 30_000 };
    cloud.add_fault(Fault::always(one(Operation::AllocateAddress), invisible)).unwrap();
    cloud.add_fault(Fault::always(one(Operation::CreateBalancer), invisible)).unwrap();
    let balancers = cloud.provider(CLUSTER).load_balancers().unwrap();
    let spec = spec("web", "1");
    let first = balancers.ensure(&spec, &Targets::default()).await.unwrap();
    assert_eq!(balancers.observe(&spec.id).await.unwrap(), Observed::Absent);
    assert!(balancers.list_owned().await.unwrap().is_empty());
    assert_eq!(balancers.ensure(&spec, &Targets::default()).await.unwrap(), first);
    assert_eq!(cloud.snapshot().balancers.len(), 1);
    assert_eq!(balancers.delete(&spec.id).await.unwrap(), Deletion::Gone);
    assert!(cloud.snapshot().balancers.is_empty(), "invisible resources are deleted, too");
    balancers.ensure(&spec, &Targets::default()).await.unwrap();
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_ne!(balancers.observe(&spec.id).await.unwrap(), Observed::Absent);
}

#[tokio::test(start_paused = true)]
async fn provisioning_and_deletion_take_the_configured_time() {
    let config = MockConfig { provisioning_millis: 60_000, deletion_millis: 600_000, ..MockConfig::default() };
    let cloud = cloud(config);
    let balancers = cloud.provider(CLUSTER).load_balancers().unwrap();
    let spec = spec("web", "1");
    let created = balancers.ensure(&spec, &Targets::default()).await.unwrap();
    assert_eq!(created.progress, Progress::After(Duration::from_secs(60)));
    assert!(created.status.ingress.is_empty());
    tokio::time::advance(Duration::from_secs(60)).await;
    let created = balancers.ensure(&spec, &Targets::default()).await.unwrap();
    assert_eq!((created.progress, created.status.ingress.len()), (Progress::Settled, 1));
    let start = Instant::now();
    for minutes in [10, 7] {
        let deletion = balancers.delete(&spec.id).await.unwrap();
        assert_eq!(deletion, Deletion::InProgress(Duration::from_secs(minutes * 60)));
        tokio::time::advance(Duration::from_secs(180)).await;
    }
    assert_eq!(start.elapsed(), Duration::from_secs(360), "a call waited");
    tokio::time::advance(Duration::from_secs(240)).await;
    assert_eq!(balancers.delete(&spec.id).await.unwrap(), Deletion::Gone);
    assert!(cloud.snapshot().balancers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn settled_load_balancer_costs_one_read() {
    let cloud = cloud(MockConfig::default());
    let balancers = cloud.provider(CLUSTER).load_balancers().unwrap();
    let spec = spec("web", "1");
    balancers.ensure(&spec, &Targets::default()).await.unwrap();
    let (changes, reads) = (cloud.changing_calls(), cloud.calls(Operation::DescribeBalancer).calls);
    balancers.ensure(&spec, &Targets::default()).await.unwrap();
    assert_eq!((cloud.changing_calls(), cloud.calls(Operation::DescribeBalancer).calls), (changes, reads + 1));
}

#[tokio::test(start_paused = true)]
async fn quotas_apply_and_existing_resources_can_be_deleted() {
    let quotas = Quotas { balancers: Some(1), routes: Some(1), ..Quotas::default() };
    let cloud = cloud(MockConfig { quotas, auto_instances: true, ..MockConfig::default() });
    let provider = cloud.provider(CLUSTER);
    let balancers = provider.load_balancers().unwrap();
    balancers.ensure(&spec("one", "1"), &Targets::default()).await.unwrap();
    let second = spec("two", "2");
    let error = balancers.ensure(&second, &Targets::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Quota);
    assert_eq!(balancers.list_owned().await.unwrap().len(), 2, "the allocated address is listed");
    assert_eq!(balancers.delete(&second.id).await.unwrap(), Deletion::Gone);
    assert_eq!(cloud.snapshot().balancers.len(), 1);
    let set = |third: u8| {
        RouteChange::Set(RouteSpec {
            destination: format!("10.244.{third}.0/24").parse().unwrap(),
            instance: InstanceRef::named("node"),
            addresses: Vec::new(),
            name_hint: String::new(),
        })
    };
    let results = provider.routes().unwrap().apply(&[set(1), set(2)]).await;
    assert!(results[0].is_ok());
    assert_eq!(results[1].as_ref().unwrap_err().kind, ErrorKind::Quota);
}

#[tokio::test(start_paused = true)]
async fn one_instance_of_a_batch_can_fail_alone() {
    let cloud = cloud(MockConfig { auto_instances: true, ..MockConfig::default() });
    cloud.add_fault(Fault::always(one(Operation::DescribeInstance), Effect::Denied).about("b")).unwrap();
    let instances = cloud.provider(CLUSTER).instances().unwrap();
    let requested = ["a", "b", "c"].map(InstanceRef::named);
    let states = instances.describe(&requested).await;
    assert!(matches!(states[0], InstanceState::Running(_)) && matches!(states[2], InstanceState::Running(_)));
    assert!(matches!(&states[1], InstanceState::Unknown(error) if error.kind == ErrorKind::Denied), "{states:?}");
    assert_eq!(cloud.calls(Operation::DescribeInstances).calls, 1);
    cloud.add_fault(Fault::at(one(Operation::DescribeInstances), 1, Effect::Transient)).unwrap();
    let states = instances.describe(&requested).await;
    assert!(states.iter().all(|state| matches!(state, InstanceState::Unknown(_))), "{states:?}");
}

#[tokio::test(start_paused = true)]
async fn automatic_instances_appear_and_stay_removed() {
    let cloud = cloud(MockConfig { auto_instances: true, ..MockConfig::default() });
    let instances = cloud.provider(CLUSTER).instances().unwrap();
    let known = InstanceRef::named("kind-worker").with_provider_id("kind://docker/kind/kind-worker");
    let requested = [InstanceRef::named("a"), known];
    let states = instances.describe(&requested).await;
    assert!(matches!(&states[1], InstanceState::Running(i) if i.provider_id == "kind://docker/kind/kind-worker"));
    assert!(cloud.remove_instance("a") && !cloud.remove_instance("a"));
    assert_eq!(instances.describe(&requested).await[0], InstanceState::Gone);
    cloud.add_instance(&InstanceConfig { visible_after_millis: 1_000, ..InstanceConfig::named("a") });
    assert_eq!(instances.describe(&requested).await[0], InstanceState::Gone, "not visible yet");
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(matches!(instances.describe(&requested).await[0], InstanceState::Running(_)));
}

#[tokio::test(start_paused = true)]
async fn health_of_a_target_follows_its_instance_and_can_be_set() {
    let cloud = cloud(MockConfig { health_millis: 10_000, ..MockConfig::default() });
    let ids = ["a", "b", "c"].map(|name| cloud.add_instance(&InstanceConfig::named(name)));
    let node = |id: &String| NodeTarget { provider_id: Some(id.clone()), ..NodeTarget::default() };
    let targets = Targets::nodes(ids.iter().map(node).collect::<Vec<_>>());
    let balancers = cloud.provider(CLUSTER).load_balancers().unwrap();
    let spec = spec("web", "1");
    balancers.ensure(&spec, &targets).await.unwrap();
    let health = || cloud.snapshot().balancers[0].targets.iter().map(|target| target.health).collect::<Vec<_>>();
    assert_eq!(health(), [Health::Initial; 3]);
    tokio::time::advance(Duration::from_secs(10)).await;
    cloud.stop_instance("b");
    cloud.set_health(TargetId::Instance(ids[2].clone()), Some(Health::Draining));
    assert_eq!(health(), [Health::Healthy, Health::Unhealthy, Health::Draining]);
    cloud.start_instance("b");
    cloud.set_health(TargetId::Instance(ids[2].clone()), None);
    assert_eq!(health(), [Health::Healthy; 3]);
}

#[test]
fn factory_reports_configuration_errors() {
    let message = |config: &str| {
        let context = BuildContext {
            cluster_name: CLUSTER.into(),
            config_path: Some("/etc/mock.json".into()),
            config: config.into(),
            ..BuildContext::default()
        };
        build(&[provider_mock::factory()], "mock", &context).err().map(|error| error.to_string())
    };
    assert_eq!(message(""), None);
    assert_eq!(message(r#"{"seed": 3, "auto_instances": true}"#), None);
    let zero = r#"{"faults": [{"operation": "*", "nth": 0, "effect": "quota"}]}"#;
    assert_eq!(message(zero).unwrap(), "/etc/mock.json: faults: nth is 0: calls are counted from 1");
    assert!(message(r#"{"sed": 3}"#).unwrap().starts_with("/etc/mock.json: unknown field `sed`"));
}
