//! Observable behaviour of Jobs: completed, failed, indexed, suspended, with policies, and with correct counts after
//! crashes.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{is_ready, names, owner, phase, pod, template, with};
use cluster_tests::{Faults, Manager, QUIET, Space, during, eventually};
use control_plane::behaviour::{BEHAVIOUR, EVICTED, EXIT_CODE, FAIL, READY, TERMINATING};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PropagationPolicy};
use serde_json::{Value, json};

use crate::robustness::scenario::Scenario;

const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Returns a Job of pods with the label `app=<name>`, whose behaviour is set by annotations; without any, they succeed.
pub fn job(name: &str, annotations: &Value, spec: Value) -> Value {
    let mut template = template(name, "example.com/image:1", annotations);
    template["spec"]["restartPolicy"] = "Never".into();
    let job = json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": {"template": template}});
    with(job, json!({"spec": spec}))
}

fn failing(code: &str) -> Value {
    json!({BEHAVIOUR: FAIL, EXIT_CODE: code})
}

async fn status(space: &Space, name: &str) -> Result<JobStatus> {
    Ok(space.get::<Job>(name).await?.status.unwrap_or_default())
}

/// Returns conditions as `<type>=<status> <reason>`, in their order.
fn conditions(status: &JobStatus) -> Vec<String> {
    let conditions = status.conditions.iter().flatten();
    let text = |reason: &Option<String>| reason.clone().unwrap_or_default();
    conditions
        .map(|condition| format!("{}={} {}", condition.type_, condition.status, text(&condition.reason)))
        .collect()
}

/// Waits for these conditions; returns the status.
pub async fn until(space: &Space, name: &str, expected: &[&str]) -> Result<JobStatus> {
    eventually(format!("{name} is {expected:?}"), || async {
        let status = status(space, name).await?;
        ensure!(conditions(&status) == expected, "{status:?}");
        Ok(status)
    })
    .await
}

pub const COMPLETE: [&str; 2] = ["SuccessCriteriaMet=True CompletionsReached", "Complete=True CompletionsReached"];

const BACKOFF_LIMIT_EXCEEDED: [&str; 2] =
    ["FailureTarget=True BackoffLimitExceeded", "Failed=True BackoffLimitExceeded"];

/// Returns the numbers of active, ready, succeeded, failed and terminating pods.
pub fn counts(status: &JobStatus) -> [i32; 5] {
    [status.active, status.ready, status.succeeded, status.failed, status.terminating].map(|count| count.unwrap_or(0))
}

fn uncounted(status: &JobStatus) -> usize {
    let pods = status.uncounted_terminated_pods.as_ref();
    pods.map_or(0, |pods| pods.succeeded.iter().flatten().count() + pods.failed.iter().flatten().count())
}

