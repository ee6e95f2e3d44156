//! Tables: pods to create and delete, the verdict on a Job, suspension, delays of status writes, policies, and backoff.

use std::collections::HashSet;
use std::sync::Arc;

use kinds::job::{Action, CompletionMode, ExitCodes, FailurePolicy, FailureRule, RuleCondition, SuccessRule};
use kinds::pod::Phase;
use kinds::{Job, Pod, Time};

use super::builders::{NOW, a_job, a_pod, now, view, with};
use crate::workloads::job::backoff::Backoff;
use crate::workloads::job::decide::condition;
use crate::workloads::job::indexes::Indexes;
use crate::workloads::job::manage::{Plan, PodChanges, SuspensionChange};
use crate::workloads::job::policy::{failure_verdict, succeeded};

fn pods(phases: &[(Phase, Option<i32>)]) -> Vec<Arc<Pod>> {
    let pod =
        |(at, (phase, index)): (usize, &(Phase, Option<i32>))| Arc::new(a_pod(&format!("pod-{at}"), *phase, *index));
    phases.iter().enumerate().map(pod).collect()
}

/// Returns the number of pods that the plan creates, their indexes, and the names of the pods that it deletes.
fn planned(job: &Job, pods: &[Arc<Pod>]) -> (usize, Vec<i32>, Vec<String>) {
    let settled = HashSet::new();
    let view = view(job, pods, &settled);
    let names = |pods: &[Arc<Pod>]| pods.iter().map(|pod| pod.meta.name.to_string()).collect();
    match view.plan(&view.state()) {
        Plan::Nothing | Plan::Wait(_) => (0, vec![], vec![]),
        Plan::Create(new) => (new.len(), new.iter().filter_map(|pod| pod.index).collect(), vec![]),
        Plan::End(pods) | Plan::Remove(pods) => (0, vec![], names(&pods)),
    }
}

#[test]
fn number_of_pods_follows_parallelism_and_completions() {
    use Phase::{Pending, Running, Succeeded};
    let plain = |phases: &[Phase]| phases.iter().map(|phase| (*phase, None)).collect::<Vec<_>>();
    for (parallelism, completions, phases, created, deleted) in [
        (2, Some(5), vec![], 2, 0),
        (2, Some(5), vec![Running], 1, 0),
        (2, Some(5), vec![Running, Pending], 0, 0),
        (2, Some(5), vec![Running, Running, Running], 0, 1),
        (2, Some(5), vec![Succeeded; 4], 1, 0),
        (2, Some(5), vec![Succeeded; 5], 0, 0),
        (3, None, vec![], 3, 0),
        (3, None, vec![Succeeded, Running], 0, 0),
        (0, Some(5), vec![Running], 0, 1),
        (1000, Some(1000), vec![], 500, 0),
        (2, Some(0), vec![], 0, 0),
    ] {
        let (created_pods, _, deleted_pods) = planned(&a_job(parallelism, completions), &pods(&plain(&phases)));
        assert_eq!((created_pods, deleted_pods.len()), (created, deleted), "{parallelism} {completions:?} {phases:?}");
    }
}

#[test]
fn lowest_missing_indexes_are_created_once() {
    use Phase::{Failed, Pending, Running, Succeeded};
    let job = with(a_job(3, Some(4)), |job| job.completion_mode = CompletionMode::Indexed);
    for (given, created, deleted) in [
        (vec![], vec![0, 1, 2], vec![]),
        (vec![(Running, Some(1))], vec![0, 2], vec![]),
        (vec![(Succeeded, Some(0)), (Running, Some(2))], vec![1, 3], vec![]),
        (vec![(Pending, Some(1)), (Running, Some(1))], vec![], vec!["pod-0"]),
        (vec![(Running, None), (Running, Some(0))], vec![], vec!["pod-0"]),
        (vec![(Running, Some(7)), (Running, Some(0))], vec![], vec!["pod-0"]),
        (vec![(Failed, Some(0)), (Running, Some(1)), (Running, Some(2))], vec![0], vec![]),
    ] {
        let (_, created_indexes, deleted_pods) = planned(&job, &pods(&given));
        assert_eq!(
            (created_indexes, deleted_pods),
            (created, deleted.into_iter().map(str::to_owned).collect()),
            "{given:?}"
        );
    }
}

