//! Takeovers between another controller and ccm, in both directions, with the steps of `docs/takeover.md`: Services
//! keep their addresses, and no load balancer, target group or listener is created or deleted.

use anyhow::{Context as _, Result, ensure};
use cluster_tests::{Faults, Manager, Space, eventually};
use jiff::SignedDuration;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use moto::{Policy, Service};
use serde_json::json;

use super::account::{Account, Ids};
use super::shared::{CONTROLLER_CLASS, OtherController, SharedBed, provider_for, second_port, service};
use crate::bed::{CLUSTER, POLICY};

const ADOPTION: &str = include_str!("../../../../../deploy/aws-iam-policy-adoption.json");
/// The finalizer of cloud-provider-aws, and of ccm.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";
/// The finalizer of the AWS Load Balancer Controller.
const CONTROLLER_FINALIZER: &str = "service.k8s.aws/resources";

/// Starts ccm with only the permissions of the guide.
async fn ccm(bed: &SharedBed, policies: &[&str], flags: &[&str]) -> Result<Manager> {
    let placeholders = [("CLUSTERNAME", CLUSTER), ("CLUSTER", CLUSTER)];
    bed.aws.moto.proxy.enforce(Policy::parse(policies, &placeholders)?);
    let cluster = format!("--cluster-name={CLUSTER}");
    let flags = [&["--controllers=service", &*cluster][..], flags].concat();
    let provider = |_: &str| provider_for(bed.cloud_config(), &flags);
    bed.aws.cloud.start_ccm_with_provider(provider, &Faults::default(), &flags, SignedDuration::from_hours(1)).await
}

/// Fails if a target group or Classic Load Balancer among these resources has another number of targets.
fn check_targets(account: &Account, ids: &Ids, count: usize) -> Result<()> {
    let counts = account.target_counts(ids);
    ensure!(!counts.is_empty() && counts.values().all(|found| *found == count), "{counts:?}, not {count} each");
    Ok(())
}

/// Waits until a load balancer has the uid of its Service in its tags.
async fn until_adopted(bed: &SharedBed, name: &str) -> Result<Account> {
    let uid = bed.services.get(name).await?.uid().context("no uid")?;
    let tag = format!("tag kubernetes.io/service-uid={uid}");
    bed.until(&format!("{name} is adopted"), |now| {
        let tagged = now.with(&tag);
        let is_adopted =
            [":loadbalancer/", ":targetgroup/"].iter().all(|part| tagged.iter().any(|id| id.contains(part)));
        ensure!(is_adopted, "only {tagged:?} have the uid");
        Ok(())
    })
    .await
}

/// Fails if load balancers, target groups or listeners were created or deleted.
fn check_same_parts(before: &Account, now: &Account) -> Result<()> {
    let (had, has) = (before.parts_of_load_balancers(), now.parts_of_load_balancers());
    ensure!(had == has, "deleted: {:?}, created: {:?}", had.difference(&has), has.difference(&had));
    Ok(())
}

/// From cloud-provider-aws to ccm, back, and to ccm again.
pub async fn services_move_from_cloud_provider_to_ccm_and_back(_: Space) -> Result<()> {
    let bed = SharedBed::start(OtherController::CloudProvider).await?;
    let moved = move_from_cloud_provider(&bed).await;
    bed.explain(moved)
}

