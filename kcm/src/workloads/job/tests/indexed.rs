//! Indexed Jobs with a limit per index: indexes that failed, and failed pods that stay until they are replaced.

use std::collections::HashSet;
use std::sync::Arc;

use kinds::job::{Action, CompletionMode, ExitCodes, FailurePolicy, FailureRule, RuleCondition};
use kinds::pod::Phase;
use kinds::{Job, Pod, Time, Uid};

use super::builders::{NOW, a_job, a_pod, view, with};
use crate::workloads::job::manage::{NewPod, Plan, PodChanges};

/// Returns an Indexed Job with this number of completions and this limit per index.
fn indexed(completions: i32, limit: i32) -> Job {
    with(a_job(completions, Some(completions)), |job| {
        job.completion_mode = CompletionMode::Indexed;
        job.backoff_limit = i32::MAX;
        job.backoff_limit_per_index = Some(limit);
        job.status.start = Time(NOW - 500);
    })
}

/// Returns a pod of an index that failed this number of times before.
fn pod(name: &str, phase: Phase, index: i32, failures: i32) -> Pod {
    let mut pod = a_pod(name, phase, Some(index));
    pod.ending.as_mut().expect("an ending").failures = failures;
    pod
}

fn ended(mut pod: Pod, seconds_ago: i64) -> Pod {
    pod.ending.as_mut().expect("an ending").finished = Time(NOW - seconds_ago);
    pod
}

fn released(mut pod: Pod) -> Pod {
    pod.meta.finalizers = Arc::new([]);
    pod
}

#[test]
fn failed_pod_stays_until_its_index_has_another_one() {
    use Phase::{Failed, Running, Succeeded};
    for (name, limit, pods, settled, waiting, failed) in [
        (
            "indexes below their limit",
            1,
            vec![pod("a", Failed, 0, 0), pod("b", Failed, 1, 1), pod("c", Failed, 2, 0)],
            None,
            vec!["a", "c"],
            "1",
        ),
        ("released already", 1, vec![released(pod("a", Failed, 0, 0))], None, vec![], ""),
        ("released, and the cache does not contain that", 1, vec![pod("a", Failed, 0, 0)], Some("a"), vec![], ""),
        ("beyond the completions", 1, vec![pod("a", Failed, 4, 0)], None, vec![], ""),
        ("replaced", 1, vec![pod("a", Failed, 0, 0), pod("b", Running, 0, 1)], None, vec![], ""),
        ("succeeded since", 1, vec![pod("a", Failed, 0, 0), pod("b", Succeeded, 0, 1)], None, vec![], ""),
        (
            "several: that with the most failures",
            4,
            vec![pod("a", Failed, 0, 0), pod("b", Failed, 0, 2), pod("c", Failed, 0, 1)],
            None,
            vec!["b"],
            "",
        ),
        (
            "several: the last one",
            4,
            vec![ended(pod("a", Failed, 0, 1), 1), ended(pod("b", Failed, 0, 1), 0), ended(pod("c", Failed, 0, 1), 2)],
            None,
            vec!["b"],
            "",
        ),
    ] {
        let job = indexed(3, limit);
        let pods: Vec<Arc<Pod>> = pods.into_iter().map(Arc::new).collect();
        let settled: HashSet<Uid> = settled.into_iter().map(Uid::parse).collect();
        let view = view(&job, &pods, &settled);
        let state = view.state();
        let found = state.indexed.as_ref().expect("an Indexed Job");
        let names: Vec<&str> = found.waiting.values().map(|pod| &*pod.meta.name).collect();
        let failed_indexes = found.failed.as_ref().expect("a limit per index").to_string();
        assert_eq!((names, failed_indexes.as_str()), (waiting.clone(), failed), "{name}");
        // Failed pods that wait for their replacement keep the finalizer; all other ended pods lose it.
        let account = view.account(&state, view.outcome(&state, &Plan::Nothing, PodChanges::default()));
        let names = |keep: &dyn Fn(&Pod) -> bool| -> Vec<String> {
            pods.iter().filter(|pod| keep(pod)).map(|pod| pod.meta.name.to_string()).collect()
        };
        let ended = names(&|pod| view.is_tracked(pod) && pod.is_terminal() && !waiting.contains(&&*pod.meta.name));
        let released = names(&|pod| account.release.iter().any(|released| released.meta.uid == pod.meta.uid));
        assert_eq!(released, ended, "{name}: released");
    }
}

