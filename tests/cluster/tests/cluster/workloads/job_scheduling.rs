//! Jobs whose pods are scheduled as a group: their Workload and PodGroup.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::with;
use cluster_tests::{Bed, Effect, Faults, Manager, RecordedRequest, Rule, Space, Verb, eventually};
use control_plane::Options;
use k8s_openapi::api::batch::v1::{CronJob, Job, JobStatus};
use k8s_openapi::api::core::v1::{ResourceQuota, ServiceAccount};
use serde_json::{Value, json};

use crate::gates::NO_GROUPS;

const GATES: &str = "--feature-gates=GenericWorkload=true,WorkloadWithJob=true";

fn job(space: &Space, name: &str, scheduling: Value) -> Value {
    let container = json!({"name": "a", "image": "example.com/image:1"});
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": space.namespace},
        "spec": {
            "parallelism": 2, "completions": 5, "scheduling": scheduling,
            "template": {"spec": {"restartPolicy": "Never", "containers": [container], "schedulerName": "none"}},
        },
    })
}

async fn items(space: &Space, resource: &str) -> Result<Vec<Value>> {
    let list: Value = serde_json::from_str(&space.kubectl(&["get", resource, "-o", "json"]).await?)?;
    Ok(list["items"].as_array().context("a list")?.clone())
}

/// Returns the Workloads or PodGroups that are controlled by a Job.
async fn owned(space: &Space, resource: &str, job: &str) -> Result<Vec<Value>> {
    let mut all = items(space, resource).await?;
    all.retain(|object| object["metadata"]["ownerReferences"][0]["name"] == job);
    Ok(all)
}

/// Waits until all pods of a Job are in one group, and returns the group.
async fn grouped(space: &Space, job: &str, pods: usize) -> Result<Value> {
    eventually(format!("the pods of {job} are in one group"), || async {
        let groups = owned(space, "podgroups", job).await?;
        ensure!(groups.len() == 1, "{groups:?}");
        let members = owned(space, "pods", job).await?;
        let is_member = |pod: &Value| pod["spec"]["schedulingGroup"]["podGroupName"] == groups[0]["metadata"]["name"];
        ensure!(members.len() == pods && members.iter().all(is_member), "{members:?}");
        Ok(groups[0].clone())
    })
    .await
}

/// Creates a namespace of a control plane that serves Workloads and PodGroups.
async fn serving(name: &str) -> Result<(Arc<Bed>, Space)> {
    let flags = [GATES, "--runtime-config=scheduling.k8s.io/v1beta1=true"].map(str::to_owned).to_vec();
    let options = Options { kwok: false, scheduler: false, extra_apiserver_flags: flags, ..Options::default() };
    let bed = Arc::new(Bed::without_accounts(options).await?);
    let space = bed.space(name).await?;
    space.create::<ServiceAccount>(json!({"metadata": {"name": "default"}})).await?;
    Ok((bed, space))
}

pub async fn pods_of_a_job_are_created_in_its_group(_: Space) -> Result<()> {
    let (bed, space) = serving("gang").await?;
    let create = |name: &str, scheduling: Value| {
        bed.cluster.kubectl_with_input(&["create", "-f", "-"], &job(&space, name, scheduling).to_string())
    };

    // A Job that started before the gate was enabled is not changed.
    let manager = Manager::start_cluster_wide(&space, &Faults::default(), &["--controllers=job", NO_GROUPS]).await?;
    create("old", Value::Null)?;
    eventually("the old Job has its pods", || async {
        let pods = owned(&space, "pods", "old").await?.len();
        ensure!(pods == 2, "{pods}");
        Ok(())
    })
    .await?;
    manager.stop().await?;

    let faults = Faults::script([
        Rule::on(Verb::Create, "workloads", Effect::LostAfter),
        Rule::on(Verb::Create, "podgroups", Effect::CrashBeforeResponse),
    ]);
    let flags = [GATES, "--controllers=job"];
    let manager = Manager::start_cluster_wide(&space, &faults, &flags).await?;
    create("gang", json!({"schedulingPolicy": {"gang": {}}}))?;
    faults.crashes().await;
    manager.crash().await;
    let manager = Manager::start_cluster_wide(&space, &Faults::default(), &flags).await?;
    let group = grouped(&space, "gang", 2).await?;
    ensure!(group["spec"]["schedulingPolicy"] == json!({"gang": {"minCount": 2}}), "{group}");
    let workloads = owned(&space, "workloads", "gang").await?;
    ensure!(workloads.len() == 1, "{workloads:?}");
    ensure!(group["spec"]["workloadRef"]["workloadName"] == workloads[0]["metadata"]["name"], "{group}");

    create("basic", Value::Null)?;
    let group = grouped(&space, "basic", 2).await?;
    ensure!(group["spec"]["schedulingPolicy"] == json!({"basic": {}}), "{group}");

    space.patch::<Job>("gang", json!({"spec": {"parallelism": 4}})).await?;
    eventually("the gang is resized", || async {
        let group = &owned(&space, "podgroups", "gang").await?[0];
        ensure!(group["spec"]["schedulingPolicy"]["gang"]["minCount"] == 4, "{group}");
        let workload = &owned(&space, "workloads", "gang").await?[0];
        let template = &workload["spec"]["podGroupTemplates"][0];
        ensure!(template["schedulingPolicy"]["gang"]["minCount"] == 4, "{workload}");
        Ok(())
    })
    .await?;
    grouped(&space, "gang", 4).await?;
    let old = owned(&space, "podgroups", "old").await?;
    ensure!(old.is_empty(), "{old:?}");
    manager.stop().await?;
    Ok(())
}

