//! Upstream's manager and ours take rollouts over from each other, and no pod is recreated that need not be.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{deployment, is_ready, uids, with};
use cluster_tests::{Bed, Call, Faults, Manager, Observer, QUIET, Space, during, eventually};
use control_plane::{ControlPlane, Identity};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::deployment::{revision, rolled_out, set_image};

pub const UPSTREAM: &str = "kube-controller-manager";

/// Runs upstream's manager with the controllers that are ours too.
pub fn start_upstream(cluster: &ControlPlane) -> Result<()> {
    let program = cluster.assets().upstream_manager()?;
    let flags = [
        format!("--kubeconfig={}", cluster.kubeconfig(Identity::ControllerManager)?.display()),
        "--controllers=deployment-controller,replicaset-controller".into(),
        "--use-service-account-credentials=true".into(),
        "--leader-elect=false".into(),
        "--secure-port=0".into(),
    ];
    cluster.run(UPSTREAM, &program, &flags)?;
    Ok(())
}

/// Begins an update and waits until it is half done: two pods of the new revision are ready, old ones are left.
async fn half_way(space: &Space, version: u32) -> Result<BTreeSet<String>> {
    set_image(space, "web", version).await?;
    let image = format!("example.com/image:{version}");
    eventually(format!("half of version {version}"), || async {
        let pods = space.pods("web").await?;
        let (new, old): (Vec<Pod>, Vec<Pod>) = pods.into_iter().partition(|pod| {
            let spec = pod.spec.as_ref();
            spec.and_then(|spec| spec.containers.first()?.image.clone()).as_ref() == Some(&image)
        });
        ensure!(
            new.iter().filter(|pod| is_ready(pod)).count() >= 2 && !old.is_empty(),
            "{} and {}",
            new.len(),
            old.len()
        );
        Ok(uids(&new).into_iter().collect())
    })
    .await
}

/// Waits for the end of the rollout; fails unless the pods of its first half are among those of its end, and no more
/// were made than one for each replica.
async fn finished(
    space: &Space,
    version: u32,
    half: &BTreeSet<String>,
    observer: &Observer,
    made: usize,
) -> Result<()> {
    rolled_out(space, "web", 6).await?;
    let end: BTreeSet<String> = uids(&space.pods("web").await?).into_iter().collect();
    ensure!(half.is_subset(&end), "pods of version {version} were recreated: {half:?} -> {end:?}");
    let view = observer.view();
    ensure!(view.pods_ever.len() == made, "{} pods were made instead of {made}", view.pods_ever.len());
    ensure!(view.sets_ever.len() == version as usize, "{} ReplicaSets for {version} versions", view.sets_ever.len());
    Ok(())
}

/// There and back again. Upstream's manager sees all namespaces, so that this needs a control plane of its own.
pub async fn rollouts_go_on_under_the_other(_: Space) -> Result<()> {
    let bed = Bed::start().await?;
    let space = bed.space("takeover").await?;
    let observer = Observer::start(&space, |_| Ok(())).await?;
    start_upstream(&bed.cluster)?;
    space.create::<Deployment>(with(deployment("web", 6), json!({"spec": {"minReadySeconds": 2}}))).await?;
    rolled_out(&space, "web", 6).await?;
    let half = half_way(&space, 2).await?;
    bed.cluster.kill(UPSTREAM)?;

    let faults = Faults::default();
    let manager = Manager::start(&space, &faults).await?;
    finished(&space, 2, &half, &observer, 12).await.context("from upstream to ours")?;
    let half = half_way(&space, 3).await?;
    manager.crash().await;

    start_upstream(&bed.cluster)?;
    finished(&space, 3, &half, &observer, 18).await.context("from ours to upstream")?;
    space.kubectl(&["rollout", "undo", "deployment/web"]).await?;
    eventually("the undo under upstream", || async { revision(&space, "web", "4").await }).await?;
    rolled_out(&space, "web", 6).await?;
    bed.cluster.kill(UPSTREAM)?;

    let sets: Vec<ReplicaSet> = space.list("web").await?;
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    eventually("ours has listed", || async {
        ensure!(faults.most_watches().contains_key("deployments"));
        Ok(())
    })
    .await?;
    during(QUIET, "ours finds nothing to do", || async {
        ensure!(faults.count(Call::is_write) == 0, "{:?}", faults.seen());
        Ok(())
    })
    .await?;
    ensure!(uids(&space.list::<ReplicaSet>("web").await?) == uids(&sets));
    Ok(())
}
