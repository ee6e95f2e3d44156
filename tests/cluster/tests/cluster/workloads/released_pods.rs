//! Pods that leave their owner, because their labels change, while the cache is stale and the owner lists its pods.

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{names, owner, replica_set};
use cluster_tests::{Call, Effect, Faults, Manager, Rule, Space, Verb, eventually};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;

use crate::workloads::replicaset::settled;

/// A pod whose labels were changed is missing in a list by labels. A set that lists its pods because a response was
/// lost must not conclude that such a pod is being deleted: the set would wait for minutes.
pub async fn relabelled_pod_is_replaced_after_a_lost_response(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    space.create::<ReplicaSet>(replica_set("web", 3)).await?;
    settled(&space, "web", 3).await?;

    faults.freeze("pods");
    let debugged = names(&space.pods("web").await?).first().cloned().context("no pod")?;
    space.kubectl(&["label", "pod", &debugged, "app=debug", "--overwrite"]).await?;
    faults.add(Rule::on(Verb::Create, "pods", Effect::LostAfter));
    space.scale::<ReplicaSet>("web", 4).await?;
    eventually("the set's pods were listed after the lost response", || async {
        ensure!(faults.unmet() == 0, "no response was lost yet");
        let is_list = |call: &Call| call.verb == Verb::List && call.resource == "pods" && !call.account.is_empty();
        ensure!(
            faults.requests().iter().any(|request| is_list(&request.call) && request.status == Some(200)),
            "no list yet"
        );
        Ok(())
    })
    .await?;
    faults.thaw("pods");
    settled(&space, "web", 4).await?;
    let debugged: Pod = space.get(&debugged).await?;
    ensure!(owner(&debugged).is_empty() && debugged.metadata.deletion_timestamp.is_none(), "{debugged:?}");
    Ok(())
}
