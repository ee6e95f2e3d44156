//! Creations in a namespace that is being deleted, for every controller that creates objects in namespaces: the API
//! server refuses them all. Rollouts in other namespaces meanwhile are in `workloads::refused_creations`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::{Call, Effect, Faults, Manager, Rule, Space, Verb, eventually, variants};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{Api, DeleteParams};
use tokio::time::Instant;

use super::refusing_admission::{CREATIONS, count, create_owners, refusals, touch, until_refused};

/// All controllers that create objects in namespaces. The namespace controller does not run: the owners stay.
const CONTROLLERS: &str = "--controllers=cronjob-controller,daemonset-controller,deployment-controller,\
    endpoints-controller,endpointslice-controller,endpointslice-mirroring-controller,ephemeral-volume-controller,\
    job-controller,replicaset-controller,replicationcontroller-controller,resourceclaim-controller,\
    root-ca-certificate-publisher-controller,serviceaccount-controller,statefulset-controller";

/// Time for which the owners are changed: first while the manager does not know about the deletion, then once it does.
const OBSERVED: Duration = Duration::from_secs(5);
/// Minimum number of changes of each owner in that time, which is longer on a busy host.
const MIN_CHANGES: usize = 3;

/// Refused creations by account and resource.
type Refused = BTreeMap<(String, String), usize>;

/// The first creation of each owner is sent just before the namespace is deleted, and the manager does not receive the
/// deletion. Each creation is refused once. It is not repeated although the owners change; nor when the manager
/// receives the deletion.
///
/// Two variants: a StatefulSet or DaemonSet whose revision is refused creates no pods, so one variant admits revisions.
pub async fn each_owner_causes_at_most_one_refused_creation(space: Space) -> Result<()> {
    let variant = |admits_revisions: bool| (format!("admits revisions: {admits_revisions}"), admits_revisions);
    variants(&space, vec![variant(false), variant(true)], delete_namespace).await
}

async fn delete_namespace(space: Space, admits_revisions: bool) -> Result<()> {
    let nodes = create_owners(&space).await?;
    let faults = Faults::default();
    let namespace = space.namespace.clone();
    let is_held = move |call: &Call| {
        let is_admitted = call.resource == "events" || admits_revisions && call.resource == "controllerrevisions";
        call.verb == Verb::Create && call.namespace == namespace && !is_admitted
    };
    faults.add(Rule::new(is_held.clone(), Effect::Hold).times(usize::MAX));
    let manager = Manager::start_with(&space, &faults, &[CONTROLLERS]).await?;
    let expected = expected(admits_revisions);
    let sent = || {
        let sent = faults.requests().into_iter().map(|request| request.call).filter(|call| is_held(call));
        sent.fold(Refused::new(), |mut sent, call| {
            *sent.entry((call.account, call.resource)).or_default() += 1;
            sent
        })
    };
    // The default account is created by another manager.
    let held: Vec<_> =
        expected.iter().copied().filter(|(account, ..)| *account != "service-account-controller").collect();
    until_each_owner_is_in(&held, "sent", sent).await?;

    faults.freeze("namespaces");
    Api::<Namespace>::all(space.bed.client.clone()).delete(&space.namespace, &DeleteParams::default()).await?;
    until_refused(&space, "is being terminated").await?;
    space.delete::<ServiceAccount>("default").await?;
    faults.release();
    until_each_owner_is_in(&expected, "refused", || refusals(&space, &faults)).await?;
    change_owners(&space).await?;
    faults.thaw("namespaces");
    change_owners(&space).await?;

    check(&refusals(&space, &faults), &expected)?;
    manager.stop().await?;
    nodes.delete_nodes().await
}

/// Returns account and resource of each refused creation, with its number of owners.
fn expected(admits_revisions: bool) -> Vec<(&'static str, &'static str, usize)> {
    let owners = |account: &str, resource: &str| match (account, resource) {
        ("statefulset-controller", "controllerrevisions") => 3,
        ("statefulset-controller", "pods") | ("daemon-set-controller", _) => 2,
        _ => 1,
    };
    let has_revisions = |account: &str| ["daemon-set-controller", "statefulset-controller"].contains(&account);
    let is_refused = |account: &str, resource: &str| {
        !has_revisions(account) || (resource == "controllerrevisions") != admits_revisions
    };
    let creations = CREATIONS.iter().filter(|(account, resource, _)| is_refused(account, resource));
    creations.map(|(account, resource, _)| (*account, *resource, owners(account, resource))).collect()
}

async fn until_each_owner_is_in(
    expected: &[(&str, &str, usize)],
    what: &str,
    found: impl Fn() -> Refused,
) -> Result<()> {
    eventually(format!("a creation of each owner is {what}"), || async {
        let found = found();
        let is_missing =
            |(account, resource, owners): &&(&str, &str, usize)| count(&found, account, resource) < *owners;
        let missing: Vec<_> = expected.iter().filter(is_missing).collect();
        ensure!(missing.is_empty(), "not {what}: {missing:?} in {found:?}");
        Ok(())
    })
    .await
}

/// Changes the owners repeatedly, for [`OBSERVED`].
async fn change_owners(space: &Space) -> Result<()> {
    let (since, changes) = (Instant::now(), AtomicUsize::new(0));
    eventually("the owners are changed repeatedly", || async {
        touch(space, changes.fetch_add(1, Ordering::Relaxed)).await?;
        ensure!(since.elapsed() >= OBSERVED && changes.load(Ordering::Relaxed) >= MIN_CHANGES);
        Ok(())
    })
    .await
}

fn check(refused: &Refused, expected: &[(&str, &str, usize)]) -> Result<()> {
    eprintln!("refused creations: {refused:?}");
    for (account, resource, owners) in expected {
        let found = count(refused, account, resource);
        ensure!(found == *owners, "{found} creations of {resource} by {account} for {owners} owners: {refused:#?}");
    }
    let events: usize = refused.iter().filter(|((_, resource), _)| resource == "events").map(|(_, count)| count).sum();
    let all: usize = expected.iter().map(|(_, _, owners)| owners).sum();
    ensure!(events <= all, "{events} refused events for {all} refused creations: {refused:#?}");
    let is_expected = |account: &str| expected.iter().any(|(known, ..)| *known == account);
    let others: Vec<_> =
        refused.keys().filter(|(account, resource)| resource != "events" && !is_expected(account)).collect();
    ensure!(others.is_empty(), "other controllers create objects, too: {others:?}");
    Ok(())
}
