//! Creations that the API server refuses: their number, and their effect on other namespaces.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{deployment, replica_set, template, with};
use cluster_tests::{Bed, Faults, Manager, Space, Verb, during, eventually};
use control_plane::Options;
use control_plane::behaviour::{BEHAVIOUR, FLAP, READY, UNREADY};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Pod, ResourceQuota, ServiceAccount};
use kube::api::{Api, DeleteParams};
use serde_json::json;
use tokio::time::Instant;

/// Deployments of the namespace that is deleted.
const DEPLOYMENTS: usize = 10;
/// Pods of each Deployment.
const REPLICAS: i32 = 20;
/// Pods of each Deployment in a namespace where further pods are refused.
const FEW_REPLICAS: i32 = 6;

/// The rate limits that both managers have by default.
const DEFAULT_LIMITS: &[&str] = &["--kube-api-qps=20", "--kube-api-burst=30"];

/// While a namespace is deleted, each of its Deployments causes at most one refused creation of each resource. A
/// rollout in another namespace takes its usual time.
pub async fn deleted_namespace_does_not_delay_others(_: Space) -> Result<()> {
    let bed = Arc::new(Bed::without_accounts(Options { nodes: 4, ..Options::default() }).await?);
    let faults = Faults::default();
    let TwoNamespaces { home, other, _manager } = TwoNamespaces::start(&bed, &faults, REPLICAS).await?;
    let usual = roll(&other, 2).await?;

    delete(&home).await?;
    let during_deletion = roll(&other, 3).await?;
    until_deleted(&home).await?;
    let usual = usual.max(roll(&other, 4).await?);
    let refused = refused(&faults, &home.namespace);
    eprintln!("usual {usual:?}, during the deletion {during_deletion:?}, refused creations: {refused:?}");
    for (resource, count) in &refused {
        ensure!(*count <= DEPLOYMENTS, "{count} refused creations of {resource}: {refused:?}");
    }
    check_duration(during_deletion, usual)
}

/// While a quota refuses the new pods of a namespace's Deployments, their ReplicaSets repeat the creations with
/// backoff. A rollout in another namespace takes its usual time, even while the first namespace is deleted.
pub async fn refused_namespace_does_not_delay_others(_: Space) -> Result<()> {
    let bed = Arc::new(Bed::without_accounts(Options { nodes: 4, ..Options::default() }).await?);
    let faults = Faults::default();
    let TwoNamespaces { home, other, _manager } = TwoNamespaces::start(&bed, &faults, FEW_REPLICAS).await?;
    let usual = roll(&other, 2).await?;
    refuse_pods(&home).await?;
    let during_refusals = roll(&other, 3).await?;
    eventually("each Deployment's new pods are refused", || async {
        let count = refused(&faults, &home.namespace).get("pods").copied().unwrap_or(0);
        ensure!(count >= DEPLOYMENTS, "{count} refusals");
        Ok(())
    })
    .await?;
    let during_backoff = roll(&other, 4).await?;
    delete(&home).await?;
    let during_deletion = roll(&other, 5).await?;
    until_deleted(&home).await?;
    let usual = usual.max(roll(&other, 6).await?);
    let refused = refused(&faults, &home.namespace);
    let rollouts = [during_refusals, during_backoff, during_deletion];
    eprintln!("usual {usual:?}, then {rollouts:?}, refused creations: {refused:?}");
    // Each Deployment has two ReplicaSets. The delays double from 5 ms: 14 attempts in a minute, and one more after
    // each change.
    let pods = refused.get("pods").copied().unwrap_or(0);
    ensure!(pods <= DEPLOYMENTS * 2 * 16, "{pods} refused creations of pods");
    rollouts.into_iter().try_for_each(|took| check_duration(took, usual))
}

/// Two namespaces with Deployments, under a manager with the default rate limits.
struct TwoNamespaces {
    /// With many Deployments.
    home: Space,
    /// With one Deployment, `web`.
    other: Space,
    _manager: Manager,
}

