//! The lines of `check-config --services`.

use std::sync::Arc;

use kinds::service::ServiceType;
use provider_mock::MockConfig;

use super::simulation::{CLUSTER, Process, Simulation, annotated, key, pass, service};
use crate::controllers::service::decide::FINALIZER;
use crate::controllers::service::forecast;

#[tokio::test(start_paused = true)]
async fn each_service_has_one_line_with_its_change() {
    let sim = Simulation::new(MockConfig::default());
    for name in ["kept", "moved", "plainer", "removed"] {
        sim.create(service(name));
    }
    let process = Process::start(&sim, 1);
    pass(1.0).await;
    process.crash().await;
    sim.change(&key("moved"), |moved| annotated(moved, &[("mock.cloud/targets", "elsewhere")]));
    sim.change(&key("plainer"), |plainer| plainer.kind = ServiceType::ClusterIp);
    sim.change(&key("removed"), |removed| removed.meta.deletion = kinds::meta::Time(1));
    sim.create(service("new"));
    let mut class = service("class");
    class.balancing.as_mut().expect("a load balancer").class = Some("example.com/other".into());
    sim.create(class);
    let mut plain = service("plain");
    plain.kind = ServiceType::ClusterIp;
    sim.create(plain);
    let mut former = service("former");
    former.kind = ServiceType::ClusterIp;
    former.meta.finalizers = Arc::new([FINALIZER.into()]);
    sim.create(former.clone());
    let mut ending = former.clone();
    ending.meta.name = "ending".into();
    ending.kind = ServiceType::LoadBalancer;
    ending.meta.deletion = kinds::meta::Time(1);
    let mut elsewhere = service("elsewhere");
    elsewhere.meta.finalizers = Arc::new([FINALIZER.into()]);
    annotated(&mut elsewhere, &[("mock.cloud/targets", "elsewhere")]);
    sim.create(elsewhere);
    let mut wrong = service("wrong");
    wrong.ports[0].port = 70_000;
    sim.create(wrong);

    let services: Vec<_> = sim.services().into_values().chain([ending]).collect();
    let cloud = sim.cloud.provider(CLUSTER).load_balancers().expect("the mock has load balancers");
    let before = sim.acts();
    let lines = forecast::lines(&services, CLUSTER, &*cloud).await;
    let words = |line: &String| line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>().join(" ");
    assert_eq!(
        lines.iter().map(words).collect::<Vec<_>>(),
        [
            "shop/class left",
            "shop/elsewhere left",
            "shop/ending left",
            "shop/former left",
            "shop/kept kept",
            "shop/moved deleted",
            "shop/new created",
            "shop/plainer deleted",
            "shop/removed deleted",
            "shop/wrong refused"
        ]
    );
    assert!(lines[1].contains("only its finalizer is removed"), "{lines:?}");
    assert!(lines[8].contains("the Service is being deleted: the load balancer"), "{lines:?}");
    assert!(lines[9].contains("spec.ports[].port is \"70000\""), "{lines:?}");
    assert_eq!(sim.acts(), before, "nothing is changed");
    assert!(sim.get(&key("new")).is_some_and(|new| new.meta.finalizers.is_empty()));
}
