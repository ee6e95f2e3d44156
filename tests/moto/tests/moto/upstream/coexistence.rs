//! ccm next to another controller, with the same cluster name and the same tags: each changes and deletes only its own
//! resources, and leaves the other's rules in the nodes' security group.

use anyhow::{Context as _, Result, ensure};
use cluster_tests::{Faults, Space, eventually};
use jiff::SignedDuration;
use kube::ResourceExt as _;
use moto::Policy;
use serde_json::Value;

use super::account::{Account, Ids};
use super::shared::{CONTROLLER_CLASS, OtherController, SharedBed, provider_for, second_port, service};
use crate::bed::{CLUSTER, POLICY};

/// The finalizer of cloud-provider-aws, and of ccm.
const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// As on EKS: cloud-provider-aws serves Services without a class, ccm those of its class.
pub async fn cloud_provider_and_ccm_leave_each_others_resources_alone(_: Space) -> Result<()> {
    let bed = SharedBed::start(OtherController::CloudProvider).await?;
    let theirs = [service("classic", None, &[]), service("network", None, &[("type", "nlb")])];
    let flags = ["--load-balancer-class=ccm/nlb", "--load-balancers-without-class=false"];
    let ours = |name: &str| service(name, Some("ccm/nlb"), &[]);
    let scenario = Scenario { theirs: theirs.into(), ingress: None, ours: [ours("own-1"), ours("own-2")] };
    let result = scenario.run(&bed, &flags).await;
    bed.explain(result)
}

/// The AWS Load Balancer Controller serves its class, an Ingress, and a Service that cloud-provider-aws left to it, and
/// that still has cloud-provider-aws's finalizer.
pub async fn load_balancer_controller_and_ccm_leave_each_others_resources_alone(_: Space) -> Result<()> {
    let bed = SharedBed::start(OtherController::Controller).await?;
    let instances = ("nlb-target-type", "instance");
    let mut by_type = service("by-type", None, &[("type", "external"), instances]);
    by_type["metadata"]["finalizers"] = serde_json::json!([FINALIZER]);
    let theirs = [service("by-class", Some(CONTROLLER_CLASS), &[instances]), by_type];
    let ours = |name: &str| service(name, None, &[("type", "nlb")]);
    let scenario = Scenario { theirs: theirs.into(), ingress: Some(INGRESS), ours: [ours("own-1"), ours("own-2")] };
    let result = scenario.run(&bed, &[]).await;
    bed.explain(result)
}

/// A site behind an Application Load Balancer.
const INGRESS: &str = r#"
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: alb}
spec: {controller: ingress.k8s.aws/alb}
---
apiVersion: v1
kind: Service
metadata: {name: site}
spec: {type: NodePort, selector: {app: site}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: site
  annotations: {alb.ingress.kubernetes.io/target-type: instance, alb.ingress.kubernetes.io/scheme: internal}
spec:
  ingressClassName: alb
  rules: [{http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: site, port: {number: 80}}}}]}}]
"#;

/// The Services of both controllers.
struct Scenario {
    theirs: Vec<Value>,
    /// The manifest of an Ingress named site.
    ingress: Option<&'static str>,
    ours: [Value; 2],
}

fn names(services: &[Value]) -> Vec<&str> {
    services.iter().filter_map(|service| service["metadata"]["name"].as_str()).collect()
}

/// Fails unless each target group and Classic Load Balancer among these resources has this number of targets.
fn check_targets(account: &Account, ids: &Ids, count: usize) -> Result<()> {
    let counts = account.target_counts(ids);
    ensure!(!counts.is_empty() && counts.values().all(|found| *found == count), "{counts:?}, not {count} each");
    Ok(())
}

fn check_listeners(account: &Account, ids: &Ids, count: usize) -> Result<()> {
    let found = account.listener_count(ids);
    ensure!(found == count, "{found} listeners, not {count}");
    Ok(())
}

impl Scenario {
    async fn run(&self, bed: &SharedBed, flags: &[&str]) -> Result<()> {
        let empty = Account::read(&bed.aws.moto).await?;
        let before = self.start_neighbour(bed, &empty).await?;
        let of_theirs = before.new_since(&empty);

        let cluster = format!("--cluster-name={CLUSTER}");
        let flags = [&["--controllers=service", &*cluster][..], flags].concat();
        bed.aws.moto.proxy.enforce(Policy::parse(&[POLICY], &[("CLUSTER", CLUSTER)])?);
        let provider = |_: &str| provider_for(bed.aws.moto.cloud_config(), &flags);
        let later = SignedDuration::from_hours(1);
        let _manager = bed.aws.cloud.start_ccm_with_provider(provider, &Faults::default(), &flags, later).await?;
        for service in &self.ours {
            bed.create(service.clone()).await?;
        }
        bed.host_names(&names(&self.ours)).await.context("of ccm")?;
        let created =
            bed.until("ccm registers both nodes", |now| check_targets(now, &now.new_since(&before), 2)).await?;
        created.ensure_same(&before, &of_theirs).context("after ccm created its load balancers")?;
        let of_ours = created.new_since(&before);
        until_released(bed, &self.theirs).await?;

        bed.join(1).await?;
        let all: Ids = of_theirs.union(&of_ours).cloned().collect();
        let joined = bed.until("both register a new node", |now| check_targets(now, &all, 3)).await?;
        let joined_ids = joined.ids();
        let missing: Vec<&String> = all.difference(&joined_ids).collect();
        ensure!(missing.is_empty(), "after a node joined, {missing:?} no longer exist");
        let own = self.change(bed, (&empty, &joined), of_ours).await?;
        self.delete(bed, &empty, own).await?;
        ensure!(bed.aws.moto.proxy.denied().is_empty(), "the policy denies {:?}", bed.aws.moto.proxy.denied());
        ensure!(bed.aws.moto.proxy.gaps().is_empty(), "{:?}", bed.aws.moto.proxy.gaps());
        Ok(())
    }