impl TwoNamespaces {
    /// Waits until all Deployments are rolled out; those of `home` have this many replicas each.
    async fn start(bed: &Arc<Bed>, faults: &Faults, replicas: i32) -> Result<Self> {
        let (home, other) = (bed.space("crowded").await?, bed.space("other").await?);
        let manager = Manager::start_cluster_wide(&home, faults, DEFAULT_LIMITS).await?;
        for space in [&home, &other] {
            eventually("the default service account", || space.get::<ServiceAccount>("default")).await?;
        }
        other.create::<Deployment>(deployment("web", 6)).await?;
        for at in 0..DEPLOYMENTS {
            home.create::<Deployment>(deployment(&format!("web-{at}"), replicas)).await?;
        }
        for at in 0..DEPLOYMENTS {
            complete(&home, &format!("web-{at}"), replicas).await?;
        }
        complete(&other, "web", 6).await?;
        Ok(Self { home, other, _manager: manager })
    }
}

async fn delete(space: &Space) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(space.bed.client.clone());
    namespaces.delete(&space.namespace, &DeleteParams::default()).await?;
    Ok(())
}

async fn until_deleted(space: &Space) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(space.bed.client.clone());
    eventually("the namespace is deleted", || async {
        ensure!(namespaces.get_opt(&space.namespace).await?.is_none(), "{} pods", space.list::<Pod>("").await?.len());
        Ok(())
    })
    .await
}

/// Checks that a rollout took its usual time, with room for a busy host: `usual` is the longer duration of two other
/// rollouts, one before and one after.
fn check_duration(took: Duration, usual: Duration) -> Result<()> {
    ensure!(took <= usual * 3 + Duration::from_secs(5), "a rollout took {took:?}, usually {usual:?}");
    Ok(())
}

/// Sets a quota that is exceeded already, and begins a rollout of each Deployment in the namespace.
async fn refuse_pods(space: &Space) -> Result<()> {
    space.create::<ResourceQuota>(json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}})).await?;
    eventually("the quota has its usage", || async {
        let status = space.get::<ResourceQuota>("few").await?.status.unwrap_or_default();
        ensure!(status.used.is_some_and(|used| used.contains_key("pods")));
        Ok(())
    })
    .await?;
    for at in 0..DEPLOYMENTS {
        let name = format!("web-{at}");
        let template = template(&name, "example.com/image:2", &json!({}));
        let spec = json!({"replicas": FEW_REPLICAS + 10, "template": template});
        space.patch::<Deployment>(&name, json!({"spec": spec})).await?;
    }
    Ok(())
}

/// Returns the number of refused creations of a namespace, by resource.
fn refused(faults: &Faults, namespace: &str) -> BTreeMap<String, usize> {
    let mut refused = BTreeMap::new();
    let creations = faults.requests().into_iter().filter(|request| request.call.verb == Verb::Create);
    for request in creations
        .filter(|request| request.call.namespace == namespace && request.status.is_some_and(|code| code >= 400))
    {
        *refused.entry(request.call.resource).or_default() += 1;
    }
    refused
}

/// Rolls `web` out with another image. Returns the duration.
async fn roll(space: &Space, version: u32) -> Result<Duration> {
    let began = Instant::now();
    let image = format!("example.com/image:{version}");
    space.patch::<Deployment>("web", json!({"spec": {"template": template("web", &image, &json!({}))}})).await?;
    complete(space, "web", 6).await?;
    Ok(began.elapsed())
}

async fn complete(space: &Space, name: &str, replicas: i32) -> Result<()> {
    eventually(format!("{name} is rolled out"), || async {
        let found: Deployment = space.get(name).await?;
        let status = found.status.context("no status")?;
        ensure!(status.observed_generation == found.metadata.generation, "not observed: {status:?}");
        let counts = [status.updated_replicas, status.available_replicas, status.replicas];
        ensure!(counts == [Some(replicas); 3], "{status:?}");
        Ok(())
    })
    .await
}