async fn move_from_cloud_provider(bed: &SharedBed) -> Result<()> {
    let empty = Account::read(&bed.aws.moto).await?;
    bed.run_neighbour(&[]).await?;
    bed.create(service("classic", None, &[])).await?;
    bed.create(service("network", None, &[("type", "nlb")])).await?;
    let addresses = bed.host_names(&["classic", "network"]).await?;
    let of_theirs = |now: &Account| check_targets(now, &now.new_since(&empty), 2);
    let before = bed.until("cloud-provider-aws registers both nodes", of_theirs).await?;
    bed.stop_neighbour()?;

    let manager = ccm(bed, &[POLICY], &[]).await?;
    check_same_parts(&before, &until_adopted(bed, "network").await?).context("from cloud-provider-aws to ccm")?;
    bed.join(1).await?;
    bed.patch("network", second_port()).await?;
    bed.create(service("own", None, &[("type", "nlb")])).await?;
    bed.host_names(&["own"]).await?;
    // The Classic Load Balancer, two target groups of the first Network Load Balancer, and one of ccm's.
    let all = |now: &Account, count: usize| {
        let ids = now.new_since(&empty);
        ensure!(now.target_counts(&ids).len() == 4, "{:?}", now.target_counts(&ids));
        check_targets(now, &ids, count)
    };
    let taken = bed.until("ccm registers three nodes", |now| all(now, 3)).await?;
    manager.stop().await?;

    let shared = bed.release_shared_group().await?;
    bed.run_neighbour(&[]).await?;
    bed.join(1).await?;
    let back = bed.until("cloud-provider-aws registers four nodes", |now| all(now, 4)).await?;
    check_same_parts(&taken, &back).context("from ccm to cloud-provider-aws")?;
    ensure!(bed.host_names(&["classic", "network"]).await? == addresses, "the addresses changed");
    bed.delete(&["own"]).await.context("of ccm, by cloud-provider-aws")?;
    bed.delete_shared_group(&shared).await?;
    bed.stop_neighbour()?;

    let _manager = ccm(bed, &[POLICY], &[]).await?;
    bed.delete(&["classic", "network"]).await.context("of cloud-provider-aws, by ccm")?;
    until_nothing_is_left(bed, &empty).await?;
    ensure!(bed.aws.moto.proxy.denied().is_empty(), "the policies deny {:?}", bed.aws.moto.proxy.denied());
    Ok(())
}

/// From cloud-provider-aws with `NLBSecurityGroupMode = Managed` to ccm and back: the security group of the load
/// balancer stays, and is deleted with the Service by each of the two.
pub async fn managed_security_groups_move_with_their_load_balancers(_: Space) -> Result<()> {
    let mut bed = SharedBed::start(OtherController::CloudProvider).await?;
    let moved = move_managed_group(&mut bed).await;
    bed.explain(moved)
}

const MANAGED: &str = "NLBSecurityGroupMode = Managed\n";

/// Returns the ids of the security groups of all load balancers.
async fn groups_of_balancers(bed: &SharedBed) -> Result<Ids> {
    let balancers = bed.aws.moto.aws.list(Service::Elb, "DescribeLoadBalancers", &[], "LoadBalancers").await?;
    Ok(balancers.iter().flat_map(|one| one.texts("SecurityGroups/member")).map(Into::into).collect())
}

/// Creates a Service with cloud-provider-aws, and stops it. Returns the account, and the id of the security group.
async fn create_with_managed_group(
    bed: &SharedBed,
    empty: &Account,
    (name, nodes): (&str, usize),
) -> Result<(Account, Ids)> {
    bed.create(service(name, None, &[("type", "nlb")])).await?;
    let registers = |now: &Account| check_targets(now, &now.new_since(empty), nodes);
    let created = bed.until("cloud-provider-aws registers all nodes", registers).await?;
    let groups = groups_of_balancers(bed).await?;
    ensure!(groups.len() == 1, "cloud-provider-aws made {groups:?}");
    bed.stop_neighbour()?;
    Ok((created, groups))
}