/// Returns a Job of this parent that has to create its PodGroup, because the parent delegates the creation to the Job.
fn delegated(space: &Space, name: &str, parent: &CronJob) -> Value {
    let owner = json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "name": parent.metadata.name, "uid": parent.metadata.uid,
        "controller": true,
    });
    let annotations = json!({"scheduling.k8s.io/group-template-name": "workers"});
    with(job(space, name, Value::Null), json!({"metadata": {"annotations": annotations, "ownerReferences": [owner]}}))
}

/// Creates a suspended CronJob, which stands for a controller that creates Jobs.
async fn parent(space: &Space, name: &str) -> Result<CronJob> {
    let template = job(space, name, Value::Null)["spec"]["template"].take();
    let spec = json!({"schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": {"spec": {"template": template}}});
    space.create(json!({"metadata": {"name": name}, "spec": spec})).await
}

pub async fn group_of_a_delegated_job_follows_its_parents_template(_: Space) -> Result<()> {
    let (bed, space) = serving("delegated").await?;
    let create = |object: &Value| bed.cluster.kubectl_with_input(&["create", "-f", "-"], &object.to_string());
    let (owner, other) = (parent(&space, "training").await?, parent(&space, "other").await?);
    create(&json!({
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "Workload",
        "metadata": {"name": "training", "namespace": space.namespace},
        "spec": {
            "controllerRef": {"apiGroup": "batch", "kind": "CronJob", "name": "training"},
            "podGroupTemplates": [{"name": "workers", "schedulingPolicy": {"gang": {"minCount": 2}}}],
        },
    }))?;
    let manager = Manager::start_cluster_wide(&space, &Faults::default(), &[GATES, "--controllers=job"]).await?;
    create(&delegated(&space, "workers", &owner))?;
    let group = grouped(&space, "workers", 2).await?;
    let reference = json!({"workloadName": "training", "templateName": "workers"});
    ensure!(group["spec"]["workloadRef"] == reference, "{group}");
    ensure!(group["spec"]["schedulingPolicy"] == json!({"gang": {"minCount": 2}}), "{group}");
    ensure!(group["metadata"]["ownerReferences"].as_array().is_some_and(|owners| owners.len() == 1), "{group}");
    let workloads = items(&space, "workloads").await?;
    ensure!(workloads.len() == 1, "the Job creates no Workload: {workloads:?}");

    // The size is the template's, regardless of the Job's parallelism.
    let resized =
        json!([{"op": "replace", "path": "/spec/podGroupTemplates/0/schedulingPolicy/gang/minCount", "value": 3}]);
    space.kubectl(&["patch", "workload", "training", "--type=json", "-p", &resized.to_string()]).await?;
    space.patch::<Job>("workers", json!({"spec": {"parallelism": 4}})).await?;
    eventually("the group has the size of the template", || async {
        let group = &owned(&space, "podgroups", "workers").await?[0];
        ensure!(group["spec"]["schedulingPolicy"]["gang"]["minCount"] == 3, "{group}");
        Ok(())
    })
    .await?;
    grouped(&space, "workers", 4).await?;

    // Without a Workload of the parent, the pods are not grouped.
    create(&delegated(&space, "alone", &other))?;
    eventually("the pods of the other Job exist", || async {
        let pods = owned(&space, "pods", "alone").await?;
        ensure!(pods.len() == 2 && pods.iter().all(|pod| pod["spec"]["schedulingGroup"].is_null()), "{pods:?}");
        Ok(())
    })
    .await?;
    let groups = items(&space, "podgroups").await?;
    ensure!(groups.len() == 1, "{groups:?}");
    manager.stop().await?;
    Ok(())
}

