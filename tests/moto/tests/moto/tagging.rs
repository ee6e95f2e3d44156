//! The tagging controller on AWS: tags are added and removed with Nodes, with few calls.

use anyhow::{Result, ensure};
use cluster_tests::{QUIET, Space, during, eventually};
use kube::api::DeleteParams;
use moto::{Effect, Fault, Instance};

use crate::bed::{AwsBed, labels};

const FLAGS: [&str; 3] = ["--controllers=cloud-node,tagging", "--tags=team=blue,stage=test", "--resources=instance"];
/// The label with a checksum of the tags of a Node's instance.
const TAGS_LABEL: &str = "k8s.io/cloud-provider-aws";

/// Returns those tags of the instance that the test sets, as `key=value`.
async fn tags(bed: &AwsBed, instance: &Instance) -> Result<Vec<String>> {
    let filter = [("Filter.1.Name", "resource-id"), ("Filter.1.Value.1", &*instance.id)];
    let (keys, values) = futures::future::try_join(
        bed.moto.aws.ec2("DescribeTags", &filter, "key"),
        bed.moto.aws.ec2("DescribeTags", &filter, "value"),
    )
    .await?;
    let pairs = keys.into_iter().zip(values).filter(|(key, _)| ["team", "stage"].contains(&&**key));
    let mut tags: Vec<String> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
    tags.sort();
    Ok(tags)
}

async fn wait_for_tags(bed: &AwsBed, instance: &Instance, wanted: &[&str]) -> Result<()> {
    eventually(format!("{} is tagged {wanted:?}", instance.name), || async {
        let tags = tags(bed, instance).await?;
        ensure!(tags == wanted, "{tags:?}");
        Ok(())
    })
    .await
}

async fn label_of(bed: &AwsBed, instance: &Instance) -> Result<String> {
    eventually(format!("{} has the label of tagged instances", instance.name), || async {
        let label = labels(&bed.cloud.nodes().get(&instance.name).await?).remove(TAGS_LABEL);
        ensure!(label.as_ref().is_some_and(|label| label.len() == 32), "{label:?}");
        Ok(label.unwrap_or_default())
    })
    .await
}

pub async fn instances_have_tags_while_they_have_nodes(_: Space) -> Result<()> {
    const ALL: [&str; 2] = ["stage=test", "team=blue"];
    let bed = AwsBed::start().await?;
    bed.moto.proxy.arm(Fault::first("CreateTags", Effect::ResponseLost));
    // The nodes exist before ccm starts, so that a slow machine does not spread them over many calls.
    let instances = bed.nodes(20).await?;
    let manager = bed.ccm(&FLAGS).await?;
    for instance in &instances {
        wait_for_tags(&bed, instance, &ALL).await?;
        label_of(&bed, instance).await?;
    }
    ensure!(bed.moto.proxy.faults_applied() == 1, "no response was lost");
    let calls = bed.moto.proxy.calls_of("CreateTags");
    // One call serves the instances of a fifth of a second; on a slow machine the nodes are initialized one after the other.
    ensure!(calls < 20, "{calls} calls for {} instances", instances.len());

    // After a restart, tags are not set again.
    manager.stop().await?;
    let manager = bed.ccm(&FLAGS).await?;
    during(QUIET, "labelled nodes are not tagged again", || async {
        let now = bed.moto.proxy.calls_of("CreateTags");
        ensure!(now == calls, "{} more calls", now - calls);
        Ok(())
    })
    .await?;

    // A Node is deleted: its instance loses the tags, and other instances keep theirs.
    bed.cloud.nodes().delete(&instances[0].name, &DeleteParams::default()).await?;
    wait_for_tags(&bed, &instances[0], &[]).await?;
    wait_for_tags(&bed, &instances[1], &ALL).await?;

    // With other tags, the label gets another value.
    let before = label_of(&bed, &instances[1]).await?;
    manager.stop().await?;
    let _manager = bed.ccm(&["--controllers=cloud-node,tagging", "--tags=team=red", "--resources=instance"]).await?;
    wait_for_tags(&bed, &instances[1], &["stage=test", "team=red"]).await?;
    eventually("the label has the checksum of the new tags", || async {
        let now = label_of(&bed, &instances[1]).await?;
        ensure!(now != before, "the label still has the value {now}");
        Ok(())
    })
    .await
}
