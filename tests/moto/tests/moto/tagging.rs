//! The tagging controller on AWS: tags are added and removed with Nodes, with few calls.

use anyhow::{Result, ensure};
use cluster_tests::{QUIET, Space, during, eventually};
use kube::api::DeleteParams;
use moto::{Effect, Fault, Machine};

use crate::bed::{AwsBed, labels};

const FLAGS: [&str; 3] = ["--controllers=cloud-node,tagging", "--tags=team=blue,stage=test", "--resources=instance"];
/// The label with a checksum of the tags of a Node's instance.
const NOTE: &str = "k8s.io/cloud-provider-aws";

/// Returns those tags of the instance that the test sets, as `key=value`.
async fn tags(bed: &AwsBed, machine: &Machine) -> Result<Vec<String>> {
    let filter = [("Filter.1.Name", "resource-id"), ("Filter.1.Value.1", &*machine.id)];
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

async fn tagged(bed: &AwsBed, machine: &Machine, wanted: &[&str]) -> Result<()> {
    eventually(format!("{} is tagged {wanted:?}", machine.name), || async {
        let tags = tags(bed, machine).await?;
        ensure!(tags == wanted, "{tags:?}");
        Ok(())
    })
    .await
}

async fn noted(bed: &AwsBed, machine: &Machine) -> Result<String> {
    eventually(format!("{} says that it is tagged", machine.name), || async {
        let note = labels(&bed.cloud.nodes().get(&machine.name).await?).remove(NOTE);
        ensure!(note.as_ref().is_some_and(|note| note.len() == 32), "{note:?}");
        Ok(note.unwrap_or_default())
    })
    .await
}

pub async fn instances_have_tags_while_they_have_nodes(_: Space) -> Result<()> {
    const ALL: [&str; 2] = ["stage=test", "team=blue"];
    let bed = AwsBed::start().await?;
    bed.moto.proxy.arm(Fault::first("CreateTags", Effect::ResponseLost));
    let manager = bed.ccm(&FLAGS).await?;
    let machines = bed.nodes(20).await?;
    for machine in &machines {
        tagged(&bed, machine, &ALL).await?;
        noted(&bed, machine).await?;
    }
    ensure!(bed.moto.proxy.struck() == 1, "no answer was lost: this proves nothing");
    let calls = bed.moto.proxy.calls_of("CreateTags");
    ensure!(calls <= 10, "{calls} calls for {} machines", machines.len());

    // A restart makes no calls.
    manager.stop().await?;
    let manager = bed.ccm(&FLAGS).await?;
    during(QUIET, "what is noted is not tagged again", || async {
        let now = bed.moto.proxy.calls_of("CreateTags");
        ensure!(now == calls, "{} calls more", now - calls);
        Ok(())
    })
    .await?;

    // A Node is deleted: its instance loses the tags, and tags of other owners stay.
    bed.cloud.nodes().delete(&machines[0].name, &DeleteParams::default()).await?;
    tagged(&bed, &machines[0], &[]).await?;
    tagged(&bed, &machines[1], &ALL).await?;

    // Other tags: another label value.
    let before = noted(&bed, &machines[1]).await?;
    manager.stop().await?;
    let _manager = bed.ccm(&["--controllers=cloud-node,tagging", "--tags=team=red", "--resources=instance"]).await?;
    tagged(&bed, &machines[1], &["stage=test", "team=red"]).await?;
    eventually("the note follows", || async {
        let now = noted(&bed, &machines[1]).await?;
        ensure!(now != before, "{now} as before");
        Ok(())
    })
    .await
}
