//! The initial state of a mock cloud: read from `--cloud-config` as JSON, or built in code.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ipnet::{Ipv4Net, Ipv6Net};
use providers::{Address, AddressKind, Taint};
use serde::{Deserialize, Serialize};

use crate::fault::Fault;

/// The configuration; every field is optional.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MockConfig {
    /// Seed that decides which calls a fault with a probability affects.
    pub seed: u64,
    /// The default region of instances.
    pub region: String,
    /// The zones over which instances without a zone are spread.
    pub zones: Vec<String>,
    /// The existing instances.
    pub instances: Vec<InstanceConfig>,
    /// Every requested Node gets an instance, unless its instance was removed or an annotation names its instance.
    pub auto_instances: bool,
    /// The network of the load balancers' IPv4 addresses.
    pub balancer_network: Ipv4Net,
    /// The network of the load balancers' IPv6 addresses.
    pub balancer_network_v6: Ipv6Net,
    /// Time until a new load balancer works, in milliseconds.
    pub provisioning_millis: u64,
    /// Duration of a load balancer's deletion, in milliseconds.
    pub deletion_millis: u64,
    /// Time until a new target is healthy, in milliseconds.
    pub health_millis: u64,
    /// The account's limits.
    pub quotas: Quotas,
    /// Injected faults.
    pub faults: Vec<Fault>,
    /// The address at which state, calls, faults and instances are served over HTTP; `None`: not served. Any client may
    /// change anything, so use a loopback address.
    pub listen: Option<SocketAddr>,
    /// The Secret with the provider's credentials in its key `token`, as `namespace/name`; `None`: the provider needs
    /// no credentials. The cloud accepts any token until one is set with
    /// [`MockCloud::set_token`](crate::MockCloud::set_token).
    pub secret: Option<String>,
    /// URL of a mock cloud that another process serves at its `listen`, such as `http://127.0.0.1:9902`: several
    /// processes then use the same cloud, which outlives each of them. No other field may be set.
    pub url: Option<String>,
}

impl Default for MockConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            region: "mock-1".into(),
            zones: vec!["mock-1a".into(), "mock-1b".into(), "mock-1c".into()],
            instances: Vec::new(),
            auto_instances: false,
            balancer_network: Ipv4Net::new_assert([198, 18, 0, 0].into(), 15),
            balancer_network_v6: Ipv6Net::new_assert([0x2001, 0xdb8, 0, 1, 0, 0, 0, 0].into(), 64),
            provisioning_millis: 0,
            deletion_millis: 0,
            health_millis: 0,
            quotas: Quotas::default(),
            faults: Vec::new(),
            listen: None,
            secret: None,
            url: None,
        }
    }
}

/// Limits; `None`: unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quotas {
    /// Number of load balancers.
    pub balancers: Option<usize>,
    /// Number of addresses of load balancers.
    pub addresses: Option<usize>,
    /// Targets per load balancer.
    pub targets: Option<usize>,
    /// Routes, including foreign ones.
    pub routes: Option<usize>,
}

/// The configuration of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InstanceConfig {
    /// The instance's name, which is also its Node's.
    pub name: String,
    /// `mock://<region>/<name>` by default. Another cloud's scheme is allowed, for Nodes with a foreign ID.
    pub provider_id: Option<String>,
    /// Compared with a Node's system UUID, if the Node has no provider ID.
    pub system_uuid: Option<String>,
    /// `mock.small` by default.
    pub instance_type: Option<String>,
    /// By default one of the cloud's zones, chosen by the name.
    pub zone: Option<String>,
    /// The cloud's region by default.
    pub region: Option<String>,
    /// By default its own name and an address in 10.0.0.0/8 derived from the name.
    pub addresses: Vec<Address>,
    /// Additional labels for its Node. Those that begin with `node.mock.cloud/` follow the instance.
    pub labels: BTreeMap<String, String>,
    /// Taints of its Node; their keys begin with `node.mock.cloud/`.
    pub taints: Vec<Taint>,
    /// The instance exists but does not run.
    pub stopped: bool,
    /// Time until reads return it, in milliseconds.
    pub visible_after_millis: u64,
}

impl InstanceConfig {
    /// Returns an instance with only a name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Returns the instance as the cloud describes it, with deterministic defaults.
    pub(crate) fn complete(&self, cloud: &MockConfig) -> providers::Instance {
        let hash = fnv(&self.name);
        let region = self.region.clone().unwrap_or_else(|| cloud.region.clone());
        let zone = || match cloud.zones.len() {
            0 => String::new(),
            count => cloud.zones[(hash % count as u64) as usize].clone(),
        };
        let addresses = || {
            let [.., a, b, c] = hash.to_be_bytes();
            vec![
                Address { kind: AddressKind::InternalIP, address: format!("10.{a}.{b}.{c}") },
                Address { kind: AddressKind::Hostname, address: self.name.clone() },
            ]
        };
        providers::Instance {
            provider_id: self.provider_id.clone().unwrap_or_else(|| format!("mock://{region}/{}", self.name)),
            instance_type: self.instance_type.clone().unwrap_or_else(|| "mock.small".into()),
            zone: self.zone.clone().unwrap_or_else(zone),
            region,
            addresses: if self.addresses.is_empty() { addresses() } else { self.addresses.clone() },
            labels: self.labels.clone(),
            taints: self.taints.clone(),
        }
    }
}

/// Returns the FNV-1a hash: the same on every run and host, which `std`'s hashers do not guarantee.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_defaults_are_deterministic() {
        let cloud = MockConfig::default();
        let one = InstanceConfig::named("node-1").complete(&cloud);
        assert_eq!(one, InstanceConfig::named("node-1").complete(&cloud));
        assert_eq!(one.provider_id, "mock://mock-1/node-1");
        assert!(cloud.zones.contains(&one.zone), "{}", one.zone);
        assert_eq!(one.addresses[1].address, "node-1");
        assert_ne!(one.addresses[0], InstanceConfig::named("node-2").complete(&cloud).addresses[0]);
        let zoneless = MockConfig { zones: Vec::new(), ..cloud };
        assert_eq!(InstanceConfig::named("node-1").complete(&zoneless).zone, "");
    }

    #[test]
    fn misspelled_field_is_reported() {
        let error = serde_json::from_str::<MockConfig>(r#"{"auto_instance": true}"#).unwrap_err().to_string();
        assert!(error.contains("auto_instance") && error.contains("auto_instances"), "{error}");
        let config: MockConfig = serde_json::from_str(
            r#"{"instances": [{"name": "a", "stopped": true}], "quotas": {"routes": 3},
                "faults": [{"operation": "CreateBalancer", "nth": 2, "effect": "response_lost"}]}"#,
        )
        .unwrap();
        assert!(config.instances[0].stopped);
        assert_eq!(config.quotas.routes, Some(3));
        assert_eq!(config.faults.len(), 1);
    }
}
