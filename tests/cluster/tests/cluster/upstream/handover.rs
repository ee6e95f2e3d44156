//! Takeovers between upstream's manager and ours in the middle of a task, for a table of tasks: each manager finishes
//! tasks that the other one began, with the same objects, and neither writes to objects that need no change.

use anyhow::{Context, Result, ensure};
use cluster_tests::handover::{ObjectVersion, ObjectVersions, Task, TaskInSpace, begin, end, versions_in};
use cluster_tests::metrics::Metrics;
use cluster_tests::objects::{names, replica_set};
use cluster_tests::{Bed, Call, Faults, Manager, Space, eventually};
use control_plane::behaviour::{BEHAVIOUR, READY};
use futures::future::try_join_all;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::json;

use crate::upstream::manager::{UPSTREAM, start_upstream};
use crate::workloads::disruption::{INSUFFICIENT, SUFFICIENT, budget, counted, evict};
use crate::workloads::horizontal_pod_autoscaler::{autoscaler, busy, scaled_to};
use crate::workloads::{cronjob, deployment, job, pod_garbage_collector, replicaset, replicationcontroller};

/// The controllers of all tasks.
const CONTROLLERS: &str = "replicationcontroller-controller,replicaset-controller,deployment-controller,job-controller,\
                           cronjob-controller,disruption-controller,horizontal-pod-autoscaler-controller,\
                           pod-garbage-collector-controller,ttl-after-finished-controller";

/// Flags for quick decisions of autoscalers, which both managers have.
const QUICK: [&str; 4] = [
    "--horizontal-pod-autoscaler-sync-period=500ms",
    "--horizontal-pod-autoscaler-downscale-stabilization=2s",
    "--horizontal-pod-autoscaler-cpu-initialization-period=0s",
    "--horizontal-pod-autoscaler-initial-readiness-delay=0s",
];

static TASKS: [Task; 8] = [
    Task {
        name: "replicationcontroller",
        begin: |space| Box::pin(async move { grow(&space).await }),
        end: |space| Box::pin(async move { replicationcontroller::settled(&space, "web", 6).await.map(drop) }),
        pods: 6,
    },
    Task {
        name: "job",
        begin: |space| Box::pin(async move { run_half(&space).await }),
        end: |space| Box::pin(async move { run_to_the_end(&space).await }),
        pods: 12,
    },
    Task {
        name: "failing-job",
        begin: |space| Box::pin(async move { fail_once(&space).await }),
        end: |space| Box::pin(async move { fail_again(&space).await }),
        pods: 2,
    },
    Task {
        name: "cronjob",
        begin: |space| Box::pin(async move { run_is_due(&space).await }),
        end: |space| Box::pin(async move { run_ends(&space).await }),
        pods: 1,
    },
    Task {
        name: "disruption",
        begin: |space| Box::pin(async move { guard(&space).await }),
        end: |space| Box::pin(async move { evict_one(&space).await }),
        pods: 5,
    },
    Task {
        name: "podautoscaler",
        begin: |space| Box::pin(async move { scale_up(&space).await }),
        end: |space| Box::pin(async move { scale_down(&space).await }),
        pods: 4,
    },
    Task {
        name: "ttl-after-finished",
        begin: |space| Box::pin(async move { finish_with_long_ttls(&space).await }),
        end: |space| Box::pin(async move { expire_one(&space).await }),
        pods: 2,
    },
    Task {
        name: "podgc",
        begin: |space| Box::pin(async move { fail_the_first(&space).await }),
        end: |space| Box::pin(async move { fail_the_second(&space).await }),
        pods: 3,
    },
];

async fn grow(space: &Space) -> Result<()> {
    space.create::<ReplicationController>(replicationcontroller::controller("web", 3)).await?;
    replicationcontroller::settled(space, "web", 3).await?;
    space.scale::<ReplicationController>("web", 6).await?;
    eventually("the ReplicationController has more than 3 pods", || async {
        ensure!(space.pods("web").await?.len() > 3);
        Ok(())
    })
    .await
}

