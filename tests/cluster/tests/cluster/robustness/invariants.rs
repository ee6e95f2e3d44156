//! Invariants of every controller: its role permits its requests, its writes are declared, and it writes nothing
//! without work.

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{deployment, replica_set, with};
use cluster_tests::{Call, Faults, Manager, QUIET, Space, during, eventually};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::Pod;
use kcm::context::{Verb, Write};
use kcm::flags::controllers::UPSTREAM;
use kcm::flags::{GATES, Gates};
use kcm::registry::CONTROLLERS;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::workloads::deployment::{revision, rolled_out, set_image};
use crate::workloads::replicaset::settled;

/// Makes controllers create, change and delete objects.
async fn cause_writes(space: &Space) -> Result<()> {
    space.create::<Pod>(cluster_tests::objects::pod("orphan", "web")).await?;
    space.create::<ReplicaSet>(replica_set("web", 3)).await?;
    settled(space, "web", 3).await?;
    space.scale::<ReplicaSet>("web", 1).await?;
    settled(space, "web", 1).await?;
    space.create::<Deployment>(with(deployment("app", 2), json!({"spec": {"revisionHistoryLimit": 0}}))).await?;
    rolled_out(space, "app", 2).await?;
    set_image(space, "app", 2).await?;
    eventually("the next revision", || async { revision(space, "app", "2").await }).await?;
    rolled_out(space, "app", 2).await?;
    Ok(())
}

/// Waits until nothing was written for [`QUIET`]. Fails if the writes do not stop.
pub async fn until_quiet(faults: &Faults) -> Result<()> {
    until_constant("writing", || faults.writes()).await
}

/// Waits until a count has not changed for [`QUIET`].
pub async fn until_constant<T: PartialEq + std::fmt::Debug>(what: &str, count: impl Fn() -> T) -> Result<()> {
    let (mut last, mut since) = (count(), tokio::time::Instant::now());
    let begun = since;
    while since.elapsed() < QUIET {
        ensure!(begun.elapsed() < cluster_tests::DEADLINE, "it never stops {what}: {last:?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        if count() != last {
            (last, since) = (count(), tokio::time::Instant::now());
        }
    }
    Ok(())
}

pub async fn idle_cluster_gets_no_writes(space: Space) -> Result<()> {
    let faults = Faults::default();
    let manager = Manager::start(&space, &faults).await?;
    cause_writes(&space).await?;
    // With the gate StorageVersionAPI, every StorageVersion is read at the start.
    until_constant("sending requests", || faults.count(|_| true)).await?;
    let sent = faults.requests().len();
    during(3 * QUIET, "no request is sent", || async {
        let requests = faults.requests();
        let more: Vec<String> = requests[sent..].iter().map(|request| request.call.to_string()).collect();
        ensure!(more.is_empty(), "requests: {more:?}");
        Ok(())
    })
    .await?;
    manager.stop().await?;

    let restarted = Faults::default();
    let _manager = Manager::start(&space, &restarted).await?;
    restarted.until_watching(&["pods"]).await?;
    during(QUIET, "a restart changes nothing", || async {
        ensure!(restarted.writes() == 0, "{:?}", restarted.requests());
        Ok(())
    })
    .await
}

pub async fn each_kind_is_watched_once(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    cause_writes(&space).await?;
    let watches = faults.max_watches();
    ensure!(!watches.is_empty() && watches.values().all(|open| *open == 1), "concurrent watches: {watches:?}");
    Ok(())
}

fn verb(write: &Write) -> &'static str {
    match write.verb {
        Verb::Create => "create",
        Verb::Update => "update",
        Verb::Patch => "patch",
        Verb::Delete => "delete",
    }
}

/// Returns namespace and name of the objects that an account's role is limited to; an empty name stands for all objects
/// of the namespace.
fn role_limit(account: &str) -> Option<(&'static str, &'static str)> {
    match account {
        "bootstrap-signer" => Some(("kube-public", "cluster-info")),
        "token-cleaner" => Some(("kube-system", "")),
        _ => None,
    }
}

/// Permissions of ccm that the API server's own roles lack.
const CCM_TARGETS_RBAC: &str = include_str!("../../../../../deploy/ccm-targets-rbac.yaml");

/// Writes that a controller's role permits only with a gate.
const WITH_GATE: &[(&str, &str)] = &[("podgroups/status", "DRAWorkloadResourceClaims")];

