//! Storage versions on a real API server: the entries of stopped API servers.

use anyhow::{Result, ensure};
use cluster_tests::programs::KCM;
use cluster_tests::{Space, all_gates, eventually};
use control_plane::{ControlPlane, Options};

use crate::process::serving::ManagerProcess;

const GATES: &str = "--feature-gates=APIServerIdentity=true,StorageVersionAPI=true";

/// Starts an API server that reports storage versions.
async fn reporting() -> Result<ControlPlane> {
    let flags = [GATES, "--runtime-config=internal.apiserver.k8s.io/v1alpha1=true"];
    let extra_apiserver_flags = flags.map(str::to_owned).to_vec();
    all_gates::control_plane(Options { kwok: false, scheduler: false, extra_apiserver_flags, ..Options::default() })
        .await
}

/// Creates a StorageVersion with entries of these API servers.
pub fn report(cluster: &ControlPlane, name: &str, servers: &[(&str, &str)]) -> Result<()> {
    let object = format!(
        r#"{{"apiVersion":"internal.apiserver.k8s.io/v1alpha1","kind":"StorageVersion","metadata":{{"name":"{name}"}},"spec":{{}}}}"#
    );
    cluster.kubectl_with_input(&["create", "-f", "-"], &object)?;
    let entry = |(server, version): &(&str, &str)| {
        format!(
            r#"{{"apiServerID":"{server}","encodingVersion":"{version}","decodableVersions":["{version}"],"servedVersions":["{version}"]}}"#
        )
    };
    let entries: Vec<String> = servers.iter().map(entry).collect();
    let first = servers.first().map_or("", |(_, version)| version);
    let common =
        if servers.iter().all(|(_, version)| *version == first) { format!("\"{first}\"") } else { "null".into() };
    let entries = entries.join(",");
    let status = format!(r#"{{"status":{{"commonEncodingVersion":{common},"storageVersions":[{entries}]}}}}"#);
    let target = format!("storageversion/{name}");
    cluster.kubectl(&["patch", &target, "--subresource=status", "--type=merge", "-p", &status])?;
    Ok(())
}

/// Waits until the API server has its identity Lease, and returns the name.
pub async fn identity(cluster: &ControlPlane) -> Result<String> {
    let identity = "-lapiserver.kubernetes.io/identity=kube-apiserver";
    let leases = ["get", "lease", "-n", "kube-system", identity, "-o", "jsonpath={.items[0].metadata.name}"];
    eventually("the API server has its identity Lease", || async {
        let name = cluster.kubectl(&leases)?;
        ensure!(!name.is_empty(), "it has none");
        Ok(name)
    })
    .await
}

/// Entries without an identity Lease are removed, others are updated; a StorageVersion without entries is deleted.
pub async fn entries_of_stopped_api_servers_are_removed(_: Space) -> Result<()> {
    let cluster = reporting().await?;
    let flags = [GATES, "--controllers=storageversion-garbage-collector-controller"].map(str::to_owned);
    let _kcm = ManagerProcess::start(&cluster, KCM, &flags).await?;
    let living = identity(&cluster).await?;

    report(&cluster, "example.com.widgets", &[(&living, "v1"), ("apiserver-stopped", "v2")])?;
    report(&cluster, "example.com.gadgets", &[("apiserver-stopped", "v1")])?;
    eventually("only the entry of the running API server is left", || async {
        let path = "jsonpath={.status.storageVersions[*].apiServerID} {.status.commonEncodingVersion} {.status.conditions[0].status}";
        let left = cluster.kubectl(&["get", "storageversion", "example.com.widgets", "-o", path])?;
        ensure!(left == format!("{living} v1 True"), "{left}");
        let gadgets = cluster.kubectl(&["get", "storageversion", "example.com.gadgets", "--ignore-not-found", "-o", "name"])?;
        ensure!(gadgets.is_empty(), "{gadgets}");
        Ok(())
    })
    .await
}
