//! Tables and property tests of decisions about budgets and announcements.

mod reconcile;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::int_or_string::IntOrString;
use kinds::meta::OwnerRef;
use kinds::pod::{Disruption, Phase};
use kinds::pod_disruption_budget::{AllowedCondition, BudgetStatus};
use kinds::schema::{object_meta, pod as pod_fields, pod_disruption_budget};
use kinds::selector::{Requirement, Selector};
use kinds::wire::Put;
use kinds::{Decode, Interner, Kind, Pod, PodDisruptionBudget, Sections, Str, Time, Uid};
use proptest::prelude::*;
use runtime::store::Change;
use runtime::testing::CpuTime;
use serde_json::json;

use super::announced::{remaining, withdrawal};
use super::decide::{Bounds, bounds, disrupted, failed, healthy, needs_scale, required_labels, status, write_delay};
use super::keys::{Urgency, affected, affects_budgets, budget_key, is_announced, urgency};

const NOW: i64 = 1_000_000;

fn now() -> Timestamp {
    Timestamp::from_second(NOW).expect("in range")
}

fn decode<K: Kind>(metadata: u32, name: &str) -> K {
    let mut object = Vec::new();
    object.put_message(metadata, |meta| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::NAMESPACE, "ns");
        meta.put_str(object_meta::UID, name);
        meta.put_str(object_meta::RESOURCE_VERSION, "7");
        meta.put_int(object_meta::GENERATION, 3);
    });
    K::decode(&Decode { interner: Arc::default(), sections: Sections::default() }, &object).expect("well-formed")
}

fn budget(change: impl FnOnce(&mut PodDisruptionBudget)) -> PodDisruptionBudget {
    let mut budget = decode(pod_disruption_budget::METADATA, "pdb");
    change(&mut budget);
    budget
}

/// Returns a ready pod.
fn pod(name: &str, change: impl FnOnce(&mut Pod)) -> Arc<Pod> {
    let mut pod: Pod = decode(pod_fields::METADATA, name);
    pod.ready = true;
    pod.phase = Phase::Running;
    change(&mut pod);
    Arc::new(pod)
}

fn text(text: &str) -> IntOrString {
    IntOrString::Text(text.into())
}

#[test]
fn required_labels_of_a_selector_are_found() {
    let is =
        |key: &str, values: &[&str]| Requirement::In(key.into(), values.iter().map(|value| (*value).into()).collect());
    for (selector, expected) in [
        (Selector::Nothing, vec![]),
        (Selector::All(Default::default()), vec![]),
        (Selector::All(vec![is("app", &["web"]), Requirement::Exists("tier".into())].into()), vec!["app=web"]),
        (Selector::All(vec![is("app", &["web", "db"])].into()), vec![]),
        (Selector::All(vec![is("a", &["1"]), is("b", &["2"])].into()), vec!["a=1", "b=2"]),
        (Selector::of_labels(&Interner::default(), [("app", "web")]), vec!["app=web"]),
    ] {
        let found: Vec<String> =
            required_labels(&selector).iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(found, expected, "{selector:?}");
    }
}

#[test]
fn bounds_follow_from_the_budget() {
    let int = IntOrString::Int;
    let bound = |expected, desired| Ok(Bounds { expected, desired });
    for (min, max, count, scaled, expected) in [
        (None, None, 9, false, bound(0, 0)),
        (Some(int(3)), None, 5, false, bound(5, 3)),
        (Some(int(7)), None, 5, false, bound(5, 7)),
        (Some(text("30%")), None, 10, true, bound(10, 3)),
        (Some(text("67%")), None, 3, true, bound(3, 3)),
        (Some(text("28%")), None, 10, true, bound(10, 3)),
        (None, Some(int(1)), 10, true, bound(10, 9)),
        (None, Some(int(12)), 10, true, bound(10, 0)),
        (None, Some(text("25%")), 10, true, bound(10, 7)),
        (None, Some(text("100%")), 3, true, bound(3, 0)),
        (Some(int(2)), Some(int(1)), 10, true, bound(10, 9)),
    ] {
        let budget = budget(|budget| {
            budget.min_available = min;
            budget.max_unavailable = max;
        });
        assert_eq!(needs_scale(&budget), scaled, "{budget:?}");
        assert_eq!(bounds(&budget, count), expected, "{budget:?}");
    }
    let odd = budget(|budget| budget.min_available = Some(text("many")));
    assert!(bounds(&odd, 3).is_err_and(|why| why.contains("not a percentage")));
}

