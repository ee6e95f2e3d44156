//! Decisions about a target and its autoscaler's status. Upstream: pkg/controller/podautoscaler, horizontal_test.go.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::horizontal_pod_autoscaler::{
    AutoscalerCondition, Behavior, Current, HorizontalPodAutoscaler, Metric, MetricId, MetricStatus, Rules, Select,
    Source, Target,
};
use kinds::meta::ObjectKey;
use kinds::schema::object_meta;
use kinds::selector::Selector;
use kinds::wire::Put;
use kinds::{Decode, Interner, Kind, Pod, Sections, Time};
use runtime::store::Change;
use runtime::testing::CpuTime;
use runtime::text::MAX_MESSAGE_BYTES;

use super::super::decide::{self, Draft, Gates, SCALED_TO_ZERO, SCALING_ACTIVE, ScaleSource};
use super::super::keys::relevant_key;
use super::super::overlap::{Overlaps, printed};
use super::super::pace::Memory;
use super::GATES;

fn context() -> Decode {
    Decode { interner: Arc::default(), sections: Sections::default() }
}

fn autoscaler(min: Option<i32>, max: i32, external: bool, zero: Option<bool>) -> HorizontalPodAutoscaler {
    let mut object = Vec::new();
    object.put_message(1, |meta| {
        meta.put_str(object_meta::NAME, "web");
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
    });
    let mut made = HorizontalPodAutoscaler::decode(&context(), &object).expect("well-formed");
    made.min_replicas = min;
    made.max_replicas = max;
    made.metrics = [if external { metric(Source::External(MetricId::default())) } else { cpu() }].into();
    made.status.conditions.extend(zero.map(|zero| AutoscalerCondition {
        kind: SCALED_TO_ZERO.into(),
        status: if zero { "True" } else { "False" }.into(),
        reason: "".into(),
        message: "".into(),
        last_transition: Time(1),
        observed_generation: None,
    }));
    made
}

fn metric(source: Source) -> Metric {
    let target = Target { average_utilization: Some(50), ..Target::default() };
    Metric { source, target }
}

fn cpu() -> Metric {
    metric(Source::Resource { name: "cpu".into() })
}

fn draft(autoscaler: &HorizontalPodAutoscaler) -> Draft {
    Draft::of(autoscaler, Timestamp::from_second(100).expect("in range"))
}

#[test]
fn long_message_of_a_condition_is_truncated() {
    let mut draft = draft(&autoscaler(None, 10, false, None));
    let hostile = "x".repeat(1 << 20);
    for _ in 0..2 {
        draft.set(SCALING_ACTIVE, false, "InvalidSelector", &hostile);
    }
    let lengths: Vec<usize> = draft.status.conditions.iter().map(|condition| condition.message.len()).collect();
    assert!(lengths.len() == 1 && lengths[0] < MAX_MESSAGE_BYTES + 4, "{lengths:?}");
}

#[test]
fn bounds_override_metrics_and_a_zero_set_by_a_user_disables_scaling() {
    let above = ScaleSource::Bound(10, "Current number of replicas above Spec.MaxReplicas");
    let below = ScaleSource::Bound(2, "Current number of replicas below Spec.MinReplicas");
    let off = Gates { scale_to_zero: false, ..GATES };
    for (case, min, external, zero, current, gates, expected) in [
        ("usual", Some(2), false, None, 5, GATES, ScaleSource::Metrics),
        ("above", Some(2), false, None, 11, GATES, above),
        ("below", Some(2), false, None, 1, GATES, below),
        ("zero by a user", None, false, None, 0, GATES, ScaleSource::Disabled),
        ("zero by a user after the controller scaled up", Some(0), true, Some(false), 0, GATES, ScaleSource::Disabled),
        ("zero by the controller", Some(0), true, Some(true), 0, GATES, ScaleSource::Metrics),
        (
            "zero by the controller, without a metric to scale up by",
            Some(0),
            false,
            Some(true),
            0,
            GATES,
            ScaleSource::Disabled,
        ),
        ("zero by the controller, no longer allowed", Some(1), false, Some(true), 0, GATES, ScaleSource::Metrics),
        ("zero by the controller, gate off", Some(0), true, Some(true), 0, off, ScaleSource::Disabled),
    ] {
        assert_eq!(decide::scale_source(&autoscaler(min, 10, external, zero), current, gates), expected, "{case}");
    }
    let to_zero = |min, external, gates| decide::sets_scaled_to_zero(&autoscaler(min, 10, external, None), 3, 0, gates);
    assert!(to_zero(Some(0), true, GATES));
    assert!(!to_zero(Some(0), false, GATES) && !to_zero(None, true, GATES) && !to_zero(Some(0), true, off));
}