pub fn has_finalizer(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

pub async fn job_completes(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<Job>(job("pi", &json!({}), json!({"parallelism": 2, "completions": 5}))).await?;
    let status = until(&space, "pi", &COMPLETE).await?;
    ensure!(counts(&status) == [0, 0, 5, 0, 0] && uncounted(&status) == 0, "{status:?}");
    ensure!(status.start_time.is_some() && status.completion_time.is_some());
    let pods = space.list::<Pod>("pi").await?;
    ensure!(pods.len() == 5 && pods.iter().all(|pod| phase(pod) == "Succeeded" && !has_finalizer(pod)));
    ensure!(pods.iter().all(|pod| owner(pod) == "pi"));
    eventually("an event is recorded", || async {
        let events = space.events("pi").await?;
        ensure!(events.contains_key("Normal Completed Job completed"), "{events:?}");
        ensure!(
            events.keys().filter(|event| event.starts_with("Normal SuccessfulCreate Created pod: pi-")).count() == 5
        );
        Ok(())
    })
    .await?;
    space.kubectl(&["wait", "--for=condition=complete", "job/pi", "--timeout=180s"]).await?;
    Ok(())
}

pub async fn failures_end_job(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<Job>(job("bad", &failing("3"), json!({"backoffLimit": 0, "parallelism": 1}))).await?;
    let status = until(&space, "bad", &BACKOFF_LIMIT_EXCEEDED).await?;
    ensure!(counts(&status) == [0, 0, 0, 1, 0] && status.completion_time.is_none(), "{status:?}");
    eventually("an event is recorded", || async {
        let events = space.events("bad").await?;
        let expected = "Warning BackoffLimitExceeded Job has reached the specified backoff limit";
        ensure!(events.contains_key(expected), "{events:?}");
        Ok(())
    })
    .await
}

pub async fn deadline_ends_job(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let running = json!({BEHAVIOUR: READY});
    space.create::<Job>(job("slow", &running, json!({"activeDeadlineSeconds": 2, "parallelism": 2}))).await?;
    let ended = ["FailureTarget=True DeadlineExceeded", "Failed=True DeadlineExceeded"];
    let status = until(&space, "slow", &ended).await?;
    ensure!(counts(&status) == [0, 0, 0, 2, 0], "{status:?}");
    eventually("its pods are deleted", || async {
        let pods = space.list::<Pod>("slow").await?;
        ensure!(pods.is_empty(), "{:?}", names(&pods));
        Ok(())
    })
    .await
}

pub async fn indexes_are_completed(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let indexed = json!({"completionMode": "Indexed", "parallelism": 2, "completions": 4});
    space.create::<Job>(job("indexed", &json!({}), indexed)).await?;
    let status = until(&space, "indexed", &COMPLETE).await?;
    ensure!(status.completed_indexes.as_deref() == Some("0-3") && counts(&status)[2] == 4, "{status:?}");
    let pods = space.list::<Pod>("indexed").await?;
    let mut seen = BTreeSet::new();
    for pod in &pods {
        let index = pod.metadata.annotations.as_ref().and_then(|all| all.get(INDEX)).context("no index")?.clone();
        ensure!(pod.metadata.labels.as_ref().and_then(|all| all.get(INDEX)) == Some(&index));
        let spec = pod.spec.as_ref().context("no spec")?;
        ensure!(spec.hostname == Some(format!("indexed-{index}")));
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        ensure!(name.starts_with(&format!("indexed-{index}-")), "{name}");
        let env = spec.containers[0].env.iter().flatten().find(|env| env.name == "JOB_COMPLETION_INDEX");
        let path = env.and_then(|env| Some(env.value_from.as_ref()?.field_ref.as_ref()?.field_path.clone()));
        ensure!(path.as_deref() == Some("metadata.labels['batch.kubernetes.io/job-completion-index']"));
        seen.insert(index);
    }
    ensure!(pods.len() == 4 && seen.len() == 4, "{seen:?}");
    Ok(())
}

pub async fn elastic_job_shrinks(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let indexed = json!({"completionMode": "Indexed", "parallelism": 4, "completions": 4});
    space.create::<Job>(job("elastic", &json!({BEHAVIOUR: READY}), indexed)).await?;
    let indexes = async || {
        let pods = space.pods("elastic").await?;
        let index = |pod: &Pod| pod.metadata.annotations.as_ref()?.get(INDEX).cloned();
        anyhow::Ok(pods.iter().filter_map(index).collect::<BTreeSet<_>>())
    };
    for size in [4, 2, 3] {
        space.patch::<Job>("elastic", json!({"spec": {"parallelism": size, "completions": size}})).await?;
        eventually(format!("the Job has {size} indexes"), || async {
            let (indexes, status) = (indexes().await?, status(&space, "elastic").await?);
            ensure!(indexes == (0..size).map(|index| index.to_string()).collect(), "{indexes:?}");
            ensure!(counts(&status) == [size, size, 0, 0, 0], "{status:?}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

pub async fn failed_index_does_not_end_the_other_indexes(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let spec = json!({
        "completionMode": "Indexed", "parallelism": 3, "completions": 3,
        "backoffLimitPerIndex": 0, "maxFailedIndexes": 3,
    });
    space.create::<Job>(job("alone", &json!({BEHAVIOUR: READY}), spec)).await?;
    let of_index = async |index: &str| {
        let pods = space.pods("alone").await?;
        let found = pods
            .iter()
            .find(|pod| pod.metadata.annotations.as_ref().and_then(|all| all.get(INDEX)).is_some_and(|i| i == index));
        found.and_then(|pod| pod.metadata.name.clone()).context("no such pod")
    };
    for (index, behaviour) in [("1", FAIL), ("0", "succeed"), ("2", "succeed")] {
        let name = eventually("the pod exists", || of_index(index)).await?;
        space.kubectl(&["annotate", "pod", &name, &format!("{BEHAVIOUR}={behaviour}"), "--overwrite"]).await?;
    }
    let status = until(&space, "alone", &["FailureTarget=True FailedIndexes", "Failed=True FailedIndexes"]).await?;
    ensure!(status.completed_indexes.as_deref() == Some("0,2"), "{status:?}");
    ensure!(status.failed_indexes.as_deref() == Some("1") && counts(&status)[3] == 1, "{status:?}");
    Ok(())
}

pub async fn success_policy_ends_job_early(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let spec = json!({
        "completionMode": "Indexed", "parallelism": 3, "completions": 3,
        "successPolicy": {"rules": [{"succeededIndexes": "1"}]},
    });
    space.create::<Job>(job("leader", &json!({BEHAVIOUR: READY}), spec)).await?;
    let leader = eventually("the pods exist", || async {
        let pods = space.pods("leader").await?;
        ensure!(pods.len() == 3);
        let leader = names(&pods).into_iter().find(|name| name.starts_with("leader-1-"));
        leader.context("no leader")
    })
    .await?;
    space.kubectl(&["annotate", "pod", &leader, &format!("{BEHAVIOUR}=succeed"), "--overwrite"]).await?;
    let ended = ["SuccessCriteriaMet=True SuccessPolicy", "Complete=True SuccessPolicy"];
    let status = until(&space, "leader", &ended).await?;
    ensure!(counts(&status)[..3] == [0, 0, 1] && status.completed_indexes.as_deref() == Some("1"), "{status:?}");
    Ok(())
}

pub async fn failure_policy_decides(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let policy = |action: &str| {
        let codes = json!({"containerName": "main", "operator": "In", "values": [42]});
        json!({"backoffLimit": 0, "podFailurePolicy": {"rules": [{"action": action, "onExitCodes": codes}]}})
    };
    space.create::<Job>(job("fatal", &failing("42"), with(policy("FailJob"), json!({"backoffLimit": 6})))).await?;
    space.create::<Job>(job("ignored", &failing("42"), policy("Ignore"))).await?;
    let ended = ["FailureTarget=True PodFailurePolicy", "Failed=True PodFailurePolicy"];
    let status = until(&space, "fatal", &ended).await?;
    let pod = names(&space.list::<Pod>("fatal").await?).first().context("no pod")?.clone();
    let message = status.conditions.iter().flatten().last().and_then(|condition| condition.message.clone());
    let ns = &space.namespace;
    let expected =
        format!("Container main for pod {ns}/{pod} failed with exit code 42 matching FailJob rule at index 0");
    ensure!(message.as_deref() == Some(&*expected), "{message:?}");

    // An ignored failure does not end the Job, although its backoff limit is 0.
    eventually("the ignored failure is settled", || async {
        let pods = space.list::<Pod>("ignored").await?;
        ensure!(pods.iter().any(|pod| phase(pod) == "Failed" && !has_finalizer(pod)), "{:?}", names(&pods));
        Ok(())
    })
    .await?;
    let status = self::status(&space, "ignored").await?;
    ensure!(conditions(&status).is_empty() && counts(&status)[3] == 0, "{status:?}");
    Ok(())
}

/// With a policy that ignores disruptions, a pod that its kubelet evicts does not count as a failure.
pub async fn evicted_pod_is_not_a_failure_when_the_policy_ignores_it(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let disrupted = json!([{"type": "DisruptionTarget", "status": "True"}]);
    let policy = json!({
        "backoffLimit": 0, "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": disrupted}]},
    });
    space.create::<Job>(job("pi", &json!({BEHAVIOUR: READY}), policy)).await?;
    let running = async || {
        eventually("a pod runs", || async {
            let pods = space.pods("pi").await?;
            ensure!(pods.len() == 1 && is_ready(&pods[0]), "{:?}", names(&pods));
            Ok(names(&pods)[0].clone())
        })
        .await
    };
    let evicted = running().await?;
    space.kubectl(&["annotate", "pod", &evicted, &format!("{BEHAVIOUR}={EVICTED}"), "--overwrite"]).await?;
    eventually("the pod is evicted", || async {
        ensure!(phase(&space.get::<Pod>(&evicted).await?) == "Failed");
        Ok(())
    })
    .await?;
    let next = running().await?;
    space.kubectl(&["annotate", "pod", &next, &format!("{BEHAVIOUR}=succeed"), "--overwrite"]).await?;
    let status = until(&space, "pi", &COMPLETE).await?;
    ensure!(counts(&status) == [0, 0, 1, 0, 0], "{status:?}");
    Ok(())
}

pub async fn job_is_suspended_and_resumed(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let spec = json!({"parallelism": 2, "completions": 2, "suspend": true});
    space.create::<Job>(job("paused", &json!({BEHAVIOUR: READY}), spec)).await?;
    let status = until(&space, "paused", &["Suspended=True JobSuspended"]).await?;
    ensure!(status.start_time.is_none() && counts(&status) == [0; 5], "{status:?}");
    for (suspend, expected, active) in [
        (false, "Suspended=False JobResumed", 2),
        (true, "Suspended=True JobSuspended", 0),
        (false, "Suspended=False JobResumed", 2),
    ] {
        space.patch::<Job>("paused", json!({"spec": {"suspend": suspend}})).await?;
        eventually(format!("{expected} with {active} pods"), || async {
            let status = self::status(&space, "paused").await?;
            ensure!(conditions(&status) == [expected] && counts(&status) == [active, active, 0, 0, 0], "{status:?}");
            ensure!(status.start_time.is_some() != suspend, "{status:?}");
            let pods = space.pods("paused").await?;
            ensure!(pods.len() == usize::try_from(active)?);
            Ok(())
        })
        .await?;
    }
    for pod in names(&space.pods("paused").await?) {
        space.kubectl(&["annotate", "pod", &pod, &format!("{BEHAVIOUR}=succeed"), "--overwrite"]).await?;
    }
    let status = until(&space, "paused", &["Suspended=False JobResumed", COMPLETE[0], COMPLETE[1]]).await?;
    ensure!(counts(&status) == [0, 0, 2, 0, 0], "suspended pods were counted: {status:?}");
    Ok(())
}

pub async fn pod_is_replaced_only_after_it_has_failed(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let spec = json!({"parallelism": 1, "completions": 1, "podReplacementPolicy": "Failed"});
    space.create::<Job>(job("patient", &json!({BEHAVIOUR: TERMINATING}), spec)).await?;
    let expect = async |expected: [i32; 5]| {
        eventually(format!("counts {expected:?}"), || async {
            let status = status(&space, "patient").await?;
            ensure!(counts(&status) == expected, "{status:?}");
            Ok(())
        })
        .await
    };
    expect([1, 1, 0, 0, 0]).await?;
    let first = names(&space.pods("patient").await?)[0].clone();
    space.delete::<Pod>(&first).await?;
    expect([0, 0, 0, 0, 1]).await?;
    during(QUIET, "the pod is not replaced while it is terminating", || async {
        ensure!(names(&space.list::<Pod>("patient").await?) == [first.as_str()]);
        Ok(())
    })
    .await
}

pub async fn job_of_another_controller_is_not_changed(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    space.create::<Job>(job("theirs", &json!({}), json!({"managedBy": "example.com/queue"}))).await?;
    space.create::<Job>(job("ours", &json!({}), json!({"completions": 1}))).await?;
    until(&space, "ours", &COMPLETE).await?;
    ensure!(status(&space, "theirs").await? == JobStatus::default());
    ensure!(space.list::<Pod>("theirs").await?.is_empty());
    Ok(())
}

pub async fn pods_of_a_deleted_job_lose_their_finalizer(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<Job>(job("gone", &json!({BEHAVIOUR: READY}), json!({"parallelism": 2}))).await?;
    eventually("the Job has pods", || async {
        let pods = space.pods("gone").await?;
        ensure!(pods.len() == 2 && pods.iter().all(has_finalizer));
        Ok(())
    })
    .await?;
    let background =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..DeleteParams::default() };
    space.api::<Job>().delete("gone", &background).await?;
    eventually("its pods have no finalizer", || async {
        let pods = space.list::<Pod>("gone").await?;
        ensure!(!pods.iter().any(has_finalizer));
        Ok(())
    })
    .await
}

pub async fn pods_are_adopted_and_counted(space: Space) -> Result<()> {
    let spec = json!({
        "parallelism": 1, "completions": 1, "manualSelector": true, "selector": {"matchLabels": {"app": "adopter"}},
    });
    let orphan = with(
        pod("orphan", "adopter"),
        json!({"metadata": {"annotations": {BEHAVIOUR: READY}}, "spec": {"restartPolicy": "Never"}}),
    );
    space.create::<Pod>(orphan).await?;
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<Job>(job("adopter", &json!({BEHAVIOUR: READY}), spec)).await?;
    eventually("the orphan is the Job's only pod", || async {
        let pods = space.list::<Pod>("adopter").await?;
        ensure!(names(&pods) == ["orphan"] && owner(&pods[0]) == "adopter" && has_finalizer(&pods[0]));
        Ok(())
    })
    .await?;
    space.kubectl(&["annotate", "pod", "orphan", &format!("{BEHAVIOUR}=succeed"), "--overwrite"]).await?;
    let status = until(&space, "adopter", &COMPLETE).await?;
    ensure!(counts(&status) == [0, 0, 1, 0, 0], "{status:?}");
    Ok(())
}

/// Completes a plain and an Indexed Job of three pods each, and fails another one: each pod is counted once, and none
/// has the finalizer after that.
async fn scenario(space: Space) -> Result<()> {
    let spec = json!({"parallelism": 2, "completions": 3});
    space.create::<Job>(job("plain", &json!({}), spec.clone())).await?;
    space.create::<Job>(job("indexed", &json!({}), with(spec, json!({"completionMode": "Indexed"})))).await?;
    space.create::<Job>(job("failing", &failing("3"), json!({"backoffLimit": 0}))).await?;
    for name in ["plain", "indexed"] {
        let status = until(&space, name, &COMPLETE).await?;
        ensure!(counts(&status) == [0, 0, 3, 0, 0] && uncounted(&status) == 0, "{name}: {status:?}");
    }
    let status = until(&space, "failing", &BACKOFF_LIMIT_EXCEEDED).await?;
    ensure!(counts(&status) == [0, 0, 0, 1, 0] && uncounted(&status) == 0, "{status:?}");
    for (name, count) in [("plain", 3), ("indexed", 3), ("failing", 1)] {
        let pods = space.list::<Pod>(name).await?;
        ensure!(pods.len() == count && !pods.iter().any(has_finalizer), "{name}: {:?}", names(&pods));
    }
    Ok(())
}

/// Each pod is created and released; each Job's status is written at its start, for its counts and at its end.
pub const SCENARIO: Scenario = Scenario {
    name: "job",
    flags: &["--controllers=job-controller"],
    kind: "jobs",
    run: |space| Box::pin(scenario(space)),
    pods: 7,
    writes: 7 + 7 + 3 * 3,
    fails: &[("create pods ", 2), ("patch pods ", 2), ("update jobs/status ", 2), ("update jobs/status ", 5)],
    ..Scenario::EMPTY
};