/// Lets the existing pods of a Job succeed, up to `max`.
async fn succeed(space: &Space, name: &str, max: usize) -> Result<()> {
    for pod in names(&space.pods(name).await?).into_iter().take(max) {
        space.kubectl(&["annotate", "pod", &pod, &format!("{BEHAVIOUR}=succeed"), "--overwrite"]).await?;
    }
    Ok(())
}

const JOBS: [(&str, &str); 2] = [("plain", "NonIndexed"), ("indexed", "Indexed")];

/// Three of six pods run at a time; one has finished and is counted, another one has just finished.
async fn run_half(space: &Space) -> Result<()> {
    for (name, mode) in JOBS {
        let spec = json!({"parallelism": 3, "completions": 6, "completionMode": mode});
        space.create::<Job>(job::job(name, &json!({BEHAVIOUR: READY}), spec)).await?;
        let counted = async |succeeded: i32| {
            eventually(format!("{name} runs, {succeeded} have succeeded"), || async {
                let status = space.get::<Job>(name).await?.status.unwrap_or_default();
                ensure!(job::counts(&status) == [3, 3, succeeded, 0, 0], "{status:?}");
                Ok(())
            })
            .await
        };
        counted(0).await?;
        succeed(space, name, 1).await?;
        counted(1).await?;
    }
    for (name, _) in JOBS {
        succeed(space, name, 1).await?;
    }
    Ok(())
}

async fn run_to_the_end(space: &Space) -> Result<()> {
    for (name, mode) in JOBS {
        let status = eventually(format!("{name} is complete"), || async {
            succeed(space, name, 3).await?;
            let status = space.get::<Job>(name).await?.status.unwrap_or_default();
            ensure!(status.completion_time.is_some(), "{status:?}");
            Ok(status)
        })
        .await?;
        ensure!(job::counts(&status) == [0, 0, 6, 0, 0], "{name}: {status:?}");
        ensure!(status.completed_indexes.as_deref() == (mode == "Indexed").then_some("0-5"), "{name}: {status:?}");
        let held = space.list::<Pod>(name).await?.iter().filter(|pod| job::has_finalizer(pod)).count();
        ensure!(held == 0, "{held} pods of {name} have the finalizer");
    }
    Ok(())
}

/// The first failure is counted, and the second pod waits for its backoff or runs.
async fn fail_once(space: &Space) -> Result<()> {
    let spec = json!({"backoffLimit": 1});
    space.create::<Job>(job::job("failing", &json!({BEHAVIOUR: "fail"}), spec)).await?;
    eventually("one pod has failed", || async {
        let status = space.get::<Job>("failing").await?.status.unwrap_or_default();
        ensure!(status.failed == Some(1), "{status:?}");
        Ok(())
    })
    .await
}

async fn fail_again(space: &Space) -> Result<()> {
    let ended = ["FailureTarget=True BackoffLimitExceeded", "Failed=True BackoffLimitExceeded"];
    let status = job::until(space, "failing", &ended).await?;
    ensure!(job::counts(&status) == [0, 0, 0, 2, 0], "{status:?}");
    Ok(())
}

async fn run_is_due(space: &Space) -> Result<()> {
    cronjob::due_once(space, "yearly", &json!({BEHAVIOUR: READY}), json!({})).await?;
    eventually("the Job is active", || async {
        let status = space.get::<CronJob>("yearly").await?.status.unwrap_or_default();
        ensure!(status.active.as_ref().is_some_and(|active| active.len() == 1), "{status:?}");
        let status = space.list::<Job>("yearly").await?.remove(0).status.unwrap_or_default();
        ensure!(job::counts(&status) == [1, 1, 0, 0, 0], "{status:?}");
        Ok(())
    })
    .await
}

async fn run_ends(space: &Space) -> Result<()> {
    succeed(space, "yearly", 1).await?;
    eventually("the Job is no longer active", || async {
        let status = space.get::<CronJob>("yearly").await?.status.unwrap_or_default();
        ensure!(status.active.as_ref().is_none_or(Vec::is_empty), "{status:?}");
        ensure!(status.last_successful_time.is_some(), "{status:?}");
        ensure!(space.list::<Job>("yearly").await?.len() == 1, "another run was created");
        Ok(())
    })
    .await
}