/// Sets a quota that refuses new PodGroups until it is deleted.
async fn refuse_groups(space: &Space) -> Result<()> {
    let none = json!({"count/podgroups.scheduling.k8s.io": "0"});
    space.create::<ResourceQuota>(json!({"metadata": {"name": "none"}, "spec": {"hard": none}})).await?;
    // The quota controller does not run: the test writes the status.
    space.patch_status::<ResourceQuota>("none", json!({"status": {"hard": none, "used": none}})).await?;
    let probe = json!({
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup",
        "metadata": {"name": "probe", "namespace": space.namespace}, "spec": {"schedulingPolicy": {"basic": {}}},
    });
    eventually("a PodGroup is refused", || async {
        let (bed, probe) = (space.bed.clone(), probe.to_string());
        let create = move || bed.cluster.kubectl_with_input(&["create", "--dry-run=server", "-f", "-"], &probe);
        let refused = tokio::task::spawn_blocking(create).await?.err().context("the PodGroup is created")?;
        ensure!(format!("{refused:#}").contains("exceeded quota"), "{refused:#}");
        Ok(())
    })
    .await
}

/// Changes the labels of Jobs until their PodGroups were refused `refusals` times: the Jobs are reconciled between
/// these attempts, too. Checks that the Jobs have neither pods nor a status, and may thus still get their groups.
async fn wait_for_their_groups(space: &Space, jobs: &[&str], faults: &Faults, refusals: usize) -> Result<()> {
    let is_refusal = |request: &&RecordedRequest| {
        (request.call.verb, &*request.call.resource) == (Verb::Create, "podgroups") && request.status == Some(403)
    };
    let changes = AtomicUsize::new(0);
    let early = eventually("the PodGroups are refused repeatedly", || async {
        let number = changes.fetch_add(1, Ordering::Relaxed).to_string();
        let mut early = Vec::new();
        for job in jobs {
            let changed: Job = space.patch(job, json!({"metadata": {"labels": {"number": number}}})).await?;
            let status = changed.status.unwrap_or_default();
            let pods = owned(space, "pods", job).await?.len();
            if pods > 0 || status != JobStatus::default() {
                early.push(format!("{job} has {pods} pods, {status:?}"));
            }
        }
        let refused = faults.requests().iter().filter(is_refusal).count();
        ensure!(!early.is_empty() || refused >= refusals * jobs.len(), "{refused} refusals");
        Ok(early)
    })
    .await?;
    ensure!(early.is_empty(), "{early:?}");
    Ok(())
}

/// Pods that are created without the group of their Job are never scheduled together. A Job whose group is refused
/// waits for it, even if it is suspended, and after a restart of the manager.
pub async fn jobs_have_no_pods_while_their_groups_are_refused(_: Space) -> Result<()> {
    let (bed, space) = serving("refused").await?;
    refuse_groups(&space).await?;
    let (faults, flags) = (Faults::default(), [GATES, "--controllers=job"]);
    let manager = Manager::start_cluster_wide(&space, &faults, &flags).await?;
    for (name, suspend) in [("gang", false), ("suspended", true)] {
        let gang = job(&space, name, json!({"schedulingPolicy": {"gang": {}}}));
        let gang = with(gang, json!({"spec": {"suspend": suspend}}));
        bed.cluster.kubectl_with_input(&["create", "-f", "-"], &gang.to_string())?;
    }
    // The delays double from one second, and changes of labels are coalesced over one second: from the third attempt
    // on, a Job is reconciled before its next attempt.
    let jobs = ["gang", "suspended"];
    wait_for_their_groups(&space, &jobs, &faults, 4).await?;
    manager.crash().await;

    let faults = Faults::default();
    let manager = Manager::start_cluster_wide(&space, &faults, &flags).await?;
    wait_for_their_groups(&space, &jobs, &faults, 4).await?;
    space.delete::<ResourceQuota>("none").await?;
    grouped(&space, "gang", 2).await?;
    grouped(&space, "suspended", 0).await?;
    space.patch::<Job>("suspended", json!({"spec": {"suspend": false}})).await?;
    grouped(&space, "suspended", 2).await?;
    manager.stop().await?;
    Ok(())
}