#[test]
fn granted_evictions_are_kept_until_the_pod_is_deleted_or_overdue() {
    let pods = [pod("a", |_| {}), pod("b", |_| {}), pod("c", |_| {}), pod("gone", |pod| pod.meta.deletion = Time(NOW))];
    let noted: Vec<(Str, Time)> = [("a", 60), ("b", 121), ("c", 100), ("gone", 5), ("never", 5)]
        .map(|(name, ago)| (name.into(), Time(NOW - ago)))
        .into();
    let found = disrupted(&noted, &pods, now());
    assert_eq!(found.pending, [("a".into(), Time(NOW - 60)), ("c".into(), Time(NOW - 100))]);
    assert_eq!(found.overdue.iter().map(|pod| &*pod.meta.name).collect::<Vec<_>>(), ["b"]);
    assert_eq!(found.recheck, Some(Duration::from_millis(20_001)));
    assert_eq!(healthy(&pods, &found.pending), 1, "only b is neither being evicted nor being deleted");
    assert_eq!(healthy(&[pod("a", |pod| pod.ready = false)], &[]), 0);
}

#[test]
fn pod_created_after_an_eviction_is_not_the_evicted_one() {
    let evicted = Time(NOW - 10);
    for (created, is_pending) in [(-60, true), (-1, true), (0, true), (1, false), (9, false)] {
        let pods = [pod("web-0", |pod| pod.meta.created = Time(evicted.0 + created))];
        let found = disrupted(&[("web-0".into(), evicted)], &pods, now());
        assert_eq!(!found.pending.is_empty(), is_pending, "created {created} s after the eviction");
        assert_eq!(healthy(&pods, &found.pending), i32::from(!is_pending));
        assert_eq!(found.recheck.is_some(), is_pending);
    }
    // A long time after the eviction, the new pod is not overdue either.
    let noted = [("web-0".into(), Time(NOW - 1000))];
    let found = disrupted(&noted, &[pod("web-0", |pod| pod.meta.created = Time(NOW - 900))], now());
    assert!(found.pending.is_empty() && found.overdue.is_empty());
}

