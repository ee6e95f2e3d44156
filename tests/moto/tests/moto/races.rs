//! Deletions of Services that overlap: what the Services share is deleted with the last of them.

use anyhow::{Result, ensure};
use cluster_tests::Space;
use futures::future::try_join;
use moto::{Effect, Fault, Hold, Moto, Service};
use providers::{LoadBalancerSpec, Port, Protocol};

use crate::balancers::{AccountResources, delete, new_process, port, settle, spec, targets};
use crate::bed::CLUSTER;

/// The security group that all load balancers share is deleted, although each of two deletions found the other Service
/// among its users.
pub async fn shared_group_is_deleted_when_deletions_overlap(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    delete_overlapping(&moto, &dns(1, 30_053, &[]), &dns(2, 31_053, &[])).await
}

/// Two load balancers without security groups share a rule. The deletion of the first one revokes the rule instead of
/// changing its description to that of the second one, which was deleted in the meantime.
pub async fn shared_rule_is_revoked_when_deletions_overlap(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let bare = [("disable-nlb-sg", "true")];
    delete_overlapping(&moto, &dns(1, 30_053, &bare), &dns(2, 31_053, &bare)).await
}

/// The load balancer of a group is deleted, although each of two deletions found target groups of the other Service.
pub async fn load_balancer_of_a_group_is_deleted_when_deletions_overlap(_: Space) -> Result<()> {
    let moto = Moto::start(CLUSTER).await?;
    let member = |number, listens| LoadBalancerSpec { ports: vec![port(listens)], ..spec(number, &[("group", "web")]) };
    delete_overlapping(&moto, &member(1, 80), &member(2, 443)).await
}

/// Returns a Service for UDP: two such Services have the same rules for health checks of nodes.
fn dns(number: usize, node_port: u16, annotations: &[(&str, &str)]) -> LoadBalancerSpec {
    let udp = Port { protocol: Protocol::Udp, node_port: Some(node_port), ..port(53) };
    LoadBalancerSpec { ports: vec![udp], ..spec(number, annotations) }
}

/// Deletes two Services: the first deletion lists all load balancers and is held, while the second one is completed.
async fn delete_overlapping(moto: &Moto, first: &LoadBalancerSpec, second: &LoadBalancerSpec) -> Result<()> {
    let all = targets(&moto.run(2).await?);
    let balancers = new_process(moto).await?;
    settle(moto, &*balancers, first, &all).await?;
    settle(moto, &*balancers, second, &all).await?;
    // Because of the leaked group, a deletion reads rules after it has listed all load balancers.
    create_leaked_group(moto).await?;
    let hold = Hold::default();
    moto.proxy.arm(Fault::first("DescribeSecurityGroupRules", Effect::Held(hold.clone())));
    let meanwhile = async {
        hold.reached().await?;
        let left = AccountResources::read(moto).await?;
        ensure!(
            left.balancers.len() == 1 && left.target_groups.len() == 1,
            "the first deletion is held early: {left:?}"
        );
        delete(&*balancers, &second.id).await?;
        hold.release();
        Ok(())
    };
    try_join(delete(&*balancers, &first.id), meanwhile).await?;
    let resources = AccountResources::read(moto).await?;
    ensure!(resources.is_empty(), "{resources:?}");
    Ok(())
}

/// Creates a leaked security group: that of a shared load balancer that no longer exists.
async fn create_leaked_group(moto: &Moto) -> Result<()> {
    let own = format!("kubernetes.io/cluster/{CLUSTER}");
    let group = [
        ("GroupName", "k8s-group-leaked"),
        ("GroupDescription", "leaked"),
        ("VpcId", &*moto.network.vpc),
        ("TagSpecification.1.ResourceType", "security-group"),
        ("TagSpecification.1.Tag.1.Key", &*own),
        ("TagSpecification.1.Tag.1.Value", "owned"),
        ("TagSpecification.1.Tag.2.Key", "kubernetes.io/load-balancer-group"),
        ("TagSpecification.1.Tag.2.Value", "default/left"),
    ];
    moto.aws.call(Service::Ec2, "CreateSecurityGroup", &group).await.map(drop)
}
