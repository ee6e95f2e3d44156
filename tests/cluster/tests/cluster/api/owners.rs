//! Difficult owners for the garbage collector: deleted at the same moment, or with names that no object can have.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use cluster_tests::objects::{names, with};
use cluster_tests::{Bed, Faults, Manager, QUIET, Space, during, eventually};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Event};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::upstream::manager::{UPSTREAM, start_upstream};

const COLLECTOR: &str = "garbage-collector-controller";
const ALONE: &[&str] = &["--enable-garbage-collector=true", "--controllers=garbage-collector-controller"];

/// Number of pairs of owners that are deleted together.
const PAIRS: usize = 8;

fn reference(owner: &ConfigMap) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "name": owner.name_any(), "uid": owner.uid(),
        "blockOwnerDeletion": true,
    })
}

async fn config_map(space: &Space, name: String, owners: Vec<Value>) -> Result<ConfigMap> {
    space.create(json!({"metadata": {"name": name, "ownerReferences": owners}})).await
}

/// Waits until these ConfigMaps are left, and the root CA's.
async fn until_left(space: &Space, expected: &BTreeSet<String>) -> Result<()> {
    eventually(format!("{expected:?} are left"), || async { check_left(space, expected).await }).await
}

async fn check_left(space: &Space, expected: &BTreeSet<String>) -> Result<()> {
    let mut found: BTreeSet<String> = names(&space.list::<ConfigMap>("").await?).into_iter().collect();
    found.remove("kube-root-ca.crt");
    ensure!(found == *expected, "there are {found:?}");
    Ok(())
}

/// The first check of each dependent finds one owner that is being deleted and one that is not yet; the deletion of the
/// second owner must lead to another check that does not use the result of the first one.
pub async fn pairs_deleted_in_the_foreground_together_are_all_deleted(space: Space) -> Result<()> {
    let _manager = Manager::start_with(&space, &Faults::default(), ALONE).await?;
    let owners = try_join_all((0..PAIRS * 2).map(|n| config_map(&space, format!("owner-{n}"), vec![]))).await?;
    let pairs = owners.chunks(2).enumerate();
    try_join_all(pairs.map(|(n, pair)| {
        let owners = pair.iter().map(reference).collect();
        config_map(&space, format!("dependent-{n}"), owners)
    }))
    .await?;
    let api = space.api::<ConfigMap>();
    let foreground = DeleteParams::foreground();
    try_join_all(owners.iter().map(|owner| {
        let name = owner.name_any();
        let (api, foreground) = (&api, &foreground);
        async move { api.delete(&name, foreground).await }
    }))
    .await?;
    until_left(&space, &BTreeSet::new()).await
}

/// Creates an Event with this owner, and a ConfigMap that the Event owns. Events are not watched by the collector.
async fn chain(space: &Space, name: &str, owner: &ConfigMap) -> Result<()> {
    let event: Event = space
        .create(json!({
            "metadata": {"name": name, "ownerReferences": [reference(owner)]},
            "involvedObject": {"namespace": space.namespace},
        }))
        .await?;
    let reference = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "name": name, "uid": event.uid()});
    config_map(space, format!("{name}-dependent"), vec![reference]).await?;
    Ok(())
}

pub async fn owner_that_no_watch_delivers_is_deleted_with_its_own_owner(space: Space) -> Result<()> {
    let _manager = Manager::start_with(&space, &Faults::default(), ALONE).await?;
    let kept = config_map(&space, "kept".into(), vec![]).await?;
    let deleted = config_map(&space, "deleted".into(), vec![]).await?;
    chain(&space, "event-kept", &kept).await?;
    chain(&space, "event-deleted", &deleted).await?;
    space.api::<ConfigMap>().delete("deleted", &DeleteParams::background()).await?;
    until_left(&space, &["kept", "event-kept-dependent"].map(str::to_owned).into()).await?;
    let events = names(&space.list::<Event>("").await?);
    ensure!(events == ["event-kept"], "there are {events:?}");
    Ok(())
}