pub async fn declared_writes_are_allowed(space: Space) -> Result<()> {
    tokio::task::block_in_place(|| space.bed.cluster.kubectl_with_input(&["apply", "--filename=-"], CCM_TARGETS_RBAC))?;
    let reviews: Api<SubjectAccessReview> = Api::all(space.bed.client.clone());
    let allowed = |account: &'static str, verb: &'static str, group: &'static str, resource: &'static str| {
        let (reviews, space) = (reviews.clone(), space.clone());
        async move {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let (namespace, name) = role_limit(account).unwrap_or((&space.namespace, ""));
            let (user, groups) = match account {
                "" => ("system:kube-controller-manager".to_owned(), vec!["system:authenticated"]),
                account => (
                    format!("system:serviceaccount:kube-system:{account}"),
                    vec!["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
                ),
            };
            let review = serde_json::from_value(json!({"spec": {
                "user": user, "groups": groups,
                "resourceAttributes": {
                    "namespace": namespace, "name": name, "verb": verb, "group": group,
                    "resource": resource, "subresource": subresource,
                },
            }}))?;
            let reviewed = reviews.create(&PostParams::default(), &review).await?;
            anyhow::Ok(reviewed.status.context("no status")?.allowed)
        }
    };
    let of_ccm = ccm::registry::CONTROLLERS.iter().map(|controller| (controller.service_account, controller.writes));
    // The API server creates the roles of controllers behind gates only with these gates.
    let gates = Gates::of(&GATES);
    let has_role = |name: &str| {
        let mut known = UPSTREAM.iter().filter(|controller| controller.name == name);
        known.any(|controller| controller.gates.iter().all(|gate| gates.enabled(gate)))
    };
    let of_kcm = CONTROLLERS.iter().filter(|controller| has_role(controller.name));
    let declared = of_kcm.map(|controller| (controller.service_account, controller.writes)).chain(of_ccm);
    let is_gated = |resource: &str| WITH_GATE.iter().any(|(of, gate)| *of == resource && !gates.enabled(gate));
    for (account, writes) in declared {
        for write in writes.iter().filter(|write| !is_gated(write.resource)) {
            let (verb, group, resource) = (verb(write), write.group, write.resource);
            eventually(format!("{account} may {verb} {resource}"), || async {
                ensure!(allowed(account, verb, group, resource).await?, "it may not");
                Ok(())
            })
            .await?;
        }
        let never = if account.is_empty() { "pods" } else { "secrets" };
        ensure!(!allowed(account, "create", "", never).await?, "{account} may do anything: this proves nothing");
    }
    Ok(())
}

/// Checks that no request was refused, that each controller wrote only what it declares, and that these controllers
/// wrote at all.
pub fn only_declared(faults: &Faults, worked: &[&str]) -> Result<()> {
    let is_declared = |call: &Call| {
        let ours = CONTROLLERS.iter().filter(|controller| controller.service_account == call.account);
        let writes = ours.flat_map(|controller| controller.writes);
        writes.into_iter().any(|write| {
            (verb(write), write.group, write.resource) == (call.verb.as_str(), &call.group, &call.resource)
        })
    };
    let requests = faults.requests();
    let refused: Vec<_> = requests.iter().filter(|request| matches!(request.status, Some(401 | 403))).collect();
    ensure!(refused.is_empty(), "refused: {refused:?}");
    let (declared, undeclared): (Vec<_>, Vec<_>) =
        requests.iter().filter(|request| request.call.is_write()).partition(|request| is_declared(&request.call));
    ensure!(undeclared.is_empty(), "written without being declared: {undeclared:?}");
    for controller in CONTROLLERS.iter().filter(|controller| worked.contains(&controller.name)) {
        let account = controller.service_account;
        let has_written =
            declared.iter().any(|request| request.call.is_object_write() && request.call.account == account);
        ensure!(has_written, "{} wrote nothing: this proves nothing", controller.name);
    }
    Ok(())
}

pub async fn writes_are_declared(space: Space) -> Result<()> {
    let faults = Faults::default();
    let manager = Manager::start(&space, &faults).await?;
    cause_writes(&space).await?;
    manager.stop().await?;
    only_declared(&faults, &["deployment-controller", "replicaset-controller"])
}
