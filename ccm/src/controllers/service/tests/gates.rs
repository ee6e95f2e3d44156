//! Pods that wait for a load balancer that is being deleted.

use std::sync::Arc;
use std::time::Duration;

use kinds::gated_pod::{Gate, Status};
use kinds::meta::Time;
use kinds::{GatedPod, Uid};
use provider_mock::MockConfig;
use providers::{CloudError, Deletion, ErrorKind, Features, MockLoadBalancers, ReadinessGate, Targeting};
use runtime::lock::lock;

use super::simulation::{CLUSTER, Process, Simulation, pass, service};
use crate::controllers::service::decide::FINALIZER;

const GATE: &str = "gate.example.com/web";

/// Returns a cloud with readiness gates, whose load balancers are deleted in several steps.
fn cloud(sim: &Simulation) -> MockLoadBalancers {
    let features = sim.cloud.provider(CLUSTER).load_balancers().expect("load balancers").features();
    let mut cloud = MockLoadBalancers::new();
    cloud.expect_features().returning(move || Features { gates: Some("gate.example.com/"), ..features.clone() });
    cloud.expect_others().returning(|_| Default::default());
    cloud.expect_targeting().returning(|_| Ok(Targeting::Nodes));
    let in_progress = Deletion::InProgress(Duration::from_millis(100));
    cloud.expect_delete_last().times(3).returning(move |_, _| Ok(in_progress));
    cloud.expect_delete_last().returning(|_, _| Ok(Deletion::Gone));
    cloud
}

/// Adds a Service that is being deleted, and a pod that waits for a load balancer.
fn add_deleted_service(sim: &Simulation) {
    let mut web = service("web");
    web.meta.finalizers = Arc::new([FINALIZER.into()]);
    web.meta.deletion = Time(1);
    let gate = Gate { condition: GATE.into(), status: Status::Unset, reason: "".into(), message: "".into() };
    let mut meta = web.meta.clone();
    meta.name = "web-0".into();
    meta.uid = Uid::parse("pod");
    meta.deletion = Time::default();
    let pod = GatedPod { meta, containers_ready: true, gates: [gate].into() };
    lock(&sim.pods).insert("web-0".into(), pod);
    sim.create(web);
}

/// The process can read the types of the conditions only from the cloud: it was started after the load balancer was
/// created.
#[tokio::test(start_paused = true)]
async fn waiting_pod_is_released_when_its_load_balancer_is_deleted_after_a_restart() {
    let sim = Simulation::new(MockConfig::default());
    let mut cloud = cloud(&sim);
    let gate = || ReadinessGate { condition: GATE.into(), endpoints: Vec::new() };
    cloud.expect_gates().times(1).returning(move |_| Ok(vec![gate()]));
    add_deleted_service(&sim);
    let process = Process::over(&sim, 1, Arc::new(cloud));
    pass(5.0).await;
    let gate = lock(&sim.pods)["web-0"].gates[0].clone();
    assert_eq!(gate.status, Status::True, "{gate:?}");
    process.crash().await;
}

/// The pod waits for the load balancer of another Service: each step of the deletion finds it waiting.
#[tokio::test(start_paused = true)]
async fn deletion_reads_the_types_of_conditions_once() {
    let sim = Simulation::new(MockConfig::default());
    let mut cloud = cloud(&sim);
    cloud.expect_gates().times(1).returning(|_| Ok(Vec::new()));
    add_deleted_service(&sim);
    let process = Process::over(&sim, 1, Arc::new(cloud));
    pass(5.0).await;
    assert!(sim.services().is_empty(), "the Service still exists");
    assert_eq!(lock(&sim.pods)["web-0"].gates[0].status, Status::Unset);
    process.crash().await;
}

/// Pods would wait forever if the first error counted as a response.
#[tokio::test(start_paused = true)]
async fn types_of_conditions_are_read_again_after_an_error() {
    let sim = Simulation::new(MockConfig::default());
    let mut cloud = cloud(&sim);
    let gate = || ReadinessGate { condition: GATE.into(), endpoints: Vec::new() };
    let outage = || CloudError::new(ErrorKind::Transient, "DescribeTargetHealth", "as scripted");
    cloud.expect_gates().times(1).returning(move |_| Err(outage()));
    cloud.expect_gates().times(1).returning(move |_| Ok(vec![gate()]));
    add_deleted_service(&sim);
    let process = Process::over(&sim, 1, Arc::new(cloud));
    pass(5.0).await;
    assert_eq!(lock(&sim.pods)["web-0"].gates[0].status, Status::True);
    process.crash().await;
}
