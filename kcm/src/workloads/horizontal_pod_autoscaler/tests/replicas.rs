//! Numbers of pods that metrics propose (cases of pkg/controller/podautoscaler, replica_calculator_test.go).

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::pod::{Part, PartRequests, Phase, Readiness, Requests};
use kinds::schema::object_meta;
use kinds::wire::Put;
use kinds::{Decode, Kind, Pod, Sections, Time};
use serde_json::json;

use super::super::metrics_api;
use super::super::replicas::{
    Goal, Measurement, Sample, Samples, StartupPeriods, Tolerances, replicas_for_pod_metric,
    replicas_for_target_per_pod, replicas_for_target_value,
};

const NOW: i64 = 1_000_000;
const TOLERANCES: Tolerances = Tolerances { down: 0.1, up: 0.1 };
const STARTUP_PERIODS: StartupPeriods =
    StartupPeriods { cpu_initialization: Duration::from_secs(120), initial_readiness: Duration::from_secs(10) };

/// Returns a pod that became ready an hour ago, with a container that requests this amount of CPU.
fn pod(number: usize, request: i64) -> Pod {
    let mut object = Vec::new();
    object.put_message(1, |meta| {
        meta.put_str(object_meta::NAME, &format!("pod-{number}"));
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
    });
    let context = Decode { interner: Arc::default(), sections: Sections::default() };
    let main = PartRequests { part: Part::Container, name: "main".into(), resources: [("cpu".into(), request)].into() };
    Pod {
        phase: Phase::Running,
        ready: true,
        ready_since: Time(NOW - 3600),
        requests: Some(Box::new(Requests {
            started: Time(NOW - 7200),
            readiness: Readiness::Other,
            parts: [main].into(),
        })),
        ..Pod::decode(&context, &object).expect("well-formed")
    }
}

/// The state of a pod in a row of a table.
#[derive(Clone, Copy)]
enum PodState {
    Ready,
    /// Started two hours ago, and never ready since.
    Unready,
    /// Started a minute ago, and not ready.
    Starting,
    /// Started a minute ago and is ready; its sample began before it was ready.
    Hot,
    Pending,
    Failed,
    Deleting,
}
use PodState::{Deleting, Failed, Hot, Pending, Ready, Starting, Unready};

fn pods(states: &[PodState], request: i64) -> Vec<Arc<Pod>> {
    let in_state = |(number, state): (usize, &PodState)| {
        let mut pod = pod(number, request);
        let requests = pod.requests.as_mut().expect("there");
        match state {
            Ready => {}
            Unready => {
                requests.readiness = Readiness::Unready;
                pod.ready_since = requests.started;
            }
            Starting => {
                requests.started = Time(NOW - 60);
                requests.readiness = Readiness::Unready;
            }
            Hot => {
                requests.started = Time(NOW - 60);
                pod.ready_since = Time(NOW - 30);
            }
            Pending => pod.phase = Phase::Pending,
            Failed => pod.phase = Phase::Failed,
            Deleting => pod.meta.deletion = Time(NOW),
        }
        Arc::new(pod)
    };
    states.iter().enumerate().map(in_state).collect()
}

/// Samples of the first pods; `None` where one is missing.
fn samples(values: &[Option<i64>]) -> Samples {
    let sample = |(number, value): (usize, &Option<i64>)| {
        let sample = Sample { value: (*value)?, time: Time(NOW - 10), window: Duration::from_secs(60) };
        Some((format!("pod-{number}"), sample))
    };
    values.iter().enumerate().filter_map(sample).collect()
}

fn now() -> Timestamp {
    Timestamp::from_second(NOW).expect("in range")
}

fn utilization(percent: i32) -> Goal<'static> {
    Goal::Utilization { percent, resource: "cpu", container: "", pod_level: true }
}

fn measured(states: &[PodState], values: &[Option<i64>], current: usize, goal: Goal<'_>, cpu: bool) -> Measurement {
    let current = i32::try_from(current).expect("few");
    replicas_for_pod_metric(
        &pods(states, 1000),
        samples(values),
        current,
        (goal, cpu),
        TOLERANCES,
        (STARTUP_PERIODS, now()),
    )
}

