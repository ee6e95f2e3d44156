//! A custom kind that the manager's role permits it to list but not to watch.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::{Bed, CustomObjects, Faults, Manager, RecordedRequest, Space, Verb, eventually};
use control_plane::{CustomKind, Identity, Options};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

const GARBAGE_COLLECTOR: &[&str] = &["--enable-garbage-collector=true", "--controllers=garbage-collector-controller"];

/// Time for the deletion of an object without owner: shorter than the garbage collector's wait for kinds that it cannot
/// list, which is 30 s.
const PROMPT: Duration = Duration::from_secs(25);

/// Requests of one attempt: a streaming list, a list by pages, and a watch.
const REQUESTS_PER_ATTEMPT: usize = 3;

/// Returns the maximum number of attempts in this time: the pauses grow from 0.8 s to 30 s.
fn max_attempts(elapsed: Duration) -> usize {
    let (mut attempts, mut next, mut pause) = (0, Duration::ZERO, Duration::from_millis(800));
    while next <= elapsed {
        attempts += 1;
        next += pause;
        pause = (pause * 2).min(Duration::from_secs(30));
    }
    attempts
}

/// Returns true if the manager's identity has a right on a kind.
async fn may(space: &Space, verb: &str, kind: &CustomKind) -> Result<bool> {
    let review = serde_json::from_value(json!({"spec": {
        "user": Identity::ControllerManager.user(),
        "resourceAttributes": {
            "namespace": space.namespace, "verb": verb, "group": kind.group(), "resource": kind.plural(),
        },
    }}))?;
    let reviews: Api<SubjectAccessReview> = Api::all(space.bed.client.clone());
    Ok(reviews.create(&PostParams::default(), &review).await?.status.context("no status")?.allowed)
}

/// Limits the right to watch in the manager's role to the groups without `listed`, and to the kind `watched`.
async fn limit_watches(space: &Space, listed: &CustomKind, watched: &CustomKind) -> Result<()> {
    let groups = space.bed.client.list_api_groups().await?.groups.into_iter().map(|group| group.name);
    let others: Vec<String> = groups.filter(|group| group != listed.group()).chain([String::new()]).collect();
    let roles: Api<ClusterRole> = Api::all(space.bed.client.clone());
    let mut role = roles.get(Identity::ControllerManager.user()).await?;
    let rules = role.rules.get_or_insert_default();
    for rule in rules.iter_mut().filter(|rule| rule.api_groups.iter().flatten().any(|group| group == "*")) {
        rule.verbs.retain(|verb| verb != "watch");
    }
    for (groups, resource) in [(others, "*"), (vec![watched.group().to_owned()], watched.plural())] {
        rules.push(serde_json::from_value(json!({"apiGroups": groups, "resources": [resource], "verbs": ["watch"]}))?);
    }
    roles.replace(&role.name_any(), &PostParams::default(), &role).await?;
    eventually("the role has an effect", || async {
        ensure!(may(space, "list", listed).await? && may(space, "watch", watched).await?, "a right is missing");
        ensure!(!may(space, "watch", listed).await?, "the kind may be watched");
        Ok(())
    })
    .await
}

/// Returns metadata of an object whose owner does not exist.
fn garbage(name: &str) -> Value {
    json!({"metadata": {"name": name, "ownerReferences": [{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "missing", "uid": "6f1f6c0e-0000-4000-8000-000000000001",
    }]}})
}

async fn until_deleted(objects: &CustomObjects, name: &str) -> Result<()> {
    eventually(format!("{name} is deleted"), || async {
        ensure!(objects.api.get_opt(name).await?.is_none(), "it exists");
        Ok(())
    })
    .await
}

async fn until_map_deleted(space: &Space, name: &str) -> Result<()> {
    eventually(format!("{name} is deleted"), || async {
        ensure!(space.api::<ConfigMap>().get_opt(name).await?.is_none(), "it exists");
        Ok(())
    })
    .await
}

pub async fn kind_without_right_to_watch_is_collected_and_delays_no_others(space: Space) -> Result<()> {
    let bed = Bed::without_accounts(Options { kwok: false, scheduler: false, ..Options::default() }).await?;
    let space = Arc::new(bed).space(&space.namespace).await?;
    let kind = |name| CustomKind::new(space.api_group(), name);
    let (widgets, gadgets) = (space.define(kind("Widget")).await?, space.define(kind("Gadget")).await?);
    limit_watches(&space, &widgets.kind, &gadgets.kind).await?;
    let owner = widgets.create(json!({"metadata": {"name": "owner"}})).await?;
    let owned = json!({"metadata": {"name": "owned", "ownerReferences": [widgets.reference(&owner)]}});
    space.create::<ConfigMap>(owned).await?;
    widgets.create(garbage("widget")).await?;

    let (faults, start) = (Faults::default(), Instant::now());
    let _manager = Manager::start_with(&space, &faults, GARBAGE_COLLECTOR).await?;
    timeout(PROMPT, until_deleted(&widgets, "widget")).await.context("the kind is listed late")??;
    space.create::<ConfigMap>(garbage("map")).await?;
    gadgets.create(garbage("gadget")).await?;
    let others = async { tokio::try_join!(until_map_deleted(&space, "map"), until_deleted(&gadgets, "gadget")) };
    timeout(PROMPT, others).await.context("other kinds are delayed")??;
    ensure!(space.api::<ConfigMap>().get_opt("owned").await?.is_some(), "its owner exists");
    widgets.api.delete("owner", &Default::default()).await?;
    // Only the next list shows that.
    until_map_deleted(&space, "owned").await?;

    let max = REQUESTS_PER_ATTEMPT * max_attempts(start.elapsed());
    let mut requests = faults.requests();
    requests.retain(|request| request.call.resource == "widgets" && request.call.name.is_empty());
    let expected = |verb: Verb| if verb == Verb::Watch { 403 } else { 200 };
    let is_expected = |request: &RecordedRequest| request.status.is_none_or(|is| is == expected(request.call.verb));
    ensure!(requests.iter().all(is_expected), "{requests:?}");
    ensure!(requests.len() <= max, "{} requests instead of at most {max}: {requests:?}", requests.len());
    Ok(())
}