async fn guard(space: &Space) -> Result<()> {
    space.create::<PodDisruptionBudget>(budget("web", json!({"minAvailable": "75%"}))).await?;
    space.create::<ReplicaSet>(replica_set("web", 4)).await?;
    counted(space, [4, 4, 3, 1], SUFFICIENT).await?;
    replicaset::settled(space, "web", 4).await?;
    Ok(())
}

async fn evict_one(space: &Space) -> Result<()> {
    let first = names(&space.pods("web").await?)[0].clone();
    ensure!(evict(space, &first).await?, "an eviction that the budget allows was refused");
    eventually("the evicted pod is replaced, and no longer in disruptedPods", || async {
        ensure!(!names(&space.list::<Pod>("web").await?).contains(&first));
        let status = space.get::<PodDisruptionBudget>("budget").await?.status.context("no status")?;
        ensure!(status.disrupted_pods.unwrap_or_default().is_empty());
        Ok(())
    })
    .await?;
    replicaset::settled(space, "web", 4).await?;
    counted(space, [4, 4, 3, 1], SUFFICIENT).await?;
    space.patch::<PodDisruptionBudget>("budget", json!({"spec": {"minAvailable": "100%"}})).await?;
    counted(space, [4, 4, 4, 0], INSUFFICIENT).await?;
    Ok(())
}

async fn scale_up(space: &Space) -> Result<()> {
    let target = json!({"type": "Utilization", "averageUtilization": 50});
    let spec = json!({
        "minReplicas": 1, "maxReplicas": 4,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
    });
    Metrics::serve(space).await?.set(space, "cpu", "200m");
    space.create::<Deployment>(busy("web", 1)).await?;
    space.create::<HorizontalPodAutoscaler>(autoscaler("web", spec)).await?;
    scaled_to(space, "web", 4, "True TooManyReplicas").await?;
    deployment::rolled_out(space, "web", 4).await?;
    Ok(())
}

async fn scale_down(space: &Space) -> Result<()> {
    Metrics::serve(space).await?.set(space, "cpu", "5m");
    scaled_to(space, "web", 1, "False DesiredWithinRange").await?;
    deployment::rolled_out(space, "web", 1).await?;
    Ok(())
}

/// Two Jobs have finished, and have a long TTL.
async fn finish_with_long_ttls(space: &Space) -> Result<()> {
    for name in ["brief", "kept"] {
        space.create::<Job>(job::job(name, &json!({}), json!({"ttlSecondsAfterFinished": 3600}))).await?;
    }
    for name in ["brief", "kept"] {
        job::until(space, name, &job::COMPLETE).await?;
    }
    Ok(())
}

/// The TTL of one Job is shortened, and is thereby expired: this Job is deleted, and the other Job stays.
async fn expire_one(space: &Space) -> Result<()> {
    space.patch::<Job>("brief", json!({"spec": {"ttlSecondsAfterFinished": 1}})).await?;
    eventually("the Job is being deleted", || async {
        let brief: Job = space.get("brief").await?;
        ensure!(brief.metadata.deletion_timestamp.is_some(), "{:?}", brief.metadata);
        Ok(())
    })
    .await?;
    // The Job waits for the deletion of its dependents. The garbage collector does not run here: the test removes the
    // Job's finalizer.
    space.patch::<Job>("brief", json!({"metadata": {"finalizers": null}})).await?;
    ensure!(space.get::<Job>("kept").await?.metadata.deletion_timestamp.is_none(), "the other Job was deleted");
    Ok(())
}

/// One of three unscheduled pods is deleted and marked as failed; a finalizer keeps it.
async fn fail_the_first(space: &Space) -> Result<()> {
    for name in ["first", "second", "third"] {
        space.create::<Pod>(pod_garbage_collector::kept(name, json!({"schedulerName": "none"}))).await?;
    }
    space.delete::<Pod>("first").await?;
    pod_garbage_collector::ended(space, "first").await?;
    Ok(())
}

