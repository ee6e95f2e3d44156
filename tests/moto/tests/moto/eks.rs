//! The chart with the values for EKS, rendered and applied: ccm runs with the resulting flags, configuration and
//! permissions, together with controllers that serve all other Services.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use ccm::flags::Options as Flags;
use cluster_tests::{Faults, Manager, Space, eventually};
use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service as KubeService};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use moto::Policy;
use serde_json::json;

use crate::balancers::{AccountResources, PREFIX};
use crate::bed::{AwsBed, CLUSTER, POLICY, provider_in};

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/charts/ccm");
/// The namespace in the installation guide, docs/aws.md.
const NAMESPACE: &str = "kube-system";

/// Renders the chart for this bed's network, and applies it.
async fn install(bed: &AwsBed) -> Result<()> {
    let cluster = &bed.cloud.bed.cluster;
    let charts = cluster.assets().charts()?;
    let values = cluster.folder().join("eks-cluster.yaml");
    // JSON is valid YAML.
    let cluster_values = json!({"clusterName": CLUSTER, "cloudConfig": bed.moto.cloud_config()});
    fs::write(&values, cluster_values.to_string())?;
    let output = Command::new(charts)
        .args(["template", CHART, "ccm", NAMESPACE, &format!("{CHART}/values-eks.yaml")])
        .arg(&values)
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (applying, manifests) = (bed.cloud.bed.clone(), String::from_utf8(output.stdout)?);
    let apply =
        move || applying.cluster.kubectl_with_input(&["apply", "--validate=strict", "--filename=-"], &manifests);
    tokio::task::spawn_blocking(apply).await??;
    Ok(())
}

/// Runs ccm as the Deployment does: with its flags, its configuration, and its service account.
async fn run_installed(bed: &AwsBed) -> Result<Manager> {
    let client = &bed.cloud.bed.client;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let of_chart = ListParams::default().labels("app.kubernetes.io/name=ccm");
    let made = deployments.list(&of_chart).await?.items.pop().context("no Deployment")?;
    let pod = made.spec.template.spec.context("no pods")?;
    ensure!(pod.host_network != Some(true), "the pod uses the network of the host: {pod:?}");
    let account = pod.service_account_name.context("no service account")?;
    let volumes = pod.volumes.unwrap_or_default();
    let config = volumes.iter().find_map(|volume| Some(volume.config_map.as_ref()?.name.clone()));
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let config = maps.get(&config.context("no configuration")?).await?.data.unwrap_or_default();
    let config = config.get("cloud.conf").context("no cloud.conf")?.clone();

    let [container] = pod.containers.as_slice() else { bail!("{} containers", pod.containers.len()) };
    let [_, flags @ ..] = container.command.as_deref().unwrap_or_default() else { bail!("no command") };
    // One process needs no election.
    let flags = flags.iter().map(|flag| flag.replace("--leader-elect=true", "--leader-elect=false")).collect();
    let user = format!("system:serviceaccount:{NAMESPACE}:{account}");
    let later = SignedDuration::from_hours(1);
    let provider = |options: &Flags| provider_in(&ccm::app::build_context(options, None, config.into_bytes()));
    bed.cloud.start_ccm_as(&user, provider, &Faults::default(), flags, later).await
}

fn service(name: &str, class: Option<&str>, kind: Option<&str>) -> Result<KubeService> {
    let annotations = kind.map(|kind| json!({format!("{PREFIX}type"): kind}));
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": class, "ports": [{"port": 80, "targetPort": 8080}]},
    }))?)
}

/// ccm serves the Services of its class and no others, without the metadata service and with the published policy.
pub async fn installation_on_eks_serves_only_its_class(_: Space) -> Result<()> {
    let bed = AwsBed::start().await?;
    bed.moto.proxy.enforce(Policy::parse(&[POLICY], &[("CLUSTER", CLUSTER)])?);
    // EKS initializes nodes.
    let instances = bed.moto.run(2).await?;
    for instance in &instances {
        bed.register(instance, json!({"spec": {"providerID": instance.provider_id(), "taints": []}})).await?;
    }
    install(&bed).await?;
    let services: Api<KubeService> = Api::namespaced(bed.cloud.bed.client.clone(), "default");
    let others = [
        ("of-eks", None, None),
        ("of-eks-nlb", None, Some("nlb")),
        ("of-controller-by-type", None, Some("external")),
        ("of-controller-by-class", Some("service.k8s.aws/nlb"), None),
        ("of-auto-mode", Some("eks.amazonaws.com/nlb"), None),
    ];
    for (name, class, kind) in others {
        services.create(&PostParams::default(), &service(name, class, kind)?).await?;
    }
    services.create(&PostParams::default(), &service("ours", Some("ccm/nlb"), None)?).await?;
    let _manager = run_installed(&bed).await?;
    eventually("the Service of its class has a host name", || async {
        let status = services.get("ours").await?.status.and_then(|status| status.load_balancer);
        let ingress = status.and_then(|status| status.ingress).unwrap_or_default();
        ensure!(ingress.first().is_some_and(|one| one.hostname.is_some()), "{ingress:?}");
        Ok(())
    })
    .await?;
    let resources = AccountResources::read(&bed.moto).await?;
    ensure!(resources.balancers.len() == 1 && resources.target_groups.len() == 1, "{resources:?}");
    services.delete("ours", &DeleteParams::default()).await?;
    eventually("its load balancer is deleted", || async {
        ensure!(services.get_opt("ours").await?.is_none(), "the Service still has its finalizer");
        let resources = AccountResources::read(&bed.moto).await?;
        ensure!(resources.is_empty(), "{resources:?}");
        Ok(())
    })
    .await?;
    for (name, ..) in others {
        let other = services.get(name).await?;
        let ingress = other.status.and_then(|status| status.load_balancer).and_then(|status| status.ingress);
        let finalizers = other.metadata.finalizers.unwrap_or_default();
        ensure!(finalizers.is_empty() && ingress.is_none(), "{name} was changed: {finalizers:?} {ingress:?}");
    }
    let denied = bed.moto.proxy.denied();
    ensure!(denied.is_empty(), "the policy denies {denied:?}");
    Ok(())
}