/// Names of owners, and whether upstream deletes a dependent of such an owner: the API server stores them all.
const HOSTILE: [(&str, bool); 44] = [
    ("plain", true),
    ("with space", true),
    (" ", true),
    ("tab\there", true),
    ("line\nbreak", true),
    ("return\rhere", true),
    ("nul\u{0}here", true),
    ("escape\u{1b}[31m", true),
    ("delete\u{7f}", true),
    ("Upper", true),
    ("ümläut", true),
    ("語", true),
    ("\u{202e}reversed", true),
    ("\u{1f4a3}", true),
    ("question?mark", true),
    ("?watch=true", true),
    ("hash#mark", true),
    ("#", true),
    ("and&more=1", true),
    ("semi;colon", true),
    ("quote\"", true),
    ("back\\slash", true),
    ("<script>", true),
    ("{curly}", true),
    ("[bracket]", true),
    ("%", false),
    ("%zz", false),
    ("%2e%2e%2fsecrets", false),
    ("%00", false),
    ("+plus+", true),
    ("~tilde", true),
    ("...", true),
    ("a/b", true),
    ("a/status", true),
    ("..", true),
    ("../secrets/token", true),
    ("../../kube-system/secrets/token", true),
    ("plain/", true),
    (".", false),
    ("/", false),
    ("a/..", false),
    ("../secrets", false),
    ("../../../..", false),
    ("../../../../../healthz", false),
];

/// Creates a dependent for each hostile name; returns those that have to stay.
async fn create_hostile_dependents(space: &Space) -> Result<BTreeSet<String>> {
    let dependent = |n: usize| format!("dependent-{n}");
    try_join_all(HOSTILE.iter().enumerate().map(|(n, (name, _))| {
        let uid = format!("00000000-0000-4000-8000-{n:012}");
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid});
        config_map(space, dependent(n), vec![owner])
    }))
    .await?;
    let stays = HOSTILE.iter().enumerate().filter(|(_, (_, collected))| !collected);
    Ok(stays.map(|(n, _)| dependent(n)).collect())
}

pub async fn hostile_owner_names_affect_no_other_object(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, ALONE).await?;
    // An object at the path that a hostile name leads to has the same uid, but is not the owner.
    let secret = space.create::<k8s_openapi::api::core::v1::Secret>(json!({"metadata": {"name": "token"}})).await?;
    let other_kind = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "../secrets/token", "uid": secret.uid()});
    config_map(&space, "other-kind".into(), vec![other_kind]).await?;
    let stay = create_hostile_dependents(&space).await?;
    until_left(&space, &stay).await?;
    during(QUIET, "the other ConfigMaps stay", || check_left(&space, &stay)).await?;
    let elsewhere = faults.count(|call| matches!(&*call.resource, "secrets") && !call.name.is_empty());
    ensure!(elsewhere == 0, "{elsewhere} requests for Secrets by name");
    // Other dependents are still collected.
    let owner = config_map(&space, "owner".into(), vec![]).await?;
    config_map(&space, "owned".into(), vec![with(reference(&owner), json!({"blockOwnerDeletion": false}))]).await?;
    space.delete::<ConfigMap>("owner").await?;
    until_left(&space, &stay).await
}

/// Checks the table of [`HOSTILE`] names with upstream's manager.
pub async fn dependents_of_hostile_owner_names_are_deleted_or_kept_as_in_upstream(_: Space) -> Result<()> {
    let bed = Bed::start().await?;
    let space = bed.space("hostile-upstream").await?;
    start_upstream(&bed.cluster, COLLECTOR, &[])?;
    let stay = create_hostile_dependents(&space).await?;
    let result = async {
        until_left(&space, &stay).await?;
        during(QUIET, "the other ConfigMaps stay", || check_left(&space, &stay)).await
    }
    .await;
    bed.cluster.kill(UPSTREAM)?;
    result
}
