//! Target groups of users in which several Services register targets, and records that do not count.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::Space;
use moto::{Instance, Moto, Service};
use providers::{LoadBalancerId, LoadBalancerSpec, Records as _};

use crate::balancers::{PREFIX, delete, id, settle, spec, targets};
use crate::bed::CLUSTER;
use crate::sharing::{RecordsInMemory, ids, new_process, registered};
use crate::user_groups::{ALLOWED, UsersBalancer, group};

/// The port of all Services here on nodes.
const NODE_PORT: &str = "30080";

/// Creates a target group that one Service may use.
async fn group_for(moto: &Moto, service: &str) -> Result<String> {
    let key = format!("kubernetes.io/cluster/{CLUSTER}");
    group(moto, "Users-80", &[], &[(&key, "shared"), (ALLOWED, service)]).await
}

/// Registers a target as another client does.
async fn register(moto: &Moto, group: &str, instance: &Instance) -> Result<()> {
    let target =
        [("TargetGroupArn", group), ("Targets.member.1.Id", &instance.id), ("Targets.member.1.Port", NODE_PORT)];
    moto.aws.call(Service::Elb, "RegisterTargets", &target).await.map(drop)
}

/// Writes a Service's record for a target group as a user can who is allowed to write ConfigMaps.
async fn forge(records: &RecordsInMemory, id: &LoadBalancerId, group: &str, targets: &[Instance]) -> Result<()> {
    let name = format!("aws-targets-{}-{}", id.name, group.rsplit('/').next().unwrap_or_default());
    let entries: Vec<String> = targets.iter().map(|target| format!("{}:{NODE_PORT}", target.id)).collect();
    Ok(records.write(id, &name, &[("targets".to_owned(), entries.join(","))].into()).await?)
}

/// A Service is renamed: the new one has the same pods and target group before the old one is deleted. Before, a target
/// moves from one to the other.
pub async fn target_stays_while_another_service_claims_it(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let nodes = moto.run(3).await?;
    let users = UsersBalancer::create(&moto, &["80"]).await?;
    let group = &users.groups[0];
    let (old, new) = (spec(1, &[("target-group-arn.80", group)]), spec(2, &[("target-group-arn.80", group)]));
    let balancers = new_process(&moto, &Arc::default()).await?;
    settle(&moto, &*balancers, &old, &targets(&nodes[..2])).await?;
    settle(&moto, &*balancers, &new, &targets(&nodes[..1])).await?;
    balancers.set_targets(&old, &targets(&nodes[..1])).await?;
    ensure!(registered(&moto, group).await? == ids(&[&nodes[0]]), "after it left the old Service");
    balancers.set_targets(&new, &targets(&nodes[..2])).await?;
    ensure!(registered(&moto, group).await? == ids(&[&nodes[0], &nodes[1]]), "after it came to the new Service");

    let calls = moto.proxy.calls_of("DeregisterTargets");
    delete(&*balancers, &old.id).await?;
    ensure!(moto.proxy.calls_of("DeregisterTargets") == calls, "a target of the new Service was deregistered");
    ensure!(registered(&moto, group).await? == ids(&[&nodes[0], &nodes[1]]), "after the deletion of the old Service");
    balancers.set_targets(&new, &targets(&nodes[1..])).await?;
    ensure!(registered(&moto, group).await? == ids(&[&nodes[1], &nodes[2]]), "the old Service still claims a target");
    delete(&*balancers, &new.id).await?;
    ensure!(registered(&moto, group).await?.is_empty(), "{:?}", registered(&moto, group).await?);
    Ok(())
}

/// The process restarts before a renamed Service is deleted: the new one, which is not reconciled yet, keeps its targets.
pub async fn target_stays_after_a_restart_while_another_service_claims_it(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let nodes = moto.run(3).await?;
    let users = UsersBalancer::create(&moto, &["80"]).await?;
    let group = &users.groups[0];
    let (old, new) = (spec(1, &[("target-group-arn.80", group)]), spec(2, &[("target-group-arn.80", group)]));
    let records = Arc::default();
    for deletes in [false, true] {
        let balancers = new_process(&moto, &records).await?;
        settle(&moto, &*balancers, &old, &targets(&nodes[..2])).await?;
        settle(&moto, &*balancers, &new, &targets(&nodes[..1])).await?;
        let next = new_process(&moto, &records).await?;
        next.existed(&old);
        next.existed(&new);
        let registrations = moto.proxy.calls_of("RegisterTargets");
        if deletes {
            delete(&*next, &old.id).await?;
        } else {
            drop(next.ensure(&old, &targets(&nodes[1..2])).await?);
        }
        let expected = if deletes { ids(&[&nodes[0]]) } else { ids(&[&nodes[0], &nodes[1]]) };
        ensure!(registered(&moto, group).await? == expected, "{:?}", registered(&moto, group).await?);
        ensure!(moto.proxy.calls_of("RegisterTargets") == registrations, "a target was deregistered for a while");
        settle(&moto, &*next, &new, &targets(&nodes[2..])).await?;
        ensure!(
            !registered(&moto, group).await?.contains(&nodes[0].id),
            "the record counts as a claim after the change"
        );
    }
    delete(&*new_process(&moto, &records).await?, &new.id).await?;
    ensure!(registered(&moto, group).await?.is_empty(), "{:?}", registered(&moto, group).await?);
    Ok(())
}