/// While a quota refuses creations, constant changes of pods do not shorten the backoff; the loss of a pod ends it.
pub async fn refused_creations_back_off_while_pods_change(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    space.create::<ResourceQuota>(json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "3"}}})).await?;
    // The quota controller does not run: the test writes the status.
    let status = json!({"status": {"hard": {"pods": "3"}, "used": {"pods": "0"}}});
    space.patch_status::<ResourceQuota>("few", status).await?;
    let flapping = json!({"spec": {"template": {"metadata": {"annotations": {BEHAVIOUR: FLAP}}}}});
    space.create::<ReplicaSet>(with(replica_set("web", 4), flapping)).await?;
    eventually("three pods exist, and a creation is refused", || async {
        ensure!(space.pods("web").await?.len() == 3);
        ensure!(refused(&faults, &space.namespace).contains_key("pods"));
        Ok(())
    })
    .await?;
    during(Duration::from_secs(8), "three pods", || async {
        ensure!(space.pods("web").await?.len() == 3);
        Ok(())
    })
    .await?;
    // The delays double from 5 ms: 11 attempts in 10 seconds, and one more for each pod that was created in that time.
    let attempts = refused(&faults, &space.namespace).get("pods").copied().unwrap_or(0);
    ensure!(attempts <= 16, "{attempts} refused creations");

    let lost = space.pods("web").await?.remove(0).metadata.name.context("a pod without a name")?;
    space.patch_status::<ResourceQuota>("few", json!({"status": {"used": {"pods": "2"}}})).await?;
    let began = Instant::now();
    space.delete::<Pod>(&lost).await?;
    eventually("a pod that was lost is replaced", || async {
        let pods = space.pods("web").await?;
        ensure!(pods.len() == 3 && pods.iter().all(|pod| pod.metadata.name.as_ref() != Some(&lost)));
        Ok(())
    })
    .await?;
    ensure!(began.elapsed() < Duration::from_secs(5), "the replacement waited for the backoff: {:?}", began.elapsed());
    Ok(())
}

/// While a quota refuses creations for a Job, constant changes of its pods do not shorten the backoff.
pub async fn refused_creations_of_a_job_back_off_while_pods_change(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    space.create::<ResourceQuota>(json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "3"}}})).await?;
    let status = json!({"status": {"hard": {"pods": "3"}, "used": {"pods": "0"}}});
    space.patch_status::<ResourceQuota>("few", status).await?;
    let mut template = template("sums", "example.com/image:1", &json!({BEHAVIOUR: FLAP}));
    template["spec"]["restartPolicy"] = "Never".into();
    let spec = json!({"completions": 4, "parallelism": 4, "template": template});
    space.create::<Job>(json!({"metadata": {"name": "sums"}, "spec": spec})).await?;
    let count = || refused(&faults, &space.namespace).get("pods").copied().unwrap_or(0);
    eventually("three pods exist, and a creation is refused", || async {
        ensure!(space.pods("sums").await?.len() == 3);
        ensure!(count() > 0);
        Ok(())
    })
    .await?;
    during(Duration::from_secs(12), "three pods", || async {
        ensure!(space.pods("sums").await?.len() == 3);
        Ok(())
    })
    .await?;
    // The delays double from one second: 4 attempts in 15 seconds, and one more for each pod that was created in that
    // time.
    ensure!(count() <= 8, "{} refused creations", count());
    Ok(())
}

/// The status follows its pods although each reconcile fails because of a refused creation.
pub async fn status_follows_pods_while_creations_are_refused(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<ResourceQuota>(json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "3"}}})).await?;
    let status = json!({"status": {"hard": {"pods": "3"}, "used": {"pods": "0"}}});
    space.patch_status::<ResourceQuota>("few", status).await?;
    space.create::<ReplicaSet>(replica_set("web", 4)).await?;
    let available = |expected: i32| {
        let space = space.clone();
        eventually(format!("{expected} pods are available"), move || {
            let space = space.clone();
            async move {
                let set: ReplicaSet = space.get("web").await?;
                let status = set.status.unwrap_or_default();
                ensure!(status.available_replicas.unwrap_or(0) == expected, "{status:?}");
                Ok(())
            }
        })
    };
    available(3).await?;
    // After this time, the backoff has grown to about ten seconds.
    during(Duration::from_secs(12), "three pods", || async {
        ensure!(space.pods("web").await?.len() == 3);
        Ok(())
    })
    .await?;
    let name = space.pods("web").await?.remove(0).metadata.name.context("a pod without a name")?;
    space.kubectl(&["annotate", "pod", &name, &format!("{BEHAVIOUR}={UNREADY}")]).await?;
    available(2).await?;
    space.kubectl(&["annotate", "pod", &name, &format!("{BEHAVIOUR}={READY}"), "--overwrite"]).await?;
    let began = Instant::now();
    available(3).await?;
    ensure!(began.elapsed() < Duration::from_secs(4), "the status waited for the backoff: {:?}", began.elapsed());
    Ok(())
}
