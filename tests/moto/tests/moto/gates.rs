//! Readiness gates: pods behind a load balancer become ready when their targets are healthy.

use anyhow::{Context as _, Result, ensure};
use cluster_tests::{Space, eventually};
use k8s_openapi::api::core::v1::{Pod, PodCondition, Service as KubeService, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use moto::Service;
use serde_json::{Value, json};

use crate::balancers::{AccountResources, PREFIX, service, texts};
use crate::bed::AwsBed;

const RBAC: &str = include_str!("../../../../deploy/ccm-targets-rbac.yaml");
const GATE: &str = "target-health.elbv2.k8s.aws/";

/// A cluster with ccm, and its pods behind a load balancer.
struct GatedPods {
    bed: AwsBed,
    pods: Api<Pod>,
    slices: Api<EndpointSlice>,
}

impl GatedPods {
    /// Creates a pod with these readiness gates and the condition `ContainersReady`.
    async fn create_pod(&self, name: &str, gates: &[&str]) -> Result<Pod> {
        let gates: Vec<Value> = gates.iter().map(|gate| json!({"conditionType": gate})).collect();
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "web"}], "readinessGates": gates},
        });
        self.pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let status = json!({"status": {"conditions": [{"type": "ContainersReady", "status": "True"}]}});
        Ok(self.pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(&status)).await?)
    }

    /// Replaces the endpoints of the slice by these pods and addresses. None of the endpoints is ready.
    async fn apply_slice(&self, pods: &[(&Pod, &str)]) -> Result<()> {
        let endpoint = |(pod, address): &(&Pod, &str)| {
            let meta = &pod.metadata;
            json!({
                "addresses": [address],
                "conditions": {"ready": false, "serving": false, "terminating": false},
                "targetRef": {"kind": "Pod", "namespace": "default", "name": meta.name, "uid": meta.uid},
            })
        };
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
            "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
        });
        let apply = PatchParams::apply("test").force();
        self.slices.patch("web-1", &apply, &Patch::Apply(&slice)).await.map(drop)?;
        Ok(())
    }

    async fn condition(&self, pod: &str, kind: &str) -> Result<Option<PodCondition>> {
        let status = self.pods.get(pod).await?.status.unwrap_or_default();
        Ok(status.conditions.unwrap_or_default().into_iter().find(|condition| condition.type_ == kind))
    }

    async fn until_condition(&self, pod: &str, kind: &str, status: &str, reason: &str) -> Result<PodCondition> {
        eventually(format!("{pod} has the condition {kind} with {status} {reason}"), || async {
            let condition = self.condition(pod, kind).await?.context("no such condition")?;
            let is_expected = condition.status == status && condition.reason.as_deref().unwrap_or_default() == reason;
            ensure!(is_expected, "{condition:?}");
            Ok(condition)
        })
        .await
    }
}

/// Pods are registered as targets before they are ready. Their conditions follow the health of their targets, and
/// become true when the load balancer is deleted.
pub async fn pods_become_ready_when_their_targets_are_healthy(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    let control_plane = bed.cloud.bed.clone();
    let applied =
        tokio::task::spawn_blocking(move || control_plane.cluster.kubectl_with_input(&["apply", "--filename=-"], RBAC));
    applied.await??;
    let client = bed.cloud.bed.client.clone();
    // Pods need the default ServiceAccount, and no controller creates it here.
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "default"}}))?;
    Api::namespaced(client.clone(), "default").create(&PostParams::default(), &account).await?;
    let services: Api<KubeService> = Api::namespaced(client.clone(), "default");
    let cluster =
        GatedPods { bed, pods: Api::namespaced(client.clone(), "default"), slices: Api::namespaced(client, "default") };
    let flags = ["--controllers=cloud-node,service", "--load-balancer-readiness-gates"];
    let _manager = cluster.bed.ccm(&flags).await?;
    let of_service = format!("{GATE}web");
    cluster.bed.moto.proxy.set_in_first_checks("10.0.16.10", true);
    let first = cluster.create_pod("web-0", &[&of_service]).await?;
    let other = cluster.create_pod("web-1", &[&of_service, "example.com/other"]).await?;
    cluster.apply_slice(&[(&first, "10.0.16.10"), (&other, "10.0.16.11")]).await?;
    let annotations = json!({format!("{PREFIX}type"): "nlb", format!("{PREFIX}nlb-target-type"): "ip"});
    services.create(&PostParams::default(), &service("web", annotations)?).await?;

    let condition = cluster.until_condition("web-0", &of_service, "False", "Elb.InitialHealthChecking").await?;
    ensure!(condition.message.as_deref() == Some("Initial health checks in progress"), "{condition:?}");
    let resources = AccountResources::read(&cluster.bed.moto).await?;
    let group = resources.target_groups.first().context("no target group")?;
    let health = [("TargetGroupArn", &**group)];
    let health = cluster.bed.moto.aws.call(Service::Elb, "DescribeTargetHealth", &health).await?;
    ensure!(texts(&health, "Id") == ["10.0.16.10"], "a pod that waits for another gate is registered: {health}");
    cluster.bed.moto.proxy.set_in_first_checks("10.0.16.10", false);
    cluster.until_condition("web-0", &of_service, "True", "").await?;
    ensure!(cluster.condition("web-1", &of_service).await?.is_none(), "a pod that is not a target has a condition");

    // The webhook of the Load Balancer Controller names gates by target groups.
    let groups = cluster.bed.moto.aws.call(Service::Elb, "DescribeTargetGroups", &[]).await?;
    let name = texts(&groups, "TargetGroupName").into_iter().next().context("no target group")?;
    let of_group = format!("{GATE}{name}");
    let second = cluster.create_pod("web-2", &[&of_group]).await?;
    cluster.bed.moto.proxy.set_in_first_checks("10.0.16.13", true);
    let third = cluster.create_pod("web-3", &[&of_group]).await?;
    cluster.apply_slice(&[(&first, "10.0.16.10"), (&second, "10.0.16.12"), (&third, "10.0.16.13")]).await?;
    cluster.until_condition("web-2", &of_group, "True", "").await?;
    cluster.until_condition("web-3", &of_group, "False", "Elb.InitialHealthChecking").await?;

    services.delete("web", &DeleteParams::default()).await?;
    let condition = cluster.until_condition("web-3", &of_group, "True", "").await?;
    ensure!(condition.message.as_deref() == Some("The load balancer is deleted"), "{condition:?}");
    Ok(())
}