#[test]
fn cpu_utilization_scales() {
    let all = |values: &[i64]| values.iter().map(|value| Some(*value)).collect::<Vec<_>>();
    for (case, states, values, percent, expected, measured_value) in [
        ("up", vec![Ready; 3], all(&[300, 500, 700]), 30, 5, 50),
        ("up, one unready", vec![Unready, Ready, Ready], all(&[300, 500, 700]), 30, 4, 60),
        ("up, one hot", vec![Ready, Ready, Hot], all(&[300, 500, 700]), 30, 3, 40),
        ("up, one starting", vec![Ready, Ready, Starting], all(&[300, 500, 700]), 30, 3, 40),
        ("up, pending pods suffice", vec![Ready, Pending, Pending], all(&[500]), 30, 3, 50),
        ("up, failed and deleting ones don't count", vec![Ready, Ready, Failed, Deleting], all(&[500, 700]), 30, 4, 60),
        ("down", vec![Ready; 5], all(&[100, 300, 500, 250, 250]), 50, 3, 28),
        ("within the tolerance", vec![Ready; 3], all(&[900, 1000, 1100]), 100, 3, 100),
        ("just within it", vec![Ready; 3], all(&[1090, 1090, 1090]), 100, 3, 109),
        ("just beyond it", vec![Ready; 3], all(&[1110, 1110, 1110]), 100, 4, 111),
        ("missing: less scaling down", vec![Ready; 3], vec![Some(400), Some(950), None], 100, 3, 67),
        ("missing: still scaling up", vec![Ready; 2], vec![Some(1000), None], 20, 5, 100),
        ("missing: no scaling up", vec![Ready; 2], vec![Some(1000), None], 100, 2, 100),
        ("missing: down, target above 100 %", vec![Ready; 4], vec![Some(600), Some(600), Some(600), None], 200, 2, 60),
        ("unready and missing: no scaling", vec![Ready, Unready, Ready], vec![Some(1200), Some(0), None], 100, 3, 120),
    ] {
        let (replicas, current) = measured(&states, &values, states.len(), utilization(percent), true).expect(case);
        assert_eq!((replicas, current.average_utilization), (expected, Some(measured_value)), "{case}");
    }
}

#[test]
fn average_values_scale_like_utilization() {
    for (case, states, values, each, expected, measured_value) in [
        ("up", vec![Ready; 3], vec![Some(20_000), Some(10_000), Some(30_000)], 15_000, 4, 20_000),
        (
            "unready pods count",
            vec![Unready, Ready, Unready],
            vec![Some(50_000), Some(15_000), Some(30_000)],
            15_000,
            7,
            31_666,
        ),
        ("down", vec![Ready; 5], vec![Some(12_000); 5], 20_000, 3, 12_000),
        ("tolerated", vec![Ready; 3], vec![Some(20_000), Some(21_000), Some(21_000)], 20_000, 3, 20_666),
        ("missing: less scaling down", vec![Ready; 3], vec![Some(18_000), Some(2_000), None], 20_000, 2, 10_000),
    ] {
        let (replicas, current) = measured(&states, &values, states.len(), Goal::Amount(each), false).expect(case);
        assert_eq!((replicas, current.average_value), (expected, Some(measured_value)), "{case}");
    }
}

#[test]
fn missing_input_is_an_error_with_its_reason() {
    for (case, states, values, goal, expected) in [
        ("no pods", vec![], vec![], utilization(50), "no pods returned by selector while calculating replica count"),
        (
            "only unready ones",
            vec![Starting, Pending],
            vec![Some(1)],
            utilization(50),
            "did not receive metrics for targeted pods (pods might be unready)",
        ),
        (
            "no request",
            vec![Ready],
            vec![Some(1)],
            Goal::Utilization { percent: 50, resource: "memory", container: "", pod_level: true },
            "missing request for memory in container main of Pod pod-0",
        ),
        (
            "no such container",
            vec![Ready],
            vec![Some(1)],
            Goal::Utilization { percent: 50, resource: "cpu", container: "other", pod_level: true },
            "container other not found in Pod pod-0",
        ),
    ] {
        assert_eq!(measured(&states, &values, states.len(), goal, true), Err(expected.to_owned()), "{case}");
    }
    let nothing = replicas_for_pod_metric(
        &pods(&[Ready], 0),
        samples(&[Some(1)]),
        1,
        (utilization(5), true),
        TOLERANCES,
        (STARTUP_PERIODS, now()),
    );
    assert_eq!(nothing, Err("no metrics returned matched known pods".to_owned()));
}

