//! Changes that the cloud refuses although targets are set: for invalid Services after a restart, and as warnings.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use provider_mock::MockConfig;
use providers::{CloudError, ErrorKind};
use runtime::lock::lock;

use super::super::decide::check_after;
use super::simulation::{Process, Simulation, annotated, key, node, pass, service};

/// Returns a simulation in which a Service with a load balancer is invalid after a restart, and the cloud refuses
/// to open a group.
async fn with_refusal() -> (Arc<Simulation>, Process) {
    let sim = Simulation::new(MockConfig::default());
    sim.create(service("web"));
    let process = Process::start(&sim, 1);
    pass(1.0).await;
    process.crash().await;
    sim.change(&key("web"), |service| annotated(service, &[("mock.cloud/scheme", "inside")]));
    sim.take_events();
    lock(&sim.answers).refused = Some(CloudError::new(ErrorKind::Quota, "Open", "group sg-1 is full"));
    let process = Process::start(&sim, 1);
    pass(1.0).await;
    (sim, process)
}

/// Returns the number of events so far about the refusal.
fn reports(sim: &Simulation) -> usize {
    let report = "Warning UpdateLoadBalancerFailed web: Error updating targets while the Service is invalid: \
                  Open: group sg-1 is full";
    sim.take_events().iter().filter(|event| *event == report).count()
}

#[tokio::test(start_paused = true)]
async fn refusal_is_reported_and_retried_with_backoff_until_it_ends() {
    let (sim, process) = with_refusal().await;
    assert_eq!(reports(&sim), 1);
    let begun = sim.acts();
    pass(28.0).await;
    process.deliver(&key("web"));
    pass(0.5).await;
    assert_eq!(sim.acts(), begun, "a change of the Service does not shorten the pause");
    pass(1.0).await;
    assert_eq!((sim.acts() - begun, reports(&sim)), (1, 0), "after 30 s; the same refusal is reported again later");
    pass(3600.0).await;
    let calls = sim.acts() - begun;
    assert!((10..=15).contains(&calls), "{calls} calls in an hour");
    assert!((8..=13).contains(&reports(&sim)), "the refusal is reported about every five minutes");
    lock(&sim.answers).refused = None;
    pass(300.0).await;
    let calls = sim.acts();
    pass(3600.0).await;
    assert_eq!((sim.acts(), reports(&sim)), (calls, 0), "nothing is repeated after a success");
}

#[tokio::test(start_paused = true)]
async fn each_warning_is_reported_when_it_appears() {
    let sim = Simulation::new(MockConfig::default());
    let answer = |warnings: &[&str]| {
        let mut answers = lock(&sim.answers);
        answers.check_after = Some(Duration::from_secs(60));
        answers.warnings = warnings.iter().map(|warning| (*warning).to_owned()).collect();
    };
    let reported = || -> Vec<String> {
        let start = "Warning LoadBalancerWarning web: ";
        sim.take_events().iter().filter_map(|event| event.strip_prefix(start)).map(str::to_owned).collect()
    };
    sim.create(service("web"));
    answer(&["a", "b"]);
    let _process = Process::start(&sim, 1);
    pass(1.0).await;
    assert_eq!(reported(), ["a", "b"]);
    for (warnings, expected) in
        [(&["b", "c"][..], &["c"][..]), (&["b"], &[]), (&["b", "a"], &["a"]), (&[], &[]), (&["b"], &["b"])]
    {
        answer(warnings);
        pass(73.0).await;
        assert_eq!(reported(), expected, "{warnings:?}");
    }
}

#[test]
fn requested_checks_of_many_services_are_spread() {
    let delay = Duration::from_secs(60);
    let delays: BTreeSet<Duration> = (0..500).map(|number| check_after(delay, &format!("uid-{number}-x"))).collect();
    let (first, last) = (delays.first().expect("500 delays"), delays.last().expect("500 delays"));
    assert!(*first >= delay && *last <= delay.mul_f64(1.2), "{first:?} to {last:?}");
    assert!(delays.len() > 200 && *last - *first > Duration::from_secs(10), "{first:?} to {last:?}");
}

#[tokio::test(start_paused = true)]
async fn targets_follow_during_the_pause_after_a_refusal() {
    let (sim, process) = with_refusal().await;
    let begun = sim.acts();
    for count in [3, 1] {
        sim.set_nodes((0..count).map(|number| node(&format!("node-{number}"))).collect());
        process.nodes_changed();
        pass(1.0).await;
        assert_eq!(sim.cloud.snapshot().balancers[0].targets.len(), count);
    }
    assert_eq!(sim.acts() - begun, 2, "each set of targets is sent once");
    assert_eq!(reports(&sim), 1, "only the first refusal counts");
    lock(&sim.answers).refused = None;
    pass(26.0).await;
    assert_eq!(sim.acts() - begun, 2, "the pause ends when it would have ended without new targets");
    pass(3.0).await;
    assert_eq!(sim.acts() - begun, 3);
}