#[test]
fn highest_proposal_counts_and_a_failed_metric_prevents_scaling_down() {
    let wants = |replicas| decide::proposal(&cpu(), Ok((replicas, Current::default())));
    let fails = || decide::proposal(&cpu(), Err("no metrics".to_owned()));
    let failed = "failed to get cpu resource metric value: failed to get cpu utilization: no metrics";
    for (case, proposals, expected, error, active) in [
        ("one", vec![wants(3)], Some(3), None, "ValidMetricFound"),
        ("the highest", vec![wants(3), wants(7), wants(5)], Some(7), None, "ValidMetricFound"),
        ("zero", vec![wants(0), wants(0)], Some(0), None, "ValidMetricFound"),
        ("all fail", vec![fails(), fails()], None, Some("2 invalid out of 2"), "FailedGetResourceMetric"),
        ("up in spite of a failure", vec![fails(), wants(7)], Some(7), Some("1 invalid out of 2"), "ValidMetricFound"),
        ("no change", vec![fails(), wants(5)], Some(5), Some("1 invalid out of 2"), "ValidMetricFound"),
        ("not down", vec![wants(2), fails()], None, Some("1 invalid out of 2"), "FailedGetResourceMetric"),
    ] {
        let object = autoscaler(None, 10, false, None);
        let mut draft = draft(&object);
        let count = proposals.len();
        let combined = decide::combine(proposals, 5, &mut draft);
        assert_eq!(combined.wanted.map(|(replicas, _)| replicas), expected, "{case}");
        let text = error.map(|counts| format!("invalid metrics ({counts}), first error is: {failed}"));
        assert_eq!(combined.error, text, "{case}");
        assert_eq!(combined.statuses.len(), count, "{case}");
        assert_eq!(&*draft.status.condition(SCALING_ACTIVE).expect("set").reason, active, "{case}");
        assert_eq!(error.is_some(), combined.statuses.contains(&MetricStatus::unknown()), "{case}");
    }
}

#[test]
fn tolerance_of_the_spec_replaces_the_default_in_its_direction() {
    let rules = |tolerance| Rules { window: None, select: Select::Max, policies: Box::default(), tolerance };
    let without_gate = Gates { configurable_tolerance: false, ..GATES };
    for (case, up, down, gates, expected) in [
        ("none", None, None, GATES, (0.1, 0.1)),
        ("up", Some(0.5), None, GATES, (0.5, 0.1)),
        ("down", None, Some(0.0), GATES, (0.1, 0.0)),
        ("both", Some(0.5), Some(0.2), GATES, (0.5, 0.2)),
        ("gate off", Some(0.5), Some(0.2), without_gate, (0.1, 0.1)),
    ] {
        let mut object = autoscaler(None, 10, false, None);
        object.behavior = Some(Box::new(Behavior { up: rules(up), down: rules(down) }));
        let tolerances = decide::tolerances(&object, 0.1, gates);
        assert_eq!((tolerances.up, tolerances.down), expected, "{case}");
    }
    let plain = decide::tolerances(&autoscaler(None, 10, false, None), 0.1, GATES);
    assert_eq!((plain.up, plain.down), (0.1, 0.1), "without a behavior");
}

#[test]
fn condition_time_changes_only_with_its_status() {
    let object = autoscaler(None, 10, false, Some(true));
    let mut draft = draft(&object);
    let time = |draft: &Draft| draft.status.condition(SCALED_TO_ZERO).map(|condition| condition.last_transition);
    draft.set(SCALED_TO_ZERO, true, "Other", "m");
    assert_eq!(time(&draft), Some(Time(1)));
    decide::set_scaled_to_zero(&mut draft, false, GATES);
    assert_eq!(time(&draft), Some(Time(100)));
    decide::set_scaled_to_zero(&mut draft, false, Gates { scale_to_zero: false, ..GATES });
    assert_eq!(time(&draft), None);
}

#[test]
fn decided_number_of_pods_has_a_reason() {
    for (case, min, zero, current, wanted, expected) in [
        ("up", None, None, 2, 3, (3, "cpu above target")),
        ("no change", None, None, 3, 3, (3, "")),
        ("down waits", None, None, 3, 1, (3, "All metrics below target")),
        ("back from zero", Some(0), Some(true), 0, 3, (3, "cpu above target")),
        ("zero is no longer allowed", Some(2), Some(true), 0, 0, (2, "")),
    ] {
        let object = autoscaler(min, 10, false, zero);
        let mut memory = Memory::default();
        let mut draft = draft(&object);
        memory.begin(current, Duration::ZERO);
        let settings = (Duration::from_secs(300), Duration::from_secs(1), GATES);
        let (replicas, reason) = decide::settle(&object, &mut memory, current, (wanted, "cpu"), &mut draft, settings);
        assert_eq!((replicas, reason.as_str()), expected, "{case}");
    }
}