/// A user without the consent of a target group's owner writes a record for it: nothing is deregistered, nor registered
/// while the user's Service is invalid, nor is the record read.
pub async fn forged_record_has_no_effect_without_consent(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let nodes = moto.run(3).await?;
    let group = group_for(&moto, "default/web-2").await?;
    let records = Arc::new(RecordsInMemory::default());
    let (own, victim) = (spec(1, &[]), spec(2, &[("target-group-arn.80", &group)]));
    drop(new_process(&moto, &records).await?.ensure(&victim, &targets(&nodes[..1])).await?);
    register(&moto, &group, &nodes[1]).await?;
    forge(&records, &own.id, &group, &nodes[..2]).await?;
    let reads = records.reads.load(Ordering::Relaxed);
    let expected = ids(&[&nodes[0], &nodes[1]]);

    let next = new_process(&moto, &records).await?;
    settle(&moto, &*next, &own, &targets(&nodes[2..])).await?;
    ensure!(registered(&moto, &group).await? == expected, "after `ensure`: {:?}", registered(&moto, &group).await?);
    ensure!(records.reads.load(Ordering::Relaxed) == reads, "records of groups for other Services are read");
    let mut invalid = own.clone();
    invalid.annotations.insert(format!("{PREFIX}scheme"), "public".into());
    let next = new_process(&moto, &records).await?;
    drop(next.follow_targets(&invalid, &targets(&nodes[2..])).await?);
    ensure!(registered(&moto, &group).await? == expected, "while invalid: {:?}", registered(&moto, &group).await?);
    delete(&*next, &own.id).await?;
    ensure!(registered(&moto, &group).await? == expected, "after the deletion: {:?}", registered(&moto, &group).await?);
    let next = new_process(&moto, &records).await?;
    delete(&*next, &victim.id).await?;
    ensure!(registered(&moto, &group).await? == ids(&[&nodes[1]]), "{:?}", registered(&moto, &group).await?);
    Ok(())
}

/// The owner of a target group withdraws the consent: the Service's targets are deregistered when the Service is
/// deleted, also after a restart. Then a forged record has no effect.
pub async fn targets_are_deregistered_although_the_consent_was_withdrawn(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let nodes = moto.run(3).await?;
    let group = group_for(&moto, "default/web-1").await?;
    register(&moto, &group, &nodes[2]).await?;
    let records = Arc::new(RecordsInMemory::default());
    for restarts in [false, true] {
        let allow = async |service: &str| {
            let tag =
                [("ResourceArns.member.1", &*group), ("Tags.member.1.Key", ALLOWED), ("Tags.member.1.Value", service)];
            moto.aws.call(Service::Elb, "AddTags", &tag).await
        };
        allow("default/web-1").await?;
        let one = spec(1, &[("target-group-arn.80", &group)]);
        let mut balancers = new_process(&moto, &records).await?;
        drop(balancers.ensure(&one, &targets(&nodes[..1])).await?);
        balancers.set_targets(&one, &targets(&nodes[..2])).await?;
        ensure!(registered(&moto, &group).await?.len() == 3, "restart: {restarts}: the targets are not registered");
        allow("default/web-2").await?;
        if restarts {
            forge(&records, &one.id, &group, &nodes).await?;
            balancers = new_process(&moto, &records).await?;
            let refused = balancers.ensure(&one, &targets(&nodes[..2])).await.err().context("it is used")?;
            ensure!(refused.message.contains("put default/web-1 into"), "{refused}");
        }
        delete(&*balancers, &one.id).await?;
        let found = registered(&moto, &group).await?;
        ensure!(found == ids(&[&nodes[2]]), "restart: {restarts}: {found:?}");
    }
    Ok(())
}

/// A namespace is copied from another cluster with its records: the targets of that cluster stay.
pub async fn record_of_another_cluster_does_not_count(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let nodes = moto.run(2).await?;
    let group = group_for(&moto, "default").await?;
    register(&moto, &group, &nodes[1]).await?;
    let records = Arc::new(RecordsInMemory::default());
    forge(&records, &id(1), &group, &nodes[1..]).await?;
    let one = LoadBalancerSpec { id: id(1), ..spec(1, &[("target-group-arn.80", &group)]) };
    let balancers = new_process(&moto, &records).await?;
    drop(balancers.ensure(&one, &targets(&nodes[..1])).await?);
    ensure!(registered(&moto, &group).await? == ids(&[&nodes[0], &nodes[1]]), "{:?}", registered(&moto, &group).await?);
    delete(&*balancers, &one.id).await?;
    ensure!(registered(&moto, &group).await? == ids(&[&nodes[1]]), "{:?}", registered(&moto, &group).await?);
    Ok(())
}