#[test]
fn pod_level_requests_override_container_requests() {
    let requests = |part: Part, name: &str, cpu: i64| PartRequests {
        part,
        name: name.into(),
        resources: [("cpu".into(), cpu)].into(),
    };
    let pod_with = |parts: Vec<PartRequests>| {
        let mut pod = pod(0, 0);
        pod.requests.as_mut().expect("there").parts = parts.into();
        vec![Arc::new(pod)]
    };
    let (main, side) = (requests(Part::Container, "main", 100), requests(Part::Sidecar, "side", 20));
    let (init, whole, extra) =
        (requests(Part::Init, "init", 900), requests(Part::Pod, "", 500), requests(Part::Overhead, "", 7));
    for (parts, container, pod_level, expected) in [
        (vec![main.clone(), side.clone()], "", true, 120),
        (vec![main.clone(), side.clone(), init.clone()], "", true, 120),
        (vec![main.clone(), side.clone(), whole.clone()], "", true, 500),
        (vec![main.clone(), side.clone(), whole.clone(), extra], "", true, 507),
        (vec![main.clone(), side.clone(), whole.clone()], "", false, 120),
        (vec![main, side, whole, init], "side", true, 20),
    ] {
        let pods = pod_with(parts);
        let found = super::super::requests::of_pods(&pods, container, "cpu", pod_level).expect("requests");
        assert_eq!(found["pod-0"], expected, "{container} {pod_level}");
    }
}

#[test]
fn object_values_and_averages_scale() {
    let ready = |count: usize| move || pods(&vec![Ready; count], 0);
    for (value, target, replicas, found, expected) in [
        (20_000, 15_000, 3, 3, Ok(4)),
        (20_000, 20_001, 3, 3, Ok(3)),
        (0, 15_000, 3, 3, Ok(0)),
        (1, 15_000, 0, 0, Ok(1)),
        (40_000, 15_000, 0, 0, Ok(3)),
        (0, 15_000, 0, 0, Ok(0)),
        (i64::MAX, 1, 3, 3, Ok(i32::MAX)),
        (
            20_000,
            15_000,
            3,
            0,
            Err("unable to calculate ready pods: no pods returned by selector while calculating replica count"
                .to_owned()),
        ),
    ] {
        let measured =
            replicas_for_target_value(value, target, replicas, TOLERANCES, ready(found)).map(|(replicas, _)| replicas);
        assert_eq!(measured, expected, "{value} of {target}");
    }
    for (value, each, existing, expected, share) in [
        (20_000, 5_000, 3, 4, 6_667),
        (8_600, 5_000, 2, 2, 4_300),
        (9_900, 5_000, 2, 2, 4_950),
        (30_000, 10_000, 0, 3, 30_000),
        (0, 10_000, 4, 0, 0),
        (i64::MAX, 1, 2, i32::MAX, i64::MAX),
        (-5_000, 1_000, 2, -5, -2_500),
    ] {
        let (replicas, current) = replicas_for_target_per_pod(value, each, existing, TOLERANCES);
        assert_eq!((replicas, current.average_value), (expected, Some(share)), "{value} by {each}");
    }
    let own = Tolerances { down: 0.0, up: 0.5 };
    assert_eq!(
        (replicas_for_target_per_pod(14, 10, 1, own).0, replicas_for_target_per_pod(9, 10, 2, own).0),
        (1, 1),
        "each direction has its own tolerance"
    );
}

#[test]
fn metric_responses_are_parsed_into_thousandths() {
    let container = |name: &str, cpu: &str| json!({"name": name, "usage": {"cpu": cpu}});
    let list = json!({"items": [
        {"metadata": {"name": "a"}, "timestamp": "1970-01-01T00:01:40Z", "window": "1m0s",
            "containers": [container("main", "100m"), container("side", "1500u")]},
        {"metadata": {"name": "b"}, "containers": [container("main", "1"), {"name": "side", "usage": {}}]},
        {"metadata": {"name": "c"}, "containers": []},
    ]});
    let all = metrics_api::resource_samples(&list, "cpu", "").expect("values");
    assert_eq!(all.len(), 1, "a pod with a missing container is left out");
    assert_eq!(all["a"], Sample { value: 102, time: Time(100), window: Duration::from_secs(60) });
    let main = metrics_api::resource_samples(&list, "cpu", "main").expect("values");
    assert_eq!((main["a"].value, main["b"].value, main.len()), (100, 1000, 2));
    assert!(metrics_api::resource_samples(&json!({"items": []}), "cpu", "").is_err());
    let custom = json!({"items": [{"describedObject": {"name": "a"}, "value": "5", "window": 7}]});
    assert_eq!(metrics_api::pod_samples(&custom).expect("values")["a"].window, Duration::from_secs(7));
    assert_eq!(metrics_api::object_value(&custom), Ok(5000));
    let two = json!({"items": [{"value": "1"}, {"value": "250m"}]});
    assert!(metrics_api::object_value(&two).expect_err("two").contains("2 results"));
    assert_eq!(metrics_api::external_values(&two), Ok(vec![1000, 250]));
    let versions = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(metrics_api::custom_version(&versions(&["v9", "v1beta2", "v1beta1"])), Ok("v1beta2"));
    assert!(metrics_api::custom_version(&versions(&["v9"])).is_err() && metrics_api::custom_version(&[]).is_err());
}