fn pod(app: &str, interner: &Interner) -> Arc<Pod> {
    let mut object = Vec::new();
    object.put_message(1, |meta| {
        meta.put_str(object_meta::NAME, app);
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
    });
    let mut pod = Pod::decode(&context(), &object).expect("well-formed");
    pod.meta.labels = interner.labels(vec![("app".into(), app.into()), ("tier".into(), "front".into())]);
    Arc::new(pod)
}

#[test]
fn overlaps_are_found_by_any_selector_and_removed() {
    let (interner, overlaps) = (Interner::default(), Overlaps::default());
    let put = |name: &str, query: &str| {
        let selector = Selector::parse(&interner, query).expect("well-formed");
        overlaps.put(&ObjectKey::new("n", name), &Arc::new(selector));
    };
    let selecting = |app: &str| {
        let found = overlaps.selecting("n", &[pod(app, &interner)], 2);
        found.iter().map(|key| key.name.to_string()).collect::<Vec<_>>()
    };
    put("a", "app=web");
    put("b", "app=db");
    assert_eq!((selecting("web"), selecting("db")), (vec!["a".to_owned()], vec!["b".to_owned()]));
    put("c", "app in (web,cache)");
    put("d", "tier");
    assert_eq!(selecting("web"), ["a", "c"]);
    assert_eq!(selecting("db"), ["b", "d"]);
    put("e", "app=web");
    assert_eq!(selecting("web"), ["a", "c"], "two are enough to show that the selector is ambiguous");
    assert_eq!(overlaps.selecting("n", &[pod("web", &interner)], usize::MAX).len(), 4, "without the gate");
    overlaps.forget(&ObjectKey::new("n", "e"));
    put("a", "app=gone");
    overlaps.forget(&ObjectKey::new("n", "d"));
    assert_eq!(selecting("web"), ["c"]);
    assert!(overlaps.selecting("other", &[pod("web", &interner)], 2).is_empty());
    assert_eq!(printed(&[ObjectKey::new("n", "a"), ObjectKey::new("n", "b")]), "[{a n} {b n}]");
}

#[test]
fn many_autoscalers_of_many_pods_are_compared_in_time() {
    let (interner, overlaps) = (Interner::default(), Overlaps::default());
    let pods: Vec<Arc<Pod>> = (0..8_000)
        .map(|number| {
            let mut pod = (*pod("web", &interner)).clone();
            let name = format!("web-{number}");
            pod.meta.labels = interner.labels(vec![("app".into(), "web".into()), ("pod".into(), name.as_str().into())]);
            Arc::new(pod)
        })
        .collect();
    for number in 0..4_000 {
        // Half of them select all pods, the others none.
        let other = if number % 2 == 0 { ",tier=back" } else { "" };
        let selector = Selector::parse(&interner, &format!("app=web{other}")).expect("well-formed");
        overlaps.put(&ObjectKey::new("n", format!("a-{number:04}").as_str()), &Arc::new(selector));
    }
    let started = CpuTime::now();
    let found = overlaps.selecting("n", &pods, 2);
    assert_eq!(found, [ObjectKey::new("n", "a-0001"), ObjectKey::new("n", "a-0003")]);
    // A comparison of each autoscaler with each pod would take many times as long.
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn spec_change_is_reconciled_immediately_and_status_change_is_not() {
    let old = Arc::new(autoscaler(None, 10, false, None));
    let mut edited = (*old).clone();
    edited.meta.generation += 1;
    let edited = Arc::new(edited);
    for (case, old, new, generation, expected) in [
        ("new", None, Some(&old), true, true),
        ("deleted", Some(&old), None, true, true),
        ("status", Some(&old), Some(&old), true, false),
        ("spec", Some(&old), Some(&edited), true, true),
        ("spec, gate off", Some(&old), Some(&edited), false, false),
    ] {
        assert_eq!(relevant_key(&Change { old, new }, generation).is_some(), expected, "{case}");
    }
}

#[test]
fn scaled_to_zero_is_cleared_while_the_target_has_pods() {
    let rows = [
        ("announced, and another client scaled up", 2, Some(true), Some("False")),
        ("scaled to zero", 0, Some(true), Some("True")),
        ("never announced", 2, None, None),
        ("withdrawn before", 2, Some(false), Some("False")),
    ];
    for (name, current, announced, expected) in rows {
        let autoscaler = autoscaler(Some(0), 5, true, announced);
        let mut draft = draft(&autoscaler);
        decide::clear_scaled_to_zero(&autoscaler, current, &mut draft, GATES);
        let condition = draft.status.condition(SCALED_TO_ZERO).map(|condition| &*condition.status);
        assert_eq!(condition, expected, "{name}");
        // If the user scales to zero later, that does not count as this controller's decision.
        let mut after = autoscaler.clone();
        after.status = draft.status.clone();
        let is_own = matches!(decide::scale_source(&after, 0, GATES), ScaleSource::Metrics);
        assert_eq!(is_own, expected == Some("True"), "{name}");
    }
}
