//! The KubeVirt provider: the conformance suite, and a tenant cluster with its infrastructure cluster.

use std::fs;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cluster_tests::kubevirt::{self, Infrastructure, Tenant};
use cluster_tests::programs::{CCM, Process, command};
use cluster_tests::{CloudBed, Space, eventually};
use control_plane::Identity;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use provider_conformance::{CaseResult, Outcome};
use provider_kubevirt::Targets;
use serde_json::json;

/// Number of concurrent cases of the suite.
const CONCURRENT_CASES: usize = 4;

/// Runs a case of the suite in a namespace.
async fn run_case(
    infrastructure: &Arc<Infrastructure>,
    targets: Targets,
    namespace: String,
    name: &'static str,
) -> Result<CaseResult> {
    let tenant = infrastructure.tenant(&namespace).await?;
    let provider = tenant.provider(targets)?;
    provider.initialize().await?;
    let result = provider_conformance::run_case(name, &provider, &tenant).await.context("no such case")?;
    println!("{namespace}: {result}");
    if !matches!(result.outcome, Outcome::Failed(_)) {
        ensure!(tenant.created("").await?.is_empty(), "{name} left {:?}", tenant.created("").await?);
    }
    Ok(result)
}

/// Runs the cases of the suite concurrently, each in a namespace of its own. Returns the names of skipped cases.
async fn run_suite(infrastructure: &Arc<Infrastructure>, targets: Targets, mode: &str) -> Result<Vec<String>> {
    let mut runs = Vec::new();
    for (number, name) in provider_conformance::case_names().enumerate() {
        runs.push(run_case(infrastructure, targets, format!("{mode}-{number}"), name));
    }
    let results: Vec<_> = stream::iter(runs).buffer_unordered(CONCURRENT_CASES).try_collect().await?;
    let failed: Vec<String> =
        results.iter().filter(|result| matches!(result.outcome, Outcome::Failed(_))).map(ToString::to_string).collect();
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    let skipped = results.iter().filter(|result| matches!(result.outcome, Outcome::Skipped(_)));
    Ok(skipped.map(|result| result.name.to_owned()).collect())
}

/// Returns the cases that KubeVirt's API makes impossible: it has no annotations of its own, no routes and no firewall,
/// and each read returns what was written before. The provider sets labels only on new nodes, and reads no Secrets.
fn expected_skips() -> Vec<&'static str> {
    let mut names = vec![
        "invalid_annotation_is_reported_and_nothing_created",
        "dual_stack_gets_addresses_of_both_families",
        "variant_is_changed_into_another",
        "endpoints_are_targets",
        "firewall_follows_targets",
        "describe_finds_an_instance_by_annotations",
        "labels_and_taints_follow_the_instance",
        "changed_secret_replaces_the_credentials",
        "written_annotations_have_the_prefix",
        "load_balancer_that_is_not_visible_yet_is_created_once",
    ];
    names.extend(provider_conformance::case_names().filter(|name| name.contains("route")));
    names.sort_unstable();
    names
}

pub async fn provider_with_listed_nodes_conforms(_: Space) -> Result<()> {
    let infrastructure = Infrastructure::start().await?;
    let mut skipped = run_suite(&infrastructure, Targets::Nodes, "nodes").await?;
    skipped.sort_unstable();
    ensure!(skipped == expected_skips(), "skipped: {skipped:?}");
    Ok(())
}

pub async fn provider_with_a_selector_conforms(_: Space) -> Result<()> {
    let infrastructure = Infrastructure::start().await?;
    let mut skipped = run_suite(&infrastructure, Targets::Selector, "selector").await?;
    skipped.retain(|name| name != "partial_load_balancer_is_listed_and_deleted");
    skipped.sort_unstable();
    ensure!(skipped == expected_skips(), "skipped: {skipped:?}");
    Ok(())
}

/// A tenant cluster with a ccm process of its own.
struct TenantCluster {
    cloud: CloudBed,
    tenant: Tenant,
    process: Process,
}

impl TenantCluster {
    /// Starts a tenant cluster's control plane and its ccm.
    async fn start(infrastructure: &Arc<Infrastructure>, targets: &str) -> Result<Self> {
        let tenant = infrastructure.tenant("tenant").await?;
        let cloud = CloudBed::start().await?;
        let cluster = &cloud.bed.cluster;
        let config = cluster.folder().join("cloud-config");
        let text = format!(
            "kubeconfig: {}\nnamespace: {}\nloadBalancer:\n  creationPollInterval: 1\n  targets: {targets}\n",
            tenant.kubeconfig()?.display(),
            tenant.namespace
        );
        fs::write(&config, text)?;
        let arguments = [
            format!("--kubeconfig={}", cluster.kubeconfig(Identity::Admin)?.display()),
            "--cloud-provider=kubevirt".to_owned(),
            format!("--cloud-config={}", config.display()),
            format!("--cluster-name={}", tenant.cluster),
            "--leader-elect=false".to_owned(),
            "--configure-cloud-routes=false".to_owned(),
            "--node-monitor-period=1s".to_owned(),
        ];
        let process = Process::start(cluster, "tenant-ccm", &command(cluster, CCM)?, &arguments)?;
        process.until_healthy(cluster, "/healthz").await?;
        Ok(Self { cloud, tenant, process })
    }

    fn services(&self) -> Api<Service> {
        Api::namespaced(self.cloud.bed.client.clone(), "default")
    }
}

