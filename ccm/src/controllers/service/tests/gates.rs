//! Pods that wait for a load balancer which is deleted.

use std::sync::Arc;

use kinds::gated_pod::{Gate, Status};
use kinds::meta::Time;
use kinds::{GatedPod, Uid};
use provider_mock::MockConfig;
use providers::{Deletion, Features, MockLoadBalancers, ReadinessGate};
use runtime::lock::lock;

use super::simulation::{CLUSTER, Process, Simulation, pass, service};
use crate::controllers::service::decide::FINALIZER;

const GATE: &str = "gate.example.com/web";

/// The process knows the types of the conditions only from the cloud: it was started after the load balancer was created.
#[tokio::test(start_paused = true)]
async fn waiting_pod_is_released_when_its_load_balancer_is_deleted_after_a_restart() {
    let sim = Simulation::new(MockConfig::default());
    let features = sim.cloud.provider(CLUSTER).load_balancers().expect("load balancers").features();
    let mut cloud = MockLoadBalancers::new();
    cloud.expect_features().returning(move || Features { gates: Some("gate.example.com/"), ..features.clone() });
    cloud.expect_others().returning(|_| Default::default());
    cloud.expect_gates().returning(|_| Ok(vec![ReadinessGate { condition: GATE.into(), endpoints: Vec::new() }]));
    cloud.expect_delete_last().returning(|_, _| Ok(Deletion::Gone));

    let mut web = service("web");
    web.meta.finalizers = Arc::new([FINALIZER.into()]);
    web.meta.deletion = Time(1);
    let gate = Gate { condition: GATE.into(), status: Status::Unset, reason: "".into(), message: "".into() };
    let mut meta = web.meta.clone();
    (meta.name, meta.uid, meta.deletion) = ("web-0".into(), Uid::parse("pod"), Time::default());
    let pod = GatedPod { meta, containers_ready: true, gates: [gate].into() };
    lock(&sim.pods).insert("web-0".into(), pod);
    sim.create(web);
    let process = Process::over(&sim, 1, Arc::new(cloud));
    pass(5.0).await;
    let gate = lock(&sim.pods)["web-0"].gates[0].clone();
    assert_eq!(gate.status, Status::True, "{gate:?}");
    process.crash().await;
}