async fn move_managed_group(bed: &mut SharedBed) -> Result<()> {
    let empty = &Account::read(&bed.aws.moto).await?;
    bed.settings = MANAGED;
    bed.run_neighbour(&[]).await?;
    let (before, managed) = create_with_managed_group(bed, empty, ("web", 2)).await?;
    let addresses = bed.host_names(&["web"]).await?;

    let manager = ccm(bed, &[POLICY], &[]).await?;
    check_same_parts(&before, &until_adopted(bed, "web").await?).context("from cloud-provider-aws to ccm")?;
    bed.join(1).await?;
    bed.patch("web", second_port()).await?;
    let registered = |now: &Account, count| {
        let ids = now.new_since(empty);
        ensure!(now.listener_count(&ids) == 2, "{} listeners", now.listener_count(&ids));
        check_targets(now, &ids, count)
    };
    let taken = bed.until("ccm adds a port and registers three nodes", |now| registered(now, 3)).await?;
    let uid = bed.services.get("web").await?.uid().context("no uid")?;
    let adopted = taken.with(&format!("tag kubernetes.io/service-uid={uid}"));
    let groups = groups_of_balancers(bed).await?;
    ensure!(adopted.is_superset(&managed), "{managed:?} is not among {adopted:?}");
    ensure!(groups.is_superset(&managed) && groups.len() == 2, "{groups:?}, not {managed:?} and the shared group");
    manager.stop().await?;

    let shared = bed.release_shared_group().await?;
    bed.settings = "";
    bed.run_neighbour(&[]).await?;
    bed.join(1).await?;
    bed.until("cloud-provider-aws registers four nodes", |now| registered(now, 4)).await?;
    bed.stop_neighbour()?;
    bed.settings = MANAGED;
    bed.run_neighbour(&[]).await?;
    bed.join(1).await?;
    let back = bed.until("cloud-provider-aws registers five nodes", |now| registered(now, 5)).await?;
    check_same_parts(&taken, &back).context("from ccm to cloud-provider-aws")?;
    ensure!(bed.host_names(&["web"]).await? == addresses, "the address changed");
    bed.delete_shared_group(&shared).await?;
    ensure!(groups_of_balancers(bed).await? == managed, "{:?}, not {managed:?}", groups_of_balancers(bed).await?);
    bed.delete(&["web"]).await.context("by cloud-provider-aws")?;
    until_nothing_is_left(bed, empty).await?;
    delete_group_before_adoption(bed, empty).await
}

/// The Service is deleted while no controller runs, so ccm finds a load balancer that it has never changed.
async fn delete_group_before_adoption(bed: &SharedBed, empty: &Account) -> Result<()> {
    let (_, managed) = create_with_managed_group(bed, empty, ("api", 5)).await?;
    bed.services.delete("api", &DeleteParams::default()).await?;
    let _manager = ccm(bed, &[POLICY], &[]).await?;
    bed.delete(&["api"]).await.with_context(|| format!("by ccm, with {managed:?}"))?;
    until_nothing_is_left(bed, empty).await?;
    ensure!(bed.aws.moto.proxy.denied().is_empty(), "the policies deny {:?}", bed.aws.moto.proxy.denied());
    Ok(())
}

async fn until_nothing_is_left(bed: &SharedBed, empty: &Account) -> Result<()> {
    let is_empty = |now: &Account| {
        let left = now.new_since(empty);
        ensure!(left.is_empty(), "left: {}", now.describe(&left));
        Ok(())
    };
    bed.until("nothing is left", is_empty).await.map(drop)
}

/// From the AWS Load Balancer Controller, which stays for Ingress, to ccm and back.
pub async fn services_move_from_load_balancer_controller_to_ccm_and_back(_: Space) -> Result<()> {
    let bed = SharedBed::start(OtherController::Controller).await?;
    let moved = move_from_controller(&bed).await;
    bed.explain(moved)
}