#[test]
fn terminating_pods_are_replaced_unless_the_policy_waits_for_their_failure() {
    let mut leaving = a_pod("leaving", Phase::Running, None);
    leaving.meta.deletion = Time(NOW);
    let pods = [Arc::new(leaving)];
    // Without the policy the deleted pod counts as failed just now: its replacement waits for the backoff. With the
    // policy, no pod is missing until the deleted one has terminated, so nothing is planned.
    for (replace_only_failed, waits_for_backoff) in [(false, true), (true, false)] {
        let job = with(a_job(1, Some(1)), |job| job.replace_only_failed = replace_only_failed);
        let settled = HashSet::new();
        let view = view(&job, &pods, &settled);
        assert_eq!(matches!(view.plan(&view.state()), Plan::Wait(_)), waits_for_backoff, "{replace_only_failed}");
    }
}

#[test]
fn verdict_follows_failures_and_successes_by_precedence() {
    use Phase::{Failed, Running, Succeeded};
    let indexed = |job: Job| with(job, |job| job.completion_mode = CompletionMode::Indexed);
    let one = || a_job(2, Some(2));
    for (job, given, expected) in [
        (with(one(), |job| job.backoff_limit = 0), vec![(Failed, None)], Some("BackoffLimitExceeded")),
        (with(one(), |job| job.backoff_limit = 1), vec![(Failed, None)], None),
        (with(one(), |job| job.active_deadline = Some(100)), vec![(Running, None)], Some("DeadlineExceeded")),
        (with(one(), |job| job.active_deadline = Some(300)), vec![(Running, None)], None),
        // Started in the future, by another clock.
        (
            with(one(), |job| {
                job.active_deadline = Some(i64::MAX);
                job.status.start = Time(NOW + 100);
            }),
            vec![(Running, None)],
            None,
        ),
        (with(one(), |job| job.active_deadline = Some(i64::MAX)), vec![(Running, None)], None),
        (
            with(one(), |job| {
                job.active_deadline = Some(100);
                job.suspend = true;
            }),
            vec![],
            None,
        ),
        (
            indexed(with(one(), |job| job.backoff_limit_per_index = Some(0))),
            vec![(Failed, Some(0)), (Succeeded, Some(1))],
            Some("FailedIndexes"),
        ),
        (indexed(with(one(), |job| job.backoff_limit_per_index = Some(0))), vec![(Failed, Some(0))], None),
        (
            indexed(with(one(), |job| {
                job.backoff_limit_per_index = Some(0);
                job.max_failed_indexes = Some(0);
            })),
            vec![(Failed, Some(0))],
            Some("MaxFailedIndexesExceeded"),
        ),
        (
            indexed(with(one(), |job| {
                job.success_policy = vec![SuccessRule { indexes: Some("1".into()), count: None }]
            })),
            vec![(Succeeded, Some(1)), (Running, Some(0))],
            Some("SuccessPolicy"),
        ),
    ] {
        let mut job = job;
        if !job.suspend && job.status.start.is_zero() {
            job.status.start = Time(NOW - 200);
        }
        let pods = pods(&given);
        let settled = HashSet::new();
        let state = view(&job, &pods, &settled).state();
        assert_eq!(state.verdict.as_ref().map(|verdict| &*verdict.reason), expected, "{given:?}");
    }
}

/// Another client may add such a condition: only a condition that is True is a decision of this controller.
#[test]
fn condition_that_is_false_decides_nothing() {
    let settled = HashSet::new();
    for decision in ["FailureTarget", "SuccessCriteriaMet"] {
        let state_with = |status: &str| {
            let added = condition(decision, "ConditionAddedManually", "Testing", now());
            let added = kinds::condition::Condition { status: status.into(), ..added };
            let mut job = with(a_job(1, Some(1)), |job| job.status.start = Time(NOW - 200));
            job.status.conditions.push(added);
            let pods = pods(&[(Phase::Running, None)]);
            let state = view(&job, &pods, &settled).state();
            (state.verdict.is_some(), state.status.conditions == job.status.conditions)
        };
        assert_eq!(state_with("False"), (false, true), "{decision}");
        assert!(state_with("True").0, "{decision}");
    }
}

