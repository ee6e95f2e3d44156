//! Jobs whose pods are scheduled as a group: their Workload and PodGroup.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::with;
use cluster_tests::{Bed, Effect, Faults, Manager, Rule, Space, Verb, eventually};
use control_plane::Options;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::ServiceAccount;
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

/// The Workloads or PodGroups that are controlled by a Job.
async fn owned(space: &Space, resource: &str, job: &str) -> Result<Vec<Value>> {
    let mut all = items(space, resource).await?;
    all.retain(|object| object["metadata"]["ownerReferences"][0]["name"] == job);
    Ok(all)
}

/// Waits until all pods of a Job are in one group, and returns that.
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

/// A namespace of a control plane that serves Workloads and PodGroups.
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

/// A Job of this parent, which delegates the PodGroup to it.
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

    // The size is the template's, whatever the Job's parallelism is.
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