/// The second pod is deleted in the same way, and then both are removed.
async fn fail_the_second(space: &Space) -> Result<()> {
    space.delete::<Pod>("second").await?;
    for name in ["first", "second"] {
        pod_garbage_collector::ended(space, name).await?;
        space.patch::<Pod>(name, json!({"metadata": {"finalizers": null}})).await?;
    }
    eventually("only the third pod is left", || async {
        ensure!(names(&space.list::<Pod>("web").await?) == ["third"]);
        Ok(())
    })
    .await
}

/// The kinds of all tasks.
const KINDS: &str = "replicationcontrollers,replicasets,deployments,jobs,cronjobs,poddisruptionbudgets,\
                     horizontalpodautoscalers,pods";

async fn all_versions(tasks: &[TaskInSpace]) -> Result<Vec<ObjectVersions>> {
    try_join_all(tasks.iter().map(|task| versions_in(&task.space, KINDS))).await
}

/// Fails if an object of `before` was deleted or recreated.
async fn none_recreated(tasks: &[TaskInSpace], before: &[ObjectVersions]) -> Result<()> {
    for (task, (before, after)) in tasks.iter().zip(before.iter().zip(all_versions(tasks).await?)) {
        let uid = |version: &ObjectVersion| version.uid.clone();
        let lost: Vec<_> = before.iter().filter(|(name, old)| after.get(*name).map(uid) != Some(uid(old))).collect();
        ensure!(lost.is_empty(), "{}: lost {lost:?}", task.space.namespace);
    }
    Ok(())
}

/// Fails if an object was written, deleted or created since `before`.
async fn untouched(tasks: &[TaskInSpace], before: &[ObjectVersions]) -> Result<()> {
    for (task, (before, after)) in tasks.iter().zip(before.iter().zip(all_versions(tasks).await?)) {
        ensure!(*before == after, "{}: {before:?} -> {after:?}", task.space.namespace);
    }
    Ok(())
}

/// Tests both directions, for all tasks concurrently. Upstream's manager watches all namespaces, so this needs a
/// separate control plane.
pub async fn work_continues_under_the_other_manager(_: Space) -> Result<()> {
    let bed = Bed::start().await?;
    let home = bed.space("home").await?;
    let (from_upstream, from_ours) =
        (TaskInSpace::create_all(&bed, &TASKS).await?, TaskInSpace::create_all(&bed, &TASKS).await?);
    Metrics::serve(&home).await?;
    let flags: Vec<String> =
        [format!("--controllers={CONTROLLERS}")].into_iter().chain(QUICK.map(Into::into)).collect();
    let ours: Vec<&str> = flags.iter().map(String::as_str).collect();

    start_upstream(&bed.cluster, CONTROLLERS, &QUICK)?;
    begin(&from_upstream).await.context("under upstream's")?;
    bed.cluster.kill(UPSTREAM)?;
    let before = all_versions(&from_upstream).await?;

    let faults = Faults::default();
    let manager = Manager::start_cluster_wide(&home, &faults, &ours).await?;
    faults.until_watching(&["horizontalpodautoscalers"]).await?;
    // Tasks in progress continue, but no object may be recreated.
    none_recreated(&from_upstream, &before).await?;
    end(&from_upstream).await.context("from upstream's to ours")?;
    begin(&from_ours).await.context("under ours")?;
    manager.crash().await;

    let complete = all_versions(&from_upstream).await?;
    start_upstream(&bed.cluster, CONTROLLERS, &QUICK)?;
    end(&from_ours).await.context("from ours to upstream's")?;
    untouched(&from_upstream, &complete).await.context("after all tasks, under upstream's manager")?;
    bed.cluster.kill(UPSTREAM)?;

    let complete = all_versions(&from_ours).await?;
    let faults = Faults::default();
    let _manager = Manager::start_cluster_wide(&home, &faults, &ours).await?;
    faults.until_watching(&["horizontalpodautoscalers"]).await?;
    faults.none_while_quiet(Call::is_write).await?;
    untouched(&from_ours, &complete).await.context("after all tasks, under our manager")
}
