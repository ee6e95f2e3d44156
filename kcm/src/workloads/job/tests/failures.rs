//! Failed pods: the time of their end, the failures of their index, and the rules that match them.

use std::collections::HashSet;
use std::sync::Arc;

use kinds::job::{Action, ExitCodes, FailurePolicy, FailureRule, RuleCondition};
use kinds::pod::Phase;
use kinds::{Pod, Time};

use super::builders::{NOW, a_job, a_pod, now, view, with};
use crate::workloads::job::backoff::{finished_at, index_failures, remaining_of_index};
use crate::workloads::job::policy::failure_verdict;

fn failed(change: impl FnOnce(&mut Pod)) -> Pod {
    let mut pod = a_pod("p", Phase::Failed, Some(0));
    change(&mut pod);
    pod
}

fn ending(pod: &mut Pod) -> &mut kinds::pod::Ending {
    pod.ending.as_mut().expect("an ending")
}

#[test]
fn time_of_the_end_is_that_of_the_containers_else_the_deletion_else_the_creation() {
    for (name, pod, expected) in [
        ("containers ended", failed(|pod| ending(pod).finished = Time(NOW - 7)), NOW - 7),
        (
            "containers ended, being deleted",
            failed(|pod| {
                ending(pod).finished = Time(NOW - 7);
                pod.meta.deletion = Time(NOW);
            }),
            NOW - 7,
        ),
        ("being deleted", failed(|pod| pod.meta.deletion = Time(NOW)), NOW),
        (
            "being deleted with grace",
            failed(|pod| {
                pod.meta.deletion = Time(NOW);
                ending(pod).grace = 30;
            }),
            NOW - 30,
        ),
        ("nothing known", failed(|_| {}), NOW - 1000),
    ] {
        assert_eq!(finished_at(&pod), Time(expected), "{name}");
    }
}

#[test]
fn wait_of_an_index_doubles_with_its_failures_counted_or_ignored() {
    for (name, counted, ignored, ago, expected) in [
        ("first failure", 0, 0, 0, 10),
        ("first failure a while ago", 0, 0, 4, 6),
        ("first failure long ago", 0, 0, 11, 0),
        ("third failure", 2, 0, 0, 40),
        ("one counted, one ignored", 1, 1, 0, 40),
        ("many", 1000, 0, 0, 600),
        ("the maximum", i32::MAX, i32::MAX, 0, 600),
    ] {
        let pod = failed(|pod| {
            let ending = ending(pod);
            ending.failures = counted;
            ending.ignored_failures = ignored;
            ending.finished = Time(NOW - ago);
        });
        assert_eq!(remaining_of_index(&pod, now()).as_secs(), expected, "{name}");
        assert_eq!(index_failures(&pod), counted.saturating_add(ignored), "{name}");
    }
}

#[test]
fn rule_matches_exit_codes_and_conditions() {
    let codes = |container: Option<&str>, within, values: &[i32]| {
        RuleCondition::ExitCodes(ExitCodes { container: container.map(Into::into), within, values: values.to_vec() })
    };
    let condition = |kind: &str, status: &str| RuleCondition::Conditions(vec![(kind.into(), status.into())]);
    let pod = failed(|pod| {
        let ending = ending(pod);
        ending.exit_codes = vec![("main".into(), -1), ("side".into(), 2), ("init".into(), 5)];
        ending.conditions = vec![("DisruptionTarget".into(), "True".into()), ("Ready".into(), "False".into())];
    });
    for (name, on, expected) in [
        ("exit code", codes(None, Some(true), &[1, 2]), true),
        ("negative exit code", codes(None, Some(true), &[-1]), true),
        ("of another container", codes(Some("main"), Some(true), &[2]), false),
        ("of this container", codes(Some("side"), Some(true), &[2]), true),
        ("of an init container", codes(Some("init"), Some(true), &[5]), true),
        ("of a container that does not exist", codes(Some("none"), Some(false), &[2]), false),
        ("not in", codes(None, Some(false), &[2]), true),
        ("not in, all listed", codes(None, Some(false), &[-1, 2, 5]), false),
        ("not zero", codes(None, Some(false), &[0]), true),
        ("unknown operator", codes(None, None, &[2]), false),
        ("condition", condition("DisruptionTarget", "True"), true),
        ("condition with the status False", condition("Ready", "False"), true),
        ("condition with another status", condition("DisruptionTarget", "Unknown"), false),
        ("no such condition", condition("ResourceLimitExceeded", "True"), false),
    ] {
        for action in [Action::FailJob, Action::FailIndex, Action::Ignore, Action::Count] {
            let policy = FailurePolicy { rules: vec![FailureRule { action, on: on.clone() }] };
            let verdict = failure_verdict(Some(&policy), &pod);
            assert_eq!(verdict.action, expected.then_some(action), "{name}");
            assert_eq!(verdict.counts, !expected || action != Action::Ignore, "{name}");
            assert_eq!(verdict.fail_job.is_some(), expected && action == Action::FailJob, "{name}");
        }
        let unknown = FailurePolicy { rules: vec![FailureRule { action: Action::Unknown, on }] };
        assert_eq!(failure_verdict(Some(&unknown), &pod).action, None, "{name}");
    }
    let message = failure_verdict(
        Some(&FailurePolicy { rules: vec![FailureRule { action: Action::FailJob, on: condition("Ready", "False") }] }),
        &pod,
    );
    assert_eq!(message.fail_job.as_deref(), Some("Pod default/p has condition Ready matching FailJob rule at index 0"));
    assert!(failure_verdict(None, &pod).counts, "no policy");
    let empty = Arc::new(a_pod("q", Phase::Failed, None));
    let any =
        FailurePolicy { rules: vec![FailureRule { action: Action::FailJob, on: codes(None, Some(false), &[1]) }] };
    assert_eq!(failure_verdict(Some(&any), &empty).action, None, "containers that succeeded match no rule");
}

#[test]
fn restarts_in_place_count_while_their_pods_are_running_or_pending() {
    use Phase::{Pending, Running};
    for (name, in_place, limit, pods, expected) in [
        ("limit 0, no restart", true, 0, vec![(Running, 0)], false),
        ("limit 0, one restart", true, 0, vec![(Running, 1)], true),
        ("limit 1, no restart", true, 1, vec![(Running, 0)], false),
        ("limit 1, one restart of a running pod", true, 1, vec![(Running, 1)], true),
        ("limit 1, one restart of a pending pod", true, 1, vec![(Pending, 1)], true),
        ("several pods together", true, 5, vec![(Running, 2), (Pending, 3)], true),
        ("not enough", true, 6, vec![(Running, 2), (Pending, 3)], false),
        ("more than the largest number", true, i32::MAX, vec![(Running, i32::MAX), (Running, 1)], true),
        ("pods are never restarted", false, 0, vec![(Running, 9)], false),
    ] {
        let job = with(a_job(2, Some(2)), |job| {
            job.restarts_in_place = in_place;
            job.backoff_limit = limit;
            job.status.start = Time(NOW - 10);
        });
        let pods: Vec<Arc<Pod>> = pods
            .into_iter()
            .enumerate()
            .map(|(at, (phase, restarts))| {
                let mut pod = a_pod(&format!("pod-{at}"), phase, None);
                ending(&mut pod).restarts = restarts;
                Arc::new(pod)
            })
            .collect();
        let settled = HashSet::new();
        let verdict = view(&job, &pods, &settled).state().verdict;
        let expected = expected.then_some("BackoffLimitExceeded");
        assert_eq!(verdict.as_ref().map(|verdict| &*verdict.reason), expected, "{name}");
    }
}
