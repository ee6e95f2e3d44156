//! The configuration files of the node's programs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::config::{NodeConfig, OWN, PROGRAMS};
use crate::address::{DNS, PODS};
use crate::images::PAUSE;
use crate::images::registry::HOST;

/// containerd's configuration, as a file name in [`OWN`] like those below.
pub const CONTAINERD: &str = "containerd.toml";
/// The kubelet's configuration.
pub const KUBELET: &str = "kubelet.json";
/// kube-proxy's configuration.
pub const KUBE_PROXY: &str = "kube-proxy.json";
/// The template of the pod network's configuration, which containerd fills in with the node's range.
const POD_NETWORK: &str = "pod-network.template";
/// The folder with the filled in template.
const POD_NETWORKS: &str = "pod-networks";
/// The folder of static pods.
const STATIC_PODS: &str = "static-pods";
/// The folder with the addresses of image registries.
const REGISTRIES: &str = "registries";
/// The file of DNS servers for pods without cluster DNS: empty, as nothing outside the cluster is reached.
const RESOLVER: &str = "resolv.conf";

/// The socket of containerd.
pub const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";

/// The bit of CAP_SYS_RESOURCE in the sets of capabilities.
const SYS_RESOURCE: u64 = 1 << 24;

/// Writes all files.
pub(super) fn write(node: &NodeConfig) -> Result<()> {
    let may_raise_priority = capabilities()? & SYS_RESOURCE != 0;
    write_own(CONTAINERD, &containerd(may_raise_priority))?;
    write_registry(node)?;
    write_own(POD_NETWORK, &pod_network().to_string())?;
    write_own(KUBELET, &kubelet().to_string())?;
    write_own(KUBE_PROXY, &kube_proxy(&node.name).to_string())?;
    write_own(RESOLVER, "")?;
    let machine_id = fs::read_to_string("/proc/sys/kernel/random/uuid").context("read a random number")?;
    replace_in_etc("machine-id", &machine_id.replace('-', ""))?;
    replace_in_etc("hostname", &format!("{}\n", node.name))?;
    replace_in_etc("hosts", &format!("127.0.0.1 localhost\n{} {}\n", node.address, node.name))?;
    replace_in_etc("resolv.conf", "")?;
    // The machine may have static pods and pod networks of its own, which are not for this node.
    let (networks, pods) = (format!("{OWN}/{POD_NETWORKS}"), format!("{OWN}/{STATIC_PODS}"));
    for folder in [networks.as_str(), &pods, "/var/lib/kubelet", "/var/log/pods"] {
        fs::create_dir_all(folder).with_context(|| format!("make {folder}"))?;
    }
    Ok(())
}

/// Makes containerd pull images of upstream's registry from the machine.
fn write_registry(node: &NodeConfig) -> Result<()> {
    let folder = Path::new(OWN).join(REGISTRIES).join(HOST);
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let hosts = format!("[host.\"http://{}\"]\n  capabilities = [\"pull\", \"resolve\"]\n", node.registry);
    write_own(&format!("{REGISTRIES}/{HOST}/hosts.toml"), &hosts)
}

fn write_own(name: &str, text: &str) -> Result<()> {
    let path = Path::new(OWN).join(name);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

/// Replaces a file of `/etc`, which may be a link to a place that the node does not have.
fn replace_in_etc(name: &str, text: &str) -> Result<()> {
    let path = Path::new("/etc").join(name);
    let _ = fs::remove_file(&path);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))
}

/// Returns the effective capabilities of this process.
fn capabilities() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).context("no capabilities in the status")?;
    u64::from_str_radix(set.trim(), 16).context("read the capabilities")
}

fn containerd(may_raise_priority: bool) -> String {
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "{OWN}/{REGISTRIES}"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  # Without the capability, a pod cannot have a lower score than containerd itself.
  restrict_oom_score_adj = {}
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{PROGRAMS}"]
    conf_dir = "{OWN}/{POD_NETWORKS}"
    conf_template = "{OWN}/{POD_NETWORK}"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{PROGRAMS}/runc"
      SystemdCgroup = false
  # Specs of runtime classes need a second runtime with this name.
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.test-handler]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.test-handler.options]
      BinaryName = "{PROGRAMS}/runc"
      SystemdCgroup = false
[plugins."io.containerd.nri.v1.nri"]
  disable = true
"#,
        !may_raise_priority
    )
}

fn pod_network() -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "mtu": 1500,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/var/lib/cni/networks",
                    "ranges": [[{ "subnet": "{{.PodCIDR}}" }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            },
            { "type": "portmap", "backend": "nftables", "capabilities": { "portMappings": true } },
        ],
    })
}

fn kubelet() -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "x509": { "clientCAFile": format!("{OWN}/{}", NodeConfig::AUTHORITY) },
            "webhook": { "enabled": true },
            "anonymous": { "enabled": false },
        },
        "authorization": { "mode": "Webhook" },
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": false,
        "failSwapOn": false,
        "clusterDomain": "cluster.local",
        "clusterDNS": [DNS],
        "resolvConf": format!("{OWN}/{RESOLVER}"),
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
        "staticPodPath": format!("{OWN}/{STATIC_PODS}"),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "rotateCertificates": true,
        "makeIPTablesUtilChains": false,
        "serializeImagePulls": false,
        // No garbage collection of images: they are imported from files only once, and the disk is the machine's.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        // Thresholds in bytes, like the requirement of free space: a percentage of a large disk may be more than that.
        "evictionHard": { "memory.available": "50Mi", "nodefs.available": "100Mi", "imagefs.available": "100Mi" },
    })
}

fn kube_proxy(node: &str) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": { "kubeconfig": format!("{OWN}/{}", NodeConfig::PROXY) },
        "mode": "nftables",
        "clusterCIDR": PODS,
        "hostnameOverride": node,
        // The machine's limit of connections is not changed.
        "conntrack": { "maxPerCore": 0, "min": 0 },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requirements;

    #[test]
    fn eviction_thresholds_are_below_the_required_free_space_of_any_disk() {
        let kubelet = kubelet();
        for (signal, threshold) in kubelet["evictionHard"].as_object().unwrap() {
            let mib = threshold.as_str().and_then(|text| text.strip_suffix("Mi")).and_then(|text| text.parse().ok());
            let mib: u64 = mib.unwrap_or_else(|| panic!("{signal} is {threshold}, a part of the machine's disk"));
            assert!(mib << 20 < requirements::smallest_cluster_bytes(), "{signal}");
        }
    }
}
