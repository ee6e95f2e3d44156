//! Names that no object can have, in the references and annotations of tenants: they never become part of a request's
//! path.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use cluster_tests::objects::names;
use cluster_tests::{Call, Faults, Manager, QUIET, Space, Verb, during, eventually};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Pod, Secret};
use serde_json::json;

/// Hostile names, and whether upstream's clients send a request for an object with that name.
const NAMES: [(&str, bool); 12] = [
    ("missing", true),
    ("?watch=true&timeoutSeconds=99999999", true),
    ("a b", true),
    (" ", true),
    ("#", true),
    ("\u{8a9e}\u{202e}", true),
    ("line\nbreak", true),
    ("kube-system/secrets?watch=true", false),
    ("../x", false),
    ("%2e%2e", false),
    ("..", false),
    ("plain/", false),
];

/// Returns a name that is longer than the maximum path of a request.
fn long_name() -> String {
    "x".repeat(70_000)
}

/// Returns the number of a controller's reads that are not a GET of one object of this resource.
fn other_reads(faults: &Faults, account: &str, resource: &str) -> usize {
    faults.count(|call| {
        let is_read = matches!(call.verb, Verb::Get | Verb::List | Verb::Watch);
        call.account.ends_with(account) && is_read && (call.verb != Verb::Get || call.resource != resource)
    })
}

pub async fn pods_of_jobs_with_hostile_names_are_released(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, &["--controllers=job-controller"]).await?;
    let long = long_name();
    let jobs: Vec<&str> = NAMES.iter().map(|(name, _)| *name).chain([&*long]).collect();
    try_join_all(jobs.iter().enumerate().map(|(n, name)| {
        let owner = json!({
            "apiVersion": "batch/v1", "kind": "Job", "name": name, "controller": true,
            "uid": format!("00000000-0000-4000-8000-{n:012}"),
        });
        space.create::<Pod>(json!({
            "metadata": {
                "name": format!("orphan-{n}"), "ownerReferences": [owner],
                "finalizers": ["batch.kubernetes.io/job-tracking"],
            },
            "spec": {"containers": [{"name": "main", "image": "example.com/once:1"}]},
        }))
    }))
    .await?;
    let created = names(&space.list::<Pod>("").await?);
    ensure!(created.len() == jobs.len(), "created: {created:?}");
    for name in &created {
        space.delete::<Pod>(name).await?;
    }
    eventually("all deleted pods are released", || async {
        let held = names(&space.list::<Pod>("").await?);
        ensure!(held.is_empty(), "not released: {held:?}");
        Ok(())
    })
    .await?;
    let other_reads = other_reads(&faults, "job-controller", "jobs");
    ensure!(other_reads == 0, "{other_reads} reads of something else");
    Ok(())
}

pub async fn secrets_of_accounts_with_hostile_names_are_deleted_or_kept_as_in_upstream(space: Space) -> Result<()> {
    let faults = Faults::default();
    let key = format!("--service-account-private-key-file={}", space.bed.cluster.service_account_key().display());
    let flags = ["--controllers=serviceaccount-token-controller", &*key];
    let _manager = Manager::start_with(&space, &faults, &flags).await?;
    try_join_all(NAMES.iter().enumerate().map(|(n, (name, _))| {
        space.create::<Secret>(json!({
            "metadata": {
                "name": format!("token-{n}"), "annotations": {"kubernetes.io/service-account.name": name},
            },
            "type": "kubernetes.io/service-account-token",
        }))
    }))
    .await?;
    let kept = NAMES.iter().enumerate().filter(|(_, (_, is_looked_up))| !is_looked_up);
    let kept: BTreeSet<String> = kept.map(|(n, _)| format!("token-{n}")).collect();
    let are_left = || async {
        let left: BTreeSet<String> = names(&space.list::<Secret>("").await?).into_iter().collect();
        ensure!(left == kept, "remaining: {left:?}");
        Ok(())
    };
    eventually("Secrets of accounts that do not exist are deleted", are_left).await?;
    during(QUIET, "the other objects stay", are_left).await?;
    // This controller has no account of its own: its requests are those of the manager.
    let is_own = |call: &Call| call.namespace == space.namespace;
    let elsewhere = faults.count(|call| call.verb == Verb::Get && !call.name.is_empty() && !is_own(call));
    ensure!(elsewhere == 0, "{elsewhere} reads of objects of other namespaces");
    Ok(())
}