#[test]
fn suspension_and_resumption_are_recorded_once() {
    let settled = HashSet::new();
    for (suspend, known, suspension_change) in [
        (true, None, Some(SuspensionChange::Suspended)),
        (false, None, None),
        (false, Some("True"), Some(SuspensionChange::Resumed)),
        (true, Some("True"), None),
    ] {
        let mut job = with(a_job(1, Some(1)), |job| job.suspend = suspend);
        let reason = if known == Some("True") { "JobSuspended" } else { "JobResumed" };
        let message = if known == Some("True") { "Job suspended" } else { "Job resumed" };
        if let Some(status) = known {
            let condition =
                crate::workloads::job::decide::condition("Suspended", reason, message, super::builders::now());
            job.status.conditions.push(kinds::condition::Condition { status: status.into(), ..condition });
        }
        let view = view(&job, &[], &settled);
        let state = view.state();
        let plan = view.plan(&state);
        let outcome = view.outcome(&state, &plan, PodChanges::default());
        assert_eq!(outcome.suspension_change, suspension_change, "{suspend} {known:?}");
    }
}

#[test]
fn suspended_job_loses_its_start_time_only_with_the_gate() {
    let started = with(a_job(1, Some(1)), |job| {
        job.suspend = true;
        job.status.start = kinds::Time(super::builders::NOW - 10);
    });
    for (clears_start, is_cleared) in [(true, true), (false, false)] {
        let settled = HashSet::new();
        let mut view = view(&started, &[], &settled);
        view.clears_start = clears_start;
        let state = view.state();
        let outcome = view.outcome(&state, &Plan::Nothing, PodChanges::default());
        assert_eq!(outcome.suspension_change, Some(SuspensionChange::Suspended));
        assert_eq!(outcome.status.start.is_zero(), is_cleared, "{clears_start}");
    }
}

#[test]
fn counts_of_running_pods_are_delayed_while_others_start() {
    let settled = HashSet::new();
    for (what, has_started, reported, (active, ready), waits) in [
        ("nothing new", true, (3, 1), (3, 1), None),
        ("the Job starts", false, (0, 0), (3, 0), Some(0)),
        ("the first is ready", true, (3, 0), (3, 1), Some(1)),
        ("all are ready", true, (3, 1), (3, 3), Some(0)),
        ("one is no longer ready", true, (3, 3), (3, 2), Some(0)),
        ("one has ended", true, (3, 0), (2, 0), Some(1)),
        ("one has ended, the others are ready", true, (3, 3), (2, 2), Some(1)),
        ("no pod is active", true, (1, 0), (0, 0), Some(0)),
    ] {
        let job = with(a_job(3, Some(9)), |job| {
            job.status.active = reported.0;
            job.status.ready = Some(reported.1);
            job.status.terminating = Some(0);
            job.status.start = Time(if has_started { NOW - 10 } else { 0 });
        });
        let pods: Vec<_> = (0..active)
            .map(|at| {
                let mut pod = a_pod(&format!("pod-{at}"), Phase::Running, None);
                pod.ready = at < ready;
                Arc::new(pod)
            })
            .collect();
        let view = view(&job, &pods, &settled);
        let outcome = view.outcome(&view.state(), &Plan::Nothing, PodChanges::default());
        assert_eq!(outcome.counts.map(|wait| wait.as_secs()), waits, "{what}");
        assert!(!outcome.flush, "{what}");
    }
}

#[test]
fn recording_of_successes_is_delayed_while_pods_run() {
    let settled = HashSet::new();
    let (succeeded, failed, running) = (Phase::Succeeded, Phase::Failed, Phase::Running);
    for (what, phases, deleted, indexed, waits) in [
        ("none ended", [running, running], false, false, None),
        ("one of two", [succeeded, running], false, false, Some(1)),
        ("one of two, by index", [succeeded, running], false, true, Some(1)),
        ("it failed", [failed, running], false, false, Some(0)),
        ("it is being deleted", [succeeded, running], true, false, Some(0)),
        ("the last", [succeeded, succeeded], false, false, Some(0)),
        ("the last, by index", [succeeded, succeeded], false, true, Some(0)),
    ] {
        let job = with(a_job(2, Some(2)), |job| {
            job.completion_mode = if indexed { CompletionMode::Indexed } else { CompletionMode::NonIndexed };
            job.status.start = Time(NOW - 10);
            job.backoff_limit = 6;
        });
        let mut index = 0..;
        let pods: Vec<_> = phases
            .into_iter()
            .map(|phase| {
                let mut pod = a_pod(&format!("pod-{}", index.start), phase, indexed.then_some(index.start));
                if deleted && index.start == 0 {
                    pod.meta.deletion = Time(NOW);
                }
                index.next();
                Arc::new(pod)
            })
            .collect();
        let view = view(&job, &pods, &settled);
        let state = view.state();
        let account = view.account(&state, view.outcome(&state, &Plan::Nothing, PodChanges::default()));
        assert_eq!(account.flush.map(|wait| wait.as_secs()), waits, "{what}");
    }
}

