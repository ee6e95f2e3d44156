//! Updates of targets that AWS refuses, although the Service is valid.

use anyhow::{Context as _, Result, ensure};
use cluster_tests::Space;
use moto::{Effect, Fault, Moto, Service};
use providers::ErrorKind;

use crate::balancers::{AccountResources, delete, new_process, settle, spec, targets, texts};
use crate::bed::CLUSTER;

/// The refusal is not a terminal error: targets would not follow nodes and pods until a user changes the Service.
pub async fn refused_update_of_targets_is_retried(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let instances = moto.run(2).await?;
    let (one, all, fewer) = (spec(1, &[]), targets(&instances), targets(&instances[..1]));
    let balancers = new_process(&moto).await?;
    settle(&moto, &*balancers, &one, &all).await?;
    for code in ["ValidationError", "InvalidTarget", "InvalidConfigurationRequest"] {
        balancers.set_targets(&one, &all).await?;
        moto.proxy.arm(Fault::first("DeregisterTargets", Effect::refused(code, "as scripted")));
        let error = balancers.set_targets(&one, &fewer).await.err().context("the update succeeded")?;
        ensure!(error.kind == ErrorKind::Transient, "{code} is reported as {error:?}, which is not retried");
        balancers.set_targets(&one, &fewer).await?;
        let groups = AccountResources::read(&moto).await?.target_groups;
        let health = moto.aws.call(Service::Elb, "DescribeTargetHealth", &[("TargetGroupArn", &groups[0])]).await?;
        ensure!(texts(&health, "Id") == [instances[0].id.clone()], "after {code}: {health}");
        moto.proxy.disarm();
    }
    delete(&*balancers, &one.id).await
}