    /// Starts the other controller; returns the account with all of its resources.
    async fn start_neighbour(&self, bed: &SharedBed, empty: &Account) -> Result<Account> {
        bed.run_neighbour(&[]).await?;
        for service in &self.theirs {
            bed.create(service.clone()).await?;
        }
        if let Some(manifest) = self.ingress {
            bed.kubectl(&["apply", "--filename=-"], manifest).await?;
        }
        bed.host_names(&names(&self.theirs)).await.context("of the other controller")?;
        let expected = self.theirs.len() + usize::from(self.ingress.is_some());
        bed.until("the other controller registers both nodes", |now| {
            let ids = now.new_since(empty);
            ensure!(now.target_counts(&ids).len() == expected, "{:?}", now.target_counts(&ids));
            check_targets(now, &ids, 2)
        })
        .await
    }

    /// Changes the other controller's load balancers, then ccm's: each time, those of the other one stay the same.
    /// Returns the account after that, and ccm's resources.
    async fn change(
        &self,
        bed: &SharedBed,
        (empty, before): (&Account, &Account),
        of_ours: Ids,
    ) -> Result<(Account, Ids)> {
        for service in names(&self.theirs) {
            bed.patch(service, second_port()).await?;
        }
        let of_others = |now: &Account| -> Ids { now.new_since(empty).difference(&of_ours).cloned().collect() };
        let count = 2 * self.theirs.len() + usize::from(self.ingress.is_some());
        let changed = bed
            .until("the other controller adds listeners", |now| check_listeners(now, &of_others(now), count))
            .await?;
        changed.ensure_same(before, &of_ours).context("after the other controller changed its load balancers")?;
        let of_theirs = of_others(&changed);
        bed.patch(names(&self.ours)[0], second_port()).await?;
        bed.delete(&names(&self.ours)[1..]).await?;
        let of_ccm = |now: &Account| -> Ids { now.new_since(empty).difference(&of_theirs).cloned().collect() };
        let own = bed.until("ccm adds a listener", |now| check_listeners(now, &of_ccm(now), 2)).await?;
        own.ensure_same(&changed, &of_theirs).context("after ccm changed one load balancer and deleted another one")?;
        let of_ours = of_ccm(&own);
        Ok((own, of_ours))
    }

    /// Deletes the other controller's load balancers, then ccm's: nothing is left.
    async fn delete(&self, bed: &SharedBed, empty: &Account, (before, of_ours): (Account, Ids)) -> Result<()> {
        if self.ingress.is_some() {
            bed.kubectl(&["delete", "ingress,service", "site", "--timeout=180s"], "").await?;
        }
        // One after the other: the controller keeps its shared security group if it deletes the last two concurrently.
        for name in names(&self.theirs) {
            bed.delete(&[name]).await.context("the other controller's")?;
        }
        let deleted = bed
            .until("only ccm's resources are left", |now| {
                let left: Ids = now.new_since(empty).difference(&of_ours).cloned().collect();
                ensure!(left.is_empty(), "the other controller left {}", now.describe(&left));
                Ok(())
            })
            .await?;
        deleted.ensure_same(&before, &of_ours).context("after the other controller deleted its load balancers")?;
        bed.delete(&names(&self.ours)[..1]).await?;
        bed.until("nothing is left", |now| {
            let left = now.new_since(empty);
            ensure!(left.is_empty(), "ccm left {}", now.describe(&left));
            Ok(())
        })
        .await?;
        Ok(())
    }
}

/// Waits until Services that cloud-provider-aws left to another controller have lost its finalizer.
async fn until_released(bed: &SharedBed, theirs: &[Value]) -> Result<()> {
    for service in theirs.iter().filter(|service| !service["metadata"]["finalizers"].is_null()) {
        let [name] = names(std::slice::from_ref(service))[..] else { continue };
        eventually(format!("{name} loses the finalizer"), || async {
            let found = bed.services.get(name).await?;
            ensure!(!found.finalizers().iter().any(|one| one == FINALIZER), "{:?}", found.finalizers());
            Ok(())
        })
        .await?;
    }
    Ok(())
}