/// Waits until the node has the data of its virtual machine, which has this address.
async fn until_node_is_initialized(cloud: &CloudBed, address: &str) -> Result<()> {
    eventually("the node is initialized", || async {
        let node = cloud.nodes().get("vm-1").await?;
        let spec = node.spec.context("no spec")?;
        ensure!(spec.provider_id.as_deref() == Some("kubevirt://vm-1"), "{:?}", spec.provider_id);
        ensure!(spec.taints.iter().flatten().all(|taint| !taint.key.contains("uninitialized")), "{:?}", spec.taints);
        let labels = node.metadata.labels.unwrap_or_default();
        for (key, value) in [
            ("topology.kubernetes.io/zone", kubevirt::ZONE),
            ("topology.kubernetes.io/region", kubevirt::REGION),
            ("node.kubernetes.io/instance-type", "u1.medium"),
        ] {
            ensure!(labels.get(key).map(String::as_str) == Some(value), "{key} in {labels:?}");
        }
        let addresses = node.status.and_then(|status| status.addresses).unwrap_or_default();
        ensure!(addresses.iter().any(|found| found.type_ == "InternalIP" && found.address == address), "{addresses:?}");
        Ok(())
    })
    .await
}

pub async fn tenants_node_and_service_follow_the_infrastructure(_: Space) -> Result<()> {
    let infrastructure = Infrastructure::start().await?;
    let tenant_cluster = TenantCluster::start(&infrastructure, "Nodes").await?;
    let (cloud, tenant) = (&tenant_cluster.cloud, &tenant_cluster.tenant);
    let address = tenant.start_machine("vm-1").await?;
    cloud.register("vm-1", json!({})).await?;
    until_node_is_initialized(cloud, &address).await?;

    let service = json!({
        "metadata": {"name": "web"},
        "spec": {
            "type": "LoadBalancer",
            "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80}],
            "loadBalancerSourceRanges": ["192.0.2.0/24"],
        },
    });
    tenant_cluster.services().create(&PostParams::default(), &serde_json::from_value(service)?).await?;
    let uid = eventually("the Service has the infrastructure's address, and the node gets its traffic", || async {
        let service = tenant_cluster.services().get("web").await?;
        let uid = service.metadata.uid.clone().context("no uid")?;
        let created = tenant.services().list(&Default::default()).await?.items;
        let [infra] = &created[..] else { anyhow::bail!("{} Services in the infrastructure", created.len()) };
        let addresses = kubevirt::addresses(infra);
        ensure!(!addresses.is_empty() && addresses == kubevirt::addresses(&service), "{addresses:?}");
        let spec = infra.spec.as_ref().context("no spec")?;
        ensure!(spec.load_balancer_source_ranges.as_deref() == Some(&["192.0.2.0/24".to_owned()]), "{spec:?}");
        let slices = tenant.slices().list(&Default::default()).await?.items;
        let targets: Vec<_> = slices
            .iter()
            .flat_map(|slice| slice.endpoints.iter().flatten())
            .flat_map(|found| &found.addresses)
            .collect();
        ensure!(targets == [&address], "{targets:?}");
        Ok(uid)
    })
    .await?;

    // A node that is excluded gets no traffic.
    let label = json!({"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": ""}}});
    cloud.nodes().patch("vm-1", &PatchParams::default(), &Patch::Merge(&label)).await?;
    eventually("the excluded node gets no traffic", || async {
        let created = tenant.created(&uid).await?;
        ensure!(created.len() == 1, "{created:?}");
        Ok(())
    })
    .await?;

    tenant_cluster.services().delete("web", &DeleteParams::default()).await?;
    eventually("nothing is left of the Service", || async {
        ensure!(tenant_cluster.services().get_opt("web").await?.is_none(), "the Service still exists");
        let created = tenant.created("").await?;
        ensure!(created.is_empty(), "{created:?}");
        kubevirt::cloud_is_empty(&infrastructure)
    })
    .await?;

    until_node_follows_its_machine(&tenant_cluster).await?;
    tenant_cluster.process.stop(&cloud.bed.cluster).await
}

/// Stops the virtual machine by deleting its VirtualMachineInstance; then deletes the VirtualMachine.
async fn until_node_follows_its_machine(tenant_cluster: &TenantCluster) -> Result<()> {
    let (cloud, tenant) = (&tenant_cluster.cloud, &tenant_cluster.tenant);
    let machine = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm-1"}});
    tenant.machines().create(&PostParams::default(), &serde_json::from_value(machine)?).await?;
    tenant.instances().delete("vm-1", &DeleteParams::default()).await?;
    cloud.set_ready_condition("vm-1", "Unknown").await?;
    eventually("the node of a stopped virtual machine is tainted", || async {
        let taints = cloud.nodes().get("vm-1").await?.spec.and_then(|spec| spec.taints).unwrap_or_default();
        ensure!(taints.iter().any(|taint| taint.key == "node.cloudprovider.kubernetes.io/shutdown"), "{taints:?}");
        Ok(())
    })
    .await?;
    tenant.machines().delete("vm-1", &DeleteParams::default()).await?;
    eventually("the node of a deleted virtual machine is deleted", || async {
        ensure!(cloud.nodes().get_opt("vm-1").await?.is_none(), "the node still exists");
        Ok(())
    })
    .await
}