#[test]
fn failed_indexes_are_added_to_those_in_the_status() {
    let other_exit = ExitCodes { container: None, within: Some(true), values: vec![7] };
    let rule = |action| FailurePolicy {
        rules: vec![FailureRule { action, on: RuleCondition::ExitCodes(other_exit.clone()) }],
    };
    let exits = |code| {
        let mut pod = pod("a", Phase::Failed, 1, 0);
        pod.ending.as_mut().expect("an ending").exit_codes = vec![("main".into(), code)];
        pod
    };
    for (name, limit, known, policy, pod, expected) in [
        ("the first", 0, None, None, exits(1), "1"),
        ("another one", 0, Some("0"), None, exits(1), "0,1"),
        ("none before", 0, Some(""), None, exits(1), "1"),
        ("known ones beyond the completions", 0, Some("9"), None, exits(1), "1"),
        ("counted already", 0, Some("1"), None, released(exits(1)), "1"),
        ("below the limit", 1, None, None, exits(1), ""),
        ("below the limit, and the index fails by a rule", 1, None, Some(rule(Action::FailIndex)), exits(7), "1"),
        ("ignored by a rule", 0, None, Some(rule(Action::Ignore)), exits(7), ""),
        ("counted by a rule", 0, None, Some(rule(Action::Count)), exits(7), "1"),
        ("no rule matches", 0, None, Some(rule(Action::Ignore)), exits(1), "1"),
    ] {
        let mut job = indexed(2, limit);
        job.status.failed_indexes = known.map(Into::into);
        job.failure_policy = policy;
        let settled = HashSet::new();
        let pods = [Arc::new(pod)];
        let state = view(&job, &pods, &settled).state();
        let failed = state.indexed.and_then(|indexed| indexed.failed).expect("a limit per index");
        assert_eq!(failed.to_string(), expected, "{name}");
    }
}

#[test]
fn replacement_takes_over_the_failures_of_its_index() {
    let ignored = RuleCondition::ExitCodes(ExitCodes { container: None, within: Some(true), values: vec![7] });
    let ignoring = FailurePolicy { rules: vec![FailureRule { action: Action::Ignore, on: ignored }] };
    for (name, code, counts, expected) in [
        ("counted", 1, (0, 0), (1, 0)),
        ("counted again", 1, (2, 3), (3, 3)),
        ("ignored", 7, (0, 0), (0, 1)),
        ("ignored again", 7, (2, 3), (2, 4)),
    ] {
        let job = with(indexed(1, 9), |job| job.failure_policy = Some(ignoring.clone()));
        let mut failed = ended(pod("a", Phase::Failed, 0, counts.0), 700);
        let ending = failed.ending.as_mut().expect("an ending");
        ending.ignored_failures = counts.1;
        ending.exit_codes = vec![("main".into(), code)];
        let settled = HashSet::new();
        let pods = [Arc::new(failed)];
        let view = view(&job, &pods, &settled);
        let Plan::Create(created) = view.plan(&view.state()) else { panic!("{name}: nothing is created") };
        assert_eq!(created, [NewPod { index: Some(0), failures: Some(expected) }], "{name}");
    }
    let job = indexed(1, 9);
    let settled = HashSet::new();
    let view = view(&job, &[], &settled);
    let Plan::Create(created) = view.plan(&view.state()) else { panic!("nothing is created") };
    assert_eq!(created, [NewPod { index: Some(0), failures: Some((0, 0)) }], "the first pod of an index");
}

#[test]
fn indexes_whose_backoff_is_over_do_not_wait_for_the_others() {
    for (name, ago, expected) in [
        ("all are due", [20, 20, 20], (vec![0, 1, 2], None)),
        ("some are due", [20, 5, 20], (vec![0, 2], None)),
        ("none is due", [5, 3, 1], (vec![], Some(5))),
    ] {
        let job = indexed(3, 9);
        let pods: Vec<Arc<Pod>> = (0..3)
            .zip(ago)
            .map(|(index, ago)| Arc::new(ended(pod(&format!("pod-{index}"), Phase::Failed, index, 0), ago)))
            .collect();
        let settled = HashSet::new();
        let view = view(&job, &pods, &settled);
        let planned = match view.plan(&view.state()) {
            Plan::Create(pods) => (pods.iter().filter_map(|pod| pod.index).collect(), None),
            Plan::Wait(wait) => (vec![], Some(wait.as_secs())),
            plan => panic!("{name}: {plan:?}"),
        };
        assert_eq!(planned, expected, "{name}");
    }
}