#[test]
fn granted_evictions_are_grouped_within_seconds_when_there_are_many() {
    let pods: Vec<Arc<Pod>> = (0..20_000).map(|number| pod(&format!("pod-{number}"), |_| {})).collect();
    let noted: Vec<(Str, Time)> = pods.iter().rev().map(|pod| (pod.meta.name.clone(), Time(NOW - 1))).collect();
    let started = CpuTime::now();
    assert_eq!(disrupted(&noted, &pods, now()).pending, noted);
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

#[test]
fn allowed_disruptions_are_the_surplus_of_healthy_pods() {
    let empty = budget(|_| {});
    for (expected, desired, healthy, spare, reason) in [
        (3, 2, 3, 1, "SufficientPods"),
        (3, 2, 2, 0, "InsufficientPods"),
        (3, 2, 0, 0, "InsufficientPods"),
        (0, 0, 3, 0, "InsufficientPods"),
        (5, 0, 5, 5, "SufficientPods"),
    ] {
        let status = status(&empty, Bounds { expected, desired }, healthy, Vec::new(), now());
        assert_eq!(status.disruptions_allowed, spare, "{expected} {desired} {healthy}");
        assert_eq!(
            (status.expected_pods, status.desired_healthy, status.current_healthy),
            (expected, desired, healthy)
        );
        let allowed = status.allowed.expect("a condition");
        assert_eq!((&*allowed.reason, allowed.observed_generation, allowed.last_transition), (reason, 3, Time(NOW)));
    }
}

#[test]
fn counts_without_effect_are_delayed_and_allowed_disruptions_are_not() {
    let of = |budget: &PodDisruptionBudget, desired, expected, healthy| {
        status(budget, Bounds { desired, expected }, healthy, Vec::new(), now())
    };
    let new = budget(|_| {});
    let (immediately, delayed) = (0, 2);
    assert_eq!(write_delay(&new.status, &of(&new, 2, 4, 0)), Duration::ZERO, "the first status is written immediately");
    for (before, after, expected) in [
        ((4, 5, 1), (4, 5, 1), immediately),
        ((4, 5, 1), (4, 5, 2), delayed),
        ((4, 5, 3), (4, 5, 1), delayed),
        ((4, 5, 3), (4, 5, 4), immediately),
        ((4, 5, 4), (4, 5, 5), immediately),
        ((4, 5, 3), (4, 5, 5), immediately),
        ((4, 5, 5), (4, 5, 4), immediately),
        ((4, 5, 4), (4, 5, 3), immediately),
        ((2, 3, 0), (2, 4, 1), delayed),
        ((2, 3, 0), (3, 4, 0), immediately),
        ((3, 4, 3), (2, 4, 3), immediately),
    ] {
        let (before, after) = (of(&new, before.0, before.1, before.2), of(&new, after.0, after.1, after.2));
        assert_eq!(write_delay(&before, &after).as_secs(), expected, "{before:?} -> {after:?}");
    }
    let noted = BudgetStatus { disrupted_pods: vec![("a".into(), Time(NOW))], ..of(&new, 4, 5, 4) };
    assert_eq!(
        write_delay(&noted, &of(&new, 4, 5, 5)),
        Duration::ZERO,
        "an eviction whose pod is being deleted is no longer kept"
    );
}

#[test]
fn condition_time_changes_only_with_its_status() {
    let of = |was: &str| {
        let allowed = AllowedCondition { status: was.into(), last_transition: Time(5), ..AllowedCondition::default() };
        budget(|budget| budget.status.allowed = Some(allowed))
    };
    let bounds = Bounds { expected: 1, desired: 0 };
    for (was, since) in [("True", Time(5)), ("False", Time(NOW))] {
        let allowed = status(&of(was), bounds, 1, Vec::new(), now()).allowed.expect("a condition");
        assert_eq!(allowed.last_transition, since, "{was}");
    }
}

#[test]
fn budget_that_cannot_be_counted_allows_no_disruption_and_keeps_its_counts() {
    let known = BudgetStatus {
        observed_generation: 2,
        disrupted_pods: vec![("a".into(), Time(1))],
        disruptions_allowed: 4,
        current_healthy: 5,
        desired_healthy: 1,
        expected_pods: 5,
        allowed: None,
    };
    let failed = failed(&budget(|budget| budget.status = known.clone()), "why", now());
    let allowed = failed.allowed.clone().expect("a condition");
    assert_eq!((&*allowed.status, &*allowed.reason, &*allowed.message), ("False", "SyncFailed", "why"));
    assert_eq!(allowed.observed_generation, 2);
    assert_eq!(failed, BudgetStatus { disruptions_allowed: 0, allowed: failed.allowed.clone(), ..known });
}

#[test]
fn budget_is_reconciled_after_its_deletion_too() {
    let budget = Arc::new(budget(|_| {}));
    let one = Some(&budget);
    for (name, old, new) in [("created", None, one), ("changed", one, one), ("deleted", one, None)] {
        let key = budget_key(&Change { old, new });
        assert_eq!(key.map(|key| key.to_string()).as_deref(), Some("ns/pdb"), "{name}");
    }
}

#[test]
fn only_relevant_pod_changes_requeue_budgets() {
    let base = pod("a", |_| {});
    let interner = Interner::default();
    let owner = OwnerRef {
        api_version: "apps/v1".into(),
        kind: "ReplicaSet".into(),
        name: "web".into(),
        uid: Uid::parse("web"),
        controller: Some(true),
        block_owner_deletion: None,
    };
    for (new, expected) in [
        (Some(pod("a", |_| {})), false),
        (Some(pod("a", |pod| pod.restarts = 3)), false),
        (Some(pod("a", |pod| pod.ready = false)), true),
        (Some(pod("a", |pod| pod.meta.deletion = Time(NOW))), true),
        (Some(pod("a", |pod| pod.meta.labels = interner.labels(vec![("a".into(), "b".into())]))), true),
        (Some(pod("a", |pod| pod.meta.owners = interner.owners(&[owner]))), true),
        (None, true),
    ] {
        let change = Change { old: Some(&base), new: new.as_ref() };
        assert_eq!(affects_budgets(&change), expected, "{change:?}");
    }
}

/// The eviction API reads the status: the loss of a pod must lower the number there immediately.
#[test]
fn change_that_may_lower_the_allowed_disruptions_is_counted_immediately() {
    let interner = Interner::default();
    let labelled = |app: &str| {
        let labels = interner.labels(vec![("app".into(), app.into())]);
        move |edit: fn(&mut Pod)| {
            pod("a", |pod| {
                pod.meta.labels = labels.clone();
                edit(pod);
            })
        }
    };
    let (web, other) = (labelled("web"), labelled("other"));
    let selector = Selector::of_labels(&interner, [("app", "web")]);
    let unready: fn(&mut Pod) = |pod| pod.ready = false;
    let deleting: fn(&mut Pod) = |pod| pod.meta.deletion = Time(NOW);
    let as_is: fn(&mut Pod) = |_| {};
    for (old, new, expected) in [
        (Some(web(as_is)), Some(web(unready)), Some(Urgency::Immediate)),
        (Some(web(as_is)), Some(web(deleting)), Some(Urgency::Immediate)),
        (Some(web(as_is)), Some(other(as_is)), Some(Urgency::Immediate)),
        (Some(web(as_is)), None, Some(Urgency::Immediate)),
        (None, Some(web(unready)), Some(Urgency::Immediate)),
        (Some(other(as_is)), Some(web(as_is)), Some(Urgency::Immediate)),
        (Some(web(unready)), Some(web(as_is)), Some(Urgency::Coalesced)),
        (Some(web(deleting)), None, Some(Urgency::Coalesced)),
        (Some(web(unready)), None, Some(Urgency::Coalesced)),
        (Some(other(as_is)), Some(other(unready)), None),
        (None, Some(other(as_is)), None),
    ] {
        let change = Change { old: old.as_ref(), new: new.as_ref() };
        assert_eq!(urgency(&change, &selector), expected, "{change:?}");
    }
}

#[test]
fn change_of_a_pod_that_very_many_budgets_select_is_urgent_for_none() {
    let new = pod("a", |_| {});
    let change = Change { old: None, new: Some(&new) };
    for (selecting, others, expected) in
        [(1, 1000, Urgency::Immediate), (10, 0, Urgency::Immediate), (11, 0, Urgency::Coalesced)]
    {
        let with = |selector: &Selector| Arc::new(budget(|budget| budget.selector = selector.clone()));
        let mut budgets = vec![with(&Selector::All(Default::default())); selecting];
        budgets.extend(vec![with(&Selector::Nothing); others]);
        let found: Vec<Urgency> = affected(&change, &budgets).into_iter().map(|(_, urgency)| urgency).collect();
        assert_eq!(found, vec![expected; selecting], "{selecting} of {} budgets", budgets.len());
    }
}

#[test]
fn announcements_are_valid_for_two_minutes() {
    let disrupted_since = |ago: i64, by_kubelet: bool| {
        Some(Box::new(Disruption { evicted: false, target_since: Some(Time(NOW - ago)), by_kubelet }))
    };
    for (pod, expected) in [
        (pod("a", |_| {}), None),
        (pod("a", |pod| pod.disruption = disrupted_since(0, false)), Some(120)),
        (pod("a", |pod| pod.disruption = disrupted_since(119, false)), Some(1)),
        (pod("a", |pod| pod.disruption = disrupted_since(120, false)), Some(0)),
        (pod("a", |pod| pod.disruption = disrupted_since(9999, false)), Some(0)),
        (pod("a", |pod| pod.disruption = disrupted_since(9999, true)), None),
        (pod("a", |pod| pod.disruption = disrupted_since(-100, false)), Some(220)),
        (
            pod("a", |pod| {
                pod.disruption = disrupted_since(9999, false);
                pod.phase = Phase::Pending;
            }),
            Some(0),
        ),
        (
            pod("a", |pod| {
                pod.disruption = disrupted_since(9999, false);
                pod.phase = Phase::Failed;
            }),
            None,
        ),
        (
            pod("a", |pod| {
                pod.disruption = disrupted_since(9999, false);
                pod.meta.deletion = Time(NOW);
            }),
            None,
        ),
    ] {
        assert_eq!(remaining(&pod, now()), expected.map(Duration::from_secs), "{pod:?}");
        assert_eq!(is_announced(&pod), expected.is_some());
    }
    let in_a_thousand_years = pod("a", |pod| pod.disruption = disrupted_since(-32_000_000_000, false));
    assert!(remaining(&in_a_thousand_years, now()).is_some_and(|left| left > Duration::from_secs(1_000_000_000)));
    let patch = withdrawal(&pod("a", |_| {}), now());
    assert_eq!(patch["metadata"], json!({"uid": "a", "resourceVersion": "7"}));
    assert_eq!(patch["status"]["conditions"][0]["status"], "False");
}

proptest! {
    /// For any pods: after all allowed disruptions the required healthy pods remain, and granted evictions count as
    /// deleted already.
    #[test]
    fn allowed_disruptions_leave_the_required_healthy_pods(
        pods in prop::collection::vec((any::<bool>(), any::<bool>(), prop::option::of(0i64..300)), 0..20),
        min in 0i32..20,
        percent in prop::option::of(0u32..101),
    ) {
        let (mut there, mut noted) = (Vec::new(), Vec::new());
        for (at, (ready, deleting, granted)) in pods.into_iter().enumerate() {
            let name = at.to_string();
            noted.extend(granted.map(|ago| (Str::from(name.as_str()), Time(NOW - ago))));
            there.push(pod(&name, |pod| { pod.ready = ready; pod.meta.deletion = Time(i64::from(deleting)); }));
        }
        let value = percent.map_or(IntOrString::Int(min), |percent| text(&format!("{percent}%")));
        let budget = budget(|budget| budget.min_available = Some(value));
        let bounds = bounds(&budget, there.len() as i32).expect("well-formed");
        let found = disrupted(&noted, &there, now());
        let healthy = healthy(&there, &found.pending);
        let status = status(&budget, bounds, healthy, found.pending.clone(), now());
        let staying = there.iter().filter(|pod| pod.ready && !pod.meta.is_deleting()).count() as i32;
        prop_assert!(status.disruptions_allowed >= 0);
        prop_assert!(healthy <= staying);
        prop_assert!(status.disruptions_allowed == 0 || healthy - status.disruptions_allowed >= bounds.desired);
        prop_assert!(found.pending.len() + found.overdue.len() <= noted.len());
    }
}