async fn move_from_controller(bed: &SharedBed) -> Result<()> {
    let empty = Account::read(&bed.aws.moto).await?;
    bed.run_neighbour(&[]).await?;
    bed.create(service("web", Some(CONTROLLER_CLASS), &[("nlb-target-type", "instance")])).await?;
    let addresses = bed.host_names(&["web"]).await?;
    let registered = |now: &Account, count| check_targets(now, &now.new_since(&empty), count);
    let before = bed.until("the controller registers both nodes", |now| registered(now, 2)).await?;
    let changes = bed.other_proxy.changes();

    // Step 1: without the controller, its bindings no longer register targets.
    bed.stop_neighbour()?;
    let bindings = bed.kubectl(&["get", "targetgroupbindings", "--output=name"], "").await?;
    ensure!(!bindings.trim().is_empty(), "the controller has no bindings");
    for binding in bindings.split_whitespace() {
        let no_finalizers = r#"{"metadata": {"finalizers": null}}"#;
        bed.kubectl(&["patch", binding, "--type=merge", "--patch", no_finalizers], "").await?;
        bed.kubectl(&["delete", binding], "").await?;
    }
    // Step 2: the controller stays for Ingress.
    bed.run_neighbour(&["--feature-gates=EnableServiceController=false"]).await?;
    // Step 3.
    let class = format!("--load-balancer-class={CONTROLLER_CLASS}");
    let manager = ccm(bed, &[POLICY, ADOPTION], &[&class]).await?;
    let taken = until_adopted(bed, "web").await?;
    check_same_parts(&before, &taken).context("from the controller to ccm")?;
    // Step 4.
    bed.patch("web", json!({"metadata": {"finalizers": [FINALIZER]}})).await?;
    manager.stop().await?;
    let manager = ccm(bed, &[POLICY], &[&class]).await?;
    bed.join(1).await?;
    bed.patch("web", second_port()).await?;
    let taken = bed
        .until("ccm adds a port and registers a new node", |now| {
            let ids = now.new_since(&empty);
            ensure!(now.listener_count(&ids) == 2, "{} listeners", now.listener_count(&ids));
            check_targets(now, &ids, 3)
        })
        .await?;
    let before: Ids = before.parts_of_load_balancers();
    let missing: Vec<_> = before.difference(&taken.parts_of_load_balancers()).cloned().collect();
    ensure!(missing.is_empty(), "a new port replaces {missing:?}");
    ensure!(bed.host_names(&["web"]).await? == addresses, "the address changed");
    ensure!(bed.other_proxy.changes() == changes, "the controller makes changes: {:?}", bed.other_proxy.calls());

    manager.stop().await?;
    move_back_to_controller(bed, &empty, (&taken, &addresses)).await
}

/// The move back to the controller: ccm has exited, and the controller reconciles Services again.
async fn move_back_to_controller(
    bed: &SharedBed,
    empty: &Account,
    (taken, addresses): (&Account, &[String]),
) -> Result<()> {
    let registered = |now: &Account, count| check_targets(now, &now.new_since(empty), count);
    bed.stop_neighbour()?;
    bed.run_neighbour(&[]).await?;
    bed.join(1).await?;
    let back = bed.until("the controller registers a new node", |now| registered(now, 4)).await?;
    check_same_parts(taken, &back).context("from ccm to the controller")?;
    ensure!(bed.host_names(&["web"]).await? == addresses, "the address changed");
    let uid = bed.services.get("web").await?.uid().context("no uid")?;
    let tagged = back.with(&format!("tag kubernetes.io/service-uid={uid}"));
    let tagged: Vec<&String> = tagged.iter().filter(|id| id.starts_with("arn:")).collect();
    ensure!(tagged.is_empty(), "ccm would change {tagged:?}");
    eventually("the controller holds the Service", || async {
        let finalizers = bed.services.get("web").await?.finalizers().to_vec();
        ensure!(finalizers.iter().any(|one| one == CONTROLLER_FINALIZER), "{finalizers:?}");
        Ok(())
    })
    .await?;
    // A ccm that runs for other Services leaves this one alone, and deletes its shared security group with its last
    // one.
    let _manager = ccm(bed, &[POLICY], &[]).await?;
    bed.create(service("own", None, &[("type", "nlb")])).await?;
    bed.host_names(&["own"]).await?;
    bed.delete(&["own"]).await?;
    let left_alone = bed.until("the targets stay", |now| registered(now, 4)).await?;
    check_same_parts(taken, &left_alone).context("next to a ccm for other Services")?;
    let finalizers = bed.services.get("web").await?.finalizers().to_vec();
    ensure!(finalizers.iter().any(|one| one == FINALIZER), "ccm released a Service of the controller: {finalizers:?}");
    // The last step of the move back: the finalizer of ccm is removed manually.
    bed.patch("web", json!({"metadata": {"finalizers": [CONTROLLER_FINALIZER]}})).await?;
    bed.delete(&["web"]).await?;
    until_nothing_is_left(bed, empty).await?;
    ensure!(bed.aws.moto.proxy.denied().is_empty(), "the policies deny {:?}", bed.aws.moto.proxy.denied());
    Ok(())
}
