//! Tables of tolerated times, and countdowns under random changes.

use std::sync::Arc;
use std::time::Duration;

use kinds::schema::{node as n, node_spec, object_meta, pod, pod_spec, taint, toleration};
use kinds::wire::Put;
use kinds::{Decode, Kind, Node, Pod};
use proptest::prelude::*;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::Change;
use runtime::testing::{deliver, deliver_deletion, filled_store};
use tokio::time::Instant;

use super::countdown::{Countdowns, Stage};
use super::decide::{Decision, ToleratedTime, decide, no_execute_taints, tolerated_time};
use super::keys::{node_with_changed_taints, relevant_pod, subscribe};
use crate::pods::indexes::by_node;

/// Key and effect of a taint.
type Taints<'a> = &'a [(&'a str, &'a str)];
/// Key and seconds of a toleration; an empty key tolerates everything.
type Tolerations<'a> = &'a [(&'a str, Option<i64>)];

pub(super) fn context() -> Decode {
    Decode { interner: Arc::default(), sections: Pod::TOLERATIONS }
}

/// Returns the encoded node `a`.
pub(super) fn encoded_node(taints: Taints<'_>) -> Vec<u8> {
    let mut object = Vec::new();
    object.put_message(n::METADATA, |meta| {
        meta.put_str(object_meta::NAME, "a");
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
    });
    object.put_message(n::SPEC, |spec| {
        for (key, effect) in taints {
            spec.put_message(node_spec::TAINTS, |message| {
                message.put_str(taint::KEY, key);
                message.put_str(taint::EFFECT, effect);
            });
        }
    });
    object
}

fn node(taints: Taints<'_>) -> Arc<Node> {
    Arc::new(Node::decode(&context(), &encoded_node(taints)).expect("well-formed"))
}

fn on(node: &str, tolerations: Tolerations<'_>) -> Arc<Pod> {
    let mut object = Vec::new();
    object.put_message(pod::METADATA, |meta| {
        meta.put_str(object_meta::NAME, "p");
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
    });
    object.put_message(pod::SPEC, |spec| {
        spec.put_str(pod_spec::NODE_NAME, node);
        for (key, seconds) in tolerations {
            spec.put_message(pod_spec::TOLERATIONS, |message| {
                message.put_str(toleration::KEY, key);
                message.put_str(toleration::OPERATOR, "Exists");
                if let Some(seconds) = seconds {
                    message.put_int(toleration::TOLERATION_SECONDS, *seconds);
                }
            });
        }
    });
    Arc::new(Pod::decode(&context(), &object).expect("well-formed"))
}

fn tolerated(taints: Taints<'_>, tolerations: Tolerations<'_>) -> ToleratedTime {
    tolerated_time(no_execute_taints(&node(taints).taints), on("a", tolerations).tolerations.as_ref(), false)
}

#[test]
fn shortest_toleration_counts() {
    let seconds = |seconds| ToleratedTime::For(Duration::from_secs(seconds));
    for (taints, tolerations, expected) in [
        (&[][..], &[][..], ToleratedTime::Always),
        (&[("k", "NoSchedule")], &[], ToleratedTime::Always),
        (&[("k", "NoExecute")], &[], ToleratedTime::Never),
        (&[("k", "NoExecute")], &[("k", None)], ToleratedTime::Always),
        (&[("k", "NoExecute")], &[("", None)], ToleratedTime::Always),
        (&[("k", "NoExecute")], &[("k", Some(5))], seconds(5)),
        (&[("k", "NoExecute")], &[("k", Some(0))], seconds(0)),
        (&[("k", "NoExecute")], &[("k", Some(-7))], seconds(0)),
        // The first toleration that matches a taint counts, not the longest.
        (&[("k", "NoExecute")], &[("k", Some(5)), ("k", Some(1))], seconds(5)),
        (&[("k", "NoExecute"), ("l", "NoExecute")], &[("k", Some(5))], ToleratedTime::Never),
        (&[("k", "NoExecute"), ("l", "NoExecute")], &[("k", Some(5)), ("l", Some(3))], seconds(3)),
        (&[("k", "NoExecute"), ("l", "NoExecute")], &[("k", Some(5)), ("l", None)], seconds(5)),
        (&[("k", "NoExecute"), ("l", "NoExecute")], &[("", Some(9))], seconds(9)),
    ] {
        assert_eq!(tolerated(taints, tolerations), expected, "{taints:?} {tolerations:?}");
    }
}

#[test]
fn running_countdown_is_not_changed_by_another_time() {
    let now = Instant::now();
    let at = |seconds| now + Duration::from_secs(seconds);
    let time = |seconds| ToleratedTime::For(Duration::from_secs(seconds));
    for (tolerated_time, running, expected) in [
        (time(5), None, Decision::Wait(at(5))),
        (time(0), None, Decision::Evict),
        (time(50), Some(Stage::Until(at(5))), Decision::Wait(at(5))),
        (time(1), Some(Stage::Until(at(5))), Decision::Wait(at(5))),
        (time(0), Some(Stage::Until(at(5))), Decision::Wait(at(5))),
        (time(50), Some(Stage::Until(now)), Decision::Evict),
        (time(50), Some(Stage::Announced(now)), Decision::Evict),
        (ToleratedTime::Never, Some(Stage::Until(at(5))), Decision::Evict),
        (ToleratedTime::Always, Some(Stage::Until(at(5))), Decision::Stay),
        (ToleratedTime::Always, Some(Stage::Announced(now)), Decision::Stay),
        (ToleratedTime::For(Duration::MAX), None, Decision::Stay),
    ] {
        assert_eq!(decide(tolerated_time, running.as_ref(), now), expected, "{tolerated_time:?} {running:?}");
    }
}

#[test]
fn pod_stays_when_its_tolerated_time_exceeds_the_range_of_durations() {
    // Multiplied by 10^9 and wrapped to 64 bits, the fourth value is 0.29 s.
    let limit = 9_223_372_036_i64;
    for seconds in [limit, limit + 1, 18_446_744_073, 18_446_744_074, i64::MAX / 1_000, i64::MAX - 1, i64::MAX] {
        let time = tolerated(&[("k", "NoExecute")], &[("k", Some(seconds))]);
        let now = Instant::now();
        let decision = decide(time, None, now);
        match decision {
            Decision::Wait(end) => {
                assert!(end - now >= Duration::from_secs(limit as u64), "{seconds} s: {decision:?}");
                assert_eq!(decide(time, Some(&Stage::Until(end)), now), decision, "{seconds} s");
            }
            Decision::Stay => {}
            Decision::Evict => panic!("{seconds} s: evicted"),
        }
        let shorter = tolerated(&[("k", "NoExecute"), ("l", "NoExecute")], &[("k", Some(seconds)), ("l", Some(5))]);
        assert_eq!(shorter, ToleratedTime::For(Duration::from_secs(5)), "{seconds} s");
    }
}

#[test]
fn only_relevant_changes_are_reconciled() {
    let tainted = node(&[("k", "NoExecute")]);
    for (old, new, expected) in [
        (None, Some(&tainted), true),
        (None, Some(&node(&[])), false),
        (None, Some(&node(&[("k", "NoSchedule")])), false),
        (Some(&tainted), Some(&node(&[("l", "NoExecute")])), true),
        (Some(&tainted), Some(&node(&[])), true),
        (Some(&tainted), Some(&tainted), false),
        (Some(&tainted), Some(&node(&[("k", "NoExecute"), ("k", "NoSchedule")])), false),
        (Some(&tainted), None, false),
    ] {
        assert_eq!(node_with_changed_taints(&Change { old, new }).is_some(), expected, "{old:?} {new:?}");
    }
    let pod = on("a", &[("k", Some(5))]);
    for (old, new, expected) in [
        (None, Some(&pod), true),
        (Some(&pod), None, true),
        (Some(&pod), Some(&pod), false),
        (Some(&pod), Some(&on("a", &[("k", Some(6))])), true),
        (Some(&on("", &[("k", Some(5))])), Some(&pod), true),
    ] {
        assert_eq!(relevant_pod(&Change { old, new }).is_some(), expected, "{old:?} {new:?}");
    }
}

#[test]
fn new_node_ends_the_countdowns_of_the_deleted_one() {
    for (is_running, expected) in [(false, 0), (true, 1)] {
        let pod = on("a", &[("k", Some(300))]);
        let nodes = Arc::new(filled_store(context(), vec![], [(*node(&[("k", "NoExecute")])).clone()]));
        let pods = Arc::new(filled_store(context(), vec![by_node()], [(*pod).clone()]));
        let (queue, countdowns) = (Queue::new(QueueOptions::named("test")), Arc::<Countdowns>::default());
        subscribe(&nodes, &pods, &queue, &countdowns);
        if is_running {
            countdowns.set(&pod.meta.key(), &pod.meta.uid, Stage::Until(Instant::now() + Duration::from_secs(300)));
        }
        deliver_deletion(&nodes, &node(&[]).meta.key());
        assert_eq!(queue.len(), 0, "the deletion of a node changes no countdown");
        deliver(&nodes, (*node(&[])).clone());
        assert_eq!(queue.len(), expected, "with a countdown: {is_running}");
    }
}

proptest! {
    /// For any changes of taints and tolerations: a pod that tolerates its taints forever is never deleted, one that
    /// tolerates them for a time stays at least for the time that it tolerated when its countdown began, and one that
    /// does not tolerate them is evicted immediately.
    #[test]
    fn no_pod_is_evicted_too_early(steps in proptest::collection::vec((0u64..30, 0u8..6), 1..40)) {
        let begun = Instant::now();
        let (mut now, mut running): (Instant, Option<Stage>) = (begun, None);
        let mut due: Option<Instant> = None;
        for (passed, what) in steps {
            now += Duration::from_secs(passed);
            let tolerated_time = match what {
                0 => ToleratedTime::Always,
                1 => ToleratedTime::Never,
                seconds => ToleratedTime::For(Duration::from_secs(u64::from(seconds) * 10)),
            };
            let decision = decide(tolerated_time, running.as_ref(), now);
            match (tolerated_time, decision) {
                (ToleratedTime::Always, decision) => {
                    prop_assert_eq!(decision, Decision::Stay);
                    (running, due) = (None, None);
                }
                (ToleratedTime::Never, decision) => {
                    prop_assert_eq!(decision, Decision::Evict);
                    (running, due) = (None, None);
                }
                (ToleratedTime::For(time), Decision::Wait(until)) => {
                    prop_assert!(until > now);
                    prop_assert_eq!(until, *due.get_or_insert(now + time));
                    running = Some(Stage::Until(until));
                }
                (ToleratedTime::For(_), Decision::Evict) => {
                    prop_assert!(due.is_some_and(|due| due <= now), "too early");
                    (running, due) = (None, None);
                }
                (_, Decision::Stay) => prop_assert!(false, "a pod with a finite toleration stays forever"),
            }
        }
    }
}