#[test]
fn failure_policy_uses_the_first_rule_that_matches() {
    let codes = |within, values: &[i32]| {
        RuleCondition::ExitCodes(ExitCodes { container: None, within: Some(within), values: values.to_vec() })
    };
    let disrupted = || RuleCondition::Conditions(vec![("DisruptionTarget".into(), "True".into())]);
    let mut pod = a_pod("p", Phase::Failed, None);
    let ending = pod.ending.as_mut().expect("an ending");
    ending.exit_codes = vec![("main".into(), 42), ("init".into(), 7)];
    ending.conditions = vec![("DisruptionTarget".into(), "True".into())];
    let codes_message = "Container main for pod default/p failed with exit code 42 matching FailJob rule at index 0";
    for (rules, fail_job, counts, action) in [
        (vec![], None, true, None),
        (vec![(Action::FailJob, codes(true, &[42]))], Some(codes_message), true, Some(Action::FailJob)),
        (vec![(Action::FailJob, codes(true, &[1]))], None, true, None),
        (
            vec![(Action::Ignore, codes(false, &[42, 7])), (Action::Count, codes(true, &[7]))],
            None,
            true,
            Some(Action::Count),
        ),
        (vec![(Action::Ignore, disrupted())], None, false, Some(Action::Ignore)),
        (
            vec![(Action::FailIndex, codes(false, &[1])), (Action::Ignore, disrupted())],
            None,
            true,
            Some(Action::FailIndex),
        ),
        (vec![(Action::Unknown, disrupted()), (Action::Ignore, disrupted())], None, false, Some(Action::Ignore)),
    ] {
        let rules = rules.into_iter().map(|(action, on)| FailureRule { action, on }).collect();
        let verdict = failure_verdict(Some(&FailurePolicy { rules }), &pod);
        assert_eq!((verdict.fail_job.as_deref(), verdict.counts, verdict.action), (fail_job, counts, action));
    }
}

#[test]
fn one_matching_success_rule_is_enough() {
    let rule = |indexes: Option<&str>, count| SuccessRule { indexes: indexes.map(Into::into), count };
    for (rules, done, expected) in [
        (vec![rule(Some("0-2"), None)], "0-2", Some("Matched rules at index 0")),
        (vec![rule(Some("0-2"), None)], "0,1", None),
        (vec![rule(Some("0-2"), Some(2))], "0,1", Some("Matched rules at index 0")),
        (vec![rule(Some("9"), None), rule(None, Some(1))], "3", Some("Matched rules at index 1")),
        (vec![rule(None, Some(2))], "3", None),
        (vec![rule(None, Some(0))], "", None),
        (vec![], "0-9", None),
    ] {
        assert_eq!(succeeded(&rules, 10, &Indexes::parse(done, 10)).as_deref(), expected, "{done}");
    }
}

#[test]
fn failures_double_the_backoff_until_a_success() {
    let ended = |at: i64| {
        let mut pod = a_pod(&at.to_string(), Phase::Failed, None);
        pod.ending.as_mut().expect("an ending").finished = Time(NOW - at);
        Arc::new(pod)
    };
    let wait = |backoff: Backoff| backoff.remaining(super::builders::now()).as_secs();
    let all = |ats: &[i64]| ats.iter().map(|at| ended(*at)).collect::<Vec<_>>();
    for (before, succeeded, failed, expected) in [
        (vec![], vec![], vec![], 0),
        (vec![], vec![], vec![0], 10),
        (vec![], vec![], vec![4, 3], 17),
        (vec![50], vec![], vec![0, 1], 40),
        (vec![50, 40], vec![30], vec![0], 10),
        (vec![50, 40], vec![30], vec![35], 0),
        (vec![20; 30], vec![], vec![0], 600),
        (vec![], vec![], vec![11], 0),
    ] {
        let backoff = Backoff::default().with(&[], &all(&before)).with(&all(&succeeded), &all(&failed));
        assert_eq!(wait(backoff), expected, "{before:?} {succeeded:?} {failed:?}");
    }
}
